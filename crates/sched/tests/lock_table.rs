//! The lock table: which calls hold locks, and which calls wait. Random requests are compared with a simple model.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::cell::Cell;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::hash::Hash;
use xdb_engine::Timestamp;
use xdb_sched::lock_table::*;

use ObjectMode::{Exclusive as X, IntentionExclusive as IX, IntentionShared as IS, Shared as S};

fn object(number: u32) -> LockObject {
    u128::from(number).to_be_bytes()
}

fn wants(objects: &[(u32, ObjectMode)]) -> Wants {
    objects.iter().map(|(number, mode)| (object(*number), *mode)).collect()
}

/// Requests objects for a call. The due time is the key.
fn ask<K: Copy + Ord + Hash + Into<i64>>(
    table: &mut LockTable<K>,
    key: K,
    objects: &[(u32, ObjectMode)],
) -> LockResult {
    table.request(key, Timestamp(key.into()), false, wants(objects))
}

/// Repeats the request of a call. The due time is the key. Returns whether it was granted.
fn ask_again<K: Copy + Ord + Hash + Into<i64>>(table: &mut LockTable<K>, key: K) -> bool {
    let wants = table.wants(&key).map(Wants::from);
    wants.is_some_and(|wants| table.request(key, Timestamp(key.into()), false, wants) == LockResult::Granted)
}

/// The calls that wait, in order, and the calls that hold their objects.
fn keys<K: Copy + Ord + Hash>(table: &LockTable<K>) -> (Vec<K>, Vec<K>) {
    table.keys().partition(|key| table.waits(key))
}

#[test]
fn the_matrix_is_the_usual_one() {
    let fits = |a: ObjectMode| ObjectMode::ALL.into_iter().filter(|b| !a.conflicts(*b)).collect::<Vec<_>>();
    assert_eq!(fits(IS), [IS, IX, S]);
    assert_eq!(fits(IX), [IS, IX]);
    assert_eq!(fits(S), [IS, S]);
    assert_eq!(fits(X), []);
    for a in ObjectMode::ALL {
        for b in ObjectMode::ALL {
            assert_eq!(a.conflicts(b), b.conflicts(a));
        }
    }
}

#[test]
fn all_or_nothing() {
    let mut table = LockTable::<i64>::default();
    assert_eq!(ask(&mut table, 1, &[(2, X)]), LockResult::Granted);
    assert_eq!(ask(&mut table, 5, &[(1, X), (2, S)]), LockResult::Waits);
    assert_eq!(
        ask(&mut table, 4, &[(1, S)]),
        LockResult::Granted,
        "a request that waits for all its objects holds none"
    );
    table.release(4);
    assert_eq!(ask(&mut table, 6, &[(1, S)]), LockResult::Waits, "but it blocks later requests");
    assert!(table.ready(10).is_empty());
    table.release(1);
    assert_eq!(table.ready(10), [5]);
    assert_eq!(keys(&table), (vec![5, 6], vec![]), "a listed request keeps waiting");
    assert!(!ask_again(&mut table, 6));
    assert!(ask_again(&mut table, 5));
    table.release(5);
    assert!(ask_again(&mut table, 6));
}

#[test]
fn no_request_passes_a_waiting_exclusive_one() {
    let mut table = LockTable::<i64>::default();
    ask(&mut table, 1, &[(1, S)]);
    assert_eq!(ask(&mut table, 3, &[(1, X)]), LockResult::Waits);
    assert_eq!(ask(&mut table, 4, &[(1, S)]), LockResult::Waits, "the one that excludes would starve");
    assert_eq!(ask(&mut table, 2, &[(1, S)]), LockResult::Granted, "this one is due earlier");
    assert_eq!(ask(&mut table, 5, &[(2, X)]), LockResult::Granted, "and this request conflicts with none");
}

#[test]
fn parts_of_something_are_had_by_many() {
    let mut table = LockTable::<i64>::default();
    assert_eq!(ask(&mut table, 1, &[(1, IX), (2, X)]), LockResult::Granted);
    assert_eq!(ask(&mut table, 2, &[(1, IX), (3, X)]), LockResult::Granted);
    assert_eq!(ask(&mut table, 3, &[(1, IS), (2, S)]), LockResult::Waits);
    assert_eq!(ask(&mut table, 4, &[(1, S)]), LockResult::Waits);
}

#[test]
fn a_call_that_was_repeated_too_often_goes_first() {
    let mut table = LockTable::<i64>::default();
    ask(&mut table, 1, &[(1, X)]);
    ask(&mut table, 2, &[(1, X)]);
    table.request(9, Timestamp(9), true, wants(&[(1, X)]));
    assert_eq!(keys(&table).0, [9, 2]);
    table.release(1);
    assert_eq!(table.ready(10), [9]);
}

