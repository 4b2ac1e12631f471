//! Global queues: publishing, and what the matcher reads and writes. The main scheduler is the only one who takes
//! messages, and so the only one who reads what is free.

use super::StateKey;
use super::load::Loaded;
use crate::pg::catch::{PgError, Result};
use crate::pg::crash;
use crate::pg::param::{array, array_of_nullable, value};
use crate::pg::process;
use crate::pg::spi::Spi;
use crate::pg::wake;
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use xdb_engine::*;

/// A message on its way into a global queue.
#[derive(Clone, Copy, Debug)]
pub struct NewMessage<'a> {
    pub queue: &'a str,
    pub key: Option<&'a str>,
    pub message_id: Option<&'a str>,
    pub payload: Option<&'a str>,
    pub owner: pg_sys::Oid,
    pub expires_at: Option<Timestamp>,
}

/// Puts messages into their queues, in this order. One whose id its queue has seen is left out. May wait for somebody
/// who uses the same id and has not committed.
pub fn publish(spi: &Spi, messages: &[NewMessage<'_>], now: Timestamp) -> Result<()> {
    const KEYS: &str = "INSERT INTO xdb.global_message_key (queue_name, message_id, published_at) \
        SELECT v.queue_name, v.message_id, $3 FROM unnest($1::text[], $2::text[]) AS v (queue_name, message_id) \
        ORDER BY v.queue_name, v.message_id ON CONFLICT DO NOTHING RETURNING queue_name, message_id";
    const MESSAGES: &str = "INSERT INTO xdb.global_message \
        (queue_name, key, message_id, payload, bytes, owner, owner_name, published_at, expires_at) \
        SELECT v.queue_name, v.key, v.message_id, v.payload::jsonb, v.bytes, v.owner, \
            COALESCE((SELECT r.rolname FROM pg_catalog.pg_roles r WHERE r.oid = v.owner), ''), $8, v.expires_at \
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[], $6::oid[], $7::timestamptz[]) \
            WITH ORDINALITY AS v (queue_name, key, message_id, payload, bytes, owner, expires_at, n) ORDER BY v.n";
    let with_id: Vec<_> = messages.iter().filter_map(|m| Some((m.queue, m.message_id?))).collect();
    let mut new_ids = HashSet::new();
    if !with_id.is_empty() {
        let params = [array(with_id.iter().map(|k| k.0)), array(with_id.iter().map(|k| k.1)), value(now)];
        new_ids.extend(spi.rows(KEYS, &params, |row| Ok((row.need::<String>(1)?, row.need::<String>(2)?)))?);
    }
    // Of two with one id in this very call, the first is new.
    let mut is_new = |m: &&NewMessage<'_>| {
        m.message_id.is_none_or(|message_id| new_ids.remove(&(m.queue.to_owned(), message_id.to_owned())))
    };
    let rows: Vec<_> = messages.iter().filter(&mut is_new).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let params = [
        array(rows.iter().map(|m| m.queue)),
        array_of_nullable(rows.iter().map(|m| m.key)),
        array_of_nullable(rows.iter().map(|m| m.message_id)),
        array_of_nullable(rows.iter().map(|m| m.payload)),
        array(rows.iter().map(|m| m.payload.map_or(0, str::len) as i32)),
        array(rows.iter().map(|m| m.owner)),
        array_of_nullable(rows.iter().map(|m| m.expires_at)),
        value(now),
    ];
    spi.run(MESSAGES, &params)?;
    wake::wake_scheduler_at_commit();
    Ok(())
}

/// What became of executions, as far as global queues are concerned.
#[derive(Default)]
pub(super) struct Changes<'a> {
    published: Vec<NewMessage<'a>>,
    taken: Vec<(i64, StateKey, u32)>,
    used_up: Vec<StateKey>,
    given_back: Vec<StateKey>,
    closed: Vec<ExecutionId>,
    waiters_new: Vec<(StateKey, u32, GlobalDemand<'a>)>,
    waiters_gone: Vec<(StateKey, u32)>,
    passed_over: Vec<StateKey>,
}

