use crate::{Duration, Further, RetryPolicy, Timestamp};

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    At(Timestamp),
    /// This one did not count: the call is made again.
    Repeat(Timestamp),
    /// There is no further attempt.
    Spent,
}

/// What is known of an attempt that failed.
#[derive(Clone, Copy, Debug)]
pub struct FailedAttempt {
    /// Which one, from 1.
    pub attempt: u32,
    pub first_attempt_at: Timestamp,
    /// Repeats of the call before it.
    pub repeats: u32,
    pub further: Further,
}

/// The shortest time that a worker can ask for until the next attempt.
const SHORTEST_ASKED: Duration = Duration(100_000);

/// Jitter shortens or lengthens an interval by at most this share.
const JITTER: f64 = 0.1;

/// When a call is made again. `jitter` is a random number in 0..1.
pub fn next_retry(policy: &RetryPolicy, failed: FailedAttempt, now: Timestamp, jitter: f64) -> Retry {
    let next = match failed.further {
        Further::Never => Retry::Spent,
        // It is no attempt, so it uses none up.
        Further::Repeat(after) => {
            let by_policy = next_repeat(policy, failed.repeats.saturating_add(1), now, jitter);
            Retry::Repeat(by_policy.max(now + after))
        }
        _ if policy.maximum_attempts > 0 && failed.attempt >= policy.maximum_attempts => Retry::Spent,
        Further::After(asked) => Retry::At(now + asked.max(SHORTEST_ASKED)),
        Further::ByPolicy | Further::WhenRegistered => Retry::At(now + interval(policy, failed.attempt, jitter)),
    };
    let bound = policy.maximum_attempts_duration_seconds;
    match next {
        Retry::At(at) | Retry::Repeat(at)
            if bound > 0.0 && at > failed.first_attempt_at + Duration::from_seconds(bound) =>
        {
            Retry::Spent
        }
        next => next,
    }
}

/// If answers name what is not registered, the call is made again for this long. After that the answers are failed attempts.
pub const REGISTERED_WITHIN: Duration = Duration(600_000_000);

/// The first pause before such a call is made again, and the longest one.
const FIRST_UNREGISTERED_PAUSE: Duration = Duration(10_000_000);
pub const LONGEST_UNREGISTERED_PAUSE: Duration = Duration(60_000_000);

/// What becomes of a call whose answers have named what is not registered since then. Each call may do something outside of the
/// database once more, so they are few.
pub(crate) fn when_registered(since: Timestamp, now: Timestamp) -> Further {
    let waited = Duration(now.since(since).max(0));
    match waited < REGISTERED_WITHIN {
        true => Further::Repeat(waited.clamp(FIRST_UNREGISTERED_PAUSE, LONGEST_UNREGISTERED_PAUSE)),
        false => Further::ByPolicy,
    }
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

/// When a call is made again that was no attempt, the `repeat`th time (from 1): at once, or as soon as its worker wants it.
/// How many attempts the policy allows does not concern it.
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

    fn failed(attempt: u32, first_attempt_at: Timestamp) -> FailedAttempt {
        FailedAttempt { attempt, first_attempt_at, repeats: 0, further: Further::ByPolicy }
    }

    fn told(attempt: u32, further: Further) -> FailedAttempt {
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
        let steep =
            RetryPolicy { backoff_coefficient: f64::MAX, maximum_interval_seconds: f64::MAX, ..at_once.clone() };
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
    fn what_a_worker_asks_for_takes_the_place_of_one_interval() {
        let policy =
            RetryPolicy { maximum_attempts: 3, maximum_attempts_duration_seconds: 60.0, ..RetryPolicy::default() };
        let after = |seconds: f64| Further::After(Duration::from_seconds(seconds));
        let next = |told: FailedAttempt| next_retry(&policy, told, NOW, 1.0);
        assert_eq!(next(told(2, after(20.5))), Retry::At(Timestamp(NOW.0 + 20_500_000)), "without jitter");
        assert_eq!(next(told(1, after(0.0))), Retry::At(Timestamp(NOW.0 + 100_000)), "never at once");
        assert_eq!(next(told(3, after(0.0))), Retry::Spent, "attempts are bounded as ever");
        assert_eq!(next(told(1, after(60.1))), Retry::Spent, "and so is their time");
        assert_eq!(next(told(1, Further::Never)), Retry::Spent);
    }

    #[test]
    fn what_is_no_attempt_spends_none() {
        let policy =
            RetryPolicy { maximum_attempts: 1, maximum_attempts_duration_seconds: 60.0, ..RetryPolicy::default() };
        let again = |repeats, seconds| {
            let further = Further::Repeat(Duration::from_seconds(seconds));
            next_retry(&policy, FailedAttempt { repeats, ..told(1, further) }, NOW, 0.5)
        };
        let after = |seconds: i64| Retry::Repeat(Timestamp(NOW.0 + seconds * 1_000_000));
        assert_eq!([again(0, 5.0), again(9, 5.0)], [after(5), after(5)]);
        assert_eq!([again(10, 5.0), again(14, 5.0)], [after(5), after(16)], "the policy's interval, once it is longer");
        assert_eq!(again(0, 60.1), Retry::Spent, "the time for all attempts ends it");
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
            match next_retry(&policy, failed(1, NOW), NOW, jitter) {
                Retry::At(at) => assert!((at.since(NOW) - expected).abs() <= 1),
                other => panic!("{other:?}"),
            }
        }
    }
}
