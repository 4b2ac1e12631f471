//! A session with the database. A failed statement is a panic that names the statement, unless the test expects the
//! error.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use postgres::types::FromSqlOwned;
use postgres::{Client, NoTls, SimpleQueryMessage};
use serde_json::{Value, json};

use crate::cluster::{Cluster, PORT};
use crate::wait::wait_until;

/// An error as the server reports it.
#[derive(Debug, Clone, PartialEq)]
pub struct SqlError {
    /// The SQLSTATE. `08006` if the connection was lost.
    pub code: String,
    /// The primary message.
    pub message: String,
    /// DETAIL, or an empty text.
    pub detail: String,
    /// HINT, or an empty text.
    pub hint: String,
    /// The field for the name of a type, or an empty text.
    pub datatype: String,
}

impl SqlError {
    /// An error with a SQLSTATE and a message only.
    pub fn new(code: &str, message: &str) -> SqlError {
        let (detail, hint, datatype) = Default::default();
        SqlError { code: code.into(), message: message.into(), detail, hint, datatype }
    }

    /// Whether the connection was lost, or could not be made. Such an error says nothing about the result of a
    /// transaction.
    pub fn is_lost(&self) -> bool {
        matches!(&*self.code, "57P01" | "57P02" | "57P03" | "57P05") || self.code.starts_with("08")
    }
}

impl From<postgres::Error> for SqlError {
    fn from(error: postgres::Error) -> Self {
        match error.as_db_error() {
            Some(error) => SqlError {
                code: error.code().code().into(),
                message: error.message().into(),
                detail: error.detail().unwrap_or_default().into(),
                hint: error.hint().unwrap_or_default().into(),
                datatype: error.datatype().unwrap_or_default().into(),
            },
            None => SqlError::new("08006", &error.to_string()),
        }
    }
}

/// One session.
pub struct Db {
    client: Client,
    notices: Arc<Mutex<Vec<String>>>,
}

impl Db {
    pub(crate) fn connect(cluster: &Cluster, database: &str, role: &str, within: Duration) -> Result<Db, SqlError> {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let heard = notices.clone();
        let client = Client::configure()
            .host_path(cluster.socket_directory())
            .port(PORT)
            .dbname(database)
            .user(role)
            .application_name("xdb tests")
            // Whatever goes wrong, no session waits for ever: a test that fails has to end.
            .options("-c statement_timeout=90s")
            .connect_timeout(within)
            .notice_callback(move |notice| {
                let text =
                    [Some(notice.message()), notice.detail()].into_iter().flatten().collect::<Vec<_>>().join("; ");
                heard
                    .lock()
                    .expect("no thread panics while it holds this")
                    .push(format!("{}: {text}", notice.severity()));
            })
            .connect(NoTls)?;
        Ok(Db { client, notices })
    }

    /// The notices since the last call: severity, message and detail of each.
    pub fn notices(&self) -> Vec<String> {
        std::mem::take(&mut *self.notices.lock().expect("no thread panics while it holds this"))
    }

    /// Runs one or more statements.
    pub fn run(&mut self, sql: &str) {
        self.try_run(sql).unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    }

    /// Runs one or more statements, which may fail.
    pub fn try_run(&mut self, sql: &str) -> Result<(), SqlError> {
        Ok(self.client.batch_execute(sql)?)
    }

    /// Runs a function again while it fails to serialize, as an application with serializable transactions does.
    pub fn again<T>(&mut self, statement: impl Fn(&mut Db) -> Result<T, SqlError>) -> Result<T, SqlError> {
        let mut result = None;
        wait_until("a statement serializes", 20, || {
            result = Some(statement(self));
            !matches!(&result, Some(Err(error)) if error.code == "40001")
        });
        result.expect("it was run")
    }

    /// Runs a statement, and runs it again while it fails to serialize.
    pub fn repeated(&mut self, sql: &str) {
        self.again(|db| db.try_run(sql)).unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    }

    /// The error of a statement that has to fail with the given SQLSTATE.
    pub fn refused(&mut self, code: &str, sql: &str) -> SqlError {
        match self.try_run(sql) {
            Ok(()) => panic!("expected {code}, but it worked: {sql}"),
            Err(error) => {
                assert_eq!(error.code, code, "{sql}\n{error:?}");
                if code.starts_with("XD") {
                    // An acronym may stand at the beginning.
                    let sentence = matches!(error.message.as_bytes(), [b'A'..=b'Z', b'a'..=b'z' | b' ', ..]);
                    assert!(!sentence, "messages begin in lower case: {}", error.message);
                }
                error
            }
        }
    }

