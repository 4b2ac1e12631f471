//! XDB: durable processes inside Postgres.
use pgrx::prelude::*;

pub mod guc;
pub mod pg;
mod probe;
pub mod worker;

::pgrx::pg_module_magic!(name, version);

#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    guc::register();
    // SAFETY: flags of the server, set before libraries are loaded.
    let (upgrading, preloading) = unsafe {
        (
            pg_sys::IsBinaryUpgrade,
            pg_sys::process_shared_preload_libraries_in_progress,
        )
    };
    // pg_upgrade moves the files: no process may run, and nothing may be kept out of its way.
    if preloading && !upgrading {
        pg::shmem::register();
        pg::hook::register();
        worker::launcher::register();
    }
}
