//! The life of a scheduler process, from the launcher's request to its exit; and the frame of one turn.
//!
//! Exit codes: 0 when there is nothing to run or the process was asked to leave, 1 for "start me again". Any other code would
//! make the postmaster restart the whole cluster. The postmaster itself never restarts a scheduler: the launcher does.
use super::{scheduler, settings};
use crate::pg::extension::{self, Installed};
use crate::pg::shmem::{self, EngineState, ExitReason, Lane, Slot, call};
use crate::pg::{compat, crash, latch, raw};
use pgrx::{check_for_interrupts, pg_guard, pg_sys};
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

/// How a scheduler's run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The extension is not there any more, or this lane has nothing left to do: don't start again until asked.
    Gone,
    /// Something has changed that a new process shall take up.
    Restart,
    /// [`Context::asked_to_leave`] was true.
    Left,
}

/// Whether a turn may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The transaction is open, with a snapshot, and the extension is the one this process was started for.
    Ready,
    /// The extension has been dropped: end with [`Exit::Gone`]. No transaction is open.
    Gone,
    /// The extension has been replaced or updated: end with [`Exit::Restart`]. No transaction is open.
    Changed,
    /// Somebody is altering or dropping the extension: try again soon. No transaction is open.
    Busy,
}

/// What a scheduler knows about itself.
pub struct Context {
    pub database: pg_sys::Oid,
    pub lane: Lane,
    /// The extension this process was started for.
    pub extension: pg_sys::Oid,
    /// Version of the schema this process was started for.
    pub extension_version: String,
    pub slot: Slot,
    gate: pg_sys::Oid,
    memory: pg_sys::MemoryContext,
}

/// Installs the handlers that every process of the engine has, and lets signals in.
///
/// SIGTERM interrupts the statement that runs and ends the process at its next check for interrupts.
pub(super) fn accept_signals() {
    // SAFETY: both handlers are the server's own, without pgrx's boundary, and safe in a signal.
    unsafe {
        compat::pqsignal(pg_sys::SIGTERM as c_int, Some(raw::die));
        compat::pqsignal(pg_sys::SIGHUP as c_int, Some(raw::SignalHandlerForConfigReload));
        pg_sys::BackgroundWorkerUnblockSignals();
        // A SIGHUP that came before the handler was there has been lost.
        pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
    }
}

/// Entry point of a scheduler process.
#[unsafe(no_mangle)]
#[pg_guard]
pub extern "C-unwind" fn xdb_scheduler_main(argument: pg_sys::Datum) {
    let Some(slot) = Slot::claim(argument.value() as u64) else {
        // The launcher has given this start up, and may have made another.
        return;
    };
    // SAFETY: signals are still blocked, so nothing comes between the claim and this registration. The callback runs after the
    // process has left the process array, because it is registered before the process has entered it: who sees the slot empty
    // finds no connection.
    unsafe { pg_sys::on_shmem_exit(Some(at_exit), argument) };
    let exit = live(slot);
    let (reason, code) = match exit {
        Exit::Gone => (ExitReason::Gone, 0),
        Exit::Left => (ExitReason::Left, 0),
        Exit::Restart => (ExitReason::Restart, 1),
    };
    slot.set_exit_reason(reason);
    // SAFETY: ends the process in the server's way. No destructor is pending.
    unsafe { pg_sys::proc_exit(code) };
}

unsafe extern "C-unwind" fn at_exit(_code: c_int, argument: pg_sys::Datum) {
    let index = (argument.value() & 0xff) as u8;
    if let Some(slot) = Slot::by_index(index) {
        call::reset_lane(slot.database(), slot.lane());
        slot.vacate();
    }
}

static IS_ENGINE: AtomicBool = AtomicBool::new(false);

/// Whether this process is a scheduler: then what runs here runs inside the engine.
pub fn is_engine() -> bool {
    IS_ENGINE.load(Ordering::Relaxed)
}

fn live(slot: Slot) -> Exit {
    IS_ENGINE.store(true, Ordering::Relaxed);
    let (database, lane) = (slot.database(), slot.lane());
    if shmem::held_until(database).is_some() {
        return Exit::Left;
    }
    settings::pin_before_connection();
    keep_memory();
    accept_signals();
    // SAFETY: the first and only connection of this process; without a user it is the superuser of the cluster.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, 0);
    }
    settings::pin_after_connection();
    report_name(lane);
    crash::point("connected");
    let Some(mut context) = Context::open(slot, database, lane) else {
        return Exit::Gone;
    };
    scheduler::run(&mut context)
}

/// Keeps what a turn has freed for the next one, up to this. By itself the C library gives it back to the system after each
/// turn, and the next turn waits for every page of it to be given again and emptied.
const MEMORY_KEPT: c_int = 16 << 20;

/// Allocations of this size or larger are given back as soon as they are freed all the same.
const GIVEN_BACK: c_int = 4 << 20;

fn keep_memory() {
    // SAFETY: the options of the C library's allocator, in the one thread that there is yet.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, MEMORY_KEPT);
        libc::mallopt(libc::M_MMAP_THRESHOLD, GIVEN_BACK);
    }
}

