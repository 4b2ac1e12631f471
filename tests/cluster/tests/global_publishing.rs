//! Publishing to global queues: which roles may, how long messages live, and which role owns them.

use xdb_cluster_tests::prelude::*;

/// `Send` publishes the messages in its input. `Read` completes with a message of `jobs`. The RPC publishes its input.
fn sending(call: &Call) -> Reply {
    let publish = |decision: Answer| {
        let Value::Object(mut answer) = json!({"publishToGlobalQueue": call.input()}) else { unreachable!() };
        if let Reply::Json(_, Value::Object(fields)) = Reply::from(decision) {
            answer.extend(fields);
        }
        Reply::Json(200, Value::Object(answer))
    };
    match (call.api, call.target()) {
        (Api::Rpc, _) => publish(output(json!("sent"))),
        (Api::WaitUntil, _) => any_of(&[global_queue("m", "jobs", 1)]).into(),
        (_, "Send") => publish(force_complete(json!(null))),
        _ => force_complete(json!(call.messages("m"))).into(),
    }
}

fn application(name: &str, options: Option<ClusterOptions>) -> (App, Worker) {
    let app = match options {
        Some(options) => App::alone(name, options),
        None => App::new(name),
    };
    let worker = app.worker(sending);
    app.register("send", &Definition::starting_with("Send").step("Send"));
    app.register("take", &mailbox());
    app.register("ask", &mailbox().rpc("send", json!({})));
    (app, worker)
}

fn takes(db: &mut Db, id: &str, expected: Value) {
    db.start(id, "take").go();
    assert_eq!(db.completes(id).result(), &json!([expected]), "{id}");
}

fn left(app: &App) -> i64 {
    app.superuser().count("xdb.global_message")
}

#[test]
fn clients_states_and_rpcs_publish() {
    let (app, _worker) = application("global_publish", None);
    let mut db = app.db();
    let both = json!([{"queueName": "other", "payload": 0}, {"queueName": "jobs", "key": "k", "payload": "a"},
                      {"queueName": "jobs", "payload": "b"}]);
    db.start("s", "send").input(both).go();
    db.completes("s");
    takes(&mut db, "t1", json!("a"));
    takes(&mut db, "t2", json!("b"));
    // The caller's transaction decides.
    db.start("r", "ask").go();
    let message = json!([{"queueName": "jobs", "payload": "of an RPC"}]);
    wait_until("r waits", 10, || !views::waits(&mut db, "r").is_empty());
    db.run("BEGIN");
    db.rpc("r", "send", message.clone());
    db.run("ROLLBACK");
    assert_eq!(left(&app), 1);
    db.rpc("r", "send", message);
    assert_eq!(db.completes("r").result(), &json!(["of an RPC"]));
    assert_eq!(left(&app), 1);
    app.done(&[]);
}

#[test]
fn an_answer_to_wait_until_may_publish_the_awaited_message() {
    let (app, worker) = application("global_own", None);
    worker.misbehave(|call: &Call| match call.api {
        Api::WaitUntil => {
            let commands = all_of(&[global_queue("g", "jobs", 1), local_queue("l", "mine", 1)]);
            let Reply::Json(status, Value::Object(mut answer)) = Reply::from(commands) else { unreachable!() };
            answer.insert("publishToGlobalQueue".into(), json!([{"queueName": "jobs", "payload": "global"}]));
            answer.insert("publishToLocalQueue".into(), json!([{"queueName": "mine", "payload": "local"}]));
            Reply::Json(status, Value::Object(answer))
        }
        _ => force_complete(json!([call.messages("g"), call.messages("l")])).into(),
    });
    let mut db = app.db();
    db.start("p", "take").go();
    assert_eq!(db.completes("p").result(), &json!([["global"], ["local"]]));
    assert_eq!(left(&app), 0);
    app.done(&[]);
}

