//! The cache: which values it removes when their weights exceed the limit.

use xdb_sched::kept::Kept;

#[test]
fn the_least_recently_used_entries_are_evicted_and_the_newest_stays() {
    let mut kept = Kept::of_at_most(10);
    assert!(kept.insert(1, "a", 4).is_empty() && kept.insert(2, "b", 4).is_empty());
    assert_eq!(kept.get(&1), Some(&"a"));
    assert_eq!(kept.insert(3, "c", 4), ["b"]);
    assert_eq!([1, 2, 3].map(|key| kept.get(&key).copied()), [Some("a"), None, Some("c")]);
    assert_eq!(kept.insert(4, "large", 100), ["a", "c"]);
    assert_eq!(kept.get(&4), Some(&"large"));
    assert_eq!(kept.insert(5, "d", 1), ["large"]);
}

#[test]
fn a_value_takes_the_place_of_its_predecessor_and_of_its_weight() {
    let mut kept = Kept::of_at_most(10);
    for weight in [3, 9, 2] {
        assert!(kept.insert(1, weight, weight).is_empty());
    }
    assert!(kept.insert(2, 0, 8).is_empty(), "the first one weighs 2 now");
    assert_eq!(kept.remove(&1), Some(2));
    assert_eq!(kept.remove(&1), None);
    assert!(kept.insert(3, 0, 2).is_empty());
}
