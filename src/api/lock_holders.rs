//! What holds the steps of a process up: locks that others have, with their processes.

use crate::pg::catch::Result;
use crate::pg::process::database;
use crate::pg::shmem::{Slot, row_places};
use crate::pg::spi::Spi;
use crate::store::lock_holders;
use serde::Serialize;
use xdb_engine::ExecutionId;

/// A step tries again within half a second, later if many others wait: what it could not lock so long ago it has got, or given
/// up.
const RECENT: i64 = 5_000_000;
/// While nobody is found who has the row, the step is held up no longer than this.
const JUST_NOW: i64 = 1_000_000;

/// A lock that others have.
#[derive(Serialize)]
pub(super) struct HeldUpBy {
    /// `process`: its own row; `row` or `table` of a user's; `other`: something that writing the row needs, say in a trigger.
    lock: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<String>,
    /// Zero stands for a prepared transaction.
    pids: Vec<i32>,
}

/// What holds an execution up. Who may see the process may see it: `pg_locks` shows as much to everybody.
pub(super) fn of(spi: &Spi, id: ExecutionId) -> Result<Vec<HeldUpBy>> {
    let Some(place) = lock_holders::place(spi, id)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let mut add = |lock, table: Option<String>, pids: Vec<i32>| found.push(HeldUpBy { lock, table, pids });
    let pids = others(lock_holders::of_row(spi, place, false)?);
    if !pids.is_empty() {
        add("process", None, pids);
    }
    for (relation, key) in lock_holders::rows(spi, id)? {
        let hint = row_places::last(database(), relation, &key).filter(|locked| locked.ago < RECENT);
        let tables: Vec<_> = [Some(relation), hint.map(|locked| locked.place.table)].into_iter().flatten().collect();
        let of_table = others(lock_holders::of_tables(spi, &tables, id)?);
        let of_row = hint.map(|locked| lock_holders::of_row(spi, locked.place, locked.writes_key));
        let of_row = of_row.transpose()?.map(others);
        let kinds = [("table", Some(of_table)), ("row", of_row)];
        let known: Vec<_> =
            kinds.into_iter().filter_map(|(lock, pids)| Some((lock, pids.filter(|pids| !pids.is_empty())?))).collect();
        if known.is_empty() && hint.is_none_or(|locked| locked.ago > JUST_NOW) {
            continue;
        }
        let table = lock_holders::name(spi, relation)?;
        if known.is_empty() {
            add("other", Some(table), Vec::new());
        } else {
            known.into_iter().for_each(|(lock, pids)| add(lock, Some(table.clone()), pids));
        }
    }
    Ok(found)
}

/// Without the processes of the engine, which have a lock while they are at work.
fn others(mut pids: Vec<i32>) -> Vec<i32> {
    let own: Vec<_> = Slot::of_database(database()).filter_map(Slot::pid).collect();
    pids.retain(|pid| !own.contains(pid));
    pids
}
