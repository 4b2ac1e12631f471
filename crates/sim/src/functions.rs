//! Functions of a database: there are none here. What would be called is kept, to be looked at.

use crate::Simulator;
use serde::Serialize;
use xdb_engine::*;

/// A call of a function that would have been made.
#[derive(Clone, Debug, Serialize)]
pub struct CalledFunction {
    process_id: String,
    /// Its name in the definition.
    function: String,
    argument: Option<Json>,
}

impl Simulator {
    /// An answer or a start was applied, with its calls of functions.
    pub(crate) fn call_functions(&mut self, id: ExecutionId, calls: &[FunctionCall]) {
        let process_id = &self.runs[&id].execution.process_id;
        self.called.extend(calls.iter().map(|FunctionCall { function, argument }| CalledFunction {
            process_id: process_id.clone(),
            function: function.clone(),
            argument: argument.clone(),
        }));
    }

    /// The calls of functions since this was asked last, in their order.
    pub fn called(&mut self) -> Vec<CalledFunction> {
        std::mem::take(&mut self.called)
    }
}
