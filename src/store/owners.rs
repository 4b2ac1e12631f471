//! Moves the objects of one role to another. Roles own processes, process types, workers, and messages of global queues
//! until they are taken. Each row has the role's oid and its name: in another server the name counts.

use super::instance;
use super::table::{Gives, statements};
use crate::pg::catch::Result;
use crate::pg::param::{Param, value};
use crate::pg::spi::Spi;
use pgrx::pg_sys;

/// The condition that the row `t` belongs to the role $1. If $1 is null: to a role that no longer exists.
const OF_OLD: &str = "(t.owner = $1::oid OR $1::oid IS NULL AND NOT EXISTS ( \
    SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner))";

fn give(table: &str) -> String {
    format!("UPDATE xdb.{table} t SET owner = $2, owner_name = $3 WHERE {OF_OLD}")
}

/// Moves the rows of a table to the lines of their processes' owners.
fn into_lines(table: &str) -> String {
    format!(
        "UPDATE xdb.{table} t SET owner = p.owner FROM xdb.process_execution p \
        WHERE p.execution_id = t.execution_id AND p.owner <> t.owner"
    )
}

statements! {
    // In the order in which all transactions lock executions.
    PROCESSES = format!("WITH old AS MATERIALIZED (SELECT t.execution_id FROM xdb.process_execution t WHERE {OF_OLD} \
            ORDER BY t.execution_id FOR NO KEY UPDATE), \
        given AS (UPDATE xdb.process_execution p SET owner = $2, owner_name = $3 FROM old \
            WHERE p.execution_id = old.execution_id RETURNING p.status) \
        SELECT pg_catalog.count(*) FILTER (WHERE status = 'RUNNING') AS running FROM given");
    MESSAGES = give("global_message");
    // So that the new owner can't repeat a message of the old one. Ids that both have used stay once.
    MESSAGE_IDS = format!("WITH gone AS (DELETE FROM xdb.global_message_key t WHERE {OF_OLD} RETURNING t.*) \
        INSERT INTO xdb.global_message_key (queue_name, message_id, published_at, owner, owner_name) \
        SELECT g.queue_name, g.message_id, g.published_at, $2, $3 FROM gone g ORDER BY 1, 2 ON CONFLICT DO NOTHING");
    /// How many of the first 100,000 running processes have an owner that no longer exists. For people.
    OWNERLESS = "SELECT pg_catalog.count(*) AS ownerless FROM (SELECT p.owner FROM xdb.process_execution p \
            WHERE p.status = 'RUNNING' ORDER BY p.process_id LIMIT 100000) AS running \
        WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = running.owner)" => pub fn ownerless() -> i64;
    WORKERS = give("worker");
    TYPES = give("process_type");
    TASKS_INTO_LINES = into_lines("task");
    TIMERS_INTO_LINES = into_lines("timer");
    INBOX_INTO_LINES = into_lines("inbox");
    LOCKS_INTO_LINES = into_lines("process_lock");
}

/// What to move.
pub struct Moves<'a> {
    /// None: the objects of roles that no longer exist.
    pub from: Option<pg_sys::Oid>,
    pub to: pg_sys::Oid,
    /// The name of `to`.
    pub name: &'a str,
    /// Whether to move messages of global queues too, and the used message ids.
    pub messages: bool,
}

/// Moves all objects of a role to another one. Returns how many running processes were moved.
pub fn reassign(spi: &Spi, moves: &Moves<'_>) -> Result<i64> {
    let params: [Param; 3] = [value(moves.from), value(moves.to), value(moves.name)];
    let running = Gives::of(spi, &PROCESSES, &params)?;
    put_into_lines(spi)?;
    let messages: &[_] = if moves.messages { &[&MESSAGES, &MESSAGE_IDS] } else { &[] };
    for statement in [&WORKERS, &TYPES].iter().chain(messages) {
        spi.run(*statement, &params)?;
    }
    // The calls are in other lines now. The new generation makes the scheduler scan the lines from the head.
    instance::bump(spi)?;
    Ok(running)
}

/// Moves tasks, timers, messages and locks to the lines of their processes' new owners.
pub(super) fn put_into_lines(spi: &Spi) -> Result<()> {
    for into_lines in [&TASKS_INTO_LINES, &TIMERS_INTO_LINES, &INBOX_INTO_LINES, &LOCKS_INTO_LINES] {
        spi.run(into_lines, &[])?;
    }
    Ok(())
}
