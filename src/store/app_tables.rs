//! Users' tables: global attributes read and written as columns.
//!
//! Every function here runs SQL on a user's table and may run the user's code: the caller has switched to the right
//! role (see `pg::identity`) and decides what an error means. Identifiers come from the catalog, quoted; values are
//! parameters.

use super::catalog::{self, TableDescription, quote};
use super::loaded::Meta;
use crate::error;
use crate::guc;
use crate::pg::catch::{
    INTERNAL_ERROR, NO_DATA, PgError, Result, SERIALIZATION_FAILURE, UNDEFINED_TABLE, UNIQUE_VIOLATION, sqlstate,
};
use crate::pg::memory;
use crate::pg::param::{Param, Relation, value};
use crate::pg::spi::Spi;
use crate::pg::subxact::now_in_table;
use crate::pg::types::Type;
use pgrx::pg_sys;
use std::collections::{BTreeMap, HashMap};
use xdb_engine::{Json, Loading, LockType, TableMapping};
use xdb_protocol::ConflictMode;

const INVALID_TEXT: i32 = sqlstate(b"22P02");
const SYNTAX_ERROR: i32 = sqlstate(b"42601");

/// How a table is named and typed at this moment; good for one transaction, under a lock on the table.
#[derive(Debug)]
struct ResolvedTable {
    found: TableDescription,
    /// The key's index and columns, in the order of the mapping. None where the table has no such unique key (any more).
    key: Option<(pg_sys::Oid, Vec<KeyColumn>)>,
}

/// A column of the key as SQL.
#[derive(Debug)]
struct KeyColumn {
    /// Quoted.
    column: String,
    /// The column of `t`, as what its type is based on: the operator may be one that takes no domain.
    operand: String,
    operator: String,
    /// What a value is cast to. Without a length: a key that is too long must not be cut to another row's.
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

    /// The value of this column, which is the parameter of this number.
    fn value(&self, parameter: usize) -> String {
        format!("${parameter}::pg_catalog.text::{}", self.cast_to)
    }
}

/// A value for a column whose values the table makes itself.
const GENERATED_ALWAYS: i32 = sqlstate(b"428C9");

/// The lock on a row that a lock type stands for. An exclusive one is what an `UPDATE` of columns takes that belong to no key: a
/// transaction that refers to the row with a foreign key and such a lock do not wait for each other.
fn clause(lock: LockType) -> &'static str {
    match lock {
        LockType::NoLocking => "",
        LockType::Share => " FOR SHARE",
        LockType::Exclusive => " FOR NO KEY UPDATE",
    }
}

/// Rows that a loading policy covers, in the order of [`rows`].
pub fn covered<'a>(meta: &'a Meta, loading: &Loading) -> impl Iterator<Item = (&'a TableMapping, &'a [String])> {
    rows(meta).filter(|(table, _)| table.attributes.keys().any(|name| loading.wants(name)))
}

/// The rows of a process, in the order in which everybody locks them. No table is mapped twice.
fn rows(meta: &Meta) -> impl Iterator<Item = (&TableMapping, &[String])> {
    let mut rows: Vec<_> = meta.mapping.iter().zip(meta.keys.iter()).map(|(table, key)| (table, &key[..])).collect();
    rows.sort_by_key(|(table, _)| table.relation);
    rows.into_iter()
}

/// How often a start looks for a row before it gives up: in between, other transactions insert and delete it.
const TRIES: usize = 4;

/// Tables that a transaction looked up, by oid and key.
#[derive(Default)]
pub struct Tables {
    known: HashMap<u32, HashMap<Vec<String>, Option<ResolvedTable>>>,
}

/// Has deferrable constraints checked with the statement, as the owner: nothing depends on what else is in the transaction,
/// and nothing is left to run as the engine. (Deferring them to the end of the step is impossible: Postgres refuses deferred
/// triggers in a security-restricted operation.)
pub fn defer_nothing(spi: &Spi) -> Result<()> {
    spi.utility("SET CONSTRAINTS ALL IMMEDIATE")
}

impl Tables {
    /// Reads the table's names from the catalog. Runs as the extension's owner; the caller holds a lock on the table, unless the
    /// types of its key are all that it is looked up for.
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

    /// The table, noted as the one that is touched from here on.
    fn enter(&self, mapping: &TableMapping) -> Result<&ResolvedTable> {
        now_in_table(mapping.relation);
        let known = self.known.get(&mapping.relation).and_then(|known| known.get(&mapping.primary_key));
        known.and_then(Option::as_ref).ok_or_else(|| {
            let what = format!("table {} does not exist any more", mapping.table);
            PgError::new(UNDEFINED_TABLE, what).of_table(&mapping.table)
        })
    }

    /// The attributes that `loading` wants, as the text of a JSON object; their rows stay locked until the transaction ends. A key
    /// without a row gives null for every attribute.
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

