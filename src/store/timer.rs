//! Timers that states wait for, and timeouts of processes: the table `timer`.

use super::StateKey;
use super::lines::{firsts_of, read_first};
use super::table::{Record, batch, delete, insert, record, run, statements, table};
use crate::pg::catch::Result;
use crate::pg::spi::Spi;
use pgrx::pg_sys;
use xdb_engine::{ExecutionId, StateSeq, Timestamp};
use xdb_sched::room::Owner;

/// What a timer is for, as it is stored.
const PROCESS_TIMEOUT: &str = "PROCESS_TIMEOUT";
const TIMER_COMMAND: &str = "TIMER_COMMAND";
const PROCESS_RESUME: &str = "PROCESS_RESUME";

/// Which of the timers of a process, whose sequence is 0, ends a pause.
pub const OF_PAUSE: u32 = 1;

table! {
    /// A timer command, or (with `seq` 0) a process timeout or the end of a pause.
    pub struct Timer<'a> in "timer" {
        key { execution_id: ExecutionId, seq: StateSeq, command: u32 }
        compared {
            shard: i16,
            kind: &'a str,
            fire_at: Timestamp,
            /// The process's, so that each owner's timers stand in a line of their own in the index.
            owner: pg_sys::Oid,
        }
    }
}

record! {
    /// Names a timer.
    #[derive(Clone, Copy, Debug)]
    pub struct TimerKey of Timer<'static> { execution_id: ExecutionId, seq: StateSeq, command: u32 }

    /// A timer that came due. Sequence 0 stands for the process timeout, or the end of a pause.
    #[derive(Clone, Copy, Debug)]
    pub struct DueTimer {
        execution_id: ExecutionId,
        seq: StateSeq,
        command: u32,
        fire_at: Timestamp,
        /// In whose line it stands.
        owner: pg_sys::Oid,
    }

    /// Whose timers to look for, and since when they may be due.
    struct DueOf { owner: pg_sys::Oid, since: Timestamp }
}

statements! {
    INSERT = insert::<Timer>();
    DELETE = delete::<Timer, TimerKey>();
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
        Self { execution_id, seq, command, shard, kind: TIMER_COMMAND, fire_at, owner }
    }

    pub fn of_process(execution_id: ExecutionId, shard: i16, owner: pg_sys::Oid, fire_at: Timestamp) -> Self {
        Self { execution_id, seq: StateSeq(0), command: 0, shard, kind: PROCESS_TIMEOUT, fire_at, owner }
    }

    /// That ends a pause.
    pub fn of_pause(execution_id: ExecutionId, shard: i16, owner: pg_sys::Oid, fire_at: Timestamp) -> Self {
        Self { execution_id, seq: StateSeq(0), command: OF_PAUSE, shard, kind: PROCESS_RESUME, fire_at, owner }
    }

    /// In whose line it stands.
    pub fn line(&self) -> Owner {
        self.owner.to_u32()
    }
}

/// When the first timer of each owner comes due or came due.
pub fn firsts(spi: &Spi) -> Result<Vec<(Owner, Timestamp)>> {
    spi.rows(&FIRSTS, &[], read_first)
}

/// Timers of these owners that are due, and have been at a time or later; of each owner so many, those that have been for longest
/// first.
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

/// When the next timer of each of these owners comes due after `now`.
pub fn next_timers(spi: &Spi, now: Timestamp, of: impl IntoIterator<Item = Owner>) -> Result<Vec<(Owner, Timestamp)>> {
    let of: Vec<_> = of.into_iter().map(|owner| DueOf { owner: owner.into(), since: now }).collect();
    if of.is_empty() {
        return Ok(Vec::new());
    }
    spi.rows(&NEXT, &DueOf::arrays(&of), read_first)
}

/// Deletes timers that no execution wants any more: leftovers that must not come due for ever.
pub fn delete_timers(spi: &Spi, timers: &[DueTimer], now: Timestamp) -> Result<()> {
    // One that is not due any more, because the clock went back, may be wanted still.
    let due = timers.iter().filter(|timer| timer.fire_at <= now);
    let key = |timer: &DueTimer| TimerKey { execution_id: timer.execution_id, seq: timer.seq, command: timer.command };
    run(spi, &DELETE, &due.map(key).collect::<Vec<_>>())?;
    Ok(())
}
