//! Scans for calls of processes with a priority. Each priority is a lane, of the scheduler or, for functions, of the
//! runners. Each lane is scanned from the head: high priorities before lane 0 or 1, low ones after it, for the places
//! that are left. Priorities order the calls of one line: those of one owner at one worker, or those of one owner that
//! functions answer. The shares of owners do not depend on priorities.
//!
//! Without such calls there is one scan, as if there were no priorities.
//!
//! Limitations: these lanes have no cursors, so each turn reads their heads.

use super::claim::{Claiming, Claims, Found};
use crate::pg::catch::Result;
use crate::store::claim::{self, LineClaim};
use crate::store::lanes::{Lane, comes_first};
use crate::store::lines;
use crate::store::registry::NO_WORKER;
use std::collections::HashMap;
use xdb_engine::{ExecutionId, Timestamp};
use xdb_sched::room::{Line, Room};

/// The state of the scans of one turn.
struct Scanning<'s> {
    /// Counts the calls that were found. They take no places.
    room: Room,
    limit: usize,
    busy: &'s [ExecutionId],
    now: Timestamp,
    found: Found,
    /// Lines in which more calls with a priority may be due.
    undrained: Vec<Line>,
}

impl Claiming<'_, '_> {
    /// Whether this process claims the calls of this line.
    fn is_claimed(&self, line: Line) -> bool {
        match self.turn.role.calls_functions() {
            true => line.worker == NO_WORKER && self.serves_functions() && self.serves_owner(line),
            false => self.registry.is_called(line.worker),
        }
    }

    /// Locks due calls, of each line as many as there are places: high priorities first.
    pub(super) fn scan_levels(
        &mut self,
        room: &Room,
        limit: usize,
        busy: &[ExecutionId],
        now: Timestamp,
        claims: &mut Claims,
    ) -> Result<Found> {
        if self.turn.levels.is_empty() {
            return self.scan(room, limit, busy, now, claims);
        }
        let (above, below): (Vec<_>, Vec<_>) = self.turn.levels.iter().partition(|lane| comes_first(**lane));
        let (found, undrained) = (Found::default(), Vec::new());
        let mut scanning = Scanning { room: room.clone(), limit, busy, now, found, undrained };
        above.into_iter().try_for_each(|lane| self.scan_level(lane, &mut scanning))?;
        let Found { due, unfinished, emptied } = self.scan(&scanning.room, limit, busy, now, claims)?;
        scanning.found.emptied = emptied;
        scanning.take(due, unfinished);
        below.into_iter().try_for_each(|lane| self.scan_level(lane, &mut scanning))?;
        if let Some(drained) = &mut claims.drained {
            drained.retain(|line| !scanning.undrained.contains(line));
        }
        Ok(scanning.found)
    }

    /// Drops calls that can't get a place, from the end of the candidates. Keeps twice as many as a worker has places,
    /// because some candidates need none. Without levels there is nothing to drop: the scan found no more than there
    /// are places.
    pub(super) fn leave_the_rest(
        &self,
        candidates: &mut Vec<(claim::Due, bool)>,
        room: &Room,
        limit: usize,
        unfinished: &mut Vec<Line>,
        claims: &mut Claims,
    ) {
        if self.turn.levels.is_empty() {
            return;
        }
        let mut kept = HashMap::new();
        candidates.retain(|(due, was_parked)| {
            let worker = due.line.worker;
            let left = kept.entry(worker).or_insert_with(|| 2 * room.of_worker(worker).min(limit));
            if *was_parked || *left > 0 {
                *left = left.saturating_sub(1);
                return true;
            }
            claims.ends.left(due.line, due.due_at);
            claims.drained.as_mut().map(|drained| drained.remove(&due.line));
            unfinished.push(due.line);
            false
        });
    }

    fn scan_level(&mut self, number: &i16, scanning: &mut Scanning<'_>) -> Result<()> {
        let lane = Lane { number: *number, ..self.turn.lane };
        let mut heads: HashMap<_, _> = lines::heads(self.turn.spi, lane.number)?.into_iter().collect();
        heads.retain(|line, first| *first <= scanning.now && self.is_claimed(*line));
        self.lines.found(heads.keys().copied(), std::time::Instant::now());
        let wanted = scanning.room.wanted(heads.keys().map(|line| (*line, true)), scanning.limit);
        let wanted: Vec<_> = wanted
            .lines
            .into_iter()
            .map(|(line, at_most)| LineClaim { line, at_most, from: heads.get(&line).copied() })
            .collect();
        let mut due = Vec::new();
        if !wanted.is_empty() {
            due = claim::due(self.turn.spi, lane, &wanted, scanning.busy, scanning.now, self.turn.real)?;
            due.sort_by_key(|due| due.due_at);
        }
        let all_found = |line: &Line| {
            let found = due.iter().filter(|due| due.line == *line).count();
            wanted.iter().any(|wanted| wanted.line == *line && found < wanted.at_most)
        };
        let unfinished: Vec<_> = heads.into_keys().filter(|line| !all_found(line)).collect();
        scanning.undrained.extend(&unfinished);
        scanning.take(due, unfinished);
        Ok(())
    }
}

impl Scanning<'_> {
    fn take(&mut self, due: Vec<claim::Due>, unfinished: Vec<Line>) {
        due.iter().for_each(|due| self.room.count(due.line));
        self.found.due.extend(due);
        self.found.unfinished.extend(unfinished);
    }
}
