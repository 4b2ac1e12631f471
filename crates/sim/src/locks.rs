//! What calls have locked, and whether it has changed when they are answered.
//!
//! A call that wants what another one has is given out when that one was answered. Callers may write in between all the same,
//! so what was loaded decides whether an answer is applied, as on the server: the values of global attributes, the versions of local
//! ones.

use crate::run::Run;
use crate::tables::Tables;
use std::collections::{BTreeMap, BTreeSet};
use xdb_engine::{ExecutionId, LoadPolicy, Loading, LockType, TableMapping};

/// What a call has locked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks(Vec<(Object, bool)>);

#[derive(Clone, Debug, PartialEq)]
enum Object {
    /// A row, by the number of its table.
    Row(u32, Vec<String>),
    /// Local attributes of an execution; None: all, also those that are new.
    Local(ExecutionId, Option<BTreeSet<String>>),
}

impl Object {
    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local(of, names), Self::Local(of_other, others)) => {
                let shared =
                    names.as_ref().zip(others.as_ref()).is_none_or(|(names, others)| !names.is_disjoint(others));
                of == of_other && shared
            }
            (one, other) => one == other,
        }
    }
}

/// Rows that a loading policy covers.
fn covered<'r>(run: &'r Run, loading: &Loading) -> impl Iterator<Item = (&'r TableMapping, &'r [String])> {
    run.rows().filter(|(table, _)| loading.locks() && table.attributes.keys().any(|name| loading.wants(name)))
}

impl Locks {
    /// What a call with these loading policies locks.
    pub fn wanted(run: &Run, global: &Loading, local: &Loading) -> Self {
        let exclusive = |loading: &Loading| loading.lock_type == LockType::Exclusive;
        let row =
            |(table, key): (&TableMapping, &[String])| (Object::Row(table.relation, key.to_vec()), exclusive(global));
        let mut objects: Vec<_> = covered(run, global).map(row).collect();
        if local.locks() {
            let names = (local.policy == LoadPolicy::Partial).then(|| local.names.iter().cloned().collect());
            objects.push((Object::Local(run.execution.id, names), exclusive(local)));
        }
        Self(objects)
    }

    /// Whether both can't be had at a time.
    pub fn conflict(&self, other: &Self) -> bool {
        let conflict = |(one, exclusive): &(Object, bool)| {
            other.0.iter().any(|(two, too)| (*exclusive || *too) && one.overlaps(two))
        };
        self.0.iter().any(conflict)
    }
}

/// What a call has loaded under locks.
#[derive(Debug, PartialEq)]
pub(crate) struct Locked {
    /// The global attributes, as a JSON object.
    global: Option<String>,
    /// The versions of the local ones.
    local: BTreeMap<String, u64>,
}

impl Locked {
    /// Those of now. None where nothing is locked.
    pub fn read(run: &Run, tables: &Tables, global: &Loading, local: &Loading) -> Option<Self> {
        if !global.locks() && !local.locks() {
            return None;
        }
        let values = global.locks().then(|| tables.load(run, global));
        let wanted = run.local_versions.iter().filter(|(name, _)| local.locks() && local.wants(name));
        Some(Self { global: values, local: wanted.map(|(name, version)| (name.clone(), *version)).collect() })
    }
}
