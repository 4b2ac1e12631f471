//! Calls of functions of the database that answer a state's calls in place of a worker. A runner calls the function in
//! the transaction that applies its answer:
//!
//! ```text
//!   lease ─▶ COMMIT     the call is claimed as any other, several at once; nothing is prepared
//!   load  ─▶ [ attributes ─▶ function ─▶ decide ─▶ close? ─▶ attributes, callFunctions ─▶ apply ] ─▶ save ─▶ COMMIT
//!              └─────────────── one subtransaction: all of it, or an attempt that failed ──────┘
//! ```
//!
//! The writes of the function and the effects of its answer are one transaction, so both happen exactly once. If
//! functions also answer the next states, these are called in the same transaction. If other calls wait, only for some
//! milliseconds. A next call that fails there is undone. Then it is claimed like any other call, so that its attempts
//! count.

use super::super::app_tables::raised;
use super::super::owners::why_unfit;
use super::super::role::{SLOW_FUNCTION, function_runners};
use super::*;
use crate::calls::{Loads, Maker, Verdict, of_function};
use crate::pg::identity::clean_session;
use crate::pg::process;
use crate::pg::shmem::{Slot, counters, marks};
use crate::pg::subxact::guarded;
use crate::store::app_functions;
use crate::store::app_tables::defer_nothing;
use crate::store::attribute::Size;
use crate::store::registry::NO_WORKER;
use crate::store::{inbox, queue};
use std::time::{Duration, Instant};

/// The most calls of one process in one transaction.
const IN_ONE_TRANSACTION: usize = 16;

/// After this time no further call begins in a transaction: other calls may have come to wait.
const LONG_TRANSACTION: Duration = Duration::from_millis(500);

/// While other calls wait, more functions are called in a transaction only until this time after its begin. That saves
/// more time than it costs the waiting calls. A function of another process than the first one's may wait for locks no
/// longer than this. Else it is called alone. So its waits do not prolong the locks of the functions before it.
const WHILE_CALLS_WAIT: Duration = Duration::from_millis(5);

/// Why a call is undone: its attempt failed, or it is made again later, or nothing is left to call.
type Undone = Outcome<ItemOutcome>;

/// Nothing is left to call.
const OVER: Undone = Undone::Over(Rejection::Stale);