    /// The client below, for prepared statements, parameters and transactions.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Drops a database, within half a minute. `how` is empty, or `WITH (FORCE)`.
    pub fn drop_database(&mut self, name: &str, how: &str) {
        // It ends with a checkpoint, which takes its time on a busy disk.
        // Two statements in one message would be a transaction block, where databases can't be dropped.
        self.run("SET statement_timeout = '120 s'");
        self.run(&format!("DROP DATABASE IF EXISTS {name} {how}"));
        self.run("RESET statement_timeout");
    }

    /// The one value of a query's one row.
    pub fn one<T: FromSqlOwned>(&mut self, sql: &str) -> T {
        match self.client.query_one(sql, &[]) {
            Ok(row) => row.try_get(0).unwrap_or_else(|error| panic!("{sql}\n{error:?}")),
            Err(error) => panic!("{sql}\n{:?}", SqlError::from(error)),
        }
    }

    /// The one value of a query, which may fail.
    pub fn try_one<T: FromSqlOwned>(&mut self, sql: &str) -> Result<T, SqlError> {
        Ok(self.client.query_one(sql, &[])?.get(0))
    }

    /// The value of a query with one row, or None without a row. The query may fail.
    pub fn try_maybe<T: FromSqlOwned>(&mut self, sql: &str) -> Result<Option<T>, SqlError> {
        Ok(self.client.query_opt(sql, &[])?.map(|row| row.get(0)))
    }

    /// The first column of all rows.
    pub fn all<T: FromSqlOwned>(&mut self, sql: &str) -> Vec<T> {
        self.try_all(sql).unwrap_or_else(|error| panic!("{sql}\n{error:?}"))
    }

    /// The first column of all rows of a query, which may fail.
    pub fn try_all<T: FromSqlOwned>(&mut self, sql: &str) -> Result<Vec<T>, SqlError> {
        Ok(self.client.query(sql, &[])?.iter().map(|row| row.get(0)).collect())
    }

    /// `SELECT count(*) FROM <rest>`.
    pub fn count(&mut self, rest: &str) -> i64 {
        self.one(&format!("SELECT count(*) FROM {rest}"))
    }

    /// The text of a query's one value, as psql shows it.
    pub fn text(&mut self, sql: &str) -> String {
        let text = self.try_text(sql).unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
        text.unwrap_or_else(|| panic!("no row: {sql}"))
    }

    /// The same, or None without a row. The query may fail. It is one simple message: the client prepares the other
    /// queries first, and hears no error that comes after their description, such as one of a statement timeout. In a
    /// transaction block, the next statement would fail with 25P02.
    pub fn try_text(&mut self, sql: &str) -> Result<Option<String>, SqlError> {
        Ok(self.client.simple_query(sql)?.into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("NULL").to_owned()),
            _ => None,
        }))
    }

    /// The one `json` or `jsonb` value of a query. SQL's NULL becomes JSON's null.
    pub fn json(&mut self, sql: &str) -> Value {
        match self.text(sql).as_str() {
            "NULL" => Value::Null,
            text => serde_json::from_str(text).unwrap_or_else(|error| panic!("{sql}\n{error}: {text}")),
        }
    }

    /// All rows of a query, each as a JSON object.
    pub fn rows(&mut self, sql: &str) -> Vec<Value> {
        match self.json(&format!("SELECT coalesce(json_agg(q), '[]') FROM ({sql}) q")) {
            Value::Array(rows) => rows,
            other => panic!("{sql}\nnot an array: {other}"),
        }
    }

    /// A start, which the methods of [`Start`] complete.
    pub fn start<'a>(&'a mut self, process_id: &str, process_type: &str) -> Start<'a> {
        Start {
            db: self,
            arguments: vec![("process_id", literal(process_id)), ("process_type", literal(process_type))],
        }
    }

    /// Publishes to a local queue.
    pub fn publish(&mut self, process_id: &str, queue: &str, message: Value) {
        self.run(&format!("SELECT xdb.publish({}, {}, {})", literal(process_id), literal(queue), jsonb(&message)));
    }

    /// Invokes an RPC.
    pub fn rpc(&mut self, process_id: &str, name: &str, input: Value) -> Value {
        let (process_id, name) = (literal(process_id), literal(name));
        self.json(&format!("SELECT xdb.invoke_rpc({process_id}, {name}, {})", jsonb(&input)))
    }

    /// Waits until a process is closed. Returns how it ended.
    pub fn outcome(&mut self, process_id: &str) -> Outcome {
        let answer = self.json(&format!("SELECT xdb.wait_for_process({}, '60 seconds')", literal(process_id)));
        assert_ne!(answer["timedOut"], Value::Bool(true), "{process_id} does not end: {answer}");
        Outcome(answer)
    }

    /// Waits until a process has completed.
    pub fn completes(&mut self, process_id: &str) -> Outcome {
        let outcome = self.outcome(process_id);
        assert_eq!(outcome.status(), "COMPLETED", "{process_id}: {}", outcome.0);
        outcome
    }

    /// The status that `describe_process` reports.
    pub fn status(&mut self, process_id: &str) -> String {
        let sql = format!("SELECT xdb.describe_process({})->>'status'", literal(process_id));
        self.text(&sql)
    }
}

