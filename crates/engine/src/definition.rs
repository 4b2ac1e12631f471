//! A registered process type, and what its processes may name: states, queues, attributes, functions, RPCs.

use crate::{Api, Duration, Loading, LongerCall, ProcessLocks, StateConfig, is_default};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A registered process type. Written by registration, read in each decision about its executions.
// Wide because it is an object of the protocol: each field is a key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Definition {
    /// None: an execution starts without threads and waits for RPCs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starting_state: Option<String>,
    /// The options of each state, by its id.
    pub states: BTreeMap<String, StateConfig>,
    /// The application's tables whose columns are global attributes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub global_attributes: Vec<TableMapping>,
    /// None: all local attributes are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_attributes: Option<BTreeSet<String>>,
    /// None: all local queues are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_queues: Option<BTreeSet<String>>,
    /// `*` allows every name.
    pub global_queues: BTreeSet<String>,
    /// None: all RPCs are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpcs: Option<BTreeMap<String, RpcConfig>>,
    /// Functions of the database that answers may call. Key: the name in answers. Value: schema and name, quoted as in
    /// SQL.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub functions: BTreeMap<String, String>,
    /// The timeout of the process. None or 0: no timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
    /// How long closed executions are kept. Overrides the setting. A negative number: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_seconds: Option<f64>,
    pub history: HistoryPolicy,
    /// Treat an answer with an unknown key as a failed attempt.
    #[serde(skip_serializing_if = "is_default")]
    pub strict_answers: bool,
    /// The guards that wait while a process runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<String>,
    /// Priority of processes whose start gives none: see [`Execution::priority`](crate::Execution::priority).
    #[serde(skip_serializing_if = "is_default")]
    pub priority: i8,
    /// Locks of all processes of the type, besides those of their starts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub locks: ProcessLocks,
    /// The global queue that events of its processes are published to: see [`Event::is_change`](crate::Event::is_change).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<String>,
}

/// The name in a definition that stands for all global queues.
const EVERY_QUEUE: &str = "*";

/// Memory for an entry of a map. Nodes of a map may be less than half full.
const OF_ENTRY: usize = (size_of::<String>() + size_of::<StateConfig>()) * 11 / 5 + 64;

/// Memory for each byte of the text. A list of very short names needs the most.
const OF_BYTE: usize = 24;

impl Definition {
    /// An upper estimate of the memory that is needed to read a definition from this text and to keep it.
    pub fn weight(text: &str) -> usize {
        // Each state or RPC with options is an object, or null if it is registered without options.
        let entries = text.bytes().filter(|byte| *byte == b'{').count() + text.matches("null").count();
        text.len() * OF_BYTE + entries * OF_ENTRY
    }

