//! The breakers of a process's workers, one for each worker that was called.
//!
//! Limitations: breakers are in memory. A scheduler that starts begins with closed ones.

use crate::clock;
use crate::pg::param::to_postgres;
use crate::pg::session::Session;
use crate::pg::shmem::call;
use crate::store::claim::TaskPlace;
use crate::store::registry::{Registry, WorkerId};
use crate::transport::{CallOutcome, FailureKind};
use std::collections::BTreeMap;
use std::time::Instant;
use xdb_engine::Timestamp;
use xdb_sched::breaker::{Admission, Breaker, Open, Reachability, Ticket};

/// The breakers, and for which workers no request can be signed.
#[derive(Default)]
pub struct Breakers {
    of_worker: BTreeMap<WorkerId, Entry>,
    /// The number of the reading of the registrations that the breakers reflect.
    reading: u64,
}

#[derive(Default)]
struct Entry {
    breaker: Breaker,
    /// The registration for which the breaker counts.
    registered_at: Option<Timestamp>,
    /// The breaker as shared memory shows it.
    shown: Option<Open>,
    /// How far the waiting calls were checked for process types that have another worker by now.
    checked: ScanPosition,
    /// Why no request to the worker can be signed. Then no call is made.
    unsigned: Option<String>,
    /// `unsigned` is in the log.
    is_reported: bool,
}

#[derive(Default)]
enum ScanPosition {
    #[default]
    Nothing,
    UpTo(TaskPlace),
    All,
}

impl Breakers {
    /// Follows the registrations. A worker that was registered again begins with a closed breaker. Unregistered workers
    /// are removed.
    pub fn follow(&mut self, registry: &Registry) {
        if registry.times_read() == self.reading {
            return;
        }
        self.reading = registry.times_read();
        self.of_worker.retain(|id, _| registry.registered_at(*id).is_some());
        for (id, entry) in &mut self.of_worker {
            let registered_at = registry.registered_at(*id);
            if entry.registered_at != registered_at {
                entry.breaker.reset();
                entry.registered_at = registered_at;
            }
            // A process type may have moved to another worker.
            entry.checked = ScanPosition::Nothing;
            entry.unsigned = None;
        }
        for (id, name, why) in registry.unusable() {
            let entry = self.of_worker.entry(id).or_default();
            entry.registered_at = registry.registered_at(id);
            entry.unsigned =
                Some(format!("no calls are made to worker \"{name}\", because its secret can't be used: {why}"));
        }
    }

    /// Which calls to a worker may be made now.
    pub fn admits(&mut self, worker: WorkerId, now: Instant) -> Admission {
        let Some(entry) = self.of_worker.get_mut(&worker) else { return Admission::All };
        if entry.unsigned.is_some() { Admission::None } else { entry.breaker.admits(now) }
    }

    /// A call is submitted. The ticket comes back at its end.
    pub fn begin(&mut self, worker: WorkerId, registry: &Registry) -> Ticket {
        let entry = self
            .of_worker
            .entry(worker)
            .or_insert_with(|| Entry { registered_at: registry.registered_at(worker), ..Entry::default() });
        entry.breaker.begin(Instant::now())
    }

    /// A call has ended. `jitter` is in 0..1.
    pub fn end(&mut self, worker: WorkerId, ticket: Ticket, outcome: &CallOutcome, jitter: f64) {
        let Some(entry) = self.of_worker.get_mut(&worker) else { return };
        let was_closed = entry.breaker.open().is_none();
        entry.breaker.end(ticket, reachability(outcome), Instant::now(), jitter);
        if was_closed {
            entry.checked = ScanPosition::Nothing;
        }
    }

    /// Workers whose waiting calls have to be checked, because no calls to them are made. Each with the place to resume
    /// at.
    pub fn to_check(&self) -> Vec<(WorkerId, Option<TaskPlace>)> {
        let is_held_back = |entry: &Entry| entry.breaker.open().is_some() || entry.unsigned.is_some();
        let held_back = self.of_worker.iter().filter(|(_, entry)| is_held_back(entry));
        held_back
            .filter_map(|(id, entry)| match &entry.checked {
                ScanPosition::Nothing => Some((*id, None)),
                ScanPosition::UpTo(place) => Some((*id, Some(*place))),
                ScanPosition::All => None,
            })
            .collect()
    }

    /// Records how far the calls of a worker were checked. None: to the end.
    pub fn checked(&mut self, worker: WorkerId, up_to: Option<TaskPlace>) {
        if let Some(entry) = self.of_worker.get_mut(&worker) {
            entry.checked = up_to.map_or(ScanPosition::All, ScanPosition::UpTo);
        }
    }

    /// When more calls may be made than now.
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        self.of_worker.values().filter_map(|entry| entry.breaker.next_change(now)).min()
    }

    /// Shows changes: breakers in shared memory, workers without a usable secret in the log.
    pub fn show(&mut self, session: &Session) {
        for (worker, entry) in &mut self.of_worker {
            let open = entry.breaker.open();
            if open != entry.shown {
                let shown = open.map(|open| call::OpenBreaker {
                    since: to_postgres(clock::on_the_wall(open.since)),
                    next_probe: open.next_probe.map(|at| to_postgres(clock::on_the_wall(at))),
                });
                call::show_breaker(session.database, session.role, *worker, shown);
                entry.shown = open;
            }
            if let Some(why) = entry.unsigned.as_ref().filter(|_| !entry.is_reported) {
                pgrx::log!("xdb: {why}");
                session.slot.record_error(why);
            }
            entry.is_reported = entry.unsigned.is_some();
        }
    }
}

/// What the end of a call says about its worker. A timeout after the connection was made means a slow worker, which its
/// limit of concurrent calls bounds.
fn reachability(outcome: &CallOutcome) -> Reachability {
    let CallOutcome::Failed { kind, .. } = outcome else { return Reachability::Reached };
    match kind {
        FailureKind::Connect | FailureKind::ConnectTimeout | FailureKind::Transport => Reachability::Unreachable,
        FailureKind::Timeout | FailureKind::TooLarge | FailureKind::Encoded => Reachability::Reached,
        FailureKind::Invalid
        | FailureKind::Refused
        | FailureKind::NotTried
        | FailureKind::Cancelled
        | FailureKind::Panic => Reachability::Unknown,
    }
}
