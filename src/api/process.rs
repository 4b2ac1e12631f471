//! `xdb.publish` and `xdb.stop_process`: publishes to a process, and stops one.

use super::arguments::{json, name, name_if_given, payload};
use super::caller::{Caller, refuse_own_step, wrote};
use super::manage::{Change, decide};
use super::{answering, pause};
use crate::pg::catch::{LOCK_NOT_AVAILABLE, PgError, Result};
use crate::pg::crash;
use crate::pg::function::{Args, Value};
use crate::pg::identity;
use crate::pg::latch::wait_for_latch;
use crate::pg::param::Jsonb;
use crate::pg::shmem::{Role, Slot};
use crate::pg::spi::Spi;
use crate::pg::subxact::undone;
use crate::pg::{self, wake};
use crate::store::execution::Lock;
use crate::store::inbox::{self, Inbox};
use crate::store::process::{self, Closing, FoundExecution, PublishersLock};
use crate::store::queue;
use crate::store::registry::Registry;
use crate::{clock, error, guc};
use std::time::{Duration, Instant};
use xdb_engine::{Command, ExecutionId, Json, ProcessStatus};
use xdb_protocol::arguments;

/// Interval, in milliseconds, at which a publisher polls for the end of a conditional close.
const CLOSE_POLL_MS: i64 = 10;

/// A publisher polls for this long. Then it takes a real lock, so that Postgres' deadlock detector sees the wait. If
/// the lock was free, it polls again for this long.
const POLLS_FOR: Duration = Duration::from_millis(200);

/// `xdb.publish()`: puts a message into the inbox of a process. If a conditional close is under way, waits for its
/// outcome.
pub fn publish(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.publish()")?;
    let process_id = name("process_id", args.text(0))?;
    let queue = name("queue_name", args.text(1))?;
    let message = payload("message", json(args, 2, "message")?)?;
    let message_id = name_if_given("message_id", args.text(3))?;
    let execution = args.execution_id(4);
    let mut polls_until = Instant::now() + POLLS_FOR;
    loop {
        let tried = caller.on_system_tables(|spi, registry| {
            let found = caller.find(spi, &process_id, execution)?;
            refuse_own_step(found.id, "xdb.publish()")?;
            if closing(&found) == Some(Closing::Conditional)
                && found.status == ProcessStatus::Running
                && !wake::has_locked(&found.id.0)
            {
                // Takes no lock here: otherwise the close would wait for this publisher, and this publisher for the
                // close. A transaction that has locked the execution already goes on, because the close waits for its
                // end.
                may_wait_for_close(&process_id)?;
                return Ok(Tried::Closing(found.id));
            }
            let PublishersLock::Locked(locked) = process::lock_for_publish(spi, found.id)? else {
                may_wait_for_close(&process_id)?;
                return Ok(Tried::Closing(found.id));
            };
            let locked = caller.own(&process_id, locked)?;
            if execution.is_none() && follower(spi, &process_id, Some((locked.id, locked.status)))?.is_some() {
                return Ok(Tried::Replaced);
            }
            check_running(&process_id, &locked)?;
            wake::note_locked(locked.id.0);
            pause::refuse(&format!("process \"{process_id}\""), locked.pause.as_ref(), clock::now())?;
            check_type(spi, registry, &locked, &queue)?;
            put_in(spi, &process_id, &locked, &queue, message_id.as_deref(), message.as_ref())?;
            crash::point("publish");
            Ok(Tried::Published)
        })?;
        match tried {
            Tried::Published => {
                wrote();
                return Ok(Value::Void);
            }
            Tried::Closing(id) if Instant::now() > polls_until => {
                if caller.on_system_tables(|spi, _| wait_in_sight(spi, id))? {
                    polls_until = Instant::now() + POLLS_FOR;
                }
            }
            Tried::Closing(_) | Tried::Replaced => {}
        }
        wait_for_latch(CLOSE_POLL_MS);
    }
}

/// The result of one try to publish.
enum Tried {
    Published,
    /// A close is under way. The publisher waits for its outcome.
    Closing(ExecutionId),
    /// The process id has another execution by now.
    Replaced,
}

/// Waits a moment for the transactions that block the close, with an ordinary lock. While a publisher only polls,
/// Postgres does not see its wait. Here Postgres sees the wait, and resolves a deadlock in which the close waits for
/// this very transaction. The lock is released at once, for the close. Returns whether the lock was free.
fn wait_in_sight(spi: &Spi, id: ExecutionId) -> Result<bool> {
    match undone(|| identity::with_short_waits(|| process::lock_for_close(spi, id))) {
        Ok(_) => Ok(true),
        Err(error) if error.code == LOCK_NOT_AVAILABLE => Ok(false),
        Err(error) => Err(error),
    }
}

