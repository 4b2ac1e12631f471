//! Fair shares at a pull worker: owners take turns.

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
