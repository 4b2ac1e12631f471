//! Global queues: publishing, and the statements of the matcher. The tables `global_message` and `global_message_key`.
//!
//! Limitations: only the scheduler takes messages. So only the scheduler reads which messages are free.

use super::StateKey;
use super::global_waiter::{self, GlobalWaiter, WaiterKey};
use super::loaded::Loaded;
use super::table::{Record, batch, delete, record, run, run_but, statements, table};
use crate::pg::catch::{PgError, Result};
use crate::pg::crash;
use crate::pg::identity::is_engine;
use crate::pg::param::{Jsonb, array, value};
use crate::pg::shmem::counters::{Count, OfMessages};
use crate::pg::spi::Spi;
use crate::pg::wake;
use pgrx::pg_sys;
use std::collections::{BTreeSet, HashSet};
use xdb_engine::*;

table! {
    /// A message of a global queue. It is free, or a state has taken it and has not yet consumed it. It has as many
    /// fields as the table has columns.
    #[derive(Default)]
    pub struct GlobalQueueMessage<'a> in "global_message" {
        key { number: u64 }
        compared {
            taken_seq: Option<StateSeq>,
            taken_command: Option<u32>,
            queue_name: &'a str,
            key: Option<&'a str>,
            message_id: Option<&'a str>,
            payload: Option<Jsonb<'a>>,
        }
        other {
            bytes: i32,
            owner: pg_sys::Oid,
            owner_name: &'a str,
            published_at: Timestamp,
            expires_at: Option<Timestamp>,
            /// Whether the matcher has still to offer the message to waiting states. Publishers set it, and the
            /// scheduler clears it.
            fresh: bool,
            taken_by: Option<ExecutionId>,
            taken_at: Option<Timestamp>,
        }
    }
}

record! {
    /// A message to be published to a global queue. The statement looks up the name of its owner.
    #[derive(Clone)]
    pub struct NewGlobalMessage<'a> {
        queue_name: &'a str,
        key: Option<&'a str>,
        message_id: Option<&'a str>,
        payload: Option<Jsonb<'a>>,
        bytes: i32,
        owner: pg_sys::Oid,
        published_at: Timestamp,
        expires_at: Option<Timestamp>,
    }

    /// A message that a command takes.
    struct Taken { number: u64, execution_id: ExecutionId, seq: StateSeq, command: u32, taken_at: Timestamp }
}

table! {
    /// A message id that a role has used in a global queue. The row stays while the message exists, and for
    /// `xdb.retention`.
    pub struct UsedKey<'a> in "global_message_key" {
        key { queue_name: &'a str, owner: pg_sys::Oid, message_id: &'a str }
        other { published_at: Timestamp, owner_name: &'a str }
    }
}

record! {
    /// A message id that is used now. The statement looks up the name of its owner.
    struct NewKey<'a> { queue_name: &'a str, message_id: &'a str, owner: pg_sys::Oid, published_at: Timestamp }

    /// The key of a message id.
    struct KeyName<'a> of UsedKey<'a> { queue_name: &'a str, message_id: &'a str, owner: pg_sys::Oid }

    /// A queue whose first free messages are read.
    pub struct HeadOfQueue<'a> { queue_name: &'a str, wanted: i64 }

    /// A key of a queue whose first free messages beyond a number are read.
    pub struct HeadOfKey<'a> { queue_name: &'a str, key: &'a str, behind: i64, wanted: i64 }

    /// A free message, without its payload.
    #[derive(Clone, Debug)]
    pub struct FreeMessage { number: i64, queue_name: String, key: Option<String>, bytes: i32, fresh: bool }
}

/// The time for which a message was taken does not count for its time to live. If the clock was set back meanwhile, no
/// time is added.
fn free(now: &str) -> String {
    format!(
        "taken_by = NULL, taken_seq = NULL, taken_command = NULL, taken_at = NULL, fresh = true, \
         expires_at = m.expires_at + GREATEST({now} - m.taken_at, interval '0')"
    )
}

/// The first free messages for each row of the parameters.
fn heads<R: Record>(of: &str, order: &str, now: &str) -> String {
    format!(
        "SELECT h.number, h.queue_name, h.key, h.bytes, h.fresh FROM {} \
         CROSS JOIN LATERAL (SELECT m.number, m.queue_name, m.key, m.bytes, m.fresh FROM xdb.global_message m \
            WHERE m.queue_name = v.queue_name {of} AND m.taken_by IS NULL \
                AND {} \
            ORDER BY {order} LIMIT v.wanted) AS h ORDER BY h.number",
        batch::<R>(),
        may_be_taken(now)
    )
}

