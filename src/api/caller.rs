//! The role that calls an SQL function: whether it may call here, what it sees, and as whom statements run.
//!
//! Limitations: no arguments, and no tables of its own.

use crate::error;
use crate::guc;
use crate::pg::catch::{PgError, Result};
use crate::pg::identity::TableUse;
use crate::pg::shmem::{self, EngineState, Role, Slot};
use crate::pg::spi::{self, Spi};
use crate::pg::subxact::lock_table;
use crate::pg::{self, extension, identity, wake};
use crate::store::app_tables::{Tables, defer_nothing};
use crate::store::instance;
use crate::store::process::FoundExecution;
use crate::store::registry::Registry;
use crate::store::{self, versions};
use pgrx::pg_sys;
use std::cell::RefCell;
use std::ffi::CStr;
use xdb_engine::{ExecutionId, TableMapping};
use xdb_protocol::{is_traceparent, not_a_traceparent};

thread_local! {
    /// Registrations that this session has used, and the oid of the extension that they belong to.
    static REGISTRY: RefCell<(pg_sys::Oid, Registry)> = RefCell::default();
}

/// The role that calls an SQL function.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub role: pg_sys::Oid,
}

impl Caller {
    /// For functions that read the state of the engine. They must check the schema before they read a table.
    pub fn looking() -> Result<Self> {
        if !shmem::is_preloaded() {
            return Err(error::not_preloaded());
        }
        Ok(Self { role: identity::current_user() })
    }

    /// For functions that only read.
    pub fn reading() -> Result<Self> {
        let caller = Self::looking()?;
        versions::check()?;
        Ok(caller)
    }

    /// For functions that need the engine: an error on a standby.
    pub fn asking() -> Result<Self> {
        let caller = Self::reading()?;
        if pg::process::is_in_recovery() {
            return Err(error::standby());
        }
        Ok(caller)
    }

    /// For functions that write: also an error in a read-only transaction. `function` is for the message.
    pub fn writing(function: &CStr) -> Result<Self> {
        let caller = Self::asking()?;
        pg::process::refuse_if_read_only(function);
        Ok(caller)
    }

    /// For functions that wait or call: an error in a trigger that fires while the engine applies a step.
    pub fn outside_engine(self, function: &str) -> Result<Self> {
        if identity::is_engine() { Err(error::inside_engine(function)) } else { Ok(self) }
    }

    /// Runs `body` on the system tables, as the engine.
    pub fn on_system_tables<T>(self, body: impl FnOnce(&Spi, &mut Registry) -> Result<T>) -> Result<T> {
        let extension = extension::current();
        let result = REGISTRY.with_borrow_mut(|(of, registry)| {
            if *of != extension {
                // After DROP and CREATE EXTENSION, ids begin again.
                (*of, *registry) = (extension, Registry::default());
            }
            identity::as_engine(|| spi::connect(|spi| body(spi, registry)))
        });
        // The place in the engine's own SQL would not help the caller.
        result.map_err(PgError::without_place)
    }

    /// Runs `body` on the application's tables, as the caller.
    pub fn on_app_tables<T>(body: impl FnOnce(&Spi) -> Result<T>) -> Result<T> {
        identity::as_caller(|| Self::connected(body)).map_err(error::explained)
    }

    /// Runs `body`, which calls functions of the application, as the caller.
    pub fn on_functions<T>(body: impl FnOnce(&Spi) -> Result<T>) -> Result<T> {
        identity::as_caller_of_function(|| Self::connected(body)).map_err(error::explained)
    }

    /// Runs `body` as the current user. If Postgres refuses deferred triggers here, constraints are checked
    /// immediately.
    fn connected<T>(body: impl FnOnce(&Spi) -> Result<T>) -> Result<T> {
        spi::connect(|spi| {
            if identity::is_restricted() {
                defer_nothing(spi)?;
            }
            body(spi)
        })
    }

    /// Looks up the tables that have one of these attributes, and locks their definitions until the transaction ends.
    /// If the role may not use one of them in this way, that is an error, and this table is not locked.
    pub fn look_up(
        self,
        tables: &mut Tables,
        mapping: &[TableMapping],
        how: TableUse,
        touched: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let touches = |table: &&TableMapping| table.attributes.keys().any(|attribute| touched(attribute));
        self.on_system_tables(|spi, _| {
            mapping.iter().filter(touches).try_for_each(|table| {
                if !identity::may_use_table(self.role, table.relation, how)? {
                    let name = identity::table_name(table.relation);
                    return Err(error::table_denied(name.as_deref().unwrap_or(&table.table)));
                }
                lock_table(table.relation)?;
                tables.look_up(spi, table)
            })
        })
    }

