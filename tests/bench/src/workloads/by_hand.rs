//! Writes the rows of a start by plain INSERTs: the rows of one real start with other ids.

use std::time::{SystemTime, UNIX_EPOCH};

use postgres::Statement;
use postgres::types::ToSql;
use xdb_cluster_tests::db::{Db, literal};

/// The process id of the real start. Its rows contain this text nowhere else.
pub const TEMPLATE: &str = "the-template";

/// Tables that a start writes to, in the order in which it may lock their rows.
const TABLES: [&str; 5] = ["latest_execution", "process_execution", "state_execution", "task", "history_event"];

/// The rows of a start.
pub struct Template {
    execution_id: String,
    rows: Vec<Vec<Cell>>,
    tables: Vec<&'static str>,
}

/// A column with its value.
struct Cell {
    column: String,
    column_type: String,
    value: Option<String>,
}

/// A prepared INSERT, and the texts of its parameters with the ids of the template.
pub struct Prepared {
    execution_id: String,
    inserts: Vec<(Statement, Vec<String>)>,
}

impl Template {
    /// Reads the rows of the process [`TEMPLATE`].
    pub fn read(db: &mut Db) -> Result<Template, String> {
        let of_process = format!("process_id = '{TEMPLATE}'");
        let execution_id: String =
            db.one(&format!("SELECT execution_id::text FROM xdb.latest_execution WHERE {of_process}"));
        let (mut rows, mut tables) = (Vec::new(), Vec::new());
        for table in TABLES {
            let columns: Vec<(String, String)> = {
                let sql = format!(
                    "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
                     WHERE attrelid = 'xdb.{table}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
                );
                let found = db.client().query(&sql, &[]).map_err(|error| error.to_string())?;
                found.iter().map(|row| (row.get(0), row.get(1))).collect()
            };
            for row in db.rows(&format!("SELECT * FROM xdb.{table} WHERE execution_id = '{execution_id}'")) {
                let cell = |(column, column_type): &(String, String)| Cell {
                    value: match &row[column] {
                        serde_json::Value::Null => None,
                        serde_json::Value::String(text) => Some(text.clone()),
                        other => Some(other.to_string()),
                    },
                    column: column.clone(),
                    column_type: column_type.clone(),
                };
                rows.push(columns.iter().map(cell).collect());
                tables.push(table);
            }
        }
        Ok(Template { execution_id, rows, tables })
    }

    /// Prepares an INSERT for each row.
    pub fn prepare(&self, db: &mut Db) -> Result<Prepared, String> {
        let mut inserts = Vec::new();
        for (table, row) in std::iter::zip(&self.tables, &self.rows) {
            let mut parameters = Vec::new();
            let sql = self.insert_sql(table, row, &mut parameters);
            inserts.push((prepare(db, &sql)?, parameters));
        }
        Ok(Prepared { execution_id: self.execution_id.clone(), inserts })
    }

    /// Prepares one statement with all INSERTs.
    pub fn prepare_in_one(&self, db: &mut Db) -> Result<Prepared, String> {
        let mut parameters = Vec::new();
        let inserts: Vec<String> = std::iter::zip(&self.tables, &self.rows)
            .enumerate()
            .map(|(number, (table, row))| format!("i{number} AS ({})", self.insert_sql(table, row, &mut parameters)))
            .collect();
        let statement = prepare(db, &format!("WITH {} SELECT", inserts.join(", ")))?;
        Ok(Prepared { execution_id: self.execution_id.clone(), inserts: vec![(statement, parameters)] })
    }

