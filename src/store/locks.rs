//! Locks on attributes: what a call wants to lock, and the rows of `xdb.attribute_lock`.

use super::StateKey;
use super::load::Meta;
use super::tables::covered;
use crate::pg::catch::{PgError, Result};
use crate::pg::param::{array, value};
use crate::pg::spi::{Row, Snapshot, Spi};
use crate::pg::types::{NO_MODIFIER, Type};
use pgrx::pg_sys;
use std::collections::{BTreeMap, HashMap};
use xdb_engine::*;
use xdb_sched::lock_board::{Board, CallersPlace};
use xdb_sched::lock_table::{Mode, Object};

/// So many of the requests that wait longest for an object are looked at, per mode.
const LOOKED_AT: i64 = 64;

/// Longest name of an object, for people.
const NAME_CHARACTERS: usize = 200;

/// What a call locks, in the order of the objects.
#[derive(Clone, Debug, Default)]
pub struct Wants {
    pub objects: Vec<(Object, Mode)>,
    names: Vec<String>,
}

impl Wants {
    /// What is locked, for people.
    pub fn names(&self) -> String {
        self.names.join(", ")
    }
}

/// The types of the columns of tables, as far as keys are concerned: two spellings of a number are one key.
#[derive(Default)]
pub struct KeyTypes(HashMap<(u32, String), pg_sys::Oid>);

impl KeyTypes {
    /// Reads the types of all columns of these tables.
    pub fn read<'a>(spi: &Spi, tables: impl Iterator<Item = &'a TableMapping>) -> Result<Self> {
        const SELECT: &str = "SELECT a.attrelid, a.attname::text, a.atttypid FROM pg_catalog.pg_attribute a \
            WHERE a.attrelid = ANY ($1) AND a.attnum > 0 AND NOT a.attisdropped";
        let relations: Vec<_> = tables.map(|table| pg_sys::Oid::from(table.relation)).collect();
        if relations.is_empty() {
            return Ok(Self(HashMap::new()));
        }
        let rows = spi.with_latest_snapshot(|spi| {
            spi.rows_with(Snapshot::Active, SELECT, &[array(relations)], |row| {
                Ok((row.need::<pg_sys::Oid>(1)?, row.need::<String>(2)?, row.need::<pg_sys::Oid>(3)?))
            })
        })?;
        let base = |(relation, column, oid): (pg_sys::Oid, String, pg_sys::Oid)| {
            let of_type = Type { oid, modifier: NO_MODIFIER }.base()?;
            Ok(((relation.to_u32(), column), of_type.oid))
        };
        Ok(Self(rows.into_iter().map(base).collect::<Result<_>>()?))
    }

    /// A key value in one spelling. Where a type has more of them than this knows, two calls may not wait for each other;
    /// versions see to what is right.
    fn canonical(&self, relation: u32, column: &str, text: &str) -> String {
        let of_type = self.0.get(&(relation, column.to_owned())).copied().unwrap_or(pg_sys::InvalidOid);
        match of_type {
            pg_sys::INT2OID | pg_sys::INT4OID | pg_sys::INT8OID => {
                text.trim().parse::<i64>().map_or_else(|_| text.to_owned(), |number| number.to_string())
            }
            pg_sys::UUIDOID => text.chars().filter(char::is_ascii_hexdigit).collect::<String>().to_ascii_lowercase(),
            pg_sys::BPCHAROID => text.trim_end_matches(' ').to_owned(),
            _ => text.to_owned(),
        }
    }
}

/// FNV-1a, 128 bits, of parts that are told from each other by their lengths.
fn hash(parts: &[&[u8]]) -> Object {
    let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let mut feed = |byte: u8| {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    };
    for part in parts {
        (part.len() as u64).to_le_bytes().into_iter().chain(part.iter().copied()).for_each(&mut feed);
    }
    hash.to_be_bytes()
}

/// Stands for the values that were loaded, in the key by which a worker keeps answers: an answer that was computed from
/// other values is never taken for the one to these.
pub fn fingerprint(global: &str, local: &str) -> u64 {
    let hash = u128::from_be_bytes(hash(&[global.as_bytes(), local.as_bytes()]));
    (hash >> 64) as u64 ^ hash as u64
}

