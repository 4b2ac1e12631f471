//! Workers and process types as registered.

use super::{from_json, to_json};
use crate::pg::catch::{Result, catch};
use crate::pg::param::{array, nullable, value};
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use xdb_engine::{Definition, TableMapping, Timestamp};

pub type WorkerId = i32;
pub type TypeId = i32;
pub type MappingId = i32;

/// A worker: where calls go.
#[derive(Debug)]
pub struct Worker {
    pub id: WorkerId,
    pub url: String,
    pub secret: Option<String>,
    pub headers: Vec<(String, String)>,
}

/// A process type as it is registered now.
#[derive(Debug)]
pub struct ProcessType {
    pub id: TypeId,
    pub name: String,
    pub worker: Arc<Worker>,
    pub definition: Arc<Definition>,
    pub mapping_id: Option<MappingId>,
    pub version: RowVersion,
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

/// Registrations and mappings, kept in memory by a session. A scheduler keeps it up to date with
/// [`Registry::refresh`]; a caller looks at the version of the type that it uses.
#[derive(Default)]
pub struct Registry {
    generation: i64,
    types: HashMap<TypeId, Arc<ProcessType>>,
    by_name: HashMap<String, Arc<ProcessType>>,
    mappings: HashMap<MappingId, Mapping>,
    workers: BTreeMap<WorkerId, Registered>,
}

/// What a scheduler knows of a worker besides its types.
struct Registered {
    max_concurrency: usize,
    at: Timestamp,
}

const SELECT_TYPES: &str = "SELECT t.type_id, t.process_type, t.definition::text, t.mapping_id, t.version, t.xmin::text, \
    w.worker_id, w.url, w.secret, w.headers::text \
    FROM xdb.process_type t JOIN xdb.worker w USING (worker_id)";

impl Registry {
    /// Reads everything again if a registration changed since the last time, and says whether one did.
    pub fn refresh(&mut self, spi: &Spi, generation: i64) -> Result<bool> {
        let changed = generation != self.generation;
        if changed {
            self.reload(spi)?;
            self.generation = generation;
        }
        Ok(changed)
    }

    fn reload(&mut self, spi: &Spi) -> Result<()> {
        let types = spi.rows(SELECT_TYPES, &[], read_type)?;
        self.types = types.into_iter().map(|t| (t.id, Arc::new(t))).collect();
        let workers = spi.rows("SELECT worker_id, max_concurrency, registered_at FROM xdb.worker", &[], |row| {
            let max_concurrency = row.need::<i32>(2)?.max(1) as usize;
            Ok((row.need(1)?, Registered { max_concurrency, at: row.need_time(3)? }))
        })?;
        self.workers = workers.into_iter().collect();
        Ok(())
    }

    /// All workers, with how many calls each takes at once.
    pub fn workers(&self) -> Vec<(WorkerId, usize)> {
        self.workers.iter().map(|(id, worker)| (*id, worker.max_concurrency)).collect()
    }

    /// When a worker was registered last; `None` if it is not.
    pub fn registered_at(&self, id: WorkerId) -> Option<Timestamp> {
        self.workers.get(&id).map(|worker| worker.at)
    }

    /// Grows with every change of a registration.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// A type by its id; one that was registered a moment ago is looked up.
    pub fn process_type(&mut self, spi: &Spi, id: TypeId) -> Result<Option<Arc<ProcessType>>> {
        if !self.types.contains_key(&id) {
            self.reload(spi)?;
        }
        Ok(self.types.get(&id).cloned())
    }

