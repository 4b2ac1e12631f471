//! Calls that are due, and what is given out of them.

use crate::locks::{Locked, wanted};
use crate::rpc::OpenRpc;
use crate::run::Run;
use crate::{DATABASE, OWNER, Simulator};
use serde::Serialize;
use std::collections::BTreeMap;
use xdb_engine::*;
use xdb_protocol::*;
use xdb_sched::wanted_locks::WantedLocks;

/// A request to a worker, to be answered with [`Simulator::answer`].
#[derive(Clone, Debug, Serialize)]
pub struct Call {
    /// Names it in the answer.
    pub call: u64,
    pub process_id: String,
    pub process_type: String,
    pub execution_id: String,
    /// None for an RPC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_execution_id: Option<String>,
    /// From 1.
    pub attempt: u32,
    pub method: &'static str,
    /// After the worker's URL.
    pub path: &'static str,
    pub headers: BTreeMap<&'static str, String>,
    /// Byte by byte what the worker gets.
    pub body: String,
    pub timeout_seconds: f64,
}

/// A call that was given out.
pub(crate) enum OpenCall {
    State(OpenState),
    Rpc(OpenRpc),
}

/// A call of a state.
pub(crate) struct OpenState {
    pub execution: ExecutionId,
    pub seq: StateSeq,
    pub api: Api,
    pub attempt: u32,
    pub first_attempt_at: Timestamp,
    pub timeout: Duration,
    /// It fails at this time.
    pub deadline: Timestamp,
    pub global: Loading,
    pub local: Loading,
    pub locks: WantedLocks,
    /// Of what it has locked.
    pub locked: Option<Locked>,
}

impl OpenCall {
    pub fn is_state_of(&self, id: ExecutionId) -> bool {
        matches!(self, Self::State(call) if call.execution == id)
    }

    pub fn locks(&self) -> &WantedLocks {
        match self {
            Self::State(call) => &call.locks,
            Self::Rpc(rpc) => &rpc.locks,
        }
    }

    fn is_of(&self, id: ExecutionId, seq: StateSeq) -> bool {
        matches!(self, Self::State(call) if (call.execution, call.seq) == (id, seq))
    }
}

/// A request that is written, and what goes with it.
pub(crate) struct Sent<'a> {
    pub path: &'static str,
    pub key: String,
    pub body: String,
    pub timeout: Duration,
    pub attempt: u32,
    pub state: Option<&'a StateExecutionId>,
}

/// What is loaded for a call, as JSON objects.
pub(crate) struct Loaded {
    pub global: String,
    pub local: String,
    /// Stands for the values, if some of them are locked.
    pub values: Option<u64>,
}

impl Simulator {
    /// Gives out the calls that are due, by priority, and then in the order in which they came due. One that wants what another one has locked stays.
    pub fn calls(&mut self) -> Vec<Call> {
        let mut calls = Vec::new();
        for (id, seq) in self.due() {
            if let Some(call) = self.give_out(id, seq) {
                calls.push(call);
            }
        }
        calls
    }

    /// States at calls that are due, not given out, and not held by a pause.
    pub(crate) fn due(&self) -> Vec<(ExecutionId, StateSeq)> {
        let mut due = Vec::new();
        for (id, run) in self.runs.iter().filter(|(_, run)| run.execution.is_running() && !self.is_held(run)) {
            for state in run.execution.states.values() {
                let at = state.open_call().map(|(_, call)| call.not_before);
                let is_open = || self.open.values().any(|open| open.is_of(*id, state.seq));
                if let Some(at) = at.filter(|at| *at <= self.now && !is_open()) {
                    due.push((-run.execution.priority, at, *id, state.seq));
                }
            }
        }
        due.sort_unstable();
        due.into_iter().map(|(.., id, seq)| (id, seq)).collect()
    }

    /// Whether a call that is due can be given out now.
    pub(crate) fn is_free(&self, (id, seq): (ExecutionId, StateSeq)) -> bool {
        let run = self.run(id);
        let Some((state, api)) = at_call(run, seq) else { return false };
        let config = self.definition(run).options_of(&state.id.state_id, state.config.as_deref());
        let locks = wanted(run, &config.load_global(api), &config.load_local(api));
        !self.open.values().any(|open| open.locks().conflict(&locks))
    }

