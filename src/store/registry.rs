//! Registered workers and process types: reads the tables `worker`, `process_type` and `mapped_table`, and keeps
//! registrations in memory. `registering.rs` writes them.
//!
//! Limitations: memory is limited, so only recently used definitions are kept. One turn reads only a limited amount of
//! definitions; executions of other types are deferred.

use super::table::{Read, record, select, statements, table};
use super::worker_secret::{self, Signing};
use super::{from_json, pauses};
use crate::pg::catch::{QUERY_CANCELED, Result, log_error};
use crate::pg::memory::room_for;
use crate::pg::param::{Jsonb, Regclass, value};
use crate::pg::process::configuration_read_at;
use crate::pg::spi::{Row, Spi};
use crate::pg::subxact::{guarded, lock_extension_object};
use pgrx::pg_sys;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xdb_calls::{TypeFacts, TypeWorker};
use xdb_engine::{Definition, ExecutionId, Pause, PauseMode, TableMapping, Timestamp};
use xdb_sched::kept::Kept;
pub use xdb_sched::room::WorkerId;

/// The key of a registered process type.
pub type TypeId = i32;
/// The key of an attribute mapping. Executions keep the mapping of their start.
pub type MappingId = i32;

/// A worker: where calls go.
#[derive(Debug)]
pub struct Worker {
    pub id: WorkerId,
    /// None: a pull worker.
    pub url: Option<String>,
    pub signing: Signing,
    pub headers: Vec<(String, String)>,
}

/// A process type as it is registered now.
#[derive(Debug)]
pub struct ProcessType {
    pub id: TypeId,
    pub name: String,
    /// None: functions answer all calls of the type.
    pub worker: Option<Arc<Worker>>,
    pub definition: Arc<Definition>,
    pub mapping_id: Option<MappingId>,
    /// Check its end: the pause may have ended at its set time.
    pub pause: Option<Pause>,
    pub version: RowVersion,
}

/// The worker id in the tasks of calls that functions answer, and of types that are not registered.
pub const NO_WORKER: WorkerId = 0;

impl ProcessType {
    pub fn worker_id(&self) -> WorkerId {
        self.worker.as_ref().map_or(NO_WORKER, |worker| worker.id)
    }

    /// The id of its worker, if that is a pull worker.
    pub fn pulled_by(&self) -> Option<WorkerId> {
        self.worker.as_ref().filter(|worker| worker.url.is_none()).map(|worker| worker.id)
    }

    /// The part of the registration that calls depend on.
    pub fn facts(&self) -> TypeFacts<'_> {
        let worker = match &self.worker {
            None => TypeWorker::None,
            Some(worker) if worker.url.is_none() => TypeWorker::Pulls(worker.id),
            Some(_) => TypeWorker::Called,
        };
        TypeFacts { definition: &self.definition, worker, pause: self.pause.as_ref() }
    }
}

record! {
    /// Identifies one version of a row. It differs also from versions that were rolled back, and from other rows of the
    /// same name.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RowVersion { type_id: TypeId, version: i64, xmin: String }
}

/// A registered attribute mapping. Never changes.
pub type Mapping = Arc<[TableMapping]>;

/// Registrations and mappings in memory, as far as they were needed and fit. A scheduler keeps it up to date with
/// [`Registry::refresh`]. A session checks the version of each type that it uses.
pub struct Registry {
    /// The generation at the last reading. None: the data may be from a transaction that was rolled back.
    generation: Option<i64>,
    types: Kept<TypeId, CachedType>,
    /// Ids of the types in memory, by name.
    by_name: HashMap<String, TypeId>,
    mappings: Kept<MappingId, Mapping>,
    workers: BTreeMap<WorkerId, Registered>,
    read: Reading,
    /// The limits of a turn. Only the engine has them: a session reads what it needs, or fails.
    turn: Option<TurnsPart>,
}

/// A type, and the number of the reading that last confirmed it.
struct CachedType {
    process_type: Arc<ProcessType>,
    weight: usize,
    checked: u64,
}

