//! Matches messages of global queues with the steps that wait for them. The scheduler's turn is the only place that
//! does so, so there is one order of the waiting steps.
//!
//! A *class* is a queue, or a queue and a key. A *fresh* message was not offered to the waiting steps yet.
//!
//! Limitations: one turn takes up to 16 MiB of messages. The rest waits for the next turn.

use super::decide::Decided;
use super::item::{Item, ItemOutcome};
use super::types::Turn;
use crate::calls::Answered;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::spi::Spi;
use crate::store::StateKey;
use crate::store::global_queue::{self as global, FreeMessage, HeadOfKey, HeadOfQueue};
use crate::store::global_waiter::{self, Class, Gathered};
use crate::store::loaded::Loaded;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use xdb_engine::*;

/// The most messages that are listed, unless a single step wants more.
const LISTED: usize = 10_000;

/// Messages are read in slices of this many bytes.
const BYTES_AT_ONCE: usize = 4 * 1024 * 1024;
/// After this many bytes were taken, other steps wait for the next turn.
const BYTES_PER_TURN: usize = 16 * 1024 * 1024;

/// The most messages that are read at a time beyond the needed ones.
const READ_AHEAD: usize = 500;

/// What the scheduler knows of waiting messages. If a turn is made again in parts, the parts match the same messages.
#[derive(Default)]
pub struct Matching {
    /// The waiting steps and fresh messages that the last gathering turn has found.
    pub gathered: Gathered,
    /// `gathered` was read in this transaction. Only then `save` may record that its messages were offered to all
    /// steps.
    pub is_new: bool,
}

/// What a command of a step wants from a class.
struct CommandDemand {
    class: Class,
    at_least: usize,
    at_most: usize,
}

impl CommandDemand {
    fn of(demand: GlobalDemand<'_>) -> Self {
        Self {
            class: (demand.queue.to_owned(), demand.key.map(str::to_owned)),
            at_least: demand.at_least as usize,
            at_most: demand.at_most as usize,
        }
    }
}

/// The free messages that a turn can match.
#[derive(Default)]
pub struct Free {
    /// Free messages by number, without those taken in this turn.
    heads: BTreeMap<i64, FreeMessage>,
    /// Free messages by class.
    lists: HashMap<Class, List>,
    /// Lists that end before a fresh message that this turn did not gather: the number of that message.
    ended: BTreeMap<Class, i64>,
    /// Messages whose payloads were read.
    read: BTreeMap<i64, GlobalMessage>,
    /// Messages that were taken in this turn.
    taken: BTreeSet<i64>,
    taken_bytes: usize,
    /// Queues for which a step has waited longer than the steps that begin to wait now. That step is offered messages
    /// in a later turn.
    behind: BTreeSet<String>,
}

/// Messages of a class, oldest first.
#[derive(Default)]
struct List {
    numbers: VecDeque<i64>,
    /// More messages exist than are listed.
    is_cut: bool,
}

/// How many messages all steps together can take, and the most that one of them can take.
type Demand = (usize, usize);

/// The demand for each class, and for each queue.
fn demand(wanted: &[Vec<CommandDemand>]) -> (BTreeMap<&Class, Demand>, BTreeMap<&str, Demand>) {
    let (mut of_class, mut of_queue) = (BTreeMap::new(), BTreeMap::new());
    for state in wanted {
        // All commands of a step are matched at once.
        let mut own: (BTreeMap<&Class, usize>, BTreeMap<&str, usize>) = Default::default();
        for CommandDemand { class, at_most, .. } in state {
            for sum in [own.0.entry(class).or_default(), own.1.entry(class.0.as_str()).or_default()] {
                *sum = sum.saturating_add(*at_most);
            }
        }
        let add = |(sum, most): &mut Demand, own: usize| {
            (*sum, *most) = (sum.saturating_add(own), own.max(*most));
        };
        own.0.into_iter().for_each(|(class, own)| add(of_class.entry(class).or_default(), own));
        own.1.into_iter().for_each(|(queue, own)| add(of_queue.entry(queue).or_default(), own));
    }
    (of_class, of_queue)
}

