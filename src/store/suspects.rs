//! Calls that may bring the server down: the table `crash_suspect`.
//!
//! What was under a lease when the server crashed is noted, and made one at a time: whoever makes it, or applies its answer, *takes*
//! it before, which counts its second death, and acquits it afterwards, in transactions that commit synchronously. Only one can be
//! taken at a time, of all processes of a database. So whose count is two when the server comes back is what it died of: it is
//! held, in a lane that nobody claims from. Those that only waited for their workers when it died are made again.
//!
//! The scheduler says in its slot whether there are any. While there are none, nobody reads or writes the table.

use super::StateKey;
use super::claim::NO_LEASE;
use super::lanes::{HELD_LANE, own_lane};
use super::table::{Record, batch, delete, run, statements, table};
use crate::pg::catch::Result;
use crate::pg::param::{array, value};
use crate::pg::process;
use crate::pg::shmem::{Role, Slot, Suspects};
use crate::pg::spi::{Row, Spi};
use std::collections::HashSet;
use xdb_engine::{ExecutionId, StateSeq, Timestamp};

table! {
    /// A call that was under way when the server crashed, until it is over.
    pub struct Suspect in "crash_suspect" {
        key { execution_id: ExecutionId, seq: StateSeq }
        other { deaths: i32, held_at: Option<Timestamp> }
    }
}

statements! {
    // The calls that were under way belong to the epochs that were current. Parked ones were not made, and pull workers have no epoch.
    // Nothing waits for what a session has locked: it is about to end the call.
    NOTE = "WITH under_way AS MATERIALIZED (SELECT t.execution_id, t.seq FROM xdb.task t \
            WHERE t.lease_epoch <> 0 AND t.lease_until < 'infinity' \
                AND t.lease_epoch IN (SELECT e.epoch FROM xdb.engine e) FOR UPDATE OF t SKIP LOCKED) \
        INSERT INTO xdb.crash_suspect (execution_id, seq, deaths) SELECT execution_id, seq, 1 FROM under_way \
        ON CONFLICT (execution_id, seq) DO NOTHING";
    HOLD = format!("WITH guilty AS MATERIALIZED (SELECT t.execution_id, t.seq FROM xdb.crash_suspect c \
            JOIN xdb.task t ON t.execution_id = c.execution_id AND t.seq = c.seq \
            WHERE c.deaths >= 2 AND c.held_at IS NULL FOR UPDATE OF t, c SKIP LOCKED), \
        held AS (UPDATE xdb.task t SET lane = {HELD_LANE}, {NO_LEASE} FROM guilty g \
            WHERE t.execution_id = g.execution_id AND t.seq = g.seq) \
        UPDATE xdb.crash_suspect c SET held_at = pg_catalog.clock_timestamp() FROM guilty g \
        WHERE c.execution_id = g.execution_id AND c.seq = g.seq");
    // Whoever had it in hand has ended without a crash.
    ACQUIT_ABANDONED = "UPDATE xdb.crash_suspect SET deaths = 1 WHERE ctid = ANY (ARRAY(SELECT c.ctid FROM xdb.crash_suspect c \
        WHERE c.deaths = 2 AND c.held_at IS NULL AND NOT EXISTS (SELECT FROM xdb.task t JOIN xdb.engine e ON e.epoch = t.lease_epoch \
            WHERE t.execution_id = c.execution_id AND t.seq = c.seq) FOR UPDATE SKIP LOCKED))";
    FORGET_OVER = "DELETE FROM xdb.crash_suspect WHERE ctid = ANY (ARRAY(SELECT c.ctid FROM xdb.crash_suspect c \
        WHERE NOT EXISTS (SELECT FROM xdb.task t WHERE t.execution_id = c.execution_id AND t.seq = c.seq) \
        FOR UPDATE SKIP LOCKED))";
    COUNT = "SELECT pg_catalog.count(*) FILTER (WHERE held_at IS NULL) AS open, \
            pg_catalog.count(*) FILTER (WHERE held_at IS NOT NULL) AS held FROM xdb.crash_suspect";
    AMONG = format!("SELECT c.execution_id, c.seq FROM {} JOIN xdb.crash_suspect c \
        ON c.execution_id = v.execution_id AND c.seq = v.seq WHERE c.held_at IS NULL", batch::<StateKey>());
    // Two that do so at once meet in the index.
    TAKE = "WITH taken AS (UPDATE xdb.crash_suspect c SET deaths = 2 WHERE c.execution_id = $1 AND c.seq = $2 AND c.held_at IS NULL \
            AND NOT EXISTS (SELECT FROM xdb.crash_suspect o WHERE o.deaths = 2 AND o.held_at IS NULL \
                AND (o.execution_id, o.seq) <> ($1, $2)) RETURNING c.seq) \
        SELECT EXISTS (SELECT FROM taken) OR NOT EXISTS (SELECT FROM xdb.crash_suspect c \
            WHERE c.execution_id = $1 AND c.seq = $2 AND c.held_at IS NULL) AS may";
    ACQUIT = "UPDATE xdb.crash_suspect SET deaths = 1 WHERE execution_id = $1 AND seq = $2 AND deaths = 2 AND held_at IS NULL";
    OVER = delete::<Suspect, StateKey>();
    ALL_OVER = "DELETE FROM xdb.crash_suspect WHERE execution_id = ANY ($1)";
    RETRY = format!("WITH released AS (DELETE FROM xdb.crash_suspect c WHERE c.execution_id = $1 \
            AND ($2::int IS NULL OR c.seq = $2) AND c.held_at IS NOT NULL RETURNING c.seq) \
        UPDATE xdb.task t SET lane = {}, {NO_LEASE} FROM released r \
        WHERE t.execution_id = $1 AND t.seq = r.seq", own_lane());
    HELD_OF = "SELECT c.seq FROM xdb.crash_suspect c WHERE c.execution_id = $1 AND c.held_at IS NOT NULL";
    FORGET_ALL = "DELETE FROM xdb.crash_suspect";
}

