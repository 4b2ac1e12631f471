//! Fair shares at a pull worker: owners take turns.

use proptest::prelude::*;
use xdb_sched::turns::shares;

#[test]
fn each_owner_gets_one_in_its_turn() {
    for (due, places, expected, last) in [
        (vec![], 3, vec![], None),
        (vec![5, 5], 0, vec![0, 0], None),
        (vec![400], 10, vec![10], Some(0)),
        (vec![3], 10, vec![3], Some(0)),
        (vec![400, 5, 400], 1, vec![1, 0, 0], Some(0)),
        (vec![400, 5, 400], 10, vec![4, 3, 3], Some(0)),
        (vec![400, 1, 400], 10, vec![5, 1, 4], Some(0)),
        (vec![usize::MAX, 2], 1000, vec![998, 2], Some(0)),
        (vec![0, 2, 0, 2], 3, vec![0, 2, 0, 1], Some(1)),
    ] {
        assert_eq!(shares(&due, places), (expected, last), "{places} places for {due:?}");
    }
}

/// The due calls of up to eight owners.
fn due() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..50usize, 0..8)
}

/// An error if an owner that has calls left got fewer than another owner, by more than one.
fn are_equal(got: &[usize], left: &[usize]) -> Result<(), TestCaseError> {
    let most = got.iter().max().copied().unwrap_or(0);
    for (owner, (got_it, left)) in got.iter().zip(left).enumerate() {
        prop_assert!(*left == 0 || got_it + 1 >= most, "owner {} got {} of {:?}", owner, got_it, got);
    }
    Ok(())
}

fn left(due: &[usize], got: &[usize]) -> Vec<usize> {
    due.iter().zip(got).map(|(due, got)| due - got).collect()
}

proptest! {
    #[test]
    fn of_n_owners_with_calls_left_each_gets_the_same_number(due in due(), places in 0..500usize) {
        let (shares, last) = shares(&due, places);
        prop_assert!(due.iter().zip(&shares).all(|(due, share)| share <= due));
        let total: usize = shares.iter().sum();
        prop_assert_eq!(total, places.min(due.iter().sum()), "no place stays free while a call is due");
        prop_assert_eq!(last.is_some(), total > 0);
        are_equal(&shares, &left(&due, &shares))?;
    }

    /// A session's claims, each of which begins after the owner that was served last, share like a single claim.
    #[test]
    fn the_claims_of_a_session_share_like_one(due in due(), claims in prop::collection::vec(1..20usize, 0..60)) {
        let (mut got, mut next) = (vec![0; due.len()], 0);
        for places in claims {
            let in_turn: Vec<_> = (next..due.len()).chain(0..next).collect();
            let left_now = left(&due, &got);
            let (shares, last) = shares(&in_turn.iter().map(|owner| left_now[*owner]).collect::<Vec<_>>(), places);
            in_turn.iter().zip(shares).for_each(|(owner, share)| got[*owner] += share);
            next = last.map_or(next, |last| in_turn[last] + 1);
            are_equal(&got, &left(&due, &got))?;
        }
    }
}
