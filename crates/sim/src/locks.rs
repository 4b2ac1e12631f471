//! The attributes that calls lock, and the check that they are unchanged when an answer is applied.
//!
//! A call whose locks conflict with an open call is given out after that call was answered. Callers may write in
//! between. So, as on the server, an answer is applied only if the values of global attributes and the versions of
//! local attributes are unchanged.
//!
//! Limitations: there is no order of waiting calls.

use crate::run::Run;
use crate::tables::Tables;
use std::collections::BTreeMap;
use xdb_engine::Loading;
use xdb_sched::wanted_locks::WantedLocks;

/// The locks of a call with these loading policies.
pub(crate) fn wanted(run: &Run, global: &Loading, local: &Loading) -> WantedLocks {
    WantedLocks::of(run.execution.id, run.rows(), global, local, |_, _, text| text.to_owned())
}

/// What a call loaded under locks: the global attributes as a JSON object, and the versions of the local attributes.
#[derive(PartialEq)]
pub(crate) struct Locked(Option<String>, BTreeMap<String, u64>);

impl Locked {
    /// Reads the present values and versions. None: nothing is locked.
    pub fn read(run: &Run, tables: &Tables, global: &Loading, local: &Loading) -> Option<Self> {
        let values = global.locks().then(|| tables.load(run, global));
        let mut versions = run.local_versions.clone();
        versions.retain(|name, _| local.locks() && local.wants(name));
        (global.locks() || local.locks()).then_some(Self(values, versions))
    }
}
