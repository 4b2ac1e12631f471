//! Days in milliseconds: `xdb.now` shifts the clock of processes, and no other clock.

use xdb_cluster_tests::prelude::*;

const DAY: f64 = 86_400.0;
const HOUR: f64 = 3_600.0;

/// `sleep` waits for a message, or for the number of seconds in its input. `one` completes at once. This engine does
/// not poll, so it reads its tables only after wake-ups.
fn application(name: &str) -> (App, Worker) {
    let app = App::alone(name, ClusterOptions::default().set("xdb.test_poll_interval", "1h"));
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => {
            let seconds = call.input().as_f64().expect("seconds");
            any_of(&[timer("t", seconds), local_queue("m", "inbox", 1)])
        }
        _ => force_complete(json!({"fired": call.fired("t")})),
    });
    app.register("sleep", &Definition::starting_with("Sleep").waiting_step("Sleep"));
    app.register("one", &one_step());
    (app, worker)
}

fn set_clock_offset(app: &App, by: &str) {
    app.cluster().set("xdb.now", by);
}

fn sleeps(db: &mut Db, id: &str, seconds: f64) {
    db.start(id, "sleep").input(json!(seconds)).go();
    wait_until(&format!("{id} waits for its timer"), 10, || views::timers(db, id) == 1);
}

/// When this process completes, the engine has read all due rows.
fn a_turn_is_made(db: &mut Db, id: &str) {
    db.start(id, "one").go();
    db.completes(id);
}

