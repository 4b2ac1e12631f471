//! Lines of JSON: a command in, `{"result": ...}` or `{"error": ...}` out.
//!
//! Commands and arguments have the names of the functions of the schema `xdb` and their parameters. Moments are in RFC
//! 3339, lengths of time are in seconds, and null counts as absent.

use crate::{LIMITS, Result, Simulator};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use xdb_engine::{Duration, Json, Timestamp};
use xdb_protocol::refusal::{Refusal, invalid_argument};
use xdb_protocol::{arguments, parse_moment};

impl Simulator {
    /// Carries out one line and returns the line of the result, both without line ends.
    pub fn line(&mut self, line: &str) -> String {
        let last_id = self.last_id;
        let reply = match serde_json::from_str::<BTreeMap<String, Given>>(line) {
            Ok(mut commands) => match commands.pop_first() {
                Some((command, mut given)) if commands.is_empty() => self.carry_out(&command, &mut given),
                _ => Err(no_command("it needs one key")),
            },
            Err(error) => Err(no_command(error)),
        };
        let reply = reply.unwrap_or_else(|refusal| {
            // Only the id counter may have changed before a command is refused.
            self.last_id = last_id;
            let sqlstate = refusal.sqlstate();
            let Refusal { message, detail, hint, datatype, .. } = refusal;
            json!({"error": {
                "sqlstate": sqlstate, "message": message, "detail": detail, "hint": hint, "datatype": datatype
            }})
            .to_string()
        });
        // Payloads may contain line ends between tokens. A space means the same there.
        reply.replace(['\n', '\r'], " ")
    }

    fn carry_out(&mut self, command: &str, given: &mut Given) -> Result<String> {
        given.0.retain(|_, json| json.as_str() != "null");
        match command {
            "register" => result(self.register(given)?),
            "start" => result(self.start(given)?.to_string()),
            "calls" => result(given.end().and_then(|()| self.calls())?),
            "answer" => self.answer(given),
            "advance" => result(self.advance(given)?),
            "publish" => result(self.publish(given)?),
            "publish_global" => result(self.publish_global(given)?),
            "rpc" => self.rpc(given),
            "stop" => result(self.stop(given)?),
            "set_local_attributes" => result(self.set_local_attributes(given)?),
            "get_local_attributes" => result(self.local_attributes(given)?),
            "skip_timer" => result(self.skip_timer(given)?),
            "retry_now" => result(self.retry_now(given)?),
            "move_state" => result(self.move_state(given)?),
            "pause_process" => result(self.pause_process(given)?),
            "resume_process" => result(self.resume_process(given)?),
            "pause_process_type" => result(self.pause_process_type(given)?),
            "resume_process_type" => result(self.resume_process_type(given)?),
            "rows" => result(self.rows(given)?),
            "called" => result(given.end().map(|()| std::mem::take(&mut self.called))?),
            "describe" => result(self.process(given).map(|id| self.describe(id))?),
            "incidents" => result(given.end().map(|()| self.incidents())?),
            "history" => result(self.process(given).map(|id| &self.run(id).history)?),
            "check" => result(self.process(given).map(|id| self.problems(id))?),
            _ => Err(no_command(format_args!("unknown command {command}"))),
        }
    }
}

/// The line of a result.
pub(crate) fn result(result: impl serde::Serialize) -> Result<String> {
    // Can't fail: all keys are strings.
    let text = serde_json::to_string(&result).map_err(|error| Refusal::internal(error.to_string()))?;
    Ok(format!(r#"{{"result":{text}}}"#))
}

fn no_command(what: impl std::fmt::Display) -> Refusal {
    Refusal::new(b"08P01", format!("this is no command: {what}"))
}

/// The object without its null members.
pub(crate) fn present(mut object: Value) -> Value {
    if let Value::Object(members) = &mut object {
        members.retain(|_, value| !value.is_null());
    }
    object
}

/// A moment in UTC, as `jsonb` writes a `timestamptz`.
pub(crate) fn shown(at: Timestamp) -> String {
    let text = at.iso8601();
    format!("{}+00:00", text.trim_end_matches('Z').trim_end_matches('0').trim_end_matches('.'))
}

/// The arguments of a command that were not read yet.
#[derive(Deserialize)]
pub(crate) struct Given(BTreeMap<String, Json>);

impl Given {
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
