//! The SQL functions. Each checks the caller and the arguments. The store and the engine do the rest.
//!
//! ```text
//!   SELECT xdb.publish(...)
//!     ▼
//!   pg::function      the edge: arguments, and errors as Postgres raises them
//!     ▼
//!   Caller            is the library preloaded? does the schema fit? are writes allowed here?
//!     ▼
//!   the function      reads and checks the arguments (xdb-protocol), loads, decides (xdb-engine), saves
//!     ├─ on_system_tables ▶ store, as the engine
//!     └─ on_app_tables  ▶ store::app_tables, as the caller
//!     ▼
//!   pg::wake          wakes up engine processes and sessions, once the caller's transaction commits
//! ```
//!
//! | file | functions |
//! |---|---|
//! | `registration.rs` | `register_worker`, `set_worker_secret`, `register_process_type`, and `unregister_…` |
//! | `start.rs`, `bulk.rs`, `merge.rs` | `start_process`, `start_processes`, and starts that are merged |
//! | `schedule.rs` | `schedule` |
//! | `process.rs`, `global.rs` | `publish`, `stop_process`; `publish_global` |
//! | `rpc.rs` | `invoke_rpc` |
//! | `rpc_deadline.rs`, `rpc_locks.rs` | no function: the deadline of an RPC, and its locks |
//! | `rpc_pause.rs`, `rpc_client.rs` | no function: the wait of an RPC for the end of a pause or for locks of its process, and its connection |
//! | `pull.rs`, `pull_claim.rs`, `pull_scan.rs` | `claim_calls`, `complete_call`, `fail_call`, `extend_call` |
//! | `answering.rs` | no function: the driver of `xdb_calls::apply` in a session |
//! | `owners_tables.rs` | no function: how a session uses tables as a process's owner |
//! | `query.rs` | `describe_process`, `wait_for_process`, `wait_for_state`, `get_local_attributes`, `check_process` |
//! | `manage.rs` | `set_local_attributes`, `skip_timer`, `retry_now`, `move_state`, `purge` |
//! | `many.rs` | `stop_process`, `skip_timer` and `retry_now` for an array of process ids |
//! | `pause.rs` | `pause_process`, `resume_process`, and the same for types |
//! | `owners.rs` | `reassign_owned` |
//! | `admin.rs` | `pause_engine`, `resume_engine`, `adopt`, `status`, versions, registered workers and types |
//! | `metrics.rs` | `metrics`, `openmetrics` |
//! | `subscriptions.rs` | no function: which tables a subscription leaves out |
//! | `engine_state.rs` | no function: why the engine does not run, for `status` |
//!
//! Rules:
//! - Everything happens in the caller's transaction. No process is woken up before it commits.
//! - Each function calls one of the constructors of [`Caller`] before it touches a table.
//! - For a caller, processes of other roles do not exist: `Caller::own` decides that in one place.
//! - Functions that wait or call are errors inside the engine ([`Caller::outside_engine`]).
//!
//! Limitations: no SQL text here, and no decisions about processes.

mod admin;
mod answering;
mod bulk;
mod children;
mod engine_state;
mod global;
mod manage;
mod many;
mod merge;
mod metrics;
mod owners;
mod owners_tables;
mod pause;
mod process;
mod pull;
mod pull_claim;
mod pull_scan;
mod query;
mod registration;
mod rpc;
mod rpc_client;
mod rpc_deadline;
mod rpc_locks;
mod rpc_pause;
mod schedule;
mod start;
mod subscriptions;

pub use subscriptions::after_statement as after_subscription;

use crate::error;
use crate::guc;
use crate::pg::catch::{PgError, Result};
use crate::pg::function::Args;
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
use std::collections::BTreeMap;
use std::ffi::CStr;
use xdb_engine::{ExecutionId, Json, TableMapping};
use xdb_protocol::arguments::{self, name, name_if_given, needed};
use xdb_protocol::{PayloadError, is_traceparent, not_a_traceparent};

