//! Quotas: the most that one process and one role may ask for and store. `settings.rs` tests further ones.

use xdb_cluster_tests::prelude::*;

/// Longer than the time between two counts.
const COUNTED: u64 = 40;

/// Waits until a statement is refused because of a quota.
fn until_refused(db: &mut Db, what: &str, sql: &str) -> SqlError {
    let mut refusal = None;
    wait_until(what, COUNTED, || {
        // What is accepted meanwhile leaves nothing.
        db.run("BEGIN");
        let tried = db.try_run(sql);
        db.run("ROLLBACK");
        match tried {
            Ok(()) => false,
            Err(error) if error.code == codes::OVER_QUOTA => refusal.replace(error).is_none(),
            Err(error) => panic!("{sql}: {error:?}"),
        }
    });
    refusal.expect("it was refused")
}

fn until_accepted(db: &mut Db, what: &str, sql: &str) {
    wait_until(what, COUNTED, || match db.try_run(sql) {
        Ok(()) => true,
        Err(error) if error.code == codes::OVER_QUOTA => false,
        Err(error) => panic!("{sql}: {error:?}"),
    });
}

fn restart(app: &App) {
    app.cluster().stop();
    app.cluster().launch();
    app.scheduler();
}

#[test]
fn calls_take_no_longer_than_they_may() {
    let app = App::new("quotas_timeouts");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!("pong")).into(),
        (_, "Slow") => Reply::from(force_complete(call.body["context"].clone())),
        _ => Reply::Json(
            200,
            json!({"stateDecision": {"nextStates": [{"stateId": "Slow", "stateConfig": {"executeApiTimeoutSeconds": 3601}}]}}),
        ),
    });
    let mut superuser = app.superuser();
    let of = |seconds: f64| json!({"executeApiTimeoutSeconds": seconds});
    let definition = |seconds| Definition::starting_with("First").step("First").step_with("Slow", of(seconds));
    let register =
        |definition: &Definition| format!("SELECT xdb.register_process_type('slow', 'stub', '{}')", definition.json());
    let error = superuser.refused(codes::OVER_QUOTA, &register(&definition(3600.5)));
    let what = "states.Slow.executeApiTimeoutSeconds is 3600.5 seconds; the limit is 3600";
    assert_eq!(error.message, what);
    assert!(error.hint.contains("superuser"), "{error:?}");
    let rpc = |seconds: u32| definition(3600.0).rpc("ping", json!({"timeoutSeconds": seconds}));
    let error = superuser.refused(codes::OVER_QUOTA, &register(&rpc(7200)));
    assert!(error.message.starts_with("rpcs.ping.timeoutSeconds is 7200 seconds"), "{error:?}");
    superuser.run(&register(&rpc(3600)));

    let mut db = app.db();
    let options = json!({"startingStateConfig": {"waitUntilApiTimeoutSeconds": 1e300}});
    let error = db.start("p", "slow").options(options).refused(codes::OVER_QUOTA);
    assert!(error.message.contains("waitUntilApiTimeoutSeconds is 1e300 seconds"), "{error:?}");
    // An answer that asks for more is a failed attempt.
    db.start("p", "slow").go();
    let words = ["executeApiTimeoutSeconds is 3601 seconds; the limit is 3600"];
    wait_until("the attempt fails", 10, || views::fails_saying(&mut db, "p", &words));
    let error = db.refused(codes::OVER_QUOTA, "SELECT xdb.invoke_rpc('p', 'ping', timeout => '3601 s')");
    assert_eq!(error.message, "timeout is 3601 seconds; the limit is 3600");
    assert_eq!(db.rpc("p", "ping", json!(null)), "pong");

    // What is registered already goes on.
    superuser.run(
        "UPDATE xdb.process_type SET definition = jsonb_set(jsonb_set(definition, '{states,Slow,executeApiTimeoutSeconds}', '7200'),
             '{rpcs,ping,timeoutSeconds}', '7200'), version = version + 1 WHERE process_type = 'slow';
         UPDATE xdb.registry SET generation = generation + 1;",
    );
    worker.misbehave(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!("pong")),
        (_, "Slow") => force_complete(json!("done")),
        _ => next("Slow", json!(null)),
    });
    db.run("SELECT xdb.retry_now('p')");
    assert_eq!(db.completes("p").result(), "done");
    db.start("q", "slow").options(json!({"startingStateConfig": {"executeApiTimeoutSeconds": 3600}})).go();
    assert_eq!(db.rpc("q", "ping", json!(null)), "pong");
    db.completes("q");
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn an_execution_has_no_more_timers_than_it_may() {
    let app = App::alone("quotas_timers", ClusterOptions::default().set("xdb.test_max_threads", "5"));
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[timer("a", 3600.0), timer("b", 3600.0), timer("c", 3600.0)]),
        (_, "Start") => next_all(&[("Wait", json!(null)), ("Wait", json!(null))]),
        _ => dead_end(),
    });
    app.register("wide", &Definition::starting_with("Start").step("Start").waiting_step("Wait"));
    let mut db = app.db();
    db.start("p", "wide").go();
    let words = ["the process would have 6 timers; the limit is 5"];
    wait_until("the second wait is refused", 10, || views::fails_saying(&mut db, "p", &words));
    assert_eq!(views::timers(&mut db, "p"), 3);
    // Other roles have their own.
    db.start("q", "wide").go();
    wait_until("the second wait is refused", 10, || views::fails_saying(&mut db, "q", &words));
    // A wait with two timers fits. The larger wait fits once other timers are over.
    worker.misbehave(|_| any_of(&[timer("a", 3600.0), timer("b", 3600.0)]));
    db.run("SELECT xdb.retry_now('p')");
    wait_until("it waits", 20, || views::timers(&mut db, "p") == 5);
    worker.heal();
    let waiting = "SELECT state_execution_id FROM xdb.state_executions WHERE process_id = 'q' AND status = 'WAITING'";
    let waiting = db.text(waiting);
    db.run(&format!("SELECT xdb.skip_timer('q', '{waiting}')"));
    wait_until("its timers are over", 20, || {
        views::with_status(&mut db, "q", "RUNNING") == 1 && {
            db.run("SELECT xdb.retry_now('q')");
            views::failures(&mut db, "q").is_empty()
        }
    });
    assert_eq!(views::timers(&mut db, "q"), 3);
    app.done(&[]);
}

