//! Children: processes that an answer of another process starts. A child knows its parent. The history of the parent
//! names its children.
//!
//! Limitations: the caller of [`decide`](crate::decide()) starts the children, and closes them after their parent.

use crate::decide::Draft;
use crate::options::is_default;
use crate::words;
use crate::*;
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

/// The children that a command starts, as decided.
#[derive(Clone, Copy, Debug)]
pub struct NewChildren<'c> {
    /// What the answer asks for.
    pub starts: &'c [ChildStart],
    /// The same children, with their ids.
    pub children: &'c [Child],
    /// The answering step. None: an RPC.
    seq: Option<StateSeq>,
}

impl<'c> NewChildren<'c> {
    /// The children of a command that was decided with these events. None if it starts none.
    pub fn of(command: &'c Command, events: &'c [Event]) -> Option<Self> {
        let children = events.iter().find_map(|event| match event {
            Event::ChildrenStarted { children } => Some(children.as_slice()),
            _ => None,
        })?;
        Some(Self { starts: command.children(), children, seq: command.answering() })
    }

    /// For each child, its execution and what it knows of this parent.
    pub fn links(&self, parent: &Execution) -> Vec<(ExecutionId, StartedBy)> {
        let step = self.seq.and_then(|seq| parent.states.get(&seq)).map(|state| &state.id);
        let link = |(start, child): (&ChildStart, &Child)| {
            let started_by = StartedBy {
                process_id: parent.process_id.clone(),
                process_execution_id: parent.id,
                state_execution_id: step.cloned(),
                on_close: start.on_close.clone(),
                when_parent_closes: start.when_parent_closes,
            };
            (child.process_execution_id, started_by)
        };
        self.starts.iter().zip(self.children).map(link).collect()
    }
}

impl Draft<'_> {
    /// Records the children of an answer. Their executions have the ids of the context.
    pub(crate) fn start_children(&mut self, starts: &[ChildStart]) {
        if starts.is_empty() {
            return;
        }
        let ids = self.context.child_ids.iter().copied().chain(std::iter::repeat(ExecutionId::default()));
        let child = |(start, id): (&ChildStart, ExecutionId)| Child {
            process_id: start.process_id.clone().unwrap_or_else(|| id.to_string()),
            process_execution_id: id,
            process_type: start.process_type.clone(),
        };
        let children = starts.iter().zip(ids).map(child).collect();
        self.emit(Event::ChildrenStarted { children });
    }
}
