//! Local attributes: the table `local_attribute`.
//!
//! Limitations: an execution may have at most [`guc::MAX_LOCAL_ATTRIBUTES`], with as many bytes as a request: see
//! [`Size`]. Attributes that were stored before that setting was lowered stay. Sessions can read them one by one and
//! make them smaller, but no call gets them.

use super::table::{insert, statements, table};
use crate::error;
use crate::guc;
use crate::pg::catch::{PgError, Result};
use crate::pg::json::StoredJsonb;
use crate::pg::param::{Jsonb, array};
use crate::pg::spi::{Row, Spi, Statement};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use xdb_calls::Used;
use xdb_engine::{Event, ExecutionId, Json};
use xdb_sched::bytes::{ByteBudget, LARGE};

table! {
    pub struct LocalAttribute<'a> in "local_attribute" {
        key { execution_id: ExecutionId, key: &'a str }
        compared { value: Jsonb<'a> }
    }
}

statements! {
    WRITE = format!("{} ON CONFLICT (execution_id, key) DO UPDATE SET value = excluded.value", insert::<LocalAttribute>());
    OF_EXECUTIONS = "SELECT a.execution_id, a.key, a.value FROM pg_catalog.unnest($1::uuid[]) AS i (id) \
        JOIN xdb.local_attribute a ON a.execution_id = i.id";
    VERSIONED = "SELECT a.execution_id, a.key, a.value, pg_catalog.concat_ws(':', a.xmin, a.ctid) AS version \
        FROM pg_catalog.unnest($1::uuid[]) AS i (id) JOIN xdb.local_attribute a ON a.execution_id = i.id";
    VERSIONS = "SELECT a.execution_id, a.key, pg_catalog.concat_ws(':', a.xmin, a.ctid) AS version \
        FROM xdb.local_attribute a WHERE a.execution_id = ANY ($1)"
        => fn all_versions(ids: &[ExecutionId]) -> Vec<(ExecutionId, String, String)>;
    /// The number and bytes of an execution's attributes, and of those with certain keys.
    SIZES = "SELECT pg_catalog.count(*) AS attributes, COALESCE(pg_catalog.sum(l.bytes), 0)::int8 AS bytes, \
            pg_catalog.count(*) FILTER (WHERE l.replaced) AS replaced, \
            COALESCE(pg_catalog.sum(l.bytes) FILTER (WHERE l.replaced), 0)::int8 AS replaced_bytes \
        FROM (SELECT pg_catalog.octet_length(a.key) + pg_catalog.octet_length(a.value::text) AS bytes, \
                a.key = ANY ($2) AS replaced \
            FROM xdb.local_attribute a WHERE a.execution_id = $1) l"
        => fn sizes(id: ExecutionId, keys: &[&str]) -> Option<(i64, i64, i64, i64)>;
}

/// The number of attributes, and the bytes of their keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    attributes: usize,
    bytes: usize,
}

impl Size {
    /// The limit for an execution.
    fn most() -> Self {
        Self { attributes: guc::MAX_LOCAL_ATTRIBUTES, bytes: guc::max_request_bytes() }
    }

    pub fn of(attributes: &BTreeMap<String, Json>) -> Self {
        let mut size = Self::default();
        for (key, value) in attributes {
            size.add(key, value.as_str());
        }
        size
    }

    /// Adds an attribute. Returns its bytes.
    fn add(&mut self, key: &str, value: &str) -> usize {
        let bytes = key.len() + value.len();
        self.attributes += 1;
        self.bytes += bytes;
        bytes
    }

    /// An error if the size is over the limit of an execution.
    pub fn check(self) -> Result<()> {
        if self.is_allowed() { Ok(()) } else { Err(too_large(self)) }
    }

    fn is_allowed(self) -> bool {
        let most = Self::most();
        self.attributes <= most.attributes && self.bytes <= most.bytes
    }
}

/// The error for an execution with too many local attributes.
pub fn too_large(size: Size) -> PgError {
    error::local_attributes_too_large(size, Size::most())
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.attributes, self.bytes)
    }
}

