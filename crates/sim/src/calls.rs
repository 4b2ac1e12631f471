//! Finds due calls, and hands them out as requests for the test to answer.

use crate::locks::{LockedValues, wanted};
use crate::rpc::OpenRpc;
use crate::run::Run;
use crate::{DATABASE, OWNER, Simulator};
use serde::Serialize;
use std::collections::BTreeMap;
use xdb_calls::*;
use xdb_engine::*;
use xdb_sched::wanted_locks::WantedLocks;

/// The default of `xdb.max_request_size`, in bytes.
pub(crate) const MAX_REQUEST_BYTES: usize = 16 * 1024 * 1024;

/// A request to a worker. The test answers it with [`Simulator::answer`].
#[derive(Clone, Debug, Serialize)]
pub struct WorkerRequest {
    /// Identifies the call in its answer.
    pub call: u64,
    pub process_id: String,
    pub process_type: String,
    pub execution_id: String,
    /// None for an RPC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_execution_id: Option<String>,
    /// Attempt number, from 1.
    pub attempt: u32,
    pub method: &'static str,
    /// The path after the worker's URL.
    pub path: &'static str,
    pub headers: BTreeMap<&'static str, String>,
    /// The exact body that a worker would get.
    pub body: String,
    pub timeout_seconds: f64,
}

/// A call that was handed out and not answered yet.
pub(crate) enum OpenCall {
    State(OpenState),
    Rpc(OpenRpc),
}

/// An open call of a state.
pub(crate) struct OpenState {
    pub execution: ExecutionId,
    pub seq: StateSeq,
    pub api: Api,
    pub attempt: u32,
    pub first_attempt_at: Timestamp,
    pub timeout: Duration,
    /// When the attempt fails.
    pub deadline: Timestamp,
    pub global: Loading,
    pub local: Loading,
    /// The locks that the call holds until it is answered.
    pub locks: WantedLocks,
    /// The values that the call has locked.
    pub locked: Option<LockedValues>,
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

impl Simulator {
    /// Hands out due calls: by priority, then by due time. A call that waits for the lock of an open call is not handed
    /// out.
    pub fn calls(&mut self) -> Vec<WorkerRequest> {
        let mut calls = Vec::new();
        for (id, seq) in self.due() {
            if let Some(call) = self.give_out(id, seq) {
                calls.push(call);
            }
        }
        calls
    }

    /// States with due calls that are neither handed out nor held back, for instance by a pause.
    pub(crate) fn due(&self) -> Vec<StateKey> {
        let mut due = Vec::new();
        for (id, run) in self.runs.iter().filter(|(_, run)| run.execution.is_running()) {
            for (state, at) in self.begin_at(run) {
                let is_open = || self.open.values().any(|open| open.is_of(*id, state.seq));
                if at <= self.now && !is_open() {
                    due.push((-run.execution.priority, at, *id, state.seq));
                }
            }
        }
        due.sort_unstable();
        due.into_iter().map(|(.., id, seq)| (id, seq)).collect()
    }

    /// The states of a process whose next call is made, or fails without a request, and when.
    pub(crate) fn begin_at<'s>(&'s self, run: &'s Run) -> impl Iterator<Item = (&'s StateExecution, Timestamp)> {
        let at_calls = run.execution.states.values().filter_map(|state| Some((state.as_ref(), state.open_call()?)));
        let begins = at_calls.filter(|(state, (api, _))| {
            let verdict = eligible(Asker::Scheduler, &self.facts(run, CallOf::State(state, *api))).1;
            matches!(verdict, Verdict::MayBeMade | Verdict::Fails(..))
        });
        begins.map(|(state, (_, call))| (state, call.not_before))
    }