#[test]
#[ignore = "needs the build for tests"]
fn a_timer_of_days_fires_when_the_clock_gets_there() {
    let (app, worker) = application("clock_days");
    let patient = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": HOUR}});
    app.register("patient", &Definition::starting_with("Only").step_with("Only", patient));
    let mut db = app.db();
    sleeps(&mut db, "timer", 3.0 * DAY);
    db.start("timeout", "sleep").input(json!(30.0 * DAY)).timeout("2 days").go();
    db.run("SELECT xdb.start_process('later', 'one', start_at => now() + interval '1 day')");
    worker.misbehave(|_| error(500, "Broken", "not now"));
    db.start("backoff", "patient").go();
    wait_until("it is in backoff", 10, || views::fails_saying(&mut db, "backoff", &["not now"]));
    worker.heal();
    wait_until("the second process waits", 10, || views::timers(&mut db, "timeout") == 2);

    set_clock_offset(&app, "23 hours");
    db.completes("backoff");
    a_turn_is_made(&mut db, "turn-1");
    assert_eq!(worker.count(|call| call.process_id() == "later"), 0);

    set_clock_offset(&app, "1 day 1 min");
    db.completes("later");
    assert_eq!(db.status("timeout"), "RUNNING");

    set_clock_offset(&app, "2 days 1 min");
    assert_eq!(db.outcome("timeout").status(), "TIMEOUT");
    a_turn_is_made(&mut db, "turn-2");
    assert_eq!(db.status("timer"), "RUNNING");

    set_clock_offset(&app, "3 days 00:01");
    assert_eq!(db.completes("timer").result(), &json!({"fired": true}));
    let days = "SELECT extract(epoch FROM closed_at - started_at)::float8 / 86400 FROM xdb.processes";
    let lasted = db.one::<f64>(&format!("{days} WHERE process_id = 'timer'"));
    assert!((3.0..3.1).contains(&lasted), "{lasted} days");
    views::assert_history_is_whole(&mut db, "timer");

    // Other databases of the server keep what they have: what is old is so by both clocks.
    let kept = db.count("xdb.processes");
    db.run("SELECT xdb.publish_global('box', '1', ttl => '1 hour')");
    set_clock_offset(&app, "20 days");
    wait_until("the engine has scanned for expired rows", 10, || db.count("xdb.queue_messages") == 0);
    assert_eq!(app.superuser().one::<i64>("SELECT xdb.purge('7 days')"), 0);
    a_turn_is_made(&mut db, "turn-3");
    assert_eq!(db.count("xdb.processes"), kept + 1);

    set_clock_offset(&app, "-20 days");
    db.start("old", "one").go();
    db.completes("old");
    assert_eq!(app.superuser().one::<i64>("SELECT xdb.purge('7 days')"), 0);
    set_clock_offset(&app, "-12 days");
    wait_until("processes older than the retention are purged", 10, || db.count("xdb.processes") == kept + 1);
    assert_eq!(db.count("xdb.processes WHERE process_id = 'old'"), 0);
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn a_clock_set_back_fires_nothing_twice_and_loses_nothing() {
    let (app, worker) = application("clock_back");
    let mut db = app.db();
    sleeps(&mut db, "early", 3.0 * DAY);
    set_clock_offset(&app, "3 days 00:01");
    db.completes("early");
    sleeps(&mut db, "late", HOUR);
    sleeps(&mut db, "mail", HOUR);

    set_clock_offset(&app, "");
    a_turn_is_made(&mut db, "turn-1");
    assert_eq!(views::timers(&mut db, "late"), 1);
    db.publish("mail", "inbox", json!(1));
    assert_eq!(db.completes("mail").result(), &json!({"fired": false}));
    db.start("now", "sleep").input(json!(0.2)).go();
    assert_eq!(db.completes("now").result(), &json!({"fired": true}));
    assert_eq!(db.status("late"), "RUNNING");

    set_clock_offset(&app, "-2 days");
    a_turn_is_made(&mut db, "turn-2");
    assert_eq!(db.status("late"), "RUNNING");

    set_clock_offset(&app, "3 days 02:00");
    assert_eq!(db.completes("late").result(), &json!({"fired": true}));
    for id in ["early", "late", "mail", "now"] {
        let calls = worker.count(|call| call.process_id() == id && call.executes("Sleep"));
        assert_eq!(calls, 1, "{id} went on {calls} times");
    }
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn every_session_has_the_same_time_at_once() {
    let (app, _worker) = application("clock_sessions");
    let (mut idle, mut busy) = (app.db(), app.db());
    idle.run("SELECT 1");
    busy.run("BEGIN");
    busy.start("busy-before", "sleep").input(json!(1.0)).go();
    set_clock_offset(&app, "-10 days");
    // In this transaction the session does not read its settings again.
    busy.start("busy", "sleep").input(json!(1.0)).go();
    busy.run("COMMIT");
    idle.start("idle", "sleep").input(json!(1.0)).go();
    let mut day = |id: &str| {
        let ago = "SELECT round(extract(epoch FROM now() - started_at) / 86400)::int4 FROM xdb.processes";
        idle.one::<i32>(&format!("{ago} WHERE process_id = '{id}'"))
    };
    assert_eq!((day("busy-before"), day("busy"), day("idle")), (0, 10, 10));
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn calls_that_are_under_way_keep_their_leases_and_timeouts() {
    let (app, worker) = application("clock_leases");
    worker.misbehave(|call: &Call| match call.process_id() {
        "slow" => Reply::hang(force_complete(json!("at last"))),
        _ => force_complete(json!(null)).into(),
    });
    let mut db = app.db();
    db.start("slow", "one").go();
    worker.wait_for("the call", 10, |call| call.process_id() == "slow");
    for by in ["30 days", "-30 days", "60 days"] {
        set_clock_offset(&app, by);
        a_turn_is_made(&mut db, &format!("turn {by}"));
    }
    worker.release();
    assert_eq!(db.completes("slow").result(), "at last");
    assert_eq!(worker.count(|call| call.process_id() == "slow"), 1);
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn a_bad_value_changes_nothing_and_stops_no_process() {
    let (app, _worker) = application("clock_bad");
    let mut db = app.db();
    let mut superuser = app.superuser();
    superuser.refused("22023", "ALTER SYSTEM SET xdb.now = 'tomorrow'");
    superuser.refused("22023", "ALTER SYSTEM SET xdb.now = '2027-01-01'");
    superuser.refused("55P02", "SET xdb.now = '1 day'");
    db.refused(codes::INSUFFICIENT_PRIVILEGE, "ALTER SYSTEM SET xdb.now = '1 day'");

    set_clock_offset(&app, "5 days");
    superuser.run(
        "DO $$ BEGIN EXECUTE format('COPY (SELECT %L) TO PROGRAM %L', 'xdb.now = ''2 blue moons''',
             format('cat >> %s/postgresql.auto.conf', current_setting('data_directory'))); END $$",
    );
    superuser.run("SELECT pg_reload_conf()");
    wait_until("the server says what is wrong", 10, || {
        app.cluster().log().contains("invalid input syntax for type interval: \"2 blue moons\"")
    });
    db.start("p", "one").go();
    db.completes("p");
    let ahead = "SELECT round(extract(epoch FROM started_at - now()) / 86400)::int4 FROM xdb.processes";
    assert_eq!(db.one::<i32>(ahead), 5, "what was there goes on");

    // A server that starts with it logs a warning, and runs at the real time.
    app.cluster().crash();
    app.cluster().launch();
    let mut db = app.db();
    db.start("q", "one").go();
    db.completes("q");
    assert_eq!(db.one::<i32>(&format!("{ahead} WHERE process_id = 'q'")), 0);
    app.done(&["invalid value for parameter \"xdb.now\""]);
}

#[test]
fn processes_that_began_at_another_time_are_sound() {
    let app = App::alone("clock_sound", ClusterOptions::default());
    let _worker = app.worker(|call: &Call| match (call.api, call.process_id()) {
        (Api::Rpc, _) => output(json!("asked")),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]),
        _ => force_complete(json!(null)),
    });
    app.register("mail", &mailbox().rpc("ask", json!({})));
    app.register("one", &one_step());
    let mut db = app.db();
    set_clock_offset(&app, "3 days");
    let asked = db.start("asked", "mail").go();
    let first = db.start("again", "one").go();
    db.completes("again");
    set_clock_offset(&app, "");
    db.run("SELECT xdb.invoke_rpc('asked', 'ask', idempotency_key => 'once')");
    let second = db.start("again", "one").go();
    db.completes("again");
    let all = [("asked", &asked), ("again", &first), ("again", &second)];
    let problems = all.map(|(process_id, execution)| {
        db.all::<String>(&format!("SELECT problem FROM xdb.check_process('{process_id}', '{execution}')"))
    });
    assert_eq!(problems.concat(), Vec::<String>::new());
    app.done(&[]);
}
