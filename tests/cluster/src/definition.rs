//! Builds definitions of process types, with defaults for the parts that every test would repeat.

use serde_json::{Value, json};

/// A retry policy that is quick enough for a test.
pub fn quick_retries() -> Value {
    json!({"initialIntervalSeconds": 0.05, "backoffCoefficient": 1.2, "maximumIntervalSeconds": 0.2})
}

/// A quick retry policy with this number of attempts at most.
pub fn attempts(count: u32) -> Value {
    let mut policy = quick_retries();
    policy["maximumAttempts"] = json!(count);
    policy
}

/// A definition that is being built.
#[derive(Clone)]
pub struct Definition(Value);

impl Definition {
    /// A definition with this starting state, which must still be added. The definition allows all global queues,
    /// because few tests are about that.
    pub fn starting_with(state: &str) -> Definition {
        Definition(json!({"startingState": state, "states": {}, "globalQueues": ["*"]}))
    }

    /// A definition without a starting state: only RPCs start threads.
    pub fn without_start() -> Definition {
        Definition(json!({"states": {}, "globalQueues": ["*"]}))
    }

    /// A state without `waitUntil`, which is retried quickly.
    pub fn step(self, state: &str) -> Definition {
        self.step_with(state, json!({}))
    }

    /// A state without `waitUntil`, with more options.
    pub fn step_with(self, state: &str, config: Value) -> Definition {
        let base = json!({"skipWaitUntil": true, "executeApiRetryPolicy": quick_retries()});
        self.state(state, merged(base, config))
    }

    /// A state with `waitUntil`.
    pub fn waiting_step(self, state: &str) -> Definition {
        self.waiting_step_with(state, json!({}))
    }

    /// A state with `waitUntil`, with more options.
    pub fn waiting_step_with(self, state: &str, config: Value) -> Definition {
        let base = json!({"waitUntilApiRetryPolicy": quick_retries(), "executeApiRetryPolicy": quick_retries()});
        self.state(state, merged(base, config))
    }

    fn state(mut self, state: &str, config: Value) -> Definition {
        self.0["states"][state] = config;
        self
    }

    /// Columns of a table as global attributes of the same names.
    pub fn maps(mut self, table: &str, key: &str, columns: &[&str]) -> Definition {
        let attributes: Value = columns.iter().map(|column| (column.to_string(), json!(column))).collect();
        let mapping = json!({"table": table, "primaryKey": key, "attributes": attributes});
        match self.0["globalAttributes"].as_array_mut() {
            Some(mappings) => mappings.push(mapping),
            None => self.0["globalAttributes"] = json!([mapping]),
        }
        self
    }

    /// An RPC.
    pub fn rpc(mut self, name: &str, config: Value) -> Definition {
        self.0["rpcs"][name] = config;
        self
    }

    /// Any other field.
    pub fn with(mut self, field: &str, value: Value) -> Definition {
        self.0[field] = value;
        self
    }

    /// The JSON for `register_process_type`.
    pub fn json(&self) -> &Value {
        &self.0
    }
}

/// Exactly one state, which closes the process. For tests in which only the start matters.
pub fn one_step() -> Definition {
    Definition::starting_with("Only").step("Only")
}

/// One state that waits for a message of `inbox`. For tests that need a running process.
pub fn mailbox() -> Definition {
    Definition::starting_with("Read").waiting_step("Read")
}

fn merged(mut base: Value, more: Value) -> Value {
    if let (Some(base), Value::Object(more)) = (base.as_object_mut(), more) {
        base.extend(more);
    }
    base
}
