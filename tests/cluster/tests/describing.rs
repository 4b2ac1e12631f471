//! `describe_process` and the views: what a process does, what it waits for, since when, until when, and its last
//! failure.

use xdb_cluster_tests::prelude::*;

fn described(db: &mut Db, id: &str) -> Value {
    db.json(&format!("SELECT xdb.describe_process('{id}')"))
}

/// The moment in a field, in seconds since the epoch, as the database reads it.
fn moment(db: &mut Db, value: &Value) -> f64 {
    let text = value.as_str().unwrap_or_else(|| panic!("no moment: {value}"));
    db.one(&format!("SELECT extract(epoch FROM '{text}'::timestamptz)::float8"))
}

fn now(db: &mut Db) -> f64 {
    db.one("SELECT extract(epoch FROM clock_timestamp())::float8")
}

#[test]
fn a_process_that_waits() {
    let app = App::new("describe_waits");
    let _worker = app.worker(|_: &Call| {
        any_of(&[timer("late", 3600.0), local_queue("two", "box", 2), local_queue("other", "none", 1)])
    });
    app.register("wait", &mailbox());
    let mut db = app.db();
    let before = now(&mut db);
    db.start("p", "wait").timeout("2 hours").go();
    wait_until("it waits", 20, || !views::waits(&mut db, "p").is_empty());
    db.publish("p", "box", json!(1));
    wait_until("the message is there", 20, || db.count("xdb.queue_messages WHERE process_id = 'p' AND received") == 1);
    let shown = described(&mut db, "p");
    let thread = &shown["threads"][0];
    assert_eq!(
        (&shown["status"], &thread["status"], &thread["waitingType"]),
        (&json!("RUNNING"), &json!("WAITING"), &json!("AnyOfCompletion"))
    );
    let since = moment(&mut db, &thread["waitingSince"]);
    assert!(before <= since && since <= now(&mut db), "{shown}");
    assert!(
        (moment(&mut db, &shown["timeoutAt"]) - moment(&mut db, &shown["startedAt"]) - 7200.0).abs() < 1e-3,
        "{shown}"
    );
    let fire_at = moment(&mut db, &thread["waitingFor"][0]["fireAt"]);
    assert!((fire_at - since - 3600.0).abs() < 1e-3, "{shown}");
    let two = &thread["waitingFor"][1];
    assert_eq!(two["queueName"], "box");
    assert_eq!((&two["commandId"], &two["status"]), (&json!("two"), &json!("WAITING_COMMAND")));
    assert_eq!((&two["atLeast"], &two["atMost"], &two["messagesInQueue"]), (&json!(2), &json!(2), &json!(1)));
    assert_eq!(thread["waitingFor"][2]["messagesInQueue"], 0);
    // Nothing is called, and nothing has failed.
    for absent in ["api", "worker", "attempt", "callUntil", "nextAttemptAt", "lastFailure"] {
        assert!(thread[absent].is_null(), "{absent}: {shown}");
    }
    let waits = views::waits(&mut db, "p");
    assert_eq!(waits.len(), 3);
    assert_eq!(waits[1]["messages_in_queue"], 1);
    assert!(waits.iter().all(|wait| wait["since"].is_string()), "{waits:?}");
    db.run("SELECT xdb.stop_process('p', reason => 'enough')");
    let shown = described(&mut db, "p");
    assert_eq!((&shown["status"], &shown["reason"]), (&json!("TERMINATED"), &json!("enough")));
    assert!(shown["closedAt"].is_string() && shown["threads"] == json!([]), "{shown}");
    app.done(&[]);
}

