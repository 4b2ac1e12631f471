//! How many timers the states of wide executions wait for, which no row says. Few executions have so many threads that their timers
//! could be too many; of these they are counted, and not for each answer.

use super::transaction::Turn;
use crate::guc;
use crate::pg::catch::Result;
use crate::store::load::Loaded;
use crate::store::timer;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use xdb_engine::ExecutionId;

/// After this everything is counted anew: others may have begun waits, and many executions may be remembered.
const TRUSTED_FOR: Duration = Duration::from_secs(10);

/// What is known of executions that could have too many timers: how many they have at most. Timers that are over are not taken off.
#[derive(Default)]
pub struct TimerCounts {
    at_most: HashMap<ExecutionId, usize>,
    since: Option<Instant>,
}

impl TimerCounts {
    /// Says in those of these executions that could come to too many timers how many they have at most. `new`: what their answers
    /// bring.
    pub fn load(
        &mut self,
        turn: &Turn,
        executions: &mut BTreeMap<ExecutionId, Loaded>,
        new: &BTreeMap<ExecutionId, usize>,
    ) -> Result<()> {
        let quotas = guc::quotas();
        if self.since.is_none_or(|since| turn.began_at.saturating_duration_since(since) > TRUSTED_FOR) {
            *self = Self { at_most: HashMap::new(), since: Some(turn.began_at) };
        }
        for (id, new) in new.iter().filter(|(_, new)| **new > 0) {
            let Some(loaded) = executions.get_mut(id) else { continue };
            let could_have = (loaded.execution.live_threads as usize).saturating_mul(quotas.commands);
            if could_have <= quotas.threads {
                continue;
            }
            let known = self.at_most.get(id).copied().filter(|known| known + new <= quotas.threads);
            loaded.timers = match known {
                Some(known) => known,
                None => timer::count(turn.spi, *id, quotas.threads + 1)?,
            };
            self.at_most.insert(*id, loaded.timers + new);
        }
        Ok(())
    }
}
