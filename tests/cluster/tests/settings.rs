//! Each setting has the documented effect.

use xdb_cluster_tests::prelude::*;
use xdb_cluster_tests::tls::{Authority, Front};

/// A cluster with these settings. Its worker hangs in every call until it is released, also in RPCs.
fn application(name: &str, settings: &[(&str, &str)]) -> (App, Worker) {
    let options = settings.iter().fold(ClusterOptions::default(), |options, (name, value)| options.set(name, value));
    let app = App::alone(name, options);
    let worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => Reply::hang(output(json!(null))),
        _ => Reply::hang(force_complete(json!("done"))),
    });
    let patient = Definition::starting_with("Only").step_with("Only", json!({"executeApiTimeoutSeconds": 60}));
    app.register("slow", &patient.rpc("ask", json!({})).rpc("ask_long", json!({"timeoutSeconds": 60})));
    app.register("silent", &Definition::without_start());
    (app, worker)
}

/// Starts ten processes at once. Checks that at most `most` of their calls are under way at a time.
fn never_more_than(app: &App, worker: &Worker, most: usize) {
    let mut db = app.db();
    let filling = "to_jsonb(repeat('x', 100000))";
    db.run(&format!("SELECT count(xdb.start_process('p' || n, 'slow', {filling})) FROM generate_series(1, 10) n"));
    for round in 1..=10_usize.div_ceil(most) {
        let so_far = 10.min(round * most);
        worker.wait_for_count(&format!("round {round}"), 20, so_far, |_| true);
        // A process timeout needs no call: when this one has passed, the engine has scanned for calls again.
        let id = format!("timeout-{round}");
        db.start(&id, "silent").timeout("0.2 s").go();
        assert_eq!(db.outcome(&id).status(), "TIMEOUT");
        assert_eq!(worker.count(|_| true), so_far, "round {round}");
        worker.release();
    }
    wait_until("all are done", 20, || views::with_status(&mut db, "p%", "COMPLETED") == 10);
}

#[test]
fn max_in_flight_limits_the_calls_under_way() {
    let (app, worker) = application("settings_in_flight", &[("xdb.max_in_flight", "4")]);
    never_more_than(&app, &worker, 4);
    app.done(&[]);
}

#[test]
fn large_requests_take_several_places() {
    let (app, worker) = application("settings_bytes", &[("xdb.max_in_flight", "48")]);
    let mut db = app.db();
    let filling = "to_jsonb(repeat('x', 300000))";
    db.run(&format!("SELECT count(xdb.start_process('p' || n, 'slow', {filling})) FROM generate_series(1, 30) n"));
    // Three each. One owner has eight ninths of them.
    for so_far in [15, 30] {
        worker.wait_for_count("as many as there are places for", 20, so_far, |_| true);
        // When this process has ended, the engine has scanned for calls again.
        let id = format!("timeout-{so_far}");
        db.start(&id, "silent").timeout("0.2 s").go();
        assert_eq!(db.outcome(&id).status(), "TIMEOUT");
        assert_eq!(worker.count(|_| true), so_far);
        worker.release();
    }
    wait_until("all are done", 20, || views::with_status(&mut db, "p%", "COMPLETED") == 30);
    app.done(&[]);
}

#[test]
fn a_removed_setting_causes_a_warning() {
    let (app, worker) = application("settings_gone", &[("xdb.http_threads", "16"), ("xdb.max_in_flight", "4")]);
    never_more_than(&app, &worker, 4);
    // Also when the file is read again: what else it says holds.
    app.cluster().set("xdb.max_in_flight", "2");
    app.done(&["xdb.http_threads"]);
}

#[test]
fn max_concurrency_bounds_the_calls_of_one_worker() {
    let (app, worker) = application("settings_concurrency", &[]);
    app.superuser().run(&format!("SELECT xdb.register_worker('stub', '{}', max_concurrency => 3)", worker.url()));
    never_more_than(&app, &worker, 3);
    app.done(&[]);
}

