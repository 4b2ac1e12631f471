//! `xdb.check_process`: compares the rows of an execution with its history.
//!
//! The engine replays the history, because only the engine decides what an event means. The result is converted to rows
//! ([`rows`]) and compared with the tables. All statements read the active snapshot.
//!
//! Limitations: if the history can't be replayed, the execution's own row and its states are trusted. The other tables
//! are compared with them.

mod rows;
mod values;

#[cfg(feature = "pg_test")]
pub(super) use {rows::STATEMENTS as ROWS, values::STATEMENTS as VALUES};

use super::table::statements;
use super::{attribute, execution, history, inbox, queue, shard_of, state, timer};
use crate::pg::catch::{PgError, Result};
use crate::pg::param::{array, value};
use crate::pg::spi::Spi;
use pgrx::pg_sys;
use rows::{Expected, KnownExecution};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use xdb_engine::*;

pub use super::process::newest;

statements! {
    WHAT_IT_IS = "SELECT COALESCE(p.shard_key, p.process_id) AS shard_key, p.owner, \
            p.history_limit IS DISTINCT FROM 0 AS has_history FROM xdb.process_execution p WHERE p.execution_id = $1"
        => fn identity_of(id: ExecutionId) -> Option<(String, pg_sys::Oid, bool)>;
    CALLS_WITH_MANY_ATTEMPTS = "SELECT seq, call::text FROM xdb.state_execution WHERE execution_id = $1 \
        AND ended_at IS NULL AND (call -> 'failedAttempts') > pg_catalog.to_jsonb($2::int)"
        => fn calls_with_more_attempts(id: ExecutionId, than: u32) -> Vec<(StateSeq, String)>;
}

/// The problems of an execution, in words. Empty if there are none.
pub fn problems(spi: &Spi, id: ExecutionId) -> Result<Vec<String>> {
    let mut check = Check { spi, id, problems: Vec::new() };
    let (shard_key, owner, has_history) =
        identity_of(spi, id)?.ok_or_else(|| PgError::internal("an execution no longer exists"))?;
    let replayed = if has_history { check.replay()? } else { None };
    let known = match replayed {
        Some(mut replay) => {
            check.adopt_unrecorded_attempts(&mut replay)?;
            check.message_ids(&replay)?;
            let Replay { execution, received_at, earlier_message_ids } = replay;
            let more_message_ids = earlier_message_ids != MessageIds::default();
            Some(KnownExecution { execution, received_at: Some(received_at), more_message_ids })
        }
        None => check.read_tables()?.map(|execution| KnownExecution {
            execution,
            received_at: None,
            more_message_ids: true,
        }),
    };
    check.values()?;
    if let Some(known) = &known {
        let shard = shard_of(&shard_key);
        let end = timer::of_parent(spi, id)?;
        let tables = rows::expected(known, shard, owner, &inbox::keys_in_inbox(spi, id)?, end)?;
        for table in &tables {
            check.compare(table)?;
        }
        let running = known.execution.is_running();
        check.inbox(running, shard)?;
        check.surroundings(running, has_history)?;
    }
    Ok(check.problems)
}

