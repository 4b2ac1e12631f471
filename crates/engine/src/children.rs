//! Children: processes that an answer of another process starts. A child knows its parent. The history of the parent
//! names its children.
//!
//! Limitations: the caller of [`decide`](crate::decide()) starts the children, and closes them after their parent.

use crate::decide::Draft;
use crate::*;

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
