//! An engine process and its database: the connection, and the frame of each transaction.

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

/// Whether a turn may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The transaction is open, with a snapshot, and the extension is the one this process was started for.
    Ready,
    /// The extension has been dropped: the scheduler ends. No transaction is open.
    Gone,
    /// The extension has been replaced or updated: the scheduler is started again. No transaction is open.
    Changed,
    /// Somebody is altering or dropping the extension: try again soon. No transaction is open.
    Busy,
}

/// The connection of an engine process to its database, and the frame of its transactions.
pub struct Session {
    pub database: pg_sys::Oid,
    pub role: Role,
    /// The extension this process was started for.
    pub extension: pg_sys::Oid,
    /// Version of the schema this process was started for.
    pub extension_version: String,
    pub slot: Slot,
    gate: pg_sys::Oid,
    memory: pg_sys::MemoryContext,
}

pub fn report_name(role: Role) {
    let name = match role {
        Role::Scheduler => c"xdb scheduler",
        Role::Runner(_) => c"xdb runner",
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

impl Session {
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

    /// Opens the transaction of a turn, if the extension is there and nobody is at work on it.
    ///
    /// The memory of the turn before, in which everything is allocated between turns too, is given back. Never waits for a lock
    /// on the extension. Can raise an error (a catalog that can't be read): then the transaction is open and
    /// [`Session::abort`] ends it.
    pub fn begin(&mut self) -> Begun {
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
                Begun::Busy
            } else {
                match extension::installed() {
                    None => Begun::Gone,
                    Some(now) if now.oid != self.extension => Begun::Changed,
                    Some(now) if now.version != self.extension_version => Begun::Changed,
                    Some(_) => Begun::Ready,
                }
            };
            if turn == Begun::Ready {
                pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            } else {
                pg_sys::CommitTransactionCommand();
                pg_sys::MemoryContextSwitchTo(self.memory);
            }
            turn
        }
    }

    /// Commits the transaction of a turn. Can raise an error; then the transaction is open and failed, and
    /// [`Session::abort`] ends it.
    pub fn commit(&mut self) {
        // SAFETY: `begin` has opened the transaction and pushed the snapshot.
        unsafe {
            if pg_sys::ActiveSnapshotSet() {
                pg_sys::PopActiveSnapshot();
            }
            pg_sys::CommitTransactionCommand();
            clean_session();
            // Without it autovacuum never hears of what the engine changes.
            pg_sys::pgstat_report_stat(false);
            pg_sys::MemoryContextSwitchTo(self.memory);
        }
    }

    /// Runs `body` in a transaction of its own; if the extension is not as it was, says so instead.
    pub fn transaction<T>(&mut self, body: impl FnOnce(&Spi) -> Result<T>) -> Result<std::result::Result<T, Begun>> {
        let done = run_caught(|| match self.begin() {
            Begun::Ready => {
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

    /// The same between turns, for what an engine process does besides. None when that was not possible: it is tried again.
    pub fn between_turns<T>(&mut self, body: impl FnOnce(&Spi) -> Result<T>) -> Option<T> {
        match self.transaction(body) {
            Ok(done) => done.ok(),
            Err(error) => {
                log_error("the scheduler could not look after itself", &error);
                None
            }
        }
    }

    /// Ends the transaction of a turn that failed, or that shall leave nothing. Does nothing without one.
    pub fn abort(&mut self) {
        // SAFETY: interrupts are held off, so that the abort is not itself interrupted.
        unsafe {
            pg_sys::InterruptHoldoffCount += 1;
            pg_sys::AbortCurrentTransaction();
            clean_session();
            pg_sys::InterruptHoldoffCount -= 1;
            pg_sys::pgstat_report_stat(false);
            pg_sys::MemoryContextSwitchTo(self.memory);
        }
    }

    /// Waits, outside a transaction; see [`latch::WaitSet::wait`]. Statistics are handed over before a long wait.
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

    /// Sees to it that these runners run, and that those with less than `at_once` calls under way look for more. To be called
    /// in each turn of the scheduler.
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