/// The closing mark of an execution. If no scheduler runs, the mark is void.
fn closing(found: &FoundExecution) -> Option<Closing> {
    let main = Slot::find(pg::process::database(), Role::Scheduler);
    found.closing.filter(|_| main.is_some_and(|slot| slot.pid().is_some()))
}

/// An error if this transaction can't wait for the outcome of a close.
fn may_wait_for_close(process_id: &str) -> Result<()> {
    let what = || format!("process \"{process_id}\" is about to close");
    if identity::is_engine() {
        // The step that publishes is retried soon.
        return Err(PgError::new(LOCK_NOT_AVAILABLE, what()));
    }
    if pg::process::has_transaction_snapshot() {
        return Err(error::could_not_serialize(what()));
    }
    Ok(())
}

/// The execution that follows the locked one, if the locked one was closed or deleted while this transaction waited for
/// the lock.
pub(super) fn follower(
    spi: &Spi,
    process_id: &str,
    locked: Option<(ExecutionId, ProcessStatus)>,
) -> Result<Option<FoundExecution>> {
    match locked {
        Some((_, ProcessStatus::Running)) => Ok(None),
        Some((id, _)) => Ok(process::find(spi, process_id, None)?.filter(|latest| latest.id != id)),
        None => process::find(spi, process_id, None),
    }
}

/// Whether the current registration of the type allows a message to this queue. The session's registry may be older.
fn check_type(spi: &Spi, registry: &mut Registry, locked: &FoundExecution, queue: &str) -> Result<()> {
    let known = registry.process_type(spi, locked.type_id, locked.owner)?.registered();
    let Some(known) = known else { return Ok(()) };
    let current = registry.process_type_by_name(spi, &known.name)?;
    if let Some(current) = &current {
        pause::refuse_type(current, clock::now())?;
    }
    let definition = current.map(|current| current.definition.clone()).unwrap_or_default();
    match definition.knows_queue(queue) {
        true => Ok(()),
        false => Err(error::unknown_queue(queue, &definition.listed_queues())),
    }
}

/// Puts a message into the inbox of an execution that this transaction has locked. A repeated message changes nothing,
/// even if the queue is full: its publisher may not know that the first transaction has committed.
fn put_in(
    spi: &Spi,
    process_id: &str,
    locked: &FoundExecution,
    queue: &str,
    message_id: Option<&str>,
    message: Option<&Json>,
) -> Result<()> {
    let (queued, quotas) = (&locked.queued, guc::quotas());
    if queued.reaches(2, &quotas) || queued.reaches(1, &quotas) && queue::has_messages(spi, locked.id, queue)? {
        return match message_id.map_or(Ok(false), |id| inbox::is_known(spi, locked.id, queue, id))? {
            true => Ok(()),
            false => Err(error::queue_full(queue, process_id, &quotas)),
        };
    }
    let message = Inbox {
        execution_id: locked.id,
        inbox_id: 0,
        shard: locked.shard,
        queue_name: queue,
        message_id,
        payload: message.map(Jsonb::from),
        bytes: message.map_or(0, |message| message.as_str().len()) as i32,
        published_at: clock::now(),
        owner: locked.owner,
    };
    inbox::publish(spi, message)
}

fn check_running(process_id: &str, found: &FoundExecution) -> Result<()> {
    match (found.status, closing(found)) {
        (ProcessStatus::Running, Some(Closing::Unconditional)) => {
            Err(error::not_running(process_id, "It is being closed."))
        }
        (ProcessStatus::Running, _) => Ok(()),
        (status, _) => Err(error::not_running(process_id, format!("Its status is {status}."))),
    }
}

/// `xdb.stop_process()`: closes a process. Waits for steps, RPCs and publishers of the process.
pub fn stop_process(args: &Args) -> Result<Value> {
    let change = Change::by(c"xdb.stop_process()", Lock::Close)?;
    let process_id = name("process_id", args.text(0))?;
    let stop = arguments::stop(args.text(1), args.text(2))?;
    change.one(&process_id, args.execution_id(3), |_, _, _, _| Ok((0, stop)))?;
    Ok(Value::Void)
}

/// Closes an execution in the caller's transaction, after all open publishers.
pub fn close(spi: &Spi, registry: &mut Registry, process_id: &str, id: ExecutionId, command: Command) -> Result<()> {
    let mut loaded = answering::executions(spi, registry, &[id], Lock::Close)?;
    let now = clock::now();
    decide(spi, &mut loaded, (id, process_id), now, |_, _, _, _| Ok((0, command)))?;
    answering::save(spi, &loaded, now)
}
