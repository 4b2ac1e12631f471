//! Writes the requests to workers. Bodies are written as text, and payloads are copied without parsing. serde's
//! `RawValue` would parse a payload again: twenty times slower for a megabyte.

use serde::Serialize;
use std::collections::BTreeMap;
use std::iter;
use xdb_engine::*;

/// Paths of the calls of states and RPCs, after the worker's URL.
pub const WAIT_UNTIL_PATH: &str = "/api/v1/xdb/worker/async-state/wait-until";
pub const EXECUTE_PATH: &str = "/api/v1/xdb/worker/async-state/execute";
pub const RPC_PATH: &str = "/api/v1/xdb/worker/process/rpc";

/// The identity of a call, the same for all its attempts:
/// `<execution id>/<step id>/wait-until` or `…/execute`.
///
/// HTTP headers contain it. So each byte of the step id except ASCII letters, digits and `-_.~` is
/// percent-encoded.
pub fn call_id(execution: ExecutionId, state_execution_id: &StateExecutionId, api: Api) -> String {
    let api = match api {
        Api::WaitUntil => "wait-until",
        Api::Execute => "execute",
    };
    format!("{execution}/{}-{}/{api}", header_safe(&state_execution_id.state_id), state_execution_id.number)
}

/// The identity of one RPC: `<execution id>/rpc/<RPC>/<invocation>`. The caller makes sure that the invocation is
/// unique, or the same if an RPC is repeated.
pub fn rpc_call_id(execution: ExecutionId, rpc_name: &str, invocation: &str) -> String {
    format!("{execution}/rpc/{}/{}", header_safe(rpc_name), header_safe(invocation))
}

/// The `Idempotency-Key` under which a worker may store its answer: `<call id>/<generation>`. Attempts with the same
/// request have the same key. Values loaded under a lock are part of the request, so their fingerprint `values` is part
/// of the key.
pub fn request_key(call_id: &str, generation: u32, values: Option<u64>) -> String {
    match values {
        Some(values) => format!("{call_id}/{generation}/{values:016x}"),
        None => format!("{call_id}/{generation}"),
    }
}

/// The fingerprint of loaded values in an [idempotency key](request_key). So an answer to other values is never taken
/// for an answer to these.
pub fn fingerprint(global: &str, local: &str) -> u64 {
    hash([global, local].into_iter())
}

/// The fingerprint of values loaded under locks in the token of a pull worker: global attributes, and the versions of
/// local ones.
pub fn token_fingerprint(global: &str, versions: &BTreeMap<String, String>) -> u64 {
    hash(iter::once(global).chain(versions.iter().flat_map(|(name, version)| [name.as_str(), version])))
}

/// The hash of several texts. Lengths are hashed too, so the border between two texts counts.
fn hash<'a>(texts: impl Iterator<Item = &'a str>) -> u64 {
    let bytes = texts.flat_map(|text| (text.len() as u64).to_le_bytes().into_iter().chain(text.bytes()));
    let hash = fnv1a_128(bytes);
    (hash >> 64) as u64 ^ hash as u64
}

/// A JSON object from members whose values are JSON text.
pub fn object<'a>(members: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> String {
    const QUOTES_COLON_COMMA: usize = 4;
    let bytes = 2 + members.clone().map(|(name, value)| name.len() + value.len() + QUOTES_COLON_COMMA).sum::<usize>();
    let mut text = String::with_capacity(bytes);
    text.push('{');
    for (name, value) in members {
        if text.len() > 1 {
            text.push(',');
        }
        // A string always has a JSON form.
        text.push_str(&serde_json::to_string(name).unwrap_or_default());
        text.push(':');
        text.push_str(value);
    }
    text.push('}');
    text
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
    /// The current name of the role that the process runs as. None if the role was dropped.
    pub owner: Option<&'a str>,
    /// The database of the process.
    pub database: &'a str,
    pub process_started_at: Timestamp,
    /// None for an RPC.
    pub state_execution_id: Option<&'a StateExecutionId>,
    /// Attempt number, from 1.
    pub attempt: u32,
    pub call_id: &'a str,
    pub first_attempt_at: Timestamp,
    /// Time limit until the last byte of the answer.
    pub timeout: std::time::Duration,
    /// The shard, if the process was started with a shard key.
    pub shard: Option<i16>,
    /// The process whose answer started this one.
    pub parent: Option<&'a StartedBy>,
    /// The failed step, if this state recovers from one.
    pub recovery: Option<&'a Recovery>,
    /// A step that this state guarded, if it is a guard.
    pub guards: Option<&'a StateExecutionId>,
    /// The step that is being undone.
    pub compensates: Option<&'a StateExecutionId>,
}