#[test]
fn a_process_that_is_being_called() {
    let app = App::new("describe_calls");
    let worker = app.worker(|_: &Call| Reply::hang(force_complete(json!({"done": null}))));
    app.register("one", &Definition::starting_with("Only").step_with("Only", json!({"executeApiTimeoutSeconds": 50})));
    let mut db = app.db();
    db.start("p", "one").go();
    worker.wait_for("the call", 20, |_| true);
    let shown = described(&mut db, "p");
    let thread = &shown["threads"][0];
    assert_eq!(thread["status"], "EXECUTE");
    assert_eq!(
        (&thread["api"], &thread["worker"], &thread["attempt"]),
        (&json!("EXECUTE_API"), &json!("stub"), &json!(1))
    );
    let since = moment(&mut db, &thread["firstAttemptAt"]);
    let until = moment(&mut db, &thread["callUntil"]);
    assert!(since <= now(&mut db) && (50.0..90.0).contains(&(until - since)), "{shown}");
    assert!(thread["nextAttemptAt"].is_null() && shown["lastFailure"].is_null(), "{shown}");
    // The scheduler says what is in flight after it has sent the call.
    wait_until("one is in flight", 20, || app.superuser().one::<i32>("SELECT in_flight FROM xdb.status()") == 1);
    wait_until("at one worker", 20, || app.superuser().one::<i32>("SELECT in_flight FROM xdb.workers") == 1);
    worker.release();
    db.completes("p");
    let shown = described(&mut db, "p");
    // What a user gave is shown as it is, nulls and all.
    assert_eq!(shown["results"], json!([{"stateExecutionId": "Only-1", "output": {"done": null}}]));
    app.done(&[]);
}

#[test]
fn a_process_whose_calls_fail() {
    let app = App::new("describe_failures");
    let worker = app.worker(|call: &Call| match call.target() {
        "Fork" => next_all(&[("Bad", json!(null)), ("Worse", json!(null)), ("Healed", json!(null))]).into(),
        "Healed" if call.attempt() > 1 => any_of(&[local_queue("m", "box", 1)]).into(),
        state => error(503, "Overloaded", &format!("{state} is down")),
    });
    let slow = json!({"initialIntervalSeconds": 1000, "maximumIntervalSeconds": 1000});
    app.register(
        "fork",
        &Definition::starting_with("Fork")
            .step("Fork")
            .step_with("Bad", json!({"executeApiRetryPolicy": slow}))
            .waiting_step_with("Worse", json!({"waitUntilApiRetryPolicy": slow}))
            .waiting_step("Healed"),
    );
    let mut db = app.db();
    db.start("p", "fork").go();
    wait_until("two have failed and one has healed", 20, || {
        db.count("xdb.failures WHERE process_id = 'p' AND next_attempt_at > now() + interval '100 s'") == 2
            && views::waits(&mut db, "p").len() == 1
    });
    let shown = described(&mut db, "p");
    let threads = shown["threads"].as_array().expect("an array");
    assert_eq!(threads.len(), 3, "{shown}");
    for thread in &threads[..2] {
        let failure = &thread["lastFailure"];
        let state = thread["stateExecutionId"].as_str().unwrap_or_default().trim_end_matches("-1");
        assert_eq!(failure["failure"]["detail"], json!(format!("{state} is down")), "{shown}");
        assert_eq!(
            (&failure["failure"]["status"], &failure["failure"]["errorType"]),
            (&json!(503), &json!("Overloaded"))
        );
        assert_eq!((&failure["attempt"], &thread["attempt"]), (&json!(1), &json!(2)), "{shown}");
        assert_eq!(failure["api"], thread["api"], "{shown}");
        let failed = moment(&mut db, &failure["at"]);
        let next = moment(&mut db, &thread["nextAttemptAt"]);
        assert!(failed <= now(&mut db) && (899.0..1101.0).contains(&(next - failed)), "{shown}");
        assert!(thread["callUntil"].is_null(), "{shown}");
    }
    // What went well in the end is no failure any more; the history keeps it.
    assert!(threads[2]["lastFailure"].is_null(), "{shown}");
    assert_eq!(views::failures(&mut db, "p").len(), 2);
    assert_eq!(db.count("xdb.history WHERE process_id = 'p' AND event_type = 'AttemptFailed'"), 3);
    let last = shown["lastFailure"]["stateExecutionId"].as_str().unwrap_or_default();
    assert!(["Bad-1", "Worse-1"].contains(&last), "{shown}");
    let workers = app.superuser().rows("SELECT * FROM xdb.workers");
    assert_eq!((&workers[0]["failures"], &workers[0]["breaker"]), (&json!(3), &json!("closed")), "{workers:?}");
    assert!(workers[0]["calls"].as_i64() >= Some(5) && workers[0]["last_error_at"].is_string(), "{workers:?}");
    // A process that is stopped keeps what failed last.
    db.run("SELECT xdb.stop_process('p', 'FAIL', 'given up')");
    let shown = described(&mut db, "p");
    assert_eq!(shown["lastFailure"]["failure"]["errorType"], "Overloaded", "{shown}");
    assert_eq!(worker.count(|call| call.target() == "Bad"), 1);
    app.done(&[]);
}

