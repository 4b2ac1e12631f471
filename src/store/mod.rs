//! All SQL that the engine and the functions run on the system tables.
//!
//! A transaction loads executions under their locks ([`execution`]), lets the engine decide in memory ([`loaded`]), and writes the
//! difference ([`save`]) with one array statement per table. Each table is described once ([`table`]), and its statements stand
//! beside its description:
//!
//! | file | tables | what it does with them |
//! |---|---|---|
//! | [`execution`] | `process_execution` | locks, loads and saves executions |
//! | [`state`] | `state_execution` | loads and saves state executions |
//! | [`claim`] | `task` | hands calls out under leases, moves them between workers and lanes |
//! | [`lanes`] | | lanes of calls in `task`: in which a call stands, and what leases are void there |
//! | [`held`] | | calls that are held because of a pause |
//! | [`pull`] | | calls that workers fetch, in `task`: under which leases |
//! | [`lines`] | | lines of calls in `task`: which there are, and when their calls are due |
//! | [`timer`] | `timer` | timers that are due |
//! | [`inbox`] | `inbox`, `message_key` | publishing, and taking messages in |
//! | [`queue`] | `queue_message`, `queue_waiter` | the heads of local queues, and who waits for them |
//! | [`global_queue`] | `global_message`, `global_message_key` | publishing to global queues, taking and giving back |
//! | [`global_waiter`] | `global_waiter`, `global_passed_over` | whom the matcher of global queues asks |
//! | [`attribute`] | `local_attribute` | local attributes |
//! | [`history`] | `history_event` | replaying and cutting histories |
//! | [`correlated`] | `correlated_start` | what starts may be merged into, and what a merge writes |
//! | [`process`] | `latest_execution`, `rpc_answer` | what the SQL functions look for, lock and describe |
//! | [`registry`] | `worker`, `process_type`, `mapped_table` | registrations, kept in memory |
//! | [`registering`] | | writes and removes them |
//! | [`pauses`] | | pauses of process types |
//! | [`worker_secret`] | `worker_secret` | what calls are signed with, and where it is |
//! | [`instance`] | `instances`, `registry`, `registration_count` | whose the processes of this database are |
//! | [`owners`] | | gives what a role owns to another one |
//! | [`quotas`] | | counts what roles have, in slices |
//! | [`usage`] | | counts what running processes of a type are in, and wait for |
//! | [`engine`] | `engine` | epochs, pause |
//! | [`subscription`] | | subscriptions that would write the system tables |
//! | [`slow`] | | names of what is slow |
//! | [`purge`] | `purged` | deletes closed executions |
//! | [`crashes`] | | calls that were in hand when the server crashed: made one at a time, or held |
//! | [`locks`] | | what calls lock, and the versions of what they have read |
//!
//! Without tables of their own: [`role_settings`] reads what roles have set; [`phases`] says what of a state's phase has rows;
//! [`adopt`] makes a copy's processes the database's own; [`check`] compares an execution's rows with its history;
//! [`left_behind`] knows what code of others may leave in a client's session; [`versions`] says which schemas this library works with. [`app_tables`] reads and writes users' tables, [`app_functions`] calls users' functions, and
//! [`catalog`] says what they are.

pub mod adopt;
pub mod app_functions;
pub mod app_tables;
pub mod attribute;
pub mod catalog;
pub mod check;
pub mod claim;
pub mod correlated;
pub mod crashes;
pub mod engine;
pub mod execution;
pub mod global_queue;
pub mod global_waiter;
pub mod held;
pub mod history;
pub mod inbox;
pub mod instance;
pub mod lanes;
pub mod left_behind;
pub mod lines;
pub mod loaded;
pub mod locks;
pub mod owners;
pub mod pauses;
pub mod phases;
pub mod process;
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
use xdb_engine::{ExecutionId, StateSeq, fnv1a};

/// Names one state execution: the key of its row, its task, its timers.
pub type StateKey = (ExecutionId, StateSeq);

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

/// The executions of these, each once, in the order of their ids.
pub fn executions_of(keys: &[StateKey]) -> Vec<ExecutionId> {
    keys.iter().map(|key| key.0).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Number of shards: a hot row carries the hash of its process id modulo this.
const SHARDS: u64 = 1024;

/// The shard of a process id. Stored, so it may never change.
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
