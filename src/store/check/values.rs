//! Checks columns that the history does not determine, and the rows around an execution.

use super::Check;
use crate::pg::catch::Result;
use crate::pg::param::{Param, value};
use crate::pg::spi::Statement;
use crate::store::history;
use crate::store::table::{Gives, statements};
use xdb_engine::ExecutionId;

/// Applies rules to rows. A rule is a condition and a problem, both as SQL. Returns the `key` of the row, as a JSON
/// object, and its `problems`.
fn wrong(key: &str, rules: &[(&str, &str)]) -> String {
    let rules = rules.iter().map(|(condition, what)| format!("CASE WHEN {condition} THEN {what} END"));
    let rules = rules.collect::<Vec<_>>().join(", ");
    format!("SELECT jsonb_build_object({key})::text AS key, array_remove(ARRAY[{rules}], NULL) AS problems ")
}

const PROCESS: &[(&str, &str)] = &[
    ("p.closing NOT IN ('UNCONDITIONAL', 'CONDITIONAL')", "'closing is an unknown word'"),
    ("(p.status = 'RUNNING') <> (p.closed_at IS NULL)", "'closed_at does not fit its status'"),
    ("p.status <> 'RUNNING' AND p.closing IS NOT NULL", "'it is closed, and closing is set'"),
    ("p.status = 'RUNNING' AND p.purge_at IS NOT NULL", "'it is running, and purge_at is set'"),
    ("p.history_limit < 0", "'history_limit is negative'"),
    ("(p.mapping_id IS NULL) <> (p.attribute_keys IS NULL)", "'only one of mapping_id and attribute_keys is set'"),
];

const STATE: &[(&str, &str)] = &[
    ("s.seq < 1", "'seq is less than 1'"),
    ("s.number < 1", "'number is less than 1'"),
    (
        "(s.status IN ('COMPLETED', 'FAILED', 'ABORTED')) <> (s.ended_at IS NOT NULL)",
        "'ended_at does not fit its status'",
    ),
    (
        "s.status IN ('WAIT_UNTIL', 'EXECUTE') AND s.call IS NULL OR s.status = 'WAITING' AND s.call IS NOT NULL",
        "'call does not fit its status'",
    ),
    ("s.status = 'WAITING' AND s.wait IS NULL", "'it waits, and wait is null'"),
];

const TASK: &[(&str, &str)] = &[
    ("t.lane NOT BETWEEN 0 AND 3", "'its lane is unknown'"),
    ("t.attempt > 0 AND t.first_attempt_at IS NULL", "'it has begun an attempt, and first_attempt_at is null'"),
    // Leases of pull workers have epoch 0, and a number.
    (
        "(t.lease_until IS NULL) <> (t.lease_epoch = 0 AND t.lease_number = 0)",
        "'only one of lease_epoch and lease_until is set'",
    ),
    (
        "pg_catalog.to_jsonb(t.attempt) < (s.call -> 'failedAttempts')",
        "'attempt is ' || t.attempt || ', and more attempts than that have failed'",
    ),
    // Calls in the other lanes get the worker of their type when they leave them.
    (
        "w.worker_id IS NULL AND y.type_id IS NOT NULL AND (t.lane = 0 OR t.lane = 1 AND t.worker_id <> 0)",
        "'its worker is not registered'",
    ),
    (
        "t.lane <> 2 AND EXISTS (SELECT FROM xdb.process_lock l WHERE l.execution_id = t.execution_id AND l.status = 'WAITING')",
        "'it is not parked, and its process waits for locks'",
    ),
];

const LOCK: &[(&str, &str)] = &[
    ("l.status NOT IN ('WAITING', 'GRANTED', 'RELEASED')", "'its status is unknown'"),
    ("(l.status = 'RELEASED') <> (p.status <> 'RUNNING')", "'its status does not fit that of the process'"),
    (
        "l.status = 'WAITING' AND l.granted_at IS NOT NULL OR l.status = 'GRANTED' AND l.granted_at IS NULL",
        "'granted_at does not fit its status'",
    ),
    (
        "EXISTS (SELECT FROM xdb.process_lock o WHERE o.execution_id = l.execution_id AND o.status <> l.status)",
        "'the process has only some of its locks'",
    ),
    (
        "l.status = 'GRANTED' AND EXISTS (SELECT FROM xdb.process_lock o WHERE o.name = l.name AND o.status = 'GRANTED' \
            AND o.execution_id <> l.execution_id AND (o.mode = 'EXCLUSIVE' OR l.mode = 'EXCLUSIVE'))",
        "'another process holds the lock too'",
    ),
];

/// Rules for a message in the inbox. The parameters say whether the execution runs, and its shard.
const ARRIVAL: &[(&str, &str)] = &[
    ("NOT $2::bool", "'unexpected row'"),
    ("$2::bool AND i.shard <> $3::int2", "'shard is ' || i.shard || ' and should be ' || $3::int2"),
    ("i.bytes < 0", "'bytes is negative'"),
];

const GLOBAL_MESSAGE: &[(&str, &str)] = &[("m.fresh", "'it is taken, and fresh'")];

