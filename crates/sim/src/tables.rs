//! The application's tables: rows of JSON values.
//!
//! Limitations: no types, no constraints. Keys are compared as text.

use crate::run::Run;
use std::collections::BTreeMap;
use xdb_engine::{AppDatabaseError, Failure, Json, Loading, TableMapping};
use xdb_protocol::ConflictMode;
use xdb_protocol::arguments::key_text;
use xdb_protocol::refusal::Refusal;

/// A row: column to value.
pub type TableRow = BTreeMap<String, Json>;

/// All tables by full name.
#[derive(Clone, Default)]
pub(crate) struct TablesInMemory(BTreeMap<String, Vec<TableRow>>);

/// A write that a table has refused.
#[derive(Debug)]
pub(crate) struct Refused {
    pub refusal: Refusal,
    table: String,
}

impl Refused {
    fn of(table: &TableMapping, key: &[String], state: &'static [u8; 5], what: &str) -> Box<Self> {
        let values = table.primary_key.iter().zip(key).map(|(column, text)| format!("{column} = {text}"));
        let message = format!("table {} {what} {}", table.table, values.collect::<Vec<_>>().join(" and "));
        Box::new(Self { refusal: Refusal::new(state, message), table: table.table.clone() })
    }

    /// The failure of the attempt whose answer was refused.
    pub fn failure(self) -> Failure {
        let (sql_state, message) = (self.refusal.sqlstate().to_owned(), self.refusal.message);
        let detail = format!("{message} ({sql_state})");
        let error = AppDatabaseError { sql_state, message, table: Some(self.table), constraint: None };
        Failure { app_database_error: Some(error), ..Failure::of("AppDatabaseError", detail) }
    }
}

/// The name with its schema. A table without a schema is in `public`.
pub(crate) fn full_name(table: &str) -> String {
    if table.contains('.') { table.to_owned() } else { format!("public.{table}") }
}

fn has_key(row: &TableRow, columns: &[String], key: &[String]) -> bool {
    columns.iter().zip(key).all(|(column, text)| row.get(column).is_some_and(|value| key_text(value) == *text))
}

impl TablesInMemory {
    fn table(&mut self, name: &str) -> &mut Vec<TableRow> {
        self.0.entry(full_name(name)).or_default()
    }

    fn found(&self, table: &TableMapping, key: &[String]) -> Option<&TableRow> {
        self.rows(&table.table, &table.primary_key, key).next()
    }

    /// The loaded attributes of a process, as a JSON object. If a row does not exist, its attributes are null.
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

    /// Updates the rows that have these attributes: all rows or none. At the start of a process rows are inserted, and
    /// `start` decides about existing rows.
    pub fn write(
        &mut self,
        run: &Run,
        attributes: &BTreeMap<String, Json>,
        start: Option<ConflictMode>,
    ) -> Result<(), Box<Refused>> {
        let mut writes = Vec::new();
        for (table, key) in run.rows() {
            let column = |(name, value): (&String, &Json)| Some((table.attributes.get(name)?.clone(), value.clone()));
            let columns: TableRow = attributes.iter().filter_map(column).collect();
            match (start, self.found(table, key)) {
                _ if columns.is_empty() => {}
                (None, None) => return Err(Refused::of(table, key, b"02000", "has no row with")),
                (Some(ConflictMode::ReturnError), Some(_)) => {
                    return Err(Refused::of(table, key, b"23505", "already has a row with"));
                }
                (Some(ConflictMode::Ignore), Some(_)) => {}
                _ => writes.push((table, key, columns)),
            }
        }
        for (table, key, columns) in writes {
            self.put(&table.table, &table.primary_key, key, columns);
        }
        Ok(())
    }

    /// Writes columns of the row with this key. If the row does not exist, it is inserted.
    pub fn put(&mut self, table: &str, columns: &[String], key: &[String], values: TableRow) {
        let rows = self.table(table);
        match rows.iter_mut().find(|row| has_key(row, columns, key)) {
            Some(row) => row.extend(values),
            None => {
                // A string always has a JSON form.
                let text = |text: &String| Json::from_trusted(serde_json::to_string(text).unwrap_or_default());
                let mut row: TableRow = columns.iter().cloned().zip(key.iter().map(text)).collect();
                row.extend(values);
                rows.push(row);
            }
        }
    }

    /// The rows with this key. All rows if there are no key columns.
    pub fn rows(&self, table: &str, columns: &[String], key: &[String]) -> impl Iterator<Item = &TableRow> {
        self.0.get(&full_name(table)).into_iter().flatten().filter(|row| has_key(row, columns, key))
    }

    pub fn delete(&mut self, table: &str, columns: &[String], key: &[String]) {
        self.table(table).retain(|row| !has_key(row, columns, key));
    }
}
