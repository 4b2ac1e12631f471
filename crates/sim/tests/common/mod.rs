//! A simulator that tests drive by lines of JSON, and helpers to answer its calls.

use serde_json::{Value, json};
use xdb_engine::Timestamp;
use xdb_sim::Simulator;

/// 2027-01-01T00:00:00Z
pub const BEGINNING: Timestamp = Timestamp(1_798_761_600_000_000);

pub struct Sim {
    pub simulator: Simulator,
    /// The process id and the execution id of each start.
    started: Vec<(Value, Value)>,
}

impl Sim {
    /// A simulator with one process type `P`, which has this definition.
    pub fn of(definition: Value) -> Self {
        let mut sim = Self { simulator: Simulator::new(BEGINNING), started: Vec::new() };
        sim.ask("register", json!({"process_type": "P", "definition": definition}));
        sim
    }

    fn send(&mut self, command: &str, arguments: Value) -> Value {
        let line = json!({command: arguments}).to_string();
        serde_json::from_str(&self.simulator.line(&line)).unwrap()
    }

    /// Sends a command that must succeed. Returns its result.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Value {
        let process_id = arguments.get("process_id").cloned();
        let mut reply = self.send(command, arguments);
        assert!(reply.get("error").is_none(), "{command}: {reply}");
        if command == "start" {
            let id = reply["result"].clone();
            self.started.push((process_id.unwrap_or_else(|| id.clone()), id));
        }
        reply["result"].take()
    }

    /// Sends a command that must be refused. Returns its SQLSTATE, and its detail or else its message.
    pub fn refused(&mut self, command: &str, arguments: Value) -> (String, String) {
        let error = self.send(command, arguments)["error"].take();
        let text = |key: &str| error[key].as_str().map(str::to_owned);
        (text("sqlstate").unwrap(), text("detail").or(text("message")).unwrap())
    }

    /// Starts a process of type `P`. Returns its execution id.
    pub fn start(&mut self, process_id: &str) -> String {
        let id = self.ask("start", json!({"process_id": process_id, "process_type": "P"}));
        id.as_str().unwrap().to_owned()
    }

    /// The due calls, with decoded bodies.
    pub fn calls(&mut self) -> Vec<Value> {
        let mut calls = self.ask("calls", json!({})).as_array().unwrap().clone();
        calls.iter_mut().for_each(take_apart);
        calls
    }

    /// The only due call.
    pub fn call(&mut self) -> Value {
        let mut calls = self.calls();
        assert_eq!(calls.len(), 1, "{calls:?}");
        calls.remove(0)
    }

    /// The call of an RPC.
    pub fn rpc(&mut self, arguments: Value) -> Value {
        let mut call = self.ask("rpc", arguments)["call"].take();
        take_apart(&mut call);
        call
    }

    pub fn answer(&mut self, call: &Value, body: Value) -> Value {
        self.ask("answer", json!({"call": call["call"], "status": 200, "body": body.to_string()}))
    }

    pub fn fail(&mut self, call: &Value, error_type: &str) -> Value {
        let body = json!({"errorType": error_type, "detail": "it did not work"}).to_string();
        self.ask("answer", json!({"call": call["call"], "status": 500, "body": body}))
    }

    /// Answers the only due call.
    pub fn answered(&mut self, body: Value) -> Value {
        let call = self.call();
        self.answer(&call, body)
    }

    /// Advances to the next moment at which something is due. Returns the seconds since the beginning.
    pub fn next(&mut self) -> f64 {
        self.ask("advance", json!({}));
        self.seconds()
    }

    pub fn advance(&mut self, seconds: f64) -> Value {
        self.ask("advance", json!({"by": seconds}))
    }

    pub fn seconds(&mut self) -> f64 {
        let now = self.advance(0.0)["now"].take();
        xdb_protocol::parse_moment(now.as_str().unwrap()).unwrap().since(BEGINNING) as f64 / 1e6
    }

    pub fn describe(&mut self, process_id: &str) -> Value {
        self.ask("describe", json!({"process_id": process_id}))
    }

    pub fn status(&mut self, process_id: &str) -> String {
        self.describe(process_id)["status"].as_str().unwrap().to_owned()
    }

    /// The names of the events of a process.
    pub fn events(&mut self, process_id: &str) -> Vec<String> {
        let history = self.ask("history", json!({"process_id": process_id}));
        history.as_array().unwrap().iter().map(|event| event["event_type"].as_str().unwrap().to_owned()).collect()
    }

    /// Checks that all executions agree with their histories.
    pub fn is_sound(&mut self) {
        for (process_id, execution) in self.started.clone() {
            let problems = self.ask("check", json!({"process_id": process_id, "execution_id": execution}));
            assert_eq!(problems, json!([]), "{process_id}");
        }
    }
}

fn take_apart(call: &mut Value) {
    call["body"] = serde_json::from_str(call["body"].as_str().unwrap()).unwrap();
}

/// The answer with this state as the next one.
pub fn go(state: &str) -> Value {
    json!({"stateDecision": {"nextStates": [{"stateId": state}]}})
}

/// The answer that ends the thread, and gracefully completes the process.
pub fn done(output: Value) -> Value {
    json!({"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS", "closeInput": output}}})
}

/// The answer to `waitUntil` that waits for any of these commands.
pub fn wait(commands: Value) -> Value {
    let mut request = commands;
    request["waitingType"] = json!("AnyOfCompletion");
    json!({"commandRequest": request})
}
