//! The engine's own rows: the epochs of its processes, and whether it is paused.
//!
//! The scheduler has row 0, and runner n row 10 + n, made when it begins for the first time. An epoch is never given twice: each
//! new one is above all others, and no row is ever deleted.

use super::instance::{self, Standing};
use crate::pg::catch::{PgError, Result};
use crate::pg::param::value;
use crate::pg::shmem::Role;
use crate::pg::spi::{Row, Spi};
use crate::store::slow::{self, Marked};
use crate::store::versions;
use std::collections::HashMap;
use std::sync::LazyLock;
use xdb_sched::table_health::Relation;

/// The row of the first runner.
const FIRST_RUNNER: i16 = 10;

/// What a turn begins with.
#[derive(Debug)]
pub struct State {
    pub epoch: i64,
    pub paused: bool,
    /// Grows with every registration.
    pub generation: i64,
    /// There are calls in the runners' lane.
    pub runners_have_calls: bool,
    /// Messages of global queues are to be handed out.
    pub global_work: bool,
    /// Locks on attributes were released by others than the main scheduler.
    pub locks_released: bool,
    /// Calls have locks on attributes, or wait for some.
    pub any_locks: bool,
    /// Whether the processes are this database's own.
    pub standing: Standing,
    /// Users' tables that are slow, or were within the last hour.
    pub slow: HashMap<Relation, Marked>,
}

/// The row of an engine process.
fn row_of(role: Role) -> i16 {
    match role {
        Role::Scheduler => 0,
        Role::Runner(number) => FIRST_RUNNER + i16::from(number),
    }
}

/// Locks all rows, in their order: processes may begin at the same time, and each must see the epochs of the others.
fn lock_rows(spi: &Spi) -> Result<()> {
    spi.rows("SELECT 1 FROM xdb.engine ORDER BY lane FOR UPDATE", &[], |_| Ok(()))?;
    Ok(())
}

/// Begins the epoch of a process that has just started: leases of all earlier ones in its row are void from now on. The
/// transaction must commit synchronously, so that a crash can't bring an epoch back.
pub fn begin_epoch(spi: &Spi, role: Role) -> Result<i64> {
    const UPSERT: &str = "INSERT INTO xdb.engine AS e (lane, epoch) \
        VALUES ($1, (SELECT max(epoch) FROM xdb.engine) + 1) \
        ON CONFLICT (lane) DO UPDATE SET epoch = EXCLUDED.epoch RETURNING e.epoch";
    lock_rows(spi)?;
    let epoch = spi.first(UPSERT, &[value(row_of(role))], |row| row.need(1))?;
    epoch.ok_or_else(|| PgError::internal("xdb.engine did not take an epoch"))
}

/// In a schema without runners, gives to the scheduler what older versions had in other lanes: calls of tables that were set
/// aside, and such as waited for locks.
pub fn take_over_lanes(spi: &Spi) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.task SET lane = 0, lease_epoch = 0, lease_number = 0, lease_until = NULL \
        WHERE lane IN (1, 2)";
    if !versions::is_own() {
        spi.run(UPDATE, &[])?;
    }
    Ok(())
}

/// Makes the leases of runners void that are gone: their rows get new epochs, which nobody has. `is_gone` is asked once no
/// process can begin before this commits. As with [`begin_epoch`], the commit must be synchronous.
pub fn retire_runners(spi: &Spi, is_gone: impl Fn(Role) -> bool) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.engine SET epoch = (SELECT max(epoch) FROM xdb.engine) + 1 WHERE lane = $1";
    lock_rows(spi)?;
    for role in Role::runners().filter(|role| is_gone(*role)) {
        spi.run(UPDATE, &[value(row_of(role))])?;
    }
    Ok(())
}

pub fn state(spi: &Spi, role: Role) -> Result<State> {
    // All in one statement, because every turn begins with it.
    static SELECT: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT e.epoch, m.paused, r.generation, EXISTS (SELECT FROM xdb.task WHERE lane = 1), \
            (SELECT number FROM xdb.global_message WHERE fresh ORDER BY number + 0 LIMIT 1) IS NOT NULL \
            OR EXISTS (SELECT FROM xdb.global_passed_over), \
            EXISTS (SELECT FROM xdb.attribute_lock_release), {}, \
            EXISTS (SELECT FROM xdb.attribute_lock), s.* \
        FROM xdb.engine e JOIN xdb.engine m ON m.lane = 0 CROSS JOIN xdb.registry r LEFT JOIN LATERAL ({}) AS s ON true WHERE e.lane = $3",
            if versions::is_own() { "EXISTS (SELECT FROM xdb.slow_object)" } else { "false" },
            instance::STANDING
        )
    });
    let (system, database) = instance::here();
    let read = |row: &Row| {
        let state = State {
            epoch: row.need(1)?,
            paused: row.need(2)?,
            generation: row.need(3)?,
            runners_have_calls: row.need(4)?,
            global_work: row.need(5)?,
            locks_released: row.need(6)?,
            any_locks: row.need(8)?,
            standing: instance::read_standing(row, 9)?,
            slow: HashMap::new(),
        };
        Ok((state, row.need::<bool>(7)?))
    };
    let row = spi.first(&SELECT, &[value(system), value(database), value(row_of(role))], read)?;
    let (mut state, any_slow) = row.ok_or_else(|| PgError::internal("xdb.engine lacks its row"))?;
    if any_slow {
        state.slow = slow::tables(spi)?;
    }
    Ok(state)
}

pub fn set_paused(spi: &Spi, paused: bool) -> Result<()> {
    spi.run("UPDATE xdb.engine SET paused = $1 WHERE lane = 0", &[value(paused)])?;
    Ok(())
}
