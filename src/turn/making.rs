//! Calls that may bring the server down: how it is known which, and that the others go on.
//!
//! Usually a call is prepared in the transaction that leases it. If the server dies of that, nothing is left that tells of which. So
//! in the first minute of a server's life, in which one that dies again and again does so, and as long as there are suspects, a
//! turn ends with the leases, which commit synchronously. What they are for is prepared in a transaction that follows:
//!
//! ```text
//!  turn ─▶ COMMIT ─▶ [all calls but suspects: prepare ─▶ COMMIT] ─▶ out
//!          leases └▶ [each suspect: take ─▶ COMMIT ─▶ prepare, acquit ─▶ COMMIT] ─▶ out
//! ```
//!
//! The scheduler that comes after a crash notes what was leased ([`crate::store::suspects`]). The answer of a suspect is applied
//! alone and taken meanwhile too. So of suspects that wait for their workers none is blamed for what another one does, and the one
//! that is in hand at the second death is held.

use super::app_tables::AppTables;
use super::claim::{Claims, Leased};
use super::item::Item;
use super::memory::{Memory, Submit};
use super::prepare::{self, Prepared, Requests};
use super::save::Saved;
use super::transaction::{Mode, SUSPECT_FOR, Scope, Turn, apply_guarded, failed_alone};
use crate::pg::catch::{LOCK_NOT_AVAILABLE, PgError, Result, UNIQUE_VIOLATION, log_error};
use crate::pg::session::Session;
use crate::pg::spi::Spi;
use crate::pg::{crash, identity, memory as server_memory, shmem};
use crate::store::execution::{self, Lock};
use crate::store::{StateKey, claim, executions_of, state, suspects};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use xdb_sched::backoff::Patience;
use xdb_sched::budget::GUARDED_ITEMS;
use xdb_sched::portion::Portion;

/// Suspects are made for so long in one turn, and so long their answers are applied; the others wait for the next.
const LONGEST: Duration = Duration::from_secs(1);

/// Calls that are prepared after the commit of their leases.
#[derive(Default)]
pub struct Later {
    together: Vec<Leased>,
    suspects: Vec<Leased>,
}

impl Later {
    pub fn is_empty(&self) -> bool {
        self.together.is_empty() && self.suspects.is_empty()
    }
}

/// When calls are prepared.
#[derive(Debug)]
pub(super) struct Making {
    /// The schema has a table of suspects.
    has_suspects: bool,
    waits_for_commit: bool,
    to_acquit: Vec<StateKey>,
}

impl Making {
    pub fn of(has_suspects: bool) -> Self {
        Self { has_suspects, waits_for_commit: false, to_acquit: Vec::new() }
    }

    pub fn begin_turn(&mut self, session: &mut Session) {
        if !self.to_acquit.is_empty() {
            self.acquit(session, []);
        }
        self.waits_for_commit = self.has_suspects && (shmem::is_first_minute() || suspects::known().open > 0);
    }

    /// Leases commit before their calls are prepared.
    pub fn waits_for_commit(&self) -> bool {
        self.waits_for_commit
    }
}

/// Leaves the calls that a turn has leased to [`make`].
pub fn put_off(turn: &Turn, saved: &mut Saved, claims: Claims) -> Result<Prepared> {
    let Claims { leased, failed, drained, mut ends, more, took_large, .. } = claims;
    let leased: Vec<_> = std::mem::take(&mut saved.dispatched).into_iter().chain(leased).collect();
    let keys: Vec<_> = leased.iter().map(|call| call.key).collect();
    let known = suspects::among(turn.spi, &keys)?;
    let (suspects, together) = leased.into_iter().partition(|call| known.contains(&call.key));
    ends.note(saved.earliest);
    let later = Later { together, suspects };
    let mut requests = Requests::none(failed);
    requests.took_large = took_large;
    Ok(Prepared { requests, drained, ends, more, later })
}

