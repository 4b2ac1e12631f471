//! Users' tables: global attributes read and written as columns.
//!
//! Every function here runs SQL on a user's table and may run the user's code: the caller has switched to the right
//! role (see `pg::identity`) and decides what an error means. Identifiers come from the catalog, quoted; values are
//! parameters.

use super::load::Meta;
use crate::pg::catch::{NO_DATA, PgError, Result, UNDEFINED_TABLE};
use crate::pg::param::value;
use crate::pg::spi::Spi;
use pgrx::pg_sys;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use xdb_engine::{Json, Loading, TableMapping};
use xdb_protocol::ConflictMode;

/// How a table is named and typed at this moment; good for one transaction.
#[derive(Debug)]
struct Table {
    /// Schema-qualified and quoted.
    name: String,
    /// The operator that compares keys, qualified: that of the type's own index support where it has one.
    equals: String,
    /// The key's type, as SQL and without a length: a key that is too long must not be cut to another row's.
    key_type: Option<String>,
    /// Column name to its type, as SQL.
    columns: HashMap<String, String>,
}

/// Tables that a transaction looked up.
#[derive(Default)]
pub struct Tables {
    known: HashMap<u32, Option<Rc<Table>>>,
}

impl Tables {
    /// Reads the table's names from the catalog. Runs as the extension's owner, with the pinned `search_path` that
    /// makes type names come out qualified.
    pub fn look_up(&mut self, spi: &Spi, mapping: &TableMapping) -> Result<()> {
        const TABLE: &str = "SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname), \
                COALESCE((SELECT 'OPERATOR(' || pg_catalog.quote_ident(o_n.nspname) || '.' || o.oprname || ')' \
                    FROM pg_catalog.pg_attribute a \
                    JOIN pg_catalog.pg_opclass oc ON oc.opcintype = a.atttypid AND oc.opcdefault \
                    JOIN pg_catalog.pg_am am ON am.oid = oc.opcmethod AND am.amname = 'btree' \
                    JOIN pg_catalog.pg_amop ao ON ao.amopfamily = oc.opcfamily AND ao.amopstrategy = 3 \
                        AND ao.amoplefttype = a.atttypid AND ao.amoprighttype = a.atttypid \
                    JOIN pg_catalog.pg_operator o ON o.oid = ao.amopopr \
                    JOIN pg_catalog.pg_namespace o_n ON o_n.oid = o.oprnamespace \
                    WHERE a.attrelid = c.oid AND a.attname = $2 AND NOT a.attisdropped), 'OPERATOR(pg_catalog.=)'), \
                (SELECT pg_catalog.format_type(a.atttypid, -1) FROM pg_catalog.pg_attribute a \
                    WHERE a.attrelid = c.oid AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped) \
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1";
        const COLUMNS: &str = "SELECT attname::text, pg_catalog.format_type(atttypid, atttypmod) \
            FROM pg_catalog.pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped";
        if self.known.contains_key(&mapping.relation) {
            return Ok(());
        }
        let relation = pg_sys::Oid::from(mapping.relation);
        let params = [value(relation), value(mapping.primary_key.as_str())];
        let names = spi.first(TABLE, &params, |row| Ok((row.need(1)?, row.need(2)?, row.get(3))))?;
        let table = match names {
            Some((name, equals, key_type)) => {
                let columns = spi.rows(COLUMNS, &[value(relation)], |row| Ok((row.need(1)?, row.need(2)?)))?;
                Some(Rc::new(Table { name, equals, key_type, columns: columns.into_iter().collect() }))
            }
            None => None,
        };
        self.known.insert(mapping.relation, table);
        Ok(())
    }

    fn table(&self, mapping: &TableMapping) -> Result<&Table> {
        self.known.get(&mapping.relation).and_then(Option::as_deref).ok_or_else(|| {
            let mut error = PgError::new(UNDEFINED_TABLE, format!("table {} does not exist any more", mapping.table));
            error.table = Some(mapping.table.clone());
            error
        })
    }

    /// The attributes that `loading` wants, as the text of a JSON object. A key without a row, and a missing key,
    /// give null for every attribute.
    pub fn load(&self, spi: &Spi, meta: &Meta, loading: &Loading) -> Result<String> {
        let mut members = Vec::new();
        for (position, mapping) in meta.mapping.iter().enumerate() {
            let wanted: Vec<_> = mapping.attributes.iter().filter(|(name, _)| loading.wants(name)).collect();
            if wanted.is_empty() {
                continue;
            }
            let key = meta.keys.get(position).and_then(Option::as_deref);
            let values = match key {
                Some(key) => self.select(spi, mapping, key, &wanted)?,
                None => None,
            };
            for (i, (name, _)) in wanted.iter().enumerate() {
                let text = values.as_ref().and_then(|values| values[i].clone()).unwrap_or_else(|| "null".to_owned());
                members.push((name.as_str(), text));
            }
        }
        Ok(object(members.iter().map(|(name, text)| (*name, text.as_str()))))
    }

    fn select(
        &self,
        spi: &Spi,
        mapping: &TableMapping,
        key: &str,
        wanted: &[(&String, &String)],
    ) -> Result<Option<Vec<Option<String>>>> {
        let table = self.table(mapping)?;
        let columns: Vec<_> = wanted
            .iter()
            .map(|(_, column)| format!("pg_catalog.to_jsonb(t.{})::pg_catalog.text", quote(column)))
            .collect();
        let sql = format!("SELECT {} FROM {} t WHERE {}", columns.join(", "), table.name, table.key_is(mapping, "t")?);
        spi.first(&sql, &[value(key)], |row| Ok((1..=wanted.len()).map(|column| row.get(column)).collect()))
    }

