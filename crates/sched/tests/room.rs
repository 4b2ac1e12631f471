//! Places for calls: how many calls may be made in all, for each worker and for each owner, and which owner is next.

use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use xdb_sched::breaker::Admission;
use xdb_sched::room::{
    BEHIND, InFlight, Line, LinesToScan, Owner, Room, SHARE, WorkerId, is_full, places, places_of_request,
};

const PLENTY: usize = 1000;

fn line(worker: WorkerId, owner: Owner) -> Line {
    Line { worker, owner }
}

/// Calls to workers, each of another owner, with the number of places that each takes.
fn under_way(calls: &[(WorkerId, usize)]) -> InFlight<()> {
    let mut in_flight = InFlight::default();
    for (owner, (worker, places)) in (100..).zip(calls) {
        in_flight.insert(line(*worker, owner), *places, ());
    }
    in_flight
}

/// The places of one worker that has this number of places.
fn room_of(in_flight: &InFlight<()>, places: usize) -> Room {
    Room::new(in_flight, PLENTY, PLENTY, &[(1, places)], |_| Admission::All)
}

/// Takes places for this line until there is none.
fn fill(room: &mut Room, line: Line) -> usize {
    std::iter::repeat_with(|| room.take(line)).take_while(|taken| *taken).count()
}

#[test]
fn of_several_workers_none_gets_more_than_half() {
    let room = |workers: &[(i32, usize)], connections| {
        Room::new(&under_way(&[(1, 1), (1, 1)]), 10, connections, workers, |_| Admission::All)
    };
    assert_eq!(room(&[(1, PLENTY)], PLENTY).of_worker(1), 8, "alone it gets what is left");
    let shared = room(&[(1, PLENTY), (2, PLENTY)], PLENTY);
    assert_eq!((shared.of_worker(1), shared.of_worker(2), shared.total()), (3, 5, 8));
    let few = room(&[(1, PLENTY), (2, PLENTY)], 6);
    assert_eq!((few.of_worker(1), few.of_worker(2)), (1, 3), "nor of the connections");
    assert_eq!(room(&[(1, PLENTY), (2, 4)], PLENTY).of_worker(2), 4, "its own limit");
}

#[test]
fn a_breaker_lets_one_probe_out_or_nothing() {
    let admits = |worker| if worker == 1 { Admission::Probe } else { Admission::None };
    let mut in_flight = InFlight::default();
    let (hanging, other) = (line(1, 7), line(2, 7));
    for _ in 0..9 {
        in_flight.insert(hanging, 1, ());
    }
    let mut room = Room::new(&in_flight, 10, PLENTY, &[(1, PLENTY), (2, PLENTY)], admits);
    assert_eq!(room.wanted([(hanging, true), (other, true)], PLENTY).lines, [(hanging, 1)]);
    assert!(!room.has(other) && !room.take(other) && !room.take(line(3, 7)));
    assert!(room.take(hanging), "a probe counts for no owner");
    assert!(!room.has_any() && !room.has(hanging) && !room.take(hanging));
    assert_eq!(room.total(), 0);
}

#[test]
fn a_call_under_way_takes_places_until_it_ends() {
    let mut in_flight = under_way(&[]);
    let tags = [1, 1].map(|places| in_flight.insert(line(1, 7), places, ()));
    let room = |in_flight: &InFlight<()>| Room::new(in_flight, 3, PLENTY, &[(1, PLENTY)], |_| Admission::All);
    assert_eq!(room(&in_flight).total(), 1);
    assert_eq!(in_flight.remove(tags[0]), Some(()));
    assert_eq!(in_flight.remove(tags[0]), None);
    assert_eq!((in_flight.len(), in_flight.of_worker(1)), (1, 1));
    assert_eq!((room(&in_flight).of_worker(1), room(&in_flight).of_line(line(1, 7))), (2, 2));
}

