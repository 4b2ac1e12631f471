//! Whether what the tables hold of an execution is what its history says.
//!
//! The history is replayed by the engine, which alone decides what an event means; what it gives is written down as
//! rows ([`rows`]) and compared with the tables. Everything is read with one snapshot, the active one. Without a
//! history that can be replayed, the execution's own row and its states are taken at their word, and the rest is
//! compared with them.

mod rows;

use super::load::{SELECT_EXECUTIONS, STATE_COLUMNS, read_execution, read_state};
use super::{history, shard_of};
use crate::pg::catch::{PgError, Result};
use crate::pg::param::{array, value};
use crate::pg::spi::{Row, Snapshot, Spi};
use rows::{Columns, Known, Table};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use xdb_engine::*;

/// What is wrong with an execution, in words; nothing, if it is sound.
pub fn problems(spi: &Spi, id: ExecutionId) -> Result<Vec<String>> {
    let mut check = Check { spi, id, problems: Vec::new() };
    let own = check.one(
        "SELECT process_id, history_limit IS DISTINCT FROM 0 FROM xdb.process_execution WHERE execution_id = $1",
        |row| Ok((row.need::<String>(1)?, row.need::<bool>(2)?)),
    )?;
    let (process_id, has_history) = own.ok_or_else(|| PgError::internal("an execution is gone"))?;
    let replayed = if has_history { check.replay()? } else { None };
    let known = match replayed {
        Some(mut replay) => {
            check.adopt_unrecorded_attempts(&mut replay.execution)?;
            check.message_ids(&replay)?;
            let Replay { execution, received_at, earlier_message_ids } = replay;
            let more_message_ids = earlier_message_ids != MessageIds::default();
            Some(Known { execution, received_at: Some(received_at), more_message_ids })
        }
        None => check.read_tables()?.map(|execution| Known { execution, received_at: None, more_message_ids: true }),
    };
    if let Some(known) = &known {
        let shard = shard_of(&process_id);
        let tables = rows::expected(known, shard, check.message_ids_of_inbox()?)?;
        for table in &tables {
            check.compare(table)?;
        }
        check.single_values(known.execution.is_running(), shard, has_history)?;
        check.surroundings()?;
    }
    Ok(check.problems)
}

/// The execution of a process id that was started last, whatever `latest_execution` says.
pub fn newest(spi: &Spi, process_id: &str) -> Result<Option<ExecutionId>> {
    const SELECT: &str = "SELECT execution_id FROM xdb.process_execution WHERE process_id = $1 \
        ORDER BY started_at DESC, execution_id DESC LIMIT 1";
    spi.first_with(Snapshot::Active, SELECT, &[value(process_id)], |row| row.execution_id(1))
}

/// Values in a message are shown up to this length.
const SHOWN_CHARACTERS: usize = 200;

struct Check<'a> {
    spi: &'a Spi,
    id: ExecutionId,
    problems: Vec<String>,
}

