//! What the engine keeps in memory of a call while it is under way. If its engine process ends, the record is lost and
//! the lease is void.

use crate::store::StateKey;
use crate::store::attribute::Size;
use crate::store::registry::{NO_WORKER, WorkerId};
use std::sync::Arc;
use xdb_calls::{Attempt, Loads};
use xdb_engine::{Api, Timestamp};
use xdb_sched::room::{Line, Owner};

/// A call that was submitted. `prepare` writes it, and its answer is applied with it.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// The execution and the state execution.
    pub key: StateKey,
    pub api: Api,
    /// From 1.
    pub attempt: u32,
    /// When the first attempt of this call began.
    pub first_attempt_at: Timestamp,
    /// The number of its lease. Together with the process's epoch it is the fence.
    pub lease_number: i64,
    /// [`NO_WORKER`] for a function.
    pub worker_id: WorkerId,
    /// The position of its answer among all answers, from 1. Zero before it was answered. The backlog writes it.
    pub answer_number: u64,
    /// The role that owns the process.
    pub owner: Owner,
    /// The size of the local attributes when they were read for the call.
    pub local_size: Size,
    /// The call was in hand when the server crashed.
    pub is_suspect: bool,
    /// What the call loaded under locks. None: nothing.
    pub reads: Option<Arc<ReadSet>>,
}

impl CallRecord {
    /// A record with what a request needs. The other fields are empty.
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

    /// The part that the engine's commands need.
    pub fn as_attempt(&self) -> Attempt {
        Attempt { seq: self.key.1, api: self.api, number: self.attempt, first_at: self.first_attempt_at }
    }

    /// The line in which the call takes its places.
    pub fn line(&self) -> Line {
        Line { worker: self.worker_id, owner: self.owner }
    }
}

/// What a call has loaded under locks. The answer is applied only if it is unchanged.
#[derive(Debug)]
pub struct ReadSet {
    /// Which attributes were read, and under which locks.
    pub loads: Loads,
    /// See [`Loads::fingerprint`].
    pub fingerprint: Option<u64>,
}
