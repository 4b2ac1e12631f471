//! Locks on attributes: what a call wants to lock, and the versions of local attributes that decide whether its answer is applied.

use super::StateKey;
use super::app_tables::covered;
use super::loaded::Meta;
use super::table::{batch, statements};
use crate::pg::catch::Result;
use crate::pg::spi::Spi;
use crate::pg::types::{NO_MODIFIER, Type};
use pgrx::pg_sys;
use std::collections::{BTreeMap, HashMap};
use xdb_engine::*;
use xdb_sched::lock_table::{LockMode, Object, Wants};

statements! {
    COLUMN_TYPES = "SELECT a.attrelid AS relation, a.attname::text AS name, a.atttypid AS type \
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY ($1) AND a.attnum > 0 AND NOT a.attisdropped"
        => fn column_types(relations: &[pg_sys::Oid]) -> Vec<(pg_sys::Oid, String, pg_sys::Oid)>;
    /// Those of these calls that are over.
    OVER = format!("SELECT v.execution_id, v.seq FROM {} \
        WHERE NOT EXISTS (SELECT FROM xdb.task t WHERE t.execution_id = v.execution_id AND t.seq = v.seq)", batch::<StateKey>())
        => pub fn over(keys: [StateKey]) -> Vec<StateKey>;
}

/// Longest list of what a call locks, for people.
const NAMES_CHARACTERS: usize = 1000;

/// What a call locks, in the order of the objects.
pub struct WantedLocks {
    pub objects: Wants,
    names: Vec<String>,
}

impl WantedLocks {
    /// What is locked, for people; of a long list the beginning.
    pub fn names(&self) -> String {
        self.names.join(", ").chars().take(NAMES_CHARACTERS).collect()
    }
}

/// The types of the columns of tables, as far as keys are concerned: two spellings of a number are one key.
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

    /// A key value in one spelling. Where a type has more of them than this knows, two calls may not wait for each other;
    /// the optimistic check sees to what is right.
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

/// The hash of parts that are told from each other by their lengths.
fn hash(parts: &[&[u8]]) -> Object {
    let bytes = parts.iter().flat_map(|part| (part.len() as u64).to_le_bytes().into_iter().chain(part.iter().copied()));
    fnv1a_128(bytes).to_be_bytes()
}

/// What a call with these loading policies locks.
pub fn wants(meta: &Meta, id: ExecutionId, global: &Loading, local: &Loading, types: &KeyTypes) -> WantedLocks {
    let (mut objects, mut names) = (BTreeMap::new(), Vec::new());
    // Of two modes for one hash the stronger one holds.
    let mut add = |object: Object, mode: LockMode| {
        let entry = objects.entry(object).or_insert(mode);
        *entry = mode.max(*entry);
    };
    let mode = if global.lock_type == LockType::Exclusive { LockMode::Exclusive } else { LockMode::Shared };
    for (table, key) in covered(meta, global).filter(|_| global.locks()) {
        let columns = table.primary_key.iter().zip(key);
        let values: Vec<_> = columns.clone().map(|(c, text)| types.canonical(table.relation, c, text)).collect();
        let relation = table.relation.to_le_bytes();
        let mut parts: Vec<&[u8]> = vec![b"row", &relation];
        // A key is known by its columns too: the same row may be mapped by another unique key, which the optimistic check sees to.
        for (column, text) in table.primary_key.iter().zip(&values) {
            parts.extend([column.as_bytes(), text.as_bytes()]);
        }
        let shown = columns.map(|(column, text)| format!("{column} = {text}")).collect::<Vec<_>>().join(", ");
        add(hash(&parts), mode);
        names.push(format!("table {} key {shown}", table.table));
    }
    if local.locks() {
        let exclusive = local.lock_type == LockType::Exclusive;
        let (whole, part) = match exclusive {
            true => (LockMode::IntentionExclusive, LockMode::Exclusive),
            false => (LockMode::IntentionShared, LockMode::Shared),
        };
        let all = local.policy == LoadPolicy::All;
        add(hash(&[b"local", &id.0]), if all { part } else { whole });
        for name in &local.names {
            add(hash(&[b"local", &id.0, name.as_bytes()]), part);
        }
        let parts = local.names.iter().map(|name| format!("local attribute {name}"));
        names.extend(all.then(|| "local attributes".to_owned()).into_iter().chain(parts));
    }
    WantedLocks { objects: objects.into_iter().collect(), names }
}

/// The versions of the local attributes that a loading policy covers. With the policy ALL a new key changes them too.
pub fn versions_of<'a>(
    loading: &Loading,
    versions: impl Iterator<Item = (&'a String, &'a String)>,
) -> BTreeMap<String, String> {
    let covered = versions.filter(|(name, _)| loading.locks() && loading.wants(name));
    covered.map(|(name, version)| (name.clone(), version.clone())).collect()
}