/// The most characters of a value in a problem.
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

    /// Replays the history. None if the replay fails, which is reported as a problem.
    fn replay(&mut self) -> Result<Option<Replay>> {
        match history::replay(self.spi, self.id, u64::MAX)? {
            Ok(replay) if replay.execution.exists() => return Ok(Some(replay)),
            Ok(_) => self.problem("history_event: the history is empty"),
            Err(broken) => self.problem(format!("history_event: {broken}")),
        }
        Ok(None)
    }

    /// After many attempts of a call, further ones are not recorded one by one until they are folded. If the row's
    /// count says that there were such attempts, the count is trusted.
    fn adopt_unrecorded_attempts(&mut self, replay: &mut Replay) -> Result<()> {
        for (seq, text) in calls_with_more_attempts(self.spi, self.id, RECORDED_ATTEMPTS)? {
            // A call that can't be parsed is not adopted. The comparison reports it.
            let Ok(of_row) = serde_json::from_str::<CallState>(&text) else { continue };
            replay.adopt_unrecorded_attempts(seq, of_row);
        }
        Ok(())
    }

    /// Reads the execution from its own row, its states and its queues. None if they can't be read, which is reported
    /// as a problem. Counts that follow from the states are computed again, so that the comparison checks the row's own
    /// counts.
    fn read_tables(&mut self) -> Result<Option<Execution>> {
        let mut execution = match execution::own(self.spi, self.id)? {
            Some(Ok(execution)) => execution,
            Some(Err(error)) => {
                self.problem(format!("process_execution: {error}"));
                return Ok(None);
            }
            None => return Ok(None),
        };
        execution.next_state = 1;
        execution.state_numbers.clear();
        let mut readable = true;
        for (seq, state) in state::all(self.spi, self.id)? {
            match state {
                Ok(state) => {
                    execution.next_state = state.seq.0.wrapping_add(1);
                    let last = execution.state_numbers.entry(state.id.state_id.clone()).or_default();
                    *last = state.id.number.max(*last);
                    execution.states.insert(state.seq, Arc::new(state));
                }
                Err(error) => {
                    self.problem(format!("state_execution {{\"seq\": {seq}}}: {error}"));
                    readable = false;
                }
            }
        }
        let messages = queue::all(self.spi, self.id)?;
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
        execution.recount();
        execution.local_attributes = attribute::of_one(self.spi, self.id, |_| true)?;
        Ok(readable.then_some(execution))
    }

    /// Compares the message ids from before the last snapshot. The snapshot has only their number and a digest.
    fn message_ids(&mut self, replay: &Replay) -> Result<()> {
        if replay.earlier_message_ids == MessageIds::default() || !replay.execution.is_running() {
            return Ok(());
        }
        let mut known = replay.execution.message_ids.clone();
        known.extend(inbox::keys_in_inbox(self.spi, self.id)?);
        let mut earlier = MessageIds::default();
        for (queue, id) in inbox::all_keys(self.spi, self.id)? {
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

    /// Compares a table with the rows that it should have.
    fn compare(&mut self, expected: &Expected) -> Result<()> {
        let Expected { table, statement, moments, rows, columns, may_have_more } = expected;
        let params = [&rows[..], &[value(self.id), array(columns)]].concat();
        let differences = self.spi.rows(*statement, &params, |row| {
            let key: String = row.get("key")?;
            let place = if key == "{}" { (*table).to_owned() } else { format!("{table} {key}") };
            Ok(match (row.get::<bool>("too_many")?, row.get::<bool>("missing")?) {
                (true, _) if *may_have_more => None,
                (true, _) => Some(format!("{place}: unexpected row")),
                (_, true) => Some(format!("{place}: is missing")),
                _ => {
                    let name: &str = row.get("name")?;
                    let (expected, found) = (row.get("expected")?, row.get("found")?);
                    let shown = |text| shown(moments.contains(&name), text);
                    Some(format!("{place}: {name} is {} and should be {}", shown(found), shown(expected)))
                }
            })
        })?;
        self.problems.extend(differences.into_iter().flatten());
        Ok(())
    }
}

/// A value as a problem shows it. Times are compared as microseconds since the Unix epoch.
fn shown(is_moment: bool, text: Option<String>) -> String {
    let text = text.unwrap_or_else(|| "null".to_owned());
    let micros = text.split('.').next().and_then(|whole| whole.parse::<i64>().ok());
    match micros {
        Some(micros) if is_moment => Timestamp(micros).iso8601(),
        _ if text.chars().count() > SHOWN_CHARACTERS => {
            let start: String = text.chars().take(SHOWN_CHARACTERS).collect();
            format!("{start}...")
        }
        _ => text,
    }
}
