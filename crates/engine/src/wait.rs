//! When a command of a local queue completes, and when a wait is over.
//!
//! Limitations: timers are completed in `decide.rs`, and commands of global queues in `global_queues.rs`.

use crate::*;

impl Wait {
    /// Whether the completed commands satisfy the request. A skipped command counts as completed.
    pub(crate) fn is_satisfied(&self) -> bool {
        let ended = |c: &WaitCommand| c.status != CommandStatus::Waiting;
        let done = |position: &u32| self.commands.get(*position as usize).is_some_and(ended);
        match self.waiting_type {
            WaitingType::Empty => true,
            WaitingType::All => self.commands.iter().all(ended),
            WaitingType::Any => self.commands.iter().any(ended),
            WaitingType::AnyCombination => self.combinations.iter().any(|ids| ids.iter().all(done)),
        }
    }
}

impl Execution {
    /// The first command, in request order from position `from`, that its local queue can complete now. Also returns
    /// the numbers of the messages that the command takes.
    pub(crate) fn completable(&self, wait: &Wait, from: u32) -> Option<(u32, Vec<u64>)> {
        wait.commands.iter().enumerate().skip(from as usize).find_map(|(position, command)| {
            let WaitKind::LocalQueue { queue, at_least, at_most } = &command.kind else { return None };
            if command.status != CommandStatus::Waiting {
                return None;
            }
            let queued = self.queues.get(queue)?;
            if queued.len() < *at_least as usize {
                return None;
            }
            let taken = queued.iter().take(taken_at_once(*at_least, *at_most) as usize).map(|m| m.number).collect();
            Some((position as u32, taken))
        })
    }
}
