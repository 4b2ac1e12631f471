//! For tests: compares what the Rust code knows of the tables with the catalog. So a rename on one side only is found.

use super::table::{Column, Record, Table};
use super::*;
use crate::pg::function::{Args, Value};
use crate::pg::index_plans::ByIndex;
use crate::pg::param::{array, value};
use crate::pg::spi::{self, Spi, Statement};
use crate::pg::subxact::guarded;
use std::collections::BTreeMap;

/// All statements, by file.
fn statements() -> impl Iterator<Item = &'static Statement> {
    macro_rules! of_files {
        ($($file:ident)+) => { [STATEMENTS, check::STATEMENTS, check::ROWS, check::VALUES, $($file::STATEMENTS),+] };
    }
    let files = of_files! {
        adopt app_functions attribute catalog changes children claim correlated counted crashes engine execution global_queue
        global_waiter history inbox instance left_behind lines locks owners parked pauses process process_lock pull
        purge queue
        quotas registering registry role_settings save slow state subscription timer usage worker_secret
    };
    files.into_iter().flatten().copied()
}

struct SystemTable {
    name: &'static str,
    key: &'static [&'static str],
    columns: &'static [Column],
}

fn tables() -> Vec<SystemTable> {
    macro_rules! of {
        ($($($table:ident)::+)+) => {
            vec![$(SystemTable { name: $($table)::+::NAME, key: $($table)::+::KEY, columns: $($table)::+::COLUMNS }),+]
        };
    }
    of! {
        attribute::LocalAttribute claim::Task correlated::CorrelatedStart engine::Engine execution::Process
        global_queue::GlobalQueueMessage global_queue::UsedKey global_waiter::PassedOver
        global_waiter::GlobalWaiter history::HistoryEvent inbox::Inbox inbox::MessageKey instance::Instance
        instance::RegistrationCount instance::Registrations process::Latest process::StoredRpcAnswer process_lock::ProcessLock
        purge::Purged queue::QueueMessage queue::QueueWaiter registry::MappedTable registry::TypeRow
        registry::WorkerRow state::State timer::Timer worker_secret::SecretRow
    }
}

table::statements! {
    COLUMNS = "SELECT a.attname::text AS name, pg_catalog.format_type(a.atttypid, NULL) AS type, NOT a.attnotnull AS nullable \
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = ('xdb.' || $1::text)::regclass AND a.attnum > 0 AND NOT a.attisdropped";
    KEY = "SELECT a.attname::text AS name FROM pg_catalog.pg_index i \
        CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, n) \
        JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum \
        WHERE i.indrelid = ('xdb.' || $1::text)::regclass AND i.indisprimary ORDER BY k.n";
    OTHERS = "SELECT c.relname::text AS name FROM pg_catalog.pg_class c \
        WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind = 'r' AND c.relname <> ALL ($1::text[])";
}

/// The name of the type as `format_type` gives it.
fn type_name(column: &Column) -> &'static str {
    match column.of.column {
        "bool" => "boolean",
        "int2" => "smallint",
        "int4" => "integer",
        "int8" => "bigint",
        "timestamptz" => "timestamp with time zone",
        other => other,
    }
}

crate::sql_functions! {
    xdb_store_problems / pg_finfo_xdb_store_problems => problems;
    xdb_store_plans / pg_finfo_xdb_store_plans => plans;
    xdb_store_statements / pg_finfo_xdb_store_statements => texts;
}

/// `xdb_store_problems()`: the differences, as a JSON array of texts.
pub fn problems(_: &Args) -> Result<Value> {
    let problems = spi::connect(|spi| {
        let mut problems = Vec::new();
        for table in tables() {
            compare(spi, &table, &mut problems)?;
        }
        let known: Vec<_> = tables().iter().map(|table| table.name).collect();
        let others = spi.rows(&OTHERS, &[array(known)], |row| row.get::<String>("name"))?;
        problems.extend(others.into_iter().map(|name| format!("{name} is not described")));
        for statement in statements() {
            if let Err(error) = prepare(spi, statement) {
                problems.push(format!("{}: {error}", statement.name));
            }
        }
        Ok(problems)
    })?;
    Ok(Value::Json(to_json(&problems)?))
}

/// `xdb_store_plans()`: the plan of each statement, as JSON: the statement's name, and the lines of its plan.
pub fn plans(_: &Args) -> Result<Value> {
    let plans = spi::connect(|spi| {
        let plans = statements().map(|statement| Ok((statement.name, plan(spi, statement)?)));
        plans.collect::<Result<BTreeMap<_, _>>>()
    })?;
    Ok(Value::Json(to_json(&plans)?))
}

/// `xdb_store_statements()`: all statements, as JSON: name and text.
pub fn texts(_: &Args) -> Result<Value> {
    let texts: BTreeMap<_, _> = statements().map(|statement| (statement.name, statement.text())).collect();
    Ok(Value::Json(to_json(&texts)?))
}

fn plan(spi: &Spi, statement: &'static Statement) -> Result<Vec<String>> {
    let text = statement.text();
    let last = (1..).find(|number| !text.contains(&format!("${number}"))).unwrap_or(1);
    let parameters = vec!["NULL"; last - 1].join(", ");
    let parameters = if parameters.is_empty() { parameters } else { format!("({parameters})") };
    spi.utility(&format!("PREPARE xdb_statement AS {text}"))?;
    let lines = {
        let _planning = ByIndex::begin_generic();
        let explain = format!("EXPLAIN (COSTS OFF) EXECUTE xdb_statement{parameters}");
        spi.on_app_tables().rows(&explain, &[], |row| row.get("QUERY PLAN"))?
    };
    spi.utility("DEALLOCATE xdb_statement")?;
    Ok(lines)
}

fn compare(spi: &Spi, table: &SystemTable, problems: &mut Vec<String>) -> Result<()> {
    let name = table.name;
    let found = spi.rows(&COLUMNS, &[value(name)], |row| {
        Ok((row.get::<String>("name")?, (row.get::<String>("type")?, row.get::<bool>("nullable")?)))
    })?;
    let found: BTreeMap<_, _> = found.into_iter().collect();
    let described =
        table.columns.iter().map(|column| (column.name.to_owned(), (type_name(column).to_owned(), column.nullable)));
    let described: BTreeMap<_, _> = described.collect();
    for column in found.keys().chain(described.keys()).collect::<std::collections::BTreeSet<_>>() {
        let (is, should_be) = (found.get(column), described.get(column));
        if is != should_be {
            problems.push(format!("{name}.{column} is {is:?} in the catalog and {should_be:?} here"));
        }
    }
    let key = spi.rows(&KEY, &[value(name)], |row| row.get::<String>("name"))?;
    if key != table.key {
        problems.push(format!("the key of {name} is {key:?} in the catalog and {:?} here", table.key));
    }
    Ok(())
}

/// Whether Postgres accepts the statement: it finds all names, and a type for each parameter.
fn prepare(spi: &Spi, statement: &'static Statement) -> Result<()> {
    guarded(|| {
        spi.utility(&format!("PREPARE xdb_statement AS {}", statement.text()))?;
        spi.utility("DEALLOCATE xdb_statement")
    })
}
