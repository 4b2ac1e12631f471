//! Which lines of calls exist, and in which of them a due call may wait.
//!
//! A line ([`crate::room::Line`]) exists while the tables have a call in it. A scan from the head finds the lines. The
//! other scans use the lines that it found. An empty line is remembered for a while: its owner may come back, and its
//! cursor stays valid.
//!
//! Limitations: a new line is known only after the next scan from the head.

use crate::room::{Line, Owner, WorkerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A line is forgotten after this time without calls.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The lines that are known.
#[derive(Debug, Default)]
pub struct Lines {
    known: BTreeMap<Line, KnownLine>,
    /// A scan has reported which lines are drained.
    is_scanned: bool,
}

#[derive(Debug)]
struct KnownLine {
    /// When the line had a call for the last time.
    seen: Instant,
    /// The last scan has found all due calls of the line.
    is_drained: bool,
}

impl Lines {
    /// A scan from the head has found exactly these lines.
    pub fn found(&mut self, lines: impl IntoIterator<Item = Line>, now: Instant) {
        for line in lines {
            let known = self.known.entry(line).or_insert(KnownLine { seen: now, is_drained: false });
            known.seen = now;
        }
        self.known.retain(|_, known| now.saturating_duration_since(known.seen) <= FORGOTTEN_AFTER);
    }

    /// Whether the line is known.
    pub fn has(&self, line: &Line) -> bool {
        self.known.contains_key(line)
    }

    /// Whether a due call may wait in this line.
    pub fn waits(&self, line: &Line) -> bool {
        self.known.get(line).is_some_and(|known| !known.is_drained)
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// All lines, each with whether a due call may wait in it.
    pub fn iter(&self) -> impl Iterator<Item = (Line, bool)> + '_ {
        self.known.iter().map(|(line, known)| (*line, !known.is_drained))
    }

    /// A scan has found all due calls of these lines. Nothing is known of the other lines.
    pub fn drained(&mut self, drained: &BTreeSet<Line>) {
        self.is_scanned = true;
        self.known.iter_mut().for_each(|(line, known)| known.is_drained = drained.contains(line));
    }

    /// The lines of a worker in which a due call may wait.
    pub fn waiting(&self, worker: WorkerId) -> impl Iterator<Item = Line> + '_ {
        let all = Line { worker, owner: Owner::MIN }..=Line { worker, owner: Owner::MAX };
        self.known.range(all).filter(|(_, known)| !known.is_drained).map(|(line, _)| *line)
    }

    /// Whether the last scan has found all due calls of this worker.
    pub fn is_drained(&self, worker: WorkerId) -> bool {
        self.is_scanned && self.waiting(worker).next().is_none()
    }
}
