//! The application's tables in a turn: used as the owner of the process, and within a budget of time. The scheduler
//! never waits for a table. Functions that answers call, and starts of children, count as tables.
//!
//! A use of a table is a statement or two that read, lock or write rows. All uses of one turn together take at most
//! `xdb.apply_timeout`. Later uses are deferred to the next turn. The first use of a turn may take all of the time. If
//! the time is too short, the part of the turn that comes first changes from turn to turn: see [`xdb_sched::budget`].
//!
//! Limitations: a process whose table is slow for the scheduler waits for a runner.

use super::item::ItemOutcome;
use super::owner_settings::OwnerSettings;
use super::role::Role;
use super::slow_tables::SlowTables;
use super::types::{Mode, Turn};
use crate::calls::{self, CallOf, Facts, Maker, Unfit, Verdict, eligible};
use crate::error;
use crate::pg::catch::{Passing, PgError, QUERY_CANCELED, Result};
use crate::pg::identity::{as_engine, as_function_owner, as_process_owner, clean_session};
use crate::pg::process::as_step_of;
use crate::pg::spi::Spi;
use crate::pg::subxact::{guarded, in_table, lock_table, now_in_table, try_lock_table, with_timeout};
use crate::store::app_functions::FunctionCalls;
use crate::store::app_tables::{Tables, defer_nothing};
use crate::store::loaded::{Loaded, Meta};
use pgrx::pg_sys;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use xdb_engine::{
    Api, AppDatabaseError, ExecutionId, Failure, Json, Loading, LockType, StateExecution, TableMapping, Timestamp,
};
use xdb_sched::budget::{Budget, Parts, TurnPart};
use xdb_sched::table_health::{Access, Relation, TableHealth};

/// The result of using the application's tables.
pub enum TableOutcome<T> {
    Done(T),
    /// The table is locked, slow or in trouble, or was a moment ago. A later turn uses it again.
    Busy(u32),
    /// Another session has locked the row in this table, or a row that the use needs. Only this process is retried
    /// later.
    Locked(u32),
    /// The turn has spent its time in the application's tables. The item is deferred to the next turn.
    OverBudget,
    /// The database refused the use: the attempt fails.
    Refused(PgError),
}

impl<T> TableOutcome<T> {
    pub fn map<U>(self, of: impl FnOnce(T) -> U) -> TableOutcome<U> {
        match self {
            Self::Done(value) => TableOutcome::Done(of(value)),
            Self::Busy(relation) => TableOutcome::Busy(relation),
            Self::Locked(relation) => TableOutcome::Locked(relation),
            Self::OverBudget => TableOutcome::OverBudget,
            Self::Refused(error) => TableOutcome::Refused(error),
        }
    }
}

impl<T> From<TableOutcome<T>> for xdb_calls::Used<T, ItemOutcome> {
    fn from(used: TableOutcome<T>) -> Self {
        Self::Later(match used {
            TableOutcome::Done(value) => return Self::Done(value),
            TableOutcome::Refused(error) => return Self::Refused(refused(&error)),
            TableOutcome::Busy(relation) => ItemOutcome::TableBusy(relation),
            TableOutcome::Locked(relation) => ItemOutcome::RowLocked(relation),
            TableOutcome::OverBudget => ItemOutcome::OverBudget,
        })
    }
}

/// The lock on a table for this kind of use.
fn table_lock(access: Access) -> u32 {
    match access {
        Access::Read => pg_sys::AccessShareLock,
        Access::Lock => pg_sys::RowShareLock,
        Access::Write => pg_sys::RowExclusiveLock,
    }
}

/// What an engine process knows of the application's tables. It outlasts the turns.
#[derive(Default)]
pub struct KnownTables {
    /// Which tables are locked or contended.
    pub health: TableHealth,
    /// Which tables are marked as slow.
    pub slow: SlowTables,
    /// Which part of a turn uses tables first.
    pub parts: Parts,
    /// The settings of owners, for the time that their steps use tables.
    pub settings: OwnerSettings,
}

/// The application's tables, as one turn uses them.
pub struct AppTables<'a> {
    spi: &'a Spi,
    mode: Mode,
    role: Role,
    health: &'a mut TableHealth,
    slow: &'a mut SlowTables,
    parts: &'a mut Parts,
    settings: &'a mut OwnerSettings,
    /// The catalog's description of the used tables. The tables are locked, so it stays true for the transaction.
    tables: Tables,
    budget: Budget,
    /// The current item is the first one in this turn that uses tables.
    is_first: bool,
}

impl<'a> AppTables<'a> {
    /// `answers_rest`: answers get no time in this turn.
    pub fn new(turn: &Turn<'a>, known: &'a mut KnownTables, answers_rest: bool) -> Self {
        let KnownTables { health, slow, parts, settings } = known;
        // A failed turn is applied again without gathering, in the order of the parts. In a pause no calls are made.
        let first = match turn.scope.gather {
            true if answers_rest => parts.begin_rest(),
            true if !turn.paused => parts.begin_turn(),
            _ => TurnPart::Answers,
        };
        Self {
            spi: turn.spi,
            mode: turn.scope.mode,
            role: turn.role,
            health,
            slow,
            parts,
            settings,
            tables: Tables::default(),
            budget: Budget::new(turn.role.time_in_tables(), first),
            is_first: true,
        }
    }

