//! Who may have which locks.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;
use xdb_sched::lock_board::*;
use xdb_sched::lock_table::{Mode, Object};

use Mode::{Exclusive as X, IntentionExclusive as IX, IntentionShared as IS, Shared as S};

fn object(number: u8) -> Object {
    [number; 16]
}

fn wanted(objects: &[(u8, Mode)]) -> Vec<(Object, Mode)> {
    objects.iter().map(|(number, mode)| (object(*number), *mode)).collect()
}

fn caller(mode: Mode, ticket: i64, granted: bool) -> CallersPlace {
    CallersPlace { mode, ticket, granted }
}

#[test]
fn all_or_nothing() {
    let mut board = Board::default();
    board.grant(&wanted(&[(2, X)]));
    let both = wanted(&[(1, X), (2, S)]);
    assert_eq!(board.judge(&both, 5), Verdict::BehindStates);
    assert_eq!(board.judge(&wanted(&[(1, X)]), 6), Verdict::Granted, "who waits for all holds nothing");
    board.park(&both, 5);
    assert_eq!(board.judge(&wanted(&[(1, X)]), 6), Verdict::BehindStates, "but it is in the way of who comes later");
    assert_eq!(board.judge(&wanted(&[(1, X)]), 4), Verdict::Granted, "and not of who came before");
    board.unpark(&both, 5);
    assert_eq!(board.judge(&wanted(&[(1, X)]), 6), Verdict::Granted);
}

#[test]
fn who_shares_passes_who_shares_and_nobody_passes_who_excludes() {
    let mut board = Board::default();
    board.grant(&wanted(&[(1, S)]));
    assert_eq!(board.judge(&wanted(&[(1, S)]), 7), Verdict::Granted);
    assert_eq!(board.judge(&wanted(&[(1, X)]), 8), Verdict::BehindStates);
    board.park(&wanted(&[(1, X)]), 8);
    assert_eq!(board.judge(&wanted(&[(1, S)]), 9), Verdict::BehindStates, "the one that excludes would starve");
}

#[test]
fn its_own_place_is_in_nobodys_own_way() {
    let mut board = Board::default();
    board.park(&wanted(&[(1, X)]), 3);
    assert_eq!(board.judge(&wanted(&[(1, X)]), 3), Verdict::Granted);
}

#[test]
fn parts_of_something_are_had_by_many() {
    let mut board = Board::default();
    board.grant(&wanted(&[(1, IX), (2, X)]));
    assert_eq!(board.judge(&wanted(&[(1, IX), (3, X)]), 2), Verdict::Granted);
    assert_eq!(board.judge(&wanted(&[(1, IS), (2, S)]), 2), Verdict::BehindStates);
    assert_eq!(board.judge(&wanted(&[(1, S)]), 2), Verdict::BehindStates);
}

#[test]
fn callers_come_by_ticket_until_they_have_it() {
    let mut board = Board::default();
    board.note_caller(object(1), caller(X, 5, false));
    assert_eq!(board.judge(&wanted(&[(1, X)]), 4), Verdict::Granted);
    assert_eq!(board.judge(&wanted(&[(1, X)]), 6), Verdict::BehindCaller(object(1)));
    board.note_caller(object(2), caller(X, 9, true));
    assert_eq!(board.judge(&wanted(&[(2, S)]), 1), Verdict::BehindCaller(object(2)));
    board.grant(&wanted(&[(3, X)]));
    assert_eq!(board.judge(&wanted(&[(2, S), (3, S)]), 1), Verdict::BehindStates, "a state's end is written down");
}

fn mode() -> impl Strategy<Value = Mode> {
    prop::sample::select(Mode::ALL.to_vec())
}

fn request() -> impl Strategy<Value = Vec<(Object, Mode)>> {
    btree_map(0u8..4, mode(), 1..4).prop_map(|objects| wanted(&objects.into_iter().collect::<Vec<_>>()))
}

proptest! {
    /// Requests come, the one that has its locks for longest ends, those that wait are judged again: nobody has what
    /// conflicts, nobody starves, and with nobody left nobody waits.
    #[test]
    fn whatever_comes_goes(requests in vec(request(), 1..40), ends in vec(any::<bool>(), 0..40)) {
        let mut held: BTreeMap<i64, Vec<(Object, Mode)>> = BTreeMap::new();
        let mut parked: BTreeMap<i64, Vec<(Object, Mode)>> = BTreeMap::new();
        let mut ends = ends.into_iter();
        let board_of = |held: &BTreeMap<i64, Vec<_>>, parked: &BTreeMap<i64, Vec<_>>| {
            let mut board = Board::default();
            held.values().for_each(|wanted| board.grant(wanted));
            parked.iter().for_each(|(ticket, wanted)| board.park(wanted, *ticket));
            board
        };
        let offer = |held: &mut BTreeMap<i64, Vec<_>>, parked: &mut BTreeMap<i64, Vec<_>>| {
            for ticket in parked.keys().copied().collect::<Vec<_>>() {
                if board_of(held, parked).judge(&parked[&ticket], ticket) == Verdict::Granted {
                    let wanted = parked.remove(&ticket).expect("it is there");
                    held.insert(ticket, wanted);
                }
            }
        };
        for (ticket, wanted) in (1i64..).zip(requests) {
            match board_of(&held, &parked).judge(&wanted, ticket) {
                Verdict::Granted => held.insert(ticket, wanted),
                _ => parked.insert(ticket, wanted),
            };
            if ends.next() == Some(true) {
                held.pop_first();
                offer(&mut held, &mut parked);
            }
            let all: Vec<_> = held.iter().flat_map(|(t, wanted)| wanted.iter().map(move |(o, m)| (t, o, m))).collect();
            for (a, on, mode) in &all {
                for (b, also_on, other) in &all {
                    prop_assert!(a == b || on != also_on || !mode.conflicts(**other), "{all:?}");
                }
            }
        }
        while held.pop_first().is_some() {
            offer(&mut held, &mut parked);
        }
        prop_assert!(parked.is_empty(), "{parked:?}");
    }
}