    /// The type of this name for a start: nobody unregisters it before this transaction ends.
    pub fn process_type_to_start(&mut self, spi: &Spi, name: &str) -> Result<Option<Arc<ProcessType>>> {
        // One that is not of this name any more is locked for nothing.
        let known = self.by_name.get(name).cloned();
        let mut locked = match known {
            Some(known) => known,
            None => match self.process_type_by_name(spi, name)? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        loop {
            lock_type(locked.id, pg_sys::AccessShareLock)?;
            // While this waited for the lock, or before, the type may have been replaced by another one of its name.
            match self.process_type_by_name(spi, name)? {
                Some(now) if now.id == locked.id => return Ok(Some(now)),
                Some(now) => locked = now,
                None => return Ok(None),
            }
        }
    }

    /// The type of this name as it is registered now, for a caller.
    pub fn process_type_by_name(&mut self, spi: &Spi, name: &str) -> Result<Option<Arc<ProcessType>>> {
        const CURRENT: &str = "SELECT t.type_id, t.version, t.xmin::text FROM xdb.process_type t \
            WHERE t.process_type = $1";
        let read = |row: &Row| Ok(RowVersion { id: row.need(1)?, version: row.need(2)?, xmin: row.need(3)? });
        let Some(current) = spi.first(CURRENT, &[value(name)], read)? else { return Ok(None) };
        if self.by_name.get(name).is_none_or(|known| known.version != current) {
            let sql = format!("{SELECT_TYPES} WHERE t.process_type = $1");
            if let Some(found) = spi.first(&sql, &[value(name)], read_type)? {
                self.by_name.insert(name.to_owned(), Arc::new(found));
            }
        }
        Ok(self.by_name.get(name).cloned())
    }

    pub fn mapping(&mut self, spi: &Spi, id: Option<MappingId>) -> Result<Mapping> {
        const SELECT: &str = "SELECT relation::oid, table_name, key_columns, attributes::text \
            FROM xdb.mapped_table WHERE mapping_id = $1 ORDER BY position";
        let Some(id) = id else { return Ok(Arc::from([])) };
        if let Some(known) = self.mappings.get(&id) {
            return Ok(known.clone());
        }
        let tables = spi.rows(SELECT, &[value(id)], |row| {
            Ok(TableMapping {
                table: row.need(2)?,
                relation: row.need::<pg_sys::Oid>(1)?.to_u32(),
                primary_key: row.need(3)?,
                attributes: from_json(&row.need::<String>(4)?)?,
            })
        })?;
        let mapping: Mapping = tables.into();
        self.mappings.insert(id, mapping.clone());
        Ok(mapping)
    }
}

fn read_type(row: &Row) -> Result<ProcessType> {
    let headers: BTreeMap<String, String> = match row.get::<String>(10) {
        Some(text) => from_json(&text)?,
        None => BTreeMap::new(),
    };
    Ok(ProcessType {
        id: row.need(1)?,
        name: row.need(2)?,
        definition: Arc::new(from_json(&row.need::<String>(3)?)?),
        mapping_id: row.get(4),
        version: RowVersion { id: row.need(1)?, version: row.need(5)?, xmin: row.need(6)? },
        worker: Arc::new(Worker {
            id: row.need(7)?,
            url: row.need(8)?,
            secret: row.get(9),
            headers: headers.into_iter().collect(),
        }),
    })
}

/// Tells every scheduler that registrations changed, when the transaction commits.
pub(super) fn bump(spi: &Spi) -> Result<()> {
    spi.run("UPDATE xdb.registry SET generation = generation + 1", &[])?;
    crate::pg::crash::point("register");
    crate::pg::wake::wake_scheduler_at_commit();
    Ok(())
}

/// Inserts or changes a worker.
pub fn put_worker(
    spi: &Spi,
    name: &str,
    url: &str,
    secret: Option<&str>,
    headers: Option<&str>,
    max_concurrency: i32,
) -> Result<()> {
    const UPSERT: &str = "INSERT INTO xdb.worker AS w (name, url, secret, headers, max_concurrency) \
        VALUES ($1, $2, $3, $4::jsonb, $5) \
        ON CONFLICT (name) DO UPDATE SET url = excluded.url, secret = excluded.secret, headers = excluded.headers, \
            max_concurrency = excluded.max_concurrency, registered_at = excluded.registered_at \
        RETURNING worker_id";
    // Callers compare the version of a type only, so a change of its worker is a change of the type.
    const TOUCH: &str = "UPDATE xdb.process_type SET version = version + 1 WHERE worker_id = $1";
    super::instance::take_into_use(spi)?;
    let params = [value(name), value(url), nullable(secret), nullable(headers), value(max_concurrency)];
    if let Some(id) = spi.first(UPSERT, &params, |row| row.need::<i32>(1))? {
        spi.run(TOUCH, &[value(id)])?;
    }
    bump(spi)
}

pub fn worker_id(spi: &Spi, name: &str) -> Result<Option<WorkerId>> {
    spi.first("SELECT worker_id FROM xdb.worker WHERE name = $1", &[value(name)], |row| row.need(1))
}

/// Process types that use a worker.
pub fn types_of_worker(spi: &Spi, name: &str) -> Result<Vec<String>> {
    const SELECT: &str = "SELECT t.process_type FROM xdb.process_type t JOIN xdb.worker w USING (worker_id) \
        WHERE w.name = $1 ORDER BY 1";
    spi.rows(SELECT, &[value(name)], |row| row.need(1))
}

pub fn delete_worker(spi: &Spi, id: WorkerId) -> Result<()> {
    // Calls may wait under this worker still, from before their type moved to another one: the scheduler moves them.
    spi.run("DELETE FROM xdb.worker WHERE worker_id = $1", &[value(id)])?;
    // SAFETY: set once, when the session began.
    crate::pg::shmem::call::forget_worker(unsafe { pg_sys::MyDatabaseId }, id);
    bump(spi)
}

/// Inserts or replaces a process type. A mapping that differs from the last one gets a new id, because running
/// executions keep theirs.
pub fn put_process_type(spi: &Spi, name: &str, worker: WorkerId, definition: &Definition) -> Result<()> {
    const LOCK: &str = "SELECT mapping_id, definition::text FROM xdb.process_type WHERE process_type = $1 FOR UPDATE";
    const UPSERT: &str = "INSERT INTO xdb.process_type AS t (process_type, worker_id, definition, mapping_id) \
        VALUES ($1, $2, $3::jsonb, $4) \
        ON CONFLICT (process_type) DO UPDATE SET worker_id = excluded.worker_id, definition = excluded.definition, \
            mapping_id = excluded.mapping_id, version = t.version + 1, registered_at = excluded.registered_at";
    let before = spi.first(LOCK, &[value(name)], |row| {
        Ok((row.get::<MappingId>(1), from_json::<Definition>(&row.need::<String>(2)?)?))
    })?;
    let mapping_id = match before {
        Some((mapping_id, old)) if old.global_attributes == definition.global_attributes => mapping_id,
        _ => insert_mapping(spi, &definition.global_attributes)?,
    };
    let params = [value(name), value(worker), value(to_json(definition)?), nullable(mapping_id)];
    spi.run(UPSERT, &params)?;
    bump(spi)
}

fn insert_mapping(spi: &Spi, tables: &[TableMapping]) -> Result<Option<MappingId>> {
    const INSERT: &str = "INSERT INTO xdb.mapped_table \
        (mapping_id, position, relation, table_name, key_columns, attributes) \
        VALUES ($1, $2, $3, $4, $5, $6::jsonb)";
    if tables.is_empty() {
        return Ok(None);
    }
    let next = "SELECT pg_catalog.nextval('xdb.mapping_id_seq')::int";
    let Some(id) = spi.first(next, &[], |row| row.need::<MappingId>(1))? else { return Ok(None) };
    for (position, table) in (0i32..).zip(tables) {
        let params = [
            value(id),
            value(position),
            value(pg_sys::Oid::from(table.relation)),
            value(table.table.as_str()),
            array(table.primary_key.iter().map(String::as_str)),
            value(to_json(&table.attributes)?),
        ];
        spi.run(INSERT, &params)?;
    }
    Ok(Some(id))
}

pub fn type_id(spi: &Spi, name: &str) -> Result<Option<TypeId>> {
    spi.first("SELECT type_id FROM xdb.process_type WHERE process_type = $1 FOR UPDATE", &[value(name)], |row| {
        row.need(1)
    })
}

/// Keeps starts of a type and its end apart. Not a row lock: a thousand starts at once must not queue up at one row.
pub fn lock_type(id: TypeId, mode: u32) -> Result<()> {
    let object = id as u32;
    // SAFETY: a raw call without destructors; the lock goes with the transaction.
    unsafe {
        catch(|| {
            raw::LockDatabaseObject(pg_sys::ExtensionRelationId, pg_sys::Oid::from(object), TYPE_LOCK, mode as i32)
        })
    }
}

/// Objects of an extension have no sub-objects: a number in their place tells these locks from all others.
const TYPE_LOCK: u16 = 0x5844;

mod raw {
    use pgrx::pg_sys;
    unsafe extern "C-unwind" {
        pub fn LockDatabaseObject(class: pg_sys::Oid, object: pg_sys::Oid, sub_object: u16, mode: i32);
    }
}

/// Number of running executions of a type.
pub fn running_of_type(spi: &Spi, id: TypeId) -> Result<i64> {
    const SELECT: &str =
        "SELECT pg_catalog.count(*) FROM xdb.process_execution WHERE type_id = $1 AND status = 'RUNNING'";
    Ok(spi.first(SELECT, &[value(id)], |row| row.need(1))?.unwrap_or(0))
}

pub fn delete_process_type(spi: &Spi, id: TypeId) -> Result<()> {
    spi.run("DELETE FROM xdb.process_type WHERE type_id = $1", &[value(id)])?;
    bump(spi)
}
