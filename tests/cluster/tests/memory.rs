//! No size of any value ends a process of the server. Missing memory is an error of the statement that needs it. Tested
//! under limits of memory.

use xdb_cluster_tests::cluster::{limit_memory, limit_promised_memory, size};
use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::log;
use xdb_cluster_tests::prelude::*;

const MB: u64 = 1024 * 1024;

/// A process type whose call loads all local attributes.
fn loading() -> Definition {
    Definition::starting_with("Only").step_with("Only", json!({"loadLocalAttributes": {"policy": "ALL"}}))
}

fn many(count: usize, bytes: usize) -> Value {
    (0..count).map(|number| (format!("a{number}"), json!("x".repeat(bytes)))).collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn an_execution_gets_no_more_local_attributes_than_it_may() {
    let options = ClusterOptions::default().set("xdb.max_request_size", "256kB");
    let app = App::alone("memory_local_attributes", options);
    let worker = app.worker(|_| Reply::hang(force_complete(json!(null))));
    app.register("loading", &loading().rpc("write", json!({"loadLocalAttributes": {"policy": "ALL"}})));
    let mut db = app.db();

    let error = db.start("p", "loading").locals(many(10_001, 1)).refused(codes::PAYLOAD_REFUSED);
    assert!(error.message.contains("10001 of"), "{error:?}");
    db.start("p", "loading").locals(many(3, 90_000)).refused(codes::PAYLOAD_REFUSED);
    db.refused(
        codes::PAYLOAD_REFUSED,
        &format!(
            "SELECT xdb.start_processes({})",
            jsonb(&json!([{"process_id": "p", "process_type": "loading", "local_attributes": many(10_001, 1)}]))
        ),
    );

    db.start("p", "loading").locals(many(9_999, 1)).go();
    let set = |attributes: Value| format!("SELECT xdb.set_local_attributes('p', {})", jsonb(&attributes));
    db.refused(codes::PAYLOAD_REFUSED, &set(json!({"b0": 1, "b1": 2})));
    db.refused(codes::PAYLOAD_REFUSED, &set(json!({"b": "x".repeat(200_000)})));
    db.run(&set(json!({"b": 1})));
    // Replaces an attribute: their number stays, and all bytes together stay below the limit.
    db.run(&set(json!({"a0": "x".repeat(100_000)})));

    worker.wait_for_count("the call", 10, 1, |call| call.api == Api::Execute);
    worker.misbehave(|call: &Call| match call.api {
        Api::Rpc => output(json!(null)).locals(json!({"c": 1})),
        _ => force_complete(json!("written")).locals(json!({"c": 1})),
    });
    db.refused(codes::PAYLOAD_REFUSED, "SELECT xdb.invoke_rpc('p', 'write')");
    worker.release();
    db.start("q", "loading").locals(many(10_000, 1)).go();
    wait_until("the answer is refused", 10, || views::fails_saying(&mut db, "q", &["too many local attributes"]));
    assert_eq!(db.status("q"), "RUNNING");
    worker.misbehave(|_| force_complete(json!("written")).locals(json!({"a4": 5})));
    assert_eq!(db.completes("q").result(), &json!("written"));
    db.completes("p");
    app.done(&[]);
}

#[test]
fn a_value_stored_before_a_limit_is_not_sent_and_can_be_made_smaller() {
    let app = App::alone("memory_stored", ClusterOptions::default());
    let worker = app.worker(|call: &Call| match call.api {
        Api::Execute => force_complete(json!(call.body["loadedLocalAttributes"].as_object().map(|all| all.len()))),
        _ => output(json!(null)),
    });
    worker.misbehave(|_| Reply::Json(500, json!({})));
    let retries = json!({"executeApiRetryPolicy": quick_retries(), "loadLocalAttributes": {"policy": "ALL"}});
    app.register("loading", &Definition::starting_with("Only").step_with("Only", retries));
    let mut db = app.db();
    db.start("large", "loading").locals(many(4, 30_000)).go();
    db.start("small", "loading").locals(many(3, 10)).go();
    worker.wait_for_count("calls", 10, 2, |_| true);

    app.cluster().set("xdb.max_request_size", "64kB");
    let refused = "xdb.failures WHERE process_id = 'large' AND error_type = 'RequestTooLarge'";
    wait_until("nothing of it is sent", 10, || db.count(refused) == 1);
    worker.heal();
    assert_eq!(db.completes("small").result(), &json!(3));
    assert_eq!(db.status("large"), "RUNNING");
    assert_eq!(db.json("SELECT xdb.get_local_attributes('large')").as_object().map(|all| all.len()), Some(4));

    // Smaller, and still above the limit: then below it.
    db.run("SELECT xdb.set_local_attributes('large', '{\"a0\": 0}')");
    db.refused(codes::PAYLOAD_REFUSED, "SELECT xdb.set_local_attributes('large', '{\"more\": 0}')");
    db.run("SELECT xdb.set_local_attributes('large', '{\"a1\": 1}')");
    assert_eq!(db.completes("large").result(), &json!(4));
    app.done(&[]);
}

#[test]
fn a_request_that_is_too_large_is_not_sent() {
    let app = App::alone("memory_requests", ClusterOptions::default().set("xdb.max_request_size", "64kB"));
    let worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => output(json!(null)),
        _ => force_complete(json!(null)),
    });
    app.db().run("CREATE TABLE pages (id text PRIMARY KEY, page text, n int)");
    let all = json!({"loadGlobalAttributes": {"policy": "ALL"}, "executeApiRetryPolicy": quick_retries()});
    let definition = Definition::starting_with("Only").step_with("Only", all).rpc("ask", json!({"timeoutSeconds": 1}));
    app.register("page", &definition.maps("public.pages", "id", &["page", "n"]));
    let mut db = app.db();
    db.run("INSERT INTO pages VALUES ('k', repeat('x', 100000), 1)");
    db.start("p", "page").key("k").go();
    wait_until("it is not sent", 10, || views::fails_saying(&mut db, "p", &["xdb.max_request_size is 65536"]));
    assert_eq!(worker.count(|_| true), 0);
    // An argument is as long as a request at most; one of a bulk start may be longer.
    let input = "to_jsonb(repeat('x', 70000))";
    db.refused(codes::PAYLOAD_REFUSED, &format!("SELECT xdb.invoke_rpc('p', 'ask', {input})"));
    db.refused(codes::PAYLOAD_REFUSED, &format!("SELECT xdb.start_process('q', 'page', {input})"));
    let bulk = |length| {
        let processes = json!([{"process_id": "b", "x": "x".repeat(length)}]);
        format!("SELECT xdb.start_processes({})", jsonb(&processes))
    };
    db.refused(codes::INVALID_ARGUMENT, &bulk(70_000));
    db.refused(codes::PAYLOAD_REFUSED, &bulk(300_000));

    db.run("UPDATE pages SET page = 'short'");
    db.completes("p");
    app.done(&[]);
}

