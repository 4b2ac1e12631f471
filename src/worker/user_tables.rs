//! Users' tables in a turn: under a time limit, as the process's owner, and never waited for.

use super::apply::Mode;
use super::deferred::{Deferred, Patience};
use crate::guc;
use crate::pg::catch::{DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE, PgError, QUERY_CANCELED, Result, SERIALIZATION_FAILURE};
use crate::pg::crash;
use crate::pg::identity::{as_engine, as_process_owner};
use crate::pg::spi::Spi;
use crate::pg::subxact::{guarded, in_table, lock_table, now_in_table, try_lock_table, with_timeout};
use crate::store::engine::{self, SetAside};
use crate::store::load::Meta;
use crate::store::tables::{Held, LoadedRows, Tables};
use pgrx::pg_sys;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::time::{Duration, Instant};
use xdb_engine::{AppDatabaseError, Failure, Json, Loading, TableMapping};

/// Longest time for one step in the lane of tables that are set aside. Short enough to let somebody in who wants to
/// mend the table.
const ASIDE_TIMEOUT_MS: i32 = 5000;

/// Where a row is held, the next ones who want a row of that table wait for this long only, and for so long.
const CONTENDED_LOCK_TIMEOUT: &CStr = c"2ms";
const CONTENDED_FOR: Duration = Duration::from_secs(10);

/// So many waits for rows of a table are enough for one turn.
const WAITS_PER_TURN: u32 = 8;

/// Longest wait for a lock in the lane of tables that are set aside: shorter than the time limit, so that a lock is
/// told from a slow statement, and than the second after which sessions look for deadlocks by default.
const ASIDE_LOCK_TIMEOUT: &CStr = c"500ms";

/// A table with this many strikes is set aside.
const STRIKES_OUT: u32 = 12;
/// A statement that ran into the time limit has cost everybody a quarter of a second: three of them are enough.
const SLOW_STRIKE: u32 = 4;
const LOCKED_STRIKE: u32 = 1;

/// So many deadlocks or serialization failures in a row are the table's refusal.
const CONFLICTS_OUT: u32 = 20;

/// So many quick steps in a row bring a table back.
const GOOD_STEPS: u32 = 3;

/// What became of the use of a user's table.
pub enum Used<T> {
    Done(T),
    /// It is locked, slow or already known to be: later.
    Busy(u32),
    /// Somebody has locked the row, or one that it needs: later, for this process alone.
    Locked,
    /// It refused.
    Refused(PgError),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    /// Rows are locked, and nothing of a user's code runs.
    Lock,
    Write,
}

impl Kind {
    /// The lock on the table.
    fn table_lock(self) -> u32 {
        match self {
            Self::Read => pg_sys::AccessShareLock,
            Self::Lock => pg_sys::RowShareLock,
            Self::Write => pg_sys::RowExclusiveLock,
        }
    }
}

/// Which tables are trouble.
pub struct Strikes {
    /// This is the scheduler for tables that are set aside.
    aside: bool,
    set_aside: HashMap<u32, SetAside>,
    to_set_aside: HashMap<u32, SetAside>,
    strikes: HashMap<u32, u32>,
    good: HashMap<u32, u32>,
    conflicts: HashMap<u32, u32>,
    busy: Deferred<u32>,
    /// Tables in which somebody held a row a moment ago.
    contended: HashMap<u32, Instant>,
    /// Waits for rows in this turn.
    waited: HashMap<u32, u32>,
}

impl Strikes {
    pub fn new(aside: bool) -> Self {
        Self {
            aside,
            set_aside: HashMap::new(),
            to_set_aside: HashMap::new(),
            strikes: HashMap::new(),
            good: HashMap::new(),
            conflicts: HashMap::new(),
            busy: Deferred::new(),
            contended: HashMap::new(),
            waited: HashMap::new(),
        }
    }

    /// Writes down what the last turns found out about tables, and takes over what the tables say now.
    pub fn begin(&mut self, spi: &Spi, now: HashMap<u32, SetAside>) -> Result<()> {
        self.waited.clear();
        self.set_aside = now;
        self.to_set_aside.retain(|relation, _| !self.set_aside.contains_key(relation));
        for (relation, why) in &self.to_set_aside {
            engine::set_aside(spi, *relation, *why)?;
            crash::point("turn-set-aside");
            pgrx::log!("xdb: table {relation} is set aside: {}", why.as_str());
        }
        if self.aside {
            let good = &self.good;
            let back = |relation: &u32| good.get(relation).is_some_and(|steps| *steps >= GOOD_STEPS);
            for relation in self.set_aside.keys().filter(|relation| back(relation)) {
                engine::take_back(spi, *relation)?;
                crash::point("turn-take-back");
                pgrx::log!("xdb: table {relation} is no longer set aside");
            }
            self.set_aside.retain(|relation, _| good.get(relation).is_none_or(|steps| *steps < GOOD_STEPS));
            self.good.retain(|relation, _| self.set_aside.contains_key(relation));
        }
        Ok(())
    }

