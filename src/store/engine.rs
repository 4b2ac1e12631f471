//! The engine's own rows: epoch, pause, and tables that are set aside. The tables `engine` and `set_aside`.

pub use super::claim::has_tasks;

use super::claim;
use super::instance::{self, Standing};
use super::table::{insert, record, run, statements, table};
use crate::pg::catch::{PgError, Result};
use crate::pg::param::{Relation, value};
use crate::pg::spi::{Row, Spi};
use std::collections::HashMap;
use xdb_engine::Timestamp;
use xdb_sched::table_health::Trouble;

table! {
    /// A lane: its epoch, and whether the engine is paused. The lock of the rows is also the gate that a turn takes first.
    pub struct Engine in "engine" {
        key { lane: i16 }
        other { epoch: i64, paused: bool }
    }
}

table! {
    /// A user's table that is set aside, and why.
    pub struct SetAsideTable<'a> in "set_aside" {
        key { relation: Relation }
        other { since: Timestamp, reason: &'a str }
    }
}

record! {
    struct NewSetAside<'a> of SetAsideTable<'a> { relation: Relation, reason: &'a str }
}

statements! {
    // In the order in which a scheduler that begins takes them.
    GATE = "SELECT FROM xdb.engine ORDER BY lane FOR UPDATE";
    GATE_TO_PAUSE = "SELECT FROM xdb.engine ORDER BY lane FOR NO KEY UPDATE";
    BEGIN_EPOCH = "UPDATE xdb.engine SET epoch = (SELECT max(epoch) FROM xdb.engine) + 1 WHERE lane = $1 RETURNING epoch";
    PAUSE = "UPDATE xdb.engine SET paused = $1";
    // All in one statement, because every turn begins with it.
    STATE = format!("SELECT e.epoch, e.paused, r.generation, \
            EXISTS (SELECT FROM xdb.task WHERE lane = 1) AS other_lane_has_tasks, \
            (SELECT number FROM xdb.global_message WHERE fresh ORDER BY number + 0 LIMIT 1) IS NOT NULL \
                OR EXISTS (SELECT FROM xdb.global_passed_over) AS global_work, \
            EXISTS (SELECT FROM xdb.set_aside) AS any_set_aside, \
            s.* \
        FROM xdb.engine e CROSS JOIN xdb.registry r LEFT JOIN LATERAL ({}) AS s ON true WHERE e.lane = $3",
        instance::STANDING);
    SET_ASIDE = format!("{} ON CONFLICT DO NOTHING", insert::<NewSetAside>());
    TAKE_BACK = "DELETE FROM xdb.set_aside WHERE relation = $1";
    ALL_SET_ASIDE = "SELECT relation::oid AS relation, reason FROM xdb.set_aside";
    NAMES_SET_ASIDE = "SELECT relation::text || ': ' || reason AS name FROM xdb.set_aside ORDER BY since";
    ANY_SET_ASIDE = "SELECT EXISTS (SELECT FROM xdb.set_aside) AS any_set_aside";
    FORGET_SET_ASIDE = "DELETE FROM xdb.set_aside s WHERE NOT EXISTS (SELECT FROM xdb.task WHERE lane = 1) \
        OR NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = s.relation)";
    FORGET_ALL_SET_ASIDE = "DELETE FROM xdb.set_aside";
}

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
    pub set_aside: HashMap<u32, Trouble>,
}

/// Begins the epoch of a scheduler that has just started: leases of all earlier ones are void from now on. The
/// transaction must commit synchronously, so that a crash can't bring an epoch back.
pub fn begin_epoch(spi: &Spi, lane: i16) -> Result<i64> {
    // Both lanes may start at once; the second one must see the epoch of the first.
    close_gate(spi)?;
    let epoch = spi.first(&BEGIN_EPOCH, &[value(lane)], |row| row.get("epoch"))?;
    epoch.ok_or_else(|| PgError::internal("xdb.engine lacks its row"))
}

/// Keeps schedulers from beginning before this transaction ends.
pub(super) fn close_gate(spi: &Spi) -> Result<()> {
    spi.rows(&GATE, &[], |_| Ok(()))?;
    Ok(())
}

pub fn state(spi: &Spi, lane: i16) -> Result<State> {
    let (system, database) = instance::here();
    let read = |row: &Row| {
        let state = State {
            epoch: row.get("epoch")?,
            paused: row.get("paused")?,
            generation: row.get("generation")?,
            other_lane_has_tasks: row.get("other_lane_has_tasks")?,
            global_work: row.get("global_work")?,
            standing: instance::read_standing(row)?,
            set_aside: HashMap::new(),
        };
        Ok((state, row.get::<bool>("any_set_aside")?))
    };
    let row = spi.first(&STATE, &[value(system), value(database), value(lane)], read)?;
    let (mut state, any_set_aside) = row.ok_or_else(|| PgError::internal("xdb.engine lacks its row"))?;
    if any_set_aside {
        let read = |row: &Row| Ok((row.get::<Relation>("relation")?.0, Trouble::parse(row.get("reason")?)));
        state.set_aside = spi.rows(&ALL_SET_ASIDE, &[], read)?.into_iter().collect();
    }
    Ok(state)
}

pub fn set_paused(spi: &Spi, paused: bool) -> Result<()> {
    spi.rows(&GATE_TO_PAUSE, &[], |_| Ok(()))?;
    spi.run(&PAUSE, &[value(paused)])?;
    Ok(())
}

pub fn set_aside(spi: &Spi, relation: u32, why: Trouble) -> Result<()> {
    run(spi, &SET_ASIDE, &[NewSetAside { relation: Relation(relation), reason: why.as_str() }])?;
    Ok(())
}

pub fn take_back(spi: &Spi, relation: u32) -> Result<()> {
    spi.run(&TAKE_BACK, &[value(Relation(relation))])?;
    Ok(())
}

/// Gives all calls of the lane of tables that are set aside back to the other one, unless a table is set aside whose
/// steps are still to come. True when the lane is empty.
pub fn leave_lane(spi: &Spi) -> Result<bool> {
    spi.run(&FORGET_SET_ASIDE, &[])?;
    if spi.first(&ANY_SET_ASIDE, &[], |row| row.get("any_set_aside"))? == Some(true) {
        return Ok(false);
    }
    if claim::leave_lane(spi)? > 0 {
        crate::pg::wake::wake_scheduler_at_commit();
    }
    Ok(!has_tasks(spi, 1)?)
}

/// No table is set aside any more.
pub(super) fn forget_set_aside(spi: &Spi) -> Result<()> {
    spi.run(&FORGET_ALL_SET_ASIDE, &[])?;
    Ok(())
}

/// Names of the tables that are set aside, with the reason.
pub fn set_aside_names(spi: &Spi) -> Result<Vec<String>> {
    spi.rows(&NAMES_SET_ASIDE, &[], |row| row.get("name"))
}
