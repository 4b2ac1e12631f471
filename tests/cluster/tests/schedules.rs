//! Schedules: processes that start other processes at the ticks of a cron expression.

use std::time::{Duration, Instant};
use xdb_cluster_tests::db::literal;
use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::prelude::*;

/// How a deployer registers the type of schedules.
const SCHEDULE: &str = r#"SELECT xdb.register_process_type('Schedule', NULL, '{"startingState": "Tick",
    "states": {"Tick": {"waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}},
    "history": {"keepLast": 100}}')"#;

/// The type `Report`, whose function notes the process.
const REPORT: &str = r#"
    CREATE TABLE public.report (process_id text, who text, at timestamptz DEFAULT clock_timestamp());
    GRANT INSERT, SELECT ON public.report TO PUBLIC;
    CREATE FUNCTION public.report(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
        INSERT INTO public.report (process_id, who) VALUES (request->'context'->>'processId', current_user)
        RETURNING '{"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS"}}}'::jsonb $$;
    SELECT xdb.register_process_type('Report', NULL,
        '{"startingState": "Write", "states": {"Write": {"skipWaitUntil": true, "executeFunction": "public.report"}}}')"#;

fn application(app: App) -> App {
    app.superuser().run(SCHEDULE);
    app.superuser().run(REPORT);
    app
}

fn schedule(db: &mut Db, name: &str, cron: &str, process_id: &str) {
    let start = json!({"process_type": "Report", "process_id": process_id});
    let [name, cron, start] = [name, cron, &start.to_string()].map(literal);
    db.run(&format!("SELECT xdb.schedule({name}, {cron}, {start}::jsonb, 'Europe/Berlin')"));
}

/// The reports of a schedule, in the order of their ticks.
fn reports(db: &mut Db, like: &str) -> Vec<String> {
    db.all(&format!("SELECT process_id FROM public.report WHERE process_id LIKE '{like}' ORDER BY process_id"))
}

/// The schedule waits, beyond this time of the clock of processes.
fn waits_beyond(db: &mut Db, name: &str, offset: &str) -> bool {
    db.count(&format!("xdb.timers WHERE process_id = '{name}' AND fire_at > clock_timestamp() + interval '{offset}'"))
        > 0
}

/// A year of nights in steps of the clock. One night leaves 02:30 out and ticks at 03:00, and in another one 02:30 comes
/// twice and ticks once. The scheduler is killed now and then.
#[test]
fn cron_ticks_once_each_night_of_a_year_across_both_changes_of_the_clock() {
    let app = application(App::alone("cron_year", ClusterOptions::default()));
    let mut db = app.db();
    // About noon. In the night, a step of a day could pass two ticks, of which one would be missed.
    let noon = app.hours_to_noon();
    app.cluster().set("xdb.now", &format!("{noon} hours"));
    schedule(&mut db, "nightly", "30 2 * * *", "night-{time}");
    wait_until("it waits", 20, || waits_beyond(&mut db, "nightly", &format!("{noon} hours")));
    let days = 366;
    for day in 1..=days {
        app.cluster().set("xdb.now", &format!("{day} days {noon} hours"));
        if day % 120 == 60 {
            app.kill_scheduler();
            db = app.db();
        }
        wait_until(&format!("day {day} has ticked"), 60, || {
            waits_beyond(&mut db, "nightly", &format!("{day} days {noon} hours"))
        });
    }
    // A moment that this server finds for 02:30 is half an hour late if 02:30 is left out, and one hour if it comes twice.
    let expected = "SELECT 'night-' || to_char(CASE
            WHEN (t.tick AT TIME ZONE 'Europe/Berlin')::time <> '02:30' THEN t.tick - interval '30 minutes'
            WHEN ((t.tick - interval '1 hour') AT TIME ZONE 'Europe/Berlin')::time = '02:30' THEN t.tick - interval '1 hour'
            ELSE t.tick END AT TIME ZONE 'UTC', 'YYYYMMDD\"T\"HH24MISS\"Z\"')
        FROM xdb.processes AS p CROSS JOIN generate_series(0, 400) AS n
        CROSS JOIN LATERAL (SELECT (((p.started_at AT TIME ZONE 'Europe/Berlin')::date + n) + time '02:30')
            AT TIME ZONE 'Europe/Berlin' AS tick) AS t
        WHERE p.process_id = 'nightly' AND t.tick > p.started_at
            AND t.tick <= clock_timestamp() + interval '366 days NOON hours' ORDER BY 1";
    let expected: Vec<String> = db.all(&expected.replace("NOON", &noon.to_string()));
    wait_until("all have reported", 30, || reports(&mut db, "night-%").len() >= expected.len());
    assert_eq!(reports(&mut db, "night-%"), expected);
    assert!(expected.len() >= 365, "{}", expected.len());
    assert!(expected.iter().any(|tick| tick.ends_with("T010000Z")), "one night leaves 02:30 out");
    let owners: Vec<String> = db.all("SELECT DISTINCT who FROM public.report");
    assert_eq!(owners, ["app"]);
    app.done(AFTER_A_CRASH);
}

/// Ticks that were missed are made up for once.
#[test]
fn ticks_that_a_pause_has_missed_are_made_up_for_once() {
    let app = application(App::alone("cron_missed", ClusterOptions::default()));
    let mut db = app.db();
    schedule(&mut db, "hourly", "@hourly", "hour-{time}");
    wait_until("it waits", 20, || waits_beyond(&mut db, "hourly", "0"));
    db.run("SELECT xdb.pause_process('hourly')");
    app.cluster().set("xdb.now", "1 day");
    db.run("SELECT xdb.resume_process('hourly')");
    wait_until("it waits again", 20, || waits_beyond(&mut db, "hourly", "1 day"));
    wait_until("it has reported", 20, || !reports(&mut db, "hour-%").is_empty());
    assert_eq!(reports(&mut db, "hour-%").len(), 1);
    app.done(&[]);
}

/// "Timer start event": the cycle of seed 5 is a schedule, and its start is a process.
#[test]
fn a_timer_start_event_starts_a_process_again_and_again() {
    let app = application(App::new("cron_every"));
    let mut db = app.db();
    schedule(&mut db, "often", "@every 1 second", "often-{time}");
    wait_until("it has ticked three times", 30, || reports(&mut db, "often-%").len() >= 3);
    let described = db.json("SELECT xdb.describe_process('often')");
    assert_eq!(described["status"], "RUNNING");
    db.run("SELECT xdb.stop_process('often')");
    let ticked = reports(&mut db, "often-%").len();
    let until = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < until {
        assert!(reports(&mut db, "often-%").len() <= ticked + 1);
        std::thread::sleep(Duration::from_millis(100));
    }
    app.done(&[]);
}

/// "A new deployment replaces start subscriptions and timers of the old one."
#[test]
fn a_new_deployment_replaces_the_timer_of_the_old_one() {
    let app = application(App::new("cron_replaced"));
    let mut db = app.db();
    schedule(&mut db, "deployed", "@every 1 second", "old-{time}");
    wait_until("the old one ticks", 30, || !reports(&mut db, "old-%").is_empty());
    schedule(&mut db, "deployed", "@every 1 second", "new-{time}");
    let old = reports(&mut db, "old-%").len();
    wait_until("the new one ticks", 30, || reports(&mut db, "new-%").len() >= 2);
    let after = reports(&mut db, "old-%").len();
    assert!(after <= old + 1, "a report of the old one may have been under way: {old}, {after}");
    let statuses: Vec<String> =
        db.all("SELECT status FROM xdb.processes WHERE process_id = 'deployed' ORDER BY execution_id");
    assert_eq!(statuses, ["TERMINATED", "RUNNING"]);
    app.done(&[]);
}

#[test]
fn stopping_or_replacing_a_schedule_ends_none_of_its_reports() {
    let app = application(App::new("cron_left"));
    app.superuser().run(
        r#"SELECT xdb.register_process_type('Report', NULL, '{"startingState": "Write", "states": {"Write": {
            "commandRequest": {"waitingType": "AnyOfCompletion", "localQueueCommands": [{"queueName": "go"}]},
            "executeFunction": "public.report"}}}')"#,
    );
    let mut db = app.db();
    let of_type = "SELECT process_id FROM xdb.processes WHERE process_type = 'Report' AND process_id LIKE";
    let begun = |db: &mut Db, like: &str| !db.all::<String>(&format!("{of_type} '{like}'")).is_empty();
    schedule(&mut db, "kept", "@every 1 second", "old-{time}");
    wait_until("a report of the old one runs", 30, || begun(&mut db, "old-%"));
    schedule(&mut db, "kept", "@every 1 second", "new-{time}");
    wait_until("a report of the new one runs", 30, || begun(&mut db, "new-%"));
    db.run("SELECT xdb.stop_process('kept')");
    // A report is no child of its schedule, so no timer ends it.
    let of_schedule = "xdb.processes WHERE process_type = 'Report' AND parent_execution_id IS NOT NULL";
    assert_eq!((db.count(of_schedule), db.count("xdb.timers WHERE kind = 'PARENT_CLOSED'")), (0, 0));
    let started: Vec<String> = db.all(&format!("{of_type} '%'"));
    for id in &started {
        db.publish(id, "go", json!(null));
        assert_eq!(db.completes(id).status(), "COMPLETED");
    }
    assert_eq!(reports(&mut db, "%").len(), started.len());
    app.done(&[]);
}