/// What a call with these loading policies locks.
pub fn wants(meta: &Meta, id: ExecutionId, global: &Loading, local: &Loading, types: &KeyTypes) -> Wants {
    let mut objects: BTreeMap<Object, (Mode, String)> = BTreeMap::new();
    // Of two modes for one hash the stronger one holds.
    let mut add = |object: Object, mode: Mode, name: String| {
        let name: String = name.chars().take(NAME_CHARACTERS).collect();
        let entry = objects.entry(object).or_insert((mode, name));
        entry.0 = entry.0.max(mode);
    };
    let mode = if global.lock_type == LockType::Exclusive { Mode::Exclusive } else { Mode::Shared };
    for (table, key) in covered(meta, global).filter(|_| global.locks()) {
        let columns = table.primary_key.iter().zip(key);
        let values: Vec<_> = columns.clone().map(|(c, text)| types.canonical(table.relation, c, text)).collect();
        let relation = table.relation.to_le_bytes();
        let mut parts: Vec<&[u8]> = vec![b"row", &relation];
        // A key is known by its columns too: the same row may be mapped by another unique key, which versions see to.
        for (column, text) in table.primary_key.iter().zip(&values) {
            parts.extend([column.as_bytes(), text.as_bytes()]);
        }
        let shown = columns.map(|(column, text)| format!("{column} = {text}")).collect::<Vec<_>>().join(", ");
        add(hash(&parts), mode, format!("table {} key {shown}", table.table));
    }
    if local.locks() {
        let exclusive = local.lock_type == LockType::Exclusive;
        let (whole, part) = match (&local.policy, exclusive) {
            (LoadPolicy::All, true) => (Mode::Exclusive, None),
            (LoadPolicy::All, false) => (Mode::Shared, None),
            (_, true) => (Mode::IntentionExclusive, Some(Mode::Exclusive)),
            (_, false) => (Mode::IntentionShared, Some(Mode::Shared)),
        };
        add(hash(&[b"local", &id.0]), whole, "local attributes".to_owned());
        for (name, mode) in local.names.iter().filter_map(|name| Some((name, part?))) {
            add(hash(&[b"local", &id.0, name.as_bytes()]), mode, format!("local attribute {name}"));
        }
    }
    let (objects, names) = objects.into_iter().map(|(object, (mode, name))| ((object, mode), name)).unzip();
    Wants { objects, names }
}

/// Places of requests in the queues of their objects, the lowest first.
pub fn tickets(spi: &Spi, count: usize) -> Result<Vec<i64>> {
    const SELECT: &str = "SELECT pg_catalog.nextval('xdb.attribute_lock_ticket') \
        FROM pg_catalog.generate_series(1, $1)";
    if count == 0 {
        return Ok(Vec::new());
    }
    spi.rows(SELECT, &[value(count as i32)], |row| row.need(1))
}

fn uuid(object: &Object) -> ExecutionId {
    ExecutionId(*object)
}

fn key(row: &Row, column: usize) -> Result<StateKey> {
    Ok((row.execution_id(column)?, StateSeq(row.need::<i32>(column + 1)? as u32)))
}

