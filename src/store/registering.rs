//! Registering workers and process types, and their ends: what is written to the tables `worker`, `process_type` and `mapped_table`,
//! and what is looked for before. What is kept of it in memory is in `registry.rs`.

use super::instance::{bump, take_into_use};
use super::registry::{MappedTable, MappingId, TypeId, TypeRow, WITHOUT_TYPE, WorkerId, WorkerRow};
use super::table::{Record, insert, insert_but, insert_row, insert_with_identity, record, run, run_but, statements};
use super::worker_secret::{self, Secret};
use super::{from_json, pauses, to_json};
use crate::pg::catch::Result;
use crate::pg::param::{Jsonb, Relation};
use crate::pg::spi::Spi;
use crate::pg::wake;
use pgrx::pg_sys;
use xdb_engine::{Definition, PauseMode, TableMapping, Timestamp};

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

    /// A process type that is registered, or registered again: then it keeps its owner. One that was lost gets the number back that its
    /// executions know it by.
    struct NewType<'a> of TypeRow<'a> {
        process_type: &'a str,
        worker_id: Option<WorkerId>,
        definition: Jsonb<'a>,
        mapping_id: Option<MappingId>,
        owner: pg_sys::Oid,
        owner_name: &'a str,
        type_id: TypeId,
    }

    /// A process type that is there, and stays as it is until this transaction ends.
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
    // Callers compare the version of a type only, so a change of its worker is a change of the type.
    TOUCH_TYPES = "UPDATE xdb.process_type SET version = version + 1 WHERE worker_id = $1"
        => fn touch_types(worker: WorkerId) -> ();
    /// A worker that is to be changed, which stays as it is until this transaction ends. `None` if there is no such worker.
    WORKER_TO_PUT = worker_of_name("NO KEY UPDATE") => pub fn worker_to_put(name: &str) -> Option<OwnedWorker>;
    /// A worker for a process type: nobody removes it before this transaction ends.
    WORKER_TO_USE = worker_of_name("KEY SHARE") => pub fn worker_to_use(name: &str) -> Option<OwnedWorker>;
    /// A worker that is to be removed: no process type begins to use it, and those that were about to have done so.
    WORKER_TO_DELETE = worker_of_name("UPDATE") => pub fn worker_to_delete(name: &str) -> Option<OwnedWorker>;
    SHOWN_WORKERS = "SELECT w.worker_id, w.name, w.owner, w.url IS NULL AS pulls, w.max_concurrency FROM xdb.worker w"
        => pub fn shown_workers() -> Vec<ShownWorker>;
    SHOWN_TYPES = format!("SELECT t.type_id, t.process_type, w.name AS worker, t.owner, {} \
        FROM xdb.process_type t LEFT JOIN xdb.worker w USING (worker_id)", pauses::COLUMNS)
        => pub fn shown_types() -> Vec<ShownType>;
    TYPES_OF_WORKER = "SELECT t.process_type FROM xdb.process_type t JOIN xdb.worker w USING (worker_id) \
        WHERE w.name = $1 ORDER BY 1" => fn types_of(name: &str) -> Vec<String>;
    // Calls may wait under this worker still, from before their type moved to another one: the scheduler moves them.
    DELETE_WORKER = "DELETE FROM xdb.worker WHERE worker_id = $1" => fn delete_row(worker: WorkerId) -> ();
    /// The number of a type that is not registered while executions of it run, as a restore may leave them: they find it by its number.
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
    /// A process type that is to be removed, and its owner.
    TYPE_TO_DELETE = "SELECT type_id, owner FROM xdb.process_type WHERE process_type = $1 FOR UPDATE"
        => pub fn type_to_delete(name: &str) -> Option<(TypeId, pg_sys::Oid)>;
    /// Number of running executions of a type.
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

/// Inserts a worker, or changes the one of its name if that has this owner. Says whether it did: somebody may have registered
/// one since its owner was looked for.
pub fn put_worker(spi: &Spi, worker: NewWorker<'_>, secret: Option<&Secret>, owner: pg_sys::Oid) -> Result<bool> {
    take_into_use(spi)?;
    let Some(id) = insert_or_update(spi, &[worker], owner)? else { return Ok(false) };
    worker_secret::put(spi, id, secret.map_or(&[], std::slice::from_ref))?;
    touch_types(spi, id)?;
    bump(spi)?;
    Ok(true)
}

/// Has a worker's calls signed with these secrets from now on.
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
        /// It fetches its calls itself.
        pulls: bool,
        max_concurrency: i32,
    }

    /// A process type as everybody may know it.
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

/// Process types that use a worker, as they are now: no foreign key finds one that a transaction's snapshot does not have.
pub fn types_of_worker(spi: &Spi, name: &str) -> Result<Vec<String>> {
    spi.with_latest_snapshot(|spi| types_of(spi, name))
}

pub fn delete_worker(spi: &Spi, id: WorkerId) -> Result<()> {
    delete_row(spi, id)?;
    worker_secret::delete(spi, id)?;
    wake::forget_worker_at_commit(id);
    bump(spi)
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

/// Inserts a process type, or replaces the one that is known. Says whether it did: somebody may have registered one since that
/// was looked for. A mapping that differs from the last one gets a new id, because running executions keep theirs.
pub fn put_process_type(spi: &Spi, put: &TypeToPut<'_>, known: Option<&KnownType>) -> Result<bool> {
    let TypeToPut { name: process_type, worker: worker_id, definition, role, role_name, lost } = *put;
    if worker_id.is_none() {
        // Else the registration of the worker has done so.
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
            relation: Relation(table.relation),
            table_name: &table.table,
            key_columns: table.primary_key.clone(),
            attributes: Jsonb(to_json(&table.attributes)?.into()),
        };
        // One by one: their keys are arrays of different lengths.
        spi.run(&INSERT_MAPPING, &MappedTable::columns(&[row], &[]))?;
    }
    Ok(next)
}

pub fn delete_process_type(spi: &Spi, id: TypeId) -> Result<()> {
    delete_type(spi, id)?;
    bump(spi)
}
