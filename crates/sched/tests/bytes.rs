//! The budget of bytes: small things always go, and large things go while bytes are left.

use xdb_sched::bytes::*;

#[test]
fn small_items_always_fit_and_large_ones_up_to_the_budget_or_one() {
    let mut budget = ByteBudget::default();
    assert!(budget.take(LARGE) && budget.take(10 * OF_A_PHASE), "the first, whatever its size");
    assert!(!budget.take(LARGE + 1) && budget.take(LARGE));
    let mut budget = ByteBudget::default();
    let half = OF_A_PHASE / 2 + 1;
    assert!(budget.take(half) && budget.take(half) && !budget.take(half) && budget.is_spent());
    let mut nothing_large = ByteBudget::of(false);
    assert!(nothing_large.take(LARGE) && !nothing_large.take(LARGE + 1));
}
