//! The two users of the pipeline, and all that they do differently. A phase asks for the rule that it needs, and never in whom
//! it runs.
//!
//! | | the scheduler | a runner |
//! |---|---|---|
//! | claims calls of | lane 0, and those of priorities | lane 1: processes with a slow table, and functions that answer in place of workers; of the latter by priority too |
//! | of functions | | calls those of one owner at a time. The last runner that calls none is for owners whose functions no other one calls |
//! | of several | | the first leaves functions to the others while there are steps of what is slow, the last one these while functions wait; the others, and one alone, take turns |
//! | in one transaction | up to 256 items, and what is due | one item, of each owner in turn, or several functions of an owner that are quick; one call of a worker, or leases for several functions |
//! | calls at once | `xdb.max_in_flight` | 16 |
//! | time in users' tables | `xdb.apply_timeout` for all of them in a turn | 5 s for a step |
//! | waits for a user's table, or a row | never for a table; 50 ms for a row | 500 ms |
//! | timers, messages, global queues, locks on attributes | yes | no |
//! | finds out which tables are slow | yes | no |
//!
//! Neither looks for deadlocks: their waits end before anybody's search for one begins.

use super::types::{Mode, Scope};
use crate::calls::{Asker, Maker};
use crate::guc;
pub use crate::pg::shmem::Role;
use crate::store::lanes::{RUNNERS_LANE, SCHEDULERS_LANE};
use std::ffi::CStr;
use std::time::Duration;

/// Most calls that a runner has leases on.
pub const RUNNERS_CALLS: usize = 16;

/// Longest time for one step of a runner in users' tables. Short enough to let somebody in who wants to mend the table.
const RUNNERS_STEP: Duration = Duration::from_secs(5);

/// Longest wait of a runner for a lock: shorter than its time limit, so that a lock is told from a slow statement, and than the
/// second after which sessions look for deadlocks by default.
const RUNNERS_LOCK_TIMEOUT: &CStr = c"500ms";

/// Longest wait of the scheduler for a row of a table in which somebody held one a moment ago.
const CONTENDED_LOCK_TIMEOUT: &CStr = c"2ms";

impl Role {
    fn is_scheduler(self) -> bool {
        self == Role::Scheduler
    }

    /// Calls are claimed from this lane.
    pub fn lane(self) -> i16 {
        if self.is_scheduler() { SCHEDULERS_LANE } else { RUNNERS_LANE }
    }

    /// For whom calls are judged.
    pub fn asker(self) -> Asker {
        if self.is_scheduler() { Asker::Scheduler } else { Asker::Runner }
    }

    /// Most items in one transaction.
    pub fn items_at_once(self) -> usize {
        if self.is_scheduler() { guc::CLAIM_BATCH.get() as usize } else { 1 }
    }

    /// Owners take turns when answers are applied. Between two of them a call is claimed, or whoever has no answer here would wait for
    /// all that do.
    pub fn takes_turns(self) -> bool {
        !self.is_scheduler()
    }

    /// Items that failed before are kept out of the transaction of all others. Where each has its own, there is nothing to do.
    pub fn keeps_risky_apart(self) -> bool {
        self.is_scheduler()
    }

    /// What a turn does at first. A runner applies an answer or claims a call: both may take all of the time of a step.
    pub(super) fn scope(self, has_items: bool, one_call: bool) -> Scope {
        match self {
            Role::Scheduler => Scope::ALL,
            Role::Runner(_) if has_items => Scope::APPLY,
            Role::Runner(_) => Scope { claim: functions_at_once(one_call), ..Scope::APPLY },
        }
    }

    /// Functions of the database that answer in place of workers.
    pub fn calls_functions(self) -> bool {
        !self.is_scheduler()
    }

    /// Whether calls of this kind are this process's while there are some of the other kind too: neither kind is ever kept waiting by
    /// all runners being at the other one. `most`: so many runners there may be.
    pub fn serves(self, functions: bool, most: usize) -> bool {
        match self {
            Role::Runner(number) if most > 1 && functions => number != 0,
            Role::Runner(number) if most > 1 => usize::from(number) + 1 < most,
            Role::Runner(_) | Role::Scheduler => true,
        }
    }

    /// Most calls under way.
    pub fn calls_at_once(self) -> usize {
        if self.is_scheduler() { max_in_flight() } else { RUNNERS_CALLS }
    }

    /// What one transaction may spend in users' tables.
    pub fn time_in_tables(self) -> Duration {
        if self.is_scheduler() { apply_timeout() } else { RUNNERS_STEP }
    }

    /// Locks on users' tables are waited for.
    pub fn waits_for_tables(self) -> bool {
        !self.is_scheduler()
    }

    /// How long rows are waited for, if not as long as all locks of the engine are. `contended`: somebody held one a moment ago.
    pub fn lock_timeout(self, contended: bool) -> Option<&'static CStr> {
        match self {
            Role::Runner(_) => Some(RUNNERS_LOCK_TIMEOUT),
            Role::Scheduler if contended => Some(CONTENDED_LOCK_TIMEOUT),
            Role::Scheduler => None,
        }
    }

    /// A step that takes more than its time is a failed attempt. Else it is somebody else's, who has more time.
    pub fn is_last_resort(self) -> bool {
        !self.is_scheduler()
    }

    /// Timers that are due, messages, and calls of workers that are gone.
    pub fn gathers(self) -> bool {
        self.is_scheduler()
    }

    /// Messages of global queues are handed out by one process alone.
    pub fn matches_global_queues(self) -> bool {
        self.is_scheduler()
    }

    /// Locks on attributes keep calls from conflicting. Where they are not granted, the optimistic check alone sees to what is right.
    pub fn grants_locks(self) -> bool {
        self.is_scheduler()
    }

    /// Slow calls are few: they are looked for from the head of the index.
    pub fn has_cursors(self) -> bool {
        self.is_scheduler()
    }

    /// What is written is looked for by this process too. Else the scheduler is told.
    pub fn is_told(self) -> bool {
        self.is_scheduler()
    }
}

/// The lane of calls of this maker.
pub fn lane_of(maker: Maker) -> i16 {
    match maker {
        Maker::Function | Maker::Worker { is_slow: true } => RUNNERS_LANE,
        Maker::Worker { .. } | Maker::PullWorker(_) | Maker::Unregistered => SCHEDULERS_LANE,
    }
}

/// Runners that call functions. `apart`: there are steps of what is slow, which the first one has.
pub fn function_runners(apart: bool) -> usize {
    let most = max_runners();
    if apart && most > 1 { most - 1 } else { most }
}

/// How many functions are leased together, and called in one transaction.
pub fn functions_at_once(they_are_slow: bool) -> usize {
    if they_are_slow { 1 } else { RUNNERS_CALLS }
}

/// Most runners of the database.
pub fn max_runners() -> usize {
    guc::RUNNERS.get() as usize
}

/// The runners that are to be there for so many calls that wait. `apart`: there are steps of what is slow.
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

/// Most calls of one scheduler.
pub fn max_in_flight() -> usize {
    guc::MAX_IN_FLIGHT.get() as usize
}

/// The scheduler's limit for one use of users' tables.
pub fn apply_timeout() -> Duration {
    Duration::from_millis(guc::APPLY_TIMEOUT_MS.get() as u64)
}

const _: () = assert!(matches!(Scope::APPLY.mode, Mode::Guarded), "what a runner does is undone alone");