impl Free {
    /// Lists what all these commands together can take. A list ends before a fresh message that this turn did not
    /// gather, so that no later message overtakes it.
    fn load(spi: &Spi, wanted: &[Vec<CommandDemand>], fresh: &BTreeMap<i64, Class>, now: Timestamp) -> Result<Self> {
        let (of_class, of_queue) = demand(wanted);
        let limit = |(sum, most): &Demand| (*sum).min(LISTED.max(*most));
        let whole: Vec<&str> =
            of_class.keys().filter(|class| class.1.is_none()).map(|class| class.0.as_str()).collect();
        // The list of a whole queue also covers the steps that want a key and come first.
        let wanted = whole.iter().map(|queue| (*queue, limit(&of_queue[queue]) as i64));
        let of_whole: Vec<_> = wanted.map(|(queue_name, wanted)| HeadOfQueue { queue_name, wanted }).collect();
        let mut heads = global::heads_of_queues(spi, &of_whole, now)?;
        let mut ends: HashMap<&str, (i64, usize)> = HashMap::new();
        for head in &heads {
            if let Some(queue) = whole.iter().find(|queue| **queue == head.queue_name) {
                let end = ends.entry(queue).or_default();
                *end = (head.number, end.1 + 1);
            }
        }
        let is_full = |queue: &str| ends.get(queue).map_or(0, |end| end.1) >= limit(&of_queue[queue]);
        let mut behind: Vec<HeadOfKey<'_>> = Vec::new();
        for (class, bounds) in &of_class {
            let Some(key) = &class.1 else { continue };
            if !whole.contains(&class.0.as_str()) || is_full(&class.0) {
                let end = ends.get(class.0.as_str()).map_or(i64::MIN, |end| end.0);
                behind.push(HeadOfKey { queue_name: &class.0, key, behind: end, wanted: limit(bounds) as i64 });
            }
        }
        let more = global::heads_of_keys(spi, &behind, now)?;
        let mut lists: HashMap<Class, List> = HashMap::new();
        for (class, bounds) in &of_class {
            let of_this = |head: &&FreeMessage| head.queue_name == class.0 && head.key == class.1;
            let is_cut = match &class.1 {
                None => is_full(&class.0) && limit(&of_queue[class.0.as_str()]) < of_queue[class.0.as_str()].0,
                Some(_) => limit(bounds) < bounds.0 && more.iter().filter(of_this).count() >= limit(bounds),
            };
            lists.insert((*class).clone(), List { numbers: VecDeque::new(), is_cut });
        }
        let mut ended: BTreeMap<Class, i64> = BTreeMap::new();
        let mut add = |class: Class, head: &FreeMessage| {
            let Some(list) = lists.get_mut(&class) else { return };
            if head.fresh && !fresh.contains_key(&head.number) {
                // The rest of the list is for a later turn, so no step has to wait because the list was cut.
                list.is_cut = false;
                ended.entry(class).or_insert(head.number);
            } else if !ended.contains_key(&class) {
                list.numbers.push_back(head.number);
            }
        };
        for (is_first, head) in heads.iter().map(|h| (true, h)).chain(more.iter().map(|h| (false, h))) {
            if head.key.is_some() {
                add((head.queue_name.clone(), head.key.clone()), head);
            }
            if is_first {
                add((head.queue_name.clone(), None), head);
            }
        }
        heads.extend(more);
        let heads = heads.into_iter().map(|head| (head.number, head)).collect();
        Ok(Self { heads, lists, ended, ..Self::default() })
    }

