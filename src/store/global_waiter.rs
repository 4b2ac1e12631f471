//! The states that wait for global queues, and the choice of states that the matcher offers messages to. The tables
//! `global_waiter` and `global_passed_over`.

use super::StateKey;
use super::global_queue::may_be_taken;
use super::table::{Gives, delete, insert, insert_but, record, statements, table};
use crate::pg::catch::Result;
use crate::pg::param::{Param, array, value};
use crate::pg::spi::Spi;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use xdb_engine::*;

table! {
    /// A command that waits for a global queue. `wait_order` is its position in the order of waiting, over all
    /// executions.
    pub struct GlobalWaiter<'a> in "global_waiter" {
        key { execution_id: ExecutionId, seq: StateSeq, command: u32 }
        compared {
            queue_name: &'a str,
            key: Option<&'a str>,
            /// How many messages the command needs. The matcher skips commands that need more than there are.
            at_least: i64,
        }
        other { wait_order: i64 }
    }
}

record! {
    /// The key of a waiting command.
    pub struct WaiterKey of GlobalWaiter<'static> { execution_id: ExecutionId, seq: StateSeq, command: u32 }
}

table! {
    /// A waiting state that was not offered messages yet, and will be later. Transactions that begin such a wait, or
    /// skip a locked execution, insert it. Only the scheduler deletes it.
    pub struct PassedOver in "global_passed_over" {
        key { execution_id: ExecutionId, seq: StateSeq }
    }
}

/// The condition on a waiter of a class. A class without a key has the waiters with a null key, which `=` would not
/// find.
fn of_class(has_key: bool) -> &'static str {
    if has_key {
        "w.queue_name = c.queue_name AND w.key = c.key"
    } else {
        "w.queue_name = c.queue_name AND w.key IS NULL"
    }
}

/// For each class, the waiters that the available messages may satisfy.
/// * The LIMITs keep the planner from reading all waiters.
/// * The ORDER BYs keep the planner from scanning the waiters of other classes.
/// * `g.most`, the largest demand, bounds the count of messages.
/// * The recursive query steps from one demand to the next larger one. So it skips waiters that need too many messages.
fn waiters_of(has_key: bool) -> String {
    let (of_key, order) = if has_key { ("AND m.key = c.key", "m.number - 0") } else { ("", "m.number + 0") };
    let of_class = of_class(has_key);
    format!(
        "SELECT c.n, a.available, w.execution_id, w.seq, w.wait_order \
         FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS c (queue_name, key, n) \
         CROSS JOIN LATERAL (SELECT w.at_least AS most FROM xdb.global_waiter w WHERE {of_class} \
            ORDER BY w.key DESC, w.at_least DESC, w.wait_order DESC LIMIT 1) AS g \
         CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS available FROM (SELECT FROM xdb.global_message m \
            WHERE m.queue_name = c.queue_name {of_key} AND m.taken_by IS NULL \
                AND {} \
            ORDER BY {order} LIMIT GREATEST(g.most, $4)) AS l) AS a \
         CROSS JOIN LATERAL (WITH RECURSIVE wanted (at_least) AS ( \
                SELECT 0::bigint \
                UNION ALL SELECT (SELECT w.at_least FROM xdb.global_waiter w \
                    WHERE {of_class} AND w.at_least > wanted.at_least AND w.at_least <= a.available \
                    ORDER BY w.key, w.at_least, w.wait_order LIMIT 1) \
                FROM wanted WHERE wanted.at_least IS NOT NULL) \
            SELECT w.* FROM wanted CROSS JOIN LATERAL (SELECT w.execution_id, w.seq, w.wait_order \
                FROM xdb.global_waiter w WHERE {of_class} AND w.at_least = wanted.at_least \
                    AND w.execution_id <> ALL ($5) \
                ORDER BY w.key, w.wait_order LIMIT LEAST(a.available, $6)) AS w \
            ORDER BY w.wait_order LIMIT LEAST(a.available, $6)) AS w",
        may_be_taken("$3")
    )
}

statements! {
    NEW_WAITERS = insert_but::<GlobalWaiter>(&["wait_order"]);
    WAITERS_GONE = delete::<GlobalWaiter, WaiterKey>();
    /// Deletes the rows of states that no longer wait. The caller has locked their executions.
    DELETE_WAITERS = delete::<GlobalWaiter, StateKey>() => pub fn delete_waiters(states: [StateKey]) -> ();
    // A state's key has the same parameters as a row.
    /// Records that these waiting states must be offered messages again.
    PASS_OVER = format!("{} ON CONFLICT DO NOTHING", insert::<PassedOver>())
        => pub fn pass_over(states: [StateKey]) -> ();
    /// Removes states that were offered messages, or that no longer wait.
    NO_LONGER_PASSED_OVER = delete::<PassedOver, StateKey>() => pub fn no_longer_passed_over(states: [StateKey]) -> ();
    FRESH = format!("SELECT number, queue_name, key FROM xdb.global_message WHERE fresh ORDER BY number + 0 LIMIT {FRESH_PER_TURN}")
        => fn fresh() -> BTreeMap<i64, Class>;
    PASSED_OVER = "SELECT p.execution_id, p.seq, (SELECT min(w.wait_order) FROM xdb.global_waiter w \
            WHERE w.execution_id = p.execution_id AND w.seq = p.seq) AS wait_order \
        FROM xdb.global_passed_over p WHERE p.execution_id <> ALL ($1) LIMIT $2"
        => fn waiting_again(except: &[ExecutionId], limit: i64) -> Vec<(StateKey, Option<i64>)>;
    // Waiters of executions that this turn defers are offered messages later.
    NOTE_BUSY = "INSERT INTO xdb.global_passed_over (execution_id, seq) \
        SELECT DISTINCT w.execution_id, w.seq FROM xdb.global_waiter w \
        JOIN unnest($1::text[], $2::text[]) AS c (queue_name, key) \
            ON c.queue_name = w.queue_name AND c.key = COALESCE(w.key, '') \
        WHERE w.execution_id = ANY ($3) ON CONFLICT DO NOTHING";
    WAITERS_OF_KEYS = waiters_of(true);
    WAITERS_OF_QUEUES = waiters_of(false);
}