#[test]
fn a_refused_start_skips_its_tick_and_is_told() {
    let app = application(App::new("cron_refused"));
    let mut db = app.db();
    app.superuser().run("SELECT xdb.pause_process_type('Report', 'REJECT', reason => 'year end')");
    schedule(&mut db, "refused", "@every 1 second", "refused-{time}");
    let error = |db: &mut Db| db.json("SELECT xdb.get_local_attributes('refused')")["lastError"].take();
    wait_until("a start is refused", 30, || !error(&mut db).is_null());
    let told = error(&mut db);
    assert_eq!(told["sqlState"], "XD023", "{told}");
    assert!(told["message"].as_str().is_some_and(|text| text.contains("Report")), "{told}");
    app.superuser().run("SELECT xdb.resume_process_type('Report')");
    wait_until("a later tick starts its process", 30, || !reports(&mut db, "refused-%").is_empty());
    let skipped = format!("refused-{}", told["tick"].as_str().unwrap_or_default());
    assert!(!reports(&mut db, "refused-%").contains(&skipped), "the tick was skipped");
    db.run("SELECT xdb.stop_process('refused')");

    // What runs already is decided by the policy of the start: by default it is refused.
    app.superuser().run("SELECT xdb.pause_process_type('Report')");
    schedule(&mut db, "same", "@every 1 second", "same-report");
    let error = |db: &mut Db| db.json("SELECT xdb.get_local_attributes('same')")["lastError"].take();
    wait_until("a second start is refused", 30, || error(&mut db)["sqlState"] == "XD006");
    assert_eq!(db.count("xdb.processes WHERE process_id = 'same-report'"), 1);
    app.superuser().run("SELECT xdb.resume_process_type('Report')");
    wait_until("later ticks start it again", 30, || reports(&mut db, "same-report").len() > 1);
    db.run("SELECT xdb.stop_process('same')");
    app.done(&[]);
}

