//! Applies answers and other commands in memory: the simulator's driver of `xdb_calls::apply`.

use crate::Simulator;
use crate::calls::{AskedRpc, Callee, OpenCall, asked};
use crate::children::refused_start;
use crate::given::{Given, LIMITS, Result, present, result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use xdb_calls::{Answered, Attempt, CloseLock, Driver, Outcome, Used, Written, read_answer, read_rpc_answer};
use xdb_engine::*;
use xdb_protocol::refusal::{self, Refusal, invalid_argument};
use xdb_protocol::retry_after_seconds;

impl Simulator {
    /// Applies a worker's answer to an open call.
    pub(crate) fn answer(&mut self, given: &mut Given) -> Result<String> {
        let (number, status): (u64, u16) = (given.needed("call")?, given.needed("status")?);
        let headers: BTreeMap<String, String> = given.take("headers")?.unwrap_or_default();
        let body: String = given.take("body")?.unwrap_or_default();
        given.end()?;
        if number == 0 || number > self.last_call {
            return Err(invalid_argument("call", format_args!("there was no call {number}")));
        }
        let Some(call) = self.open.remove(&number) else { return result(json!({"applied": false})) };
        let header = |name: &str| {
            let found = headers.iter().find(|(of, _)| of.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.as_str())
        };
        let now = self.now.unix_seconds();
        let retry_after = header("Retry-After").and_then(|value| retry_after_seconds(value, header("Date"), now));
        match &call.called {
            Callee::Rpc(rpc) => self.answer_rpc(&call, rpc, (status, retry_after), body.as_bytes()),
            Callee::State(attempt) => {
                let answered = read_answer(attempt.api, status, retry_after, body.as_bytes(), &LIMITS);
                result(self.answer_state(&call, *attempt, &answered)?)
            }
        }
    }

    /// Applies the outcome of a state's call. `applied` is false if the call is over. `failure` says why the attempt has
    /// failed.
    fn answer_state(&mut self, call: &OpenCall, attempt: Attempt, answered: &Answered) -> Result<Value> {
        match self.apply(call.execution, &answered.command(attempt), Some(call))? {
            Outcome::Applied => Ok(present(json!({"applied": true, "failure": answered.failure()}))),
            Outcome::Repeat => self.answer_state(call, attempt, &Answered::Uncalled),
            Outcome::Failed(failure, further) => self.answer_state(call, attempt, &Answered::Failed(failure, further)),
            Outcome::Over(_) | Outcome::Closing { .. } => Ok(json!({"applied": false})),
        }
    }

    /// Applies the answer to an RPC. Returns its `output`.
    fn answer_rpc(
        &mut self,
        call: &OpenCall,
        rpc: &AskedRpc,
        status: (u16, Option<u64>),
        body: &[u8],
    ) -> Result<String> {
        let (id, AskedRpc { name, input, invocation, has_key }) = (call.execution, rpc);
        if self.now > call.deadline {
            return Err(refusal::worker_failed(name, call.timed_out()));
        }
        let answer = read_rpc_answer(name, status, body, &LIMITS)?;
        let output = answer.output.clone();
        // An answer with warnings goes on, because a strict type refuses it.
        if *has_key || !answer.is_read_only() || !answer.effects.warnings.is_empty() {
            let command = Command::RpcAnswered { rpc_name: name.clone(), answer };
            self.apply(id, &command, Some(call))?.of_rpc(&self.run(id).execution.process_id, name)?;
        }
        if *has_key {
            self.rpc_answers.insert((id, invocation.clone()), (asked(name, input.as_ref()), output.clone()));
        }
        result(BTreeMap::from([("output", output)]))
    }

    /// Applies a command and what follows from it in other executions. `call`: the command is the answer to this call.
    pub(crate) fn apply(
        &mut self,
        id: ExecutionId,
        command: &Command,
        call: Option<&OpenCall>,
    ) -> Result<Outcome<Infallible>> {
        let outcome = xdb_calls::apply(&mut SimulatorDriver { simulator: self, id, call }, command)?;
        self.follow_closes()?;
        self.serve_waiting()?;
        Ok(outcome)
    }

    /// Offers free messages of global queues to the waiting states, longest waiting first. One pass is enough: messages
    /// that a state takes can't complete an earlier state.
    pub(crate) fn serve_waiting(&mut self) -> Result<()> {
        for (id, seq) in self.queues.waiting.clone() {
            // A state that does not wait any more refuses the command, and takes no messages.
            let mut driver = SimulatorDriver { simulator: self, id, call: None };
            xdb_calls::apply(&mut driver, &Command::GlobalMessagesArrived { seq })?;
        }
        self.queues.offered(self.now);
        Ok(())
    }
}

/// A command that is being applied.
pub(crate) struct SimulatorDriver<'a> {
    pub simulator: &'a mut Simulator,
    pub id: ExecutionId,
    /// The call whose answer the command is.
    pub call: Option<&'a OpenCall>,
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
        let is_same = |call: &OpenCall| self.simulator.fingerprint(self.id, &call.loads) == call.fingerprint;
        Ok(Used::Done(self.call.is_none_or(is_same)))
    }

    fn write_tables(&mut self, written: &Written<'_>) -> Result<Used<(), Infallible>> {
        let is_rpc = self.call.is_some_and(|call| matches!(call.called, Callee::Rpc(_)));
        // A refused start undoes the rows.
        let rows = written.children.as_ref().map(|_| self.simulator.tables.clone());
        let Simulator { tables, runs, .. } = self.simulator;
        if let Err(refused) = tables.write(&runs[&self.id], written.attributes, None) {
            return if is_rpc { Err(refused.refusal) } else { Ok(Used::Refused(refused.failure())) };
        }
        if let Some(children) = &written.children
            && let Err(refusal) = self.simulator.start_children(self.id, children)
        {
            self.simulator.tables = rows.unwrap_or_default();
            return if is_rpc { Err(refusal) } else { Ok(Used::Refused(refused_start(&refusal))) };
        }
        self.simulator.call_functions(self.id, written.functions);
        Ok(Used::Done(()))
    }

    fn apply(&mut self, events: Vec<Event>) -> Result<()> {
        self.simulator.record(self.id, events);
        Ok(())
    }
}
