//! The request of a call, made from the state of an execution and the attributes that the call has loaded.
//!
//! Limitations: headers and signatures are added by the caller.

use crate::Attempt;
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
    /// The attributes that a state's call loads.
    pub fn of(config: &StateConfig, api: Api) -> Self {
        Self { global: config.load_global(api), local: config.load_local(api) }
    }

    /// The attributes that an RPC loads.
    pub fn of_rpc(config: &RpcConfig) -> Self {
        let RpcConfig { load_global_attributes: global, load_local_attributes: local, .. } = config;
        Self { global: global.clone().unwrap_or_default(), local: local.clone().unwrap_or_default() }
    }

    /// Whether any attributes are locked.
    pub fn locks(&self) -> bool {
        self.global.locks() || self.local.locks()
    }

    /// The loaded attributes. `global` is a JSON object; `local` are all local attributes, by name, as JSON texts.
    pub fn attributes<'v>(
        &self,
        global: String,
        local: impl Iterator<Item = (&'v str, &'v str)> + Clone,
    ) -> Attributes {
        let local = object(local.filter(|(name, _)| self.local.wants(name)));
        Attributes { global, local, are_locked: self.locks() }
    }

    /// The fingerprint of what a call has loaded under locks. If it has changed, the answer is not applied. With the
    /// policy ALL, a new attribute changes it too. None: nothing is locked.
    ///
    /// `global` is a JSON object; `versions` are those of all local attributes, by name. What is not locked does not
    /// count.
    pub fn fingerprint<'v>(
        &self,
        global: &str,
        versions: impl Iterator<Item = (&'v String, &'v String)>,
    ) -> Option<u64> {
        let global = if self.global.locks() { global } else { "" };
        let covered = versions.filter(|(name, _)| self.local.locks() && self.local.wants(name));
        let versions = covered.map(|(name, version)| (name.clone(), version.clone())).collect();
        self.locks().then(|| token_fingerprint(global, &versions))
    }
}

/// The attributes that a call gets.
#[derive(Debug)]
pub struct Attributes {
    /// A JSON object.
    pub global: String,
    /// A JSON object.
    pub local: String,
    /// Some are locked. Then other values make another `Idempotency-Key`.
    pub are_locked: bool,
}

/// The process that a call comes from, as every request describes it.
#[derive(Debug)]
pub struct CallOrigin<'a> {
    pub execution: &'a Execution,
    /// The current name of the role that owns the process. None: the role was dropped.
    pub owner: Option<String>,
    /// The name of the database.
    pub database: Rc<str>,
    /// The shard, if the process was started with a `shardKey`.
    pub shard: Option<i16>,
}

/// A call before its attributes are loaded.
#[derive(Debug)]
pub struct OutgoingCall<'a> {
    origin: CallOrigin<'a>,
    what: What<'a>,
    /// The `callId`.
    pub id: String,
    /// The attempt, from 1.
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
    /// The current call of a state.
    pub fn of_state(origin: CallOrigin<'a>, state: &'a StateExecution, attempt: Attempt, timeout: Duration) -> Self {
        let Attempt { api, number, first_at, .. } = attempt;
        let id = call_id(origin.execution.id, &state.id, api);
        Self { origin, what: What::State(state, api), id, number, first_at, timeout: timeout.as_std() }
    }

    /// An RPC. `invocation` is unique, or the same if the RPC is repeated.
    pub fn of_rpc(
        origin: CallOrigin<'a>,
        (rpc_name, input): (&'a str, Option<&'a Json>),
        invocation: &str,
        now: Timestamp,
        timeout: std::time::Duration,
    ) -> Self {
        let id = rpc_call_id(origin.execution.id, rpc_name, invocation);
        Self { origin, what: What::Rpc(rpc_name, input), id, number: 1, first_at: now, timeout }
    }

    fn state(&self) -> Option<&'a StateExecution> {
        if let What::State(state, _) = self.what { Some(state) } else { None }
    }

    /// What the state knows of its call. None for an RPC.
    fn call(&self) -> Option<&'a CallState> {
        if let What::State(state, api) = self.what { state.call(api) } else { None }
    }

    /// The `context` of the request. Functions that the answer calls get it too.
    pub fn context(&self) -> CallContext<'_> {
        let CallOrigin { execution, owner, database, shard } = &self.origin;
        CallContext {
            process_id: &execution.process_id,
            execution: execution.id,
            owner: owner.as_deref(),
            database,
            process_started_at: execution.started_at,
            state_execution_id: self.state().map(|state| &state.id),
            attempt: self.number,
            call_id: &self.id,
            first_attempt_at: self.first_at,
            timeout: self.timeout,
            shard: *shard,
            parent: execution.parent.as_deref(),
            recovery: self.state().and_then(|state| state.recovery.as_ref()),
            guards: self.state().and_then(guarded),
            compensates: self.state().and(execution.compensation.of.as_ref()),
        }
    }

    /// The request. Error: it has more than `most` bytes of payloads and attributes.
    pub fn request(self, attributes: Attributes, most: usize) -> Result<CallRequest<'a>, Refusal> {
        let mut request = CallRequest { call: self, attributes, bytes: 0 };
        request.bytes = request.body().payload_bytes();
        if request.bytes > most { Err(refusal::request_too_large(request.bytes, most)) } else { Ok(request) }
    }
}

