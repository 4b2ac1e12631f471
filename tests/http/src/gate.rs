//! A gate at which threads of a test wait until the test opens it.

use std::sync::{Condvar, Mutex};

use crate::rig::PATIENCE;

/// Closed at first. Once opened, it stays open.
#[derive(Default)]
pub struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// Waits until the gate is open, but at most as long as a test waits for anything.
    pub fn pass(&self) {
        let open = self.open.lock().expect("nothing panics with the lock");
        drop(self.opened.wait_timeout_while(open, PATIENCE, |open| !*open));
    }

    pub fn open(&self) {
        *self.open.lock().expect("nothing panics with the lock") = true;
        self.opened.notify_all();
    }
}
