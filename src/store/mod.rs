//! All SQL that the engine and the SQL functions run on the system tables.
//!
//! A transaction works in three steps:
//! 1. It loads executions under their locks ([`execution`]).
//! 2. The engine decides in memory ([`loaded`]).
//! 3. It writes the difference ([`save`]), with one array statement per table.
//!
//! Each table is described once ([`table`]). Its statements are beside its description:
//!
//! | file | tables | what it does |
//! |---|---|---|
//! | [`execution`] | `process_execution` | locks, loads and saves executions |
//! | [`state`] | `state_execution` | loads and saves steps |
//! | [`claim`] | `task` | claims calls under leases, moves them between workers and lanes |
//! | [`lanes`] | `task` | the lanes of calls: which lanes exist, and which leases there are void |
//! | [`parked`] | `task` | calls that are parked because of a pause |
//! | [`pull`] | `task` | calls that pull workers claim, and their leases |
//! | [`lines`] | `task` | the lines of calls: which levels exist, and when their calls are due |
//! | [`timer`] | `timer` | timers that are due |
//! | [`inbox`] | `inbox`, `message_key` | publishes messages to local queues, and receives them |
//! | [`queue`] | `queue_message`, `queue_waiter` | the first messages of local queues, and the states that wait |
//! | [`global_queue`] | `global_message`, `global_message_key` | publishes to global queues, takes and gives back |
//! | [`changes`] | `global_message` | publishes the events of types with `changes` |
//! | [`global_waiter`] | `global_waiter`, `global_passed_over` | the states that the matcher offers messages to |
//! | [`children`] | `process_execution`, `inbox`, `timer` | starts children, and what follows when parent or child closes |
//! | [`attribute`] | `local_attribute` | local attributes |
//! | [`history`] | `history_event` | replays and cuts histories |
//! | [`deciding`] | | decides about commands, and loads what decisions turn out to need |
//! | [`correlated`] | `correlated_start` | finds the start that another one may be merged into, and writes merges |
//! | [`process`] | `latest_execution`, `rpc_answer` | finds, locks and describes processes for the SQL functions |
//! | [`process_lock`] | `process_lock` | locks of processes: requests, grants, releases |
//! | [`registry`] | `worker`, `process_type`, `mapped_table` | reads registrations, and keeps them in memory |
//! | [`registering`] | the same | writes and removes registrations |
//! | [`pauses`] | `process_type` | pauses of process types |
//! | [`worker_secret`] | `worker_secret` | the secrets that calls are signed with |
//! | [`instance`] | `instances`, `registry`, `registration_count` | says which database the processes belong to |
//! | [`owners`] | | gives the objects of one role to another |
//! | [`quotas`] | | counts what roles have stored, in slices |
//! | [`usage`] | | counts the states of a type that running processes are in, and the queues that they wait for |
//! | [`engine`] | `engine` | epochs, pause of the engine |
//! | [`subscription`] | | subscriptions that would write into the system tables |
//! | [`slow`] | | names of slow tables and functions |
//! | [`purge`] | `purged` | deletes closed executions |
//! | [`crashes`] | `task` | calls that were in hand when the server crashed: made one at a time, or held |
//! | [`locks`] | | what calls lock, and the versions of what they have read |
//!
//! Files without tables of their own:
//!
//! | file | what it does |
//! |---|---|
//! | [`role_settings`] | reads settings of roles |
//! | [`phases`] | says which parts of a state's phase have rows |
//! | [`counted`] | what the events of a batch add to the counters of `xdb.metrics()` |
//! | [`adopt`] | makes the processes of a copied database its own |
//! | [`check`] | compares an execution's rows with its history |
//! | [`left_behind`] | finds what another role's code may have left in a client's session |
//! | [`versions`] | says which schemas this library works with |
//! | [`app_tables`] | reads and writes the application's tables |
//! | [`app_functions`] | calls the application's functions |
//! | [`catalog`] | describes the application's tables |
//!
//! Limitations: the files read and write rows. They decide nothing about processes.

pub mod adopt;
pub mod app_functions;
pub mod app_tables;
pub mod attribute;
pub mod catalog;
mod changes;
pub mod check;
pub mod children;
pub mod claim;
pub mod correlated;
pub mod counted;
pub mod crashes;
pub mod deciding;
pub mod engine;
pub mod execution;
pub mod global_queue;
pub mod global_waiter;
pub mod history;
pub mod inbox;
pub mod instance;
pub mod lanes;
pub mod left_behind;
pub mod lines;
pub mod loaded;
pub mod locks;
pub mod owners;
pub mod parked;
pub mod pauses;
pub mod phases;
pub mod process;
pub mod process_lock;
#[cfg(feature = "pg_test")]
mod proof;
pub mod pull;
pub mod purge;
pub mod queue;
pub mod quotas;
pub mod registering;
pub mod registry;
pub mod role_settings;
pub mod save;
pub mod slow;
pub mod state;
pub mod subscription;
pub mod table;
pub mod timer;
pub mod usage;
pub mod versions;
pub mod worker_secret;

use crate::pg::catch::{PgError, Result};
use crate::pg::param::{Param, SqlValue, array, column};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use table::{Column, Record};
pub use xdb_engine::StateKey;
use xdb_engine::{ExecutionId, StateSeq, fnv1a};

impl Record for StateKey {
    const COLUMNS: &'static [Column] = &[
        Column { name: "execution_id", of: ExecutionId::TYPE, nullable: false },
        Column { name: "seq", of: StateSeq::TYPE, nullable: false },
    ];

    fn columns(rows: &[Self], _: &[&str]) -> Vec<Param> {
        vec![column(rows.iter().map(|key| key.0)), column(rows.iter().map(|key| key.1))]
    }

    fn arrays(rows: &[Self]) -> Vec<Param> {
        vec![array(rows.iter().map(|key| key.0)), array(rows.iter().map(|key| key.1))]
    }
}

/// The executions of these states, each once, in the order of their ids.
pub fn executions_of(keys: &[StateKey]) -> Vec<ExecutionId> {
    keys.iter().map(|key| key.0).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The number of shards. Hot rows carry the hash of their process id modulo this number.
const SHARDS: u64 = 1024;

/// The shard of a process id. Shards are stored, so this function must never change.
pub fn shard_of(process_id: &str) -> i16 {
    let hash = fnv1a(process_id.bytes());
    ((hash ^ (hash >> 32)) % SHARDS) as i16
}

/// Reads a value that the engine wrote as JSON.
pub(crate) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| PgError::internal(format!("a system table holds unreadable JSON: {e}")))
}

/// Writes a value of the engine as JSON.
pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| PgError::internal(format!("a value can't be written as JSON: {e}")))
}
