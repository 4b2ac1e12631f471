//! Where scans begin: nothing that is due is ever behind a cursor for longer than until the next scan from the head.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use xdb_sched::cursor::Cursors;

#[test]
fn the_first_scan_begins_at_the_head() {
    let cursors = Cursors::<u8, i64>::default();
    assert!(cursors.from_head(Instant::now()));
    assert_eq!(cursors.from(&1), None);
}

#[test]
fn a_scan_from_the_head_is_paid_for_with_time() {
    let mut cursors = Cursors::<u8, i64>::default();
    let began = Instant::now();
    cursors.scanned(began, Duration::from_millis(10));
    assert!(!cursors.from_head(began + Duration::from_millis(199)));
    assert!(cursors.from_head(began + Duration::from_millis(200)));
    cursors.scanned(began, Duration::ZERO);
    assert!(cursors.from_head(began), "what costs nothing is done each time");
}

#[test]
fn cursors_of_different_keys_are_lowered_together_and_never_raised_by_that() {
    let mut cursors = Cursors::<u8, i64>::default();
    cursors.advance(1, 10);
    cursors.advance(2, 20);
    cursors.lower(15);
    assert_eq!((cursors.from(&1), cursors.from(&2), cursors.from(&3)), (Some(10), Some(15), None));
}

#[derive(Clone, Debug)]
enum Act {
    /// Somebody adds a row that is due then, and says so.
    Add(i64),
    /// A scan that takes so many rows at most, and whose transaction commits or not.
    Scan { at_most: usize, commits: bool },
    /// Time goes on, or back.
    Clock(i64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0i64..100).prop_map(Act::Add),
        (1usize..5, any::<bool>()).prop_map(|(at_most, commits)| Act::Scan { at_most, commits }),
        (0i64..100).prop_map(Act::Clock),
    ]
}

proptest! {
    /// A scan from the cursor finds what one from the head would.
    #[test]
    fn nothing_is_left_behind(acts in prop::collection::vec(act(), 1..80)) {
        let mut cursors = Cursors::<(), i64>::default();
        let mut rows = BTreeSet::new();
        let mut added = BTreeMap::<i64, u32>::new();
        let mut now = 0;
        for act in acts {
            match act {
                Act::Add(due) => {
                    let number = added.entry(due).or_default();
                    *number += 1;
                    rows.insert((due, *number));
                    cursors.lower(due);
                }
                Act::Clock(to) => now = to,
                Act::Scan { at_most, commits } => {
                    let from = cursors.from(&());
                    let due = |row: &&(i64, u32)| row.0 <= now;
                    let seen: Vec<_> =
                        rows.iter().filter(due).filter(|row| from.is_none_or(|from| row.0 >= from)).take(at_most).copied().collect();
                    let all: Vec<_> = rows.iter().filter(due).take(at_most).copied().collect();
                    prop_assert_eq!(&seen, &all);
                    if commits {
                        let end = seen.last().filter(|_| seen.len() == at_most).map_or(now, |last| last.0);
                        cursors.advance((), end);
                        seen.iter().for_each(|row| { rows.remove(row); });
                    }
                }
            }
        }
    }
}
