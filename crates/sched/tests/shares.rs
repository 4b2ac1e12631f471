//! Who gets the places for calls.

use proptest::prelude::*;
use std::collections::BTreeMap;
use xdb_sched::breaker::Admission;
use xdb_sched::room::*;
use xdb_sched::shares::*;

type Key = (WorkerId, Owner);

/// The calls of an engine that are under way, and its limits.
struct Engine {
    in_flight: InFlight<Key>,
    tags: Vec<(u64, Key)>,
    shares: Shares,
    max_calls: usize,
    workers: Vec<(WorkerId, usize)>,
}

impl Engine {
    fn new(max_calls: usize, workers: &[(WorkerId, usize)]) -> Self {
        let shares = Shares::default();
        Self { in_flight: InFlight::default(), tags: Vec::new(), shares, max_calls, workers: workers.to_vec() }
    }

    fn room(&self) -> Room {
        Room::new(&self.in_flight, self.max_calls, usize::MAX, usize::MAX, &self.workers, |_| Admission::All)
    }

    /// A turn in which everybody takes what they get of these wishes. Answers with what they got.
    fn turn(&mut self, wishes: &BTreeMap<Key, usize>) -> BTreeMap<Key, usize> {
        self.shares.begin_turn(self.room(), &self.in_flight);
        let wishes: Vec<_> = wishes
            .iter()
            .map(|((worker, owner), calls)| Wish { worker: *worker, owner: *owner, calls: *calls })
            .collect();
        self.shares.divide(&wishes);
        let mut got = BTreeMap::new();
        for Wish { worker, owner, calls } in self.shares.left().collect::<Vec<_>>() {
            for _ in 0..calls {
                assert!(self.shares.take(worker, owner));
                let key = (worker, owner);
                self.tags.push((self.in_flight.insert(worker, owner, 1, key), key));
            }
            assert!(!self.shares.take(worker, owner), "no more than it was given");
            got.insert((worker, owner), calls);
        }
        got
    }

    fn end(&mut self, which: usize) -> Key {
        let (tag, key) = self.tags.remove(which);
        assert_eq!(self.in_flight.remove(tag), Some(key));
        key
    }

    fn has(&self, key: Key) -> usize {
        self.tags.iter().filter(|(_, of)| *of == key).count()
    }
}

fn wishes(list: &[(Key, usize)]) -> BTreeMap<Key, usize> {
    list.iter().copied().collect()
}

#[test]
fn owners_share_a_workers_room_evenly_and_leave_what_they_do_not_want() {
    let mut engine = Engine::new(30, &[(1, 30)]);
    assert_eq!(
        engine.turn(&wishes(&[((1, 7), 100), ((1, 8), 4), ((1, 9), 100)])),
        wishes(&[((1, 7), 13), ((1, 8), 4), ((1, 9), 13)])
    );
}

#[test]
fn one_alone_has_all_and_a_newcomer_gets_what_becomes_free() {
    let mut engine = Engine::new(8, &[(1, 8)]);
    engine.turn(&wishes(&[((1, 7), 100)]));
    assert_eq!(engine.has((1, 7)), 8);
    let both = wishes(&[((1, 7), 100), ((1, 8), 100)]);
    assert_eq!(engine.turn(&both), wishes(&[]), "nobody is stopped");
    for freed in 1..=4 {
        engine.end(0);
        assert_eq!(engine.turn(&both), wishes(&[((1, 8), 1)]), "{freed}");
    }
    engine.end(0);
    assert_eq!((engine.has((1, 7)), engine.has((1, 8))), (3, 4));
    assert_eq!(engine.turn(&both), wishes(&[((1, 7), 1)]));
}

#[test]
fn owners_take_turns_where_there_is_one_place() {
    let mut engine = Engine::new(1, &[(1, 1)]);
    let all = wishes(&[((1, 7), 9), ((1, 8), 9), ((1, 9), 9)]);
    let mut served = Vec::new();
    for _ in 0..6 {
        engine.turn(&all);
        served.push(engine.end(0).1);
    }
    assert_eq!(served, [7, 8, 9, 7, 8, 9]);
}

#[test]
fn a_third_worker_gets_its_place_when_two_have_all() {
    let mut engine = Engine::new(8, &[(1, 8), (2, 8), (3, 8)]);
    engine.turn(&wishes(&[((1, 7), 100), ((2, 7), 100)]));
    assert_eq!((engine.has((1, 7)), engine.has((2, 7))), (4, 4), "no worker has more than half");
    engine.end(0);
    assert_eq!(engine.turn(&wishes(&[((1, 7), 100), ((2, 7), 100), ((3, 7), 1)])), wishes(&[((3, 7), 1)]));
}

