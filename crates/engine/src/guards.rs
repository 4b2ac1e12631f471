//! Guards: states with a static wait that wait beside a state, or beside the process. While a guard waits it is no
//! thread. When its wait ends it becomes one and, unless it does not interrupt, ends what it guards.
//!
//! The definition says which state lists which guards. Waits of guards end at the end of a command, when the answer
//! that has published to them has ended its own step.

use crate::decide::Draft;
use crate::*;
use std::collections::{BTreeMap, BTreeSet};

/// The most guards of a state, and of the process.
pub const MOST_GUARDS: usize = 16;

impl Definition {
    /// The guards of a state.
    pub fn guards_of(&self, state_id: &str) -> &[String] {
        self.states.get(state_id).and_then(|options| options.guards.as_deref()).unwrap_or_default()
    }

    fn guards_process(&self, guard: &str) -> bool {
        self.guards.iter().any(|listed| listed == guard)
    }

    /// The states that list a guard.
    fn guarded_by(&self, guard: &str) -> impl Iterator<Item = &String> {
        self.states.keys().filter(move |state_id| self.lists(state_id, guard))
    }

    fn lists(&self, state_id: &str, guard: &str) -> bool {
        self.guards_of(state_id).iter().any(|listed| listed == guard)
    }

    /// Checks the guards of a state, or of the process: they are states with a static wait for any of its commands, and
    /// have no guards themselves.
    pub fn check_guards(&self, guards: &[String]) -> Result<(), UnknownName> {
        let fault = |what| Err(UnknownName { at: "guards".to_owned(), what });
        if guards.len() > MOST_GUARDS {
            return fault(format!("has {} names; the limit is {MOST_GUARDS}", guards.len()));
        }
        for (at, guard) in guards.iter().enumerate() {
            let Some(options) = self.states.get(guard) else {
                return fault(format!("names {guard:?}, which is not listed in states"));
            };
            match &options.command_request {
                None => return fault(format!("names {guard:?}, which has no commandRequest")),
                Some(request) if request.waiting_type != WaitingType::Any => {
                    return fault(format!("names {guard:?}, whose commandRequest is not {}", WaitingType::Any));
                }
                Some(_) => {}
            }
            if options.guards.as_ref().is_some_and(|guards| !guards.is_empty()) {
                return fault(format!("names {guard:?}, which has guards itself"));
            }
            if guards[..at].contains(guard) {
                return fault(format!("names {guard:?} twice"));
            }
        }
        Ok(())
    }
}

/// How many steps of a state live, and how many of them wait as guards.
#[derive(Clone, Copy, Default)]
pub(crate) struct Standing {
    live: usize,
    guards: usize,
}

/// The standing of each state that has steps.
#[derive(Default)]
pub(crate) struct Standings(BTreeMap<String, Standing>);

impl Standings {
    fn count(&mut self, step: &StateExecution, change: impl Fn(usize, usize) -> usize) {
        let standing = self.0.entry(step.id.state_id.clone()).or_default();
        standing.live = change(standing.live, usize::from(step.status().is_live()));
        standing.guards = change(standing.guards, usize::from(step.is_waiting_guard()));
    }
}

