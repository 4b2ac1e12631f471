//! Small values: times, ids, hashes, and the enums of words that SQL and JSON share.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;
use std::ops::Add;
use std::str::FromStr;

/// A moment, in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The beginning of year 1: nothing is due before it.
    pub const EARLIEST: Self = Self(-62_135_596_800_000_000);

    /// The last moment, in the year 294247. Later times are lowered to it. Beyond it Postgres rounds when it counts
    /// from the Unix epoch.
    pub const LAST: Self = Self(i64::MAX - 1);

    /// Whole seconds since the Unix epoch, rounded down.
    pub fn unix_seconds(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// ISO 8601 in UTC. The civil date comes from the days-from-civil algorithm.
    pub fn iso8601(self) -> String {
        let (seconds, micros) = (self.0.div_euclid(1_000_000), self.0.rem_euclid(1_000_000));
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let z = days + 719_468;
        let era = z.div_euclid(146_097);
        let day_of_era = z.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }

    /// The moment that [`Timestamp::iso8601`] has written so.
    pub(crate) fn of_iso8601(text: &str) -> Option<Self> {
        let (year, rest) = text.strip_suffix('Z')?.split_at_checked(text.rfind('T')?.checked_sub(6)?)?;
        let mut numbers = rest.split(['-', 'T', ':', '.']).skip(1).map(|digits| digits.parse::<i64>().ok());
        let mut number = || numbers.next().flatten();
        let (month, day, hour, minute, second, micros) =
            (number()?, number()?, number()?, number()?, number()?, number()?);
        // Days from civil: the inverse of the algorithm above.
        let year = year.parse::<i64>().ok()? - i64::from(month <= 2);
        let era = year.div_euclid(400);
        let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        let year_of_era = year.rem_euclid(400);
        let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
        let seconds = days.checked_mul(86_400)?.checked_add(hour * 3600 + minute * 60 + second)?;
        Some(Self(seconds.checked_mul(1_000_000)?.checked_add(micros)?))
    }

    /// The moment that is earlier by this duration.
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by.0))
    }

    /// Microseconds from `earlier` to this moment. Negative if `earlier` is later.
    pub fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(rhs.0)).min(Self::LAST)
    }
}

/// A length of time in microseconds. Never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub i64);

impl Duration {
    /// Converts seconds with fractions, as in definitions and answers. NaN and negative numbers become zero. Values
    /// that are too large saturate.
    pub fn from_seconds(seconds: f64) -> Self {
        if seconds.is_nan() || seconds <= 0.0 {
            return Self(0);
        }
        Self((seconds * 1e6).min(i64::MAX as f64 / 4.0).ceil() as i64)
    }

    /// The same length as the standard library's type.
    pub fn as_std(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.0.max(0) as u64)
    }
}

/// The hash FNV-1a with 64 bits. It is stored, so it must never change.
pub fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// FNV-1a with 128 bits, for values that are distinguished by their hash alone: collisions must not happen.
pub fn fnv1a_128(bytes: impl Iterator<Item = u8>) -> u128 {
    bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// The UUID (version 7) of one process execution.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ExecutionId(pub [u8; 16]);

impl fmt::Display for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ExecutionId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("\"{text}\" is not a UUID");
        let digits: String = text.split('-').collect();
        let id = u128::from_str_radix(&digits, 16).map_err(|_| invalid())?;
        let id = Self(id.to_be_bytes());
        if id.to_string() == text { Ok(id) } else { Err(invalid()) }
    }
}

impl Serialize for ExecutionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ExecutionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// The number of a step within its execution, from 1 over all states. It is part of the key of its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StateSeq(pub u32);

/// The key of a step, and of its call, its task and its timers.
pub type StateKey = (ExecutionId, StateSeq);

/// The name of a step for people and workers: `<stateId>-<number>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateExecutionId {
    pub state_id: String,
    /// Counted from 1 for each state id.
    pub number: u32,
}

impl fmt::Display for StateExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.state_id, self.number)
    }
}

