//! What of a state execution is stored as JSON.

use super::super::to_json;
use super::phase_parts;
use crate::pg::catch::Result;
use xdb_engine::StateExecution;

/// The parts of a state execution that are stored as JSON.
pub(super) struct StateJson {
    pub config: Option<String>,
    pub recovery: Option<String>,
    pub call: Option<String>,
    pub wait: Option<String>,
    pub last_failure: Option<String>,
}

impl StateJson {
    pub fn of(state: &StateExecution) -> Result<Self> {
        let (call, wait, last_failure) = phase_parts(state);
        Ok(Self {
            config: state.config.as_ref().map(to_json).transpose()?,
            recovery: state.recovery.as_ref().map(to_json).transpose()?,
            call: call.map(to_json).transpose()?,
            wait: wait.map(to_json).transpose()?,
            last_failure: last_failure.map(to_json).transpose()?,
        })
    }
}
