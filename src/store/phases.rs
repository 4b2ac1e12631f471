//! The phase of a step (`WaitUntil`, `Waiting`, `Execute`, `Ended`) as the tables store it. The call, the wait and the
//! last failure of a phase each have columns or rows of their own. This file takes them from the phase, for saving and
//! for `check_process`.

use xdb_engine::*;

/// The queues that a state waits for, with its position in the order of waiting.
pub(in crate::store) fn open_queues(state: &StateExecution) -> impl Iterator<Item = (&str, u64)> {
    let order = match &state.phase {
        Phase::Waiting(wait) => wait.order,
        _ => 0,
    };
    state.open_commands().filter_map(move |(_, command)| match &command.kind {
        WaitKind::LocalQueue { queue, .. } => Some((queue.as_str(), order)),
        WaitKind::Timer { .. } | WaitKind::GlobalQueue { .. } => None,
    })
}

/// The stored parts of a phase: the call, the wait, and the last failure.
pub(in crate::store) fn phase_parts(
    state: &StateExecution,
) -> (Option<&CallState>, Option<&Wait>, Option<&LastFailure>) {
    match &state.phase {
        Phase::WaitUntil(call) => (Some(call), None, call.last_failure.as_ref()),
        Phase::Waiting(wait) => (None, Some(wait), None),
        Phase::Execute { call, results } => (Some(call), results.as_ref(), call.last_failure.as_ref()),
        Phase::Ended { last_failure, .. } => (None, None, last_failure.as_ref()),
    }
}