    /// A statement in this table could not be cancelled and ended the process before this one.
    pub fn died_in(&mut self, relation: u32) {
        if !self.aside {
            self.to_set_aside.insert(relation, SetAside::SlowWrites);
        }
    }

    /// The lane of an execution's calls.
    pub fn lane_of(&self, meta: &Meta) -> i16 {
        let aside = |relation: u32| self.is_set_aside(relation);
        i16::from(meta.mapping.iter().any(|table| aside(table.relation)))
    }

    pub fn is_set_aside(&self, relation: u32) -> bool {
        self.set_aside.contains_key(&relation) || self.to_set_aside.contains_key(&relation)
    }

    pub fn busy_until(&self, relation: u32) -> Option<Instant> {
        self.busy.until(&relation)
    }

    fn is_busy(&self, relation: u32) -> bool {
        self.busy.is_deferred(&relation, Instant::now())
    }

    fn strike(&mut self, relation: u32, why: SetAside) {
        let now = Instant::now();
        self.busy.defer(relation, now, Patience::Long);
        self.good.remove(&relation);
        let weight = if why == SetAside::Locked { LOCKED_STRIKE } else { SLOW_STRIKE };
        let strikes = self.strikes.entry(relation).or_default();
        *strikes += weight;
        if *strikes >= STRIKES_OUT && !self.aside {
            *strikes = 0;
            self.to_set_aside.insert(relation, why);
        }
    }

    /// Counts a conflict with another transaction. False when there were so many that it must be the table's own
    /// doing.
    fn conflict(&mut self, relation: u32) -> bool {
        let conflicts = self.conflicts.entry(relation).or_default();
        *conflicts += 1;
        if *conflicts < CONFLICTS_OUT {
            return true;
        }
        *conflicts = 0;
        false
    }

    fn went_well(&mut self, relation: u32, kind: Kind, took_ms: u128) {
        if kind == Kind::Lock {
            // Each write of a call with a lock comes right after one: it must not excuse the writes that are slow.
            return;
        }
        self.busy.clear(&relation);
        self.strikes.remove(&relation);
        self.conflicts.remove(&relation);
        let Some(why) = self.set_aside.get(&relation) else { return };
        // Reading says nothing about a table whose writes are slow.
        if kind == Kind::Read && *why == SetAside::SlowWrites {
            return;
        }
        if took_ms < guc::APPLY_TIMEOUT_MS.get() as u128 {
            *self.good.entry(relation).or_default() += 1;
        } else {
            self.good.remove(&relation);
        }
    }

    /// Writes the attributes of an answer.
    pub fn write(
        &mut self,
        spi: &Spi,
        tables: &mut Tables,
        meta: &Meta,
        attributes: &BTreeMap<String, Json>,
        mode: Mode,
    ) -> Result<Used<()>> {
        let touched = |name: &String| attributes.contains_key(name);
        self.access(spi, tables, meta, &touched, Kind::Write, mode, |tables| {
            // Deferrable constraints are checked with the statement, as the owner: nothing depends on what else is
            // in the transaction, and nothing is left to run as the engine. (Deferring them to the end of the step
            // is impossible: Postgres refuses deferred triggers in a security-restricted operation.)
            spi.utility("SET CONSTRAINTS ALL IMMEDIATE")?;
            tables.update(spi, meta, attributes)
        })
    }

    /// Reads the attributes of a call.
    pub fn read(
        &mut self,
        spi: &Spi,
        tables: &mut Tables,
        meta: &Meta,
        loading: &Loading,
        mode: Mode,
    ) -> Result<Used<LoadedRows>> {
        let touched = |name: &String| loading.wants(name);
        let held = if loading.locks() { Held::Remembered } else { Held::Not };
        self.access(spi, tables, meta, &touched, Kind::Read, mode, |tables| tables.load(spi, meta, loading, held))
    }

    /// Locks the rows that a call has loaded, and reads their versions.
    pub fn lock_rows(
        &mut self,
        spi: &Spi,
        tables: &mut Tables,
        meta: &Meta,
        loading: &Loading,
        mode: Mode,
    ) -> Result<Used<Vec<Option<String>>>> {
        let touched = |name: &String| loading.wants(name);
        self.access(spi, tables, meta, &touched, Kind::Lock, mode, |tables| tables.lock_rows(spi, meta, loading))
    }

