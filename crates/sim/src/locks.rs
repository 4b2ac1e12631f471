//! The locks of open calls, and whether locked values have changed when a call is answered.
//!
//! A call that waits for the lock of another call is handed out after the answer to that call. Callers can still write
//! in between. So, as on the server, the loaded values decide whether an answer is applied: values of global
//! attributes, versions of local ones.

use crate::run::Run;
use crate::tables::TablesInMemory;
use std::collections::BTreeMap;
use xdb_engine::Loading;
use xdb_sched::wanted_locks::WantedLocks;

/// The locks that a call with these loading policies wants.
pub(crate) fn wanted(run: &Run, global: &Loading, local: &Loading) -> WantedLocks {
    WantedLocks::of(run.execution.id, run.rows(), global, local, |_, _, text| text.to_owned())
}

/// Values loaded under locks: global attributes as a JSON object, and the versions of local ones.
#[derive(PartialEq)]
pub(crate) struct LockedValues(Option<String>, BTreeMap<String, u64>);

impl LockedValues {
    /// The current values. None if these loading policies lock nothing.
    pub fn read(run: &Run, tables: &TablesInMemory, global: &Loading, local: &Loading) -> Option<Self> {
        let values = global.locks().then(|| tables.load(run, global));
        let mut versions = run.local_versions.clone();
        versions.retain(|name, _| local.locks() && local.wants(name));
        (global.locks() || local.locks()).then_some(Self(values, versions))
    }
}
