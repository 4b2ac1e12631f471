//! Reads what workers answer: to `waitUntil`, `execute` and RPCs, and errors.

use crate::children::{CHILD, child, children};
use crate::config::state_config;
use crate::fields::{
    Fault, Object, Parsed, UnknownKeys, boolean, cut, list, moment, name, payload, quote, seconds, string, wrong_number,
};
use crate::functions::{FUNCTION_CALL, function_call, function_calls};
use crate::payload::MAX_PAYLOAD_DEPTH;
use crate::scan::{Rules, scan};
use crate::unknown::Unknown;
use crate::wait::command_request;
use std::ops::RangeInclusive;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;
use xdb_engine::*;

/// Limits on the size of an answer.
#[derive(Clone, Copy, Debug)]
pub struct AnswerLimits {
    /// Limit on each input, message, attribute and output.
    pub max_payload_bytes: usize,
    /// Limit on the whole answer.
    pub max_answer_bytes: usize,
}

/// The most characters that are kept of a worker's error text.
pub const MAX_DETAIL_CHARS: usize = 1000;
const MAX_ERROR_TYPE_CHARS: usize = 200;

/// With these statuses a worker, or a proxy before it, says that it can't accept a call now.
const TAKES_NO_CALL: [u16; 2] = [429, 503];

/// An answer may be nested deeper than a payload, because the protocol adds levels around it.
const MAX_ANSWER_DEPTH: usize = MAX_PAYLOAD_DEPTH + 16;

/// The keys of an answer: the given ones, and the keys of its effects.
macro_rules! keys {
    ($($own:literal),*) => {
        &[$($own,)* "publishToLocalQueue", "publishToGlobalQueue", "writeToLocalAttributes", "writeToGlobalAttributes", "startProcesses", "callFunctions"]
    };
}

/// The context for reading any part of an answer.
#[derive(Clone, Copy)]
struct AnswerReader<'r> {
    limits: &'r AnswerLimits,
    unknown: &'r Unknown,
}

