//! Room for calls: how many may go out, in all and per worker.

use xdb_sched::breaker::Admission;
use xdb_sched::room::{InFlight, Room};

const PLENTY: usize = 1000;

fn under_way(calls: &[(i32, usize)]) -> InFlight<()> {
    let mut in_flight = InFlight::default();
    for (worker, bytes) in calls {
        in_flight.insert(*worker, *bytes, ());
    }
    in_flight
}

#[test]
fn of_several_workers_none_gets_more_than_half() {
    let room = |workers: &[(i32, usize)], connections| {
        Room::new(&under_way(&[(1, 1), (1, 1)]), 10, connections, PLENTY, workers, |_| Admission::All)
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
    let calls = [(1, 1); 5];
    let mut room = Room::new(&under_way(&calls), 10, PLENTY, PLENTY, &[(1, PLENTY), (2, PLENTY)], admits);
    assert_eq!(room.wanted(PLENTY), [(1, 1)]);
    assert!(!room.has(2) && !room.take(2) && !room.take(3));
    assert!(room.take(1) && !room.has(1) && !room.take(1));
    assert_eq!(room.total(), 4);
}

#[test]
fn what_is_under_way_takes_room_until_it_ends() {
    let mut in_flight = under_way(&[]);
    let tags = [in_flight.insert(1, 60, ()), in_flight.insert(1, 40, ())];
    let room = |in_flight: &InFlight<()>| Room::new(in_flight, 3, PLENTY, 100, &[(1, PLENTY)], |_| Admission::All);
    assert_eq!(room(&in_flight).total(), 0, "its bytes are too many");
    assert_eq!(in_flight.remove(tags[0]), Some(()));
    assert_eq!(in_flight.remove(tags[0]), None);
    assert_eq!((in_flight.len(), in_flight.bytes(), in_flight.of_worker(1)), (1, 40, 1));
    assert_eq!(room(&in_flight).of_worker(1), 2);
}