impl Draft<'_> {
    /// The standing of a state. All are counted when a decision first asks for one. Otherwise each of very many steps
    /// would scan all others.
    fn standing(&mut self, state_id: &str) -> Standing {
        let standings = self.standings.get_or_insert_with(|| {
            let mut standings = Standings::default();
            self.execution.states.values().for_each(|step| standings.count(step, usize::wrapping_add));
            standings
        });
        standings.0.get(state_id).copied().unwrap_or_default()
    }

    /// Takes the step of an event out of its standing before the event, and into it after the event.
    pub(crate) fn recount(&mut self, event: &Event, change: impl Fn(usize, usize) -> usize) {
        let (Event::StateStarted { seq, .. }
        | Event::WaitCompleted { seq, .. }
        | Event::StateCompleted { seq, .. }
        | Event::StateFailed { seq, .. }
        | Event::StateAborted { seq, .. }) = event
        else {
            return;
        };
        if let (Some(standings), Some(step)) = (&mut self.standings, self.execution.states.get(seq)) {
            standings.count(step, change);
        }
    }

    /// Whether a movement to a state starts a guard.
    pub(crate) fn starts_as_guard(&mut self, state_id: &str) -> bool {
        let definition = self.context.definition;
        // A compensation has ended the guards of the process.
        definition.guards_process(state_id) && !self.execution.compensation.begun
            || definition.guarded_by(state_id).any(|guarded| self.standing(guarded).live > 0)
    }

    /// The first live step of a state that lists this guard.
    fn guarded_step(&self, guard: &str) -> Option<&StateExecution> {
        let definition = self.context.definition;
        let live = self.execution.states.values().filter(|state| state.status().is_live());
        live.map(AsRef::as_ref).find(|state| definition.lists(&state.id.state_id, guard))
    }

    fn waiting_guards(&self, guard: &str) -> Vec<StateSeq> {
        let states = self.execution.states.values();
        states.filter(|state| state.id.state_id == guard && state.is_waiting_guard()).map(|state| state.seq).collect()
    }

    /// Starts these guards, except guards that wait already. Delays of their timers count from `from`.
    pub(crate) fn start_guards(&mut self, guards: &[String], from: Timestamp) {
        for guard in guards {
            let Some(request) = self.context.definition.static_wait(guard, None) else { continue };
            if self.standing(guard).guards > 0 {
                continue;
            }
            let number = self.execution.state_numbers.get(guard).map_or(1, |last| last + 1);
            let seq = StateSeq(self.execution.next_state);
            self.emit(Event::StateStarted {
                seq,
                state_execution_id: StateExecutionId { state_id: guard.clone(), number },
                input: None,
                config: None,
                recovery: None,
                skip_wait_until: false,
                static_wait: true,
                guard: true,
                compensates: None,
                not_before: self.context.now,
            });
            self.begin_static_wait(seq, request, from);
        }
    }

    /// A step has ended. If it was the last one that a guard guards, the guard ends too.
    pub(crate) fn end_guards_of(&mut self, seq: StateSeq) {
        let definition = self.context.definition;
        let Some(state_id) = self.execution.states.get(&seq).map(|state| state.id.state_id.clone()) else { return };
        for guard in definition.guards_of(&state_id) {
            if !self.starts_as_guard(guard) {
                let waiting = self.waiting_guards(guard);
                self.abort(&waiting, None);
            }
        }
    }

    /// Ends the waits of guards that are satisfied, longest waiting first. What ends may give messages back, which
    /// satisfy further guards.
    pub(crate) fn trigger_guards(&mut self) {
        if self.execution.is_running() && self.unserved {
            // Guards that have ended with their states gave messages back.
            self.serve_waiting_states();
        }
        let is_satisfied = |phase: &Phase| matches!(phase, Phase::Waiting(wait) if wait.guard && wait.is_satisfied());
        while let Some(seq) = self.execution.waiting_in_order().into_iter().find(|seq| {
            let state = self.execution.states.get(seq);
            self.execution.is_running() && state.is_some_and(|state| is_satisfied(&state.phase))
        }) {
            self.trigger(seq);
        }
    }

    /// Whether a guard that waits has taken a message of this queue in this command. The message goes back, or ends the
    /// guard's wait.
    pub(crate) fn is_held_by_guard(&self, queue: &str) -> bool {
        let guards = self.execution.states.values().filter(|state| state.is_waiting_guard());
        guards.flat_map(|guard| guard.taken_messages()).any(|message| message.queue == queue)
    }

    fn trigger(&mut self, seq: StateSeq) {
        let definition = self.context.definition;
        let Some(guard) = self.execution.states.get(&seq).map(|state| state.id.state_id.clone()) else { return };
        let of_process = definition.guards_process(&guard);
        let guards = self.guarded_step(&guard).filter(|_| !of_process).map(|state| state.id.clone());
        self.complete_due_timers(seq);
        self.emit(Event::WaitCompleted { seq, guards });
        if definition.states.get(&guard).and_then(|options| options.interrupting) == Some(false) {
            return;
        }
        let live = self.execution.states.values().filter(|state| state.seq != seq && state.status().is_live());
        let ended = live.filter(|state| of_process || definition.lists(&state.id.state_id, &guard));
        let ended: Vec<_> = ended.map(|state| state.seq).collect();
        self.abort(&ended, None);
        self.serve_waiting_states();
    }
}

