//! Decides about the items of a turn, in order, and applies what follows in memory. Users' tables are written here, each
//! answer's before its events are applied.

mod functions;

use super::app_tables::{AppTables, Used, refused};
use super::global_queues::Free;
use super::item::{Item, ItemOutcome};
use super::load::{Batch, LocalVersions, TakenIn, take_in};
use super::types::Turn;
use crate::calls::{self, Answered, CallRecord, ReadSet};
use crate::pg::catch::{PgError, Result};
use crate::pg::crash;
use crate::pg::process::random;
use crate::pg::spi::Spi;
use crate::store::app_functions::Calls;
use crate::store::global_waiter::Gathered;
use crate::store::loaded::Loaded;
use crate::store::timer::{DueTimer, OF_PAUSE};
use crate::store::{StateKey, attribute, execution, locks, state};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use xdb_engine::*;
use xdb_protocol::{invalid_answer, rejected_answer};
use xdb_sched::budget::Part;
use xdb_sched::bytes::{ByteBudget, ROW};
use xdb_sched::table_health::Relation;

/// What was decided, to be written.
pub struct Decided<'i> {
    pub items: &'i [Item],
    /// One for each item.
    pub outcomes: Vec<ItemOutcome>,
    pub executions: BTreeMap<ExecutionId, Loaded>,
    pub taken_in: TakenIn,
    pub stale: Stale,
    /// Executions whose close waits for open publishers, and whether it is a conditional one.
    pub still_closing: Vec<(ExecutionId, bool)>,
    /// Calls whose answers came under their leases.
    pub current: HashSet<StateKey>,
    /// Calls that somebody else makes, or that are made again later.
    pub given_away: Vec<StateKey>,
    pub free: Free,
    pub now: Timestamp,
}

/// What nobody wants any more.
#[derive(Default)]
pub struct Stale {
    pub timers: Vec<DueTimer>,
    pub waiters: Vec<StateKey>,
    /// Executions that take no messages, and have some in the inbox.
    pub inboxes: Vec<ExecutionId>,
}

/// A command that closes its execution: it needs a stronger lock first.
struct CloseCommand {
    item: usize,
    command: Command,
    conditional: bool,
}

struct Decider<'t, 'a, 'i> {
    turn: &'t Turn<'t>,
    app: &'t mut AppTables<'a>,
    gathered: &'t Gathered,
    left_out: BTreeSet<StateKey>,
    leases: HashMap<StateKey, (i64, i64)>,
    local: LocalVersions,
    closing: BTreeMap<ExecutionId, CloseCommand>,
    budgets: Budgets,
    /// Executions with an item that waits for the next turn.
    put_off: BTreeSet<ExecutionId>,
    /// Executions with an answer that waits.
    held_up: BTreeSet<ExecutionId>,
    /// Users' rows that are written by answers which wait for the next turn.
    rows: HashSet<UsersRow>,
    /// And those that are written by what is to close its execution.
    closing_rows: HashSet<UsersRow>,
    /// The process of which a function was called first.
    called_first: Option<ExecutionId>,
    decided: Decided<'i>,
}

/// What may be written.
struct Budgets {
    answers: ByteBudget,
    /// All else has one of its own: answers that come all the time would leave nothing to timers, which come later.
    others: ByteBudget,
    /// The last item that was within its budget.
    goes: Option<usize>,
}

/// A table, and the key of a row in it.
type UsersRow = (Relation, Vec<String>);