/// The step that a guard guarded when its wait ended.
fn guarded(guard: &StateExecution) -> Option<&StateExecutionId> {
    if let Phase::Execute { results: Some(wait), .. } = &guard.phase { wait.guards.as_ref() } else { None }
}

/// The results of the wait, for `execute`.
fn results(state: &StateExecution) -> Option<&[WaitCommand]> {
    match &state.phase {
        Phase::Execute { results, .. } => Some(results.as_ref().map_or(&[][..], |wait| &wait.commands)),
        _ => None,
    }
}

/// A request that is not too large.
#[derive(Debug)]
pub struct CallRequest<'a> {
    pub call: OutgoingCall<'a>,
    pub attributes: Attributes,
    /// The bytes of payloads and attributes. The rest of the body is short.
    pub bytes: usize,
}

impl<'a> CallRequest<'a> {
    /// The request of a state's call. Error: it has more than `most` bytes, so the attempt fails before the call.
    pub fn of_state(
        origin: CallOrigin<'a>,
        state: &'a StateExecution,
        attempt: Attempt,
        timeout: Duration,
        attributes: Attributes,
        most: usize,
    ) -> Result<Self, Box<Failure>> {
        let call = OutgoingCall::of_state(origin, state, attempt, timeout);
        call.request(attributes, most).map_err(|refusal| Box::new(too_large(&refusal.message)))
    }

    fn body(&self) -> RequestBody<'_> {
        let Self { call, attributes, .. } = self;
        let (handler, input) = match call.what {
            What::State(state, _) => (Handler::State(&state.id.state_id), state.input.as_ref()),
            What::Rpc(name, input) => (Handler::Rpc(name), input),
        };
        RequestBody {
            context: call.context(),
            process_type: &call.origin.execution.process_type,
            handler,
            input,
            loaded_global_attributes: &attributes.global,
            loaded_local_attributes: &attributes.local,
            results: call.state().and_then(results),
            app_database_error: call.call().and_then(|call| call.app_database_error.as_ref()),
        }
    }

    /// The path after the worker's URL.
    pub fn path(&self) -> &'static str {
        match self.call.what {
            What::State(_, Api::WaitUntil) => WAIT_UNTIL_PATH,
            What::State(_, Api::Execute) => EXECUTE_PATH,
            What::Rpc(..) => RPC_PATH,
        }
    }

    /// The `Idempotency-Key`.
    pub fn key(&self) -> String {
        let Attributes { global, local, are_locked } = &self.attributes;
        let generation = self.call.call().map_or(0, |call| call.generation);
        request_key(&self.call.id, generation, are_locked.then(|| fingerprint(global, local)))
    }

    /// The time limit of the call, until the last byte of the answer.
    pub fn timeout(&self) -> std::time::Duration {
        self.call.timeout
    }

    /// The body, as JSON.
    pub fn encode(&self) -> String {
        self.body().encode()
    }
}

/// A failed attempt whose request would be too large.
pub fn too_large(why: &str) -> Failure {
    Failure::of("RequestTooLarge", why.to_owned())
}
