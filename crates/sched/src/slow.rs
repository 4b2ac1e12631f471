//! What is slow inside the database: users' tables, and functions that answers call. They are named by their oids: the server
//! counts those of both with one counter, and where it has begun anew, two of one oid are slow together.
//!
//! ```text
//!             used for more than half of ten seconds,
//!             or ran into the limit, or a process died in it
//!   QUICK ────────────────────────────────────────────────► SLOW ── a probe was slow: pause × 2 ──┐
//!     ▲      the scheduler: Watcher                          │ ▲                                  │
//!     │                                                      │ └──────────────────────────────────┘
//!     └────── a probe after the pause was quick: Probes ─────┘
//!               a runner
//! ```
//!
//! The steps of what is slow are a runner's. The scheduler watches and marks, a runner probes and takes the mark away: each use
//! after the pause is a probe. A mark that was taken away is kept for an hour, as *mended*: what becomes slow again meanwhile
//! has twice its last pause, whoever has died since. So all that has to last is in the marks, which are rows; the rest may be
//! lost at any moment.

use crate::table_health::Relation;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// What was used for more than half of this is slow.
const WINDOW: Duration = Duration::from_secs(10);
/// So far apart are the parts in which the window moves on.
const PART: Duration = Duration::from_millis(500);
/// What takes less on the average is used much, and is not slow: it would be slower elsewhere, one step at a time.
pub const LONG_USE: Duration = Duration::from_millis(5);

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// What ended a process.
const FIRST_PAUSE_OF_DEADLY: Duration = Duration::from_secs(600);
const LONGEST_PAUSE_OF_DEADLY: Duration = Duration::from_secs(86_400);

/// A mark that was taken away so long ago is forgotten.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// Why something is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It used more than half of the engine's time.
    Share,
    /// A use of it ran into the limit.
    Limit,
    /// A process died in it, because it could not be ended otherwise.
    Died,
}

impl Reason {
    const ALL: [Self; 3] = [Self::Share, Self::Limit, Self::Died];

    /// As it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Share => "used more than half of the engine's time",
            Self::Limit => "took longer than xdb.apply_timeout",
            Self::Died => "a process died in it",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

/// The mark of something that is slow, or was within the last hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub reason: Reason,
    /// From the marking, or the last probe, to the next probe.
    pub pause: Duration,
    /// A probe was quick.
    pub is_mended: bool,
}

impl Mark {
    /// The mark of what has become slow, or was so again, after `last`.
    fn next(reason: Reason, last: Option<Mark>) -> Self {
        let pause = match (reason, last) {
            (Reason::Died, Some(Mark { reason: Reason::Died, pause, .. })) => (pause * 2).min(LONGEST_PAUSE_OF_DEADLY),
            (Reason::Died, _) => FIRST_PAUSE_OF_DEADLY,
            (_, Some(last)) => (last.pause * 2).min(LONGEST_PAUSE),
            (_, None) => FIRST_PAUSE,
        };
        Self { reason, pause, is_mended: false }
    }
}

/// How long something was used lately.
#[derive(Debug, Default)]
struct Usage {
    /// Parts of the window with the time and the number of the uses in it.
    parts: VecDeque<(Instant, Duration, u32)>,
}

impl Usage {
    fn add(&mut self, took: Duration, now: Instant) {
        match self.parts.back_mut() {
            Some((since, time, uses)) if now.saturating_duration_since(*since) < PART => {
                *time += took;
                *uses += 1;
            }
            _ => self.parts.push_back((now, took, 1)),
        }
    }

    fn move_on(&mut self, now: Instant) {
        while self.parts.front().is_some_and(|(since, ..)| now.saturating_duration_since(*since) >= WINDOW) {
            self.parts.pop_front();
        }
    }

    fn is_slow(&self) -> bool {
        let time: Duration = self.parts.iter().map(|(_, time, _)| *time).sum();
        let uses: u32 = self.parts.iter().map(|(.., uses)| *uses).sum();
        time > WINDOW / 2 && time >= LONG_USE * uses
    }
}

/// The scheduler's part: finds out what is slow.
#[derive(Debug, Default)]
pub struct Watcher {
    /// As the rows say.
    marks: HashMap<Relation, Mark>,
    /// To be written down.
    found: HashMap<Relation, Mark>,
    usage: HashMap<Relation, Usage>,
    /// Processes have died in these; not yet a mark.
    died_in: Vec<Relation>,
}

