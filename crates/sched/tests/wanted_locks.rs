//! The locks that a call wants, and which locks conflict.

use std::collections::BTreeMap;
use xdb_engine::{ExecutionId, LoadPolicy, Loading, LockType, TableMapping};
use xdb_sched::wanted_locks::WantedLocks;

const NONE: Loading = Loading { policy: LoadPolicy::None, names: Vec::new(), lock_type: LockType::NoLocking };

fn loading(names: &[&str], lock_type: LockType) -> Loading {
    let policy = if names.is_empty() { LoadPolicy::All } else { LoadPolicy::Partial };
    Loading { policy, names: names.iter().map(|name| (*name).to_owned()).collect(), lock_type }
}

fn table(relation: u32, attribute: &str) -> TableMapping {
    TableMapping {
        table: format!("t{relation}"),
        relation,
        primary_key: vec!["id".to_owned()],
        attributes: BTreeMap::from([(attribute.to_owned(), attribute.to_owned())]),
    }
}

/// The locks of a call of this process with these loading policies. Two tables are mapped, with the same key.
fn wants(process: u8, key: &str, global: &Loading, local: &Loading) -> WantedLocks {
    let (tables, keys) = ([table(1, "a"), table(2, "b")], [key.to_owned()]);
    let rows = tables.iter().map(|table| (table, &keys[..]));
    WantedLocks::of(ExecutionId([process; 16]), rows, global, local, |_, _, text| text.trim().to_owned())
}

#[test]
fn calls_of_two_processes_conflict_at_the_same_row() {
    let exclusive = loading(&["a"], LockType::Exclusive);
    let one = wants(1, "k", &exclusive, &NONE);
    assert_eq!(one.names(), "table t1 key id = k");
    assert!(one.conflict(&wants(2, "k ", &exclusive, &NONE)), "another spelling of the key");
    assert!(one.conflict(&wants(2, "k", &loading(&[], LockType::Share), &NONE)), "all that there is");
    assert!(!one.conflict(&wants(2, "l", &exclusive, &NONE)), "another key");
    assert!(!one.conflict(&wants(2, "k", &loading(&["b"], LockType::Exclusive), &NONE)), "another table");
    assert!(
        !one.conflict(&wants(2, "k", &loading(&[], LockType::NoLocking), &NONE)),
        "a call without locks conflicts with none"
    );
    let shared = loading(&["a"], LockType::Share);
    assert!(!wants(1, "k", &shared, &NONE).conflict(&wants(2, "k", &shared, &NONE)));
}

#[test]
fn local_attributes_conflict_within_a_process() {
    let local = |process, names: &[&str], lock_type| wants(process, "k", &NONE, &loading(names, lock_type));
    let one = local(1, &["a"], LockType::Exclusive);
    assert_eq!(one.names(), "local attribute a");
    assert!(one.conflict(&local(1, &["a", "b"], LockType::Share)));
    assert!(one.conflict(&local(1, &[], LockType::Share)), "all of them");
    assert!(!one.conflict(&local(1, &["b"], LockType::Exclusive)));
    assert!(!one.conflict(&local(2, &["a"], LockType::Exclusive)));
    assert!(!local(1, &[], LockType::Share).conflict(&local(1, &["a"], LockType::Share)));
}
