//! The application's tables: reads and writes global attributes as columns.
//!
//! Every function here runs SQL on the application's tables, and may so run the application's code. The caller has
//! switched to the right role (see `pg::identity`), and decides what an error means. Identifiers come from the catalog
//! and are quoted. Values are parameters.
//!
//! Limitations: a table that was renamed is found by its oid. A column that was renamed is not found.

use super::catalog::{self, TableDescription, quote};
use super::loaded::Meta;
use crate::error;
use crate::guc;
use crate::pg::catch::{
    INTERNAL_ERROR, NO_DATA, PgError, Result, SERIALIZATION_FAILURE, UNDEFINED_TABLE, UNIQUE_VIOLATION, sqlstate,
};
use crate::pg::memory;
use crate::pg::param::{Param, Regclass, value};
use crate::pg::spi::Spi;
use crate::pg::subxact::now_in_table;
use crate::pg::types::Type;
use pgrx::pg_sys;
use std::collections::{BTreeMap, HashMap};
use xdb_engine::{Json, Loading, LockType, TableMapping};
use xdb_protocol::ConflictMode;

const INVALID_TEXT: i32 = sqlstate(b"22P02");
const SYNTAX_ERROR: i32 = sqlstate(b"42601");

/// The names and types of a table. Valid for one transaction, under a lock on the table.
#[derive(Debug)]
struct ResolvedTable {
    found: TableDescription,
    /// The index of the key, and its columns in the order of the mapping. None if the table has no such unique key (any
    /// more).
    key: Option<(pg_sys::Oid, Vec<KeyColumn>)>,
}

/// A column of the key, as SQL.
#[derive(Debug)]
struct KeyColumn {
    /// The quoted name.
    column: String,
    /// The column of `t`, cast to its base type: the operator may not accept a domain.
    operand: String,
    operator: String,
    /// The type of the key's value, without a length. A cast must not cut a key that is too long to the key of another
    /// row.
    cast_to: String,
}

impl KeyColumn {
    fn new(column: &str, of_type: Type, operator: String) -> Self {
        let base = of_type.base();
        let column = quote(column);
        let cast_to = if base.rounds() { base.name() } else { base.without_modifier().name() };
        let operand = match base.oid == of_type.oid {
            true => format!("t.{column}"),
            false => format!("t.{column}::{}", base.without_modifier().name()),
        };
        Self { column, operand, operator, cast_to }
    }

    /// The value of this column, which is the parameter with this number.
    fn value(&self, parameter: usize) -> String {
        format!("${parameter}::pg_catalog.text::{}", self.cast_to)
    }
}

/// The SQLSTATE for a value of a column that is GENERATED ALWAYS.
const GENERATED_ALWAYS: i32 = sqlstate(b"428C9");

/// The row lock of a lock type. `Exclusive` takes the lock of an `UPDATE` that changes no key. So a transaction that
/// inserts a foreign key to the row does not wait for it.
fn clause(lock: LockType) -> &'static str {
    match lock {
        LockType::NoLocking => "",
        LockType::Share => " FOR SHARE",
        LockType::Exclusive => " FOR NO KEY UPDATE",
    }
}

/// The rows that a loading policy covers, in the order of [`rows`].
pub fn covered<'a>(meta: &'a Meta, loading: &Loading) -> impl Iterator<Item = (&'a TableMapping, &'a [String])> {
    rows(meta).filter(|(table, _)| table.attributes.keys().any(|name| loading.wants(name)))
}

/// The rows of a process, in the order in which all transactions lock them. No table is mapped twice.
fn rows(meta: &Meta) -> impl Iterator<Item = (&TableMapping, &[String])> {
    let mut rows: Vec<_> = meta.mapping.iter().zip(meta.keys.iter()).map(|(table, key)| (table, &key[..])).collect();
    rows.sort_by_key(|(table, _)| table.relation);
    rows.into_iter()
}

/// How many times a start looks for a row. Between two tries, another transaction may insert or delete the row.
const TRIES: usize = 4;

/// The tables that a transaction has looked up, by oid and key columns.
#[derive(Default)]
pub struct Tables {
    known: HashMap<u32, HashMap<Vec<String>, Option<ResolvedTable>>>,
}