    fn give_out(&mut self, id: ExecutionId, seq: StateSeq) -> Option<Call> {
        if !self.is_free((id, seq)) {
            return None;
        }
        let (now, definition) = (self.now, self.definition(self.run(id)));
        let (state, api) = at_call(self.run(id), seq)?;
        if !definition.states.contains_key(&state.id.state_id) {
            self.fails_unlisted(id, seq, api);
            return None;
        }
        let first_attempt_at = *self.runs.get_mut(&id)?.first_attempts.entry((seq, api)).or_insert(now);
        let run = self.run(id);
        let (state, call) = (at_call(run, seq)?.0, run.execution.states.get(&seq)?.call(api)?);
        let config = definition.options_of(&state.id.state_id, state.config.as_deref());
        let (global, local) = (config.load_global(api), config.load_local(api));
        let loaded = self.load(run, &global, &local);
        let (call_id, attempt, timeout) = (call_id(id, &state.id, api), call.failed_attempts + 1, config.timeout(api));
        let request = StateRequest {
            context: CallContext {
                state_execution_id: Some(&state.id),
                recovery: state.recovery.as_ref(),
                ..context(run, &call_id, attempt, first_attempt_at, timeout)
            },
            process_type: &run.execution.process_type,
            state_id: &state.id.state_id,
            state_input: state.input.as_ref(),
            loaded_global_attributes: &loaded.global,
            loaded_local_attributes: &loaded.local,
            results: results(state),
            app_database_error: call.app_database_error.as_ref(),
        };
        let sent = Sent {
            path: if api == Api::Execute { EXECUTE_PATH } else { WAIT_UNTIL_PATH },
            key: request_key(&call_id, call.generation, loaded.values),
            body: request.encode(),
            timeout,
            attempt,
            state: Some(&state.id),
        };
        let given = given_out(run, self.last_call + 1, sent);
        let open = OpenState {
            execution: id,
            seq,
            api,
            attempt,
            first_attempt_at,
            timeout,
            deadline: now + timeout,
            locks: wanted(run, &global, &local),
            locked: Locked::read(run, &self.tables, &global, &local),
            global,
            local,
        };
        self.last_call += 1;
        self.open.insert(self.last_call, OpenCall::State(open));
        Some(given)
    }

    /// A state that the type does not list any more has no call.
    fn fails_unlisted(&mut self, id: ExecutionId, seq: StateSeq, api: Api) {
        let now = self.now;
        let Some(run) = self.runs.get_mut(&id) else { return };
        let first_attempt_at = *run.first_attempts.entry((seq, api)).or_insert(now);
        let Some(state) = run.execution.states.get(&seq) else { return };
        let attempt = state.call(api).map_or(1, |call| call.failed_attempts + 1);
        let (failure, further) = unlisted_state(&state.id.state_id);
        let failed =
            Command::CallFailed(CallFailed { seq, api, attempt, first_attempt_at, failure, further, applied: None });
        if let Ok(events) = self.decide(id, &failed) {
            self.apply(id, events);
        }
    }

    /// The attributes that a call gets.
    pub(crate) fn load(&self, run: &Run, global: &Loading, local: &Loading) -> Loaded {
        let locks = global.locks() || local.locks();
        let attributes = run.execution.local_attributes.iter().filter(|(name, _)| local.wants(name));
        let local = object(attributes.map(|(name, value)| (name.as_str(), value.as_str())));
        let global = self.tables.load(run, global);
        let values = locks.then(|| fingerprint(&global, &local));
        Loaded { global, local, values }
    }
}

/// The state, and the API of its call.
fn at_call(run: &Run, seq: StateSeq) -> Option<(&StateExecution, Api)> {
    let state = run.execution.states.get(&seq)?;
    state.open_call().map(|(api, _)| (state.as_ref(), api))
}

/// What `execute` is told of the wait.
fn results(state: &StateExecution) -> Option<&[WaitCommand]> {
    match &state.phase {
        Phase::Execute { results, .. } => Some(results.as_ref().map_or(&[][..], |wait| &wait.commands)),
        _ => None,
    }
}

/// What every request says of its process.
pub(crate) fn context<'a>(
    run: &'a Run,
    call_id: &'a str,
    attempt: u32,
    first_attempt_at: Timestamp,
    timeout: Duration,
) -> CallContext<'a> {
    CallContext {
        process_id: &run.execution.process_id,
        execution: run.execution.id,
        owner: Some(OWNER),
        database: DATABASE,
        process_started_at: run.execution.started_at,
        state_execution_id: None,
        attempt,
        call_id,
        first_attempt_at,
        timeout: timeout.as_std(),
        shard: None,
        recovery: None,
    }
}

/// A request with its headers.
pub(crate) fn given_out(run: &Run, number: u64, sent: Sent<'_>) -> Call {
    let mut headers = BTreeMap::from([
        ("Content-Type", "application/json".to_owned()),
        ("User-Agent", concat!("xdb/", env!("CARGO_PKG_VERSION")).to_owned()),
        ("Idempotency-Key", sent.key),
    ]);
    headers.extend(run.options.traceparent.clone().map(|traceparent| ("traceparent", traceparent)));
    Call {
        call: number,
        process_id: run.execution.process_id.clone(),
        process_type: run.execution.process_type.clone(),
        execution_id: run.execution.id.to_string(),
        state_execution_id: sent.state.map(ToString::to_string),
        attempt: sent.attempt,
        method: "POST",
        path: sent.path,
        headers,
        body: sent.body,
        timeout_seconds: sent.timeout.as_std().as_secs_f64(),
    }
}