impl<'a> Changes<'a> {
    pub fn collect(&mut self, loaded: &'a Loaded, closes: bool) {
        let Loaded { meta, before, execution, events, .. } = loaded;
        let id = execution.id;
        let holds =
            |seq: &StateSeq| before.states.get(seq).is_some_and(|state| state.held_global_messages().next().is_some());
        for (event, _) in events {
            match event {
                Event::GlobalMessagesPublished { messages, .. } => {
                    let owner = loaded.acting_as.unwrap_or(meta.owner);
                    self.published.extend(messages.iter().map(|message| NewMessage {
                        queue: &message.queue,
                        key: message.key.as_deref(),
                        message_id: message.message_id.as_deref(),
                        payload: message.payload.as_ref().map(Json::as_str),
                        owner,
                        expires_at: message.expires_at,
                    }));
                }
                Event::GlobalMessagesTaken { seq, command, messages } => {
                    self.taken.extend(messages.iter().map(|m| (m.number as i64, (id, *seq), *command)));
                }
                Event::StateCompleted { seq, .. } if holds(seq) => self.used_up.push((id, *seq)),
                Event::StateFailed { seq, .. } if holds(seq) => self.given_back.push((id, *seq)),
                _ => {}
            }
        }
        if closes {
            self.closed.push(id);
            return;
        }
        for (old, state) in loaded.changed_states() {
            let key = (id, state.seq);
            let old: BTreeSet<u32> =
                old.into_iter().flat_map(|old| old.global_demands()).map(|(command, _)| command).collect();
            let waited = state.global_demands().filter(|(command, _)| !old.contains(command));
            let new: Vec<_> = waited.map(|(command, demand)| (key, command, demand)).collect();
            if !new.is_empty() && !loaded.offered.contains(&state.seq) {
                self.passed_over.push(key);
            }
            self.waiters_new.extend(new);
            let gone = |command: &u32| state.global_demands().all(|(open, _)| open != *command);
            self.waiters_gone.extend(old.iter().filter(|command| gone(command)).map(|command| (key, *command)));
        }
    }

    pub fn write(&self, spi: &Spi, now: Timestamp) -> Result<()> {
        const TAKE: &str = "UPDATE xdb.global_message m SET taken_by = v.execution_id, taken_seq = v.seq, \
            taken_command = v.command, taken_at = $5, fresh = false \
            FROM unnest($1::bigint[], $2::uuid[], $3::int[], $4::int[]) AS v (number, execution_id, seq, command) \
            WHERE m.number = v.number AND m.taken_by IS NULL";
        const USED_UP: &str = "DELETE FROM xdb.global_message m \
            USING unnest($1::uuid[], $2::int[]) AS k (execution_id, seq) \
            WHERE m.taken_by = k.execution_id AND m.taken_seq = k.seq";
        // The time that it was taken does not count for its ttl; a clock that was set back adds none.
        const FREE: &str = "taken_by = NULL, taken_seq = NULL, taken_command = NULL, taken_at = NULL, fresh = true, \
            expires_at = m.expires_at + GREATEST($1 - m.taken_at, interval '0')";
        if !self.taken.is_empty() {
            let rows = &self.taken;
            let params = [
                array(rows.iter().map(|r| r.0)),
                array(rows.iter().map(|r| r.1.0)),
                array(rows.iter().map(|r| r.1.1.0 as i32)),
                array(rows.iter().map(|r| r.2 as i32)),
                value(now),
            ];
            if spi.run(TAKE, &params)? != rows.len() as u64 {
                return Err(PgError::internal("a message of a global queue was not there to be taken"));
            }
        }
        if !self.used_up.is_empty() {
            spi.run(USED_UP, &keys(&self.used_up))?;
        }
        let mut freed = 0;
        if !self.given_back.is_empty() {
            let sql = format!(
                "UPDATE xdb.global_message m SET {FREE} FROM unnest($2::uuid[], $3::int[]) AS k (execution_id, seq) \
                 WHERE m.taken_by = k.execution_id AND m.taken_seq = k.seq"
            );
            let [ids, seqs] = keys(&self.given_back);
            freed += spi.run(&sql, &[value(now), ids, seqs])?;
        }
        if !self.closed.is_empty() {
            let sql = format!("UPDATE xdb.global_message m SET {FREE} WHERE m.taken_by = ANY ($2)");
            freed += spi.run(&sql, &[value(now), array(self.closed.iter().copied())])?;
        }
        if freed > 0 {
            crash::point(if process::is_engine() { "turn-give-back" } else { "caller-give-back" });
        }
        self.write_waiters(spi)?;
        if freed > 0 || !self.passed_over.is_empty() {
            wake::wake_scheduler_at_commit();
        }
        if self.published.is_empty() { Ok(()) } else { publish(spi, &self.published, now) }
    }

