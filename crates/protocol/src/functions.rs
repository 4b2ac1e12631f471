//! Functions of the database: how definitions name them, and how answers and starts call them.

use crate::fields::{Object, Parsed, name, payload};
use std::collections::BTreeMap;
use xdb_engine::FunctionCall;

/// The most function calls of one answer or start.
pub const MAX_FUNCTION_CALLS: usize = 100;

/// The keys of a function call.
pub(crate) const FUNCTION_CALL: &[&str] = &["function", "argument"];

/// The function calls of an answer or a start, in order.
pub(crate) fn function_calls<'a>(
    object: &mut Object<'a>,
    read: impl FnMut(&'a str) -> Parsed<FunctionCall>,
) -> Parsed<Vec<FunctionCall>> {
    object.list_of_at_most(MAX_FUNCTION_CALLS, "callFunctions", read)
}

pub(crate) fn function_call(mut object: Object<'_>, max_payload_bytes: usize) -> Parsed<FunctionCall> {
    let call = FunctionCall {
        function: object.required("function", name)?,
        argument: object.optional("argument", |text| payload(text, max_payload_bytes))?,
    };
    object.finish(call)
}

/// Functions as a definition names them. Only the database can check how a name is written.
pub(crate) fn functions(object: &mut Object<'_>) -> Parsed<BTreeMap<String, String>> {
    object.map_of("functions", name)
}