/// Prepares calls whose leases are committed, and hands them to the transport. Says whether there is more to do at once.
pub fn make(
    memory: &mut Memory,
    session: &mut Session,
    later: Later,
    after_items: bool,
    submit: &mut Submit<'_>,
) -> bool {
    if later.is_empty() {
        return false;
    }
    crash::point("lease-prepare");
    let mut more = together(memory, session, &later.together, after_items, submit);
    let began = Instant::now();
    for call in &later.suspects {
        let has_time = began.elapsed() <= LONGEST;
        if !has_time || !take(session, call.key) {
            memory.backlog.yielding.insert(call.key);
            if has_time {
                memory.backlog.defer(call.key.0, Patience::Short);
            }
            more = true;
            continue;
        }
        let made = requests(memory, session, std::slice::from_ref(call), Mode::Guarded, Some(call.key));
        if !matches!(made, Ok(Some(_))) {
            memory.making.acquit(session, [call.key]);
        }
        more |= match made {
            Ok(made) => memory.send(session, made.map(of_suspect), &[call.key], after_items, submit),
            Err(error) => memory.leave_alone(session, call.key, &error),
        };
    }
    more
}

fn of_suspect(mut made: Requests) -> Requests {
    let sent = made.calls.iter_mut().map(|(_, record)| record);
    sent.chain(&mut made.functions).for_each(|record| record.is_suspect = true);
    made
}

/// Prepares calls in one transaction, or, if that fails, in smaller ones.
fn together(
    memory: &mut Memory,
    session: &mut Session,
    calls: &[Leased],
    after_items: bool,
    submit: &mut Submit<'_>,
) -> bool {
    if calls.is_empty() {
        return false;
    }
    let mode = if calls.len() > GUARDED_ITEMS { Mode::Fast } else { Mode::Guarded };
    match requests(memory, session, calls, mode, None) {
        Ok(made) => {
            let keys: Vec<_> = calls.iter().map(|call| call.key).collect();
            memory.send(session, made, &keys, after_items, submit)
        }
        Err(error) if calls.len() == 1 => memory.leave_alone(session, calls[0].key, &error),
        Err(_) => {
            let size = if calls.len() > GUARDED_ITEMS { GUARDED_ITEMS } else { 1 };
            let mut more = false;
            for some in calls.chunks(size) {
                more |= together(memory, session, some, after_items, submit);
            }
            more
        }
    }
}

/// Writes requests in a transaction of its own, in which a suspect is acquitted too. None when there can't be one now.
fn requests(
    memory: &mut Memory,
    session: &mut Session,
    calls: &[Leased],
    mode: Mode,
    suspect: Option<StateKey>,
) -> Result<Option<Requests>> {
    server_memory::replenish()?;
    let made = session.transaction(|spi| {
        let made = requests_in(memory, spi, calls, mode)?;
        match suspect {
            Some(key) => suspects::acquit(spi, key)?,
            // What is given back may be lost in a crash, as leases may.
            None => identity::set_local(c"synchronous_commit", c"off")?,
        }
        Ok(made)
    });
    match &made {
        Ok(Ok(_)) => memory.locks.settle(),
        _ => memory.locks.undo(),
    }
    Ok(made?.ok())
}

fn requests_in(memory: &mut Memory, spi: &Spi, calls: &[Leased], mode: Mode) -> Result<Requests> {
    let turn = Turn {
        spi,
        role: memory.role,
        lane: memory.lane,
        levels: Vec::new(),
        due_first: HashSet::new(),
        has_slow_steps: false,
        number: memory.number,
        scope: Scope { mode, ..Scope::APPLY },
        paused: memory.seen.paused,
        takes_large: memory.seen.takes_large,
        began: crate::clock::now(),
        began_at: Instant::now(),
        real: crate::clock::real(),
        is_alone: false,
    };
    let keys: Vec<_> = calls.iter().map(|call| call.key).collect();
    // A session may have ended the call meanwhile.
    let leases = claim::leases(spi, &keys)?;
    let is_leased = |call: &&Leased| leases.get(&call.key) == Some(&(call.lease.epoch, call.lease.number));
    let (leased, over): (Vec<_>, Vec<_>) = calls.iter().partition(is_leased);
    over.iter().for_each(|call| memory.locks.release(call.key));
    let keys: Vec<_> = leased.iter().map(|call| call.key).collect();
    let mut executions = execution::executions(spi, &mut memory.registry, &executions_of(&keys), Lock::None)?;
    let mut portion = Portion::of_bytes().or_none(turn.takes_large);
    let mut left_out = state::states_in(spi, &mut executions, &keys, &mut portion)?;
    // Definitions that were there when these were leased may have had to go.
    left_out.extend(keys.iter().filter(|key| memory.registry.is_put_off(key.0)));
    let mut app = AppTables::new(&turn, &mut memory.tables, false);
    let sources = leased.into_iter().filter(|call| !left_out.contains(&call.key)).map(|call| (&executions, call));
    let mut made = prepare::requests(&turn, &mut app, &mut memory.backlog, &mut memory.calls, sources)?;
    made.took_large |= portion.has_taken();
    made.give_back(&turn, left_out)?;
    memory.seen.takes_large &= !made.took_large;
    Ok(made)
}

