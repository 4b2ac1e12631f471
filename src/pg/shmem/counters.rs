//! Counters of what has happened in a database since its scheduler got its slot: for `xdb.metrics()`.
//!
//! All processes of the database add to the same counters, with plain atomic additions. What a transaction does is
//! counted at its commit ([`crate::pg::wake`]); calls and turns, which are no part of a transaction, when they end.
//!
//! Memory: 1.1 MB for the types of 64 databases, and 130 KB for the workers of the server.
//!
//! Limitations:
//! - Of a database without a scheduler, only calls are counted.
//! - The first [`TYPES`] process types that are used have counters of their own, all others share theirs. A type that
//!   is unregistered keeps its place.
//! - A transaction that was prepared is not counted.
use super::slot::{Role, Slot};
use super::{call, shared};
use pgrx::pg_sys;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Process types with counters of their own, in each database.
pub const TYPES: usize = 200;
/// More places than types, so that a type is found in few steps.
const PLACES: usize = 256;

/// The upper bounds of the buckets of a histogram, in microseconds. One more bucket has what is longer.
pub const BOUNDS: [u64; 12] =
    [1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 3_000_000, 10_000_000];
/// The buckets of a histogram, and the sum of its values.
pub const HISTOGRAM: usize = BOUNDS.len() + 2;

/// Makes an enum of counters that stand side by side.
macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident = $count:ident { $($variant:ident),+ })+) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
            pub enum $name { $($variant),+ }

            /// How many there are.
            pub const $count: usize = [$($name::$variant),+].len();
        )+
    };
}

counters! {
    /// What is counted of a process type. Completed to Terminated: how executions closed.
    OfType = OF_TYPE { Started, Completed, Failed, TimedOut, Terminated, Steps, StateFailures }
    /// Messages: published to or consumed from local and global queues.
    OfMessages = OF_MESSAGES { PublishedLocal, PublishedGlobal, ConsumedLocal, ConsumedGlobal }
    /// What a worker was called for.
    CallKind = CALL_KINDS { WaitUntil, Execute, Rpc }
    /// How a call has ended.
    CallEnd = CALL_ENDS { Ok, WorkerError, Timeout, Unreachable, InvalidAnswer, DatabaseError, NotAllowed }
    /// Histograms of the engine.
    OfEngine = OF_ENGINE { Turns, Timers }
}

/// What a transaction counts. The worker 0 stands for functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Count {
    /// Must stay the least count: savepoints are split off at it.
    Messages(OfMessages),
    Type(i32, OfType),
    Call(i32, CallKind, CallEnd),
    /// A call that is made again, as the same attempt.
    Repeat(i32),
    /// An answer that came too late, or twice.
    Rejected(i32),
}

impl Count {
    pub const LEAST: Self = Self::Messages(OfMessages::PublishedLocal);
}

/// The counters of a worker, beside its statistics.
pub(super) type OfWorker = [AtomicU64; OF_WORKER];
const REPEATS: usize = CALL_KINDS * CALL_ENDS;
const REJECTED: usize = REPEATS + 1;
const DURATIONS: usize = REJECTED + 1;
const OF_WORKER: usize = DURATIONS + CALL_KINDS * HISTOGRAM;

#[repr(C)]
pub(super) struct DatabaseCounters {
    messages: [AtomicU64; OF_MESSAGES],
    engine: [[AtomicU64; HISTOGRAM]; OF_ENGINE],
    types_in_use: AtomicU32,
    types: [TypeCell; PLACES],
    other: [AtomicU64; OF_TYPE],
}

#[repr(C)]
struct TypeCell {
    /// Zero: free.
    type_id: AtomicI32,
    counts: [AtomicU64; OF_TYPE],
}

impl DatabaseCounters {
    /// The counters of a process type. A free place is taken without a lock.
    fn of_type(&self, type_id: i32) -> &[AtomicU64; OF_TYPE] {
        let first = type_id as usize % PLACES;
        for cell in self.types[first..].iter().chain(&self.types[..first]) {
            let mut found = cell.type_id.load(Ordering::Acquire);
            if found == 0 {
                // The place is reserved first, so that there are never more types.
                if self.types_in_use.fetch_add(1, Ordering::Relaxed) >= TYPES as u32 {
                    self.types_in_use.fetch_sub(1, Ordering::Relaxed);
                    break;
                }
                match cell.type_id.compare_exchange(0, type_id, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return &cell.counts,
                    Err(other) => found = other,
                }
                self.types_in_use.fetch_sub(1, Ordering::Relaxed);
            }
            if found == type_id {
                return &cell.counts;
            }
        }
        &self.other
    }
}

fn of_database(database: pg_sys::Oid) -> Option<&'static DatabaseCounters> {
    let slot = Slot::find(database, Role::Scheduler)?;
    Some(&shared()?.counters[slot.index()])
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn observe(histogram: &[AtomicU64], time: Duration) {
    let micros = time.as_micros() as u64;
    add(&histogram[BOUNDS.partition_point(|bound| *bound < micros)], 1);
    add(&histogram[HISTOGRAM - 1], micros);
}