/// The condition that a free message `m` may be taken. A fresh message is offered once, whatever its time to live: so a
/// time of zero means *now or never*.
pub(super) fn may_be_taken(now: &str) -> String {
    format!("(m.expires_at IS NULL OR m.expires_at > {now} OR m.fresh)")
}

/// The name of the owner of `v`, or an empty text if the role does not exist.
pub(super) const OWNER_NAME: &str = "COALESCE((SELECT r.rolname FROM pg_catalog.pg_roles r WHERE r.oid = v.owner), '')";

statements! {
    USE_KEYS = format!("INSERT INTO xdb.global_message_key (queue_name, message_id, published_at, owner, owner_name) \
        SELECT v.queue_name, v.message_id, v.published_at, v.owner, {OWNER_NAME} FROM {} \
        ORDER BY v.queue_name, v.message_id, v.owner ON CONFLICT DO NOTHING RETURNING queue_name, message_id, owner",
        batch::<NewKey>()) => fn use_keys(keys: [NewKey]) -> HashSet<(String, String, pg_sys::Oid)>;
    /// Whether this role has used the message id in the queue. If so, publishing the message again changes nothing.
    /// Roles over their quota need this check.
    IS_KNOWN = "SELECT EXISTS (SELECT FROM xdb.global_message_key k \
        WHERE k.queue_name = $1 AND k.owner = $2 AND k.message_id = $3) AS known"
        => pub fn is_known(queue: &str, owner: pg_sys::Oid, message_id: &str) -> bool;
    PUBLISH = format!("INSERT INTO xdb.global_message \
            (queue_name, key, message_id, payload, bytes, owner, owner_name, published_at, expires_at) \
        SELECT v.queue_name, v.key, v.message_id, v.payload, v.bytes, v.owner, {OWNER_NAME}, v.published_at, v.expires_at \
        FROM {}", batch::<NewGlobalMessage>());
    TAKE = format!("UPDATE xdb.global_message m SET taken_by = v.execution_id, taken_seq = v.seq, \
            taken_command = v.command, taken_at = v.taken_at, fresh = false \
        FROM {} WHERE m.number = v.number AND m.taken_by IS NULL", batch::<Taken>());
    USED_UP = format!("DELETE FROM xdb.global_message m USING {} \
        WHERE m.taken_by = v.execution_id AND m.taken_seq = v.seq", batch::<StateKey>());
    GIVE_BACK = format!("UPDATE xdb.global_message m SET {} FROM {} \
        WHERE m.taken_by = v.execution_id AND m.taken_seq = v.seq", free("$3"), batch::<StateKey>())
        => fn give_back(states: [StateKey], now: Timestamp) -> u64;
    GIVE_BACK_ALL = format!("UPDATE xdb.global_message m SET {} WHERE m.taken_by = ANY ($2)", free("$1"))
        => fn give_back_all(now: Timestamp, ids: &[ExecutionId]) -> u64;
    // A message that has expired, and that no state took at this offer, is deleted at once. One that expires at once may
    // have been published after this turn began.
    OFFERED = "WITH expired AS (DELETE FROM xdb.global_message \
            WHERE number = ANY ($1) AND taken_by IS NULL AND expires_at <= GREATEST($2, published_at)) \
        UPDATE xdb.global_message SET fresh = false \
        WHERE number = ANY ($1) AND fresh AND (expires_at IS NULL OR expires_at > GREATEST($2, published_at))"
        => fn offered(numbers: &[i64], now: Timestamp) -> ();
    /// The first free messages of queues, with any key: at most `wanted` of each.
    HEADS_OF_QUEUES = heads::<HeadOfQueue>("", "m.number + 0", "$3")
        => pub fn heads_of_queues(wanted: [HeadOfQueue], now: Timestamp) -> Vec<FreeMessage>;
    /// The first free messages with a key, beyond a number.
    HEADS_OF_KEYS = heads::<HeadOfKey>("AND m.key = v.key AND m.number - 0 > v.behind", "m.number - 0", "$5")
        => pub fn heads_of_keys(wanted: [HeadOfKey], now: Timestamp) -> Vec<FreeMessage>;
    MESSAGES = "SELECT number, queue_name, key, message_id, payload::text FROM xdb.global_message \
        WHERE number = ANY ($1) ORDER BY number";
    EXPIRE = "DELETE FROM xdb.global_message WHERE number = ANY (ARRAY( \
        SELECT number FROM xdb.global_message WHERE taken_by IS NULL AND expires_at <= $1 AND NOT fresh \
        ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))";
    OLD_KEYS = "SELECT k.queue_name, k.message_id, k.owner, k.published_at, EXISTS (SELECT FROM xdb.global_message m \
            WHERE m.queue_name = k.queue_name AND m.message_id = k.message_id AND m.owner = k.owner) AS is_there \
        FROM xdb.global_message_key k \
        WHERE k.published_at <= $1 AND (k.published_at, k.queue_name, k.message_id, k.owner) > ($2, $3, $4, $6) \
        ORDER BY k.published_at, k.queue_name, k.message_id, k.owner LIMIT $5";
    FORGET_KEYS = delete::<UsedKey, KeyName>();
}

