//! Workers and process types as registered: the tables `worker`, `process_type` and `mapped_table`.

use super::instance::{bump, take_into_use};
use super::pauses;
use super::table::{Read, Record, insert, insert_row, insert_with_identity, record, run, select, statements, table};
use super::versions::{self, of_schema};
use super::worker_secret::{self, Secret, Signing};
use super::{from_json, to_json};
use crate::pg::catch::{QUERY_CANCELED, Result, log_error};
use crate::pg::memory::room_for;
use crate::pg::param::{Jsonb, Relation, value};
use crate::pg::process::configuration_read_at;
use crate::pg::spi::{Row, Spi};
use crate::pg::subxact::{guarded, lock_extension_object};
use crate::pg::wake;
use pgrx::pg_sys;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xdb_engine::{Api, Definition, ExecutionId, Pause, TableMapping, Timestamp};
use xdb_sched::kept::Kept;

pub type WorkerId = i32;
pub type TypeId = i32;
pub type MappingId = i32;

/// The role that registered something; invalid if nobody knows any more. `None` in a schema of an older release, where nothing
/// that is registered has an owner.
pub type Owner = Option<pg_sys::Oid>;

/// A worker: where calls go.
#[derive(Debug)]
pub struct Worker {
    pub id: WorkerId,
    /// None: it fetches its calls itself.
    pub url: Option<String>,
    pub signing: Signing,
    pub headers: Vec<(String, String)>,
}

/// A process type as it is registered now.
#[derive(Debug)]
pub struct ProcessType {
    pub id: TypeId,
    pub name: String,
    /// None: functions answer all of its calls.
    pub worker: Option<Arc<Worker>>,
    pub definition: Arc<Definition>,
    pub mapping_id: Option<MappingId>,
    /// It may be over by itself.
    pub pause: Option<Pause>,
    pub version: RowVersion,
}

/// In the tasks of calls that functions answer, and of types that are not registered.
pub const NO_WORKER: WorkerId = 0;

impl ProcessType {
    /// The pause that its processes are in.
    pub fn pause(&self, now: Timestamp) -> Option<&Pause> {
        self.pause.as_ref().filter(|pause| !pause.is_over(now))
    }

    pub fn worker_id(&self) -> WorkerId {
        self.worker.as_ref().map_or(NO_WORKER, |worker| worker.id)
    }

    /// The worker that fetches its calls, if it is such a one.
    pub fn pulled_by(&self) -> Option<WorkerId> {
        self.worker.as_ref().filter(|worker| worker.url.is_none()).map(|worker| worker.id)
    }

    /// Whether a call of this state is a runner's: because a function answers it, or since there is no worker who could.
    pub fn is_for_function(&self, state_id: &str, api: Api) -> bool {
        self.worker.is_none() || self.definition.function_of(state_id, api).is_some()
    }
}

/// Tells one state of a row from all others: also from one that was rolled back, or of another row of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowVersion {
    id: TypeId,
    version: i64,
    xmin: String,
}

/// An attribute mapping as it was registered once; immutable.
pub type Mapping = Arc<[TableMapping]>;

/// Registrations and mappings, as far as they were needed and there is room for them in memory. A scheduler keeps it up to date with
/// [`Registry::refresh`]; a caller looks at the version of the type that it uses.
pub struct Registry {
    /// As of the last reading; None: whatever was read may not be so.
    generation: Option<i64>,
    types: Kept<TypeId, Known>,
    /// Of those that are kept.
    by_name: HashMap<String, TypeId>,
    mappings: Kept<MappingId, Mapping>,
    workers: BTreeMap<WorkerId, Registered>,
    read: Reading,
    /// Of the engine: a session reads what it needs, or fails.
    turn: Option<TurnsPart>,
}

/// A type, and at which reading it was found to be so.
struct Known {
    process_type: Arc<ProcessType>,
    weight: usize,
    checked: u64,
}

/// What one turn reads of definitions. They are everybody's who may register; nobody shall wait for long for those of others.
#[derive(Default)]
struct TurnsPart {
    /// What has been read in this turn weighs so much.
    weight: usize,
    /// For whose processes any was that is not small.
    read_for: HashSet<pg_sys::Oid>,
    /// Executions that are left alone, and until when if that is known.
    put_off: BTreeMap<ExecutionId, Option<Instant>>,
    /// Definitions that can't be read, and when to try again.
    unreadable: HashMap<TypeId, (RowVersion, Instant)>,
}

/// A process type by its id.
pub enum Found {
    Registered(Arc<ProcessType>),
    Missing,
    /// The engine is to read it in another turn: not before then.
    Later(Option<Instant>),
}

impl Found {
    pub fn registered(self) -> Option<Arc<ProcessType>> {
        if let Self::Registered(process_type) = self { Some(process_type) } else { None }
    }
}