    /// How long its processes may run. None: without limit.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout_seconds.filter(|s| *s > 0.0).map(Duration::from_seconds)
    }

    /// How long its closed executions are kept.
    pub fn retention(&self) -> Retention {
        match self.retention_seconds {
            None => Retention::BySetting,
            Some(seconds) if seconds < 0.0 => Retention::ForEver,
            Some(seconds) => Retention::For(Duration::from_seconds(seconds)),
        }
    }

    /// The first call timeout in the definition that exceeds the limit.
    pub fn longer_call(&self, limit: Duration) -> Option<LongerCall> {
        let of_state =
            self.states.iter().find_map(|(id, options)| Some(options.longer_call(limit)?.under(id).under("states")));
        let of_rpc = |(name, config): (&String, &RpcConfig)| {
            Some(LongerCall::at("timeoutSeconds", config.timeout_seconds, limit)?.under(name).under("rpcs"))
        };
        of_state.or_else(|| self.rpcs.iter().flatten().find_map(of_rpc))
    }

    /// The options of a step: its own over the registered ones. The timeout of a function can't exceed the
    /// registered one. A function occupies an engine process, which the functions of other roles wait for.
    pub fn options_of(&self, state_id: &str, own: Option<&StateConfig>) -> StateConfig {
        let registered = self.states.get(state_id).cloned().unwrap_or_default();
        let Some(own) = own else { return registered };
        let mut options = registered.overridden_by(own);
        for api in [Api::WaitUntil, Api::Execute] {
            if registered.function(api).is_some() && options.timeout(api) > registered.timeout(api) {
                *options.timeout_seconds_mut(api) = *registered.clone().timeout_seconds_mut(api);
            }
        }
        options
    }

    /// The function of the database that handles a call of a state, instead of a worker.
    pub fn function_of(&self, state_id: &str, api: Api) -> Option<&str> {
        self.states.get(state_id)?.function(api)
    }

    /// The names of all functions that are handlers, instead of a worker.
    pub fn handlers_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let states = self.states.values_mut();
        let of_states =
            states.flat_map(|state| state.wait_until_function.iter_mut().chain(&mut state.execute_function));
        of_states.chain(self.rpcs.iter_mut().flatten().filter_map(|(_, rpc)| rpc.function.as_mut()))
    }

    /// The first state or RPC that needs a worker, and the key of the function it lacks, for a message.
    pub fn needs_worker(&self) -> Option<String> {
        let lacks = |(id, state): (&String, &StateConfig)| match (&state.execute_function, &state.wait_until_function) {
            (None, _) => Some(format!("state {id:?} has no executeFunction")),
            (_, None) if !state.skip_wait_until.unwrap_or(false) && state.command_request.is_none() => Some(format!(
                "state {id:?} has neither waitUntilFunction nor commandRequest nor \"skipWaitUntil\": true"
            )),
            _ => None,
        };
        let rpc = || self.rpcs.iter().flatten().find(|(_, rpc)| rpc.function.is_none());
        let state = self.states.iter().find_map(lacks);
        state.or_else(|| rpc().map(|(name, _)| format!("RPC {name:?} has no function")))
    }

    /// The listed states, for a message.
    pub fn listed_states(&self) -> String {
        if self.states.is_empty() { "none".to_owned() } else { listed(self.states.keys().map(String::as_str)) }
    }

    /// The listed local queues, for a message.
    pub fn listed_queues(&self) -> String {
        listed(self.local_queues.iter().flatten().map(String::as_str))
    }

    /// Whether its executions may use this local queue.
    pub fn knows_queue(&self, name: &str) -> bool {
        self.local_queues.as_ref().is_none_or(|known| known.contains(name))
    }

    /// Whether its executions may use this global queue.
    pub fn knows_global_queue(&self, name: &str) -> bool {
        [name, EVERY_QUEUE].iter().any(|name| self.global_queues.contains(*name))
    }

    /// Whether its executions may have this local attribute.
    pub fn knows_local_attribute(&self, key: &str) -> bool {
        self.local_attributes.as_ref().is_none_or(|known| known.contains(key))
    }

    /// Checks that the names in state options exist: attributes, and the state to proceed to. Global attributes must be
    /// in `mapping`.
    pub fn check_options(&self, options: &StateConfig, mapping: &[TableMapping]) -> Result<(), UnknownName> {
        for (key, loading) in [
            ("loadGlobalAttributes", &options.load_global_attributes),
            ("waitUntilLoadGlobalAttributes", &options.wait_until_load_global_attributes),
            ("executeLoadGlobalAttributes", &options.execute_load_global_attributes),
        ] {
            check_global_loading(mapping, key, loading.as_ref())?;
        }
        for (key, loading) in [
            ("loadLocalAttributes", &options.load_local_attributes),
            ("waitUntilLoadLocalAttributes", &options.wait_until_load_local_attributes),
            ("executeLoadLocalAttributes", &options.execute_load_local_attributes),
        ] {
            self.check_local_loading(key, loading.as_ref())?;
        }
        self.check_queues(options)?;
        if let Some(state_id) = options.compensation_state_id.as_ref().filter(|id| !self.states.contains_key(*id)) {
            let what = format!("{state_id:?} is not listed in states; known are {}", self.listed_states());
            return Err(UnknownName { at: "compensationStateId".to_owned(), what });
        }
        let Some(recovery) = &options.state_failure_recovery_options else { return Ok(()) };
        let fault = |fault: UnknownName| fault.under("stateFailureRecoveryOptions");
        if let Some(state_id) = &recovery.state_failure_proceed_state_id
            && !self.states.contains_key(state_id)
        {
            let what = format!("{state_id:?} is not listed in states; known are {}", self.listed_states());
            return Err(fault(UnknownName { at: "stateFailureProceedStateId".to_owned(), what }));
        }
        let Some(options) = &recovery.state_failure_proceed_state_config else { return Ok(()) };
        self.check_options(options, mapping).map_err(|unknown| fault(unknown.under("stateFailureProceedStateConfig")))
    }

    /// Checks the local attributes in a loading policy; `key` is the place of the policy.
    pub fn check_local_loading(&self, key: &str, loading: Option<&Loading>) -> Result<(), UnknownName> {
        check_loading(key, loading, |name| self.knows_local_attribute(name))
    }

    /// The options of an RPC. None if the definition lists RPCs without this one.
    pub fn rpc(&self, name: &str) -> Option<RpcConfig> {
        match &self.rpcs {
            None => Some(RpcConfig::default()),
            Some(listed) => listed.get(name).cloned(),
        }
    }
}