impl Decider<'_, '_, '_> {
    /// Calls a function, and then the functions of the next states.
    pub(super) fn call_function(&mut self, number: usize, record: &CallRecord) -> Result<()> {
        if self.turn.paused || !self.may_be_called(record)? {
            self.give_back(number, record.key);
            return Ok(());
        }
        let elapsed = self.turn.began_at.elapsed();
        if self.shares_transaction(record.key.0) && elapsed >= WHILE_CALLS_WAIT {
            match elapsed >= SLOW_FUNCTION {
                true => self.give_back(number, record.key),
                // The call keeps its lease, and its function is called in the next transaction.
                false => self.decided.outcomes[number] = ItemOutcome::Behind,
            }
            return Ok(());
        }
        let most = function_runners(self.turn.has_slow_steps);
        if Slot::mine().is_some_and(|mine| !mine.begin_functions_of(record.owner, most)) {
            self.give_back(number, record.key);
            return Ok(());
        }
        self.called_first.get_or_insert(record.key.0);
        match self.make(record)? {
            None => self.go_on(record.key.0),
            Some(Undone::Failed(failure, further)) => {
                let failed = record.as_attempt().failed(failure.clone(), further);
                let item = Item::Answer(record.clone(), Answered::Failed(failure, further));
                self.decide(number, &item, failed, false)
            }
            Some(Undone::Closing { conditional }) => {
                self.decided.still_closing.push((record.key.0, conditional));
                self.decided.outcomes[number] = ItemOutcome::Locked;
                Ok(())
            }
            Some(Undone::Later(ItemOutcome::GivenAway)) => {
                self.give_back(number, record.key);
                Ok(())
            }
            Some(Undone::Later(outcome)) => {
                self.decided.outcomes[number] = outcome;
                Ok(())
            }
            Some(Undone::Over(_) | Undone::Applied | Undone::Repeat) => Ok(()),
        }
    }

    /// Whether a function of another process was called in this transaction. Its locks are held until the commit.
    fn shares_transaction(&self, id: ExecutionId) -> bool {
        self.called_first.is_some_and(|first| first != id)
    }

    /// Whether a function may answer the call now. If not, the lease is given up, and claiming decides what becomes of
    /// the call.
    fn may_be_called(&self, record: &CallRecord) -> Result<bool> {
        let Some(loaded) = self.decided.executions.get(&record.key.0) else { return Ok(true) };
        let Some(state) = loaded.execution.states.get(&record.key.1) else { return Ok(true) };
        let owner = why_unfit(loaded.meta.owner, &loaded.meta.owner_name)?;
        let verdict = self.app.verdict(loaded, state, record.api, owner.as_ref(), self.decided.now);
        Ok(verdict == (Maker::Function, Verdict::MayBeMade))
    }

    fn give_back(&mut self, number: usize, key: StateKey) {
        self.decided.given_away.push(key);
        self.decided.outcomes[number] = ItemOutcome::GivenAway;
    }

    /// Calls the functions of the next states, for a bounded time. While anything is marked, claiming decides whether a
    /// call waits.
    fn go_on(&mut self, id: ExecutionId) -> Result<()> {
        for _ in 1..IN_ONE_TRANSACTION {
            let may_take = if self.turn.is_alone { LONG_TRANSACTION } else { WHILE_CALLS_WAIT };
            let in_time = self.turn.began_at.elapsed() < may_take && !self.turn.is_careful;
            let may_go_on = in_time && !marks::are_any(process::database());
            let Some(next) = self.next_call(id).filter(|_| may_go_on) else { return Ok(()) };
            if !self.may_be_called(&next)? || self.make(&next)?.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A call that has become due in this turn and has a function.
    fn next_call(&self, id: ExecutionId) -> Option<CallRecord> {
        let (now, loaded) = (self.decided.now, self.decided.executions.get(&id)?);
        let running = loaded.execution.is_running();
        let mut states = loaded.execution.states.iter().filter(|(_, state)| running && loaded.has_changed(state));
        let definition = loaded.meta.definition();
        states.find_map(|(seq, state)| {
            let (api, call) = state.current_call()?;
            let is_first = call.failed_attempts == 0 && call.repeats == 0 && call.not_before <= now;
            let is_answered = is_first && definition.function_of(&state.id.state_id, api).is_some();
            is_answered
                .then(|| CallRecord { owner: loaded.meta.owner.to_u32(), ..CallRecord::of((id, *seq), api, 1, now) })
        })
    }

    /// Makes one call: applied as a whole, or undone as a whole. None: it was applied.
    fn make(&mut self, record: &CallRecord) -> Result<Option<Undone>> {
        let mut undone = None;
        let made = guarded(|| match self.made(record)? {
            None => Ok(()),
            Some(why) => {
                undone = Some(why);
                Err(PgError::internal("a call of a function is undone"))
            }
        });
        match (made, undone) {
            (Ok(()), _) => Ok(None),
            (Err(_), Some(why)) => {
                clean_session();
                Ok(Some(why))
            }
            (Err(error), None) => Err(error),
        }
    }

    // Long because a call is a sequence of steps, and each of them may end it.
    fn made(&mut self, record: &CallRecord) -> Result<Option<Undone>> {
        let (spi, id) = (self.turn.spi, record.key.0);
        self.app.next_item();
        let Some(loaded) = self.decided.executions.get(&id) else { return Ok(Some(OVER)) };
        let (meta, definition) = (loaded.meta.clone(), loaded.meta.definition());
        let Some(state) = loaded.execution.states.get(&record.key.1).cloned() else { return Ok(Some(OVER)) };
        let Some(name) = definition.function_of(&state.id.state_id, record.api) else {
            // The type was registered without the function meanwhile.
            return Ok(Some(Undone::Later(ItemOutcome::GivenAway)));
        };
        let function = match app_functions::find(name, 1) {
            Ok(function) => function,
            Err(error) => return Ok(Some(Undone::Failed(raised(&error), Further::ByPolicy))),
        };
        let config = definition.options_of(&state.id.state_id, state.config.as_deref());
        let timeout = config.timeout(record.api).as_std();
        let (request, size) = match self.request(record, &state, &config)? {
            Ok(request) => request,
            Err(undone) => return Ok(Some(undone)),
        };
        let shares = self.shares_transaction(id);
        let lock_timeout = if shares { WHILE_CALLS_WAIT.min(timeout) } else { timeout };
        let began = Instant::now();
        let called = self.app.in_function(id, &meta, function, (timeout, lock_timeout), || {
            defer_nothing(spi)?;
            app_functions::answer(function, &request)
        });
        let time = began.elapsed();
        counters::count_call(process::database(), NO_WORKER, counted::kind(record.api), time);
        // The function may have met the shorter limit, handled the error and gone on.
        if shares && time >= lock_timeout {
            return Ok(Some(Undone::Later(ItemOutcome::RowLocked(function))));
        }
        let answered = match called {
            Ok(answer) => of_function(record.api, answer.as_deref()),
            // The subtransaction is undone at once: no statement may run in it any more.
            Err(error) => return Ok(Some(Undone::Failed(raised(&error), Further::ByPolicy))),
        };
        crash::point("function-called");
        if let Answered::Failed(failure, further) = answered {
            return Ok(Some(Undone::Failed(failure, further)));
        }
        self.applied(record, &answered, size)
    }

    /// The request of the function, which is the body of a worker's call, and the size of the local attributes.
    fn request(
        &mut self,
        record: &CallRecord,
        state: &StateExecution,
        config: &StateConfig,
    ) -> Result<std::result::Result<(String, Size), Undone>> {
        let id = record.key.0;
        let loaded = self.decided.executions.get(&id).filter(|_| state.call(record.api).is_some());
        let Some(loaded) = loaded else { return Ok(Err(OVER)) };
        let loads = Loads::of(config, record.api);
        let read = attribute::local_attributes(self.turn.spi, &[id], ByteBudget::default())?;
        let (size, mut local) = match read.of(id).for_call(ItemOutcome::NextTurn) {
            Used::Done((size, all)) => (size, all.clone()),
            Used::Refused(failure) => return Ok(Err(Undone::Failed(failure, Further::ByPolicy))),
            Used::Later(outcome) => return Ok(Err(Undone::Later(outcome))),
        };
        // What this transaction has written is not in the table yet.
        for (event, _) in &loaded.events {
            if let Event::LocalAttributesWritten { attributes } = event {
                local.extend(attributes.iter().map(|(key, value)| (key.clone(), value.as_str().to_owned())));
            }
        }
        let global = match self.app.load(&loaded.meta, &loads.global, loads.global.lock_type)?.into() {
            Used::Done(object) => object,
            Used::Refused(failure) => return Ok(Err(Undone::Failed(failure, Further::ByPolicy))),
            Used::Later(outcome) => return Ok(Err(Undone::Later(outcome))),
        };
        let of = (&loads, config.timeout(record.api));
        match calls::request(loaded, state, record.as_attempt(), of, (global, local.iter()))? {
            Ok(request) => Ok(Ok((calls::body(&request)?, size))),
            Err(failure) => Ok(Err(Undone::Failed(*failure, Further::ByPolicy))),
        }
    }

    /// Applies an answer. Returns why it has to be undone, if it has to be.
    fn applied(&mut self, record: &CallRecord, answered: &Answered, size: Size) -> Result<Option<Undone>> {
        let (spi, id) = (self.turn.spi, record.key.0);
        let mut queues = queue::QueueDemand::new();
        // Several calls of one transaction take from the same queues: each needs what the calls before it have left.
        let of = self.decided.executions.get(&id);
        for (queue, wanted) in queue::demand(answered.queues(), answered.publishes()) {
            let before = of.map_or(0, |loaded| loaded.inspected(&queue));
            *queues.entry(id).or_default().entry(queue).or_insert(before) += wanted;
        }
        let with_id: Vec<_> = inbox::ids_of(id, answered.publishes()).collect();
        queue::queues(spi, &mut self.decided.executions, &queues)?;
        inbox::message_ids(spi, &mut self.decided.executions, &with_id)?;
        let record = CallRecord { local_size: size, ..record.clone() };
        let close = CloseLocking::AtOnce;
        let mut deciding = Deciding { decider: self, id, item: None, record: Some(&record), offered: None, close };
        match xdb_calls::apply(&mut deciding, &answered.command(record.as_attempt()))? {
            Outcome::Applied => Ok(None),
            Outcome::Failed(failure, further) => Ok(Some(Undone::Failed(Failure { status: None, ..failure }, further))),
            undone => Ok(Some(undone)),
        }
    }

    /// Takes the lock that a close needs, without waiting, and loads what the close reads. A wait would prolong the
    /// locks of the function.
    pub(super) fn lock_one_for_close(&mut self, id: ExecutionId, conditional: bool) -> Result<CloseLock<ItemOutcome>> {
        let (turn, ids) = (self.turn, [id]);
        if self.lock_for_close(&ids)?.is_empty() {
            return Ok(CloseLock::Missing);
        }
        state::states_with_unrecorded_attempts(turn.spi, &mut self.decided.executions, &ids)?;
        if conditional {
            // A message that was published before the lock is received before the answer, by the next turn.
            let of = self.decided.executions.get(&id).map(|loaded| (id, loaded.meta.owner));
            let found = inbox::arrivals(turn.spi, of.as_slice())?;
            let is_new = |arrival: &inbox::Arrival| !self.decided.taken_in.keys.contains(&arrival.key);
            if found.arrivals.iter().any(is_new) || !found.left.is_empty() {
                return Ok(CloseLock::Later(ItemOutcome::Behind));
            }
        }
        Ok(CloseLock::Taken)
    }
}
