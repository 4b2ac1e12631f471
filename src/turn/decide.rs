//! Decides about the items of a turn, in order, and applies the events in memory. The application's tables are written
//! here: for each answer before its events are applied.
//!
//! Limitations: the engine writes none of its own tables here. `save` writes the difference.

mod functions;

use super::app_tables::{AppTables, TableOutcome};
use super::global_queues::Free;
use super::item::{Item, ItemOutcome};
use super::load::{Batch, LocalVersions, TakenIn, take_in};
use super::types::Turn;
use crate::calls::{self, Answered, CallRecord, ReadSet};
use crate::pg::catch::{PgError, Result};
use crate::pg::crash;
use crate::pg::process::random;
use crate::pg::shmem::counters::Count;
use crate::pg::wake;
use crate::store::app_functions::FunctionCalls;
use crate::store::children::{Starts, parents_about_to_close};
use crate::store::global_waiter::Gathered;
use crate::store::loaded::Loaded;
use crate::store::timer::{DueTimer, OF_PARENT, OF_PAUSE};
use crate::store::{StateKey, attribute, counted, deciding, execution, state};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use xdb_calls::{CloseLock, Driver, Outcome, Used, Written};
use xdb_engine::*;
use xdb_sched::budget::TurnPart;
use xdb_sched::bytes::{ByteBudget, ROW};
use xdb_sched::table_health::Relation;

/// What was decided. `save` writes it.
pub struct Decided<'i> {
    /// The items of the turn.
    pub items: &'i [Item],
    /// One for each item.
    pub outcomes: Vec<ItemOutcome>,
    /// The executions as they are after the decisions.
    pub executions: BTreeMap<ExecutionId, Loaded>,
    /// Messages that were read from the inbox.
    pub taken_in: TakenIn,
    /// Rows to delete.
    pub stale: Stale,
    /// Executions whose close waits for open publishers, and whether the close is conditional.
    pub still_closing: Vec<(ExecutionId, bool)>,
    /// Calls whose answers came under a valid lease. Only these release their locks.
    pub current: HashSet<StateKey>,
    /// Calls whose leases are given up: a runner makes them, or they are made again later.
    pub given_away: Vec<StateKey>,
    /// Messages of global queues that are still free.
    pub free: Free,
    /// The time of the events.
    pub now: Timestamp,
}

/// Rows that have no use any more, to be deleted.
#[derive(Default)]
pub struct Stale {
    /// Timers whose step or execution is over.
    pub timers: Vec<DueTimer>,
    /// Steps that wait for no global queue any more.
    pub waiters: Vec<StateKey>,
    /// Executions that are closed, and have messages in the inbox.
    pub inboxes: Vec<ExecutionId>,
}

/// A command that closes its execution. It needs a stronger lock first, so it waits for [`Decider::close`].
struct CloseCommand {
    item: usize,
    command: Command,
    conditional: bool,
}

struct Decider<'t, 'a, 'i> {
    turn: &'t Turn<'t>,
    app: &'t mut AppTables<'a>,
    gathered: &'t Gathered,
    /// Steps that are too large for this turn.
    left_out: BTreeSet<StateKey>,
    /// The leases of the answered calls as the tasks have them: epoch and number.
    leases: HashMap<StateKey, (i64, i64)>,
    /// Current versions of the local attributes that calls have locked.
    local: LocalVersions,
    closing: BTreeMap<ExecutionId, CloseCommand>,
    budgets: Budgets,
    /// Executions with an item that waits for the next turn.
    deferred: BTreeSet<ExecutionId>,
    /// Executions with an answer that waits.
    held_up: BTreeSet<ExecutionId>,
    /// The application's rows that are written by answers which wait for the next turn.
    rows: HashSet<AppRow>,
    /// The application's rows that are written by commands which wait to close their executions.
    closing_rows: HashSet<AppRow>,
    /// The process whose function was called first in this transaction.
    called_first: Option<ExecutionId>,
    decided: Decided<'i>,
}

/// The bytes that a turn may still write.
struct Budgets {
    answers: ByteBudget,
    /// Items that are no answers have a budget of their own. Else a steady flow of answers would leave nothing for
    /// timers.
    others: ByteBudget,
    /// The last item that was within its budget. Its repeated check costs nothing.
    goes: Option<usize>,
}

