//! What a turn may spend in users' tables.

use proptest::prelude::*;
use std::time::Duration;
use xdb_sched::budget::*;

const LIMIT: Duration = Duration::from_millis(250);

#[test]
fn all_uses_together_take_the_limit_of_one() {
    let mut budget = Budget::new(LIMIT);
    assert!(budget.is_untouched());
    assert_eq!(budget.next_use(false), Some(LIMIT));
    budget.spent(Duration::from_millis(100));
    assert_eq!((budget.next_use(false), budget.is_untouched()), (Some(Duration::from_millis(150)), false));
    budget.spent(Duration::from_millis(25));
    assert_eq!(budget.next_use(false), None, "half of it is gone");
    assert_eq!(budget.next_use(true), Some(Duration::from_millis(125)), "the first one goes on");
    budget.spent(LIMIT);
    assert_eq!(budget.next_use(false), None);
}

#[test]
fn a_transaction_has_so_many_guards() {
    let mut budget = Budget::new(LIMIT);
    assert_eq!((0..100).filter(|_| budget.take_guard()).count(), GUARDS);
}

proptest! {
    /// 64 uses of a table whose trigger takes long end soon after the limit, whatever each takes.
    #[test]
    fn a_turn_is_bounded(uses in prop::collection::vec(4u64..400, 64)) {
        let mut budget = Budget::new(LIMIT);
        let mut took = Duration::ZERO;
        for millis in uses {
            let Some(at_most) = budget.next_use(false) else { break };
            // The statement is ended when the time that is left is over.
            let time = Duration::from_millis(millis).min(at_most);
            budget.spent(time);
            took += time;
        }
        // 64 of these uses take longer.
        prop_assert!(took <= LIMIT && took * 2 >= LIMIT, "{took:?}");
    }
}