#[test]
fn a_session_without_memory_gets_an_error_and_lives() {
    let app = App::alone("memory_session", ClusterOptions::default());
    let _worker = app.worker(|_| force_complete(json!(null)));
    app.register("one", &one_step());
    let mut db = app.db();
    db.start("before", "one").go();
    db.completes("before");
    let pid: i32 = db.one("SELECT pg_backend_pid()");
    // Enough for the server's own copy of the argument, and not for a second one.
    limit_memory(pid, 300 * MB);
    let long = "(SELECT repeat('x', 200000000 + random()::int) AS long OFFSET 0) l";
    db.refused(codes::OUT_OF_MEMORY, &format!("SELECT xdb.start_process(long, 'one') FROM {long}"));
    db.refused(codes::OUT_OF_MEMORY, &format!("SELECT xdb.publish('p', long, '1') FROM {long}"));
    // Many small pieces.
    let wide = "(SELECT jsonb_agg(jsonb_build_object('process_id', 'b' || n, 'process_type', 'one', 'input', n))
        FROM generate_series(1, 300000) n)";
    db.refused(codes::OUT_OF_MEMORY, &format!("SELECT xdb.start_processes({wide})"));
    let keys = "(SELECT array_agg(n::text) FROM generate_series(1, 3000000) n)";
    db.refused(codes::OUT_OF_MEMORY, &format!("SELECT xdb.get_local_attributes('before', {keys})"));
    // A null takes one bit of the array.
    db.refused(codes::OUT_OF_MEMORY, "SELECT xdb.stop_process(array_fill(NULL::text, ARRAY[20000000]))");
    limit_memory(pid, 0);
    // Whatever each of them says to that.
    for sql in [
        "SELECT xdb.start_process('p' || n, 'one', to_jsonb(repeat('x', 1000000))) FROM generate_series(1, 100) n",
        "SELECT xdb.start_processes((SELECT jsonb_agg(jsonb_build_object('process_id', 'b' || n, 'process_type', 'one'))
            FROM generate_series(1, 50000) n))",
        "SELECT * FROM xdb.describe_process('before')",
    ] {
        // What is started is not kept.
        let done = db.try_run("BEGIN").and_then(|()| db.try_run(sql));
        if let Err(error) = done {
            assert_eq!(error.code, codes::OUT_OF_MEMORY, "{error:?}");
        }
        db.run("ROLLBACK");
    }
    assert_eq!(db.one::<i32>("SELECT pg_backend_pid()"), pid);
    assert_eq!(log::crashes(&app.cluster().log()), 0);
    app.done(&["out of memory"]);
}

