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
//! | `caller.rs`, `arguments.rs` | no function: the role that calls, and JSON arguments |
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
//! - Each function calls one of the constructors of `Caller` before it touches a table.
//! - For a caller, processes of other roles do not exist: `Caller::own` decides that in one place.
//! - Functions that wait or call are errors inside the engine (`Caller::outside_engine`).
//!
//! Limitations: no SQL text here, and no decisions about processes.

mod admin;
mod answering;
mod arguments;
mod bulk;
mod caller;
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
