//! Functions of the database: their names in a definition, and their calls in answers and starts.
//!
//! Limitations: whether a function exists is checked at registration.

use crate::fields::{Fault, Object, Read, name, payload};
use std::collections::BTreeMap;
use xdb_engine::FunctionCall;

/// The most function calls of one answer or start.
pub const MAX_FUNCTION_CALLS: usize = 100;

/// The keys of a function call.
pub(crate) const FUNCTION_CALL: &[&str] = &["function", "argument"];

/// Reads the function calls of an answer or a start, in order.
pub(crate) fn function_calls<'a>(
    object: &mut Object<'a>,
    read: impl FnMut(&'a str) -> Read<FunctionCall>,
) -> Read<Vec<FunctionCall>> {
    let calls = object.list_of("callFunctions", read)?;
    match calls.len() {
        too_many if too_many > MAX_FUNCTION_CALLS => {
            let what = format!("has {too_many} entries; at most {MAX_FUNCTION_CALLS} are allowed");
            Err(Fault::new(what).at("callFunctions"))
        }
        _ => Ok(calls),
    }
}

pub(crate) fn function_call(mut object: Object<'_>, max_payload_bytes: usize) -> Read<FunctionCall> {
    let call = FunctionCall {
        function: object.required("function", name)?,
        argument: object.optional("argument", |text| payload(text, max_payload_bytes))?,
    };
    object.finish(call)
}

/// Reads the functions of a definition. The database parses their names.
pub(crate) fn functions(object: &mut Object<'_>) -> Read<BTreeMap<String, String>> {
    object.map_of("functions", name)
}
