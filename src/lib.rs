//! XDB: durable processes inside Postgres.
//!
//! The rooms, from the top down. Imports go downwards only.
//!
//! | room | what lives there |
//! |---|---|
//! | [`api`] | the SQL functions: parse, call, return |
//! | [`scheduler`] | the engine's processes: launcher, schedulers, runners, maintenance |
//! | [`turn`] | one turn of a scheduler or runner, as a pipeline of values |
//! | [`calls`] | a call as a value: a request from an execution, a command from an answer |
//! | [`store`] | all SQL on the system tables, and the SQL made for the application's tables |
//! | [`pg`] | everything that touches the server process: all `unsafe` code |
//! | [`http`] | the transport to HTTP workers. It knows nothing of Postgres |
//! | [`transport`] | the values that a transport such as [`http`] takes and gives back |
//!
//! [`error`], [`guc`] and [`clock`] lie between [`store`] and [`pg`], beside each other. `scripts/lint rooms` checks
//! the order.
//!
//! The crates `xdb-engine` and `xdb-protocol` hold the decisions. The crate `xdb-sched` holds what a scheduler keeps in
//! memory. None of these crates knows Postgres.

mod api;
mod calls;
mod clock;
mod error;
mod guc;
pub mod http;
mod pg;
mod scheduler;
mod store;
mod transport;
mod turn;

::pgrx::pg_module_magic!(name, version);

// The scripts of a new installation. scripts/lib.sh reads this list. Each update runs all of sql/always, in the same
// order.
pgrx::extension_sql_file!("../sql/once/schema.sql", name = "schema", bootstrap);
pgrx::extension_sql_file!("../sql/once/registrations.sql", name = "registrations", requires = ["schema"]);
pgrx::extension_sql_file!("../sql/once/tables.sql", name = "tables", requires = ["registrations"]);
pgrx::extension_sql_file!("../sql/once/global_queues.sql", name = "global_queues", requires = ["tables"]);
pgrx::extension_sql_file!("../sql/always/library.sql", name = "library", requires = ["global_queues"]);
pgrx::extension_sql_file!("../sql/always/functions.sql", name = "functions", requires = ["library"]);
pgrx::extension_sql_file!("../sql/always/views.sql", name = "views", requires = ["functions"]);
pgrx::extension_sql_file!("../sql/always/policies.sql", name = "policies", requires = ["views"]);
pgrx::extension_sql_file!("../sql/always/privileges.sql", name = "privileges", requires = ["policies"], finalize);

/// Defines the settings in each process that loads the library. At server start it also registers shared memory, the
/// utility hook and the launcher.
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    guc::define();
    pg::index_plans::register();
    if pg::process::is_server_start() {
        pg::shmem::register();
        pg::hook::register(api::after_subscription);
        scheduler::launcher::register();
    }
}