impl Check<'_> {
    fn problem(&mut self, what: impl Into<String>) {
        self.problems.push(what.into());
    }

    /// Rows of a statement whose only parameter is the execution.
    fn all<T>(&self, sql: &str, read: impl FnMut(&Row) -> Result<T>) -> Result<Vec<T>> {
        self.spi.rows_with(Snapshot::Active, sql, &[value(self.id)], read)
    }

    fn one<T>(&self, sql: &str, read: impl FnMut(&Row) -> Result<T>) -> Result<Option<T>> {
        Ok(self.all(sql, read)?.into_iter().next())
    }

    /// Replays the history. None if it can't be replayed; then why is a problem.
    fn replay(&mut self) -> Result<Option<Replay>> {
        match history::replay(self.spi, Snapshot::Active, self.id, u64::MAX)? {
            Ok(replay) if replay.execution.exists() => return Ok(Some(replay)),
            Ok(_) => self.problem("history_event: the history is empty"),
            Err(broken) => self.problem(format!("history_event: {broken}")),
        }
        Ok(None)
    }

    /// Of the attempts of a call that are too many to be recorded one by one, the history does not know until they
    /// are folded. If the row's count says that there were such, its word is taken for them.
    fn adopt_unrecorded_attempts(&mut self, execution: &mut Execution) -> Result<()> {
        const SELECT: &str = "SELECT seq, call::text FROM xdb.state_execution WHERE execution_id = $1 \
            AND ended_at IS NULL AND (call -> 'failedAttempts') > pg_catalog.to_jsonb($2)";
        let params = [value(self.id), value(RECORDED_ATTEMPTS as i32)];
        let rows = self.spi.rows_with(Snapshot::Active, SELECT, &params, |row| {
            Ok((StateSeq(row.need::<i32>(1)? as u32), row.need::<String>(2)?))
        })?;
        for (seq, text) in rows {
            // What can't be read is not adopted, and differs.
            let Ok(of_row) = serde_json::from_str::<CallState>(&text) else { continue };
            let Some(state) = execution.states.get_mut(&seq) else { continue };
            let (api, call) = match &mut Arc::make_mut(state).phase {
                Phase::WaitUntil(call) => (Api::WaitUntil, call),
                Phase::Execute { call, .. } => (Api::Execute, call),
                Phase::Waiting(_) | Phase::Ended { .. } => continue,
            };
            let last = of_row.last_failure.as_ref();
            let fits = of_row.failed_attempts > RECORDED_ATTEMPTS
                && last.is_some_and(|last| last.api == api && last.attempt == of_row.failed_attempts)
                && of_row.generation >= call.generation
                && (of_row.generation > call.generation || of_row.app_database_error == call.app_database_error);
            if fits {
                *call = of_row;
            }
        }
        Ok(())
    }

    /// The execution as its own row, its states and its queues have it. None if they can't be read; then why is a
    /// problem. What follows from the states is counted anew, so that the row's own figures are compared with it.
    fn read_tables(&mut self) -> Result<Option<Execution>> {
        let states =
            format!("SELECT {STATE_COLUMNS} FROM xdb.state_execution s WHERE s.execution_id = $1 ORDER BY s.seq");
        const MESSAGES: &str = "SELECT queue_name, number, message_id, payload::text FROM xdb.queue_message \
            WHERE execution_id = $1 ORDER BY number";
        const ATTRIBUTES: &str = "SELECT key, value::text FROM xdb.local_attribute WHERE execution_id = $1";
        let params = [array([self.id])];
        let own = self.spi.rows_with(Snapshot::Active, SELECT_EXECUTIONS, &params, |row| Ok(read_execution(row)))?;
        let mut execution = match own.into_iter().next() {
            Some(Ok((_, execution))) => execution,
            Some(Err(error)) => {
                self.problem(format!("process_execution: {error}"));
                return Ok(None);
            }
            None => return Ok(None),
        };
        execution.live_threads = 0;
        execution.next_state = 1;
        execution.state_numbers.clear();
        let mut readable = true;
        for state in self.all(&states, |row| Ok((row.need::<i32>(2)?, read_state(row))))? {
            match state {
                (_, Ok((_, state))) => {
                    execution.live_threads += u32::from(state.status().is_live());
                    execution.next_state = state.seq.0 + 1;
                    let last = execution.state_numbers.entry(state.id.state_id.clone()).or_default();
                    *last = state.id.number.max(*last);
                    execution.states.insert(state.seq, Arc::new(state));
                }
                (seq, Err(error)) => {
                    self.problem(format!("state_execution {{\"seq\": {seq}}}: {error}"));
                    readable = false;
                }
            }
        }
        let messages = self.all(MESSAGES, |row| {
            Ok(Message {
                queue: row.need(1)?,
                number: row.need::<i64>(2)? as u64,
                message_id: row.get(3),
                payload: row.get::<String>(4).map(Json::from_trusted),
            })
        })?;
        if execution.is_running() {
            let mut queues: BTreeMap<String, VecDeque<Arc<Message>>> = BTreeMap::new();
            for message in messages {
                if message.number >= execution.next_message {
                    self.problem(format!(
                        "process_execution: next_message is {}, and there is a message {}",
                        execution.next_message, message.number
                    ));
                }
                execution.message_ids.extend(message.message_id.iter().map(|id| (message.queue.clone(), id.clone())));
                queues.entry(message.queue.clone()).or_default().push_back(Arc::new(message));
            }
            execution.queues = queues;
        }
        execution.local_attributes = self
            .all(ATTRIBUTES, |row| Ok((row.need(1)?, Json::from_trusted(row.need::<String>(2)?))))?
            .into_iter()
            .collect();
        Ok(readable.then_some(execution))
    }

    /// Of message ids that a snapshot stands for, only their number and a digest are known.
    fn message_ids(&mut self, replay: &Replay) -> Result<()> {
        const SELECT: &str = "SELECT queue_name, message_id FROM xdb.message_key WHERE execution_id = $1";
        if replay.earlier_message_ids == MessageIds::default() || !replay.execution.is_running() {
            return Ok(());
        }
        let mut known = replay.execution.message_ids.clone();
        known.extend(self.message_ids_of_inbox()?);
        let mut earlier = MessageIds::default();
        for (queue, id) in self.all(SELECT, |row| Ok((row.need::<String>(1)?, row.need::<String>(2)?)))? {
            if !known.contains(&(queue.clone(), id.clone())) {
                earlier.add(&queue, &id);
            }
        }
        let MessageIds { count, .. } = replay.earlier_message_ids;
        if earlier.count != count {
            self.problem(format!(
                "message_key: holds {} ids from before the history was cut, and there were {count}",
                earlier.count
            ));
        } else if earlier != replay.earlier_message_ids {
            self.problem("message_key: holds other ids than there were when the history was cut");
        }
        Ok(())
    }

    fn message_ids_of_inbox(&self) -> Result<Vec<(String, String)>> {
        const SELECT: &str = "SELECT queue_name, message_id FROM xdb.inbox \
            WHERE execution_id = $1 AND message_id IS NOT NULL ORDER BY inbox_id";
        self.all(SELECT, |row| Ok((row.need(1)?, row.need(2)?)))
    }

    /// Compares a table with the rows that it should have, as `jsonb`: the spelling of numbers and the order of keys
    /// make no difference.
    fn compare(&mut self, table: &Table) -> Result<()> {
        let columns = |names: &[&str]| {
            let column = |name: &&str| match name.ends_with("_at") {
                true => format!("'{name}', EXTRACT(epoch FROM t.{name}) * 1000000"),
                false => format!("'{name}', t.{name}"),
            };
            names.iter().map(column).collect::<Vec<_>>().join(", ")
        };
        let sql = format!(
            "SELECT COALESCE(e.key, f.key)::text, e.key IS NULL, f.key IS NULL, d.name, d.expected::text, d.found::text \
             FROM (SELECT u.key::jsonb, u.fields::jsonb FROM unnest($2::text[], $3::text[]) AS u (key, fields)) AS e \
             FULL JOIN (SELECT jsonb_build_object({}) AS key, jsonb_build_object({}) AS fields \
                FROM xdb.{} AS t WHERE t.{} = $1) AS f ON f.key = e.key \
             LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found \
                FROM jsonb_object_keys(e.fields) AS n (name) \
                WHERE f.key IS NOT NULL AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true \
             WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name",
            columns(table.key),
            columns(table.fields),
            table.name,
            table.of,
        );
        let Columns { keys, fields } = &table.rows;
        let params = [value(self.id), array(keys.iter().map(String::as_str)), array(fields.iter().map(String::as_str))];
        let differences = self.spi.rows_with(Snapshot::Active, &sql, &params, |row| {
            let key = row.need::<String>(1)?;
            let place = if key == "{}" { table.name.to_owned() } else { format!("{} {key}", table.name) };
            Ok(match (row.need::<bool>(2)?, row.need::<bool>(3)?) {
                (true, _) if table.may_have_more => None,
                (true, _) => Some(format!("{place}: should not be there")),
                (_, true) => Some(format!("{place}: is missing")),
                _ => {
                    let name = row.need::<String>(4)?;
                    let shown = |column| shown(&name, row.get::<String>(column));
                    Some(format!("{place}: {name} is {} and should be {}", shown(6), shown(5)))
                }
            })
        })?;
        self.problems.extend(differences.into_iter().flatten());
        Ok(())
    }

    /// What is not a matter of rows that follow from the execution.
    fn single_values(&mut self, running: bool, shard: i16, has_history: bool) -> Result<()> {
        // The latest execution of the id is this one, or one that was started after it; and this one, if it runs.
        const LATEST: &str = "SELECT l.execution_id::text, o.execution_id IS NULL, \
                o.process_id <> p.process_id OR o.started_at < p.started_at \
            FROM xdb.process_execution AS p LEFT JOIN xdb.latest_execution AS l USING (process_id) \
            LEFT JOIN xdb.process_execution AS o ON o.execution_id = l.execution_id WHERE p.execution_id = $1";
        const LEASES: &str = "SELECT t.seq, t.attempt, \
                t.attempt > 0 AND t.first_attempt_at IS NULL, (t.lease_until IS NULL) <> (t.lease_epoch = 0), \
                pg_catalog.to_jsonb(t.attempt) < (s.call -> 'failedAttempts'), \
                w.worker_id IS NULL AND y.type_id IS NOT NULL \
            FROM xdb.task AS t JOIN xdb.process_execution AS p USING (execution_id) \
            LEFT JOIN xdb.state_execution AS s ON s.execution_id = t.execution_id AND s.seq = t.seq \
            LEFT JOIN xdb.worker AS w ON w.worker_id = t.worker_id \
            LEFT JOIN xdb.process_type AS y ON y.type_id = p.type_id \
            WHERE t.execution_id = $1 ORDER BY t.seq";
        const INBOX: &str = "SELECT inbox_id, shard FROM xdb.inbox WHERE execution_id = $1 ORDER BY inbox_id";
        const ANSWERS: &str = "SELECT pg_catalog.to_jsonb(a.idempotency_key)::text FROM xdb.rpc_answer AS a \
            JOIN xdb.process_execution AS p USING (execution_id) \
            WHERE a.execution_id = $1 AND a.answered_at < p.started_at ORDER BY 1";
        let id = self.id.to_string();
        let latest = self.one(LATEST, |row| Ok((row.get::<String>(1), row.need::<bool>(2)?, row.get::<bool>(3))))?;
        match latest {
            Some((Some(latest), false, Some(false))) if latest == id || !running => {}
            Some((None, ..)) | None => self.problem("latest_execution: is missing"),
            Some((Some(latest), true, _)) => {
                self.problem(format!("latest_execution: names {latest}, which is no execution"));
            }
            Some((Some(latest), ..)) => {
                self.problem(format!("latest_execution: names {latest}, which is not the latest execution"));
            }
        }
        let leases = self.all(LEASES, |row| {
            let flag = |column| row.get::<bool>(column).unwrap_or(false);
            Ok((row.need::<i32>(1)?, row.need::<i32>(2)?, flag(3), flag(4), flag(5), flag(6)))
        })?;
        for (seq, attempt, no_first, half_leased, too_few, no_worker) in leases {
            let mut wrong = |is: bool, what: &str| {
                if is {
                    self.problem(format!("task {{\"seq\": {seq}}}: {what}"));
                }
            };
            wrong(no_first, "it has begun an attempt, and first_attempt_at is null");
            wrong(half_leased, "only one of lease_epoch and lease_until is set");
            wrong(too_few, &format!("attempt is {attempt}, and more attempts than that have failed"));
            wrong(no_worker, "its worker is not registered");
        }
        for (number, of_row) in self.all(INBOX, |row| Ok((row.need::<i64>(1)?, row.need::<i16>(2)?)))? {
            if !running {
                self.problem(format!("inbox {{\"inbox_id\": {number}}}: should not be there"));
            } else if of_row != shard {
                self.problem(format!("inbox {{\"inbox_id\": {number}}}: shard is {of_row} and should be {shard}"));
            }
        }
        for key in self.all(ANSWERS, |row| row.need::<String>(1))? {
            self.problem(format!("rpc_answer {{\"idempotency_key\": {key}}}: is older than the execution"));
        }
        if !has_history {
            const EVENTS: &str = "SELECT pg_catalog.count(*) FROM xdb.history_event WHERE execution_id = $1";
            let events = self.one(EVENTS, |row| row.need::<i64>(1))?.unwrap_or(0);
            if events > 0 {
                self.problem(format!("history_event: there are {events}, and no history is kept"));
            }
        }
        Ok(())
    }
}