    fn write_waiters(&self, spi: &Spi) -> Result<()> {
        const NEW: &str = "INSERT INTO xdb.global_waiter (execution_id, seq, command, queue_name, key, at_least) \
            SELECT v.execution_id, v.seq, v.command, v.queue_name, v.key, v.at_least \
            FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[], $5::text[], $6::bigint[]) \
                WITH ORDINALITY AS v (execution_id, seq, command, queue_name, key, at_least, n) ORDER BY v.n";
        const GONE: &str = "DELETE FROM xdb.global_waiter w \
            USING unnest($1::uuid[], $2::int[], $3::int[]) AS k (execution_id, seq, command) \
            WHERE w.execution_id = k.execution_id AND w.seq = k.seq AND w.command = k.command";
        if !self.waiters_gone.is_empty() {
            let rows = &self.waiters_gone;
            let params = [
                array(rows.iter().map(|r| r.0.0)),
                array(rows.iter().map(|r| r.0.1.0 as i32)),
                array(rows.iter().map(|r| r.1 as i32)),
            ];
            spi.run(GONE, &params)?;
        }
        if !self.waiters_new.is_empty() {
            let rows = &self.waiters_new;
            let params = [
                array(rows.iter().map(|r| r.0.0)),
                array(rows.iter().map(|r| r.0.1.0 as i32)),
                array(rows.iter().map(|r| r.1 as i32)),
                array(rows.iter().map(|r| r.2.queue)),
                array_of_nullable(rows.iter().map(|r| r.2.key)),
                array(rows.iter().map(|r| i64::from(r.2.at_least))),
            ];
            spi.run(NEW, &params)?;
        }
        pass_over(spi, &self.passed_over)
    }
}

fn keys(keys: &[StateKey]) -> [crate::pg::param::Param; 2] {
    [array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32))]
}

/// Notes that these waiting states are to be asked again.
pub fn pass_over(spi: &Spi, states: &[StateKey]) -> Result<()> {
    const INSERT: &str = "INSERT INTO xdb.global_passed_over (execution_id, seq) \
        SELECT * FROM unnest($1::uuid[], $2::int[]) ON CONFLICT DO NOTHING";
    if !states.is_empty() {
        spi.run(INSERT, &keys(states))?;
    }
    Ok(())
}

/// These states were asked, or wait for nothing any more.
pub fn no_longer_passed_over(spi: &Spi, states: &[StateKey]) -> Result<()> {
    const DELETE: &str = "DELETE FROM xdb.global_passed_over p \
        USING unnest($1::uuid[], $2::int[]) AS k (execution_id, seq) \
        WHERE p.execution_id = k.execution_id AND p.seq = k.seq";
    if !states.is_empty() {
        spi.run(DELETE, &keys(states))?;
    }
    Ok(())
}

