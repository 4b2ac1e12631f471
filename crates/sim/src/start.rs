//! Starts: all of it, or nothing.

use crate::calls::OpenCall;
use crate::run::Run;
use crate::{LIMITS, Result, Simulator, StartArguments};
use xdb_engine::*;
use xdb_protocol::arguments::{check_correlated, name, name_if_given, payload, payloads, request_without_id, row_keys};
use xdb_protocol::refusal::{self, invalid_argument};
use xdb_protocol::{Correlation, StartOptions, parse_moment, parse_start_options};

/// What a caller asks for.
struct StartRequest {
    start: Start,
    key: Option<String>,
    policy: IdReusePolicy,
    options: StartOptions,
}

impl Simulator {
    /// Starts a process, and gives the execution's id.
    pub fn start(&mut self, arguments: StartArguments) -> Result<ExecutionId> {
        // A refused start takes no number.
        let StartRequest { start, key, policy, options } = read(arguments, self.next_id())?;
        let (process_id, process_type_name) = (start.process_id.clone(), start.process_type.clone());
        let Some(process_type) = self.types.get(&start.process_type).cloned() else {
            return Err(refusal::unknown_process_type(&start.process_type));
        };
        if let Some(correlation) = &options.correlation {
            self.refuse_type(&start.process_type)?;
            if let Some(into) = self.merge(&start, correlation)? {
                return Ok(into);
            }
        }
        let keys = row_keys(&process_type.mapping, key.as_deref(), &options.global_attribute_keys)?;
        let request = options.request_id.clone().map(|request| (process_id.clone(), request));
        if let Some(repeated) = request.as_ref().and_then(|request| self.requests.get(request)) {
            return Ok(*repeated);
        }
        let latest = self.latest.get(&process_id).copied();
        let reuse = latest.map_or(Reuse::Follow, |latest| policy.about(self.run(latest).execution.status));
        if let (Reuse::Refuse(why), Some(latest)) = (reuse, latest) {
            return Err(refusal::already_started(&process_id, &format!("Execution {latest} {why}.")));
        }
        self.refuse_type(&start.process_type)?;
        let id = self.new_id();
        let run = Run::new(id, process_type.mapping.clone(), keys, options.traceparent.clone());
        let (attributes, mode) = (start.global_attributes.clone(), options.global_attribute_conflict_mode);
        let functions = start.call_functions.clone();
        let events = run
            .decide(&Command::Start(Box::new(start)), &process_type.definition, self.now, &[])
            .map_err(|rejection| refusal::rejected_start(&process_id, &rejection))?;
        self.tables.check_insert(&run, &attributes, mode).map_err(|refused| refused.refusal)?;
        if let (Reuse::Terminate, Some(latest)) = (reuse, latest) {
            let reason = Some("another execution of the process id was started".to_owned());
            self.command(&process_id, latest, &Command::Stop { stop_type: StopType::Terminate, reason })?;
        }
        self.tables.insert(&run, &attributes, mode);
        self.runs.insert(id, run);
        self.latest.insert(process_id, id);
        self.correlated.extend(options.correlation.map(|correlation| ((process_type_name, correlation.key), id)));
        self.requests.extend(request.map(|request| (request, id)));
        self.apply(id, events);
        self.call_functions(id, &functions);
        Ok(id)
    }
}

/// `id` is the process id where none is given.
impl Simulator {
    /// Merges a start into the latest one of its key, if that has not begun and the options want it.
    fn merge(&mut self, start: &Start, correlation: &Correlation) -> Result<Option<ExecutionId>> {
        let key = (start.process_type.clone(), correlation.key.clone());
        let Some(latest) = self.correlated.get(&key).copied() else { return Ok(None) };
        // A call that is given out has begun.
        if self.open.values().any(|open| matches!(open, OpenCall::State(open) if open.execution == latest)) {
            return Ok(None);
        }
        let execution = &self.run(latest).execution;
        let Some(call) = execution.first_call() else { return Ok(None) };
        let new_due = start.start_at.map_or(self.now, |at| at.max(self.now));
        let Some(not_before) = correlation.merge.due(execution.started_at, call.not_before, new_due) else {
            return Ok(None);
        };
        let old = execution.states.get(&FIRST_STATE).and_then(|state| state.input.clone());
        let input = match &correlation.merge.input {
            MergedInput::Keep => old,
            MergedInput::Replace => start.input.clone(),
            MergedInput::Merge => merged(old.as_ref(), start.input.as_ref()),
            MergedInput::Function(_) => {
                return Err(invalid_argument("options.merge.input", "the simulator calls no function of a database"));
            }
        };
        let Ok(events) = self.decide(latest, &Command::MergeStart { input, not_before }) else { return Ok(None) };
        self.apply(latest, events);
        Ok(Some(latest))
    }
}

fn read(given: StartArguments, id: ExecutionId) -> Result<StartRequest> {
    let most = LIMITS.max_payload_bytes;
    let text = |json: &Option<Json>| json.as_ref().map(|json| json.as_str().to_owned());
    let policy = match given.id_reuse_policy {
        None => IdReusePolicy::AllowIfNoRunning,
        Some(word) => IdReusePolicy::parse(&word)
            .ok_or_else(|| refusal::unknown_word("id_reuse_policy", &word, IdReusePolicy::WORDS))?,
    };
    let own_id = name_if_given("process_id", given.process_id)?;
    let has_own_id = own_id.is_some();
    let process_id = own_id.unwrap_or_else(|| id.to_string());
    let process_type = name("process_type", given.process_type)?;
    let input = payload("input", text(&given.input).as_deref(), most)?;
    let global_attributes = payloads("global_attributes", text(&given.global_attributes).as_deref(), most)?;
    let local_attributes = payloads("local_attributes", text(&given.local_attributes).as_deref(), most)?;
    let timeout = match given.timeout {
        Some(seconds) if seconds < 0.0 => return Err(invalid_argument("timeout", "it must not be negative")),
        timeout => timeout.map(Duration::from_seconds),
    };
    let moment = |text: String| parse_moment(&text).map_err(|what| invalid_argument("start_at", what));
    let start_at = given.start_at.map(moment).transpose()?;
    let options = match given.options {
        Some(options) => parse_start_options(options.as_str()).map_err(|what| invalid_argument("options", what))?,
        None => StartOptions::default(),
    };
    if options.correlation.is_some() {
        check_correlated("", has_own_id, !global_attributes.is_empty())?;
    }
    if !has_own_id && options.request_id.is_some() {
        return Err(request_without_id("options"));
    }
    let start = Start {
        process_id,
        process_type,
        input,
        local_attributes,
        global_attributes,
        call_functions: options.call_functions.clone(),
        timeout,
        starting_state: options.starting_state.clone(),
        starting_state_config: options.starting_state_config.clone(),
        priority: options.priority,
        start_at,
    };
    Ok(StartRequest { start, key: given.global_attribute_pk, policy, options })
}