#[test]
fn the_call_that_was_due_first_gets_the_worker_first() {
    let app = App::new("settings_in_line");
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => all_of(&[local_queue("m", "inbox", 1)]),
        _ => force_complete(json!(null)),
    });
    app.register("mail", &mailbox());
    app.register("one", &one_step());
    let (mut superuser, mut db) = (app.superuser(), app.db());
    superuser.run(&format!("SELECT xdb.register_worker('stub', '{}', max_concurrency => 1)", worker.url()));
    db.start("wakes", "mail").go();
    wait_until("it waits", 10, || views::waits(&mut db, "wakes").len() == 1);

    app.pause();
    for number in 0..3 {
        db.start(&format!("first-{number}"), "one").go();
    }
    db.publish("wakes", "inbox", json!(1));
    // The turn that takes the message in has room for one call, and decides about this one by itself.
    superuser.run("SELECT xdb.resume_engine()");
    db.completes("wakes");
    let executed = worker.calls().into_iter().filter(|call| call.api == Api::Execute);
    let executed: Vec<_> = executed.map(|call| call.process_id().to_owned()).collect();
    assert_eq!(executed, ["first-0", "first-1", "first-2", "wakes"]);
    app.done(&[]);
}

#[test]
fn only_the_databases_that_are_named_run() {
    let app = App::alone("settings_named", ClusterOptions::default().set("xdb.databases", "settings_named"));
    let _worker = app.worker(|_| force_complete(json!(null)));
    app.register("one", &one_step());
    let mut db = app.db();
    db.start("p", "one").go();
    db.completes("p");

    app.cluster().set("xdb.databases", "another, and_another");
    wait_until("its scheduler has ended", 20, || app.cluster().find_scheduler("settings_named").is_none());
    db.start("q", "one").go();
    assert_eq!(db.json("SELECT xdb.wait_for_process('q', '1 s')")["timedOut"], true);
    app.cluster().set("xdb.databases", "another, settings_named");
    db.completes("q");
    app.done(&[]);
}