/// The definitions that one turn reads. Any role that may register can make its definitions large. So a turn reads a
/// limited amount, and no owner waits long for other owners' definitions.
#[derive(Default)]
struct TurnsPart {
    /// The weight of the definitions read in this turn.
    weight: usize,
    /// Owners of processes for which the turn has read a definition that is not small.
    read_for: HashSet<pg_sys::Oid>,
    /// Deferred executions, and until when, if that is known.
    deferred: BTreeMap<ExecutionId, Option<Instant>>,
    /// Definitions that can't be read, and when to retry.
    unreadable: HashMap<TypeId, (RowVersion, Instant)>,
}

/// The result of looking up a process type by its id.
pub enum TypeLookup {
    Registered(Arc<ProcessType>),
    Missing,
    /// Another turn reads the type, not before this time.
    Later(Option<Instant>),
}

impl TypeLookup {
    pub fn registered(self) -> Option<Arc<ProcessType>> {
        if let Self::Registered(process_type) = self { Some(process_type) } else { None }
    }
}

/// The weight of definitions that an engine process keeps, and that a session keeps. There are many sessions. The
/// memory used is less, much less if the states have options: see [`Definition::weight`].
const KEPT_BY_ENGINE: usize = 128 * 1024 * 1024;
const KEPT_BY_SESSION: usize = 16 * 1024 * 1024;

/// The number of attributes of all mappings that are kept.
const MAPPED: usize = 100_000;

/// The weight of definitions that one turn reads. The last definition may exceed it. Reading this much takes tens of
/// milliseconds. One definition per owner is always read, so no owner waits for another.
const OF_ONE_TURN: usize = 32 * 1024 * 1024;

/// A definition of at most this many stored bytes is always read.
const SMALL: usize = 4 * 1024;

/// After this time, the engine retries a definition that it could not read.
const READ_AGAIN: Duration = Duration::from_secs(10);

impl Default for Registry {
    /// The registry of a session.
    fn default() -> Self {
        Self::keeping(KEPT_BY_SESSION, None)
    }
}

/// When registrations were read, and whether their secrets may have changed since.
#[derive(Default)]
struct Reading {
    /// The number of readings.
    times: u64,
    at: Option<Instant>,
    /// When the configuration of that moment had been loaded.
    configuration: i64,
    /// Whether any secret is in a file or in the environment.
    has_references: bool,
    /// Whether any secret could not be read.
    has_unusable: bool,
}

/// After this time, secrets that could not be read are read again.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(10);

impl Reading {
    /// When secrets are to be read again.
    fn again_at(&self) -> Option<Instant> {
        self.at.filter(|_| self.has_unusable && self.has_references).map(|at| at + READ_AGAIN_AFTER)
    }

    fn is_stale(&self) -> bool {
        self.has_references && self.configuration != configuration_read_at()
            || self.again_at().is_some_and(|at| at <= Instant::now())
    }
}

/// What a scheduler keeps of a worker besides its types.
struct Registered {
    name: String,
    /// Whether it is a pull worker.
    pulls: bool,
    max_concurrency: usize,
    at: Timestamp,
    /// Why its calls can't be signed. None: they can.
    unusable: Option<Arc<str>>,
}

table! {
    /// A registered worker.
    pub struct WorkerRow<'a> in "worker" {
        key { worker_id: WorkerId }
        other {
            name: &'a str,
            url: Option<&'a str>,
            headers: Option<Jsonb<'a>>,
            max_concurrency: i32,
            registered_at: Timestamp,
            owner: pg_sys::Oid,
            owner_name: &'a str,
            secrets: i16,
            /// Of a pull worker: members of this role may claim its calls.
            role: Option<pg_sys::Oid>,
            role_name: Option<&'a str>,
        }
    }
}

table! {
    /// A registered process type with its definition.
    pub struct TypeRow<'a> in "process_type" {
        key { type_id: TypeId }
        other {
            process_type: &'a str,
            worker_id: Option<WorkerId>,
            definition: Jsonb<'a>,
            mapping_id: Option<MappingId>,
            version: i64,
            registered_at: Timestamp,
            owner: pg_sys::Oid,
            owner_name: &'a str,
            /// The pause of the type: see [`pauses`].
            pause_mode: Option<PauseMode>,
            paused_until: Option<Timestamp>,
            pause_reason: Option<&'a str>,
        }
    }
}

