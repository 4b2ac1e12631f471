//! Children: how answers name the processes to start, and how `xdb.start_processes` gets them.

use crate::definition::start_options;
use crate::fields::{Fault, Object, Parsed, UnknownKeys, map, moment, name, payload, quote, seconds, string, word};
use crate::object;
use crate::payload::check_payload;
use xdb_engine::{ChildStart, Duration, IdReusePolicy, Json, WhenParentCloses};

/// The key of an answer that has its children.
pub const CHILDREN: &str = "startProcesses";

/// The most children of one answer.
pub const MAX_CHILDREN: usize = 1000;

/// The keys of a child.
pub(crate) const CHILD: &[&str] = &[
    "processType",
    "processId",
    "input",
    "globalAttributePk",
    "globalAttributes",
    "localAttributes",
    "idReusePolicy",
    "timeoutSeconds",
    "startAt",
    "options",
    "onClose",
    "whenParentCloses",
];

/// The children of an answer, in order.
pub(crate) fn children<'a>(
    object: &mut Object<'a>,
    read: impl FnMut(&'a str) -> Parsed<ChildStart>,
) -> Parsed<Vec<ChildStart>> {
    object.list_of_at_most(MAX_CHILDREN, CHILDREN, read)
}

pub(crate) fn child(mut object: Object<'_>, max_payload_bytes: usize) -> Parsed<ChildStart> {
    let attributes = |text: &str| {
        // Each value may be as deep as a payload. So the object is not one.
        map(text, |value| payload(value, max_payload_bytes))?;
        Ok(Json::from_trusted(text))
    };
    Ok(ChildStart {
        process_type: object.required("processType", name)?,
        process_id: object.optional("processId", name)?,
        input: object.optional("input", |text| payload(text, max_payload_bytes))?,
        global_attribute_pk: object.optional("globalAttributePk", string)?,
        global_attributes: object.optional("globalAttributes", attributes)?,
        local_attributes: object.optional("localAttributes", attributes)?,
        options: object.optional("options", options)?,
        id_reuse_policy: object
            .optional("idReusePolicy", |text| word(text, IdReusePolicy::WORDS, IdReusePolicy::parse))?
            .unwrap_or(IdReusePolicy::AllowIfNoRunning),
        timeout: object.optional("timeoutSeconds", seconds)?.map(Duration::from_seconds),
        start_at: object.optional("startAt", moment)?,
        on_close: object.optional("onClose", name)?,
        when_parent_closes: object
            .optional("whenParentCloses", |text| word(text, WhenParentCloses::WORDS, WhenParentCloses::parse))?
            .unwrap_or_default(),
    })
}

/// The options of a child's start. The start has to be a new one, so it can't be repeated or merged.
fn options(text: &str) -> Parsed<Json> {
    let options = start_options(Object::read(text, UnknownKeys::Refused)?)?;
    let given = [("requestId", options.request_id.is_some()), ("correlationKey", options.correlation.is_some())];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((key, _)) => Err(Fault::new(format!("has {}, which a child can't have", quote(key)))),
        None => unlimited(text),
    }
}

/// JSON that `jsonb` accepts. The parts that applications choose have been checked for their size.
fn unlimited(text: &str) -> Parsed<Json> {
    check_payload(text, usize::MAX).map_err(|error| Fault::new(error.to_string()))
}

/// The argument of `xdb.start_processes` that starts these children.
pub fn bulk_start(children: &[ChildStart]) -> String {
    let starts: Vec<_> = children.iter().map(element).collect();
    format!("[{}]", starts.join(","))
}

fn element(child: &ChildStart) -> String {
    // A string always has a JSON form.
    let quoted = |text: &str| serde_json::to_string(text).unwrap_or_default();
    let json = |json: &Option<Json>| json.as_ref().map(|json| json.as_str().to_owned());
    let timeout = child.timeout.map(|timeout| quoted(&format!("{} microseconds", timeout.0)));
    let members = [
        ("process_type", Some(quoted(&child.process_type))),
        ("process_id", child.process_id.as_deref().map(quoted)),
        ("input", json(&child.input)),
        ("global_attribute_pk", child.global_attribute_pk.as_deref().map(quoted)),
        ("global_attributes", json(&child.global_attributes)),
        ("local_attributes", json(&child.local_attributes)),
        ("id_reuse_policy", Some(quoted(child.id_reuse_policy.as_str()))),
        ("timeout", timeout),
        ("start_at", child.start_at.map(|at| quoted(&at.iso8601()))),
        ("options", json(&child.options)),
    ];
    object(members.iter().filter_map(|(key, value)| Some((*key, value.as_deref()?))))
}

/// The message of a child's refused start: it begins with the child's place in the answer.
pub fn refused_child(number: usize, message: &str) -> String {
    format!("{CHILDREN}[{number}]: {message}")
}
