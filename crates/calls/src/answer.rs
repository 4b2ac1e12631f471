//! The outcome of a call of a state: an answer, or a failed attempt.
//!
//! Limitations: sizes are checked where an answer is decoded, and rights where it is applied.

use xdb_engine::*;
use xdb_protocol::refusal::{self, Refusal};
use xdb_protocol::*;

/// One attempt of a call of a state.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// The state execution within its process.
    pub seq: StateSeq,
    /// `waitUntil` or `execute`.
    pub api: Api,
    /// The number of the attempt, from 1.
    pub number: u32,
    /// When the first attempt of this call began.
    pub first_at: Timestamp,
}

impl Attempt {
    /// The command that reports the failure of this attempt.
    pub fn failed(self, failure: Failure, further: Further) -> Command {
        Command::CallFailed(self.call_failed(failure, further))
    }

    fn call_failed(self, failure: Failure, further: Further) -> CallFailed {
        let Self { seq, api, number, first_at } = self;
        CallFailed { seq, api, attempt: number, first_attempt_at: first_at, failure, further, applied: None }
    }
}

/// The outcome of a state's call.
#[derive(Clone, Debug)]
pub enum Answered {
    /// Not called yet: a function answers the call, and is called in the transaction that applies its answer.
    Uncalled,
    WaitUntil(WaitUntilAnswer),
    Execute(ExecuteAnswer),
    Failed(Failure, Further),
    /// The attempt failed, and the other effects of the answer are applied all the same.
    Retry(Retried),
}

impl Answered {
    /// The command that the engine decides about.
    pub fn command(&self, attempt: Attempt) -> Command {
        let Attempt { seq, api, .. } = attempt;
        match self {
            Self::Uncalled => Command::CallRepeated { seq, api },
            Self::WaitUntil(answer) => Command::WaitUntilAnswered { seq, answer: answer.clone() },
            Self::Execute(answer) => Command::ExecuteAnswered { seq, answer: answer.clone() },
            Self::Failed(failure, further) => attempt.failed(failure.clone(), *further),
            Self::Retry(Retried { failure, further, effects }) => Command::CallFailed(CallFailed {
                applied: Some(Box::new(effects.clone())),
                ..attempt.call_failed(self.warn(failure.clone()), *further)
            }),
        }
    }

    /// An estimate of how many rows applying the answer writes. Each kilobyte counts as one more row. The aborted
    /// states of a process that closes do not count.
    pub fn size(&self) -> usize {
        let (own, effects) = match self {
            Self::WaitUntil(answer) => (answer.request.commands.len(), &answer.effects),
            Self::Execute(ExecuteAnswer { decision, effects }) => match decision {
                Decision::NextStates(next) | Decision::ConditionalClose { otherwise: next, .. } => {
                    (next.len(), effects)
                }
                Decision::Close { .. } => (0, effects),
            },
            Self::Retry(retried) => (0, &retried.effects),
            Self::Failed(..) | Self::Uncalled => return 0,
        };
        let (rows, bytes) = effects.payloads().fold((own, 0), |(rows, all), payload| {
            (rows + 1, all + payload.map_or(0, |payload| payload.as_str().len()))
        });
        rows + bytes / 1024
    }

    /// Warnings about things in the answer that change nothing.
    pub fn warnings(&self) -> &[String] {
        self.effects().map_or(&[], |effects| &effects.warnings)
    }

    /// Adds the warnings of this answer to the failure of its attempt.
    pub fn warn(&self, failure: Failure) -> Failure {
        Failure { detail: with_warnings(failure.detail, self.warnings()), ..failure }
    }

    /// Why the attempt has failed. None for an answer, and for a failure with other effects.
    pub fn failure(&self) -> Option<&Failure> {
        let Self::Failed(failure, _) = self else { return None };
        Some(failure)
    }

    /// The effects of the answer besides its decision.
    pub fn effects(&self) -> Option<&Effects> {
        match self {
            Self::WaitUntil(answer) => Some(&answer.effects),
            Self::Execute(answer) => Some(&answer.effects),
            Self::Retry(retried) => Some(&retried.effects),
            Self::Failed(..) | Self::Uncalled => None,
        }
    }

    /// Whether the answer ends other threads.
    pub fn aborts(&self) -> bool {
        self.effects().is_some_and(|effects| effects.abort_states.is_some())
    }

    /// The messages for local queues of the process.
    pub fn publishes(&self) -> &[Publish] {
        self.effects().map_or(&[], |effects| &effects.publish_to_local_queue)
    }

    /// The queues that deciding about the answer reads, each with the most messages that the decision takes. One
    /// message is enough to see whether a queue is empty.
    pub fn queues(&self) -> Vec<(String, usize)> {
        match self {
            Self::WaitUntil(answer) => {
                let queue = |command: &RequestedCommand| match &command.kind {
                    RequestedKind::LocalQueue { queue, at_least, at_most } => {
                        Some((queue.clone(), taken_at_once(*at_least, *at_most) as usize))
                    }
                    RequestedKind::TimerAfter(_)
                    | RequestedKind::TimerAt(_)
                    | RequestedKind::TimerCron(_)
                    | RequestedKind::GlobalQueue { .. } => None,
                };
                answer.request.commands.iter().filter_map(queue).collect()
            }
            Self::Execute(ExecuteAnswer { decision: Decision::ConditionalClose { queues, .. }, .. }) => {
                queues.iter().map(|queue| (queue.clone(), 1)).collect()
            }
            Self::Execute(_) | Self::Failed(..) | Self::Retry(_) | Self::Uncalled => Vec::new(),
        }
    }
}

/// Reads the body of an answer. Error: what is wrong with it.
pub fn decode_answer(api: Api, body: &[u8], limits: &AnswerLimits) -> Result<Answered, String> {
    match api {
        Api::WaitUntil => decode_wait_until(body, limits).map(Answered::WaitUntil),
        Api::Execute => decode_execute(body, limits).map(|executed| match executed {
            Executed::Decided(answer) => Answered::Execute(answer),
            Executed::Retry(retried) => Answered::Retry(retried),
        }),
    }
}

/// Reads the response of a worker. The result is an answer or a failed attempt.
pub fn read_answer(api: Api, status: u16, retry_after: Option<u64>, body: &[u8], limits: &AnswerLimits) -> Answered {
    if status != 200 {
        let (failure, further) = decode_error(status, retry_after, body);
        return Answered::Failed(failure, further);
    }
    decode_answer(api, body, limits).unwrap_or_else(|what| failed_by_policy(invalid_answer(what)))
}

/// Reads the response of a worker to an RPC. Error: the refusal that the caller gets.
pub fn read_rpc_answer(
    rpc_name: &str,
    (status, retry_after): (u16, Option<u64>),
    body: &[u8],
    limits: &AnswerLimits,
) -> Result<RpcAnswer, Refusal> {
    if status != 200 {
        // What the response says about retries is left to the caller.
        let (failure, _) = decode_error(status, retry_after, body);
        return Err(refusal::worker_refused(rpc_name, status, failure));
    }
    decode_rpc(body, limits).map_err(|what| refusal::worker_failed(rpc_name, what))
}

/// A failed attempt whose retries follow the policy of its state.
pub fn failed_by_policy(failure: Failure) -> Answered {
    Answered::Failed(failure, Further::ByPolicy)
}