/// Processes that wait for `go`, and then take everything from `box`. The input says how many messages at a time.
fn boxes(name: &str, options: ClusterOptions) -> (App, Worker) {
    let app = App::alone(name, options);
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!("sent")).publish("box", call.input().clone()),
        (Api::WaitUntil, "First") => all_of(&[local_queue("go", "go", 1)]),
        (Api::WaitUntil, _) => all_of(&[local_queue("m", "box", 2)]),
        (_, "First") => next("Read", json!(null)),
        _ => next("First", json!(null)),
    });
    let states = Definition::starting_with("First").waiting_step("First").waiting_step("Read");
    app.register("box", &states.rpc("send", json!({})));
    (app, worker)
}

const PUBLISH: &str = "SELECT xdb.publish('p', 'box', '1')";

#[test]
fn a_full_local_queue_accepts_no_message_until_there_is_space() {
    let settings = ClusterOptions::default().set("xdb.max_queue_messages", "4");
    let (app, worker) = boxes("quotas_local", settings);
    let (mut db, mut second) = (app.db(), app.db());
    db.start("p", "box").go();
    db.start("other", "box").go();
    // A message that was not taken in yet is not counted.
    second.run("BEGIN");
    second.run(PUBLISH);
    let with_id = |id: &str| format!("SELECT xdb.publish('p', 'box', '1', message_id => '{id}')");
    db.run(&with_id("known"));
    (0..3).for_each(|_| db.run(PUBLISH));
    let error = until_refused(&mut db, "it is full", PUBLISH);
    assert_eq!(error.message, "local queue \"box\" of process \"p\" is full");
    assert!(error.detail.contains("xdb.max_queue_messages is 4"), "{error:?}");
    assert!(error.hint.contains("consumed"), "{error:?}");
    second.run("COMMIT");
    until_refused(&mut second, "for all roles", PUBLISH);
    // A repeated message that was accepted before is accepted again.
    db.run(&with_id("known"));
    db.refused(codes::OVER_QUOTA, &with_id("new"));
    // Answers too: of an RPC, and of a step.
    let error = db.refused(codes::WORKER_FAILED, "SELECT xdb.invoke_rpc('p', 'send')");
    assert!(error.detail.contains("ocal queue \"box\" is full: xdb.max_queue_messages is 4"), "{error:?}");
    // Other queues, and other processes, are not concerned.
    db.publish("other", "box", json!(1));
    worker.misbehave(|call: &Call| match call.target() {
        "First" => next("Read", json!(null)).publish("box", json!(1)),
        _ => all_of(&[local_queue("m", "box", 2)]),
    });
    db.publish("p", "go", json!(1));
    let words = ["is full: xdb.max_queue_messages is 4"];
    wait_until("the step is refused", 20, || views::fails_saying(&mut db, "p", &words));
    // The count is in the row: it outlasts the server.
    drop((db, second));
    restart(&app);
    let mut db = app.db();
    until_refused(&mut db, "it is full still", PUBLISH);
    worker.heal();
    db.run("SELECT xdb.retry_now('p')");
    until_accepted(&mut db, "there is room", PUBLISH);
    until_refused_filling(&mut db);
    app.done(&[]);
}