/// What stands in the way at these objects. A lock is granted for as long as its call's lease is good. Who waits with one of
/// the executions `stuck` is in nobody's way.
pub fn board(
    spi: &Spi,
    objects: &[Object],
    callers: &[(Object, CallersPlace)],
    stuck: &[ExecutionId],
    real: Timestamp,
) -> Result<Board> {
    const SELECT: &str = "SELECT l.object, l.mode, NULL::bigint FROM xdb.attribute_lock l \
            JOIN xdb.task t ON t.execution_id = l.execution_id AND t.seq = l.seq \
            WHERE l.object = ANY ($1) AND l.granted AND t.lease_until > $4 \
                AND EXISTS (SELECT FROM xdb.engine e WHERE e.epoch = t.lease_epoch) \
        UNION ALL \
        SELECT o.object, p.mode, p.ticket FROM unnest($1) AS o (object) \
        CROSS JOIN unnest(ARRAY['IS', 'IX', 'S', 'X']) AS m (mode) \
        CROSS JOIN LATERAL (SELECT l.mode, l.ticket FROM xdb.attribute_lock l \
            WHERE l.object = o.object AND l.mode = m.mode AND l.parked AND l.execution_id <> ALL ($3) \
            ORDER BY l.ticket + 0 LIMIT $2) AS p";
    let mut board = Board::default();
    let stuck = array(stuck.iter().copied());
    let params = [array(objects.iter().map(uuid)), value(LOOKED_AT), stuck, value(real)];
    for (object, mode, ticket) in
        spi.rows(SELECT, &params, |row| Ok((row.execution_id(1)?.0, mode(row, 2)?, row.get(3))))?
    {
        match ticket {
            Some(ticket) => board.note_parked(object, mode, ticket),
            None => board.note_granted(object, mode),
        }
    }
    for (object, place) in callers {
        board.note_caller(*object, *place);
    }
    Ok(board)
}

fn mode(row: &Row, column: usize) -> Result<Mode> {
    let text = row.need::<String>(column)?;
    Mode::parse(&text).ok_or_else(|| PgError::internal(format!("xdb.attribute_lock holds the unknown mode \"{text}\"")))
}

/// A request of a call that has asked before.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub ticket: i64,
    pub objects: Vec<(Object, Mode)>,
}

/// The requests that these calls have made and not given up.
pub fn asked(spi: &Spi, keys: &[StateKey]) -> Result<HashMap<StateKey, Asked>> {
    const SELECT: &str = "SELECT l.execution_id, l.seq, l.ticket, l.object, l.mode \
        FROM unnest($1::uuid[], $2::int[]) AS k (execution_id, seq) \
        JOIN xdb.attribute_lock l ON l.execution_id = k.execution_id AND l.seq = k.seq \
        ORDER BY l.execution_id, l.seq, l.object";
    let params = [array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32))];
    let mut asked: HashMap<StateKey, Asked> = HashMap::new();
    let rows = spi.rows(SELECT, &params, |row| {
        Ok((key(row, 1)?, row.need::<i64>(3)?, (row.execution_id(4)?.0, mode(row, 5)?)))
    })?;
    for (key, ticket, object) in rows {
        let entry = asked.entry(key).or_default();
        entry.ticket = ticket;
        entry.objects.push(object);
    }
    Ok(asked)
}

/// A request as it is to be written.
pub struct Request<'a> {
    pub key: StateKey,
    pub ticket: i64,
    pub wants: &'a Wants,
    pub granted: bool,
}

/// Writes requests anew, and parks the tasks of those that wait. The tasks were locked by their claim.
pub fn write(spi: &Spi, requests: &[Request<'_>]) -> Result<()> {
    const INSERT: &str = "INSERT INTO xdb.attribute_lock (object, ticket, mode, execution_id, seq, granted, parked, name) \
        SELECT v.object, v.ticket, v.mode, v.execution_id, v.seq, v.granted, NOT v.granted, v.name \
        FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::uuid[], $5::int[], $6::bool[], $7::text[]) \
        AS v (object, ticket, mode, execution_id, seq, granted, name)";
    if requests.is_empty() {
        return Ok(());
    }
    let keys: Vec<_> = requests.iter().map(|request| request.key).collect();
    release(spi, &keys)?;
    let rows: Vec<_> = requests
        .iter()
        .flat_map(|request| request.wants.objects.iter().zip(&request.wants.names).map(move |row| (request, row)))
        .collect();
    let params = [
        array(rows.iter().map(|(_, (object, _))| uuid(&object.0))),
        array(rows.iter().map(|(request, _)| request.ticket)),
        array(rows.iter().map(|(_, (object, _))| object.1.as_str())),
        array(rows.iter().map(|(request, _)| request.key.0)),
        array(rows.iter().map(|(request, _)| request.key.1.0 as i32)),
        array(rows.iter().map(|(request, _)| request.granted)),
        array(rows.iter().map(|(_, (_, name))| name.as_str())),
    ];
    spi.run(INSERT, &params)?;
    let parked: Vec<_> = requests.iter().filter(|request| !request.granted).map(|request| request.key).collect();
    super::claim::move_to_lane(spi, &parked, PARKED)
}

/// The lane of tasks whose calls wait for locks.
const PARKED: i16 = 2;

/// Gives up what these calls have or want. Answers with the objects, to be handed on.
pub fn release(spi: &Spi, keys: &[StateKey]) -> Result<Vec<Object>> {
    const DELETE: &str = "DELETE FROM xdb.attribute_lock l USING unnest($1::uuid[], $2::int[]) AS k (execution_id, seq) \
        WHERE l.execution_id = k.execution_id AND l.seq = k.seq RETURNING l.object";
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let params = [array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32))];
    spi.rows(DELETE, &params, |row| Ok(row.execution_id(1)?.0))
}

