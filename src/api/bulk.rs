//! `xdb.start_processes`: many starts in one transaction. If the ids are new, it needs only a few statements.
//!
//! Limitations: starts of known ids, and starts with a correlation key, are decided one by one.

use super::arguments::{json_of, needed};
use super::caller::{Caller, owner_name, wrote};
use super::merge::{lock_all, merge_or_begin};
use super::start::{
    StartResult, TypeToStart, begin, decide_start, keys, of_another, read, refuse_too_many, repeated, starter,
    write_tables,
};
use crate::pg::catch::{PgError, Result};
use crate::pg::crash;
use crate::pg::function::{Args, Value, read_interval, read_time};
use crate::pg::memory;
use crate::pg::spi::Spi;
use crate::row;
use crate::store::children::take_links;
use crate::store::loaded::{Loaded, new_id};
use crate::store::registry::Registry;
use crate::store::{execution, process, save};
use crate::{clock, error, guc};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use xdb_engine::*;
use xdb_protocol::{CHILDREN, GivenStart, StartRequest, refused_child};

/// The most executions that are written at a time.
const WRITTEN_AT_ONCE: usize = 1000;

/// Memory for many small parts of starts, in bytes for each byte of the argument.
const OF_A_BYTE: usize = 24;

/// Memory of a start without its texts, in bytes: the request, its numbers, its id and its row of the result.
const OF_A_START: usize = size_of::<StartRequest>() + 512;

/// Memory of a started execution with its rows, in bytes.
const OF_AN_EXECUTION: usize = 4 * size_of::<Loaded>();

/// The keys of an object: the parameters of `start_process`.
const KEYS: [&str; 10] = [
    "process_id",
    "process_type",
    "input",
    "global_attribute_pk",
    "global_attributes",
    "local_attributes",
    "id_reuse_policy",
    "timeout",
    "start_at",
    "options",
];

/// `xdb.start_processes()`: returns the ids of the executions, in the order of the array. If one start fails, none is
/// made.
pub fn start_processes(args: &Args) -> Result<Value> {
    let caller = starter(c"xdb.start_processes()")?;
    // Taken first: what the starts run must not take the links for its own.
    let links = take_links();
    let argument = if links.is_empty() { "processes" } else { CHILDREN };
    let processes = needed(argument, json_of(args, 0, argument, guc::max_bulk_bytes())?)?;
    let (requests, mut ids) = requests(&processes, links)?;
    // Sorted by process id, so that two callers with the same ids don't deadlock. Starts of one process id stay in the
    // order of the array.
    let (merged, mut order): (Vec<_>, Vec<_>) =
        (0..requests.len()).partition(|number| requests[*number].options.correlation.is_some());
    order.sort_by(|a, b| requests[*a].start.process_id.cmp(&requests[*b].start.process_id));
    let bulk = BulkStart { caller, requests: &requests, order: &order };
    let mut writing = caller.on_system_tables(|spi, registry| bulk.start(spi, registry, &mut ids))?;
    if !merged.is_empty() {
        bulk.merge_or_begin(&merged, &mut ids, &mut writing)?;
    }
    // Before triggers of the application run: a wait in a trigger would wait for this very transaction.
    wrote();
    let started: Vec<_> = writing.iter().map(|(number, loaded)| (*number, &requests[*number], loaded)).collect();
    write_tables(caller, &started, |number, error| bulk.at(number, error))?;
    crash::point("bulk-start");
    Ok(Value::Rows(ids.into_iter().map(|id| row![id]).collect()))
}

struct BulkStart<'a> {
    caller: Caller,
    requests: &'a [StartRequest],
    /// Indexes of requests without a correlation key, by process id.
    order: &'a [usize],
}

