//! Owners share due work too: timers that fire, and messages that are received. The roles are `app` and `other`.

use xdb_cluster_tests::prelude::*;

/// The time after which timers of these processes are due. The clock is set forward beyond it.
const HOUR: f64 = 3600.0;

/// The role `app` is greedy, and `other` is modest. A `Napper` waits for one timer. A `Sleeper` waits for `timers`
/// timers, which fire `apart` seconds after each other.
fn sleepers(name: &str, timers: usize, apart: f64) -> (App, Worker) {
    let app = App::alone(name, ClusterOptions::default().own_clock());
    let worker = app.worker(move |call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, "Napper") => all_of(&[timer("t", 2.0 * HOUR)]),
        (Api::WaitUntil, _) => {
            all_of(&(0..timers).map(|n| timer(&format!("t{n}"), HOUR + apart * n as f64)).collect::<Vec<_>>())
        }
        (_, "Fan") => next_all(&vec![("Sleeper", json!(null)); THREADS]),
        _ => graceful_complete(json!(null)),
    });
    app.register("napper", &Definition::starting_with("Napper").waiting_step("Napper"));
    app.register("sleeper", &Definition::starting_with("Sleeper").waiting_step("Sleeper"));
    app.register("fan", &Definition::starting_with("Fan").step("Fan").waiting_step("Sleeper"));
    (app, worker)
}

const THREADS: usize = 20;

fn start_many(db: &mut Db, prefix: &str, process_type: &str, count: usize) {
    db.run(&format!(
        "SELECT count(xdb.start_process('{prefix}-' || n, '{process_type}')) FROM generate_series(1, {count}) n"
    ));
}

/// Makes all timers due.
fn hours_pass(app: &App, timers: usize) {
    let mut superuser = app.superuser();
    wait_until("all wait", 60, || superuser.count("xdb.timer") == timers as i64);
    app.cluster().set("xdb.now", "5 hours");
}

fn all_complete(app: &App, count: i64) {
    let mut superuser = app.superuser();
    wait_until("all complete", 120, || views::with_status(&mut superuser, "%", "COMPLETED") == count);
}

const WOKEN: &str =
    "xdb.history_event h JOIN xdb.process_execution p USING (execution_id) WHERE event_type = 'WaitCompleted'";

#[test]
fn thousands_of_due_timers_of_one_do_not_delay_another() {
    const EACH: usize = 60;
    const PROCESSES: usize = 5;
    let (app, _worker) = sleepers("due_timers", EACH, 0.0);
    start_many(&mut app.db(), "greedy", "fan", PROCESSES);
    app.session("other").start("modest", "napper").go();
    hours_pass(&app, PROCESSES * THREADS * EACH + 1);
    all_complete(&app, PROCESSES as i64 + 1);
    let before = app.superuser().count(&format!(
        "{WOKEN} AND process_id LIKE 'greedy-%'
         AND event_time <= (SELECT event_time FROM {WOKEN} AND process_id = 'modest')"
    ));
    // Its timer came due last of all, and is taken with the first.
    assert!(before <= 10, "{before} of {} states went on before it", PROCESSES * THREADS);
    app.done(&[]);
}

#[test]
fn one_turn_fires_a_limited_number_of_timers() {
    const EACH: usize = 1000;
    const PROCESSES: usize = 12;
    let (app, _worker) = sleepers("due_wide", EACH, 1.0);
    start_many(&mut app.db(), "greedy", "sleeper", PROCESSES);
    hours_pass(&app, PROCESSES * EACH);
    all_complete(&app, PROCESSES as i64);
    let most: i64 = app
        .superuser()
        .one(&format!("SELECT max(n) FROM (SELECT count(*) AS n FROM {WOKEN} GROUP BY h.xmin::text) AS turns"));
    assert!(most <= 5, "{most} states with {EACH} timers each went on in one turn");
    app.done(&[]);
}

/// Publishes these messages while the engine is paused. Returns how many messages of the greedy role were received
/// before the message of the modest role.
fn received_before(app: &App, publish: &str, modest: &str, count: i64) -> i64 {
    let mut superuser = app.superuser();
    app.pause();
    app.db().run(publish);
    app.session("other").run(&format!("SELECT xdb.publish('modest', 'letters', to_jsonb({modest}))"));
    superuser.run("SELECT xdb.resume_engine()");
    let received = "xdb.queue_message m JOIN xdb.process_execution p USING (execution_id) WHERE true";
    wait_until("all are received", 120, || superuser.count(received) == count + 1);
    superuser.count(&format!(
        "{received} AND process_id LIKE 'greedy-%'
         AND received_at <= (SELECT received_at FROM {received} AND process_id = 'modest')"
    ))
}

/// Processes that run and read no messages.
fn readers(name: &str, count: usize) -> (App, Worker) {
    readers_of(App::new(name), count)
}

fn readers_of(app: App, count: usize) -> (App, Worker) {
    let worker = app.worker(|_| any_of(&[local_queue("m", "never", 1)]));
    app.register("reader", &mailbox());
    start_many(&mut app.db(), "greedy", "reader", count);
    app.session("other").start("modest", "reader").go();
    let mut superuser = app.superuser();
    wait_until("all wait", 60, || superuser.count("xdb.waits") == count as i64 + 1);
    (app, worker)
}

#[test]
fn large_messages_of_one_do_not_delay_another() {
    const MESSAGES: i64 = 40;
    let (app, _worker) = readers("due_large_messages", 8);
    let publish = format!(
        "SELECT count(xdb.publish('greedy-' || 1 + n % 8, 'letters', to_jsonb(repeat(md5(n::text), 30000))))
         FROM generate_series(1, {MESSAGES}) n"
    );
    let before = received_before(&app, &publish, "1", MESSAGES);
    assert!(before <= 5, "{before} of {MESSAGES} large messages were received before a small one");
    app.done(&[]);
}

#[test]
fn messages_for_many_processes_of_one_do_not_delay_another() {
    const PROCESSES: usize = 1500;
    let (app, _worker) = readers("due_many_messages", PROCESSES);
    let publish =
        format!("SELECT count(xdb.publish('greedy-' || n, 'letters', '1')) FROM generate_series(1, {PROCESSES}) n");
    let before = received_before(&app, &publish, "1", PROCESSES as i64);
    assert!(before <= 256, "{before} of {PROCESSES} messages were received before another's");
    app.done(&[]);
}

#[test]
fn messages_for_one_process_of_one_do_not_delay_another() {
    const MESSAGES: i64 = 10_000;
    let (app, _worker) = readers("due_messages_for_one", 1);
    let publish =
        format!("SELECT count(xdb.publish('greedy-1', 'letters', '1')) FROM generate_series(1, {MESSAGES}) n");
    let before = received_before(&app, &publish, "1", MESSAGES);
    assert!(before <= 4096, "{before} of {MESSAGES} messages were received before another's");
    app.done(&[]);
}

#[test]
fn small_messages_of_other_owners_do_not_starve_a_large_one() {
    const SMALL: i64 = 16_000;
    let app = App::alone("due_largest_message", ClusterOptions::default().set("xdb.max_payload_size", "8MB"));
    let (app, _worker) = readers_of(app, 8);
    let publish =
        format!("SELECT count(xdb.publish('greedy-' || 1 + n % 8, 'letters', '1')) FROM generate_series(1, {SMALL}) n");
    let before = received_before(&app, &publish, "repeat('x', 6000000)", SMALL);
    assert!(before <= 8192, "{before} of {SMALL} small messages were received before a large one");
    app.done(&[]);
}
