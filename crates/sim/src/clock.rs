//! The virtual clock. It stands still, and a command moves it from one due time to the next.

use crate::Simulator;
use crate::calls::Callee;
use crate::given::{Given, Result, shown};
use crate::run::Run;
use serde_json::{Value, json};
use xdb_calls::Outcome;
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
        let (due, reached) = loop {
            self.fire()?;
            let due = self.due().len();
            if due > 0 {
                break (due, target.map_or(self.now > before, |target| self.now == target));
            }
            match (self.next(), target) {
                (Some(next), Some(target)) if next <= target => self.now = next,
                (Some(next), None) if self.now == before => self.now = next,
                (_, target) => {
                    self.now = target.unwrap_or(self.now);
                    break (due, target.is_some() || self.now > before);
                }
            }
        };
        Ok(json!({"now": shown(self.now), "reached": reached, "due": due, "next": self.next().map(shown)}))
    }

    /// Processes everything that is due now.
    fn fire(&mut self) -> Result<()> {
        self.locks.grant(self.now);
        loop {
            let due = self.agenda().find(|(at, ..)| *at <= self.now);
            let Some((_, id, command)) = due else { return Ok(()) };
            if let Command::CallFailed(failed) = &command {
                self.open.retain(|_, open| open.state() != Some((id, failed.seq)));
            }
            // A command that is refused would be due for ever.
            if self.apply(id, &command, None)? != Outcome::Applied {
                return Ok(());
            }
        }
    }

    /// The next due time after now.
    fn next(&self) -> Option<Timestamp> {
        // A call that a pause has parked becomes due at the end of the pause, if the pause has an end.
        let calls = self.running_states().filter_map(|(run, state)| Some(self.next_call(run, state)?.1.not_before));
        let pauses = self.paused_types.values().filter_map(|pause| pause.until);
        let times = self.agenda().map(|(at, ..)| at).chain(calls).chain(pauses).chain(self.locks.next_due(self.now));
        times.filter(|at| *at > self.now).min()
    }

    /// The states of running executions.
    pub(crate) fn running_states(&self) -> impl Iterator<Item = (&Run, &StateExecution)> {
        let running = self.runs.values().filter(|run| run.execution.is_running());
        running.flat_map(|run| run.execution.states.values().map(move |state| (run, state.as_ref())))
    }

    /// What happens by itself: time, execution and command. The order decides between equal times.
    fn agenda(&self) -> impl Iterator<Item = (Timestamp, ExecutionId, Command)> {
        let running = || self.runs.values().map(|run| &run.execution).filter(|execution| execution.is_running());
        let timeouts = running().filter_map(|of| Some((of.timeout_at?, of.id, Command::ProcessTimeout)));
        let timers = self.running_states().flat_map(|(run, state)| {
            let fires = |command| Command::TimerFired { seq: state.seq, command };
            state.open_timers().map(move |(command, at)| (at, run.execution.id, fires(command)))
        });
        let pauses = running().filter_map(|of| Some((of.pause_ends_at()?, of.id, Command::PauseEnds)));
        let calls = self.open.values().filter_map(|open| match &open.called {
            Callee::State(attempt) => {
                let failure = Failure::of("Timeout", open.timed_out());
                Some((open.deadline, open.execution, attempt.failed(failure, Further::ByPolicy)))
            }
            Callee::Rpc(_) => None,
        });
        timeouts.chain(timers).chain(pauses).chain(calls)
    }
}