impl<'r> AnswerReader<'r> {
    /// An object that may have unknown keys: a worker may be newer than the engine.
    fn object(self, text: &'r str, known: &'static [&'static str]) -> Parsed<Object<'r>> {
        Ok(Object::read(text, UnknownKeys::Noted(self.unknown))?.knowing(known))
    }

    fn payload(self, text: &str) -> Parsed<Json> {
        payload(text, self.limits.max_payload_bytes)
    }
}

/// Reads the body of a 200 to `waitUntil`. The error says what is wrong with it. Unknown keys become `warnings` of the
/// effects, or part of the error.
pub fn decode_wait_until(body: &[u8], limits: &AnswerLimits) -> Result<WaitUntilAnswer, String> {
    let ((request, effects), warnings) = decode(body, "the answer", limits, |reader, text| {
        let mut object = reader.object(text, keys!("commandRequest"))?;
        let request =
            object.required("commandRequest", |text| command_request(text, UnknownKeys::Noted(reader.unknown)))?;
        Ok((request, effects(&mut object, reader)?))
    })?;
    Ok(WaitUntilAnswer { request, effects: Effects { warnings, ..effects } })
}

/// Reads the next states that a caller gives, in the form of an answer's `nextStates`. The list may be empty. The error
/// says what is wrong.
pub fn decode_next_states(text: &str, limits: &AnswerLimits) -> Result<Vec<StateMovement>, String> {
    let (movements, warnings) =
        decode(text.as_bytes(), "it", limits, |reader, text| list(text, |text| movement(text, reader)))?;
    match warnings.into_iter().next() {
        Some(unknown) => Err(unknown),
        None => Ok(movements),
    }
}

/// What a worker answers to `execute`.
#[derive(Clone, Debug, PartialEq)]
pub enum Executed {
    /// A decision: where the thread goes.
    Decided(ExecuteAnswer),
    /// A failed attempt whose effects are applied nevertheless.
    Retry(Retried),
}

impl Executed {
    /// The effects of the answer.
    pub fn effects(&self) -> &Effects {
        match self {
            Self::Decided(answer) => &answer.effects,
            Self::Retry(retried) => &retried.effects,
        }
    }
}

/// A failed attempt with effects.
#[derive(Clone, Debug, PartialEq)]
pub struct Retried {
    pub failure: Failure,
    pub further: Further,
    pub effects: Effects,
}

/// The state decision of an answer to `execute`.
enum Choice {
    Decision(Decision),
    Retry(Failure, Further),
}

/// Reads the body of a 200 to `execute`, in the same way as [`decode_wait_until`].
pub fn decode_execute(body: &[u8], limits: &AnswerLimits) -> Result<Executed, String> {
    let ((choice, effects), warnings) = decode(body, "the answer", limits, |reader, text| {
        let mut object = reader.object(text, keys!("stateDecision", "abortStates"))?;
        let choice = object.required("stateDecision", |text| choice(text, reader))?;
        let abort_states = object.optional("abortStates", abort_states)?.flatten();
        Ok((choice, Effects { abort_states, ..effects(&mut object, reader)? }))
    })?;
    let effects = Effects { warnings, ..effects };
    Ok(match choice {
        Choice::Decision(decision) => Executed::Decided(ExecuteAnswer { decision, effects }),
        Choice::Retry(failure, further) => Executed::Retry(Retried { failure, further, effects }),
    })
}

/// Reads the body of a 200 to an RPC, in the same way as [`decode_wait_until`].
pub fn decode_rpc(body: &[u8], limits: &AnswerLimits) -> Result<RpcAnswer, String> {
    let (answer, warnings) = decode(body, "the answer", limits, |reader, text| {
        let mut object = reader.object(text, keys!("output", "stateDecision", "abortStates"))?;
        let abort_states = object.optional("abortStates", abort_states)?.flatten();
        Ok(RpcAnswer {
            output: object.optional("output", |text| payload(text, limits.max_payload_bytes))?,
            decision: object.optional("stateDecision", |text| match decision(text, reader)? {
                Decision::ConditionalClose { .. } => {
                    Err(Fault::new("is not possible in the answer of an RPC").at("conditionalClose"))
                }
                decision => Ok(decision),
            })?,
            effects: Effects { abort_states, ..effects(&mut object, reader)? },
        })
    })?;
    Ok(RpcAnswer { effects: Effects { warnings, ..answer.effects }, ..answer })
}

/// The fields of an object in which a worker describes its failure.
#[derive(Default)]
struct StatedFailure {
    error_type: Option<String>,
    detail: Option<String>,
    further: Further,
    /// The object has a field about further attempts, valid or not.
    states_further: bool,
    /// The problems of these fields.
    warnings: Vec<String>,
}

/// The longest time until the next attempt that a worker can ask for: ten years.
const MAX_RETRY_AFTER_SECONDS: f64 = 3652.5 * 86_400.0;

fn stated_failure(text: &str) -> Option<StatedFailure> {
    scan(text, &Rules { max_depth: MAX_ANSWER_DEPTH, jsonb: false }).ok()?;
    let mut object = Object::read(text, UnknownKeys::Ignored).ok()?;
    let error_type = object.optional("errorType", string).ok().flatten();
    let detail = object.optional("detail", |text| Ok(string(text).unwrap_or_else(|_| text.to_owned())));
    let detail = detail.ok().flatten().filter(|detail| !detail.trim().is_empty());
    let mut stated = StatedFailure { error_type, detail, ..StatedFailure::default() };
    let after = object.optional("retryAfterSeconds", retry_after);
    let is_final = object.optional("final", |text| Ok(boolean(text)?.then_some(Further::Never)));
    // Invalid fields change nothing but become warnings. The attempt has failed in any case.
    for field in [after, is_final.map(Option::flatten)] {
        stated.states_further |= !matches!(field, Ok(None));
        match field {
            Ok(further) => stated.further = further.unwrap_or(stated.further),
            Err(fault) => stated.warnings.push(fault.message("the error")),
        }
    }
    Some(stated)
}

fn retry_after(text: &str) -> Parsed<Further> {
    match seconds(text)? {
        longer if longer > MAX_RETRY_AFTER_SECONDS => {
            Err(wrong_number(text, format_args!("be at most {MAX_RETRY_AFTER_SECONDS}, ten years")))
        }
        after => Ok(Further::After(Duration::from_seconds(after))),
    }
}

fn kept_error_type(word: Option<String>) -> Option<String> {
    word.map(|word| printable(&word, MAX_ERROR_TYPE_CHARS)).filter(|word| !word.is_empty())
}

/// The seconds in a header `Retry-After`: a whole number, or the time until an HTTP date. A date is compared with the
/// answer's own `Date`, else with `now` in Unix seconds. A date up to a minute in the past gives 1.
pub fn retry_after_seconds(value: &str, date: Option<&str>, now: i64) -> Option<u64> {
    let value = value.trim();
    // Digits only: `parse` would accept a sign too.
    if value.bytes().all(|byte| byte.is_ascii_digit()) {
        return value.parse().ok();
    }
    let unix = |text: &str| OffsetDateTime::parse(text, &Rfc2822).ok().map(OffsetDateTime::unix_timestamp);
    match unix(value)? - date.map(str::trim).and_then(unix).unwrap_or(now) {
        -60..=0 => Some(1),
        seconds => u64::try_from(seconds).ok(),
    }
}

/// If the `Retry-After` of a 429 or 503 is in this range of seconds, the attempt does not count.
const REPEATS_AFTER: RangeInclusive<u64> = 1..=60;

/// Reads an answer with any status other than 200: the failure, and what the worker says about further attempts.
/// `retry_after` is the result of [`retry_after_seconds`] for its header. Any body is accepted.
pub fn decode_error(status: u16, retry_after: Option<u64>, body: &[u8]) -> (Failure, Further) {
    let StatedFailure { error_type, detail, further, states_further, warnings } =
        std::str::from_utf8(body).ok().and_then(stated_failure).unwrap_or_default();
    let further = match retry_after.filter(|seconds| REPEATS_AFTER.contains(seconds)) {
        Some(seconds) if TAKES_NO_CALL.contains(&status) && !states_further => {
            Further::Repeat(Duration::from_seconds(seconds as f64))
        }
        _ => further,
    };
    let detail = match (detail, &error_type) {
        (Some(detail), _) => printable(&detail, MAX_DETAIL_CHARS),
        (None, Some(error_type)) => {
            format!("the worker answered with status {status} and error type {}", quote(error_type))
        }
        (None, None) => {
            // A character has at most four bytes. The rest of a huge body is not read.
            let start = &body[..body.len().min(4 * MAX_DETAIL_CHARS)];
            let lossy = String::from_utf8_lossy(start);
            let words: Vec<&str> = lossy.split_whitespace().collect();
            if words.is_empty() {
                format!("the worker answered with status {status} and no body")
            } else {
                let all = format!("the worker answered with status {status}: {}", words.join(" "));
                printable(&all, MAX_DETAIL_CHARS)
            }
        }
    };
    let error_type = kept_error_type(error_type);
    let detail = match warnings.iter().map(|warning| warning.chars().count() + 2).sum() {
        0 => detail,
        room => with_warnings(printable(&detail, MAX_DETAIL_CHARS.saturating_sub(room)), &warnings),
    };
    (Failure { status: Some(status), error_type, detail, ..Failure::default() }, further)
}

/// Reads the failure that a pull worker reports: the fields of the decision `retry`, without unknown keys. The error
/// type [`NOT_REGISTERED`] says that the answer, or the call itself, belongs to another version.
pub fn decode_failure(text: &str) -> Result<(Failure, Further), String> {
    scan(text, &Rules { max_depth: MAX_ANSWER_DEPTH, jsonb: false }).map_err(|error| format!("it {error}"))?;
    let read = || {
        let mut object = Object::read(text, UnknownKeys::Refused)?;
        let read = failure(&mut object, "the worker has failed the call")?;
        object.finish(read)
    };
    let (failure, further) = read().map_err(|fault: Fault| fault.message("it"))?;
    let waits = further == Further::ByPolicy && failure.error_type.as_deref() == Some(NOT_REGISTERED);
    let further = if waits { Further::WhenRegistered } else { further };
    Ok((Failure { status: None, ..failure }, further))
}

/// The failure of a 200 that can't be applied.
pub fn invalid_answer(what: String) -> Failure {
    Failure { status: Some(200), ..Failure::of("InvalidAnswer", what) }
}

/// Decides what follows an answer that the engine rejects: a failed attempt, or a repeat if a registration could make
/// the answer valid.
pub fn rejected_answer(rejection: &Rejection) -> (Failure, Further) {
    let invalid = invalid_answer(rejection.to_string());
    if !rejection.is_unregistered() {
        return (invalid, Further::ByPolicy);
    }
    let (failure, further) = unregistered(invalid.detail);
    (Failure { status: invalid.status, ..failure }, further)
}

/// Decides what follows a call of a state that the current registration does not list.
pub fn unlisted_state(state_id: &str) -> (Failure, Further) {
    unregistered(format!("unknown state \"{state_id}\": the process type does not list it"))
}

/// Decides what follows a call that needs something that is not registered, before or after the worker answered.
pub fn unregistered(what: String) -> (Failure, Further) {
    (Failure::of(NOT_REGISTERED, what), Further::WhenRegistered)
}

/// The text without control characters except line breaks and tabs, cut to `chars` characters.
fn printable(text: &str, chars: usize) -> String {
    let mut kept: String = cut(text, chars)
        .chars()
        .map(|c| if c.is_control() && c != '\n' && c != '\t' { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if text.chars().nth(chars).is_some() {
        kept.pop();
        kept.push('…');
    }
    kept
}

/// The decoded answer, and a warning for each unknown key. `whole` is its name in messages.
fn decode<T>(
    body: &[u8],
    whole: &str,
    limits: &AnswerLimits,
    read: impl FnOnce(AnswerReader<'_>, &str) -> Parsed<T>,
) -> Result<(T, Vec<String>), String> {
    if body.len() > limits.max_answer_bytes {
        let most = limits.max_answer_bytes;
        return Err(format!("{whole} has {} bytes, and xdb.max_response_size is {most}", body.len()));
    }
    let text = std::str::from_utf8(body).map_err(|error| format!("{whole} is not UTF-8: {error}"))?;
    if text.trim_ascii().is_empty() {
        return Err(format!("{whole} is empty"));
    }
    // This check comes first: it limits the depth, so all later recursion is bounded.
    scan(text, &Rules { max_depth: MAX_ANSWER_DEPTH, jsonb: false }).map_err(|error| format!("{whole} {error}"))?;
    let unknown = Unknown::default();
    let made = read(AnswerReader { limits, unknown: &unknown }, text);
    let warnings = unknown.warnings();
    match made {
        Ok(made) => Ok((made, warnings)),
        Err(fault) => Err(with_warnings(fault.message(whole), &warnings)),
    }
}

/// A message followed by its warnings.
pub fn with_warnings(mut what: String, warnings: &[String]) -> String {
    for warning in warnings {
        what.push_str("; ");
        what.push_str(warning);
    }
    what
}

fn effects(object: &mut Object<'_>, reader: AnswerReader<'_>) -> Parsed<Effects> {
    let value = |text: &str| reader.payload(text);
    Ok(Effects {
        publish_to_local_queue: object.list_of("publishToLocalQueue", |text| publish(text, reader))?,
        publish_to_global_queue: object.list_of("publishToGlobalQueue", |text| publish_globally(text, reader))?,
        write_local_attributes: object.map_of("writeToLocalAttributes", value)?,
        write_global_attributes: object.map_of("writeToGlobalAttributes", value)?,
        start_processes: children(object, |text| child(reader.object(text, CHILD)?, reader.limits.max_payload_bytes))?,
        call_functions: function_calls(object, |text| {
            function_call(reader.object(text, FUNCTION_CALL)?, reader.limits.max_payload_bytes)
        })?,
        abort_states: None,
        warnings: Vec::new(),
    })
}

/// The most names in `abortStates`.
const MAX_ABORTED_NAMES: usize = 1000;

fn abort_states(text: &str) -> Parsed<Option<AbortStates>> {
    let names = list(text, name)?;
    if names.len() > MAX_ABORTED_NAMES {
        return Err(Fault::new(format!("has {} names; the limit is {MAX_ABORTED_NAMES}", names.len())));
    }
    match names.as_slice() {
        [] => Ok(None),
        [all] if all == "*" => Ok(Some(AbortStates::All)),
        _ => Ok(Some(AbortStates::Named(names.into_iter().collect()))),
    }
}

fn publish(text: &str, reader: AnswerReader<'_>) -> Parsed<Publish> {
    let mut object = reader.object(text, &["queueName", "messageId", "payload"])?;
    Ok(Publish {
        queue: object.required("queueName", name)?,
        message_id: object.optional("messageId", name)?,
        payload: object.optional("payload", |text| reader.payload(text))?,
    })
}

fn publish_globally(text: &str, reader: AnswerReader<'_>) -> Parsed<GlobalPublish> {
    let mut object = reader.object(text, &["queueName", "key", "messageId", "payload", "ttlSeconds"])?;
    Ok(GlobalPublish {
        queue: object.required("queueName", name)?,
        key: object.optional("key", name)?,
        message_id: object.optional("messageId", name)?,
        payload: object.optional("payload", |text| reader.payload(text))?,
        ttl: object.optional("ttlSeconds", |text| seconds(text).map(Duration::from_seconds))?,
    })
}

/// The keys of a decision, except `retry`.
const DECISIONS: &[&str] = &["nextStates", "threadCloseDecision", "conditionalClose"];

fn choice(text: &str, reader: AnswerReader<'_>) -> Parsed<Choice> {
    let mut object = reader.object(text, &["retry", "nextStates", "threadCloseDecision", "conditionalClose"])?;
    match object.optional("retry", |text| retry(text, reader))? {
        None => decision_of(object, reader).map(Choice::Decision),
        Some(_) if object.has_any(DECISIONS) => Err(Fault::new("has both retry and another decision")),
        Some((failure, further)) => Ok(Choice::Retry(failure, further)),
    }
}

fn retry(text: &str, reader: AnswerReader<'_>) -> Parsed<(Failure, Further)> {
    failure(&mut reader.object(text, FAILURE)?, "the worker asked for a retry")
}

/// The keys of a failure.
const FAILURE: &[&str] = &["errorType", "detail", "retryAfterSeconds", "final"];

fn failure(object: &mut Object<'_>, without_detail: &str) -> Parsed<(Failure, Further)> {
    let error_type = object.optional("errorType", string)?;
    let detail = object.optional("detail", string)?.filter(|detail| !detail.trim().is_empty());
    let after = object.optional("retryAfterSeconds", retry_after)?;
    let further = match object.optional("final", boolean)? {
        Some(true) => Further::Never,
        _ => after.unwrap_or_default(),
    };
    let detail = detail.map_or_else(|| without_detail.to_owned(), |detail| printable(&detail, MAX_DETAIL_CHARS));
    let error_type = kept_error_type(error_type);
    Ok((Failure { status: Some(200), error_type, detail, ..Failure::default() }, further))
}

fn decision(text: &str, reader: AnswerReader<'_>) -> Parsed<Decision> {
    decision_of(reader.object(text, DECISIONS)?, reader)
}

fn decision_of(mut object: Object<'_>, reader: AnswerReader<'_>) -> Parsed<Decision> {
    let next_states = object.list_of("nextStates", |text| movement(text, reader))?;
    let thread_close = object.optional("threadCloseDecision", |text| {
        let mut object = reader.object(text, &["closeType", "closeInput"])?;
        close(&mut object, CloseType::WORDS, reader)
    })?;
    let conditional = object.optional("conditionalClose", |text| conditional_close(text, reader))?;
    match (next_states.is_empty(), thread_close, conditional) {
        (false, None, None) => Ok(Decision::NextStates(next_states)),
        (true, Some((close_type, output)), None) => Ok(Decision::Close { close_type, output }),
        (false, None, Some((close_type, output, queues))) => {
            Ok(Decision::ConditionalClose { close_type, queues, output, otherwise: next_states })
        }
        (true, None, Some(_)) => Err(Fault::new("has a conditionalClose without nextStates to go to otherwise")),
        (true, None, None) => {
            Err(Fault::new("decides nothing: it has neither nextStates nor threadCloseDecision nor conditionalClose"))
        }
        (_, Some(_), Some(_)) => Err(Fault::new("has both threadCloseDecision and conditionalClose")),
        (false, Some(_), None) => Err(Fault::new("has both nextStates and threadCloseDecision")),
    }
}

fn close(object: &mut Object<'_>, known: &[&str], reader: AnswerReader<'_>) -> Parsed<(CloseType, Option<Json>)> {
    let parse = |word: &str| CloseType::parse(word).filter(|close_type| known.contains(&close_type.as_str()));
    let close_type = object.required_word("closeType", known, parse)?;
    let output = object.optional("closeInput", |text| reader.payload(text))?;
    Ok((close_type, output))
}

fn conditional_close(text: &str, reader: AnswerReader<'_>) -> Parsed<(CloseType, Option<Json>, Vec<String>)> {
    let known = [CloseType::GracefulComplete.as_str(), CloseType::ForceComplete.as_str()];
    let mut object = reader.object(text, &["closeType", "closeInput", "whenLocalQueuesEmpty"])?;
    let (close_type, output) = close(&mut object, &known, reader)?;
    let queues = object.list_of("whenLocalQueuesEmpty", name)?;
    if queues.is_empty() {
        return Err(Fault::new("names no queue").at("whenLocalQueuesEmpty"));
    }
    Ok((close_type, output, queues))
}

fn movement(text: &str, reader: AnswerReader<'_>) -> Parsed<StateMovement> {
    let mut object = reader.object(text, &["stateId", "stateInput", "stateConfig", "delayInSeconds", "startAt"])?;
    Ok(StateMovement {
        state_id: object.required("stateId", name)?,
        input: object.optional("stateInput", |text| reader.payload(text))?,
        config: object
            .optional("stateConfig", |text| state_config(text, UnknownKeys::Noted(reader.unknown)))?
            .map(Box::new),
        begin: begin(&mut object)?,
    })
}

fn begin(object: &mut Object<'_>) -> Parsed<Begin> {
    let delay = object.optional("delayInSeconds", seconds)?;
    match (delay, object.optional("startAt", moment)?) {
        (None, None) => Ok(Begin::AtOnce),
        (Some(delay), None) => Ok(Begin::After(Duration::from_seconds(delay))),
        (None, Some(at)) => Ok(Begin::At(at)),
        (Some(_), Some(_)) => Err(Fault::new("has both delayInSeconds and startAt")),
    }
}