/// The same for everything of these executions.
pub fn release_all(spi: &Spi, ids: &[ExecutionId]) -> Result<Vec<Object>> {
    const DELETE: &str = "DELETE FROM xdb.attribute_lock WHERE execution_id = ANY ($1) RETURNING object";
    spi.rows(DELETE, &[array(ids.iter().copied())], |row| Ok(row.execution_id(1)?.0))
}

/// Takes leases and locks of calls back whose answers were dropped for others' sake: the calls are made again, as the same
/// attempt. What somebody else has locked is left. Answers with the objects.
pub fn yield_calls(spi: &Spi, epoch: i64, keys: &[StateKey]) -> Result<Vec<Object>> {
    const YIELD: &str = "WITH held AS MATERIALIZED (SELECT t.execution_id, t.seq \
            FROM unnest($1::uuid[], $2::int[]) AS k (execution_id, seq) \
            JOIN xdb.task t ON t.execution_id = k.execution_id AND t.seq = k.seq \
            WHERE t.lease_epoch = $3 FOR UPDATE OF t SKIP LOCKED), \
        again AS (UPDATE xdb.task t SET attempt = GREATEST(t.attempt - 1, 0), lease_epoch = 0, lease_number = 0, \
            lease_until = NULL FROM held WHERE t.execution_id = held.execution_id AND t.seq = held.seq) \
        DELETE FROM xdb.attribute_lock l USING held \
        WHERE l.execution_id = held.execution_id AND l.seq = held.seq RETURNING l.object";
    let params = [array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32)), value(epoch)];
    spi.rows(YIELD, &params, |row| Ok(row.execution_id(1)?.0))
}

/// Which of these calls hold what others wait for.
pub fn waited_for(spi: &Spi, keys: &[StateKey]) -> Result<Vec<StateKey>> {
    const SELECT: &str = "SELECT k.execution_id, k.seq FROM unnest($1::uuid[], $2::int[]) AS k (execution_id, seq) \
        WHERE EXISTS (SELECT FROM xdb.attribute_lock h JOIN xdb.attribute_lock w ON w.object = h.object AND w.parked \
            WHERE h.execution_id = k.execution_id AND h.seq = k.seq AND h.granted)";
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let params = [array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32))];
    spi.rows(SELECT, &params, |row| key(row, 1))
}

/// Tells the main scheduler that objects were released elsewhere, when this transaction commits.
pub fn tell_released(spi: &Spi, objects: &[Object]) -> Result<()> {
    const INSERT: &str = "INSERT INTO xdb.attribute_lock_release (object) SELECT * FROM unnest($1::uuid[])";
    if objects.is_empty() {
        return Ok(());
    }
    spi.run(INSERT, &[array(objects.iter().map(uuid))])?;
    crate::pg::wake::wake_scheduler_at_commit();
    Ok(())
}

/// Takes out what was released elsewhere.
pub fn take_released(spi: &Spi) -> Result<Vec<Object>> {
    spi.rows("DELETE FROM xdb.attribute_lock_release RETURNING object", &[], |row| Ok(row.execution_id(1)?.0))
}

