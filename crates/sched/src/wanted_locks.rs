//! The locks that a call wants: rows of tables, and local attributes of its process, as objects of a
//! [`LockTable`](crate::lock_table::LockTable).
//!
//! Limitations: a row that is mapped by two unique keys is two objects. The optimistic check finds such conflicts.

use crate::lock_table::{LockObject, ObjectMode, Wants};
use std::collections::BTreeMap;
use xdb_engine::{ExecutionId, LoadPolicy, Loading, LockType, TableMapping, fnv1a_128};

/// The most characters of the text that lists what a call locks.
const NAMES_CHARACTERS: usize = 1000;

/// What a call locks, in the order of the objects.
pub struct WantedLocks {
    /// The request for the lock table.
    pub objects: Wants,
    names: Vec<String>,
}

impl WantedLocks {
    /// What a call with these loading policies locks. `rows` are the tables of its process, each with the values of its
    /// key. `canonical` gives each value of a key one spelling, by table, column and value.
    pub fn of<'r>(
        id: ExecutionId,
        rows: impl Iterator<Item = (&'r TableMapping, &'r [String])>,
        global: &Loading,
        local: &Loading,
        canonical: impl Fn(&TableMapping, &str, &str) -> String,
    ) -> Self {
        let (mut objects, mut names) = (BTreeMap::new(), Vec::new());
        // Of two modes for one hash the stronger one applies.
        let mut add = |object: LockObject, mode: ObjectMode| {
            let entry = objects.entry(object).or_insert(mode);
            *entry = mode.max(*entry);
        };
        let mode = if global.lock_type == LockType::Exclusive { ObjectMode::Exclusive } else { ObjectMode::Shared };
        let covers = |table: &TableMapping| global.locks() && table.attributes.keys().any(|name| global.wants(name));
        for (table, key) in rows.filter(|(table, _)| covers(table)) {
            let columns = table.primary_key.iter().zip(key);
            let values: Vec<_> = columns.clone().map(|(column, text)| canonical(table, column, text)).collect();
            let relation = table.relation.to_le_bytes();
            let mut parts: Vec<&[u8]> = vec![b"row", &relation];
            // The columns are part of the object: the same row may be mapped by another unique key.
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
                true => (ObjectMode::IntentionExclusive, ObjectMode::Exclusive),
                false => (ObjectMode::IntentionShared, ObjectMode::Shared),
            };
            let all = local.policy == LoadPolicy::All;
            add(hash(&[b"local", &id.0]), if all { part } else { whole });
            for name in &local.names {
                add(hash(&[b"local", &id.0, name.as_bytes()]), part);
            }
            let parts = local.names.iter().map(|name| format!("local attribute {name}"));
            names.extend(all.then(|| "local attributes".to_owned()).into_iter().chain(parts));
        }
        Self { objects: objects.into_iter().collect(), names }
    }

    /// Text for operators. A long list is cut off.
    pub fn names(&self) -> String {
        self.names.join(", ").chars().take(NAMES_CHARACTERS).collect()
    }

    /// Whether two calls can't hold both at the same time.
    pub fn conflict(&self, other: &Self) -> bool {
        let conflicts = |(object, mode): &(LockObject, ObjectMode)| {
            other.objects.iter().any(|(theirs, other)| object == theirs && mode.conflicts(*other))
        };
        self.objects.iter().any(conflicts)
    }
}

/// The hash of parts. Their lengths are hashed too, so that different splits of the same text differ.
fn hash(parts: &[&[u8]]) -> LockObject {
    let bytes = parts.iter().flat_map(|part| (part.len() as u64).to_le_bytes().into_iter().chain(part.iter().copied()));
    fnv1a_128(bytes).to_be_bytes()
}