#[test]
fn a_large_request_takes_places_by_its_bytes_and_leaves_some_to_other_owners() {
    const KB: usize = 1024;
    assert_eq!([0, 1, 128 * KB, 129 * KB, 1024 * KB].map(|bytes| places_of_request(bytes, 1024)), [1, 1, 1, 2, 8]);
    let huge = places_of_request(usize::MAX, 1024);
    assert_eq!((huge, places_of_request(usize::MAX, 10)), (64, 1));
    let (workers, mine) = ([(1, PLENTY), (2, PLENTY)], line(1, 7));
    let mut in_flight = InFlight::default();
    let room = |in_flight: &InFlight<()>| Room::new(in_flight, 1024, 2 * PLENTY, &workers, |_| Admission::All);
    let mut tags = Vec::new();
    while room(&in_flight).take_places(mine, huge) {
        tags.push(in_flight.insert(mine, huge, ()));
    }
    assert_eq!(tags.len(), 15, "of sixteen that there are places for");
    assert!(!room(&in_flight).has(line(2, 7)), "the owner has its share, at every worker");
    assert!(
        room(&in_flight).has(line(1, 8)) && room(&in_flight).take_places(line(2, 8), huge),
        "other owners find places"
    );
    let mut room_now = room(&in_flight);
    assert_eq!(fill(&mut room_now, line(1, 8)), 57, "of 64");
    in_flight.remove(tags[0]);
    assert!(room(&in_flight).has(mine));
    let mut last = room_of(&InFlight::default(), 1);
    assert!(last.take_places(mine, 2 * PLENTY) && last.total() == 0, "with one place left");
}

#[test]
fn a_single_owner_gets_nearly_all_places_and_all_if_there_are_few() {
    let none = InFlight::default();
    for places in 1..=SHARE {
        assert_eq!(fill(&mut room_of(&none, places), line(1, 7)), places);
    }
    for (places, expected) in [(9, 8), (16, 15), (64, 57), (512, 456)] {
        assert_eq!(fill(&mut room_of(&none, places), line(1, 7)), expected, "of {places}");
    }
}

#[test]
fn the_calls_of_an_owner_at_many_workers_count_together() {
    let workers: Vec<_> = (1..=20).map(|worker| (worker, PLENTY)).collect();
    let mut room = Room::new(&InFlight::<()>::default(), 90, PLENTY, &workers, |_| Admission::All);
    let taken: usize = (1..=20).map(|worker| fill(&mut room, line(worker, 7))).sum();
    assert_eq!(taken, 80);
    assert!((1..=20).all(|worker| room.has(line(worker, 8))));
}

#[test]
fn the_owner_with_the_fewest_calls_is_next_and_the_fewest_so_far_decide_a_tie() {
    let mut in_flight = InFlight::default();
    let [first, second, newcomer] = [1, 2, 3].map(|owner| line(1, owner));
    let tags = [first, second, second].map(|line| in_flight.insert(line, 1, ()));
    let room = room_of(&in_flight, 4);
    assert!(room.rank(newcomer, 0) < room.rank(first, 0) && room.rank(first, 0) < room.rank(second, 0));
    assert_eq!(room.rank(first, 1).0, room.rank(second, 0).0);
    assert!(room.goes_before(newcomer, first) && room.goes_before(first, second) && !room.goes_before(second, first));
    assert!(!room.goes_before(first, first) && !room.goes_before(line(2, 3), first), "the same, and elsewhere");
    for tag in tags {
        in_flight.remove(tag);
    }
    let room = room_of(&in_flight, 1);
    assert!(room.rank(first, 0) < room.rank(second, 0), "it has got fewer calls");
    assert!(room.goes_before(first, second) && room.goes_before(second, first), "both leave it to the order");
}

#[test]
fn lines_with_waiting_calls_share_the_scan() {
    let room = room_of(&InFlight::default(), 90);
    let lines = |count, waits| (0..count).map(move |owner| (line(1, owner), waits));
    let total = |wanted: LinesToScan| wanted.lines.into_iter().map(|(_, count)| count).sum::<usize>();
    assert_eq!(room.wanted(lines(1, true), PLENTY).lines, [(line(1, 0), 80)]);
    assert_eq!(room.wanted(lines(1, true), 30).lines, [(line(1, 0), 30)]);
    assert_eq!(total(room.wanted(lines(2, true), PLENTY)), 160);
    assert_eq!(total(room.wanted(lines(60, true), PLENTY)), 180);
    assert_eq!(total(room.wanted(lines(3, false), PLENTY)), 240, "little waits there");
}

#[test]
fn a_scan_passes_over_the_last_lines_if_there_are_too_many() {
    let mut in_flight = InFlight::default();
    for owner in 0..200 {
        in_flight.insert(line(1, owner), 1, ());
    }
    let room = room_of(&in_flight, 300);
    let LinesToScan { lines, passed_over } = room.wanted((0..500).map(|owner| (line(1, owner), true)), PLENTY);
    assert_eq!(
        lines,
        (200..400).map(|owner| (line(1, owner), 1)).collect::<Vec<_>>(),
        "owners without calls come first"
    );
    let passed_over: HashSet<_> = passed_over.into_iter().map(|line| line.owner).collect();
    assert_eq!(passed_over, (0..200).chain(400..500).collect());
    let drained = (0..500).map(|owner| (line(1, owner), owner >= 20));
    let wanted = room.wanted(drained, PLENTY);
    assert_eq!((wanted.lines.len(), wanted.passed_over.len()), (220, 280), "drained lines cost nothing");
}