/// Adds what a transaction has counted. Can't fail, because it runs after the commit.
pub fn count_all(database: pg_sys::Oid, counts: impl Iterator<Item = (Count, u64)>) {
    let of_database = of_database(database);
    for (count, number) in counts {
        let of_worker = |worker, place: usize| call::counters_of(database, worker).map(|counters| &counters[place]);
        let counter = match count {
            Count::Messages(of) => of_database.map(|counters| &counters.messages[of as usize]),
            Count::Type(id, of) => of_database.map(|counters| &counters.of_type(id)[of as usize]),
            Count::Call(worker, kind, end) => of_worker(worker, kind as usize * CALL_ENDS + end as usize),
            Count::Repeat(worker) => of_worker(worker, REPEATS),
            Count::Rejected(worker) => of_worker(worker, REJECTED),
        };
        counter.into_iter().for_each(|counter| add(counter, number));
    }
}

/// Counts the time of a turn, or how late a timer fired.
pub fn count_time(database: pg_sys::Oid, of: OfEngine, time: Duration) {
    of_database(database).into_iter().for_each(|counters| observe(&counters.engine[of as usize], time));
}

/// Counts an RPC, whatever becomes of its transaction.
pub fn count_rpc(database: pg_sys::Oid, worker: i32, end: CallEnd, time: Duration) {
    count_call(database, worker, CallKind::Rpc, time);
    count_all(database, [(Count::Call(worker, CallKind::Rpc, end), 1)].into_iter());
}

/// Counts the time of a call that a session or a runner has made itself: an RPC, or a function.
pub fn count_call(database: pg_sys::Oid, worker: i32, kind: CallKind, time: Duration) {
    call::make(database, worker);
    call::counters_of(database, worker).into_iter().for_each(|counters| observe_call(counters, kind, time));
}

pub(super) fn observe_call(counters: &OfWorker, kind: CallKind, time: Duration) {
    observe(&counters[DURATIONS + kind as usize * HISTOGRAM..][..HISTOGRAM], time);
}

/// Clears the counters of a slot that was just allocated. Runners have none.
pub fn clear(slot: Slot) {
    let Some(counters) = shared().and_then(|shared| shared.counters.get(slot.index())) else { return };
    let types = counters.types.iter().flat_map(|cell| &cell.counts);
    let all = types.chain(&counters.other).chain(&counters.messages).chain(counters.engine.iter().flatten());
    all.for_each(|counter| counter.store(0, Ordering::Relaxed));
    counters.types.iter().for_each(|cell| cell.type_id.store(0, Ordering::Relaxed));
    counters.types_in_use.store(0, Ordering::Relaxed);
}

/// A copy of the counters of a database.
pub struct Counted {
    pub messages: Vec<u64>,
    /// By [`OfEngine`]: the buckets, then the sum in microseconds.
    pub engine: Vec<Vec<u64>>,
    /// By type.
    pub types: Vec<(i32, Vec<u64>)>,
    /// All other types.
    pub other: Vec<u64>,
}

/// A copy of the counters of a worker.
#[derive(Clone)]
pub struct CountedCalls(Vec<u64>);

impl CountedCalls {
    pub(super) fn of(counters: &OfWorker) -> Self {
        Self(copy(counters))
    }

    /// By [`CallEnd`].
    pub fn ended(&self, kind: CallKind) -> &[u64] {
        &self.0[kind as usize * CALL_ENDS..][..CALL_ENDS]
    }

    pub fn repeats(&self) -> u64 {
        self.0[REPEATS]
    }

    pub fn rejected(&self) -> u64 {
        self.0[REJECTED]
    }

    /// The buckets, then the sum in microseconds.
    pub fn durations(&self, kind: CallKind) -> &[u64] {
        &self.0[DURATIONS + kind as usize * HISTOGRAM..][..HISTOGRAM]
    }

    /// Adds what another worker of the same name has counted.
    pub fn add(&mut self, other: &Self) {
        add_to(&mut self.0, &other.0);
    }
}

/// Adds counters to others of the same kind.
pub fn add_to(sums: &mut [u64], counts: &[u64]) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

fn copy(counters: &[AtomicU64]) -> Vec<u64> {
    counters.iter().map(|counter| counter.load(Ordering::Relaxed)).collect()
}

/// The counters of this database. None: it has no scheduler.
pub fn counted(database: pg_sys::Oid) -> Option<Counted> {
    let counters = of_database(database)?;
    let cells = counters.types.iter().map(|cell| (cell.type_id.load(Ordering::Acquire), copy(&cell.counts)));
    Some(Counted {
        messages: copy(&counters.messages),
        engine: counters.engine.iter().map(|histogram| copy(histogram)).collect(),
        types: cells.filter(|(id, _)| *id != 0).collect(),
        other: copy(&counters.other),
    })
}
