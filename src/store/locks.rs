//! Locks on attributes: what a call wants to lock.
//!
//! Limitations: the locks themselves are in the memory of the scheduler (`xdb_sched::wanted_locks`), not in the tables.

use super::StateKey;
use super::app_tables::covered;
use super::loaded::Meta;
use super::table::{batch, statements};
use crate::pg::catch::Result;
use crate::pg::spi::Spi;
use crate::pg::types::{NO_MODIFIER, Type};
use pgrx::pg_sys;
use std::collections::HashMap;
use xdb_calls::Loads;
use xdb_engine::*;
pub use xdb_sched::wanted_locks::WantedLocks;

statements! {
    COLUMN_TYPES = "SELECT a.attrelid AS relation, a.attname::text AS name, a.atttypid AS type \
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY ($1) AND a.attnum > 0 AND NOT a.attisdropped"
        => fn column_types(relations: &[pg_sys::Oid]) -> Vec<(pg_sys::Oid, String, pg_sys::Oid)>;
    /// Those of these calls that have ended.
    OVER = format!("SELECT v.execution_id, v.seq FROM {} \
        WHERE NOT EXISTS (SELECT FROM xdb.task t WHERE t.execution_id = v.execution_id AND t.seq = v.seq)", batch::<StateKey>())
        => pub fn over(keys: [StateKey]) -> Vec<StateKey>;
}

/// The types of the key columns of tables. Two spellings of one number are the same key.
#[derive(Default)]
pub struct KeyTypes(HashMap<(u32, String), pg_sys::Oid>);

impl KeyTypes {
    /// Reads the types of all columns of these tables.
    pub fn read<'a>(spi: &Spi, tables: impl Iterator<Item = &'a TableMapping>) -> Result<Self> {
        let relations: Vec<_> = tables.map(|table| pg_sys::Oid::from(table.relation)).collect();
        if relations.is_empty() {
            return Ok(Self(HashMap::new()));
        }
        let rows = spi.with_latest_snapshot(|spi| column_types(spi, &relations))?;
        let base = |(relation, column, oid): (pg_sys::Oid, String, pg_sys::Oid)| {
            ((relation.to_u32(), column), Type { oid, modifier: NO_MODIFIER }.base().oid)
        };
        Ok(Self(rows.into_iter().map(base).collect()))
    }

    /// A key value in one spelling. If a type has further spellings, two calls with the same key may not wait for each
    /// other. The optimistic check still detects the conflict.
    fn canonical(&self, relation: u32, column: &str, text: &str) -> String {
        let of_type = self.0.get(&(relation, column.to_owned())).copied().unwrap_or(pg_sys::InvalidOid);
        match of_type {
            pg_sys::INT2OID | pg_sys::INT4OID | pg_sys::INT8OID => {
                text.trim().parse::<i64>().map_or_else(|_| text.to_owned(), |number| number.to_string())
            }
            pg_sys::UUIDOID => text.chars().filter(char::is_ascii_hexdigit).collect::<String>().to_ascii_lowercase(),
            pg_sys::BPCHAROID => text.trim_end_matches(' ').to_owned(),
            _ => text.to_owned(),
        }
    }
}

/// What a call with these loading policies locks.
pub fn wants(meta: &Meta, id: ExecutionId, loads: &Loads, types: &KeyTypes) -> WantedLocks {
    let Loads { global, local } = loads;
    let canonical = |table: &TableMapping, column: &str, text: &str| types.canonical(table.relation, column, text);
    WantedLocks::of(id, covered(meta, global), global, local, canonical)
}