    /// Looks up the other tables that have attributes, for the types of their keys. This needs no lock.
    pub fn look_up_keys(
        self,
        tables: &mut Tables,
        mapping: &[TableMapping],
        touched: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let is_left = |table: &&TableMapping| {
            !table.attributes.is_empty() && !table.attributes.keys().any(|attribute| touched(attribute))
        };
        self.on_system_tables(|spi, _| mapping.iter().filter(is_left).try_for_each(|table| tables.look_up(spi, table)))
    }

    /// Whether this role sees and drives the processes of `owner`.
    pub fn may_drive(self, owner: pg_sys::Oid) -> Result<bool> {
        Ok(identity::has_privileges_of(self.role, owner) && knows_roles()? || identity::is_administrator(self.role))
    }

    /// An error if the caller may not change, remove or use a registration of `owner`.
    pub fn own_registration(self, what: &str, name: &str, owner: pg_sys::Oid) -> Result<()> {
        match self.another(owner)? {
            None => Ok(()),
            Some(owner) => Err(error::not_registered_by(what, name, owner.as_deref())),
        }
    }

    /// An error unless the caller is an operator, or a member of the owner of the process type.
    pub fn operate_type(self, name: &str, owner: pg_sys::Oid) -> Result<()> {
        match if identity::is_administrator(self.role) { None } else { self.another(owner)? } {
            None => Ok(()),
            Some(owner) => Err(error::not_of_operator(name, owner.as_deref())),
        }
    }

    /// None if the caller may change a registration of `owner`. Otherwise the name of the owner, if the role exists.
    fn another(self, owner: pg_sys::Oid) -> Result<Option<Option<String>>> {
        let known = knows_roles()?;
        if identity::is_superuser(self.role) || known && identity::has_privileges_of(self.role, owner) {
            return Ok(None);
        }
        Ok(Some(if known { identity::role_name(owner)? } else { None }))
    }

    /// The latest execution of a process id, or the named one, if the caller may see it.
    pub fn find(self, spi: &Spi, process_id: &str, execution: Option<ExecutionId>) -> Result<FoundExecution> {
        self.own(process_id, store::process::find(spi, process_id, execution)?)
    }

    /// The execution, if the caller may see it. Otherwise the same error as for an unknown process.
    pub fn own(self, process_id: &str, found: Option<FoundExecution>) -> Result<FoundExecution> {
        match found {
            Some(found) if self.may_drive(found.owner)? => Ok(found),
            _ => Err(error::unknown_process(process_id)),
        }
    }
}

/// An error if the current function answers a call of this same process: its answer says what becomes of the process.
pub(super) fn refuse_own_step(execution: ExecutionId, function: &str) -> Result<()> {
    match pg::process::in_step_of() {
        Some(own) if own == execution.0 => Err(error::own_step(function)),
        _ => Ok(()),
    }
}

/// Whether the owners of processes are roles of this server. In a copy from another server, their oids may belong to
/// any role. So until it is adopted, only operators see processes.
pub(super) fn knows_roles() -> Result<bool> {
    let main = Slot::find(pg::process::database(), Role::Scheduler);
    match main.map(Slot::state) {
        Some(EngineState::Running | EngineState::Paused) => Ok(true),
        _ => Ok(spi::connect(instance::ownership)?.knows_roles()),
    }
}

/// The caller's name, which rows keep beside the oid.
pub(super) fn owner_name(caller: Caller) -> Result<String> {
    identity::role_name(caller.role)?.ok_or_else(|| PgError::internal("the current role no longer exists"))
}

/// The trace context of the session, if it is set.
pub(super) fn session_traceparent() -> Result<Option<String>> {
    let text = guc::text(&guc::TRACEPARENT);
    if !text.is_empty() && !is_traceparent(&text) {
        return Err(error::invalid_argument("xdb.traceparent", not_a_traceparent(&text)));
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Call it after each write. Wakes up the engine at commit. Until then, functions of this session that wait are errors.
pub(super) fn wrote() {
    wake::note_uncommitted_write();
    wake::call_scheduler_at_commit();
}
