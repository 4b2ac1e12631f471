//! A call from the engine, as a worker got it.

use std::collections::HashMap;
use std::time::Instant;

use serde_json::Value;

/// The three calls of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// Asks what the state waits for.
    WaitUntil,
    /// Asks what to do next.
    Execute,
    /// Asks for the result of an RPC for a caller.
    Rpc,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Call {
    /// The kind of the call.
    pub api: Api,
    /// The path of the request.
    pub path: String,
    /// The headers, with names in lower case.
    pub headers: HashMap<String, String>,
    /// The decoded body.
    pub body: Value,
    /// The body as text, so that numbers keep all their digits.
    pub raw: String,
    /// When the call came.
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

    /// A call that a pull worker has claimed: a row of `xdb.claim_calls()`.
    pub fn claimed(row: &Value) -> Call {
        let api = if row["api"] == "WAIT_UNTIL_API" { Api::WaitUntil } else { Api::Execute };
        let body = row["request"].clone();
        let raw = body.to_string();
        Call { api, path: String::new(), headers: HashMap::new(), body, raw, at: Instant::now() }
    }

    fn text(&self, field: &str) -> &str {
        self.body[field].as_str().unwrap_or_default()
    }

    fn context(&self, field: &str) -> &str {
        self.body["context"][field].as_str().unwrap_or_default()
    }

    /// The id of the state, or the name of the RPC.
    pub fn target(&self) -> &str {
        self.text(if self.api == Api::Rpc { "rpcName" } else { "stateId" })
    }

    /// Whether this is `execute` of the state with this id.
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

    /// The identity of the call, the same for all attempts.
    pub fn call_id(&self) -> &str {
        self.context("callId")
    }

    /// The identity of the request: the same while the request does not change.
    pub fn idempotency_key(&self) -> &str {
        self.headers.get("idempotency-key").map_or("", String::as_str)
    }

    /// The number of the attempt, from 1.
    pub fn attempt(&self) -> u64 {
        self.body["context"]["attempt"].as_u64().unwrap_or_default()
    }

    /// The input of the state or the RPC.
    pub fn input(&self) -> &Value {
        &self.body[if self.api == Api::Rpc { "input" } else { "stateInput" }]
    }

    /// A column as the call has loaded it.
    pub fn global(&self, name: &str) -> &Value {
        &self.body["loadedGlobalAttributes"][name]
    }

    /// A local attribute as the call has loaded it.
    pub fn local(&self, key: &str) -> &Value {
        &self.body["loadedLocalAttributes"][key]
    }

    /// The error of the application's tables about an earlier answer, or null.
    pub fn refused_write(&self) -> &Value {
        &self.body["appDatabaseError"]
    }

    /// Whether the timer command fired.
    pub fn fired(&self, command: &str) -> bool {
        self.result("timerResults", command)["status"] == "COMPLETED_COMMAND"
    }

    /// The payloads that a queue command took, from a local or a global queue.
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