crate::sql_functions! {
    xdb_register_worker / pg_finfo_xdb_register_worker => registration::register_worker;
    xdb_set_worker_secret / pg_finfo_xdb_set_worker_secret => registration::set_worker_secret;
    xdb_unregister_worker / pg_finfo_xdb_unregister_worker => registration::unregister_worker;
    xdb_register_process_type / pg_finfo_xdb_register_process_type => registration::register_process_type;
    xdb_unregister_process_type / pg_finfo_xdb_unregister_process_type => registration::unregister_process_type;
    xdb_start_process / pg_finfo_xdb_start_process => start::start_process;
    xdb_start_processes / pg_finfo_xdb_start_processes => bulk::start_processes;
    xdb_schedule / pg_finfo_xdb_schedule => schedule::schedule;
    xdb_invoke_rpc / pg_finfo_xdb_invoke_rpc => rpc::invoke_rpc;
    xdb_claim_calls / pg_finfo_xdb_claim_calls => pull::claim_calls;
    xdb_complete_call / pg_finfo_xdb_complete_call => pull::complete_call;
    xdb_fail_call / pg_finfo_xdb_fail_call => pull::fail_call;
    xdb_extend_call / pg_finfo_xdb_extend_call => pull::extend_call;
    xdb_publish / pg_finfo_xdb_publish => process::publish;
    xdb_publish_global / pg_finfo_xdb_publish_global => global::publish_global;
    xdb_stop_process / pg_finfo_xdb_stop_process => process::stop_process;
    xdb_stop_process_many / pg_finfo_xdb_stop_process_many => many::stop_process;
    xdb_describe_process / pg_finfo_xdb_describe_process => query::describe_process;
    xdb_wait_for_process / pg_finfo_xdb_wait_for_process => query::wait_for_process;
    xdb_wait_for_state / pg_finfo_xdb_wait_for_state => query::wait_for_state;
    xdb_set_local_attributes / pg_finfo_xdb_set_local_attributes => manage::set_local_attributes;
    xdb_skip_timer / pg_finfo_xdb_skip_timer => manage::skip_timer;
    xdb_skip_timer_many / pg_finfo_xdb_skip_timer_many => many::skip_timer;
    xdb_pause_process / pg_finfo_xdb_pause_process => pause::pause_process;
    xdb_resume_process / pg_finfo_xdb_resume_process => pause::resume_process;
    xdb_pause_process_type / pg_finfo_xdb_pause_process_type => pause::pause_process_type;
    xdb_resume_process_type / pg_finfo_xdb_resume_process_type => pause::resume_process_type;
    xdb_retry_now / pg_finfo_xdb_retry_now => manage::retry_now;
    xdb_retry_now_many / pg_finfo_xdb_retry_now_many => many::retry_now;
    xdb_move_state / pg_finfo_xdb_move_state => manage::move_state;
    xdb_purge / pg_finfo_xdb_purge => manage::purge;
    xdb_check_process / pg_finfo_xdb_check_process => query::check_process;
    xdb_get_local_attributes / pg_finfo_xdb_get_local_attributes => query::get_local_attributes;
    xdb_pause_engine / pg_finfo_xdb_pause_engine => admin::pause_engine;
    xdb_resume_engine / pg_finfo_xdb_resume_engine => admin::resume_engine;
    xdb_adopt / pg_finfo_xdb_adopt => admin::adopt;
    xdb_reassign_owned / pg_finfo_xdb_reassign_owned => owners::reassign_owned;
    xdb_knows_roles / pg_finfo_xdb_knows_roles => admin::knows_roles;
    xdb_status / pg_finfo_xdb_status => admin::status;
    xdb_library_version / pg_finfo_xdb_library_version => admin::library_version;
    xdb_registered_workers / pg_finfo_xdb_registered_workers => admin::registered_workers;
    xdb_registered_types / pg_finfo_xdb_registered_types => admin::registered_types;
    xdb_process_type_usage / pg_finfo_xdb_process_type_usage => admin::process_type_usage;
    xdb_metrics / pg_finfo_xdb_metrics => metrics::metrics;
    xdb_openmetrics / pg_finfo_xdb_openmetrics => metrics::openmetrics;
}

thread_local! {
    /// Registrations that this session has used, and the oid of the extension that they belong to.
    static REGISTRY: RefCell<(pg_sys::Oid, Registry)> = RefCell::default();
}

/// The role that calls an SQL function.
#[derive(Clone, Copy)]
struct Caller {
    role: pg_sys::Oid,
}

impl Caller {
    /// For functions that read the state of the engine. They must check the schema before they read a table.
    fn looking() -> Result<Self> {
        if !shmem::is_preloaded() {
            return Err(error::not_preloaded());
        }
        Ok(Self { role: identity::current_user() })
    }

    /// For functions that only read.
    fn reading() -> Result<Self> {
        let caller = Self::looking()?;
        versions::check()?;
        Ok(caller)
    }

    /// For functions that need the engine: an error on a standby.
    fn asking() -> Result<Self> {
        let caller = Self::reading()?;
        if pg::process::is_in_recovery() {
            return Err(error::standby());
        }
        Ok(caller)
    }

    /// For functions that write: also an error in a read-only transaction. `function` is for the message.
    fn writing(function: &CStr) -> Result<Self> {
        let caller = Self::asking()?;
        pg::process::refuse_if_read_only(function);
        Ok(caller)
    }

    /// For functions that wait or call: an error in a trigger that fires while the engine applies a step.
    fn outside_engine(self, function: &str) -> Result<Self> {
        if identity::is_engine() { Err(error::inside_engine(function)) } else { Ok(self) }
    }

