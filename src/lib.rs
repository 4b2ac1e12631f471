//! XDB: durable processes inside Postgres.
use pgrx::prelude::*;

::pgrx::pg_module_magic!(name, version);

#[pg_guard]
pub extern "C-unwind" fn _PG_init() {}