#[test]
fn one_that_was_ready_is_not_any_more_when_an_earlier_one_comes() {
    let mut table = LockTable::<i64>::default();
    ask(&mut table, 1, &[(1, X)]);
    ask(&mut table, 2, &[(2, X)]);
    ask(&mut table, 5, &[(1, X), (3, X)]);
    ask(&mut table, 4, &[(2, X), (3, X)]);
    table.release(1);
    assert!(table.ready(10).is_empty(), "4 is before 5 at object 3");
    table.release(4);
    assert_eq!(table.ready(10), [5]);
    ask(&mut table, 3, &[(2, X), (3, X)]);
    assert!(table.ready(10).is_empty());
    table.release(2);
    assert_eq!(table.ready(10), [3]);
    table.release(3);
    assert_eq!(table.ready(10), [5]);
}

#[test]
fn a_request_that_steps_aside_keeps_its_place_and_blocks_no_other() {
    let mut table = LockTable::<i64>::default();
    ask(&mut table, 1, &[(1, X)]);
    ask(&mut table, 2, &[(1, X)]);
    ask(&mut table, 3, &[(1, X)]);
    table.release(1);
    table.step_aside(2);
    assert_eq!(table.ready(10), [3]);
    assert!(table.waits(&2));
    table.park_again(2);
    assert_eq!(table.ready(10), [2]);
    table.step_aside(2);
    assert!(ask_again(&mut table, 3));
    table.park_again(2);
    assert!(!ask_again(&mut table, 2));
    table.release(3);
    assert_eq!(table.ready(10), [2]);
    table.step_aside(2);
    assert!(ask_again(&mut table, 2), "nothing is in its way");
    assert_eq!((table.has(&2), table.waits(&2)), (true, false));
}

#[test]
fn the_number_of_waiting_calls_is_limited() {
    let mut table = LockTable::<i64>::new(2);
    ask(&mut table, 1, &[(1, X)]);
    ask(&mut table, 2, &[(1, X)]);
    ask(&mut table, 3, &[(1, X)]);
    assert_eq!(ask(&mut table, 4, &[(1, X)]), LockResult::Full);
    assert!(!table.waits(&4));
    assert_eq!(ask(&mut table, 5, &[(2, X)]), LockResult::Granted, "a request that need not wait is not refused");
    assert_eq!(ask(&mut table, 3, &[(1, S)]), LockResult::Waits, "a repeated request takes no second place");
    table.release(2);
    assert_eq!(ask(&mut table, 4, &[(1, X)]), LockResult::Waits);
    let (waits, has) = keys(&table);
    assert_eq!((waits.len(), has.len()), (2, 2));
}

#[test]
fn a_turn_that_fails_has_changed_nothing() {
    let mut table = LockTable::<i64>::default();
    ask(&mut table, 1, &[(1, X)]);
    ask(&mut table, 2, &[(1, X)]);
    ask(&mut table, 3, &[(1, X)]);
    table.settle();
    table.release(1);
    assert!(ask_again(&mut table, 2));
    table.release(2);
    table.step_aside(3);
    ask(&mut table, 4, &[(5, X)]);
    table.undo();
    assert_eq!(keys(&table), (vec![2, 3], vec![1]));
    assert!(table.ready(10).is_empty());
    table.undo();
    assert_eq!(keys(&table), (vec![2, 3], vec![1]), "once is enough");
    table.release(1);
    assert_eq!(table.ready(10), [2]);
}

/// A key that counts its comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Counted(i64);

thread_local! {
    static COMPARED: Cell<u64> = const { Cell::new(0) };
}

impl From<Counted> for i64 {
    fn from(_: Counted) -> Self {
        // All have the same due time, so keys have to be compared.
        0
    }
}