/// Decides about everything in the batch.
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
        put_off: BTreeSet::new(),
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

    /// Decides about an item of an execution that nobody else has locked, if its turn has come.
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
            // The execution is gone, and all that belonged to it.
            self.forget(item);
            self.orphaned(item);
        }
        Ok(())
    }

    /// Whether something that came before an item waits, which must not be overtaken: anything of its execution that closes it or
    /// had no time; for an answer, another answer of its execution, or one that writes the same row of a user's.
    fn is_behind(&self, item: &Item) -> bool {
        let id = item.execution();
        if self.closing.contains_key(&id) || self.put_off.contains(&id) {
            return true;
        }
        let is_answer = matches!(item, Item::Answer(..));
        let shares_a_row = || !self.rows.is_empty() && self.rows_of(item).any(|row| self.rows.contains(&row));
        is_answer && (self.held_up.contains(&id) || shares_a_row())
    }

    /// Whether what closes an execution, and came before this item, writes the same row. What closes for sure comes after it anyway.
    fn overtakes_a_close(&self, item: &Item) -> bool {
        let Item::Answer(_, answered) = item else { return false };
        !closes_for_sure(answered)
            && !self.closing_rows.is_empty()
            && self.rows_of(item).any(|row| self.closing_rows.contains(&row))
    }

    /// Notes what the items after this one have to know of it.
    fn note(&mut self, number: usize, item: &Item) {
        let id = item.execution();
        match self.decided.outcomes[number] {
            ItemOutcome::OverBudget | ItemOutcome::NextTurn => {
                self.put_off.insert(id);
                self.waits(item);
            }
            ItemOutcome::Done | ItemOutcome::GivenAway => {}
            // It has no answer, and holds none up.
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

    /// An item waits for the next turn.
    fn waits(&mut self, item: &Item) {
        self.held_up.insert(item.execution());
        let rows: Vec<_> = self.rows_of(item).collect();
        self.rows.extend(rows);
    }

    /// The users' rows that an answer writes, or has locked.
    fn rows_of(&self, item: &Item) -> impl Iterator<Item = UsersRow> {
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
                    let why = "its lease is gone: the call was made again or is over";
                    return self.reject(record, &answered.command(record), why);
                }
                self.decided.current.insert(record.key);
                if matches!(answered, Answered::Uncalled) {
                    return self.call_function(number, record);
                }
                self.refused_strictly(record, answered).unwrap_or_else(|| answered.command(record))
            }
        };
        self.decide(number, item, command, false)
    }

    /// Whether this turn writes what follows from an item: about as many rows as an answer says, or as the timers of a state that goes on,
    /// and as the threads that end with their execution. Asked again, it is the same.
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
        let threads = if closes { loaded.execution.live_threads as usize } else { 0 };
        let budget = if matches!(item, Item::Answer(..)) { answers } else { others };
        let may_go = budget.take((rows + threads) * ROW);
        *goes = may_go.then_some(number);
        may_go
    }

    /// The failed attempt that an answer with warnings is, if its process type says so.
    fn refused_strictly(&mut self, record: &CallRecord, answered: &Answered) -> Option<Command> {
        let warnings = answered.warnings();
        if warnings.is_empty() {
            return None;
        }
        let process_type = self.loaded(record.key.0)?.meta.process_type.as_ref()?;
        let strict = process_type.definition.strict_answers;
        strict.then(|| calls::failed(record, invalid_answer(warnings.join("; ")), Further::ByPolicy))
    }

    /// Decides about a command and applies what follows. One that closes the execution waits for its lock, unless
    /// that is held already.
    // Long because a decision is one way down: offer, decide, check, write, apply.
    fn decide(&mut self, number: usize, item: &Item, command: Command, locked_for_close: bool) -> Result<()> {
        let offered = self.offer(item.execution(), &command)?;
        if offered.is_none() && matches!(item, Item::Waiter(_)) {
            self.decided.outcomes[number] = ItemOutcome::Behind;
            return Ok(());
        }
        let Some((command, events)) = self.events(item, command, offered.as_deref().unwrap_or_default())? else {
            return Ok(());
        };
        let closes = Event::closes(&events);
        if !locked_for_close && !self.may_go(number, item, closes) {
            self.decided.outcomes[number] = ItemOutcome::NextTurn;
            return Ok(());
        }
        if closes && !locked_for_close {
            let conditional = is_conditional_close(&command);
            self.closing.insert(item.execution(), CloseCommand { item: number, command, conditional });
            return Ok(());
        }
        let used = match self.is_unchanged(item, &command)? {
            Used::Done(true) => self.write_tables(item, &command, &events)?,
            Used::Done(false) => {
                let Item::Answer(record, _) = item else { return Ok(()) };
                let again = Command::CallRepeated { seq: record.key.1, api: record.api };
                return self.decide(number, item, again, locked_for_close);
            }
            other => other.map(drop),
        };
        let outcome = match used {
            Used::Done(()) => {
                crash::point("turn-tables");
                self.decided.free.take_offered(&events);
                let now = self.decided.now;
                if let Some(loaded) = self.decided.executions.get_mut(&item.execution()) {
                    if let (Command::WaitUntilAnswered { seq, .. }, Some(_)) = (&command, &offered) {
                        loaded.offered.insert(*seq);
                    }
                    loaded.apply(events, now)?;
                }
                return Ok(());
            }
            Used::Busy(relation) => match item {
                Item::Answer(record, _) if self.is_kept_from_tables(item) => {
                    self.decided.given_away.push(record.key);
                    ItemOutcome::GivenAway
                }
                _ => ItemOutcome::TableBusy(relation),
            },
            Used::Locked(relation) => ItemOutcome::RowLocked(relation),
            Used::OverBudget => ItemOutcome::OverBudget,
            Used::Refused(error) => {
                let Item::Answer(record, answered) = item else { return Err(error) };
                // Nothing of the refused answer is applied; the failed attempt can't be refused again.
                let failed = calls::failed(record, answered.warn(refused(&error)), Further::ByPolicy);
                return self.decide(number, item, failed, locked_for_close);
            }
        };
        self.decided.outcomes[number] = outcome;
        Ok(())
    }

    /// The events that follow from a command, or from the failed attempt that it turns out to be. None where nothing follows.
    fn events(
        &mut self,
        item: &Item,
        command: Command,
        offered: &[GlobalMessage],
    ) -> Result<Option<(Command, Vec<Event>)>> {
        let (spi, now) = (self.turn.spi, self.decided.now);
        let Some(loaded) = self.loaded(item.execution()) else { return Ok(None) };
        loaded.prepare(spi, &command)?;
        let rejection = match loaded.decide_with(&command, now, random(), offered) {
            Ok(events) => match refusal(spi, item, &events)? {
                None => return Ok(Some((command, events))),
                Some(error) => Rejection::InvalidAnswer(error.message.clone()),
            },
            Err(rejection) => rejection,
        };
        let is_late = matches!(rejection, Rejection::Stale | Rejection::NotRunning(_));
        let Item::Answer(record, answered) = item else {
            if is_late {
                self.forget(item);
            }
            return Ok(None);
        };
        if is_late {
            self.reject(record, &command, &rejection.to_string())?;
            return Ok(None);
        }
        // The worker's answer can't be applied.
        let (failure, further) = rejected_answer(&rejection);
        let command = calls::failed(record, answered.warn(failure), further);
        match loaded.decide(&command, now, random()) {
            Ok(events) => Ok(Some((command, events))),
            Err(rejection) => {
                self.reject(record, &command, &rejection.to_string())?;
                Ok(None)
            }
        }
    }

    /// What the state of this command can take of global queues; None if it has to be asked in a later turn, or has nothing to
    /// do with them.
    fn offer(&mut self, id: ExecutionId, command: &Command) -> Result<Option<Vec<GlobalMessage>>> {
        if !self.turn.role.matches_global_queues() {
            return Ok(None);
        }
        self.decided.free.offer_to(self.turn.spi, &self.decided.executions, self.gathered, id, command)
    }

    /// Notes in the history that an answer was not applied: late, doubled or stolen. What is closed has had its last
    /// event.
    fn reject(&mut self, record: &CallRecord, command: &Command, reason: &str) -> Result<()> {
        let now = self.decided.now;
        let Some(loaded) = self.loaded(record.key.0) else { return Ok(()) };
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

    /// Whether another process has to apply an answer.
    fn is_kept_from_tables(&self, item: &Item) -> bool {
        let loaded = self.decided.executions.get(&item.execution());
        loaded.is_some_and(|loaded| self.app.kept_from(&loaded.meta).is_some())
    }

    /// Writes the attributes of an answer, and calls its functions.
    fn write_tables(&mut self, item: &Item, command: &Command, events: &[Event]) -> Result<Used<()>> {
        let Some(loaded) = self.decided.executions.get(&item.execution()) else { return Ok(Used::Done(())) };
        let written = Event::written_globally(events);
        let calls = command.function_calls();
        if written.is_none() && calls.is_empty() {
            return Ok(Used::Done(()));
        }
        if let Some(relation) = self.app.kept_from(&loaded.meta) {
            return Ok(Used::Busy(relation));
        }
        let Item::Answer(record, _) = item else { return Ok(Used::Done(())) };
        let context = || calls::function_context(loaded, record);
        match Calls::look_up(&loaded.meta.definition(), calls, context) {
            Ok(calls) => self.app.write(&loaded.meta, written.unwrap_or(&BTreeMap::new()), &calls),
            Err(error) => Ok(Used::Refused(error)),
        }
    }

    /// The optimistic check: whether what a call has loaded under locks is what is there now. Of users' rows that is the values that
    /// it has loaded: the rest of a row may change as it likes. They are locked until the transaction ends.
    fn is_unchanged(&mut self, item: &Item, command: &Command) -> Result<Used<bool>> {
        let Item::Answer(record, _) = item else { return Ok(Used::Done(true)) };
        let answered = matches!(
            command,
            Command::WaitUntilAnswered { .. }
                | Command::ExecuteAnswered { .. }
                | Command::CallFailed(CallFailed { applied: Some(_), .. })
        );
        let (Some(reads), true) = (record.reads.as_deref(), answered) else { return Ok(Used::Done(true)) };
        let Some(loaded) = self.decided.executions.get(&record.key.0) else { return Ok(Used::Done(true)) };
        if reads.local.locks() {
            let now = locks::versions_of(&reads.local, self.local.get(&record.key.0).into_iter().flatten());
            if now != reads.keys || loaded.events.iter().any(|(event, _)| writes(event, reads)) {
                return Ok(Used::Done(false));
            }
        }
        if !reads.global.locks() {
            return Ok(Used::Done(true));
        }
        if let Some(relation) = self.app.kept_from(&loaded.meta) {
            return Ok(Used::Busy(relation));
        }
        let now = self.app.load(&loaded.meta, &reads.global, reads.global.lock_type)?;
        Ok(now.map(|object| fnv1a_128(object.bytes()) == reads.values))
    }

    /// Closes what can be closed now. The lock is taken in a statement of its own, and the queues are read in a
    /// later one: a message that was published before the lock is seen, and none can be published after it.
    fn close(&mut self) -> Result<()> {
        if self.closing.is_empty() {
            return Ok(());
        }
        let turn = self.turn;
        let ids: Vec<_> = self.closing.keys().copied().collect();
        let obtained = execution::lock_for_close(turn.spi, &ids)?;
        let mut closing: Vec<_> = std::mem::take(&mut self.closing).into_iter().collect();
        // Whose answer has waited longest comes first.
        closing.sort_by_key(|(_, closing)| closing.item);
        let conditional: Vec<_> =
            closing.iter().filter(|(id, c)| c.conditional && obtained.contains(id)).map(|(id, _)| *id).collect();
        let obtained_ids: Vec<_> = obtained.iter().copied().collect();
        let Decided { executions, taken_in, now, .. } = &mut self.decided;
        state::states_with_unrecorded_attempts(turn.spi, executions, &obtained_ids)?;
        let left = take_in(turn, executions, taken_in, &conditional, *now)?;
        self.closing_rows.clear();
        let items = self.decided.items;
        self.app.begin_part(Part::Closing);
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
        self.app.begin_part(Part::Answers);
        Ok(())
    }

    /// Messages that nobody receives any more.
    fn orphaned(&mut self, item: &Item) {
        if let Item::Arrivals(id) = item {
            self.decided.stale.inboxes.push(*id);
        }
    }

    /// What belongs to an item that nobody wants any more.
    fn forget(&mut self, item: &Item) {
        match item {
            Item::Timer(timer) => self.decided.stale.timers.push(*timer),
            Item::Waiter(key) => self.decided.stale.waiters.push(*key),
            Item::Arrivals(_) | Item::Answer(..) | Item::Fail { .. } => {}
        }
    }
}

/// Why an answer can't be applied that leaves its execution with more local attributes than it may have.
fn refusal(spi: &Spi, item: &Item, events: &[Event]) -> Result<Option<PgError>> {
    let Item::Answer(record, _) = item else { return Ok(None) };
    attribute::refusal_of(spi, record.key.0, Some(record.local_size), events)
}

fn is_conditional_close(command: &Command) -> bool {
    let Command::ExecuteAnswered { answer, .. } = command else { return false };
    matches!(answer.decision, Decision::ConditionalClose { .. })
}

fn closes_for_sure(answered: &Answered) -> bool {
    let Answered::Execute(answer) = answered else { return false };
    matches!(&answer.decision, Decision::Close { close_type: CloseType::ForceComplete | CloseType::ForceFail, .. })
}

/// What another answer of the same turn has written is not in the tables yet.
fn writes(event: &Event, reads: &ReadSet) -> bool {
    matches!(event, Event::LocalAttributesWritten { attributes } if attributes.keys().any(|key| reads.local.wants(key)))
}
