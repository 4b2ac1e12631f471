//! Users' tables in a turn: under a time limit, as the process's owner, and never waited for.

use super::apply::Mode;
use crate::guc;
use crate::pg::catch::{DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE, PgError, QUERY_CANCELED, Result, SERIALIZATION_FAILURE};
use crate::pg::crash;
use crate::pg::identity::{as_engine, as_process_owner};
use crate::pg::spi::Spi;
use crate::pg::subxact::{guarded, in_table, lock_table, now_in_table, try_lock_table, with_timeout};
use crate::store::engine;
use crate::store::load::Meta;
use crate::store::tables::{Held, LoadedRows, Tables};
use pgrx::pg_sys;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::time::Instant;
use xdb_engine::{AppDatabaseError, Failure, Json, Loading, TableMapping};
use xdb_sched::table_health::{Access, Relation, TableHealth, Trouble};

/// Longest time for one step in the lane of tables that are set aside. Short enough to let somebody in who wants to
/// mend the table.
const ASIDE_TIMEOUT_MS: i32 = 5000;

/// Longest wait for a row of a table in which somebody held one a moment ago.
const CONTENDED_LOCK_TIMEOUT: &CStr = c"2ms";

/// Longest wait for a lock in the lane of tables that are set aside: shorter than the time limit, so that a lock is
/// told from a slow statement, and than the second after which sessions look for deadlocks by default.
const ASIDE_LOCK_TIMEOUT: &CStr = c"500ms";

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

/// The lock on a table that is used so.
fn table_lock(access: Access) -> u32 {
    match access {
        Access::Read => pg_sys::AccessShareLock,
        Access::Lock => pg_sys::RowShareLock,
        Access::Write => pg_sys::RowExclusiveLock,
    }
}

/// Users' tables, and which of them are trouble.
pub struct UserTables {
    /// This is the scheduler for tables that are set aside.
    aside: bool,
    pub health: TableHealth,
}

impl UserTables {
    pub fn new(aside: bool) -> Self {
        Self { aside, health: TableHealth::new(aside) }
    }

    /// Writes down what the last turns found out about tables, and takes over what the tables say now.
    pub fn begin(&mut self, spi: &Spi, now: HashMap<Relation, Trouble>) -> Result<()> {
        let changes = self.health.begin(now);
        for (relation, why) in changes.set_aside {
            engine::set_aside(spi, relation, why)?;
            crash::point("turn-set-aside");
            pgrx::log!("xdb: table {relation} is set aside: {}", why.as_str());
        }
        for relation in changes.taken_back {
            engine::take_back(spi, relation)?;
            crash::point("turn-take-back");
            pgrx::log!("xdb: table {relation} is no longer set aside");
        }
        Ok(())
    }

    /// The lane of an execution's calls.
    pub fn lane_of(&self, meta: &Meta) -> i16 {
        i16::from(meta.mapping.iter().any(|table| self.health.is_set_aside(table.relation)))
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
        self.access(spi, tables, meta, &touched, Access::Write, mode, |tables| {
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
        self.access(spi, tables, meta, &touched, Access::Read, mode, |tables| tables.load(spi, meta, loading, held))
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
        self.access(spi, tables, meta, &touched, Access::Lock, mode, |tables| tables.lock_rows(spi, meta, loading))
    }

    #[allow(clippy::too_many_arguments)]
    fn access<T>(
        &mut self,
        spi: &Spi,
        tables: &mut Tables,
        meta: &Meta,
        touched: &dyn Fn(&String) -> bool,
        access: Access,
        mode: Mode,
        body: impl FnOnce(&Tables) -> Result<T>,
    ) -> Result<Used<T>> {
        let mappings: Vec<_> = meta.mapping.iter().filter(|table| table.attributes.keys().any(touched)).collect();
        for table in &mappings {
            if self.health.is_busy(table.relation, Instant::now()) {
                return Ok(Used::Busy(table.relation));
            }
            if !self.health.may_wait(table.relation) {
                return Ok(Used::Locked);
            }
            if !self.aside && !try_lock_table(table.relation, table_lock(access)) {
                self.health.strike(table.relation, Trouble::Locked, Instant::now());
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
        let contended = |table: &&TableMapping| self.health.is_contended(table.relation, begun);
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
                let quick = begun.elapsed().as_millis() < guc::APPLY_TIMEOUT_MS.get() as u128;
                for table in &mappings {
                    self.health.went_well(table.relation, access, quick);
                }
                return Ok(Used::Done(value));
            }
            Err(error) => error,
        };
        let culprit = in_table();
        let slow = if access != Access::Write { Trouble::SlowReads } else { Trouble::SlowWrites };
        let used = match error.code {
            QUERY_CANCELED => {
                self.health.strike(culprit, slow, Instant::now());
                if self.aside { Used::Refused(error) } else { Used::Busy(culprit) }
            }
            LOCK_NOT_AVAILABLE => {
                self.health.row_was_held(culprit, Instant::now());
                Used::Locked
            }
            DEADLOCK_DETECTED | SERIALIZATION_FAILURE if self.health.conflict(culprit) => Used::Locked,
            // Whoever raised it: the table is left alone for a while, and everybody else goes on.
            _ if is_server_trouble(&error) => {
                self.health.strike(culprit, slow, Instant::now());
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