    /// Runs `body` on the system tables, as the engine.
    fn on_system_tables<T>(self, body: impl FnOnce(&Spi, &mut Registry) -> Result<T>) -> Result<T> {
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
    fn on_app_tables<T>(body: impl FnOnce(&Spi) -> Result<T>) -> Result<T> {
        identity::as_caller(|| Self::connected(body)).map_err(error::explained)
    }

    /// Runs `body`, which calls functions of the application, as the caller.
    fn on_functions<T>(body: impl FnOnce(&Spi) -> Result<T>) -> Result<T> {
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
    fn look_up(
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
    fn look_up_keys(self, tables: &mut Tables, mapping: &[TableMapping], touched: impl Fn(&str) -> bool) -> Result<()> {
        let is_left = |table: &&TableMapping| {
            !table.attributes.is_empty() && !table.attributes.keys().any(|attribute| touched(attribute))
        };
        self.on_system_tables(|spi, _| mapping.iter().filter(is_left).try_for_each(|table| tables.look_up(spi, table)))
    }

    /// Whether this role sees and drives the processes of `owner`.
    fn may_drive(self, owner: pg_sys::Oid) -> Result<bool> {
        Ok(identity::has_privileges_of(self.role, owner) && knows_roles()? || identity::is_administrator(self.role))
    }

    /// An error if the caller may not change, remove or use a registration of `owner`.
    fn own_registration(self, what: &str, name: &str, owner: pg_sys::Oid) -> Result<()> {
        match self.another(owner)? {
            None => Ok(()),
            Some(owner) => Err(error::not_registered_by(what, name, owner.as_deref())),
        }
    }

    /// An error unless the caller is an operator, or a member of the owner of the process type.
    fn operate_type(self, name: &str, owner: pg_sys::Oid) -> Result<()> {
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
    fn find(self, spi: &Spi, process_id: &str, execution: Option<ExecutionId>) -> Result<FoundExecution> {
        self.own(process_id, store::process::find(spi, process_id, execution)?)
    }

    /// The execution, if the caller may see it. Otherwise the same error as for an unknown process.
    fn own(self, process_id: &str, found: Option<FoundExecution>) -> Result<FoundExecution> {
        match found {
            Some(found) if self.may_drive(found.owner)? => Ok(found),
            _ => Err(error::unknown_process(process_id)),
        }
    }
}

/// The type of schedules. A deployer registers it once.
const SCHEDULE: &str = "Schedule";

/// An error if the current function answers a call of this same process: its answer says what becomes of the process.
fn refuse_own_step(execution: ExecutionId, function: &str) -> Result<()> {
    match pg::process::in_step_of() {
        Some(own) if own == execution.0 => Err(error::own_step(function)),
        _ => Ok(()),
    }
}

/// Whether the owners of processes are roles of this server. In a copy from another server, their oids may belong to
/// any role. So until it is adopted, only operators see processes.
fn knows_roles() -> Result<bool> {
    let main = Slot::find(pg::process::database(), Role::Scheduler);
    match main.map(Slot::state) {
        Some(EngineState::Running | EngineState::Paused) => Ok(true),
        _ => Ok(spi::connect(instance::ownership)?.knows_roles()),
    }
}

/// The caller's name, which rows keep beside the oid.
fn owner_name(caller: Caller) -> Result<String> {
    identity::role_name(caller.role)?.ok_or_else(|| PgError::internal("the current role no longer exists"))
}

/// The trace context of the session, if it is set.
fn session_traceparent() -> Result<Option<String>> {
    let text = guc::text(&guc::TRACEPARENT);
    if !text.is_empty() && !is_traceparent(&text) {
        return Err(error::invalid_argument("xdb.traceparent", not_a_traceparent(&text)));
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Call it after each write. Wakes up the engine at commit. Until then, functions of this session that wait are errors.
fn wrote() {
    wake::note_uncommitted_write();
    wake::call_scheduler_at_commit();
}

/// Memory for parsed JSON in small parts, in bytes for each byte of the text.
const PARSED: usize = 10;

/// The text of a `jsonb` argument, at most as large as a request to a worker.
fn json(args: &Args, number: usize, name: &str) -> Result<Option<String>> {
    json_of(args, number, name, guc::max_request_bytes())
}

fn json_of(args: &Args, number: usize, name: &str, most: usize) -> Result<Option<String>> {
    let text = args.json(number, most)?;
    if let Ok(Some(text)) = &text {
        pg::memory::room_for(text.len().saturating_mul(PARSED))?;
    }
    text.map_err(|bytes| error::payload(name, PayloadError::TooLarge { bytes, max: most }))
}

/// A payload from a caller. SQL NULL and JSON null both mean none.
fn payload(name: &str, text: Option<String>) -> Result<Option<Json>> {
    Ok(arguments::payload(name, text.as_deref(), guc::max_payload_bytes())?)
}

/// A JSON object of payloads.
fn object(argument: &str, text: Option<String>) -> Result<BTreeMap<String, Json>> {
    Ok(arguments::payloads(argument, text.as_deref(), guc::max_payload_bytes())?)
}
