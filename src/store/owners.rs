//! Roles own processes, messages of global queues until they are taken, process types and workers. Each row has the role's oid and
//! its name: in another server the name counts.

use super::instance;
use super::table::{Gives, statements};
use crate::pg::catch::Result;
use crate::pg::param::{Param, value};
use crate::pg::spi::Spi;
use pgrx::pg_sys;

/// The row `t` is that of the role $1; without one, of nobody who is there.
const OF_OLD: &str = "(t.owner = $1::oid OR $1::oid IS NULL AND NOT EXISTS ( \
    SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner))";

fn give(table: &str) -> String {
    format!("UPDATE xdb.{table} t SET owner = $2, owner_name = $3 WHERE {OF_OLD}")
}

/// Puts the rows of a table into the lines of their processes' owners.
fn into_lines(table: &str) -> String {
    format!(
        "UPDATE xdb.{table} t SET owner = p.owner FROM xdb.process_execution p \
        WHERE p.execution_id = t.execution_id AND p.owner <> t.owner"
    )
}

statements! {
    // In the order in which everybody locks them.
    PROCESSES = format!("WITH old AS MATERIALIZED (SELECT t.execution_id FROM xdb.process_execution t WHERE {OF_OLD} \
            ORDER BY t.execution_id FOR NO KEY UPDATE), \
        given AS (UPDATE xdb.process_execution p SET owner = $2, owner_name = $3 FROM old \
            WHERE p.execution_id = old.execution_id RETURNING p.status) \
        SELECT pg_catalog.count(*) FILTER (WHERE status = 'RUNNING') AS running FROM given");
    MESSAGES = give("global_message");
    // So that the new owner repeats nothing that the old one has published. What both have used stays.
    MESSAGE_IDS = format!("WITH gone AS (DELETE FROM xdb.global_message_key t WHERE {OF_OLD} RETURNING t.*) \
        INSERT INTO xdb.global_message_key (queue_name, message_id, published_at, owner, owner_name) \
        SELECT g.queue_name, g.message_id, g.published_at, $2, $3 FROM gone g ORDER BY 1, 2 ON CONFLICT DO NOTHING");
    /// How many of the first 100,000 running processes have an owner who is gone: for people.
    OWNERLESS = "SELECT pg_catalog.count(*) AS ownerless FROM (SELECT p.owner FROM xdb.process_execution p \
            WHERE p.status = 'RUNNING' ORDER BY p.process_id LIMIT 100000) AS running \
        WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = running.owner)" => pub fn ownerless() -> i64;
    WORKERS = give("worker");
    TYPES = give("process_type");
    TASKS_INTO_LINES = into_lines("task");
    TIMERS_INTO_LINES = into_lines("timer");
    INBOX_INTO_LINES = into_lines("inbox");
}

/// What is to change hands.
pub struct Moves<'a> {
    /// None: what belongs to nobody who is there.
    pub from: Option<pg_sys::Oid>,
    pub to: pg_sys::Oid,
    /// The name of `to`.
    pub name: &'a str,
    /// Messages of global queues too, and the ids that were used there.
    pub messages: bool,
}

/// Gives all that a role owns to another one, and says how many running processes were among it.
pub fn reassign(spi: &Spi, moves: &Moves<'_>) -> Result<i64> {
    let params: [Param; 3] = [value(moves.from), value(moves.to), value(moves.name)];
    let running = Gives::of(spi, &PROCESSES, &params)?;
    put_into_lines(spi)?;
    let messages: &[_] = if moves.messages { &[&MESSAGES, &MESSAGE_IDS] } else { &[] };
    for statement in [&WORKERS, &TYPES].iter().chain(messages) {
        spi.run(*statement, &params)?;
    }
    // Their calls stand in other lines now, which the scheduler has to look at from the head.
    instance::bump(spi)?;
    Ok(running)
}

/// Puts tasks, timers and messages into the lines of their processes' owners, who are others than they were.
pub(super) fn put_into_lines(spi: &Spi) -> Result<()> {
    for into_lines in [&TASKS_INTO_LINES, &TIMERS_INTO_LINES, &INBOX_INTO_LINES] {
        spi.run(into_lines, &[])?;
    }
    Ok(())
}