#[test]
fn databases_of_any_name_can_be_named() {
    let app = App::alone("settings_list", ClusterOptions::default().set("xdb.databases", "settings_list"));
    let names = ["plain", "Capitals", "with blank", " outer ", "com,ma", "quo\"te", "unnamed"];
    for name in names {
        let quoted = format!("\"{}\"", name.replace('"', "\"\""));
        app.cluster().superuser().run(&format!("CREATE DATABASE {quoted} TEMPLATE template0"));
        app.cluster().connect(name, "postgres").run("CREATE EXTENSION xdb");
    }
    let run = |list: &str, expected: &[&str]| {
        app.cluster().set("xdb.databases", list);
        wait_until(&format!("{list} is in force"), 30, || {
            names.iter().all(|name| app.cluster().find_scheduler(name).is_some() == expected.contains(name))
        });
    };
    run(r#""com,ma" , "quo""te"," outer ""#, &["com,ma", "quo\"te", " outer "]);
    run(r#""Capitals", PLAIN"#, &["Capitals", "plain"]);
    run(r#""Capitals", "with blank""#, &["Capitals", "with blank"]);
    run("PLAIN", &["plain"]);
    run(r#"plain, "Capitals"#, &[]);
    wait_until("the log says why", 10, || app.cluster().log().contains("xdb.databases can't be read"));
    run("", &names);
    app.cluster().set("xdb.databases", "settings_list");
    app.done(&["xdb.databases can't be read"]);
}

#[test]
fn rpc_timeout_applies_to_calls_without_a_timeout() {
    let (app, worker) = application("settings_rpc", &[]);
    let mut db = app.db();
    db.run("SELECT xdb.start_process('p', 'slow', start_at => now() + interval '1 day')");
    db.run("SET xdb.rpc_timeout = '300 ms'");
    let (took, error) = timed(|| db.refused(codes::WORKER_FAILED, "SELECT xdb.invoke_rpc('p', 'ask')"));
    assert!(took >= Duration::from_millis(290) && took < Duration::from_secs(5), "{took:?}: {error:?}");

    for (rpc, argument) in [("ask_long", ""), ("ask", ", timeout => '1 minute'")] {
        std::thread::scope(|scope| {
            let begun = Instant::now();
            let before = worker.count(|call| call.target() == rpc);
            let asking = scope.spawn(|| db.try_run(&format!("SELECT xdb.invoke_rpc('p', '{rpc}'{argument})")));
            worker.wait_for_count("the call", 10, before + 1, |call| call.target() == rpc);
            wait_until("the setting would have ended it", 10, || begun.elapsed() > Duration::from_secs(1));
            worker.release();
            asking.join().expect("no panic").expect("it is waited for");
        });
    }
    app.done(&[]);
}

#[test]
fn sizes_of_answers_and_payloads_are_bounded() {
    sizes_are_bounded(App::alone("settings_sizes", small_sizes()));
}

#[test]
fn sizes_of_answers_and_payloads_are_bounded_in_a_hostile_database() {
    sizes_are_bounded(App::hostile_alone("hostile_sizes", small_sizes()));
}

fn small_sizes() -> ClusterOptions {
    ClusterOptions::default().set("xdb.max_response_size", "16kB").set("xdb.max_payload_size", "4kB")
}

fn sizes_are_bounded(app: App) {
    let worker = app.worker(|_| force_complete(json!("healed")));
    app.register("one", &one_step());
    let mut db = app.db();
    let of = |bytes: usize| format!("to_jsonb(repeat('x', {bytes}))");
    db.refused(codes::PAYLOAD_REFUSED, &format!("SELECT xdb.start_process('p', 'one', {})", of(4200)));
    db.run(&format!("SELECT xdb.start_process('p', 'one', {})", of(4000)));
    db.completes("p");

    worker.misbehave(|_| force_complete(json!("x".repeat(4200))));
    db.start("payload", "one").go();
    wait_until("the payload is too large", 10, || {
        views::fails_saying(&mut db, "payload", &["closeInput is 4202 bytes"])
    });
    worker.misbehave(|_| force_complete(json!(null)).locals(json!({"a": "x".repeat(3900), "b": "x".repeat(3900)})));
    db.completes("payload");

    worker.misbehave(|_| Reply::Huge(20_000));
    db.start("answer", "one").go();
    wait_until("the answer is too large", 10, || {
        db.count("xdb.failures WHERE process_id = 'answer' AND error_type = 'AnswerTooLarge'") == 1
    });
    worker.heal();
    db.completes("answer");

    // The same limits hold for other handlers: a function, of a state and of an RPC, and a pull worker.
    db.run(
        "CREATE FUNCTION public.wide(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_object('output', 1,
             'stateDecision', '{\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}'::jsonb,
             'more', repeat('x', CASE WHEN COALESCE(request->>'input', request->>'stateInput') = 'wide' THEN 17000 ELSE 1 END)) $$;",
    );
    let mut superuser = app.superuser();
    let definition = Definition::starting_with("Do")
        .step_with("Do", json!({"executeFunction": "public.wide", "executeApiRetryPolicy": {"maximumAttempts": 1}}))
        .rpc("ask", json!({"function": "public.wide"}));
    superuser.run(&format!("SELECT xdb.register_process_type('wide', NULL, '{}')", definition.json()));
    let still = Definition::without_start().rpc("ask", json!({"function": "public.wide"}));
    superuser.run(&format!("SELECT xdb.register_process_type('asked', NULL, '{}')", still.json()));
    db.start("asked", "asked").go();
    assert_eq!(db.rpc("asked", "ask", json!("narrow")), json!(1));
    let refused = db.refused(codes::WORKER_FAILED, "SELECT xdb.invoke_rpc('asked', 'ask', '\"wide\"')");
    assert!(refused.detail.contains("xdb.max_response_size is 16384"), "{}", refused.detail);
    db.start("function", "wide").input(json!("wide")).go();
    wait_until("the function's answer is too large", 60, || {
        views::fails_saying(&mut db, "function", &["xdb.max_response_size is 16384"])
    });
    superuser.run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    superuser.run(&format!("SELECT xdb.register_process_type('pulled', 'pull', '{}')", one_step().json()));
    db.start("pulled", "pulled").go();
    db.run("BEGIN ISOLATION LEVEL READ COMMITTED");
    let token: String = db.one("SELECT token::text FROM xdb.claim_calls('pull', 1, wait => '30 s')");
    db.run("COMMIT");
    let answer = |more: usize| {
        format!(
            "SELECT xdb.complete_call('{token}', jsonb_build_object('more', repeat('x', {more}), 'stateDecision', \
             '{{\"threadCloseDecision\": {{\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}}'::jsonb))"
        )
    };
    let refused = db.refused(codes::WORKER_FAILED, &answer(17_000));
    assert!(refused.detail.contains("xdb.max_response_size is 16384"), "{}", refused.detail);
    db.run(&answer(10));
    db.completes("pulled");
    app.done(&[]);
}

#[test]
fn timeouts_of_server_database_and_role_are_not_the_engines() {
    let app = App::alone("settings_timeouts", ClusterOptions::default());
    app.db().run(
        "CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.05); RETURN new; END $$;
         CREATE TRIGGER sleep BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION sleep();
         INSERT INTO counters SELECT 'k' || n FROM generate_series(1, 5) n;",
    );
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[timer("t", 0.1)]),
        _ => force_complete(json!(null)).globals(json!({"n": 1})),
    });
    let waiting = Definition::starting_with("Wait").waiting_step("Wait");
    app.register("careful", &waiting.maps("public.counters", "id", &["n"]));
    // The sessions of these tests bring a statement_timeout of their own.
    let mut superuser = app.superuser();
    for place in [
        "SYSTEM",
        "DATABASE settings_timeouts",
        "ROLE postgres",
        "ROLE app",
        "ROLE postgres IN DATABASE settings_timeouts",
        "ROLE app IN DATABASE settings_timeouts",
    ] {
        for name in ["statement_timeout", "lock_timeout", "deadlock_timeout"] {
            superuser.run(&format!("ALTER {place} SET {name} = '1ms'"));
        }
    }
    superuser.run("SELECT pg_reload_conf()");
    let before = app.scheduler();
    superuser.run(&format!("SELECT pg_terminate_backend({before})"));
    wait_until("another scheduler runs", 20, || app.cluster().find_scheduler(app.database()) != Some(before));
    let mut db = app.db();
    (1..=5).for_each(|n| drop(db.start(&format!("p{n}"), "careful").key(&format!("k{n}")).go()));
    (1..=5).for_each(|n| drop(db.completes(&format!("p{n}"))));
    assert_eq!(worker.count(|call| call.attempt() > 1), 0);
    assert_eq!(db.one::<i64>("SELECT sum(n) FROM counters"), 5);
    let log = app.cluster().log();
    let cancelled = log.lines().find(|line| line.contains("<xdb") && line.contains("canceling"));
    assert_eq!(cancelled, None);
    app.done(&[]);
}