/// How much an engine process keeps of definitions, and how much a session, of which there are many. They take less, by far if
/// their states have options; see [`Definition::weight`].
const KEPT_BY_ENGINE: usize = 128 * 1024 * 1024;
const KEPT_BY_SESSION: usize = 16 * 1024 * 1024;

/// Attributes of the mappings that are kept.
const MAPPED: usize = 100_000;

/// How much one turn reads of definitions, and one more at most. It takes tens of milliseconds. One for each owner's processes goes in
/// any case: nobody waits until others need none.
const OF_ONE_TURN: usize = 32 * 1024 * 1024;

/// What takes no more bytes, as it is stored, is read in any case.
const SMALL: usize = 4 * 1024;

/// A definition that can't be read is tried again after this.
const READ_AGAIN: Duration = Duration::from_secs(10);

impl Default for Registry {
    /// Of a session.
    fn default() -> Self {
        Self::keeping(KEPT_BY_SESSION, None)
    }
}

/// When registrations were read, and whether what they refer to may be another by now.
#[derive(Default)]
struct Reading {
    /// How often.
    times: u64,
    at: Option<Instant>,
    /// When the configuration had been read that held then.
    configuration: i64,
    /// Secrets are in files or the environment.
    has_references: bool,
    /// Some of them were not to be had.
    has_unusable: bool,
}

/// Secrets that are not to be had are looked for again after this.
const LOOKED_FOR_AGAIN: Duration = Duration::from_secs(10);

impl Reading {
    /// When secrets are to be looked for again.
    fn again_at(&self) -> Option<Instant> {
        self.at.filter(|_| self.has_unusable && self.has_references).map(|at| at + LOOKED_FOR_AGAIN)
    }

    fn is_stale(&self) -> bool {
        self.has_references && self.configuration != configuration_read_at()
            || self.again_at().is_some_and(|at| at <= Instant::now())
    }
}

/// What a scheduler knows of a worker besides its types.
struct Registered {
    name: String,
    /// It fetches its calls itself.
    pulls: bool,
    max_concurrency: usize,
    at: Timestamp,
    /// Why its calls can't be signed.
    unusable: Option<Arc<str>>,
}

table! {
    /// A registered worker.
    pub struct WorkerRow<'a> in "worker" {
        key { worker_id: WorkerId }
        other {
            name: &'a str,
            url: Option<&'a str>,
            secret: Option<&'a str>,
            headers: Option<Jsonb<'a>>,
            max_concurrency: i32,
            registered_at: Timestamp,
            owner: pg_sys::Oid,
            owner_name: &'a str,
            secrets: i16,
            /// Of a worker without URL: its members may claim calls.
            role: Option<pg_sys::Oid>,
            role_name: Option<&'a str>,
        }
    }
}

record! {
    /// A worker that is registered, or registered again: then it keeps its owner.
    pub struct NewWorker<'a> of WorkerRow<'a> {
        name: &'a str,
        url: Option<&'a str>,
        headers: Option<Jsonb<'a>>,
        max_concurrency: i32,
        owner: pg_sys::Oid,
        owner_name: &'a str,
        secrets: i16,
        role: Option<pg_sys::Oid>,
        role_name: Option<&'a str>,
    }
}

record! {
    /// The same in a schema of an older release.
    struct NewWorkerOfOlder<'a> of WorkerRow<'a> {
        name: &'a str,
        url: Option<&'a str>,
        secret: Option<&'a str>,
        headers: Option<Jsonb<'a>>,
        max_concurrency: i32,
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
            /// See [`pauses`]. Neither of these is in the schemas of older releases.
            pause_mode: Option<&'a str>,
            paused_until: Option<Timestamp>,
            pause_reason: Option<&'a str>,
        }
    }
}

record! {
    /// A process type that is registered, or registered again: then it keeps its owner.
    struct NewType<'a> of TypeRow<'a> {
        process_type: &'a str,
        worker_id: Option<WorkerId>,
        definition: Jsonb<'a>,
        mapping_id: Option<MappingId>,
        owner: pg_sys::Oid,
        owner_name: &'a str,
    }
}

record! {
    /// The same in a schema of an older release.
    struct NewTypeOfOlder<'a> of TypeRow<'a> {
        process_type: &'a str,
        worker_id: Option<WorkerId>,
        definition: Jsonb<'a>,
        mapping_id: Option<MappingId>,
    }
}

record! {
    /// A process type that was lost, and gets the number back that its executions know it by.
    struct FoundAgain<'a> of TypeRow<'a> {
        type_id: TypeId,
        process_type: &'a str,
        worker_id: Option<WorkerId>,
        definition: Jsonb<'a>,
        mapping_id: Option<MappingId>,
        owner: pg_sys::Oid,
        owner_name: &'a str,
    }
}

