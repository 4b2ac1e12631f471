//! Locks on attributes: what is locked, and how.

/// What is locked: a hash. Two things of the same hash only wait for each other.
pub type Object = [u8; 16];

/// How something is locked. The intention modes announce locks on parts of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    IntentionShared,
    IntentionExclusive,
    Shared,
    Exclusive,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::IntentionShared, Mode::IntentionExclusive, Mode::Shared, Mode::Exclusive];

    /// As it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::IntentionShared => "IS",
            Mode::IntentionExclusive => "IX",
            Mode::Shared => "S",
            Mode::Exclusive => "X",
        }
    }

    pub fn parse(text: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.as_str() == text)
    }

    /// Whether who has this mode needs no other one for `wanted`.
    pub fn covers(self, wanted: Mode) -> bool {
        use Mode::*;
        match self {
            Exclusive => true,
            Shared => matches!(wanted, Shared | IntentionShared),
            IntentionExclusive => matches!(wanted, IntentionExclusive | IntentionShared),
            IntentionShared => wanted == IntentionShared,
        }
    }

    /// Whether two requests can't have the same object at the same time.
    pub fn conflicts(self, other: Mode) -> bool {
        use Mode::*;
        match (self, other) {
            (Exclusive, _) | (_, Exclusive) => true,
            (IntentionExclusive, Shared) | (Shared, IntentionExclusive) => true,
            (IntentionShared | IntentionExclusive, IntentionShared | IntentionExclusive) => false,
            (Shared | IntentionShared, Shared | IntentionShared) => false,
        }
    }
}
