//! Looks at the tables for what is due: where each begins, and how far it came.

use super::apply::{Batch, Item};
use super::turn::Scheduler;
use crate::pg::catch::Result;
use crate::pg::shmem::News;
use crate::pg::spi::Spi;
use crate::store::claim::{self, Due, Wanted};
use crate::store::load;
use crate::store::registry::WorkerId;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use xdb_engine::{ExecutionId, Timestamp};
use xdb_sched::cursor::Cursors;

/// How long nothing is looked for, at most, while nobody says that there is something.
const QUIET_FOR: Duration = Duration::from_millis(100);

/// The cursors of a scheduler.
#[derive(Default)]
pub struct Looks {
    /// Until then there is nothing to be found, unless somebody says so.
    quiet_until: Option<Instant>,
    /// Due calls, by worker.
    calls: Cursors<WorkerId, Timestamp>,
    timers: Cursors<(), Timestamp>,
    /// Messages in the inbox, by their ids.
    messages: Cursors<(), i64>,
}

/// How far the looks of a turn came, once it has committed.
#[derive(Debug, Default)]
pub struct Ends {
    calls: Vec<(WorkerId, Timestamp)>,
    timers: Option<Timestamp>,
    messages: Option<i64>,
    /// The earliest due time of what the turn has written, or has found and left.
    pub earliest: Option<Timestamp>,
}

impl Looks {
    /// Somebody has woken the scheduler.
    pub fn woken(&mut self, news: News) {
        self.quiet_until = None;
        self.lower(Some(Timestamp(news.due)));
        self.messages.lower(news.message);
    }

    /// A call or a timer is due at this time or later.
    pub fn lower(&mut self, due: Option<Timestamp>) {
        if let Some(due) = due {
            self.calls.lower(due);
            self.timers.lower(due);
        }
    }

    /// Whether a look would be in vain.
    pub fn are_vain(&self) -> bool {
        self.quiet_until.is_some_and(|until| Instant::now() < until)
    }

    /// The last look has left nothing, and nobody has said since that there is something.
    fn are_quiet(&self) -> bool {
        self.quiet_until.is_some()
    }

    /// The last look has left nothing.
    pub fn nothing_left(&mut self) {
        self.quiet_until = Some(Instant::now() + QUIET_FOR);
    }

    /// The next call or timer comes due in so long.
    pub fn until(&mut self, next_due_in: Option<Duration>) {
        let due = next_due_in.map(|due_in| Instant::now() + due_in);
        self.quiet_until = self.quiet_until.map(|until| due.map_or(until, |due| until.min(due)));
    }

    /// There may be something again.
    pub fn look_again(&mut self) {
        self.quiet_until = None;
    }

    /// There may be anything anywhere.
    pub fn reset(&mut self) {
        self.woken(News::ANY);
    }

    /// The turn has committed.
    pub fn settle(&mut self, ends: Ends) {
        for (worker, to) in ends.calls {
            self.calls.advance(worker, to);
        }
        ends.timers.into_iter().for_each(|to| self.timers.advance((), to));
        ends.messages.into_iter().for_each(|to| self.messages.advance((), to));
        self.lower(ends.earliest);
    }
}

impl Scheduler {
    /// Whether a glance shows that all looks would be in vain. For idle engines: one statement in place of one for each look.
    pub(super) fn nothing_is_due(&mut self, spi: &Spi, now: Timestamp) -> Result<bool> {
        let began = Instant::now();
        let looks = &mut self.looks;
        let permitted =
            looks.calls.from_head(began) && looks.timers.from_head(began) && looks.messages.from_head(began);
        if self.paused || !permitted || !looks.are_quiet() || self.next_due.is_some_and(|due| due <= now) {
            return Ok(false);
        }
        let workers: Vec<_> = self.registry.workers().iter().map(|worker| worker.0).collect();
        let (earliest, any_messages) = claim::earliest(spi, self.lane, &workers)?;
        if any_messages || earliest.is_some_and(|due| due <= now) {
            // The looks that follow are to be looks at everything, as this one was.
            return Ok(false);
        }
        let (ended, took) = (Instant::now(), began.elapsed());
        looks.calls.scanned(ended, took);
        looks.timers.scanned(ended, took);
        looks.messages.scanned(ended, took);
        looks.nothing_left();
        self.next_due = earliest;
        Ok(true)
    }

