//! The time of the next attempt: policies, limits, jitter, and the wishes of workers.

use xdb_engine::*;

const NOW: Timestamp = Timestamp(1_000_000_000);

fn failed(attempt: u32, first_attempt_at: Timestamp) -> FailedAttempt {
    FailedAttempt { attempt, first_attempt_at, repeats: 0, further: Further::ByPolicy }
}

fn failed_with(attempt: u32, further: Further) -> FailedAttempt {
    FailedAttempt { further, ..failed(attempt, NOW) }
}

fn wait(policy: &RetryPolicy, attempt: u32) -> i64 {
    match next_retry(policy, failed(attempt, NOW), NOW, 0.5) {
        Retry::At(at) => at.since(NOW),
        other => panic!("{other:?}"),
    }
}

#[test]
fn intervals_double_up_to_the_maximum() {
    let policy = RetryPolicy::default();
    assert_eq!(wait(&policy, 1), 1_000_000);
    assert_eq!(wait(&policy, 2), 2_000_000);
    assert_eq!(wait(&policy, 7), 64_000_000);
    assert_eq!(wait(&policy, 8), 100_000_000);
    assert_eq!(wait(&policy, u32::MAX), 100_000_000);
}

#[test]
fn extremes_neither_overflow_nor_jump() {
    let at_once = RetryPolicy { initial_interval_seconds: 0.0, ..RetryPolicy::default() };
    for attempt in [1, 2, 1_000, 1_024, 1_025, 100_000, u32::MAX] {
        assert_eq!(wait(&at_once, attempt), 0, "attempt {attempt}");
    }
    let steep = RetryPolicy { backoff_coefficient: f64::MAX, maximum_interval_seconds: f64::MAX, ..at_once.clone() };
    assert_eq!(wait(&steep, 5), 0);
    let endless = RetryPolicy {
        initial_interval_seconds: f64::MAX,
        maximum_interval_seconds: f64::MAX,
        ..RetryPolicy::default()
    };
    let late = next_retry(&endless, failed(u32::MAX, NOW), Timestamp::LAST, 1.0);
    assert_eq!(late, Retry::At(Timestamp::LAST));
}

#[test]
fn attempts_and_duration_bound_the_retries() {
    let policy = RetryPolicy { maximum_attempts: 3, ..RetryPolicy::default() };
    assert_ne!(next_retry(&policy, failed(2, NOW), NOW, 0.5), Retry::Spent);
    assert_eq!(next_retry(&policy, failed(3, NOW), NOW, 0.5), Retry::Spent);
    let policy = RetryPolicy { maximum_attempts_duration_seconds: 5.0, ..RetryPolicy::default() };
    assert_ne!(next_retry(&policy, failed(1, NOW), NOW, 0.5), Retry::Spent);
    assert_eq!(next_retry(&policy, failed(1, Timestamp(NOW.0 - 4_500_000)), NOW, 0.5), Retry::Spent);
}

#[test]
fn a_delay_that_a_worker_asks_for_replaces_one_interval() {
    let policy = RetryPolicy { maximum_attempts: 3, maximum_attempts_duration_seconds: 60.0, ..RetryPolicy::default() };
    let after = |seconds: f64| Further::After(Duration::from_seconds(seconds));
    let next = |failed_with: FailedAttempt| next_retry(&policy, failed_with, NOW, 1.0);
    assert_eq!(next(failed_with(2, after(20.5))), Retry::At(Timestamp(NOW.0 + 20_500_000)), "without jitter");
    assert_eq!(next(failed_with(1, after(0.0))), Retry::At(Timestamp(NOW.0 + 100_000)), "never at once");
    assert_eq!(next(failed_with(3, after(0.0))), Retry::Spent, "attempts are still bounded");
    assert_eq!(next(failed_with(1, after(60.1))), Retry::Spent, "and so is their time");
    assert_eq!(next(failed_with(1, Further::Never)), Retry::Spent);
}

#[test]
fn a_repeat_spends_no_attempt() {
    let policy = RetryPolicy { maximum_attempts: 1, maximum_attempts_duration_seconds: 60.0, ..RetryPolicy::default() };
    let again = |repeats, seconds| {
        let further = Further::Repeat(Duration::from_seconds(seconds));
        next_retry(&policy, FailedAttempt { repeats, ..failed_with(1, further) }, NOW, 0.5)
    };
    let after = |seconds: i64| Retry::Repeat(Timestamp(NOW.0 + seconds * 1_000_000));
    assert_eq!([again(0, 5.0), again(9, 5.0)], [after(5), after(5)]);
    assert_eq!([again(10, 5.0), again(14, 5.0)], [after(5), after(16)], "the policy's interval, once it is longer");
    assert_eq!(again(0, 60.1), Retry::Spent, "the time for all attempts ends it");
}

#[test]
fn repeats_back_off_after_ten_under_any_policy() {
    let policy = RetryPolicy { maximum_attempts: 1, maximum_attempts_duration_seconds: 0.1, ..RetryPolicy::default() };
    let wait = |repeat| next_repeat(&policy, repeat, NOW, 0.5).since(NOW);
    assert_eq!([wait(1), wait(10)], [0, 0]);
    assert_eq!([wait(11), wait(12), wait(30)], [1_000_000, 2_000_000, 100_000_000]);
}

#[test]
fn jitter_stays_within_a_tenth() {
    let policy = RetryPolicy::default();
    for (jitter, expected) in [(0.0, 900_000), (1.0, 1_100_000), (7.0, 1_100_000)] {
        match next_retry(&policy, failed(1, NOW), NOW, jitter) {
            Retry::At(at) => assert!((at.since(NOW) - expected).abs() <= 1),
            other => panic!("{other:?}"),
        }
    }
}
