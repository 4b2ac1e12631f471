//! Pauses: while a process is paused, no call of its states begins. All else goes on: answers are applied, timers fire, messages
//! are taken in.

use crate::decide::Draft;
use crate::words;
use crate::{Event, Execution, Rejection, Timestamp};
use serde::{Deserialize, Serialize};

words! {
    /// What becomes of the requests of callers during a pause.
    PauseMode {
        /// They are accepted, and what follows of them waits.
        Wait = "WAIT",
        /// They are refused.
        Reject = "REJECT",
    }
}

/// A pause of a process or of a process type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    pub mode: PauseMode,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Pause {
    /// Whether it is over by itself.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

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