#[test]
fn the_requests_of_one_process_are_bounded() {
    let app = App::new("settings_limits");
    let worker = app.worker(|_: &Call| next_all(&vec![("Wait", json!(null)); 20_001]));
    let hasty = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 0.001, "maximumIntervalSeconds": 0.001}});
    app.register("wide", &Definition::starting_with("Start").step_with("Start", hasty).waiting_step("Wait"));
    let mut db = app.db();
    db.start("p", "wide").go();
    let saying = |db: &mut Db, words: &str| wait_until(words, 10, || views::fails_saying(db, "p", &[words]));
    saying(&mut db, "would have 20001 threads; the limit is 20000");
    let between = "SELECT next_attempt_at - failed_at >= '100 ms' FROM xdb.failures WHERE process_id = 'p'";
    wait_until("a retry is due after a tenth of a second", 10, || db.one::<bool>(between));
    worker.misbehave(|call: &Call| match call.target() {
        "Start" => next("Wait", json!(null)),
        _ => any_of(&vec![timer("t", 60.0); 1001]),
    });
    saying(&mut db, "has 1001 commands; the limit is 1000");
    worker.misbehave(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[timer("a", 0.1), timer("b", 60.0)]),
        _ => force_complete(json!("done")),
    });
    assert_eq!(db.completes("p").result(), &json!("done"));
    app.done(&[]);
}

