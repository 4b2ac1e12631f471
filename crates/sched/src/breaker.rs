//! The breaker of one worker: stops calls to a worker that can't be reached, and finds out when it can be again.
//!
//! It counts calls that did not get through, not calls that failed: an error that a worker answers is an answer. It knows no
//! clock; every moment is handed in.

use std::time::{Duration, Instant};

/// So many calls in a row that did not get through open the breaker. Few enough to spare a dead worker's calls their
/// attempts, and enough for one process with quick retries to spend those that its policy gives it.
pub const FAILURES: u32 = 20;
/// How long it stays open before the first probe.
pub const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Each probe that fails doubles the wait, up to this.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A probe that is under way for so long has been connected, since connecting takes less: its worker is there, and slow.
pub const PROBE_PATIENCE: Duration = Duration::from_secs(15);
/// Waits are longer by up to this part of them, so that servers do not probe in step.
const JITTER: f64 = 0.1;

/// What came of a call, as far as it tells whether the worker can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It got through, whatever was answered.
    Reached,
    /// It did not.
    Unreachable,
    /// It was not tried.
    Unknown,
}

/// Which calls may go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    All,
    /// One, as a probe.
    Probe,
    None,
}

/// Goes with a call from its begin to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    round: u64,
    probe: bool,
}

/// What people see of a breaker that is not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    pub since: Instant,
    /// None while a probe is under way.
    pub next_probe: Option<Instant>,
}

#[derive(Debug)]
enum BreakerState {
    Closed {
        /// In a row.
        failures: u32,
    },
    Open {
        since: Instant,
        wait: Duration,
        probe: Probe,
    },
}

#[derive(Clone, Copy, Debug)]
enum Probe {
    /// The next one goes out with the first call that is due then.
    At(Instant),
    UnderWay {
        since: Instant,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Breaker {
    state: BreakerState,
    /// Grows with every closing. What began before the last one tells nothing of now.
    round: u64,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { state: BreakerState::Closed { failures: 0 }, round: 0 }
    }
}

impl Breaker {
    /// Which calls may go out now.
    pub fn admits(&mut self, now: Instant) -> Admission {
        match self.state {
            BreakerState::Closed { .. } => Admission::All,
            BreakerState::Open { probe: Probe::At(at), .. } if at <= now => Admission::Probe,
            BreakerState::Open { probe: Probe::UnderWay { since }, .. } if since + PROBE_PATIENCE <= now => {
                self.close();
                Admission::All
            }
            BreakerState::Open { .. } => Admission::None,
        }
    }

    /// A call goes out.
    pub fn begin(&mut self, now: Instant) -> Ticket {
        let is_probe = match &mut self.state {
            BreakerState::Closed { .. } => false,
            BreakerState::Open { probe, .. } => {
                *probe = Probe::UnderWay { since: now };
                true
            }
        };
        Ticket { round: self.round, probe: is_probe }
    }

    /// A call has ended. `jitter` is in 0..1.
    pub fn end(&mut self, ticket: Ticket, verdict: Verdict, now: Instant, jitter: f64) {
        if ticket.round != self.round {
            return;
        }
        match (&mut self.state, verdict) {
            (BreakerState::Closed { failures }, Verdict::Unreachable) => {
                *failures += 1;
                if *failures >= FAILURES {
                    let probe = Probe::At(now + stretched(FIRST_WAIT, jitter));
                    self.state = BreakerState::Open { since: now, wait: FIRST_WAIT, probe };
                }
            }
            (BreakerState::Closed { failures }, Verdict::Reached) => *failures = 0,
            (BreakerState::Closed { .. }, Verdict::Unknown) => {}
            (BreakerState::Open { .. }, Verdict::Reached) => self.close(),
            (BreakerState::Open { wait, probe, .. }, verdict) if ticket.probe => {
                if verdict == Verdict::Unreachable {
                    *wait = (*wait * 2).min(LONGEST_WAIT);
                }
                *probe = Probe::At(now + stretched(*wait, jitter));
            }
            // It began before the breaker opened.
            (BreakerState::Open { .. }, _) => {}
        }
    }

    /// Begins anew: the worker is another one now.
    pub fn reset(&mut self) {
        self.close();
    }

    /// When more calls may go out than now, if nothing ends before.
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        let at = match self.state {
            BreakerState::Closed { .. } => return None,
            BreakerState::Open { probe: Probe::At(at), .. } => at,
            BreakerState::Open { probe: Probe::UnderWay { since }, .. } => since + PROBE_PATIENCE,
        };
        (at > now).then_some(at)
    }

    /// What people see; nothing of a closed one.
    pub fn open(&self) -> Option<Open> {
        match self.state {
            BreakerState::Closed { .. } => None,
            BreakerState::Open { since, probe: Probe::At(at), .. } => Some(Open { since, next_probe: Some(at) }),
            BreakerState::Open { since, probe: Probe::UnderWay { .. }, .. } => Some(Open { since, next_probe: None }),
        }
    }

    fn close(&mut self) {
        self.state = BreakerState::Closed { failures: 0 };
        self.round += 1;
    }
}

fn stretched(wait: Duration, jitter: f64) -> Duration {
    wait.mul_f64(1.0 + JITTER * jitter.clamp(0.0, 1.0))
}