/// What a scheduler that begins does about the locks of its predecessor, whose leases are void: they have to be asked for
/// again. Answers with the objects that somebody waits for.
pub fn sweep(spi: &Spi, lane: i16) -> Result<Vec<Object>> {
    // What somebody else has locked is about to go; until then, a void lease makes it count for nothing.
    // Offset 0: from the locks to their tasks, not through all tasks of the lane.
    const UNGRANT: &str = "WITH void AS MATERIALIZED (SELECT l.object, l.ticket FROM xdb.attribute_lock l \
            WHERE l.granted AND EXISTS (SELECT FROM xdb.task t \
                WHERE t.execution_id = l.execution_id AND t.seq = l.seq AND t.lane = $1 OFFSET 0) \
            FOR UPDATE SKIP LOCKED) \
        UPDATE xdb.attribute_lock l SET granted = false FROM void \
        WHERE l.object = void.object AND l.ticket = void.ticket RETURNING l.object";
    // What was parked and has lost its place, in whatever way, asks for a new one.
    const LOST: &str = "WITH lost AS MATERIALIZED (SELECT t.execution_id, t.seq FROM xdb.task t \
            WHERE t.lane = 2 AND NOT EXISTS (SELECT FROM xdb.attribute_lock l \
                WHERE l.execution_id = t.execution_id AND l.seq = t.seq) FOR UPDATE OF t SKIP LOCKED) \
        UPDATE xdb.task t SET lane = 0 FROM lost WHERE t.execution_id = lost.execution_id AND t.seq = lost.seq";
    let mut objects = spi.rows(UNGRANT, &[value(lane)], |row| Ok(row.execution_id(1)?.0))?;
    if lane == 0 {
        spi.run(LOST, &[])?;
        let waited_for = "SELECT DISTINCT object FROM xdb.attribute_lock WHERE parked";
        objects.extend(spi.rows(waited_for, &[], |row| Ok(row.execution_id(1)?.0))?);
    }
    Ok(objects)
}

/// A request that waits, its task parked.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub key: StateKey,
    pub asked: Asked,
    /// The worker that its call goes to now.
    pub worker: i32,
}

/// The requests that wait longest for these objects, by ticket, whole.
pub fn waiting(spi: &Spi, objects: &[Object]) -> Result<Vec<Waiting>> {
    const SELECT: &str = "SELECT DISTINCT p.execution_id, p.seq, COALESCE(y.worker_id, t.worker_id) \
        FROM unnest($1::uuid[]) AS o (object) \
        CROSS JOIN unnest(ARRAY['IS', 'IX', 'S', 'X']) AS m (mode) \
        CROSS JOIN LATERAL (SELECT l.execution_id, l.seq FROM xdb.attribute_lock l \
            WHERE l.object = o.object AND l.mode = m.mode AND l.parked ORDER BY l.ticket + 0 LIMIT $2) AS p \
        JOIN xdb.task t ON t.execution_id = p.execution_id AND t.seq = p.seq \
        JOIN xdb.process_execution e ON e.execution_id = p.execution_id \
        LEFT JOIN xdb.process_type y ON y.type_id = e.type_id";
    let params = [array(objects.iter().map(uuid)), value(LOOKED_AT)];
    let found = spi.rows(SELECT, &params, |row| Ok((key(row, 1)?, row.need::<i32>(3)?)))?;
    let keys: Vec<_> = found.iter().map(|(key, _)| *key).collect();
    let mut asked = asked(spi, &keys)?;
    let mut waiting: Vec<_> = found
        .into_iter()
        .filter_map(|(key, worker)| Some(Waiting { key, asked: asked.remove(&key)?, worker }))
        .collect();
    waiting.sort_by_key(|waiting| waiting.asked.ticket);
    Ok(waiting)
}