/// Global attributes that are columns of one row of an application's table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TableMapping {
    /// The table as the definition names it, for people. The engine uses `relation`, so a renamed table is still found.
    pub table: String,
    /// The table's oid. Registration fills it in.
    pub relation: u32,
    /// The columns that identify the row.
    pub primary_key: Vec<String>,
    /// Attribute name to column name.
    pub attributes: BTreeMap<String, String>,
}

/// Options of an RPC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RpcConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_global_attributes: Option<Loading>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_local_attributes: Option<Loading>,
    /// A function of the database that is the handler, instead of a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
}

impl RpcConfig {
    /// The timeout of a call. None: the default applies.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout_seconds.filter(|seconds| *seconds > 0.0).map(Duration::from_seconds)
    }
}

/// How long a closed execution is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    BySetting,
    For(Duration),
    ForEver,
}

/// How much of the history is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HistoryPolicy {
    #[default]
    Full,
    None,
    /// At least this number of events. A snapshot stands for the earlier ones.
    KeepLast(u32),
}

impl HistoryPolicy {
    /// Whether any events are kept.
    pub fn keeps_events(self) -> bool {
        self != Self::None
    }
}

/// An option that names something unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// The place in the options: keys with dots between them.
    pub at: String,
    /// What is wrong, as a predicate that follows the place.
    pub what: String,
}

impl UnknownName {
    pub(crate) fn under(mut self, key: &str) -> Self {
        self.at = format!("{key}.{}", self.at);
        self
    }
}

/// Checks the global attributes in a loading policy; `key` is the place of the policy.
pub fn check_global_loading(mapping: &[TableMapping], key: &str, loading: Option<&Loading>) -> Result<(), UnknownName> {
    check_loading(key, loading, |name| mapping.iter().any(|table| table.attributes.contains_key(name)))
}

fn check_loading(key: &str, loading: Option<&Loading>, known: impl Fn(&str) -> bool) -> Result<(), UnknownName> {
    match loading.into_iter().flat_map(|loading| &loading.names).find(|name| !known(name)) {
        Some(name) => Err(UnknownName { at: key.to_owned(), what: format!("names the unknown attribute {name:?}") }),
        None => Ok(()),
    }
}

/// The most names in a message.
const LISTED_NAMES: usize = 20;

/// Names with commas between them, for a message. Of a long list the first names, and how many more there are.
pub fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let first: Vec<_> = names.by_ref().take(LISTED_NAMES).collect();
    match names.count() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}
