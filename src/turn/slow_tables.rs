//! Which tables and functions are slow in this turn, by the marks in shared memory: see [`crate::pg::shmem::slow`].

use super::role::Role;
use crate::calls::Marked;
use crate::pg::catch::Result;
use crate::pg::process::database;
use crate::pg::routine;
use crate::pg::shmem::slow::{self, MarkKind, SlowMark};
use crate::pg::spi::Spi;
use crate::store::children::tables_of_children;
use crate::store::lanes::{RUNNERS_LANE, SCHEDULERS_LANE};
use crate::store::loaded::Meta;
use crate::store::slow::announce;
use pgrx::pg_sys;
use std::collections::HashSet;
use xdb_engine::{Api, StateExecution};
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

    /// The marks of now, for a session.
    pub fn of_now() -> Self {
        Self { marks: slow::marks(database()).collect(), ..Self::default() }
    }

    /// The lane of an execution's calls.
    pub fn lane_of(&self, meta: &Meta) -> i16 {
        if meta.pulled_by().is_some() {
            // A pull worker waits for tables in its own transaction.
            return SCHEDULERS_LANE;
        }
        let is_runners = self.find(meta, |object| self.is_runners(meta.owner, object)).is_some();
        if is_runners { RUNNERS_LANE } else { SCHEDULERS_LANE }
    }

    /// The first slow one among the tables of a process and the functions that its answers may call.
    pub fn find(&self, meta: &Meta, is_slow: impl Fn(Relation) -> bool) -> Option<Relation> {
        if !self.is_any() { None } else { objects(meta).find(|object| is_slow(*object)) }
    }

    /// How the tables of a process are marked, and the functions that its answers and this call use.
    pub fn marked(&self, meta: &Meta, state: &StateExecution, api: Api) -> Marked {
        if !self.is_any() {
            return Marked::Not;
        }
        let is_deadly = |object| self.is_deadly(object);
        let definition = meta.process_type.as_ref().map(|process_type| &process_type.definition);
        let function = definition.and_then(|definition| definition.function_of(&state.id.state_id, api));
        let calls_deadly = |name| routine::of_jsonb(name, 1).ok().flatten().is_some_and(is_deadly);
        if function.is_some_and(calls_deadly) || self.find(meta, is_deadly).is_some() {
            Marked::Deadly
        } else if self.lane_of(meta) == RUNNERS_LANE {
            Marked::Slow
        } else {
            Marked::Not
        }
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

/// The tables of a process, the functions that its answers may call, and what stands for the tables of its children.
fn objects(meta: &Meta) -> impl Iterator<Item = Relation> {
    let definition = meta.process_type.as_ref().map(|process_type| &process_type.definition);
    let functions = definition.into_iter().flat_map(|definition| definition.functions.values());
    // A function that can't be looked up is left out: its call reports the error.
    let functions = functions.filter_map(|name| routine::of_jsonb(name, 2).ok()?);
    meta.mapping.iter().map(|table| table.relation).chain(functions).chain([tables_of_children(meta.type_id)])
}
