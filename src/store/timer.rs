//! Timers that states wait for, timeouts of processes, ends of pauses, and ends of children: the table `timer`.

use super::StateKey;
use super::lines::{firsts_of, read_first};
use super::table::{Record, batch, delete, insert, record, run, statements, table};
use crate::pg::catch::Result;
use crate::pg::spi::Spi;
use pgrx::pg_sys;
use xdb_engine::{ExecutionId, STATE_BEGINS, StateSeq, Timestamp};
use xdb_sched::room::Owner;

/// The kinds of timers, as they are stored.
const PROCESS_TIMEOUT: &str = "PROCESS_TIMEOUT";
const TIMER_COMMAND: &str = "TIMER_COMMAND";
const PROCESS_RESUME: &str = "PROCESS_RESUME";
pub(super) const PARENT_CLOSED: &str = "PARENT_CLOSED";
const BEGIN_OF_WAIT: &str = "STATE_BEGINS";

/// The command number of the timer that ends a pause. Like all timers of a process, it has the sequence 0.
pub const OF_PAUSE: u32 = 1;

/// The command number of the timer that stops a process whose parent has closed.
pub const OF_PARENT: u32 = 2;

table! {
    /// A timer of a command, or of the begin of a static wait. With `seq` 0: a process timeout, the end of a pause, or
    /// the end of a process whose parent has closed.
    pub struct Timer<'a> in "timer" {
        key { execution_id: ExecutionId, seq: StateSeq, command: u32 }
        compared {
            shard: i16,
            kind: &'a str,
            fire_at: Timestamp,
            /// The process's owner, so that the timers of each owner have their own line in the index.
            owner: pg_sys::Oid,
        }
    }
}

record! {
    /// The key of a timer.
    #[derive(Clone, Copy, Debug)]
    pub struct TimerKey of Timer<'static> { execution_id: ExecutionId, seq: StateSeq, command: u32 }

    /// A due timer. With `seq` 0: a timer of the process.
    #[derive(Clone, Copy, Debug)]
    pub struct DueTimer {
        execution_id: ExecutionId,
        seq: StateSeq,
        command: u32,
        fire_at: Timestamp,
        /// The owner in whose line the timer is.
        owner: pg_sys::Oid,
    }

    /// The owner whose timers to find, and the earliest due time to consider.
    struct DueOf { owner: pg_sys::Oid, since: Timestamp }
}

statements! {
    INSERT = insert::<Timer>();
    DELETE = delete::<Timer, TimerKey>();
    /// When the timer fires that a closed parent has left.
    OF_PARENT_OF = format!("SELECT fire_at FROM xdb.timer WHERE execution_id = $1 AND seq = 0 AND command = {OF_PARENT}")
        => pub(super) fn of_parent(id: ExecutionId) -> Option<Timestamp>;
    FIRSTS = firsts_of("timer", "fire_at");
    DUE = format!("SELECT d.execution_id, d.seq, d.command, d.fire_at, v.owner FROM {} CROSS JOIN LATERAL ( \
            SELECT t.execution_id, t.seq, t.command, t.fire_at FROM xdb.timer t \
            WHERE t.owner = v.owner AND t.fire_at <= $3 AND t.fire_at >= v.since AND t.execution_id <> ALL ($4) \
            ORDER BY t.fire_at LIMIT $5) AS d", batch::<DueOf>())
        => fn due(of: [DueOf], now: Timestamp, except: &[ExecutionId], of_each: i64) -> Vec<DueTimer>;
    NEXT = format!("SELECT v.owner, n.fire_at AS at FROM {} CROSS JOIN LATERAL (SELECT t.fire_at FROM xdb.timer t \
            WHERE t.owner = v.owner AND t.fire_at > v.since ORDER BY t.fire_at LIMIT 1) AS n", batch::<DueOf>());
}

impl Timer<'static> {
    pub fn of_command(
        (execution_id, seq): StateKey,
        command: u32,
        shard: i16,
        owner: pg_sys::Oid,
        fire_at: Timestamp,
    ) -> Self {
        let kind = if command == STATE_BEGINS { BEGIN_OF_WAIT } else { TIMER_COMMAND };
        Self { execution_id, seq, command, shard, kind, fire_at, owner }
    }

    pub fn of_process(execution_id: ExecutionId, shard: i16, owner: pg_sys::Oid, fire_at: Timestamp) -> Self {
        Self { execution_id, seq: StateSeq(0), command: 0, shard, kind: PROCESS_TIMEOUT, fire_at, owner }
    }

    /// The timer that ends a pause.
    pub fn of_pause(execution_id: ExecutionId, shard: i16, owner: pg_sys::Oid, fire_at: Timestamp) -> Self {
        Self { execution_id, seq: StateSeq(0), command: OF_PAUSE, shard, kind: PROCESS_RESUME, fire_at, owner }
    }

    /// The timer that stops a process whose parent has closed.
    pub fn of_parent(execution_id: ExecutionId, shard: i16, owner: pg_sys::Oid, fire_at: Timestamp) -> Self {
        Self { execution_id, seq: StateSeq(0), command: OF_PARENT, shard, kind: PARENT_CLOSED, fire_at, owner }
    }

    /// The line that the timer is in.
    pub fn line(&self) -> Owner {
        self.owner.to_u32()
    }
}

/// When the first timer of each owner is or was due.
pub fn firsts(spi: &Spi) -> Result<Vec<(Owner, Timestamp)>> {
    spi.rows(&FIRSTS, &[], read_first)
}

/// Due timers of these owners, from this due time on. At most `of_each` for each owner, the longest due first.
pub fn due_timers(
    spi: &Spi,
    now: Timestamp,
    of: impl IntoIterator<Item = (Owner, Option<Timestamp>)>,
    except: &[ExecutionId],
    of_each: usize,
) -> Result<Vec<DueTimer>> {
    let due_of = |(owner, since): (Owner, Option<Timestamp>)| DueOf {
        owner: owner.into(),
        since: since.unwrap_or(Timestamp::EARLIEST),
    };
    due(spi, &of.into_iter().map(due_of).collect::<Vec<_>>(), now, except, of_each as i64)
}

/// When the next timer of each of these owners is due after `now`.
pub fn next_timers(spi: &Spi, now: Timestamp, of: impl IntoIterator<Item = Owner>) -> Result<Vec<(Owner, Timestamp)>> {
    let of: Vec<_> = of.into_iter().map(|owner| DueOf { owner: owner.into(), since: now }).collect();
    if of.is_empty() {
        return Ok(Vec::new());
    }
    spi.rows(&NEXT, &DueOf::arrays(&of), read_first)
}

/// Deletes timers that no execution needs any more. Otherwise they would be due for ever.
pub fn delete_timers(spi: &Spi, timers: &[DueTimer], now: Timestamp) -> Result<()> {
    // If the clock went back, a timer is not due any more, and may still be needed.
    let due = timers.iter().filter(|timer| timer.fire_at <= now);
    let key = |timer: &DueTimer| TimerKey { execution_id: timer.execution_id, seq: timer.seq, command: timer.command };
    run(spi, &DELETE, &due.map(key).collect::<Vec<_>>())?;
    Ok(())
}
