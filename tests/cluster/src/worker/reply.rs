//! The replies of a worker: valid answers of the protocol, and invalid ones.

use std::time::Duration;

use serde_json::{Map, Value, json};

/// A reply as it is sent.
#[derive(Clone)]
pub enum Reply {
    /// A status and a JSON body.
    Json(u16, Value),
    /// A status and a body of any bytes.
    Raw(u16, Vec<u8>),
    /// A 503 without a body, which asks callers to wait this number of seconds.
    Unavailable(u32),
    /// No reply until the test calls `release` on the worker. Then the other reply.
    Hang(Box<Reply>),
    /// A valid answer, byte by byte, with this pause between two bytes.
    Drip(Duration),
    /// A valid answer of this many bytes.
    Huge(usize),
    /// Half of the announced body. Then the connection ends.
    CloseMidBody,
    /// The other reply, after this time.
    Late(Duration, Box<Reply>),
    /// The other reply in pieces. The last piece comes after this time.
    Pieces(Duration, Box<Reply>),
    /// Two answers to one request, sent together.
    Twice(Box<Reply>, Box<Reply>),
}

impl Reply {
    /// Never answers by itself. `wish` is the reply after a release.
    pub fn hang(wish: impl Into<Reply>) -> Reply {
        Reply::Hang(Box::new(wish.into()))
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Reply {
        Reply::Json(200, Value::Object(answer.0))
    }
}

/// A valid answer that is being built.
#[derive(Clone)]
pub struct Answer(Map<String, Value>);

impl Answer {
    fn new(field: &str, value: Value) -> Answer {
        Answer(Map::from_iter([(field.to_owned(), value)]))
    }

    fn with(mut self, field: &str, value: Value) -> Answer {
        self.0.insert(field.to_owned(), value);
        self
    }

    /// The answer as JSON.
    pub fn json(&self) -> Value {
        Value::Object(self.0.clone())
    }

    /// Writes columns.
    pub fn globals(self, attributes: Value) -> Answer {
        self.with("writeToGlobalAttributes", attributes)
    }

    /// Writes local attributes.
    pub fn locals(self, attributes: Value) -> Answer {
        self.with("writeToLocalAttributes", attributes)
    }

    /// Publishes to a queue of the process.
    pub fn publish(self, queue: &str, payload: Value) -> Answer {
        self.with("publishToLocalQueue", json!([{"queueName": queue, "payload": payload}]))
    }

    /// Publishes to a global queue.
    pub fn publish_global(self, queue: &str, payload: Value) -> Answer {
        self.with("publishToGlobalQueue", json!([{"queueName": queue, "payload": payload}]))
    }

    /// Calls functions of the database, each with its argument.
    pub fn calls(self, functions: &[(&str, Value)]) -> Answer {
        let calls = functions.iter().map(|(function, argument)| json!({"function": function, "argument": argument}));
        self.with("callFunctions", calls.collect())
    }

    /// Starts other processes, as children of this one.
    pub fn starting(self, children: Value) -> Answer {
        self.with("startProcesses", children)
    }

    /// Ends other threads: states, single steps, or `*`.
    pub fn aborting(self, names: &[&str]) -> Answer {
        self.with("abortStates", json!(names))
    }

    /// Any decision.
    pub fn deciding(decision: Value) -> Answer {
        decide(decision)
    }

    /// Makes the first next state begin later: `delayInSeconds` or `startAt`.
    pub fn delayed(mut self, begin: Value) -> Answer {
        let movement = &mut self.0["stateDecision"]["nextStates"][0];
        if let (Some(movement), Value::Object(begin)) = (movement.as_object_mut(), begin) {
            movement.extend(begin);
        }
        self
    }