/// Deletes what is left of states that wait for nothing, under the lock of their executions.
pub fn delete_waiters(spi: &Spi, states: &[StateKey]) -> Result<()> {
    const DELETE: &str = "DELETE FROM xdb.global_waiter w \
        USING unnest($1::uuid[], $2::int[]) AS k (execution_id, seq) \
        WHERE w.execution_id = k.execution_id AND w.seq = k.seq";
    if !states.is_empty() {
        spi.run(DELETE, &keys(states))?;
    }
    Ok(())
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
    const FRESH: &str =
        "SELECT number, queue_name, key FROM xdb.global_message WHERE fresh ORDER BY number + 0 LIMIT $1";
    let fresh = spi.rows(FRESH, &[value(FRESH_PER_TURN as i64)], |row| {
        Ok((row.need::<i64>(1)?, (row.need::<String>(2)?, row.get::<String>(3))))
    })?;
    let mut gathered = Gathered { at: Some(now), more: fresh.len() == FRESH_PER_TURN, ..Gathered::default() };
    let mut in_order = passed_over(spi, busy, limit, &mut gathered)?;
    let classes: BTreeSet<Class> =
        fresh.iter().flat_map(|(_, (queue, key))| [(queue.clone(), key.clone()), (queue.clone(), None)]).collect();
    gathered.fresh = fresh.into_iter().collect();
    let (keyed, whole): (Vec<Class>, Vec<Class>) = classes.into_iter().partition(|(_, key)| key.is_some());
    for (classes, has_key) in [(keyed, true), (whole, false)] {
        let classes = with_waiters(spi, classes, has_key)?;
        if classes.is_empty() {
            continue;
        }
        note_busy(spi, &classes, busy)?;
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
    const SELECT: &str = "SELECT p.execution_id, p.seq, \
            (SELECT min(w.wait_order) FROM xdb.global_waiter w WHERE w.execution_id = p.execution_id AND w.seq = p.seq) \
        FROM xdb.global_passed_over p WHERE p.execution_id <> ALL ($1) LIMIT $2";
    let rows = spi.rows(SELECT, &[array(busy.iter().copied()), value(limit as i64)], |row| {
        Ok(((row.execution_id(1)?, StateSeq(row.need::<i32>(2)? as u32)), row.get::<i64>(3)))
    })?;
    gathered.more |= rows.len() == limit;
    let (waiting, over): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, order)| order.is_some());
    let over: Vec<_> = over.into_iter().map(|(key, _)| key).collect();
    no_longer_passed_over(spi, &over)?;
    gathered.passed_over = waiting.iter().map(|(key, _)| *key).collect();
    Ok(waiting.into_iter().filter_map(|(key, order)| Some((order?, key))).collect())
}

fn class_params(classes: &[Class]) -> [crate::pg::param::Param; 2] {
    [array(classes.iter().map(|c| c.0.as_str())), array(classes.iter().map(|c| c.1.as_deref().unwrap_or_default()))]
}

/// The condition on a waiter of a class. The order of the index tells null keys from others.
fn of_class(has_key: bool) -> &'static str {
    if has_key {
        "w.queue_name = c.queue_name AND w.key = c.key"
    } else {
        "w.queue_name = c.queue_name AND w.key IS NULL"
    }
}

/// Those of the classes that anybody waits for. Limits keep the planner from reading all waiters, and the order from
/// taking those of other classes for a way to these.
fn with_waiters(spi: &Spi, classes: Vec<Class>, has_key: bool) -> Result<Vec<Class>> {
    let sql = format!(
        "SELECT c.n FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS c (queue_name, key, n) \
         CROSS JOIN LATERAL (SELECT FROM xdb.global_waiter w WHERE {} \
            ORDER BY w.key, w.at_least, w.wait_order LIMIT 1) AS w",
        of_class(has_key)
    );
    if classes.is_empty() {
        return Ok(classes);
    }
    let found: HashSet<i64> = spi.rows(&sql, &class_params(&classes), |row| row.need(1))?.into_iter().collect();
    Ok((1i64..).zip(classes).filter(|(n, _)| found.contains(n)).map(|(_, class)| class).collect())
}