    /// The lane of an execution's calls.
    pub fn lane_of(&self, meta: &Meta) -> i16 {
        self.slow.lane_of(meta)
    }

    /// A table or function of the process that this process of the engine may not use now.
    pub fn kept_from(&self, meta: &Meta) -> Option<Relation> {
        self.slow.find(meta, |object| match self.role.is_last_resort() {
            true => self.slow.is_deadly(object),
            false => self.slow.is_runners(meta.owner, object),
        })
    }

    /// Which process makes a call, and what becomes of the call in this process.
    pub fn verdict<'l>(
        &self,
        loaded: &'l Loaded,
        state: &'l StateExecution,
        api: Api,
        owner: Option<&'l Unfit>,
        now: Timestamp,
    ) -> (Maker, Verdict<'l>) {
        let tables = self.slow.marked(&loaded.meta, state, api);
        let facts = Facts { owner, tables, ..calls::facts(loaded, CallOf::State(state, api), now) };
        eligible(self.role.asker(), &facts)
    }

    /// Runs a function that answers in place of a worker, as the process's owner. `timeout` limits its time, which is
    /// not part of the budget for tables. `lock_timeout` limits each wait for a lock. If it fails, the caller undoes
    /// its writes.
    pub fn in_function<T>(
        &mut self,
        id: ExecutionId,
        meta: &Meta,
        function: Relation,
        (timeout, lock_timeout): (Duration, Duration),
        body: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let own = self.settings.of(self.spi, meta.owner)?;
        let milliseconds = |time: Duration| time.as_millis().clamp(1, i32::MAX as u128) as i32;
        let body = || as_step_of(id.0, body);
        let as_owner = || as_function_owner(meta.owner, &own, milliseconds(lock_timeout), body);
        // No owner is named: its steps are not moved out of the scheduler if the function ends this process. The
        // scheduler calls no functions.
        with_timeout(milliseconds(timeout), function, pg_sys::InvalidOid, as_owner)
    }

    /// Until when a table is or was deferred.
    pub fn busy_until(&self, relation: Relation) -> Option<Instant> {
        self.health.busy_until(relation)
    }

    /// The uses that follow belong to this part of the turn.
    pub fn begin_part(&mut self, part: TurnPart) {
        self.budget.begin_part(part);
    }

    /// The uses that follow belong to another item.
    pub fn next_item(&mut self) {
        self.is_first = self.budget.is_untouched();
    }

    /// Writes the attributes of an answer, starts its children and then calls its functions: all of it, or nothing.
    pub fn write(
        &mut self,
        meta: &Meta,
        attributes: &BTreeMap<String, Json>,
        calls: &FunctionCalls,
    ) -> Result<TableOutcome<()>> {
        let spi = self.spi;
        let touched = |name: &String| attributes.contains_key(name);
        self.access(meta, &touched, &calls.objects(), Access::Write, |tables| {
            defer_nothing(spi)?;
            tables.update(spi, meta, attributes)?;
            calls.run()
        })
    }

    /// Reads the attributes of a call. `lock` is held on their rows until the transaction ends.
    pub fn load(&mut self, meta: &Meta, loading: &Loading, lock: LockType) -> Result<TableOutcome<String>> {
        let spi = self.spi;
        let touched = |name: &String| loading.wants(name);
        let access = if lock == LockType::NoLocking { Access::Read } else { Access::Lock };
        self.access(meta, &touched, &[], access, |tables| tables.load(spi, meta, loading, lock))
    }

    fn access<T>(
        &mut self,
        meta: &Meta,
        touched: &dyn Fn(&String) -> bool,
        called: &[Relation],
        access: Access,
        body: impl FnOnce(&Tables) -> Result<T>,
    ) -> Result<TableOutcome<T>> {
        let mappings: Vec<_> = meta.mapping.iter().filter(|table| table.attributes.keys().any(touched)).collect();
        let functions = || called.iter().copied();
        let Some(first) = mappings.first().map(|table| table.relation).or_else(|| functions().next()) else {
            // Neither a table nor a function of the application is used.
            return body(&self.tables).map(TableOutcome::Done);
        };
        let Some(limit) = self.budget.next_use(self.is_first) else { return Ok(self.had_no_time()) };
        if let Some(used) = self.lock_tables(&mappings, access)?.or_else(|| self.unavailable(functions())) {
            return Ok(used);
        }
        let own = self.settings.of(self.spi, meta.owner)?;
        let began = Instant::now();
        let used = || mappings.iter().map(|table| table.relation).chain(functions());
        let lock_timeout = self.role.lock_timeout(used().any(|object| self.health.is_contended(object, began)));
        let (spi, waits, tables) = (self.spi, self.role.waits_for_tables(), &mut self.tables);
        let in_owners_tables = || {
            // A runner waits for the locks here, within the limits. Without the lock a table could change its name.
            for table in mappings.iter().filter(|_| waits) {
                now_in_table(table.relation);
                lock_table(table.relation)?;
                as_engine(|| tables.look_up(spi, table))?;
            }
            body(tables)
        };
        let limit_ms = limit.as_millis().max(1) as i32;
        let as_owner = || as_process_owner(meta.owner, &own, lock_timeout, in_owners_tables);
        let as_owner = || with_timeout(limit_ms, first, meta.owner, as_owner);
        let result = match self.mode {
            Mode::Fast => as_owner(),
            Mode::Guarded => guarded_use(as_owner),
        };
        self.budget.spent(began.elapsed());
        match result {
            Ok(value) => {
                used().for_each(|object| self.health.went_well(object, access));
                Ok(TableOutcome::Done(value))
            }
            Err(error) => {
                let used = self.judge(error);
                // Without a guard the whole transaction is lost. It is made again with guards, and with what was
                // learnt.
                if self.mode == Mode::Fast { Err(error_of(used)) } else { Ok(used) }
            }
        }
    }

    /// Locks tables if they are free, so that their names and columns stay. Returns what prevents their use.
    fn lock_tables<T>(&mut self, mappings: &[&TableMapping], access: Access) -> Result<Option<TableOutcome<T>>> {
        for table in mappings {
            if let Some(used) = self.unavailable([table.relation].into_iter()) {
                return Ok(Some(used));
            }
            if self.role.waits_for_tables() {
                continue;
            }
            if !try_lock_table(table.relation, table_lock(access)) {
                self.health.defer(table.relation, Instant::now());
                return Ok(Some(TableOutcome::Busy(table.relation)));
            }
            self.tables.look_up(self.spi, table)?;
        }
        Ok(None)
    }

    /// Why one of these tables or functions may not be used now, regardless of its locks.
    fn unavailable<T>(&self, mut objects: impl Iterator<Item = Relation>) -> Option<TableOutcome<T>> {
        objects.find_map(|object| match () {
            () if self.health.is_busy(object, Instant::now()) => Some(TableOutcome::Busy(object)),
            () if !self.health.may_wait(object) => Some(TableOutcome::Locked(object)),
            () => None,
        })
    }

    /// Records that the turn had too little time. A later turn begins with this part.
    fn had_no_time<T>(&mut self) -> TableOutcome<T> {
        self.parts.was_short(self.budget.part());
        TableOutcome::OverBudget
    }

    /// What an error says about the table in which it was raised.
    fn judge<T>(&mut self, error: PgError) -> TableOutcome<T> {
        let culprit = in_table();
        match error.passes(false) {
            // Earlier items have spent the time.
            _ if error.code == QUERY_CANCELED && !self.is_first => self.had_no_time(),
            _ if error.code == QUERY_CANCELED => {
                self.health.defer(culprit, Instant::now());
                if self.role.is_last_resort() {
                    return TableOutcome::Refused(error);
                }
                self.slow.ran_into_limit(culprit);
                TableOutcome::Busy(culprit)
            }
            Some(Passing::Lock) => {
                self.health.row_was_held(culprit, Instant::now());
                TableOutcome::Locked(culprit)
            }
            Some(Passing::Conflict) if self.health.conflict(culprit) => TableOutcome::Locked(culprit),
            // The table is not used for a while, whatever caused the error. The other steps go on.
            Some(Passing::Server) => {
                self.health.defer(culprit, Instant::now());
                TableOutcome::Busy(culprit)
            }
            Some(Passing::Conflict) | None => TableOutcome::Refused(error),
        }
    }
}