impl<'a> GlobalWaiter<'a> {
    /// The row of a waiting command, as far as its state determines it.
    pub fn of((execution_id, seq): StateKey, command: u32, demand: GlobalDemand<'a>) -> Self {
        let GlobalDemand { queue: queue_name, key, at_least, .. } = demand;
        Self { execution_id, seq, command, queue_name, key, at_least: i64::from(at_least), wait_order: 0 }
    }
}

/// A class of messages: the messages of a queue with a key, or all messages of a queue.
pub type Class = (String, Option<String>);

/// Work for the matcher.
#[derive(Default)]
pub struct Gathered {
    /// The time against which expiry was checked.
    pub at: Option<Timestamp>,
    /// The new messages that this turn offers. Further new messages are ignored until a later turn.
    pub fresh: BTreeMap<i64, Class>,
    /// The states to offer messages to, the longest waiting first.
    pub states: Vec<StateKey>,
    /// Those of `states` that were recorded as passed over.
    pub passed_over: Vec<StateKey>,
    /// Classes whose waiters were not all read.
    pub cut: BTreeSet<Class>,
    /// Whether there may be more work.
    pub more: bool,
}

/// The most new messages that one turn offers.
const FRESH_PER_TURN: usize = 1000;

/// Messages of a class are counted up to this number, or up to the largest demand if that is higher.
const COUNTED: i64 = 1000;

/// Finds new messages and the states that they may satisfy. States of `busy` executions are recorded as passed over.
pub fn gather(spi: &Spi, now: Timestamp, busy: &[ExecutionId], limit: usize) -> Result<Gathered> {
    let fresh = fresh(spi)?;
    let mut gathered = Gathered { at: Some(now), more: fresh.len() == FRESH_PER_TURN, ..Gathered::default() };
    let mut in_order = passed_over(spi, busy, limit, &mut gathered)?;
    let classes: BTreeSet<Class> =
        fresh.values().flat_map(|(queue, key)| [(queue.clone(), key.clone()), (queue.clone(), None)]).collect();
    gathered.fresh = fresh;
    let (keyed, whole): (Vec<Class>, Vec<Class>) = classes.into_iter().partition(|(_, key)| key.is_some());
    for (classes, has_key) in [(keyed, true), (whole, false)] {
        if classes.is_empty() {
            continue;
        }
        if !busy.is_empty() {
            let [queues, keys] = class_params(&classes);
            spi.run(&NOTE_BUSY, &[queues, keys, array(busy)])?;
        }
        in_order.extend(waiters(spi, &classes, has_key, now, busy, limit, &mut gathered.cut)?);
    }
    in_order.sort_unstable();
    let mut seen = HashSet::new();
    gathered.states = in_order.into_iter().map(|(_, key)| key).filter(|key| seen.insert(*key)).collect();
    if gathered.states.len() > limit {
        gathered.states.truncate(limit);
        gathered.more = true;
        gathered.cut.extend(gathered.fresh.values().flat_map(|(q, k)| [(q.clone(), k.clone()), (q.clone(), None)]));
    }
    let asked: HashSet<_> = gathered.states.iter().copied().collect();
    gathered.passed_over.retain(|key| asked.contains(key));
    Ok(gathered)
}

/// States that were passed over, with their positions in the order of waiting.
fn passed_over(spi: &Spi, busy: &[ExecutionId], limit: usize, gathered: &mut Gathered) -> Result<Vec<(i64, StateKey)>> {
    let rows = waiting_again(spi, busy, limit as i64)?;
    gathered.more |= rows.len() == limit;
    let (waiting, over): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, order)| order.is_some());
    let over: Vec<_> = over.into_iter().map(|(key, _)| key).collect();
    no_longer_passed_over(spi, &over)?;
    gathered.passed_over = waiting.iter().map(|(key, _)| *key).collect();
    Ok(waiting.into_iter().filter_map(|(key, order)| Some((order?, key))).collect())
}

fn class_params(classes: &[Class]) -> [Param; 2] {
    [array(classes.iter().map(|c| c.0.as_str())), array(classes.iter().map(|c| c.1.as_deref().unwrap_or_default()))]
}

/// For each class, the waiters that the available messages may satisfy, at most one per message. Classes whose waiters
/// were not all read are added to `cut`.
fn waiters(
    spi: &Spi,
    classes: &[Class],
    has_key: bool,
    now: Timestamp,
    busy: &[ExecutionId],
    limit: usize,
    cut: &mut BTreeSet<Class>,
) -> Result<Vec<(i64, StateKey)>> {
    let [queues, keys] = class_params(classes);
    let limit = limit as i64;
    let params = [queues, keys, value(now), value(COUNTED), array(busy), value(limit)];
    let statement = if has_key { &WAITERS_OF_KEYS } else { &WAITERS_OF_QUEUES };
    let mut per_class: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    let rows: Vec<(i64, i64, StateKey, i64)> = Gives::of(spi, statement, &params)?;
    for (n, available, ..) in &rows {
        per_class.entry(*n).or_insert(((*available).min(limit), 0)).1 += 1;
    }
    for (n, (at_most, found)) in per_class {
        if found >= at_most {
            cut.extend(classes.get(n as usize - 1).cloned());
        }
    }
    Ok(rows.into_iter().map(|(_, _, key, wait_order)| (wait_order, key)).collect())
}
