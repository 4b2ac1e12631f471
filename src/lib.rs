//! XDB: durable processes inside Postgres.
//!
//! `api` holds the SQL functions, `store` all SQL on the system tables, `worker` the processes that run the engine,
//! `http` the calls to workers, and `pg` what touches the server. What is decided, and why, is in the crates
//! `xdb-engine` and `xdb-protocol`, which know nothing of Postgres.

use pgrx::pg_sys;

mod api;
mod clock;
mod error;
mod guc;
pub mod http;
mod pg;
mod store;
mod worker;

::pgrx::pg_module_magic!(name, version);

pgrx::extension_sql_file!("../sql/schema.sql", name = "schema", bootstrap);
pgrx::extension_sql_file!("../sql/tables.sql", name = "tables", requires = ["schema"]);
pgrx::extension_sql_file!("../sql/functions.sql", name = "functions", requires = ["tables"]);
pgrx::extension_sql_file!("../sql/security.sql", name = "security", requires = ["functions"]);
pgrx::extension_sql_file!("../sql/views.sql", name = "views", requires = ["security"]);
pgrx::extension_sql_file!("../sql/dump.sql", name = "dump", requires = ["views"]);
pgrx::extension_sql_file!("../sql/comments.sql", name = "comments", requires = ["dump"], finalize);

/// Called when a process loads the library.
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    guc::define();
    pg::index_plans::register();
    #[cfg(not(feature = "pg18"))]
    pg::constraints::register();
    // SAFETY: flags of the server, set before libraries are loaded.
    let (upgrading, preloading) =
        unsafe { (pg_sys::IsBinaryUpgrade, pg_sys::process_shared_preload_libraries_in_progress) };
    // pg_upgrade moves the files: no process may run, and nothing may be kept out of its way.
    if preloading && !upgrading {
        pg::shmem::register();
        pg::hook::register();
        worker::launcher::register();
    }
}