fn report_name(lane: Lane) {
    let name = match lane {
        Lane::Main => c"xdb scheduler",
        Lane::SetAside => c"xdb set-aside scheduler",
    };
    // SAFETY: a C string, copied by the server.
    unsafe { pg_sys::pgstat_report_appname(name.as_ptr()) };
}

/// Shows in `pg_stat_activity` what this process does; `None` means that it waits.
pub fn report_activity(doing: Option<&CStr>) {
    // SAFETY: a C string or null, copied by the server.
    unsafe {
        match doing {
            Some(text) => pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, text.as_ptr()),
            None => {
                pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null());
            }
        }
    }
}

impl Context {
    fn open(slot: Slot, database: pg_sys::Oid, lane: Lane) -> Option<Context> {
        // SAFETY: a short transaction of this process; the memory context lives as long as the process.
        unsafe {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let installed = extension::installed();
            let gate = extension::gate_table();
            pg_sys::PopActiveSnapshot();
            pg_sys::CommitTransactionCommand();
            let Installed { oid, version } = installed?;
            let memory = pg_sys::AllocSetContextCreateInternal(
                pg_sys::TopMemoryContext,
                c"xdb turn".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            );
            pg_sys::MemoryContextSwitchTo(memory);
            Some(Context { database, lane, extension: oid, extension_version: version, slot, gate, memory })
        }
    }

    /// Opens the transaction of a turn, if the extension is there and nobody is at work on it.
    ///
    /// The memory of the turn before, in which everything is allocated between turns too, is given back. Never waits for a lock
    /// on the extension. Can raise an error (a catalog that can't be read): then the transaction is open and
    /// [`Context::abort_turn`] ends it.
    pub fn begin_turn(&mut self) -> Turn {
        check_for_interrupts!();
        // SAFETY: no transaction is open. The locks are taken conditionally and released with the transaction; the snapshot is
        // taken after them.
        unsafe {
            pg_sys::MemoryContextSwitchTo(self.memory);
            pg_sys::MemoryContextReset(self.memory);
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            let lock =
                |relation| pg_sys::ConditionalLockRelationOid(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
            let free = lock(pg_sys::ExtensionRelationId) && (self.gate == pg_sys::InvalidOid || lock(self.gate));
            let turn = if !free {
                Turn::Busy
            } else {
                match extension::installed() {
                    None => Turn::Gone,
                    Some(now) if now.oid != self.extension => Turn::Changed,
                    Some(now) if now.version != self.extension_version => Turn::Changed,
                    Some(_) => Turn::Ready,
                }
            };
            if turn == Turn::Ready {
                pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            } else {
                pg_sys::CommitTransactionCommand();
                pg_sys::MemoryContextSwitchTo(self.memory);
            }
            turn
        }
    }

    /// Commits the transaction of a turn. Can raise an error; then the transaction is open and failed, and
    /// [`Context::abort_turn`] ends it.
    pub fn commit_turn(&mut self) {
        // SAFETY: `begin_turn` has opened the transaction and pushed the snapshot.
        unsafe {
            if pg_sys::ActiveSnapshotSet() {
                pg_sys::PopActiveSnapshot();
            }
            pg_sys::CommitTransactionCommand();
            // Without it autovacuum never hears of what the engine changes.
            pg_sys::pgstat_report_stat(false);
            pg_sys::MemoryContextSwitchTo(self.memory);
        }
    }

    /// Ends the transaction of a turn that failed, or that shall leave nothing. Does nothing without one.
    pub fn abort_turn(&mut self) {
        // SAFETY: interrupts are held off, so that the abort is not itself interrupted.
        unsafe {
            pg_sys::InterruptHoldoffCount += 1;
            pg_sys::AbortCurrentTransaction();
            pg_sys::InterruptHoldoffCount -= 1;
            pg_sys::pgstat_report_stat(false);
            pg_sys::MemoryContextSwitchTo(self.memory);
        }
    }

    /// Waits, outside a transaction; see [`latch::Waiter::wait`]. Statistics are handed over before a long wait.
    pub fn wait(&self, waiter: &latch::Waiter, timeout_ms: i64) -> latch::Woken {
        if timeout_ms != 0 {
            report_activity(None);
        }
        // SAFETY: no transaction is open.
        unsafe { pg_sys::pgstat_report_stat(!(0..1000).contains(&timeout_ms)) };
        let woken = waiter.wait(timeout_ms);
        settings::pin_synchronous_commit();
        woken
    }

    /// Whether this process shall end with [`Exit::Left`] (the engine is switched off, or a statement needs the database for
    /// itself) or, in the set-aside lane, with [`Exit::Gone`]. It is ended soon if it doesn't.
    pub fn asked_to_leave(&self) -> bool {
        self.slot.asked_to_leave()
    }

    /// Sees to it that the set-aside scheduler runs and looks at its work. To be called again while there is work for it.
    pub fn request_set_aside(&self) {
        match Slot::find(self.database, Lane::SetAside) {
            Some(slot) if slot.phase() == shmem::Phase::Live => slot.wake(shmem::News::ANY),
            _ if self.slot.open_lane_request().is_none() => self.slot.request_lane(),
            _ => {}
        }
    }

    /// Shows what the engine is doing.
    pub fn set_state(&self, state: EngineState) {
        if self.slot.state() != state {
            self.slot.set_state(state);
        }
    }
}