#[test]
fn a_schedule_takes_the_place_of_a_schedule_only_and_a_failed_assertion_skips_its_tick() {
    let app = application(App::new("cron_names"));
    app.superuser().run(
        r#"CREATE FUNCTION public.check_it(argument jsonb, context jsonb) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN ASSERT false, 'never'; END $$;
        SELECT xdb.register_process_type('Checked', NULL, '{"startingState": "Write",
            "states": {"Write": {"skipWaitUntil": true, "executeFunction": "public.report"}},
            "functions": {"check": "public.check_it"}}')"#,
    );
    let mut db = app.db();
    db.run("SELECT xdb.start_process('order-1', 'Report', start_at => now() + interval '1 hour')");
    let error =
        db.refused(codes::ALREADY_STARTED, r#"SELECT xdb.schedule('order-1', '@daily', '{"process_type": "Report"}')"#);
    assert_eq!(error.detail, "It runs, and is no schedule.");
    db.run("SELECT xdb.stop_process('order-1')");
    // Started by a transaction that commits later.
    let mut starter = app.db();
    starter.run("BEGIN; SELECT xdb.start_process('order-2', 'Report', start_at => now() + interval '1 hour')");
    std::thread::scope(|scope| {
        let mut session = app.db();
        let pid: i32 = session.one("SELECT pg_backend_pid()");
        let scheduling = scope.spawn(move || {
            session.try_run(r#"SELECT xdb.schedule('order-2', '@daily', '{"process_type": "Report"}')"#)
        });
        let waits = format!("pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'");
        wait_until("it waits for the start", 20, || app.superuser().count(&waits) == 1);
        starter.run("COMMIT");
        let refused = scheduling.join().expect("no panic").expect_err("the process runs");
        assert_eq!(refused.code, codes::ALREADY_STARTED, "{refused:?}");
    });
    db.run("SELECT xdb.stop_process('order-2')");
    let start = literal(
        &json!({"process_type": "Checked", "process_id": "checked-{time}",
        "options": {"callFunctions": [{"function": "check"}]}})
        .to_string(),
    );
    db.run(&format!("SELECT xdb.schedule('order-1', '@every 1 second', {start}::jsonb)"));
    let state = |db: &mut Db| db.json("SELECT xdb.get_local_attributes('order-1')")["lastError"]["sqlState"].take();
    wait_until("a tick is skipped", 30, || !state(&mut db).is_null());
    assert_eq!(state(&mut db), "P0004");
    db.run("SELECT xdb.stop_process('order-1')");
    app.done(&["never"]);
}

/// What other transactions or the server are to blame for is no refusal.
#[test]
fn a_start_that_fails_for_lack_of_resources_is_retried_and_its_tick_is_not_skipped() {
    let app = application(App::new("cron_retried"));
    app.superuser().run(
        r#"CREATE TABLE public.scarce (id text PRIMARY KEY, n int);
        GRANT ALL ON public.scarce TO PUBLIC;
        CREATE SEQUENCE public.tries;
        GRANT USAGE, SELECT ON public.tries TO PUBLIC;
        CREATE FUNCTION public.scarce() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('public.tries') < 3 THEN RAISE 'full' USING ERRCODE = 'disk_full'; END IF;
            RETURN new; END $$;
        CREATE TRIGGER scarce BEFORE INSERT ON public.scarce FOR EACH ROW EXECUTE FUNCTION public.scarce();
        SELECT xdb.register_process_type('Stored', NULL, '{"startingState": "Write",
            "states": {"Write": {"skipWaitUntil": true, "executeFunction": "public.report"}},
            "globalAttributes": [{"table": "public.scarce", "primaryKey": "id", "attributes": {"n": "n"}}]}')"#,
    );
    let mut db = app.db();
    let start = literal(
        &json!({"process_type": "Stored", "process_id": "stored-{time}", "global_attributes": {"n": 1},
        "global_attribute_pk": "x", "options": {"globalAttributeConflictMode": "IGNORE_CONFLICT"}})
        .to_string(),
    );
    db.run(&format!("SELECT xdb.schedule('stored', '@every 1 second', {start}::jsonb, 'UTC')"));
    wait_until("it is stored", 30, || reports(&mut db, "stored-%").len() > 1);
    db.run("SELECT xdb.stop_process('stored')");
    assert_eq!(db.json("SELECT xdb.get_local_attributes('stored')"), json!({}), "no tick was skipped");
    let of_schedule = |event: &str| format!("xdb.history WHERE process_id = 'stored' AND event_type = '{event}'");
    assert_eq!(db.one::<i64>("SELECT last_value FROM tries"), 3);
    let ticks = db.count(&of_schedule("StateCompleted"));
    assert_eq!(db.count("xdb.processes WHERE process_id LIKE 'stored-%'"), ticks, "each tick has its process");
    app.done(&["full"]);
}

#[test]
fn a_reassigned_schedule_starts_its_processes_as_the_new_owner() {
    let app = application(App::new("cron_reassigned"));
    let mut db = app.db();
    schedule(&mut db, "handed", "@every 1 second", "handed-{time}");
    let by = |who: &str| format!("public.report WHERE who = '{who}'");
    wait_until("the old owner has a report", 30, || db.count(&by("app")) > 0);
    let mut superuser = app.superuser();
    superuser.run("SELECT xdb.reassign_owned('app', 'other')");
    let before = superuser.count(&by("app"));
    wait_until("the new owner has reports", 30, || superuser.count(&by("other")) > 1);
    let of_old = "xdb.processes WHERE owner = 'app'";
    assert_eq!((superuser.count(&by("app")), superuser.count(of_old)), (before, 0));
    app.session("other").run("SELECT xdb.stop_process('handed')");
    app.done(&[]);
}

/// A timer of a worker, with the moment of its tick in the result.
#[test]
fn a_wait_of_a_worker_may_have_a_cron_timer() {
    let app = App::new("cron_worker");
    let cron = |timezone: &str| {
        json!({"commandRequest": {"waitingType": "AllOfCompletion",
            "timerCommands": [{"commandId": "t", "cron": "@every 1 second", "timezone": timezone}]}})
    };
    let worker = app.worker(move |call: &Call| match call.api {
        Api::WaitUntil => Reply::Json(200, cron(call.input().as_str().unwrap_or_default())),
        _ => force_complete(call.body["commandResults"]["timerResults"].clone()).into(),
    });
    app.register("waits", &Definition::starting_with("Wait").waiting_step("Wait"));
    let mut db = app.db();
    db.start("p", "waits").input(json!("Asia/Tokyo")).go();
    let result = db.completes("p").result().clone();
    assert_eq!((&result[0]["commandId"], &result[0]["status"]), (&json!("t"), &json!("COMPLETED_COMMAND")));
    assert!(result[0]["fireAt"].as_str().is_some_and(|at| at.ends_with('Z')), "{result}");
    db.start("q", "waits").input(json!("Europe/Nowhere")).go();
    wait_until("it fails", 20, || views::fails_saying(&mut db, "q", &["a timer's timezone is unknown"]));
    db.run("SELECT xdb.stop_process('q')");
    drop(worker);
    app.done(&[]);
}
