//! The virtual clock. It stands still, and a command moves it from one due time to the next.

use crate::calls::OpenCall;
use crate::line::{Given, shown};
use crate::run::Run;
use crate::{Result, Simulator};
use serde_json::{Value, json};
use xdb_engine::*;
use xdb_protocol::arguments::valid;
use xdb_protocol::refusal::invalid_argument;

impl Simulator {
    /// Moves the clock by a length of time, to a moment, or to the next due time. Timers fire on the way. The clock
    /// stops when calls become due, because their answers decide what happens next.
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
        let (now, next) = (shown(self.now), self.next().map(shown));
        Ok(json!({"now": now, "reached": reached, "due": self.due_now(), "next": next}))
    }

    fn due_now(&self) -> usize {
        self.due().into_iter().filter(|call| self.is_free(*call)).count()
    }

    /// Processes everything that is due now.
    fn fire(&mut self) -> Result<()> {
        loop {
            let is_due = |at: &Timestamp| *at <= self.now;
            let timer = self.timers().find(|(at, ..)| is_due(at));
            if let Some((_, id, command)) = timer {
                // These commands come from the execution itself, so they are not stale.
                let Ok(events) = self.decide(id, &command) else { break };
                self.apply(id, events);
                continue;
            }
            let Some((_, number)) = self.deadlines().find(|(at, _)| is_due(at)) else { break };
            if let Some(OpenCall::State(open)) = self.open.remove(&number) {
                self.times_out(&open)?;
            }
        }
        Ok(())
    }

    /// The next due time after now.
    fn next(&self) -> Option<Timestamp> {
        // A call that a pause has parked becomes due at the end of the pause, if the pause has an end.
        let calls = self.running().flat_map(|run| self.begin_at(run)).map(|(_, at)| at);
        let timers = self.timers().map(|(at, ..)| at).chain(self.deadlines().map(|(at, _)| at));
        let pauses = self.paused_types.values().filter_map(|pause| pause.until);
        calls.chain(timers).chain(pauses).filter(|at| *at > self.now).min()
    }

    fn running(&self) -> impl Iterator<Item = &Run> {
        self.runs.values().filter(|run| run.execution.is_running())
    }

    /// Due times within executions: time, execution and command. The order decides between equal times.
    fn timers(&self) -> impl Iterator<Item = (Timestamp, ExecutionId, Command)> {
        let running = || self.running().map(|run| &run.execution);
        let timeouts = running().filter_map(|of| Some((of.timeout_at?, of.id, Command::ProcessTimeout)));
        let states = running().flat_map(|of| of.states.values().map(|state| (of.id, state)));
        let timers = states.flat_map(|(id, state)| {
            let fires = |command| Command::TimerFired { seq: state.seq, command };
            state.open_timers().map(move |(command, at)| (at, id, fires(command)))
        });
        let pauses = running().filter_map(|of| Some((of.pause_ends_at()?, of.id, Command::PauseEnds)));
        timeouts.chain(timers).chain(pauses)
    }

    /// When open calls time out: time and call number.
    fn deadlines(&self) -> impl Iterator<Item = (Timestamp, u64)> {
        self.open.iter().filter_map(|(number, open)| match open {
            OpenCall::State(open) => Some((open.deadline, *number)),
            OpenCall::Rpc(_) => None,
        })
    }
}
