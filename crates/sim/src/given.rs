//! The arguments of a command, and what its result is made of.
//!
//! Moments are in RFC 3339, lengths of time are in seconds, and null counts as absent.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use xdb_engine::{Duration, Json, Timestamp};
use xdb_protocol::refusal::{Refusal, invalid_argument};
use xdb_protocol::{AnswerLimits, arguments, parse_moment};

/// The result of a command, or why it was refused. A refused command changes nothing.
pub type Result<T> = std::result::Result<T, Refusal>;

/// The limits of a server with default settings.
pub const LIMITS: AnswerLimits = AnswerLimits { max_payload_bytes: 1024 * 1024, max_answer_bytes: usize::MAX };

/// The line of a result.
pub fn result(result: impl serde::Serialize) -> Result<String> {
    // Can't fail: all keys are strings.
    let text = serde_json::to_string(&result).map_err(|error| Refusal::internal(error.to_string()))?;
    Ok(format!(r#"{{"result":{text}}}"#))
}

/// The refusal of a line that is no command, or of an argument that can't be read.
pub fn no_command(what: impl std::fmt::Display) -> Refusal {
    Refusal::new(b"08P01", format!("this is no command: {what}"))
}

/// The object without its null members.
pub fn present(mut object: Value) -> Value {
    if let Value::Object(members) = &mut object {
        members.retain(|_, value| !value.is_null());
    }
    object
}

/// A moment in UTC, as `jsonb` writes a `timestamptz`.
pub fn shown(at: Timestamp) -> String {
    let text = at.iso8601();
    format!("{}+00:00", text.trim_end_matches('Z').trim_end_matches('0').trim_end_matches('.'))
}

/// The arguments of a command that were not read yet.
#[derive(Deserialize)]
pub struct Given(BTreeMap<String, Json>);

impl Given {
    /// Leaves out arguments that are null.
    pub fn leave_out_nulls(&mut self) {
        self.0.retain(|_, json| json.as_str() != "null");
    }

    /// Reads an optional argument.
    pub fn take<T: DeserializeOwned>(&mut self, argument: &str) -> Result<Option<T>> {
        let read = self.0.remove(argument).map(|json| serde_json::from_str(json.as_str())).transpose();
        read.map_err(|error| no_command(format_args!("{argument}: {error}")))
    }

    /// Takes an argument out that must be given.
    pub fn needed<T: DeserializeOwned>(&mut self, argument: &str) -> Result<T> {
        arguments::needed(argument, self.take(argument)?)
    }

    /// Takes a name out that must be given.
    pub fn name(&mut self, argument: &str) -> Result<String> {
        arguments::name(argument, self.take(argument)?)
    }

    /// Takes a name out, if it is given.
    pub fn name_if_given(&mut self, argument: &str) -> Result<Option<String>> {
        arguments::name_if_given(argument, self.take(argument)?)
    }

    /// An argument as JSON text.
    pub fn text(&mut self, argument: &str) -> Result<Option<String>> {
        Ok(self.take(argument)?.map(|json: Json| json.as_str().to_owned()))
    }

    /// Takes a payload out, if it is given. JSON null means that it is absent.
    pub fn payload(&mut self, argument: &str) -> Result<Option<Json>> {
        arguments::payload(argument, self.text(argument)?.as_deref(), LIMITS.max_payload_bytes)
    }

    /// Takes an object of payloads out. Absent: an empty one.
    pub fn payloads(&mut self, argument: &str) -> Result<BTreeMap<String, Json>> {
        arguments::payloads(argument, self.text(argument)?.as_deref(), LIMITS.max_payload_bytes)
    }

    /// A moment. Never infinite here.
    pub fn moment(&mut self, argument: &str) -> Result<Option<Option<Timestamp>>> {
        let parse = |text: String| parse_moment(&text).map_err(|what| invalid_argument(argument, what));
        Ok(self.take(argument)?.map(parse).transpose()?.map(Some))
    }

    /// A length of time. `Some(None)`: it is negative.
    pub fn length(&mut self, argument: &str) -> Result<Option<Option<Duration>>> {
        let length = |seconds: f64| (seconds >= 0.0).then(|| Duration::from_seconds(seconds));
        Ok(self.take(argument)?.map(length))
    }

    /// Refuses a command with unknown arguments.
    pub fn end(&self) -> Result<()> {
        let unknown = self.0.keys().next();
        unknown.map_or(Ok(()), |unknown| Err(no_command(format_args!("unknown argument {unknown}"))))
    }
}
