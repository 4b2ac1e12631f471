//! Decides about commands. A decision may begin static waits, whose queues the command does not name. Then this file
//! loads what the decision lacks, and the command is decided again.
//!
//! Limitations: what a command names itself is loaded before, by its driver.

use super::loaded::Loaded;
use super::queue::{self, QueueDemand};
use crate::pg::catch::Result;
use crate::pg::spi::Spi;
use std::collections::BTreeMap;
use xdb_engine::*;

/// Executions that this transaction has locked, by id.
type Executions = BTreeMap<ExecutionId, Loaded>;

/// What a decision depends on that is not loaded.
pub struct Lack {
    id: ExecutionId,
    /// Queues, each with the most messages to load.
    queues: BTreeMap<String, usize>,
}

/// Decides about a command, without applying the decision. `load` loads what the decision lacks: see [`Lack::load`].
pub fn decide(
    executions: &mut Executions,
    id: ExecutionId,
    command: &Command,
    (now, jitter): (Timestamp, f64),
    offered: &[GlobalMessage],
    mut load: impl FnMut(&mut Executions, Lack) -> Result<()>,
) -> Result<std::result::Result<Vec<Event>, Rejection>> {
    loop {
        let Some(entry) = executions.get(&id) else { return Ok(Err(Rejection::Stale)) };
        let decided = entry.decide_with(command, now, jitter, offered);
        let Ok(events) = &decided else { return Ok(decided) };
        let queues = entry.lacking_queues(events);
        if queues.is_empty() {
            return Ok(decided);
        }
        load(executions, Lack { id, queues })?;
    }
}

/// Decides about a command of the execution itself or of a caller, in a transaction that uses the system tables.
pub fn decide_with_tables(
    spi: &Spi,
    executions: &mut Executions,
    id: ExecutionId,
    command: &Command,
    (now, jitter): (Timestamp, f64),
    offered: &[GlobalMessage],
) -> Result<std::result::Result<Vec<Event>, Rejection>> {
    if let Some(entry) = executions.get_mut(&id) {
        entry.prepare(spi, command)?;
    }
    decide(executions, id, command, (now, jitter), offered, |executions, lack| lack.load(spi, executions, command))
}

impl Lack {
    pub fn load(self, spi: &Spi, executions: &mut Executions, command: &Command) -> Result<()> {
        let Self { id, queues } = self;
        queue::queues(spi, executions, &QueueDemand::from([(id, queues)]))?;
        executions.get_mut(&id).map_or(Ok(()), |entry| entry.prepare(spi, command))
    }
}