/// Makes Postgres check deferrable constraints at the end of each statement, as the owner. So the result does not
/// depend on the rest of the transaction, and no check runs later as the engine. Deferring them to the end of the step
/// is impossible: Postgres refuses deferred triggers in a security-restricted operation.
pub fn defer_nothing(spi: &Spi) -> Result<()> {
    spi.utility("SET CONSTRAINTS ALL IMMEDIATE")
}

impl Tables {
    /// Reads the table's names and types from the catalog. Runs as the extension's owner. The caller holds a lock on
    /// the table, unless it needs only the types of the key.
    pub fn look_up(&mut self, spi: &Spi, mapping: &TableMapping) -> Result<()> {
        let known = self.known.entry(mapping.relation).or_default();
        if known.contains_key(&mapping.primary_key) {
            return Ok(());
        }
        let table = match catalog::describe(spi, mapping.relation)? {
            None => None,
            Some(found) => {
                let unique = catalog::unique_key(spi, mapping.relation, &mapping.primary_key)?;
                let key = unique.map(|unique| -> Result<_> {
                    let columns = mapping.primary_key.iter().zip(unique.operators).map(|(column, operator)| {
                        let of_type = found.columns.get(column).copied();
                        let of_type = of_type.ok_or_else(|| PgError::internal("an index of unknown columns"))?;
                        Ok(KeyColumn::new(column, of_type, operator))
                    });
                    Ok((unique.index, columns.collect::<Result<_>>()?))
                });
                Some(ResolvedTable { key: key.transpose()?, found })
            }
        };
        known.insert(mapping.primary_key.clone(), table);
        Ok(())
    }

    /// The table. Records it as the one in use from now on.
    fn enter(&self, mapping: &TableMapping) -> Result<&ResolvedTable> {
        now_in_table(mapping.relation);
        let known = self.known.get(&mapping.relation).and_then(|known| known.get(&mapping.primary_key));
        known.and_then(Option::as_ref).ok_or_else(|| {
            let what = format!("table {} no longer exists", mapping.table);
            PgError::new(UNDEFINED_TABLE, what).of_table(&mapping.table)
        })
    }

    /// The attributes that `loading` covers, as the text of a JSON object. With a lock, the rows stay locked until the
    /// transaction ends. If a key has no row, all its attributes are null. Too many bytes are an error.
    pub fn load(&self, spi: &Spi, meta: &Meta, loading: &Loading, lock: LockType) -> Result<String> {
        let mut members = Vec::new();
        let mut bytes = 0;
        for (mapping, key) in covered(meta, loading) {
            let wanted: Vec<_> = mapping.attributes.iter().filter(|(name, _)| loading.wants(name)).collect();
            let values = self.select(spi, mapping, key, &wanted, lock)?;
            bytes += values.iter().flatten().flatten().map(String::len).sum::<usize>();
            if bytes > guc::max_request_bytes() {
                return Err(error::request_too_large(bytes, guc::max_request_bytes()).of_table(&mapping.table));
            }
            for (i, (name, _)) in wanted.iter().enumerate() {
                let text = values.as_ref().and_then(|values| values[i].clone()).unwrap_or_else(|| "null".to_owned());
                members.push((name.as_str(), text));
            }
        }
        object(members.iter().map(|(name, text)| (*name, text.as_str())))
    }

    /// The values of these columns, as JSON. None if there is no row.
    fn select(
        &self,
        spi: &Spi,
        mapping: &TableMapping,
        key: &[String],
        wanted: &[(&String, &String)],
        lock: LockType,
    ) -> Result<Option<Vec<Option<String>>>> {
        let table = self.enter(mapping)?;
        let columns = wanted
            .iter()
            .map(|(_, column)| {
                // If the column does not exist, Postgres might take the name for a function.
                table.column(mapping, column)?;
                Ok(format!("pg_catalog.to_jsonb(t.{})::pg_catalog.text", quote(column)))
            })
            .collect::<Result<Vec<_>>>()?;
        let (list, rows, key_is) = (columns.join(", "), &table.found.rows, table.key_is(mapping)?);
        let sql = format!("SELECT {list} FROM {rows} t WHERE {key_is}{}", clause(lock));
        let app = spi.on_app_tables();
        let read =
            || app.first(&sql, &params(key, None), |row| (0..columns.len()).map(|column| row.at(column)).collect());
        if lock == LockType::NoLocking { read() } else { self.locked(spi, mapping, key, read) }
    }