statements! {
    PROCESSES = wrong("", PROCESS) + "FROM xdb.process_execution AS p WHERE p.execution_id = $1";
    STATES = wrong("'seq', s.seq", STATE) + "FROM xdb.state_execution AS s WHERE s.execution_id = $1 ORDER BY s.seq";
    TASKS = wrong("'seq', t.seq", TASK) + "FROM xdb.task AS t JOIN xdb.process_execution AS p USING (execution_id) \
        LEFT JOIN xdb.state_execution AS s ON s.execution_id = t.execution_id AND s.seq = t.seq \
        LEFT JOIN xdb.worker AS w ON w.worker_id = t.worker_id \
        LEFT JOIN xdb.process_type AS y ON y.type_id = p.type_id \
        WHERE t.execution_id = $1 ORDER BY t.seq";
    LOCKS = wrong("'name', l.name", LOCK) + "FROM xdb.process_lock AS l JOIN xdb.process_execution AS p USING (execution_id) \
        WHERE l.execution_id = $1 ORDER BY l.name";
    GLOBAL_MESSAGES = wrong("'number', m.number", GLOBAL_MESSAGE)
        + "FROM xdb.global_message AS m WHERE m.taken_by = $1 ORDER BY m.number";
    INBOX = wrong("'inbox_id', i.inbox_id", ARRIVAL)
        + "FROM xdb.inbox AS i WHERE i.execution_id = $1 ORDER BY i.inbox_id";
    // A running execution must be the latest one of its process id. Of two closed ones, times can't say which is the
    // latest: clocks go back.
    LATEST = "SELECT l.execution_id::text AS latest, o.execution_id IS NULL AS is_none, \
            o.process_id <> p.process_id AS is_another \
        FROM xdb.process_execution AS p LEFT JOIN xdb.latest_execution AS l USING (process_id) \
        LEFT JOIN xdb.process_execution AS o ON o.execution_id = l.execution_id WHERE p.execution_id = $1"
        => fn latest(id: ExecutionId) -> Option<(Option<String>, bool, Option<bool>)>;
    // A JSON path, because functions for arrays fail on other values.
    SURROUNDINGS = wrong("", &[
            ("p.status = 'RUNNING' AND NOT EXISTS (SELECT FROM xdb.process_type AS y \
                WHERE y.type_id = p.type_id AND y.process_type = p.process_type)",
             "'process_execution: type_id is not that of its process type'"),
            ("COALESCE(pg_catalog.jsonb_path_query_array(p.attribute_keys, '$[*].size()'), '[]') <> COALESCE(( \
                SELECT pg_catalog.jsonb_agg(pg_catalog.cardinality(m.key_columns) ORDER BY m.position) \
                FROM xdb.mapped_table AS m WHERE m.mapping_id = p.mapping_id), '[]')",
             "'process_execution: attribute_keys do not fit the tables of its mapping_id'"),
            ("EXISTS (SELECT FROM xdb.purged AS g WHERE g.execution_id = p.execution_id)",
             "'purged: unexpected row: the execution is'"),
        ]) + "FROM xdb.process_execution AS p WHERE p.execution_id = $1"
        => fn surroundings(id: ExecutionId) -> Option<(String, Vec<String>)>;
}

impl Check<'_> {
    /// Checks the rules for the values of each row.
    pub(super) fn values(&mut self) -> Result<()> {
        self.rules("process_execution", &PROCESSES, &[])?;
        self.rules("state_execution", &STATES, &[])?;
        self.rules("task", &TASKS, &[])?;
        self.rules("process_lock", &LOCKS, &[])?;
        self.rules("global_message", &GLOBAL_MESSAGES, &[])
    }

    /// `more` are the parameters after the execution.
    fn rules(&mut self, table: &str, statement: &'static Statement, more: &[Param]) -> Result<()> {
        let params = [&[value(self.id)], more].concat();
        let found: Vec<(String, Vec<String>)> = Gives::of(self.spi, statement, &params)?;
        for (key, problems) in found {
            let place = if key == "{}" { table.to_owned() } else { format!("{table} {key}") };
            self.problems.extend(problems.iter().map(|what| format!("{place}: {what}")));
        }
        Ok(())
    }

    pub(super) fn inbox(&mut self, running: bool, shard: i16) -> Result<()> {
        self.rules("inbox", &INBOX, &[value(running), value(shard)])
    }

    /// Checks the rows around the execution: its type, its latest execution, its mapping, its mark as purged, its
    /// events.
    pub(super) fn surroundings(&mut self, running: bool, has_history: bool) -> Result<()> {
        let id = self.id.to_string();
        match latest(self.spi, self.id)? {
            Some((Some(latest), false, Some(false))) if latest == id || !running => {}
            Some((None, ..)) | None => self.problem("latest_execution: is missing"),
            Some((Some(latest), true, _)) => {
                self.problem(format!("latest_execution: names {latest}, which is no execution"));
            }
            Some((Some(latest), ..)) => {
                self.problem(format!("latest_execution: names {latest}, which is not the latest execution"));
            }
        }
        if !has_history {
            let events = history::count(self.spi, self.id)?;
            if events > 0 {
                self.problem(format!("history_event: there are {events}, and no history is kept"));
            }
        }
        let found = surroundings(self.spi, self.id)?;
        self.problems.extend(found.into_iter().flat_map(|(_, problems)| problems));
        Ok(())
    }
}
