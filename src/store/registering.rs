//! Registers and unregisters workers and process types: reads and writes of the tables `worker`, `process_type` and
//! `mapped_table`. `registry.rs` keeps registrations in memory.

use super::instance::{bump, take_into_use};
use super::registry::{MappedTable, MappingId, TypeId, TypeRow, WITHOUT_TYPE, WorkerId, WorkerRow};
use super::table::{Record, insert, insert_but, insert_row, insert_with_identity, record, run, run_but, statements};
use super::worker_secret::{self, Secret};
use super::{from_json, pauses, to_json};
use crate::pg::catch::Result;
use crate::pg::param::{Jsonb, Regclass};
use crate::pg::spi::Spi;
use crate::pg::wake;
use pgrx::pg_sys;
use xdb_engine::{Definition, PauseMode, TableMapping, Timestamp};

record! {
    /// A worker to register. If it is registered already, its owner stays.
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

    /// A process type to register. If it is registered already, its owner stays. If its row was lost, it gets its old
    /// id back, which its executions refer to.
    struct NewType<'a> of TypeRow<'a> {
        process_type: &'a str,
        worker_id: Option<WorkerId>,
        definition: Jsonb<'a>,
        mapping_id: Option<MappingId>,
        owner: pg_sys::Oid,
        owner_name: &'a str,
        type_id: TypeId,
    }

    /// A registered process type. Its row is locked until this transaction ends.
    pub struct KnownType {
        owner: pg_sys::Oid,
        mapping_id: Option<MappingId>,
        /// As JSON.
        global_attributes: Option<String>,
    }
}

statements! {
    PUT_WORKER = format!("{} ON CONFLICT (name) DO UPDATE SET url = excluded.url, secrets = excluded.secrets, role = excluded.role, \
            role_name = excluded.role_name, headers = excluded.headers, max_concurrency = excluded.max_concurrency, \
            registered_at = excluded.registered_at \
        WHERE worker.owner = $10 RETURNING worker_id", insert::<NewWorker>())
        => fn insert_or_update(worker: [NewWorker], owner: pg_sys::Oid) -> Option<WorkerId>;
    PUT_SECRETS = "UPDATE xdb.worker SET secrets = $2, registered_at = pg_catalog.clock_timestamp() WHERE worker_id = $1"
        => fn count_secrets(worker: WorkerId, secrets: i16) -> ();
    // Sessions compare only the version of a type. So a change of its worker must change the type.
    TOUCH_TYPES = "UPDATE xdb.process_type SET version = version + 1 WHERE worker_id = $1"
        => fn touch_types(worker: WorkerId) -> ();
    /// The worker to change. Its row is locked until this transaction ends. `None` if there is no such worker.
    WORKER_TO_PUT = worker_of_name("NO KEY UPDATE") => pub fn worker_to_put(name: &str) -> Option<OwnedWorker>;
    /// The worker of a process type. No session can remove it before this transaction ends.
    WORKER_TO_USE = worker_of_name("KEY SHARE") => pub fn worker_to_use(name: &str) -> Option<OwnedWorker>;
    /// The worker to remove. No process type can begin to use it. Transactions that were about to use it have ended.
    WORKER_TO_DELETE = worker_of_name("UPDATE") => pub fn worker_to_delete(name: &str) -> Option<OwnedWorker>;
    SHOWN_WORKERS = "SELECT w.worker_id, w.name, w.owner, w.url IS NULL AS pulls, w.max_concurrency FROM xdb.worker w"
        => pub fn shown_workers() -> Vec<ShownWorker>;
    SHOWN_TYPES = format!("SELECT t.type_id, t.process_type, w.name AS worker, t.owner, {} \
        FROM xdb.process_type t LEFT JOIN xdb.worker w USING (worker_id)", pauses::COLUMNS)
        => pub fn shown_types() -> Vec<ShownType>;
    TYPES_OF_WORKER = "SELECT t.process_type FROM xdb.process_type t JOIN xdb.worker w USING (worker_id) \
        WHERE w.name = $1 ORDER BY 1" => fn types_of(name: &str) -> Vec<String>;
    // Calls may still wait for this worker, from before their type moved to another one. The scheduler moves them.
    DELETE_WORKER = "DELETE FROM xdb.worker WHERE worker_id = $1" => fn delete_row(worker: WorkerId) -> ();
    /// The id of a type that is not registered although its executions run. A restore can leave such a type. The
    /// executions refer to the type by this id.
    LOST_TYPE = format!("SELECT p.type_id FROM xdb.process_execution p \
        WHERE p.process_type = $1 AND {WITHOUT_TYPE} LIMIT 1") => pub fn lost_type(name: &str) -> Option<TypeId>;
    TYPE_TO_PUT = "SELECT owner, mapping_id, (definition -> 'globalAttributes')::text AS global_attributes \
        FROM xdb.process_type WHERE process_type = $1 FOR UPDATE"
        => pub fn type_to_put_in(name: &str) -> Option<KnownType>;
    PUT_TYPE = format!("{} WHERE process_type.owner = excluded.owner", put_type_as(&insert_but::<NewType>(&["type_id"])));
    PUT_LOST_TYPE = put_type_as(&insert_with_identity::<NewType>());
    NEXT_MAPPING = "SELECT pg_catalog.nextval('xdb.mapping_id_seq')::int AS mapping_id"
        => fn next_mapping() -> Option<MappingId>;
    INSERT_MAPPING = insert_row::<MappedTable>();
    /// The process type to remove, and its owner.
    TYPE_TO_DELETE = "SELECT type_id, owner FROM xdb.process_type WHERE process_type = $1 FOR UPDATE"
        => pub fn type_to_delete(name: &str) -> Option<(TypeId, pg_sys::Oid)>;
    /// The number of running executions of a type.
    RUNNING_OF_TYPE = "SELECT pg_catalog.count(*) AS running FROM xdb.process_execution \
        WHERE type_id = $1 AND status = 'RUNNING'" => pub fn running_of_type(id: TypeId) -> i64;
    DELETE_TYPE = "DELETE FROM xdb.process_type WHERE type_id = $1" => fn delete_type(id: TypeId) -> ();
}