/// Lets the calls of these requests ask again. What somebody else has locked is left. Answers with those it could,
/// and since when they are due.
pub fn unpark(spi: &Spi, calls: &[(StateKey, i32)]) -> Result<Vec<(StateKey, Timestamp)>> {
    const UNPARK: &str = "WITH free AS MATERIALIZED (SELECT t.execution_id, t.seq, t.due_at, k.worker_id \
            FROM unnest($1::uuid[], $2::int[], $3::int[]) AS k (execution_id, seq, worker_id) \
            JOIN xdb.task t ON t.execution_id = k.execution_id AND t.seq = k.seq \
            WHERE t.lane = 2 FOR UPDATE OF t SKIP LOCKED), \
        moved AS (UPDATE xdb.task t SET lane = 0, worker_id = free.worker_id FROM free \
            WHERE t.execution_id = free.execution_id AND t.seq = free.seq), \
        shown AS (UPDATE xdb.attribute_lock l SET parked = false FROM free \
            WHERE l.execution_id = free.execution_id AND l.seq = free.seq) \
        SELECT execution_id, seq, due_at FROM free";
    let params = [
        array(calls.iter().map(|c| c.0.0)),
        array(calls.iter().map(|c| c.0.1.0 as i32)),
        array(calls.iter().map(|c| c.1)),
    ];
    spi.rows(UNPARK, &params, |row| Ok((key(row, 1)?, row.need_time(3)?)))
}

/// A row as it is shown, with the number of repeats of its call.
pub struct Row0 {
    pub key: StateKey,
    pub object: Object,
    pub mode: Mode,
    pub granted: bool,
    pub due: Timestamp,
    pub name: String,
    pub repeats: i32,
}

/// All rows, those who wait first.
pub fn all(spi: &Spi) -> Result<Vec<Row0>> {
    const SELECT: &str = "SELECT l.execution_id, l.seq, l.object, l.mode, l.granted, t.due_at, l.name, \
            COALESCE((s.call ->> 'repeats')::int, 0) \
        FROM xdb.attribute_lock l JOIN xdb.task t ON t.execution_id = l.execution_id AND t.seq = l.seq \
        JOIN xdb.state_execution s ON s.execution_id = l.execution_id AND s.seq = l.seq \
        ORDER BY l.granted, l.ticket, l.object LIMIT 1000";
    spi.rows(SELECT, &[], |row| {
        Ok(Row0 {
            key: key(row, 1)?,
            object: row.execution_id(3)?.0,
            mode: mode(row, 4)?,
            granted: row.need(5)?,
            due: row.need_time(6)?,
            name: row.need(7)?,
            repeats: row.need(8)?,
        })
    })
}

/// A local attribute with the version of its row.
#[derive(Clone, Debug)]
pub struct Versioned {
    pub value: String,
    pub version: String,
}

/// Local attributes with their versions, read in one statement.
pub fn local_attributes(spi: &Spi, ids: &[ExecutionId]) -> Result<HashMap<ExecutionId, BTreeMap<String, Versioned>>> {
    const SELECT: &str = "SELECT a.execution_id, a.key, a.value::text, pg_catalog.concat_ws(':', a.xmin, a.ctid) \
        FROM xdb.local_attribute a WHERE a.execution_id = ANY ($1)";
    let mut attributes: HashMap<ExecutionId, BTreeMap<String, Versioned>> = HashMap::new();
    if ids.is_empty() {
        return Ok(attributes);
    }
    let rows = spi.rows(SELECT, &[array(ids.iter().copied())], |row| {
        Ok((row.execution_id(1)?, row.need(2)?, Versioned { value: row.need(3)?, version: row.need(4)? }))
    })?;
    for (id, key, versioned) in rows {
        attributes.entry(id).or_default().insert(key, versioned);
    }
    Ok(attributes)
}

/// The versions of the local attributes that a loading policy covers. With the policy ALL a new key changes them too.
pub fn versions_of(loading: &Loading, attributes: Option<&BTreeMap<String, Versioned>>) -> BTreeMap<String, String> {
    let covered = attributes.into_iter().flatten().filter(|(name, _)| loading.locks() && loading.wants(name));
    covered.map(|(name, versioned)| (name.clone(), versioned.version.clone())).collect()
}
