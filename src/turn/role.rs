//! The scheduler and the runners make the same turns. This file has all their differences: a phase asks for a rule, and
//! never for its role.
//!
//! | | the scheduler | a runner |
//! |---|---|---|
//! | claims calls of the lane | 0 | 1 |
//! | calls functions | no | yes, of one owner at a time |
//! | items in one transaction | up to 256, and due work | one, or several quick functions |
//! | new leases in one transaction | up to 256 | one call of a worker, or several functions |
//! | calls at once | `xdb.max_in_flight` | 16 |
//! | time in the application's tables | `xdb.apply_timeout` for all uses of a turn | 5 s for a step |
//! | waits for a table or row of the application | never for a table; 50 ms for a row | 500 ms |
//! | timers, messages, global queues, locks on attributes | yes | no |
//! | finds out which tables are slow | yes | no |
//!
//! Lane 1 has the calls of functions, and of processes with a slow table. Owners take turns when answers are applied.
//!
//! How runners share the work, if there are several:
//! - While there are slow steps, the first runner calls no functions.
//! - While functions wait, the last runner runs no slow steps.
//! - All other runners, and a single runner, alternate between both.
//! - The last runner that calls no functions yet serves only owners whose functions no other runner calls.
//!
//! Limitations: neither checks for deadlocks. Their waits end before the deadlock check of any session begins.

use super::types::{Mode, Scope};
use crate::calls::{Asker, Maker};
use crate::guc;
pub use crate::pg::shmem::Role;
use crate::store::lanes::{RUNNERS_LANE, SCHEDULERS_LANE};
use std::ffi::CStr;
use std::time::Duration;

/// The most calls on which a runner holds leases.
pub const RUNNERS_CALLS: usize = 16;

/// The longest time for one step of a runner in the application's tables. This is short enough for a session that
/// repairs the table to get its locks.
const RUNNERS_STEP: Duration = Duration::from_secs(5);

/// The longest wait of a runner for a lock. This is shorter than the runner's time limit, to tell a lock from a slow
/// statement. It is also shorter than the default of `deadlock_timeout`, 1 s.
const RUNNERS_LOCK_TIMEOUT: &CStr = c"500ms";

/// The longest wait of the scheduler for a row of a table in which a row was locked a moment ago.
const CONTENDED_LOCK_TIMEOUT: &CStr = c"2ms";

impl Role {
    fn is_scheduler(self) -> bool {
        self == Role::Scheduler
    }

    /// The lane from which calls are claimed.
    pub fn lane(self) -> i16 {
        if self.is_scheduler() { SCHEDULERS_LANE } else { RUNNERS_LANE }
    }

    /// Which kind of process asks whether a call may be made.
    pub fn asker(self) -> Asker {
        if self.is_scheduler() { Asker::Scheduler } else { Asker::Runner }
    }

    /// The most items in one transaction.
    pub fn items_at_once(self) -> usize {
        if self.is_scheduler() { guc::CLAIM_BATCH.get() as usize } else { 1 }
    }

    /// Whether owners take turns when answers are applied. Between two answers a call is claimed. Else owners without
    /// an answer would wait for all owners that have one.
    pub fn takes_turns(self) -> bool {
        !self.is_scheduler()
    }

    /// Whether items that failed before are applied apart from all other items. A runner applies each item in its own
    /// transaction anyway.
    pub fn keeps_risky_apart(self) -> bool {
        self.is_scheduler()
    }

    /// What a turn does first. A runner either applies an answer or claims a call: each may take all the time of a
    /// step.
    pub(super) fn scope(self, has_items: bool, one_call: bool) -> Scope {
        match self {
            Role::Scheduler => Scope::ALL,
            Role::Runner(_) if has_items => Scope::APPLY,
            Role::Runner(_) => Scope { claim: functions_at_once(one_call), ..Scope::APPLY },
        }
    }

    /// Whether this process calls functions of the database that answer in place of workers.
    pub fn calls_functions(self) -> bool {
        !self.is_scheduler()
    }

    /// Whether this process serves calls of one kind while there are calls of the other kind too. So the runners are
    /// never all busy with the same kind. `most`: the number of runners that the database may have.
    pub fn serves(self, functions: bool, most: usize) -> bool {
        match self {
            Role::Runner(number) if most > 1 && functions => number != 0,
            Role::Runner(number) if most > 1 => usize::from(number) + 1 < most,
            Role::Runner(_) | Role::Scheduler => true,
        }
    }

