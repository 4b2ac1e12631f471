//! The history, event by event.

use std::collections::HashMap;
use xdb_engine::*;

/// What the events so far give.
pub struct Replayed {
    pub execution: Execution,
    /// When each message was received, by its number.
    pub received_at: HashMap<u64, Timestamp>,
}

impl Replayed {
    pub fn new(id: ExecutionId) -> Self {
        let execution = Execution::new(id);
        Self { execution, received_at: HashMap::new() }
    }

    /// Replays one more event, or says why the history can't be replayed. Its number tells its place, not its time: clocks
    /// are set back.
    pub fn event(&mut self, number: i64, at: Timestamp, name: &str, details: &str) -> Result<(), String> {
        let next = self.execution.next_event as i64;
        if number != next {
            return Err(format!("event {next} is missing; the next one is {number}"));
        }
        let event = Event::from_parts(name, details).map_err(|what| format!("event {number}: {what}"))?;
        let starts = matches!(event, Event::ProcessStarted { .. });
        if starts != (number == 1) {
            return Err(format!("event {number} is {name}; the first one, and no other, is ProcessStarted"));
        }
        if !event.is_recorded() {
            return Err(format!("event {number} is {name}, of an attempt that is never recorded by itself"));
        }
        if !self.execution.is_running() {
            return Err(format!("event {number} is {name}, after the process has closed"));
        }
        if let Event::MessagesReceived { messages, .. } = &event {
            self.received_at.extend(messages.iter().map(|message| (message.number, at)));
        }
        self.execution.apply(&event, at);
        Ok(())
    }
}
