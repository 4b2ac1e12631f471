//! The breaker of one worker. It stops calls to a worker that can't be reached, and finds out when the worker can be
//! reached again.
//!
//! The breaker counts requests that did not get through, not calls that failed: an error from a worker is an answer.
//! The breaker reads no clock. Every moment is a parameter.
//!
//! Limitations: a worker that accepts connections and never answers does not open the breaker.

use std::time::{Duration, Instant};

/// The breaker opens after this many requests in a row that did not get through. The number is small enough to save
/// attempts while a worker is down. It is large enough for a process with quick retries to use all attempts of its
/// policy.
pub const FAILURES: u32 = 20;
/// How long the breaker stays open before the first probe.
pub const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Each failed probe doubles the wait, up to this time.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Connecting takes less than this. So a probe that is under way for longer has reached its worker, which is slow.
pub const PROBE_PATIENCE: Duration = Duration::from_secs(15);
/// Waits are longer by up to this part, so that servers do not probe in step.
const JITTER: f64 = 0.1;

/// What the end of a request says about whether the worker can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// The request got through, whatever the answer.
    Reached,
    /// The request did not get through.
    Unreachable,
    /// The request was not sent.
    Unknown,
}

/// Which calls may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    All,
    /// One call, as a probe.
    Probe,
    None,
}

/// Links the end of a call to its begin. The caller keeps it while the call is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    round: u64,
    probe: bool,
}

/// An open breaker, as it is shown to operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// When the breaker opened.
    pub since: Instant,
    /// None: a probe is under way.
    pub next_probe: Option<Instant>,
}

#[derive(Debug)]
enum BreakerState {
    Closed {
        /// The number of failures in a row.
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
    /// The first call that is due after this moment is the probe.
    At(Instant),
    UnderWay {
        since: Instant,
    },
}

/// The breaker of one worker: see the head of this file.
#[derive(Debug)]
pub struct Breaker {
    state: BreakerState,
    /// Grows each time the breaker closes. Calls from before that say nothing about the present.
    round: u64,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { state: BreakerState::Closed { failures: 0 }, round: 0 }
    }
}

impl Breaker {
    /// Which calls may be made now.
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

    /// A call is submitted. While the breaker is open, it is the probe.
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
    pub fn end(&mut self, ticket: Ticket, reachability: Reachability, now: Instant, jitter: f64) {
        if ticket.round != self.round {
            return;
        }
        match (&mut self.state, reachability) {
            (BreakerState::Closed { failures }, Reachability::Unreachable) => {
                *failures += 1;
                if *failures >= FAILURES {
                    let probe = Probe::At(now + stretched(FIRST_WAIT, jitter));
                    self.state = BreakerState::Open { since: now, wait: FIRST_WAIT, probe };
                }
            }
            (BreakerState::Closed { failures }, Reachability::Reached) => *failures = 0,
            (BreakerState::Closed { .. }, Reachability::Unknown) => {}
            (BreakerState::Open { .. }, Reachability::Reached) => self.close(),
            (BreakerState::Open { wait, probe, .. }, reachability) if ticket.probe => {
                if reachability == Reachability::Unreachable {
                    *wait = (*wait * 2).min(LONGEST_WAIT);
                }
                *probe = Probe::At(now + stretched(*wait, jitter));
            }
            // The call began before the breaker opened.
            (BreakerState::Open { .. }, _) => {}
        }
    }

    /// Closes the breaker, because the worker was registered again.
    pub fn reset(&mut self) {
        self.close();
    }

    /// When more calls may be made than now, if no call ends before.
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        let at = match self.state {
            BreakerState::Closed { .. } => return None,
            BreakerState::Open { probe: Probe::At(at), .. } => at,
            BreakerState::Open { probe: Probe::UnderWay { since }, .. } => since + PROBE_PATIENCE,
        };
        (at > now).then_some(at)
    }

    /// What is shown to operators. None: the breaker is closed.
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