/// Waiters in executions that are left alone for the moment are asked later.
fn note_busy(spi: &Spi, classes: &[Class], busy: &[ExecutionId]) -> Result<()> {
    const INSERT: &str = "INSERT INTO xdb.global_passed_over (execution_id, seq) \
        SELECT DISTINCT w.execution_id, w.seq FROM xdb.global_waiter w \
        JOIN unnest($1::text[], $2::text[]) AS c (queue_name, key) \
            ON c.queue_name = w.queue_name AND c.key = COALESCE(w.key, '') \
        WHERE w.execution_id = ANY ($3) ON CONFLICT DO NOTHING";
    if !busy.is_empty() {
        let [queues, keys] = class_params(classes);
        spi.run(INSERT, &[queues, keys, array(busy.iter().copied())])?;
    }
    Ok(())
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
    let (of_key, order) = if has_key { ("AND m.key = c.key", "m.number - 0") } else { ("", "m.number + 0") };
    let of_class = of_class(has_key);
    // How many messages are wanted at the most tells how far to count. Who wants how many is looked up from number to
    // number, so that those for whom there are too few are not walked over.
    let sql = format!(
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
    );
    let [queues, keys] = class_params(classes);
    let limit = limit as i64;
    let params = [queues, keys, value(now), value(COUNTED), array(busy.iter().copied()), value(limit)];
    let mut per_class: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    let rows = spi.rows(&sql, &params, |row| {
        let (n, available) = (row.need::<i64>(1)?, row.need::<i64>(2)?);
        per_class.entry(n).or_insert((available.min(limit), 0)).1 += 1;
        Ok((row.need::<i64>(5)?, (row.execution_id(3)?, StateSeq(row.need::<i32>(4)? as u32))))
    })?;
    for (n, (at_most, found)) in per_class {
        if found >= at_most {
            cut.extend(classes.get(n as usize - 1).cloned());
        }
    }
    Ok(rows)
}

/// These messages were offered to everybody who waits for them.
pub fn no_longer_fresh(spi: &Spi, numbers: &[i64]) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.global_message SET fresh = false WHERE number = ANY ($1) AND fresh";
    if !numbers.is_empty() {
        spi.run(UPDATE, &[array(numbers.iter().copied())])?;
    }
    Ok(())
}

/// A free message, without its payload.
#[derive(Clone, Debug)]
pub struct Head {
    pub number: i64,
    pub queue: String,
    pub key: Option<String>,
    pub bytes: usize,
    pub fresh: bool,
}

/// The first free messages of queues, whatever their keys: as many as wanted of each.
pub fn heads_of_queues(spi: &Spi, wanted: &[(&str, i64)], now: Timestamp) -> Result<Vec<Head>> {
    const SELECT: &str = "SELECT h.number, h.queue_name, h.key, h.bytes, h.fresh \
        FROM unnest($1::text[], $2::bigint[]) AS d (queue_name, wanted) \
        CROSS JOIN LATERAL (SELECT m.number, m.queue_name, m.key, m.bytes, m.fresh FROM xdb.global_message m \
            WHERE m.queue_name = d.queue_name AND m.taken_by IS NULL \
                AND (m.expires_at IS NULL OR m.expires_at > $3) \
            ORDER BY m.number + 0 LIMIT d.wanted) AS h ORDER BY h.number";
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    spi.rows(SELECT, &[array(wanted.iter().map(|w| w.0)), array(wanted.iter().map(|w| w.1)), value(now)], read_head)
}

/// A queue, a key, a number, and how many messages with that key are wanted behind that number.
pub type WantedOfKey<'a> = (&'a str, &'a str, i64, i64);

