//! Who waits for global queues, and whom the matcher has to ask. The tables `global_waiter` and `global_passed_over`.

use super::StateKey;
use super::table::{Gives, delete, insert, insert_but, record, statements, table};
use crate::pg::catch::Result;
use crate::pg::param::{Param, array, value};
use crate::pg::spi::Spi;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use xdb_engine::*;

table! {
    /// A command that waits for a global queue. `wait_order` is its place in the order of waiting, over all executions.
    pub struct GlobalWaiter<'a> in "global_waiter" {
        key { execution_id: ExecutionId, seq: StateSeq, command: u32 }
        compared {
            queue_name: &'a str,
            key: Option<&'a str>,
            /// Tells whom it is no use to ask.
            at_least: i64,
        }
        other { wait_order: i64 }
    }
}

record! {
    /// Names a waiting command.
    pub struct WaiterKey of GlobalWaiter<'static> { execution_id: ExecutionId, seq: StateSeq, command: u32 }
}

table! {
    /// A waiting state that could not be asked when messages came, and will be. Written by schedulers alone.
    pub struct PassedOver in "global_passed_over" {
        key { execution_id: ExecutionId, seq: StateSeq }
    }
}

/// The condition on a waiter of a class. The order of the index tells null keys from others.
fn of_class(has_key: bool) -> &'static str {
    if has_key {
        "w.queue_name = c.queue_name AND w.key = c.key"
    } else {
        "w.queue_name = c.queue_name AND w.key IS NULL"
    }
}

/// Of each class the waiters that there may be enough messages for. Limits keep the planner from reading all waiters, and the order from
/// taking those of other classes for a way to these. How many messages are wanted at the most tells how far to count. Who wants how many is looked up from number to
/// number, so that those for whom there are too few are not walked over.
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
                AND (m.expires_at IS NULL OR m.expires_at > $3) \
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
            ORDER BY w.wait_order LIMIT LEAST(a.available, $6)) AS w"
    )
}

statements! {
    NEW_WAITERS = insert_but::<GlobalWaiter>(&["wait_order"]);
    WAITERS_GONE = delete::<GlobalWaiter, WaiterKey>();
    /// Deletes what is left of states that wait for nothing, under the lock of their executions.
    DELETE_WAITERS = delete::<GlobalWaiter, StateKey>() => pub fn delete_waiters(states: [StateKey]) -> ();
    // A key of a state has the parameters of a row.
    /// Notes that these waiting states are to be asked again.
    PASS_OVER = format!("{} ON CONFLICT DO NOTHING", insert::<PassedOver>())
        => pub fn pass_over(states: [StateKey]) -> ();
    /// These states were asked, or wait for nothing any more.
    NO_LONGER_PASSED_OVER = delete::<PassedOver, StateKey>() => pub fn no_longer_passed_over(states: [StateKey]) -> ();
    FRESH = format!("SELECT number, queue_name, key FROM xdb.global_message WHERE fresh ORDER BY number + 0 LIMIT {FRESH_PER_TURN}")
        => fn fresh() -> BTreeMap<i64, Class>;
    PASSED_OVER = "SELECT p.execution_id, p.seq, (SELECT min(w.wait_order) FROM xdb.global_waiter w \
            WHERE w.execution_id = p.execution_id AND w.seq = p.seq) AS wait_order \
        FROM xdb.global_passed_over p WHERE p.execution_id <> ALL ($1) LIMIT $2"
        => fn waiting_again(except: &[ExecutionId], limit: i64) -> Vec<(StateKey, Option<i64>)>;
    // Waiters in executions that are left alone for the moment are asked later.
    NOTE_BUSY = "INSERT INTO xdb.global_passed_over (execution_id, seq) \
        SELECT DISTINCT w.execution_id, w.seq FROM xdb.global_waiter w \
        JOIN unnest($1::text[], $2::text[]) AS c (queue_name, key) \
            ON c.queue_name = w.queue_name AND c.key = COALESCE(w.key, '') \
        WHERE w.execution_id = ANY ($3) ON CONFLICT DO NOTHING";
    WAITERS_OF_KEYS = waiters_of(true);
    WAITERS_OF_QUEUES = waiters_of(false);
}

impl<'a> GlobalWaiter<'a> {
    /// The row of a command that waits, as far as its state tells.
    pub fn of((execution_id, seq): StateKey, command: u32, demand: GlobalDemand<'a>) -> Self {
        let GlobalDemand { queue: queue_name, key, at_least, .. } = demand;
        Self { execution_id, seq, command, queue_name, key, at_least: i64::from(at_least), wait_order: 0 }
    }
}

/// Messages that can be taken alike: those of a queue with a key, or all of a queue.
pub type Class = (String, Option<String>);

/// Work for the matcher.
#[derive(Default)]
pub struct Gathered {
    /// The time by which messages had ended or not.
    pub at: Option<Timestamp>,
    /// New messages that this turn hands out; other new ones are not there yet.
    pub fresh: BTreeMap<i64, Class>,
    /// States to ask, longest waiting first.
    pub states: Vec<StateKey>,
    /// Those of them that are noted as passed over.
    pub passed_over: Vec<StateKey>,
    /// Who waits for these has not been looked up to the end.
    pub cut: BTreeSet<Class>,
    /// There may be further new messages.
    pub more: bool,
}

/// Most new messages that a turn hands out.
const FRESH_PER_TURN: usize = 1000;

/// Messages are not counted beyond this, unless somebody wants more, to find out whom it is no use to ask.
const COUNTED: i64 = 1000;

/// Finds new messages and those whom they may satisfy. Who is `busy` is noted as passed over.
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

/// States that were passed over, with their places in the order of waiting.
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

/// Of each class the waiters that there may be enough messages for, not more than there are messages. A class whose
/// waiters were not looked up to the end goes into `cut`.
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