#[test]
fn a_process_that_starts_later_and_one_with_no_thread() {
    let app = App::new("describe_later");
    let _worker = app.worker(|_: &Call| dead_end());
    app.register("one", &one_step());
    let mut db = app.db();
    db.run("SELECT xdb.start_process('later', 'one', start_at => now() + interval '1 day')");
    let shown = described(&mut db, "later");
    let thread = &shown["threads"][0];
    let next = moment(&mut db, &thread["nextAttemptAt"]);
    assert!((86_000.0..86_401.0).contains(&(next - now(&mut db))), "{shown}");
    assert_eq!((&thread["attempt"], &thread["api"]), (&json!(1), &json!("EXECUTE_API")));
    assert!(thread["firstAttemptAt"].is_null(), "{shown}");
    db.run("SELECT xdb.stop_process('later')");

    db.start("idle", "one").go();
    wait_until("it has come to its dead end", 20, || described(&mut db, "idle")["liveThreads"] == 0);
    let shown = described(&mut db, "idle");
    assert_eq!((&shown["status"], &shown["threads"]), (&json!("RUNNING"), &json!([])));
    db.run("SELECT xdb.stop_process('idle')");
    app.done(&[]);
}

#[test]
fn how_often_a_call_was_made_can_be_read_when_its_state_has_ended() {
    let app = App::new("describing_ended");
    let _worker = app.worker(|call: &Call| match (call.target(), call.attempt()) {
        ("Third", 3) => Reply::from(force_complete(json!(null))),
        ("Waits", _) => any_of(&[local_queue("m", "inbox", 1)]).into(),
        _ => error(500, "Broken", "not now"),
    });
    app.register("third", &Definition::starting_with("Third").step("Third"));
    app.register(
        "spent",
        &Definition::starting_with("Spent").step_with("Spent", json!({"executeApiRetryPolicy": attempts(2)})),
    );
    let patient = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 3600}});
    app.register("stopped", &Definition::starting_with("Stopped").step_with("Stopped", patient));
    app.register("waits", &Definition::starting_with("Waits").waiting_step("Waits"));
    let mut db = app.db();
    for process in ["third", "spent", "stopped", "waits"] {
        db.start(process, process).go();
    }
    db.completes("third");
    assert_eq!(db.outcome("spent").status(), "FAILED");
    wait_until("it is in backoff", 10, || views::fails_saying(&mut db, "stopped", &["not now"]));
    wait_until("it waits", 10, || !views::waits(&mut db, "waits").is_empty());
    let shown = |db: &mut Db| {
        db.all::<String>(
            "SELECT concat_ws(' ', state_id, status, attempt, repeats) FROM xdb.state_executions ORDER BY 1",
        )
    };
    assert_eq!(shown(&mut db), ["Spent FAILED 2 0", "Stopped EXECUTE 2 0", "Third COMPLETED 3 0", "Waits WAITING"]);
    db.run("SELECT xdb.stop_process('stopped'), xdb.stop_process('waits')");
    assert_eq!(shown(&mut db), ["Spent FAILED 2 0", "Stopped ABORTED 2 0", "Third COMPLETED 3 0", "Waits ABORTED"]);
    app.done(&[]);
}

/// Why the call of a process's only thread is not made, if `describe_process` says so.
fn not_called(db: &mut Db, id: &str) -> Value {
    described(db, id)["threads"][0]["notCalled"].clone()
}

fn wait_for_reason(db: &mut Db, id: &str, why: &str) -> Value {
    wait_until(&format!("{id} is not called: {why}"), 30, || not_called(db, id)["why"] == why);
    not_called(db, id)
}