impl FromStr for StateExecutionId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text
            .rsplit_once('-')
            .and_then(|(state_id, number)| Some((state_id, number.parse().ok().filter(|n| *n > 0)?)));
        match parsed {
            Some((state_id, number)) => Ok(Self { state_id: state_id.to_owned(), number }),
            None => Err(format!("\"{text}\" is not the id of a step")),
        }
    }
}

impl Serialize for StateExecutionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StateExecutionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Declares an enum whose variants are words: their spelling in SQL and JSON, a parser, and the list for error
/// messages.
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$vmeta])* #[serde(rename = $word)] $variant),+ }

        impl $name {
            /// All words, in the order of the declaration.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

/// Gives each variant of an enum its name in the history.
macro_rules! names {
    ($of:ident { $($variant:ident),+ $(,)? }) => {
        impl $of {
            /// The name in the history.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => stringify!($variant)),+ }
            }
        }
    };
}
pub(crate) use names;

words! {
    /// Status of a process execution. All except `Running` are final.
    ProcessStatus { Running = "RUNNING", Completed = "COMPLETED", Failed = "FAILED", Timeout = "TIMEOUT", Terminated = "TERMINATED" }
}

words! {
    /// The two calls that a state makes to its handlers.
    Api { WaitUntil = "WAIT_UNTIL_API", Execute = "EXECUTE_API" }
}

words! {
    /// When a process id may be used again.
    IdReusePolicy {
        AllowIfNoRunning = "ALLOW_IF_NO_RUNNING",
        AllowIfPreviousExitAbnormally = "ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY",
        DisallowReuse = "DISALLOW_REUSE",
        TerminateIfRunning = "TERMINATE_IF_RUNNING",
    }
}

/// What a start does about the latest execution of its process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// The latest execution has ended: the new one follows.
    Follow,
    /// The latest execution is terminated first.
    Terminate,
    /// The start is refused, with what the latest execution has done.
    Refuse(&'static str),
}

impl IdReusePolicy {
    /// What a start does, if the latest execution has this status.
    pub fn about(self, latest: ProcessStatus) -> Reuse {
        let running = latest == ProcessStatus::Running;
        match self {
            Self::DisallowReuse => Reuse::Refuse("exists, and the policy is DISALLOW_REUSE"),
            Self::AllowIfNoRunning | Self::AllowIfPreviousExitAbnormally if running => Reuse::Refuse("is running"),
            Self::AllowIfPreviousExitAbnormally if latest == ProcessStatus::Completed => {
                Reuse::Refuse("completed, and the policy is ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY")
            }
            Self::TerminateIfRunning if running => Reuse::Terminate,
            _ => Reuse::Follow,
        }
    }
}

words! {
    /// How a caller stops a process.
    StopType { Terminate = "TERMINATE", Fail = "FAIL" }
}

words! {
    /// How a thread ends, and what follows for the process.
    CloseType {
        GracefulComplete = "GRACEFUL_COMPLETE_PROCESS",
        ForceComplete = "FORCE_COMPLETE_PROCESS",
        ForceFail = "FORCE_FAIL_PROCESS",
        Compensate = "COMPENSATE_PROCESS",
        DeadEnd = "DEAD_END",
    }
}

words! {
    /// Which commands have to complete before a wait is over.
    WaitingType {
        Empty = "EmptyCommand",
        All = "AllOfCompletion",
        Any = "AnyOfCompletion",
        AnyCombination = "AnyOfCombination",
    }
}

words! {
    /// Status of a command in the results that `execute` gets.
    CommandStatus { Completed = "COMPLETED_COMMAND", Waiting = "WAITING_COMMAND", Skipped = "SKIPPED_COMMAND" }
}

words! {
    /// How far a step is.
    StateStatus {
        WaitUntil = "WAIT_UNTIL",
        Waiting = "WAITING",
        Execute = "EXECUTE",
        Completed = "COMPLETED",
        Failed = "FAILED",
        Aborted = "ABORTED",
    }
}

impl StateStatus {
    /// Whether the step has not ended.
    pub fn is_live(self) -> bool {
        matches!(self, Self::WaitUntil | Self::Waiting | Self::Execute)
    }
}
