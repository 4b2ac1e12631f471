//! Pauses of processes and of process types; and incidents, which nothing ends but a retry, a stop or a timeout.

use crate::line::shown;
use crate::run::Run;
use crate::{
    PauseProcessArguments, PauseProcessTypeArguments, ProcessArguments, ProcessTypeArguments, Result, Simulator,
};
use serde::Serialize;
use xdb_calls::{Asker, CallOf, Paused};
use xdb_engine::*;
use xdb_protocol::arguments::{name, pause};
use xdb_protocol::parse_moment;
use xdb_protocol::refusal::{self, invalid_argument};

/// A call that stays where it is, as a row of `xdb.incidents`.
#[derive(Debug, Serialize)]
pub struct Incident {
    pub process_id: String,
    pub execution_id: String,
    pub state_execution_id: String,
    pub api: Api,
    pub attempt: u32,
    pub raised_at: String,
    pub http_status: Option<u16>,
    pub error_type: Option<String>,
    pub detail: String,
    pub sql_state: Option<String>,
    pub table_name: Option<String>,
    pub constraint_name: Option<String>,
}

impl Simulator {
    /// Has no call of a process's states begin until the end of the pause.
    pub fn pause_process(&mut self, arguments: PauseProcessArguments) -> Result<()> {
        let process_id = name("process_id", arguments.process_id)?;
        let pause = self.asked(arguments.mode, arguments.until, arguments.reason)?;
        let id = self.find(&process_id, arguments.execution_id.as_deref())?;
        self.command(&process_id, id, &Command::Pause(pause)).map(drop)
    }

    /// Ends the pause of a process.
    pub fn resume_process(&mut self, arguments: ProcessArguments) -> Result<()> {
        let process_id = name("process_id", arguments.process_id)?;
        let id = self.find(&process_id, arguments.execution_id.as_deref())?;
        self.command(&process_id, id, &Command::Resume).map(drop)
    }

    /// Has no call of the processes of a type begin until the end of the pause.
    pub fn pause_process_type(&mut self, arguments: PauseProcessTypeArguments) -> Result<()> {
        let process_type = self.type_to_pause(arguments.process_type)?;
        let pause = self.asked(arguments.mode, arguments.until, arguments.reason)?;
        self.paused_types.insert(process_type, pause);
        Ok(())
    }

    /// Ends the pause of a process type.
    pub fn resume_process_type(&mut self, arguments: ProcessTypeArguments) -> Result<()> {
        let process_type = self.type_to_pause(arguments.process_type)?;
        self.paused_types.remove(&process_type);
        Ok(())
    }

    fn type_to_pause(&self, given: Option<String>) -> Result<String> {
        let process_type = name("process_type", given)?;
        match self.types.contains_key(&process_type) {
            true => Ok(process_type),
            false => Err(refusal::unknown_process_type(&process_type)),
        }
    }

    fn asked(&self, mode: Option<String>, until: Option<String>, why: Option<String>) -> Result<Pause> {
        let moment = |text: String| parse_moment(&text).map_err(|what| invalid_argument("until", what));
        let mode = mode.or_else(|| Some(PauseMode::Wait.to_string()));
        pause(mode, until.map(moment).transpose()?, why, self.now)
    }

    /// The pause that a process type is in.
    pub(crate) fn pause_of_type(&self, process_type: &str) -> Option<&Pause> {
        self.paused_types.get(process_type).filter(|pause| !pause.is_over(self.now))
    }

    /// When the pauses of types end by themselves.
    pub(crate) fn ends_of_pauses(&self) -> impl Iterator<Item = Timestamp> {
        self.paused_types.values().filter_map(|pause| pause.until)
    }

    /// Refuses a request, if a pause of the type says so.
    pub(crate) fn refuse_type(&self, process_type: &str) -> Result<()> {
        match self.pause_of_type(process_type).filter(|pause| pause.mode == PauseMode::Reject) {
            Some(pause) => Err(refusal::paused(&format!("process type \"{process_type}\""), pause)),
            None => Ok(()),
        }
    }

    /// Refuses a message to a process that runs, if a pause says so.
    pub(crate) fn refuse_message(&self, run: &Run) -> Result<()> {
        let execution = &run.execution;
        match execution.pause.as_ref().filter(|pause| pause.mode == PauseMode::Reject) {
            Some(pause) => Err(refusal::paused(&format!("process \"{}\"", execution.process_id), pause)),
            None => self.refuse_type(&execution.process_type),
        }
    }

    /// Refuses an RPC in any pause: nobody would end it while the caller waits.
    pub(crate) fn refuse_rpc(&self, run: &Run) -> Result<()> {
        let Execution { process_id, process_type, .. } = &run.execution;
        match self.facts(run, CallOf::Rpc(None)).paused(Asker::Session) {
            Some(Paused::Process(pause)) => Err(refusal::paused(&format!("process \"{process_id}\""), pause)),
            Some(Paused::Type(pause)) => Err(refusal::paused(&format!("process type \"{process_type}\""), pause)),
            None => Ok(()),
        }
    }

    /// Calls whose retries are spent, and which stay: of one process, or of all.
    pub fn incidents(&self, arguments: ProcessArguments) -> Result<Vec<Incident>> {
        let only = match arguments.process_id {
            Some(process_id) => Some(self.find(&process_id, arguments.execution_id.as_deref())?),
            None => None,
        };
        let runs = self.runs.values().filter(|run| only.is_none_or(|id| run.execution.id == id));
        let incidents = runs.flat_map(|run| run.execution.states.values().filter_map(|state| incident(run, state)));
        Ok(incidents.collect())
    }
}

fn incident(run: &Run, state: &StateExecution) -> Option<Incident> {
    let (api, call) = state.current_call().filter(|(_, call)| call.incident)?;
    let LastFailure { at, attempt, failure, .. } = call.last_failure.as_ref()?;
    let refused = failure.app_database_error.as_ref();
    Some(Incident {
        process_id: run.execution.process_id.clone(),
        execution_id: run.execution.id.to_string(),
        state_execution_id: state.id.to_string(),
        api,
        attempt: *attempt,
        raised_at: shown(*at),
        http_status: failure.status,
        error_type: failure.error_type.clone(),
        detail: failure.detail.clone(),
        sql_state: refused.map(|refused| refused.sql_state.clone()),
        table_name: refused.and_then(|refused| refused.table.clone()),
        constraint_name: refused.and_then(|refused| refused.constraint.clone()),
    })
}