/// An ordinary role sees neither the breaker nor the figures of the engine, and yet why its own call is not made.
#[test]
fn a_call_that_is_not_made_because_its_worker_cannot_be_reached() {
    let app = App::new("describe_breaker");
    let dead = app.worker_named("dead", |_| force_complete(json!("back")));
    let patient = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 1, "maximumIntervalSeconds": 1}});
    app.register_with("dead", "stuck", &Definition::starting_with("Only").step_with("Only", patient));
    dead.go_away();
    let mut db = app.db();
    db.run("SELECT xdb.start_process('p' || n, 'stuck') FROM generate_series(1, 30) n");
    let mut superuser = app.superuser();
    let reason = wait_for_reason(&mut db, "p1", "BREAKER");
    let since = moment(&mut db, &reason["since"]);
    let opened = "SELECT extract(epoch FROM breaker_open_since)::float8 FROM xdb.workers WHERE name = 'dead'";
    assert!(superuser.one::<f64>(opened) <= since + 1e-3 && since <= now(&mut db), "{reason}");
    assert_eq!(db.one::<Option<String>>("SELECT breaker FROM xdb.workers WHERE name = 'dead'"), None);
    app.session("other").refused("XD001", "SELECT xdb.describe_process('p1')");
    dead.come_back();
    assert_eq!(db.completes("p1").result(), "back");
    wait_until("all complete", 60, || views::with_status(&mut db, "p%", "COMPLETED") == 30);
    app.done(&[]);
}

#[test]
fn a_call_that_is_not_made_because_the_engine_is_paused_or_stopped() {
    let app = App::alone("describe_engine", ClusterOptions::default());
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step());
    let mut db = app.db();
    app.superuser().run("SELECT xdb.register_worker('pulls', NULL, role => 'app')");
    app.register_with("pulls", "pulled", &one_step());
    app.pause();
    db.start("paused", "one").go();
    db.start("pulled", "pulled").go();
    let shown = described(&mut db, "paused");
    let thread = &shown["threads"][0];
    assert_eq!(thread["notCalled"], json!({"why": "ENGINE", "since": thread["nextAttemptAt"]}), "{shown}");
    assert_eq!(not_called(&mut db, "pulled")["why"], "ENGINE");
    app.resume();
    db.completes("paused");
    app.cluster().set("xdb.enabled", "off");
    db.start("stopped", "one").go();
    db.run("SELECT xdb.start_process('later', 'one', start_at => now() + interval '1 hour')");
    wait_for_reason(&mut db, "stopped", "ENGINE");
    assert_eq!(not_called(&mut db, "later"), Value::Null, "it is not due");
    assert_eq!(not_called(&mut db, "pulled"), Value::Null, "its worker needs no engine");
    app.cluster().set("xdb.enabled", "on");
    db.completes("stopped");
    app.done(&[]);
}

#[test]
fn a_call_that_is_not_made_because_it_needs_a_runner() {
    let app = App::alone("describe_runners", ClusterOptions::default().set("xdb.runners", "1"));
    let mut db = app.db();
    db.run(
        "CREATE TABLE gate (); INSERT INTO gate DEFAULT VALUES;
         CREATE TABLE mine (id text PRIMARY KEY, n int NOT NULL DEFAULT 0); INSERT INTO mine VALUES ('m');
         CREATE FUNCTION waits(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             WHILE EXISTS (SELECT FROM public.gate) LOOP PERFORM pg_sleep(0.05); END LOOP;
             RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}';
         END $$",
    );
    app.make_slow("app", "public.mine", "id", json!({"n": 0}));
    let _worker = app.worker(|_: &Call| force_complete(json!(null)).globals(json!({"n": 1})));
    app.register("mine", &one_step().maps("public.mine", "id", &["n"]));
    let waits = json!({"executeFunction": "public.waits", "executeApiTimeoutSeconds": 600});
    app.register("waits", &Definition::starting_with("Only").step_with("Only", waits));
    db.start("first", "waits").go();
    let asleep = "pg_stat_activity WHERE backend_type = 'xdb runner' AND wait_event = 'PgSleep'";
    wait_until("the only runner is busy", 30, || app.superuser().count(asleep) == 1);
    db.start("second", "waits").go();
    db.start("m", "mine").key("m").go();
    let reason = wait_for_reason(&mut db, "second", "NO_RUNNER");
    assert_eq!(reason["since"], described(&mut db, "second")["threads"][0]["nextAttemptAt"]);
    wait_for_reason(&mut db, "m", "SLOW_TABLE");
    assert_eq!(not_called(&mut db, "first"), Value::Null, "it is being called");
    db.run("DELETE FROM gate");
    for id in ["first", "second", "m"] {
        db.completes(id);
    }
    app.done(&["could not cancel", "canceling statement"]);
}