impl BulkStart<'_> {
    /// Starts everything. Returns the starts that write the application's tables, and puts the ids of repeated starts
    /// into `ids`.
    fn start(&self, spi: &Spi, registry: &mut Registry, ids: &mut [ExecutionId]) -> Result<Vec<(usize, Loaded)>> {
        let mut types = BTreeMap::new();
        let names: BTreeSet<_> = self.requests.iter().map(|request| request.start.process_type.as_str()).collect();
        for name in names {
            let to_start = TypeToStart::find(spi, registry, name).map_err(|error| {
                let of_type = |request: &StartRequest| request.start.process_type == name;
                self.at(self.requests.iter().position(of_type).unwrap_or_default(), error)
            })?;
            types.insert(name, to_start);
        }
        let type_of = |number: usize| &types[self.requests[number].start.process_type.as_str()];
        let keys_of = |number: usize| {
            keys(&type_of(number).mapping, &self.requests[number]).map_err(|error| self.at(number, error))
        };
        let mut keys = (0..self.requests.len()).map(keys_of).collect::<Result<Vec<_>>>()?;

        let process_id = |number: usize| self.requests[number].start.process_id.as_str();
        let order = self.without_repeated_ids_of_other_roles(spi, ids)?;
        let mut first = order.clone();
        first.dedup_by_key(|number| process_id(*number));
        let wanted: Vec<_> = first.iter().map(|number| (process_id(*number), ids[*number])).collect();
        let new = process::lock_process_ids(spi, &wanted)?;
        first.retain(|number| new.contains(process_id(*number)));

        let count = self.order.iter().filter(|number| self.writes_tables(**number)).count();
        memory::room_for(count * OF_AN_EXECUTION)?;
        let mut writing = Vec::with_capacity(count);
        for chunk in first.chunks(WRITTEN_AT_ONCE) {
            memory::room_for(chunk.len() * OF_AN_EXECUTION)?;
            let now = clock::now();
            let batch = self.new_executions(chunk, type_of, &mut keys, ids, now)?;
            let request_id = |number: usize| self.requests[number].options.request_id.as_deref();
            let rows: Vec<_> = batch.iter().map(|(number, loaded)| (loaded, request_id(*number))).collect();
            execution::insert_started(spi, &rows)?;
            save::save(spi, batch.iter().map(|(_, loaded)| loaded), now)?;
            writing.extend(batch.into_iter().filter(|(number, _)| self.writes_tables(*number)));
        }

        // Known process ids need a decision of their own.
        let begun: BTreeSet<_> = first.into_iter().collect();
        for number in order.into_iter().filter(|number| !begun.contains(number)) {
            let request = &self.requests[number];
            let begun = begin(spi, registry, self.caller, request, ids[number]);
            match begun.map_err(|error| self.at(number, error))? {
                StartResult::New(loaded) if self.writes_tables(number) => writing.push((number, *loaded)),
                StartResult::New(_) => {}
                StartResult::Repeated(id) => ids[number] = id,
            }
        }
        // The rows of the application are also locked in the order of process ids.
        let place: HashMap<_, _> = self.order.iter().enumerate().map(|(place, number)| (*number, place)).collect();
        writing.sort_by_key(|(number, _)| place[number]);
        Ok(writing)
    }

    /// The executions of these starts right after their start. Takes their keys.
    fn new_executions<'t>(
        &self,
        numbers: &[usize],
        type_of: impl Fn(usize) -> &'t TypeToStart,
        keys: &mut [Arc<[Vec<String>]>],
        ids: &[ExecutionId],
        now: Timestamp,
    ) -> Result<Vec<(usize, Loaded)>> {
        let owner_name = owner_name(self.caller)?;
        let mut execution = |number: &usize| {
            let (request, to_start) = (&self.requests[*number], type_of(*number));
            let keys = std::mem::replace(&mut keys[*number], Arc::from([]));
            refuse_too_many(self.caller)?;
            to_start.refuse_if_paused(now)?;
            decide_start(self.caller, owner_name.clone(), to_start, keys, request, ids[*number], now)
        };
        let loaded = numbers.iter().map(|number| (*number, execution(number)));
        loaded.map(|(number, loaded)| Ok((number, loaded.map_err(|error| self.at(number, error))?))).collect()
    }

    /// Starts with correlation keys, each with a decision of its own. Adds the new ones to `writing`.
    fn merge_or_begin(
        &self,
        numbers: &[usize],
        ids: &mut [ExecutionId],
        writing: &mut Vec<(usize, Loaded)>,
    ) -> Result<()> {
        let starts: Vec<_> = numbers.iter().map(|number| (&self.requests[*number], ids[*number])).collect();
        lock_all(self.caller, &starts)?;
        for number in numbers {
            let request = &self.requests[*number];
            let Some(correlation) = &request.options.correlation else { continue };
            let result = merge_or_begin(self.caller, request, correlation, ids[*number]);
            match result.map_err(|error| self.at(*number, error))? {
                StartResult::New(loaded) => {
                    if writing.len() == writing.capacity() {
                        // The list doubles.
                        memory::room_for(writing.len() * 2 * OF_AN_EXECUTION)?;
                    }
                    writing.push((*number, *loaded));
                }
                StartResult::Repeated(id) => ids[*number] = id,
            }
        }
        Ok(())
    }

    /// The starts to decide, in their order. Process ids of other roles are refused before any lock. A request that was
    /// made before, while the caller still owned the id, gets its first answer.
    fn without_repeated_ids_of_other_roles(&self, spi: &Spi, ids: &mut [ExecutionId]) -> Result<Vec<usize>> {
        let request = |number: &usize| &self.requests[*number];
        let mut known: Vec<_> = self.order.iter().map(|number| request(number).start.process_id.as_str()).collect();
        known.dedup();
        let owners = process::latest(spi, &known)?;
        let mut order = Vec::with_capacity(self.order.len());
        for number in self.order {
            let process_id = &request(number).start.process_id;
            match owners.get(process_id) {
                Some((_, owner)) if !self.caller.may_drive(*owner)? => {
                    let repeated = repeated(spi, self.caller, request(number));
                    let repeated = repeated.and_then(|found| found.ok_or_else(|| of_another(process_id)));
                    ids[*number] = repeated.map_err(|error| self.at(*number, error))?;
                }
                _ => order.push(*number),
            }
        }
        Ok(order)
    }

    fn writes_tables(&self, number: usize) -> bool {
        let start = &self.requests[number].start;
        !start.global_attributes.is_empty() || !start.call_functions.is_empty()
    }

    /// Adds to an error which start was refused. An error of a caller that has a detail stays as it is.
    fn at(&self, number: usize, mut error: PgError) -> PgError {
        let start = &self.requests[number].start;
        if start.started_by.is_some() {
            return of_child(number, error);
        }
        if error.sqlstate().starts_with("XD") && error.detail.is_none() {
            error.detail = Some(format!("It is processes[{number}], process \"{}\".", start.process_id));
        }
        error
    }
}

