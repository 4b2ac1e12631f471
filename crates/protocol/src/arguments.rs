//! Checks the arguments of SQL functions: names, payloads, keys, times. Limitations: nothing is looked up in the
//! database.

use crate::answer::{AnswerLimits, decode_next_states};
use crate::fields::MAX_NAME_BYTES;
use crate::payload::check_payload;
use crate::refusal::{self, Refusal};
use std::collections::BTreeMap;
use xdb_engine::{
    Command, Definition, Duration, Json, LongerCall, Pause, PauseMode, RpcConfig, StateExecutionId, StateMovement,
    StopType, TableMapping, Timestamp,
};

type Checked<T> = std::result::Result<T, Refusal>;

/// Longest reason of a stop or a pause, in bytes.
const MAX_REASON_BYTES: usize = 10_000;

/// An argument that is required.
pub fn needed<T>(argument: &str, value: Option<T>) -> Checked<T> {
    value.ok_or_else(|| refusal::missing(argument))
}

/// Refuses an argument that was read as `Some(None)`: an infinite time, or a negative length of time. `else_it` says
/// what the argument must be.
pub fn valid<T>(argument: &str, given: Option<Option<T>>, else_it: &str) -> Checked<Option<T>> {
    match given {
        Some(None) => Err(refusal::invalid_argument(argument, format_args!("it must {else_it}"))),
        given => Ok(given.flatten()),
    }
}

/// A length of time greater than zero.
pub fn positive(argument: &str, given: Option<Option<Duration>>) -> Checked<Option<Duration>> {
    valid(argument, given.map(|length| length.filter(|length| *length > Duration(0))), "be positive")
}

/// The timeout of an RPC that its caller asks for, within the limit.
pub fn rpc_timeout(given: Option<Option<Duration>>, limit: Duration) -> Checked<Option<Duration>> {
    let timeout = positive("timeout", given)?;
    match timeout.and_then(|timeout| LongerCall::of(timeout, limit)) {
        Some(longer) => Err(refusal::over_quota(longer.to_string())),
        None => Ok(timeout),
    }
}

/// The options of this RPC. The error lists the RPCs of the definition.
pub fn rpc(definition: &Definition, rpc_name: &str) -> Checked<RpcConfig> {
    let known = || definition.rpcs.iter().flat_map(|rpcs| rpcs.keys().map(String::as_str)).collect::<Vec<_>>();
    definition.rpc(rpc_name).ok_or_else(|| refusal::unknown_word("rpc_name", rpc_name, &known()))
}

/// A required name: not empty, and at most [`MAX_NAME_BYTES`] long.
pub fn name(argument: &str, value: Option<String>) -> Checked<String> {
    let value = needed(argument, value)?;
    check_length(argument, "it", &value, MAX_NAME_BYTES)?;
    Ok(value)
}

/// An optional name.
pub fn name_if_given(argument: &str, value: Option<String>) -> Checked<Option<String>> {
    value.map(|value| name(argument, Some(value))).transpose()
}

/// The optional reason of a stop or a pause.
fn reason(value: Option<String>) -> Checked<Option<String>> {
    match value.as_ref().map(String::len).filter(|length| *length > MAX_REASON_BYTES) {
        Some(length) => {
            let what = format_args!("it is {length} bytes long; at most {MAX_REASON_BYTES} are allowed");
            Err(refusal::invalid_argument("reason", what))
        }
        None => Ok(value),
    }
}

/// The command that stops a process.
pub fn stop(stop_type: Option<String>, why: Option<String>) -> Checked<Command> {
    let word = needed("stop_type", stop_type)?;
    let known = StopType::parse(&word);
    let stop_type = known.ok_or_else(|| refusal::unknown_word("stop_type", &word, StopType::WORDS))?;
    Ok(Command::Stop { stop_type, reason: reason(why)? })
}

/// The next states and the reason of a move.
pub fn move_to(
    next_states: Option<String>,
    why: Option<String>,
    limits: &AnswerLimits,
) -> Checked<(Vec<StateMovement>, Option<String>)> {
    let text = needed("next_states", next_states)?;
    let next = decode_next_states(&text, limits).map_err(|what| refusal::invalid_argument("next_states", what))?;
    Ok((next, reason(why)?))
}

/// A pause that begins now.
pub fn pause(
    mode: Option<String>,
    until: Option<Option<Timestamp>>,
    why: Option<String>,
    now: Timestamp,
) -> Checked<Pause> {
    let until = valid("until", until, "be finite")?;
    let word = needed("mode", mode)?;
    let mode = PauseMode::parse(&word).ok_or_else(|| refusal::unknown_word("mode", &word, PauseMode::WORDS))?;
    let pause = Pause { mode, until, reason: reason(why)? };
    match pause.is_over(now) {
        true => Err(refusal::invalid_argument("until", "it must not be in the past")),
        false => Ok(pause),
    }
}

/// Checks that `what` of the argument has between one and `limit` bytes.
fn check_length(argument: &str, what: &str, text: &str, limit: usize) -> Checked<()> {
    match text.len() {
        0 => Err(refusal::invalid_argument(argument, format_args!("{what} must not be empty"))),
        length if length > limit => {
            let what = format_args!("{what} is {length} bytes long; at most {limit} are allowed");
            Err(refusal::invalid_argument(argument, what))
        }
        _ => Ok(()),
    }
}

