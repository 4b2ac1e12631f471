//! Which lines of calls there are, and in which of them a due call may wait.
//!
//! A line ([`crate::room::Line`]) is there as long as the tables have a call in it. The scan from the head finds the lines; the
//! others go by what that one has found. A line that is gone is remembered for a while: its owner comes back, and its cursor is
//! good still.

use crate::room::{Line, Owner, WorkerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// So long after it was there for the last time a line is forgotten.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The lines that are known.
#[derive(Debug, Default)]
pub struct Lines {
    known: BTreeMap<Line, KnownLine>,
    /// A scan has said which of them are drained.
    is_scanned: bool,
}

#[derive(Debug)]
struct KnownLine {
    seen: Instant,
    /// The last scan has found all calls that were due.
    is_drained: bool,
}

impl Lines {
    /// These are all that are there now.
    pub fn found(&mut self, lines: impl IntoIterator<Item = Line>, now: Instant) {
        for line in lines {
            let known = self.known.entry(line).or_insert(KnownLine { seen: now, is_drained: false });
            known.seen = now;
        }
        self.known.retain(|_, known| now.saturating_duration_since(known.seen) <= FORGOTTEN_AFTER);
    }

    pub fn has(&self, line: &Line) -> bool {
        self.known.contains_key(line)
    }

    /// Whether a call that is due may wait in this line.
    pub fn waits(&self, line: &Line) -> bool {
        self.known.get(line).is_some_and(|known| !known.is_drained)
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// All of them, each with whether a call that is due may wait in it.
    pub fn iter(&self) -> impl Iterator<Item = (Line, bool)> + '_ {
        self.known.iter().map(|(line, known)| (*line, !known.is_drained))
    }

    /// A scan has found all that was due in these lines, and of the others nothing is known.
    pub fn drained(&mut self, drained: &BTreeSet<Line>) {
        self.is_scanned = true;
        self.known.iter_mut().for_each(|(line, known)| known.is_drained = drained.contains(line));
    }

    /// Those at a worker in which a due call may wait.
    pub fn waiting(&self, worker: WorkerId) -> impl Iterator<Item = Line> + '_ {
        let all = Line { worker, owner: Owner::MIN }..=Line { worker, owner: Owner::MAX };
        self.known.range(all).filter(|(_, known)| !known.is_drained).map(|(line, _)| *line)
    }

    /// Whether the last scan has found all calls to this worker that were due.
    pub fn is_drained(&self, worker: WorkerId) -> bool {
        self.is_scanned && self.waiting(worker).next().is_none()
    }
}
