//! File descriptors that Postgres does not know of: reserved with it, so that it keeps fewer files open itself.

use pgrx::pg_sys;

/// Reservations that are left to others in this process, such as foreign tables in a trigger of a user's.
const LEFT: usize = 8;

/// Descriptors of a reactor itself: what it polls, and what wakes it and the main thread.
const OF_REACTOR: usize = 4;

/// What this process has reserved. On the main thread alone.
#[derive(Default)]
pub struct Descriptors {
    reserved: usize,
}

impl Descriptors {
    /// Reserves what a reactor with so many connections needs, or as much as Postgres grants. Answers with how many connections it
    /// may have: one at least, because one is enough to go on with.
    pub fn reserve_connections(&mut self, wanted: usize) -> usize {
        self.reserve(wanted + OF_REACTOR).saturating_sub(OF_REACTOR).max(1)
    }

    /// Gives back what is reserved for more connections than this.
    pub fn release_connections(&mut self, wanted: usize) {
        self.release(wanted + OF_REACTOR);
    }

    /// Reserves so many, or as many as Postgres grants. Answers with how many are reserved now.
    fn reserve(&mut self, wanted: usize) -> usize {
        // SAFETY: only counts, and closes files that Postgres can open again.
        let acquire = || unsafe { pg_sys::AcquireExternalFD() };
        while self.reserved < wanted && acquire() {
            self.reserved += 1;
        }
        if self.reserved < wanted {
            self.release(self.reserved.saturating_sub(LEFT));
        }
        self.reserved
    }

    /// Gives back what is reserved beyond so many.
    fn release(&mut self, wanted: usize) {
        while self.reserved > wanted {
            // SAFETY: what is given back was acquired.
            unsafe { pg_sys::ReleaseExternalFD() };
            self.reserved -= 1;
        }
    }

    /// As many as this, or none at all and false.
    pub fn reserve_all(&mut self, wanted: usize) -> bool {
        let has_all = self.reserve(wanted) >= wanted;
        if !has_all {
            self.release(0);
        }
        has_all
    }

    /// The most that can be reserved in a process, if nobody else reserves any.
    pub fn most() -> usize {
        // SAFETY: set once, before this process began.
        let safe = unsafe { pg_sys::max_safe_fds };
        (safe.max(0) as usize / 3).saturating_sub(LEFT)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        self.release(0);
    }
}
