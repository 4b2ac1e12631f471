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
