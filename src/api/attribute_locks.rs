//! The locks on attributes that calls of states have or wait for, as their scheduler shows them.

use super::Caller;
use crate::pg::catch::Result;
use crate::pg::function::{Args, Value};
use crate::pg::param::from_postgres;
use crate::pg::process::database;
use crate::pg::shmem::attribute_locks::{self, Shown};
use crate::store::{process, to_json};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap, HashSet};
use xdb_engine::ExecutionId;
use xdb_sched::lock_table::LockMode;

/// A row of the view.
#[derive(Serialize)]
struct Figures {
    execution_id: String,
    seq: u32,
    object: String,
    locked: String,
    mode: Option<&'static str>,
    granted: bool,
    due_at: String,
    ticket: usize,
}

/// Those of executions that the caller may see. Nothing where nothing can be shown.
pub fn attribute_lock_figures(_: &Args) -> Result<Value> {
    let (shown, _) = all();
    if shown.is_empty() {
        return Ok(Value::Json("[]".to_owned()));
    }
    let caller = Caller::reading()?;
    let executions: BTreeSet<_> = shown.iter().map(|shown| ExecutionId(shown.execution)).collect();
    let executions: Vec<_> = executions.into_iter().collect();
    let visible = caller.on_system_tables(|spi, _| {
        let owners = process::owners(spi, &executions)?;
        let roles: HashSet<_> = owners.values().copied().collect();
        let may_drive = roles.into_iter().map(|role| Ok((role, caller.may_drive(role)?)));
        let may_drive = may_drive.collect::<Result<HashMap<_, _>>>()?;
        let visible = owners.into_iter().filter(|(_, owner)| may_drive.get(owner) == Some(&true));
        Ok(visible.map(|(id, _)| id).collect::<HashSet<_>>())
    })?;
    let may_see = |shown: &&Shown| visible.contains(&ExecutionId(shown.execution));
    let tickets = tickets(&shown);
    let figures: Vec<_> = shown
        .iter()
        .filter(may_see)
        .map(|shown| Figures {
            execution_id: ExecutionId(shown.execution).to_string(),
            seq: shown.state_seq,
            object: ExecutionId(shown.object).to_string(),
            locked: shown.name.as_str().to_owned(),
            mode: LockMode::ALL.get(shown.mode as usize).map(|mode| mode.as_str()),
            granted: shown.granted,
            due_at: from_postgres(shown.due).iso8601(),
            ticket: tickets.get(&call(shown)).copied().unwrap_or_default(),
        })
        .collect();
    Ok(Value::Json(to_json(&figures)?))
}

/// What the calls of an execution wait for, each with the number of its state execution.
pub(super) fn waits_of(id: ExecutionId) -> Vec<(i32, String)> {
    let (shown, _) = all();
    let mine = shown.iter().filter(|shown| shown.execution == id.0 && !shown.granted);
    mine.map(|shown| (shown.state_seq as i32, shown.name.as_str().to_owned())).collect()
}

fn all() -> (Vec<Shown>, usize) {
    attribute_locks::shown(database())
}

/// The places of the calls that wait, in the order in which they are served.
fn tickets(shown: &[Shown]) -> HashMap<Call, usize> {
    let mut tickets = HashMap::new();
    for shown in shown.iter().filter(|shown| !shown.granted) {
        let next = tickets.len() + 1;
        tickets.entry(call(shown)).or_insert(next);
    }
    tickets
}

/// Execution and number of the state execution.
type Call = ([u8; 16], u32);

fn call(shown: &Shown) -> Call {
    (shown.execution, shown.state_seq)
}