/// A table, and the key of a row in it.
type AppRow = (Relation, Vec<String>);

/// Decides about all items of the batch.
pub fn decide<'i>(
    turn: &Turn<'_>,
    app: &mut AppTables<'_>,
    gathered: &Gathered,
    batch: Batch<'i>,
) -> Result<Decided<'i>> {
    let Batch { items, executions, locked, left_out, leases, local, taken_in, free, now } = batch;
    let decided = Decided {
        items,
        outcomes: vec![ItemOutcome::Done; items.len()],
        executions,
        taken_in,
        stale: Stale::default(),
        still_closing: Vec::new(),
        current: HashSet::new(),
        given_away: Vec::new(),
        free,
        now,
    };
    let mut decider = Decider {
        turn,
        app,
        gathered,
        left_out,
        leases,
        local,
        closing: BTreeMap::new(),
        budgets: Budgets { answers: turn.bytes(), others: turn.bytes(), goes: None },
        deferred: BTreeSet::new(),
        held_up: BTreeSet::new(),
        rows: HashSet::new(),
        closing_rows: HashSet::new(),
        called_first: None,
        decided,
    };
    for (number, item) in items.iter().enumerate() {
        match locked.contains(&item.execution()) {
            true => decider.decided.outcomes[number] = ItemOutcome::Locked,
            false => decider.next_item(number, item)?,
        }
    }
    decider.close()?;
    Ok(decider.decided)
}

impl<'i> Decider<'_, '_, 'i> {
    fn loaded(&mut self, id: ExecutionId) -> Option<&mut Loaded> {
        self.decided.executions.get_mut(&id)
    }

    /// Decides about an item whose execution is not locked by another transaction, if its turn has come.
    fn next_item(&mut self, number: usize, item: &'i Item) -> Result<()> {
        if self.is_behind(item) {
            self.decided.outcomes[number] = ItemOutcome::Behind;
            self.waits(item);
        } else if self.decided.executions.contains_key(&item.execution()) {
            if self.overtakes_a_close(item) {
                self.close()?;
            }
            self.item(number, item)?;
            self.note(number, item);
        } else {
            // The execution was deleted, with all that belonged to it.
            self.forget(item);
            self.orphaned(item);
        }
        Ok(())
    }

    /// Whether an earlier item waits that this item must not overtake:
    /// - any item of the same execution that closes it, or had no time;
    /// - for an answer, another answer of the same execution, or one that writes the same row of the application.
    fn is_behind(&self, item: &Item) -> bool {
        let id = item.execution();
        if self.closing.contains_key(&id) || self.deferred.contains(&id) {
            return true;
        }
        let is_answer = matches!(item, Item::Answer(..));
        let shares_a_row = || !self.rows.is_empty() && self.rows_of(item).any(|row| self.rows.contains(&row));
        is_answer && (self.held_up.contains(&id) || shares_a_row())
    }

    /// Whether an earlier item closes its execution and writes the same row. An answer that surely closes comes after
    /// that item anyway.
    fn overtakes_a_close(&self, item: &Item) -> bool {
        let Item::Answer(_, answered) = item else { return false };
        !closes_for_sure(answered)
            && !self.closing_rows.is_empty()
            && self.rows_of(item).any(|row| self.closing_rows.contains(&row))
    }

    /// Records what later items have to know about this one.
    fn note(&mut self, number: usize, item: &Item) {
        let id = item.execution();
        match self.decided.outcomes[number] {
            ItemOutcome::OverBudget | ItemOutcome::NextTurn => {
                self.deferred.insert(id);
                self.waits(item);
            }
            ItemOutcome::Done | ItemOutcome::GivenAway => {}
            // A waiter has no answer, and blocks none.
            _ if matches!(item, Item::Waiter(_)) => {}
            ItemOutcome::Locked | ItemOutcome::Behind | ItemOutcome::RowLocked(_) | ItemOutcome::TableBusy(_) => {
                self.held_up.insert(id);
            }
        }
        if self.closing.contains_key(&id) {
            let rows: Vec<_> = self.rows_of(item).collect();
            self.closing_rows.extend(rows);
        }
    }

