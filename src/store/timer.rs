//! Timers that states wait for, and timeouts of processes: the table `timer`.

use super::table::{delete, insert, record, rows, run, select, statements, table};
use crate::pg::catch::Result;
use crate::pg::param::{array, value};
use crate::pg::spi::Spi;
use xdb_engine::{ExecutionId, StateSeq, Timestamp};

/// What a timer is for, as it is stored.
const PROCESS_TIMEOUT: &str = "PROCESS_TIMEOUT";
const TIMER_COMMAND: &str = "TIMER_COMMAND";

table! {
    /// A timer command, or (with `seq` 0) a process timeout.
    pub struct Timer<'a> in "timer" {
        key { execution_id: ExecutionId, seq: StateSeq, command: u32 }
        compared { shard: i16, kind: &'a str, fire_at: Timestamp }
    }
}

record! {
    /// Names a timer.
    #[derive(Clone, Copy, Debug)]
    pub struct TimerKey of Timer<'static> { execution_id: ExecutionId, seq: StateSeq, command: u32 }
}

record! {
    /// A timer that came due. Sequence 0 stands for the process timeout.
    #[derive(Clone, Copy, Debug)]
    pub struct DueTimer of Timer<'static> { execution_id: ExecutionId, seq: StateSeq, command: u32, fire_at: Timestamp }
}

statements! {
    INSERT = insert::<Timer>();
    DELETE = delete::<Timer, TimerKey>();
    DUE = format!("SELECT {} FROM xdb.timer t \
        WHERE fire_at <= $1 AND fire_at >= $4 AND execution_id <> ALL ($2) ORDER BY fire_at LIMIT $3",
        select::<DueTimer>("t"));
    COUNT = "SELECT count(*) AS timers FROM (SELECT FROM xdb.timer t \
        WHERE t.execution_id = $1 AND t.seq > 0 LIMIT $2) AS counted";
    DELETE_ALL = "DELETE FROM xdb.timer WHERE execution_id = ANY ($1)";
}

impl Timer<'static> {
    pub fn of_command(execution_id: ExecutionId, seq: StateSeq, command: u32, shard: i16, fire_at: Timestamp) -> Self {
        Self { execution_id, seq, command, shard, kind: TIMER_COMMAND, fire_at }
    }

    pub fn of_process(execution_id: ExecutionId, shard: i16, fire_at: Timestamp) -> Self {
        Self { execution_id, seq: StateSeq(0), command: 0, shard, kind: PROCESS_TIMEOUT, fire_at }
    }
}

pub(super) fn write(spi: &Spi, gone: &[TimerKey], new: &[Timer]) -> Result<()> {
    run(spi, &DELETE, gone)?;
    run(spi, &INSERT, new)?;
    Ok(())
}

pub(super) fn delete_all(spi: &Spi, ids: &[ExecutionId]) -> Result<()> {
    spi.run(&DELETE_ALL, &[array(ids)])?;
    Ok(())
}

/// Timers that are due, and have been at `from` or later; those that have been for longest first.
pub fn due_timers(
    spi: &Spi,
    now: Timestamp,
    except: &[ExecutionId],
    limit: usize,
    from: Option<Timestamp>,
) -> Result<Vec<DueTimer>> {
    let from = from.unwrap_or(Timestamp::EARLIEST);
    rows(spi, &DUE, &[value(now), array(except), value(limit as i64), value(from)])
}

/// How many timers the states of an execution wait for; `most` if there are more.
pub fn count(spi: &Spi, id: ExecutionId, most: usize) -> Result<usize> {
    let counted = spi.first(&COUNT, &[value(id), value(most as i64)], |row| row.get::<i64>("timers"))?;
    Ok(counted.unwrap_or(0) as usize)
}

/// Deletes timers that no execution wants any more: leftovers that must not come due for ever.
pub fn delete_timers(spi: &Spi, timers: &[DueTimer], now: Timestamp) -> Result<()> {
    // One that is not due any more, because the clock went back, may be wanted still.
    let due = timers.iter().filter(|timer| timer.fire_at <= now);
    let key = |timer: &DueTimer| TimerKey { execution_id: timer.execution_id, seq: timer.seq, command: timer.command };
    run(spi, &DELETE, &due.map(key).collect::<Vec<_>>())?;
    Ok(())
}
