//! Ends threads before they end themselves: `abortStates` of an answer, and `xdb.move_state`.

use crate::decide::{Cause, Draft};
use crate::*;

/// Why a step was aborted that was moved by hand without a reason. The view `xdb.transitions` finds the moved step by
/// its reason: other steps that end with it have none.
const MOVED: &str = "moved by hand";

impl Draft<'_> {
    /// The live steps that an answer ends, except the answering one. Steps that have ended, or never began, are passed
    /// over. An error if a name is neither a state nor a step of a state of the definition.
    pub(crate) fn steps_to_abort(
        &self,
        effects: &Effects,
        answering: Option<StateSeq>,
    ) -> Result<Vec<StateSeq>, Rejection> {
        if let Some(AbortStates::Named(names)) = &effects.abort_states {
            names.iter().try_for_each(|name| self.check_name_to_abort(name))?;
        }
        let live = self.execution.states.values().filter(|state| state.status().is_live());
        Ok(live.filter(|state| effects.abort(state, answering)).map(|state| state.seq).collect())
    }

    fn check_name_to_abort(&self, name: &str) -> Result<(), Rejection> {
        let definition = self.context.definition;
        let is_state = |state_id: &str| definition.states.contains_key(state_id);
        if is_state(name) || name.parse::<StateExecutionId>().is_ok_and(|id| is_state(&id.state_id)) {
            return Ok(());
        }
        let within = Some("abortStates");
        Err(Rejection::UnknownState { name: name.to_owned(), within, known: definition.listed_states() })
    }

    pub(crate) fn abort(&mut self, steps: &[StateSeq], reason: Option<&str>) {
        for seq in steps {
            // The end of what it guards may have ended it.
            if !self.execution.states.get(seq).is_some_and(|state| state.status().is_live()) {
                continue;
            }
            self.fold_attempts(*seq, Api::WaitUntil);
            self.fold_attempts(*seq, Api::Execute);
            self.emit(Event::StateAborted { seq: *seq, reason: reason.map(str::to_owned) });
            self.end_guards_of(*seq);
        }
    }

    /// Ends a live step, and starts these states in its place. Without next states, its thread ends.
    pub(crate) fn move_state(
        &mut self,
        seq: StateSeq,
        next: &[StateMovement],
        reason: Option<&str>,
    ) -> Result<(), Rejection> {
        if !self.execution.states.get(&seq).is_some_and(|state| state.status().is_live()) {
            return Err(Rejection::Stale);
        }
        if !next.is_empty() {
            self.check_movements(next)?;
        }
        self.check_threads(next.len(), 1)?;
        self.abort(&[seq], Some(reason.unwrap_or(MOVED)));
        self.serve_waiting_states();
        for movement in next {
            self.start_state(movement, Cause::ByHand);
        }
        self.complete_if_last();
        Ok(())
    }
}
