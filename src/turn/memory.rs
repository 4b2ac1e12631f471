//! What an engine process keeps between its turns.
//!
//! Limitations: all of it may be lost at any moment. The tables hold everything.

use super::app_tables::KnownTables;
use super::attribute_locks::AttributeLocks;
use super::backlog::Backlog;
use super::breakers::Breakers;
use super::global_queues::Matching;
use super::item::Item;
use super::next::{Next, Why};
use super::process_locks::ToJudge;
use super::role::Role;
use super::scans::{Scans, poll_interval};
use crate::calls::{self, Answered, CallRecord};
use crate::pg::process::random;
use crate::pg::session::Session;
use crate::pg::shmem;
use crate::store::counted;
use crate::store::instance::Ownership;
use crate::store::lanes::Lane;
use crate::store::registry::Registry;
use crate::transport::{CallOutcome, FailureKind, Reply, Request};
use std::time::{Duration, Instant};
use xdb_sched::backoff::{Backoff, Patience};
use xdb_sched::breaker::Ticket;
use xdb_sched::lines::Lines;
use xdb_sched::room::InFlight;

/// How long a process is careful after a crash. If the server crashes again because of a call, it does so within this
/// time.
const CAREFUL_FOR: Duration = Duration::from_secs(60);

/// Hands requests to the transport, all at once. The number says how many calls are under way with them.
pub type Submit<'a> = dyn FnMut(Vec<Request>, usize) + 'a;

/// The memory of an engine process. Each part has one module that writes it.
pub struct Memory {
    pub role: Role,
    /// The lane from which the process claims, and its epoch.
    pub(super) lane: Lane,
    /// The number of the last turn, and of the leases that it gave.
    pub(super) number: i64,
    /// Registered process types and workers.
    pub(super) registry: Registry,
    pub(super) calls: OpenCalls,
    /// Items that wait to be applied.
    pub(super) backlog: Backlog,
    pub(super) tables: KnownTables,
    /// Messages of global queues that wait to be matched.
    pub(super) matching: Matching,
    pub(super) locks: AttributeLocks,
    /// Locks of processes that a later turn has to judge.
    pub(super) to_judge: ToJudge,
    /// Where the next scans begin.
    pub(super) scans: Scans,
    pub(super) seen: LastTurn,
    /// Errors of turns are logged once a second.
    pub(super) failing: Backoff<()>,
}

/// Calls that are under way, and what is known of their workers.
#[derive(Default)]
pub(super) struct OpenCalls {
    /// For each call, what is needed to apply its answer, and the ticket for its breaker.
    pub in_flight: InFlight<(CallRecord, Ticket)>,
    /// Tags of the requests to cancel: their answers have no use any more. The loop of the process takes them.
    pub useless: Vec<u64>,
    pub breakers: Breakers,
    /// Which lines of calls there are. If the last scan of a worker's lines left due calls, a call that becomes due
    /// must not overtake them.
    pub lines: Lines,
}

/// What the last turn saw of the database.
pub(super) struct LastTurn {
    /// No new work is taken up: an operator has paused the engine, or this database does not own its processes.
    pub paused: bool,
    /// Whether this database owns its processes, or is a copy of another one.
    pub ownership: Ownership,
    /// The runners that should run for waiting calls. Only the scheduler's turns write it.
    pub for_runners: Vec<Role>,
    /// When the next call, timer or end of a pause is due.
    pub due: Next,
    /// When that turn began.
    pub began_at: Instant,
    /// The next turn may take large things: the last one was short, or took none.
    pub takes_large: bool,
    /// The last functions that answered calls took long, or none was called yet. Then functions are leased one by one,
    /// so that none waits behind another one while other runners could call it.
    pub functions_are_slow: bool,
    /// Until then, no call is prepared in the transaction that decides it: the server has crashed. Else it would be
    /// unknown which call follows from a timer and crashes the server again.
    pub careful_until: Option<Instant>,
}

impl Memory {
    /// The memory of a process that has begun its epoch. `after_crash`: this is the first scheduler after a crash of
    /// the server.
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
            to_judge: ToJudge::at_start(role),
            scans: Scans::default(),
            seen: LastTurn {
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

    /// The runners that should run for waiting calls.
    pub fn for_runners(&self) -> &[Role] {
        &self.seen.for_runners
    }

    /// The process was woken.
    pub fn woken(&mut self) {
        self.scans.woken();
    }

    /// Records the end of a call: a worker has answered, or the call failed.
    pub fn answered(&mut self, session: &Session, reply: Reply) {
        let Some((record, ticket)) = self.calls.in_flight.remove(reply.tag) else { return };
        self.calls.breakers.end(record.worker_id, ticket, &reply.outcome, random());
        if let CallOutcome::Failed { kind: kind @ (FailureKind::NotTried | FailureKind::Cancelled), .. } = reply.outcome
        {
            shmem::call::not_made(session.database, session.role, record.worker_id);
            if kind == FailureKind::NotTried {
                // The request was never sent. The call is claimed again, as the same attempt.
                self.backlog.defer(record.key.0, Patience::Long);
                self.backlog.yielding.insert(record.key);
            }
            return;
        }
        let answered = calls::decode(record.api, &reply.outcome);
        let succeeded = !matches!(answered, Answered::Failed(..));
        let kind = counted::kind(record.api);
        shmem::call::finished(session.database, session.role, record.worker_id, kind, succeeded, reply.elapsed);
        self.backlog.keep(Item::Answer(record, answered));
    }

    /// Takes the tags of requests to cancel: their calls are over, or their processes are.
    pub fn take_useless(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.calls.useless)
    }

    /// How many calls are under way.
    pub fn in_flight(&self) -> usize {
        self.calls.in_flight.len()
    }

    /// Whether calls are under way, or answers wait to be applied.
    pub fn has_calls(&self) -> bool {
        self.in_flight() + self.backlog.len() > 0
    }

    pub fn ownership(&self) -> Ownership {
        self.seen.ownership
    }

    /// Whether no new work is taken up.
    pub fn is_paused(&self) -> bool {
        self.seen.paused
    }

    /// Whether no new work is taken up, and none is left from before.
    pub fn is_paused_and_done(&self) -> bool {
        self.seen.paused && !self.has_calls()
    }

    /// Shows breakers and the number of calls under way in shared memory.
    pub fn show(&mut self, session: &Session) {
        self.calls.breakers.show(session);
        session.slot.set_in_flight(self.in_flight() as i64);
    }

    /// When the next turn is due, unless a phase of the last one wants it earlier.
    pub(super) fn next(&self) -> Next {
        let now = Instant::now();
        // An item may have become ready since the turn checked.
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
        let locks = if self.seen.paused { Next::default() } else { self.to_judge.next() };
        waits.into_iter().map(|(at, why)| Next::at(at, why)).fold(self.seen.due.min(locks), Next::min)
    }
}