impl Watcher {
    /// A turn begins, with these marks in the rows. Answers with marks that are to be written down; it does so in each turn
    /// until a later one begins with them.
    pub fn begin_turn(&mut self, marks: HashMap<Relation, Mark>, now: Instant) -> Vec<(Relation, Mark)> {
        self.marks = marks;
        let marks = &self.marks;
        self.found.retain(|key, mark| marks.get(key) != Some(mark));
        for key in std::mem::take(&mut self.died_in) {
            self.usage.remove(&key);
            self.found.insert(key, Mark::next(Reason::Died, self.last(&key)));
        }
        self.usage.retain(|_, usage| {
            usage.move_on(now);
            !usage.parts.is_empty()
        });
        self.found.iter().map(|(key, mark)| (*key, *mark)).collect()
    }

    /// It was used for so long, whatever came of it.
    pub fn used(&mut self, key: Relation, took: Duration, now: Instant) {
        let usage = self.usage.entry(key).or_default();
        usage.add(took, now);
        usage.move_on(now);
        if usage.is_slow() {
            self.mark(key, Reason::Share);
        }
    }

    /// A use of it was ended by the limit.
    pub fn ran_into_limit(&mut self, key: Relation) {
        self.mark(key, Reason::Limit);
    }

    /// A process died in it, also a runner's. To be said once.
    pub fn died_in(&mut self, key: Relation) {
        self.died_in.push(key);
    }

    /// Whether anything is slow.
    pub fn is_any(&self) -> bool {
        self.marks.values().chain(self.found.values()).any(|mark| !mark.is_mended)
    }

    /// Whether its steps are a runner's.
    pub fn is_slow(&self, key: &Relation) -> bool {
        self.last(key).is_some_and(|mark| !mark.is_mended)
    }

    fn last(&self, key: &Relation) -> Option<Mark> {
        self.found.get(key).or_else(|| self.marks.get(key)).copied()
    }

    fn mark(&mut self, key: Relation, reason: Reason) {
        self.usage.remove(&key);
        let last = self.last(&key);
        if last.is_none_or(|mark| mark.is_mended) {
            self.found.insert(key, Mark::next(reason, last));
        }
    }
}

/// A runner's part: finds out what is quick again.
#[derive(Debug, Default)]
pub struct Probes {
    /// What is slow, with the time of the next probe.
    slow: HashMap<Relation, (Mark, Instant)>,
}

impl Probes {
    /// Takes over what the rows say. What is new, or was marked anew, is probed after its pause; `age` says how much of that
    /// is over, as a runner may begin at any time.
    pub fn follow(&mut self, marks: &HashMap<Relation, Mark>, age: impl Fn(&Relation) -> Duration, now: Instant) {
        let is_slow = |key: &Relation| marks.get(key).is_some_and(|mark| !mark.is_mended);
        self.slow.retain(|key, _| is_slow(key));
        for (key, mark) in marks.iter().filter(|(key, _)| is_slow(key)) {
            if self.slow.get(key).is_none_or(|(known, _)| known != mark) {
                self.slow.insert(*key, (*mark, now + mark.pause.saturating_sub(age(key))));
            }
        }
    }

    /// Until when it may not be used: what ends processes may not before its pause is over.
    pub fn kept_until(&self, key: &Relation, now: Instant) -> Option<Instant> {
        let (mark, probe_at) = self.slow.get(key)?;
        (mark.reason == Reason::Died && *probe_at > now).then_some(*probe_at)
    }

    /// Whether anything is slow.
    pub fn is_any(&self) -> bool {
        !self.slow.is_empty()
    }

    /// Whether its steps are a runner's.
    pub fn is_slow(&self, key: &Relation) -> bool {
        self.slow.contains_key(key)
    }

    /// A step used it for so long, with all that belongs to the step: a quick read tells nothing of the write that follows.
    /// `limit` is the scheduler's limit for one use. Answers with the mark that is to be written down, if this was a probe.
    pub fn used(&mut self, key: Relation, took: Duration, limit: Duration, now: Instant) -> Option<Mark> {
        let (mark, probe_at) = self.slow.get(&key).copied()?;
        if probe_at > now {
            return None;
        }
        let is_quick = match mark.reason {
            Reason::Share => took < LONG_USE,
            Reason::Limit | Reason::Died => took < limit,
        };
        let mark = if is_quick { Mark { is_mended: true, ..mark } } else { Mark::next(mark.reason, Some(mark)) };
        if is_quick {
            self.slow.remove(&key);
        } else {
            self.slow.insert(key, (mark, now + mark.pause));
        }
        Some(mark)
    }
}
