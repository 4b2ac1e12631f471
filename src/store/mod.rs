//! All SQL that the engine and the functions run on the system tables.
//!
//! A transaction loads executions under their locks ([`load`]), lets the engine decide in memory, and writes the
//! difference ([`save`]) with one array statement per table. [`claim`] hands calls out, [`tables`] reads and writes
//! users' tables, [`check`] compares an execution's rows with its history.

pub mod catalog;
pub mod check;
pub mod claim;
pub mod engine;
pub mod global;
pub mod history;
pub mod instance;
pub mod load;
pub mod locks;
pub mod manage;
#[cfg(feature = "plants")]
mod planted;
pub mod process;
pub mod purge;
pub mod registry;
pub mod save;
pub mod slow;
pub mod tables;
pub mod versions;

use crate::pg::catch::{PgError, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use xdb_engine::{ExecutionId, StateSeq, fnv1a};

/// Names one state execution: the key of its row, its task, its timers.
pub type StateKey = (ExecutionId, StateSeq);

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
