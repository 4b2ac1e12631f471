//! Where looks begin: nothing that is due is ever behind a front for longer than until the next look at everything.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use xdb_pure_tests::fronts::Fronts;

#[test]
fn the_first_look_is_at_everything() {
    let fronts = Fronts::<u8, i64>::default();
    assert!(fronts.full(Instant::now()));
    assert_eq!(fronts.from(&1), None);
}

#[test]
fn a_look_at_everything_is_paid_for_with_time() {
    let mut fronts = Fronts::<u8, i64>::default();
    let began = Instant::now();
    fronts.looked(began, Duration::from_millis(10));
    assert!(!fronts.full(began + Duration::from_millis(199)));
    assert!(fronts.full(began + Duration::from_millis(200)));
    fronts.looked(began, Duration::ZERO);
    assert!(fronts.full(began), "what costs nothing is done each time");
}

#[test]
fn fronts_of_different_keys_are_lowered_together_and_never_raised_by_that() {
    let mut fronts = Fronts::<u8, i64>::default();
    fronts.advance(1, 10);
    fronts.advance(2, 20);
    fronts.lower(15);
    assert_eq!((fronts.from(&1), fronts.from(&2), fronts.from(&3)), (Some(10), Some(15), None));
}

#[derive(Clone, Debug)]
enum Act {
    /// Somebody adds a row that is due then, and says so.
    Add(i64),
    /// A look that takes so many rows at most, and whose transaction commits or not.
    Look { at_most: usize, commits: bool },
    /// Time goes on, or back.
    Clock(i64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0i64..100).prop_map(Act::Add),
        (1usize..5, any::<bool>()).prop_map(|(at_most, commits)| Act::Look { at_most, commits }),
        (0i64..100).prop_map(Act::Clock),
    ]
}

proptest! {
    /// A look from the front finds what a look at everything would.
    #[test]
    fn nothing_is_left_behind(acts in prop::collection::vec(act(), 1..80)) {
        let mut fronts = Fronts::<(), i64>::default();
        let mut rows = BTreeSet::new();
        let mut added = BTreeMap::<i64, u32>::new();
        let mut now = 0;
        for act in acts {
            match act {
                Act::Add(due) => {
                    let number = added.entry(due).or_default();
                    *number += 1;
                    rows.insert((due, *number));
                    fronts.lower(due);
                }
                Act::Clock(to) => now = to,
                Act::Look { at_most, commits } => {
                    let from = fronts.from(&());
                    let due = |row: &&(i64, u32)| row.0 <= now;
                    let seen: Vec<_> =
                        rows.iter().filter(due).filter(|row| from.is_none_or(|from| row.0 >= from)).take(at_most).copied().collect();
                    let all: Vec<_> = rows.iter().filter(due).take(at_most).copied().collect();
                    prop_assert_eq!(&seen, &all);
                    if commits {
                        let end = seen.last().filter(|_| seen.len() == at_most).map_or(now, |last| last.0);
                        fronts.advance((), end);
                        seen.iter().for_each(|row| { rows.remove(row); });
                    }
                }
            }
        }
    }
}
