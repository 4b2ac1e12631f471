//! The virtual clock: it stands still, and moves from one moment at which something is due to the next.

use crate::calls::OpenCall;
use crate::line::shown;
use crate::{AdvanceArguments, Result, Simulator};
use serde::Serialize;
use xdb_engine::*;
use xdb_protocol::parse_moment;
use xdb_protocol::refusal::invalid_argument;

/// How far the clock came.
#[derive(Debug, PartialEq, Serialize)]
pub struct Advanced {
    pub now: String,
    /// The clock is where it should be; without a moment to go to, it has moved. False: calls are due before, and have to be answered
    /// first, or nothing will ever come due.
    pub reached: bool,
    /// Calls that are due, and can be given out.
    pub due: usize,
    /// When something comes due next; null: nothing will.
    pub next: Option<String>,
}

/// What comes due by itself, in the order in which the same moment brings it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    ProcessTimeout(ExecutionId),
    Timer(ExecutionId, StateSeq, u32),
    PauseEnds(ExecutionId),
    /// The time of an open call is over.
    Deadline(u64),
}

impl Simulator {
    /// Moves the clock: by so much, or to a moment, or to the next one at which something is due. Timers fire on the way. It
    /// stops as soon as calls are due.
    pub fn advance(&mut self, arguments: AdvanceArguments) -> Result<Advanced> {
        let target = match (arguments.by, arguments.until) {
            (Some(_), Some(_)) => return Err(invalid_argument("until", "there is by already")),
            (Some(by), None) if by < 0.0 => return Err(invalid_argument("by", "it must not be negative")),
            (Some(by), None) => Some(self.now + Duration::from_seconds(by)),
            (None, Some(until)) => {
                let until = parse_moment(&until).map_err(|what| invalid_argument("until", what))?;
                if until < self.now {
                    return Err(invalid_argument("until", "it is in the past"));
                }
                Some(until)
            }
            (None, None) => None,
        };
        let before = self.now;
        let reached = loop {
            self.fire()?;
            if self.due_now() > 0 {
                break target.map_or(self.now > before, |target| self.now == target);
            }
            match (self.next(), target) {
                (Some(next), Some(target)) if next <= target => self.now = next,
                (_, Some(target)) => {
                    self.now = target;
                    break true;
                }
                (Some(next), None) if self.now == before => self.now = next,
                (_, None) => break self.now > before,
            }
        };
        let next = self.next().map(shown);
        Ok(Advanced { now: shown(self.now), reached, due: self.due_now(), next })
    }

    fn due_now(&self) -> usize {
        self.due().into_iter().filter(|call| self.is_free(*call)).count()
    }

    /// Lets happen what is due, until nothing is.
    fn fire(&mut self) -> Result<()> {
        while let Some((_, due)) = self.timers().into_iter().filter(|(at, _)| *at <= self.now).min() {
            let (id, command) = match due {
                Due::ProcessTimeout(id) => (id, Command::ProcessTimeout),
                Due::Timer(id, seq, command) => (id, Command::TimerFired { seq, command }),
                Due::PauseEnds(id) => (id, Command::PauseEnds),
                Due::Deadline(call) => {
                    if let Some(OpenCall::State(open)) = self.open.remove(&call) {
                        self.times_out(&open)?;
                    }
                    continue;
                }
            };
            match self.decide(id, &command) {
                Ok(events) => self.apply(id, events),
                // What is due by the execution itself is not stale.
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// When something comes due that is not due now.
    fn next(&self) -> Option<Timestamp> {
        // A call that is held comes due when the pause ends, if it does so by itself.
        let calls = self.running().filter(|run| !self.is_held(run)).flat_map(|run| run.execution.states.values());
        let calls = calls.filter_map(|state| state.open_call()).map(|(_, call)| call.not_before);
        let timers = self.timers().into_iter().map(|(at, _)| at);
        calls.chain(timers).chain(self.ends_of_pauses()).filter(|at| *at > self.now).min()
    }

    fn running(&self) -> impl Iterator<Item = &crate::run::Run> {
        self.runs.values().filter(|run| run.execution.is_running())
    }

    /// Timers of running processes, and the times of open calls.
    fn timers(&self) -> Vec<(Timestamp, Due)> {
        let mut timers = Vec::new();
        for run in self.running() {
            let id = run.execution.id;
            timers.extend(run.execution.timeout_at.map(|at| (at, Due::ProcessTimeout(id))));
            timers.extend(run.execution.pause_ends_at().map(|at| (at, Due::PauseEnds(id))));
            for state in run.execution.states.values() {
                let seq = state.seq;
                timers.extend(state.open_timers().map(|(command, at)| (at, Due::Timer(id, seq, command))));
            }
        }
        for (number, open) in &self.open {
            if let OpenCall::State(open) = open {
                timers.push((open.deadline, Due::Deadline(*number)));
            }
        }
        timers
    }
}
