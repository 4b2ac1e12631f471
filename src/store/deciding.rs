//! Decides about commands. A decision may begin static waits, and start or end guards and what they guard. The command
//! names neither them nor their queues. So this file loads what a decision lacks, and decides again.
//!
//! Limitations: what a command names itself is loaded before, by its driver, except for the steps that it aborts.

use super::loaded::Loaded;
use super::queue::{self, QueueDemand};
use super::state::{self, one_live};
use crate::pg::catch::{PgError, Result};
use crate::pg::spi::Spi;
use std::collections::BTreeMap;
use xdb_engine::*;

/// Executions that this transaction has locked, by id.
type LockedExecutions = BTreeMap<ExecutionId, Loaded>;

/// What a decision depends on that is not loaded.
pub struct Lack {
    id: ExecutionId,
    steps: Option<Unloaded>,
    /// One more step has not sufficed: all of them are loaded.
    one_is_too_few: bool,
    /// Queues, each with the most messages to load.
    queues: BTreeMap<String, usize>,
}

/// Decides about a command, without applying the decision. `load` loads what the decision lacks: see [`Lack::load`].
pub fn decide(
    executions: &mut LockedExecutions,
    id: ExecutionId,
    command: &Command,
    (now, jitter): (Timestamp, f64),
    offered: &[GlobalMessage],
    mut load: impl FnMut(&mut LockedExecutions, Lack) -> Result<bool>,
) -> Result<std::result::Result<Vec<Event>, Rejection>> {
    // Whether the decision is possible depends on how many threads the command itself ends.
    let named = Lack { id, steps: None, one_is_too_few: false, queues: BTreeMap::new() };
    let aborts = |effects: &Effects| effects.abort_states.is_some();
    if (matches!(command, Command::MoveState { .. }) || command.effects().is_some_and(aborts))
        && !load(executions, named)?
    {
        let what = "the steps of abortStates have more than 4 MB of large inputs and messages: name fewer of them";
        return Ok(Err(Rejection::OverQuota(what.to_owned())));
    }
    let mut one_is_too_few = false;
    for _ in 0..MOST_ROUNDS {
        let Some(entry) = executions.get(&id) else { return Ok(Err(Rejection::Stale)) };
        let decided = entry.decide_with(command, now, jitter, offered);
        let Ok(events) = &decided else { return Ok(decided) };
        let (steps, queues) = (entry.lacking_steps(events), entry.lacking_queues(events));
        if steps.is_none() && queues.is_empty() {
            return Ok(decided);
        }
        let lack = Lack { id, one_is_too_few, steps, queues };
        one_is_too_few |= matches!(lack.steps, Some(Unloaded::OneOf(_)));
        load(executions, lack)?;
    }
    Err(PgError::internal("a decision needs what can't be loaded"))
}

/// How often a command is decided at most. Each time, the decision lacks less.
const MOST_ROUNDS: usize = 100;

/// Decides about a command of the execution itself or of a caller, in a transaction that uses the system tables.
pub fn decide_with_tables(
    spi: &Spi,
    executions: &mut LockedExecutions,
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
    /// Loads it, and what the command names itself to be aborted. False: that is too large.
    pub fn load(self, spi: &Spi, executions: &mut LockedExecutions, command: &Command) -> Result<bool> {
        let Self { id, one_is_too_few, steps, mut queues } = self;
        if !state::to_abort(spi, executions, id, command.effects())? {
            return Ok(false);
        }
        if let (Some(steps), Some(entry)) = (steps, executions.get(&id)) {
            let keys = match &steps {
                Unloaded::Ended(seq) => vec![(id, *seq)],
                Unloaded::Every => state::live(spi, id)?,
                Unloaded::OneOf(ids) if !one_is_too_few => {
                    let known = entry.before.states.keys().copied().collect::<Vec<_>>();
                    one_live(spi, id, ids.iter().cloned().collect(), &known)?
                }
                Unloaded::Of(ids) | Unloaded::OneOf(ids) => state::live_of(spi, id, ids.iter().cloned().collect())?,
            };
            match steps {
                // All of these steps end.
                Unloaded::Every => state::states_without_inputs(spi, executions, &keys)?,
                _ => state::states(spi, executions, &keys)?,
            }
            if let Some(entry) = executions.get_mut(&id) {
                entry.have_loaded(steps, one_is_too_few || keys.is_empty());
            }
        }
        if let Some(entry) = executions.get(&id) {
            entry.filled(command).for_each(|queue| _ = queues.entry(queue.to_owned()).or_default());
        }
        queue::queues(spi, executions, &QueueDemand::from([(id, queues)]))?;
        executions.get_mut(&id).map_or(Ok(()), |entry| entry.prepare(spi, command))?;
        Ok(true)
    }
}