    /// The messages that a step with these commands may take. None: not in this turn. So no step overtakes one that was
    /// passed over.
    fn offer(&mut self, spi: &Spi, wanted: &[CommandDemand]) -> Result<Option<Vec<GlobalMessage>>> {
        let classes: BTreeSet<&Class> = wanted.iter().map(|wanted| &wanted.class).collect();
        let mut numbers = BTreeSet::new();
        for class in classes {
            let own = || wanted.iter().filter(|other| other.class == *class);
            // A message that one command takes is not left for another. So there must be enough for all commands that
            // want the same messages.
            let alike = || {
                let all = wanted.iter().filter(|other| other.class.0 == class.0);
                all.filter(|other| class.1.is_none() || other.class.1.is_none() || other.class.1 == class.1)
            };
            let sum = |each: &mut dyn Iterator<Item = usize>| each.fold(0, usize::saturating_add);
            let fewest = own().map(|wanted| wanted.at_least).min().unwrap_or_default();
            let own_most = sum(&mut own().map(|wanted| wanted.at_most));
            let least = sum(&mut alike().map(|wanted| wanted.at_least));
            let most = sum(&mut alike().map(|wanted| wanted.at_most));
            let Some(list) = self.lists.get_mut(class) else { return Ok(None) };
            while list.numbers.front().is_some_and(|number| !self.heads.contains_key(number)) {
                list.numbers.pop_front();
            }
            let (mut found, mut bytes) = (Vec::new(), 0);
            for head in list.numbers.iter().filter_map(|number| self.heads.get(number)).take(most) {
                if found.len() >= least && bytes >= BYTES_PER_TURN {
                    break;
                }
                bytes += head.bytes as usize;
                found.push(head.number);
            }
            if list.is_cut && found.len() < own_most && bytes < BYTES_PER_TURN {
                return Ok(None);
            }
            if found.len() >= fewest {
                numbers.extend(found);
            }
        }
        let is_behind =
            |number: &i64| self.heads.get(number).is_some_and(|head| self.behind.contains(&head.queue_name));
        if !numbers.is_empty() && self.taken_bytes >= BYTES_PER_TURN || numbers.iter().any(is_behind) {
            return Ok(None);
        }
        self.read(spi, &numbers)?;
        Ok(Some(numbers.iter().filter_map(|number| self.read.get(number)).cloned().collect()))
    }

    /// Reads messages, and some that follow: these are needed next.
    fn read(&mut self, spi: &Spi, numbers: &BTreeSet<i64>) -> Result<()> {
        let mut missing: Vec<i64> = numbers.iter().copied().filter(|n| !self.read.contains_key(n)).collect();
        let Some(last) = missing.last().copied() else { return Ok(()) };
        let (mut bytes, needed) = (0, missing.len());
        for head in self.heads.range(last + 1..).map(|(_, head)| head) {
            bytes += head.bytes as usize;
            if bytes > BYTES_AT_ONCE || missing.len() >= needed + READ_AHEAD {
                break;
            }
            if !self.read.contains_key(&head.number) {
                missing.push(head.number);
            }
        }
        self.read.extend(global::messages(spi, &missing)?.into_iter().map(|m| (m.number as i64, m)));
        Ok(())
    }

    /// The messages that the state of this command may take. None if it is offered messages in a later turn, or waits
    /// for no global queue.
    pub fn offer_to(
        &mut self,
        spi: &Spi,
        executions: &BTreeMap<ExecutionId, Loaded>,
        gathered: &Gathered,
        id: ExecutionId,
        command: &Command,
    ) -> Result<Option<Vec<GlobalMessage>>> {
        let (wanted, begins) = match command {
            Command::GlobalMessagesArrived { seq } => (wanted_by_state(executions, (id, *seq)), false),
            Command::WaitUntilAnswered { answer, .. } => (wanted_by_request(&answer.request), true),
            _ => return Ok(None),
        };
        if begins {
            // Steps that this turn did not gather have waited longer.
            let is_cut = |queue: &&String| gathered.cut.iter().any(|cut| cut.0 == **queue);
            self.behind.extend(wanted.iter().map(|wanted| &wanted.class.0).filter(is_cut).cloned());
        }
        let offered = self.offer(spi, &wanted)?;
        if offered.is_none() {
            self.behind.extend(wanted.into_iter().map(|wanted| wanted.class.0));
        }
        Ok(offered)
    }

    /// Records which messages were taken by applied events.
    pub fn take_offered(&mut self, events: &[Event]) {
        for event in events {
            if let Event::GlobalMessagesTaken { messages, .. } = event {
                self.take(messages);
            }
        }
    }

    fn take(&mut self, messages: &[GlobalMessage]) {
        for message in messages {
            let number = message.number as i64;
            self.read.remove(&number);
            self.taken.insert(number);
            self.taken_bytes += self.heads.remove(&number).map_or(0, |head| head.bytes as usize);
        }
    }
}

impl Matching {
    /// Begins a turn. A turn that does not gather matches what the failed turn before it has gathered.
    pub fn begin_turn(&mut self, gathers: bool) {
        if gathers {
            *self = Self::default();
        } else {
            self.is_new = false;
        }
    }

