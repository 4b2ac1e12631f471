//! What a process has to do besides its turns.

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

/// How often the rate that people see is brought up to date, until it is zero.
const RATE_EVERY: Duration = Duration::from_millis(500);

/// A runner without work ends after this.
const PATIENCE: Duration = Duration::from_secs(5);

/// Nothing is to be done before the next turn.
const NOTHING: Duration = Duration::MAX;

/// What there is to do, by role.
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

    pub fn before_turn(&mut self, session: &mut Session) {
        if let Self::Scheduler { runners, .. } = self {
            runners.retire(session);
        }
    }

    /// How long no turn is needed for a duty.
    pub fn want_turn_in(&self) -> Duration {
        match self {
            Self::Scheduler { runners, .. } => runners.retry_in().unwrap_or(NOTHING),
            Self::Runner { last_work } => PATIENCE.saturating_sub(last_work.elapsed()),
        }
    }

    /// Says how long there is nothing to do; `None` when the process is not needed any more. To be called after a turn, and when it is
    /// time again.
    pub fn after_turn(&mut self, session: &mut Session, memory: &Memory, next: Next) -> Option<Duration> {
        match self {
            Self::Scheduler { maintenance, counting, rate, .. } => {
                session.want_runners(memory.for_runners(), RUNNERS_CALLS);
                // What is due meanwhile does not make the loop spin.
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

/// Whether calls wait for runners, if only for the time when their table may be used.
fn is_needed(session: &mut Session) -> bool {
    let waiting = session.between_turns(|spi| claim::wait_for_runners(spi, clock::now(), clock::real()));
    waiting.unwrap_or(true)
}

/// Whether a process has the slot of a runner. It has it before it begins its epoch, and until its leases can't be used.
pub fn is_running(database: pg_sys::Oid, role: Role) -> bool {
    Slot::find(database, role).is_some_and(|slot| slot.pid().is_some())
}

/// The scheduler's look after its runners: the leases of one that is gone are void.
#[derive(Default)]
pub struct Runners {
    /// Some have ended, perhaps before any turn has seen them run.
    ended: bool,
    /// What failed is tried again in a later turn.
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

/// Calls per second, of late.
pub struct Rate {
    since: Instant,
    /// Calls that had been made then.
    counted: i64,
    is_zero: bool,
}

impl Rate {
    fn new(session: &Session) -> Self {
        // What the scheduler before this one has shown is not true any more.
        Self { since: Instant::now(), counted: session.slot.calls_total(), is_zero: false }
    }

    /// Shows the rate if it is time. Answers with when it will be; None while there is nothing new to show.
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