table! {
    /// A table of an attribute mapping. Never changed: executions keep the mapping of their start.
    pub struct MappedTable<'a> in "mapped_table" {
        key { mapping_id: MappingId, position: i32 }
        other { relation: Relation, table_name: &'a str, key_columns: Vec<String>, attributes: Jsonb<'a> }
    }
}

/// A type with its worker, whose secrets these columns are.
fn type_with(definition: &str, (secrets, pause): (&str, &str)) -> String {
    format!(
        "SELECT t.type_id, t.process_type, {definition}, t.mapping_id, t.version, t.xmin::text AS xmin, {pause}, \
            w.worker_id, w.url, {secrets}, w.headers::text FROM xdb.process_type t LEFT JOIN xdb.worker w USING (worker_id) \
            WHERE t.type_id = $1 AND (t.worker_id IS NULL OR w.worker_id IS NOT NULL)"
    )
}

const DEFINITION: &str = "t.definition::text";

/// In its place, what it takes to read it.
const STORED_BYTES: &str = "pg_catalog.pg_column_size(t.definition) AS stored_bytes";

/// The columns of a type that not every schema has: the secrets of its worker, and its pause.
const OWN: (&str, &str) = (worker_secret::COLUMNS, pauses::COLUMNS);
const OLDER: (&str, &str) = (worker_secret::COLUMNS_OF_OLDER, pauses::COLUMNS_OF_OLDER);

fn workers_with(secrets: &str) -> String {
    format!(
        "SELECT w.worker_id, w.name, w.url IS NULL AS pulls, w.max_concurrency, w.registered_at, {secrets} FROM xdb.worker w"
    )
}

/// A process type that is not registered, and how many of its executions run.
pub struct MissingType {
    pub name: String,
    pub running: i64,
}

impl MissingType {
    pub(super) fn read(row: &Row) -> Result<Self> {
        Ok(Self { name: row.get("process_type")?, running: row.get("running")? })
    }
}

/// An execution `p` that runs and whose type is not there: rows were lost on their way into this database.
pub(super) const WITHOUT_TYPE: &str =
    "p.status = 'RUNNING' AND NOT EXISTS (SELECT FROM xdb.process_type t WHERE t.type_id = p.type_id)";

statements! {
    TYPE = type_with(DEFINITION, OWN);
    TYPE_OF_OLDER = type_with(DEFINITION, OLDER);
    // What a change of its worker changes, without the definition.
    HEAD = type_with(STORED_BYTES, OWN);
    HEAD_OF_OLDER = type_with(STORED_BYTES, OLDER);
    VERSION_OF_NAME = "SELECT t.type_id, t.version, t.xmin::text AS xmin FROM xdb.process_type t WHERE t.process_type = $1";
    WORKERS = workers_with(worker_secret::COLUMNS);
    WORKERS_OF_OLDER = workers_with(worker_secret::COLUMNS_OF_OLDER);
    MAPPING = format!("SELECT {} FROM xdb.mapped_table m WHERE mapping_id = $1 ORDER BY position", select::<MappedTable>("m"));
    PUT_WORKER = format!("{} WHERE worker.owner = $10 RETURNING worker_id", put_worker_as(&insert::<NewWorker>(),
        "secret = NULL, secrets = excluded.secrets, role = excluded.role, role_name = excluded.role_name"));
    PUT_WORKER_OF_OLDER = format!("{} RETURNING worker_id", put_worker_as(&insert::<NewWorkerOfOlder>(), "secret = excluded.secret"));
    PUT_SECRETS = "UPDATE xdb.worker SET secret = NULL, secrets = $2, registered_at = pg_catalog.clock_timestamp() WHERE worker_id = $1";
    // Callers compare the version of a type only, so a change of its worker is a change of the type.
    TOUCH_TYPES = "UPDATE xdb.process_type SET version = version + 1 WHERE worker_id = $1";
    WORKER_TO_PUT = worker_of_name("owner", "NO KEY UPDATE");
    WORKER_TO_USE = worker_of_name("owner", "KEY SHARE");
    WORKER_TO_USE_OF_OLDER = worker_of_name(NO_OWNER, "KEY SHARE");
    WORKER_TO_DELETE = worker_of_name("owner", "UPDATE");
    WORKER_TO_DELETE_OF_OLDER = worker_of_name(NO_OWNER, "UPDATE");
    SHOWN_WORKERS = shown_workers_with("w.owner");
    SHOWN_WORKERS_OF_OLDER = shown_workers_with(NO_OWNER);
    SHOWN_TYPES = "SELECT t.type_id, t.process_type, w.name AS worker, t.owner \
        FROM xdb.process_type t LEFT JOIN xdb.worker w USING (worker_id)";
    TYPES_OF_WORKER = "SELECT t.process_type FROM xdb.process_type t JOIN xdb.worker w USING (worker_id) \
        WHERE w.name = $1 ORDER BY 1";
    // Calls may wait under this worker still, from before their type moved to another one: the scheduler moves them.
    DELETE_WORKER = "DELETE FROM xdb.worker WHERE worker_id = $1";
    LOST_TYPE = format!("SELECT p.type_id FROM xdb.process_execution p \
        WHERE p.process_type = $1 AND {WITHOUT_TYPE} LIMIT 1");
    TYPE_TO_PUT = type_to_put("owner");
    TYPE_TO_PUT_OF_OLDER = type_to_put(NO_OWNER);
    PUT_TYPE = format!("{} WHERE process_type.owner = $7", put_type_as(&insert::<NewType>()));
    PUT_TYPE_OF_OLDER = put_type_as(&insert::<NewTypeOfOlder>());
    PUT_LOST_TYPE = put_type_as(&insert_with_identity::<FoundAgain>());
    NEXT_MAPPING = "SELECT pg_catalog.nextval('xdb.mapping_id_seq')::int AS mapping_id";
    INSERT_MAPPING = insert_row::<MappedTable>();
    TYPE_TO_DELETE = type_to_delete_with("owner");
    TYPE_TO_DELETE_OF_OLDER = type_to_delete_with(NO_OWNER);
    RUNNING_OF_TYPE = "SELECT pg_catalog.count(*) AS running FROM xdb.process_execution \
        WHERE type_id = $1 AND status = 'RUNNING'";
    DELETE_TYPE = "DELETE FROM xdb.process_type WHERE type_id = $1";
}

