//! Reads definitions and start options, the JSON documents of the SQL functions. Unknown keys are errors here, so that
//! a typing error is found at once.

use crate::config::{call_timeout, loading, registered_state_config, state_config};
use crate::fields::{
    Fault, Object, Parsed, UnknownKeys, boolean, list, map, name, number, quote, seconds, string, word, wrong_number,
};
use crate::functions::{function_call, function_calls, functions};
use crate::merge::merge_options;
use crate::payload::{MAX_PAYLOAD_DEPTH, check_payload};
use crate::scan::{Rules, scan};
use std::collections::{BTreeMap, BTreeSet};
use xdb_engine::*;

words! {
    /// What a start does if rows of its global attributes exist already.
    #[derive(Default)]
    ConflictMode {
        ReturnError = "RETURN_ERROR_ON_CONFLICT",
        Ignore = "IGNORE_CONFLICT",
        #[default]
        Override = "OVERRIDE_ON_CONFLICT",
    }
}

/// The `options` of `xdb.start_process`, read and checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartOptions {
    /// Table (as in the definition) to key column to key value. Key values are strings, numbers or booleans.
    pub global_attribute_keys: BTreeMap<String, BTreeMap<String, Json>>,
    pub global_attribute_conflict_mode: ConflictMode,
    /// Overrides the registered starting state.
    pub starting_state: Option<String>,
    /// Overrides the registered options of the starting state.
    pub starting_state_config: Option<Box<StateConfig>>,
    /// A start with a known process id and request id starts nothing, and returns the execution of the first such
    /// start.
    pub request_id: Option<String>,
    /// Overrides the registered policy.
    pub history: Option<HistoryPolicy>,
    pub traceparent: Option<String>,
    pub call_functions: Vec<FunctionCall>,
    /// Overrides the registered priority.
    pub priority: Option<i8>,
    /// Determines the shard, instead of the process id.
    pub shard_key: Option<String>,
    /// Locks besides the registered ones.
    pub locks: ProcessLocks,
    /// Allows a merge into a pending start with the same type, owner and key.
    pub correlation: Option<Correlation>,
}

/// How a start is merged with other starts that have the same correlation key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Correlation {
    pub key: String,
    pub merge: MergeOptions,
}

/// The longest definition, in bytes. Engine processes and sessions keep definitions in memory, and read a definition
/// again after a change.
pub const MAX_DEFINITION_BYTES: usize = 1024 * 1024;

/// The most states of a definition. Each takes about a kilobyte of memory, however short its options are.
pub const MAX_STATES: usize = 10_000;

/// Reads the definition of a process type. The error says what is wrong. Table oids stay 0: only the database knows
/// them.
pub fn parse_definition(text: &str) -> Result<Definition, String> {
    if text.len() > MAX_DEFINITION_BYTES {
        return Err(format!("the definition is {} bytes long; at most {MAX_DEFINITION_BYTES} are allowed", text.len()));
    }
    document(text, "the definition", |object| {
        let definition = definition(object)?;
        check_references(&definition)?;
        Ok(definition)
    })
}

/// Reads the `options` of a start. The error says what is wrong.
pub fn parse_start_options(text: &str) -> Result<StartOptions, String> {
    document(text, "options", start_options)
}

/// Reads the options of a start.
pub(crate) fn start_options(mut object: Object<'_>) -> Parsed<StartOptions> {
    let options = StartOptions {
        global_attribute_keys: object.map_of("globalAttributeKeys", table_key)?,
        global_attribute_conflict_mode: object
            .optional("globalAttributeConflictMode", |text| word(text, ConflictMode::WORDS, ConflictMode::parse))?
            .unwrap_or_default(),
        starting_state: object.optional("startingState", name)?,
        starting_state_config: object
            .optional("startingStateConfig", |text| state_config(text, UnknownKeys::Refused))?
            .map(Box::new),
        request_id: object.optional("requestId", name)?,
        history: object.optional("history", history)?,
        traceparent: object.optional("traceparent", traceparent)?,
        call_functions: function_calls(&mut object, |text| {
            // No limit of its own: the options as a whole are limited, and they come from a caller, not from a
            // worker.
            function_call(Object::read(text, UnknownKeys::Refused)?, usize::MAX)
        })?,
        priority: object.optional("priority", priority)?,
        shard_key: object.optional("shardKey", name)?,
        locks: object.optional("locks", process_locks)?.unwrap_or_default(),
        correlation: correlation(&mut object)?,
    };
    object.finish(options)
}

