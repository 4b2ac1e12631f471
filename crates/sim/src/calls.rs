//! Finds due calls, and hands them out as requests for the test to answer. Also the calls of RPCs.

use crate::given::{Given, Result, present, result};
use crate::run::Run;
use crate::{DATABASE, OWNER, Simulator};
use serde_json::{Value, from_str, json};
use std::collections::BTreeMap;
use xdb_calls::*;
use xdb_engine::*;
use xdb_protocol::arguments;
use xdb_protocol::refusal::{self, Refusal};
use xdb_sched::wanted_locks::WantedLocks;

/// The default timeout of an RPC, as in `xdb.rpc_timeout`.
const RPC_TIMEOUT: Duration = Duration(10_000_000);

/// The default of `xdb.max_request_size`, in bytes.
const MAX_REQUEST_BYTES: usize = 16 * 1024 * 1024;

/// A call that was handed out and not answered yet.
pub(crate) struct OpenCall {
    pub execution: ExecutionId,
    pub called: Callee,
    pub timeout: Duration,
    /// When the call times out.
    pub deadline: Timestamp,
    pub loads: Loads,
    /// The locks that the call holds until it is answered.
    locks: WantedLocks,
    /// The fingerprint of the values that the call has loaded under locks.
    pub fingerprint: Option<u64>,
}

/// What is called.
pub(crate) enum Callee {
    State(Attempt),
    Rpc(AskedRpc),
}

/// What the caller of an RPC asks for.
pub(crate) struct AskedRpc {
    pub name: String,
    pub input: Option<Json>,
    /// The caller's idempotency key, or a new id.
    pub invocation: String,
    pub has_key: bool,
}

/// RPC and input, which an idempotency key stands for.
pub(crate) type Asked = (String, String);

/// The RPC, and its input in a normal form. An absent input is null.
pub(crate) fn asked(rpc_name: &str, input: Option<&Json>) -> Asked {
    let text = input.map_or("null", Json::as_str);
    (rpc_name.to_owned(), from_str::<Value>(text).map_or_else(|_| text.to_owned(), |value| value.to_string()))
}

impl OpenCall {
    /// The state. None for an RPC.
    pub fn state(&self) -> Option<StateKey> {
        match &self.called {
            Callee::State(attempt) => Some((self.execution, attempt.seq)),
            Callee::Rpc(_) => None,
        }
    }

    /// Why the call fails at its deadline.
    pub fn timed_out(&self) -> String {
        let seconds = self.timeout.as_std().as_secs_f64();
        format!("timed out after {seconds} s while waiting for the answer of the worker")
    }
}

impl Simulator {
    /// Hands out due calls: by priority, then by due time.
    pub(crate) fn calls(&mut self) -> Result<Vec<Value>> {
        let mut calls = Vec::new();
        for key in self.due() {
            calls.extend(self.make(key)?);
        }
        Ok(calls)
    }

    /// States whose calls are due now, are not handed out, and wait for no lock of an open call.
    pub(crate) fn due(&self) -> Vec<StateKey> {
        let mut due = Vec::new();
        for (run, state) in self.running_states() {
            let key = (run.execution.id, state.seq);
            if let Some((api, call, _)) = self.next_call(run, state)
                && call.not_before <= self.now
                && !self.open.values().any(|open| open.state() == Some(key))
                && self.is_free(key.0, &self.loads(run, state, api).0)
            {
                due.push((-run.execution.priority, call.not_before, key));
            }
        }
        due.sort_unstable();
        due.into_iter().map(|(.., key)| key).collect()
    }

