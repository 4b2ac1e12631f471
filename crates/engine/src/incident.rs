//! Incidents: a call whose retries are spent stays where it is, and nothing makes it until somebody resolves that.

use crate::{CallState, LastFailure};

impl CallState {
    pub(crate) fn raise_incident(&mut self, last: LastFailure) {
        let (attempt, not_before) = (last.attempt, self.not_before);
        self.note_failure(last, not_before);
        // However many there were, the attempt that raises an incident is in the history.
        self.recorded_attempts = attempt;
        self.incident = true;
    }

    /// The next attempt is the first one that the policy counts. What the worker was told may be mended since, so it shall not
    /// answer from memory.
    pub(crate) fn resolve_incident(&mut self) {
        self.incident = false;
        self.resolved_attempts = self.failed_attempts;
        self.generation += 1;
    }
}
