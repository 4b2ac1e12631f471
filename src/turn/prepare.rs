//! Makes the requests of the calls that were leased, with the attributes that they load.

use super::app_tables::{AppTables, Used, refused};
use super::backlog::Backlog;
use super::claim::{Claims, Leased, config};
use super::item::Item;
use super::save::Saved;
use super::scans::ScanEnds;
use super::transaction::Turn;
use crate::calls::{self, Answered, Attempt, CallRecord, ReadSet};
use crate::pg::catch::{PgError, Result};
use crate::pg::{identity, process};
use crate::store::app_tables::object;
use crate::store::attribute::{self, LocalAttributes, Size, Versioned};
use crate::store::load::Loaded;
use crate::store::locks;
use crate::store::save::current_call;
use crate::store::{StateKey, claim};
use crate::transport::Request;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use xdb_engine::*;
use xdb_sched::backoff::Patience;
use xdb_sched::budget::Part;
use xdb_sched::room::Line;

/// What goes out after the commit.
pub struct Prepared {
    pub calls: Vec<(Request, CallRecord)>,
    /// Attempts that failed before their calls were made, and processes that can't go on.
    pub failed: Vec<Item>,
    /// Calls whose leases were given back: nothing has happened.
    pub released: Vec<StateKey>,
    pub drained: Option<BTreeSet<Line>>,
    pub ends: ScanEnds,
    pub more: bool,
}

/// Local attributes of the executions whose calls want any. Of what is locked, values and versions are read in one statement.
struct LocalValues {
    plain: LocalAttributes<String>,
    locked: LocalAttributes<Versioned>,
}

/// What a call gets of its execution's local attributes.
#[derive(Default)]
struct Local {
    /// The text of a JSON object.
    members: String,
    /// Of all that the execution has.
    size: Size,
    /// Of those that it locks.
    versions: BTreeMap<String, String>,
}

/// What was read for one call.
enum Read {
    All(Local),
    /// A later turn reads it.
    LeftOut,
    /// There is more than a call gets.
    TooLarge(PgError),
}

/// What became of preparing one call.
enum Preparation {
    Call(Box<Request>),
    /// The lease is given back.
    Release,
    Failed(Failure),
}

struct Preparing<'t, 'a> {
    app: &'t mut AppTables<'a>,
    backlog: &'t mut Backlog,
    local: LocalValues,
    /// How much more requests may take.
    bytes: usize,
    more: bool,
}

/// Reads attributes and writes requests, which take about `bytes` at most. Where a user's table is busy, or when there are no bytes
/// left, the lease is given back.
pub fn prepare(
    turn: &Turn,
    app: &mut AppTables<'_>,
    backlog: &mut Backlog,
    bytes: usize,
    saved: &Saved,
    claims: Claims,
) -> Result<Prepared> {
    let Claims { leased, executions, failed, drained, mut ends, more } = claims;
    let sources = saved.dispatched.iter().map(|call| (&saved.executions, call));
    let sources = sources.chain(leased.iter().map(|call| (&executions, call)));
    let mut calls: Vec<_> = sources.filter_map(|(source, call)| found(source, call)).collect();
    // Who has waited longest for time in tables comes first.
    calls.sort_by_key(|found| found.call.due_at);
    let local = LocalValues::read(turn, &calls, bytes)?;
    app.begin_part(Part::Calls);
    let mut preparing = Preparing { app, backlog, local, bytes, more };
    let mut released = Vec::new();
    let mut prepared = Vec::new();
    let mut failed = failed;
    for LeasedCall { loaded, state, call } in calls {
        let Some(mut record) = record(loaded, state, call) else { continue };
        match preparing.one(loaded, state, call, &mut record)? {
            Preparation::Call(request) => prepared.push((*request, record)),
            Preparation::Release => {
                ends.note(Some(call.due_at));
                released.push(call.key);
            }
            Preparation::Failed(failure) => {
                failed.push(Item::Answer(record, Answered::Failed(failure)));
            }
        }
    }
    claim::release(turn.spi, turn.lane.epoch, &released)?;
    ends.note(saved.earliest);
    let more = preparing.more;
    Ok(Prepared { calls: prepared, failed, released, drained, ends, more })
}

/// A leased call with its state.
struct LeasedCall<'s> {
    loaded: &'s Loaded,
    state: &'s StateExecution,
    call: &'s Leased,
}

fn found<'s>(source: &'s BTreeMap<ExecutionId, Loaded>, call: &'s Leased) -> Option<LeasedCall<'s>> {
    let loaded = source.get(&call.key.0)?;
    Some(LeasedCall { loaded, state: loaded.execution.states.get(&call.key.1)?, call })
}

fn record(loaded: &Loaded, state: &StateExecution, call: &Leased) -> Option<CallRecord> {
    Some(CallRecord {
        key: call.key,
        api: current_call(state)?.0,
        attempt: call.attempt,
        first_attempt_at: call.first_attempt_at,
        lease_number: call.lease.number,
        worker_id: loaded.meta.process_type.as_ref()?.worker.id,
        answer_number: 0,
        owner: loaded.meta.owner.to_u32(),
        local_size: Size::default(),
        reads: None,
    })
}

