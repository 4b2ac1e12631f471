//! What is counted, how often, and how many at once.

use std::time::{Duration, Instant};
use xdb_sched::counted::Counted;

const LIMIT: usize = 100;

fn seconds(began: Instant, seconds: f64) -> Instant {
    began + Duration::from_secs_f64(seconds)
}

#[test]
fn who_is_at_the_limit_is_counted_once_a_second() {
    let began = Instant::now();
    let mut counted = Counted::default();
    assert_eq!(counted.at_most(&'a'), None);
    assert_eq!(counted.due(began, &[('a', 1)], LIMIT), ['a']);
    counted.counted('a', LIMIT, began);
    let mut counts = 0;
    for tenth in 1..=100 {
        let now = seconds(began, f64::from(tenth) * 0.1);
        if !counted.due(now, &[('a', 1)], LIMIT).is_empty() {
            counted.counted('a', LIMIT, now);
            counts += 1;
        }
        assert_eq!(counted.at_most(&'a'), Some(LIMIT));
    }
    assert!((9..=10).contains(&counts), "{counts}");
}

#[test]
fn who_is_within_the_limit_is_counted_when_what_came_may_be_too_much_or_after_a_while() {
    let began = Instant::now();
    let mut counted = Counted::default();
    counted.counted('a', 10, began);
    let later = seconds(began, 5.0);
    assert_eq!(counted.due(later, &[('a', LIMIT - 10)], LIMIT), []);
    counted.added_to(&'a', LIMIT);
    assert_eq!(counted.at_most(&'a'), Some(LIMIT));
    assert_eq!(counted.due(seconds(began, 0.5), &[('a', 1)], LIMIT), []);
    assert_eq!(counted.due(later, &[('a', 0)], LIMIT), []);
    assert_eq!(counted.due(later, &[('a', 1)], LIMIT), ['a']);
    // Some of it had gone meanwhile.
    counted.counted('a', 10, later);
    assert_eq!(counted.due(seconds(began, 14.9), &[('a', 1)], LIMIT), []);
    assert_eq!(counted.due(seconds(began, 15.1), &[('a', 1)], LIMIT), ['a']);
}

#[test]
fn few_are_counted_at_once_and_everybody_gets_a_turn() {
    let began = Instant::now();
    let mut counted = Counted::default();
    let asked: Vec<_> = (0..250).map(|key| (key, 1)).collect();
    let mut now = began;
    let round = |counted: &mut Counted<i32>, now: Instant| {
        let due = counted.due(now, &asked, LIMIT);
        assert!(due.len() <= 4, "{due:?}");
        due.iter().for_each(|key| counted.counted(*key, LIMIT, now));
        due.len()
    };
    for _ in 0..63 {
        now += Duration::from_millis(1);
        round(&mut counted, now);
    }
    assert!(asked.iter().all(|(key, _)| counted.at_most(key).is_some()));
    assert_eq!(round(&mut counted, now), 0);
    // Then those that were counted longest ago.
    let later = now + Duration::from_secs(2);
    let mut again = Vec::new();
    while again.len() < 250 {
        let due = counted.due(later, &asked, LIMIT);
        due.iter().for_each(|key| counted.counted(*key, LIMIT, later));
        again.extend(due);
    }
    again.sort_unstable();
    again.dedup();
    assert_eq!(again.len(), 250);
}