    /// The call that a state makes next. None: the state is at no call, or the call is not made now, for instance
    /// because of a pause.
    pub(crate) fn next_call<'s>(
        &'s self,
        run: &'s Run,
        state: &'s StateExecution,
    ) -> Option<(Api, &'s CallState, Verdict<'s>)> {
        let (api, call) = state.open_call()?;
        let verdict = eligible(Asker::Scheduler, &self.facts(run, CallOf::State(state, api))).1;
        matches!(verdict, Verdict::MayBeMade | Verdict::Fails(..)).then_some((api, call, verdict))
    }

    /// The facts that decide whether a call may be made.
    pub(crate) fn facts<'s>(&'s self, run: &'s Run, called: CallOf<'s>) -> Facts<'s> {
        let name = &run.execution.process_type;
        // The simulator never unregisters a type.
        let definition = &self.types[name];
        let registered = TypeFacts { definition, worker: TypeWorker::Called, pause: self.paused_types.get(name) };
        let facts = Facts::new(&run.execution, called, Some(registered), self.now);
        Facts { waits_for_locks: self.locks.waits(run.execution.id), ..facts }
    }

    /// What a state's call loads, and its timeout.
    fn loads(&self, run: &Run, state: &StateExecution, api: Api) -> (Loads, Duration) {
        let config = self.definition(run).options_of(&state.id.state_id, state.config.as_deref());
        (Loads::of(&config, api), config.timeout(api))
    }

    /// The locks that a call of this execution wants.
    fn locks(&self, id: ExecutionId, loads: &Loads) -> WantedLocks {
        WantedLocks::of(id, self.run(id).rows(), &loads.global, &loads.local, |_, _, text| text.to_owned())
    }

    /// Whether no open call holds the locks that a call of this execution wants.
    pub(crate) fn is_free(&self, id: ExecutionId, loads: &Loads) -> bool {
        let locks = self.locks(id, loads);
        !self.open.values().any(|open| open.locks.conflict(&locks))
    }

    /// The fingerprint of the values that a call locks. Callers can write these values during the call, because the
    /// simulator's locks hold back only calls.
    pub(crate) fn fingerprint(&self, id: ExecutionId, loads: &Loads) -> Option<u64> {
        let run = self.run(id);
        loads.fingerprint(&self.tables.load(run, &loads.global), run.local_versions.iter())
    }

    /// Makes the due call of a state. None: the call has to wait, or its attempt has failed without a request.
    fn make(&mut self, (id, seq): StateKey) -> Result<Option<Value>> {
        let run = self.run(id);
        // An earlier call may have ended the state.
        let Some(state) = run.execution.states.get(&seq) else { return Ok(None) };
        let Some((api, call, verdict)) = self.next_call(run, state) else { return Ok(None) };
        let (loads, timeout) = self.loads(run, state, api);
        if !self.is_free(id, &loads) {
            return Ok(None);
        }
        let number = call.failed_attempts + 1;
        let fails = match verdict {
            Verdict::Fails(failure, further) => Some(Answered::Failed(failure, further)),
            _ => None,
        };
        let (now, run) = (self.now, self.runs.get_mut(&id));
        let first_at = run.map_or(now, |run| *run.first_attempts.entry((seq, api)).or_insert(now));
        let attempt = Attempt { seq, api, number, first_at };
        let fails = match fails {
            Some(fails) => fails,
            None => match self.hand_out(id, Callee::State(attempt), loads, timeout) {
                Ok(call) => return Ok(Some(call)),
                Err(refusal) => failed_by_policy(too_large(&refusal.message)),
            },
        };
        self.apply(id, &fails.command(attempt), None)?;
        Ok(None)
    }

    /// The `call` of an RPC. Or the `output` of the first RPC with this idempotency key.
    pub(crate) fn rpc(&mut self, given: &mut Given) -> Result<String> {
        let (name, input) = (given.name("rpc_name")?, given.payload("input")?);
        let timeout = arguments::rpc_timeout(given.length("timeout")?, Quotas::FIXED.call_timeout)?;
        let key = given.name_if_given("idempotency_key")?;
        let id = self.process(given)?;
        if let Some(key) = &key
            && let Some((first, output)) = self.rpc_answers.get(&(id, key.clone()))
        {
            return match *first == asked(&name, input.as_ref()) {
                true => result(BTreeMap::from([("output", output)])),
                false => Err(refusal::key_of_another_rpc(key)),
            };
        }
        let run = self.run(id);
        let config = arguments::rpc(&self.definition(run), &name)?;
        match eligible(Asker::Session, &self.facts(run, CallOf::Rpc(config.function.as_deref()))).1 {
            // The simulator can't let a caller wait, because no command could end the pause meanwhile.
            Verdict::Parked(paused) => return Err(paused.refusal(&run.execution)),
            Verdict::Waits(Reason::Locks) => return Err(self.waits_for_lock(&run.execution)),
            verdict => verdict.refuse_rpc(&name)?,
        }
        let loads = Loads::of_rpc(&config);
        if !self.is_free(id, &loads) {
            return Err(Refusal::new(b"XD020", format!("RPC \"{name}\" did not get its locks in time"))
                .detail("A call that was given out has them.")
                .hint("Answer it first."));
        }
        let timeout = timeout.or(config.timeout()).unwrap_or(RPC_TIMEOUT);
        let has_key = key.is_some();
        let invocation = key.unwrap_or_else(|| self.new_id().to_string());
        let call = self.hand_out(id, Callee::Rpc(AskedRpc { name, input, invocation, has_key }), loads, timeout)?;
        result(json!({"call": call}))
    }

    fn waits_for_lock(&self, execution: &Execution) -> Refusal {
        let (lock, holder) = self.locks.missing(&execution.locks).unwrap_or_default();
        let holder = holder.map(|id| self.run(id).execution.process_id.as_str());
        refusal::waits_for_lock(&execution.process_id, &lock, holder)
    }

    /// Hands out a call: its number, and the request that a worker would get. Error: the request would be too large.
    pub(crate) fn hand_out(
        &mut self,
        id: ExecutionId,
        called: Callee,
        loads: Loads,
        timeout: Duration,
    ) -> Result<Value> {
        let run = self.run(id);
        let execution = &run.execution;
        let origin = CallOrigin { execution, owner: Some(OWNER.to_owned()), database: DATABASE.into(), shard: None };
        let local = execution.local_attributes.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let attributes = loads.attributes(self.tables.load(run, &loads.global), local);
        let outgoing = match &called {
            Callee::State(attempt) => {
                OutgoingCall::of_state(origin, &execution.states[&attempt.seq], *attempt, timeout)
            }
            Callee::Rpc(AskedRpc { name, input, invocation, .. }) => {
                OutgoingCall::of_rpc(origin, (name, input.as_ref()), invocation, self.now, timeout.as_std())
            }
        };
        let request = outgoing.request(attributes, MAX_REQUEST_BYTES)?;
        let context = request.call.context();
        let handed_out = present(json!({
            "call": self.last_call + 1,
            "process_id": execution.process_id,
            "process_type": execution.process_type,
            "execution_id": id.to_string(),
            "state_execution_id": context.state_execution_id,
            "attempt": context.attempt,
            "method": "POST",
            "path": request.path(),
            "headers": present(json!({
                "Content-Type": "application/json",
                "User-Agent": concat!("xdb/", env!("CARGO_PKG_VERSION")),
                "Idempotency-Key": request.key(),
                "traceparent": run.options.traceparent,
            })),
            "body": request.encode(),
            "timeout_seconds": request.timeout().as_secs_f64(),
        }));
        let (locks, fingerprint) = (self.locks(id, &loads), self.fingerprint(id, &loads));
        let deadline = self.now + timeout;
        self.last_call += 1;
        self.open
            .insert(self.last_call, OpenCall { execution: id, called, timeout, deadline, loads, locks, fingerprint });
        Ok(handed_out)
    }
}
