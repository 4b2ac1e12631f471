//! What the worker does wrong, and when.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// A way to misbehave, for a while, at a part of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mood {
    /// No answer before the call's time is over.
    Hang,
    /// The answer comes in drops; some of them too late.
    Drip,
    /// The connection ends in the middle of the answer.
    Reset,
    /// Two answers to one request.
    Double,
    /// The answer comes shortly before or after the call's time is over.
    Late,
}

/// The moods of now, and calls that are held.
#[derive(Default)]
pub struct Mischief {
    until: Mutex<HashMap<Mood, Instant>>,
    /// Milliseconds; 0 for none.
    statement_timeout: AtomicU64,
    hold_rpcs: AtomicBool,
    held: Mutex<usize>,
    changed: Condvar,
}

/// No call is held for longer, whatever happens to those who hold it.
const LONGEST_HOLD: Duration = Duration::from_secs(3);

impl Mischief {
    /// From now on, for so long.
    pub fn begin(&self, mood: Mood, length: Duration) {
        self.until.lock().expect("never poisoned").insert(mood, Instant::now() + length);
    }

    /// The moods that last.
    pub fn now(&self) -> Vec<Mood> {
        let now = Instant::now();
        let until = self.until.lock().expect("never poisoned");
        let mut moods: Vec<_> = until.iter().filter(|(_, until)| **until > now).map(|(mood, _)| *mood).collect();
        // The order of a hash map is nobody's choice.
        moods.sort_by_key(|mood| *mood as u8);
        moods
    }

    /// Nothing of it lasts.
    pub fn end(&self) {
        self.until.lock().expect("never poisoned").clear();
        self.statement_timeout.store(0, Ordering::Relaxed);
        self.release_rpcs();
    }

    /// What clients set as their statement timeout, in milliseconds; 0 for none.
    pub fn statement_timeout(&self) -> u64 {
        self.statement_timeout.load(Ordering::Relaxed)
    }

    /// Has all clients set such a statement timeout.
    pub fn set_statement_timeout(&self, milliseconds: u64) {
        self.statement_timeout.store(milliseconds, Ordering::Relaxed);
    }

    /// From now on the worker answers no RPC, until they are released. True as soon as one is held.
    pub fn hold_rpcs(&self, within: Duration) -> bool {
        self.hold_rpcs.store(true, Ordering::Relaxed);
        let held = self.held.lock().expect("never poisoned");
        let (held, _) = self.changed.wait_timeout_while(held, within, |held| *held == 0).expect("never poisoned");
        *held > 0
    }

    /// Lets the RPCs go that are held.
    pub fn release_rpcs(&self) {
        // Under the lock: who is about to wait has either seen it or hears of it.
        let _held = self.held.lock().expect("never poisoned");
        self.hold_rpcs.store(false, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Called by the worker in an RPC.
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
