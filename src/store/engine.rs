//! The engine's own rows: the epochs of its processes, and whether it is paused. The table `engine`.
//!
//! The scheduler has row 0, and runner n row 10 + n, made when it begins for the first time. An epoch is never given twice: each
//! new one is above all others, and no row is ever deleted.

use super::instance::{self, Ownership};
use super::lanes::{FIRST_PRIORITY_LANE, RUNNERS_LANE, SCHEDULERS_LANE};
use super::registry::{NO_WORKER, WorkerId};
use super::table::{statements, table};
use crate::pg::catch::{PgError, Result};
use crate::pg::param::value;
use crate::pg::shmem::Role;
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;

/// The row of the first runner.
const FIRST_RUNNER: i16 = 10;

table! {
    /// A process of the engine: its epoch; and, in the scheduler's row, whether the engine is paused. The lock of the rows is also
    /// the gate that a process which begins takes first.
    pub struct Engine in "engine" {
        key { lane: i16 }
        other { epoch: i64, paused: bool }
    }
}

statements! {
    // In their order: processes may begin at the same time, and each must see the epochs of the others.
    /// Keeps processes of the engine from beginning before this transaction ends.
    GATE = "SELECT FROM xdb.engine ORDER BY lane FOR UPDATE" => pub(super) fn close_gate() -> ();
    BEGIN_EPOCH = "INSERT INTO xdb.engine AS e (lane, epoch) VALUES ($1, (SELECT max(epoch) FROM xdb.engine) + 1) \
        ON CONFLICT (lane) DO UPDATE SET epoch = EXCLUDED.epoch RETURNING e.epoch"
        => fn put_epoch(row: i16) -> Option<i64>;
    RETIRE = "UPDATE xdb.engine SET epoch = (SELECT max(epoch) FROM xdb.engine) + 1 WHERE lane = $1"
        => fn retire(row: i16) -> ();
    /// Pauses the engine, or lets it go on.
    PAUSE = "UPDATE xdb.engine SET paused = $1 WHERE lane = 0" => pub fn set_paused(paused: bool) -> ();
    STATE = state("m.epoch");
    STATE_FOR_RUNNER = state("(SELECT e.epoch FROM xdb.engine e WHERE e.lane = $3)");
    RUNNERS_LAST_WORKER = format!("SELECT max(worker_id) AS last FROM xdb.task WHERE lane = {RUNNERS_LANE}")
        => fn runners_last_worker() -> Option<Option<WorkerId>>;
    DATABASE = "SELECT datistemplate, NOT datallowconn FROM pg_catalog.pg_database WHERE oid OPERATOR(pg_catalog.=) $1"
        => fn of_database(oid: pg_sys::Oid) -> Option<(bool, bool)>;
}

/// All in one statement, because every turn begins with it: most of its time is spent to open what it reads, so that each table is read
/// once. The last call behind lane 0 tells, where there is none, that none waits for a runner, none is held, and none has a priority.
fn state(epoch: &str) -> String {
    format!(
        "SELECT {epoch} AS epoch, m.paused, {} AS generation, t.lane AS last_lane, t.worker_id AS last_worker, \
            (SELECT number FROM xdb.global_message WHERE fresh ORDER BY number + 0 LIMIT 1) IS NOT NULL \
                OR EXISTS (SELECT FROM xdb.global_passed_over) AS global_work, \
            r.in_use, i.* \
        FROM xdb.engine m CROSS JOIN xdb.registry r LEFT JOIN LATERAL ({}) AS i ON true \
            LEFT JOIN LATERAL (SELECT lane, worker_id FROM xdb.task WHERE lane > {SCHEDULERS_LANE} \
                ORDER BY lane DESC, worker_id DESC LIMIT 1) AS t ON true \
        WHERE m.lane = {SCHEDULERS_LANE}",
        instance::GENERATION,
        instance::OF_PROCESSES
    )
}

/// What a turn begins with.
#[derive(Debug)]
pub struct TurnInput {
    pub epoch: i64,
    pub paused: bool,
    /// Grows with every registration.
    pub generation: i64,
    /// There are calls in the runners' lane.
    pub runners_have_calls: bool,
    /// Some of them are workers'.
    pub workers_calls_are_runners: bool,
    /// The last lane of those that have calls of processes with a priority.
    pub last_lane: Option<i16>,
    /// Messages of global queues are to be handed out.
    pub global_work: bool,
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

/// Begins the epoch of a process that has just started: leases of all earlier ones in its row are void from now on. The
/// transaction must commit synchronously, so that a crash can't bring an epoch back.
pub fn begin_epoch(spi: &Spi, role: Role) -> Result<i64> {
    close_gate(spi)?;
    put_epoch(spi, row_of(role))?.ok_or_else(|| PgError::internal("xdb.engine did not take an epoch"))
}

/// Makes the leases of runners void that are gone: their rows get new epochs, which nobody has. `is_gone` is asked once no
/// process can begin before this commits. As with [`begin_epoch`], the commit must be synchronous.
pub fn retire_runners(spi: &Spi, is_gone: impl Fn(Role) -> bool) -> Result<()> {
    close_gate(spi)?;
    Role::runners().filter(|role| is_gone(*role)).try_for_each(|role| retire(spi, row_of(role)))
}

pub fn turn_input(spi: &Spi, role: Role) -> Result<TurnInput> {
    let (system, database) = instance::here();
    let read = |row: &Row| {
        let last: Option<(i16, WorkerId)> = row.get::<Option<i16>>("last_lane")?.zip(row.get("last_worker")?);
        let state = TurnInput {
            epoch: row.get("epoch")?,
            paused: row.get("paused")?,
            generation: row.get("generation")?,
            runners_have_calls: false,
            workers_calls_are_runners: false,
            last_lane: last.map(|(lane, _)| lane).filter(|lane| *lane >= FIRST_PRIORITY_LANE),
            global_work: row.get("global_work")?,
            ownership: instance::read_ownership(row)?,
        };
        Ok((state, last))
    };
    let mut params = vec![value(system), value(database)];
    let statement = match role {
        Role::Scheduler => &STATE,
        Role::Runner(_) => {
            params.push(value(row_of(role)));
            &STATE_FOR_RUNNER
        }
    };
    let row = spi.first(statement, &params, read)?;
    let (mut state, last) = row.ok_or_else(|| PgError::internal("xdb.engine lacks its row"))?;
    let last_worker = match last {
        None => None,
        Some((RUNNERS_LANE, worker)) => Some(worker),
        // It stands behind those of the runners.
        Some(_) => runners_last_worker(spi)?.flatten(),
    };
    state.runners_have_calls = last_worker.is_some();
    state.workers_calls_are_runners = last_worker.is_some_and(|worker| worker != NO_WORKER);
    Ok(state)
}

/// Whether this database is a template, and whether it allows connections.
pub fn is_template_or_closed(spi: &Spi) -> Result<(bool, bool)> {
    let (_, database) = instance::here();
    Ok(of_database(spi, database)?.unwrap_or_default())
}