    /// The facts that decide whether a call may be made.
    pub(crate) fn facts<'s>(&'s self, run: &'s Run, called: CallOf<'s>) -> Facts<'s> {
        let name = &run.execution.process_type;
        // The simulator never unregisters a type.
        let definition = &self.types[name];
        let registered = TypeFacts { definition, worker: TypeWorker::Called, pause: self.paused_types.get(name) };
        Facts::new(&run.execution, called, Some(registered), self.now)
    }

    /// Whether no open call holds the locks that this call wants.
    pub(crate) fn is_free(&self, (id, seq): StateKey) -> bool {
        let run = self.run(id);
        let Some((state, api)) = at_call(run, seq) else { return false };
        let config = self.definition(run).options_of(&state.id.state_id, state.config.as_deref());
        let loads = Loads::of(&config, api);
        let locks = wanted(run, &loads.global, &loads.local);
        !self.open.values().any(|open| open.locks().conflict(&locks))
    }

    fn give_out(&mut self, id: ExecutionId, seq: StateSeq) -> Option<WorkerRequest> {
        if !self.is_free((id, seq)) {
            return None;
        }
        let (_, api) = at_call(self.run(id), seq)?;
        let now = self.now;
        let first_at = *self.runs.get_mut(&id)?.first_attempts.entry((seq, api)).or_insert(now);
        let number = self.run(id).execution.states.get(&seq)?.call(api)?.failed_attempts + 1;
        let attempt = Attempt { seq, api, number, first_at };
        match self.request(id, attempt)? {
            Ok((call, open)) => {
                self.last_call += 1;
                self.open.insert(self.last_call, OpenCall::State(open));
                Some(call)
            }
            Err((failure, further)) => {
                if let Ok(events) = self.decide(id, &attempt.failed(failure, further)) {
                    self.apply(id, events);
                }
                None
            }
        }
    }

    /// The request of a state's call, or why the attempt fails without a request.
    fn request(
        &self,
        id: ExecutionId,
        attempt: Attempt,
    ) -> Option<std::result::Result<(WorkerRequest, OpenState), (Failure, Further)>> {
        let Attempt { seq, api, number, first_at } = attempt;
        let run = self.run(id);
        let state = run.execution.states.get(&seq)?;
        match eligible(Asker::Scheduler, &self.facts(run, CallOf::State(state, api))).1 {
            Verdict::MayBeMade => {}
            Verdict::Fails(failure, further) => return Some(Err((failure, further))),
            Verdict::Elsewhere | Verdict::Parked(_) | Verdict::Waits(_) | Verdict::Closes(_) => return None,
        }
        let config = self.definition(run).options_of(&state.id.state_id, state.config.as_deref());
        let (Loads { global, local }, timeout) = (Loads::of(&config, api), config.timeout(api));
        let (origin, attributes) = (origin(run), self.load(run, &global, &local));
        let outgoing = OutgoingCall::of_state(&origin, state, attempt, timeout);
        let call = match outgoing.request(&attributes, MAX_REQUEST_BYTES) {
            Ok(request) => self.given_out(run, &outgoing, &request),
            Err(refusal) => return Some(Err((too_large(&refusal.message), Further::ByPolicy))),
        };
        let open = OpenState {
            execution: id,
            seq,
            api,
            attempt: number,
            first_attempt_at: first_at,
            timeout,
            deadline: self.now + timeout,
            locks: wanted(run, &global, &local),
            locked: LockedValues::read(run, &self.tables, &global, &local),
            global,
            local,
        };
        Some(Ok((call, open)))
    }

    /// The attributes that a call loads.
    pub(crate) fn load(&self, run: &Run, global: &Loading, local: &Loading) -> Attributes {
        let attributes = run.execution.local_attributes.iter();
        let loads = Loads { global: global.clone(), local: local.clone() };
        loads.attributes(self.tables.load(run, global), attributes.map(|(name, value)| (name.as_str(), value.as_str())))
    }

    /// The next call to be handed out, with its number and headers.
    pub(crate) fn given_out(&self, run: &Run, outgoing: &OutgoingCall<'_>, request: &CallRequest<'_>) -> WorkerRequest {
        let context = outgoing.context();
        let mut headers = BTreeMap::from([
            ("Content-Type", "application/json".to_owned()),
            ("User-Agent", concat!("xdb/", env!("CARGO_PKG_VERSION")).to_owned()),
            ("Idempotency-Key", request.key()),
        ]);
        headers.extend(run.options.traceparent.clone().map(|traceparent| ("traceparent", traceparent)));
        WorkerRequest {
            call: self.last_call + 1,
            process_id: run.execution.process_id.clone(),
            process_type: run.execution.process_type.clone(),
            execution_id: run.execution.id.to_string(),
            state_execution_id: context.state_execution_id.map(ToString::to_string),
            attempt: context.attempt,
            method: "POST",
            path: request.path,
            headers,
            body: request.encode(),
            timeout_seconds: request.timeout().as_secs_f64(),
        }
    }
}

/// The state and the API of its current call.
fn at_call(run: &Run, seq: StateSeq) -> Option<(&StateExecution, Api)> {
    let state = run.execution.states.get(&seq)?;
    state.open_call().map(|(api, _)| (state.as_ref(), api))
}

/// What each request says about its process.
pub(crate) fn origin(run: &Run) -> CallOrigin<'_> {
    CallOrigin { execution: &run.execution, owner: Some(OWNER.to_owned()), database: DATABASE.into(), shard: None }
}
