//! The locks of an RPC on what it loads: rows of the application, as its caller. If the locks are exclusive, the RPC
//! also locks the process, like any other transaction.
//!
//! Limitations: RPCs and the scheduler don't know each other's locks. The optimistic check of a state finds conflicts.
//! If a state's call was repeated several times because of conflicts, the scheduler marks what it wants to lock. Then
//! RPCs avoid the marked objects for a while.

use super::caller::Caller;
use super::rpc_deadline;
use crate::calls::Loads;
use crate::pg::catch::Result;
use crate::pg::process;
use crate::pg::shmem::marks;
use crate::pg::subxact::holds_row_locks_in;
use crate::pg::wake::{self, waiter::Registration};
use crate::store::loaded::Meta;
use crate::store::locks::{self, KeyTypes, WantedLocks};
use std::time::Instant;
use xdb_engine::{ExecutionId, LockType};

/// What an RPC locks, and until when it may wait. Also used for the answer of a pull worker.
pub(super) struct Locking<'a> {
    pub rpc_name: &'a str,
    pub meta: &'a Meta,
    pub execution: ExecutionId,
    pub loads: &'a Loads,
    pub deadline: Instant,
}

impl Locking<'_> {
    /// Whether no other transaction may drive the process until this one ends.
    pub fn excludes(&self) -> bool {
        let Loads { global, local } = self.loads;
        [global, local].iter().any(|loading| loading.locks() && loading.lock_type == LockType::Exclusive)
    }

    fn wants(&self, types: &KeyTypes) -> WantedLocks {
        locks::wants(self.meta, self.execution, self.loads, types)
    }

    /// The names of the locked objects.
    pub fn names(&self) -> String {
        self.wants(&KeyTypes::default()).names()
    }

    /// Runs `body`, which waits for locks until the deadline. `what` names the locks for an error.
    pub fn within<T>(&self, what: impl FnOnce(&Self) -> String, body: impl FnOnce() -> Result<T>) -> Result<T> {
        rpc_deadline::locked_by(self.deadline, self.rpc_name, || what(self), body)
    }

    /// Waits until none of the wanted objects is marked, for a limited time. A transaction that already has locks does
    /// not wait: the marking state may wait for these locks.
    pub fn respect_marks(&self, caller: Caller) -> Result<()> {
        let database = process::database();
        if !marks::are_any(database) || self.holds_locks() {
            return Ok(());
        }
        let wants =
            caller.on_system_tables(|spi, _| Ok(self.wants(&KeyTypes::read(spi, self.meta.mapping.iter())?)))?;
        let until = self.deadline.min(Instant::now() + marks::RESPECTED_FOR);
        while let Some(marked) = wants.objects.iter().find(|wanted| marks::is_marked(database, wanted)) {
            // Register before the check: if a mark is removed after the check, this session is woken up.
            let place = Registration::register(&marked.0);
            while marks::is_marked(database, marked) {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(());
                }
                place.wait(left.as_millis() as i64 + 1);
            }
        }
        Ok(())
    }

    fn holds_locks(&self) -> bool {
        let mut tables = self.meta.mapping.iter();
        wake::has_locked_anything() || tables.any(|table| holds_row_locks_in(table.relation))
    }
}