table! {
    /// A table of an attribute mapping. Never changes: executions keep the mapping of their start.
    pub struct MappedTable<'a> in "mapped_table" {
        key { mapping_id: MappingId, position: i32 }
        other { relation: Regclass, table_name: &'a str, key_columns: Vec<String>, attributes: Jsonb<'a> }
    }
}

/// A type with its worker.
fn type_with(definition: &str) -> String {
    format!(
        "SELECT t.type_id, t.process_type, {definition}, t.mapping_id, t.version, t.xmin::text AS xmin, {}, \
            w.worker_id, w.url, {}, w.headers::text FROM xdb.process_type t LEFT JOIN xdb.worker w USING (worker_id) \
            WHERE t.type_id = $1 AND (t.worker_id IS NULL OR w.worker_id IS NOT NULL)",
        pauses::COLUMNS,
        worker_secret::COLUMNS
    )
}

const DEFINITION: &str = "t.definition::text";

/// The stored size of the definition, in place of the definition.
const STORED_BYTES: &str = "pg_catalog.pg_column_size(t.definition) AS stored_bytes";

record! {
    /// A process type that is not registered, and the number of its running executions.
    pub struct MissingType { process_type: String, running: i64 }
}

/// The condition that an execution `p` runs and its type is missing. A restore or a copy can lose rows of types.
pub(super) const WITHOUT_TYPE: &str =
    "p.status = 'RUNNING' AND NOT EXISTS (SELECT FROM xdb.process_type t WHERE t.type_id = p.type_id)";

statements! {
    TYPE = type_with(DEFINITION);
    // Everything that a change of the worker changes, without the definition.
    HEAD = type_with(STORED_BYTES);
    VERSION_OF_NAME = "SELECT t.type_id, t.version, t.xmin::text AS xmin FROM xdb.process_type t WHERE t.process_type = $1"
        => fn version_of(name: &str) -> Option<RowVersion>;
    WORKERS = format!("SELECT w.worker_id, w.name, w.url IS NULL AS pulls, w.max_concurrency, w.registered_at, {} FROM xdb.worker w",
        worker_secret::COLUMNS);
    MAPPING = format!("SELECT {} FROM xdb.mapped_table m WHERE mapping_id = $1 ORDER BY position", select::<MappedTable>("m"));
}

impl Registry {
    /// The registry of an engine process.
    pub fn of_engine() -> Self {
        Self::keeping(KEPT_BY_ENGINE, Some(TurnsPart::default()))
    }

    fn keeping(most: usize, turn: Option<TurnsPart>) -> Self {
        Self {
            generation: None,
            types: Kept::of_at_most(most),
            by_name: HashMap::new(),
            mappings: Kept::of_at_most(MAPPED),
            workers: BTreeMap::new(),
            read: Reading::default(),
            turn,
        }
    }

    /// Call it at the begin of each turn. If registrations or secrets may have changed since the last turn, reads the
    /// workers again and returns true. Each type is then checked when it is next needed.
    pub fn refresh(&mut self, spi: &Spi, generation: i64) -> Result<bool> {
        if let Some(turn) = &mut self.turn {
            turn.weight = 0;
            turn.read_for.clear();
            turn.deferred.clear();
        }
        let changed = self.generation != Some(generation) || self.read.is_stale();
        if changed {
            self.read_workers(spi)?;
            self.generation = Some(generation);
        }
        Ok(changed)
    }

    /// Call it after a rollback: registrations of the transaction itself may have been read.
    pub fn undo(&mut self) {
        self.generation = None;
    }

    fn read_workers(&mut self, spi: &Spi) -> Result<()> {
        let mut secrets = worker_secret::Reader::default();
        self.workers = read_workers(spi, &mut secrets)?;
        self.read = Reading {
            times: self.read.times + 1,
            at: Some(Instant::now()),
            configuration: configuration_read_at(),
            has_references: secrets.has_references,
            has_unusable: self.workers.values().any(|worker| worker.unusable.is_some()),
        };
        Ok(())
    }

    /// The number of readings. It grows with each.
    pub fn times_read(&self) -> u64 {
        self.read.times
    }

