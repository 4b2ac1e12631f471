//! The owners for which timers and messages are scanned, and how many of each owner a turn takes.

use std::collections::HashMap;
use std::time::Instant;
use xdb_sched::due_owners::{DueOwners, FORGOTTEN_AFTER, InTurns, in_turns, share};
use xdb_sched::room::Owner;

fn owners(due: &DueOwners<i64>, now: i64) -> Vec<Owner> {
    due.due(now).collect()
}

#[test]
fn no_owner_is_scanned_before_a_row_may_be_due() {
    let (mut due, now) = (DueOwners::default(), Instant::now());
    assert_eq!((owners(&due, 100), due.next(0)), (vec![], None));
    due.found([(1, 10), (2, 20)], now);
    assert_eq!((owners(&due, 9), due.next(9)), (vec![], Some(10)));
    assert_eq!((owners(&due, 10), due.next(10)), (vec![1], Some(20)));
    due.taken(1, Some(30), true, now);
    assert_eq!((owners(&due, 20), due.next(20)), (vec![2], Some(30)));
    due.taken(2, None, false, now);
    assert_eq!((owners(&due, 99), due.next(0)), (vec![1], Some(30)));
}

#[test]
fn a_written_row_moves_the_due_time_and_owners_are_remembered() {
    let (mut due, now) = (DueOwners::default(), Instant::now());
    due.note(1, 30, now);
    due.note(1, 10, now);
    due.note(1, 20, now);
    assert_eq!((owners(&due, 10), due.next(0)), (vec![1], Some(10)));
    due.taken(1, None, true, now);
    due.note(1, 40, now);
    assert_eq!((owners(&due, 39), owners(&due, 40)), (vec![], vec![1]));
}

#[test]
fn an_owner_without_due_rows_is_forgotten_after_a_while() {
    let (mut due, now) = (DueOwners::default(), Instant::now());
    due.found([(1, 10), (2, 20)], now);
    let later = now + FORGOTTEN_AFTER / 2;
    due.taken(1, None, true, later);
    due.taken(1, None, false, later + FORGOTTEN_AFTER / 2);
    due.found([(2, 20)], later + FORGOTTEN_AFTER);
    assert_eq!(due.all().collect::<Vec<_>>(), [1, 2]);
    due.found([(2, 20)], later + FORGOTTEN_AFTER * 2);
    assert_eq!(due.all().collect::<Vec<_>>(), [2]);
}

#[test]
fn each_owner_gets_a_fair_share_and_the_first_row_left_is_returned() {
    let of = |item: &(Owner, i64)| *item;
    let found: Vec<_> = (0..10).map(|at| (1, at)).chain([(2, 100), (2, 101), (3, 50)]).collect();
    let InTurns { mut taken, left } = in_turns(found, 6, 7, of);
    taken[..3].sort();
    taken[3..5].sort();
    assert_eq!(taken, [(1, 0), (2, 100), (3, 50), (1, 1), (2, 101), (1, 2)]);
    assert_eq!(left, HashMap::from([(1, 3)]));
    let InTurns { taken, left } = in_turns(vec![(1, 0), (2, 1)], 6, 7, of);
    assert_eq!((taken.len(), left.len()), (2, 0));
    assert_eq!((share(256, 0), share(256, 1), share(256, 3), share(2, 5)), (256, 256, 86, 1));
}

#[test]
fn another_owner_is_the_first_in_each_turn() {
    let first = |turn| in_turns(vec![(1, 0), (2, 1), (3, 2)], 6, turn, |item: &(Owner, i64)| *item).taken[0].0;
    let firsts: Vec<_> = (0..300).map(first).collect();
    for owner in 1..=3 {
        let count = firsts.iter().filter(|first| **first == owner).count();
        assert!((60..=140).contains(&count), "{count} times owner {owner}");
    }
}

#[test]
fn a_row_written_before_the_cursor_is_found() {
    let (mut due, now) = (DueOwners::default(), Instant::now());
    assert_eq!(due.since(1, Some(100)), Some(100));
    due.found([(1, 200)], now);
    assert_eq!((due.since(1, None), due.since(1, Some(100))), (None, Some(100)));
    due.note(1, 10, now);
    assert_eq!(due.since(1, Some(100)), Some(10));
}