/// Publishes messages to their queues, in this order. A message is skipped if its owner has used its id in the queue
/// before. May wait for another transaction of the same owner that uses the same id and has not committed.
pub fn publish(spi: &Spi, messages: &[NewGlobalMessage]) -> Result<()> {
    let with_id = messages.iter().filter_map(NewKey::of).collect::<Vec<_>>();
    let mut new_ids = use_keys(spi, &with_id)?;
    // Of two messages with the same id, owner and queue in this call, the first one is new.
    let mut is_new = |m: &&NewGlobalMessage| {
        m.message_id.is_none_or(|id| new_ids.remove(&(m.queue_name.to_owned(), id.to_owned(), m.owner)))
    };
    let new: Vec<_> = messages.iter().filter(&mut is_new).cloned().collect();
    wake::count_at_commit(Count::Messages(OfMessages::PublishedGlobal), new.len() as u64);
    if run(spi, &PUBLISH, &new)? > 0 {
        wake::wake_scheduler_at_commit();
    }
    Ok(())
}

impl<'a> NewKey<'a> {
    fn of(message: &NewGlobalMessage<'a>) -> Option<Self> {
        let &NewGlobalMessage { queue_name, message_id, owner, published_at, .. } = message;
        Some(Self { queue_name, message_id: message_id?, owner, published_at })
    }
}

/// The changes of executions in global queues.
#[derive(Default)]
pub(super) struct GlobalQueueChanges<'a> {
    published: Vec<NewGlobalMessage<'a>>,
    taken: Vec<Taken>,
    used_up: Vec<StateKey>,
    given_back: Vec<StateKey>,
    closed: Vec<ExecutionId>,
    waiters_new: Vec<GlobalWaiter<'a>>,
    waiters_deleted: Vec<WaiterKey>,
    passed_over: Vec<StateKey>,
}

impl<'a> GlobalQueueChanges<'a> {
    pub fn collect(&mut self, loaded: &'a Loaded, closes: bool, now: Timestamp) {
        let Loaded { before, execution, events, .. } = loaded;
        let id = execution.id;
        let holds =
            |seq: &StateSeq| before.states.get(seq).is_some_and(|state| state.held_global_messages().next().is_some());
        for (event, _) in events {
            match event {
                Event::GlobalMessagesPublished { messages, .. } => {
                    let owner = loaded.publishes_as();
                    self.published.extend(messages.iter().map(|message| NewGlobalMessage {
                        queue_name: &message.queue,
                        key: message.key.as_deref(),
                        message_id: message.message_id.as_deref(),
                        payload: message.payload.as_ref().map(Jsonb::from),
                        bytes: message.payload.as_ref().map_or(0, |payload| payload.as_str().len() as i32),
                        owner,
                        published_at: now,
                        expires_at: message.expires_at,
                    }));
                }
                Event::GlobalMessagesTaken { seq, command, messages } => {
                    let (seq, command) = (*seq, *command);
                    let taken = |number| Taken { number, execution_id: id, seq, command, taken_at: now };
                    self.taken.extend(messages.iter().map(|message| taken(message.number)));
                }
                Event::StateCompleted { seq, .. } if holds(seq) => self.used_up.push((id, *seq)),
                Event::StateFailed { seq, .. } if holds(seq) => self.given_back.push((id, *seq)),
                // A step may be aborted in the transaction in which it has taken messages.
                Event::StateAborted { seq, .. } => self.given_back.push((id, *seq)),
                _ => {}
            }
        }
        if closes {
            self.closed.push(id);
            return;
        }
        let earlier = self.waiters_new.len();
        for (old, state) in loaded.changed_states() {
            let key = (id, state.seq);
            let old: BTreeSet<u32> =
                old.into_iter().flat_map(|old| old.global_demands()).map(|(command, _)| command).collect();
            let waited = state.global_demands().filter(|(command, _)| !old.contains(command));
            let new: Vec<_> = waited.map(|(command, demand)| GlobalWaiter::of(key, command, demand)).collect();
            if !new.is_empty() && !loaded.offered.contains(&state.seq) {
                self.passed_over.push(key);
            }
            self.waiters_new.extend(new);
            let obsolete = |command: &u32| state.global_demands().all(|(open, _)| open != *command);
            let waiter = |command| WaiterKey { execution_id: id, seq: state.seq, command };
            self.waiters_deleted.extend(old.into_iter().filter(obsolete).map(waiter));
        }
        // In the order in which the waits began, as in local queues. A guard has a higher number than its step, and waits
        // before it.
        let states = &loaded.execution.states;
        self.waiters_new[earlier..].sort_by_key(|waiter| states.get(&waiter.seq).and_then(|state| state.wait_order()));
    }

