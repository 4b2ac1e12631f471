//! `stop_process`, `skip_timer` and `retry_now` for an array of process ids. Each id has a row with its result. So a
//! process that has ended or does not exist does not stop the others.
//!
//! ```text
//!   find all, without a lock ──▶ lock ──▶ decide about each ──▶ save       in slices, in the order of the executions
//! ```
//!
//! All executions are locked in one order, so two of these calls never deadlock. For the same reason a call keeps the
//! execution that it has found, even if a later execution of the id has started.
//!
//! Limitations: each call is one transaction. An error that is not about one process fails all of it.

use super::answering::{self, Executions};
use super::arguments::{name_if_given, needed};
use super::caller::{refuse_own_step, wrote};
use super::manage::{Change, calls_to_retry, decide, state_execution_id, timer_to_skip};
use crate::pg::catch::{Fields, PgError, Result};
use crate::pg::function::{Args, Value};
use crate::pg::memory;
use crate::pg::spi::Spi;
use crate::pg::wake;
use crate::store::execution::Lock;
use crate::store::process::latest;
use crate::{clock, error, guc};
use std::collections::HashMap;
use xdb_engine::*;
use xdb_protocol::{PayloadError, arguments};

/// The most executions that are locked and written at a time.
const AT_ONCE: usize = 1000;

/// Memory for the copies of an id, in bytes for each byte of it: its row, its error.
const OF_A_BYTE: usize = 8;

/// Memory of an id without its bytes, in bytes: its row, its error.
const OF_AN_ID: usize = size_of::<Fields>() + 1024;

/// `xdb.stop_process()` for an array of process ids.
pub fn stop_process(args: &Args) -> Result<Value> {
    let change = Change::by(c"xdb.stop_process()", Lock::Close)?;
    let process_ids = process_ids(args)?;
    let stop = arguments::stop(args.text(1), args.text(2))?;
    change.rows(&process_ids, |_, _, _, _| Ok((0, stop.clone())), |done| Value::of(done.is_some()))
}

/// `xdb.skip_timer()` for an array of process ids.
pub fn skip_timer(args: &Args) -> Result<Value> {
    let change = Change::by(c"xdb.skip_timer()", Lock::Step)?;
    let process_ids = process_ids(args)?;
    let state = state_execution_id(args.text(1))?;
    let command_id = name_if_given("command_id", args.text(2))?;
    let prepare = |spi: &Spi, loaded: &mut Executions, id, now| {
        Ok((0, timer_to_skip(spi, loaded, id, now, &state, command_id.clone())?))
    };
    change.rows(&process_ids, prepare, |done| Value::of(done.is_some()))
}

/// `xdb.retry_now()` for an array of process ids.
pub fn retry_now(args: &Args) -> Result<Value> {
    let change = Change::by(c"xdb.retry_now()", Lock::Step)?;
    let process_ids = process_ids(args)?;
    let state = args.text(1).map(|state| state_execution_id(Some(state))).transpose()?;
    let prepare = |spi: &Spi, loaded: &mut Executions, id, now| calls_to_retry(spi, loaded, id, now, state.as_ref());
    change.rows(&process_ids, prepare, |retried| Value::of(retried.unwrap_or(0) as i32))
}

/// Reads the first parameter, the array of process ids.
fn process_ids(args: &Args) -> Result<Vec<String>> {
    let most = guc::max_bulk_bytes();
    let texts = args.texts(0, most)?;
    let texts = texts.map_err(|bytes| error::payload("process_ids", PayloadError::TooLarge { bytes, max: most }))?;
    let texts = needed("process_ids", texts)?;
    let bytes = texts.iter().flatten().map(String::len).sum::<usize>();
    memory::room_for(bytes * OF_A_BYTE + texts.len() * OF_AN_ID)?;
    let given: Option<Vec<_>> = texts.into_iter().collect();
    given.ok_or_else(|| error::invalid_argument("process_ids", "it contains null"))
}

/// The result for one process: how many calls, events and other things followed, or the error.
type ItemResult = std::result::Result<usize, PgError>;

impl Change {
    /// A row for each element, in their order: the process id, the result, and the error if there is one.
    fn rows(
        &self,
        process_ids: &[String],
        prepare: impl FnMut(&Spi, &mut Executions, ExecutionId, Timestamp) -> Result<(usize, Command)>,
        done: impl Fn(Option<usize>) -> Value,
    ) -> Result<Value> {
        let outcomes = self.outcomes(process_ids, prepare)?;
        let row = |process_id: &String| {
            let outcome = outcomes.get(process_id.as_str());
            let refused = outcome.and_then(|outcome| outcome.as_ref().err());
            vec![
                Value::of(process_id.clone()),
                done(outcome.and_then(|outcome| outcome.as_ref().ok()).copied()),
                Value::of(refused.map(PgError::sqlstate)),
                Value::of(refused.map(|error| error.message.clone())),
            ]
        };
        Ok(Value::Rows(process_ids.iter().map(row).collect()))
    }

    fn outcomes<'p>(
        &self,
        process_ids: &'p [String],
        mut prepare: impl FnMut(&Spi, &mut Executions, ExecutionId, Timestamp) -> Result<(usize, Command)>,
    ) -> Result<HashMap<&'p str, ItemResult>> {
        let mut outcomes = HashMap::new();
        let mut found = self.find(process_ids, &mut outcomes)?;
        found.sort_unstable();
        for chunk in found.chunks(AT_ONCE) {
            let changed = self.caller.on_system_tables(|spi, registry| {
                let ids: Vec<_> = chunk.iter().map(|(id, _)| *id).collect();
                let mut loaded = answering::executions(spi, registry, &ids, self.lock)?;
                let now = clock::now();
                for (id, process_id) in chunk {
                    wake::note_locked(id.0);
                    let decided = decide(spi, &mut loaded, (*id, process_id), now, &mut prepare);
                    outcomes.insert(*process_id, answer(decided)?);
                }
                answering::save(spi, &loaded, now)?;
                Ok(loaded.values().any(|entry| !entry.events.is_empty()))
            })?;
            if changed {
                wrote();
            }
        }
        Ok(outcomes)
    }

    /// The executions to change. The other ids get their results at once.
    fn find<'p>(
        &self,
        process_ids: &'p [String],
        outcomes: &mut HashMap<&'p str, ItemResult>,
    ) -> Result<Vec<(ExecutionId, &'p str)>> {
        let mut ids: Vec<_> = process_ids.iter().map(String::as_str).collect();
        ids.sort_unstable();
        ids.dedup();
        let known = self.caller.on_system_tables(|spi, _| latest(spi, &ids))?;
        let mut found = Vec::with_capacity(known.len());
        for process_id in ids {
            match known.get(process_id) {
                Some((id, owner)) if self.caller.may_drive(*owner)? => match refuse_own_step(*id, self.function) {
                    Ok(()) => found.push((*id, process_id)),
                    Err(error) => drop(outcomes.insert(process_id, Err(error))),
                },
                _ => drop(outcomes.insert(process_id, Err(error::unknown_process(process_id)))),
            }
        }
        Ok(found)
    }
}

/// An error of XDB is the result for one process. Every other error fails the statement.
fn answer(outcome: Result<usize>) -> Result<ItemResult> {
    match outcome {
        Err(error) if !error.sqlstate().starts_with("XD") => Err(error),
        outcome => Ok(outcome),
    }
}
