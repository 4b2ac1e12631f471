//! The engine's own rows: the epochs of its processes, and the pause of the engine. The table `engine`.
//!
//! The scheduler has row 0. Runner n has row 10 + n, which is created when the runner first begins. No epoch is ever
//! given twice. Each new epoch is higher than all others, and no row is ever deleted.

use super::instance::{self, Ownership};
use super::lanes::{RUNNERS_LANE, SCHEDULERS_LANE};
use super::registry::{NO_WORKER, WorkerId};
use super::table::{statements, table};
use crate::pg::catch::{PgError, Result};
use crate::pg::param::value;
use crate::pg::shmem::Role;
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;
use xdb_engine::Timestamp;

/// The row of the first runner.
const FIRST_RUNNER: i16 = 10;

table! {
    /// A process of the engine and its epoch. The scheduler's row also says whether the engine is paused. The lock on
    /// the rows is the gate that every engine process takes when it begins.
    pub struct Engine in "engine" {
        key { lane: i16 }
        other { epoch: i64, paused: bool }
    }
}

statements! {
    // In the order of lanes: processes may begin at the same time, and each must see the epochs of the others.
    /// Keeps engine processes from beginning before this transaction ends.
    GATE = "SELECT FROM xdb.engine ORDER BY lane FOR UPDATE" => pub(super) fn close_gate() -> ();
    BEGIN_EPOCH = "INSERT INTO xdb.engine AS e (lane, epoch) VALUES ($1, (SELECT max(epoch) FROM xdb.engine) + 1) \
        ON CONFLICT (lane) DO UPDATE SET epoch = EXCLUDED.epoch RETURNING e.epoch"
        => fn put_epoch(row: i16) -> Option<i64>;
    RETIRE = "UPDATE xdb.engine SET epoch = (SELECT max(epoch) FROM xdb.engine) + 1 WHERE lane = $1"
        => fn retire(row: i16) -> ();
    /// Pauses the engine, or ends the pause.
    PAUSE = "UPDATE xdb.engine SET paused = $1 WHERE lane = 0" => pub fn set_paused(paused: bool) -> ();
    STATE = state("m.epoch", "(SELECT l.judge_at FROM xdb.process_lock l WHERE l.judge_at IS NOT NULL ORDER BY l.judge_at LIMIT 1)");
    STATE_FOR_RUNNER = state("(SELECT e.epoch FROM xdb.engine e WHERE e.lane = $3)", "NULL::timestamptz");
    DATABASE = "SELECT datistemplate, NOT datallowconn FROM pg_catalog.pg_database WHERE oid OPERATOR(pg_catalog.=) $1"
        => fn of_database(oid: pg_sys::Oid) -> Option<(bool, bool)>;
}

/// One statement, because every turn begins with it. Most of its time is spent on opening relations, so each table is
/// read once. Of the runners' calls it reads the worker of the last one: functions have the lowest number.
fn state(epoch: &str, judge_at: &str) -> String {
    format!(
        "SELECT {epoch} AS epoch, m.paused, {} AS generation, t.worker_id AS last_worker, \
            (SELECT number FROM xdb.global_message WHERE fresh ORDER BY number + 0 LIMIT 1) IS NOT NULL \
                OR EXISTS (SELECT FROM xdb.global_passed_over) AS global_work, \
            r.in_use, {judge_at} AS judge_at, i.* \
        FROM xdb.engine m CROSS JOIN xdb.registry r LEFT JOIN LATERAL ({}) AS i ON true \
            LEFT JOIN LATERAL (SELECT worker_id FROM xdb.task WHERE lane = {RUNNERS_LANE} \
                ORDER BY worker_id DESC LIMIT 1) AS t ON true \
        WHERE m.lane = {SCHEDULERS_LANE}",
        instance::GENERATION,
        instance::OF_PROCESSES
    )
}

/// What a turn begins with. The scheduler or runner reads it at the start of each turn.
#[derive(Debug)]
pub struct TurnInput {
    pub epoch: i64,
    pub paused: bool,
    /// Grows with every registration.
    pub generation: i64,
    /// Whether there are calls in the runners' lane.
    pub runners_have_calls: bool,
    /// Whether some of the runners' calls are workers', and not functions'.
    pub workers_calls_are_runners: bool,
    /// Whether messages of global queues may be matched.
    pub global_work: bool,
    /// When locks of processes have to be judged. None: not before other rows are written. Only a scheduler reads it.
    pub judge_at: Option<Timestamp>,
    /// Whether the processes are this database's own.
    pub ownership: Ownership,
}

/// The row of an engine process.
fn row_of(role: Role) -> i16 {
    match role {
        Role::Scheduler => 0,
        Role::Runner(number) => FIRST_RUNNER + i16::from(number),
    }
}

/// Begins the epoch of a process that has just started. The leases of all earlier epochs in its row are now void. The
/// transaction must commit synchronously, so that a crash can't bring back an old epoch.
pub fn begin_epoch(spi: &Spi, role: Role) -> Result<i64> {
    close_gate(spi)?;
    put_epoch(spi, row_of(role))?.ok_or_else(|| PgError::internal("xdb.engine did not take an epoch"))
}

/// Makes the leases of ended runners void: their rows get new epochs, which no process has. `has_ended` is called while
/// no process can begin. As with [`begin_epoch`], the commit must be synchronous.
pub fn retire_runners(spi: &Spi, has_ended: impl Fn(Role) -> bool) -> Result<()> {
    close_gate(spi)?;
    Role::runners().filter(|role| has_ended(*role)).try_for_each(|role| retire(spi, row_of(role)))
}

/// Reads what a turn begins with, in one statement.
pub fn turn_input(spi: &Spi, role: Role) -> Result<TurnInput> {
    let (system, database) = instance::here();
    let read = |row: &Row| {
        let last: Option<WorkerId> = row.get("last_worker")?;
        Ok(TurnInput {
            epoch: row.get("epoch")?,
            paused: row.get("paused")?,
            generation: row.get("generation")?,
            runners_have_calls: last.is_some(),
            workers_calls_are_runners: last.is_some_and(|worker| worker != NO_WORKER),
            global_work: row.get("global_work")?,
            judge_at: row.get("judge_at")?,
            ownership: instance::read_ownership(row)?,
        })
    };
    let mut params = vec![value(system), value(database)];
    let statement = match role {
        Role::Scheduler => &STATE,
        Role::Runner(_) => {
            params.push(value(row_of(role)));
            &STATE_FOR_RUNNER
        }
    };
    spi.first(statement, &params, read)?.ok_or_else(|| PgError::internal("xdb.engine lacks its row"))
}

/// Whether this database is a template, and whether it refuses connections.
pub fn is_template_or_closed(spi: &Spi) -> Result<(bool, bool)> {
    let (_, database) = instance::here();
    Ok(of_database(spi, database)?.unwrap_or_default())
}