    /// Records that an item waits for the next turn.
    fn waits(&mut self, item: &Item) {
        self.held_up.insert(item.execution());
        let rows: Vec<_> = self.rows_of(item).collect();
        self.rows.extend(rows);
    }

    /// The application's rows that an answer writes or has locked.
    fn rows_of(&self, item: &Item) -> impl Iterator<Item = AppRow> {
        let loaded = self.decided.executions.get(&item.execution()).filter(|_| item.uses_tables());
        let rows = loaded.map(|loaded| loaded.meta.mapping.iter().zip(loaded.meta.keys.iter()));
        rows.into_iter().flatten().map(|(table, key)| (table.relation, key.clone()))
    }

    fn item(&mut self, number: usize, item: &Item) -> Result<()> {
        self.app.next_item();
        if item.state().is_some_and(|key| self.left_out.contains(&key)) {
            self.decided.outcomes[number] = ItemOutcome::NextTurn;
            return Ok(());
        }
        let command = match item {
            Item::Arrivals(id) => {
                if self.loaded(*id).is_some_and(|loaded| !loaded.before.is_running()) {
                    self.orphaned(item);
                }
                return Ok(());
            }
            Item::Timer(timer) if timer.seq.0 == 0 && timer.command == OF_PAUSE => Command::PauseEnds,
            Item::Timer(timer) if timer.seq.0 == 0 && timer.command == OF_PARENT => {
                Command::Stop { stop_type: StopType::Terminate, reason: Some(PARENT_CLOSED.to_owned()) }
            }
            Item::Timer(timer) if timer.seq.0 == 0 => Command::ProcessTimeout,
            Item::Timer(timer) => Command::TimerFired { seq: timer.seq, command: timer.command },
            Item::Waiter(key) => Command::GlobalMessagesArrived { seq: key.1 },
            Item::Fail { reason, .. } => Command::Fail { reason: (*reason).to_owned() },
            Item::Answer(record, answered) => {
                let lease = (self.turn.lane.epoch, record.lease_number);
                if self.leases.get(&record.key) != Some(&lease) {
                    if matches!(answered, Answered::Uncalled) {
                        // Nothing has happened.
                        return Ok(());
                    }
                    let why = "lease lost: the call was made again or has ended";
                    return self.reject(record, &answered.command(record.as_attempt()), why);
                }
                self.decided.current.insert(record.key);
                if matches!(answered, Answered::Uncalled) {
                    return self.call_function(number, record);
                }
                answered.command(record.as_attempt())
            }
        };
        self.decide(number, item, command, false)
    }

    /// Whether this turn writes the results of an item. An item counts for its rows: those of the answer, the commands
    /// of a waiting state, and the threads that end with their execution. A second check of the same item gives the
    /// same result.
    fn may_go(&mut self, number: usize, item: &Item, closes: bool) -> bool {
        let Budgets { answers, others, goes } = &mut self.budgets;
        let Some(loaded) = self.decided.executions.get(&item.execution()).filter(|_| *goes != Some(number)) else {
            return true;
        };
        let rows = match item {
            Item::Answer(_, answered) => answered.size(),
            Item::Timer(timer) => match loaded.execution.states.get(&timer.seq).map(|state| &state.phase) {
                Some(Phase::Waiting(wait)) => wait.commands.len(),
                _ => 0,
            },
            Item::Arrivals(_) | Item::Waiter(_) | Item::Fail { .. } => 0,
        };
        let aborts = matches!(item, Item::Answer(_, answered) if answered.aborts());
        let threads = if closes || aborts { loaded.execution.live_threads as usize } else { 0 };
        let budget = if matches!(item, Item::Answer(..)) { answers } else { others };
        let may_go = budget.take((rows + threads) * ROW);
        *goes = may_go.then_some(number);
        may_go
    }