#[test]
fn a_session_with_memory_for_a_part_of_many_ids_gets_an_error_and_lives() {
    let app = App::alone("memory_many", ClusterOptions::default());
    let _worker = app.worker(|_| force_complete(json!(null)));
    app.register("one", &one_step());
    app.pause();
    let starts = "SELECT jsonb_agg('{\"process_type\": \"one\"}'::jsonb) AS starts FROM generate_series(1, 20000)";
    let ids = "SELECT array_agg('unknown' || n) AS ids FROM generate_series(1, 50000) n";
    for (argument, sql) in [
        (starts, "SELECT xdb.start_processes(starts) FROM argument"),
        (ids, "SELECT stopped.* FROM argument, xdb.stop_process(ids) stopped"),
    ] {
        // What one session leaves in its heap does not help the next one.
        let refused = (0..1000).step_by(4).take_while(|step| {
            let mut db = app.db();
            let pid: i32 = db.one("SELECT pg_backend_pid()");
            db.run(&format!("CREATE TEMP TABLE argument AS {argument}; BEGIN"));
            limit_memory(pid, step * MB);
            let done = db.try_run(sql);
            if let Err(error) = &done {
                assert_eq!(error.code, codes::OUT_OF_MEMORY, "with {step} MB: {error:?}");
            }
            done.is_err()
        });
        assert!((1..250).contains(&refused.count()), "{sql}");
    }
    assert_eq!(log::crashes(&app.cluster().log()), 0);
    app.done(&["out of memory"]);
}

#[test]
fn an_engine_without_memory_continues_with_the_memory_it_has() {
    let app = App::alone("memory_engine", ClusterOptions::default().set("xdb.max_payload_size", "16MB"));
    let _worker = app.worker(|_| force_complete(json!(null)));
    app.register("loading", &loading());
    let mut db = app.db();
    // One after the other they fit.
    let locals = "jsonb_build_object('a', repeat('x', 8000000))";
    app.pause();
    for number in 0..20 {
        db.run(&format!("SELECT xdb.start_process('p{number}', 'loading', local_attributes => {locals})"));
    }
    let scheduler = app.scheduler();
    limit_memory(scheduler, 120 * MB);
    app.superuser().run("SELECT xdb.resume_engine()");
    wait_until("all are done", 120, || views::with_status(&mut db, "p%", "COMPLETED") == 20);
    assert_eq!(app.scheduler(), scheduler);
    assert_eq!(log::crashes(&app.cluster().log()), 0);
    app.done(&["out of memory", "bytes were needed"]);
}

