//! Reads state options, in definitions, start options and state movements.

use crate::fields::{
    Fault, Object, Parsed, UnknownKeys, boolean, list, name, number, seconds, whole, word, wrong_number,
};
use crate::wait::command_request;
use xdb_engine::{FailurePolicy, FailureRecovery, LoadPolicy, Loading, LockType, RetryPolicy, StateConfig};

/// Options may contain the options of the state to proceed to, and so on. Stored options are read again by a reader
/// with a limit of 128 JSON levels. A few levels are enough in practice.
const MAX_NESTED_OPTIONS: usize = 16;

/// The keys of each object.
const STATE_CONFIG: &[&str] = &[
    "skipWaitUntil",
    "waitUntilApiTimeoutSeconds",
    "executeApiTimeoutSeconds",
    "waitUntilApiRetryPolicy",
    "executeApiRetryPolicy",
    "stateFailureRecoveryOptions",
    "loadGlobalAttributes",
    "loadLocalAttributes",
    "waitUntilLoadGlobalAttributes",
    "executeLoadGlobalAttributes",
    "waitUntilLoadLocalAttributes",
    "executeLoadLocalAttributes",
    "commandRequest",
];
/// Keys that only the options of a registered state have.
const REGISTERED: [&str; 5] = ["waitUntilFunction", "executeFunction", "guards", "interrupting", "compensationStateId"];
const RETRY_POLICY: &[&str] = &[
    "initialIntervalSeconds",
    "backoffCoefficient",
    "maximumIntervalSeconds",
    "maximumAttempts",
    "maximumAttemptsDurationSeconds",
];
const FAILURE_RECOVERY: &[&str] = &["policy", "stateFailureProceedStateId", "stateFailureProceedStateConfig"];
const LOADING: &[&str] = &["policy", "names", "lockType"];

/// Options of a movement or a start. Only registered options may name functions.
pub(crate) fn state_config(text: &str, unknown: UnknownKeys<'_>) -> Parsed<StateConfig> {
    nested_state_config(text, unknown, MAX_NESTED_OPTIONS)
}

/// Reads the options of a state in a definition.
pub(crate) fn registered_state_config(text: &str) -> Parsed<StateConfig> {
    let mut object = Object::read(text, UnknownKeys::Refused)?;
    let options = options(&mut object, UnknownKeys::Refused, MAX_NESTED_OPTIONS)?;
    let [wait_until, execute, guards, interrupting, compensation] = REGISTERED;
    let registered = StateConfig {
        wait_until_function: object.optional(wait_until, name)?,
        execute_function: object.optional(execute, name)?,
        guards: object.optional(guards, |text| list(text, name))?,
        interrupting: object.optional(interrupting, boolean)?,
        compensation_state_id: object.optional(compensation, name)?,
        ..options
    };
    object.finish(registered)
}

fn nested_state_config(text: &str, unknown: UnknownKeys<'_>, levels_left: usize) -> Parsed<StateConfig> {
    let mut object = Object::read(text, unknown)?.knowing(STATE_CONFIG);
    if let Some(function) = REGISTERED.into_iter().find(|key| object.has_any(&[*key])) {
        return Err(Fault::new("is only allowed for the states of a definition").at(function));
    }
    let options = options(&mut object, unknown, levels_left)?;
    object.finish(options)
}

fn options(object: &mut Object<'_>, unknown: UnknownKeys<'_>, levels_left: usize) -> Parsed<StateConfig> {
    let retries = |text| retry_policy(text, unknown);
    let load = |text| loading(text, unknown);
    Ok(StateConfig {
        skip_wait_until: object.optional("skipWaitUntil", boolean)?,
        wait_until_api_timeout_seconds: call_timeout(object, "waitUntilApiTimeoutSeconds")?,
        execute_api_timeout_seconds: call_timeout(object, "executeApiTimeoutSeconds")?,
        wait_until_api_retry_policy: object.optional("waitUntilApiRetryPolicy", retries)?,
        execute_api_retry_policy: object.optional("executeApiRetryPolicy", retries)?,
        state_failure_recovery_options: object
            .optional("stateFailureRecoveryOptions", |text| failure_recovery(text, unknown, levels_left))?,
        load_global_attributes: object.optional("loadGlobalAttributes", load)?,
        load_local_attributes: object.optional("loadLocalAttributes", load)?,
        wait_until_load_global_attributes: object.optional("waitUntilLoadGlobalAttributes", load)?,
        execute_load_global_attributes: object.optional("executeLoadGlobalAttributes", load)?,
        wait_until_load_local_attributes: object.optional("waitUntilLoadLocalAttributes", load)?,
        execute_load_local_attributes: object.optional("executeLoadLocalAttributes", load)?,
        command_request: object.optional("commandRequest", |text| command_request(text, unknown))?.map(Box::new),
        guards: None,
        interrupting: None,
        compensation_state_id: None,
        wait_until_function: None,
        execute_function: None,
    })
}