    /// Decides about a command and applies its events. A command that closes its execution waits for the lock, unless
    /// `locked_for_close`.
    fn decide(&mut self, number: usize, item: &Item, command: Command, locked_for_close: bool) -> Result<()> {
        let id = item.execution();
        let offered = self.offer(id, &command)?;
        let is_offered = offered.is_some();
        if !is_offered && matches!(item, Item::Waiter(_)) {
            self.decided.outcomes[number] = ItemOutcome::Behind;
            return Ok(());
        }
        let close = if locked_for_close { CloseLocking::Locked } else { CloseLocking::Later };
        let record = item.record();
        let mut deciding = Deciding { decider: self, id, item: Some((number, item)), record, offered, close };
        let again = match (xdb_calls::apply(&mut deciding, &command)?, record) {
            (Outcome::Applied, _) => {
                if let (Command::WaitUntilAnswered { seq, .. }, true, Some(loaded)) =
                    (&command, is_offered, self.loaded(id))
                {
                    loaded.offered.insert(*seq);
                }
                return Ok(());
            }
            (Outcome::Closing { conditional }, _) => {
                self.closing.insert(id, CloseCommand { item: number, command, conditional });
                return Ok(());
            }
            (Outcome::Later(outcome), _) => {
                self.decided.given_away.extend(record.filter(|_| outcome == ItemOutcome::GivenAway).map(|of| of.key));
                self.decided.outcomes[number] = outcome;
                return Ok(());
            }
            (Outcome::Over(rejection), Some(record)) => return self.reject(record, &command, &rejection.to_string()),
            (Outcome::Over(rejection), None) => {
                if rejection.is_late() {
                    self.forget(item);
                }
                return Ok(());
            }
            (Outcome::Repeat, Some(record)) => Command::CallRepeated { seq: record.key.1, api: record.api },
            (Outcome::Failed(failure, further), Some(record)) => record.as_attempt().failed(failure, further),
            (Outcome::Repeat | Outcome::Failed(..), None) => {
                return Err(PgError::internal("what is no answer has failed as one"));
            }
        };
        // A failed attempt can't be refused again.
        self.decide(number, item, again, locked_for_close)
    }

    /// The messages of global queues that the state of this command may take. None if the state is offered messages in
    /// a later turn, or waits for none.
    fn offer(&mut self, id: ExecutionId, command: &Command) -> Result<Option<Vec<GlobalMessage>>> {
        if !self.turn.role.matches_global_queues() {
            return Ok(None);
        }
        self.decided.free.offer_to(self.turn.spi, &self.decided.executions, self.gathered, id, command)
    }

    /// Records in the history that an answer was not applied: it was late, doubled or stolen. A closed execution gets
    /// no more events.
    fn reject(&mut self, record: &CallRecord, command: &Command, reason: &str) -> Result<()> {
        let now = self.decided.now;
        let Some(loaded) = self.loaded(record.key.0) else { return Ok(()) };
        wake::count_at_commit(Count::Rejected(counted::called(loaded, record.key.1, record.api)), 1);
        if loaded.meta.history.keeps_events() && loaded.execution.is_running() {
            let event = Event::CommandRejected {
                command: command.name().to_owned(),
                seq: Some(record.key.1),
                attempt: Some(record.attempt),
                reason: reason.to_owned(),
            };
            loaded.apply(vec![event], now)?;
        }
        Ok(())
    }

    /// Closes the executions that can be closed now. One statement takes the locks, and a later one reads the queues.
    /// So a message that was published before the lock is seen, and none can be published after it.
    fn close(&mut self) -> Result<()> {
        if self.closing.is_empty() {
            return Ok(());
        }
        let turn = self.turn;
        let ids: Vec<_> = self.closing.keys().copied().collect();
        let obtained = self.lock_for_close(&ids)?;
        let mut closing: Vec<_> = std::mem::take(&mut self.closing).into_iter().collect();
        // The answer that has waited longest comes first.
        closing.sort_by_key(|(_, closing)| closing.item);
        let conditional: Vec<_> =
            closing.iter().filter(|(id, c)| c.conditional && obtained.contains(id)).map(|(id, _)| *id).collect();
        let obtained_ids: Vec<_> = obtained.iter().copied().collect();
        let Decided { executions, taken_in, now, .. } = &mut self.decided;
        state::states_with_unrecorded_attempts(turn.spi, executions, &obtained_ids)?;
        let left = take_in(turn, executions, taken_in, &conditional, *now)?;
        self.closing_rows.clear();
        let items = self.decided.items;
        self.app.begin_part(TurnPart::Closing);
        for (id, CloseCommand { item, command, conditional }) in closing {
            if !obtained.contains(&id) {
                self.decided.still_closing.push((id, conditional));
                self.decided.outcomes[item] = ItemOutcome::Locked;
            } else if conditional && left.contains(&id) {
                self.decided.outcomes[item] = ItemOutcome::Behind;
            } else {
                self.app.next_item();
                self.decide(item, &items[item], command, true)?;
            }
            self.note(item, &items[item]);
        }
        self.app.begin_part(TurnPart::Answers);
        Ok(())
    }

