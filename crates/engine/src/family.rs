//! What a child and its parent know of each other: starts in answers, and links in histories.
//!
//! Limitations: nothing is decided here.

use crate::options::is_default;
use crate::words;
use crate::{Duration, ExecutionId, IdReusePolicy, Json, StateExecutionId, Timestamp};
use serde::{Deserialize, Serialize};

words! {
    /// What becomes of a running child when its parent closes.
    #[derive(Default)]
    WhenParentCloses {
        /// The child is stopped.
        #[default]
        Terminate = "TERMINATE",
        Leave = "LEAVE",
    }
}

/// Why a child is stopped.
pub const PARENT_CLOSED: &str = "its parent closed";

/// A start that an answer asks for. Only the parts that link child and parent are checked here.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildStart {
    pub process_type: String,
    /// None: the id of the execution.
    pub process_id: Option<String>,
    pub input: Option<Json>,
    pub global_attribute_pk: Option<String>,
    /// JSON objects.
    pub global_attributes: Option<Json>,
    pub local_attributes: Option<Json>,
    pub options: Option<Json>,
    pub id_reuse_policy: IdReusePolicy,
    pub timeout: Option<Duration>,
    pub start_at: Option<Timestamp>,
    /// The local queue of the parent that gets a message when the child closes.
    pub on_close: Option<String>,
    pub when_parent_closes: WhenParentCloses,
}

impl ChildStart {
    /// The payloads that the start stores.
    pub fn payloads(&self) -> impl Iterator<Item = Option<&Json>> {
        let Self { input, global_attributes, local_attributes, options, .. } = self;
        let others = [global_attributes, local_attributes, options].into_iter().flatten().map(Some);
        std::iter::once(input.as_ref()).chain(others)
    }
}

/// A child, in the history of its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Child {
    pub process_id: String,
    pub process_execution_id: ExecutionId,
    pub process_type: String,
}

/// The parent of a process, in the history of the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartedBy {
    pub process_id: String,
    pub process_execution_id: ExecutionId,
    /// The step whose answer started the process. None: an RPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_execution_id: Option<StateExecutionId>,
    /// See [`ChildStart::on_close`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_close: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub when_parent_closes: WhenParentCloses,
}
