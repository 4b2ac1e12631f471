//! A gate that threads of a test wait at until the test opens it.

use std::sync::{Condvar, Mutex};

use crate::rig::PATIENCE;

/// Closed at first; open for good once it is opened.
#[derive(Default)]
pub struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// Waits until it is open, and no longer than a test has patience.
    pub fn pass(&self) {
        let open = self.open.lock().expect("nothing panics with the lock");
        drop(self.opened.wait_timeout_while(open, PATIENCE, |open| !*open));
    }

    pub fn open(&self) {
        *self.open.lock().expect("nothing panics with the lock") = true;
        self.opened.notify_all();
    }
}
