//! What calls have locked, and whether it has changed when they are answered.
//!
//! A call that wants what another one has is given out when that one was answered. Callers may write in between all the same,
//! so what was loaded decides whether an answer is applied, as on the server: the values of global attributes, the versions of local
//! ones.

use crate::run::Run;
use crate::tables::Tables;
use std::collections::BTreeMap;
use xdb_engine::Loading;
use xdb_sched::wanted_locks::WantedLocks;

/// What a call with these loading policies locks.
pub(crate) fn wanted(run: &Run, global: &Loading, local: &Loading) -> WantedLocks {
    WantedLocks::of(run.execution.id, run.rows(), global, local, |_, _, text| text.to_owned())
}

/// What a call has loaded under locks: the global attributes as a JSON object, and the versions of the local ones.
#[derive(PartialEq)]
pub(crate) struct Locked(Option<String>, BTreeMap<String, u64>);

impl Locked {
    /// Those of now. None where nothing is locked.
    pub fn read(run: &Run, tables: &Tables, global: &Loading, local: &Loading) -> Option<Self> {
        let values = global.locks().then(|| tables.load(run, global));
        let mut versions = run.local_versions.clone();
        versions.retain(|name, _| local.locks() && local.wants(name));
        (global.locks() || local.locks()).then_some(Self(values, versions))
    }
}