#[test]
fn what_nobody_took_is_divided_anew() {
    let mut engine = Engine::new(4, &[(1, 4)]);
    engine.shares.begin_turn(engine.room(), &engine.in_flight);
    engine.shares.divide(&[Wish { worker: 1, owner: 7, calls: 9 }, Wish { worker: 1, owner: 8, calls: 9 }]);
    assert!(engine.shares.take(1, 7));
    assert!(!engine.shares.take(2, 7), "there is no such worker");
    engine.shares.divide(&[Wish { worker: 1, owner: 7, calls: 9 }, Wish { worker: 1, owner: 8, calls: 1 }]);
    let left: Vec<_> = engine.shares.left().map(|wish| (wish.owner, wish.calls)).collect();
    assert_eq!(left, [(7, 2), (8, 1)]);
}

#[test]
fn a_full_memory_and_an_open_breaker_leave_no_room() {
    let mut in_flight = InFlight::default();
    in_flight.insert(1, 7, 100, ());
    assert_eq!(Room::new(&in_flight, 10, usize::MAX, 100, &[(1, 10)], |_| Admission::All).of_worker(1), 0);
    let room = Room::new(&in_flight, 10, usize::MAX, 101, &[(1, 1), (2, 10), (3, 10)], |worker| match worker {
        1 => Admission::All,
        2 => Admission::None,
        _ => Admission::Probe,
    });
    assert_eq!((room.total(), room.of_worker(1), room.of_worker(2), room.of_worker(3)), (9, 0, 0, 1));
}

#[derive(Clone, Debug)]
enum Act {
    Want(Key, usize),
    End(usize),
    Turn,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => ((1i32..4, 1u32..5), 0usize..12).prop_map(|(key, calls)| Act::Want(key, calls)),
        3 => (0usize..64).prop_map(Act::End),
        2 => Just(Act::Turn),
    ]
}

proptest! {
    /// Whatever is wanted and whatever ends: no limit is passed, no place that somebody could have stays free, and nobody
    /// gets a place while another one that wants one too has less.
    #[test]
    fn places_are_shared_fairly(
        acts in prop::collection::vec(act(), 1..80), max_calls in 1usize..20, limits in prop::collection::vec(1usize..12, 3),
    ) {
        let workers: Vec<_> = (1..).zip(limits).collect();
        let mut engine = Engine::new(max_calls, &workers);
        let mut wanted: BTreeMap<Key, usize> = BTreeMap::new();
        for act in acts {
            match act {
                Act::Want(key, calls) => _ = wanted.insert(key, calls),
                Act::End(which) if !engine.tags.is_empty() => _ = engine.end(which % engine.tags.len()),
                Act::End(_) => {}
                Act::Turn => {
                    let got = engine.turn(&wanted);
                    for (key, calls) in &got {
                        *wanted.get_mut(key).expect("it wanted some") -= calls;
                    }
                    prop_assert!(engine.tags.len() <= max_calls);
                    let room = engine.room();
                    for (key, calls) in &wanted {
                        prop_assert!(*calls == 0 || room.of_worker(key.0) == 0, "there is room for {key:?}");
                        let others = got.keys().filter(|other| *calls > 0 && other.0 == key.0);
                        for other in others {
                            prop_assert!(engine.has(*other) <= engine.has(*key) + 1, "{other:?} got more than {key:?} has");
                        }
                    }
                }
            }
        }
    }

    /// However few places there are, everybody who wants one gets one before anybody has had many.
    #[test]
    fn no_owner_starves(owners in 2u32..12, max_calls in 1usize..4, ends in prop::collection::vec(0usize..4, 200)) {
        let mut engine = Engine::new(max_calls, &[(1, 100)]);
        let all: BTreeMap<Key, usize> = (0..owners).map(|owner| ((1, owner), 1000)).collect();
        let mut served: BTreeMap<Key, usize> = BTreeMap::new();
        for end in ends {
            for (key, calls) in engine.turn(&all) {
                *served.entry(key).or_default() += calls;
            }
            engine.end(end % engine.tags.len());
        }
        let counts: Vec<_> = (0..owners).map(|owner| served.get(&(1, owner)).copied().unwrap_or(0)).collect();
        // Who has a place that does not become free has it for long, and is not served again.
        for (owner, count) in (0..owners).zip(&counts).filter(|(owner, _)| engine.has((1, *owner)) == 0) {
            prop_assert!((count + 1) * 2 * owners as usize >= 200, "{owner} of {counts:?}");
        }
    }
}