    /// Updates the row of each table that has one of these attributes. A row that is gone is an error, and nothing
    /// is created again.
    pub fn update(&self, spi: &Spi, meta: &Meta, attributes: &BTreeMap<String, Json>) -> Result<()> {
        for (mapping, key, written) in parts(meta, attributes) {
            let table = self.table(mapping)?;
            let key = key.ok_or_else(|| gone(mapping, "null"))?;
            let sets: Vec<_> = written.iter().map(|(column, _)| format!("{0} = r.{0}", quote(column))).collect();
            let sql = format!(
                "UPDATE {} t SET {} FROM {} WHERE {}",
                table.name,
                sets.join(", "),
                table.record(&written)?,
                table.key_is(mapping, "t")?
            );
            if spi.run(&sql, &[value(key), value(json_of(&written))])? == 0 {
                return Err(gone(mapping, key));
            }
        }
        Ok(())
    }

    /// Inserts the row of each table that has one of these attributes, at the start of a process.
    pub fn upsert(
        &self,
        spi: &Spi,
        meta: &Meta,
        attributes: &BTreeMap<String, Json>,
        mode: ConflictMode,
    ) -> Result<()> {
        for (mapping, key, written) in parts(meta, attributes) {
            let table = self.table(mapping)?;
            let key = key.ok_or_else(|| gone(mapping, "null"))?;
            let key_column = quote(&mapping.primary_key);
            let names: Vec<_> = written.iter().map(|(column, _)| quote(column)).collect();
            let on_conflict = match mode {
                ConflictMode::ReturnError => String::new(),
                ConflictMode::Ignore => format!(" ON CONFLICT ({key_column}) DO NOTHING"),
                ConflictMode::Override => {
                    let sets: Vec<_> = names.iter().map(|name| format!("{name} = excluded.{name}")).collect();
                    format!(" ON CONFLICT ({key_column}) DO UPDATE SET {}", sets.join(", "))
                }
            };
            let sql = format!(
                "INSERT INTO {} ({key_column}, {}) SELECT $1::pg_catalog.text::{}, {} FROM {}{on_conflict}",
                table.name,
                names.join(", "),
                table.key_type(mapping)?,
                names.iter().map(|name| format!("r.{name}")).collect::<Vec<_>>().join(", "),
                table.record(&written)?,
            );
            spi.run(&sql, &[value(key), value(json_of(&written))])?;
        }
        Ok(())
    }
}

impl Table {
    fn column_type(&self, column: &str) -> Result<&str> {
        self.columns.get(column).map(String::as_str).ok_or_else(|| {
            let mut error = PgError::new(
                crate::pg::catch::sqlstate(b"42703"),
                format!("column \"{column}\" of {} does not exist any more", self.name),
            );
            error.table = Some(self.name.clone());
            error.column = Some(column.to_owned());
            error
        })
    }

    fn key_type(&self, mapping: &TableMapping) -> Result<&str> {
        match &self.key_type {
            Some(key_type) => Ok(key_type),
            None => self.column_type(&mapping.primary_key),
        }
    }

    fn key_is(&self, mapping: &TableMapping, alias: &str) -> Result<String> {
        let key_type = self.key_type(mapping)?;
        let column = quote(&mapping.primary_key);
        Ok(format!("{alias}.{column} {} $1::pg_catalog.text::{key_type}", self.equals))
    }

    /// The values as a row of the columns' own types: Postgres converts them.
    fn record(&self, written: &[(&str, &Json)]) -> Result<String> {
        let columns = written
            .iter()
            .map(|(column, _)| Ok(format!("{} {}", quote(column), self.column_type(column)?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(format!("pg_catalog.jsonb_to_record($2::pg_catalog.text::pg_catalog.jsonb) AS r ({})", columns.join(", ")))
    }
}

/// What of the attributes goes to which table: its mapping, the key, and (column, value).
fn parts<'a>(
    meta: &'a Meta,
    attributes: &'a BTreeMap<String, Json>,
) -> impl Iterator<Item = (&'a TableMapping, Option<&'a str>, Vec<(&'a str, &'a Json)>)> {
    meta.mapping.iter().enumerate().filter_map(move |(position, mapping)| {
        let written: Vec<_> = attributes
            .iter()
            .filter_map(|(name, value)| Some((mapping.attributes.get(name)?.as_str(), value)))
            .collect();
        let key = meta.keys.get(position).and_then(Option::as_deref);
        (!written.is_empty()).then_some((mapping, key, written))
    })
}

fn gone(mapping: &TableMapping, key: &str) -> PgError {
    let mut error =
        PgError::new(NO_DATA, format!("table {} has no row with {} = {key}", mapping.table, mapping.primary_key));
    error.table = Some(mapping.table.clone());
    error
}

fn json_of(written: &[(&str, &Json)]) -> String {
    object(written.iter().map(|(column, value)| (*column, value.as_str())))
}

/// A JSON object of members whose values are JSON text.
pub(crate) fn object<'a>(members: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::from("{");
    for (name, value) in members {
        if text.len() > 1 {
            text.push(',');
        }
        // A string always has a JSON form.
        text.push_str(&serde_json::to_string(name).unwrap_or_default());
        text.push(':');
        text.push_str(value);
    }
    text.push('}');
    text
}

/// Quotes an identifier, whatever is in it.
fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}