impl Ord for Counted {
    fn cmp(&self, other: &Self) -> Ordering {
        COMPARED.set(COMPARED.get() + 1);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Counted {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[test]
fn a_release_does_not_visit_all_waiting_requests() {
    const WAITERS: i64 = 9_999;
    // All calls want one object exclusively. Or they share one object, and each wants another object that is not free.
    for share in [false, true] {
        let objects = |number: u32| if share { vec![(0, S), (number, X)] } else { vec![(0, X)] };
        let mut table = LockTable::<Counted>::default();
        let blockers: Vec<_> = (1..=WAITERS as u32).map(|number| (number, X)).collect();
        ask(&mut table, Counted(-1), &blockers);
        ask(&mut table, Counted(0), &[(0, X)]);
        for number in 1..=WAITERS {
            assert_eq!(ask(&mut table, Counted(number), &objects(number as u32)), LockResult::Waits);
        }
        table.settle();
        let mut holder = Counted(0);
        for round in 1..=WAITERS {
            COMPARED.set(0);
            table.release(holder);
            let ready = table.ready(1);
            if let [next] = ready[..] {
                assert_eq!(ask(&mut table, next, &objects(next.0 as u32)), LockResult::Granted);
                holder = next;
            } else {
                // Again and again, a call that is due before all of them holds the object for a while.
                holder = Counted(-1 - round);
                assert_eq!(ask(&mut table, holder, &[(0, X)]), LockResult::Granted);
            }
            table.settle();
            // The first release moves the sharing calls to their other objects, once.
            assert!(COMPARED.get() < 2000 || round == 1, "{} comparisons in round {round}", COMPARED.get());
        }
    }
}

/// The rules of the table, implemented without regard to cost.
#[derive(Clone, Default)]
struct Model {
    requests: BTreeMap<(Reverse<bool>, i64, u8), (Wants, Status)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Has,
    Waits,
    Aside,
}

type ModelPlace = (Reverse<bool>, i64, u8);

fn conflict(a: &Wants, b: &Wants) -> bool {
    a.iter().any(|(object, mode)| b.iter().any(|(other, also)| object == other && mode.conflicts(*also)))
}

impl Model {
    fn place(&self, key: u8) -> Option<ModelPlace> {
        self.requests.keys().find(|place| place.2 == key).copied()
    }

    fn is_blocked(&self, place: &ModelPlace, wants: &Wants) -> bool {
        self.requests.iter().filter(|(other, _)| *other != place).any(|(other, (has, status))| match status {
            Status::Has => conflict(wants, has),
            Status::Waits => other < place && conflict(wants, has),
            Status::Aside => false,
        })
    }

    fn with(&self, status: Status) -> Vec<u8> {
        self.requests.iter().filter(|(_, request)| request.1 == status).map(|(place, _)| place.2).collect()
    }

    fn ready(&self) -> Vec<u8> {
        let waits = self.requests.iter().filter(|(_, request)| request.1 == Status::Waits);
        waits.filter(|(place, request)| !self.is_blocked(place, &request.0)).map(|(place, _)| place.2).collect()
    }

    fn change(&mut self, key: u8, from: &[Status], to: Status) {
        if let Some(place) = self.place(key)
            && let Some(request) = self.requests.get_mut(&place)
            && from.contains(&request.1)
        {
            request.1 = to;
        }
    }

    fn release(&mut self, key: u8) {
        self.requests.retain(|place, _| place.2 != key);
    }

    fn request(&mut self, key: u8, due: i64, first: bool, wants: Wants, capacity: usize) -> LockResult {
        self.release(key);
        let place = (Reverse(first), due, key);
        let waiters = self.with(Status::Waits).len() + self.with(Status::Aside).len();
        let (status, answer) = match self.is_blocked(&place, &wants) {
            false => (Status::Has, LockResult::Granted),
            true if waiters >= capacity => return LockResult::Full,
            true => (Status::Waits, LockResult::Waits),
        };
        self.requests.insert(place, (wants, status));
        answer
    }
}

#[derive(Clone, Debug)]
enum Act {
    Request { key: u8, due: i64, first: bool, wants: Wants },
    Release(u8),
    RequestReady(usize),
    StepAside(u8),
    ParkAgain(u8),
    Settle,
    Undo,
}

fn some_wants() -> impl Strategy<Value = Wants> {
    let mode = prop::sample::select(ObjectMode::ALL.to_vec());
    btree_map(0u32..4, mode, 1..4).prop_map(|objects| wants(&objects.into_iter().collect::<Vec<_>>()))
}

fn act() -> impl Strategy<Value = Act> {
    let key = || 0u8..16;
    prop_oneof![
        6 => (key(), 0i64..8, prop::bool::weighted(0.1), some_wants())
            .prop_map(|(key, due, first, wants)| Act::Request { key, due, first, wants }),
        4 => key().prop_map(Act::Release),
        3 => (1usize..4).prop_map(Act::RequestReady),
        1 => key().prop_map(Act::StepAside),
        1 => key().prop_map(Act::ParkAgain),
        1 => Just(Act::Settle),
        1 => Just(Act::Undo),
    ]
}

fn sorted(mut keys: Vec<u8>) -> Vec<u8> {
    keys.sort_unstable();
    keys
}

proptest! {
    /// Whatever happens, the table agrees with the rules, and no two granted requests conflict. When all calls have
    /// released their objects, the table is empty.
    #[test]
    fn the_lock_table_agrees_with_the_rules(acts in vec(act(), 1..120)) {
        const CAPACITY: usize = 6;
        let mut table = LockTable::<u8>::new(CAPACITY);
        let (mut model, mut settled) = (Model::default(), Model::default());
        for act in acts {
            match act {
                Act::Request { key, due, first, wants } => {
                    let answer = table.request(key, Timestamp(due), first, wants.clone());
                    prop_assert_eq!(answer, model.request(key, due, first, wants, CAPACITY));
                }
                Act::Release(key) => {
                    table.release(key);
                    model.release(key);
                }
                Act::RequestReady(limit) => {
                    let ready = table.ready(limit);
                    for key in ready {
                        let place = model.place(key).expect("the model knows it");
                        let wants = model.requests[&place].0.clone();
                        let answer = table.request(key, Timestamp(place.1), place.0.0, wants);
                        prop_assert_eq!(answer, LockResult::Granted, "the listed requests may hold it together");
                        model.change(key, &[Status::Waits], Status::Has);
                    }
                }
                Act::StepAside(key) => {
                    table.step_aside(key);
                    model.change(key, &[Status::Waits], Status::Aside);
                }
                Act::ParkAgain(key) => {
                    table.park_again(key);
                    model.change(key, &[Status::Aside], Status::Waits);
                }
                Act::Settle => {
                    table.settle();
                    settled = model.clone();
                }
                Act::Undo => {
                    table.undo();
                    model = settled.clone();
                }
            }
            let (waits, has) = keys(&table);
            prop_assert_eq!(&has, &sorted(model.with(Status::Has)));
            let in_line = model.requests.iter().filter(|(_, request)| request.1 != Status::Has);
            prop_assert_eq!(&waits, &in_line.map(|(place, _)| place.2).collect::<Vec<_>>());
            prop_assert_eq!(table.ready(usize::MAX), model.ready());
            for (a, (wants, _)) in model.requests.iter().filter(|(_, request)| request.1 == Status::Has) {
                for (b, (others, _)) in model.requests.iter().filter(|(_, request)| request.1 == Status::Has) {
                    prop_assert!(a == b || !conflict(wants, others), "{a:?} and {b:?}");
                }
            }
        }
        (0..16).for_each(|key| table.release(key));
        table.settle();
        prop_assert_eq!(format!("{table:?}"), format!("{:?}", LockTable::<u8>::new(CAPACITY)));
    }

    /// A waiting call gets its objects after the calls before it have ended, even if new calls come without a pause.
    #[test]
    fn no_waiting_call_starves(before in vec(some_wants(), 1..12), own in some_wants(), after in vec(some_wants(), 64)) {
        let mut table = LockTable::<i64>::default();
        let number = before.len() as i64;
        for (key, wants) in (0..).zip(before) {
            table.request(key, Timestamp(key), false, wants);
        }
        table.request(number, Timestamp(number), false, own);
        for (key, wants) in (number + 1..).zip(after) {
            if table.has(&number) {
                break;
            }
            prop_assert!(key <= 2 * number + 1, "{number} has waited for as many ends as there were before it");
            table.request(key, Timestamp(key), false, wants);
            // One of the earlier calls ends.
            let ends = (0..number).find(|key| table.has(key));
            prop_assert!(ends.is_some(), "an earlier request holds the object that blocks it");
            ends.into_iter().for_each(|key| table.release(key));
            for key in table.ready(usize::MAX) {
                prop_assert!(ask_again(&mut table, key));
            }
        }
        prop_assert!(table.has(&number));
    }
}

#[test]
fn requests_that_stepped_aside_are_known_after_a_failed_turn() {
    let mut table = LockTable::<i64>::default();
    assert_eq!(ask(&mut table, 1, &[(1, X)]), LockResult::Granted);
    assert_eq!(ask(&mut table, 2, &[(1, X)]), LockResult::Waits);
    table.release(1);
    table.step_aside(2);
    table.settle();
    assert_eq!(table.aside().collect::<Vec<_>>(), [&2]);
    // A turn lets the request queue up again, and fails.
    table.park_again(2);
    assert_eq!((table.aside().count(), table.ready(10)), (0, vec![2]));
    table.undo();
    assert_eq!(table.aside().collect::<Vec<_>>(), [&2], "or no turn would ever grant it");
    assert!(table.ready(10).is_empty());
    table.release(2);
    assert_eq!(table.aside().count(), 0);
}

#[test]
fn a_holder_knows_whether_a_request_waits_for_it() {
    let mut table = LockTable::<i64>::default();
    assert_eq!(ask(&mut table, 1, &[(1, S), (2, X)]), LockResult::Granted);
    assert!(!table.is_waited_for(&1));
    assert_eq!(ask(&mut table, 2, &[(1, S)]), LockResult::Granted);
    assert_eq!(ask(&mut table, 3, &[(2, S)]), LockResult::Waits);
    assert!(table.is_waited_for(&1) && !table.is_waited_for(&2) && !table.is_waited_for(&3));
    table.release(3);
    assert!(!table.is_waited_for(&1));
}