fn worker_of_name(lock: &str) -> String {
    format!("SELECT worker_id, owner FROM xdb.worker WHERE name = $1 FOR {lock}")
}

fn put_type_as(insert: &str) -> String {
    format!(
        "{insert} ON CONFLICT (process_type) DO UPDATE SET worker_id = excluded.worker_id, \
            definition = excluded.definition, mapping_id = excluded.mapping_id, version = process_type.version + 1, \
            registered_at = excluded.registered_at"
    )
}

/// Inserts a worker, or changes the one of its name if it has this owner. False if it has another owner: another
/// session may have registered it since the caller read the owner.
pub fn put_worker(spi: &Spi, worker: NewWorker<'_>, secret: Option<&Secret>, owner: pg_sys::Oid) -> Result<bool> {
    take_into_use(spi)?;
    let Some(id) = insert_or_update(spi, &[worker], owner)? else { return Ok(false) };
    worker_secret::put(spi, id, secret.map_or(&[], std::slice::from_ref))?;
    touch_types(spi, id)?;
    bump(spi)?;
    Ok(true)
}

/// Signs the worker's calls with these secrets from now on.
pub fn put_secrets(spi: &Spi, worker: WorkerId, secrets: &[Secret]) -> Result<()> {
    worker_secret::put(spi, worker, secrets)?;
    count_secrets(spi, worker, secrets.len() as i16)?;
    touch_types(spi, worker)?;
    bump(spi)
}

/// A worker and its owner.
pub type OwnedWorker = (WorkerId, pg_sys::Oid);

record! {
    /// A worker, for people.
    pub struct ShownWorker {
        worker_id: WorkerId,
        name: String,
        owner: pg_sys::Oid,
        /// Whether it is a pull worker.
        pulls: bool,
        max_concurrency: i32,
    }

    /// The parts of a process type that all roles may see.
    pub struct ShownType {
        type_id: TypeId,
        process_type: String,
        worker: Option<String>,
        owner: pg_sys::Oid,
        pause_mode: Option<PauseMode>,
        paused_until: Option<Timestamp>,
        pause_reason: Option<String>,
    }
}

/// Process types that use a worker, in the latest state. A foreign key would not find types that the transaction's
/// snapshot does not show.
pub fn types_of_worker(spi: &Spi, name: &str) -> Result<Vec<String>> {
    spi.with_latest_snapshot(|spi| types_of(spi, name))
}

/// Removes a worker that no process type uses, with its secrets.
pub fn delete_worker(spi: &Spi, id: WorkerId) -> Result<()> {
    delete_row(spi, id)?;
    worker_secret::delete(spi, id)?;
    wake::forget_worker_at_commit(id);
    bump(spi)
}

/// The parameters of a registration of a process type.
pub struct TypeToPut<'a> {
    pub name: &'a str,
    pub worker: Option<WorkerId>,
    pub definition: &'a Definition,
    /// The role that registers the type, and the role's name.
    pub role: pg_sys::Oid,
    pub role_name: &'a str,
    /// The id of a type with this name whose row was lost.
    pub lost: Option<TypeId>,
}

/// Inserts a process type, or replaces the known one. False if another session has registered the type since the caller
/// read it. A changed mapping gets a new id, because running executions keep their mapping.
pub fn put_process_type(spi: &Spi, put: &TypeToPut<'_>, known: Option<&KnownType>) -> Result<bool> {
    let TypeToPut { name: process_type, worker: worker_id, definition, role, role_name, lost } = *put;
    if worker_id.is_none() {
        // With a worker, the registration of the worker has done this.
        take_into_use(spi)?;
    }
    let is_mapped = |known: &&KnownType| -> Result<bool> {
        let tables: Vec<TableMapping> = known.global_attributes.as_deref().map_or(Ok(Vec::new()), from_json)?;
        Ok(tables == definition.global_attributes)
    };
    let mapping_id = match known {
        Some(known) if is_mapped(&known)? => known.mapping_id,
        _ => insert_mapping(spi, &definition.global_attributes)?,
    };
    let definition = Jsonb(to_json(definition)?.into());
    let owner = known.map_or(role, |known| known.owner);
    let (type_id, owner_name) = (lost.unwrap_or_default(), role_name);
    let row = NewType { process_type, worker_id, definition, mapping_id, owner, owner_name, type_id };
    let changed = match lost {
        Some(_) => run(spi, &PUT_LOST_TYPE, &[row])?,
        None => run_but(spi, &PUT_TYPE, &[row], &["type_id"])?,
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
    let next = next_mapping(spi)?;
    let Some(mapping_id) = next else { return Ok(None) };
    for (position, table) in (0i32..).zip(tables) {
        let row = MappedTable {
            mapping_id,
            position,
            relation: Regclass(table.relation),
            table_name: &table.table,
            key_columns: table.primary_key.clone(),
            attributes: Jsonb(to_json(&table.attributes)?.into()),
        };
        // One by one, because their keys are arrays of different lengths.
        spi.run(&INSERT_MAPPING, &MappedTable::columns(&[row], &[]))?;
    }
    Ok(next)
}

/// Removes a process type without running executions. The caller has locked it.
pub fn delete_process_type(spi: &Spi, id: TypeId) -> Result<()> {
    delete_type(spi, id)?;
    bump(spi)
}
