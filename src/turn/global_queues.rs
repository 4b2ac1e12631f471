//! Hands messages of global queues to those who wait for them. The scheduler's turn is the only place where that
//! is done, so two of it never disagree about who is next.

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

/// Where a list of messages ends, unless a single state wants more.
const LISTED: usize = 10_000;

/// Messages are read with this much at a time, and when so much has been taken, others wait for the next turn.
const BYTES_AT_ONCE: usize = 4 * 1024 * 1024;
const BYTES_PER_TURN: usize = 16 * 1024 * 1024;

/// Most messages that are read at a time beyond what is needed.
const READ_AHEAD: usize = 500;

/// What a scheduler knows of the messages that wait to be handed out. A turn that is made again in parts hands out
/// the same ones.
#[derive(Default)]
pub struct Matching {
    pub gathered: Gathered,
    /// They were gathered in this very transaction, which says in the end that everybody was asked.
    pub is_new: bool,
}

/// What a command wants, apart from its request.
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

/// The free messages that a turn can hand out.
#[derive(Default)]
pub struct Free {
    /// Those that nobody has taken, in this turn neither.
    heads: BTreeMap<i64, FreeMessage>,
    lists: HashMap<Class, List>,
    /// Lists that end in front of a message that is new and not of this turn: by its number.
    ended: BTreeMap<Class, i64>,
    read: BTreeMap<i64, GlobalMessage>,
    taken: BTreeSet<i64>,
    taken_bytes: usize,
    /// Queues for which somebody has waited longer than those who come now, and is asked in a later turn.
    behind: BTreeSet<String>,
}

/// Messages of a class, oldest first.
#[derive(Default)]
struct List {
    numbers: VecDeque<i64>,
    /// There are more than were listed.
    is_cut: bool,
}

/// How many messages all states together can take, and the one of them that can take most.
type Demand = (usize, usize);

/// What states can take of each class, and of each queue.
fn demand(wanted: &[Vec<CommandDemand>]) -> (BTreeMap<&Class, Demand>, BTreeMap<&str, Demand>) {
    let (mut of_class, mut of_queue) = (BTreeMap::new(), BTreeMap::new());
    for state in wanted {
        // Of all commands of the state: it is asked about them at once.
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
    /// Lists what all these commands together can take, and nothing that is new and not of this turn: in front of
    /// such a message a list ends, so that nothing overtakes it.
    fn load(spi: &Spi, wanted: &[Vec<CommandDemand>], fresh: &BTreeMap<i64, Class>, now: Timestamp) -> Result<Self> {
        let (of_class, of_queue) = demand(wanted);
        let limit = |(sum, most): &Demand| (*sum).min(LISTED.max(*most));
        let whole: Vec<&str> =
            of_class.keys().filter(|class| class.1.is_none()).map(|class| class.0.as_str()).collect();
        // A list of a whole queue is long enough for those too who want a key and are asked before.
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
                // What follows is for a later turn, and so nobody needs to be put off for it.
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

    /// What a state with these commands can be offered; None: not in this turn. Nobody overtakes one who was put off.
    fn offer(&mut self, spi: &Spi, wanted: &[CommandDemand]) -> Result<Option<Vec<GlobalMessage>>> {
        let classes: BTreeSet<&Class> = wanted.iter().map(|wanted| &wanted.class).collect();
        let mut numbers = BTreeSet::new();
        for class in classes {
            let own = || wanted.iter().filter(|other| other.class == *class);
            // What one command takes of these is gone for another: there must be enough for all of the same messages.
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

    /// Reads messages, and some of those that follow in the order, because they will be needed next.
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

    /// What the state of this command can take; None if it has to be asked in a later turn, or has nothing to do with global
    /// queues.
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
            // Those whom this turn did not get to have waited longer.
            let is_cut = |queue: &&String| gathered.cut.iter().any(|cut| cut.0 == **queue);
            self.behind.extend(wanted.iter().map(|wanted| &wanted.class.0).filter(is_cut).cloned());
        }
        let offered = self.offer(spi, &wanted)?;
        if offered.is_none() {
            self.behind.extend(wanted.into_iter().map(|wanted| wanted.class.0));
        }
        Ok(offered)
    }

    /// Notes what was taken by events that are applied.
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
    /// A turn begins. One that gathers nothing hands out what the one before it has gathered, and failed to.
    pub fn begin_turn(&mut self, gathers: bool) {
        if gathers {
            *self = Self::default();
        } else {
            self.is_new = false;
        }
    }

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
        // Messages that end between the two scans must not make those who were found ask for all of them and get nothing.
        let now = self.gathered.at.unwrap_or(now);
        Free::load(turn.spi, &wanted, &self.gathered.fresh, now)
    }

    /// Writes who is to be asked again, and that the others were. Says whether there is more to hand out.
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
        // Where nobody who was asked took anything, nobody will who is asked again for the same messages. Who had just gone was not
        // asked, and those behind him are still to come.
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
        global::no_longer_fresh(turn.spi, &offered)?;
        if !free.taken.is_empty() {
            crash::point("turn-give-out");
        }
        // Whoever could not be asked is noted, so that the next turn asks others.
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
