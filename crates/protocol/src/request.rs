//! What workers are asked. Bodies are written straight into their text: payloads are copied, never parsed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use xdb_engine::*;

/// The identity of a call, the same for all its attempts:
/// `<execution id>/<state execution id>/wait-until` or `…/execute`.
///
/// It goes into HTTP headers, so every byte of the state execution id other than ASCII letters, digits and `-_.~` is
/// percent-encoded.
pub fn call_id(execution: ExecutionId, state_execution_id: &StateExecutionId, api: Api) -> String {
    let api = match api {
        Api::WaitUntil => "wait-until",
        Api::Execute => "execute",
    };
    format!("{execution}/{}-{}/{api}", header_safe(&state_execution_id.state_id), state_execution_id.number)
}

/// The identity of one RPC: `<execution id>/rpc/<invocation>`. The caller sees to it that the invocation is unique, or
/// the same where an RPC is repeated.
pub fn rpc_call_id(execution: ExecutionId, invocation: &str) -> String {
    format!("{execution}/rpc/{}", header_safe(invocation))
}

/// `<call id>/<generation>`: the same for attempts that carry the same request.
pub fn idempotency_key(call_id: &str, generation: u32) -> String {
    format!("{call_id}/{generation}")
}

fn header_safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => safe.push(byte.into()),
            _ => {
                let hex = |digit: u8| char::from(b"0123456789ABCDEF"[usize::from(digit)]);
                safe.extend(['%', hex(byte >> 4), hex(byte & 15)]);
            }
        }
    }
    safe
}

/// The `context` of a request.
#[derive(Clone, Copy, Debug)]
pub struct CallContext<'a> {
    pub process_id: &'a str,
    pub execution: ExecutionId,
    pub process_started_at: Timestamp,
    /// None for an RPC.
    pub state_execution_id: Option<&'a StateExecutionId>,
    /// From 1.
    pub attempt: u32,
    pub call_id: &'a str,
    pub first_attempt_at: Timestamp,
    pub recovery: Option<&'a Recovery>,
}

/// Attributes that a call gets.
#[derive(Clone, Copy, Debug)]
pub enum Attributes<'a> {
    /// The text of a JSON object, as the database made it.
    Object(&'a str),
    Map(&'a BTreeMap<String, Json>),
}

#[derive(Clone, Copy, Debug)]
pub struct WaitUntilRequest<'a> {
    pub context: CallContext<'a>,
    pub process_type: &'a str,
    pub state_id: &'a str,
    pub state_input: Option<&'a Json>,
    pub loaded_global_attributes: Attributes<'a>,
    pub loaded_local_attributes: Attributes<'a>,
    pub app_database_error: Option<&'a AppDatabaseError>,
}

#[derive(Clone, Copy, Debug)]
pub struct ExecuteRequest<'a> {
    pub context: CallContext<'a>,
    pub process_type: &'a str,
    pub state_id: &'a str,
    pub state_input: Option<&'a Json>,
    pub loaded_global_attributes: Attributes<'a>,
    pub loaded_local_attributes: Attributes<'a>,
    /// None when `waitUntil` was skipped: the results are empty then.
    pub results: Option<&'a Wait>,
    pub app_database_error: Option<&'a AppDatabaseError>,
}

#[derive(Clone, Copy, Debug)]
pub struct RpcRequest<'a> {
    pub context: CallContext<'a>,
    pub process_type: &'a str,
    pub rpc_name: &'a str,
    pub input: Option<&'a Json>,
    pub loaded_global_attributes: Attributes<'a>,
    pub loaded_local_attributes: Attributes<'a>,
}

impl WaitUntilRequest<'_> {
    pub fn encode(&self) -> String {
        let mut body = Writer::default();
        body.object(|body| {
            body.state_call(&self.context, self.process_type, self.state_id, self.state_input);
            body.attributes("loadedGlobalAttributes", self.loaded_global_attributes);
            body.attributes("loadedLocalAttributes", self.loaded_local_attributes);
            body.app_database_error(self.app_database_error);
        });
        body.text
    }
}