    /// Runs `lock`, a statement that locks the row with this key. The statement may miss a row that can be read. Either
    /// a policy for UPDATE hides the row from locks, or another transaction has replaced the row during the wait. Both
    /// are errors, and not a missing row.
    fn locked<T>(
        &self,
        spi: &Spi,
        mapping: &TableMapping,
        key: &[String],
        lock: impl Fn() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let found = lock()?;
        if found.is_some() {
            return Ok(found);
        }
        if !self.is_there(spi, mapping, key)? {
            return Ok(None);
        }
        // Another transaction may have inserted the row since the first try.
        if let Some(found) = lock()? {
            return Ok(Some(found));
        }
        match catalog::has_active_policies(spi, Regclass(mapping.relation))? {
            true => Err(not_to_be_locked(mapping, key)),
            false => Err(replaced(mapping, key)),
        }
    }

    /// Updates the row of each table that has one of these attributes. A missing row is an error: it is never inserted
    /// again.
    pub fn update(&self, spi: &Spi, meta: &Meta, attributes: &BTreeMap<String, Json>) -> Result<()> {
        for part in parts(meta, attributes) {
            if !self.update_row(spi, &part)? {
                return Err(missing_row(
                    part.mapping,
                    part.key,
                    catalog::has_active_policies(spi, Regclass(part.mapping.relation))?,
                ));
            }
        }
        Ok(())
    }

    /// Updates a row. False if there is no row with this key.
    fn update_row(&self, spi: &Spi, part: &TableValues) -> Result<bool> {
        let TableValues { mapping, key, written } = part;
        let table = self.enter(mapping)?;
        let sets: Vec<_> = written.iter().map(|(column, _)| format!("{0} = r.{0}", quote(column))).collect();
        let sql = format!(
            "UPDATE {} t SET {} FROM {} WHERE {}",
            table.found.rows,
            sets.join(", "),
            table.record(mapping, written)?,
            table.key_is(mapping)?
        );
        let params = params(key, Some(json_of(written)?));
        // Twice: while the first UPDATE waited, another transaction may have replaced the row.
        for _ in 0..2 {
            let updated =
                spi.on_app_tables().run(&sql, &params).map_err(|error| table.about(error, mapping, written))?;
            if updated > 0 {
                return Ok(true);
            }
            match self.has_values(spi, part)? {
                Some(true) => return Ok(true),
                Some(false) => {}
                None => return Ok(false),
            }
        }
        Err(kept(mapping, key, "as it was"))
    }

    /// Whether the row already has the values, although the `UPDATE` skipped it: a trigger may suppress an update that
    /// changes nothing. None if there is no row.
    fn has_values(&self, spi: &Spi, TableValues { mapping, key, written }: &TableValues) -> Result<Option<bool>> {
        let table = self.enter(mapping)?;
        let columns = |of: &str| {
            let columns: Vec<_> = written.iter().map(|(column, _)| format!("{of}.{}", quote(column))).collect();
            format!("pg_catalog.to_jsonb(ROW({}))", columns.join(", "))
        };
        let sql = format!(
            "SELECT {} OPERATOR(pg_catalog.=) {} FROM {} t, {} WHERE {} FOR NO KEY UPDATE OF t",
            columns("t"),
            columns("r"),
            table.found.rows,
            table.record(mapping, written)?,
            table.key_is(mapping)?
        );
        let (app, json) = (spi.on_app_tables(), json_of(written)?);
        self.locked(spi, mapping, key, || app.first(&sql, &params(key, Some(json.clone())), |row| row.at::<bool>(0)))
    }