/// Reads the array. Each start gets the id of its execution. `links`: the executions and the parent of the starts, if
/// the answer of another process makes them.
fn requests(text: &str, links: Vec<(ExecutionId, StartedBy)>) -> Result<(Vec<StartRequest>, Vec<ExecutionId>)> {
    let of_texts = text.len().saturating_mul(OF_A_BYTE);
    memory::room_for(of_texts)?;
    let elements: Vec<Json> = serde_json::from_str(text)
        .map_err(|_| error::invalid_argument("processes", "it must be an array of objects"))?;
    memory::room_for(of_texts.saturating_add(elements.len() * OF_A_START))?;
    let mut requests = Vec::with_capacity(elements.len());
    let mut ids = Vec::with_capacity(elements.len());
    let mut links = links.into_iter();
    for (number, element) in elements.iter().enumerate() {
        let place = format!("processes[{number}]");
        let given = element_of(&place, element)?;
        let (id, request) = match links.next() {
            None => {
                let id = new_id();
                (id, read(&format!("{place}."), given, id)?)
            }
            Some((id, started_by)) => {
                let mut request = read("", given, id).map_err(|error| of_child(number, error))?;
                request.start.started_by = Some(Box::new(started_by));
                (id, request)
            }
        };
        requests.push(request);
        ids.push(id);
    }
    Ok((requests, ids))
}

/// Adds to the error of a child's start which child of the answer it is. The worker of a step gets no DETAIL.
fn of_child(number: usize, mut error: PgError) -> PgError {
    error.message = refused_child(number, &error.message);
    error
}

/// The members of an object. Intervals and times are read with the settings of the caller's session.
pub(super) fn element_of(place: &str, element: &Json) -> Result<GivenStart> {
    let mut members: BTreeMap<String, Json> = serde_json::from_str(element.as_str())
        .map_err(|_| error::invalid_argument(place, "it must be a JSON object"))?;
    if let Some(unknown) = members.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(error::unknown_word(place, unknown, &KEYS));
    }
    members.retain(|_, value| value.as_str() != "null");
    let mut text = |key: &str| -> Result<Option<String>> {
        let Some(value) = members.remove(key) else { return Ok(None) };
        let text = serde_json::from_str(value.as_str());
        text.map(Some).map_err(|_| error::invalid_argument(&format!("{place}.{key}"), "it must be a string"))
    };
    let mut given = GivenStart {
        process_id: text("process_id")?,
        process_type: text("process_type")?,
        global_attribute_pk: text("global_attribute_pk")?,
        id_reuse_policy: text("id_reuse_policy")?.or_else(|| Some(IdReusePolicy::AllowIfNoRunning.to_string())),
        ..GivenStart::default()
    };
    let unreadable = |key: &'static str| {
        let place = format!("{place}.{key}");
        move |mut error: PgError| {
            error.message = format!("invalid value for {place}: {}", error.message);
            error
        }
    };
    given.timeout = text("timeout")?.map(|text| read_interval(&text)).transpose().map_err(unreadable("timeout"))?;
    given.start_at = text("start_at")?.map(|text| read_time(&text)).transpose().map_err(unreadable("start_at"))?;
    let mut json = |key: &str| members.remove(key).map(|value| value.as_str().to_owned());
    given.input = json("input");
    given.global_attributes = json("global_attributes");
    given.local_attributes = json("local_attributes");
    given.options = json("options");
    Ok(given)
}
