//! Process types.

use crate::{QUOTAS, RegisterArguments, Result, Simulator};
use std::collections::BTreeSet;
use std::sync::Arc;
use xdb_engine::{Command, Definition, Json, StateExecution, TableMapping};
use xdb_protocol::arguments::{name, needed};
use xdb_protocol::parse_definition;
use xdb_protocol::refusal::{invalid_definition, over_quota};

/// A registered process type.
pub(crate) struct ProcessType {
    pub definition: Arc<Definition>,
    /// What executions that start now get as their mapping.
    pub mapping: Arc<[TableMapping]>,
}

impl Simulator {
    /// Registers a process type, or replaces it. Running executions use the new definition from their next call.
    pub fn register(&mut self, arguments: RegisterArguments) -> Result<()> {
        let process_type = name("process_type", arguments.process_type)?;
        let text = needed("definition", arguments.definition)?;
        let mut definition = parse_definition(Json::as_str(&text)).map_err(invalid_definition)?;
        if let Some(longer) = definition.longer_call(QUOTAS.call_timeout) {
            return Err(over_quota(longer.to_string()));
        }
        if let Some(function) = definition.handlers_mut().next() {
            let what = format!("function {function}: the simulator has no database whose functions could answer calls");
            return Err(invalid_definition(what));
        }
        let mut relations = BTreeSet::new();
        for table in &mut definition.global_attributes {
            table.relation = self.tables.relation(&table.table);
            if !relations.insert(table.relation) {
                return Err(invalid_definition(format!("table {} is mapped twice", table.table)));
            }
            if let Some(key) = table.attributes.values().find(|column| table.primary_key.contains(column)) {
                let what = format!("table {}: the key \"{key}\" can't be an attribute", table.table);
                return Err(invalid_definition(what));
            }
        }
        let mapping = definition.global_attributes.clone().into();
        let registered = Arc::new(ProcessType { definition: Arc::new(definition), mapping });
        self.types.insert(process_type.clone(), registered);
        self.calls_wait_no_more(&process_type);
        Ok(())
    }

    /// Calls of this type whose answers have named what was not registered are due at once.
    fn calls_wait_no_more(&mut self, process_type: &str) {
        let waits = |state: &&Arc<StateExecution>| {
            state.open_call().is_some_and(|(_, call)| call.unregistered_since().is_some())
        };
        let of_type = self.runs.iter().filter(|(_, run)| run.execution.process_type == process_type);
        let waiting = of_type.filter(|(_, run)| run.execution.is_running()).map(|(id, run)| {
            (*id, run.execution.states.values().filter(waits).map(|state| state.seq).collect::<Vec<_>>())
        });
        for (id, states) in waiting.collect::<Vec<_>>() {
            if let Ok(events) = self.decide(id, &Command::RetryNow(states)) {
                self.apply(id, events);
            }
        }
    }
}
