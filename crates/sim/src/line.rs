//! Lines of JSON: a command in, `{"result": ...}` or `{"error": ...}` out.

use crate::{Result, Simulator, SimulatorCommand};
use serde::Serialize;
use xdb_engine::Timestamp;
use xdb_protocol::arguments::name;
use xdb_protocol::refusal::Refusal;

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Reply<T> {
    Result(T),
    Error(Told),
}

/// An error, as a driver of Postgres has it.
#[derive(Serialize)]
struct Told {
    sqlstate: &'static str,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    /// The worker's word for its error, of an RPC.
    #[serde(skip_serializing_if = "Option::is_none")]
    datatype: Option<String>,
}

impl Simulator {
    /// Carries out a line, and answers with a line: both without their ends.
    pub fn line(&mut self, line: &str) -> String {
        let reply = match serde_json::from_str(line) {
            Ok(command) => self.carry_out(command),
            Err(error) => Err(Refusal::new(b"08P01", format!("this is no command: {error}"))),
        };
        reply.unwrap_or_else(|refusal| {
            let sqlstate = refusal.sqlstate();
            let Refusal { message, detail, hint, datatype, .. } = refusal;
            written(&Reply::<()>::Error(Told { sqlstate, message, detail, hint, datatype }))
        })
    }

    // Long because it is a list.
    fn carry_out(&mut self, command: SimulatorCommand) -> Result<String> {
        use SimulatorCommand as C;
        Ok(match command {
            C::Register(arguments) => result(self.register(arguments)?),
            C::Start(arguments) => result(self.start(arguments)?.to_string()),
            C::Calls(_) => result(self.calls()),
            C::Answer(arguments) => result(self.answer(arguments)?),
            C::Advance(arguments) => result(self.advance(arguments)?),
            C::Publish(arguments) => result(self.publish(arguments)?),
            C::PublishGlobal(arguments) => result(self.publish_global(arguments)?),
            C::Rpc(arguments) => result(self.rpc(arguments)?),
            C::Stop(arguments) => result(self.stop(arguments)?),
            C::SetLocalAttributes(arguments) => result(self.set_local_attributes(arguments)?),
            C::GetLocalAttributes(arguments) => {
                let process_id = name("process_id", arguments.process_id)?;
                let (keys, execution) = (arguments.keys.as_deref(), arguments.execution_id.as_deref());
                result(self.local_attributes(&process_id, keys, execution)?)
            }
            C::SkipTimer(arguments) => result(self.skip_timer(arguments)?),
            C::RetryNow(arguments) => result(self.retry_now(arguments)?),
            C::PauseProcess(arguments) => result(self.pause_process(arguments)?),
            C::ResumeProcess(arguments) => result(self.resume_process(arguments)?),
            C::PauseProcessType(arguments) => result(self.pause_process_type(arguments)?),
            C::ResumeProcessType(arguments) => result(self.resume_process_type(arguments)?),
            C::Incidents(arguments) => result(self.incidents(arguments)?),
            C::Rows(arguments) => result(self.rows(arguments)?),
            C::Called(_) => result(self.called()),
            C::Describe(arguments) => {
                let process_id = name("process_id", arguments.process_id)?;
                result(self.describe(&process_id, arguments.execution_id.as_deref())?)
            }
            C::History(arguments) => {
                let process_id = name("process_id", arguments.process_id)?;
                result(self.history(&process_id, arguments.execution_id.as_deref())?)
            }
            C::Check(arguments) => {
                let process_id = name("process_id", arguments.process_id)?;
                result(self.check(&process_id, arguments.execution_id.as_deref())?)
            }
        })
    }
}

/// A moment, as `jsonb` has a `timestamptz` of UTC.
pub(crate) fn shown(at: Timestamp) -> String {
    let text = at.iso8601();
    format!("{}+00:00", text.trim_end_matches('Z').trim_end_matches('0').trim_end_matches('.'))
}

fn result<T: Serialize>(result: T) -> String {
    written(&Reply::Result(result))
}

/// In one line: payloads may have line ends between their parts, where a blank is as good.
fn written<T: Serialize>(reply: &Reply<T>) -> String {
    // Only what has no keys but texts is written so.
    let text = serde_json::to_string(reply).expect("it is JSON");
    if text.contains(['\n', '\r']) { text.replace(['\n', '\r'], " ") } else { text }
}
