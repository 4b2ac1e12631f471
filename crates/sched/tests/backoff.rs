//! Backoff of keys: how long a key is deferred, and when it is forgotten.

use std::time::{Duration, Instant};
use xdb_sched::backoff::*;

#[test]
fn each_failure_defers_it_for_longer() {
    for (patience, waits) in
        [(Patience::Short, [5, 10, 20, 40, 50, 50, 50, 50]), (Patience::Long, [5, 10, 20, 40, 80, 160, 320, 500])]
    {
        let mut backoff = Backoff::default();
        let mut now = Instant::now();
        for wait in waits {
            backoff.defer(1, now, patience);
            let until = now + Duration::from_millis(wait);
            assert_eq!(backoff.until(&1), Some(until));
            assert_eq!(backoff.next(now), Some(until));
            assert!(backoff.is_deferred(&1, until - Duration::from_millis(1)) && !backoff.is_deferred(&1, until));
            now = until;
        }
    }
}

#[test]
fn a_success_resets_the_backoff() {
    let (mut backoff, now) = (Backoff::default(), Instant::now());
    backoff.defer(1, now, Patience::Long);
    backoff.defer(1, now, Patience::Long);
    backoff.clear(&1);
    assert!(!backoff.has(&1) && backoff.next(now).is_none());
    backoff.defer(1, now, Patience::Long);
    assert_eq!(backoff.until(&1), Some(now + Duration::from_millis(5)));
}

#[test]
fn keys_are_forgotten_long_after_their_time() {
    let (mut backoff, now) = (Backoff::default(), Instant::now());
    backoff.defer(1, now, Patience::Short);
    backoff.defer_until(2, now + Duration::from_secs(60));
    assert_eq!(backoff.keys(now + Duration::from_secs(1)), [2]);
    backoff.forget_old(now + Duration::from_secs(9));
    assert!(backoff.has(&1));
    backoff.forget_old(now + Duration::from_secs(11));
    assert!(!backoff.has(&1) && backoff.has(&2));
}
