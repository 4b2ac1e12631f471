//! What the catalog says about the application's tables at this moment.
//!
//! Tables are named by oid here. Code that uses the names in SQL holds a lock on the table, so that the names stay
//! valid. The catalog is read in its latest state, in every isolation level, because Postgres resolves names in SQL in
//! the same way.

use super::table::{record, statements};
use crate::pg::catch::Result;
use crate::pg::param::{Regclass, array, value};
use crate::pg::spi::{Row, Spi};
use crate::pg::types::Type;
use pgrx::pg_sys;
use std::collections::HashMap;

record! {
    /// The kind of a table.
    pub struct TableKind {
        /// Whether it is an ordinary or a partitioned table.
        has_rows: bool,
        is_of_system: bool,
        is_temporary: bool,
    }
}

statements! {
    FIND = "SELECT pg_catalog.to_regclass($1)::pg_catalog.oid AS relation"
        => fn to_regclass(name: &str) -> Option<Option<pg_sys::Oid>>;
    KIND = "SELECT c.relkind IN ('r', 'p') AS has_rows, n.nspname = 'xdb' OR pg_catalog.starts_with(n.nspname::text, 'pg_') \
            OR n.nspname = 'information_schema' AS is_of_system, c.relpersistence = 't' AS is_temporary \
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1"
        => pub fn kind(relation: Regclass) -> Option<TableKind>;
    /// The privileges on a mapped table that the role lacks for steps. Steps read the columns of the key and of the
    /// attributes, and update the attributes. The columns must exist. A start that inserts a row also needs INSERT, as
    /// its caller.
    MISSING_PRIVILEGES = "SELECT pg_catalog.string_agg(n.privilege, ', ' ORDER BY n.privilege) AS missing FROM ( \
            SELECT DISTINCT p.privilege FROM ( \
                SELECT k.name, 'SELECT' AS privilege FROM unnest($3::text[]) AS k (name) \
                UNION ALL SELECT a.name, u.privilege FROM unnest($4::text[]) AS a (name) \
                    CROSS JOIN unnest('{SELECT,UPDATE}'::text[]) AS u (privilege)) AS p \
            WHERE NOT pg_catalog.has_column_privilege($1::oid, $2::oid, p.name, p.privilege)) AS n"
        => pub fn missing_privileges(role: pg_sys::Oid, relation: Regclass, key: &[String], attributes: &[String])
            -> Option<Option<String>>;
    /// Whether row-level security decides which rows of the table the current user sees.
    HAS_ACTIVE_POLICIES = "SELECT pg_catalog.row_security_active($1::oid) AS active"
        => pub fn has_active_policies(relation: Regclass) -> bool;
    // An ordinary table's unique key does not cover the tables that inherit from it. A partitioned table's key covers
    // its partitions.
    DESCRIBE = "SELECT n.nspname::text AS schema, c.relname::text AS name, c.relkind = 'r' AS is_ordinary, c.relhasrules AS has_rules, \
            a.attname::text AS attribute, a.atttypid, a.atttypmod \
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
        WHERE c.oid = $1 AND a.attnum > 0 AND NOT a.attisdropped";
    UNIQUE_KEY = "SELECT k.indexrelid AS index, k.operators FROM ( \
            SELECT i.indexrelid, i.indisprimary, pg_catalog.array_agg(a.attname::text ORDER BY a.attname) AS names, \
                pg_catalog.array_agg('OPERATOR(' || pg_catalog.quote_ident(n.nspname) || '.' || o.oprname || ')' \
                    ORDER BY a.attname) AS operators \
            FROM pg_catalog.pg_index i \
            CROSS JOIN unnest(i.indkey::int2[], i.indclass::oid[]) WITH ORDINALITY AS c (attnum, opclass, position) \
            JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = c.attnum \
            JOIN pg_catalog.pg_opclass oc ON oc.oid = c.opclass \
            JOIN pg_catalog.pg_am am ON am.oid = oc.opcmethod AND am.amname = 'btree' \
            JOIN pg_catalog.pg_amop ao ON ao.amopfamily = oc.opcfamily AND ao.amopstrategy = 3 \
                AND ao.amoplefttype = oc.opcintype AND ao.amoprighttype = oc.opcintype \
            JOIN pg_catalog.pg_operator o ON o.oid = ao.amopopr \
            JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace \
            WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indimmediate \
                AND i.indpred IS NULL AND i.indexprs IS NULL AND c.position <= i.indnkeyatts \
            GROUP BY i.indexrelid, i.indisprimary) AS k \
        WHERE k.names = $2 ORDER BY k.indisprimary DESC, k.indexrelid LIMIT 1";
    /// The name of an index. Its constraint, if there is one, has the same name.
    INDEX_NAME = "SELECT c.relname::pg_catalog.text AS name FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) $1"
        => pub fn index_name(index: pg_sys::Oid) -> Option<String>;
}

/// A table's name and columns.
#[derive(Debug)]
pub struct TableDescription {
    /// As SQL, with the schema, quoted.
    pub name: String,
    /// The name for statements that read or update rows: with ONLY, so that tables that inherit from it are left out.
    pub rows: String,
    /// Whether it has, or had, rules: Postgres then refuses `ON CONFLICT`.
    pub has_rules: bool,
    pub columns: HashMap<String, Type>,
}

/// The oid of the table with this name, found with the session's `search_path`.
pub fn find(spi: &Spi, name: &str) -> Result<Option<u32>> {
    Ok(to_regclass(spi, name)?.flatten().map(pg_sys::Oid::to_u32))
}

/// Describes the table with this oid. None if it was dropped.
pub fn describe(spi: &Spi, relation: u32) -> Result<Option<TableDescription>> {
    let relation = value(pg_sys::Oid::from(relation));
    let mut table = None;
    let mut columns = HashMap::new();
    spi.with_latest_snapshot(|spi| {
        spi.rows(&DESCRIBE, &[relation], |row| {
            let name = format!("{}.{}", quote(row.get("schema")?), quote(row.get("name")?));
            let only = if row.get("is_ordinary")? { "ONLY " } else { "" };
            table = Some((format!("{only}{name}"), name, row.get("has_rules")?));
            columns.insert(row.get("attribute")?, Type { oid: row.get("atttypid")?, modifier: row.get("atttypmod")? });
            Ok(())
        })
    })?;
    Ok(table.map(|(rows, name, has_rules)| TableDescription { name, rows, has_rules, columns }))
}

/// A unique key of a table.
pub struct UniqueKey {
    pub index: pg_sys::Oid,
    /// The operators that compare the columns, in the order in which the columns were given. The key is unique under
    /// these operators.
    pub operators: Vec<String>,
}

/// The unique key over exactly these columns, or None.
pub fn unique_key(spi: &Spi, relation: u32, columns: &[String]) -> Result<Option<UniqueKey>> {
    let mut sorted: Vec<&str> = columns.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let params = [value(pg_sys::Oid::from(relation)), array(sorted.iter().copied())];
    let read = |row: &Row| Ok((row.get("index")?, row.get::<Vec<String>>("operators")?));
    let found = spi.with_latest_snapshot(|spi| spi.first(&UNIQUE_KEY, &params, read))?;
    let Some((index, operators)) = found else { return Ok(None) };
    let by_column: HashMap<&str, String> = sorted.into_iter().zip(operators).collect();
    let operators: Option<_> = columns.iter().map(|column| by_column.get(column.as_str()).cloned()).collect();
    Ok(operators.map(|operators| UniqueKey { index, operators }))
}

/// Quotes any identifier.
pub fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}