impl CallContext<'_> {
    /// The object as JSON text, for the functions that an answer calls.
    pub fn encode(&self) -> String {
        let mut text = Writer::with_room_for(0);
        text.context_object(self);
        text.finish()
    }
}

/// The context for functions that a start calls.
#[derive(Clone, Copy, Debug)]
pub struct StartContext<'a> {
    pub process_id: &'a str,
    pub execution: ExecutionId,
    pub owner: Option<&'a str>,
    pub database: &'a str,
    pub process_started_at: Timestamp,
}

impl StartContext<'_> {
    /// Writes the context as JSON.
    pub fn encode(&self) -> String {
        let mut text = Writer::with_room_for(0);
        text.object(|body| body.process(self));
        text.finish()
    }
}

/// Which handler is called.
#[derive(Clone, Copy, Debug)]
pub enum Handler<'a> {
    /// `waitUntil` or `execute` of the state with this id.
    State(&'a str),
    /// The RPC with this name.
    Rpc(&'a str),
}

/// The body of a request. Attributes are JSON objects as text, as the database made them.
#[derive(Clone, Copy, Debug)]
pub struct RequestBody<'a> {
    pub context: CallContext<'a>,
    pub process_type: &'a str,
    pub handler: Handler<'a>,
    pub input: Option<&'a Json>,
    pub loaded_global_attributes: &'a str,
    pub loaded_local_attributes: &'a str,
    /// The results of the wait for `execute`: empty if `waitUntil` was skipped. None for other calls.
    pub results: Option<&'a [WaitCommand]>,
    /// The last error of the application's tables about an answer to this call.
    pub app_database_error: Option<&'a AppDatabaseError>,
}

impl RequestBody<'_> {
    /// Bytes of the application's values in the body. The rest is short.
    pub fn payload_bytes(&self) -> usize {
        let length = |payload: Option<&Json>| payload.map_or(0, |payload| payload.as_str().len());
        let messages = self.results.into_iter().flatten().map(|command| {
            let local = command.messages.iter().map(|message| length(message.payload.as_ref()));
            let global = command.global_messages.iter().map(|message| length(message.payload.as_ref()));
            local.chain(global).sum::<usize>()
        });
        let recovery = self.context.recovery.map_or(0, |recovery| recovery.failure.detail.len());
        let attributes = self.loaded_global_attributes.len() + self.loaded_local_attributes.len();
        messages.sum::<usize>() + length(self.input) + attributes + recovery
    }

    /// Writes the body as JSON.
    pub fn encode(&self) -> String {
        let mut body = Writer::with_room_for(self.payload_bytes());
        body.object(|body| {
            body.context(&self.context);
            body.field("processType", self.process_type);
            let (name, input, id) = match self.handler {
                Handler::State(id) => ("stateId", "stateInput", id),
                Handler::Rpc(id) => ("rpcName", "input", id),
            };
            body.field(name, id);
            body.payload(input, self.input);
            body.text("loadedGlobalAttributes", self.loaded_global_attributes);
            body.text("loadedLocalAttributes", self.loaded_local_attributes);
            if let Some(commands) = self.results {
                body.command_results(commands);
            }
            if let Some(AppDatabaseError { sql_state, message, table, constraint }) = self.app_database_error {
                body.field("appDatabaseError", RefusedWrite { sql_state, message, table, constraint });
            }
        });
        body.finish()
    }
}

/// Writes JSON: payloads as they are, everything else with serde. A comma is written before each item that does not
/// follow an opening bracket.
struct Writer {
    bytes: Vec<u8>,
}

