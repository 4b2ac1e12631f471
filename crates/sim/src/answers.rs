//! Applies answers in memory: the simulator's driver of `xdb_calls::apply`.

use crate::calls::{OpenCall, OpenState};
use crate::locks::LockedValues;
use crate::{AnswerArguments, LIMITS, Result, Simulator};
use serde::Serialize;
use std::collections::BTreeMap;
use std::convert::Infallible;
use xdb_calls::{Answered, Attempt, CloseLock, Driver, Outcome, Used, Written, apply, failed_by_policy, read_answer};
use xdb_engine::*;
use xdb_protocol::refusal::{Refusal, invalid_argument};
use xdb_protocol::retry_after_seconds;

/// The result of an answer.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum AnswerResult {
    /// The output of an RPC.
    Rpc { output: Option<Json> },
    /// The result for the call of a state.
    State {
        /// False: the call was over, and nothing has changed.
        applied: bool,
        /// Why the attempt failed, if it did.
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
}

impl AnswerResult {
    const OVER: Self = Self::State { applied: false, failure: None };
}

impl Simulator {
    /// Applies the answer to an open call.
    pub fn answer(&mut self, answer: AnswerArguments) -> Result<AnswerResult> {
        let AnswerArguments { call, status, headers, body } = answer;
        let retry_after = retry_after(&headers, self.now);
        if call == 0 || call > self.last_call {
            return Err(invalid_argument("call", format_args!("there was no call {call}")));
        }
        match self.open.remove(&call) {
            None => Ok(AnswerResult::OVER),
            Some(OpenCall::Rpc(rpc)) => {
                Ok(AnswerResult::Rpc { output: self.answer_rpc(rpc, status, retry_after, &body)? })
            }
            Some(OpenCall::State(open)) => {
                let answered = read_answer(open.api, status, retry_after, body.as_bytes(), &LIMITS);
                self.answer_state(&open, &answered)
            }
        }
    }

    /// The call was not answered within its timeout.
    pub(crate) fn times_out(&mut self, open: &OpenState) -> Result<()> {
        let seconds = open.timeout.as_std().as_secs_f64();
        let detail = format!("timed out after {seconds} s while waiting for the answer of the worker");
        self.answer_state(open, &failed_by_policy(Failure::of("Timeout", detail))).map(drop)
    }

    fn answer_state(&mut self, open: &OpenState, answered: &Answered) -> Result<AnswerResult> {
        let OpenState { execution: id, seq, api, attempt, first_attempt_at, global, local, locked, .. } = open;
        let attempt = Attempt { seq: *seq, api: *api, number: *attempt, first_at: *first_attempt_at };
        let loading = CallLoading { global, local, locked: locked.as_ref() };
        let mut driver = SimulatorDriver { simulator: self, id: *id, loading, raises: false };
        let mut outcome = apply(&mut driver, &answered.command(attempt))?;
        if outcome == Outcome::Repeat {
            outcome = apply(&mut driver, &Command::CallRepeated { seq: *seq, api: *api })?;
        }
        match outcome {
            Outcome::Failed(failure, further) => self.answer_state(open, &Answered::Failed(failure, further)),
            Outcome::Applied => Ok(AnswerResult::State { applied: true, failure: answered.failure().cloned() }),
            Outcome::Repeat | Outcome::Over(_) | Outcome::Closing { .. } => Ok(AnswerResult::OVER),
        }
    }
}

/// The loading policies of a call, and the values that it locked.
pub(crate) struct CallLoading<'a> {
    pub global: &'a Loading,
    pub local: &'a Loading,
    pub locked: Option<&'a LockedValues>,
}

/// An answer that is being applied.
pub(crate) struct SimulatorDriver<'a> {
    pub simulator: &'a mut Simulator,
    pub id: ExecutionId,
    pub loading: CallLoading<'a>,
    /// Whether an error of a table is raised to the caller. Otherwise it is a failed attempt.
    pub raises: bool,
}

impl Driver for SimulatorDriver<'_> {
    type Error = Refusal;
    type Later = Infallible;

    fn decide(&mut self, command: &Command) -> Result<std::result::Result<Vec<Event>, Rejection>> {
        Ok(self.simulator.decide(self.id, command))
    }

    fn is_strict(&self) -> bool {
        self.simulator.definition(self.simulator.run(self.id)).strict_answers
    }

    fn lock_for_close(&mut self, _: bool) -> Result<CloseLock<Infallible>> {
        Ok(CloseLock::Held)
    }

    fn is_unchanged(&mut self) -> Result<Used<bool, Infallible>> {
        let CallLoading { global, local, locked } = self.loading;
        let now = LockedValues::read(self.simulator.run(self.id), &self.simulator.tables, global, local);
        Ok(Used::Done(now.as_ref() == locked))
    }

    fn write_tables(&mut self, written: &Written<'_>) -> Result<Used<(), Infallible>> {
        let Simulator { tables, runs, .. } = self.simulator;
        match tables.update(&runs[&self.id], written.attributes) {
            Err(refused) if self.raises => return Err(refused.refusal),
            Err(refused) => return Ok(Used::Refused(refused.failure())),
            Ok(()) => self.simulator.call_functions(self.id, written.functions),
        }
        Ok(Used::Done(()))
    }

    fn apply(&mut self, events: Vec<Event>) -> Result<()> {
        self.simulator.apply(self.id, events);
        Ok(())
    }
}

/// The seconds in the header `Retry-After`.
fn retry_after(headers: &BTreeMap<String, String>, now: Timestamp) -> Option<u64> {
    let header =
        |name: &str| headers.iter().find(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str());
    retry_after_seconds(header("Retry-After")?, header("Date"), now.0.div_euclid(1_000_000))
}