    /// Keeps what this transaction has gathered.
    pub fn gathered(&mut self, gathered: Gathered) {
        *self = Self { gathered, is_new: true };
    }

    /// Lists the free messages that the items can take.
    pub fn list_free(
        &self,
        turn: &Turn,
        executions: &BTreeMap<ExecutionId, Loaded>,
        items: &[Item],
        now: Timestamp,
    ) -> Result<Free> {
        if !turn.role.matches_global_queues() {
            return Ok(Free::default());
        }
        let mut wanted = Vec::new();
        for item in items {
            match item {
                Item::Waiter(key) => wanted.push(wanted_by_state(executions, *key)),
                Item::Answer(record, Answered::WaitUntil(answer)) if executions.contains_key(&record.key.0) => {
                    wanted.push(wanted_by_request(&answer.request));
                }
                _ => {}
            }
        }
        if wanted.iter().all(Vec::is_empty) {
            return Ok(Free::default());
        }
        // Uses the time of gathering. Else a message that expires between the two scans would make steps ask for it and
        // get nothing.
        let now = self.gathered.at.unwrap_or(now);
        Free::load(turn.spi, &wanted, &self.gathered.fresh, now)
    }

    /// Records which steps are offered messages again, and which messages are no longer fresh. Returns whether more can
    /// be matched.
    pub fn save(&self, turn: &Turn, decided: &Decided) -> Result<bool> {
        let (mut asked, mut not_asked) = (Vec::new(), Vec::new());
        for (item, outcome) in decided.items.iter().zip(&decided.outcomes) {
            match (item, outcome) {
                (Item::Waiter(key), ItemOutcome::Done) => asked.push(*key),
                (Item::Waiter(key), _) => not_asked.push(*key),
                _ => {}
            }
        }
        global_waiter::pass_over(turn.spi, &not_asked)?;
        if !not_asked.is_empty() {
            crash::point("turn-pass-over");
        }
        let Matching { gathered, is_new } = self;
        let noted: BTreeSet<_> = gathered.passed_over.iter().collect();
        asked.retain(|key| noted.contains(key));
        global_waiter::no_longer_passed_over(turn.spi, &asked)?;
        if !is_new {
            return Ok(false);
        }
        let free = &decided.free;
        // If the steps that were asked took nothing, they take nothing when they are asked again for the same messages.
        // A step that was over was not asked, so steps behind it are still to come.
        let went_on = !free.taken.is_empty() || !not_asked.is_empty() || !decided.stale.waiters.is_empty();
        let cut = |(queue, key): &Class| {
            gathered.cut.contains(&(queue.clone(), key.clone())) || gathered.cut.contains(&(queue.clone(), None))
        };
        let was_listed = |number: i64, (queue, key): &Class| {
            let ends = [(queue.clone(), key.clone()), (queue.clone(), None)];
            ends.iter().all(|class| free.ended.get(class).is_none_or(|end| number < *end))
        };
        let (kept, offered): (Vec<_>, Vec<_>) = gathered.fresh.iter().partition(|(number, class)| {
            !free.taken.contains(number) && (went_on && cut(class) || !was_listed(**number, class))
        });
        let offered: Vec<_> = offered.into_iter().map(|(number, _)| *number).collect();
        global::no_longer_fresh(turn.spi, &offered, gathered.at.unwrap_or_default())?;
        if !free.taken.is_empty() {
            crash::point("turn-give-out");
        }
        // Steps that could not be asked are recorded, so the next turn asks other steps.
        Ok(gathered.more || !kept.is_empty())
    }
}

fn wanted_by_state(executions: &BTreeMap<ExecutionId, Loaded>, key: StateKey) -> Vec<CommandDemand> {
    let state = executions.get(&key.0).and_then(|loaded| loaded.execution.states.get(&key.1));
    state.into_iter().flat_map(|state| state.global_demands()).map(|(_, demand)| CommandDemand::of(demand)).collect()
}

fn wanted_by_request(request: &CommandRequest) -> Vec<CommandDemand> {
    request.commands.iter().filter_map(|command| command.kind.global_demand()).map(CommandDemand::of).collect()
}
