//! Calls that were in hand when the server crashed: the column `task.crashes`.
//!
//! The first scheduler after a crash adds one for each call that engine processes had in hand ([`crate::pg::in_hand`]).
//! A call with a count above zero is a *suspect*. A suspect goes out, and its answer is applied, only while no other
//! suspect is in hand. At the third crash the call is *held*, in a lane from which no process claims. When a call ends,
//! its task is deleted, and the task of the next call begins at zero.
//!
//! Limitations: crashes of timers, messages, RPCs and pull workers' sessions are not counted. A promoted standby does
//! not have the files of its primary, so a failover makes no call a suspect.

use super::StateKey;
use super::claim::NO_LEASE;
use super::lanes::{CRASHED_LANE, own_place};
use super::table::{batch, statements};
use crate::pg::catch::Result;
use crate::pg::spi::Spi;
use xdb_engine::{ExecutionId, StateSeq};

/// The number of crashes at which a call is held.
const HELD_AT: i16 = 3;

statements! {
    // Rows that a session has locked are skipped: the session is about to end the call.
    COUNT = format!("WITH free AS MATERIALIZED (SELECT t.execution_id, t.seq FROM {} \
            JOIN xdb.task t ON t.execution_id = v.execution_id AND t.seq = v.seq FOR UPDATE OF t SKIP LOCKED) \
        UPDATE xdb.task t SET crashes = t.crashes + 1, \
            lane = CASE WHEN t.crashes + 1 < {HELD_AT} THEN t.lane ELSE {CRASHED_LANE} END FROM free f \
        WHERE t.execution_id = f.execution_id AND t.seq = f.seq RETURNING t.lane = {CRASHED_LANE} AS is_held", batch::<StateKey>())
        => fn add_one(calls: [StateKey]) -> Vec<bool>;
    /// Releases the held calls of an execution, or that of one state. The caller has locked the execution. Returns how
    /// many.
    RETRY = format!("UPDATE xdb.task t SET {}, {NO_LEASE}, crashes = 0 \
        WHERE t.execution_id = $1 AND ($2::int IS NULL OR t.seq = $2) AND t.lane = {CRASHED_LANE}", own_place())
        => pub fn retry(id: ExecutionId, only: Option<StateSeq>) -> u64;
    HELD = format!("SELECT pg_catalog.count(*) AS held FROM xdb.task t WHERE t.lane = {CRASHED_LANE}")
        => fn held() -> i64;
}

/// Adds a crash to each of these calls, and holds those that reach the limit. Returns how many are held from now on.
pub fn count(spi: &Spi, calls: &[StateKey]) -> Result<usize> {
    Ok(add_one(spi, calls)?.into_iter().filter(|is_held| *is_held).count())
}

/// A text for `xdb.status()` while calls are held.
pub fn reason(spi: &Spi) -> Result<Option<String>> {
    let held = held(spi)?;
    let calls = if held == 1 { "1 call is".to_owned() } else { format!("{held} calls are") };
    let text =
        || format!("{calls} held after crashes of the server: xdb.failures lists them, xdb.retry_now() retries them");
    Ok((held > 0).then(text))
}
