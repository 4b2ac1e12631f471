//! What a worker answers: the words of the protocol, and the ways to break them.

use std::time::Duration;

use serde_json::{Map, Value, json};

/// What goes back over the wire.
#[derive(Clone)]
pub enum Reply {
    /// A status and a JSON body.
    Json(u16, Value),
    /// A status and a body that is whatever it is.
    Raw(u16, Vec<u8>),
    /// A 503 without a body that says in how many seconds to come again.
    Unavailable(u32),
    /// Nothing until the test calls `release` on the worker, then the other reply.
    Hang(Box<Reply>),
    /// A well-formed answer, one byte at a time, this far apart.
    Drip(Duration),
    /// A well-formed answer of this many bytes.
    Huge(usize),
    /// Half of the announced body, then the end of the connection.
    CloseMidBody,
    /// The other reply, so much later.
    Late(Duration, Box<Reply>),
    /// The other reply, in pieces, the last of which comes so much later.
    Pieces(Duration, Box<Reply>),
    /// Two answers to one request, in one go.
    Twice(Box<Reply>, Box<Reply>),
}

impl Reply {
    /// Never answers by itself; `wish` is what a released call gets.
    pub fn hang(wish: impl Into<Reply>) -> Reply {
        Reply::Hang(Box::new(wish.into()))
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Reply {
        Reply::Json(200, Value::Object(answer.0))
    }
}

/// A good answer in the making.
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

    /// As it is sent.
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

    /// Publishes to a queue of everybody's.
    pub fn publish_global(self, queue: &str, payload: Value) -> Answer {
        self.with("publishToGlobalQueue", json!([{"queueName": queue, "payload": payload}]))
    }

    /// Has functions of the database called, each with its argument.
    pub fn calls(self, functions: &[(&str, Value)]) -> Answer {
        let calls = functions.iter().map(|(function, argument)| json!({"function": function, "argument": argument}));
        self.with("callFunctions", calls.collect())
    }

    /// Any decision.
    pub fn deciding(decision: Value) -> Answer {
        decide(decision)
    }

    /// Its first next state begins later: `delayInSeconds` or `startAt`.
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

/// This thread ends; the process completes with its last thread.
pub fn graceful_complete(output: Value) -> Answer {
    close("GRACEFUL_COMPLETE_PROCESS", output)
}

/// The process completes now.
pub fn force_complete(output: Value) -> Answer {
    close("FORCE_COMPLETE_PROCESS", output)
}

/// The process fails now.
pub fn force_fail(output: Value) -> Answer {
    close("FORCE_FAIL_PROCESS", output)
}

/// This thread ends, and that is all.
pub fn dead_end() -> Answer {
    decide(json!({"threadCloseDecision": {"closeType": "DEAD_END"}}))
}

/// Completes if the queue is empty, goes to the state otherwise.
pub fn close_if_empty(queue: &str, otherwise: &str) -> Answer {
    decide(json!({
        "conditionalClose": {"closeType": "FORCE_COMPLETE_PROCESS", "whenLocalQueuesEmpty": [queue], "closeInput": null},
        "nextStates": [{"stateId": otherwise}],
    }))
}

/// What an RPC answers to its caller.
pub fn output(value: Value) -> Answer {
    Answer::new("output", value)
}

/// An answer that is not 200.
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

/// A timer, for [`any_of`] and its like.
pub fn timer(command: &str, seconds: f64) -> Value {
    json!({"timerCommands": {"commandId": command, "delayInSeconds": seconds}})
}

/// Messages of a queue of the process.
pub fn local_queue(command: &str, queue: &str, count: u32) -> Value {
    json!({"localQueueCommands": {"commandId": command, "queueName": queue, "count": count}})
}

/// Messages of a queue of everybody's.
pub fn global_queue(command: &str, queue: &str, count: u32) -> Value {
    json!({"globalQueueCommands": {"commandId": command, "queueName": queue, "count": count}})
}