/// Why these events can't be applied: see [`refusal`].
pub fn refusal_of(spi: &Spi, id: ExecutionId, known: Option<Size>, events: &[Event]) -> Result<Option<PgError>> {
    for event in events {
        if let Event::LocalAttributesWritten { attributes } = event
            && let Some(why) = refusal(spi, id, known, attributes)?
        {
            return Ok(Some(why));
        }
    }
    Ok(None)
}

/// Why these attributes can't be written: the execution would be over the limit, and larger than it is now. `known` is
/// the execution's size a moment ago, an upper bound. If `known` and the new values fit together, no statement runs.
/// Without `known`, the size is read.
pub fn refusal(
    spi: &Spi,
    id: ExecutionId,
    known: Option<Size>,
    written: &BTreeMap<String, Json>,
) -> Result<Option<PgError>> {
    let new = Size::of(written);
    let together =
        known.map(|known| Size { attributes: known.attributes + new.attributes, bytes: known.bytes + new.bytes });
    if written.is_empty() || together.is_some_and(Size::is_allowed) {
        return Ok(None);
    }
    let keys: Vec<_> = written.keys().map(String::as_str).collect();
    let Some((attributes, bytes, replaced, replaced_bytes)) = sizes(spi, id, &keys)? else { return Ok(None) };
    let before = Size { attributes: attributes as usize, bytes: bytes as usize };
    let after = Size {
        attributes: (attributes - replaced) as usize + new.attributes,
        bytes: (bytes - replaced_bytes) as usize + new.bytes,
    };
    let most = Size::most();
    let grows = after.attributes > before.attributes.max(most.attributes) || after.bytes > before.bytes.max(most.bytes);
    Ok((grows && !after.is_allowed()).then(|| too_large(after)))
}

/// The local attributes read from several executions.
pub struct LocalAttributes<V> {
    read: HashMap<ExecutionId, LoadedLocals<BTreeMap<String, V>>>,
    nothing: BTreeMap<String, V>,
}

/// What was read from one execution.
pub enum LoadedLocals<T> {
    All(Size, T),
    /// The execution is over the limit.
    TooLarge(Size),
    /// Left out, because all executions together have too many bytes for one transaction.
    LeftOut,
}

impl<T> LoadedLocals<T> {
    /// What a call loads. `left_out`: what becomes of the call if the execution was left out.
    pub fn for_call<L>(self, left_out: L) -> Used<(Size, T), L> {
        match self {
            Self::All(size, all) => Used::Done((size, all)),
            Self::TooLarge(size) => Used::Refused(xdb_calls::too_large(&too_large(size).message)),
            Self::LeftOut => Used::Later(left_out),
        }
    }

    pub fn map<U>(self, to: impl FnOnce(T) -> U) -> LoadedLocals<U> {
        match self {
            Self::All(size, all) => LoadedLocals::All(size, to(all)),
            Self::TooLarge(size) => LoadedLocals::TooLarge(size),
            Self::LeftOut => LoadedLocals::LeftOut,
        }
    }
}

impl<V> LocalAttributes<V> {
    /// The attributes of an execution.
    pub fn of(&self, id: ExecutionId) -> LoadedLocals<&BTreeMap<String, V>> {
        match self.read.get(&id) {
            Some(LoadedLocals::All(size, all)) => LoadedLocals::All(*size, all),
            Some(LoadedLocals::TooLarge(size)) => LoadedLocals::TooLarge(*size),
            Some(LoadedLocals::LeftOut) => LoadedLocals::LeftOut,
            None => LoadedLocals::All(Size::default(), &self.nothing),
        }
    }
}

/// A local attribute with the version of its row.
#[derive(Clone, Debug)]
pub struct Versioned {
    pub value: String,
    pub version: String,
}

/// The local attributes of these executions, by key, as JSON text. Executions beyond the budget are left out, unless
/// they have few bytes.
pub fn local_attributes(spi: &Spi, ids: &[ExecutionId], budget: ByteBudget) -> Result<LocalAttributes<String>> {
    AttributeReader::within(budget).read(spi, &OF_EXECUTIONS, ids, |_, value| Ok(value))
}

/// Like [`local_attributes`], with versions. One statement reads both.
pub fn with_versions(spi: &Spi, ids: &[ExecutionId], budget: ByteBudget) -> Result<LocalAttributes<Versioned>> {
    AttributeReader::within(budget)
        .read(spi, &VERSIONED, ids, |row, value| Ok(Versioned { value, version: row.get("version")? }))
}

