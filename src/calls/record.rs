//! What the engine keeps of a call while it is under way.

use crate::store::StateKey;
use crate::store::attribute::Size;
use crate::store::registry::{NO_WORKER, WorkerId};
use std::collections::BTreeMap;
use std::sync::Arc;
use xdb_calls::Attempt;
use xdb_engine::{Api, Loading, Timestamp};
use xdb_sched::room::{Line, Owner};

/// A call that was submitted.
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
    /// The place of its answer among all that have come in, from 1; zero before it has come.
    pub answer_number: u64,
    /// The role that the process belongs to.
    pub owner: Owner,
    /// Of the local attributes that were read for it.
    pub local_size: Size,
    /// It was in hand when the server crashed.
    pub is_suspect: bool,
    /// What it loaded under locks.
    pub reads: Option<Arc<ReadSet>>,
}

impl CallRecord {
    /// An attempt, as far as a worker or a function is told of it.
    pub fn of(key: StateKey, api: Api, attempt: u32, first_attempt_at: Timestamp) -> Self {
        Self {
            key,
            api,
            attempt,
            first_attempt_at,
            lease_number: 0,
            worker_id: NO_WORKER,
            answer_number: 0,
            owner: 0,
            local_size: Size::default(),
            is_suspect: false,
            reads: None,
        }
    }

    pub fn as_attempt(&self) -> Attempt {
        Attempt { seq: self.key.1, api: self.api, number: self.attempt, first_at: self.first_attempt_at }
    }

    pub fn line(&self) -> Line {
        Line { worker: self.worker_id, owner: self.owner }
    }
}

/// What a call has loaded under locks. It has to be the same when the answer is applied.
#[derive(Debug)]
pub struct ReadSet {
    pub global: Loading,
    /// The hash of the global attributes.
    pub values: u128,
    pub local: Loading,
    /// The versions of the local attributes.
    pub keys: BTreeMap<String, String>,
}