/// Publishes until the quota refuses it.
fn until_refused_filling(db: &mut Db) {
    wait_until("it is full again", COUNTED, || match db.try_run(PUBLISH) {
        Ok(()) => false,
        Err(error) => error.code == codes::OVER_QUOTA,
    });
}

#[test]
fn a_queue_accepts_messages_up_to_its_limit() {
    let settings = ClusterOptions::default().set("xdb.max_queue_messages", "50");
    let (app, _worker) = boxes("quotas_exact", settings);
    let mut db = app.db();
    let taken_in = |count: i64| {
        let sql = format!("SELECT queued_messages = {count} FROM xdb.process_execution");
        wait_until("all are taken in", 20, || app.superuser().one::<bool>(&sql));
    };
    db.start("p", "box").go();
    db.run("SELECT count(xdb.publish('p', 'box', '1')) FROM generate_series(1, 49)");
    taken_in(49);
    db.run(PUBLISH);
    taken_in(50);
    db.refused(codes::OVER_QUOTA, PUBLISH);
    // Each message that is consumed makes room for one.
    db.publish("p", "go", json!(1));
    taken_in(48);
    db.run(PUBLISH);
    app.done(&[]);
}

#[test]
fn messages_of_answers_are_counted_as_they_are_stored() {
    let app = App::new("quotas_spelling");
    let worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => Reply::Raw(
            200,
            br#"{"publishToLocalQueue": [{"queueName": "box", "payload": {"b":1e3,"a" :  "\u0041","b": [1,2,3]}}]}"#
                .to_vec(),
        ),
        Api::WaitUntil => all_of(&[local_queue("m", "box", 2)]).into(),
        Api::Execute => dead_end().into(),
    });
    app.register("box", &Definition::starting_with("Read").waiting_step("Read").rpc("send", json!({})));
    let (mut db, mut superuser) = (app.db(), app.superuser());
    db.start("p", "box").go();
    let counted = |db: &mut Db| {
        let sql = "SELECT format('%s %s', queued_messages, queued_bytes) FROM xdb.process_execution";
        (db.text(sql), db.all::<String>("SELECT xdb.check_process('p')"))
    };
    db.run("SELECT xdb.invoke_rpc('p', 'send')");
    let stored = r#"{"a": "A", "b": [1, 2, 3]}"#;
    assert_eq!(counted(&mut superuser), (format!("1 {}", stored.len()), Vec::new()));
    db.run("SELECT xdb.invoke_rpc('p', 'send')");
    worker.wait_for_count("both are consumed", 20, 1, |call| call.api == Api::Execute);
    wait_until("the thread is over", 20, || db.one("SELECT live_threads = 0 FROM xdb.processes"));
    assert_eq!(counted(&mut superuser), ("0 0".to_owned(), Vec::new()));
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}