    /// The values of these columns, as JSON.
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
                // Without such a column Postgres might take the name for that of a function.
                table.column(mapping, column)?;
                Ok(format!("pg_catalog.to_jsonb(t.{})::pg_catalog.text", quote(column)))
            })
            .collect::<Result<Vec<_>>>()?;
        let (list, rows, key_is) = (columns.join(", "), &table.found.rows, table.key_is(mapping)?);
        let sql = format!("SELECT {list} FROM {rows} t WHERE {key_is}{}", clause(lock));
        let users = spi.on_users_tables();
        let read =
            || users.first(&sql, &params(key, None), |row| (0..columns.len()).map(|column| row.at(column)).collect());
        if lock == LockType::NoLocking { read() } else { self.locked(spi, mapping, key, read) }
    }

    /// What `lock` finds, a statement that locks the row with this key. It may miss a row that can be read: a policy for UPDATE hides
    /// the row from locks, or another transaction has replaced the row for which the lock waited. That is an error, and not a row
    /// that is not there.
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
        // It may have been inserted a moment ago.
        if let Some(found) = lock()? {
            return Ok(Some(found));
        }
        match catalog::has_active_policies(spi, Relation(mapping.relation))? {
            true => Err(not_to_be_locked(mapping, key)),
            false => Err(replaced(mapping, key)),
        }
    }

    /// Updates the row of each table that has one of these attributes. A row that is gone is an error, and nothing
    /// is created again.
    pub fn update(&self, spi: &Spi, meta: &Meta, attributes: &BTreeMap<String, Json>) -> Result<()> {
        for part in parts(meta, attributes) {
            if !self.update_row(spi, &part)? {
                return Err(gone(
                    part.mapping,
                    part.key,
                    catalog::has_active_policies(spi, Relation(part.mapping.relation))?,
                ));
            }
        }
        Ok(())
    }

    /// Updates a row. False if there is none with this key.
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
        // Twice: while the first one waited, another transaction may have put a new row in the place of the one that it found.
        for _ in 0..2 {
            let updated =
                spi.on_users_tables().run(&sql, &params).map_err(|error| table.about(error, mapping, written))?;
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

    /// Whether the row that an `UPDATE` did not touch has the values all the same: a trigger may leave out a change that changes
    /// nothing. None where there is no row.
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
        let (users, json) = (spi.on_users_tables(), json_of(written)?);
        self.locked(spi, mapping, key, || users.first(&sql, &params(key, Some(json.clone())), |row| row.at::<bool>(0)))
    }

    /// Writes the row of each table that has one of these attributes, at the start of a process. Keys of the other
    /// tables are read, so that one that can't be a key is the error of who starts the process.
    pub fn start(&self, spi: &Spi, meta: &Meta, attributes: &BTreeMap<String, Json>, mode: ConflictMode) -> Result<()> {
        for (mapping, key) in rows(meta).filter(|(mapping, _)| !mapping.attributes.is_empty()) {
            let written = written(mapping, attributes);
            if written.is_empty() {
                let table = self.enter(mapping)?;
                let sql = format!("SELECT {}", table.key_values(mapping)?.join(", "));
                spi.on_users_tables()
                    .run(&sql, &params(key, None))
                    .map_err(|error| table.about(error, mapping, &[]))?;
            } else {
                self.start_row(spi, &TableValues { mapping, key, written }, mode)?;
            }
        }
        Ok(())
    }

    /// Updates, leaves or refuses a row that is there, as the mode says, and inserts it only if it is not. An `INSERT` with
    /// `ON CONFLICT DO UPDATE` would check, and do, for a row that is there what concerns new rows alone: columns that may not be
    /// null, policies and privileges for `INSERT`, triggers, sequences.
    fn start_row(&self, spi: &Spi, part: &TableValues, mode: ConflictMode) -> Result<()> {
        let table = self.enter(part.mapping)?;
        for tries_left in (0..TRIES).rev() {
            if self.is_there(spi, part.mapping, part.key)? {
                match mode {
                    ConflictMode::ReturnError => return Err(self.duplicate(spi, part)?),
                    ConflictMode::Ignore => return Ok(()),
                    ConflictMode::Override if self.update_row(spi, part)? => return Ok(()),
                    // Another transaction has deleted it meanwhile.
                    ConflictMode::Override => continue,
                }
            }
            // The last try, and a table with rules, skip no conflict: Postgres says then what is in the way, though a policy hides it.
            let skips = tries_left > 0 && mode != ConflictMode::ReturnError && !table.found.has_rules;
            match self.insert_row(spi, part, skips)? {
                // A policy may hide the row that is in the way.
                0 if mode == ConflictMode::Ignore
                    && (self.is_there(spi, part.mapping, part.key)?
                        || catalog::has_active_policies(spi, Relation(part.mapping.relation))?) =>
                {
                    return Ok(());
                }
                0 if !skips => return Err(kept(part.mapping, part.key, "from being inserted")),
                // Another transaction has inserted the row meanwhile, unless a policy hides it or a trigger suppressed it.
                0 => {}
                _ => return Ok(()),
            }
        }
        Err(replaced(part.mapping, part.key))
    }

    /// Whether the role sees a row with this key. It needs no more for it than SELECT on the key's columns.
    fn is_there(&self, spi: &Spi, mapping: &TableMapping, key: &[String]) -> Result<bool> {
        let table = self.enter(mapping)?;
        let sql = format!("SELECT FROM {} t WHERE {}", table.found.rows, table.key_is(mapping)?);
        let found = spi.on_users_tables().run(&sql, &params(key, None));
        Ok(found.map_err(|error| table.about(error, mapping, &[]))? > 0)
    }

    /// Inserts a row. Gives how many: none if it is skipped because there is one with this key.
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
        let inserted = spi.on_users_tables().run(&sql, &params(key, Some(json_of(written)?)));
        inserted.map_err(|error| found_none(table.about(error, mapping, written), part))
    }

    /// The error for a row that is there and may not be.
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
            let what = format!("column \"{column}\" of table {} does not exist any more", mapping.table);
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
        let what = format!("table {} has no unique key ({columns}) any more", mapping.table);
        Err(PgError::new(sqlstate(b"42P10"), what).of_table(&mapping.table))
    }

    /// The condition that finds the row. The values are the first parameters.
    fn key_is(&self, mapping: &TableMapping) -> Result<String> {
        let columns = self.key(mapping)?.iter().enumerate();
        let terms = columns.map(|(i, key)| format!("{} {} {}", key.operand, key.operator, key.value(i + 1)));
        Ok(terms.collect::<Vec<_>>().join(" AND "))
    }

    fn key_values(&self, mapping: &TableMapping) -> Result<Vec<String>> {
        Ok(self.key(mapping)?.iter().enumerate().map(|(i, key)| key.value(i + 1)).collect())
    }

    /// A value that its type refuses does not say for which column it was. What was written narrows it down.
    fn about(&self, mut error: PgError, mapping: &TableMapping, written: &[(&str, &Json)]) -> PgError {
        if error.table.is_some() {
            return error;
        }
        let of_users = |(column, value): &&(&str, &Json)| {
            value.as_str() != "null"
                && self.found.columns.get(*column).is_some_and(|of_type| of_type.base().is_of_users())
        };
        if matches!(error.code, INTERNAL_ERROR | SYNTAX_ERROR)
            && let Some((column, _)) = written.iter().find(of_users)
        {
            // Input functions of such types may raise what they like.
            let of_type = self.found.columns.get(*column).map_or_else(String::new, |of_type| of_type.base().name());
            error.code = INVALID_TEXT;
            error.message =
                format!("column \"{column}\" is of type {of_type}, which refused the value: {}", error.message);
            error = error.hint("A value of such a type is written as a string, as the type reads it.");
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

    /// The values as a row of the columns' own types: Postgres converts them. They are the parameter after the key.
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

/// What of the attributes goes to one table.
struct TableValues<'a> {
    mapping: &'a TableMapping,
    key: &'a [String],
    /// Column and value.
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

/// The parameters of a statement: the key, and then the written values.
fn params(key: &[String], written: Option<String>) -> Vec<Param> {
    key.iter().map(|text| value(text.as_str())).chain(written.map(value)).collect()
}

/// A row, for people.
fn row_of(mapping: &TableMapping, key: &[String]) -> String {
    let columns = mapping.primary_key.iter().zip(key).map(|(column, text)| format!("{column} = {text}"));
    columns.collect::<Vec<_>>().join(" and ")
}

fn gone(mapping: &TableMapping, key: &[String], has_policies: bool) -> PgError {
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

/// With a hint at why a row was to be inserted, where the table refuses it.
fn found_none(error: PgError, part: &TableValues) -> PgError {
    // The server's own hint there is about a clause that no caller of ours can write.
    let is_of_generated_key = error.code == GENERATED_ALWAYS;
    let is_refused = matches!(&error.sqlstate()[..2], "23" | "42");
    match is_of_generated_key || is_refused && error.hint.is_none() {
        true => error.hint(format!(
            "The start found no row with {} that the current role sees, and so it inserts one.",
            row_of(part.mapping, part.key)
        )),
        false => error,
    }
}

fn json_of(written: &[(&str, &Json)]) -> Result<String> {
    object(written.iter().map(|(column, value)| (*column, value.as_str())))
}

/// A JSON object of members whose values are JSON text, if there is room for it.
pub(crate) fn object<'a>(members: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> Result<String> {
    // Quotes, colon and comma; a name may need escapes besides.
    const AROUND: usize = 4;
    memory::room_for(2 + members.clone().map(|(name, value)| name.len() + value.len() + AROUND).sum::<usize>())?;
    Ok(xdb_protocol::object(members))
}
