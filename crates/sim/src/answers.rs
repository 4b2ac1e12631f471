//! What becomes of a call that was answered.

use crate::calls::{OpenCall, OpenState};
use crate::locks::Locked;
use crate::{AnswerArguments, LIMITS, Result, Simulator};
use serde::Serialize;
use std::collections::BTreeMap;
use xdb_engine::*;
use xdb_protocol::refusal::invalid_argument;
use xdb_protocol::*;

/// What became of an answer.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Answered {
    /// An RPC has this output.
    Rpc { output: Option<Json> },
    /// The call of a state.
    State {
        /// False: the call was over, and nothing has changed.
        applied: bool,
        /// Why the attempt has failed, if it has.
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
}

impl Answered {
    const OVER: Self = Self::State { applied: false, failure: None };
}

/// What is made of a worker's answer to a state's call.
enum Read {
    Answer(Command, Vec<String>),
    Failure(Failure, Further),
}

impl Read {
    /// An attempt of which nothing is said but that it has failed.
    fn failed(failure: Failure) -> Self {
        Self::Failure(failure, Further::ByPolicy)
    }
}

impl Simulator {
    /// Gives the answer to a call that was given out.
    pub fn answer(&mut self, answer: AnswerArguments) -> Result<Answered> {
        let AnswerArguments { call, status, headers, body } = answer;
        let retry_after = retry_after(&headers, self.now);
        if call == 0 || call > self.last_call {
            return Err(invalid_argument("call", format_args!("there was no call {call}")));
        }
        match self.open.remove(&call) {
            None => Ok(Answered::OVER),
            Some(OpenCall::Rpc(rpc)) => Ok(Answered::Rpc { output: self.answer_rpc(rpc, status, retry_after, &body)? }),
            Some(OpenCall::State(open)) => {
                let read = read(&open, status, retry_after, body.as_bytes());
                Ok(self.answer_state(&open, read))
            }
        }
    }

    /// The call was not answered in its time.
    pub(crate) fn times_out(&mut self, open: &OpenState) {
        let seconds = open.timeout.as_std().as_secs_f64();
        let detail = format!("timed out after {seconds} s while waiting for the answer of the worker");
        self.answer_state(open, Read::failed(Failure::of("Timeout", detail)));
    }

    fn answer_state(&mut self, open: &OpenState, read: Read) -> Answered {
        let id = open.execution;
        let strict = self.definition(self.run(id)).strict_answers;
        let (command, warnings) = match read {
            Read::Failure(failure, further) => return self.attempt_failed(open, failure, further),
            Read::Answer(_, warnings) if strict && !warnings.is_empty() => {
                let failure = invalid_answer(warnings.join("; "));
                return self.attempt_failed(open, failure, Further::ByPolicy);
            }
            Read::Answer(command, warnings) => (command, warnings),
        };
        let warned = |failure: Failure| Failure { detail: with_warnings(failure.detail, &warnings), ..failure };
        let events = match self.decide(id, &command) {
            Ok(events) => events,
            Err(Rejection::Stale | Rejection::NotRunning(_)) => return Answered::OVER,
            Err(rejection) => {
                let (failure, further) = rejected_answer(&rejection);
                return self.attempt_failed(open, warned(failure), further);
            }
        };
        let run = self.run(id);
        if open.locked != Locked::read(run, &self.tables, &open.global, &open.local) {
            let again = Command::CallRepeated { seq: open.seq, api: open.api };
            return self.told_of(id, &again, None);
        }
        for event in &events {
            if let Event::GlobalAttributesWritten { attributes } = event
                && let Err(refused) = self.tables.update(&self.runs[&id], attributes)
            {
                return self.attempt_failed(open, warned(refused.failure()), Further::ByPolicy);
            }
        }
        self.call_functions(id, command.function_calls());
        self.apply(id, events);
        Answered::State { applied: true, failure: None }
    }

    fn attempt_failed(&mut self, open: &OpenState, failure: Failure, further: Further) -> Answered {
        let OpenState { execution, seq, api, attempt, first_attempt_at, .. } = *open;
        let failed =
            CallFailed { seq, api, attempt, first_attempt_at, failure: failure.clone(), further, applied: None };
        self.told_of(execution, &Command::CallFailed(failed), Some(failure))
    }

    fn told_of(&mut self, id: ExecutionId, command: &Command, failure: Option<Failure>) -> Answered {
        match self.decide(id, command) {
            Ok(events) => {
                self.apply(id, events);
                Answered::State { applied: true, failure }
            }
            Err(_) => Answered::OVER,
        }
    }
}

/// The seconds that the header `Retry-After` asks for.
fn retry_after(headers: &BTreeMap<String, String>, now: Timestamp) -> Option<u64> {
    let header =
        |name: &str| headers.iter().find(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str());
    retry_after_seconds(header("Retry-After")?, header("Date"), now.0.div_euclid(1_000_000))
}

/// What follows from an answer of `execute`.
fn executed(open: &OpenState, answer: Executed) -> Command {
    let OpenState { seq, api, attempt, first_attempt_at, .. } = *open;
    match answer {
        Executed::Decided(answer) => Command::ExecuteAnswered { seq, answer },
        Executed::Retry(Retried { failure, further, effects }) => {
            let applied = Some(Box::new(effects));
            Command::CallFailed(CallFailed { seq, api, attempt, first_attempt_at, failure, further, applied })
        }
    }
}

fn read(open: &OpenState, status: u16, retry_after: Option<u64>, body: &[u8]) -> Read {
    if status != 200 {
        let (failure, further) = decode_error(status, retry_after, body);
        return Read::Failure(failure, further);
    }
    let seq = open.seq;
    let answer = match open.api {
        Api::WaitUntil => decode_wait_until(body, &LIMITS).map(|answer| {
            let warnings = answer.effects.warnings.clone();
            Read::Answer(Command::WaitUntilAnswered { seq, answer }, warnings)
        }),
        Api::Execute => decode_execute(body, &LIMITS).map(|answer| {
            let warnings = answer.effects().warnings.clone();
            Read::Answer(executed(open, answer), warnings)
        }),
    };
    answer.unwrap_or_else(|what| Read::failed(invalid_answer(what)))
}