#[test]
fn bytes_count_too_and_new_names_do_not_avoid_the_quota() {
    let settings = ClusterOptions::default().set("xdb.max_queue_messages", "12");
    let (app, _worker) = boxes("quotas_local_bytes", settings);
    let mut db = app.db();
    // Long, and nothing that can be packed.
    let random = |seed: u32, count: u32| {
        format!("(SELECT to_jsonb(string_agg(md5(n::text || '{seed}'), '')) FROM generate_series(1, {count}) n)")
    };
    let publish = |queue: &str, seed| format!("SELECT xdb.publish('p', '{queue}', {})", random(seed, 300));
    db.start("p", "box").go();
    for seed in 0..4 {
        db.run(&publish("box", seed));
    }
    until_refused(&mut db, "it is full", PUBLISH);
    db.publish("p", "small", json!(1));
    for seed in 10..20 {
        let next = publish(&format!("box-{seed}"), seed);
        let Err(error) = db.try_run(&next) else { continue };
        assert_eq!(error.code, codes::OVER_QUOTA, "{error:?}");
    }
    until_refused(&mut db, "all are full", "SELECT xdb.publish('p', 'yet another', '1')");
    db.run("SELECT xdb.stop_process('p')");
    assert!(app.superuser().one::<bool>("SELECT queued_messages = 0 AND queued_bytes = 0 FROM xdb.process_execution"));
    app.done(&[]);
}

#[test]
fn a_role_has_no_more_messages_in_global_queues_than_it_may() {
    let app = App::alone("quotas_global", ClusterOptions::default().set("xdb.max_queue_messages", "3"));
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => all_of(&[global_queue("m", "jobs", 3)]),
        (_, "Send") => force_complete(json!("sent")).publish_global("jobs", json!(1)),
        _ => force_complete(json!(call.messages("m"))),
    });
    let every = json!(["*"]);
    // It is retried when the test asks for it.
    let rarely = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 600, "maximumIntervalSeconds": 600}});
    let send = Definition::starting_with("Send").step_with("Send", rarely);
    app.register("send", &send.with("globalQueues", every.clone()));
    app.register("take", &mailbox().with("globalQueues", every));
    let publish = "SELECT xdb.publish_global('jobs', '1')";
    let (mut db, mut other) = (app.db(), app.session("other"));
    let mut second = app.db();
    second.run("BEGIN");
    second.run(publish);
    let with_id = |queue: &str, id: &str| format!("SELECT xdb.publish_global('{queue}', '1', message_id => '{id}')");
    db.run(&with_id("jobs", "known"));
    (0..2).for_each(|_| db.run(publish));
    let refusal = until_refused(&mut db, "there are too many", publish);
    assert!(refusal.message.contains("has reached its limit of messages"), "{refusal:?}");
    assert!(refusal.detail.contains("xdb.max_queue_messages is 3"), "{refusal:?}");
    second.refused(codes::OVER_QUOTA, publish);
    second.run("ROLLBACK");
    // A repeated message that was accepted before is accepted again.
    db.run(&with_id("jobs", "known"));
    db.refused(codes::OVER_QUOTA, &with_id("jobs", "new"));
    db.refused(codes::OVER_QUOTA, &with_id("others", "known"));
    other.run("SELECT xdb.publish_global('others', '1')");
    // A step of the role is refused. Steps of other roles are not.
    db.start("s", "send").go();
    let words = ["the publishing role has reached its limit of messages in global queues"];
    wait_until("the attempt fails", 20, || views::fails_saying(&mut db, "s", &words));
    // In a new server it is counted again.
    drop((db, other, second));
    restart(&app);
    let (mut db, mut other) = (app.db(), app.session("other"));
    until_refused(&mut db, "there are too many still", publish);
    // Messages that go back are not refused.
    worker.misbehave(|call: &Call| match call.api {
        Api::WaitUntil => all_of(&[global_queue("m", "jobs", 3)]).into(),
        _ => error(500, "Once", "no"),
    });
    other.start("t", "take").go();
    worker.wait_for("it has taken them", 20, |call| call.api == Api::Execute && call.process_id() == "t");
    other.run("SELECT xdb.stop_process('t')");
    assert_eq!(app.superuser().count("xdb.global_message WHERE taken_by IS NULL AND queue_name = 'jobs'"), 3);
    worker.heal();
    other.start("t", "take").go();
    other.completes("t");
    until_accepted(&mut db, "they are used up", publish);
    db.run("SELECT xdb.retry_now('s')");
    db.completes("s");
    app.done(&[]);
}