impl Check<'_> {
    /// What no event tells: the execution's place among what it does not own.
    fn surroundings(&mut self) -> Result<()> {
        // A path instead of functions that fail on what is no array.
        const SELECT: &str = "SELECT p.status = 'RUNNING' AND NOT EXISTS (SELECT FROM xdb.process_type AS y \
                WHERE y.type_id = p.type_id AND y.process_type = p.process_type), \
            COALESCE(pg_catalog.jsonb_path_query_array(p.attribute_keys, '$[*].size()'), '[]') <> COALESCE(( \
                SELECT pg_catalog.jsonb_agg(pg_catalog.cardinality(m.key_columns) ORDER BY m.position) \
                FROM xdb.mapped_table AS m WHERE m.mapping_id = p.mapping_id), '[]'), \
            EXISTS (SELECT FROM xdb.purged AS g WHERE g.execution_id = p.execution_id) \
            FROM xdb.process_execution AS p WHERE p.execution_id = $1";
        let found = self.one(SELECT, |row| Ok([row.need::<bool>(1)?, row.need(2)?, row.need(3)?]))?;
        let wrong = [
            "process_execution: type_id is not that of its process type",
            "process_execution: attribute_keys do not fit the tables of its mapping_id",
            "purged: should not be there: the execution is",
        ];
        for (_, what) in found.into_iter().flatten().zip(wrong).filter(|(is, _)| *is) {
            self.problem(what);
        }
        Ok(())
    }
}

/// A value as a message shows it. Moments are compared as microseconds since the Unix epoch.
fn shown(name: &str, text: Option<String>) -> String {
    let text = text.unwrap_or_else(|| "null".to_owned());
    let micros = text.split('.').next().and_then(|whole| whole.parse::<i64>().ok());
    match micros {
        Some(micros) if name.ends_with("_at") => crate::clock::iso8601(Timestamp(micros)),
        _ if text.chars().count() > SHOWN_CHARACTERS => {
            let start: String = text.chars().take(SHOWN_CHARACTERS).collect();
            format!("{start}...")
        }
        _ => text,
    }
}
