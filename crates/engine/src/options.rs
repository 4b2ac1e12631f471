//! Options of a state, as registered with its process type or given with a state movement.

use crate::words;
use crate::{Api, Duration};
use serde::{Deserialize, Serialize};

/// How failed calls are repeated. Absent fields have the defaults of [`RetryPolicy::default`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RetryPolicy {
    pub initial_interval_seconds: f64,
    pub backoff_coefficient: f64,
    pub maximum_interval_seconds: f64,
    /// 0 = unlimited.
    pub maximum_attempts: u32,
    /// Bound on the time from the first attempt; 0 = unlimited.
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
    /// Whether the process goes on when the retries of a state are spent.
    #[derive(Default)]
    FailurePolicy {
        #[default]
        FailProcess = "FAIL_PROCESS_ON_STATE_FAILURE",
        ProceedToConfiguredState = "PROCEED_TO_CONFIGURED_STATE",
        /// The state stays where it is until somebody has it go on.
        RaiseIncident = "RAISE_INCIDENT",
    }
}

/// What happens when the retries of a state are spent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureRecovery {
    pub policy: FailurePolicy,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_failure_proceed_state_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_failure_proceed_state_config: Option<Box<StateConfig>>,
}

words! {
    /// How many of the attributes a call gets.
    #[derive(Default)]
    LoadPolicy {
        #[default]
        All = "ALL",
        None = "NONE",
        Partial = "PARTIAL",
    }
}

words! {
    /// What a call wants to be sure of, of the attributes that it gets.
    #[derive(Default)]
    LockType {
        #[default]
        NoLocking = "NO_LOCKING",
        /// What was read is unchanged when the answer is applied.
        Share = "SHARE_LOCK",
        /// Load, call and write are one.
        Exclusive = "EXCLUSIVE_LOCK",
    }
}

/// Which attributes a call gets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Loading {
    pub policy: LoadPolicy,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub lock_type: LockType,
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Loading {
    /// Whether what is loaded is locked.
    pub fn locks(&self) -> bool {
        self.lock_type != LockType::NoLocking && self.policy != LoadPolicy::None
    }

    /// Whether the attribute of this name is loaded.
    pub fn wants(&self, name: &str) -> bool {
        match self.policy {
            LoadPolicy::All => true,
            LoadPolicy::None => false,
            LoadPolicy::Partial => self.names.iter().any(|n| n == name),
        }
    }
}

/// Options of a state. An absent field is not set here: the registered option, or else the default, holds.
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
    /// Functions of the database that are called in place of a worker: schema and name, quoted as in SQL. Of registered states alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_until_function: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execute_function: Option<String>,
}

/// A timeout of a call that is longer than it may be, in words: keys with dots between them, the timeout and the limit.
#[derive(Clone, Debug, PartialEq)]
pub struct LongerCall(String);

impl LongerCall {
    /// Of a timeout that somebody asks for.
    pub fn of(timeout: Duration, limit: Duration) -> Option<Self> {
        Self::at("timeout", Some(timeout.as_std().as_secs_f64()), limit)
    }

    pub(crate) fn at(key: &str, seconds: Option<f64>, limit: Duration) -> Option<Self> {
        let seconds = seconds.filter(|seconds| Duration::from_seconds(*seconds) > limit)?;
        let limit = limit.as_std().as_secs_f64();
        // Nobody reads hundreds of zeros.
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

/// The call timeout where none is set.
pub const DEFAULT_CALL_TIMEOUT_SECONDS: f64 = 10.0;

impl StateConfig {
    /// These options with every field that `over` sets taken from there.
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
            wait_until_function,
            execute_function,
        )
    }

    /// The function of the database that is called in place of a worker, if there is one.
    pub fn function(&self, api: Api) -> Option<&str> {
        of_api(api, &self.wait_until_function, &self.execute_function).as_deref()
    }

    pub(crate) fn timeout_seconds_mut(&mut self, api: Api) -> &mut Option<f64> {
        of_api(api, &mut self.wait_until_api_timeout_seconds, &mut self.execute_api_timeout_seconds)
    }

    /// How long a call may take.
    pub fn timeout(&self, api: Api) -> Duration {
        let set = of_api(api, self.wait_until_api_timeout_seconds, self.execute_api_timeout_seconds);
        Duration::from_seconds(set.unwrap_or(DEFAULT_CALL_TIMEOUT_SECONDS))
    }

    /// Where these options ask for a call that is longer than this, if anywhere.
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

    /// How a failed call is repeated.
    pub fn retry_policy(&self, api: Api) -> RetryPolicy {
        of_api(api, &self.wait_until_api_retry_policy, &self.execute_api_retry_policy).clone().unwrap_or_default()
    }

    /// Which global attributes a call gets: the option of its API, else that of both.
    pub fn load_global(&self, api: Api) -> Loading {
        let own = of_api(api, &self.wait_until_load_global_attributes, &self.execute_load_global_attributes);
        own.as_ref().or(self.load_global_attributes.as_ref()).cloned().unwrap_or_default()
    }

    /// Which local attributes a call gets, likewise.
    pub fn load_local(&self, api: Api) -> Loading {
        let own = of_api(api, &self.wait_until_load_local_attributes, &self.execute_load_local_attributes);
        own.as_ref().or(self.load_local_attributes.as_ref()).cloned().unwrap_or_default()
    }
}
