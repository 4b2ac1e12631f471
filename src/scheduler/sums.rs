//! Counts what no row has the sum of, a slice at a time: running processes of roles that have a limit, messages of roles in global
//! queues, and the local queues that are marked as full. Who has too much is said in shared memory, where functions look.

use super::main_loop::in_transaction;
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::session::Session;
use crate::pg::shmem::over::{self, Kind};
use crate::pg::spi::Spi;
use crate::store::full_queues;
use crate::store::quotas::{self, Limits, Sums};
use pgrx::pg_sys;
use std::time::{Duration, Instant};
use xdb_engine::ExecutionId;

/// Rows that are counted in one transaction.
const SLICE: i64 = 2_000;

/// From the begin of one round to that of the next, at least.
const EVERY: Duration = Duration::from_secs(10);

/// The pause after a slice, in times of what it took.
const REST: u32 = 4;
const SHORTEST_REST: Duration = Duration::from_millis(50);

/// Where a round stands.
enum Place {
    Begin,
    Running { limits: Limits, sums: Sums, after: String },
    Messages { sums: Sums, after: i64 },
    FullQueues { after: ExecutionId },
}

/// Two rounds that wait for nothing of each other: one of roles, and one of full queues, of which somebody may have very many.
pub struct Counting {
    roles: Round,
    full_queues: Round,
}

impl Counting {
    /// The first rounds begin at once: what there was in shared memory is gone.
    pub fn new() -> Self {
        Self { roles: Round::new(Place::begin_roles), full_queues: Round::new(Place::begin_full_queues) }
    }

    /// When the next slice is due.
    pub fn due_in(&self) -> Duration {
        self.roles.due.min(self.full_queues.due).saturating_duration_since(Instant::now())
    }

    /// Counts a slice, if it is time. To be called between turns.
    pub fn poll(&mut self, session: &mut Session) {
        if !self.roles.poll(session) {
            self.full_queues.poll(session);
        }
    }
}

/// One round after the other.
struct Round {
    place: Place,
    /// What comes after the begin.
    first: fn(&Spi, pg_sys::Oid) -> Result<Place>,
    began: Instant,
    due: Instant,
}

impl Round {
    fn new(first: fn(&Spi, pg_sys::Oid) -> Result<Place>) -> Self {
        Self { place: Place::Begin, first, began: Instant::now(), due: Instant::now() }
    }

    /// Says whether it was time.
    fn poll(&mut self, session: &mut Session) -> bool {
        let began = Instant::now();
        if began < self.due {
            return false;
        }
        if matches!(self.place, Place::Begin) {
            self.began = began;
        }
        let (database, first) = (session.database, self.first);
        let mut place = std::mem::replace(&mut self.place, Place::Begin);
        let done = in_transaction(session, |spi| {
            if matches!(place, Place::Begin) {
                place = first(spi, database)?;
            }
            // What is short is done in one transaction.
            while !matches!(place, Place::Begin) && !place.step(spi, database)? {}
            Ok(())
        });
        let rest = (began.elapsed() * REST).max(SHORTEST_REST);
        self.due = Instant::now() + rest;
        match done {
            Some(()) => self.place = place,
            // From the beginning, in a while.
            None => self.due = began + EVERY,
        }
        if matches!(self.place, Place::Begin) {
            self.due = self.due.max(self.began + EVERY);
        }
        true
    }
}

impl Place {
    fn begin_roles(spi: &Spi, database: pg_sys::Oid) -> Result<Self> {
        let limits = Limits::read(spi, guc::MAX_RUNNING_PROCESSES.get())?;
        if limits.has_any() {
            return Ok(Self::Running { limits, sums: Sums::new(), after: String::new() });
        }
        over::set(database, Kind::Running, &[]);
        Ok(Self::messages())
    }

    fn begin_full_queues(_: &Spi, _: pg_sys::Oid) -> Result<Self> {
        Ok(Self::FullQueues { after: ExecutionId([0; 16]) })
    }

    /// Counts what is next. True: that was a whole slice, and there may be more of it.
    fn step(&mut self, spi: &Spi, database: pg_sys::Oid) -> Result<bool> {
        match self {
            Self::Begin => {}
            Self::Running { limits, sums, after } => {
                if let Some(more_after) = quotas::add_running(spi, sums, after, SLICE)? {
                    *after = more_after;
                    return Ok(true);
                }
                let limits = sums.iter().map(|(owner, sum)| (*owner, limits.of(*owner), sum.count));
                let reached = limits.filter(|(_, limit, running)| *limit > 0 && *running >= i64::from(*limit));
                over::set(
                    database,
                    Kind::Running,
                    &reached.map(|(owner, limit, _)| (owner, limit as u32)).collect::<Vec<_>>(),
                );
                *self = Self::messages();
            }
            Self::Messages { sums, after } => {
                if let Some(more_after) = quotas::add_messages(spi, sums, *after, SLICE)? {
                    *after = more_after;
                    return Ok(true);
                }
                let (messages, bytes) = (guc::quotas().queue_messages, guc::quotas().queue_bytes);
                let reached = sums.iter().filter(|(_, sum)| sum.count >= messages as i64 || sum.bytes >= bytes as i64);
                let reached: Vec<_> = reached.map(|(owner, _)| (*owner, messages as u32)).collect();
                over::set(database, Kind::Messages, &reached);
                *self = Self::Begin;
            }
            Self::FullQueues { after } => match full_queues::look_again(spi, *after)? {
                Some(counted) => {
                    *after = counted;
                    return Ok(true);
                }
                None => *self = Self::Begin,
            },
        }
        Ok(false)
    }

    fn messages() -> Self {
        Self::Messages { sums: Sums::new(), after: 0 }
    }
}
