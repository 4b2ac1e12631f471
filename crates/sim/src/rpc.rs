//! RPCs: the worker is called on behalf of the caller, and its answer is applied when it comes.

use crate::answers::{Answering, Read};
use crate::calls::{Call, OpenCall, Sent, context, given_out};
use crate::locks::{Locked, Locks};
use crate::{LIMITS, QUOTAS, Result, RpcArguments, Simulator};
use serde::Serialize;
use xdb_calls::{apply, read_rpc_answer};
use xdb_engine::*;
use xdb_protocol::arguments::{name, name_if_given, payload};
use xdb_protocol::refusal::{self, Refusal};
use xdb_protocol::*;

/// What an RPC begins with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RpcCall {
    /// Its answer gives the output.
    Call(Box<Call>),
    /// The first output for this idempotency key.
    Output(Option<Json>),
}

/// The call of an RPC.
pub(crate) struct OpenRpc {
    process_id: String,
    execution: ExecutionId,
    rpc_name: String,
    input: Option<Json>,
    idempotency_key: Option<String>,
    timeout: Duration,
    deadline: Timestamp,
    loading: (Loading, Loading),
    locked: Option<Locked>,
    pub locks: Locks,
}

/// What an idempotency key was used for first.
pub(crate) struct FirstAnswer {
    rpc_name: String,
    input: Option<Json>,
    output: Option<Json>,
}

/// Whether two inputs are the same JSON, however they are written. No input is the input null.
fn is_same(one: Option<&Json>, other: Option<&Json>) -> bool {
    let value =
        |input: Option<&Json>| serde_json::from_str::<serde_json::Value>(input.map_or("null", Json::as_str)).ok();
    one == other || value(one).is_some_and(|one| value(other) == Some(one))
}

/// How long an RPC takes where nobody says otherwise: the default of `xdb.rpc_timeout`.
const RPC_TIMEOUT: Duration = Duration(10_000_000);

/// A timeout that a caller asks for.
fn asked_timeout(seconds: f64) -> Result<Duration> {
    if seconds <= 0.0 {
        return Err(refusal::invalid_argument("timeout", "it must be positive"));
    }
    let timeout = Duration::from_seconds(seconds);
    match LongerCall::of(timeout, QUOTAS.call_timeout) {
        Some(longer) => Err(refusal::over_quota(longer.to_string())),
        None => Ok(timeout),
    }
}

impl Simulator {
    /// Gives out the call of an RPC.
    pub fn rpc(&mut self, arguments: RpcArguments) -> Result<RpcCall> {
        let process_id = name("process_id", arguments.process_id)?;
        let rpc_name = name("rpc_name", arguments.rpc_name)?;
        let input = payload("input", arguments.input.as_ref().map(Json::as_str), LIMITS.max_payload_bytes)?;
        let timeout = arguments.timeout.map(asked_timeout).transpose()?;
        let idempotency_key = name_if_given("idempotency_key", arguments.idempotency_key)?;
        let id = self.find(&process_id, arguments.execution_id.as_deref())?;
        if let Some(output) = self.first_answer(id, &rpc_name, input.as_ref(), idempotency_key.as_deref())? {
            return Ok(RpcCall::Output(output));
        }
        let run = self.run(id);
        let definition = self.definition(run);
        let Some(config) = definition.rpc(&rpc_name) else {
            let known: Vec<_> = definition.rpcs.iter().flat_map(|rpcs| rpcs.keys().map(String::as_str)).collect();
            return Err(refusal::unknown_word("rpc_name", &rpc_name, &known));
        };
        self.refuse_rpc(run)?;
        let global = config.load_global_attributes.unwrap_or_default();
        let local = config.load_local_attributes.unwrap_or_default();
        let locks = Locks::wanted(run, &global, &local);
        if self.open.values().any(|open| open.locks().conflict(&locks)) {
            return Err(Refusal::new(b"XD020", format!("RPC \"{rpc_name}\" did not get its locks in time"))
                .detail("A call that was given out has them.")
                .hint("Answer it first."));
        }
        let own = config.timeout_seconds.filter(|seconds| *seconds > 0.0).map(Duration::from_seconds);
        let timeout = timeout.or(own).unwrap_or(RPC_TIMEOUT);
        let invocation = idempotency_key.clone().unwrap_or_else(|| self.new_id().to_string());
        let run = self.run(id);
        let call_id = rpc_call_id(id, &rpc_name, &invocation);
        let loaded = self.load(run, &global, &local);
        let request = RpcRequest {
            context: context(run, &call_id, 1, self.now, timeout),
            process_type: &run.execution.process_type,
            rpc_name: &rpc_name,
            input: input.as_ref(),
            loaded_global_attributes: &loaded.global,
            loaded_local_attributes: &loaded.local,
        };
        let key = request_key(&call_id, 0, loaded.values);
        let sent = Sent { path: RPC_PATH, key, body: request.encode(), timeout, attempt: 1, state: None };
        let given = given_out(run, self.last_call + 1, sent);
        let open = OpenRpc {
            process_id,
            execution: id,
            rpc_name,
            input,
            idempotency_key,
            timeout,
            deadline: self.now + timeout,
            locked: Locked::read(run, &self.tables, &global, &local),
            loading: (global, local),
            locks,
        };
        self.last_call += 1;
        self.open.insert(self.last_call, OpenCall::Rpc(open));
        Ok(RpcCall::Call(Box::new(given)))
    }

    /// The first output for an idempotency key, if it has one.
    fn first_answer(
        &self,
        id: ExecutionId,
        rpc_name: &str,
        input: Option<&Json>,
        key: Option<&str>,
    ) -> Result<Option<Option<Json>>> {
        let Some(key) = key else { return Ok(None) };
        match self.rpc_answers.get(&(id, key.to_owned())) {
            None => Ok(None),
            Some(first) if first.rpc_name == rpc_name && is_same(first.input.as_ref(), input) => {
                Ok(Some(first.output.clone()))
            }
            Some(_) => Err(refusal::key_of_another_rpc(key)),
        }
    }

    pub(crate) fn answer_rpc(
        &mut self,
        rpc: OpenRpc,
        status: u16,
        retry_after: Option<u64>,
        body: &str,
    ) -> Result<Option<Json>> {
        let OpenRpc { process_id, execution: id, rpc_name, .. } = &rpc;
        if self.now > rpc.deadline {
            let seconds = rpc.timeout.as_std().as_secs_f64();
            let what = format!("timed out after {seconds} s while waiting for the answer of the worker");
            return Err(refusal::worker_failed(rpc_name, what));
        }
        let is_strict = self.definition(self.run(*id)).strict_answers;
        let answer = read_rpc_answer(rpc_name, (status, retry_after), body.as_bytes(), &LIMITS, is_strict)?;
        let output = answer.output.clone();
        if answer.is_read_only() && rpc.idempotency_key.is_none() {
            return Ok(output);
        }
        let command = Command::RpcAnswered { rpc_name: rpc_name.clone(), answer };
        let read = Read { global: &rpc.loading.0, local: &rpc.loading.1, locked: rpc.locked.as_ref() };
        apply(&mut Answering { simulator: self, id: *id, read, raises: true }, &command)?
            .of_rpc(process_id, rpc_name)?;
        if let Some(key) = &rpc.idempotency_key {
            let first =
                FirstAnswer { rpc_name: rpc.rpc_name.clone(), input: rpc.input.clone(), output: output.clone() };
            self.rpc_answers.insert((*id, key.clone()), first);
        }
        Ok(output)
    }
}