/// Live steps that a decision depends on, and that may not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unloaded {
    /// All of them.
    Every,
    /// All steps of these states.
    Of(BTreeSet<String>),
    /// One more step of any of these states, if there is one.
    OneOf(BTreeSet<String>),
    /// This step, which has completed and is undone.
    Ended(StateSeq),
}

impl Execution {
    /// What has to be loaded before these events count as the decision. `self` is the execution before them, loaded in
    /// part. `whole` has the states whose live steps are all loaded.
    pub fn unloaded(&self, events: &[Event], definition: &Definition, whole: &BTreeSet<String>) -> Option<Unloaded> {
        let undone = events.iter().find_map(|event| match event {
            Event::StateStarted { compensates: Some(_), .. } => self.compensation.noted.last(),
            _ => None,
        });
        if let Some(noted) = undone.filter(|noted| !self.states.contains_key(&noted.seq)) {
            return Some(Unloaded::Ended(noted.seq));
        }
        if self.loaded_threads_and_guards() == (self.live_threads, self.waiting_guards) {
            return None;
        }
        if events.iter().any(|event| matches!(event, Event::CompensationStarted { .. })) {
            return Some(Unloaded::Every);
        }
        let guards_of = |state_id: &str| if self.waiting_guards > 0 { definition.guards_of(state_id) } else { &[] };
        let mut ids: BTreeMap<StateSeq, (&str, bool)> = BTreeMap::new();
        let (mut of, mut one_of) = (BTreeSet::new(), BTreeSet::new());
        for event in events {
            match event {
                Event::StateStarted { seq, state_execution_id: StateExecutionId { state_id, .. }, guard, .. } => {
                    ids.insert(*seq, (state_id, *guard));
                    of.extend(guards_of(state_id).iter().cloned());
                    // It would start as a guard if what it guards lived.
                    one_of.extend(definition.guarded_by(state_id).filter(|_| !guard).cloned());
                }
                Event::StateCompleted { seq, .. }
                | Event::StateFailed { seq, .. }
                | Event::StateAborted { seq, .. } => {
                    let known =
                        self.states.get(seq).map(|state| (state.id.state_id.as_str(), state.is_waiting_guard()));
                    let Some((state_id, guard)) = ids.get(seq).copied().or(known) else { continue };
                    of.extend(guards_of(state_id).iter().cloned());
                    let is_aborted = guard && matches!(event, Event::StateAborted { .. });
                    one_of.extend(definition.guarded_by(state_id).filter(|_| is_aborted).cloned());
                }
                Event::WaitCompleted { seq, .. } => {
                    let known =
                        self.states.get(seq).map(|state| (state.id.state_id.as_str(), state.is_waiting_guard()));
                    let Some((guard, true)) = ids.get(seq).copied().or(known) else { continue };
                    let interrupts = definition.states.get(guard).and_then(|options| options.interrupting);
                    if definition.guards_process(guard) && interrupts != Some(false) {
                        return Some(Unloaded::Every);
                    }
                    of.extend(definition.guarded_by(guard).cloned());
                }
                _ => {}
            }
        }
        of.retain(|state_id| !whole.contains(state_id));
        one_of.retain(|state_id| !whole.contains(state_id));
        match (of.is_empty(), one_of.is_empty()) {
            (false, _) => Some(Unloaded::Of(of)),
            (true, false) => Some(Unloaded::OneOf(one_of)),
            (true, true) => None,
        }
    }
}