/// Only the versions, by key.
pub fn versions(spi: &Spi, ids: &[ExecutionId]) -> Result<HashMap<ExecutionId, BTreeMap<String, String>>> {
    let mut versions: HashMap<ExecutionId, BTreeMap<String, String>> = HashMap::new();
    if ids.is_empty() {
        return Ok(versions);
    }
    for (id, key, version) in all_versions(spi, ids)? {
        versions.entry(id).or_default().insert(key, version);
    }
    Ok(versions)
}

/// The rows that a statement reads beyond those of the largest execution. A row is small until its value is read: large
/// values are stored outside of the row.
const ROWS: usize = 10_000;

/// Reads values one by one. Stops reading the values of an execution that has too many bytes.
struct AttributeReader<V> {
    budget: ByteBudget,
    /// The execution of the current row. The rows of one execution come together, in the order of the ids.
    current: Option<ExecutionId>,
    /// The budget is spent: the current execution is left out if it is large.
    is_full: bool,
    read: HashMap<ExecutionId, LoadedLocals<BTreeMap<String, V>>>,
}

impl<V> AttributeReader<V> {
    fn within(budget: ByteBudget) -> Self {
        Self { budget, current: None, is_full: false, read: HashMap::new() }
    }

    fn read(
        mut self,
        spi: &Spi,
        statement: &'static Statement,
        ids: &[ExecutionId],
        value: impl Fn(&Row, String) -> Result<V>,
    ) -> Result<LocalAttributes<V>> {
        if !ids.is_empty() {
            let most = Size::most().attributes + ROWS;
            let rows = spi.rows_up_to(most, statement, &[array(ids)], |row| self.row(row, &value))?.len();
            if rows == most {
                self.ends_in_the_middle(ids);
            }
        }
        Ok(LocalAttributes { read: self.read, nothing: BTreeMap::new() })
    }

    fn row(&mut self, row: &Row, value: impl Fn(&Row, String) -> Result<V>) -> Result<()> {
        let id = row.get::<ExecutionId>("execution_id")?;
        if self.current != Some(id) {
            if self.read.contains_key(&id) {
                return Err(PgError::internal("the rows of an execution do not come together"));
            }
            self.current = Some(id);
            self.is_full = self.budget.is_spent();
            self.read.insert(id, LoadedLocals::All(Size::default(), BTreeMap::new()));
        }
        let Some(found) = self.read.get_mut(&id) else { return Ok(()) };
        let LoadedLocals::All(size, all) = found else { return Ok(()) };
        let stored = row.get::<StoredJsonb>("value")?;
        if self.is_full && size.bytes + stored.size() > LARGE {
            *found = LoadedLocals::LeftOut;
            return Ok(());
        }
        let (key, text) = (row.get::<String>("key")?, stored.text()?);
        self.budget.spend(size.add(&key, &text));
        if size.is_allowed() {
            all.insert(key, value(row, text)?);
        } else {
            *found = LoadedLocals::TooLarge(*size);
        }
        Ok(())
    }

    /// The statement reached its limit of rows, so rows may be missing. The last execution and those after it are left
    /// out, unless one is known to be too large.
    fn ends_in_the_middle(&mut self, ids: &[ExecutionId]) {
        let from = ids.iter().position(|id| Some(*id) == self.current).unwrap_or(0);
        for id in &ids[from..] {
            if !matches!(self.read.get(id), Some(LoadedLocals::TooLarge(_))) {
                self.read.insert(*id, LoadedLocals::LeftOut);
            }
        }
    }
}

/// The wanted attributes of one execution, in the active snapshot. Also works for an execution over the limit.
pub fn of_one(spi: &Spi, id: ExecutionId, wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<String, Json>> {
    let mut all = BTreeMap::new();
    spi.rows(&OF_EXECUTIONS, &[array([id])], |row| {
        let key: String = row.get("key")?;
        if wanted(&key) {
            all.insert(key, Json::from_trusted(row.get::<StoredJsonb>("value")?.text()?));
        }
        Ok(())
    })?;
    Ok(all)
}