/// Notes what was under way when the engine died with the server, before the scheduler that comes first begins its epoch, and holds
/// what it died of. Answers with how many are held from now on.
pub fn after_crash(spi: &Spi) -> Result<u64> {
    spi.run(&NOTE, &[])?;
    spi.run(&HOLD, &[])
}

/// Forgets suspects whose calls are over, and counts the others.
pub fn count(spi: &Spi) -> Result<Suspects> {
    spi.run(&ACQUIT_ABANDONED, &[])?;
    spi.run(&FORGET_OVER, &[])?;
    let read = |row: &Row| Ok(Suspects { open: row.get("open")?, held: row.get("held")? });
    Ok(spi.first(&COUNT, &[], read)?.unwrap_or_default())
}

/// That the task `t` is held after crashes: no end of a pause lets it go.
pub(super) const HELD: &str = "EXISTS (SELECT FROM xdb.crash_suspect c \
    WHERE c.execution_id = t.execution_id AND c.seq = t.seq AND c.held_at IS NOT NULL)";

/// How many there are in this database, as the scheduler has counted last.
pub fn known() -> Suspects {
    Slot::find(process::database(), Role::Scheduler).map(Slot::suspects).unwrap_or_default()
}

fn are_none() -> bool {
    known() == Suspects::default()
}

/// Which of these calls are suspects.
pub fn among(spi: &Spi, keys: &[StateKey]) -> Result<HashSet<StateKey>> {
    if keys.is_empty() || known().open == 0 {
        return Ok(HashSet::new());
    }
    let read = |row: &Row| Ok((row.get("execution_id")?, row.get("seq")?));
    Ok(spi.rows(&AMONG, &StateKey::arrays(keys), read)?.into_iter().collect())
}

/// Counts the death that would be this suspect's own, before it is made or its answer applied. False while another one is in hand, of
/// whatever process. Of a call that is no suspect any more nothing is counted.
pub fn take(spi: &Spi, (execution, seq): StateKey) -> Result<bool> {
    Ok(spi.first(&TAKE, &[value(execution), value(seq)], |row| row.get("may"))?.unwrap_or(false))
}

/// What was to be done with this suspect went well: it is suspected of the first death alone.
pub fn acquit(spi: &Spi, (execution, seq): StateKey) -> Result<()> {
    spi.run(&ACQUIT, &[value(execution), value(seq)])?;
    Ok(())
}

/// These calls are over, or begin anew.
pub(super) fn over(spi: &Spi, keys: impl Iterator<Item = StateKey>) -> Result<()> {
    if !are_none() {
        run(spi, &OVER, &keys.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// All calls of these executions are over.
pub(super) fn all_over(spi: &Spi, ids: &[ExecutionId]) -> Result<()> {
    if !are_none() {
        spi.run(&ALL_OVER, &[array(ids)])?;
    }
    Ok(())
}

/// Lets the held calls of an execution go, or that of one state. Under the lock of the execution. Answers how many.
pub fn retry(spi: &Spi, id: ExecutionId, only: Option<StateSeq>) -> Result<usize> {
    Ok(spi.run(&RETRY, &[value(id), value(only)])? as usize)
}

/// The states of an execution whose calls are held after crashes.
pub fn held_of(spi: &Spi, id: ExecutionId) -> Result<Vec<StateSeq>> {
    spi.rows(&HELD_OF, &[value(id)], |row| row.get("seq"))
}

/// What a copy was suspected of, its original was.
pub(super) fn forget_all(spi: &Spi) -> Result<()> {
    spi.run(&FORGET_ALL, &[])?;
    Ok(())
}

/// What people are told while calls are held.
pub fn reason(spi: &Spi) -> Result<Option<String>> {
    let held: i64 = spi.first(&COUNT, &[], |row| row.get("held"))?.unwrap_or(0);
    let calls = if held == 1 { "1 call is".to_owned() } else { format!("{held} calls are") };
    let told =
        || format!("{calls} held after crashes of the server: xdb.failures names them, xdb.retry_now() lets them go");
    Ok((held > 0).then(told))
}
