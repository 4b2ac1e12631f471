//! The faults of the worker, and when they hold.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// A way to misbehave for a while, in a part of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mood {
    /// No answer before the call's time is over.
    Hang,
    /// The answer comes in drops, sometimes too late.
    Drip,
    /// The connection ends in the middle of the answer.
    Reset,
    /// Two answers to one request.
    Double,
    /// The answer comes shortly before or after the call's time is over.
    Late,
}

/// The current moods, and RPCs that are held.
#[derive(Default)]
pub struct Mischief {
    until: Mutex<HashMap<Mood, Instant>>,
    /// In milliseconds. 0: none.
    statement_timeout: AtomicU64,
    hold_rpcs: AtomicBool,
    held: Mutex<usize>,
    changed: Condvar,
}

/// The longest time for which a call is held, whatever happens to the session that holds it.
const LONGEST_HOLD: Duration = Duration::from_secs(3);

impl Mischief {
    /// Begins a mood for this time.
    pub fn begin(&self, mood: Mood, length: Duration) {
        self.until.lock().expect("never poisoned").insert(mood, Instant::now() + length);
    }

    /// The current moods.
    pub fn now(&self) -> Vec<Mood> {
        let now = Instant::now();
        let until = self.until.lock().expect("never poisoned");
        let mut moods: Vec<_> = until.iter().filter(|(_, until)| **until > now).map(|(mood, _)| *mood).collect();
        // The order of a hash map is arbitrary.
        moods.sort_by_key(|mood| *mood as u8);
        moods
    }

    /// Ends all moods.
    pub fn end(&self) {
        self.until.lock().expect("never poisoned").clear();
        self.statement_timeout.store(0, Ordering::Relaxed);
        self.release_rpcs();
    }

    /// The statement timeout of all clients, in milliseconds. 0: none.
    pub fn statement_timeout(&self) -> u64 {
        self.statement_timeout.load(Ordering::Relaxed)
    }

    /// Sets the statement timeout of all clients.
    pub fn set_statement_timeout(&self, milliseconds: u64) {
        self.statement_timeout.store(milliseconds, Ordering::Relaxed);
    }

    /// From now on the worker holds RPCs until they are released. Returns true as soon as one is held.
    pub fn hold_rpcs(&self, within: Duration) -> bool {
        self.hold_rpcs.store(true, Ordering::Relaxed);
        let held = self.held.lock().expect("never poisoned");
        let (held, _) = self.changed.wait_timeout_while(held, within, |held| *held == 0).expect("never poisoned");
        *held > 0
    }

    /// Releases the held RPCs.
    pub fn release_rpcs(&self) {
        // Under the lock: a thread that is about to wait either sees the change or is notified.
        let _held = self.held.lock().expect("never poisoned");
        self.hold_rpcs.store(false, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Called by the worker in an RPC. Waits while RPCs are held.
    pub fn pass(&self) {
        if !self.hold_rpcs.load(Ordering::Relaxed) {
            return;
        }
        let mut held = self.held.lock().expect("never poisoned");
        *held += 1;
        self.changed.notify_all();
        let holding = |_: &mut usize| self.hold_rpcs.load(Ordering::Relaxed);
        let (mut held, _) = self.changed.wait_timeout_while(held, LONGEST_HOLD, holding).expect("never poisoned");
        *held -= 1;
    }
}
