//! Which tables and functions are slow in this turn, by the marks in shared memory: see [`crate::pg::shmem::slow`].

use super::role::Role;
use crate::pg::catch::Result;
use crate::pg::process::database;
use crate::pg::shmem::slow::{self, MarkKind, SlowMark};
use crate::pg::spi::Spi;
use crate::store::slow::announce;
use pgrx::pg_sys;
use std::collections::HashSet;
use xdb_sched::table_health::Relation;

/// The marks that hold in this turn.
#[derive(Default)]
pub struct SlowTables {
    marks: HashSet<SlowMark>,
    /// Marks that are in the log.
    logged: HashSet<SlowMark>,
}

impl SlowTables {
    /// Reads the marks at the begin of a turn. The scheduler logs new ones.
    pub fn begin_turn(&mut self, spi: &Spi, role: Role) -> Result<()> {
        self.marks = slow::marks(database()).collect();
        self.logged.retain(|mark| self.marks.contains(mark));
        for mark in self.marks.iter().filter(|_| role == Role::Scheduler) {
            if self.logged.insert(*mark) {
                pgrx::log!("xdb: {}", announce(spi, *mark)?);
            }
        }
        Ok(())
    }

    pub fn is_any(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Whether steps of this role that use this table or function run in a runner.
    pub fn is_runners(&self, owner: pg_sys::Oid, object: Relation) -> bool {
        self.has(MarkKind::Slow, object) || self.is_deadly(object) || self.has(MarkKind::Killer, owner.to_u32())
    }

    /// Whether no process uses this table or function.
    pub fn is_deadly(&self, object: Relation) -> bool {
        self.has(MarkKind::Deadly, object)
    }

    fn has(&self, kind: MarkKind, oid: u32) -> bool {
        self.marks.contains(&SlowMark { kind, oid })
    }

    /// Marks a table as slow, after one use by the scheduler reached its time limit.
    pub fn ran_into_limit(&mut self, object: Relation) {
        let mark = SlowMark { kind: MarkKind::Slow, oid: object };
        slow::mark(database(), mark);
        self.marks.insert(mark);
    }
}
