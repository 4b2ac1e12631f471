//! Grants of process locks, compared with the rule as it is written.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use xdb_engine::{ExecutionId, LockMode, ProcessLocks, Timestamp};
use xdb_sched::process_locks::{NamedLock, Place, grants};

#[derive(Clone, Debug, Default)]
struct Table {
    granted: BTreeMap<Place, ProcessLocks>,
    waiting: BTreeMap<Place, ProcessLocks>,
}

fn conflict(one: &ProcessLocks, other: &ProcessLocks, name: &str) -> bool {
    matches!((one.get(name), other.get(name)), (Some(one), Some(other)) if one.conflicts(*other))
}

impl Table {
    /// The rule, word for word: again and again until nothing changes.
    fn grant_by_the_rule(&mut self) {
        loop {
            let may_have = |(place, locks): &(&Place, &ProcessLocks)| {
                locks.keys().all(|name| {
                    self.granted.values().all(|other| !conflict(locks, other, name))
                        && self.waiting.range(..**place).all(|(_, other)| !conflict(locks, other, name))
                })
            };
            let Some((place, locks)) = self.waiting.iter().find(may_have).map(|(place, locks)| (*place, locks.clone()))
            else {
                return;
            };
            self.waiting.remove(&place);
            self.granted.insert(place, locks);
        }
    }

    fn queues(&self) -> BTreeMap<String, NamedLock> {
        let names: BTreeSet<_> =
            self.waiting.values().chain(self.granted.values()).flat_map(|locks| locks.keys()).collect();
        let queue = |name: &&String| {
            let first =
                |mode| self.waiting.iter().find(|(_, locks)| locks.get(*name) == Some(&mode)).map(|(place, _)| *place);
            NamedLock {
                granted: self.granted.values().find_map(|locks| locks.get(*name).copied()),
                first_exclusive: first(LockMode::Exclusive),
                first_shared: first(LockMode::Share),
            }
        };
        names.iter().map(|name| ((*name).clone(), queue(name))).collect()
    }

    fn grant(&mut self) {
        let granted: BTreeSet<_> = grants(&mut self.queues(), &self.waiting).into_iter().collect();
        let (now, still) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(place, _)| granted.contains(&place.1));
        self.waiting = still;
        self.granted.extend::<BTreeMap<_, _>>(now);
    }
}

fn id(number: u8) -> ExecutionId {
    ExecutionId([number; 16])
}

fn locks() -> impl Strategy<Value = ProcessLocks> {
    let mode = prop_oneof![Just(LockMode::Exclusive), Just(LockMode::Share)];
    prop::collection::btree_map(prop::sample::select(&["a", "b", "c"][..]).prop_map(str::to_owned), mode, 1..=3)
}

#[derive(Clone, Debug)]
enum Op {
    Start(ProcessLocks, i64),
    Close(prop::sample::Index),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (locks(), 0..5i64).prop_map(|(locks, at)| Op::Start(locks, at)),
        2 => any::<prop::sample::Index>().prop_map(Op::Close),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn grants_follow_the_rule(ops in prop::collection::vec(op(), 1..60)) {
        let (mut table, mut expected) = (Table::default(), Table::default());
        for (number, op) in (1..).zip(ops) {
            match op {
                Op::Start(locks, at) => {
                    for table in [&mut table, &mut expected] {
                        table.waiting.insert((Timestamp(at), id(number)), locks.clone());
                    }
                }
                Op::Close(which) => {
                    let all: Vec<_> = expected.granted.keys().chain(expected.waiting.keys()).copied().collect();
                    if all.is_empty() {
                        continue;
                    }
                    let place = *which.get(&all);
                    for table in [&mut table, &mut expected] {
                        table.granted.remove(&place);
                        table.waiting.remove(&place);
                    }
                }
            }
            table.grant();
            expected.grant_by_the_rule();
            prop_assert_eq!(&table.granted, &expected.granted);
            // A second call grants nothing.
            prop_assert_eq!(grants(&mut table.queues(), &table.waiting), vec![]);
        }
        // Nothing waits for ever: when the holders close, one after the other, all are granted.
        while let Some(place) = table.granted.keys().next().copied() {
            table.granted.remove(&place);
            table.grant();
        }
        prop_assert!(table.waiting.is_empty());
    }
}

#[test]
fn a_request_does_not_overtake_an_earlier_one_that_it_conflicts_with() {
    let of = |name: &str, mode| ProcessLocks::from([(name.to_owned(), mode)]);
    let mut table = Table::default();
    table.granted.insert((Timestamp(1), id(1)), of("system", LockMode::Share));
    table.waiting.insert((Timestamp(2), id(2)), of("system", LockMode::Exclusive));
    table.waiting.insert((Timestamp(3), id(3)), of("system", LockMode::Share));
    table.waiting.insert((Timestamp(4), id(4)), of("another", LockMode::Share));
    table.grant();
    assert_eq!(table.waiting.keys().map(|place| place.1).collect::<Vec<_>>(), [id(2), id(3)]);
    table.granted.clear();
    table.grant();
    assert_eq!(table.granted.keys().map(|place| place.1).collect::<Vec<_>>(), [id(2)]);
    table.granted.clear();
    table.grant();
    assert_eq!(table.granted.keys().map(|place| place.1).collect::<Vec<_>>(), [id(3)]);
}