    /// The executions that can be closed now, because no other transaction has a lock on them, or is about to close the
    /// parent that gets a message.
    fn lock_for_close(&self, ids: &[ExecutionId]) -> Result<BTreeSet<ExecutionId>> {
        let mut obtained = execution::lock_for_close(self.turn.spi, ids)?;
        let parent = |id: &ExecutionId| self.decided.executions.get(id)?.execution.parent_to_inform();
        let parents: BTreeSet<_> = obtained.iter().filter_map(parent).collect();
        let closing = parents_about_to_close(self.turn.spi, &parents)?;
        obtained.retain(|id| !parent(id).is_some_and(|parent| closing.contains(&parent)));
        Ok(obtained)
    }

    /// Records that an execution has messages in the inbox which it can't receive any more.
    fn orphaned(&mut self, item: &Item) {
        if let Item::Arrivals(id) = item {
            self.decided.stale.inboxes.push(*id);
        }
    }

    /// Records that the row of an item can be deleted.
    fn forget(&mut self, item: &Item) {
        match item {
            Item::Timer(timer) => self.decided.stale.timers.push(*timer),
            Item::Waiter(key) => self.decided.stale.waiters.push(*key),
            Item::Arrivals(_) | Item::Answer(..) | Item::Fail { .. } => {}
        }
    }
}

/// How a command that closes its execution gets the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CloseLocking {
    /// After the other items: one statement takes the locks of the whole batch.
    Later,
    /// At once: a function has answered, and its writes are part of this transaction.
    AtOnce,
    /// The lock is held.
    Locked,
}

/// The driver of [`xdb_calls::apply`] in a turn.
struct Deciding<'d, 't, 'a, 'i> {
    decider: &'d mut Decider<'t, 'a, 'i>,
    id: ExecutionId,
    /// The item and its number. None: the answer of a function that was called in this transaction.
    item: Option<(usize, &'d Item)>,
    /// The call, if the command is an answer.
    record: Option<&'d CallRecord>,
    /// Messages of global queues that the state may take.
    offered: Option<Vec<GlobalMessage>>,
    close: CloseLocking,
}

impl Deciding<'_, '_, '_, '_> {
    fn executions(&self) -> &BTreeMap<ExecutionId, Loaded> {
        &self.decider.decided.executions
    }

    /// A table that this process may not use now: another process of the engine has to.
    fn kept_from(&self) -> Option<Relation> {
        self.executions().get(&self.id).and_then(|loaded| self.decider.app.kept_from(&loaded.meta))
    }

    fn used<T>(&self, used: TableOutcome<T>) -> Used<T, ItemOutcome> {
        match Used::from(used) {
            Used::Later(ItemOutcome::TableBusy(_)) if self.item.is_some() && self.kept_from().is_some() => {
                Used::Later(ItemOutcome::GivenAway)
            }
            used => used,
        }
    }
}

impl Driver for Deciding<'_, '_, '_, '_> {
    type Error = PgError;
    type Later = ItemOutcome;

    fn decide(&mut self, command: &Command) -> Result<std::result::Result<Vec<Event>, Rejection>> {
        let Self { decider, id, offered, .. } = self;
        let (spi, Decided { executions, now, .. }) = (decider.turn.spi, &mut decider.decided);
        let offered = offered.as_deref().unwrap_or_default();
        deciding::decide_with_tables(spi, executions, *id, command, (*now, random()), offered)
    }