/// A part of a request that contains no payload.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RecoveredError<'a> {
    status: Option<u16>,
    error_type: &'a Option<String>,
    detail: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RefusedWrite<'a> {
    sql_state: &'a str,
    message: &'a str,
    table: &'a Option<String>,
    constraint: &'a Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ParentProcess<'a> {
    process_id: &'a str,
    process_execution_id: &'a ExecutionId,
    #[serde(skip_serializing_if = "Option::is_none")]
    state_execution_id: &'a Option<StateExecutionId>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TimerResult<'a> {
    command_id: &'a Option<String>,
    status: &'a CommandStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    fire_at: Option<String>,
}

impl Writer {
    /// Allocates at once: moving large payloads while the text grows would be slow.
    fn with_room_for(payloads: usize) -> Self {
        const REST: usize = 1024;
        Self { bytes: Vec::with_capacity(payloads + REST) }
    }

    fn context(&mut self, context: &CallContext<'_>) {
        self.key("context");
        self.context_object(context);
    }

    fn process(&mut self, process: &StartContext<'_>) {
        self.field("processId", process.process_id);
        self.field("processExecutionId", process.execution.to_string());
        self.field("owner", process.owner);
        self.field("database", process.database);
        self.field("processStartedTimestamp", process.process_started_at.unix_seconds());
    }

    fn context_object(&mut self, context: &CallContext<'_>) {
        let &CallContext { process_id, execution, owner, database, process_started_at, .. } = context;
        self.object(|body| {
            body.process(&StartContext { process_id, execution, owner, database, process_started_at });
            if let Some(id) = context.state_execution_id {
                body.field("stateExecutionId", id);
            }
            body.field("attempt", context.attempt);
            body.field("callId", context.call_id);
            body.field("firstAttemptTimestamp", context.first_attempt_at.unix_seconds());
            body.seconds("timeoutSeconds", context.timeout);
            if let Some(shard) = context.shard {
                body.field("shard", shard);
            }
            if let Some(StartedBy { process_id, process_execution_id, state_execution_id, .. }) = context.parent {
                body.field("parent", ParentProcess { process_id, process_execution_id, state_execution_id });
            }
            if let Some(Recovery { state_execution_id, api, failure }) = context.recovery {
                let Failure { status, error_type, detail, .. } = failure;
                body.field("recoverFromStateExecutionId", state_execution_id);
                body.field("recoverFromApi", api);
                body.field("recoverFromError", RecoveredError { status: *status, error_type, detail });
            }
            if let Some(guards) = context.guards {
                body.field("guards", guards);
            }
            if let Some(compensates) = context.compensates {
                body.field("compensates", compensates);
            }
        });
    }

    fn command_results(&mut self, commands: &[WaitCommand]) {
        self.key("commandResults");
        self.object(|body| {
            let timers = commands.iter().filter_map(|WaitCommand { command_id, status, kind, .. }| match kind {
                WaitKind::Timer { fire_at, cron } => {
                    Some(TimerResult { command_id, status, fire_at: cron.then(|| fire_at.iso8601()) })
                }
                WaitKind::LocalQueue { .. } | WaitKind::GlobalQueue { .. } => None,
            });
            body.field("timerResults", timers.collect::<Vec<_>>());
            body.queue_results(
                "localQueueResults",
                commands,
                |command| match &command.kind {
                    WaitKind::LocalQueue { queue, .. } => Some((queue.as_str(), command.messages.as_slice())),
                    _ => None,
                },
                |body, message| {
                    body.field("messageId", &message.message_id);
                    body.payload("payload", message.payload.as_ref());
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
                    body.field("messageId", &message.message_id);
                    body.field("key", &message.key);
                    body.payload("payload", message.payload.as_ref());
                },
            );
        });
    }

    /// The commands for one kind of queue, in request order. `of` returns the queue and the taken messages, and
    /// `message` writes the fields of a message.
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
                    body.field("commandId", &command.command_id);
                    body.field("queueName", queue);
                    body.field("status", command.status);
                    body.key("messages");
                    body.array(|body| taken.iter().for_each(|taken| body.item(|body| message(body, taken))));
                });
            }
        });
    }

    fn item(&mut self, write: impl FnOnce(&mut Self)) {
        self.separate();
        self.object(write);
    }

    fn object(&mut self, write: impl FnOnce(&mut Self)) {
        self.bytes.push(b'{');
        write(self);
        self.bytes.push(b'}');
    }

    fn array(&mut self, write: impl FnOnce(&mut Self)) {
        self.bytes.push(b'[');
        write(self);
        self.bytes.push(b']');
    }

    fn field(&mut self, key: &str, value: impl Serialize) {
        self.key(key);
        self.value(value);
    }

    /// Whole seconds have no fraction, because for some readers `60.0` is not `60`.
    fn seconds(&mut self, key: &str, duration: std::time::Duration) {
        match duration.subsec_nanos() {
            0 => self.field(key, duration.as_secs()),
            _ => self.field(key, duration.as_secs_f64()),
        }
    }

    fn payload(&mut self, key: &str, value: Option<&Json>) {
        self.text(key, value.map_or("null", Json::as_str));
    }

    /// Writes a JSON value as it is.
    fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        self.bytes.extend(value.as_bytes());
    }

    fn key(&mut self, key: &str) {
        self.separate();
        self.value(key);
        self.bytes.push(b':');
    }

    fn separate(&mut self) {
        if !self.bytes.ends_with(b"{") && !self.bytes.ends_with(b"[") {
            self.bytes.push(b',');
        }
    }

    fn value(&mut self, value: impl Serialize) {
        // Can't fail: keys are strings, and numbers are finite.
        serde_json::to_writer(&mut self.bytes, &value).expect("it is JSON");
    }

    fn finish(self) -> String {
        String::from_utf8(self.bytes).expect("only texts were written")
    }
}