fn correlation(object: &mut Object<'_>) -> Parsed<Option<Correlation>> {
    let key = object.optional("correlationKey", name)?;
    let merge = object.optional("merge", merge_options)?;
    match (key, merge) {
        (Some(key), merge) => Ok(Some(Correlation { key, merge: merge.unwrap_or_default() })),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Fault::new("needs a correlationKey").at("merge")),
    }
}

fn document<T>(text: &str, document: &str, read: impl FnOnce(Object<'_>) -> Parsed<T>) -> Result<T, String> {
    scan(text, &Rules { max_depth: MAX_PAYLOAD_DEPTH, jsonb: false }).map_err(|error| format!("{document} {error}"))?;
    Object::read(text, UnknownKeys::Refused).and_then(read).map_err(|fault| fault.message(document))
}

fn definition(mut object: Object<'_>) -> Parsed<Definition> {
    let definition = Definition {
        starting_state: object.optional("startingState", name)?,
        states: object.optional("states", states)?.unwrap_or_default(),
        global_attributes: object.list_of("globalAttributes", table_mapping)?,
        local_attributes: object.optional("localAttributes", names)?,
        local_queues: object.optional("localQueues", names)?,
        global_queues: object.optional("globalQueues", names)?.unwrap_or_default(),
        rpcs: object.optional("rpcs", |text| map(text, |text| or_default(text, rpc_config)))?,
        functions: functions(&mut object)?,
        timeout_seconds: object.optional("timeoutSeconds", seconds)?,
        retention_seconds: object.optional("retentionSeconds", retention)?,
        history: object.optional("history", history)?.unwrap_or_default(),
        strict_answers: object.optional("strictAnswers", boolean)?.unwrap_or_default(),
        guards: object.list_of("guards", name)?,
        priority: object.optional("priority", priority)?.unwrap_or_default(),
        locks: object.optional("locks", process_locks)?.unwrap_or_default(),
        changes: object.optional("changes", name)?,
    };
    object.finish(definition)
}

fn retention(text: &str) -> Parsed<f64> {
    match number(text)? {
        for_ever if for_ever == -1.0 => Ok(for_ever),
        negative if negative < 0.0 => Err(wrong_number(text, "be -1, or not negative")),
        seconds => Ok(seconds),
    }
}

fn states(text: &str) -> Parsed<BTreeMap<String, StateConfig>> {
    // Counted before memory is allocated for them.
    let listed = map(text, Ok)?;
    if listed.len() > MAX_STATES {
        return Err(Fault::new(format!("has {} entries; at most {MAX_STATES} are allowed", listed.len())));
    }
    let read = |(id, text): (String, &str)| {
        let config = or_default(text, registered_state_config);
        Ok((id.clone(), config.map_err(|fault| fault.at(&id))?))
    };
    listed.into_iter().map(read).collect()
}

/// An entry with null as its options is listed too, with defaults.
fn or_default<T: Default>(text: &str, read: impl FnOnce(&str) -> Parsed<T>) -> Parsed<T> {
    if text == "null" { Ok(T::default()) } else { read(text) }
}

fn names(text: &str) -> Parsed<BTreeSet<String>> {
    Ok(list(text, name)?.into_iter().collect())
}

fn table_mapping(text: &str) -> Parsed<TableMapping> {
    let mut object = Object::read(text, UnknownKeys::Refused)?;
    let mapping = TableMapping {
        table: object.required("table", name)?,
        relation: 0,
        primary_key: object.required("primaryKey", primary_key)?,
        attributes: object.required("attributes", |text| {
            let attributes = map(text, name)?;
            refuse_twice(attributes.values().map(String::as_str), "column")?;
            Ok(attributes)
        })?,
    };
    object.finish(mapping)
}

/// Checks tables whose `relation` is known. Error: what is wrong.
pub fn check_tables(tables: &[TableMapping]) -> Result<(), String> {
    let mut relations = BTreeSet::new();
    for TableMapping { table, relation, primary_key, attributes } in tables {
        if !relations.insert(relation) {
            return Err(format!("table {table} is mapped twice"));
        }
        if let Some(key) = attributes.values().find(|column| primary_key.contains(column)) {
            return Err(format!("table {table}: the key \"{key}\" can't be an attribute"));
        }
    }
    Ok(())
}

fn primary_key(text: &str) -> Parsed<Vec<String>> {
    let columns = match text.as_bytes() {
        [b'"', ..] => vec![name(text)?],
        [b'[', ..] => list(text, name)?,
        _ => return Err(Fault::new("must be a string or an array of strings")),
    };
    if columns.is_empty() {
        return Err(Fault::new("is empty"));
    }
    refuse_twice(columns.iter().map(String::as_str), "column")?;
    Ok(columns)
}

fn refuse_twice<'a>(names: impl Iterator<Item = &'a str>, what: &str) -> Parsed<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Fault::new(format!("has the {what} {} twice", quote(name))));
        }
    }
    Ok(())
}

