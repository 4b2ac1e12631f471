//! The clock of the machine is set, forward and back, under a running server. `clock.rs` tests the clock of processes
//! alone.

use xdb_cluster_tests::prelude::*;

const HOUR: f64 = 3_600.0;

/// How far the clock is set back during the work, in seconds.
const BACK: u64 = 6;

/// `sleep` waits for a message, or for the number of seconds in its input. `one` completes at once. `failing` completes
/// in its second attempt, two seconds after the first. The calls of `flying` and `queuing` hang.
fn application(name: &str) -> (App, Worker, Worker) {
    let app = App::alone(name, ClusterOptions::default().own_clock());
    let answer = |call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!("asked")).into(),
        (Api::WaitUntil, _) => {
            any_of(&[timer("t", call.input().as_f64().expect("seconds")), local_queue("m", "inbox", 1)]).into()
        }
        (_, "Fail") if call.attempt() == 1 => error(500, "Once", "and never again"),
        (_, "Hang") => Reply::hang(force_complete(json!(null))),
        _ => force_complete(json!({"fired": call.fired("t")})).into(),
    };
    let worker = app.worker(answer);
    let narrow = app.worker_named("narrow", answer);
    app.superuser().run(&format!("SELECT xdb.register_worker('narrow', '{}', max_concurrency => 1)", narrow.url()));
    app.register("sleep", &Definition::starting_with("Sleep").waiting_step("Sleep").rpc("ask", json!({})));
    app.register("one", &one_step());
    let retries = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 2}});
    app.register("failing", &Definition::starting_with("Fail").step_with("Fail", retries));
    let hanging = Definition::starting_with("Hang").step_with("Hang", json!({"executeApiTimeoutSeconds": 120}));
    app.register("flying", &hanging);
    app.register_with("narrow", "queuing", &hanging);
    (app, worker, narrow)
}

fn sleeps(db: &mut Db, id: &str, seconds: f64) {
    db.start(id, "sleep").input(json!(seconds)).go();
    wait_until(&format!("{id} waits for its timer"), 10, || views::timers(db, id) == 1);
}

/// Checks that this number of timers has fired, none before its time by the clock of the server.
fn fired(app: &App, count: usize) {
    let late = "SELECT (extract(epoch FROM c.event_time) * 1000000
            - jsonb_path_query_first(w.details, '$.commands[0].**.fireAt')::numeric)::float8
        FROM xdb.history w JOIN xdb.history c USING (execution_id)
        WHERE w.event_type = 'WaitStarted' AND c.event_type = 'CommandCompleted' AND c.details ->> 'messages' IS NULL";
    let late = app.superuser().all::<f64>(late);
    assert!(late.len() == count && late.iter().all(|microseconds| *microseconds >= 0.0), "{late:?}");
}

#[test]
fn a_clock_that_is_set_back_delays_due_work_by_no_more_than_that() {
    let (app, worker, narrow) = application("steps_back");
    let mut db = app.db();
    db.start("flying", "flying").go();
    worker.wait_for("a call is under way", 10, |call| call.process_id() == "flying");
    db.start("first", "queuing").go();
    narrow.wait_for("a call is under way", 10, |call| call.process_id() == "first");
    db.start("second", "queuing").go();
    sleeps(&mut db, "mail", HOUR);
    db.start("failing", "failing").go();
    worker.wait_for("an attempt fails", 10, |call| call.process_id() == "failing");
    let asleep = Instant::now();
    sleeps(&mut db, "soon", 3.0);

    app.cluster().set_clock(-(BACK as f64));
    let back = Instant::now();
    // Whatever happens now happens at once.
    db.start("now", "one").go();
    db.completes("now");
    db.publish("mail", "inbox", json!(1));
    assert_eq!(db.completes("mail").result(), &json!({"fired": false}));
    assert_eq!(db.rpc("soon", "ask", json!(null)), "asked");
    worker.release();
    db.completes("flying");
    narrow.release();
    db.completes("first");
    assert!(back.elapsed() < Duration::from_secs(BACK), "it took {:?}", back.elapsed());
    let before = app.scheduler();
    app.superuser().run(&format!("SELECT pg_terminate_backend({before})"));
    db.start("again", "one").go();
    db.completes("again");

    // What was due before is due again when the clock gets there.
    assert_eq!(db.completes("soon").result(), &json!({"fired": true}));
    let slept = asleep.elapsed();
    assert!(slept >= Duration::from_secs(3 + BACK) && slept < Duration::from_secs(3 + BACK + 5), "{slept:?}");
    db.completes("failing");
    narrow.wait_for("the call that stood in line", 10, |call| call.process_id() == "second");
    narrow.release();
    db.completes("second");
    for (worker, id) in [(&worker, "flying"), (&worker, "soon"), (&narrow, "first"), (&narrow, "second")] {
        let executes = worker.count(|call| call.process_id() == id && call.api == Api::Execute);
        assert_eq!(executes, 1, "{id}");
    }
    fired(&app, 1);
    app.done(&[]);
}

