//! Reserves file descriptors in Postgres. Postgres does not know the reactor's descriptors, so it must keep fewer files
//! open itself.

use pgrx::pg_sys;

/// Reservations kept free for other code in this process, such as foreign tables in a trigger of the application.
const LEFT: usize = 8;

/// Descriptors that a reactor itself needs: for polling, and to wake it and the main thread.
const OF_REACTOR: usize = 4;

/// The reservations of this process. Main thread only.
#[derive(Default)]
pub struct Descriptors {
    reserved: usize,
}

impl Descriptors {
    /// Reserves descriptors for a reactor with this number of connections, or as many as Postgres grants. Returns how
    /// many connections the reactor may have: at least one, so that it always makes progress.
    pub fn reserve_connections(&mut self, wanted: usize) -> usize {
        self.reserve(wanted + OF_REACTOR).saturating_sub(OF_REACTOR).max(1)
    }

    /// Releases descriptors for connections above this number.
    pub fn release_connections(&mut self, wanted: usize) {
        self.release(wanted + OF_REACTOR);
    }

    /// Reserves up to this number, as far as Postgres grants it. Returns the number reserved now.
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

    /// Releases reservations above this number.
    fn release(&mut self, wanted: usize) {
        while self.reserved > wanted {
            // SAFETY: only acquired descriptors are released.
            unsafe { pg_sys::ReleaseExternalFD() };
            self.reserved -= 1;
        }
    }

    /// Reserves this number. If that fails, reserves nothing and returns false.
    pub fn reserve_all(&mut self, wanted: usize) -> bool {
        let has_all = self.reserve(wanted) >= wanted;
        if !has_all {
            self.release(0);
        }
        has_all
    }

    /// The most that this process can reserve, if no other code in it reserves any.
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