    pub fn write(&self, spi: &Spi, now: Timestamp) -> Result<()> {
        if run(spi, &TAKE, &self.taken)? != self.taken.len() as u64 {
            return Err(PgError::internal("a message of a global queue was not there to be taken"));
        }
        run(spi, &USED_UP, &self.used_up)?;
        let mut freed = give_back(spi, &self.given_back, now)?;
        if !self.closed.is_empty() {
            freed += give_back_all(spi, now, &self.closed)?;
        }
        if freed > 0 {
            crash::point(if is_engine() { "turn-give-back" } else { "caller-give-back" });
        }
        run(spi, &global_waiter::WAITERS_GONE, &self.waiters_deleted)?;
        run_but(spi, &global_waiter::NEW_WAITERS, &self.waiters_new, &["wait_order"])?;
        global_waiter::pass_over(spi, &self.passed_over)?;
        if freed > 0 || !self.passed_over.is_empty() {
            wake::wake_scheduler_at_commit();
        }
        publish(spi, &self.published)
    }
}

impl<'a> GlobalQueueMessage<'a> {
    /// The row of a message that a command has taken, as far as its state determines it.
    pub fn taken((execution_id, seq): StateKey, command: u32, message: &'a GlobalMessage) -> Self {
        Self {
            number: message.number,
            taken_seq: Some(seq),
            taken_command: Some(command),
            queue_name: &message.queue,
            key: message.key.as_deref(),
            message_id: message.message_id.as_deref(),
            payload: message.payload.as_ref().map(Jsonb::from),
            taken_by: Some(execution_id),
            ..Self::default()
        }
    }
}

/// Marks messages as offered to all states that wait for them. Deletes expired messages.
pub fn no_longer_fresh(spi: &Spi, numbers: &[i64], now: Timestamp) -> Result<()> {
    if !numbers.is_empty() {
        offered(spi, numbers, now)?;
    }
    Ok(())
}

/// Messages with their payloads, in the order of their numbers.
pub fn messages(spi: &Spi, numbers: &[i64]) -> Result<Vec<GlobalMessage>> {
    spi.rows(&MESSAGES, &[array(numbers)], |row| {
        Ok(GlobalMessage {
            number: row.get("number")?,
            queue: row.get("queue_name")?,
            key: row.get("key")?,
            message_id: row.get("message_id")?,
            payload: row.get::<Option<Jsonb>>("payload")?.map(|payload| payload.to_json()).transpose()?,
        })
    })
}

/// Deletes at most `rows` expired messages. True if there may be more.
pub fn expire(spi: &Spi, now: Timestamp, rows: i64) -> Result<bool> {
    Ok(spi.run(&EXPIRE, &[value(now), value(rows)])? >= rows as u64)
}

/// A cursor in the message ids, by age.
#[derive(Clone, Debug)]
pub struct KeyCursor(Timestamp, String, String, pg_sys::Oid);

impl KeyCursor {
    /// The position before all message ids.
    pub fn start() -> Self {
        Self(Timestamp(i64::MIN), String::new(), String::new(), pg_sys::InvalidOid)
    }
}

/// Deletes message ids that were used until `before` and whose messages no longer exist. Reads at most `rows` of them
/// beyond the cursor. Returns the new cursor, and whether there may be more.
pub fn forget_keys(spi: &Spi, before: Timestamp, after: &KeyCursor, rows: i64) -> Result<(KeyCursor, bool)> {
    let KeyCursor(at, queue, id, owner) = after;
    let params = [value(before), value(*at), value(queue.as_str()), value(id.as_str()), value(rows), value(*owner)];
    let old = spi.rows(&OLD_KEYS, &params, |row| {
        let (at, queue, id) = (row.get("published_at")?, row.get("queue_name")?, row.get("message_id")?);
        Ok((KeyCursor(at, queue, id, row.get("owner")?), row.get::<bool>("is_there")?))
    })?;
    let more = old.len() as i64 == rows;
    let reached = old.last().map_or_else(|| after.clone(), |(place, _)| place.clone());
    let obsolete = old.iter().filter(|(_, is_there)| !is_there).map(|(place, _)| place);
    let obsolete =
        obsolete.map(|KeyCursor(_, queue, id, owner)| KeyName { queue_name: queue, message_id: id, owner: *owner });
    run(spi, &FORGET_KEYS, &obsolete.collect::<Vec<_>>())?;
    Ok((reached, more))
}
