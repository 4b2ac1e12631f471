//! The work of an engine process besides its turns. A scheduler retires its runners and shows figures. A runner ends
//! when it is idle.

use super::maintenance::Maintenance;
use super::sums::Counting;
use crate::clock;
use crate::pg::crash;
use crate::pg::session::Session;
use crate::pg::shmem::{Role, Slot};
use crate::store::{claim, engine, execution};
use crate::turn::{Memory, Next, RUNNERS_CALLS, Why};
use pgrx::pg_sys;
use std::time::{Duration, Instant};
use xdb_sched::backoff::{Backoff, Patience};

/// How often the shown rate is updated while it is not zero.
const RATE_EVERY: Duration = Duration::from_millis(500);

/// A runner ends after this time without work.
const PATIENCE: Duration = Duration::from_secs(5);

/// No duty is due before the next turn.
const NOTHING: Duration = Duration::MAX;

/// The duties of a process, by its role.
pub enum Duties {
    Scheduler { maintenance: Box<Maintenance>, counting: Box<Counting>, rate: Rate, runners: Runners },
    Runner { last_work: Instant },
}

impl Duties {
    pub fn of(session: &Session) -> Self {
        match session.role {
            Role::Scheduler => Self::Scheduler {
                maintenance: Box::new(Maintenance::new()),
                counting: Box::new(Counting::new()),
                rate: Rate::new(session),
                runners: Runners::default(),
            },
            Role::Runner(_) => Self::Runner { last_work: Instant::now() },
        }
    }

    /// Makes the leases of ended runners void, before a turn.
    pub fn before_turn(&mut self, session: &mut Session) {
        if let Self::Scheduler { runners, .. } = self {
            runners.retire(session);
        }
    }

    /// How long until a duty needs a turn.
    pub fn want_turn_in(&self) -> Duration {
        match self {
            Self::Scheduler { runners, .. } => runners.retry_in().unwrap_or(NOTHING),
            Self::Runner { last_work } => PATIENCE.saturating_sub(last_work.elapsed()),
        }
    }

    /// Does the duties that are due, and returns how long until the next one. None: the process is not needed any more.
    /// Called after a turn, and when a duty is due.
    pub fn after_turn(&mut self, session: &mut Session, memory: &Memory, next: Next) -> Option<Duration> {
        match self {
            Self::Scheduler { maintenance, counting, rate, .. } => {
                session.want_runners(memory.for_runners(), RUNNERS_CALLS);
                // Duties that come due in a pause or before a retry must not make the loop spin.
                let may_poll = !memory.is_paused() && next.why != Why::Retry;
                if may_poll {
                    maintenance.poll(session);
                    counting.poll(session);
                }
                let polls = [maintenance.due_in(), Some(counting.due_in())];
                let polls = polls.map(|due| due.filter(|_| may_poll));
                let next = polls.into_iter().chain([rate.show(session)]);
                Some(next.flatten().min().unwrap_or(NOTHING))
            }
            Self::Runner { last_work } => {
                if next.is_now() || memory.has_calls() {
                    *last_work = Instant::now();
                }
                if last_work.elapsed() >= PATIENCE {
                    *last_work = Instant::now();
                    if memory.is_paused() || !is_needed(session) {
                        return None;
                    }
                }
                Some(NOTHING)
            }
        }
    }
}

/// Whether calls wait for runners, including calls whose table may be used again only later.
fn is_needed(session: &mut Session) -> bool {
    let waiting = session.between_turns(|spi| claim::wait_for_runners(spi, clock::now(), clock::real()));
    waiting.unwrap_or(true)
}

/// Whether a process has the slot of a runner. It gets the slot before it begins its epoch, and keeps the slot until
/// its leases can't be used.
pub fn is_running(database: pg_sys::Oid, role: Role) -> bool {
    Slot::find(database, role).is_some_and(|slot| slot.pid().is_some())
}

/// Makes the leases of ended runners void.
#[derive(Default)]
pub struct Runners {
    /// Runners have ended, perhaps before any turn has seen them run.
    ended: bool,
    /// After a failure, the next try waits for this backoff.
    failing: Backoff<()>,
}

impl Runners {
    fn retry_in(&self) -> Option<Duration> {
        let now = Instant::now();
        self.failing.next(now).map(|at| at - now)
    }

    fn retire(&mut self, session: &mut Session) {
        self.ended |= session.slot.take_runners_ended();
        if !self.ended || self.failing.is_deferred(&(), Instant::now()) {
            return;
        }
        let database = session.database;
        let retired = session.between_turns(|spi| {
            execution::unmark_all(spi)?;
            engine::retire_runners(spi, |role| !is_running(database, role))?;
            crash::point("retire-runner");
            Ok(())
        });
        if retired.is_none() {
            self.failing.defer((), Instant::now(), Patience::Long);
        } else {
            self.ended = false;
            self.failing.clear(&());
        }
    }
}

/// Calls per second, as `xdb.status()` shows them.
pub struct Rate {
    since: Instant,
    /// The number of calls made until `since`.
    counted: i64,
    is_zero: bool,
}

impl Rate {
    fn new(session: &Session) -> Self {
        // The rate that the previous scheduler has shown is out of date.
        Self { since: Instant::now(), counted: session.slot.calls_total(), is_zero: false }
    }

    /// Shows the rate if it is time. Returns when it will be time again. None: there is nothing new to show.
    fn show(&mut self, session: &Session) -> Option<Duration> {
        let calls = session.slot.calls_total();
        let elapsed = self.since.elapsed();
        if elapsed >= RATE_EVERY && (calls > self.counted || !self.is_zero) {
            session.slot.set_calls_per_second((calls - self.counted) as f64 / elapsed.as_secs_f64());
            *self = Self { since: Instant::now(), counted: calls, is_zero: calls == self.counted };
        }
        (calls > self.counted || !self.is_zero).then(|| RATE_EVERY.saturating_sub(self.since.elapsed()))
    }
}
