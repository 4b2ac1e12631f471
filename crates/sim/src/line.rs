//! Lines of JSON: a command in, `{"result": ...}` or `{"error": ...}` out.
//!
//! Commands and arguments have the names of the functions of the schema `xdb` and their parameters.

use crate::Simulator;
use crate::given::{Given, Result, no_command, result};
use serde_json::json;
use std::collections::BTreeMap;
use xdb_protocol::refusal::Refusal;

impl Simulator {
    /// Carries out one line and returns the line of the result, both without line ends.
    pub fn line(&mut self, line: &str) -> String {
        let last_id = self.last_id;
        let reply = match serde_json::from_str::<BTreeMap<String, Given>>(line) {
            Ok(mut commands) => match commands.pop_first() {
                Some((command, mut given)) if commands.is_empty() => self.carry_out(&command, &mut given),
                _ => Err(no_command("it needs one key")),
            },
            Err(error) => Err(no_command(error)),
        };
        let reply = reply.unwrap_or_else(|refusal| {
            // Only the id counter may have changed before a command is refused.
            self.last_id = last_id;
            let sqlstate = refusal.sqlstate();
            let Refusal { message, detail, hint, datatype, .. } = refusal;
            json!({"error": {
                "sqlstate": sqlstate, "message": message, "detail": detail, "hint": hint, "datatype": datatype
            }})
            .to_string()
        });
        // Payloads may contain line ends between tokens. A space means the same there.
        reply.replace(['\n', '\r'], " ")
    }

    fn carry_out(&mut self, command: &str, given: &mut Given) -> Result<String> {
        given.leave_out_nulls();
        match command {
            "register" => result(self.register(given)?),
            "start" => result(self.start(given)?.to_string()),
            "calls" => result(given.end().and_then(|()| self.calls())?),
            "answer" => self.answer(given),
            "advance" => result(self.advance(given)?),
            "publish" => result(self.publish(given)?),
            "publish_global" => result(self.publish_global(given)?),
            "rpc" => self.rpc(given),
            "stop" => result(self.stop(given)?),
            "set_local_attributes" => result(self.set_local_attributes(given)?),
            "get_local_attributes" => result(self.local_attributes(given)?),
            "skip_timer" => result(self.skip_timer(given)?),
            "retry_now" => result(self.retry_now(given)?),
            "move_state" => result(self.move_state(given)?),
            "pause_process" => result(self.pause_process(given)?),
            "resume_process" => result(self.resume_process(given)?),
            "pause_process_type" => result(self.pause_process_type(given)?),
            "resume_process_type" => result(self.resume_process_type(given)?),
            "rows" => result(self.rows(given)?),
            "called" => result(given.end().map(|()| std::mem::take(&mut self.called))?),
            "describe" => result(self.process(given).map(|id| self.describe(id))?),
            "incidents" => result(given.end().map(|()| self.incidents())?),
            "history" => result(self.process(given).map(|id| &self.run(id).history)?),
            "check" => result(self.process(given).map(|id| self.problems(id))?),
            _ => Err(no_command(format_args!("unknown command {command}"))),
        }
    }
}