#[test]
fn a_role_has_no_more_running_processes_than_it_may() {
    let app = App::alone("quotas_running", ClusterOptions::default());
    let _worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => all_of(&[local_queue("m", "inbox", 1)]),
        _ => force_complete(json!(null)),
    });
    app.register("mail", &mailbox());
    let (mut superuser, mut db) = (app.superuser(), app.db());
    // No role may set its own limit, neither for all sessions nor for this one.
    db.refused(codes::INSUFFICIENT_PRIVILEGE, "ALTER ROLE app SET xdb.max_running_processes = 5");
    db.refused(codes::INSUFFICIENT_PRIVILEGE, "SET xdb.max_running_processes = 5");
    superuser.run("ALTER ROLE app SET xdb.max_running_processes = 2");
    superuser.run("ALTER ROLE other IN DATABASE quotas_running SET xdb.max_running_processes = '0x1'");

    let start = |id: &str| format!("SELECT xdb.start_process('{id}', 'mail')");
    db.start("p1", "mail").options(json!({"requestId": "r"})).go();
    db.run(&start("p2"));
    let error = until_refused(&mut db, "there are two", &start("p3"));
    let what = "role \"app\" has reached its limit of running processes: xdb.max_running_processes is 2";
    assert_eq!(error.message, what);
    assert!(error.hint.contains("ALTER ROLE"), "{error:?}");
    let bulk = r#"SELECT xdb.start_processes('[{"process_id": "p3", "process_type": "mail"}]')"#;
    let error = db.refused(codes::OVER_QUOTA, bulk);
    assert_eq!(error.detail, "It is processes[0], process \"p3\".");
    // A start that was made before has its answer.
    db.start("p1", "mail").options(json!({"requestId": "r"})).go();
    // The role's limit holds, whatever the session has set, and whatever role it had before.
    let mut another = app.superuser();
    another.run("SET xdb.max_running_processes = 100; SET ROLE app");
    another.refused(codes::OVER_QUOTA, &start("p3"));
    // Another role has its own, or none.
    let mut other = app.session("other");
    other.run(&start("o1"));
    until_refused(&mut other, "there is one", &start("o2"));
    superuser.run("SET xdb.allow_superuser_processes = on");
    superuser.run(&start("s1"));
    superuser.run(&start("s2"));

    // In a new server it is counted again.
    drop((db, other, superuser, another));
    restart(&app);
    let (mut db, mut other, mut superuser) = (app.db(), app.session("other"), app.superuser());
    until_refused(&mut db, "there are two still", &start("p3"));
    // One ends, and the other role has no limit any more.
    db.run("SELECT xdb.stop_process('p2')");
    superuser.run("ALTER ROLE other IN DATABASE quotas_running RESET xdb.max_running_processes");
    until_accepted(&mut db, "there is one", &start("p3"));
    until_accepted(&mut other, "there is no limit", &start("o2"));
    // For roles without a limit of their own, the server's limit holds.
    superuser.run("ALTER ROLE app SET xdb.max_running_processes = 3");
    app.cluster().set("xdb.max_running_processes", "2");
    until_refused(&mut other, "there are two", &start("o3"));
    db.run(&start("p4"));
    superuser.run("ALTER ROLE other SET xdb.max_running_processes = 0");
    until_accepted(&mut other, "it has no limit", &start("o3"));
    until_refused(&mut db, "there are three", &start("p5"));
    for id in ["p1", "p3", "p4"] {
        db.run(&format!("SELECT xdb.stop_process('{id}')"));
    }
    app.done(&[]);
}

