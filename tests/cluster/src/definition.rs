//! Definitions of process types, without the noise that every test would repeat.

use serde_json::{Value, json};

/// Retries soon enough for a test.
pub fn quick_retries() -> Value {
    json!({"initialIntervalSeconds": 0.05, "backoffCoefficient": 1.2, "maximumIntervalSeconds": 0.2})
}

/// The same, and no more than so many attempts.
pub fn attempts(count: u32) -> Value {
    let mut policy = quick_retries();
    policy["maximumAttempts"] = json!(count);
    policy
}

/// A definition in the making.
#[derive(Clone)]
pub struct Definition(Value);

impl Definition {
    /// The starting state is the one named; it still has to be added. It may use all global queues: few tests are about which.
    pub fn starting_with(state: &str) -> Definition {
        Definition(json!({"startingState": state, "states": {}, "globalQueues": ["*"]}))
    }

    /// No thread before an RPC starts one.
    pub fn without_start() -> Definition {
        Definition(json!({"states": {}, "globalQueues": ["*"]}))
    }

    /// A state that goes straight to `execute`, and is retried quickly.
    pub fn step(self, state: &str) -> Definition {
        self.step_with(state, json!({}))
    }

    /// The same, with more in its configuration.
    pub fn step_with(self, state: &str, config: Value) -> Definition {
        let base = json!({"skipWaitUntil": true, "executeApiRetryPolicy": quick_retries()});
        self.state(state, merged(base, config))
    }

    /// A state that is asked what it waits for first.
    pub fn waiting_step(self, state: &str) -> Definition {
        self.waiting_step_with(state, json!({}))
    }

    /// The same, with more in its configuration.
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

    /// What `register_process_type` is told.
    pub fn json(&self) -> &Value {
        &self.0
    }
}

/// Exactly one state that closes the process: for tests that care about starting, not about what is started.
pub fn one_step() -> Definition {
    Definition::starting_with("Only").step("Only")
}

/// One state that waits for a message of `inbox`: for tests that need a process that runs.
pub fn mailbox() -> Definition {
    Definition::starting_with("Read").waiting_step("Read")
}

fn merged(mut base: Value, more: Value) -> Value {
    if let (Some(base), Value::Object(more)) = (base.as_object_mut(), more) {
        base.extend(more);
    }
    base
}
