//! RPCs: hands out the call, and applies its answer.

use crate::answers::{CallLoading, SimulatorDriver};
use crate::calls::{MAX_REQUEST_BYTES, OpenCall, WorkerRequest, origin};
use crate::line::Given;
use crate::locks::{LockedValues, wanted};
use crate::{LIMITS, QUOTAS, Result, Simulator};
use serde::Serialize;
use xdb_calls::{OutgoingCall, apply, read_rpc_answer};
use xdb_engine::*;
use xdb_protocol::refusal::{self, Refusal};
use xdb_protocol::*;
use xdb_sched::wanted_locks::WantedLocks;

/// The result of the command `rpc`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RpcCall {
    /// The call to the worker. Its answer gives the output.
    Call(Box<WorkerRequest>),
    /// The output of the first RPC with this idempotency key.
    Output(Option<Json>),
}

/// RPC and input, which an idempotency key stands for.
pub(crate) type Asked = (String, String);

/// An open call of an RPC.
pub(crate) struct OpenRpc {
    execution: ExecutionId,
    asked: Asked,
    idempotency_key: Option<String>,
    timeout: Duration,
    deadline: Timestamp,
    loading: (Loading, Loading),
    locked: Option<LockedValues>,
    pub locks: WantedLocks,
}

/// JSON in a normal form, to compare inputs. An absent input is null.
fn compared(input: Option<&Json>) -> String {
    let text = input.map_or("null", Json::as_str);
    serde_json::from_str::<serde_json::Value>(text).map_or_else(|_| text.to_owned(), |value| value.to_string())
}

/// The default timeout of an RPC, as in `xdb.rpc_timeout`.
const RPC_TIMEOUT: Duration = Duration(10_000_000);

impl Simulator {
    /// Hands out the call of an RPC.
    pub(crate) fn rpc(&mut self, given: &mut Given) -> Result<RpcCall> {
        let (rpc_name, input) = (given.name("rpc_name")?, given.payload("input")?);
        let timeout = arguments::rpc_timeout(given.length("timeout")?, QUOTAS.call_timeout)?;
        let idempotency_key = given.name_if_given("idempotency_key")?;
        let id = self.process(given)?;
        let asked = (rpc_name.clone(), compared(input.as_ref()));
        if let Some(key) = &idempotency_key
            && let Some((first, output)) = self.rpc_answers.get(&(id, key.clone()))
        {
            return match *first == asked {
                true => Ok(RpcCall::Output(output.clone())),
                false => Err(refusal::key_of_another_rpc(key)),
            };
        }
        let run = self.run(id);
        let config = arguments::rpc(&self.definition(run), &rpc_name)?;
        self.refuse_rpc(run)?;
        let global = config.load_global_attributes.unwrap_or_default();
        let local = config.load_local_attributes.unwrap_or_default();
        let locks = wanted(run, &global, &local);
        if self.open.values().any(|open| open.locks().conflict(&locks)) {
            return Err(Refusal::new(b"XD020", format!("RPC \"{rpc_name}\" did not get its locks in time"))
                .detail("A call that was given out has them.")
                .hint("Answer it first."));
        }
        let own = config.timeout_seconds.filter(|seconds| *seconds > 0.0).map(Duration::from_seconds);
        let timeout = timeout.or(own).unwrap_or(RPC_TIMEOUT);
        let invocation = idempotency_key.clone().unwrap_or_else(|| self.new_id().to_string());
        let run = self.run(id);
        let (origin, attributes) = (origin(run), self.load(run, &global, &local));
        let what = (rpc_name.as_str(), input.as_ref());
        let outgoing = OutgoingCall::of_rpc(origin, what, &invocation, self.now, timeout.as_std());
        let given = self.given_out(run, &outgoing.request(attributes, MAX_REQUEST_BYTES)?);
        let open = OpenRpc {
            execution: id,
            asked,
            idempotency_key,
            timeout,
            deadline: self.now + timeout,
            locked: LockedValues::read(run, &self.tables, &global, &local),
            loading: (global, local),
            locks,
        };
        self.last_call += 1;
        self.open.insert(self.last_call, OpenCall::Rpc(open));
        Ok(RpcCall::Call(Box::new(given)))
    }

    pub(crate) fn answer_rpc(
        &mut self,
        rpc: OpenRpc,
        status: u16,
        retry_after: Option<u64>,
        body: &str,
    ) -> Result<Option<Json>> {
        let OpenRpc { execution: id, asked: (rpc_name, _), .. } = &rpc;
        if self.now > rpc.deadline {
            let seconds = rpc.timeout.as_std().as_secs_f64();
            let what = format!("timed out after {seconds} s while waiting for the answer of the worker");
            return Err(refusal::worker_failed(rpc_name, what));
        }
        let answer = read_rpc_answer(rpc_name, (status, retry_after), body.as_bytes(), &LIMITS)?;
        let output = answer.output.clone();
        // An answer with warnings goes on, because a strict type refuses it.
        if answer.is_read_only() && answer.effects.warnings.is_empty() && rpc.idempotency_key.is_none() {
            return Ok(output);
        }
        let command = Command::RpcAnswered { rpc_name: rpc_name.clone(), answer };
        let process_id = self.run(*id).execution.process_id.clone();
        let loading = CallLoading { global: &rpc.loading.0, local: &rpc.loading.1, locked: rpc.locked.as_ref() };
        apply(&mut SimulatorDriver { simulator: self, id: *id, loading, raises: true }, &command)?
            .of_rpc(&process_id, rpc_name)?;
        if let Some(key) = &rpc.idempotency_key {
            self.rpc_answers.insert((*id, key.clone()), (rpc.asked.clone(), output.clone()));
        }
        Ok(output)
    }
}