impl Preparing<'_, '_> {
    // Long because each way in which a table can be used ends in one of three ways.
    fn one(
        &mut self,
        loaded: &Loaded,
        state: &StateExecution,
        call: &Leased,
        record: &mut CallRecord,
    ) -> Result<Preparation> {
        if let Some(unfit) = &call.unfit {
            return Ok(Preparation::Failed(unfit.clone()));
        }
        let Some(process_type) = &loaded.meta.process_type else { return Ok(Preparation::Release) };
        if self.bytes == 0 {
            return Ok(Preparation::Release);
        }
        let config = config(loaded, state);
        let wanted = config.load_local(record.api);
        let local = match self.local.of(call.key.0, &wanted)? {
            Read::All(local) => local,
            Read::LeftOut => {
                self.more = true;
                return Ok(Preparation::Release);
            }
            Read::TooLarge(error) => return Ok(Preparation::Failed(calls::request_too_large(&error))),
        };
        record.local_size = local.size;
        self.app.next_item();
        let id = call.key.0;
        let loading = config.load_global(record.api);
        let read = self.app.read(&loaded.meta, &loading)?;
        self.app.read_for(call.key);
        let global = match read {
            Used::Done(rows) => rows,
            Used::Busy(relation) => {
                let until = self.app.busy_until(relation).unwrap_or_else(Instant::now);
                self.backlog.executions.defer_until(id, until);
                return Ok(Preparation::Release);
            }
            Used::Locked => {
                self.backlog.defer(id, Patience::Long);
                return Ok(Preparation::Release);
            }
            Used::OverBudget => {
                self.more = true;
                return Ok(Preparation::Release);
            }
            Used::Refused(error) => {
                self.app.step_ended(call.key);
                return Ok(Preparation::Failed(refused(&error)));
            }
        };
        let mut values = None;
        if loading.locks() || wanted.locks() {
            values = Some(locks::fingerprint(&global.object, &local.members));
            let keys = local.versions;
            record.reads = Some(Arc::new(ReadSet { global: loading, rows: global.versions, keys, local: wanted }));
        }
        let owner = identity::role_name(loaded.meta.owner)?;
        let attempt = Attempt {
            number: call.attempt,
            owner: owner.as_deref(),
            database: &process::database_name(),
            first_at: call.first_attempt_at,
            timeout: config.timeout(record.api),
            global_attributes: &global.object,
            local_attributes: &local.members,
            values,
        };
        Ok(match calls::request(loaded, state, &process_type.worker, &attempt)? {
            None => Preparation::Release,
            Some(Err(error)) => Preparation::Failed(calls::request_too_large(&error)),
            Some(Ok(request)) => {
                self.bytes = self.bytes.saturating_sub(request.body.len());
                Preparation::Call(Box::new(request))
            }
        })
    }
}

impl LocalValues {
    fn read(turn: &Turn, calls: &[LeasedCall], bytes: usize) -> Result<Self> {
        let (mut plain, mut locked) = (Vec::new(), Vec::new());
        let mut seen = BTreeSet::new();
        for LeasedCall { loaded, state, call } in calls {
            let Some((api, _)) = current_call(state) else { continue };
            let wanted = config(loaded, state).load_local(api);
            if wanted.policy == LoadPolicy::None {
                continue;
            }
            if seen.insert((call.key.0, wanted.locks())) {
                if wanted.locks() { &mut locked } else { &mut plain }.push(call.key.0);
            }
        }
        Ok(Self {
            plain: attribute::local_attributes(turn.spi, &plain, bytes)?,
            locked: attribute::with_versions(turn.spi, &locked, bytes)?,
        })
    }

    fn of(&self, id: ExecutionId, wanted: &Loading) -> Result<Read> {
        if wanted.policy == LoadPolicy::None {
            return Ok(Read::All(Local { members: "{}".to_owned(), ..Local::default() }));
        }
        if !wanted.locks() {
            return match self.plain.of(id) {
                Ok(Some((size, all))) => {
                    Ok(Read::All(Local { members: members(wanted, all.iter())?, size, versions: BTreeMap::new() }))
                }
                Ok(None) => Ok(Read::LeftOut),
                Err(error) => Ok(Read::TooLarge(error)),
            };
        }
        match self.locked.of(id) {
            Ok(Some((size, all))) => Ok(Read::All(Local {
                members: members(wanted, all.iter().map(|(name, entry)| (name, &entry.value)))?,
                size,
                versions: locks::versions_of(wanted, all.iter().map(|(name, entry)| (name, &entry.version))),
            })),
            Ok(None) => Ok(Read::LeftOut),
            Err(error) => Ok(Read::TooLarge(error)),
        }
    }
}

/// Local attributes that a call gets, as the text of a JSON object.
fn members<'a>(wanted: &Loading, all: impl Iterator<Item = (&'a String, &'a String)> + Clone) -> Result<String> {
    let members = all.filter(|(name, _)| wanted.wants(name));
    object(members.map(|(name, value)| (name.as_str(), value.as_str())))
}
