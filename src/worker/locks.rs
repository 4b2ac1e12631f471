//! Locks on attributes in a turn: granted with the claim, given back with the end of the call, and handed on at once.
//!
//! They only keep calls from conflicting with each other. That an answer is applied to what it was computed from is seen to
//! by versions, when it is applied.

use super::apply::{Batch, Item};
use super::in_flight::Held;
use super::turn::Scheduler;
use super::user_tables::Used;
use crate::pg::catch::Result;
use crate::pg::spi::Spi;
use crate::pg::{crash, lock};
use crate::store::claim::Due;
use crate::store::locks::{self, KeyTypes, Request, Wants};
use crate::store::registry::WorkerId;
use crate::store::{StateKey, load};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xdb_engine::{Command, Event, ExecutionId};
use xdb_sched::backoff::Patience;
use xdb_sched::lock_board::{Board, Verdict};
use xdb_sched::lock_table::Object;
use xdb_sched::room::Room;

/// The server's own lock under which locks are granted: both lanes do, each in its own transaction.
const GRANTING: u64 = 0;

/// So many objects are offered in one turn.
const OFFERED: usize = 256;

/// So long an answer may be held up, by somebody's transaction, while others wait for the locks of its call.
const HELD_UP: Duration = Duration::from_secs(1);

/// How long a call is left alone that gave its locks to other states.
const YIELDED_FOR: Duration = Duration::from_secs(5);

/// What the main scheduler has to look after until the next turn. It may be lost with the scheduler: the next one begins
/// with all objects that somebody waits for.
#[derive(Clone, Default)]
pub struct Watch {
    /// Objects that are to be offered: what stood in the way there has gone, or will go without anybody writing it down.
    pub objects: BTreeSet<Object>,
    /// Calls that wait and can't be let in, because somebody has locked their tasks. They are in nobody's way.
    stuck: HashSet<StateKey>,
}

impl Scheduler {
    /// Gives up calls whose answers were dropped, with their locks. Answers with the calls that it is done with, and with
    /// what is to be offered. A call whose task somebody has locked is left for the next turn.
    pub(super) fn yield_locks(&self, spi: &Spi) -> Result<(Vec<StateKey>, Vec<Object>)> {
        let keys: Vec<_> = self.yielding.iter().copied().collect();
        let objects = locks::yield_calls(spi, self.lane.epoch, &keys)?;
        crash::point("turn-yield");
        let leased = load::leases(spi, &keys)?;
        let left = |key: &StateKey| leased.get(key).is_some_and(|(epoch, _)| *epoch == self.lane.epoch);
        let yielded: Vec<_> = keys.into_iter().filter(|key| !left(key)).collect();
        // What they would have closed is not about to close any more: nobody shall wait for it.
        load::unmark_closing(spi, Some(&yielded.iter().map(|key| key.0).collect::<Vec<_>>()))?;
        Ok((yielded, objects))
    }

    /// Whether a held-up answer has to be dropped: its call holds what other states have waited for too long. The call is left
    /// alone for a while.
    pub(super) fn must_yield(&mut self, item: &Item, waited_for: &BTreeSet<StateKey>) -> Option<StateKey> {
        let Item::Answer(record, _) = item else { return None };
        record.held.as_ref()?;
        let now = Instant::now();
        self.held_up_since.entry(record.key).or_insert(now);
        if !waited_for.contains(&record.key) {
            return None;
        }
        self.executions.defer_until(record.key.0, now + YIELDED_FOR);
        self.held_up_since.remove(&record.key);
        Some(record.key)
    }

    /// Which of these answers have been held up for long, while other states wait for the locks of their calls.
    pub(super) fn waited_for(&self, spi: &Spi, items: &[Item]) -> Result<BTreeSet<StateKey>> {
        let long = items.iter().filter_map(|item| match item {
            Item::Answer(record, _) => Some(record.key),
            _ => None,
        });
        let long: Vec<_> =
            long.filter(|key| self.held_up_since.get(key).is_some_and(|since| since.elapsed() > HELD_UP)).collect();
        Ok(locks::waited_for(spi, &long)?.into_iter().collect())
    }
}

