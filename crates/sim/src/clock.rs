//! The virtual clock: it stands still, and moves from one moment at which something is due to the next.

use crate::calls::OpenCall;
use crate::line::{Given, shown};
use crate::run::Run;
use crate::{Result, Simulator};
use serde_json::{Value, json};
use xdb_engine::*;
use xdb_protocol::arguments::valid;
use xdb_protocol::refusal::invalid_argument;

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
    /// stops as soon as calls are due: they are answered first, or nothing ever comes due.
    pub(crate) fn advance(&mut self, given: &mut Given) -> Result<Value> {
        let by = valid("by", given.length("by")?, "not be negative")?;
        let until = given.moment("until")?.flatten();
        given.end()?;
        let target = match (by, until) {
            (Some(_), Some(_)) => return Err(invalid_argument("until", "there is by already")),
            (None, Some(until)) if until < self.now => return Err(invalid_argument("until", "it is in the past")),
            (by, until) => by.map(|by| self.now + by).or(until),
        };
        let before = self.now;
        let reached = loop {
            self.fire();
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
        let (now, next) = (shown(self.now), self.next().map(shown));
        Ok(json!({"now": now, "reached": reached, "due": self.due_now(), "next": next}))
    }

    fn due_now(&self) -> usize {
        self.due().into_iter().filter(|call| self.is_free(*call)).count()
    }

    /// Lets happen what is due, until nothing is.
    fn fire(&mut self) {
        while let Some((_, due)) = self.timers().into_iter().filter(|(at, _)| *at <= self.now).min() {
            let (id, command) = match due {
                Due::ProcessTimeout(id) => (id, Command::ProcessTimeout),
                Due::Timer(id, seq, command) => (id, Command::TimerFired { seq, command }),
                Due::PauseEnds(id) => (id, Command::PauseEnds),
                Due::Deadline(call) => {
                    if let Some(OpenCall::State(open)) = self.open.remove(&call) {
                        self.times_out(&open);
                    }
                    continue;
                }
            };
            match self.decide(id, &command) {
                Ok(events) => self.apply(id, events),
                // What is due by the execution itself is not stale.
                Err(_) => return,
            }
        }
    }

    /// When something comes due that is not due now.
    fn next(&self) -> Option<Timestamp> {
        // A call that is held comes due when the pause ends, if it does so by itself.
        let calls = self.running().filter(|run| !self.is_held(run)).flat_map(|run| run.execution.states.values());
        let calls = calls.filter_map(|state| state.open_call()).map(|(_, call)| call.not_before);
        let timers = self.timers().into_iter().map(|(at, _)| at);
        calls
            .chain(timers)
            .chain(self.paused_types.values().filter_map(|pause| pause.until))
            .filter(|at| *at > self.now)
            .min()
    }

    fn running(&self) -> impl Iterator<Item = &Run> {
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
