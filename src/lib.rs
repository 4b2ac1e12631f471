//! XDB: durable processes inside Postgres.
//!
//! The rooms, from the top down; imports go downwards only:
//!
//! | room | what lives there |
//! |---|---|
//! | [`api`] | the SQL functions: parse, call, return |
//! | [`scheduler`] | the engine's processes: launcher, schedulers, maintenance |
//! | [`turn`] | one turn of a scheduler, as a pipeline of values |
//! | [`calls`] | a call as a value: request from an execution, answer to a command |
//! | [`store`] | all SQL on the system tables, and what is made for users' tables |
//! | [`pg`] | what touches the server process: everything `unsafe` |
//! | [`http`] | calls to workers. Knows nothing of Postgres |
//! | [`transport`] | what goes to a transport such as [`http`], and what comes back |
//!
//! [`error`], [`guc`] and [`clock`] stand between [`store`] and [`pg`], beside each other. `scripts/lint rooms` holds all this.
//!
//! What is decided, and why, is in the crates `xdb-engine` and `xdb-protocol`; what a scheduler keeps in memory, in
//! `xdb-sched`. None of them knows Postgres.

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

// What a new installation runs. scripts/lib.sh reads this list: each update runs all of sql/always, in the same order.
pgrx::extension_sql_file!("../sql/once/schema.sql", name = "schema", bootstrap);
pgrx::extension_sql_file!("../sql/once/registrations.sql", name = "registrations", requires = ["schema"]);
pgrx::extension_sql_file!("../sql/once/tables.sql", name = "tables", requires = ["registrations"]);
pgrx::extension_sql_file!("../sql/once/global_queues.sql", name = "global_queues", requires = ["tables"]);
pgrx::extension_sql_file!("../sql/always/library.sql", name = "library", requires = ["global_queues"]);
pgrx::extension_sql_file!("../sql/always/functions.sql", name = "functions", requires = ["library"]);
pgrx::extension_sql_file!("../sql/always/views.sql", name = "views", requires = ["functions"]);
pgrx::extension_sql_file!("../sql/always/policies.sql", name = "policies", requires = ["views"]);
pgrx::extension_sql_file!("../sql/always/privileges.sql", name = "privileges", requires = ["policies"], finalize);

/// Called when a process loads the library.
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
