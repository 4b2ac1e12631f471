//! The connection of an engine process to its database, and the frame of each transaction.

use super::catch::{Result, log_error, run_caught};
use super::extension::{self, Installed};
use super::identity::clean_session;
use super::latch;
use super::raw::memory_context;
use super::settings;
use super::shmem::{self, Role, Slot};
use super::spi::{self, Spi};
use pgrx::{check_for_interrupts, pg_sys};
use std::ffi::CStr;

/// Whether a turn can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeginOutcome {
    /// The transaction is open with a snapshot, and the extension is the one that this process was started for.
    Ready,
    /// The extension was dropped: the process ends. No transaction is open.
    Dropped,
    /// The extension was replaced or updated: the process is started again. No transaction is open.
    Changed,
    /// The extension is being altered or dropped: try again soon. No transaction is open.
    Busy,
}

/// An engine process's connection to its database, and the frame of its transactions.
pub struct Session {
    pub database: pg_sys::Oid,
    pub role: Role,
    /// The extension's oid when this process was started.
    pub extension: pg_sys::Oid,
    /// The version of the schema when this process was started.
    pub extension_version: String,
    pub slot: Slot,
    gate: pg_sys::Oid,
    memory: pg_sys::MemoryContext,
}

/// Sets the application name of this process, which `pg_stat_activity` shows.
pub fn report_name(role: Role) {
    let name = match role {
        Role::Scheduler => c"xdb scheduler",
        Role::Runner(_) => c"xdb runner",
    };
    // SAFETY: a C string, copied by the server.
    unsafe { pg_sys::pgstat_report_appname(name.as_ptr()) };
}

/// Shows in `pg_stat_activity` what this process does; `None`: it waits.
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

impl Session {
    /// Reads which extension is installed, in a transaction of its own. None: the extension does not exist.
    pub fn open(slot: Slot, database: pg_sys::Oid, role: Role) -> Option<Session> {
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
            let memory = memory_context(pg_sys::TopMemoryContext, c"xdb turn");
            pg_sys::MemoryContextSwitchTo(memory);
            Some(Session { database, role, extension: oid, extension_version: version, slot, gate, memory })
        }
    }

    /// Opens the transaction of a turn, if the extension exists and is not being changed.
    ///
    /// Frees the memory of the last turn, including allocations made between turns. Never waits for a lock on the
    /// extension. Can raise an error (a catalog that can't be read). Then the transaction is open, and
    /// [`Session::abort`] ends it.
    pub fn begin(&mut self) -> BeginOutcome {
        check_for_interrupts!();
        // SAFETY: no transaction is open. The locks are taken conditionally and released with the transaction; the
        // snapshot is taken after them.
        unsafe {
            pg_sys::MemoryContextSwitchTo(self.memory);
            pg_sys::MemoryContextReset(self.memory);
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            let lock =
                |relation| pg_sys::ConditionalLockRelationOid(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
            let free = lock(pg_sys::ExtensionRelationId) && (self.gate == pg_sys::InvalidOid || lock(self.gate));
            let turn = if !free {
                BeginOutcome::Busy
            } else {
                match extension::installed() {
                    None => BeginOutcome::Dropped,
                    Some(now) if now.oid != self.extension => BeginOutcome::Changed,
                    Some(now) if now.version != self.extension_version => BeginOutcome::Changed,
                    Some(_) => BeginOutcome::Ready,
                }
            };
            if turn == BeginOutcome::Ready {
                pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            } else {
                pg_sys::CommitTransactionCommand();
                pg_sys::MemoryContextSwitchTo(self.memory);
            }
            turn
        }
    }

    /// Commits the transaction of a turn. Can raise an error. Then the transaction is open and failed, and
    /// [`Session::abort`] ends it.
    pub fn commit(&mut self) {
        // SAFETY: `begin` has opened the transaction and pushed the snapshot.
        unsafe {
            if pg_sys::ActiveSnapshotSet() {
                pg_sys::PopActiveSnapshot();
            }
            pg_sys::CommitTransactionCommand();
            clean_session();
            // Without this report, autovacuum does not know what the engine has changed.
            pg_sys::pgstat_report_stat(false);
            pg_sys::MemoryContextSwitchTo(self.memory);
        }
    }

    /// Runs `body` in a transaction of its own. The inner error: the extension is not as it was.
    pub fn transaction<T>(
        &mut self,
        body: impl FnOnce(&Spi) -> Result<T>,
    ) -> Result<std::result::Result<T, BeginOutcome>> {
        let done = run_caught(|| match self.begin() {
            BeginOutcome::Ready => {
                let value = spi::connect(body)?;
                self.commit();
                Ok(Ok(value))
            }
            other => Ok(Err(other)),
        });
        if done.is_err() {
            self.abort();
        }
        done
    }

    /// Runs `body` in a transaction of its own, for work between turns. None: that was not possible, and the caller
    /// tries again.
    pub fn between_turns<T>(&mut self, body: impl FnOnce(&Spi) -> Result<T>) -> Option<T> {
        match self.transaction(body) {
            Ok(done) => done.ok(),
            Err(error) => {
                log_error("a duty of the scheduler failed", &error);
                None
            }
        }
    }

    /// Rolls back the transaction of a turn. Does nothing without a transaction.
    pub fn abort(&mut self) {
        // SAFETY: interrupts are held off, so the abort itself is not interrupted.
        unsafe {
            pg_sys::InterruptHoldoffCount += 1;
            pg_sys::AbortCurrentTransaction();
            clean_session();
            pg_sys::InterruptHoldoffCount -= 1;
            pg_sys::pgstat_report_stat(false);
            pg_sys::MemoryContextSwitchTo(self.memory);
        }
    }

    /// Waits outside of a transaction; see [`latch::WaitSet::wait`]. Statistics are reported before a long wait.
    pub fn wait(&self, wait_set: &latch::WaitSet, timeout_ms: i64) -> latch::Waited {
        if timeout_ms != 0 {
            report_activity(None);
        }
        // SAFETY: no transaction is open.
        unsafe { pg_sys::pgstat_report_stat(!(0..1000).contains(&timeout_ms)) };
        let waited = wait_set.wait(timeout_ms);
        settings::pin_synchronous_commit();
        waited
    }

    /// Asks the launcher for the missing ones of these runners. Wakes the runners with fewer than `at_once` calls in
    /// flight. Call it in each turn of the scheduler.
    pub fn want_runners(&self, wanted: &[Role], at_once: usize) {
        let mut missing = 0;
        for role in wanted {
            match Slot::find(self.database, *role).filter(|slot| slot.phase() == shmem::SlotPhase::Live) {
                Some(slot) if slot.in_flight() >= at_once => {}
                Some(slot) => slot.wake(shmem::Wakeup::Anything),
                None => missing |= 1 << (role.index() - 1),
            }
        }
        self.slot.want_runners(missing);
    }
}