/// The timeout of a call. Zero counts as absent, because a call without any time could never succeed.
pub(crate) fn call_timeout(object: &mut Object<'_>, key: &'static str) -> Parsed<Option<f64>> {
    Ok(object.optional(key, seconds)?.filter(|timeout| *timeout > 0.0))
}

fn retry_policy(text: &str, unknown: UnknownKeys<'_>) -> Parsed<RetryPolicy> {
    let mut object = Object::read(text, unknown)?.knowing(RETRY_POLICY);
    let default = RetryPolicy::default();
    let coefficient = |text: &str| match number(text)? {
        below if below < 1.0 => Err(wrong_number(text, "be at least 1")),
        coefficient => Ok(coefficient),
    };
    let policy = RetryPolicy {
        initial_interval_seconds: object
            .optional("initialIntervalSeconds", seconds)?
            .unwrap_or(default.initial_interval_seconds),
        backoff_coefficient: object.optional("backoffCoefficient", coefficient)?.unwrap_or(default.backoff_coefficient),
        maximum_interval_seconds: object
            .optional("maximumIntervalSeconds", seconds)?
            .unwrap_or(default.maximum_interval_seconds),
        maximum_attempts: object.optional("maximumAttempts", whole)?.unwrap_or(default.maximum_attempts),
        maximum_attempts_duration_seconds: object
            .optional("maximumAttemptsDurationSeconds", seconds)?
            .unwrap_or(default.maximum_attempts_duration_seconds),
    };
    object.finish(policy)
}

fn failure_recovery(text: &str, unknown: UnknownKeys<'_>, levels_left: usize) -> Parsed<FailureRecovery> {
    let mut object = Object::read(text, unknown)?.knowing(FAILURE_RECOVERY);
    let recovery = FailureRecovery {
        policy: object
            .optional("policy", |text| word(text, FailurePolicy::WORDS, FailurePolicy::parse))?
            .unwrap_or_default(),
        state_failure_proceed_state_id: object.optional("stateFailureProceedStateId", name)?,
        state_failure_proceed_state_config: object
            .optional("stateFailureProceedStateConfig", |text| match levels_left.checked_sub(1) {
                Some(levels_left) => nested_state_config(text, unknown, levels_left),
                None => Err(Fault::new(format!("is nested more than {MAX_NESTED_OPTIONS} times"))),
            })?
            .map(Box::new),
    };
    let recovery = object.finish(recovery)?;
    if recovery.policy == FailurePolicy::ProceedToConfiguredState && recovery.state_failure_proceed_state_id.is_none() {
        let what = "is missing: the policy PROCEED_TO_CONFIGURED_STATE needs it";
        return Err(Fault::new(what).at("stateFailureProceedStateId"));
    }
    Ok(recovery)
}

pub(crate) fn loading(text: &str, unknown: UnknownKeys<'_>) -> Parsed<Loading> {
    let mut object = Object::read(text, unknown)?.knowing(LOADING);
    let loading = Loading {
        policy: object.optional("policy", |text| word(text, LoadPolicy::WORDS, LoadPolicy::parse))?.unwrap_or_default(),
        names: object.optional("names", |text| list(text, name))?.unwrap_or_default(),
        lock_type: object
            .optional("lockType", |text| word(text, LockType::WORDS, LockType::parse))?
            .unwrap_or_default(),
    };
    let loading = object.finish(loading)?;
    if loading.policy != LoadPolicy::Partial && !loading.names.is_empty() {
        return Err(Fault::new("needs the policy PARTIAL").at("names"));
    }
    Ok(loading)
}