    /// Writes the row of each table that has one of these attributes, at the start of a process. The keys of the other
    /// tables are evaluated. So an invalid key is an error of the caller that starts the process.
    pub fn start(&self, spi: &Spi, meta: &Meta, attributes: &BTreeMap<String, Json>, mode: ConflictMode) -> Result<()> {
        for (mapping, key) in rows(meta).filter(|(mapping, _)| !mapping.attributes.is_empty()) {
            let written = written(mapping, attributes);
            if written.is_empty() {
                let table = self.enter(mapping)?;
                let sql = format!("SELECT {}", table.key_values(mapping)?.join(", "));
                spi.on_app_tables().run(&sql, &params(key, None)).map_err(|error| table.about(error, mapping, &[]))?;
            } else {
                self.start_row(spi, &TableValues { mapping, key, written }, mode)?;
            }
        }
        Ok(())
    }

    /// If the row exists, updates, ignores or refuses it, as the mode says. Otherwise inserts it. An upsert (`ON
    /// CONFLICT DO UPDATE`) would apply the rules for new rows to an existing row: NOT NULL, policies and privileges
    /// for `INSERT`, triggers, sequences.
    fn start_row(&self, spi: &Spi, part: &TableValues, mode: ConflictMode) -> Result<()> {
        let table = self.enter(part.mapping)?;
        for tries_left in (0..TRIES).rev() {
            if self.is_there(spi, part.mapping, part.key)? {
                match mode {
                    ConflictMode::ReturnError => return Err(self.duplicate(spi, part)?),
                    ConflictMode::Ignore => return Ok(()),
                    ConflictMode::Override if self.update_row(spi, part)? => return Ok(()),
                    // Another transaction has deleted the row meanwhile.
                    ConflictMode::Override => continue,
                }
            }
            // The last try skips no conflict, and neither does a table with rules. So the error of Postgres names the
            // conflict, even if a policy hides the row.
            let skips = tries_left > 0 && mode != ConflictMode::ReturnError && !table.found.has_rules;
            match self.insert_row(spi, part, skips)? {
                // A policy may hide the conflicting row.
                0 if mode == ConflictMode::Ignore
                    && (self.is_there(spi, part.mapping, part.key)?
                        || catalog::has_active_policies(spi, Regclass(part.mapping.relation))?) =>
                {
                    return Ok(());
                }
                0 if !skips => return Err(kept(part.mapping, part.key, "from being inserted")),
                // Another transaction has inserted the row meanwhile, a policy hides it, or a trigger suppressed the
                // insert.
                0 => {}
                _ => return Ok(()),
            }
        }
        Err(replaced(part.mapping, part.key))
    }

    /// Whether the role sees a row with this key. It needs only SELECT on the key's columns.
    fn is_there(&self, spi: &Spi, mapping: &TableMapping, key: &[String]) -> Result<bool> {
        let table = self.enter(mapping)?;
        let sql = format!("SELECT FROM {} t WHERE {}", table.found.rows, table.key_is(mapping)?);
        let found = spi.on_app_tables().run(&sql, &params(key, None));
        Ok(found.map_err(|error| table.about(error, mapping, &[]))? > 0)
    }

    /// Inserts a row. Returns the number of rows: 0 if a row with this key exists and the insert was skipped.
    fn insert_row(&self, spi: &Spi, part: &TableValues, skips: bool) -> Result<u64> {
        let TableValues { mapping, key, written } = part;
        let table = self.enter(mapping)?;
        let keys: Vec<_> = table.key(mapping)?.iter().map(|key| key.column.as_str()).collect();
        let keys = keys.join(", ");
        let names: Vec<_> = written.iter().map(|(column, _)| quote(column)).collect();
        let on_conflict = if skips { format!(" ON CONFLICT ({keys}) DO NOTHING") } else { String::new() };
        let sql = format!(
            "INSERT INTO {} ({keys}, {}) SELECT {}, {} FROM {}{on_conflict}",
            table.found.name,
            names.join(", "),
            table.key_values(mapping)?.join(", "),
            names.iter().map(|name| format!("r.{name}")).collect::<Vec<_>>().join(", "),
            table.record(mapping, written)?,
        );
        let inserted = spi.on_app_tables().run(&sql, &params(key, Some(json_of(written)?)));
        inserted.map_err(|error| found_none(table.about(error, mapping, written), part))
    }

