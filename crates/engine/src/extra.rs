//! What few executions have.

use crate::{Execution, Pause};
use serde::{Deserialize, Serialize};

/// The lowest and the highest priority.
pub const PRIORITIES: std::ops::RangeInclusive<i8> = -10..=10;

/// What few executions have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Extra {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: i8,
}

fn is_zero(value: &i8) -> bool {
    *value == 0
}

impl Execution {
    /// Where its due calls stand among those of its owner to the same worker: those with a higher one are made first. Within
    /// [`PRIORITIES`].
    pub fn priority(&self) -> i8 {
        self.extra.as_ref().map_or(0, |extra| extra.priority)
    }

    pub(crate) fn set_priority(&mut self, priority: i8) {
        self.with_extra(|extra| extra.priority = priority);
    }

    pub(crate) fn with_extra(&mut self, change: impl FnOnce(&mut Extra)) {
        let mut extra = self.extra.take().unwrap_or_default();
        change(&mut extra);
        // Who has nothing of it has none: so are rows that were never changed.
        self.extra = Some(extra).filter(|extra| **extra != Extra::default());
    }
}