    /// Adds what is due, apart from calls, to the items of the turn. Says how far the looks came, and whether there is more.
    pub(super) fn gather(
        &mut self,
        spi: &Spi,
        now: Timestamp,
        busy: &[ExecutionId],
        limit: usize,
        items: &mut Vec<Item>,
    ) -> Result<(Ends, bool)> {
        let mut ends = Ends::default();
        let began = Instant::now();
        let full = self.looks.timers.from_head(began);
        let from = self.looks.timers.from(&()).filter(|_| !full);
        let timers = load::due_timers(spi, now, busy, limit, from)?;
        let after_timers = Instant::now();
        if full {
            self.looks.timers.scanned(after_timers, after_timers - began);
        }
        let full = self.looks.messages.from_head(after_timers);
        let from = self.looks.messages.from(&()).filter(|_| !full);
        let arrived = load::executions_with_arrivals(spi, busy, limit, from)?;
        if full {
            let ended = Instant::now();
            self.looks.messages.scanned(ended, ended - after_timers);
        }
        ends.timers = Some(timers.last().filter(|_| timers.len() == limit).map_or(now, |last| last.fire_at));
        ends.messages = arrived.last;
        let more = timers.len() == limit || arrived.more;
        items.extend(arrived.executions.into_iter().map(Item::Arrivals));
        items.extend(timers.into_iter().map(Item::Timer));
        Ok((ends, more))
    }
}

impl Batch<'_> {
    /// Executions that looks leave out.
    fn busy(&self) -> Vec<ExecutionId> {
        let mut busy = self.scheduler.executions.keys(Instant::now());
        // What waits in memory to be applied is not asked for again, also when its lease ends meanwhile.
        busy.extend(self.scheduler.waiting.iter().map(Item::execution));
        busy.extend(&self.unsettled);
        busy
    }

    /// Locks due calls, for each worker at most so many. Nothing, also, when none is wanted.
    pub(super) fn look_for_calls(&mut self, wanted: &[(WorkerId, usize)]) -> Result<Vec<Due>> {
        let busy = self.busy();
        let looks = &mut self.scheduler.looks;
        let began = Instant::now();
        // Few calls are ever in the other lane.
        let full = self.scheduler.lane.number != 0 || looks.calls.from_head(began);
        let wanted: Vec<_> = wanted
            .iter()
            .map(|(worker, at_most)| Wanted {
                worker: *worker,
                at_most: *at_most,
                from: looks.calls.from(worker).filter(|_| !full),
            })
            .collect();
        let due = claim::due(self.spi, self.scheduler.lane, &wanted, &busy, self.now, self.real)?;
        if full {
            let ended = Instant::now();
            looks.calls.scanned(ended, ended - began);
        }
        let mut drained = BTreeSet::new();
        for Wanted { worker, at_most, .. } in wanted {
            let found = due.iter().filter(|due| due.worker == worker);
            let last = found.clone().map(|due| due.due_at).max().filter(|_| found.count() == at_most);
            if last.is_none() {
                drained.insert(worker);
            }
            self.ends.calls.push((worker, last.unwrap_or(self.now)));
        }
        self.drained = Some(drained);
        self.looked_for_calls.extend(due.iter().map(|due| (due.key, due.due_at)));
        Ok(due)
    }

    /// Takes the ends of the looks back to what they found and this turn has not dealt with, or have left out.
    pub(super) fn end_looks(&mut self) -> Result<Ends> {
        let mut ends = std::mem::take(&mut self.ends);
        // Under another worker, perhaps, than they were found under.
        let found = std::mem::take(&mut self.looked_for_calls);
        let left = found.into_iter().filter(|(key, _)| !self.leases.contains_key(key)).map(|(_, due_at)| due_at);
        ends.earliest = left.chain(ends.earliest).min();
        let left_out: BTreeSet<_> = self.busy().into_iter().collect();
        let left_out: Vec<_> = left_out.into_iter().collect();
        let (call, timer, message) = claim::left_out(self.spi, self.scheduler.lane, &left_out, self.now, self.real)?;
        hold(ends.calls.iter_mut().map(|end| &mut end.1), call);
        hold(ends.timers.iter_mut(), timer);
        hold(ends.messages.iter_mut(), message);
        if !self.all_taken_in {
            ends.messages = None;
        }
        Ok(ends)
    }
}

/// Lowers these ends to `at`.
fn hold<'a, T: Ord + Copy + 'a>(ends: impl Iterator<Item = &'a mut T>, at: Option<T>) {
    if let Some(at) = at {
        ends.for_each(|end| *end = at.min(*end));
    }
}