/// A child of an answer, and a process that a schedule starts, count like any other. The refused child is a refused write,
/// and the next attempt knows why. The refused tick is skipped, and the schedule goes on.
#[test]
fn children_and_processes_of_schedules_count_as_running_processes() {
    let app = App::alone("quotas_started", ClusterOptions::default());
    let _worker = app.worker(|call: &Call| match (call.api, call.target(), call.refused_write()) {
        (Api::WaitUntil, ..) => all_of(&[local_queue("m", "inbox", 1)]),
        (_, "Begin", Value::Null) => force_complete(json!(null)).starting(json!([{"processType": "mail"}])),
        (_, "Begin", refused) => force_complete(refused.clone()),
        _ => force_complete(json!(null)),
    });
    app.register("mail", &mailbox());
    app.register("parent", &Definition::starting_with("Begin").waiting_step("Begin"));
    app.register("ticked", &one_step());
    let (mut superuser, mut db) = (app.superuser(), app.db());
    superuser.run(
        r#"SELECT xdb.register_process_type('Schedule', NULL, '{"startingState": "Tick", "states": {"Tick":
            {"waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}}}');
         ALTER ROLE app SET xdb.max_running_processes = 3"#,
    );
    db.start("m", "mail").go();
    db.start("p", "parent").go();
    let start = r#"'{"process_type": "ticked", "process_id": "tick-{time}"}'"#;
    db.run(&format!(
        "BEGIN; SELECT xdb.schedule('s', '@every 1 second', {start}); SELECT xdb.pause_process('s'); COMMIT"
    ));
    until_refused(&mut db, "there are three", "SELECT xdb.start_process('m2', 'mail')");
    let ticks = "xdb.processes WHERE process_type = 'ticked'";
    db.run("SELECT xdb.resume_process('s')");
    let error = |db: &mut Db| db.json("SELECT xdb.get_local_attributes('s')")["lastError"].take();
    wait_until("a tick is refused", 30, || !error(&mut db).is_null());
    assert_eq!(error(&mut db)["sqlState"], codes::OVER_QUOTA);
    assert_eq!(db.count(ticks), 0);
    db.publish("p", "inbox", json!(null));
    let refused = db.completes("p").result().clone();
    assert_eq!(refused["sqlState"], codes::OVER_QUOTA, "{refused}");
    assert_eq!(db.count("xdb.processes WHERE process_type = 'mail'"), 1);
    // There is room now.
    wait_until("a tick starts its process", COUNTED, || db.count(ticks) > 0);
    for id in ["s", "m"] {
        db.run(&format!("SELECT xdb.stop_process('{id}')"));
    }
    app.done(&[]);
}

/// The message at the close of a child, and the changes of processes, are accepted by queues that refuse all others.
#[test]
fn what_the_engine_publishes_itself_is_never_refused() {
    let app = App::alone("quotas_engine", ClusterOptions::default().set("xdb.max_queue_messages", "3"));
    let _worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => all_of(&[local_queue("m", "inbox", 1)]),
        (_, "Begin") => {
            next("Read", json!(null)).starting(json!([{"processType": "mail", "processId": "c", "onClose": "box"}]))
        }
        _ => force_complete(json!("done")),
    });
    app.register("parent", &Definition::starting_with("Begin").step("Begin").waiting_step("Read"));
    app.register("mail", &mailbox());
    app.register("told", &one_step().with("globalQueues", json!([])).with("changes", json!("changes")));
    let mut db = app.db();
    db.start("p", "parent").go();
    wait_until("both wait", 20, || db.count("xdb.waits WHERE process_id IN ('p', 'c')") == 2);
    until_refused_filling(&mut db);
    db.publish("c", "inbox", json!(null));
    db.completes("c");
    let of_child = "xdb.queue_messages WHERE process_id = 'p' AND queue_name = 'box' AND received
        AND payload ->> 'processId' = 'c' AND payload ->> 'status' = 'COMPLETED'";
    wait_until("the parent has the message", 20, || db.count(of_child) == 1);
    db.refused(codes::OVER_QUOTA, PUBLISH);

    // Each process publishes more changes than the role may have messages.
    db.start("t0", "told").go();
    db.completes("t0");
    until_refused(&mut db, "there are too many", "SELECT xdb.publish_global('others', '1')");
    for n in 1..4 {
        db.start(&format!("t{n}"), "told").go();
        db.completes(&format!("t{n}"));
    }
    let missing: Vec<String> = app.superuser().all(
        "SELECT process_id || ' ' || event_type FROM xdb.history AS h
         WHERE process_id LIKE 't%' AND event_type IN ('ProcessStarted', 'StateStarted', 'StateCompleted', 'ProcessClosed')
             AND NOT EXISTS (SELECT FROM xdb.global_message AS m WHERE m.queue_name = 'changes'
                 AND m.payload ->> 'processExecutionId' = h.execution_id::text
                 AND (m.payload ->> 'eventId')::bigint = h.event_id)",
    );
    assert_eq!(missing, [""; 0]);
    assert!(app.superuser().count("xdb.global_message WHERE queue_name = 'changes'") >= 4 * 4);
    db.refused(codes::OVER_QUOTA, "SELECT xdb.publish_global('others', '1')");
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}
