//! Makes the requests of the leased calls, with the attributes that they load.
//!
//! Limitations: the lease is given back if a table is busy. It is also given back if a large request exceeds the free
//! places or the turn's bytes.

use super::app_tables::{AppTables, TableOutcome, refused};
use super::backlog::Backlog;
use super::claim::{Claims, LeasedCall, config};
use super::item::Item;
use super::next::{Next, Why};
use super::save::Saved;
use super::scans::ScanEnds;
use super::types::Turn;
use crate::calls::{self, Answered, CallRecord, Loads, ReadSet};
use crate::pg::catch::Result;
use crate::pg::shmem::held_up::{self, LockOn};
use crate::store::attribute::{self, LoadedLocals, LocalAttributes, Size, Versioned};
use crate::store::loaded::Loaded;
use crate::store::registry::{NO_WORKER, ProcessType};
use crate::store::{StateKey, claim};
use crate::transport::Request;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use xdb_calls::Used;
use xdb_engine::*;
use xdb_sched::backoff::Patience;
use xdb_sched::budget::TurnPart;
use xdb_sched::bytes::ByteBudget;
use xdb_sched::due_owners::in_turns;
use xdb_sched::lines::Level;
use xdb_sched::room::{Line, Room, places_of_request};

/// What is submitted after the commit.
pub struct Prepared {
    pub requests: Requests,
    /// Lines without a due call that has no lease. None: this turn has not scanned.
    pub drained: Option<BTreeSet<Level>>,
    /// How far the scans came, without calls that were given back.
    pub ends: ScanEnds,
    /// When this phase wants the next turn.
    pub next: Next,
}

/// The result of preparing calls.
#[derive(Default)]
pub struct Requests {
    /// Requests to submit, each with the record of its call.
    pub calls: Vec<(Request, CallRecord)>,
    /// Calls that functions answer. The function is called in the turn that applies its answer.
    pub functions: Vec<CallRecord>,
    /// Attempts that failed before their calls were made, and processes that can't go on.
    pub failed: Vec<Item>,
    /// Calls whose leases were given back. No attempt was made.
    pub released: Vec<StateKey>,
}

/// Local attributes of executions. `locked` are those that calls read under a lock: one statement reads values and
/// versions.
struct LocalValues {
    plain: LocalAttributes<String>,
    locked: LocalAttributes<Versioned>,
}

/// Local attributes of one execution, for one call. Neither: the call loads none.
#[derive(Default)]
struct Local<'l> {
    plain: Option<&'l BTreeMap<String, String>>,
    locked: Option<&'l BTreeMap<String, Versioned>>,
}

/// The result of preparing one call.
enum Preparation {
    Call(Box<Request>),
    /// A function answers it.
    Function,
    /// The lease is given back.
    Release,
    Failed(Failure, Further),
}

impl Preparation {
    /// A failed attempt about which nothing else is known.
    fn failed(failure: Failure) -> Self {
        Self::Failed(failure, Further::ByPolicy)
    }
}

struct Preparing<'t, 'a> {
    app: &'t mut AppTables<'a>,
    backlog: &'t mut Backlog,
    local: LocalValues,
    /// The free places before these calls were claimed. Claiming counts one place for each call. Here the size of the
    /// request counts.
    room: Room,
    max_calls: usize,
    budget: ByteBudget,
    next: Next,
}