/// In place of the column that an older schema does not have.
const NO_OWNER: &str = "NULL::oid";

fn worker_of_name(owner: &str, lock: &str) -> String {
    format!("SELECT worker_id, {owner} AS owner FROM xdb.worker WHERE name = $1 FOR {lock}")
}

fn shown_workers_with(owner: &str) -> String {
    format!("SELECT w.worker_id, w.name, {owner} AS owner, w.url IS NULL AS pulls FROM xdb.worker w")
}

fn put_worker_as(insert: &str, secrets: &str) -> String {
    format!(
        "{insert} ON CONFLICT (name) DO UPDATE SET url = excluded.url, {secrets}, \
            headers = excluded.headers, max_concurrency = excluded.max_concurrency, registered_at = excluded.registered_at"
    )
}

fn type_to_put(owner: &str) -> String {
    format!(
        "SELECT {owner} AS owner, mapping_id, (definition -> 'globalAttributes')::text AS global_attributes \
            FROM xdb.process_type WHERE process_type = $1 FOR UPDATE"
    )
}

fn put_type_as(insert: &str) -> String {
    format!(
        "{insert} ON CONFLICT (process_type) DO UPDATE SET worker_id = excluded.worker_id, \
            definition = excluded.definition, mapping_id = excluded.mapping_id, version = process_type.version + 1, \
            registered_at = excluded.registered_at"
    )
}

fn type_to_delete_with(owner: &str) -> String {
    format!("SELECT type_id, {owner} AS owner FROM xdb.process_type WHERE process_type = $1 FOR UPDATE")
}

impl Registry {
    /// Of a process of the engine.
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

    /// A turn begins. Reads the workers again if a registration changed since the last time, or may have, and says whether it has.
    /// Of each type it is asked then, when it is needed, whether it has changed.
    pub fn refresh(&mut self, spi: &Spi, generation: i64) -> Result<bool> {
        if let Some(turn) = &mut self.turn {
            turn.weight = 0;
            turn.read_for.clear();
            turn.put_off.clear();
        }
        let changed = self.generation != Some(generation) || self.read.is_stale();
        if changed {
            self.read_workers(spi)?;
            self.generation = Some(generation);
        }
        Ok(changed)
    }

    /// The transaction was rolled back, and with it what it may have registered itself.
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

    /// Grows with every reading.
    pub fn times_read(&self) -> u64 {
        self.read.times
    }

    /// When the next turn shall be made, so that secrets are looked for again.
    pub fn reads_again_at(&self) -> Option<Instant> {
        self.read.again_at()
    }

    /// The workers whose calls can't be signed, by their names, and why.
    pub fn unusable(&self) -> impl Iterator<Item = (WorkerId, &str, &Arc<str>)> {
        self.workers.iter().filter_map(|(id, worker)| Some((*id, &*worker.name, worker.unusable.as_ref()?)))
    }

    /// All workers that are called, with how many calls each takes at once. Those that fetch their calls are not among them.
    pub fn workers(&self) -> Vec<(WorkerId, usize)> {
        let called = self.workers.iter().filter(|(_, worker)| !worker.pulls);
        called.map(|(id, worker)| (*id, worker.max_concurrency)).collect()
    }

    /// All that fetch their calls themselves.
    pub fn pulling_workers(&self) -> impl Iterator<Item = WorkerId> {
        self.workers.iter().filter(|(_, worker)| worker.pulls).map(|(id, _)| *id)
    }

