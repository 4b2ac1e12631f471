//! Options of a state, as registered with its process type or given with a state movement. Limitations: no option is
//! checked here.

use crate::words;
use crate::{Api, CommandRequest, Duration};
use serde::{Deserialize, Serialize};

/// How failed calls are retried. Absent fields have the defaults of [`RetryPolicy::default`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RetryPolicy {
    /// Time between the first and the second attempt.
    pub initial_interval_seconds: f64,
    /// Factor by which the interval grows with each attempt. Less than 1 counts as 1.
    pub backoff_coefficient: f64,
    /// Longest time between two attempts.
    pub maximum_interval_seconds: f64,
    /// 0: unlimited.
    pub maximum_attempts: u32,
    /// Limit on the time since the first attempt. 0: unlimited.
    pub maximum_attempts_duration_seconds: f64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            initial_interval_seconds: 1.0,
            backoff_coefficient: 2.0,
            maximum_interval_seconds: 100.0,
            maximum_attempts: 0,
            maximum_attempts_duration_seconds: 0.0,
        }
    }
}

words! {
    /// What happens to the process when the retries of a state are spent.
    #[derive(Default)]
    FailurePolicy {
        #[default]
        FailProcess = "FAIL_PROCESS_ON_STATE_FAILURE",
        ProceedToConfiguredState = "PROCEED_TO_CONFIGURED_STATE",
        /// The state stays at its call until an operator requests a retry.
        RaiseIncident = "RAISE_INCIDENT",
        /// What the completed steps did is undone, and then the process fails.
        Compensate = "COMPENSATE_PROCESS",
    }
}

/// What happens when the retries of a state are spent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureRecovery {
    pub policy: FailurePolicy,
    /// The state for `PROCEED_TO_CONFIGURED_STATE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_failure_proceed_state_id: Option<String>,
    /// Overrides the registered options of that state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_failure_proceed_state_config: Option<Box<StateConfig>>,
}

words! {
    /// Whether a call gets all attributes, none, or the named ones.
    #[derive(Default)]
    LoadPolicy {
        #[default]
        All = "ALL",
        None = "NONE",
        Partial = "PARTIAL",
    }
}

words! {
    /// How the attributes that a call gets are protected until its answer is applied.
    #[derive(Default)]
    LockType {
        #[default]
        NoLocking = "NO_LOCKING",
        /// The values have not changed when the answer is applied.
        Share = "SHARE_LOCK",
        /// Loading, call and writing happen under one lock.
        Exclusive = "EXCLUSIVE_LOCK",
    }
}

/// Which attributes a call loads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Loading {
    pub policy: LoadPolicy,
    /// The attributes for `PARTIAL`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub lock_type: LockType,
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Loading {
    /// Whether loaded attributes are locked.
    pub fn locks(&self) -> bool {
        self.lock_type != LockType::NoLocking && self.policy != LoadPolicy::None
    }

    /// Whether the attribute with this name is loaded.
    pub fn wants(&self, name: &str) -> bool {
        match self.policy {
            LoadPolicy::All => true,
            LoadPolicy::None => false,
            LoadPolicy::Partial => self.names.iter().any(|n| n == name),
        }
    }
}

/// Options of a state. If a field is absent, the registered option applies, or else the default.
// Wide because it is an object of the protocol: each field is a key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_wait_until: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_until_api_timeout_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execute_api_timeout_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_until_api_retry_policy: Option<RetryPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execute_api_retry_policy: Option<RetryPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_failure_recovery_options: Option<FailureRecovery>,
    /// For both calls. A call's own option below overrides this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_global_attributes: Option<Loading>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_local_attributes: Option<Loading>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_until_load_global_attributes: Option<Loading>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execute_load_global_attributes: Option<Loading>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_until_load_local_attributes: Option<Loading>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execute_load_local_attributes: Option<Loading>,
    /// What the state waits for, in place of a call of `waitUntil`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_request: Option<Box<CommandRequest>>,
    /// The guards that wait while a step of the state lives. Only registered states have guards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guards: Option<Vec<String>>,
    /// Whether the state, as a guard, ends what it guards when its wait ends. Only registered states have this option.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupting: Option<bool>,
    /// The state that undoes what a completed step of this state did. Only registered states have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compensation_state_id: Option<String>,
    /// Functions of the database that are handlers instead of a worker: schema and name, quoted as in SQL. Only
    /// registered states have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_until_function: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execute_function: Option<String>,
}

/// A call timeout that exceeds the limit, for a message: keys with dots between them, the timeout and the limit.
#[derive(Clone, Debug, PartialEq)]
pub struct LongerCall(String);