impl Batch<'_> {
    /// Objects were released: the main scheduler offers them, in this turn if it comes to that.
    pub(super) fn released(&mut self, objects: Vec<Object>) -> Result<()> {
        if self.scheduler.lane.number == 0 {
            self.watch.objects.extend(objects);
            Ok(())
        } else {
            locks::tell_released(self.spi, &objects)
        }
    }

    fn board(&self, objects: &BTreeSet<Object>) -> Result<Board> {
        let objects: Vec<_> = objects.iter().copied().collect();
        let stuck: BTreeSet<_> = self.watch.stuck.iter().map(|key| key.0).collect();
        let stuck: Vec<_> = stuck.into_iter().collect();
        locks::board(self.spi, &objects, &[], &stuck, self.real)
    }

    /// Lets those ask again who wait longest for the objects that are watched and could have them now. Who could be called
    /// if there were room for it asks again too, and stands in nobody's way.
    pub(super) fn offer_locks(&mut self, room: &Room) -> Result<()> {
        if self.scheduler.lane.number != 0 || self.scheduler.paused || self.watch.objects.is_empty() {
            return Ok(());
        }
        let objects: Vec<_> = self.watch.objects.iter().copied().take(OFFERED).collect();
        let waiting = locks::waiting(self.spi, &objects)?;
        for object in &objects {
            self.watch.objects.remove(object);
        }
        self.more |= !self.watch.objects.is_empty();
        if waiting.is_empty() {
            self.watch.stuck.clear();
            return Ok(());
        }
        let all = waiting.iter().flat_map(|waiting| waiting.asked.objects.iter().map(|(object, _)| *object));
        let mut board = self.board(&all.collect())?;
        let mut room = room.clone();
        let mut offered = Vec::new();
        for waiting in &waiting {
            let wanted = &waiting.asked.objects;
            match board.judge(wanted, waiting.asked.ticket) {
                Verdict::Granted => {
                    board.unpark(wanted, waiting.asked.ticket);
                    let in_the_way = !self.watch.stuck.contains(&waiting.key) && room.take(waiting.worker);
                    if in_the_way {
                        board.grant(wanted);
                    }
                    offered.push((waiting.key, waiting.worker));
                    self.watch.objects.extend(wanted.iter().map(|(object, _)| *object));
                    self.more |= !in_the_way && !self.watch.stuck.contains(&waiting.key);
                }
                Verdict::BehindCaller(object) => {
                    self.watch.objects.insert(object);
                }
                Verdict::BehindStates => {}
            }
        }
        let unparked: HashMap<_, _> = locks::unpark(self.spi, &offered)?.into_iter().collect();
        self.scheduler.looks.lower(unparked.values().copied().min());
        if !unparked.is_empty() {
            crash::point("turn-hand-on");
        }
        let stuck: HashSet<_> = offered.iter().map(|(key, _)| *key).filter(|key| !unparked.contains_key(key)).collect();
        self.more |= stuck.iter().any(|key| !self.watch.stuck.contains(key));
        self.watch.stuck = stuck;
        self.offered = unparked.into_keys().collect();
        Ok(())
    }

    /// Leases those of these due calls that may have what they want to lock, by ticket; the others wait in line.
    pub(super) fn grant(&mut self, asking: Vec<Due>, room: &mut Room, at_most: usize) -> Result<Granted> {
        let mut granted = Granted::default();
        if asking.is_empty() {
            return Ok(granted);
        }
        if !lock::try_acquire(GRANTING)? {
            let now = Instant::now();
            asking.iter().for_each(|due| self.scheduler.executions.defer(due.key.0, now, Patience::Short));
            return Ok(granted);
        }
        let keys: Vec<_> = asking.iter().map(|due| due.key).collect();
        let mut asked = locks::asked(self.spi, &keys)?;
        let tables = asking.iter().filter_map(|due| self.claimed.get(&due.key.0)).flat_map(|l| l.meta.mapping.iter());
        let types = KeyTypes::read(self.spi, tables)?;
        let mut requests = Vec::new();
        for due in asking {
            let Some((worker, wants)) = self.wants(&due.key, &types) else { continue };
            let ticket = asked.remove(&due.key).map(|asked| asked.ticket);
            requests.push((ticket, due, worker, wants));
        }
        let mut tickets =
            locks::tickets(self.spi, requests.iter().filter(|request| request.0.is_none()).count())?.into_iter();
        // Who has asked before comes first: later tickets are higher.
        requests.sort_by_key(|request| request.0.unwrap_or(i64::MAX));
        let objects = requests.iter().flat_map(|(.., wants)| wants.objects.iter().map(|(object, _)| *object));
        let mut board = self.board(&objects.collect())?;
        let mut written = Vec::new();
        for (ticket, due, worker, wants) in requests {
            let Some(ticket) = ticket.or_else(|| tickets.next()) else { continue };
            if self.claims.len() + granted.calls.len() >= at_most || !room.has(worker) {
                granted.without_room.push((due, worker));
                continue;
            }
            let verdict = board.judge(&wants.objects, ticket);
            let has = verdict == Verdict::Granted;
            if has {
                room.take(worker);
                board.grant(&wants.objects);
                granted.calls.push(due);
            } else {
                board.park(&wants.objects, ticket);
                // The room that was meant for it is there for others.
                self.more = true;
            }
            if let Verdict::BehindCaller(object) = verdict {
                self.released(vec![object])?;
            }
            written.push((due.key, ticket, Arc::new(wants), has));
        }
        let rows: Vec<_> = written
            .iter()
            .map(|(key, ticket, wants, granted)| Request { key: *key, ticket: *ticket, wants, granted: *granted })
            .collect();
        locks::write(self.spi, &rows)?;
        if !rows.is_empty() {
            crash::point("turn-grant");
        }
        let granted_now = written.into_iter().filter(|(.., has)| *has).map(|(key, _, wants, _)| (key, wants));
        self.wanted.extend(granted_now);
        Ok(granted)
    }

    fn wants(&self, key: &StateKey, types: &KeyTypes) -> Option<(WorkerId, Wants)> {
        let loaded = self.claimed.get(&key.0)?;
        let state = loaded.execution.states.get(&key.1)?;
        let (api, _) = crate::store::save::current_call(state)?;
        let config = super::hand_out::config(loaded, state);
        let wants = locks::wants(&loaded.meta, key.0, &config.load_global(api), &config.load_local(api), types);
        Some((loaded.meta.process_type.as_ref()?.worker.id, wants))
    }

    /// Whether what a call has loaded under locks is what is there now. Users' rows are locked until the transaction ends.
    pub(super) fn is_unchanged(&mut self, item: &Item, command: &Command) -> Result<Used<bool>> {
        let Item::Answer(record, _) = item else { return Ok(Used::Done(true)) };
        let answered = matches!(command, Command::WaitUntilAnswered { .. } | Command::ExecuteAnswered { .. });
        let (Some(held), true) = (record.held.clone(), answered) else { return Ok(Used::Done(true)) };
        let Some(loaded) = self.loaded.get(&record.key.0) else { return Ok(Used::Done(true)) };
        if held.local.locks() {
            let now = locks::versions_of(&held.local, self.local_now.get(&record.key.0));
            if now != held.keys || loaded.events.iter().any(|(event, _)| writes(event, &held)) {
                return Ok(Used::Done(false));
            }
        }
        if !held.global.locks() {
            return Ok(Used::Done(true));
        }
        let tables = &self.scheduler.tables;
        let set_aside = loaded.meta.mapping.iter().find(|table| tables.health.is_set_aside(table.relation));
        if let (Some(table), 0) = (set_aside, self.scheduler.lane.number) {
            return Ok(Used::Busy(table.relation));
        }
        let tables = &mut self.tables;
        let rows = self.scheduler.tables.lock_rows(self.spi, tables, &loaded.meta, &held.global, self.mode)?;
        Ok(match rows {
            Used::Done(rows) => Used::Done(rows == held.rows),
            Used::Busy(relation) => Used::Busy(relation),
            Used::Locked => Used::Locked,
            Used::Refused(error) => Used::Refused(error),
        })
    }
}

/// What another answer of the same turn has written is not in the tables yet.
fn writes(event: &Event, held: &Held) -> bool {
    matches!(event, Event::LocalAttributesWritten { attributes } if attributes.keys().any(|key| held.local.wants(key)))
}

/// What became of due calls that want locks.
#[derive(Default)]
pub(super) struct Granted {
    pub calls: Vec<Due>,
    /// There was no room for a call, each with the worker that it goes to now.
    pub without_room: Vec<(Due, WorkerId)>,
}

/// Local attributes of an execution as their calls load them.
pub(super) type LocalNow = std::collections::HashMap<ExecutionId, BTreeMap<String, locks::Versioned>>;
