//! What the engine asked of a worker.

use std::collections::HashMap;
use std::time::Instant;

use serde_json::Value;

/// Which of the three calls of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// What does the state wait for?
    WaitUntil,
    /// What is to be done next?
    Execute,
    /// A procedure on behalf of a caller.
    Rpc,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Call {
    /// Which call it is.
    pub api: Api,
    /// The path it came on.
    pub path: String,
    /// Header fields, names in lower case.
    pub headers: HashMap<String, String>,
    /// The decoded body.
    pub body: Value,
    /// The body as it came: numbers with all their digits.
    pub raw: String,
    /// When it came.
    pub at: Instant,
}

impl Call {
    pub(super) fn new(path: String, headers: HashMap<String, String>, raw: String) -> Result<Call, String> {
        let api = match path.as_str() {
            "/api/v1/xdb/worker/async-state/wait-until" => Api::WaitUntil,
            "/api/v1/xdb/worker/async-state/execute" => Api::Execute,
            "/api/v1/xdb/worker/process/rpc" => Api::Rpc,
            other => return Err(format!("no such path: {other}")),
        };
        let body = serde_json::from_str(&raw).map_err(|error| format!("{error}: {raw}"))?;
        Ok(Call { api, path, headers, body, raw, at: Instant::now() })
    }

    fn text(&self, field: &str) -> &str {
        self.body[field].as_str().unwrap_or_default()
    }

    fn context(&self, field: &str) -> &str {
        self.body["context"][field].as_str().unwrap_or_default()
    }

    /// The state's id, or the RPC's name.
    pub fn target(&self) -> &str {
        self.text(if self.api == Api::Rpc { "rpcName" } else { "stateId" })
    }

    /// Is it `execute` of this state?
    pub fn executes(&self, state: &str) -> bool {
        self.api == Api::Execute && self.target() == state
    }

    /// The process's id.
    pub fn process_id(&self) -> &str {
        self.context("processId")
    }

    /// `<state>-<number>`.
    pub fn state_execution_id(&self) -> &str {
        self.context("stateExecutionId")
    }

    /// The call's identity for ever.
    pub fn call_id(&self) -> &str {
        self.context("callId")
    }

    /// The call's identity for as long as the request is the same.
    pub fn idempotency_key(&self) -> &str {
        self.headers.get("idempotency-key").map_or("", String::as_str)
    }

    /// From 1.
    pub fn attempt(&self) -> u64 {
        self.body["context"]["attempt"].as_u64().unwrap_or_default()
    }

    /// The state's or the RPC's input.
    pub fn input(&self) -> &Value {
        &self.body[if self.api == Api::Rpc { "input" } else { "stateInput" }]
    }

    /// A column, as it was loaded.
    pub fn global(&self, name: &str) -> &Value {
        &self.body["loadedGlobalAttributes"][name]
    }

    /// A local attribute, as it was loaded.
    pub fn local(&self, key: &str) -> &Value {
        &self.body["loadedLocalAttributes"][key]
    }

    /// The write that was refused, or null.
    pub fn refused_write(&self) -> &Value {
        &self.body["appDatabaseError"]
    }

    /// Did the timer command fire?
    pub fn fired(&self, command: &str) -> bool {
        self.result("timerResults", command)["status"] == "COMPLETED_COMMAND"
    }

    /// The payloads that a queue command took, of either kind of queue.
    pub fn messages(&self, command: &str) -> Vec<Value> {
        ["localQueueResults", "globalQueueResults"]
            .iter()
            .filter_map(|kind| self.result(kind, command)["messages"].as_array())
            .flatten()
            .map(|message| message["payload"].clone())
            .collect()
    }

    fn result(&self, kind: &str, command: &str) -> &Value {
        let results = self.body["commandResults"][kind].as_array();
        let found = results.and_then(|results| results.iter().find(|result| result["commandId"] == command));
        found.unwrap_or(&Value::Null)
    }
}