/// Takes a suspect in hand. False if that can't be now.
fn take(session: &mut Session, key: StateKey) -> bool {
    match session.transaction(|spi| suspects::take(spi, key)) {
        Ok(taken) => taken.unwrap_or(false),
        // Another process has just taken one.
        Err(error) if matches!(error.code, LOCK_NOT_AVAILABLE | UNIQUE_VIOLATION) => false,
        Err(error) => {
            log_error("a call that the server may die of can't be noted", &error);
            false
        }
    }
}

impl Making {
    /// These suspects are in hand no more. What can't be written now is written before the next turn.
    fn acquit(&mut self, session: &mut Session, keys: impl IntoIterator<Item = StateKey>) {
        self.to_acquit.extend(keys);
        let to_acquit = &self.to_acquit;
        let done = session.transaction(|spi| to_acquit.iter().try_for_each(|key| suspects::acquit(spi, *key)));
        match done {
            Ok(Ok(())) => self.to_acquit.clear(),
            Ok(Err(_)) => {}
            Err(error) => log_error("that the server did not die of a call can't be noted", &error),
        }
    }
}

/// Applies the answers of suspects, each alone, as far as there is time. What else there is of their executions keeps its order.
/// Gives back the others.
pub fn apply_suspects(
    memory: &mut Memory,
    session: &mut Session,
    items: Vec<Item>,
    submit: &mut Submit<'_>,
) -> Vec<Item> {
    let suspect = |item: &Item| match item {
        Item::Answer(record, _) if record.is_suspect => Some(record.key),
        _ => None,
    };
    let executions: HashSet<_> = items.iter().filter_map(suspect).map(|key| key.0).collect();
    if executions.is_empty() {
        return items;
    }
    let (alone, others): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| executions.contains(&item.execution()));
    let began = Instant::now();
    for item in alone {
        if began.elapsed() > LONGEST {
            // Behind what comes meanwhile, so that many suspects leave room for others.
            memory.backlog.put_off(item.execution());
            memory.backlog.keep(item);
            continue;
        }
        let key = suspect(&item);
        if key.is_some_and(|key| !take(session, key)) {
            memory.backlog.defer(item.execution(), Patience::Short);
            memory.backlog.keep(item);
            continue;
        }
        apply_guarded(memory, session, vec![item], submit);
        if key.is_some() {
            memory.making.acquit(session, key);
        }
    }
    others
}

impl Memory {
    /// Follows the preparation of these calls up. Without any their leases are given back.
    fn send(
        &mut self,
        session: &Session,
        made: Option<Requests>,
        keys: &[StateKey],
        after_items: bool,
        submit: &mut Submit<'_>,
    ) -> bool {
        let Some(made) = made else {
            self.backlog.yielding.extend(keys);
            return true;
        };
        let more = made.more || !made.failed.is_empty();
        if more || !made.released.is_empty() {
            // They are behind the cursors.
            self.scans.woken();
        }
        self.dispatch(session, made, after_items, submit);
        more
    }

    /// A call can't be prepared: its lease is given back, and it is left alone for a while.
    fn leave_alone(&mut self, session: &Session, key: StateKey, error: &PgError) -> bool {
        self.backlog.yielding.insert(key);
        self.backlog.executions.defer_until(key.0, Instant::now() + SUSPECT_FOR);
        failed_alone(self, session, Vec::new(), error);
        true
    }
}