    /// All that are registered.
    pub fn registered_workers(&self) -> Vec<WorkerId> {
        self.workers.keys().copied().collect()
    }

    /// Whether a worker is registered, and called by the engine.
    pub fn is_called(&self, id: WorkerId) -> bool {
        self.workers.get(&id).is_some_and(|worker| !worker.pulls)
    }

    /// When a worker was registered last; `None` if it is not.
    pub fn registered_at(&self, id: WorkerId) -> Option<Timestamp> {
        self.workers.get(&id).map(|worker| worker.at)
    }

    /// A type by its id, for a process of this owner. In the engine it is as of this turn; a session may have read it some time ago.
    pub fn process_type(&mut self, spi: &Spi, id: TypeId, owner: pg_sys::Oid) -> Result<Found> {
        match self.types.get(&id) {
            Some(known) if known.checked == self.read.times => Ok(Found::Registered(known.process_type.clone())),
            _ => self.read_type(spi, id, owner),
        }
    }

    /// An execution that is left alone in this turn, because its definition is to be read in another one: not before then.
    pub fn put_off(&mut self, id: ExecutionId, until: Option<Instant>) {
        if let Some(turn) = &mut self.turn {
            turn.put_off.insert(id, until);
        }
    }

    pub fn is_put_off(&self, id: ExecutionId) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.put_off.contains_key(&id))
    }

    /// Until when an execution is put off, if that is known.
    pub fn put_off_until(&self, id: ExecutionId) -> Option<Instant> {
        self.turn.as_ref().and_then(|turn| turn.put_off.get(&id).copied().flatten())
    }

    /// Reads a type, and of one that is known and has not changed all but the definition.
    fn read_type(&mut self, spi: &Spi, id: TypeId, owner: pg_sys::Oid) -> Result<Found> {
        let known = self.types.get(&id).map(|known| (known.process_type.clone(), known.weight));
        let mut version = None;
        if known.is_some() || self.turn.is_some() {
            let mut secrets = worker_secret::Reader::default();
            let head = spi.first(of_schema(&HEAD, &HEAD_OF_OLDER), &[value(id)], |row| {
                Ok((Head::read(row, &mut secrets)?, row.get::<i32>("stored_bytes")?))
            })?;
            let Some((head, stored_bytes)) = head else {
                self.forget(id);
                return Ok(Found::Missing);
            };
            if let Some((known, weight)) = known
                && known.version == head.version
            {
                return Ok(Found::Registered(self.keep(head.with(known.definition.clone()), weight)));
            }
            let stored_bytes = stored_bytes.max(0) as usize;
            if let Some(later) = self.turn.as_mut().and_then(|turn| turn.later(&head.version, stored_bytes, owner)) {
                return Ok(later);
            }
            version = Some(head.version);
        }
        let whole = match (&mut self.turn, version) {
            (Some(turn), Some(version)) => match guarded(|| whole_type(spi, id)) {
                // Those of other types go on.
                Err(error) if error.code != QUERY_CANCELED => {
                    let what = format!("the definition of process type {id} can't be read, and its processes wait");
                    log_error(&what, &error);
                    let again_at = Instant::now() + READ_AGAIN;
                    turn.unreadable.insert(id, (version, again_at));
                    return Ok(Found::Later(Some(again_at)));
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
            Some((found, weight)) => Found::Registered(self.keep(found, weight)),
            None => Found::Missing,
        })
    }

    fn keep(&mut self, found: ProcessType, weight: usize) -> Arc<ProcessType> {
        let process_type = Arc::new(found);
        self.by_name.insert(process_type.name.clone(), process_type.id);
        let known = Known { process_type: process_type.clone(), weight, checked: self.read.times };
        for gone in self.types.insert(process_type.id, known, weight) {
            self.forget_name(&gone.process_type);
        }
        process_type
    }

    fn forget(&mut self, id: TypeId) {
        if let Some(gone) = self.types.remove(&id) {
            self.forget_name(&gone.process_type);
        }
    }

    fn forget_name(&mut self, gone: &ProcessType) {
        // Another one may have the name by now.
        if self.by_name.get(&gone.name) == Some(&gone.id) {
            self.by_name.remove(&gone.name);
        }
    }

    /// The type of this name for a start: nobody unregisters it before this transaction ends.
    pub fn process_type_to_start(&mut self, spi: &Spi, name: &str) -> Result<Option<Arc<ProcessType>>> {
        // One that is not of this name any more is locked for nothing.
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
            // While this waited for the lock, or before, the type may have been replaced by another one of its name.
            match self.process_type_by_name(spi, name)? {
                Some(now) if now.id == locked => return Ok(Some(now)),
                Some(now) => locked = now.id,
                None => return Ok(None),
            }
        }
    }

    /// The type of this name as it is registered now, for a caller.
    pub fn process_type_by_name(&mut self, spi: &Spi, name: &str) -> Result<Option<Arc<ProcessType>>> {
        let mut missing = None;
        loop {
            let Some(current) = spi.first(&VERSION_OF_NAME, &[value(name)], read_version)? else { return Ok(None) };
            if missing == Some(current.id) {
                // Its worker is not there.
                return Ok(None);
            }
            if self.read.configuration != configuration_read_at() {
                // Of the secrets that stand elsewhere all may be others.
                self.read.times += 1;
                self.read.configuration = configuration_read_at();
            }
            if let Some(known) = self.types.get(&current.id)
                && known.process_type.version == current
                && known.checked == self.read.times
                && known.process_type.worker.as_ref().is_none_or(|worker| worker.signing.is_ok())
            {
                return Ok(Some(known.process_type.clone()));
            }
            if let Some(found) = self.read_type(spi, current.id, pg_sys::InvalidOid)?.registered() {
                return Ok(Some(found));
            }
            // Another one may have taken its place meanwhile.
            missing = Some(current.id);
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

fn read_version(row: &Row) -> Result<RowVersion> {
    Ok(RowVersion { id: row.get("type_id")?, version: row.get("version")?, xmin: row.get("xmin")? })
}

fn read_workers(spi: &Spi, secrets: &mut worker_secret::Reader) -> Result<BTreeMap<WorkerId, Registered>> {
    let workers = spi.rows(of_schema(&WORKERS, &WORKERS_OF_OLDER), &[], |row| {
        let max_concurrency = row.get::<i32>("max_concurrency")?.max(1) as usize;
        let (name, at, unusable) = (row.get("name")?, row.get("registered_at")?, secrets.signing(row)?.err());
        let pulls = row.get("pulls")?;
        Ok((row.get("worker_id")?, Registered { name, pulls, max_concurrency, at, unusable }))
    })?;
    Ok(workers.into_iter().collect())
}

/// Names of workers whose secrets can't be used, and why: as it is here and now, for people.
pub fn unusable_secrets(spi: &Spi) -> Result<Vec<(String, Arc<str>)>> {
    let workers = read_workers(spi, &mut worker_secret::Reader::default())?;
    Ok(workers.into_values().filter_map(|worker| Some((worker.name, worker.unusable?))).collect())
}

/// A type without its definition.
struct Head {
    id: TypeId,
    name: String,
    mapping_id: Option<MappingId>,
    pause: Option<Pause>,
    version: RowVersion,
    worker: Option<Worker>,
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

impl Head {
    fn read(row: &Row, secrets: &mut worker_secret::Reader) -> Result<Self> {
        let worker = match row.get::<Option<WorkerId>>("worker_id")? {
            Some(id) => Some(Worker::read(row, id, secrets.signing(row)?)?),
            None => None,
        };
        Ok(Self {
            id: row.get("type_id")?,
            name: row.get("process_type")?,
            mapping_id: row.get("mapping_id")?,
            pause: pauses::read(row)?,
            version: read_version(row)?,
            worker,
        })
    }

    fn with(self, definition: Arc<Definition>) -> ProcessType {
        let Self { id, name, mapping_id, pause, version, worker } = self;
        ProcessType { id, name, worker: worker.map(Arc::new), definition, mapping_id, pause, version }
    }
}

/// A type with its definition, and what that weighs.
fn whole_type(spi: &Spi, id: TypeId) -> Result<Option<(ProcessType, usize)>> {
    let mut secrets = worker_secret::Reader::default();
    spi.first(of_schema(&TYPE, &TYPE_OF_OLDER), &[value(id)], |row| {
        let head = Head::read(row, &mut secrets)?;
        let text = row.get::<&str>("definition")?;
        let weight = Definition::weight(text);
        room_for(weight)?;
        Ok((head.with(Arc::new(from_json(text)?)), weight))
    })
}

impl TurnsPart {
    /// If this turn is not to read a definition that takes so many bytes, for a process of this owner.
    fn later(&mut self, version: &RowVersion, stored_bytes: usize, owner: pg_sys::Oid) -> Option<Found> {
        if let Some((unreadable, again_at)) = self.unreadable.get(&version.id) {
            if unreadable == version && *again_at > Instant::now() {
                return Some(Found::Later(Some(*again_at)));
            }
            self.unreadable.remove(&version.id);
        }
        if stored_bytes <= SMALL {
            return None;
        }
        let is_first = self.read_for.insert(owner);
        (!is_first && self.weight >= OF_ONE_TURN).then_some(Found::Later(None))
    }
}

/// A worker that is to be changed, which stays as it is until this transaction ends. `None` if there is no such worker, or the
/// schema knows of no owners.
pub fn worker_to_put(spi: &Spi, name: &str) -> Result<Option<OwnedWorker>> {
    if !versions::is_own() {
        return Ok(None);
    }
    spi.first(&WORKER_TO_PUT, &[value(name)], read_worker)
}

/// Inserts a worker, or changes the one of its name if that has this owner. Says whether it did: somebody may have registered
/// one since its owner was looked for.
pub fn put_worker(spi: &Spi, worker: NewWorker<'_>, secret: Option<&Secret>, owner: pg_sys::Oid) -> Result<bool> {
    take_into_use(spi)?;
    let read = |row: &Row| row.get::<WorkerId>("worker_id");
    let id = if versions::is_own() {
        let mut params = NewWorker::arrays(&[worker]);
        params.push(value(owner));
        let id = spi.first(&PUT_WORKER, &params, read)?;
        if let Some(id) = id {
            worker_secret::put(spi, id, secret.map_or(&[], std::slice::from_ref))?;
        }
        id
    } else {
        let NewWorker { name, url, headers, max_concurrency, .. } = worker;
        let secret = secret.map(Secret::stored_as);
        let worker = NewWorkerOfOlder { name, url, secret, headers, max_concurrency };
        spi.first(&PUT_WORKER_OF_OLDER, &NewWorkerOfOlder::arrays(&[worker]), read)?
    };
    if id.is_some() {
        spi.run(&TOUCH_TYPES, &[value(id)])?;
        bump(spi)?;
    }
    Ok(id.is_some())
}

/// Has a worker's calls signed with these secrets from now on.
pub fn put_secrets(spi: &Spi, worker: WorkerId, secrets: &[Secret]) -> Result<()> {
    worker_secret::put(spi, worker, secrets)?;
    spi.run(&PUT_SECRETS, &[value(worker), value(secrets.len() as i16)])?;
    spi.run(&TOUCH_TYPES, &[value(worker)])?;
    bump(spi)
}

/// A worker and its owner.
type OwnedWorker = (WorkerId, Owner);

fn read_worker(row: &Row) -> Result<OwnedWorker> {
    Ok((row.get("worker_id")?, row.get("owner")?))
}

/// A worker for a process type: nobody removes it before this transaction ends.
pub fn worker_to_use(spi: &Spi, name: &str) -> Result<Option<OwnedWorker>> {
    spi.first(of_schema(&WORKER_TO_USE, &WORKER_TO_USE_OF_OLDER), &[value(name)], read_worker)
}

/// A worker that is to be removed: no process type begins to use it, and those that were about to have done so.
pub fn worker_to_delete(spi: &Spi, name: &str) -> Result<Option<OwnedWorker>> {
    spi.first(of_schema(&WORKER_TO_DELETE, &WORKER_TO_DELETE_OF_OLDER), &[value(name)], read_worker)
}

/// A worker as everybody may know it.
pub struct ShownWorker {
    pub id: WorkerId,
    pub name: String,
    pub owner: Owner,
    /// It fetches its calls itself.
    pub pulls: bool,
}

pub fn shown_workers(spi: &Spi) -> Result<Vec<ShownWorker>> {
    spi.rows(of_schema(&SHOWN_WORKERS, &SHOWN_WORKERS_OF_OLDER), &[], |row| {
        let (id, name) = (row.get("worker_id")?, row.get("name")?);
        Ok(ShownWorker { id, name, owner: row.get("owner")?, pulls: row.get("pulls")? })
    })
}

/// A process type as everybody may know it.
pub struct ShownType {
    pub id: TypeId,
    pub name: String,
    pub worker: Option<String>,
    pub owner: pg_sys::Oid,
}

/// Not in a schema of an older release, where nobody asks.
pub fn shown_types(spi: &Spi) -> Result<Vec<ShownType>> {
    spi.rows(&SHOWN_TYPES, &[], |row| {
        Ok(ShownType {
            id: row.get("type_id")?,
            name: row.get("process_type")?,
            worker: row.get("worker")?,
            owner: row.get("owner")?,
        })
    })
}

/// Process types that use a worker, as they are now: no foreign key finds one that a transaction's snapshot does not have.
pub fn types_of_worker(spi: &Spi, name: &str) -> Result<Vec<String>> {
    spi.with_latest_snapshot(|spi| spi.rows(&TYPES_OF_WORKER, &[value(name)], |row| row.get("process_type")))
}

pub fn delete_worker(spi: &Spi, id: WorkerId) -> Result<()> {
    spi.run(&DELETE_WORKER, &[value(id)])?;
    if versions::is_own() {
        worker_secret::delete(spi, id)?;
    }
    wake::forget_worker_at_commit(id);
    bump(spi)
}

/// A process type that is there, and stays as it is until this transaction ends.
pub struct KnownType {
    pub owner: Owner,
    mapping_id: Option<MappingId>,
    global_attributes: Vec<TableMapping>,
}

pub fn type_to_put_in(spi: &Spi, name: &str) -> Result<Option<KnownType>> {
    spi.first(of_schema(&TYPE_TO_PUT, &TYPE_TO_PUT_OF_OLDER), &[value(name)], |row| {
        Ok(KnownType {
            owner: row.get("owner")?,
            mapping_id: row.get("mapping_id")?,
            global_attributes: row.get::<Option<&str>>("global_attributes")?.map_or(Ok(Vec::new()), from_json)?,
        })
    })
}

/// What a process type is registered with.
pub struct TypeToPut<'a> {
    pub name: &'a str,
    pub worker: Option<WorkerId>,
    pub definition: &'a Definition,
    /// The role that registers it, and its name.
    pub role: pg_sys::Oid,
    pub role_name: &'a str,
    /// The number of a type of this name that was lost.
    pub lost: Option<TypeId>,
}

/// The number of a type that is not registered while executions of it run, as a restore may leave them: they find it by its number.
pub fn lost_type(spi: &Spi, name: &str) -> Result<Option<TypeId>> {
    if !versions::is_own() {
        return Ok(None);
    }
    spi.first(&LOST_TYPE, &[value(name)], |row| row.get("type_id"))
}

/// Inserts a process type, or replaces the one that is known. Says whether it did: somebody may have registered one since that
/// was looked for. A mapping that differs from the last one gets a new id, because running executions keep theirs.
pub fn put_process_type(spi: &Spi, put: &TypeToPut<'_>, known: Option<&KnownType>) -> Result<bool> {
    let TypeToPut { name: process_type, worker: worker_id, definition, role, role_name, lost } = *put;
    if worker_id.is_none() {
        // Else the registration of the worker has done so.
        take_into_use(spi)?;
    }
    let mapping_id = match known {
        Some(known) if known.global_attributes == definition.global_attributes => known.mapping_id,
        _ => insert_mapping(spi, &definition.global_attributes)?,
    };
    let definition = Jsonb(to_json(definition)?.into());
    let changed = if let Some(type_id) = lost {
        let (owner, owner_name) = (role, role_name);
        let row = FoundAgain { type_id, process_type, worker_id, definition, mapping_id, owner, owner_name };
        run(spi, &PUT_LOST_TYPE, &[row])?
    } else if versions::is_own() {
        let row = NewType { process_type, worker_id, definition, mapping_id, owner: role, owner_name: role_name };
        let mut params = NewType::arrays(&[row]);
        params.push(value(known.and_then(|known| known.owner).unwrap_or(role)));
        spi.run(&PUT_TYPE, &params)?
    } else {
        run(spi, &PUT_TYPE_OF_OLDER, &[NewTypeOfOlder { process_type, worker_id, definition, mapping_id }])?
    };
    if changed > 0 {
        bump(spi)?;
    }
    Ok(changed > 0)
}

fn insert_mapping(spi: &Spi, tables: &[TableMapping]) -> Result<Option<MappingId>> {
    if tables.is_empty() {
        return Ok(None);
    }
    let next = spi.first(&NEXT_MAPPING, &[], |row| row.get("mapping_id"))?;
    let Some(mapping_id) = next else { return Ok(None) };
    for (position, table) in (0i32..).zip(tables) {
        let row = MappedTable {
            mapping_id,
            position,
            relation: Relation(table.relation),
            table_name: &table.table,
            key_columns: table.primary_key.clone(),
            attributes: Jsonb(to_json(&table.attributes)?.into()),
        };
        // One by one: their keys are arrays of different lengths.
        spi.run(&INSERT_MAPPING, &MappedTable::columns(&[row]))?;
    }
    Ok(next)
}

/// A process type that is to be removed, and its owner.
pub fn type_to_delete(spi: &Spi, name: &str) -> Result<Option<(TypeId, Owner)>> {
    let read = |row: &Row| Ok((row.get("type_id")?, row.get("owner")?));
    spi.first(of_schema(&TYPE_TO_DELETE, &TYPE_TO_DELETE_OF_OLDER), &[value(name)], read)
}

/// Keeps starts of a type and its end apart. Not a row lock: a thousand starts at once must not queue up at one row.
pub fn lock_type(id: TypeId, mode: u32) -> Result<()> {
    lock_extension_object(id as u32, TYPE_LOCK, mode)
}

/// Tells the locks of types from others of the extension.
const TYPE_LOCK: u16 = 0x5844;

/// Number of running executions of a type.
pub fn running_of_type(spi: &Spi, id: TypeId) -> Result<i64> {
    Ok(spi.first(&RUNNING_OF_TYPE, &[value(id)], |row| row.get("running"))?.unwrap_or(0))
}

pub fn delete_process_type(spi: &Spi, id: TypeId) -> Result<()> {
    spi.run(&DELETE_TYPE, &[value(id)])?;
    bump(spi)
}