/// An event at a worker: calls of an owner come due, or some calls under way end.
#[derive(Clone, Copy, Debug)]
enum Step {
    Due(Owner, usize),
    End(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let due = (0..5u32, 1..200usize).prop_map(|(owner, count)| Step::Due(owner, count));
    let end = (1..100usize).prop_map(Step::End);
    prop::collection::vec(prop_oneof![due, end], 1..60)
}

/// A worker, and the owners whose calls wait for it.
struct Bench {
    places: usize,
    in_flight: InFlight<Owner>,
    tags: Vec<u64>,
    waiting: HashMap<Owner, usize>,
    /// The most calls of an owner after it got a place while other owners waited.
    most_while_owners_wait: usize,
}

impl Bench {
    fn new(places: usize) -> Self {
        Self {
            places,
            in_flight: InFlight::default(),
            tags: Vec::new(),
            waiting: HashMap::new(),
            most_while_owners_wait: 0,
        }
    }

    fn room(&self) -> Room {
        Room::new(&self.in_flight, PLENTY, PLENTY, &[(1, self.places)], |_| Admission::All)
    }

    fn calls(&self, owner: Owner) -> usize {
        self.room().rank(line(1, owner), 0).0
    }

    /// Makes calls, in their order, until there is no place for any waiting call.
    fn claim(&mut self) {
        loop {
            let room = self.room();
            let waiting = self.waiting.iter().filter(|(_, count)| **count > 0).map(|(owner, _)| line(1, *owner));
            let Some(next) = waiting.filter(|line| room.has(*line)).min_by_key(|line| room.rank(*line, 0)) else {
                return;
            };
            if self.waiting.iter().any(|(other, count)| *count > 0 && *other != next.owner) {
                self.most_while_owners_wait = self.most_while_owners_wait.max(self.calls(next.owner) + 1);
            }
            self.tags.push(self.in_flight.insert(next, 1, next.owner));
            *self.waiting.entry(next.owner).or_default() -= 1;
        }
    }

    /// Makes calls as a turn does: it ranks all waiting calls, and then gives them places. Returns the owners.
    fn claim_at_once(&mut self) -> Vec<Owner> {
        let mut room = self.room();
        let mut ranked: Vec<_> = Vec::new();
        for line in self.waiting.keys().map(|owner| line(1, *owner)) {
            ranked.extend((0..room.of_line(line)).map(|nth| (room.rank(line, nth), line)));
        }
        ranked.sort_unstable();
        let placed = ranked.into_iter().filter(|(_, line)| room.take(*line));
        let owners: Vec<_> = placed.map(|(_, line)| line.owner).collect();
        self.tags.extend(owners.iter().map(|owner| self.in_flight.insert(line(1, *owner), 1, *owner)));
        owners
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Due(owner, count) => *self.waiting.entry(owner).or_default() += count,
            Step::End(count) => {
                for _ in 0..count.min(self.tags.len()) {
                    let tag = self.tags.swap_remove(self.tags.len() / 2);
                    self.in_flight.remove(tag);
                }
            }
        }
        self.claim();
    }
}