    fn is_strict(&self) -> bool {
        self.executions().get(&self.id).is_some_and(|loaded| loaded.meta.definition().strict_answers)
    }

    fn waits(&mut self, closes: bool) -> Option<ItemOutcome> {
        let (number, item) = self.item.filter(|_| self.close != CloseLocking::Locked)?;
        (!self.decider.may_go(number, item, closes)).then_some(ItemOutcome::NextTurn)
    }

    fn lock_for_close(&mut self, conditional: bool) -> Result<CloseLock<ItemOutcome>> {
        match self.close {
            CloseLocking::Later => Ok(CloseLock::Missing),
            CloseLocking::AtOnce => self.decider.lock_one_for_close(self.id, conditional),
            CloseLocking::Locked => Ok(CloseLock::Held),
        }
    }

    fn too_large(&mut self, events: &[Event]) -> Result<Option<String>> {
        let Some(record) = self.record else { return Ok(None) };
        let refusal = attribute::refusal_of(self.decider.turn.spi, self.id, Some(record.local_size), events)?;
        Ok(refusal.map(|error| error.message.clone()))
    }

    /// Of the application's rows, only the values that the call has loaded are compared: other columns may change. The
    /// rows stay locked until the transaction ends.
    fn is_unchanged(&mut self) -> Result<Used<bool, ItemOutcome>> {
        let reads = self.record.and_then(|record| record.reads.as_deref());
        let Some(ReadSet { loads, fingerprint }) = reads else { return Ok(Used::Done(true)) };
        let kept_from = self.kept_from().filter(|_| loads.global.locks());
        let Decider { app, decided, local, .. } = &mut *self.decider;
        let Some(loaded) = decided.executions.get(&self.id) else { return Ok(Used::Done(true)) };
        if loads.local.locks() && loaded.events.iter().any(|(event, _)| writes(event, &loads.local)) {
            return Ok(Used::Done(false));
        }
        let global = match kept_from {
            Some(relation) => TableOutcome::Busy(relation),
            None if loads.global.locks() => app.load(&loaded.meta, &loads.global, loads.global.lock_type)?,
            None => TableOutcome::Done(String::new()),
        };
        let versions = local.get(&self.id).into_iter().flatten();
        let is_same = global.map(|global| loads.fingerprint(&global, versions) == *fingerprint);
        Ok(self.used(is_same))
    }

    fn write_tables(&mut self, written: &Written<'_>) -> Result<Used<(), ItemOutcome>> {
        if let Some(relation) = self.kept_from() {
            return Ok(self.used(TableOutcome::Busy(relation)));
        }
        let Decider { app, decided, .. } = &mut *self.decider;
        let (Some(loaded), Some(record)) = (decided.executions.get(&self.id), self.record) else {
            return Ok(Used::Done(()));
        };
        let context = || calls::function_context(loaded, record);
        let used = match FunctionCalls::look_up(&loaded.meta.definition(), written.functions, context) {
            Ok(calls) => {
                let starts = written.children.as_ref().map(|children| Starts::of(loaded, children));
                app.write(&loaded.meta, written.attributes, &calls.after(starts))?
            }
            Err(error) => TableOutcome::Refused(error),
        };
        Ok(self.used(used))
    }

    fn apply(&mut self, events: Vec<Event>) -> Result<()> {
        crash::point("turn-tables");
        let Decided { free, executions, now, .. } = &mut self.decider.decided;
        free.take_offered(&events);
        executions.get_mut(&self.id).map_or(Ok(()), |loaded| loaded.apply(events, *now))
    }
}

fn closes_for_sure(answered: &Answered) -> bool {
    let Answered::Execute(answer) = answered else { return false };
    matches!(&answer.decision, Decision::Close { close_type: CloseType::ForceComplete | CloseType::ForceFail, .. })
}

/// Whether an event writes local attributes that a call has read. The tables do not show yet what another answer of the
/// same turn has written.
fn writes(event: &Event, read: &Loading) -> bool {
    matches!(event, Event::LocalAttributesWritten { attributes } if attributes.keys().any(|key| read.wants(key)))
}
