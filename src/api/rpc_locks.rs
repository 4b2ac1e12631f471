//! How an RPC locks what it loads: users' rows as its caller and, to be alone with them, the process, as any transaction does.
//!
//! It knows nothing of the locks of states, nor they of its own: a state's optimistic check finds what has changed. But a state whose
//! call was repeated again and again is let go first: the scheduler marks what it wants, and RPCs leave that alone for a while.

use super::{Caller, rpc_deadline};
use crate::pg::catch::Result;
use crate::pg::process;
use crate::pg::shmem::marks;
use crate::pg::subxact::holds_row_locks_in;
use crate::pg::wake::{self, waiter::Registration};
use crate::store::loaded::Meta;
use crate::store::locks::{self, KeyTypes, WantedLocks};
use std::time::Instant;
use xdb_engine::{ExecutionId, Loading, LockType};

/// What an RPC locks, or the answer to a call that was fetched, and how long it may take.
pub(super) struct Locking<'a> {
    pub rpc_name: &'a str,
    pub meta: &'a Meta,
    pub execution: ExecutionId,
    pub global: &'a Loading,
    pub local: &'a Loading,
    pub deadline: Instant,
}

impl Locking<'_> {
    /// Whether anything is loaded under a lock.
    pub fn is_wanted(&self) -> bool {
        self.global.locks() || self.local.locks()
    }

    /// Whether nobody else may drive the process until the transaction ends.
    pub fn excludes(&self) -> bool {
        [self.global, self.local].iter().any(|loading| loading.locks() && loading.lock_type == LockType::Exclusive)
    }

    fn wants(&self, types: &KeyTypes) -> WantedLocks {
        locks::wants(self.meta, self.execution, self.global, self.local, types)
    }

    /// The names of what is locked.
    pub fn names(&self) -> String {
        self.wants(&KeyTypes::default()).names()
    }

    /// Runs `body`, in which locks are waited for until the deadline. `what` says for which.
    pub fn within<T>(&self, what: impl FnOnce(&Self) -> String, body: impl FnOnce() -> Result<T>) -> Result<T> {
        rpc_deadline::locked_by(self.deadline, self.rpc_name, || what(self), body)
    }

    /// Waits until nothing of what is to be locked is marked, for a bounded time. Who has locked something already waits for
    /// nobody: it may be what the state waits for.
    pub fn respect_marks(&self, caller: Caller) -> Result<()> {
        let database = process::database();
        if !marks::are_any(database) || self.holds_locks() {
            return Ok(());
        }
        let wants =
            caller.on_system_tables(|spi, _| Ok(self.wants(&KeyTypes::read(spi, self.meta.mapping.iter())?)))?;
        let until = self.deadline.min(Instant::now() + marks::RESPECTED_FOR);
        while let Some(marked) = wants.objects.iter().find(|wanted| marks::is_marked(database, wanted)) {
            // In this order: a mark that goes after the look wakes this session.
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