proptest! {
    #[test]
    fn as_many_calls_are_wanted_as_there_are_places(places in 0..300usize, steps in steps(), owner in 0..5u32) {
        let mut bench = Bench::new(places);
        for step in steps {
            bench.step(step);
            let mut room = bench.room();
            let wanted = room.of_line(line(1, owner));
            prop_assert_eq!(fill(&mut room, line(1, owner)), wanted);
        }
    }

    /// An owner without calls gets a place, because one owner alone never takes the last free place.
    #[test]
    fn a_newcomer_gets_a_place(places in SHARE + 1..300, steps in steps(), greedy in 1..2000usize) {
        let mut bench = Bench::new(places);
        bench.step(Step::Due(7, greedy));
        prop_assert!(bench.room().has(line(1, 9)));
        for step in steps {
            bench.step(step);
            let room = bench.room();
            prop_assert_eq!(room.has(line(1, 9)), room.of_worker(1) > 0);
        }
    }

    /// Whatever the distribution of calls was before, all of them end once. Then waiting owners have equal shares, and
    /// no owner lacks a place that another owner could give.
    #[test]
    fn each_waiting_owner_gets_a_fair_share(places in 1..300usize, owners in 1..5u32, first in 1..5000usize) {
        let mut bench = Bench::new(places);
        bench.step(Step::Due(0, first));
        (0..owners).for_each(|owner| bench.step(Step::Due(owner, 100_000)));
        for _ in 0..2 * places {
            let ended = bench.tags.remove(0);
            bench.in_flight.remove(ended);
            bench.claim();
        }
        let calls: Vec<_> = (0..owners).map(|owner| bench.calls(owner)).collect();
        let (least, most) = (calls.iter().min().copied().unwrap_or(0), calls.iter().max().copied().unwrap_or(0));
        prop_assert!(most - least <= 1, "{:?}", calls);
        let unused = places - bench.in_flight.len();
        prop_assert!(unused <= most / SHARE + 1, "{} unused beside {:?}", unused, calls);
        prop_assert!(places > SHARE || unused == 0);
    }

    /// Of N owners with due calls, each gets 1/N of the calls, whatever batches the calls end in. This also holds if the
    /// places can't be divided equally. The difference does not grow with the number of calls.
    #[test]
    fn each_owner_gets_equally_many_calls(
        places in 1..100usize, owners in 2..7u32, ends in prop::collection::vec(1..100usize, 1..80),
    ) {
        let mut bench = Bench::new(places);
        bench.waiting = (0..owners).map(|owner| (owner, PLENTY)).collect();
        let mut got = vec![0usize; owners as usize];
        for count in ends {
            bench.claim_at_once().into_iter().for_each(|owner| got[owner as usize] += 1);
            for tag in bench.tags.drain(..count.min(bench.tags.len())) {
                bench.in_flight.remove(tag);
            }
            let (least, most) = (got.iter().min().copied().unwrap_or(0), got.iter().max().copied().unwrap_or(0));
            prop_assert!(most - least <= 4 * BEHIND as usize, "{:?}", got);
        }
    }

    /// An owner that was away is ahead of the others for a few calls only.
    #[test]
    fn an_owner_that_was_away_does_not_make_up_for_it(before in 0..500usize) {
        let mut bench = Bench::new(1);
        let next = |bench: &mut Bench, owners: &[Owner]| {
            bench.waiting = owners.iter().map(|owner| (*owner, 1)).collect();
            let owner = bench.claim_at_once()[0];
            bench.in_flight.remove(bench.tags.remove(0));
            owner
        };
        (0..before).for_each(|_| _ = next(&mut bench, &[1]));
        let of_newcomer = (0..100).filter(|_| next(&mut bench, &[1, 2]) == 2).count();
        prop_assert!(of_newcomer <= (100 + BEHIND as usize) / 2, "{} of 100", of_newcomer);
    }

    /// An owner that gets a place while other owners wait has at most half of the places.
    #[test]
    fn no_owner_gets_more_than_half_while_other_owners_wait(places in 1..300usize, steps in steps()) {
        let mut bench = Bench::new(places);
        for step in steps {
            bench.step(step);
            prop_assert!(2 * bench.most_while_owners_wait <= places + 1, "{} of {}", bench.most_while_owners_wait, places);
        }
    }

    /// With one place, no owner is passed over.
    #[test]
    fn owners_take_turns_at_a_single_place(owners in 1..6u32) {
        let mut bench = Bench::new(1);
        (0..owners).for_each(|owner| bench.step(Step::Due(owner, 1000)));
        let mut served = Vec::new();
        for _ in 0..5 * owners {
            let ended = bench.tags.remove(0);
            served.extend(bench.in_flight.remove(ended));
            bench.claim();
        }
        for round in served.chunks(owners as usize) {
            let mut round = round.to_vec();
            round.sort_unstable();
            prop_assert_eq!(round, (0..owners).collect::<Vec<_>>());
        }
    }
}

#[test]
fn the_places_of_a_worker_are_its_own_or_its_part_of_all() {
    assert_eq!(places(96, 1024, 320, 1), 96);
    assert_eq!(places(96, 1024, 320, 2), 96);
    assert_eq!(places(500, 1024, 320, 1), 500, "alone it may have calls wait for connections");
    assert_eq!(places(500, 1024, 320, 2), 160, "beside other workers it has half of the connections");
    assert_eq!(places(500, 100, 320, 3), 50, "and half of the calls");
}

#[test]
fn a_worker_is_full_when_one_owner_gets_no_further_place() {
    for places in [1, 3, 8] {
        assert!(!is_full(places - 1, places) && is_full(places, places), "{places}");
    }
    // An owner alone gets eight ninths of the places.
    assert!(!is_full(85, 96) && is_full(86, 96));
    assert!(is_full(5, 0) && is_full(0, 0));
}