/// Prepares all calls that a turn has leased: reads attributes and makes requests. A lease is given back if a table is
/// busy, or if a large request exceeds the free places or the turn's bytes. `room`: see [`Preparing`].
pub fn prepare(
    turn: &Turn,
    app: &mut AppTables<'_>,
    backlog: &mut Backlog,
    room: Room,
    saved: &Saved,
    claims: Claims,
) -> Result<Prepared> {
    let Claims { leased, executions, failed, drained, mut ends, next } = claims;
    ends.note(saved.earliest);
    // Each call with the map that has its execution.
    let sources = saved.dispatched.iter().map(|call| (&saved.executions, call));
    let sources = sources.chain(leased.iter().map(|call| (&executions, call)));
    let found = sources.enumerate().filter_map(|(place, (source, call))| found(place, source, call));
    let mut calls: Vec<_> = found.collect();
    if turn.role.gathers() {
        // The call that has waited longest for time in tables comes first. A runner calls functions in the order of
        // their claims.
        calls.sort_by_key(|found| found.call.due_at);
    }
    let local = LocalValues::read(turn, &calls)?;
    app.begin_part(TurnPart::Calls);
    let max_calls = turn.role.calls_at_once();
    let mut preparing = Preparing { app, backlog, local, room, max_calls, budget: turn.bytes(), next };
    let (mut made, mut requests) = (Requests { failed, ..Requests::default() }, BTreeMap::new());
    for leased in calls {
        let mut record = record(&leased);
        let call = leased.call;
        match preparing.one(&leased, &mut record)? {
            Preparation::Call(request) => _ = requests.insert(leased.place, (*request, record)),
            Preparation::Function => made.functions.push(record),
            Preparation::Release => {
                ends.note(Some(call.due_at));
                made.released.push(call.key);
            }
            Preparation::Failed(failure, further) => {
                made.failed.push(Item::Answer(record, Answered::Failed(failure, further)));
            }
        }
    }
    // In the order of due times, the owner with the oldest calls would get its calls before the others: see
    // `InFlight::insert`.
    made.calls = requests.into_values().collect();
    claim::release(turn.spi, &made.released, turn.lane.epoch)?;
    let mut next = preparing.next;
    next.now_if(!made.failed.is_empty(), Why::Answers);
    Ok(Prepared { requests: made, drained, ends, next })
}

/// A leased call with its state.
struct LoadedCall<'s> {
    /// The position of the call in the order of the claims, in which owners take turns.
    place: usize,
    loaded: &'s Loaded,
    process_type: &'s ProcessType,
    state: &'s StateExecution,
    api: Api,
    call: &'s LeasedCall,
}

fn found<'s>(place: usize, source: &'s BTreeMap<ExecutionId, Loaded>, call: &'s LeasedCall) -> Option<LoadedCall<'s>> {
    let loaded = source.get(&call.key.0)?;
    let state = loaded.execution.states.get(&call.key.1)?;
    let (api, _) = state.current_call()?;
    let process_type = loaded.meta.process_type.as_deref()?;
    Some(LoadedCall { place, loaded, process_type, state, api, call })
}

fn record(&LoadedCall { api, call, .. }: &LoadedCall<'_>) -> CallRecord {
    CallRecord {
        lease_number: call.lease.number,
        worker_id: call.line.worker,
        owner: call.line.owner,
        is_suspect: call.is_suspect,
        ..CallRecord::of(call.key, api, call.attempt, call.first_attempt_at)
    }
}

