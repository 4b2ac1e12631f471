//! Global queues: how their messages complete the commands of an execution. The messages belong to no execution.
//!
//! Limitations: the driver decides which messages are free, and which waiting state is served first. The driver puts
//! free messages into the context. An event carries the messages that a state has taken.

use crate::decide::Draft;
use crate::*;

/// What a command waits for in a global queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalDemand<'a> {
    pub queue: &'a str,
    /// None: messages with any key and without one.
    pub key: Option<&'a str>,
    pub at_least: u32,
    /// The most messages that the command consumes.
    pub at_most: u32,
}

impl GlobalDemand<'_> {
    fn wants(&self, message: &GlobalMessage) -> bool {
        message.queue == self.queue && self.key.is_none_or(|key| message.key.as_deref() == Some(key))
    }
}

impl WaitKind {
    /// What the command waits for in a global queue. None if it waits for something else.
    pub fn global_demand(&self) -> Option<GlobalDemand<'_>> {
        match self {
            Self::GlobalQueue { queue, key, at_least, at_most } => Some(demand(queue, key, *at_least, *at_most)),
            _ => None,
        }
    }
}

impl RequestedKind {
    /// What the command waits for in a global queue. None if it waits for something else.
    pub fn global_demand(&self) -> Option<GlobalDemand<'_>> {
        match self {
            Self::GlobalQueue { queue, key, at_least, at_most } => Some(demand(queue, key, *at_least, *at_most)),
            _ => None,
        }
    }
}

fn demand<'a>(queue: &'a str, key: &'a Option<String>, at_least: u32, at_most: u32) -> GlobalDemand<'a> {
    GlobalDemand { queue, key: key.as_deref(), at_least, at_most: taken_at_once(at_least, at_most) }
}

impl StateExecution {
    /// The commands of global queues that the state still waits for, each with its position.
    pub fn global_demands(&self) -> impl Iterator<Item = (u32, GlobalDemand<'_>)> {
        self.open_commands().filter_map(|(position, command)| Some((position, command.kind.global_demand()?)))
    }

    /// Messages of global queues that the state has taken and not yet processed, by position of the command.
    pub fn held_global_messages(&self) -> impl Iterator<Item = (u32, &GlobalMessage)> {
        let commands: &[WaitCommand] = match &self.phase {
            Phase::Waiting(wait) | Phase::Execute { results: Some(wait), .. } => &wait.commands,
            _ => &[],
        };
        (0u32..)
            .zip(commands)
            .flat_map(|(position, command)| command.global_messages.iter().map(move |message| (position, message)))
    }
}

impl Draft<'_> {
    /// Offers the free messages of the context to a waiting state.
    pub(crate) fn global_messages_arrived(&mut self, seq: StateSeq) -> Result<(), Rejection> {
        match self.execution.states.get(&seq) {
            Some(state) if state.status() == StateStatus::Waiting && state.begins_at().is_none() => {
                self.take_global_messages(seq);
                self.end_wait_if_satisfied(seq);
                Ok(())
            }
            _ => Err(Rejection::Stale),
        }
    }

    /// Completes the commands, in request order, for which there are enough free messages. A message that one command
    /// takes is not free for the next.
    pub(crate) fn take_global_messages(&mut self, seq: StateSeq) {
        let Some(state) = self.execution.states.get(&seq) else { return };
        let mut free: Vec<&GlobalMessage> = self.context.global_messages.iter().collect();
        let mut taken = Vec::new();
        for (command, demand) in state.global_demands() {
            let wanted = free.iter().filter(|message| demand.wants(message)).take(demand.at_most as usize);
            let messages: Vec<GlobalMessage> = wanted.map(|message| (*message).clone()).collect();
            if messages.len() >= demand.at_least as usize {
                // Both lists are in the order of message numbers.
                free.retain(|free| messages.binary_search_by_key(&free.number, |taken| taken.number).is_err());
                taken.push(Event::GlobalMessagesTaken { seq, command, messages });
            }
        }
        taken.into_iter().for_each(|event| self.emit(event));
    }

    pub(crate) fn publish_globally(&mut self, publisher: Publisher, publishes: &[GlobalPublish]) {
        let now = self.context.now;
        let messages: Vec<_> = publishes
            .iter()
            .map(|publish| PublishedGlobally {
                queue: publish.queue.clone(),
                key: publish.key.clone(),
                message_id: publish.message_id.clone(),
                payload: publish.payload.clone(),
                expires_at: publish.ttl.map(|ttl| now + ttl),
            })
            .collect();
        if !messages.is_empty() {
            self.emit(Event::GlobalMessagesPublished { publisher, messages });
        }
    }

    pub(crate) fn check_global_queue(&self, queue: &str) -> Result<(), Rejection> {
        match self.context.definition.knows_global_queue(queue) {
            true => Ok(()),
            false => Err(Rejection::UnknownGlobalQueue(queue.to_owned())),
        }
    }
}
