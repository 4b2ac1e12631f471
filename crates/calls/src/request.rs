//! What is sent: from the state of an execution, and what was loaded for its call, to the request.

use crate::Attempt;
use std::collections::BTreeMap;
use std::rc::Rc;
use xdb_engine::*;
use xdb_protocol::refusal::{self, Refusal};
use xdb_protocol::*;

/// Which attributes a call loads.
#[derive(Clone, Debug, Default)]
pub struct Loads {
    pub global: Loading,
    pub local: Loading,
}

impl Loads {
    /// Those of a state's call.
    pub fn of(config: &StateConfig, api: Api) -> Self {
        Self { global: config.load_global(api), local: config.load_local(api) }
    }

    /// Whether any are locked.
    pub fn locks(&self) -> bool {
        self.global.locks() || self.local.locks()
    }

    /// What was loaded, from the JSON object of the global attributes and all local ones, as JSON texts by name.
    pub fn attributes<'v>(
        &self,
        global: String,
        local: impl Iterator<Item = (&'v str, &'v str)> + Clone,
    ) -> Attributes {
        let local = object(local.filter(|(name, _)| self.local.wants(name)));
        Attributes { global, local, are_locked: self.locks() }
    }
}

/// The versions of the local attributes that a loading policy locks. With the policy ALL a new key changes them too.
pub fn versions_of<'a>(
    loading: &Loading,
    versions: impl Iterator<Item = (&'a String, &'a String)>,
) -> BTreeMap<String, String> {
    let covered = versions.filter(|(name, _)| loading.locks() && loading.wants(name));
    covered.map(|(name, version)| (name.clone(), version.clone())).collect()
}

/// The attributes that a call gets.
#[derive(Debug)]
pub struct Attributes {
    /// JSON objects.
    pub global: String,
    pub local: String,
    /// Some of them are: an attempt that loads other values is another request.
    pub are_locked: bool,
}

/// What every request says of its process.
#[derive(Debug)]
pub struct Origin<'a> {
    pub execution: &'a Execution,
    /// The role that owns the process, by the name that it has now; none if it is gone.
    pub owner: Option<String>,
    pub database: Rc<str>,
    /// Of a process that was started with a key for it.
    pub shard: Option<i16>,
}

/// A call that is to be sent.
#[derive(Debug)]
pub struct OutgoingCall<'a> {
    origin: &'a Origin<'a>,
    what: What<'a>,
    pub id: String,
    /// From 1.
    number: u32,
    first_at: Timestamp,
    timeout: std::time::Duration,
}

#[derive(Clone, Copy, Debug)]
enum What<'a> {
    State(&'a StateExecution, Api),
    Rpc(&'a str, Option<&'a Json>),
}

impl<'a> OutgoingCall<'a> {
    /// The call that a state is at.
    pub fn of_state(origin: &'a Origin<'a>, state: &'a StateExecution, attempt: Attempt, timeout: Duration) -> Self {
        let Attempt { api, number, first_at, .. } = attempt;
        let id = call_id(origin.execution.id, &state.id, api);
        Self { origin, what: What::State(state, api), id, number, first_at, timeout: timeout.as_std() }
    }

    /// An RPC. Its invocation is unique, or the same where the RPC is repeated.
    pub fn of_rpc(
        origin: &'a Origin<'a>,
        (rpc_name, input): (&'a str, Option<&'a Json>),
        invocation: &str,
        now: Timestamp,
        timeout: std::time::Duration,
    ) -> Self {
        let id = rpc_call_id(origin.execution.id, rpc_name, invocation);
        Self { origin, what: What::Rpc(rpc_name, input), id, number: 1, first_at: now, timeout }
    }

    /// What functions that the answer calls are told of the call, too.
    pub fn context(&self) -> CallContext<'_> {
        let Origin { execution, owner, database, shard } = self.origin;
        let state = match self.what {
            What::State(state, _) => Some(state),
            What::Rpc(..) => None,
        };
        CallContext {
            process_id: &execution.process_id,
            execution: execution.id,
            owner: owner.as_deref(),
            database,
            process_started_at: execution.started_at,
            state_execution_id: state.map(|state| &state.id),
            attempt: self.number,
            call_id: &self.id,
            first_attempt_at: self.first_at,
            timeout: self.timeout,
            shard: *shard,
            recovery: state.and_then(|state| state.recovery.as_ref()),
        }
    }

    /// The request, unless it has more than so many bytes of payloads and attributes.
    pub fn request<'b>(&'b self, attributes: &'b Attributes, most: usize) -> Result<CallRequest<'b>, Refusal> {
        let (handler, input, state) = match self.what {
            What::State(state, api) => (Handler::State(&state.id.state_id), state.input.as_ref(), Some((state, api))),
            What::Rpc(name, input) => (Handler::Rpc(name), input, None),
        };
        let call = state.and_then(|(state, api)| state.call(api));
        let path = state.map_or(RPC_PATH, |(_, api)| if api == Api::Execute { EXECUTE_PATH } else { WAIT_UNTIL_PATH });
        let body = RequestBody {
            context: self.context(),
            process_type: &self.origin.execution.process_type,
            handler,
            input,
            loaded_global_attributes: &attributes.global,
            loaded_local_attributes: &attributes.local,
            results: state.and_then(|(state, _)| results(state)),
            app_database_error: call.and_then(|call| call.app_database_error.as_ref()),
        };
        let (bytes, generation) = (body.payload_bytes(), call.map_or(0, |call| call.generation));
        match bytes > most {
            true => Err(refusal::request_too_large(bytes, most)),
            false => Ok(CallRequest { body, bytes, path, generation, has_locked: attributes.are_locked }),
        }
    }
}

/// What `execute` is told of the wait.
fn results(state: &StateExecution) -> Option<&[WaitCommand]> {
    match &state.phase {
        Phase::Execute { results, .. } => Some(results.as_ref().map_or(&[][..], |wait| &wait.commands)),
        _ => None,
    }
}

/// A request that is not too large.
#[derive(Debug)]
pub struct CallRequest<'a> {
    body: RequestBody<'a>,
    /// Of payloads and attributes; the rest is short.
    pub bytes: usize,
    /// After the worker's URL.
    pub path: &'static str,
    generation: u32,
    has_locked: bool,
}

impl CallRequest<'_> {
    /// The `Idempotency-Key`.
    pub fn key(&self) -> String {
        let RequestBody { context, loaded_global_attributes: global, loaded_local_attributes: local, .. } = self.body;
        request_key(context.call_id, self.generation, self.has_locked.then(|| fingerprint(global, local)))
    }

    /// For everything until the last byte of the answer.
    pub fn timeout(&self) -> std::time::Duration {
        self.body.context.timeout
    }

    /// The body.
    pub fn encode(&self) -> String {
        self.body.encode()
    }
}

/// An attempt that failed because what its call would send is too large.
pub fn too_large(why: &str) -> Failure {
    Failure::of("RequestTooLarge", why.to_owned())
}
