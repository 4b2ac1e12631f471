//! Reads and checks the parameters of a start, for the server and for the simulator.

use crate::arguments::{name, name_if_given, needed, payload, payloads, valid};
use crate::refusal::{self, Refusal, invalid_argument};
use crate::{StartOptions, parse_start_options};
use xdb_engine::{Duration, ExecutionId, IdReusePolicy, Start, Timestamp};

/// The parameters of a start as given. JSON parameters are text.
#[derive(Default)]
pub struct GivenStart {
    pub process_id: Option<String>,
    pub process_type: Option<String>,
    pub input: Option<String>,
    pub global_attribute_pk: Option<String>,
    pub global_attributes: Option<String>,
    pub local_attributes: Option<String>,
    pub id_reuse_policy: Option<String>,
    /// `Some(None)` is a negative timeout.
    pub timeout: Option<Option<Duration>>,
    /// `Some(None)` is an infinite time.
    pub start_at: Option<Option<Timestamp>>,
    pub options: Option<String>,
}

/// A start with checked parameters.
pub struct StartRequest {
    pub start: Start,
    /// The argument `global_attribute_pk`.
    pub key: Option<String>,
    pub policy: IdReusePolicy,
    pub options: StartOptions,
}

impl StartRequest {
    /// Checks the parameters. `place` precedes their names in errors. `id` is the process id if none is given.
    pub fn read(place: &str, given: GivenStart, id: ExecutionId, max_payload_bytes: usize) -> Result<Self, Refusal> {
        let at = |argument: &str| format!("{place}{argument}");
        let attributes =
            |argument: &str, text: Option<String>| payloads(&at(argument), text.as_deref(), max_payload_bytes);
        let own_id = name_if_given(&at("process_id"), given.process_id)?;
        let has_own_id = own_id.is_some();
        let process_id = own_id.unwrap_or_else(|| id.to_string());
        let process_type = name(&at("process_type"), given.process_type)?;
        let input = payload(&at("input"), given.input.as_deref(), max_payload_bytes)?;
        let global_attributes = attributes("global_attributes", given.global_attributes)?;
        let local_attributes = attributes("local_attributes", given.local_attributes)?;
        let word = needed(&at("id_reuse_policy"), given.id_reuse_policy)?;
        let policy = IdReusePolicy::parse(&word)
            .ok_or_else(|| refusal::unknown_word(&at("id_reuse_policy"), &word, IdReusePolicy::WORDS))?;
        let timeout = valid(&at("timeout"), given.timeout, "not be negative")?;
        let start_at = valid(&at("start_at"), given.start_at, "be finite")?;
        let options = match given.options.filter(|text| text != "null") {
            Some(text) => parse_start_options(&text).map_err(|what| invalid_argument(&at("options"), what))?,
            None => StartOptions::default(),
        };
        let not_merged = [("process_id", has_own_id), ("global_attributes", !global_attributes.is_empty())];
        if options.correlation.is_some()
            && let Some((argument, _)) = not_merged.into_iter().find(|(_, is_given)| *is_given)
        {
            let what = "it can't be given with options.correlationKey: the start may be merged into another one";
            return Err(invalid_argument(&at(argument), what));
        }
        if !has_own_id && options.request_id.is_some() {
            let what = "it needs a process_id: request ids are compared within one process id";
            return Err(invalid_argument(&at("options.requestId"), what));
        }
        let start = Start {
            process_id,
            process_type,
            input,
            local_attributes,
            global_attributes,
            call_functions: options.call_functions.clone(),
            timeout,
            starting_state: options.starting_state.clone(),
            starting_state_config: options.starting_state_config.clone(),
            priority: options.priority,
            locks: options.locks.clone(),
            start_at,
            started_by: None,
        };
        Ok(Self { start, key: given.global_attribute_pk, policy, options })
    }
}