impl ExecuteRequest<'_> {
    pub fn encode(&self) -> String {
        let mut body = Writer::default();
        body.object(|body| {
            body.state_call(&self.context, self.process_type, self.state_id, self.state_input);
            body.attributes("loadedGlobalAttributes", self.loaded_global_attributes);
            body.attributes("loadedLocalAttributes", self.loaded_local_attributes);
            body.command_results(self.results.map_or(&[][..], |wait| &wait.commands));
            body.app_database_error(self.app_database_error);
        });
        body.text
    }
}

impl RpcRequest<'_> {
    pub fn encode(&self) -> String {
        let mut body = Writer::default();
        body.object(|body| {
            body.context(&self.context);
            body.string_field("processType", Some(self.process_type));
            body.string_field("rpcName", Some(self.rpc_name));
            body.json_field("input", self.input);
            body.attributes("loadedGlobalAttributes", self.loaded_global_attributes);
            body.attributes("loadedLocalAttributes", self.loaded_local_attributes);
        });
        body.text
    }
}

/// Writes JSON. Commas come by themselves: one stands before everything that does not follow an opening bracket.
#[derive(Default)]
struct Writer {
    text: String,
}

impl Writer {
    fn state_call(&mut self, context: &CallContext<'_>, process_type: &str, state_id: &str, input: Option<&Json>) {
        self.context(context);
        self.string_field("processType", Some(process_type));
        self.string_field("stateId", Some(state_id));
        self.json_field("stateInput", input);
    }

    fn context(&mut self, context: &CallContext<'_>) {
        self.key("context");
        self.object(|body| {
            body.string_field("processId", Some(context.process_id));
            body.display_field("processExecutionId", context.execution);
            body.integer_field("processStartedTimestamp", context.process_started_at.unix_seconds());
            if let Some(id) = context.state_execution_id {
                body.display_field("stateExecutionId", id);
            }
            body.integer_field("attempt", context.attempt.into());
            body.string_field("callId", Some(context.call_id));
            body.integer_field("firstAttemptTimestamp", context.first_attempt_at.unix_seconds());
            if let Some(recovery) = context.recovery {
                body.display_field("recoverFromStateExecutionId", &recovery.state_execution_id);
                body.string_field("recoverFromApi", Some(recovery.api.as_str()));
                body.key("recoverFromError");
                body.object(|body| {
                    match recovery.failure.status {
                        Some(status) => body.integer_field("status", status.into()),
                        None => body.string_field("status", None),
                    }
                    body.string_field("errorType", recovery.failure.error_type.as_deref());
                    body.string_field("detail", Some(&recovery.failure.detail));
                });
            }
        });
    }

    fn command_results(&mut self, commands: &[WaitCommand]) {
        self.key("commandResults");
        self.object(|body| {
            body.key("timerResults");
            body.array(|body| {
                for command in commands.iter().filter(|c| matches!(c.kind, WaitKind::Timer { .. })) {
                    body.item(|body| {
                        body.string_field("commandId", command.command_id.as_deref());
                        body.string_field("status", Some(command.status.as_str()));
                    });
                }
            });
            body.queue_results(
                "localQueueResults",
                commands,
                |command| match &command.kind {
                    WaitKind::LocalQueue { queue, .. } => Some((queue.as_str(), command.messages.as_slice())),
                    _ => None,
                },
                |body, message| {
                    body.string_field("messageId", message.message_id.as_deref());
                    body.json_field("payload", message.payload.as_ref());
                },
            );
            body.queue_results(
                "globalQueueResults",
                commands,
                |command| match &command.kind {
                    WaitKind::GlobalQueue { queue, .. } => Some((queue.as_str(), command.global_messages.as_slice())),
                    _ => None,
                },
                |body, message| {
                    body.string_field("messageId", message.message_id.as_deref());
                    body.string_field("key", message.key.as_deref());
                    body.json_field("payload", message.payload.as_ref());
                },
            );
        });
    }