#[test]
fn a_message_id_is_one_message_of_its_publisher() {
    let (app, _worker) = application("global_ids", None);
    let mut db = app.db();
    let publish = r#"SELECT xdb.publish_global('jobs', '"client"', message_id => 'm')"#;
    let twice = json!([{"queueName": "jobs", "messageId": "m", "payload": "state"},
                       {"queueName": "jobs", "messageId": "n", "payload": "state n"},
                       {"queueName": "jobs", "messageId": "n", "payload": "state n again"}]);
    db.run(publish);
    db.start("s1", "send").input(twice.clone()).go();
    db.completes("s1");
    takes(&mut db, "t1", json!("client"));
    takes(&mut db, "t2", json!("state n"));
    // Also when the messages have been used up.
    db.run(publish);
    db.start("s2", "send").input(twice.clone()).go();
    db.completes("s2");
    db.start("r", "ask").go();
    db.rpc("r", "send", twice);
    assert_eq!(left(&app), 0);
    // A state does not wait for an open transaction of another session. Other processes do not wait for the state.
    let mut open = app.db();
    open.run(r#"BEGIN; SELECT xdb.publish_global('jobs', '"open"', message_id => 'o')"#);
    let state = json!([{"queueName": "jobs", "messageId": "o", "payload": "state o"}]);
    db.start("s3", "send").input(state).go();
    db.start("s4", "send").input(json!([{"queueName": "elsewhere", "payload": 1}])).go();
    db.completes("s4");
    assert_eq!(db.status("s3"), "RUNNING");
    // Another role learns nothing about the message id: it does not wait, and its message is a message of its own.
    let mut other = app.session("other");
    other.run("SET lock_timeout = '1 s'");
    other.run(r#"SELECT xdb.publish_global('own', '"other o"', message_id => 'o')"#);
    other.run(r#"SELECT xdb.publish_global('jobs', '"other o"', message_id => 'o')"#);
    assert_eq!(db.completes("r").result(), &json!(["other o"]));
    open.run("ROLLBACK");
    db.completes("s3");
    takes(&mut db, "t3", json!("state o"));
    // An RPC publishes as its caller.
    db.start("r2", "ask").go();
    let of_boss = json!([{"queueName": "elsewhere", "messageId": "o", "payload": "boss"}]);
    app.session("boss").rpc("r2", "send", of_boss.clone());
    app.session("boss").rpc("r2", "send", of_boss.clone());
    db.rpc("r2", "send", of_boss);
    db.run("SELECT xdb.stop_process('r2')");
    assert_eq!(app.superuser().count("xdb.global_message WHERE queue_name = 'elsewhere' AND message_id = 'o'"), 2);
    let used: Vec<String> = app
        .superuser()
        .all("SELECT queue_name || ' ' || owner_name FROM xdb.global_message_key WHERE message_id = 'o' ORDER BY 1");
    assert_eq!(used, ["elsewhere app", "elsewhere boss", "jobs app", "jobs other", "own other"]);
    app.done(&[]);
}

#[test]
fn a_message_expires_after_its_ttl_unless_it_is_consumed() {
    let (app, worker) = application("global_ttl", Some(ClusterOptions::default().set("xdb.retention", "30 d")));
    worker.misbehave(|call: &Call| match (call.api, call.target()) {
        (_, "Hold") if call.api == Api::WaitUntil => all_of(&[timer("t", 1e9), global_queue("m", "jobs", 1)]).into(),
        _ => sending(call),
    });
    app.register("hold", &Definition::starting_with("Hold").waiting_step("Hold"));
    let mut db = app.db();
    db.run("SELECT xdb.publish_global('jobs', '1', ttl => '1 hour')");
    db.run("SELECT xdb.publish_global('jobs', '2', ttl => '3 hours', message_id => 'two')");
    db.run("SELECT xdb.publish_global('jobs', '3')");
    let state = json!([{"queueName": "brief", "payload": 4, "ttlSeconds": 0.001}]);
    db.start("s", "send").input(state).go();
    db.completes("s");
    app.cluster().set("xdb.now", "2 hours");
    takes(&mut db, "t1", json!(2));
    wait_until("what is over is deleted", 10, || left(&app) == 1);
    takes(&mut db, "t2", json!(3));

    // An hour of its two is left, however long it is held.
    db.run("SELECT xdb.publish_global('jobs', '5', ttl => '2 hours')");
    app.cluster().set("xdb.now", "3 hours");
    db.start("h", "hold").go();
    wait_until("h has it", 10, || app.superuser().count("xdb.global_message WHERE taken_by IS NOT NULL") == 1);
    app.cluster().set("xdb.now", "5 days");
    db.run("SELECT xdb.stop_process('h')");
    let left: f64 = app.superuser().one(
        "SELECT extract(epoch FROM expires_at - clock_timestamp() - interval '5 days')::float8 FROM xdb.global_message",
    );
    assert!((3400.0..=3600.0).contains(&left), "{left} seconds");
    takes(&mut db, "t3", json!(5));

    // The id of a message is remembered for the time of retention.
    db.run("SELECT xdb.publish_global('jobs', '6', message_id => 'two')");
    assert_eq!(app.superuser().count("xdb.global_message"), 0);
    app.superuser().run("UPDATE xdb.global_message_key SET published_at = published_at - interval '40 days'");
    db.run("SELECT xdb.publish_global('jobs', '7', message_id => 'kept')");
    // A shift of the clock of processes is not enough to forget ids.
    app.cluster().set("xdb.now", "-1 days");
    wait_until("old ids are forgotten", 10, || app.superuser().count("xdb.global_message_key") == 1);
    db.run("SELECT xdb.publish_global('jobs', '8', message_id => 'two')");
    db.run("SELECT xdb.publish_global('jobs', '9', message_id => 'kept')");
    takes(&mut db, "t4", json!(7));
    takes(&mut db, "t5", json!(8));
    assert_eq!(app.superuser().count("xdb.global_message"), 0);
    app.done(&[]);
}

/// "TTL=0": a message is correlated at once or never.
#[test]
fn a_message_with_ttl_zero_is_taken_at_once_or_never() {
    let (app, worker) = application("global_now", None);
    let mut db = app.db();
    // No step waits: it goes.
    db.run("SELECT xdb.publish_global('jobs', '1', ttl => '0')");
    wait_until("it is deleted", 10, || left(&app) == 0);
    db.start("t1", "take").go();
    wait_until("t1 waits", 10, || !views::waits(&mut db, "t1").is_empty());
    db.run("SELECT xdb.publish_global('jobs', '2', ttl => '0')");
    assert_eq!(db.completes("t1").result(), &json!([2]));
    // Of an answer, too. Of two messages, one finds a state.
    db.start("t2", "take").go();
    wait_until("t2 waits", 10, || !views::waits(&mut db, "t2").is_empty());
    let brief = |n: u32| json!({"queueName": "jobs", "payload": n, "ttlSeconds": 0});
    db.start("s", "send").input(json!([brief(3), brief(4)])).go();
    assert_eq!(db.completes("t2").result(), &json!([3]));
    wait_until("the second is deleted", 10, || left(&app) == 0);
    // While it is taken it does not expire, and what goes back is offered once more.
    worker.misbehave(|call: &Call| match (call.api, call.process_id()) {
        (Api::Execute, "t3") => error(500, "Busy", "not now"),
        _ => sending(call),
    });
    db.start("t3", "take").go();
    wait_until("t3 waits", 10, || !views::waits(&mut db, "t3").is_empty());
    db.run("SELECT xdb.publish_global('jobs', '5', ttl => '0')");
    wait_until("t3 has it", 10, || app.superuser().count("xdb.global_message WHERE taken_by IS NOT NULL") == 1);
    db.start("t4", "take").go();
    wait_until("t4 waits", 10, || !views::waits(&mut db, "t4").is_empty());
    db.run("SELECT xdb.stop_process('t3')");
    assert_eq!(db.completes("t4").result(), &json!([5]));
    wait_until("nothing is left", 10, || left(&app) == 0);
    app.done(&[]);
}

#[test]
fn a_message_belongs_to_its_publisher() {
    let (app, _worker) = application("global_owners", None);
    let seen = |role: &str| {
        let payloads = "SELECT coalesce(jsonb_agg(payload ORDER BY payload), '[]') FROM xdb.queue_messages";
        app.session(role).json(payloads)
    };
    app.session("other").run("SELECT xdb.publish_global('box', '1')");
    let message = |n: u32| json!([{"queueName": "box", "payload": n}]);
    let mut db = app.db();
    db.start("s", "send").input(message(2)).go();
    db.completes("s");
    db.start("r", "ask").go();
    app.session("boss").rpc("r", "send", message(3));
    assert_eq!(seen("other"), json!([1]));
    assert_eq!(seen("app"), json!([2]));
    assert_eq!(seen("boss"), json!([1, 2, 3]));
    let owners: Vec<String> =
        app.superuser().all("SELECT pg_get_userbyid(owner)::text FROM xdb.global_message ORDER BY number");
    assert_eq!(owners, ["other", "app", "boss"]);
    app.session("stranger").refused("42501", "SELECT xdb.publish_global('box')");
    db.run("SELECT xdb.stop_process('r')");
    app.done(&[]);
}

#[test]
fn a_queue_that_the_definition_does_not_list_is_refused() {
    let (app, _worker) = application("global_listed", None);
    let closed = json!(["box"]);
    app.register("send", &Definition::starting_with("Send").step("Send").with("globalQueues", closed.clone()));
    app.register("take", &mailbox().with("globalQueues", closed.clone()));
    app.register("ask", &mailbox().rpc("send", json!({})).with("globalQueues", json!(["jobs"])));
    let mut db = app.db();
    db.start("s", "send").input(json!([{"queueName": "box"}, {"queueName": "jobs"}])).go();
    db.start("t", "take").go();
    for id in ["s", "t"] {
        wait_until(id, 10, || views::fails_saying(&mut db, id, &["unknown global queue \"jobs\""]));
    }
    db.start("r", "ask").go();
    let failed = db.refused("XD010", r#"SELECT xdb.invoke_rpc('r', 'send', '[{"queueName": "box"}]')"#);
    assert!(failed.detail.contains("nknown global queue \"box\""), "{failed:?}");
    assert_eq!(left(&app), 0);
    for id in ["s", "t", "r"] {
        db.run(&format!("SELECT xdb.stop_process('{id}')"));
    }
    app.done(&[]);
}

#[test]
fn a_definition_uses_no_global_queue_by_default() {
    let (app, _worker) = application("global_none", None);
    let definition = r#"{"startingState": "Send", "states": {"Send": {"skipWaitUntil": true}}}"#;
    app.superuser().run(&format!("SELECT xdb.register_process_type('send', 'stub', '{definition}')"));
    let mut db = app.db();
    db.start("s", "send").input(json!([{"queueName": "jobs", "payload": 1}])).go();
    wait_until("it is refused", 10, || views::fails_saying(&mut db, "s", &["unknown global queue \"jobs\""]));
    assert_eq!(left(&app), 0);
    app.done(&[]);
}

#[test]
fn a_state_of_a_slow_table_is_served_too() {
    let (app, _worker) = application("global_aside", None);
    app.register("aside", &mailbox().maps("public.users", "user_id", &["status"]));
    app.make_slow("app", "public.users", "user_id", json!({"status": "new"}));
    let mut db = app.db();
    db.start("before", "aside").key("u1").globals(json!({"status": "new"})).go();
    wait_until("it waits", 20, || !views::waits(&mut db, "before").is_empty());
    db.run("SELECT xdb.publish_global('jobs', '1')");
    assert_eq!(db.completes("before").result(), &json!([1]));
    db.run("SELECT xdb.publish_global('jobs', '2')");
    db.start("after", "aside").key("u2").globals(json!({"status": "new"})).go();
    assert_eq!(db.completes("after").result(), &json!([2]));
    wait_until("no waiter is recorded any more", 10, || app.superuser().count("xdb.global_passed_over") == 0);
    app.done(&[]);
}

#[test]
fn a_paused_engine_hands_nothing_out() {
    let (app, _worker) = application("global_paused", None);
    let mut db = app.db();
    db.start("p", "take").go();
    wait_until("p waits", 10, || !views::waits(&mut db, "p").is_empty());
    let mut boss = app.session("boss");
    boss.run("SELECT xdb.pause_engine()");
    wait_until("it is paused", 10, || boss.one("SELECT state = 'paused' FROM xdb.status()"));
    db.run("SELECT xdb.publish_global('jobs', '1')");
    let stopped = db.json("SELECT xdb.wait_for_process('p', '500 ms')");
    assert_eq!(stopped["timedOut"], true, "{stopped}");
    assert_eq!(app.superuser().count("xdb.global_message WHERE fresh"), 1);
    boss.run("SELECT xdb.resume_engine()");
    assert_eq!(db.completes("p").result(), &json!([1]));
    app.done(&[]);
}

#[test]
fn a_process_that_keeps_little_of_its_history_takes_and_gives_back_too() {
    let (app, worker) = application("global_short", None);
    worker.misbehave(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[global_queue("m", "jobs", 1)]),
        _ if call.messages("m") == [json!("last")] => force_complete(call.local("seen").clone()),
        _ => next("Read", json!(null)).locals(json!({"seen": call.local("seen").as_u64().unwrap_or_default() + 1})),
    });
    app.register("short", &mailbox().with("history", json!({"keepLast": 4})));
    let mut db = app.db();
    db.start("p", "short").go();
    db.run("SELECT xdb.publish_global('jobs', to_jsonb(n)) FROM generate_series(1, 40) n");
    db.run(r#"SELECT xdb.publish_global('jobs', '"last"')"#);
    assert_eq!(db.completes("p").result(), 40);
    assert!(views::events(&mut db, "p") < 20, "the history was not cut");
    // What is held is in the snapshot, and is compared with the messages.
    app.register("hold", &mailbox().with("history", json!({"keepLast": 2})).rpc("touch", json!({})));
    worker.misbehave(|call: &Call| match call.api {
        Api::Rpc => output(json!(null)).locals(json!({"k": call.input()})),
        _ => all_of(&[timer("t", 3600.0), global_queue("m", "jobs", 1)]),
    });
    db.run("SELECT xdb.publish_global('jobs', '1')");
    db.start("h", "hold").go();
    wait_until("h has it", 10, || app.superuser().count("xdb.global_message WHERE taken_by IS NOT NULL") == 1);
    for n in 0..20 {
        db.rpc("h", "touch", json!(n));
    }
    let cut = "xdb.history WHERE process_id = 'h' AND event_type = 'Snapshot'";
    assert_eq!(db.count(cut), 1);
    assert_eq!(db.all::<String>("SELECT problem FROM xdb.check_process('h')"), Vec::<String>::new());
    db.run("SELECT xdb.stop_process('h')");
    assert_eq!(db.count("xdb.queue_messages WHERE queue_name = 'jobs'"), 1);
    app.done(&[]);
}