#[test]
fn an_engine_without_memory_for_all_inputs_reads_them_one_after_the_other() {
    const COUNT: i64 = 200;
    let app = App::alone("memory_inputs", ClusterOptions::default());
    let worker = app.worker(|call: &Call| match call.target() {
        "Only" => next("Next", call.input().clone()),
        _ => force_complete(json!(null)),
    });
    let many = format!("SELECT xdb.register_worker('stub', '{}', max_concurrency => 1000)", worker.url());
    app.superuser().run(&many);
    app.register("passing", &Definition::starting_with("Only").step("Only").step("Next"));
    app.pause();
    let mut db = app.db();
    db.run(&format!(
        "SELECT xdb.start_process('p' || n, 'passing', to_jsonb(repeat('x', 990000))) FROM generate_series(1, {COUNT}) n"
    ));
    let scheduler = app.scheduler();
    limit_memory(scheduler, 120 * MB);
    app.superuser().run("SELECT xdb.resume_engine()");
    wait_until("all are done", 120, || views::with_status(&mut db, "p%", "COMPLETED") == COUNT);
    assert_eq!(app.scheduler(), scheduler);
    assert_eq!(log::crashes(&app.cluster().log()), 0);
    app.done(&["out of memory", "bytes were needed"]);
}

#[test]
fn a_session_keeps_no_memory_in_reserve() {
    let app = App::new("memory_reserve");
    let worker = app.worker(|_| Reply::hang(output(json!(null))));
    app.register("asked", &Definition::starting_with("Only").waiting_step("Only").rpc("ask", json!({})));
    app.pause();
    app.db().start("p", "asked").go();
    let mut db = app.db();
    let pid: i32 = db.one("SELECT pg_backend_pid()");
    let promised = || size(pid, "VmData");
    let before = promised();
    db.run("SELECT xdb.get_local_attributes('p')");
    let after = promised();
    assert!(after < before + 3 * MB, "{before} bytes before the first call, and {after} after it");
    // While it holds something large it has a reserve, and not afterwards.
    std::thread::scope(|scope| {
        let input = json!("x".repeat(300_000));
        let asking = scope.spawn(|| db.rpc("p", "ask", input));
        worker.wait_for("the call", 10, |call| call.api == Api::Rpc);
        let meanwhile = promised();
        worker.release();
        asking.join().expect("no panic");
        let after = promised();
        assert!(after + 4 * MB <= meanwhile, "{meanwhile} bytes meanwhile, and {after} after it");
    });
    app.done(&[]);
}

#[test]
fn a_session_with_hardly_any_memory_makes_its_rpc_or_reports_the_reason() {
    with_hardly_any_memory("memory_rpc", limit_memory);
}

#[test]
fn a_session_with_hardly_any_promised_memory_makes_its_rpc_or_reports_the_reason() {
    with_hardly_any_memory("memory_rpc_promised", limit_promised_memory);
}

fn with_hardly_any_memory(name: &str, limit: fn(i32, u64)) {
    let app = App::alone(name, ClusterOptions::default());
    let worker = app.worker(|_| output(json!("done")));
    // By its name, so that a thread of its own resolves it.
    let by_name = worker.url().replace("127.0.0.1", "localhost");
    app.superuser().run(&format!("SELECT xdb.register_worker('stub', {})", literal(&by_name)));
    app.register("asked", &Definition::starting_with("Only").waiting_step("Only").rpc("ask", json!({})));
    app.pause();
    app.db().start("p", "asked").go();
    let mut done = 0;
    for step in 0..300 {
        let mut db = app.db();
        let pid: i32 = db.one("SELECT pg_backend_pid()");
        db.run("SELECT * FROM xdb.get_local_attributes('p')");
        limit(pid, step * MB / 50);
        // Long enough for what comes before the call on a busy machine.
        match db.try_run("SELECT xdb.invoke_rpc('p', 'ask', timeout => '500 ms')") {
            Ok(()) => done += 1,
            Err(error) => assert!(
                [codes::OUT_OF_MEMORY, codes::TOO_FEW_RESOURCES, codes::WORKER_FAILED].contains(&&*error.code),
                "{error:?}"
            ),
        }
    }
    assert!(done > 0);
    assert_eq!(log::crashes(&app.cluster().log()), 0);
    app.done(&["out of memory"]);
}