    /// The error for a row that exists although the mode forbids it.
    fn duplicate(&self, spi: &Spi, TableValues { mapping, key, .. }: &TableValues) -> Result<PgError> {
        let what = format!("table {} already has a row with {}", mapping.table, row_of(mapping, key));
        let mut error = PgError::new(UNIQUE_VIOLATION, what).of_table(&mapping.table);
        if let Some((index, _)) = self.enter(mapping)?.key {
            error.constraint = catalog::index_name(spi, index)?;
        }
        Ok(error)
    }
}

impl ResolvedTable {
    fn column(&self, mapping: &TableMapping, column: &str) -> Result<Type> {
        self.found.columns.get(column).copied().ok_or_else(|| {
            let what = format!("column \"{column}\" of table {} no longer exists", mapping.table);
            let mut error = PgError::new(sqlstate(b"42703"), what).of_table(&mapping.table);
            error.column = Some(column.to_owned());
            error
        })
    }

    fn key(&self, mapping: &TableMapping) -> Result<&[KeyColumn]> {
        if let Some((_, columns)) = &self.key {
            return Ok(columns);
        }
        for column in &mapping.primary_key {
            self.column(mapping, column)?;
        }
        let columns = mapping.primary_key.join(", ");
        let what = format!("table {} no longer has a unique key ({columns})", mapping.table);
        Err(PgError::new(sqlstate(b"42P10"), what).of_table(&mapping.table))
    }

    /// The condition that finds the row. Its values are the first parameters.
    fn key_is(&self, mapping: &TableMapping) -> Result<String> {
        let columns = self.key(mapping)?.iter().enumerate();
        let terms = columns.map(|(i, key)| format!("{} {} {}", key.operand, key.operator, key.value(i + 1)));
        Ok(terms.collect::<Vec<_>>().join(" AND "))
    }

    fn key_values(&self, mapping: &TableMapping) -> Result<Vec<String>> {
        Ok(self.key(mapping)?.iter().enumerate().map(|(i, key)| key.value(i + 1)).collect())
    }

    /// Adds the table and the possible columns to an error about a value. Postgres' own error does not name the column.
    fn about(&self, mut error: PgError, mapping: &TableMapping, written: &[(&str, &Json)]) -> PgError {
        if error.table.is_some() {
            return error;
        }
        let user_defined = |(column, value): &&(&str, &Json)| {
            value.as_str() != "null"
                && self.found.columns.get(*column).is_some_and(|of_type| of_type.base().is_user_defined())
        };
        if matches!(error.code, INTERNAL_ERROR | SYNTAX_ERROR)
            && let Some((column, _)) = written.iter().find(user_defined)
        {
            // Input functions of the application's types may raise any error.
            let of_type = self.found.columns.get(*column).map_or_else(String::new, |of_type| of_type.base().name());
            error.code = INVALID_TEXT;
            error.message =
                format!("column \"{column}\" is of type {of_type}, which refused the value: {}", error.message);
            error = error.hint("Write a value of this type as a string in the type's input format.");
        }
        if error.sqlstate().starts_with("22") {
            error = error.of_table(&mapping.table);
            if error.detail.is_none() {
                let columns: Vec<_> = written.iter().map(|(column, _)| format!("\"{column}\"")).collect();
                let key =
                    mapping.primary_key.iter().map(|column| format!("\"{column}\"")).collect::<Vec<_>>().join(", ");
                error = error.detail_without_rows(match columns.is_empty() {
                    true => format!("It is for table {}, key {key}.", mapping.table),
                    false => format!("It is for table {}, key {key} or column {}.", mapping.table, columns.join(", ")),
                });
            }
        }
        error
    }