fn rpc_config(text: &str) -> Parsed<RpcConfig> {
    let mut object = Object::read(text, UnknownKeys::Refused)?;
    let load = |text| loading(text, UnknownKeys::Refused);
    let config = RpcConfig {
        timeout_seconds: call_timeout(&mut object, "timeoutSeconds")?,
        load_global_attributes: object.optional("loadGlobalAttributes", load)?,
        load_local_attributes: object.optional("loadLocalAttributes", load)?,
        function: object.optional("function", name)?,
    };
    object.finish(config)
}

fn history(text: &str) -> Parsed<HistoryPolicy> {
    if text.starts_with('{') {
        let mut object = Object::read(text, UnknownKeys::Refused)?;
        let keep = object.required("keepLast", |text| {
            let events = text.parse::<u32>().ok().filter(|events| (1..=MOST_EVENTS).contains(events));
            events.ok_or_else(|| Fault::new(format!("must be a whole number from 1 to {MOST_EVENTS}")))
        })?;
        return object.finish(HistoryPolicy::KeepLast(keep));
    }
    word(text, &["full", "none", "{\"keepLast\": n}"], |word| match word {
        "full" => Some(HistoryPolicy::Full),
        "none" => Some(HistoryPolicy::None),
        _ => None,
    })
}

fn priority(text: &str) -> Parsed<i8> {
    let (lowest, highest) = (PRIORITIES.start(), PRIORITIES.end());
    let priority = text.parse::<i8>().ok().filter(|priority| PRIORITIES.contains(priority));
    priority.ok_or_else(|| Fault::new(format!("must be a whole number from {lowest} to {highest}")))
}

/// Each lock is a name, or an object with a name and a mode.
fn process_locks(text: &str) -> Parsed<ProcessLocks> {
    // Counted before memory is allocated for them.
    let listed = list(text, Ok)?;
    if listed.len() > MOST_LOCKS {
        return Err(Fault::new(format!("has {} entries; at most {MOST_LOCKS} are allowed", listed.len())));
    }
    let locks = list(text, process_lock)?;
    refuse_twice(locks.iter().map(|(name, _)| name.as_str()), "lock")?;
    Ok(locks.into_iter().collect())
}

