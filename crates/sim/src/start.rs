//! Registers process types, and starts processes or merges a start into a pending one. A refused command changes
//! nothing.

use crate::Simulator;
use crate::given::{Given, LIMITS, Result};
use crate::run::{Run, next_tick};
use crate::tables::full_name;
use xdb_calls::Outcome;
use xdb_engine::*;
use xdb_protocol::arguments::row_keys;
use xdb_protocol::refusal::{self, invalid_argument, invalid_definition, over_quota};
use xdb_protocol::{GivenStart, StartRequest, check_tables, parse_definition};

impl Simulator {
    /// Registers a process type, or replaces it. Running executions use the new definition from their next call.
    pub(crate) fn register(&mut self, given: &mut Given) -> Result<()> {
        let process_type = given.name("process_type")?;
        let text: Json = given.needed("definition")?;
        given.end()?;
        let mut definition = parse_definition(text.as_str()).map_err(invalid_definition)?;
        if let Some(longer) = definition.longer_call(Quotas::FIXED.call_timeout) {
            return Err(over_quota(longer.to_string()));
        }
        if let Some(function) = definition.handlers_mut().next() {
            let what = format!("function {function}: the simulator has no database whose functions could answer calls");
            return Err(invalid_definition(what));
        }
        definition.check_ticks(next_tick, self.now).map_err(invalid_definition)?;
        for table in &mut definition.global_attributes {
            // Replaces the table's oid, by which locks identify a table.
            table.relation = fnv1a(full_name(&table.table).bytes()) as u32;
        }
        check_tables(&definition.global_attributes).map_err(invalid_definition)?;
        self.types.insert(process_type.clone(), definition.into());
        // Calls that were waiting for a registration are made now.
        for id in self.runs.keys().copied().collect::<Vec<_>>() {
            let Execution { process_type: of, states, .. } = &self.run(id).execution;
            let waits = |state: &StateExecution| state.open_call()?.1.unregistered_since().map(|_| state.seq);
            if *of == process_type {
                let retried = Command::RetryNow(states.values().filter_map(|state| waits(state)).collect());
                self.apply(id, &retried, None)?;
            }
        }
        Ok(())
    }

    /// Starts a process and returns the id of the execution.
    pub(crate) fn start(&mut self, given: &mut Given) -> Result<ExecutionId> {
        let id = self.new_id();
        let policy = given.take("id_reuse_policy")?.unwrap_or_else(|| IdReusePolicy::AllowIfNoRunning.to_string());
        let start = GivenStart {
            process_id: given.take("process_id")?,
            process_type: given.take("process_type")?,
            input: given.text("input")?,
            global_attribute_pk: given.take("global_attribute_pk")?,
            global_attributes: given.text("global_attributes")?,
            local_attributes: given.text("local_attributes")?,
            id_reuse_policy: Some(policy),
            timeout: given.length("timeout")?,
            start_at: given.moment("start_at")?,
            options: given.text("options")?,
        };
        given.end()?;
        let started = self.begin(start, id, None)?;
        self.follow_closes()?;
        self.serve_waiting()?;
        Ok(started)
    }

    /// Starts a process with the parameters of a start. Returns the id of the execution, which is another one if the
    /// start is repeated or merged.
    pub(crate) fn begin(
        &mut self,
        given: GivenStart,
        id: ExecutionId,
        started_by: Option<Box<StartedBy>>,
    ) -> Result<ExecutionId> {
        let StartRequest { start, key, policy, options } = StartRequest::read("", given, id, LIMITS.max_payload_bytes)?;
        let start = Start { started_by, ..start };
        let definition = self.process_type(&start.process_type)?.clone();
        if let Some(correlation) = &options.correlation {
            self.refuse_start(&start.process_type)?;
            if let Some(into) = self.merge(&start, &correlation.key, &correlation.merge)? {
                return Ok(into);
            }
        }
        let keys = row_keys(&definition.global_attributes, key.as_deref(), &options.global_attribute_keys)?;
        let process_id = start.process_id.clone();
        let of_id = || self.runs.values().rev().filter(|run| run.execution.process_id == process_id);
        let is_repeated = |run: &&Run| options.request_id.is_some() && run.options.request_id == options.request_id;
        if let Some(repeated) = of_id().find(is_repeated) {
            return Ok(repeated.execution.id);
        }
        let latest = of_id().next().map(|run| (run.execution.id, policy.about(run.execution.status)));
        if let Some((latest, Reuse::Refuse(why))) = latest {
            return Err(refusal::reuse_refused(&process_id, latest, why));
        }
        self.refuse_start(&start.process_type)?;
        let run = Run::new(id, &definition, keys, options);
        let (attributes, functions) = (start.global_attributes.clone(), start.call_functions.clone());
        let events = run
            .decide(&Command::Start(Box::new(start)), &definition, self.now, &[], &[])
            .map_err(|rejection| refusal::rejected_start(&process_id, &rejection))?;
        let mode = run.options.global_attribute_conflict_mode;
        self.tables.write(&run, &attributes, Some(mode)).map_err(|refused| refused.refusal)?;
        if let Some((latest, Reuse::Terminate)) = latest {
            let reason = Some("another execution of the process id was started".to_owned());
            self.command(latest, &Command::Stop { stop_type: StopType::Terminate, reason })?;
        }
        self.runs.insert(id, run);
        self.record(id, events);
        self.serve_waiting()?;
        self.call_functions(id, &functions);
        Ok(id)
    }

    /// Refuses a start if a pause of its type says so.
    fn refuse_start(&self, process_type: &str) -> Result<()> {
        match self.pause_of_type(process_type).filter(|pause| pause.rejects(self.now)) {
            Some(pause) => Err(refusal::paused(&format!("process type \"{process_type}\""), pause)),
            None => Ok(()),
        }
    }

    /// Merges a start into the latest execution with its correlation key. None: that execution has begun, or the
    /// options say no.
    fn merge(&mut self, start: &Start, key: &str, options: &MergeOptions) -> Result<Option<ExecutionId>> {
        let is_of_key = |run: &&Run| {
            run.execution.process_type == start.process_type
                && run.options.correlation.as_ref().is_some_and(|correlation| correlation.key == key)
        };
        let Some(Run { execution: pending, .. }) = self.runs.values().rev().find(is_of_key) else { return Ok(None) };
        let id = pending.id;
        // The first call has begun when it is handed out.
        if self.open.values().any(|open| open.state().is_some_and(|(of, _)| of == id)) {
            return Ok(None);
        }
        let merge = merge_start(pending, start, options, self.now, |_, _, _| {
            Err(invalid_argument("options.merge.input", "the simulator calls no function of a database"))
        })?;
        let Some(merge) = merge else { return Ok(None) };
        Ok((self.apply(id, &merge, None)? == Outcome::Applied).then_some(id))
    }
}
