//! What the scheduler, or a runner, keeps between its turns.

use super::app_tables::KnownTables;
use super::attribute_locks::AttributeLocks;
use super::backlog::Backlog;
use super::breakers::Breakers;
use super::global_queues::Matching;
use super::item::Item;
use super::next::{Next, Why};
use super::role::Role;
use super::scans::{Scans, poll_interval};
use crate::calls::{self, Answered, CallRecord};
use crate::pg::process::random;
use crate::pg::session::Session;
use crate::pg::shmem;
use crate::store::instance::Ownership;
use crate::store::lanes::Lane;
use crate::store::registry::Registry;
use crate::transport::{FailureKind, Outcome, Reply, Request};
use std::time::{Duration, Instant};
use xdb_sched::backoff::{Backoff, Patience};
use xdb_sched::breaker::Ticket;
use xdb_sched::lines::Lines;
use xdb_sched::room::InFlight;

/// A server that crashes again crashes this soon. One that lives longer gets work done in between.
const CAREFUL_FOR: Duration = Duration::from_secs(60);

/// Hands requests to the transport, all at once; with them, so many are under way.
pub type Submit<'a> = dyn FnMut(Vec<Request>, usize) + 'a;

/// All of it may be lost at any moment: the tables hold everything. Each part has one module that writes it.
pub struct Memory {
    pub role: Role,
    pub(super) lane: Lane,
    /// Number of the turn, and of the leases that it gives.
    pub(super) number: i64,
    pub(super) registry: Registry,
    pub(super) calls: OpenCalls,
    pub(super) backlog: Backlog,
    pub(super) tables: KnownTables,
    /// Messages of global queues that wait to be handed out.
    pub(super) matching: Matching,
    pub(super) locks: AttributeLocks,
    pub(super) scans: Scans,
    pub(super) seen: Seen,
    /// Errors of turns are logged once a second.
    pub(super) failing: Backoff<()>,
}

/// Calls that are under way, and what is known of their workers.
#[derive(Default)]
pub(super) struct OpenCalls {
    /// Each with what its answer is applied by, and what its end tells the breaker.
    pub in_flight: InFlight<(CallRecord, Ticket)>,
    /// Tags of those whose answers are of no use any more.
    pub useless: Vec<u64>,
    pub breakers: Breakers,
    /// Who waits: to a worker for which the last scan has not found all calls that were due, a call that has just become due
    /// must not go before those that wait.
    pub lines: Lines,
}

/// What the last turn saw of the database.
pub(super) struct Seen {
    /// Nothing new is taken up: because somebody said so, or because of the ownership.
    pub paused: bool,
    pub ownership: Ownership,
    /// The runners that are to be there for calls that wait.
    pub for_runners: Vec<Role>,
    /// The next call, timer or end of a pause that comes due.
    pub due: Next,
    /// When that turn began.
    pub began_at: Instant,
    /// A turn takes what is large, too: the one before was not long, or took nothing large.
    pub takes_large: bool,
    /// The last functions that answered calls took long, or there were none yet: what is leased behind one waits, though others could
    /// call it.
    pub functions_are_slow: bool,
    /// Up to then no call is prepared in the transaction that decides it: after a crash of the server. Else nothing would tell which
    /// call follows from a timer and brings the server down again.
    pub careful_until: Option<Instant>,
}

impl Memory {
    /// Of a process that has begun its epoch. `after_crash`: the server has crashed, and this is the first scheduler since.
    pub fn new(role: Role, epoch: i64, after_crash: bool) -> Self {
        Self {
            role,
            lane: Lane { number: role.lane(), epoch },
            number: 0,
            registry: Registry::of_engine(),
            calls: OpenCalls::default(),
            backlog: Backlog::default(),
            tables: KnownTables::default(),
            matching: Matching::default(),
            locks: AttributeLocks::default(),
            scans: Scans::default(),
            seen: Seen {
                paused: false,
                ownership: Ownership::Unused,
                for_runners: Vec::new(),
                due: Next::default(),
                began_at: Instant::now(),
                takes_large: true,
                functions_are_slow: true,
                careful_until: after_crash.then(|| Instant::now() + CAREFUL_FOR),
            },
            failing: Backoff::default(),
        }
    }

    /// The runners that are to be there for calls that wait.
    pub fn for_runners(&self) -> &[Role] {
        &self.seen.for_runners
    }

    /// Somebody has woken the scheduler.
    pub fn woken(&mut self) {
        self.scans.woken();
    }

    /// Notes what a worker answered.
    pub fn answered(&mut self, session: &Session, reply: Reply) {
        let Some((record, ticket)) = self.calls.in_flight.remove(reply.tag) else { return };
        self.calls.breakers.end(record.worker_id, ticket, &reply.outcome, random());
        if let Outcome::Failed { kind: kind @ (FailureKind::NotTried | FailureKind::Cancelled), .. } = reply.outcome {
            shmem::call::not_made(session.database, session.role, record.worker_id);
            if kind == FailureKind::NotTried {
                // Nobody has heard of it: it goes back into line, and is no attempt.
                self.backlog.defer(record.key.0, Patience::Long);
                self.backlog.yielding.insert(record.key);
            }
            return;
        }
        let answered = calls::decode(record.api, &reply.outcome);
        let succeeded = !matches!(answered, Answered::Failed(..));
        let latency = reply.elapsed.as_micros() as i64;
        shmem::call::finished(session.database, session.role, record.worker_id, succeeded, latency);
        self.backlog.keep(Item::Answer(record, answered));
    }

    /// Takes the tags of calls that are to be cancelled: they are over, or their processes are.
    pub fn take_useless(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.calls.useless)
    }

    /// Calls under way.
    pub fn in_flight(&self) -> usize {
        self.calls.in_flight.len()
    }

    /// Calls are under way, or have been answered and not applied.
    pub fn has_calls(&self) -> bool {
        self.in_flight() + self.backlog.len() > 0
    }

    pub fn ownership(&self) -> Ownership {
        self.seen.ownership
    }

    pub fn is_paused(&self) -> bool {
        self.seen.paused
    }

    /// Nothing new is taken up, and nothing of what was is left to be done.
    pub fn is_paused_and_done(&self) -> bool {
        self.seen.paused && !self.has_calls()
    }

    /// Shows people which workers can't be reached.
    pub fn show(&mut self, session: &Session) {
        self.calls.breakers.show(session);
        session.slot.set_in_flight(self.in_flight() as i64);
    }

    /// When the next turn is due after one that has left nothing to be done at once.
    pub(super) fn next(&self) -> Next {
        let now = Instant::now();
        // Something may have become ready since the turn looked.
        if self.backlog.is_ready() {
            return Next::now(Why::Answers);
        }
        let head = self.scans.head_at(self.seen.began_at).filter(|_| !self.seen.paused);
        let waits = [
            (Some(now + poll_interval()), Why::Poll),
            (self.backlog.next(now), Why::Locks),
            (self.calls.breakers.next_change(now), Why::Workers),
            (head, Why::Scan),
            (self.registry.reads_again_at(), Why::Secrets),
        ];
        waits.into_iter().map(|(at, why)| Next::at(at, why)).fold(self.seen.due, Next::min)
    }
}