#[test]
fn authorities_of_a_file_are_trusted_as_the_file_is_at_the_last_reload() {
    let app = App::alone("settings_authorities", ClusterOptions::default());
    let worker = Worker::start(|call: &Call| match call.api {
        Api::Rpc => output(json!("pong")),
        _ => force_complete(json!(null)),
    });
    let (ours, others) = (Authority::default(), Authority::default());
    let front = Front::start(&worker, &ours);
    let (mut superuser, mut db) = (app.superuser(), app.db());
    superuser.run(&format!("SELECT xdb.register_worker('stub', '{}')", front.url()));
    let retries = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 0.2, "maximumIntervalSeconds": 0.2}});
    app.register("one", &Definition::starting_with("Only").step_with("Only", retries).rpc("ping", json!({})));
    superuser.run(&format!("SELECT xdb.register_worker('plain', '{}')", worker.url()));
    app.register_with("plain", "plain", &one_step());
    let refused = |db: &mut Db, why: &str| {
        wait_until("RPCs are refused", 20, || match db.try_run("SELECT xdb.invoke_rpc('p', 'ping')") {
            Ok(()) => false,
            Err(error) => error.code == codes::WORKER_FAILED && error.detail.contains(why),
        });
    };

    // The engine does not trust the authority. That is the worker's fault.
    db.start("p", "one").go();
    wait_until("the attempt fails", 20, || views::fails_saying(&mut db, "p", &["UnknownIssuer"]));
    refused(&mut db, "UnknownIssuer");

    // There is no such file: the worker can't help it, and no attempt is spent.
    app.cluster().set("xdb.ssl_ca_file", "ours.pem");
    let unreadable = "file of xdb.ssl_ca_file can't be read: no such file or directory";
    refused(&mut db, unreadable);
    wait_until("the engine knows", 20, || app.cluster().log().contains("no worker is called over TLS"));
    db.start("q", "one").go();
    // Without TLS calls are made, one of them after that of the process before.
    db.start("plain", "plain").go();
    db.completes("plain");
    let reason = "SELECT coalesce(reason, '') FROM xdb.status()";
    assert!(superuser.text(reason).contains(unreadable), "{}", superuser.text(reason));
    assert!(superuser.text("SELECT last_error FROM xdb.status()").contains(unreadable));
    assert_eq!(views::failures(&mut db, "q"), Vec::<Value>::new());

    // The file exists now. The engine sees that at the next reload.
    app.cluster().write_file("ours.pem", &format!("{}{}", others.pem, ours.pem));
    superuser.run("SELECT pg_reload_conf()");
    for id in ["p", "q"] {
        db.completes(id);
    }
    wait_until("RPCs are answered", 20, || {
        db.try_one::<String>("SELECT xdb.invoke_rpc('p', 'ping')::text").is_ok_and(|answer| answer == "\"pong\"")
    });
    assert_eq!(superuser.text(reason), "");
    assert_eq!(worker.count(|call| call.attempt() == 1 && call.process_id() == "q"), 1, "no attempt was spent");

    // It is also the worker's fault if its certificate has another name, although earlier connections exist.
    app.cluster().write_file("ours.pem", &others.pem);
    superuser.run("SELECT pg_reload_conf()");
    refused(&mut db, "invalid peer certificate");
    db.start("r", "one").go();
    wait_until("the attempt fails", 20, || views::fails_saying(&mut db, "r", &["invalid peer certificate"]));
    assert_eq!(worker.count(|call| call.process_id() == "r"), 0);
    db.run("SELECT xdb.stop_process('r')");
    app.done(&[]);
}
