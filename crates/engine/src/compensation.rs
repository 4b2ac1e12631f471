//! Compensation: undoes what completed steps did, the latest first. Then the process fails.

use crate::decide::{Cause, Draft};
use crate::*;

/// The most steps that one compensation can undo.
pub const MOST_COMPENSATIONS: usize = 1000;

/// Why a process has failed whose steps were undone.
const COMPENSATED: &str = "compensated";

impl Draft<'_> {
    /// The state that undoes a step which completes with this close type. None: nothing is noted.
    fn compensation_of(&self, seq: StateSeq, close_type: Option<CloseType>) -> Option<(StateExecutionId, String)> {
        let ends_process =
            matches!(close_type, Some(CloseType::ForceComplete | CloseType::ForceFail | CloseType::Compensate));
        let state = self.execution.states.get(&seq).filter(|_| !ends_process && !self.execution.compensation.begun)?;
        let options = self.context.definition.states.get(&state.id.state_id)?;
        Some((state.id.clone(), options.compensation_state_id.clone()?))
    }

    /// Checks the limit on noted steps.
    pub(crate) fn check_noted(&self, seq: StateSeq, decision: &Decision) -> Result<(), Rejection> {
        let close_type = if let Decision::Close { close_type, .. } = decision { Some(*close_type) } else { None };
        let is_full = self.execution.compensation.noted.len() >= MOST_COMPENSATIONS;
        if is_full && self.compensation_of(seq, close_type).is_some() {
            let what = format!("the process would have more than {MOST_COMPENSATIONS} compensations");
            return Err(Rejection::OverQuota(what));
        }
        Ok(())
    }

    /// Notes a step that completes now, if a state undoes it. This comes before its completion: a history that is cut
    /// between the two would forget the step.
    pub(crate) fn note_for_compensation(&mut self, seq: Option<StateSeq>, close_type: Option<CloseType>) {
        if let Some(seq) = seq
            && let Some((of, state_id)) = self.compensation_of(seq, close_type)
        {
            self.emit(Event::CompensationAdded { seq, of, state_id });
        }
    }

    /// Ends all threads and guards, and begins to undo. During a compensation, the next step is undone when no thread
    /// is left.
    pub(crate) fn compensate(&mut self, reason: String) {
        if !self.execution.compensation.begun {
            self.emit(Event::CompensationStarted { reason: Some(reason) });
            let live = self.execution.states.values().filter(|state| state.status().is_live());
            let live: Vec<_> = live.map(|state| state.seq).collect();
            self.abort(&live, None);
        }
        self.complete_if_last();
    }

    /// No thread is left: undoes the next step. After the last one, the process fails.
    pub(crate) fn compensate_next(&mut self) {
        let Some(NotedStep { seq, of, state_id }) = self.execution.compensation.noted.last().cloned() else {
            return self.close(ProcessStatus::Failed, Some(COMPENSATED.to_owned()));
        };
        let input = self.execution.states.get(&seq).and_then(|state| state.input.clone());
        let movement = StateMovement { state_id, input, config: None, begin: Begin::AtOnce };
        self.start_state(&movement, Cause::Undo(of));
    }
}
