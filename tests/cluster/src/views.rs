//! Everything that tests read from the views. Only this file has the names of their columns.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::db::{Db, literal};
use crate::wait::wait_until;
use crate::worker::Worker;

/// Calls of a process that are in backoff or whose retries are spent, oldest first, as JSON objects.
pub fn failures(db: &mut Db, process_id: &str) -> Vec<Value> {
    db.rows(&format!("SELECT * FROM xdb.failures WHERE process_id = {}", literal(process_id)))
}

/// Whether the failures of the process mention all of these words, in any column.
pub fn fails_saying(db: &mut Db, process_id: &str, words: &[&str]) -> bool {
    let text = failures_as_text(db, process_id);
    words.iter().all(|word| text.contains(&word.to_lowercase()))
}

/// Whether they mention at least one of these words.
pub fn fails_saying_one_of(db: &mut Db, process_id: &str, words: &[&str]) -> bool {
    let text = failures_as_text(db, process_id);
    words.iter().any(|word| text.contains(&word.to_lowercase()))
}

/// In lower case, with quotes as people read them.
fn failures_as_text(db: &mut Db, process_id: &str) -> String {
    Value::Array(failures(db, process_id)).to_string().replace("\\\"", "\"").to_lowercase()
}

/// How many processes of these ids have this status. `pattern` is a LIKE pattern.
pub fn with_status(db: &mut Db, pattern: &str, status: &str) -> i64 {
    let (pattern, status) = (literal(pattern), literal(status));
    db.count(&format!("xdb.processes WHERE process_id LIKE {pattern} AND status = {status}"))
}

/// What a process waits for, as JSON objects.
pub fn waits(db: &mut Db, process_id: &str) -> Vec<Value> {
    db.rows(&format!("SELECT * FROM xdb.waits WHERE process_id = {}", literal(process_id)))
}

/// Messages of a process that were not consumed yet.
pub fn messages(db: &mut Db, process_id: &str) -> i64 {
    db.count(&format!("xdb.queue_messages WHERE process_id = {}", literal(process_id)))
}

/// How many steps of a process have completed.
pub fn ended_states(db: &mut Db, process_id: &str) -> i64 {
    let process_id = literal(process_id);
    db.count(&format!("xdb.state_executions WHERE process_id = {process_id} AND status = 'COMPLETED'"))
}

/// Timers of a process that have not fired.
pub fn timers(db: &mut Db, process_id: &str) -> i64 {
    db.count(&format!("xdb.timers WHERE process_id = {}", literal(process_id)))
}

/// Events of a process.
pub fn events(db: &mut Db, process_id: &str) -> i64 {
    db.count(&format!("xdb.history WHERE process_id = {}", literal(process_id)))
}

/// Checks that the history of a process with one execution has all events, in the order of their times.
pub fn assert_history_is_whole(db: &mut Db, process_id: &str) {
    let process_id = literal(process_id);
    let whole = db.one::<bool>(&format!(
        "SELECT count(*) > 0 AND bool_and(next IS NULL OR next = event_id + 1 AND next_time >= event_time)
         FROM (SELECT event_id, event_time, lead(event_id) OVER w AS next, lead(event_time) OVER w AS next_time
               FROM xdb.history WHERE process_id = {process_id} WINDOW w AS (ORDER BY event_id)) events"
    ));
    assert!(whole, "the history of {process_id} has a hole");
}

/// The row of `xdb.status()`, as text: slow tables, the last error.
pub fn engine(db: &mut Db) -> String {
    db.text("SELECT to_json(s) FROM xdb.status() s")
}

/// The facts about a database that a reader of a failed test needs.
pub fn dump(db: &mut Db) -> String {
    let mut text = String::new();
    for (title, query) in [
        ("xdb.status()", "SELECT to_json(s)::text FROM xdb.status() s"),
        ("xdb.processes", "SELECT to_json(p)::text FROM xdb.processes p LIMIT 20"),
        ("xdb.failures", "SELECT to_json(f)::text FROM xdb.failures f LIMIT 20"),
        ("xdb.waits", "SELECT to_json(w)::text FROM xdb.waits w LIMIT 20"),
    ] {
        let rows = db.try_all::<String>(query);
        text.push_str(&format!("--- {title} ---\n"));
        match rows {
            Ok(rows) => rows.iter().for_each(|row| text.push_str(&format!("{row}\n"))),
            Err(error) => text.push_str(&format!("{error:?}\n")),
        }
    }
    text
}

/// Checks that the engine of a copy waits to be adopted: it polls several times, and calls no worker.
pub fn waits_for_adopt(cluster: &Cluster, database: &str, worker: &Worker) {
    let mut db = cluster.connect(database, "postgres");
    let shown = |db: &mut Db| db.one::<String>("SELECT concat_ws(': ', state, reason) FROM xdb.status()");
    wait_until("the engine says that it waits", 20, || shown(&mut db).starts_with("waiting for adopt: "));
    assert!(shown(&mut db).contains("xdb.adopt()"), "{}", shown(&mut db));
    let calls = worker.calls().len();
    // Its turns go on; each would have found the calls and timers that are due.
    let turns = "SELECT sum(n_tup_upd + seq_scan + COALESCE(idx_scan, 0))::int8 FROM pg_stat_all_tables WHERE schemaname = 'xdb' AND relname IN ('engine', 'registry')";
    let before: i64 = db.one(turns);
    wait_until("turns were made", 20, || {
        db.run("SELECT pg_stat_clear_snapshot()");
        db.one::<i64>(turns) > before + 4
    });
    assert_eq!(worker.calls().len(), calls);
    let problems: Vec<String> = db.all(
        "SELECT format('%s: %s', p.process_id, c.problem) FROM xdb.processes p, xdb.check_process(p.process_id, p.execution_id) c",
    );
    assert_eq!(problems, Vec::<String>::new());
}

/// Orders of the example `queue-starts` whose work began before the process of the order before, of the same customer, had
/// closed, or that have overtaken it.
pub fn orders_begun_too_early(db: &mut Db) -> i64 {
    db.count(
        "(SELECT o.number::int < lag(o.number::int) OVER w OR o.taken_at < lag(p.closed_at) OVER w AS wrong
            FROM public.orders AS o JOIN xdb.processes AS p ON p.process_id = 'order-' || o.number
            WINDOW w AS (PARTITION BY o.customer ORDER BY o.taken_at)) AS o WHERE wrong",
    )
}