impl Preparing<'_, '_> {
    // Long because each way in which a table can be used ends in one of three ways.
    fn one(&mut self, leased: &LoadedCall<'_>, record: &mut CallRecord) -> Result<Preparation> {
        let &LoadedCall { loaded, process_type, state, api, call, .. } = leased;
        if let Some((failure, further)) = &call.unfit {
            return Ok(Preparation::Failed(failure.clone(), *further));
        }
        // A worker whose secrets can't be read is not called.
        let Some(worker) = process_type.worker.as_ref().filter(|_| record.worker_id != NO_WORKER) else {
            return Ok(Preparation::Function);
        };
        let Ok(secrets) = &worker.signing else { return Ok(Preparation::Release) };
        let config = config(loaded, state);
        let loads = Loads::of(&config, api);
        let local = match self.local.of(call.key.0, &loads.local).for_call(Why::Calls) {
            Used::Done((size, local)) => {
                record.local_size = size;
                local
            }
            Used::Refused(failure) => return Ok(Preparation::failed(failure)),
            Used::Later(why) => {
                self.next.now_if(true, why);
                return Ok(Preparation::Release);
            }
        };
        self.app.next_item();
        let id = call.key.0;
        let global = match self.app.load(&loaded.meta, &loads.global, LockType::NoLocking)? {
            TableOutcome::Done(object) => object,
            TableOutcome::Busy(relation) => {
                let until = self.app.busy_until(relation).unwrap_or_else(Instant::now);
                held_up::note(id.0, LockOn::Table, relation);
                self.backlog.executions.defer_until(id, until);
                return Ok(Preparation::Release);
            }
            TableOutcome::Locked(relation) => {
                held_up::note(id.0, LockOn::Row, relation);
                self.backlog.defer(id, Patience::Long);
                return Ok(Preparation::Release);
            }
            TableOutcome::OverBudget => {
                self.next.now_if(true, Why::Calls);
                return Ok(Preparation::Release);
            }
            TableOutcome::Refused(error) => return Ok(Preparation::failed(refused(&error))),
        };
        let (of, read) = ((&loads, config.timeout(api)), (global, local.values()));
        let request = match calls::request(loaded, state, record.as_attempt(), of, read)? {
            Ok(request) => request,
            Err(failure) => return Ok(Preparation::failed(*failure)),
        };
        if loads.locks() {
            let fingerprint = loads.fingerprint(&request.attributes.global, local.versions());
            record.reads = Some(Arc::new(ReadSet { loads, fingerprint }));
        }
        if !self.has_room(record.line(), request.bytes) {
            return Ok(Preparation::Release);
        }
        let traceparent = loaded.meta.traceparent.as_deref();
        Ok(Preparation::Call(Box::new(calls::to_worker(&request, &loaded.meta, worker, secrets, traceparent)?)))
    }

    /// Takes places for a request, if there are any.
    fn has_room(&mut self, line: Line, bytes: usize) -> bool {
        if !self.budget.take(bytes) {
            self.next.now_if(true, Why::Calls);
            return false;
        }
        self.room.take_places(line, places_of_request(bytes, self.max_calls))
    }
}

impl LocalValues {
    /// Reads one call of each owner in turn. Then many large values of one owner leave rows for other owners.
    fn read(turn: &Turn, calls: &[LoadedCall]) -> Result<Self> {
        let (mut plain, mut locked) = (Vec::new(), Vec::new());
        let mut seen = BTreeSet::new();
        let wanting = calls.iter().map(|found| (found, config(found.loaded, found.state).load_local(found.api)));
        let wanting: Vec<_> = wanting.filter(|(_, wanted)| wanted.policy != LoadPolicy::None).collect();
        let of = |(found, _): &(&LoadedCall, Loading)| (found.loaded.meta.owner.to_u32(), found.call.due_at);
        for (found, wanted) in in_turns(wanting, usize::MAX, turn.number, of).taken {
            if seen.insert((found.call.key.0, wanted.locks())) {
                if wanted.locks() { &mut locked } else { &mut plain }.push(found.call.key.0);
            }
        }
        Ok(Self {
            plain: attribute::local_attributes(turn.spi, &plain, turn.bytes())?,
            locked: attribute::with_versions(turn.spi, &locked, turn.bytes())?,
        })
    }

    fn of(&self, id: ExecutionId, wanted: &Loading) -> LoadedLocals<Local<'_>> {
        if wanted.policy == LoadPolicy::None {
            LoadedLocals::All(Size::default(), Local::default())
        } else if wanted.locks() {
            self.locked.of(id).map(|locked| Local { locked: Some(locked), plain: None })
        } else {
            self.plain.of(id).map(|plain| Local { plain: Some(plain), locked: None })
        }
    }
}

impl Local<'_> {
    fn values(&self) -> impl Iterator<Item = (&String, &String)> + Clone {
        let locked = self.locked.into_iter().flatten().map(|(name, entry)| (name, &entry.value));
        self.plain.into_iter().flatten().chain(locked)
    }

    /// The versions of attributes that a call locks.
    fn versions(&self) -> impl Iterator<Item = (&String, &String)> {
        self.locked.into_iter().flatten().map(|(name, entry)| (name, &entry.version))
    }
}