    /// When the next turn must be made, so that secrets are read again.
    pub fn reads_again_at(&self) -> Option<Instant> {
        self.read.again_at()
    }

    /// Workers whose calls can't be signed, with names and reasons.
    pub fn unusable(&self) -> impl Iterator<Item = (WorkerId, &str, &Arc<str>)> {
        self.workers.iter().filter_map(|(id, worker)| Some((*id, &*worker.name, worker.unusable.as_ref()?)))
    }

    /// All HTTP workers, and how many calls each may have at a time. Pull workers are left out.
    pub fn workers(&self) -> Vec<(WorkerId, usize)> {
        let called = self.workers.iter().filter(|(_, worker)| !worker.pulls);
        called.map(|(id, worker)| (*id, worker.max_concurrency)).collect()
    }

    /// All pull workers.
    pub fn pulling_workers(&self) -> impl Iterator<Item = WorkerId> {
        self.workers.iter().filter(|(_, worker)| worker.pulls).map(|(id, _)| *id)
    }

    /// All registered workers.
    pub fn registered_workers(&self) -> Vec<WorkerId> {
        self.workers.keys().copied().collect()
    }

    /// Whether the worker is registered and has a URL.
    pub fn is_called(&self, id: WorkerId) -> bool {
        self.workers.get(&id).is_some_and(|worker| !worker.pulls)
    }

    /// When a worker was last registered. `None` if it is not registered.
    pub fn registered_at(&self, id: WorkerId) -> Option<Timestamp> {
        self.workers.get(&id).map(|worker| worker.at)
    }

    /// A type by its id, for a process of this owner. In the engine it is up to date in this turn. A session may have
    /// read it some time ago.
    pub fn process_type(&mut self, spi: &Spi, id: TypeId, owner: pg_sys::Oid) -> Result<TypeLookup> {
        match self.types.get(&id) {
            Some(known) if known.checked == self.read.times => Ok(TypeLookup::Registered(known.process_type.clone())),
            _ => self.read_type(spi, id, owner),
        }
    }

    /// Defers an execution to a turn that reads its definition, not before this time.
    pub fn defer(&mut self, id: ExecutionId, until: Option<Instant>) {
        if let Some(turn) = &mut self.turn {
            turn.deferred.insert(id, until);
        }
    }

