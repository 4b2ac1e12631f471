//! Who has the locks that a process needs: asked of the catalogs, and of rows that are locked.

use super::app_tables::place_of;
use super::from_json;
use super::table::statements;
use crate::pg::catch::Result;
use crate::pg::param::{array, value};
use crate::pg::row_locks;
use crate::pg::shmem::row_places::RowPlace;
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;
use xdb_engine::ExecutionId;

statements! {
    // A prepared transaction has no process.
    OF_TRANSACTIONS = "SELECT DISTINCT COALESCE(l.pid, 0) AS pid FROM pg_catalog.pg_locks l \
        WHERE l.granted AND l.locktype = 'transactionid' AND l.transactionid::text = ANY ($1::text[]) \
            AND l.mode = 'ExclusiveLock' ORDER BY 1";
    // Who waits for such a lock stands before the engine too. There is nothing to hold up without a call.
    OF_TABLES = "SELECT DISTINCT COALESCE(l.pid, 0) AS pid FROM pg_catalog.pg_locks l \
        WHERE l.locktype = 'relation' AND l.relation = ANY ($1::oid[]) \
            AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()) \
            AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') \
            AND EXISTS (SELECT FROM xdb.task t WHERE t.execution_id = $2::uuid) ORDER BY 1";
    NAME = "SELECT $1::oid::regclass::text AS name";
    PLACE = "SELECT p.tableoid, p.ctid::text AS ctid FROM xdb.process_execution p \
        WHERE p.execution_id = $1 AND p.status = 'RUNNING'";
    ROWS = "SELECT m.relation::oid AS relation, p.attribute_keys::text AS keys FROM xdb.process_execution p \
            JOIN xdb.mapped_table m ON m.mapping_id = p.mapping_id \
        WHERE p.execution_id = $1 ORDER BY m.position";
}

/// Processes whose transactions keep others from updating the row that is at this place, columns of its keys too if `writes_key`.
pub fn of_row(spi: &Spi, place: RowPlace, writes_key: bool) -> Result<Vec<i32>> {
    let transactions = row_locks::open_lockers(place, writes_key);
    if transactions.is_empty() {
        return Ok(Vec::new());
    }
    let transactions: Vec<_> = transactions.iter().map(u32::to_string).collect();
    spi.rows(&OF_TRANSACTIONS, &[array(transactions.iter().map(String::as_str))], |row| row.get("pid"))
}

/// Processes that keep the engine from writing into these tables for the calls of an execution.
pub fn of_tables(spi: &Spi, tables: &[u32], id: ExecutionId) -> Result<Vec<i32>> {
    let tables = tables.iter().map(|table| pg_sys::Oid::from(*table));
    spi.rows(&OF_TABLES, &[array(tables), value(id)], |row| row.get("pid"))
}

/// The name of a table, with its schema.
pub fn name(spi: &Spi, table: u32) -> Result<String> {
    let name = spi.first(&NAME, &[value(pg_sys::Oid::from(table))], |row| row.get("name"))?;
    Ok(name.unwrap_or_default())
}

/// The mapped tables of an execution, each with the key of its row. No more of it is read: who asks may do so because the rest
/// can't be. Without readable keys there are none.
pub fn rows(spi: &Spi, id: ExecutionId) -> Result<Vec<(u32, Vec<String>)>> {
    let read = |row: &Row| Ok((row.get::<pg_sys::Oid>("relation")?.to_u32(), row.get::<Option<String>>("keys")?));
    let tables = spi.rows(&ROWS, &[value(id)], read)?;
    let keys = tables.first().and_then(|(_, keys)| keys.as_deref());
    let keys: Vec<Vec<String>> = keys.and_then(|keys| from_json(keys).ok()).unwrap_or_default();
    Ok(tables.into_iter().map(|(table, _)| table).zip(keys).collect())
}

/// Where the row of a running execution is.
pub fn place(spi: &Spi, id: ExecutionId) -> Result<Option<RowPlace>> {
    let read = |row: &Row| Ok((row.get::<pg_sys::Oid>("tableoid")?, row.get::<String>("ctid")?));
    let found = spi.first(&PLACE, &[value(id)], read)?;
    Ok(found.and_then(|(table, ctid)| place_of(table, &ctid)))
}
