//! Which lines of calls exist, and in which of them a due call may wait.
//!
//! A line ([`crate::room::Line`]) has a [`Level`] for each priority of its calls. A level exists while the tables have a
//! call in it. A scan from the head finds the levels. The other scans use the levels that it found. An empty level is
//! remembered for a while: its owner may come back, and its cursor stays valid.
//!
//! Limitations: a new level is known only after the next scan from the head.

use crate::room::{Line, Owner, WorkerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A line is forgotten after this time without calls.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The calls of a line with one priority, in the order of their due times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level {
    pub line: Line,
    pub priority: i8,
}

/// The lines that are known, by level.
#[derive(Debug, Default)]
pub struct Lines {
    known: BTreeMap<Level, KnownLevel>,
    /// A scan has reported which levels are drained.
    is_scanned: bool,
}

#[derive(Debug)]
struct KnownLevel {
    /// When the level had a call for the last time.
    seen: Instant,
    /// The last scan has found all due calls of the level.
    is_drained: bool,
}

impl Lines {
    /// A scan from the head has found exactly these levels.
    pub fn found(&mut self, levels: impl IntoIterator<Item = Level>, now: Instant) {
        for level in levels {
            let known = self.known.entry(level).or_insert(KnownLevel { seen: now, is_drained: false });
            known.seen = now;
        }
        self.known.retain(|_, known| now.saturating_duration_since(known.seen) <= FORGOTTEN_AFTER);
    }

    /// Whether the level is known.
    pub fn has(&self, level: &Level) -> bool {
        self.known.contains_key(level)
    }

    /// All lines, each with whether a due call may wait in it.
    pub fn iter(&self) -> impl Iterator<Item = (Line, bool)> {
        let mut lines = BTreeMap::<_, bool>::new();
        for (level, known) in &self.known {
            *lines.entry(level.line).or_default() |= !known.is_drained;
        }
        lines.into_iter()
    }

    /// All levels.
    pub fn levels(&self) -> impl Iterator<Item = Level> + '_ {
        self.known.keys().copied()
    }

    /// The levels of a line, the highest priority first.
    pub fn levels_of(&self, line: Line) -> impl Iterator<Item = Level> + '_ {
        let level = |priority| Level { line, priority };
        self.known.range(level(i8::MIN)..=level(i8::MAX)).rev().map(|(level, _)| *level)
    }

    /// The levels that come before another level of their line.
    pub fn above_another(&self) -> impl Iterator<Item = Level> + '_ {
        self.levels()
            .zip(self.levels().skip(1))
            .filter(|(below, above)| below.line == above.line)
            .map(|(_, above)| above)
    }

    /// A scan has found all due calls of these levels. Nothing is known of the other levels. Returns whether there are
    /// no others.
    pub fn drained(&mut self, drained: &BTreeSet<Level>) -> bool {
        self.is_scanned = true;
        self.known.iter_mut().for_each(|(level, known)| known.is_drained = drained.contains(level));
        self.known.values().all(|known| known.is_drained)
    }

    /// The lines of a worker in which a due call may wait, once for each level.
    pub fn waiting(&self, worker: WorkerId) -> impl Iterator<Item = Line> + '_ {
        let end = |owner, priority| Level { line: Line { worker, owner }, priority };
        let all = end(Owner::MIN, i8::MIN)..=end(Owner::MAX, i8::MAX);
        self.known.range(all).filter(|(_, known)| !known.is_drained).map(|(level, _)| level.line)
    }

    /// Whether the last scan has found all due calls of this worker.
    pub fn is_drained(&self, worker: WorkerId) -> bool {
        self.is_scanned && self.waiting(worker).next().is_none()
    }
}