fn process_lock(text: &str) -> Parsed<(String, LockMode)> {
    match text.as_bytes() {
        [b'"', ..] => return Ok((name(text)?, LockMode::Exclusive)),
        [b'{', ..] => {}
        _ => return Err(Fault::new("must be a string or an object")),
    }
    let mut object = Object::read(text, UnknownKeys::Refused)?;
    let (name, mode) =
        (object.required("name", name)?, object.optional("mode", |text| word(text, LockMode::WORDS, LockMode::parse))?);
    object.finish((name, mode.unwrap_or(LockMode::Exclusive)))
}

/// Largest number of events for `keepLast`.
const MOST_EVENTS: u32 = 1_000_000_000;

fn table_key(text: &str) -> Parsed<BTreeMap<String, Json>> {
    let columns = map(text, |text| match text.as_bytes() {
        [b'{' | b'[', ..] | b"null" => Err(Fault::new("must be a string, a number or a boolean")),
        _ => check_payload(text, usize::MAX).map_err(|error| Fault::new(error.to_string())),
    })?;
    if columns.is_empty() { Err(Fault::new("names no column")) } else { Ok(columns) }
}

fn traceparent(text: &str) -> Parsed<String> {
    let header = string(text)?;
    match is_traceparent(&header) {
        true => Ok(header),
        false => Err(Fault::new(not_a_traceparent(&header))),
    }
}

/// The predicate for a text that is not a W3C trace context.
pub fn not_a_traceparent(text: &str) -> String {
    format!("{} is not a W3C traceparent", quote(text))
}

/// Whether a text is a W3C trace context: version, trace id, parent id and flags, in lower-case hexadecimal digits.
pub fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &str, digits: usize| {
        part.len() == digits && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let not_zero = |part: &str| part.bytes().any(|byte| byte != b'0');
    let [version, trace, parent, flags] = parts[..] else { return false };
    hex(version, 2)
        && version != "ff"
        && hex(trace, 32)
        && not_zero(trace)
        && hex(parent, 16)
        && not_zero(parent)
        && hex(flags, 2)
}

/// Checks that references within the definition name something that the definition lists.
fn check_references(definition: &Definition) -> Parsed<()> {
    if let Some(state) = &definition.starting_state
        && !definition.states.contains_key(state)
    {
        let what = format!("{} is not listed in states; known are {}", quote(state), definition.listed_states());
        return Err(Fault::new(what).at("startingState"));
    }
    if let Some(queue) = definition.changes.as_deref().filter(|queue| definition.knows_global_queue(queue)) {
        let what = format!("is {}, which its processes may consume: globalQueues must not list it", quote(queue));
        return Err(Fault::new(what).at("changes"));
    }
    let attributes = definition.global_attributes.iter().flat_map(|table| table.attributes.keys());
    refuse_twice(attributes.map(String::as_str), "attribute").map_err(|fault| fault.at("globalAttributes"))?;
    for (state_id, config) in &definition.states {
        let checked = definition.check_options(config, &definition.global_attributes);
        let checked = checked.and_then(|()| definition.check_static_wait(state_id, None));
        let checked = checked.and_then(|()| definition.check_guards(definition.guards_of(state_id)));
        checked.map_err(|fault| unknown(fault).at(state_id).at("states"))?;
    }
    definition.check_guards(&definition.guards).map_err(unknown)?;
    for (rpc_name, config) in definition.rpcs.iter().flatten() {
        let (global, local) = (config.load_global_attributes.as_ref(), config.load_local_attributes.as_ref());
        check_global_loading(&definition.global_attributes, "loadGlobalAttributes", global)
            .and_then(|()| definition.check_local_loading("loadLocalAttributes", local))
            .map_err(|fault| unknown(fault).at(rpc_name).at("rpcs"))?;
    }
    Ok(())
}

fn unknown(unknown: UnknownName) -> Fault {
    Fault::new(unknown.what).under(&unknown.at)
}