#[test]
fn an_error_of_a_trigger_is_as_long_as_it_may_be_and_no_longer() {
    // So that no use is cancelled before it has sent all its messages.
    let app = App::alone("memory_errors", ClusterOptions::default().set("xdb.apply_timeout", "30s"));
    let worker = app.worker(|call: &Call| match call.refused_write() {
        Value::Null if call.process_id() == "after" => force_complete(json!(null)),
        Value::Null => force_complete(json!(null)).globals(json!({"n": 1})),
        result => force_complete(result.clone()),
    });
    let mut db = app.db();
    db.run(
        "CREATE FUNCTION speak() RETURNS trigger LANGUAGE plpgsql AS $$
         DECLARE
             much text := repeat('xé', new.id::int / 2);
         BEGIN
             RAISE '%', much USING ERRCODE = '22000', DETAIL = much, HINT = much, TABLE = much, CONSTRAINT = much;
         END $$;
         INSERT INTO counters VALUES ('10', 0), ('1000000', 0), ('40000000', 0);
         CREATE TRIGGER speak BEFORE INSERT OR UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION speak()",
    );
    app.register("one", &one_step());
    app.register("speaks", &one_step().maps("public.counters", "id", &["n"]));
    let scheduler = app.scheduler();
    db.start("short", "speaks").key("10").go();
    assert_eq!(db.completes("short").result()["message"], "xé".repeat(5));
    db.start("long", "speaks").key("1000000").go();
    let result = db.completes("long").result().clone();
    for field in ["message", "table", "constraint"] {
        let text = result[field].as_str().expect("a text");
        assert!((2700..4200).contains(&text.chars().count()) && text.ends_with('…'), "{}: {text}", text.len());
        assert!(text.trim_end_matches('…').chars().all(|c| "xé".contains(c)), "{field} was cut within a character");
    }
    let detail = "SELECT max(length(details -> 'failure' ->> 'detail')) FROM xdb.history WHERE process_id = 'long'";
    assert!((2000..10_000).contains(&db.one::<i32>(detail)));

    // More than the engine has memory for: once more at the most, it says so and goes on.
    limit_memory(scheduler, 500 * MB);
    db.start("longer", "speaks").key("40000000").go();
    wait_until("it was tried", 30, || worker.count(|call| call.process_id() == "longer") > 0);
    db.start("after", "one").go();
    db.completes("after");
    db.run("DROP TRIGGER speak ON counters");
    db.completes("longer");

    // A session gets more of it.
    db.run("CREATE TRIGGER speak BEFORE INSERT OR UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION speak()");
    let start =
        |db: &mut Db, key: &str| db.start("refused", "speaks").key(key).globals(json!({"n": 2})).refused("22000");
    assert_eq!(start(&mut db, "10").detail, "xé".repeat(5));
    let error = start(&mut db, "1000000");
    for text in [error.message, error.detail, error.hint] {
        assert!((60_000..70_000).contains(&text.len()) && text.ends_with('…'), "{} bytes", text.len());
    }
    assert_eq!(app.scheduler(), scheduler);
    assert_eq!(log::crashes(&app.cluster().log()), 0);
    app.done(&["out of memory", "bytes were needed"]);
}

/// Gives registered types `large1` to `large{count}` definitions that are too large to be registered now. Sessions that
/// have read the old definitions notice the change.
fn enlarge(app: &App, count: usize, states: usize) {
    for number in 1..=count {
        app.register(&format!("large{number}"), &one_step());
    }
    app.superuser().run(&format!(
        "UPDATE xdb.process_type SET version = version + 1, definition = jsonb_set(definition, '{{states}}', definition -> 'states' ||
             (SELECT jsonb_object_agg('a name of some length, which many states have ' || n, '{{}}'::jsonb)
              FROM generate_series(1, {states}) n)) WHERE process_type LIKE 'large%';
         UPDATE xdb.registry SET generation = generation + 1"
    ));
}