    /// Adds a decision to an RPC's answer.
    pub fn and(mut self, decision: Answer) -> Answer {
        self.0.extend(decision.0);
        self
    }
}

fn decide(decision: Value) -> Answer {
    Answer::new("stateDecision", decision)
}

fn close(kind: &str, output: Value) -> Answer {
    decide(json!({"threadCloseDecision": {"closeType": kind, "closeInput": output}}))
}

/// One next state.
pub fn next(state: &str, input: Value) -> Answer {
    next_all(&[(state, input)])
}

/// Several next states, each a thread.
pub fn next_all(states: &[(&str, Value)]) -> Answer {
    let states: Vec<Value> =
        states.iter().map(|(state, input)| json!({"stateId": state, "stateInput": input})).collect();
    decide(json!({"nextStates": states}))
}

/// Ends this thread. The process completes with its last thread.
pub fn graceful_complete(output: Value) -> Answer {
    close("GRACEFUL_COMPLETE_PROCESS", output)
}

/// Completes the process now.
pub fn force_complete(output: Value) -> Answer {
    close("FORCE_COMPLETE_PROCESS", output)
}

/// Fails the process now.
pub fn force_fail(output: Value) -> Answer {
    close("FORCE_FAIL_PROCESS", output)
}

/// Undoes the completed steps, and then fails the process.
pub fn compensate(output: Value) -> Answer {
    close("COMPENSATE_PROCESS", output)
}

/// Ends this thread, and does nothing else.
pub fn dead_end() -> Answer {
    decide(json!({"threadCloseDecision": {"closeType": "DEAD_END"}}))
}

/// Completes the process if the queue is empty. Otherwise the state follows.
pub fn close_if_empty(queue: &str, otherwise: &str) -> Answer {
    decide(json!({
        "conditionalClose": {"closeType": "FORCE_COMPLETE_PROCESS", "whenLocalQueuesEmpty": [queue], "closeInput": null},
        "nextStates": [{"stateId": otherwise}],
    }))
}

/// The output of an RPC for its caller.
pub fn output(value: Value) -> Answer {
    Answer::new("output", value)
}

/// An answer with a status other than 200.
pub fn error(status: u16, kind: &str, detail: &str) -> Reply {
    Reply::Json(status, json!({"errorType": kind, "detail": detail}))
}

/// Waits for nothing.
pub fn no_command() -> Answer {
    Answer::new("commandRequest", json!({"waitingType": "EmptyCommand"}))
}

/// Waits for the first of the commands.
pub fn any_of(commands: &[Value]) -> Answer {
    request("AnyOfCompletion", commands, Value::Null)
}

/// Waits for all of the commands.
pub fn all_of(commands: &[Value]) -> Answer {
    request("AllOfCompletion", commands, Value::Null)
}

/// Waits for the first combination of commands.
pub fn any_combination(commands: &[Value], combinations: Value) -> Answer {
    request("AnyOfCombination", commands, combinations)
}

fn request(waiting: &str, commands: &[Value], combinations: Value) -> Answer {
    let mut request = json!({"waitingType": waiting});
    for command in commands {
        let (kind, command) = command.as_object().and_then(|command| command.iter().next()).expect("made below");
        match request[kind].as_array_mut() {
            Some(list) => list.push(command.clone()),
            None => request[kind] = json!([command]),
        }
    }
    if !combinations.is_null() {
        request["combinations"] = combinations;
    }
    Answer::new("commandRequest", request)
}

/// A timer command, for [`any_of`] and similar functions.
pub fn timer(command: &str, seconds: f64) -> Value {
    json!({"timerCommands": {"commandId": command, "delayInSeconds": seconds}})
}

/// A command for messages of a local queue.
pub fn local_queue(command: &str, queue: &str, count: u32) -> Value {
    json!({"localQueueCommands": {"commandId": command, "queueName": queue, "count": count}})
}

/// A command for messages of a global queue.
pub fn global_queue(command: &str, queue: &str, count: u32) -> Value {
    json!({"globalQueueCommands": {"commandId": command, "queueName": queue, "count": count}})
}