#[test]
fn a_timer_is_early_by_no_more_than_the_clock_was_set() {
    let (app, worker, _narrow) = application("steps_forward");
    let mut db = app.db();
    sleeps(&mut db, "hour", HOUR);
    sleeps(&mut db, "day", 24.0 * HOUR);
    app.cluster().set_clock(HOUR);
    assert_eq!(db.completes("hour").result(), &json!({"fired": true}));
    sleeps(&mut db, "later", 5.0);
    db.start("now", "one").go();
    db.completes("now");

    app.cluster().set_clock(0.0);
    sleeps(&mut db, "short", 0.5);
    assert_eq!(db.completes("short").result(), &json!({"fired": true}));
    assert_eq!((db.status("later"), db.status("day")), ("RUNNING".to_owned(), "RUNNING".to_owned()));
    db.start("once more", "one").go();
    db.completes("once more");

    app.cluster().set_clock(HOUR);
    assert_eq!(db.completes("later").result(), &json!({"fired": true}));
    assert_eq!(db.status("day"), "RUNNING");
    for id in ["hour", "short", "later"] {
        assert_eq!(worker.count(|call| call.process_id() == id && call.executes("Sleep")), 1, "{id}");
    }
    fired(&app, 3);
    app.done(&[]);
}

/// After a turn that has left nothing, the next turn scans only for calls for a moment, and not for timers. Here
/// applying an answer takes longer than that moment.
#[test]
#[ignore = "needs the build for tests"]
fn a_timer_that_comes_due_by_a_clock_step_is_not_missed_by_a_turn_that_scans_only_for_calls() {
    // The engine does not poll.
    let options =
        ClusterOptions::default().own_clock().set("xdb.test_poll_interval", "1h").set("xdb.apply_timeout", "10s");
    let app = App::alone("steps_quiet", options);
    let mut db = app.db();
    db.run(
        "CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.15); RETURN new; END $$;
         CREATE TRIGGER sleep BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION sleep();",
    );
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[timer("t", 60.0)]).into(),
        (_, "Write") => Reply::hang(force_complete(json!(null)).globals(json!({"n": 1}))),
        _ => force_complete(json!({"fired": call.fired("t")})).into(),
    });
    app.register("sleep", &Definition::starting_with("Sleep").waiting_step("Sleep"));
    app.register("one", &one_step());
    // No lease ends by a step.
    let patient = json!({"executeApiTimeoutSeconds": 600});
    let writing = Definition::starting_with("Write").step_with("Write", patient);
    app.register("writing", &writing.maps("public.counters", "id", &["n"]));
    for round in 1..=5 {
        let [sleeper, writer, other] = ["sleeper", "writer", "other"].map(|id| format!("{id}{round}"));
        sleeps(&mut db, &sleeper, 0.0);
        db.start(&writer, "writing").key(&writer).globals(json!({"n": 0})).go();
        worker.wait_for("its call", 20, |call| call.process_id() == writer);
        db.start(&other, "one").go();
        db.completes(&other);
        app.cluster().set_clock(100.0 * f64::from(round));
        worker.release();
        db.completes(&writer);
        assert_eq!(db.completes(&sleeper).result(), &json!({"fired": true}));
    }
    app.done(&[]);
}