#[test]
fn definitions_for_which_there_is_no_memory_stop_no_other_types() {
    let app = App::alone("memory_definitions", ClusterOptions::default());
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        _ => force_complete(json!(null)),
    });
    app.register("one", &one_step());
    app.register("waiting", &Definition::starting_with("Only").waiting_step("Only"));
    let mut db = app.db();
    db.start("waits", "waiting").go();
    wait_until("it waits", 20, || !views::waits(&mut db, "waits").is_empty());
    enlarge(&app, 10, 120_000);
    app.pause();
    for number in 1..=10 {
        db.start(&format!("of_large{number}"), &format!("large{number}")).go();
    }
    let scheduler = app.scheduler();
    limit_memory(scheduler, 150 * MB);
    app.superuser().run("SELECT xdb.resume_engine()");
    for number in 0..5 {
        let id = format!("p{number}");
        db.start(&id, "one").go();
        db.completes(&id);
        // A registration does not make sessions read all types.
        app.register("one", &one_step());
    }
    // A session reads only the types that it uses.
    let mut other = app.db();
    let pid: i32 = other.one("SELECT pg_backend_pid()");
    other.run("SELECT * FROM xdb.get_local_attributes('waits')");
    limit_memory(pid, 60 * MB);
    other.publish("waits", "inbox", json!(1));
    other.completes("waits");
    other.refused(codes::OUT_OF_MEMORY, "SELECT xdb.start_process('more', 'large1')");
    assert_eq!(views::with_status(&mut db, "of_large%", "RUNNING"), 10);
    assert_eq!(worker.count(|call| call.process_id().starts_with("of_large")), 0);
    // There is memory for one or two of them at a time.
    limit_memory(scheduler, 700 * MB);
    wait_until("all are done", 60, || views::with_status(&mut db, "of_large%", "COMPLETED") == 10);
    assert_eq!(app.scheduler(), scheduler);
    assert_eq!(log::crashes(&app.cluster().log()), 0);
    app.done(&["out of memory", "can't be read, so its processes wait", "bytes were needed"]);
}

#[test]
fn an_engine_keeps_a_limited_size_of_definitions() {
    let app = App::alone("memory_kept", ClusterOptions::default());
    let _worker = app.worker(|_| force_complete(json!(null)));
    enlarge(&app, 40, 10_000);
    let mut db = app.db();
    let scheduler = app.scheduler();
    // Each takes 8 MB and more.
    limit_memory(scheduler, 250 * MB);
    for number in 1..=40 {
        db.start(&format!("p{number}"), &format!("large{number}")).go();
    }
    wait_until("all are done", 60, || views::with_status(&mut db, "p%", "COMPLETED") == 40);
    assert_eq!(app.scheduler(), scheduler);
    app.done(&[]);
}

#[test]
fn definitions_of_one_keep_no_process_of_another_waiting() {
    const GREEDY: usize = 40;
    let app = App::alone("memory_definitions_shared", ClusterOptions::default());
    let worker = app.worker(|call: &Call| match call.process_id() {
        "modest" => force_complete(json!(null)),
        _ => next_all(&[("Only", json!(null))]),
    });
    enlarge(&app, GREEDY + 1, 10_000);
    let mut db = app.db();
    for number in 1..=GREEDY {
        db.start(&format!("greedy{number}"), &format!("large{number}")).go();
    }
    wait_until("they go on and on", 60, || worker.count(|_| true) >= 5 * GREEDY);
    let before = worker.count(|_| true);
    let mut other = app.session("other");
    other.start("modest", &format!("large{}", GREEDY + 1)).go();
    other.completes("modest");
    let meanwhile = worker.count(|_| true) - before;
    assert!(meanwhile <= 100, "{meanwhile} calls were made before one of another role");
    app.done(&[]);
}

#[test]
fn the_bytes_and_states_of_a_definition_are_limited() {
    let app = App::new("memory_of_definitions");
    let _worker = app.worker(|_| force_complete(json!(null)));
    app.register("one", &one_step());
    let mut superuser = app.superuser();
    let states = |count: usize| {
        format!(
            "SELECT xdb.register_process_type('one', 'stub', jsonb_build_object('states',
                 (SELECT jsonb_object_agg('s' || n, null) FROM generate_series(1, {count}) n)))"
        )
    };
    let error = superuser.refused(codes::INVALID_DEFINITION, &states(10_001));
    assert!(error.message.ends_with("states has 10001 entries; at most 10000 are allowed"), "{error:?}");
    let long = "SELECT xdb.register_process_type('one', 'stub', jsonb_build_object('localQueues',
        (SELECT jsonb_agg(repeat('q', 1000) || n) FROM generate_series(1, 1100) n)))";
    let error = superuser.refused(codes::INVALID_DEFINITION, long);
    assert!(error.message.contains("at most 1048576 are allowed"), "{error:?}");
    superuser.run(&states(10_000));
    app.done(&[]);
}
