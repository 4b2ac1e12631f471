//! The life of an engine process, a scheduler or a runner, from the launcher's request to its exit.
//!
//! Exit codes: 0 if there is nothing to run or the process was asked to leave, 1 for "start me again". Any other code
//! would make the postmaster restart the whole cluster. The launcher restarts these processes, and the postmaster never
//! does.
use super::main_loop;
use crate::pg::catch::{log_error, run_caught};
use crate::pg::session::{self, Session};
use crate::pg::shmem::{self, ExitReason, Slot};
use crate::pg::{crash, process};
use pgrx::{pg_guard, pg_sys};

/// Entry point of a scheduler or runner.
#[unsafe(no_mangle)]
#[pg_guard]
pub extern "C-unwind" fn xdb_scheduler_main(argument: pg_sys::Datum) {
    let Some(slot) = process::claim_slot(argument) else {
        // The launcher has given up this start, and may have made another one.
        return;
    };
    let reason = live(slot);
    slot.set_exit_reason(reason);
    process::exit((reason == ExitReason::Restart).into());
}

fn live(slot: Slot) -> ExitReason {
    let (database, role) = (slot.database(), slot.role());
    if shmem::blocked_until(database).is_some() {
        return ExitReason::Left;
    }
    process::connect(database);
    session::report_name(role);
    crash::point("connected");
    match run_caught(|| Ok(Session::open(slot, database, role))) {
        Ok(Some(mut session)) => main_loop::run(&mut session),
        Ok(None) => ExitReason::Dropped,
        // The process ends, and its transaction with it.
        Err(error) => {
            slot.record_error(&error.to_string());
            log_error("an engine process can't read the extension", &error);
            ExitReason::Restart
        }
    }
}
