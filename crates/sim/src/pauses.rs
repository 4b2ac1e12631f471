//! Pauses of processes and of process types: commands, and the requests that a pause rejects.

use crate::line::Given;
use crate::run::Run;
use crate::{Result, Simulator};
use xdb_engine::*;
use xdb_protocol::{arguments, refusal};

/// What is paused, for a message, and its pause.
type NamedPause<'s> = (String, &'s Pause);

impl Simulator {
    /// Pauses a process: no call of its states begins until the pause ends.
    pub(crate) fn pause_process(&mut self, given: &mut Given) -> Result<()> {
        let pause = self.asked(given)?;
        let id = self.process(given)?;
        self.command(id, &Command::Pause(pause)).map(drop)
    }

    pub(crate) fn resume_process(&mut self, given: &mut Given) -> Result<()> {
        let id = self.process(given)?;
        self.command(id, &Command::Resume).map(drop)
    }

    /// Pauses a process type: no call of its processes begins until the pause ends.
    pub(crate) fn pause_process_type(&mut self, given: &mut Given) -> Result<()> {
        let pause = self.asked(given)?;
        let process_type = self.type_to_pause(given)?;
        self.paused_types.insert(process_type, pause);
        Ok(())
    }

    pub(crate) fn resume_process_type(&mut self, given: &mut Given) -> Result<()> {
        let process_type = self.type_to_pause(given)?;
        self.paused_types.remove(&process_type);
        Ok(())
    }

    fn asked(&self, given: &mut Given) -> Result<Pause> {
        let mode = given.take("mode")?.unwrap_or_else(|| PauseMode::Wait.to_string());
        arguments::pause(Some(mode), given.moment("until")?, given.take("reason")?, self.now)
    }

    fn type_to_pause(&self, given: &mut Given) -> Result<String> {
        let process_type = given.name("process_type")?;
        given.end()?;
        self.process_type(&process_type).map(|_| process_type)
    }

    /// The current pause of a process type.
    pub(crate) fn pause_of_type(&self, process_type: &str) -> Option<NamedPause<'_>> {
        let pause = self.paused_types.get(process_type).filter(|pause| !pause.is_over(self.now))?;
        Some((format!("process type \"{process_type}\""), pause))
    }

    /// The current pauses of a process: its own, and its type's. A pause of the type does not concern a closed process.
    fn pauses<'s>(&'s self, run: &'s Run) -> impl Iterator<Item = NamedPause<'s>> {
        let Execution { process_id, process_type, pause, .. } = &run.execution;
        let own = pause.as_ref().map(|pause| (format!("process \"{process_id}\""), pause));
        own.into_iter().chain(self.pause_of_type(process_type).filter(|_| run.execution.is_running()))
    }

    /// Rejects a request if a pause of the type says so.
    pub(crate) fn refuse_type(&self, process_type: &str) -> Result<()> {
        refuse(self.pause_of_type(process_type).filter(|(_, pause)| pause.mode == PauseMode::Reject))
    }

    /// Rejects a message to a running process if a pause says so.
    pub(crate) fn refuse_message(&self, run: &Run) -> Result<()> {
        refuse(self.pauses(run).find(|(_, pause)| pause.mode == PauseMode::Reject))
    }

    /// Rejects an RPC in any pause. The simulator can't let a caller wait, because no command could end the pause
    /// meanwhile.
    pub(crate) fn refuse_rpc(&self, run: &Run) -> Result<()> {
        refuse(self.pauses(run).next())
    }
}

fn refuse(paused: Option<NamedPause<'_>>) -> Result<()> {
    paused.map_or(Ok(()), |(what, pause)| Err(refusal::paused(&what, pause)))
}