    /// The commands of one kind of queue, in request order: `of` gives the queue and what was taken, `message` writes
    /// the fields of a message.
    fn queue_results<'c, M: 'c>(
        &mut self,
        name: &str,
        commands: &'c [WaitCommand],
        of: impl Fn(&'c WaitCommand) -> Option<(&'c str, &'c [M])>,
        message: impl Fn(&mut Self, &M),
    ) {
        self.key(name);
        self.array(|body| {
            for command in commands {
                let Some((queue, taken)) = of(command) else { continue };
                body.item(|body| {
                    body.string_field("commandId", command.command_id.as_deref());
                    body.string_field("queueName", Some(queue));
                    body.string_field("status", Some(command.status.as_str()));
                    body.key("messages");
                    body.array(|body| taken.iter().for_each(|taken| body.item(|body| message(body, taken))));
                });
            }
        });
    }

    fn app_database_error(&mut self, error: Option<&AppDatabaseError>) {
        let Some(error) = error else { return };
        self.key("appDatabaseError");
        self.object(|body| {
            body.string_field("sqlState", Some(&error.sql_state));
            body.string_field("message", Some(&error.message));
            body.string_field("table", error.table.as_deref());
            body.string_field("constraint", error.constraint.as_deref());
        });
    }

    fn attributes(&mut self, key: &str, attributes: Attributes<'_>) {
        self.key(key);
        match attributes {
            Attributes::Object(text) => self.text.push_str(text),
            Attributes::Map(map) => self.object(|body| {
                for (key, value) in map {
                    body.json_field(key, Some(value));
                }
            }),
        }
    }

    fn item(&mut self, write: impl FnOnce(&mut Self)) {
        self.separate();
        self.object(write);
    }

    fn object(&mut self, write: impl FnOnce(&mut Self)) {
        self.text.push('{');
        write(self);
        self.text.push('}');
    }

    fn array(&mut self, write: impl FnOnce(&mut Self)) {
        self.text.push('[');
        write(self);
        self.text.push(']');
    }

    fn string_field(&mut self, key: &str, value: Option<&str>) {
        self.key(key);
        match value {
            Some(value) => self.string(value),
            None => self.text.push_str("null"),
        }
    }

    fn display_field(&mut self, key: &str, value: impl std::fmt::Display) {
        self.string_field(key, Some(&value.to_string()));
    }

    fn integer_field(&mut self, key: &str, value: i64) {
        self.key(key);
        self.text.push_str(&value.to_string());
    }

    fn json_field(&mut self, key: &str, value: Option<&Json>) {
        self.key(key);
        self.text.push_str(value.map_or("null", Json::as_str));
    }

    fn key(&mut self, key: &str) {
        self.separate();
        self.string(key);
        self.text.push(':');
    }

    fn separate(&mut self) {
        if !self.text.ends_with(['{', '[']) {
            self.text.push(',');
        }
    }

    fn string(&mut self, value: &str) {
        self.text.push('"');
        let mut plain_from = 0;
        for (at, byte) in value.bytes().enumerate() {
            let escape = match byte {
                b'"' => "\\\"",
                b'\\' => "\\\\",
                b'\n' => "\\n",
                b'\r' => "\\r",
                b'\t' => "\\t",
                0..0x20 => "",
                _ => continue,
            };
            self.text.push_str(&value[plain_from..at]);
            plain_from = at + 1;
            if escape.is_empty() {
                // Writing to a string can't fail.
                let _ = write!(self.text, "\\u{byte:04x}");
            } else {
                self.text.push_str(escape);
            }
        }
        self.text.push_str(&value[plain_from..]);
        self.text.push('"');
    }
}
