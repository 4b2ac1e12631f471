//! How many timers the states of wide executions wait for, which no row says. Few executions have so many threads that their timers
//! could be too many; of these they are counted, and not for each answer.

use super::transaction::Turn;
use crate::guc;
use crate::pg::catch::Result;
use crate::store::loaded::Loaded;
use crate::store::timer;
use std::collections::{BTreeMap, BTreeSet};
use xdb_engine::ExecutionId;
use xdb_sched::counted::Counted;

/// What is known of executions that could have too many timers. Timers that are over are not taken off.
#[derive(Default)]
pub struct TimerCounts {
    counts: Counted<ExecutionId>,
    /// Those whose answers bring timers in this turn.
    asked: Vec<ExecutionId>,
}

impl TimerCounts {
    /// Says in those of these executions that could come to too many timers how many they have at most. `new`: what their answers
    /// bring. An execution that was never counted, and can't be in this turn, is left out as if somebody had locked it.
    pub fn load(
        &mut self,
        turn: &Turn,
        executions: &mut BTreeMap<ExecutionId, Loaded>,
        locked: &mut BTreeSet<ExecutionId>,
        new: &BTreeMap<ExecutionId, usize>,
    ) -> Result<()> {
        let quotas = guc::quotas();
        let could_be_too_many = |id: &ExecutionId| {
            let threads = executions.get(id).map_or(0, |loaded| loaded.execution.live_threads as usize);
            threads.saturating_mul(quotas.commands) > quotas.threads
        };
        let asked = new.iter().filter(|(id, new)| **new > 0 && could_be_too_many(id));
        let asked: Vec<_> = asked.map(|(id, new)| (*id, *new)).collect();
        for id in self.counts.due(turn.began_at, &asked, quotas.threads) {
            let count = timer::count(turn.spi, id, quotas.threads + 1)?;
            self.counts.counted(id, count, turn.began_at);
        }
        self.asked = asked.into_iter().map(|(id, _)| id).collect();
        for id in &self.asked {
            match (self.counts.at_most(id), executions.get_mut(id)) {
                (Some(at_most), Some(loaded)) => loaded.timers = at_most,
                _ => {
                    executions.remove(id);
                    locked.insert(*id);
                }
            }
        }
        Ok(())
    }

    /// Notes what the answers have begun that were accepted. Should the turn be rolled back, it is too many until the next count.
    pub fn decided(&mut self, executions: &BTreeMap<ExecutionId, Loaded>) {
        for id in self.asked.drain(..) {
            if let Some(loaded) = executions.get(&id) {
                self.counts.added_to(&id, loaded.timers);
            }
        }
    }
}
