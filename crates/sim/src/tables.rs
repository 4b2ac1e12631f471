//! Users' tables: rows of JSON values. There are no types and no constraints; a key is compared as text.

use crate::run::Run;
use std::collections::BTreeMap;
use xdb_engine::{AppDatabaseError, Failure, Json, Loading, TableMapping};
use xdb_protocol::ConflictMode;
use xdb_protocol::arguments::key_text;
use xdb_protocol::refusal::Refusal;

/// Column to value.
pub type Row = BTreeMap<String, Json>;

/// All tables, by name.
#[derive(Default)]
pub(crate) struct Tables {
    tables: BTreeMap<String, Table>,
}

struct Table {
    /// Stands for the oid.
    relation: u32,
    rows: Vec<Row>,
}

/// A write that a table refuses.
#[derive(Debug)]
pub(crate) struct Refused {
    pub refusal: Refusal,
    table: String,
    constraint: Option<String>,
}

impl Refused {
    /// As a failed attempt of the call whose answer was refused.
    pub fn failure(&self) -> Failure {
        let sql_state = self.refusal.sqlstate().to_owned();
        let message = self.refusal.message.clone();
        let detail = format!("{message} ({sql_state})");
        let error = AppDatabaseError {
            sql_state,
            message,
            table: Some(self.table.clone()),
            constraint: self.constraint.clone(),
        };
        Failure { app_database_error: Some(error), ..Failure::of("AppDatabaseError", detail) }
    }
}

/// A table without a schema is in `public`.
fn full_name(table: &str) -> String {
    if table.contains('.') { table.to_owned() } else { format!("public.{table}") }
}

fn has_key(row: &Row, columns: &[String], key: &[String]) -> bool {
    columns.iter().zip(key).all(|(column, text)| row.get(column).is_some_and(|value| key_text(value) == *text))
}

/// A row, for people.
fn row_of(table: &TableMapping, key: &[String]) -> String {
    let columns = table.primary_key.iter().zip(key).map(|(column, text)| format!("{column} = {text}"));
    columns.collect::<Vec<_>>().join(" and ")
}

/// The columns of a table that these attributes go to, with their values.
fn written(table: &TableMapping, attributes: &BTreeMap<String, Json>) -> Row {
    let column = |(name, value): (&String, &Json)| Some((table.attributes.get(name)?.clone(), value.clone()));
    attributes.iter().filter_map(column).collect()
}

impl Tables {
    /// The number of a table, which is there from now on.
    pub fn relation(&mut self, name: &str) -> u32 {
        self.table(name).relation
    }

    fn table(&mut self, name: &str) -> &mut Table {
        let relation = self.tables.len() as u32 + 1;
        self.tables.entry(full_name(name)).or_insert_with(|| Table { relation, rows: Vec::new() })
    }

    fn found(&self, table: &TableMapping, key: &[String]) -> Option<&Row> {
        let rows = &self.tables.get(&full_name(&table.table))?.rows;
        rows.iter().find(|row| has_key(row, &table.primary_key, key))
    }

    /// The attributes of a process that are loaded, as a JSON object. A row that is not there gives null for each.
    pub fn load(&self, run: &Run, loading: &Loading) -> String {
        let mut members = Vec::new();
        for (table, key) in run.rows() {
            let row = self.found(table, key);
            for (name, column) in table.attributes.iter().filter(|(name, _)| loading.wants(name)) {
                members.push((name.as_str(), row.and_then(|row| row.get(column)).map_or("null", Json::as_str)));
            }
        }
        xdb_protocol::object(members.iter().copied())
    }

    /// Updates the row of each table that has one of these attributes: all or none.
    pub fn update(&mut self, run: &Run, attributes: &BTreeMap<String, Json>) -> Result<(), Box<Refused>> {
        let writes = || run.rows().map(|(table, key)| (table, key, written(table, attributes)));
        for (table, key, written) in writes() {
            if !written.is_empty() && self.found(table, key).is_none() {
                let message = format!("table {} has no row with {}", table.table, row_of(table, key));
                let refusal = Refusal::new(b"02000", message);
                return Err(Box::new(Refused { refusal, table: table.table.clone(), constraint: None }));
            }
        }
        for (table, key, written) in writes().filter(|(.., written)| !written.is_empty()) {
            self.put(&table.table, &table.primary_key, key, written);
        }
        Ok(())
    }

    /// Whether a start may insert its rows.
    pub fn check_insert(
        &self,
        run: &Run,
        attributes: &BTreeMap<String, Json>,
        mode: ConflictMode,
    ) -> Result<(), Box<Refused>> {
        for (table, key) in run.rows() {
            let is_written = !written(table, attributes).is_empty();
            if mode == ConflictMode::ReturnError && is_written && self.found(table, key).is_some() {
                let name = table.table.rsplit('.').next().unwrap_or_default();
                let constraint = format!("{name}_pkey");
                let message = format!("table {} already has a row with {}", table.table, row_of(table, key));
                let refusal = Refusal::new(b"23505", message);
                return Err(Box::new(Refused { refusal, table: table.table.clone(), constraint: Some(constraint) }));
            }
        }
        Ok(())
    }

    /// Inserts the row of each table that has one of these attributes, at the start of a process.
    pub fn insert(&mut self, run: &Run, attributes: &BTreeMap<String, Json>, mode: ConflictMode) {
        for (table, key) in run.rows() {
            let written = written(table, attributes);
            let is_left = mode == ConflictMode::Ignore && self.found(table, key).is_some();
            if !written.is_empty() && !is_left {
                self.put(&table.table, &table.primary_key, key, written);
            }
        }
    }

    /// Writes columns of the row with this key, which is made where it is not there.
    pub fn put(&mut self, table: &str, columns: &[String], key: &[String], values: Row) {
        let rows = &mut self.table(table).rows;
        match rows.iter_mut().find(|row| has_key(row, columns, key)) {
            Some(row) => row.extend(values),
            None => {
                // A string always has a JSON form.
                let text = |text: &String| Json::from_trusted(serde_json::to_string(text).unwrap_or_default());
                let mut row: Row = columns.iter().cloned().zip(key.iter().map(text)).collect();
                row.extend(values);
                rows.push(row);
            }
        }
    }

    /// The rows of a table, or those with this key.
    pub fn rows(&self, table: &str, columns: &[String], key: &[String]) -> Vec<&Row> {
        let rows = self.tables.get(&full_name(table)).into_iter().flat_map(|table| &table.rows);
        rows.filter(|row| has_key(row, columns, key)).collect()
    }

    /// Deletes the rows with this key.
    pub fn delete(&mut self, table: &str, columns: &[String], key: &[String]) {
        self.table(table).rows.retain(|row| !has_key(row, columns, key));
    }
}
