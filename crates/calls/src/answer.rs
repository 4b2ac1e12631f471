//! What was answered to a call of a state: an answer or a failed attempt; there is nothing else.

use crate::apply::refused_strictly;
use xdb_engine::*;
use xdb_protocol::refusal::{self, Refusal};
use xdb_protocol::*;

/// One attempt to make a call of a state.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub seq: StateSeq,
    pub api: Api,
    /// From 1.
    pub number: u32,
    pub first_at: Timestamp,
}

impl Attempt {
    /// The command that reports that it has failed.
    pub fn failed(self, failure: Failure, further: Further) -> Command {
        Command::CallFailed(self.call_failed(failure, further))
    }

    fn call_failed(self, failure: Failure, further: Further) -> CallFailed {
        let Self { seq, api, number, first_at } = self;
        CallFailed { seq, api, attempt: number, first_attempt_at: first_at, failure, further, applied: None }
    }
}

/// What became of a state's call.
#[derive(Clone, Debug)]
pub enum Answered {
    /// A function answers it, which is called where its answer is applied.
    Uncalled,
    WaitUntil(WaitUntilAnswer),
    Execute(ExecuteAnswer),
    Failed(Failure, Further),
    /// The attempt failed, and what it did besides is applied all the same.
    Retry(Retried),
}

impl Answered {
    /// As the command that the engine decides about.
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

    /// About how many rows applying it writes, a kilobyte counted as one; the aborted states of a process that closes not counted.
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
        let attributes = effects.write_local_attributes.values().map(|value| value.as_str().len());
        let arguments = effects.call_functions.iter().map(|call| call.argument.as_ref());
        let local = effects.publish_to_local_queue.iter().map(|publish| publish.payload.as_ref());
        let global = effects.publish_to_global_queue.iter().map(|publish| publish.payload.as_ref());
        let messages =
            local.chain(global).chain(arguments).map(|payload| payload.map_or(0, |payload| payload.as_str().len()));
        let (rows, bytes) = attributes.chain(messages).fold((own, 0), |(rows, all), bytes| (rows + 1, all + bytes));
        rows + bytes / 1024
    }

    /// What in the answer changes nothing.
    pub fn warnings(&self) -> &[String] {
        self.effects().map_or(&[], |effects| &effects.warnings)
    }

    /// A failure of an attempt that was answered so, with what was odd about the answer.
    pub fn warn(&self, failure: Failure) -> Failure {
        Failure { detail: with_warnings(failure.detail, self.warnings()), ..failure }
    }

    /// Why the attempt has failed that does nothing besides.
    pub fn failure(&self) -> Option<&Failure> {
        let Self::Failed(failure, _) = self else { return None };
        Some(failure)
    }

    /// What the answer does besides its decision.
    pub fn effects(&self) -> Option<&Effects> {
        match self {
            Self::WaitUntil(answer) => Some(&answer.effects),
            Self::Execute(answer) => Some(&answer.effects),
            Self::Retry(retried) => Some(&retried.effects),
            Self::Failed(..) | Self::Uncalled => None,
        }
    }

    /// What it sends to queues of its own process.
    pub fn publishes(&self) -> &[Publish] {
        self.effects().map_or(&[], |effects| &effects.publish_to_local_queue)
    }

    /// Queues that deciding about it looks into, each with the most messages that it takes; to see whether a queue
    /// is empty, one is enough.
    pub fn queues(&self) -> Vec<(String, usize)> {
        match self {
            Self::WaitUntil(answer) => {
                let queue = |command: &RequestedCommand| match &command.kind {
                    RequestedKind::LocalQueue { queue, at_least, at_most } => {
                        Some((queue.clone(), taken_at_once(*at_least, *at_most) as usize))
                    }
                    RequestedKind::TimerAfter(_) | RequestedKind::TimerAt(_) | RequestedKind::GlobalQueue { .. } => {
                        None
                    }
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

/// Reads the body of an answer that is no error; or says what is wrong with it.
pub fn decode_answer(api: Api, body: &[u8], limits: &Limits) -> Result<Answered, String> {
    match api {
        Api::WaitUntil => decode_wait_until(body, limits).map(Answered::WaitUntil),
        Api::Execute => decode_execute(body, limits).map(|executed| match executed {
            Executed::Decided(answer) => Answered::Execute(answer),
            Executed::Retry(retried) => Answered::Retry(retried),
        }),
    }
}

/// Reads what a worker has answered with this status. Whatever it is, the result is an answer or a failed attempt.
pub fn read_answer(api: Api, status: u16, retry_after: Option<u64>, body: &[u8], limits: &Limits) -> Answered {
    if status != 200 {
        let (failure, further) = decode_error(status, retry_after, body);
        return Answered::Failed(failure, further);
    }
    decode_answer(api, body, limits).unwrap_or_else(|what| failed_by_policy(invalid_answer(what)))
}

/// Reads what a worker has answered to an RPC with this status; or what its caller is told.
pub fn read_rpc_answer(
    rpc_name: &str,
    (status, retry_after): (u16, Option<u64>),
    body: &[u8],
    limits: &Limits,
    is_strict: bool,
) -> Result<RpcAnswer, Refusal> {
    if status != 200 {
        // What it says about further attempts is for the caller, who makes them.
        let (failure, _) = decode_error(status, retry_after, body);
        return Err(refusal::worker_refused(rpc_name, status, failure));
    }
    let answer = decode_rpc(body, limits).map_err(|what| refusal::worker_failed(rpc_name, what))?;
    match refused_strictly(&answer.effects.warnings, || is_strict) {
        Some(failure) => Err(refusal::rpc_not_applied(rpc_name, failure)),
        None => Ok(answer),
    }
}

/// A failed attempt of which nothing is said but that it has failed.
pub fn failed_by_policy(failure: Failure) -> Answered {
    Answered::Failed(failure, Further::ByPolicy)
}
