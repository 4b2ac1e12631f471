//! The budget of a turn for the application's tables, with examples and random turns.

use proptest::prelude::*;
use std::time::Duration;
use xdb_sched::budget::*;

const LIMIT: Duration = Duration::from_millis(250);

#[test]
fn all_uses_together_take_the_limit_of_one() {
    let mut budget = Budget::new(LIMIT, TurnPart::Answers);
    assert!(budget.is_untouched());
    assert_eq!(budget.next_use(false), Some(LIMIT));
    budget.spent(Duration::from_millis(100));
    assert_eq!((budget.next_use(false), budget.is_untouched()), (Some(Duration::from_millis(150)), false));
    budget.spent(Duration::from_millis(25));
    assert_eq!(budget.next_use(false), None, "half of the budget is used");
    assert_eq!(budget.next_use(true), Some(Duration::from_millis(125)), "the first one goes on");
    budget.spent(LIMIT);
    assert_eq!(budget.next_use(false), None);
}

#[test]
fn nothing_is_for_the_parts_before_the_first_one() {
    let mut budget = Budget::new(LIMIT, TurnPart::Closing);
    assert_eq!(budget.next_use(budget.is_untouched()), None);
    for part in [TurnPart::Closing, TurnPart::Calls] {
        budget.begin_part(part);
        assert_eq!((budget.next_use(true), budget.part()), (Some(LIMIT), part));
    }
}

#[test]
fn parts_for_which_the_time_was_too_short_take_turns() {
    let mut parts = Parts::default();
    assert_eq!(parts.begin_turn(), TurnPart::Answers);
    parts.was_short(TurnPart::Calls);
    assert_eq!(parts.begin_turn(), TurnPart::Calls);
    assert_eq!(parts.begin_turn(), TurnPart::Answers, "no part has waited");
    let turn = |parts: &mut Parts| {
        TurnPart::ALL.into_iter().for_each(|part| parts.was_short(part));
        parts.begin_turn()
    };
    let turns: Vec<_> = (0..4).map(|_| turn(&mut parts)).collect();
    assert_eq!(turns, [TurnPart::Closing, TurnPart::Calls, TurnPart::Answers, TurnPart::Closing]);
}

#[test]
fn a_turn_in_which_answers_rest_is_that_of_the_calls() {
    let mut parts = Parts::default();
    for _ in 0..3 {
        assert_eq!(parts.begin_turn(), TurnPart::Answers, "calls have had theirs in the rest");
        parts.was_short(TurnPart::Answers);
        parts.was_short(TurnPart::Calls);
        assert_eq!(parts.begin_rest(), TurnPart::Calls);
        parts.was_short(TurnPart::Answers);
    }
    parts.was_short(TurnPart::Closing);
    assert_eq!(parts.begin_rest(), TurnPart::Calls);
    assert_eq!(parts.begin_turn(), TurnPart::Closing, "a rest changes nothing about whose turn it is");
}

/// How long each use of a table in a part takes.
type Wants = Vec<Duration>;

/// Makes one turn, with the uses of each part in order. Returns how many uses of each part were completed, and whether
/// the first use of the turn was cut short.
fn turn(parts: &mut Parts, wants: &[Wants; 3]) -> ([usize; 3], bool) {
    let mut budget = Budget::new(LIMIT, parts.begin_turn());
    let (mut done, mut cut_first) = ([0; 3], false);
    for part in TurnPart::ALL {
        budget.begin_part(part);
        for takes in &wants[part as usize] {
            let is_first = budget.is_untouched();
            match budget.next_use(is_first) {
                Some(at_most) => {
                    budget.spent((*takes).min(at_most));
                    if *takes <= at_most {
                        done[part as usize] += 1;
                    } else if is_first {
                        cut_first = true;
                    } else {
                        parts.was_short(part);
                    }
                }
                None => parts.was_short(part),
            }
        }
    }
    (done, cut_first)
}

proptest! {
    /// However many uses the other parts have, each part makes progress within three turns.
    #[test]
    fn every_part_gets_on(
        wants in prop::array::uniform3(prop::collection::vec((1u64..200).prop_map(Duration::from_millis), 1..100)),
        turns in 3usize..20,
    ) {
        let mut parts = Parts::default();
        let turns: Vec<_> = (0..turns).map(|_| turn(&mut parts, &wants).0).collect();
        for three in turns.windows(3) {
            for part in TurnPart::ALL {
                prop_assert!(three.iter().any(|done| done[part as usize] > 0), "{part:?} of {turns:?}");
            }
        }
    }

    /// A use that takes too long is soon cut short as the first use of a turn, whatever other uses there are.
    #[test]
    fn a_slow_use_soon_comes_first_in_a_turn(
        before in prop::collection::vec((1u64..200).prop_map(Duration::from_millis), 1..100),
        part in prop::sample::select(vec![TurnPart::Closing, TurnPart::Calls]),
    ) {
        let mut wants = [before, Vec::new(), Vec::new()];
        wants[part as usize] = vec![LIMIT * 2];
        let mut parts = Parts::default();
        prop_assert!((0..3).any(|_| turn(&mut parts, &wants).1));
    }

    /// 64 uses of a table with a slow trigger end soon after the limit, however long each takes.
    #[test]
    fn a_turn_is_bounded(uses in prop::collection::vec(4u64..400, 64)) {
        let mut budget = Budget::new(LIMIT, TurnPart::Answers);
        let mut took = Duration::ZERO;
        for millis in uses {
            let Some(at_most) = budget.next_use(false) else { break };
            // The statement is cancelled when the remaining time is over.
            let time = Duration::from_millis(millis).min(at_most);
            budget.spent(time);
            took += time;
        }
        // Without the limit, 64 uses would take longer.
        prop_assert!(took <= LIMIT && took * 2 >= LIMIT, "{took:?}");
    }
}