    /// The values as a row with the types of the columns: Postgres converts them. The values are the parameter after
    /// the key.
    fn record(&self, mapping: &TableMapping, written: &[(&str, &Json)]) -> Result<String> {
        let columns = written
            .iter()
            .map(|(column, _)| Ok(format!("{} {}", quote(column), self.column(mapping, column)?.name())))
            .collect::<Result<Vec<_>>>()?;
        let parameter = mapping.primary_key.len() + 1;
        let values = format!("pg_catalog.jsonb_to_record(${parameter}::pg_catalog.text::pg_catalog.jsonb)");
        Ok(format!("{values} AS r ({})", columns.join(", ")))
    }
}

/// The attributes that belong to one table.
struct TableValues<'a> {
    mapping: &'a TableMapping,
    key: &'a [String],
    /// Columns and their values.
    written: Vec<(&'a str, &'a Json)>,
}

fn parts<'a>(meta: &'a Meta, attributes: &'a BTreeMap<String, Json>) -> impl Iterator<Item = TableValues<'a>> {
    rows(meta).filter_map(|(mapping, key)| {
        let written = written(mapping, attributes);
        (!written.is_empty()).then_some(TableValues { mapping, key, written })
    })
}

fn written<'a>(mapping: &'a TableMapping, attributes: &'a BTreeMap<String, Json>) -> Vec<(&'a str, &'a Json)> {
    attributes.iter().filter_map(|(name, value)| Some((mapping.attributes.get(name)?.as_str(), value))).collect()
}

/// The parameters of a statement: first the key, then the written values.
fn params(key: &[String], written: Option<String>) -> Vec<Param> {
    key.iter().map(|text| value(text.as_str())).chain(written.map(value)).collect()
}

/// The key of a row in words, for messages.
fn row_of(mapping: &TableMapping, key: &[String]) -> String {
    let columns = mapping.primary_key.iter().zip(key).map(|(column, text)| format!("{column} = {text}"));
    columns.collect::<Vec<_>>().join(" and ")
}

fn missing_row(mapping: &TableMapping, key: &[String], has_policies: bool) -> PgError {
    let or_hidden = if has_policies { ", or a policy hides it" } else { "" };
    let what = format!("table {} has no row with {}{or_hidden}", mapping.table, row_of(mapping, key));
    PgError::new(NO_DATA, what).of_table(&mapping.table)
}

fn kept(mapping: &TableMapping, key: &[String], how: &str) -> PgError {
    let row = row_of(mapping, key);
    let what = format!("a trigger or a rule of table {} kept the row with {row} {how}", mapping.table);
    PgError::new(sqlstate(b"09000"), what).of_table(&mapping.table)
}

fn not_to_be_locked(mapping: &TableMapping, key: &[String]) -> PgError {
    let row = row_of(mapping, key);
    let what = format!("a policy for UPDATE of table {} hides the row with {row} from locks and writes", mapping.table);
    PgError::new(sqlstate(b"42501"), what).of_table(&mapping.table)
}

fn replaced(mapping: &TableMapping, key: &[String]) -> PgError {
    let row = row_of(mapping, key);
    let what = format!("other transactions delete and insert the row with {row} of table {}", mapping.table);
    PgError::new(SERIALIZATION_FAILURE, what).of_table(&mapping.table)
}

/// Adds a hint that says why the start inserts a row.
fn found_none(error: PgError, part: &TableValues) -> PgError {
    // Postgres' own hint is about a clause that the caller did not write.
    let is_of_generated_key = error.code == GENERATED_ALWAYS;
    let is_refused = matches!(&error.sqlstate()[..2], "23" | "42");
    match is_of_generated_key || is_refused && error.hint.is_none() {
        true => error.hint(format!(
            "The current role sees no row with {}, so the start inserts one.",
            row_of(part.mapping, part.key)
        )),
        false => error,
    }
}

fn json_of(written: &[(&str, &Json)]) -> Result<String> {
    object(written.iter().map(|(column, value)| (*column, value.as_str())))
}

/// A JSON object whose members' values are JSON text. An error if it does not fit into memory.
pub(crate) fn object<'a>(members: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> Result<String> {
    // The bytes around a member: quotes, colon, comma. A name may need escapes besides.
    const AROUND: usize = 4;
    memory::room_for(2 + members.clone().map(|(name, value)| name.len() + value.len() + AROUND).sum::<usize>())?;
    Ok(xdb_protocol::object(members))
}