    /// The most calls under way.
    pub fn calls_at_once(self) -> usize {
        if self.is_scheduler() { max_in_flight() } else { RUNNERS_CALLS }
    }

    /// How long one transaction may spend in the application's tables.
    pub fn time_in_tables(self) -> Duration {
        if self.is_scheduler() { apply_timeout() } else { RUNNERS_STEP }
    }

    /// Whether the process waits for locks on the application's tables.
    pub fn waits_for_tables(self) -> bool {
        !self.is_scheduler()
    }

    /// How long to wait for rows. None: as long as for all locks of the engine. `contended`: a row of the table was
    /// locked a moment ago.
    pub fn lock_timeout(self, contended: bool) -> Option<&'static CStr> {
        match self {
            Role::Runner(_) => Some(RUNNERS_LOCK_TIMEOUT),
            Role::Scheduler if contended => Some(CONTENDED_LOCK_TIMEOUT),
            Role::Scheduler => None,
        }
    }

    /// Whether a step that exceeds its time is a failed attempt. Else the step moves to a runner, which has more time.
    pub fn is_last_resort(self) -> bool {
        !self.is_scheduler()
    }

    /// Whether turns scan for due timers and messages, and adopt calls of workers that were unregistered.
    pub fn gathers(self) -> bool {
        self.is_scheduler()
    }

    /// Whether turns match messages of global queues. One process alone may do that.
    pub fn matches_global_queues(self) -> bool {
        self.is_scheduler()
    }

    /// Whether processes get their locks. One process alone may do that.
    pub fn judges_process_locks(self) -> bool {
        self.is_scheduler()
    }

    /// Whether locks on attributes are granted. They keep calls from conflicting. Correctness depends on the optimistic
    /// check alone.
    pub fn grants_locks(self) -> bool {
        self.is_scheduler()
    }

    /// Whether scans resume at cursors. Slow calls are few, so runners scan from the head of the index.
    pub fn has_cursors(self) -> bool {
        self.is_scheduler()
    }

    /// Whether this process itself finds what it has written. Else it wakes the scheduler.
    pub fn finds_own_writes(self) -> bool {
        self.is_scheduler()
    }
}

/// The lane for the calls of this maker.
pub fn lane_of(maker: Maker) -> i16 {
    match maker {
        Maker::Function | Maker::Worker { is_slow: true } => RUNNERS_LANE,
        Maker::Worker { .. } | Maker::PullWorker(_) | Maker::Unregistered => SCHEDULERS_LANE,
    }
}

/// How many runners call functions. `apart`: there are slow steps, which the first runner serves.
pub fn function_runners(apart: bool) -> usize {
    let most = max_runners();
    if apart && most > 1 { most - 1 } else { most }
}

/// If calling functions took longer than this, the functions that were leased together are given back, and the next turn
/// leases one function only. So none waits behind slow ones while other runners could call it.
pub const SLOW_FUNCTION: Duration = Duration::from_millis(100);

/// How many functions are leased together and called in one transaction.
pub fn functions_at_once(they_are_slow: bool) -> usize {
    if they_are_slow { 1 } else { RUNNERS_CALLS }
}

/// The most runners of the database.
pub fn max_runners() -> usize {
    guc::RUNNERS.get() as usize
}

/// The runners that should run for this number of waiting calls. `apart`: there are slow steps.
pub fn runners_for(workers: usize, functions: usize, apart: bool, most: usize) -> Vec<Role> {
    let all = || Role::runners().take(most);
    if !apart {
        return all().take(workers + functions).collect();
    }
    let for_functions: Vec<_> = all().filter(|role| role.serves(true, most)).collect();
    let for_workers = all().filter(|role| functions == 0 || role.serves(false, most));
    let mut roles: Vec<_> = for_workers.take(workers).chain(for_functions.into_iter().rev().take(functions)).collect();
    roles.sort_by_key(|role| role.index());
    roles.dedup();
    roles
}

/// The most calls of the scheduler under way.
pub fn max_in_flight() -> usize {
    guc::MAX_IN_FLIGHT.get() as usize
}

/// The scheduler's time limit for the application's tables, in one turn.
pub fn apply_timeout() -> Duration {
    Duration::from_millis(guc::APPLY_TIMEOUT_MS.get() as u64)
}

const _: () = assert!(matches!(Scope::APPLY.mode, Mode::Guarded), "what a runner does is undone alone");