    pub fn is_deferred(&self, id: ExecutionId) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.deferred.contains_key(&id))
    }

    /// Until when an execution is deferred, if that is known.
    pub fn deferred_until(&self, id: ExecutionId) -> Option<Instant> {
        self.turn.as_ref().and_then(|turn| turn.deferred.get(&id).copied().flatten())
    }

    /// Reads a type. If it is in memory and has not changed, the definition is not read again.
    fn read_type(&mut self, spi: &Spi, id: TypeId, owner: pg_sys::Oid) -> Result<TypeLookup> {
        let known = self.types.get(&id).map(|known| (known.process_type.clone(), known.weight));
        let mut version = None;
        if known.is_some() || self.turn.is_some() {
            let mut secrets = worker_secret::Reader::default();
            let head = spi.first(&HEAD, &[value(id)], |row| {
                Ok((ProcessType::read(row, &mut secrets)?, row.get::<i32>("stored_bytes")?))
            })?;
            let Some((head, stored_bytes)) = head else {
                self.forget(id);
                return Ok(TypeLookup::Missing);
            };
            if let Some((known, weight)) = known
                && known.version == head.version
            {
                let found = ProcessType { definition: known.definition.clone(), ..head };
                return Ok(TypeLookup::Registered(self.keep(found, weight)));
            }
            let stored_bytes = stored_bytes.max(0) as usize;
            if let Some(later) = self.turn.as_mut().and_then(|turn| turn.later(&head.version, stored_bytes, owner)) {
                return Ok(later);
            }
            version = Some(head.version);
        }
        let whole = match (&mut self.turn, version) {
            (Some(turn), Some(version)) => match guarded(|| whole_type(spi, id)) {
                // Processes of other types go on.
                Err(error) if error.code != QUERY_CANCELED => {
                    let what = format!("the definition of process type {id} can't be read, so its processes wait");
                    log_error(&what, &error);
                    let again_at = Instant::now() + READ_AGAIN;
                    turn.unreadable.insert(id, (version, again_at));
                    return Ok(TypeLookup::Later(Some(again_at)));
                }
                read => {
                    let read = read?;
                    turn.weight += read.as_ref().map_or(0, |(_, weight)| *weight);
                    read
                }
            },
            _ => whole_type(spi, id)?,
        };
        Ok(match whole {
            Some((found, weight)) => TypeLookup::Registered(self.keep(found, weight)),
            None => TypeLookup::Missing,
        })
    }

    fn keep(&mut self, found: ProcessType, weight: usize) -> Arc<ProcessType> {
        let process_type = Arc::new(found);
        self.by_name.insert(process_type.name.clone(), process_type.id);
        let known = CachedType { process_type: process_type.clone(), weight, checked: self.read.times };
        for removed in self.types.insert(process_type.id, known, weight) {
            self.forget_name(&removed.process_type);
        }
        process_type
    }

    fn forget(&mut self, id: TypeId) {
        if let Some(removed) = self.types.remove(&id) {
            self.forget_name(&removed.process_type);
        }
    }

    fn forget_name(&mut self, removed: &ProcessType) {
        // Another type may have the name by now.
        if self.by_name.get(&removed.name) == Some(&removed.id) {
            self.by_name.remove(&removed.name);
        }
    }

    /// The type of this name, for a start. No session can unregister it before this transaction ends.
    pub fn process_type_to_start(&mut self, spi: &Spi, name: &str) -> Result<Option<Arc<ProcessType>>> {
        // If the type does not have this name any more, the lock is useless and harmless.
        let known = self.by_name.get(name).copied();
        let mut locked = match known {
            Some(known) => known,
            None => match self.process_type_by_name(spi, name)? {
                Some(found) => found.id,
                None => return Ok(None),
            },
        };
        loop {
            lock_type(locked, pg_sys::AccessShareLock)?;
            // During the wait for the lock, or before, another type may have got the name.
            match self.process_type_by_name(spi, name)? {
                Some(now) if now.id == locked => return Ok(Some(now)),
                Some(now) => locked = now.id,
                None => return Ok(None),
            }
        }
    }

    /// The type of this name as it is registered now, for a session.
    pub fn process_type_by_name(&mut self, spi: &Spi, name: &str) -> Result<Option<Arc<ProcessType>>> {
        let current = version_of(spi, name)?;
        self.process_type_of(spi, name, current)
    }

    /// Like [`Registry::process_type_by_name`], for a version that was read a moment ago.
    pub(super) fn process_type_of(
        &mut self,
        spi: &Spi,
        name: &str,
        mut read: Option<RowVersion>,
    ) -> Result<Option<Arc<ProcessType>>> {
        let mut missing = None;
        loop {
            let Some(current) = read else { return Ok(None) };
            if missing == Some(current.type_id) {
                // Its worker does not exist.
                return Ok(None);
            }
            if self.read.configuration != configuration_read_at() {
                // All secrets outside of the database may have changed.
                self.read.times += 1;
                self.read.configuration = configuration_read_at();
            }
            if let Some(known) = self.types.get(&current.type_id)
                && known.process_type.version == current
                && known.checked == self.read.times
                && known.process_type.worker.as_ref().is_none_or(|worker| worker.signing.is_ok())
            {
                return Ok(Some(known.process_type.clone()));
            }
            if let Some(found) = self.read_type(spi, current.type_id, pg_sys::InvalidOid)?.registered() {
                return Ok(Some(found));
            }
            // Another type may have got the name meanwhile.
            missing = Some(current.type_id);
            read = version_of(spi, name)?;
        }
    }

    pub fn mapping(&mut self, spi: &Spi, id: Option<MappingId>) -> Result<Mapping> {
        let Some(id) = id else { return Ok(Arc::from([])) };
        if let Some(known) = self.mappings.get(&id) {
            return Ok(known.clone());
        }
        let tables = spi.rows(&MAPPING, &[value(id)], |row| {
            let MappedTable { relation, table_name, key_columns, attributes, .. } = MappedTable::read(row)?;
            Ok(TableMapping {
                table: table_name.to_owned(),
                relation: relation.0,
                primary_key: key_columns,
                attributes: from_json(&attributes.0)?,
            })
        })?;
        let mapping: Mapping = tables.into();
        let weight = mapping.iter().map(|table| 1 + table.attributes.len()).sum();
        self.mappings.insert(id, mapping.clone(), weight);
        Ok(mapping)
    }
}