/// A payload. Both absent and JSON null give None.
pub fn payload(argument: &str, text: Option<&str>, max_bytes: usize) -> Checked<Option<Json>> {
    let Some(text) = text.filter(|text| *text != "null") else { return Ok(None) };
    check(argument, text, max_bytes).map(Some)
}

fn check(argument: &str, text: &str, max_bytes: usize) -> Checked<Json> {
    check_payload(text, max_bytes).map_err(|what| refusal::payload(argument, what))
}

/// Checks a JSON object of payloads.
pub fn payloads(argument: &str, text: Option<&str>, max_bytes: usize) -> Checked<BTreeMap<String, Json>> {
    let Some(text) = text.filter(|text| *text != "null") else { return Ok(BTreeMap::new()) };
    let members: BTreeMap<String, Json> =
        serde_json::from_str(text).map_err(|_| refusal::invalid_argument(argument, "it must be a JSON object"))?;
    for (key, value) in &members {
        check_length(argument, "a key of it", key, MAX_NAME_BYTES)?;
        check(&format!("{argument}.{key}"), value.as_str(), max_bytes)?;
    }
    Ok(members)
}

/// Reads the id of a step.
pub fn state_execution_id(text: Option<String>) -> Checked<StateExecutionId> {
    const ARGUMENT: &str = "state_execution_id";
    // The longest id of a state, a hyphen, and the digits of the largest number.
    const LIMIT: usize = MAX_NAME_BYTES + 1 + 10;
    let text = needed(ARGUMENT, text)?;
    check_length(ARGUMENT, "it", &text, LIMIT)?;
    match text.parse::<StateExecutionId>() {
        Ok(id) if !id.state_id.is_empty() && id.to_string() == text => Ok(id),
        _ => {
            let what = format_args!("\"{text}\" is not the id of a step, like \"Submit-1\"");
            Err(refusal::invalid_argument(ARGUMENT, what))
        }
    }
}

/// The key values of each mapped table. `single` is the key if there is only one table with one key column. `named`
/// gives keys by table and column.
pub fn row_keys(
    mapping: &[TableMapping],
    single: Option<&str>,
    named: &BTreeMap<String, BTreeMap<String, Json>>,
) -> Checked<Vec<Vec<String>>> {
    if mapping.is_empty() {
        let what = "the process type maps no table";
        return match single.is_some() {
            true => Err(refusal::invalid_argument("global_attribute_pk", what)),
            false if !named.is_empty() => Err(refusal::invalid_argument("options.globalAttributeKeys", what)),
            false => Ok(Vec::new()),
        };
    }
    if let Some(unknown) = named.keys().find(|name| !mapping.iter().any(|table| table.table == **name)) {
        let known: Vec<_> = mapping.iter().map(|table| table.table.as_str()).collect();
        return Err(refusal::unknown_word("options.globalAttributeKeys", unknown, &known));
    }
    if single.is_some() && mapping.iter().all(|table| table.primary_key.len() > 1) {
        let what = "no table that the process type maps has a key of one column";
        return Err(refusal::invalid_argument("global_attribute_pk", what));
    }
    let needs_key = |table: &TableMapping| table.primary_key.len() == 1 && !named.contains_key(&table.table);
    let of_one: Vec<_> = mapping.iter().filter(|table| needs_key(table)).map(|table| table.table.as_str()).collect();
    match of_one.len() {
        0 if single.is_some() => {
            let what = "options.globalAttributeKeys already has the keys of all tables whose key has one column";
            return Err(refusal::invalid_argument("global_attribute_pk", what));
        }
        2.. if single.is_some() => {
            let tables = of_one.join(", ");
            let what = format!(
                "it could be the key of each of the tables {tables}: give each key in options.globalAttributeKeys"
            );
            return Err(refusal::invalid_argument("global_attribute_pk", what));
        }
        _ => {}
    }
    mapping.iter().map(|table| key_of(table, named.get(&table.table), single)).collect()
}

/// The key values of one table, in the order of its key columns.
fn key_of(table: &TableMapping, named: Option<&BTreeMap<String, Json>>, single: Option<&str>) -> Checked<Vec<String>> {
    match (named, single) {
        (Some(columns), _) => {
            let values = table.primary_key.iter().filter_map(|column| columns.get(column));
            let values: Vec<_> = values.map(key_text).collect();
            if values.len() == table.primary_key.len() && values.len() == columns.len() {
                return Ok(values);
            }
            let word = if table.primary_key.len() == 1 { "column" } else { "columns" };
            let needed = table.primary_key.join(", ");
            let what = format!("table {} needs the key {word} {needed} and no other", table.table);
            Err(refusal::invalid_argument("options.globalAttributeKeys", what))
        }
        (None, Some(key)) if table.primary_key.len() == 1 => Ok(vec![key.to_owned()]),
        (None, _) => {
            let what = format!("the process type maps table {}, so the key of its row is needed", table.table);
            Err(match table.primary_key.len() {
                1 => refusal::invalid_argument("global_attribute_pk", what),
                _ => refusal::invalid_argument("options.globalAttributeKeys", what),
            })
        }
    }
}

/// A key value as text: strings without quotes, numbers and booleans as written.
pub fn key_text(value: &Json) -> String {
    serde_json::from_str::<String>(value.as_str()).unwrap_or_else(|_| value.as_str().to_owned())
}
