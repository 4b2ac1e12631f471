//! Registers process types.

use crate::line::Given;
use crate::tables::full_name;
use crate::{QUOTAS, Result, Simulator};
use std::collections::BTreeSet;
use xdb_engine::{Command, Json, fnv1a};
use xdb_protocol::parse_definition;
use xdb_protocol::refusal::{invalid_definition, over_quota};

impl Simulator {
    /// Registers a process type, or replaces it. Running executions use the new definition from their next call.
    pub(crate) fn register(&mut self, given: &mut Given) -> Result<()> {
        let process_type = given.name("process_type")?;
        let text: Json = given.needed("definition")?;
        given.end()?;
        let mut definition = parse_definition(text.as_str()).map_err(invalid_definition)?;
        if let Some(longer) = definition.longer_call(QUOTAS.call_timeout) {
            return Err(over_quota(longer.to_string()));
        }
        if let Some(function) = definition.handlers_mut().next() {
            let what = format!("function {function}: the simulator has no database whose functions could answer calls");
            return Err(invalid_definition(what));
        }
        let mut mapped = BTreeSet::new();
        for table in &mut definition.global_attributes {
            let name = full_name(&table.table);
            // Replaces the table's oid, by which locks identify a table.
            table.relation = fnv1a(name.bytes()) as u32;
            if !mapped.insert(name) {
                return Err(invalid_definition(format!("table {} is mapped twice", table.table)));
            }
            if let Some(key) = table.attributes.values().find(|column| table.primary_key.contains(column)) {
                let what = format!("table {}: the key \"{key}\" can't be an attribute", table.table);
                return Err(invalid_definition(what));
            }
        }
        self.types.insert(process_type.clone(), definition.into());
        self.calls_wait_no_more(&process_type);
        Ok(())
    }

    /// Makes calls due that were waiting for a registration.
    fn calls_wait_no_more(&mut self, process_type: &str) {
        for id in self.runs.keys().copied().collect::<Vec<_>>() {
            let execution = &self.run(id).execution;
            let waits = execution
                .states
                .values()
                .filter(|state| state.open_call().is_some_and(|(_, call)| call.unregistered_since().is_some()));
            let retried = Command::RetryNow(waits.map(|state| state.seq).collect());
            if execution.process_type == process_type
                && let Ok(events) = self.decide(id, &retried)
            {
                self.apply(id, events);
            }
        }
    }
}
