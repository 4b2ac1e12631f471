//! Grants the locks of processes: the only place that does. It comes after saving, so that a lock that the turn has
//! released is granted in the same turn, and before claiming, so that the calls of the new holders are made at once.
//!
//! ```text
//!   noted rows ──▶ requests ─────────────────────────┐
//!       │                                            ▼
//!       └────────▶ freed locks ──▶ their first ──▶ candidates ──▶ the rule ──▶ granted, calls resumed
//!                                  requests             │
//!                                                       └──▶ locked by another transaction: passed over, judged again
//! ```
//!
//! Only a few rows decide about a request, so a grant takes the same time however many processes wait.
//!
//! Limitations: a turn looks at about 1,000 noted rows, in equal shares of the owners, and at 1,000 requests that share
//! freed locks.

use super::next::{Next, Why};
use super::role::Role;
use super::scans::poll_interval;
use super::types::Turn;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::store::process_lock::{self, AskingProcess, FIRST};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use xdb_engine::{ExecutionId, LockMode, Timestamp};
use xdb_sched::process_locks::{NamedLock, Place, grants};

/// How often a turn looks again for other requests, if some were locked.
const ROUNDS: usize = 3;

/// Locks that a later turn has to judge, although no row says so. A turn takes the value of the turn before, and gives
/// a new one. It counts once the turn has committed.
#[derive(Clone, Default)]
pub struct ToJudge {
    /// A scheduler that starts judges all locks, in the order of their names, and so does one whose clock was set back.
    /// The last name so far; None: all names.
    walk: Option<String>,
    /// Locks with more shared requests than one turn reads, and the last one that was read.
    shared_after: BTreeMap<String, Place>,
    /// Locks with requests that another transaction had locked, and when to judge them again.
    locked: BTreeSet<String>,
    again_at: Option<Instant>,
    /// When locks were judged last, by the clock of processes.
    judged_at: Timestamp,
}

/// What a turn has to judge.
#[derive(Default)]
struct Judged {
    /// Requests that are new, or have moved.
    requests: BTreeSet<ExecutionId>,
    /// Freed locks. If shared requests are judged too: the place after which they begin.
    freed: BTreeMap<String, Option<Place>>,
}

impl Judged {
    fn free(&mut self, name: String, shared_after: Option<Place>) {
        let freed = self.freed.entry(name).or_default();
        *freed = [*freed, shared_after].into_iter().flatten().min();
    }
}

impl ToJudge {
    /// What a process has to judge when it starts. Only the scheduler judges.
    pub fn at_start(role: Role) -> Self {
        Self { walk: role.judges_process_locks().then(String::new), ..Self::default() }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.walk.is_some() || !self.shared_after.is_empty() || self.again_at.is_some_and(|at| at <= now)
    }

    /// These locks are judged again after a while.
    fn again(&mut self, turn: &Turn, names: impl IntoIterator<Item = String>) {
        self.locked.extend(names);
        self.again_at = Some(turn.began_at + poll_interval());
    }

    /// When the next turn is due for them.
    pub fn next(&self) -> Next {
        match self.walk.is_some() || !self.shared_after.is_empty() {
            true => Next::now(Why::Locks),
            false => Next::at(self.again_at, Why::Locks),
        }
    }
}

/// What granting has done.
#[derive(Default)]
pub struct Granted {
    /// What is left to judge. None: there was nothing to do.
    pub left: Option<ToJudge>,
    /// Whether any process got its locks.
    pub any: bool,
    pub wrote: bool,
    /// When this phase wants the next turn.
    pub next: Next,
}

/// Grants what can be granted. `noted`: rows of the table say that there is something to judge.
pub fn grant(turn: &Turn, before: &ToJudge, noted: bool, now: Timestamp) -> Result<Granted> {
    let mut granted = Granted::default();
    if !turn.role.judges_process_locks()
        || !turn.scope.gather
        || turn.paused
        || !(noted || before.is_due(turn.began_at))
    {
        return Ok(granted);
    }
    let (judged, mut left) = collect(turn, before, noted, now, &mut granted)?;
    let ids = judge(turn, judged, now, &mut left)?;
    if !ids.is_empty() {
        let any_function = process_lock::grant(turn.spi, &ids, now)?;
        crash::point("turn-grant");
        // Runners claim the calls of functions. The next turn starts the runners.
        granted.next.now_if(any_function, Why::Calls);
        (granted.any, granted.wrote) = (true, true);
    }
    granted.left = Some(left);
    Ok(granted)
}

