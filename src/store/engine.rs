//! The engine's own rows: epoch, pause, and tables that are set aside.

use super::instance::{self, Standing};
use crate::pg::catch::{PgError, Result};
use crate::pg::param::value;
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;
use std::collections::HashMap;
use std::sync::LazyLock;
use xdb_sched::table_health::{Relation, Trouble};

/// What a turn begins with.
#[derive(Debug)]
pub struct State {
    pub epoch: i64,
    pub paused: bool,
    /// Grows with every registration.
    pub generation: i64,
    /// Calls wait in the lane of tables that are set aside.
    pub other_lane_has_tasks: bool,
    /// Messages of global queues are to be handed out.
    pub global_work: bool,
    /// Whether the processes are this database's own.
    pub standing: Standing,
    /// Tables that are set aside, and why.
    pub set_aside: HashMap<Relation, Trouble>,
}

/// Begins the epoch of a scheduler that has just started: leases of all earlier ones are void from now on. The
/// transaction must commit synchronously, so that a crash can't bring an epoch back.
pub fn begin_epoch(spi: &Spi, lane: i16) -> Result<i64> {
    const UPDATE: &str = "UPDATE xdb.engine SET epoch = (SELECT max(epoch) FROM xdb.engine) + 1 WHERE lane = $1 \
        RETURNING epoch";
    // Both lanes may start at once; the second one must see the epoch of the first.
    spi.rows("SELECT 1 FROM xdb.engine ORDER BY lane FOR UPDATE", &[], |_| Ok(()))?;
    spi.first(UPDATE, &[value(lane)], |row| row.need(1))?.ok_or_else(|| PgError::internal("xdb.engine lacks its row"))
}

pub fn state(spi: &Spi, lane: i16) -> Result<State> {
    const SET_ASIDE: &str = "SELECT relation::oid, reason FROM xdb.set_aside";
    // All in one statement, because every turn begins with it.
    static SELECT: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT e.epoch, e.paused, r.generation, EXISTS (SELECT FROM xdb.task WHERE lane = 1), \
            (SELECT number FROM xdb.global_message WHERE fresh ORDER BY number + 0 LIMIT 1) IS NOT NULL \
            OR EXISTS (SELECT FROM xdb.global_passed_over), \
            EXISTS (SELECT FROM xdb.set_aside), s.* \
        FROM xdb.engine e CROSS JOIN xdb.registry r LEFT JOIN LATERAL ({}) AS s ON true WHERE e.lane = $3",
            instance::STANDING
        )
    });
    let (system, database) = instance::here();
    let read = |row: &Row| {
        let state = State {
            epoch: row.need(1)?,
            paused: row.need(2)?,
            generation: row.need(3)?,
            other_lane_has_tasks: row.need(4)?,
            global_work: row.need(5)?,
            standing: instance::read_standing(row, 7)?,
            set_aside: HashMap::new(),
        };
        Ok((state, row.need::<bool>(6)?))
    };
    let row = spi.first(&SELECT, &[value(system), value(database), value(lane)], read)?;
    let (mut state, any_set_aside) = row.ok_or_else(|| PgError::internal("xdb.engine lacks its row"))?;
    if any_set_aside {
        let read = |row: &Row| Ok((row.need::<pg_sys::Oid>(1)?.to_u32(), Trouble::parse(&row.need::<String>(2)?)));
        state.set_aside = spi.rows(SET_ASIDE, &[], read)?.into_iter().collect();
    }
    Ok(state)
}

pub fn set_paused(spi: &Spi, paused: bool) -> Result<()> {
    // In the order in which a scheduler that begins takes them.
    spi.rows("SELECT 1 FROM xdb.engine ORDER BY lane FOR NO KEY UPDATE", &[], |_| Ok(()))?;
    spi.run("UPDATE xdb.engine SET paused = $1", &[value(paused)])?;
    Ok(())
}

pub fn set_aside(spi: &Spi, relation: Relation, why: Trouble) -> Result<()> {
    const INSERT: &str = "INSERT INTO xdb.set_aside (relation, reason) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    spi.run(INSERT, &[value(pg_sys::Oid::from(relation)), value(why.as_str())])?;
    Ok(())
}

pub fn take_back(spi: &Spi, relation: Relation) -> Result<()> {
    spi.run("DELETE FROM xdb.set_aside WHERE relation = $1", &[value(pg_sys::Oid::from(relation))])?;
    Ok(())
}

/// Gives all calls of the lane of tables that are set aside back to the other one, unless a table is set aside whose
/// steps are still to come. True when the lane is empty.
pub fn leave_lane(spi: &Spi) -> Result<bool> {
    const MOVE: &str = "WITH back AS MATERIALIZED (SELECT execution_id, seq FROM xdb.task \
            WHERE lane = 1 ORDER BY execution_id, seq LIMIT 1000 FOR UPDATE SKIP LOCKED) \
        UPDATE xdb.task t SET lane = 0, lease_epoch = 0, lease_number = 0, lease_until = NULL FROM back \
        WHERE t.execution_id = back.execution_id AND t.seq = back.seq";
    const FORGET: &str = "DELETE FROM xdb.set_aside s WHERE NOT EXISTS (SELECT FROM xdb.task WHERE lane = 1) \
        OR NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = s.relation)";
    spi.run(FORGET, &[])?;
    let set_aside = spi.first("SELECT EXISTS (SELECT FROM xdb.set_aside)", &[], |row| row.need(1))?;
    if set_aside == Some(true) {
        return Ok(false);
    }
    if spi.run(MOVE, &[])? > 0 {
        crate::pg::wake::wake_scheduler_at_commit();
    }
    Ok(!has_tasks(spi, 1)?)
}

/// Whether calls wait in a lane.
pub fn has_tasks(spi: &Spi, lane: i16) -> Result<bool> {
    const SELECT: &str = "SELECT EXISTS (SELECT FROM xdb.task WHERE lane = $1)";
    Ok(spi.first(SELECT, &[value(lane)], |row| row.need(1))?.unwrap_or(false))
}

/// Names of the tables that are set aside, with the reason.
pub fn set_aside_names(spi: &Spi) -> Result<Vec<String>> {
    spi.rows("SELECT relation::text || ': ' || reason FROM xdb.set_aside ORDER BY since", &[], |row| row.need(1))
}