/// The end of a process, as `wait_for_process` returns it.
pub struct Outcome(Value);

impl Outcome {
    /// COMPLETED, FAILED, TIMEOUT or TERMINATED.
    pub fn status(&self) -> &str {
        self.0["status"].as_str().unwrap_or_else(|| panic!("no status: {}", self.0))
    }

    /// The result, if there is exactly one.
    pub fn result(&self) -> &Value {
        &self.0["result"]
    }

    /// All results.
    pub fn results(&self) -> &Vec<Value> {
        self.0["results"].as_array().unwrap_or_else(|| panic!("no results: {}", self.0))
    }
}

/// A call of `xdb.start_process` that is being built.
#[must_use = "nothing is started before `go`"]
pub struct Start<'a> {
    db: &'a mut Db,
    arguments: Vec<(&'static str, String)>,
}

impl Start<'_> {
    fn with(mut self, name: &'static str, value: String) -> Self {
        self.arguments.push((name, value));
        self
    }

    /// The input of the starting state.
    pub fn input(self, input: Value) -> Self {
        self.with("input", jsonb(&input))
    }

    /// The key of the rows that hold the global attributes.
    pub fn key(self, key: &str) -> Self {
        self.with("global_attribute_pk", literal(key))
    }

    /// The same key in the columns of several tables. Each is given as `(table, column)`.
    pub fn keys(self, tables: &[(&str, &str)], key: &str) -> Self {
        let keys: Value = tables.iter().map(|(table, column)| (table.to_string(), json!({*column: key}))).collect();
        self.options(json!({"globalAttributeKeys": keys}))
    }

    /// Initial global attributes.
    pub fn globals(self, attributes: Value) -> Self {
        self.with("global_attributes", jsonb(&attributes))
    }

    /// Initial local attributes.
    pub fn locals(self, attributes: Value) -> Self {
        self.with("local_attributes", jsonb(&attributes))
    }

    /// The policy for an id that is in use.
    pub fn reuse(self, policy: &str) -> Self {
        self.with("id_reuse_policy", literal(policy))
    }

    /// The process's timeout, as an interval.
    pub fn timeout(self, interval: &str) -> Self {
        self.with("timeout", literal(interval))
    }

    /// The rest of the options.
    pub fn options(self, options: Value) -> Self {
        self.with("options", jsonb(&options))
    }

    /// The statement.
    pub fn sql(&self) -> String {
        let arguments: Vec<String> = self.arguments.iter().map(|(name, value)| format!("{name} => {value}")).collect();
        format!("SELECT xdb.start_process({})::text", arguments.join(", "))
    }

    /// Starts the process. Returns the UUID of the execution.
    pub fn go(self) -> String {
        let sql = self.sql();
        self.db.one(&sql)
    }

    /// Starts the process, or returns the error.
    pub fn try_go(self) -> Result<String, SqlError> {
        let sql = self.sql();
        self.db.try_one(&sql)
    }

    /// A start that has to be refused with the given SQLSTATE.
    pub fn refused(self, code: &str) -> SqlError {
        let sql = self.sql();
        self.db.refused(code, &sql)
    }
}

/// A quoted SQL literal.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A `jsonb` literal.
pub fn jsonb(value: &Value) -> String {
    format!("{}::jsonb", literal(&value.to_string()))
}
