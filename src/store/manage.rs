//! State executions as functions look for them, by their names.

pub use super::process::{state_can_be, state_has_been};
pub use super::state::{by_name as state, in_backoff};
