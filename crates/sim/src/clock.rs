//! The virtual clock. It stands still, and a command moves it from one due time to the next.

use crate::calls::Called;
use crate::line::{Given, shown};
use crate::run::Run;
use crate::{Result, Simulator};
use serde_json::{Value, json};
use xdb_calls::{Outcome, failed_by_policy};
use xdb_engine::*;
use xdb_protocol::arguments::valid;
use xdb_protocol::refusal::invalid_argument;

/// What happens at its time.
enum Due {
    Command(ExecutionId, Command),
    /// The open call with this number has not been answered.
    Timeout(u64),
}

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
        loop {
            let due = self.agenda().find(|(at, _)| *at <= self.now);
            match due.map(|(_, due)| due) {
                // A command that is refused would be due for ever.
                Some(Due::Command(id, command)) if self.apply(id, &command, None)? != Outcome::Applied => break,
                Some(Due::Command(..)) => {}
                Some(Due::Timeout(number)) => {
                    if let Some(call) = self.open.remove(&number)
                        && let Called::State(attempt) = call.called
                    {
                        let failure = Failure::of("Timeout", call.timed_out());
                        self.answer_state(&call, attempt, &failed_by_policy(failure))?;
                    }
                }
                None => break,
            }
        }
        Ok(())
    }

    /// The next due time after now.
    fn next(&self) -> Option<Timestamp> {
        // A call held by a pause becomes due at the end of the pause, if the pause has an end.
        let calls = self.running_states().filter_map(|(run, state)| Some(self.next_call(run, state)?.1.not_before));
        let pauses = self.paused_types.values().filter_map(|pause| pause.until);
        let times = self.agenda().map(|(at, _)| at).chain(calls).chain(pauses);
        times.filter(|at| *at > self.now).min()
    }

    /// The states of running executions.
    pub(crate) fn running_states(&self) -> impl Iterator<Item = (&Run, &StateExecution)> {
        let running = self.runs.values().filter(|run| run.execution.is_running());
        running.flat_map(|run| run.execution.states.values().map(move |state| (run, state.as_ref())))
    }

    /// What happens by itself, and when. The order decides between equal times.
    fn agenda(&self) -> impl Iterator<Item = (Timestamp, Due)> {
        let running = || self.runs.values().map(|run| &run.execution).filter(|execution| execution.is_running());
        let timeouts = running().filter_map(|of| Some((of.timeout_at?, Due::Command(of.id, Command::ProcessTimeout))));
        let timers = self.running_states().flat_map(|(run, state)| {
            let fires = |command| Command::TimerFired { seq: state.seq, command };
            state.open_timers().map(move |(command, at)| (at, Due::Command(run.execution.id, fires(command))))
        });
        let pauses = running().filter_map(|of| Some((of.pause_ends_at()?, Due::Command(of.id, Command::PauseEnds))));
        let calls = self.open.iter().filter(|(_, open)| open.state().is_some());
        let calls = calls.map(|(number, open)| (open.deadline, Due::Timeout(*number)));
        timeouts.chain(timers).chain(pauses).chain(calls)
    }
}
