//! The functions that change a running process from outside (`set_local_attributes`, `skip_timer`, `retry_now`,
//! `move_state`), and `purge`.

use super::answering::{self, Executions};
use super::arguments::{json, name, name_if_given, needed, object};
use super::caller::{Caller, refuse_own_step, wrote};
use super::process::follower;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::function::{Args, Value};
use crate::pg::spi::Spi;
use crate::pg::wake;
use crate::store::execution::Lock;
use crate::store::purge::{self, Cursor, Old};
use crate::store::{attribute, crashes, deciding, state};
use crate::{calls, clock, error};
use std::ffi::CStr;
use xdb_engine::*;
use xdb_protocol::arguments;

/// The most executions that one batch of a purge deletes.
const PURGED_AT_ONCE: usize = 1000;

/// `xdb.set_local_attributes()`: waits for steps of the process. An error if the attributes exceed the limit.
pub fn set_local_attributes(args: &Args) -> Result<Value> {
    let change = Change::by(c"xdb.set_local_attributes()", Lock::Step)?;
    let process_id = name("process_id", args.text(0))?;
    let attributes = needed("attributes", json(args, 1, "attributes")?.filter(|text| text != "null"))?;
    let attributes = object("attributes", Some(attributes))?;
    change.one(&process_id, args.execution_id(2), |spi, _, id, _| {
        match attribute::refusal(spi, id, None, &attributes)? {
            Some(refusal) => Err(refusal),
            None => Ok((0, Command::SetLocalAttributes(attributes))),
        }
    })?;
    Ok(Value::Void)
}

/// `xdb.skip_timer()`: completes a timer that a state waits for.
pub fn skip_timer(args: &Args) -> Result<Value> {
    let change = Change::by(c"xdb.skip_timer()", Lock::Step)?;
    let process_id = name("process_id", args.text(0))?;
    let state = state_execution_id(args.text(1))?;
    let command_id = name_if_given("command_id", args.text(2))?;
    change.one(&process_id, args.execution_id(3), |spi, loaded, id, now| {
        Ok((0, timer_to_skip(spi, loaded, id, now, &state, command_id)?))
    })?;
    Ok(Value::Void)
}

/// The command that skips a timer. The execution runs and is locked.
pub(super) fn timer_to_skip(
    spi: &Spi,
    loaded: &mut Executions,
    id: ExecutionId,
    now: Timestamp,
    state: &StateExecutionId,
    command_id: Option<String>,
) -> Result<Command> {
    let seq = seq(spi, id, state)?;
    // Messages published before the skip may end the wait before it, or together with it.
    answering::take_in(spi, loaded, id, now)?;
    answering::refuse_unseen(spi, loaded, id, None)?;
    state::states(spi, loaded, &[(id, seq)])?;
    Ok(Command::SkipTimer { seq, command_id })
}

/// `xdb.retry_now()`: ends backoffs, incidents and holds of the process, or of one state. Returns how many.
pub fn retry_now(args: &Args) -> Result<Value> {
    let change = Change::by(c"xdb.retry_now()", Lock::Step)?;
    let process_id = name("process_id", args.text(0))?;
    let state = args.text(1).map(|state| state_execution_id(Some(state))).transpose()?;
    let retried = change.one(&process_id, args.execution_id(2), |spi, loaded, id, now| {
        calls_to_retry(spi, loaded, id, now, state.as_ref())
    })?;
    Ok(Value::of(retried as i32))
}

/// The command that makes calls due. The execution runs and is locked. Calls that are held after crashes are released
/// at once. Returns how many.
pub(super) fn calls_to_retry(
    spi: &Spi,
    loaded: &mut Executions,
    id: ExecutionId,
    now: Timestamp,
    state: Option<&StateExecutionId>,
) -> Result<(usize, Command)> {
    let only = state.map(|state| seq(spi, id, state)).transpose()?;
    let released = crashes::retry(spi, id, only)?;
    if released > 0 {
        wrote();
        wake::wake_all_at_commit();
    }
    let states = state::standing(spi, id, only, now)?;
    let keys: Vec<_> = states.iter().map(|seq| (id, *seq)).collect();
    state::states_without_inputs(spi, loaded, &keys)?;
    Ok((released as usize, Command::RetryNow(states)))
}

/// `xdb.move_state()`: ends a live step, and starts these states in its place.
pub fn move_state(args: &Args) -> Result<Value> {
    let process_id = name("process_id", args.text(0))?;
    let state = state_execution_id(args.text(1))?;
    let (next, reason) = arguments::move_to(json(args, 2, "next_states")?, args.text(3), &calls::limits())?;
    // Without next states, the process may close.
    let lock = if next.is_empty() { Lock::Close } else { Lock::Step };
    let change = Change::by(c"xdb.move_state()", lock)?;
    change.one(&process_id, args.execution_id(4), |spi, loaded, id, now| {
        let seq = seq(spi, id, &state)?;
        answering::take_in(spi, loaded, id, now)?;
        answering::refuse_unseen(spi, loaded, id, None)?;
        state::states(spi, loaded, &[(id, seq)])?;
        // A message that was just taken in may have triggered a guard, which has ended the step.
        let step = loaded.get(&id).and_then(|entry| entry.execution.states.get(&seq));
        match step.is_some_and(|step| step.status().is_live()) {
            true => Ok((0, Command::MoveState { seq, next, reason })),
            false => Err(error::unknown_step(&state)),
        }
    })?;
    Ok(Value::Void)
}

