//! When a call is made again: after a failed attempt, or after one that does not count.

use crate::{Duration, Further, RetryPolicy, Timestamp};

/// The decision after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The next attempt, at this time.
    At(Timestamp),
    /// The attempt does not count: the call is made again.
    Repeat(Timestamp),
    /// No further attempt.
    Spent,
}

/// The facts about a failed attempt.
#[derive(Clone, Copy, Debug)]
pub struct FailedAttempt {
    /// Attempt number, from 1.
    pub attempt: u32,
    pub first_attempt_at: Timestamp,
    /// How often the call was repeated before.
    pub repeats: u32,
    pub further: Further,
}

/// The shortest time until the next attempt that a worker can ask for.
const SHORTEST_ASKED: Duration = Duration(100_000);

/// Jitter shortens or lengthens an interval by at most this part.
const JITTER: f64 = 0.1;

/// When a call is made again after a failed attempt. `jitter` is a random number in 0..1.
pub fn next_retry(policy: &RetryPolicy, failed: FailedAttempt, now: Timestamp, jitter: f64) -> Retry {
    let next = match failed.further {
        Further::Never => Retry::Spent,
        // A repeat does not count as an attempt.
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

/// How long a call is repeated while its answers name something that is not registered. After that, such an answer is a
/// failed attempt.
pub const REGISTERED_WITHIN: Duration = Duration(600_000_000);

/// The shortest and the longest pause before such a repeat.
const FIRST_UNREGISTERED_PAUSE: Duration = Duration(10_000_000);
/// The longest time before such a call is repeated.
pub const LONGEST_UNREGISTERED_PAUSE: Duration = Duration(60_000_000);

/// Decides what follows an answer that names something that is not registered. Each repeat may have effects outside of
/// the database, so pauses grow with the time since the first such answer.
pub(crate) fn when_registered(since: Timestamp, now: Timestamp) -> Further {
    let waited = Duration(now.since(since).max(0));
    match waited < REGISTERED_WITHIN {
        true => Further::Repeat(waited.clamp(FIRST_UNREGISTERED_PAUSE, LONGEST_UNREGISTERED_PAUSE)),
        false => Further::ByPolicy,
    }
}

/// The policy's interval after this number of failed attempts, from 1.
fn interval(policy: &RetryPolicy, after: u32, jitter: f64) -> Duration {
    let growth = policy.backoff_coefficient.max(1.0).powi(after.saturating_sub(1).min(10_000) as i32);
    // Zero times infinity is not a number: an interval of zero stays zero.
    let grown = if policy.initial_interval_seconds > 0.0 { policy.initial_interval_seconds * growth } else { 0.0 };
    let interval = grown.min(policy.maximum_interval_seconds);
    Duration::from_seconds(interval * (1.0 - JITTER + 2.0 * JITTER * jitter.clamp(0.0, 1.0)))
}

/// How many repeats of a call are made at once. Later repeats back off.
pub const REPEATS_AT_ONCE: u32 = 10;

/// When the `repeat`th repeat (from 1) of a call is made. The policy's maximum of attempts does not apply to repeats.
pub fn next_repeat(policy: &RetryPolicy, repeat: u32, now: Timestamp, jitter: f64) -> Timestamp {
    match repeat.checked_sub(REPEATS_AT_ONCE) {
        None | Some(0) => now,
        Some(after) => now + interval(policy, after, jitter),
    }
}