/// A use of the application's tables in a subtransaction. If it fails, it leaves nothing behind, and no lock of the
/// session either.
fn guarded_use<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    guarded(body).inspect_err(|_| clean_session())
}

fn error_of<T>(used: TableOutcome<T>) -> PgError {
    match used {
        TableOutcome::Refused(error) => error,
        TableOutcome::Done(_) | TableOutcome::Busy(_) | TableOutcome::Locked(_) | TableOutcome::OverBudget => {
            PgError::internal("a table is busy")
        }
    }
}

/// An error for the history, and what its text ends with.
fn shown(error: &PgError) -> (PgError, String) {
    let error = error::explained(error.clone());
    let end = error.public_detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    (error, end)
}

/// An error of a function as a failed attempt. The SQLSTATE is the type of the failure.
pub fn raised(error: &PgError) -> Failure {
    let (error, end) = shown(error);
    Failure { context: error.functions(), ..Failure::of(error.sqlstate(), format!("{}{end}", error.message)) }
}

/// A refusal as the failed attempt of a call.
pub fn refused(error: &PgError) -> Failure {
    let (error, end) = shown(error);
    let (context, sql_state) = (error.functions(), error.sqlstate());
    let detail = format!("{} ({sql_state}){end}", error.message);
    let error = AppDatabaseError {
        sql_state,
        message: error.message.clone(),
        table: error.table.clone(),
        constraint: error.constraint.clone(),
    };
    Failure { context, app_database_error: Some(error), ..Failure::of("AppDatabaseError", detail) }
}