/// Parses the name of a step, for instance `Ship-1`.
pub(super) fn state_execution_id(text: Option<String>) -> Result<StateExecutionId> {
    Ok(arguments::state_execution_id(text)?)
}

fn seq(spi: &Spi, id: ExecutionId, state: &StateExecutionId) -> Result<StateSeq> {
    let found = state::by_name(spi, id, state)?;
    found.map(|(seq, _)| seq).ok_or_else(|| error::unknown_step(state))
}

/// How a function changes running executions.
pub(super) struct Change {
    pub caller: Caller,
    /// The function's name, for messages.
    pub function: &'static str,
    pub lock: Lock,
}

impl Change {
    pub fn by(function: &'static CStr, lock: Lock) -> Result<Self> {
        let caller = Caller::writing(function)?;
        Ok(Self { caller, function: function.to_str().unwrap_or_default(), lock })
    }

    /// Applies a command to one execution, under its lock, in the caller's transaction. `prepare` loads what the
    /// command needs. It also returns how many calls it has released itself. Returns that number plus the number of
    /// events of the command.
    pub fn one(
        &self,
        process_id: &str,
        execution: Option<ExecutionId>,
        prepare: impl FnOnce(&Spi, &mut Executions, ExecutionId, Timestamp) -> Result<(usize, Command)>,
    ) -> Result<usize> {
        let &Self { caller, function, lock } = self;
        let (count, changed) = caller.on_system_tables(|spi, registry| {
            let mut id = caller.find(spi, process_id, execution)?.id;
            refuse_own_step(id, function)?;
            // Waits for steps and RPCs, up to the caller's timeouts. Publishers don't conflict with the lock, unless
            // the process closes.
            let mut loaded = answering::executions(spi, registry, &[id], lock)?;
            while execution.is_none()
                && let Some(latest) = follower(spi, process_id, loaded.get(&id).map(|one| (id, one.before.status)))?
            {
                id = caller.own(process_id, Some(latest))?.id;
                loaded = answering::executions(spi, registry, &[id], lock)?;
            }
            wake::note_locked(id.0);
            let now = clock::now();
            let count = decide(spi, &mut loaded, (id, process_id), now, prepare)?;
            answering::save(spi, &loaded, now)?;
            Ok((count, loaded.values().any(|entry| !entry.events.is_empty())))
        })?;
        if changed {
            wrote();
        }
        Ok(count)
    }
}

/// Decides about a locked, running execution, and applies the events in memory. Returns the same number as
/// [`Change::one`]. If the command is rejected, messages that the execution has received stay received.
pub(super) fn decide(
    spi: &Spi,
    loaded: &mut Executions,
    (id, process_id): (ExecutionId, &str),
    now: Timestamp,
    prepare: impl FnOnce(&Spi, &mut Executions, ExecutionId, Timestamp) -> Result<(usize, Command)>,
) -> Result<usize> {
    let unknown = || error::unknown_process(process_id);
    let rejected = |rejection| error::rejected(process_id, &rejection);
    let status = loaded.get(&id).ok_or_else(unknown)?.before.status;
    if status != ProcessStatus::Running {
        return Err(rejected(Rejection::NotRunning(status)));
    }
    let (besides, command) = prepare(spi, loaded, id, now)?;
    let events = deciding::decide_with_tables(spi, loaded, id, &command, (now, 0.5), &[])?.map_err(rejected)?;
    let count = besides + events.len();
    loaded.get_mut(&id).ok_or_else(unknown)?.apply(events, now)?;
    Ok(count)
}

/// `xdb.purge()`: deletes executions that closed earlier than this interval ago. Returns how many.
pub fn purge(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.purge()")?;
    let older_than = needed("older_than", arguments::valid("older_than", args.interval(0), "not be negative")?)?;
    let before = clock::behind().before(older_than);
    let mut purged = 0;
    for old in [Old::Closed(before), Old::Retained(before)] {
        let mut after = Cursor::START;
        loop {
            let batch = caller.on_system_tables(|spi, _| purge::batch(spi, old, after, PURGED_AT_ONCE, None))?;
            crash::point("purge");
            purged += batch.purged as i64;
            after = batch.reached;
            if !batch.more {
                break;
            }
        }
    }
    Ok(Value::of(purged))
}