/// What this turn judges, and what is left for later turns.
fn collect(
    turn: &Turn,
    before: &ToJudge,
    noted: bool,
    now: Timestamp,
    granted: &mut Granted,
) -> Result<(Judged, ToJudge)> {
    let mut judged = Judged::default();
    let mut after = ToJudge { shared_after: BTreeMap::new(), judged_at: now, ..before.clone() };
    before.shared_after.iter().for_each(|(name, place)| judged.free(name.clone(), Some(*place)));
    if before.again_at.is_some_and(|at| at <= turn.began_at) {
        std::mem::take(&mut after.locked).into_iter().for_each(|name| judged.free(name, Some(FIRST)));
        after.again_at = None;
    }
    // After the clock was set back, too.
    let walk = if now < before.judged_at { Some("") } else { before.walk.as_deref() };
    if let Some(last) = walk {
        let names = process_lock::names_after(turn.spi, last)?;
        process_lock::note_again(turn.spi, names.clone(), now)?;
        after.walk = names.last().filter(|_| process_lock::may_have_more(names.len())).cloned();
        names.into_iter().for_each(|name| judged.free(name, Some(FIRST)));
    }
    if noted {
        let notes = process_lock::notes(turn.spi, now)?;
        granted.next.now_if(notes.iter().any(|note| note.may_have_more), Why::Locks);
        granted.wrote |= !notes.is_empty();
        if notes.iter().any(|note| note.is_released) {
            crash::point("turn-release");
        }
        for note in notes {
            if note.is_due && !note.is_released {
                judged.requests.insert(note.execution_id);
            }
            if note.is_released || note.has_moved {
                // A request to share a lock delays only requests to hold the lock alone.
                judged.free(note.name, (note.mode == LockMode::Exclusive).then_some(FIRST));
            }
        }
    }
    Ok((judged, after))
}

/// The executions that get their locks. Their rows and their calls are locked.
fn judge(turn: &Turn, judged: Judged, now: Timestamp, after: &mut ToJudge) -> Result<Vec<ExecutionId>> {
    let (mut locked, mut rounds) = (BTreeSet::new(), 0);
    loop {
        let Candidates { mut requests, queues, shared_after, passed_over: names } =
            candidates(turn, &judged, &locked, now)?;
        if !names.is_empty() {
            after.again(turn, names);
        }
        let passed_over: Vec<_> = requests.iter().filter(|(_, request)| !request.is_free).map(|(id, _)| *id).collect();
        for id in &passed_over {
            let request = requests.remove(id);
            after.again(turn, request.into_iter().flat_map(|request| request.locks.into_keys()));
        }
        rounds += 1;
        if passed_over.is_empty() || rounds == ROUNDS {
            after.shared_after = shared_after;
            return by_the_rule(turn, requests, queues, &locked, now);
        }
        // Without them, other requests may be the first ones.
        locked.extend(passed_over);
    }
}

/// The requests that may be granted, and what decides about the freed locks.
struct Candidates {
    requests: BTreeMap<ExecutionId, AskingProcess>,
    queues: BTreeMap<String, NamedLock>,
    shared_after: BTreeMap<String, Place>,
    /// Locks with requests that other transactions have locked.
    passed_over: Vec<String>,
}

fn candidates(turn: &Turn, judged: &Judged, locked: &BTreeSet<ExecutionId>, now: Timestamp) -> Result<Candidates> {
    let names: Vec<_> = judged.freed.keys().map(String::as_str).collect();
    let found = process_lock::queues(turn.spi, &names, locked, now)?;
    let passed_over = found.iter().filter(|(_, (_, any_locked))| *any_locked).map(|(name, _)| name.clone()).collect();
    let queues: BTreeMap<_, _> = found.into_iter().map(|(name, (queue, _))| (name, queue)).collect();
    let mut ids: BTreeSet<_> = &judged.requests - locked;
    let (mut shared, mut shared_after) = (BTreeMap::new(), BTreeMap::new());
    for (name, queue) in &queues {
        let admits = |mode, place: &Place| queue.admits(mode, *place);
        ids.extend(queue.first_exclusive.filter(|place| admits(LockMode::Exclusive, place)).map(|place| place.1));
        if let Some(after) = judged.freed.get(name).copied().flatten()
            && queue.first_shared.is_some_and(|place| admits(LockMode::Share, &place))
        {
            let end = (now, ExecutionId([u8::MAX; 16]));
            shared.insert(name.clone(), (after, queue.first_exclusive.unwrap_or(end)));
        }
    }
    let (found, of_each) = process_lock::shared_requests(turn.spi, &shared)?;
    for (name, places) in found {
        shared_after.extend(places.last().filter(|_| places.len() >= of_each).map(|last| (name, *last)));
        ids.extend(places.iter().map(|place| place.1).filter(|id| !locked.contains(id)));
    }
    let mut requests = process_lock::take_requests(turn.spi, &ids)?;
    // A merge may have moved it meanwhile.
    requests.retain(|_, request| request.place.0 <= now);
    Ok(Candidates { requests, queues, shared_after, passed_over })
}

/// Those of these requests that the rule grants.
fn by_the_rule(
    turn: &Turn,
    requests: BTreeMap<ExecutionId, AskingProcess>,
    mut queues: BTreeMap<String, NamedLock>,
    locked: &BTreeSet<ExecutionId>,
    now: Timestamp,
) -> Result<Vec<ExecutionId>> {
    let names: BTreeSet<_> = requests.values().flat_map(|request| request.locks.keys().map(String::as_str)).collect();
    let unread: Vec<_> = names.into_iter().filter(|name| !queues.contains_key(*name)).collect();
    let read = process_lock::queues(turn.spi, &unread, locked, now)?;
    queues.extend(read.into_iter().map(|(name, (queue, _))| (name, queue)));
    let requests = requests.into_values().map(|request| (request.place, request.locks)).collect();
    Ok(grants(&mut queues, &requests))
}
