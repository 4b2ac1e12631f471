//! What is remembered of a call that is under way.

use crate::store::StateKey;
use crate::store::registry::WorkerId;
use std::collections::BTreeMap;
use std::sync::Arc;
use xdb_engine::{Api, Loading, Timestamp};

/// A call that was handed to a thread.
#[derive(Clone, Debug)]
pub struct CallRecord {
    pub key: StateKey,
    pub api: Api,
    /// From 1.
    pub attempt: u32,
    pub first_attempt_at: Timestamp,
    /// With the scheduler's epoch: the fence.
    pub lease_number: i64,
    pub worker_id: WorkerId,
    pub bytes: usize,
    /// What it loaded under a lock.
    pub held: Option<Arc<Held>>,
}

/// What a call has loaded under locks: it has to be the same when the answer is applied.
#[derive(Debug)]
pub struct Held {
    pub global: Loading,
    pub rows: Vec<Option<String>>,
    pub local: Loading,
    pub keys: BTreeMap<String, String>,
}