fn read_workers(spi: &Spi, secrets: &mut worker_secret::Reader) -> Result<BTreeMap<WorkerId, Registered>> {
    let workers = spi.rows(&WORKERS, &[], |row| {
        let max_concurrency = row.get::<i32>("max_concurrency")?.max(1) as usize;
        let (name, at, unusable) = (row.get("name")?, row.get("registered_at")?, secrets.signing(row)?.err());
        let pulls = row.get("pulls")?;
        Ok((row.get("worker_id")?, Registered { name, pulls, max_concurrency, at, unusable }))
    })?;
    Ok(workers.into_iter().collect())
}

/// Names of workers whose secrets can't be used, and why. Reads the secrets now. For people.
pub fn unusable_secrets(spi: &Spi) -> Result<Vec<(String, Arc<str>)>> {
    let workers = read_workers(spi, &mut worker_secret::Reader::default())?;
    Ok(workers.into_values().filter_map(|worker| Some((worker.name, worker.unusable?))).collect())
}

impl Worker {
    fn read(row: &Row, id: WorkerId, signing: Signing) -> Result<Self> {
        let headers: BTreeMap<String, String> = match row.get::<Option<&str>>("headers")? {
            Some(text) => from_json(text)?,
            None => BTreeMap::new(),
        };
        Ok(Self { id, url: row.get("url")?, signing, headers: headers.into_iter().collect() })
    }
}

impl ProcessType {
    /// Reads all but the definition.
    fn read(row: &Row, secrets: &mut worker_secret::Reader) -> Result<Self> {
        let worker = match row.get::<Option<WorkerId>>("worker_id")? {
            Some(id) => Some(Arc::new(Worker::read(row, id, secrets.signing(row)?)?)),
            None => None,
        };
        Ok(Self {
            id: row.get("type_id")?,
            name: row.get("process_type")?,
            worker,
            definition: Arc::default(),
            mapping_id: row.get("mapping_id")?,
            pause: pauses::read(row)?,
            version: RowVersion::read(row)?,
        })
    }
}

/// A type with its definition, and the definition's weight.
fn whole_type(spi: &Spi, id: TypeId) -> Result<Option<(ProcessType, usize)>> {
    let mut secrets = worker_secret::Reader::default();
    spi.first(&TYPE, &[value(id)], |row| {
        let head = ProcessType::read(row, &mut secrets)?;
        let text = row.get::<&str>("definition")?;
        let weight = Definition::weight(text);
        room_for(weight)?;
        Ok((ProcessType { definition: Arc::new(from_json(text)?), ..head }, weight))
    })
}

impl TurnsPart {
    /// Says when the definition is read, if not in this turn. The definition has this many stored bytes, and is for a
    /// process of this owner.
    fn later(&mut self, version: &RowVersion, stored_bytes: usize, owner: pg_sys::Oid) -> Option<TypeLookup> {
        if let Some((unreadable, again_at)) = self.unreadable.get(&version.type_id) {
            if unreadable == version && *again_at > Instant::now() {
                return Some(TypeLookup::Later(Some(*again_at)));
            }
            self.unreadable.remove(&version.type_id);
        }
        if stored_bytes <= SMALL {
            return None;
        }
        let is_first = self.read_for.insert(owner);
        (!is_first && self.weight >= OF_ONE_TURN).then_some(TypeLookup::Later(None))
    }
}

/// Locks a process type: a start excludes the type's removal. The lock is not a row lock, because a thousand starts at
/// once must not queue up at one row.
pub fn lock_type(id: TypeId, mode: u32) -> Result<()> {
    lock_extension_object(id as u32, TYPE_LOCK, mode)
}

/// Distinguishes locks of types from other locks of the extension.
const TYPE_LOCK: u16 = 0x5844;