impl LongerCall {
    /// Checks the timeout of one call. None: it is within the limit.
    pub fn of(timeout: Duration, limit: Duration) -> Option<Self> {
        Self::at("timeout", Some(timeout.as_std().as_secs_f64()), limit)
    }

    pub(crate) fn at(key: &str, seconds: Option<f64>, limit: Duration) -> Option<Self> {
        let seconds = seconds.filter(|seconds| Duration::from_seconds(*seconds) > limit)?;
        let limit = limit.as_std().as_secs_f64();
        // A long row of zeros is hard to read.
        let seconds = if seconds < 1e15 { seconds.to_string() } else { format!("{seconds:e}") };
        Some(Self(format!("{key} is {seconds} seconds; the limit is {limit}")))
    }

    pub(crate) fn under(self, key: &str) -> Self {
        Self(format!("{key}.{self}"))
    }
}

impl std::fmt::Display for LongerCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn of_api<T>(api: Api, wait_until: T, execute: T) -> T {
    match api {
        Api::WaitUntil => wait_until,
        Api::Execute => execute,
    }
}

/// The call timeout if no option sets one.
pub const DEFAULT_CALL_TIMEOUT_SECONDS: f64 = 10.0;

impl StateConfig {
    /// These options, where each field that `over` sets comes from `over`.
    pub fn overridden_by(&self, over: &StateConfig) -> StateConfig {
        macro_rules! pick {
            ($($field:ident),+ $(,)?) => {
                StateConfig { $($field: over.$field.clone().or_else(|| self.$field.clone())),+ }
            };
        }
        pick!(
            skip_wait_until,
            wait_until_api_timeout_seconds,
            execute_api_timeout_seconds,
            wait_until_api_retry_policy,
            execute_api_retry_policy,
            state_failure_recovery_options,
            load_global_attributes,
            load_local_attributes,
            wait_until_load_global_attributes,
            execute_load_global_attributes,
            wait_until_load_local_attributes,
            execute_load_local_attributes,
            command_request,
            guards,
            interrupting,
            compensation_state_id,
            wait_until_function,
            execute_function,
        )
    }

    /// The function of the database that is the handler. None: a worker is called.
    pub fn function(&self, api: Api) -> Option<&str> {
        of_api(api, &self.wait_until_function, &self.execute_function).as_deref()
    }

    pub(crate) fn timeout_seconds_mut(&mut self, api: Api) -> &mut Option<f64> {
        of_api(api, &mut self.wait_until_api_timeout_seconds, &mut self.execute_api_timeout_seconds)
    }

    /// The time limit of a call.
    pub fn timeout(&self, api: Api) -> Duration {
        let set = of_api(api, self.wait_until_api_timeout_seconds, self.execute_api_timeout_seconds);
        Duration::from_seconds(set.unwrap_or(DEFAULT_CALL_TIMEOUT_SECONDS))
    }

    /// The first timeout in these options that exceeds the limit.
    pub fn longer_call(&self, limit: Duration) -> Option<LongerCall> {
        let calls = [
            ("waitUntilApiTimeoutSeconds", self.wait_until_api_timeout_seconds),
            ("executeApiTimeoutSeconds", self.execute_api_timeout_seconds),
        ];
        let own = calls.into_iter().find_map(|(key, seconds)| LongerCall::at(key, seconds, limit));
        own.or_else(|| {
            let recovery = self.state_failure_recovery_options.as_ref()?;
            let longer = recovery.state_failure_proceed_state_config.as_ref()?.longer_call(limit)?;
            Some(longer.under("stateFailureRecoveryOptions.stateFailureProceedStateConfig"))
        })
    }

    /// How a failed call is retried.
    pub fn retry_policy(&self, api: Api) -> RetryPolicy {
        of_api(api, &self.wait_until_api_retry_policy, &self.execute_api_retry_policy).clone().unwrap_or_default()
    }

    /// Which global attributes a call gets: the option of its API, else the option for both.
    pub fn load_global(&self, api: Api) -> Loading {
        let own = of_api(api, &self.wait_until_load_global_attributes, &self.execute_load_global_attributes);
        own.as_ref().or(self.load_global_attributes.as_ref()).cloned().unwrap_or_default()
    }

    /// Which local attributes a call gets, in the same way.
    pub fn load_local(&self, api: Api) -> Loading {
        let own = of_api(api, &self.wait_until_load_local_attributes, &self.execute_load_local_attributes);
        own.as_ref().or(self.load_local_attributes.as_ref()).cloned().unwrap_or_default()
    }
}