/// The first free messages with a key, behind a number.
pub fn heads_of_keys(spi: &Spi, wanted: &[WantedOfKey<'_>], now: Timestamp) -> Result<Vec<Head>> {
    const SELECT: &str = "SELECT h.number, h.queue_name, h.key, h.bytes, h.fresh \
        FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS d (queue_name, key, behind, wanted) \
        CROSS JOIN LATERAL (SELECT m.number, m.queue_name, m.key, m.bytes, m.fresh FROM xdb.global_message m \
            WHERE m.queue_name = d.queue_name AND m.key = d.key AND m.number - 0 > d.behind AND m.taken_by IS NULL \
                AND (m.expires_at IS NULL OR m.expires_at > $5) \
            ORDER BY m.number - 0 LIMIT d.wanted) AS h ORDER BY h.number";
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let params = [
        array(wanted.iter().map(|w| w.0)),
        array(wanted.iter().map(|w| w.1)),
        array(wanted.iter().map(|w| w.2)),
        array(wanted.iter().map(|w| w.3)),
        value(now),
    ];
    spi.rows(SELECT, &params, read_head)
}

fn read_head(row: &crate::pg::spi::Row) -> Result<Head> {
    Ok(Head {
        number: row.need(1)?,
        queue: row.need(2)?,
        key: row.get(3),
        bytes: row.need::<i32>(4)? as usize,
        fresh: row.need(5)?,
    })
}

/// Messages with their payloads, in their order.
pub fn messages(spi: &Spi, numbers: &[i64]) -> Result<Vec<GlobalMessage>> {
    const SELECT: &str = "SELECT number, queue_name, key, message_id, payload::text FROM xdb.global_message \
        WHERE number = ANY ($1) ORDER BY number";
    spi.rows(SELECT, &[array(numbers.iter().copied())], |row| {
        Ok(GlobalMessage {
            number: row.need::<i64>(1)? as u64,
            queue: row.need(2)?,
            key: row.get(3),
            message_id: row.get(4),
            payload: row.get::<String>(5).map(Json::from_trusted),
        })
    })
}

/// Deletes messages whose time is over, at most so many. True when there may be more.
pub fn expire(spi: &Spi, now: Timestamp, rows: i64) -> Result<bool> {
    const DELETE: &str = "DELETE FROM xdb.global_message WHERE number = ANY (ARRAY( \
        SELECT number FROM xdb.global_message WHERE taken_by IS NULL AND expires_at <= $1 \
        ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))";
    Ok(spi.run(DELETE, &[value(now), value(rows)])? >= rows as u64)
}

/// A place among the message ids, by age.
#[derive(Clone, Debug)]
pub struct KeyCursor(Timestamp, String, String);

impl KeyCursor {
    /// Before all of them.
    pub fn start() -> Self {
        Self(Timestamp(i64::MIN), String::new(), String::new())
    }
}

/// Forgets message ids that were used until `before` and whose messages are gone, at most so many, behind a place.
/// Gives the place that it came to, and whether there may be more behind.
pub fn forget_keys(spi: &Spi, before: Timestamp, after: &KeyCursor, rows: i64) -> Result<(KeyCursor, bool)> {
    const SELECT: &str = "SELECT k.published_at, k.queue_name, k.message_id, EXISTS (SELECT FROM xdb.global_message m \
            WHERE m.queue_name = k.queue_name AND m.message_id = k.message_id) \
        FROM xdb.global_message_key k \
        WHERE k.published_at <= $1 AND (k.published_at, k.queue_name, k.message_id) > ($2, $3, $4) \
        ORDER BY k.published_at, k.queue_name, k.message_id LIMIT $5";
    const DELETE: &str = "DELETE FROM xdb.global_message_key k \
        USING unnest($1::text[], $2::text[]) AS v (queue_name, message_id) \
        WHERE k.queue_name = v.queue_name AND k.message_id = v.message_id";
    let KeyCursor(at, queue, id) = after;
    let params = [value(before), value(*at), value(queue.as_str()), value(id.as_str()), value(rows)];
    let old = spi.rows(SELECT, &params, |row| {
        Ok((KeyCursor(row.need_time(1)?, row.need(2)?, row.need(3)?), row.need::<bool>(4)?))
    })?;
    let more = old.len() as i64 == rows;
    let reached = old.last().map_or_else(|| after.clone(), |(place, _)| place.clone());
    let gone: Vec<_> = old.iter().filter(|(_, is_there)| !is_there).map(|(place, _)| place).collect();
    if !gone.is_empty() {
        spi.run(DELETE, &[array(gone.iter().map(|k| k.1.as_str())), array(gone.iter().map(|k| k.2.as_str()))])?;
    }
    Ok((reached, more))
}