    #[allow(clippy::too_many_arguments)]
    fn access<T>(
        &mut self,
        spi: &Spi,
        tables: &mut Tables,
        meta: &Meta,
        touched: &dyn Fn(&String) -> bool,
        kind: Kind,
        mode: Mode,
        body: impl FnOnce(&Tables) -> Result<T>,
    ) -> Result<Used<T>> {
        let mappings: Vec<_> = meta.mapping.iter().filter(|table| table.attributes.keys().any(touched)).collect();
        for table in &mappings {
            if self.is_busy(table.relation) {
                return Ok(Used::Busy(table.relation));
            }
            if self.waited.get(&table.relation).is_some_and(|waits| *waits >= WAITS_PER_TURN) {
                return Ok(Used::Locked);
            }
            if !self.aside && !try_lock_table(table.relation, kind.table_lock()) {
                self.strike(table.relation, SetAside::Locked);
                return Ok(Used::Busy(table.relation));
            }
            if !self.aside {
                tables.look_up(spi, table)?;
            }
        }
        let Some(first) = mappings.first().map(|table| table.relation) else {
            // Nothing of a user's is touched.
            return body(tables).map(Used::Done);
        };
        let limit = if self.aside { ASIDE_TIMEOUT_MS } else { guc::APPLY_TIMEOUT_MS.get() };
        let begun = Instant::now();
        let contended =
            |table: &&TableMapping| self.contended.get(&table.relation).is_some_and(|at| at.elapsed() < CONTENDED_FOR);
        let lock_timeout = match mappings.iter().any(contended) {
            _ if self.aside => Some(ASIDE_LOCK_TIMEOUT),
            true => Some(CONTENDED_LOCK_TIMEOUT),
            false => None,
        };
        let aside = self.aside;
        let in_owners_tables = || {
            // Here the locks are waited for, within the limits; without them a table could change its name.
            for table in mappings.iter().filter(|_| aside) {
                now_in_table(table.relation);
                lock_table(table.relation)?;
                as_engine(|| tables.look_up(spi, table))?;
            }
            body(tables)
        };
        let as_owner = || with_timeout(limit, first, || as_process_owner(meta.owner, lock_timeout, in_owners_tables));
        let result = match mode {
            Mode::Fast => as_owner(),
            Mode::Guarded => guarded(as_owner),
        };
        let error = match result {
            Ok(value) => {
                for table in &mappings {
                    self.went_well(table.relation, kind, begun.elapsed().as_millis());
                }
                return Ok(Used::Done(value));
            }
            Err(error) => error,
        };
        let culprit = in_table();
        let slow = if kind != Kind::Write { SetAside::SlowReads } else { SetAside::SlowWrites };
        let used = match error.code {
            QUERY_CANCELED => {
                self.strike(culprit, slow);
                if self.aside { Used::Refused(error) } else { Used::Busy(culprit) }
            }
            LOCK_NOT_AVAILABLE => {
                self.contended.insert(culprit, Instant::now());
                *self.waited.entry(culprit).or_default() += 1;
                Used::Locked
            }
            DEADLOCK_DETECTED | SERIALIZATION_FAILURE if self.conflict(culprit) => Used::Locked,
            // Whoever raised it: the table is left alone for a while, and everybody else goes on.
            _ if is_server_trouble(&error) => {
                self.strike(culprit, slow);
                Used::Busy(culprit)
            }
            _ => Used::Refused(error),
        };
        // Without a guard the whole transaction is lost: it is made again with guards, knowing what was learnt.
        if mode == Mode::Fast { Err(error_of(used)) } else { Ok(used) }
    }
}

fn error_of<T>(used: Used<T>) -> PgError {
    match used {
        Used::Refused(error) => error,
        Used::Done(_) | Used::Busy(_) | Used::Locked => PgError::internal("a table is busy"),
    }
}

/// Errors that say nothing about the table: no memory, no disk.
fn is_server_trouble(error: &PgError) -> bool {
    let state = error.sqlstate();
    state.starts_with("53") || state.starts_with("58")
}

/// A refusal as a failed attempt of the call.
pub fn refused(error: &PgError) -> Failure {
    let sql_state = error.sqlstate();
    // Of a value that its type refuses, DETAIL says which columns it may be for; others may show rows.
    let more = error.detail.as_deref().filter(|_| sql_state.starts_with("22"));
    let detail = match more {
        Some(more) => format!("{} ({sql_state}): {more}", error.message),
        None => format!("{} ({sql_state})", error.message),
    };
    let error = AppDatabaseError {
        sql_state,
        message: error.message.clone(),
        table: error.table.clone(),
        constraint: error.constraint.clone(),
    };
    Failure { status: None, error_type: Some("AppDatabaseError".to_owned()), detail, app_database_error: Some(error) }
}
