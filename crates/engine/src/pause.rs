//! Pauses: while a process is paused, no call of its states begins. All else goes on: answers are applied, timers fire, messages
//! are taken in.

use crate::decide::Draft;
use crate::{Event, Execution, Pause, Rejection, Timestamp};

impl Execution {
    /// The timer that ends the pause.
    pub fn pause_ends_at(&self) -> Option<Timestamp> {
        self.pause.as_ref()?.until
    }
}

impl Draft<'_> {
    /// Pauses, or changes the pause.
    pub(crate) fn pause(&mut self, pause: &Pause) {
        if self.execution.pause.as_ref() != Some(pause) {
            let Pause { mode, until, reason } = pause.clone();
            self.emit(Event::ProcessPaused { mode, until, reason });
        }
    }

    pub(crate) fn resume(&mut self) {
        if self.execution.pause.is_some() {
            self.emit(Event::ProcessResumed {});
        }
    }

    /// The timer of a pause came due.
    pub(crate) fn pause_ends(&mut self) -> Result<(), Rejection> {
        if !self.execution.pause.as_ref().is_some_and(|pause| pause.is_over(self.context.now)) {
            return Err(Rejection::Stale);
        }
        self.emit(Event::ProcessResumed {});
        Ok(())
    }
}
