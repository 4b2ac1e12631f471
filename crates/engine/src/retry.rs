use crate::{Duration, RetryPolicy, Timestamp};

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    At(Timestamp),
    /// The policy allows no further attempt.
    Spent,
}

/// Jitter shortens or lengthens an interval by at most this share.
const JITTER: f64 = 0.1;

/// When the attempt after `attempt` (from 1) is made. `jitter` is a random number in 0..1.
pub fn next_retry(
    policy: &RetryPolicy,
    attempt: u32,
    first_attempt_at: Timestamp,
    now: Timestamp,
    jitter: f64,
) -> Retry {
    if policy.maximum_attempts > 0 && attempt >= policy.maximum_attempts {
        return Retry::Spent;
    }
    let at = now + interval(policy, attempt, jitter);
    let bound = policy.maximum_attempts_duration_seconds;
    if bound > 0.0 && at > first_attempt_at + Duration::from_seconds(bound) {
        return Retry::Spent;
    }
    Retry::At(at)
}

/// The policy's interval after so many, from 1.
fn interval(policy: &RetryPolicy, after: u32, jitter: f64) -> Duration {
    let growth = policy.backoff_coefficient.max(1.0).powi(after.saturating_sub(1).min(10_000) as i32);
    // Nothing stays nothing, however much it grows: zero times infinity is no number.
    let grown = if policy.initial_interval_seconds > 0.0 { policy.initial_interval_seconds * growth } else { 0.0 };
    let interval = grown.min(policy.maximum_interval_seconds);
    Duration::from_seconds(interval * (1.0 - JITTER + 2.0 * JITTER * jitter.clamp(0.0, 1.0)))
}

/// So many repeats of a call are made at once; further ones back off.
pub const REPEATS_AT_ONCE: u32 = 10;

/// When a call is made again whose loaded values had changed, the `repeat`th time (from 1). A repeat is not an attempt:
/// the bounds of the policy don't concern it.
pub fn next_repeat(policy: &RetryPolicy, repeat: u32, now: Timestamp, jitter: f64) -> Timestamp {
    match repeat.checked_sub(REPEATS_AT_ONCE) {
        None | Some(0) => now,
        Some(after) => now + interval(policy, after, jitter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000_000);

    fn wait(policy: &RetryPolicy, attempt: u32) -> i64 {
        match next_retry(policy, attempt, NOW, NOW, 0.5) {
            Retry::At(at) => at.since(NOW),
            Retry::Spent => panic!("spent"),
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
        let steep =
            RetryPolicy { backoff_coefficient: f64::MAX, maximum_interval_seconds: f64::MAX, ..at_once.clone() };
        assert_eq!(wait(&steep, 5), 0);
        let endless = RetryPolicy {
            initial_interval_seconds: f64::MAX,
            maximum_interval_seconds: f64::MAX,
            ..RetryPolicy::default()
        };
        match next_retry(&endless, u32::MAX, NOW, Timestamp::LAST, 1.0) {
            Retry::At(at) => assert_eq!(at, Timestamp::LAST),
            Retry::Spent => panic!("spent"),
        }
    }

    #[test]
    fn attempts_and_duration_bound_the_retries() {
        let policy = RetryPolicy { maximum_attempts: 3, ..RetryPolicy::default() };
        assert_ne!(next_retry(&policy, 2, NOW, NOW, 0.5), Retry::Spent);
        assert_eq!(next_retry(&policy, 3, NOW, NOW, 0.5), Retry::Spent);
        let policy = RetryPolicy { maximum_attempts_duration_seconds: 5.0, ..RetryPolicy::default() };
        assert_ne!(next_retry(&policy, 1, NOW, NOW, 0.5), Retry::Spent);
        assert_eq!(next_retry(&policy, 1, Timestamp(NOW.0 - 4_500_000), NOW, 0.5), Retry::Spent);
    }

    #[test]
    fn repeats_back_off_after_ten_whatever_the_bounds() {
        let policy =
            RetryPolicy { maximum_attempts: 1, maximum_attempts_duration_seconds: 0.1, ..RetryPolicy::default() };
        let wait = |repeat| next_repeat(&policy, repeat, NOW, 0.5).since(NOW);
        assert_eq!([wait(1), wait(10)], [0, 0]);
        assert_eq!([wait(11), wait(12), wait(30)], [1_000_000, 2_000_000, 100_000_000]);
    }

    #[test]
    fn jitter_stays_within_a_tenth() {
        let policy = RetryPolicy::default();
        for (jitter, expected) in [(0.0, 900_000), (1.0, 1_100_000), (7.0, 1_100_000)] {
            match next_retry(&policy, 1, NOW, NOW, jitter) {
                Retry::At(at) => assert!((at.since(NOW) - expected).abs() <= 1),
                Retry::Spent => panic!("spent"),
            }
        }
    }
}