    /// An INSERT for a row. Values that contain one of the template's ids become parameters. All other values stay.
    fn insert_sql(&self, table: &str, row: &[Cell], parameters: &mut Vec<String>) -> String {
        let value = |cell: &Cell| match &cell.value {
            None => "NULL".to_owned(),
            Some(text) if text.contains(TEMPLATE) || text.contains(&self.execution_id) => {
                let known = parameters.iter().position(|parameter| parameter == text);
                let place = known.unwrap_or_else(|| {
                    parameters.push(text.clone());
                    parameters.len() - 1
                });
                format!("${}::text::{}", place + 1, cell.column_type)
            }
            Some(text) => format!("{}::{}", literal(text), cell.column_type),
        };
        let columns: Vec<&str> = row.iter().map(|cell| cell.column.as_str()).collect();
        let values: Vec<String> = row.iter().map(value).collect();
        format!("INSERT INTO xdb.{table} ({}) VALUES ({})", columns.join(", "), values.join(", "))
    }
}

fn prepare(db: &mut Db, sql: &str) -> Result<Statement, String> {
    db.client().prepare(sql).map_err(|error| format!("{sql}\n{error}"))
}

impl Prepared {
    /// Inserts all rows in one transaction.
    pub fn insert(&self, db: &mut Db, process_id: &str) -> Result<(), String> {
        let failed = |error: postgres::Error| format!("by hand: {error}");
        let execution_id = new_execution_id(process_id);
        let mut transaction = db.client().transaction().map_err(failed)?;
        for (statement, parameters) in &self.inserts {
            let values = self.values(parameters, process_id, &execution_id);
            transaction.execute(statement, &references(&values)).map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    /// Inserts all rows by one statement, which is its own transaction.
    pub fn insert_in_one(&self, db: &mut Db, process_id: &str) -> Result<(), String> {
        let (statement, parameters) = &self.inserts[0];
        let values = self.values(parameters, process_id, &new_execution_id(process_id));
        db.client().execute(statement, &references(&values)).map(drop).map_err(|error| format!("by hand: {error}"))
    }

    fn values(&self, parameters: &[String], process_id: &str, execution_id: &str) -> Vec<String> {
        parameters
            .iter()
            .map(|text| text.replace(TEMPLATE, process_id).replace(&self.execution_id, execution_id))
            .collect()
    }
}

fn references(values: &[String]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

/// A UUID of version 7, like the engine's, so the indexes grow in the same places. In place of random bits it has a
/// hash of the process id, which is unique.
fn new_execution_id(process_id: &str) -> String {
    let milliseconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let hash = xdb_cluster_tests::random::Random::new(0, process_id).below(1 << 60);
    format!(
        "{:08x}-{:04x}-7{:03x}-8{:03x}-{:012x}",
        (milliseconds >> 16) as u32,
        milliseconds as u16,
        hash >> 48 & 0xfff,
        hash >> 36 & 0xfff,
        hash & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(column: &str, value: Option<&str>) -> Cell {
        Cell { column: column.into(), column_type: "text".into(), value: value.map(str::to_owned) }
    }

    #[test]
    fn a_value_with_an_id_is_a_parameter_and_is_passed_once() {
        let template = Template { execution_id: "e-1".into(), rows: Vec::new(), tables: Vec::new() };
        let row = [
            cell("a", Some("e-1")),
            cell("b", Some("it's")),
            cell("c", None),
            cell("d", Some("of the-template")),
            cell("e", Some("e-1")),
        ];
        let mut parameters = Vec::new();
        let sql = template.insert_sql("t", &row, &mut parameters);
        assert_eq!(
            sql,
            "INSERT INTO xdb.t (a, b, c, d, e) VALUES ($1::text::text, 'it''s'::text, NULL, $2::text::text, $1::text::text)"
        );
        let prepared = Prepared { execution_id: "e-1".into(), inserts: Vec::new() };
        assert_eq!(prepared.values(&parameters, "p", "e-2"), ["e-2", "of p"]);
    }

    #[test]
    fn execution_ids_have_the_form_of_a_uuid_and_differ() {
        let (one, other) = (new_execution_id("p-1"), new_execution_id("p-2"));
        assert_ne!(one, other);
        assert_eq!(one.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert_eq!((&one[14..15], &one[19..20]), ("7", "8"));
    }
}
