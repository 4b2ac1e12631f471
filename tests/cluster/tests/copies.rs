//! Databases that are copied, dumped and restored. Their processes are copied too, and run only where they belong.

use xdb_cluster_tests::prelude::*;

/// Each process writes a row, waits for a message or an hour, and closes with everything that it has received. `Share`
/// waits for messages of two global queues.
fn application(name: &str) -> (App, Worker) {
    let app = App::alone(name, ClusterOptions::default());
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, "Share") => all_of(&[global_queue("m", "box", 1), global_queue("n", "rest", 1)]).into(),
        (_, "Share") => graceful_complete(json!([call.messages("m"), call.messages("n")])).into(),
        (Api::WaitUntil, _) => any_of(&[timer("t", 3600.0), local_queue("m", "inbox", 2)]).into(),
        (_, "Write") => Reply::from(
            next("Wait", call.input().clone()).globals(json!({"status": "written"})).locals(json!({"l": 1.50})),
        ),
        (_, "Hang") => Reply::hang(graceful_complete(json!("hung"))),
        _ => graceful_complete(
            json!({"messages": call.messages("m"), "status": call.global("status"), "l": call.local("l")}),
        )
        .into(),
    });
    let definition = Definition::starting_with("Write").step("Write").waiting_step("Wait").maps(
        "public.users",
        "user_id",
        &["status"],
    );
    app.register("careful", &definition);
    app.register("sharing", &Definition::starting_with("Share").waiting_step("Share"));
    app.register(
        "hanging",
        &Definition::starting_with("Hang").step_with("Hang", json!({"executeApiTimeoutSeconds": 120})),
    );
    (app, worker)
}

/// Registers the process types of [`application`] again in this database.
fn register_again(db: &mut Db, process_type: &str) {
    db.run(&format!(
        "SELECT xdb.register_process_type(process_type, 'stub', definition) FROM kept_types WHERE process_type = '{process_type}'"
    ));
}

/// Starts some processes of each kind. Returns when all of them wait, or hang in a call.
fn start(app: &App, worker: &Worker) {
    let mut db = app.db();
    for number in 0..5 {
        let process_id = format!("p{number}");
        db.start(&process_id, "careful").key(&format!("u{number}")).globals(json!({"status": "new"})).go();
        db.run(&format!("SELECT xdb.publish('{process_id}', 'inbox', '{number}', message_id => 'first')"));
    }
    db.run(r#"SELECT xdb.publish_global('box', '"taken"', message_id => 'g')"#);
    db.run(r#"SELECT xdb.publish_global('kept', '"free"')"#);
    db.start("g", "sharing").go();
    db.start("h", "hanging").go();
    worker.wait_for("a call hangs", 10, |call| call.target() == "Hang");
    wait_until("all wait", 20, || db.count("xdb.state_executions WHERE status = 'WAITING'") == 6);
    wait_until("all messages are taken in", 10, || {
        db.one("SELECT bool_and(received) AND count(*) FILTER (WHERE process_id IS NULL) = 1 FROM xdb.queue_messages")
    });
}

/// Checks that the processes of a copy complete there, each with its own data.
fn finish(db: &mut Db) {
    for number in 0..5 {
        let process_id = format!("p{number}");
        // The id is on record in the copy too, and ignored there.
        db.run(&format!("SELECT xdb.publish('{process_id}', 'inbox', '\"again\"', message_id => 'first')"));
        db.run(&format!("SELECT xdb.publish('{process_id}', 'inbox', '\"more\"', message_id => 'second')"));
        let expected = json!({"messages": [number, "more"], "status": "written", "l": 1.5});
        assert_eq!(db.completes(&process_id).result(), &expected);
    }
    assert_eq!(db.completes("h").result(), "hung");
    db.run(r#"SELECT xdb.publish_global('box', '"again"', message_id => 'g')"#);
    db.run(r#"SELECT xdb.publish_global('rest', '"more"')"#);
    assert_eq!(db.completes("g").result(), &json!([["taken"], ["more"]]));
    let left = "SELECT payload FROM xdb.queue_messages WHERE process_id IS NULL";
    assert_eq!(db.json(left), "free");
    db.start("fresh", "careful").key("fresh").globals(json!({"status": "new"})).go();
    wait_until("a new one waits", 10, || views::waits(db, "fresh").len() == 2);
}

fn sound(db: &mut Db) {
    let problems: Vec<String> = db.all(
        "SELECT format('%s: %s', p.process_id, c.problem) FROM xdb.processes p, xdb.check_process(p.process_id, p.execution_id) c",
    );
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn a_template_copy_waits_until_it_is_adopted() {
    let (app, worker) = application("copy_template");
    start(&app, &worker);
    app.cluster().superuser().run("CREATE DATABASE copy_of TEMPLATE copy_template");
    // The original goes on by itself. Its engine left for the copy and makes the hanging call again.
    worker.wait_for_count("the original's call is made again", 20, 2, |call| call.target() == "Hang");
    views::waits_for_adopt(app.cluster(), "copy_of", &worker);
    let mut copy = app.cluster().connect("copy_of", "app");
    // In the same server, roles are known.
    assert_eq!(copy.count("xdb.processes WHERE status = 'RUNNING'"), 7);
    let error = copy.try_run("SELECT xdb.adopt()").expect_err("app is no administrator");
    assert_eq!(error.code, "42501");
    // A process that is started there waits with the others.
    copy.start("early", "careful").key("early").globals(json!({"status": "new"})).go();
    app.cluster().connect("copy_of", "boss").run("SELECT xdb.adopt()");
    worker.wait_for_count("the copy's call is made", 20, 3, |call| call.target() == "Hang");
    wait_until("the new one waits", 10, || views::waits(&mut copy, "early").len() == 2);
    worker.release();
    finish(&mut copy);
    let mut boss = app.cluster().connect("copy_of", "boss");
    boss.run("SELECT xdb.adopt()");
    assert_eq!(boss.count("xdb.instances WHERE superseded_at IS NULL"), 1);
    assert_eq!(boss.count("xdb.instances"), 2);
    assert_eq!(boss.one::<Option<String>>("SELECT reason FROM xdb.status()"), None);
    sound(&mut app.cluster().connect("copy_of", "postgres"));
    // And nothing of it happened to the original.
    finish(&mut app.db());
    app.cluster().superuser().drop_database("copy_of", "WITH (FORCE)");
    app.done(&[]);
}

#[test]
fn a_dump_restores_every_process_and_they_wait_until_adopted() {
    let (app, worker) = application("copy_dumped");
    start(&app, &worker);
    let dump = app.cluster().dump("copy_dumped", &[]);
    app.cluster().restore("copy_restored", &dump);
    views::waits_for_adopt(app.cluster(), "copy_restored", &worker);
    let mut copy = app.cluster().connect("copy_restored", "app");
    let mut superuser = app.cluster().connect("copy_restored", "postgres");
    app.cluster().connect("copy_restored", "boss").run("SELECT xdb.adopt()");
    worker.wait_for_count("the copy's call is made", 20, 2, |call| call.target() == "Hang");
    sound(&mut superuser);
    worker.release();
    finish(&mut copy);
    // Registering works there: numbers that were given out are not given again.
    superuser.run(&format!("SELECT xdb.register_worker('second', '{}')", worker.url()));
    superuser.run("SELECT xdb.register_process_type('another', 'second', '{\"states\": {}}')");
    sound(&mut superuser);
    // A dump of the copy belongs to the copy, wherever it is restored.
    let again = app.cluster().dump("copy_restored", &[]);
    app.cluster().restore("copy_again", &again);
    views::waits_for_adopt(app.cluster(), "copy_again", &worker);
    for database in ["copy_restored", "copy_again"] {
        app.cluster().superuser().drop_database(database, "WITH (FORCE)");
    }
    finish(&mut app.db());
    app.done(&[]);
}

#[test]
fn a_dump_that_comes_back_into_its_database_waits_too() {
    let (app, worker) = application("copy_back");
    start(&app, &worker);
    // A message that no turn has taken in.
    app.superuser().run("SELECT xdb.pause_engine()");
    wait_until("it is paused", 10, || app.superuser().one("SELECT state = 'paused' FROM xdb.status()"));
    app.db().run("SELECT xdb.publish('p0', 'unread', '1')");
    let dump = app.cluster().dump("copy_back", &[]);
    app.superuser().run("DROP EXTENSION xdb CASCADE; DROP TABLE users, counters");
    // Whatever the order of the tables, nothing runs between them.
    app.cluster().restore_into("copy_back", &dump, &[]);
    views::waits_for_adopt(app.cluster(), "copy_back", &worker);
    assert_eq!(app.superuser().count("xdb.inbox"), 1);
    app.session("boss").run("SELECT xdb.adopt()");
    worker.wait_for_count("the call is made again", 20, 2, |call| call.target() == "Hang");
    worker.release();
    finish(&mut app.db());
    assert_eq!(app.superuser().count("xdb.history WHERE details::text LIKE '%\"unread\"%'"), 1);
    app.done(&[]);
}

#[test]
fn in_another_server_roles_are_found_by_their_names() {
    let (app, worker) = application("copy_moved");
    start(&app, &worker);
    app.superuser().run("SELECT xdb.grant_usage('app', deployer => true)");
    app.db().run("SELECT xdb.register_worker('of app', 'http://127.0.0.1:1')");
    let dump = app.cluster().dump("copy_moved", &[]);
    // The other server gives out oids in another order, so the owner's oid belongs to another role there.
    let elsewhere = Cluster::start_elsewhere(ClusterOptions::default());
    let oid = "SELECT 'app'::regrole::oid::bigint";
    let here: i64 = app.superuser().one(oid);
    let mut there = elsewhere.superuser();
    there.run("DROP ROLE app; CREATE ROLE app LOGIN");
    there.run(&format!("UPDATE pg_authid SET oid = {here} WHERE rolname = 'stranger'"));
    assert_ne!(there.one::<i64>(oid), here);
    elsewhere.restore("copy_moved", &dump);
    views::waits_for_adopt(&elsewhere, "copy_moved", &worker);
    there = elsewhere.connect("copy_moved", "postgres");
    there.run("SELECT xdb.grant_usage('stranger')");
    // Until roles are known, only administrators see anything.
    for role in ["stranger", "app"] {
        let mut db = elsewhere.connect("copy_moved", role);
        assert_eq!(db.count("xdb.processes"), 0, "{role}");
        assert_eq!(db.count("xdb.queue_messages"), 0, "{role}");
        db.refused(codes::UNKNOWN_PROCESS, "SELECT xdb.stop_process('p0')");
        assert_eq!(db.count("xdb.workers WHERE url IS NOT NULL OR owner IS NOT NULL"), 0, "{role}");
    }
    assert_eq!(elsewhere.connect("copy_moved", "boss").count("xdb.processes"), 7);
    there.run("ALTER ROLE app RENAME TO mislaid");
    let error = there.refused(codes::MISSING_OWNERS, "SELECT xdb.adopt()");
    assert!(error.detail.contains("Missing roles: app."), "{error:?}");
    there.run("ALTER ROLE mislaid RENAME TO app");
    there.run("SELECT xdb.adopt()");
    worker.wait_for_count("the copy's call is made", 20, 2, |call| call.target() == "Hang");
    sound(&mut there);
    worker.release();
    assert_eq!(elsewhere.connect("copy_moved", "stranger").count("xdb.processes"), 0);
    there.run("SELECT xdb.grant_usage('stranger', deployer => true), xdb.grant_usage('app', deployer => true)");
    let remove = "SELECT xdb.unregister_worker('of app')";
    elsewhere.connect("copy_moved", "stranger").refused(codes::INSUFFICIENT_PRIVILEGE, remove);
    elsewhere.connect("copy_moved", "app").run(remove);
    finish(&mut elsewhere.connect("copy_moved", "app"));
    sound(&mut there);
    drop(there);
    finish(&mut app.db());
    app.done(&[]);
}

#[test]
fn in_another_server_closed_processes_of_a_missing_role_have_no_owner() {
    let app = App::alone("copy_left", ClusterOptions::default());
    let _worker = app.worker(|_: &Call| force_complete(json!("secret")).publish_global("box", json!("secret")));
    app.register("one", &one_step());
    app.superuser().run("CREATE ROLE leaver LOGIN; SELECT xdb.grant_usage('leaver', deployer => true)");
    let mut leaver = app.session("leaver");
    leaver.run("SELECT xdb.register_worker('of leaver', 'http://127.0.0.1:1')");
    leaver.start("p", "one").go();
    leaver.completes("p");
    assert_eq!(leaver.count("xdb.queue_messages"), 1);
    let oid: i64 = app.superuser().one("SELECT 'leaver'::regrole::oid::bigint");
    let dump = app.cluster().dump("copy_left", &[]);
    // Its name is not there, and its oid is a stranger's.
    let elsewhere = Cluster::start_elsewhere(ClusterOptions::default());
    elsewhere.superuser().run("CREATE ROLE leaver");
    elsewhere.restore("copy_left", &dump);
    let mut there = elsewhere.connect("copy_left", "postgres");
    there.run("DROP OWNED BY leaver; DROP ROLE leaver");
    there.run(&format!("UPDATE pg_authid SET oid = {oid} WHERE rolname = 'stranger'"));
    there.run("SELECT xdb.grant_usage('stranger')");
    there.run("SELECT xdb.adopt()");
    assert_eq!(elsewhere.connect("copy_left", "boss").count("xdb.processes"), 1);
    let mut stranger = elsewhere.connect("copy_left", "stranger");
    assert_eq!(stranger.count("xdb.processes"), 0);
    assert_eq!(stranger.count("xdb.queue_messages"), 0);
    stranger.refused(codes::UNKNOWN_PROCESS, "SELECT xdb.describe_process('p')");
    assert_eq!(stranger.count("xdb.workers WHERE name = 'of leaver' AND owner IS NULL AND url IS NULL"), 1);
    sound(&mut there);
    drop((there, leaver));
    app.done(&[]);
}

#[test]
fn on_the_same_server_dropped_roles_are_found_by_their_names() {
    let (app, worker) = application("copy_roles");
    start(&app, &worker);
    app.session("other").start("moved", "hanging").go();
    worker.wait_for_count("the other role's call hangs", 10, 2, |call| call.target() == "Hang");
    let (cluster, mut superuser) = (app.cluster(), app.cluster().superuser());
    let dump = cluster.dump("copy_roles", &[]);
    superuser.drop_database("copy_roles", "WITH (FORCE)");
    superuser.run("DROP ROLE app; CREATE ROLE app LOGIN");
    cluster.restore("copy_roles", &dump);
    views::waits_for_adopt(cluster, "copy_roles", &worker);
    // A role that still exists keeps its processes, even under another name.
    superuser.run("ALTER ROLE other RENAME TO renamed; ALTER ROLE app RENAME TO mislaid");
    let error = app.session("boss").refused(codes::MISSING_OWNERS, "SELECT xdb.adopt()");
    assert!(error.detail.contains("Missing roles: app.") && !error.detail.contains("other"), "{error:?}");
    superuser.run("ALTER ROLE mislaid RENAME TO app");
    app.session("boss").run("SELECT xdb.adopt()");
    worker.wait_for_count("the calls are made again", 20, 4, |call| call.target() == "Hang");
    worker.release();
    assert_eq!(app.session("renamed").completes("moved").result(), "hung");
    finish(&mut app.db());
    app.done(&[]);
}

#[test]
fn a_dump_can_be_restored_in_any_order_of_its_tables() {
    let (app, worker) = application("copy_parallel");
    start(&app, &worker);
    let (cluster, dump) = (app.cluster(), app.cluster().dump("copy_parallel", &[]));
    cluster.superuser().run("CREATE DATABASE copy_jobs TEMPLATE template0");
    cluster.restore_into("copy_jobs", &dump, &["--jobs=4"]);
    let mut superuser = cluster.connect("copy_jobs", "postgres");
    // Whatever the order is by chance: no table of the dump waits for another one.
    let between: i64 = superuser.one(
        "SELECT count(*) FROM pg_constraint WHERE contype = 'f'
             AND (connamespace = 'xdb'::regnamespace OR confrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'xdb'::regnamespace))",
    );
    assert_eq!(between, 0, "foreign keys");
    views::waits_for_adopt(cluster, "copy_jobs", &worker);
    cluster.connect("copy_jobs", "boss").run("SELECT xdb.adopt()");
    worker.wait_for_count("the copy's call is made", 20, 2, |call| call.target() == "Hang");
    worker.release();
    finish(&mut cluster.connect("copy_jobs", "app"));
    sound(&mut superuser);
    drop(superuser);
    cluster.superuser().drop_database("copy_jobs", "WITH (FORCE)");
    finish(&mut app.db());
    app.done(&[]);
}

#[test]
fn a_process_without_its_type_is_shown_and_continues_when_the_type_is_registered_again() {
    let (app, worker) = application("copy_lossy");
    start(&app, &worker);
    let (cluster, dump) = (app.cluster(), app.cluster().dump("copy_lossy", &[]));
    cluster.restore("copy_lost", &dump);
    views::waits_for_adopt(cluster, "copy_lost", &worker);
    let mut superuser = cluster.connect("copy_lost", "postgres");
    superuser.run(
        "CREATE TABLE kept_types AS SELECT process_type, definition #- '{globalAttributes,0,relation}' AS definition FROM xdb.process_type;
         DELETE FROM xdb.process_type WHERE process_type IN ('careful', 'hanging')",
    );
    let error = superuser.refused(codes::MISSING_OWNERS, "SELECT xdb.adopt()");
    assert_eq!(error.detail, "Missing: \"careful\" (5 processes), \"hanging\" (1 process).");
    assert!(error.hint.contains("xdb.register_process_type()"), "{error:?}");
    let reason: String = superuser.one("SELECT reason FROM xdb.status()");
    assert!(reason.contains("xdb.adopt()") && reason.contains("\"careful\" (5 processes)"), "{reason}");
    let mut copy = cluster.connect("copy_lost", "app");
    let shown: Vec<String> =
        copy.all("SELECT process_id FROM xdb.failures WHERE detail LIKE '%is not registered%' ORDER BY 1");
    assert_eq!(shown, ["h", "p0", "p1", "p2", "p3", "p4"]);
    assert_eq!(cluster.connect("copy_lost", "other").count("xdb.failures"), 0);

    register_again(&mut superuser, "careful");
    let error = superuser.refused(codes::MISSING_OWNERS, "SELECT xdb.adopt()");
    assert_eq!(error.detail, "Missing: \"hanging\" (1 process).");
    register_again(&mut superuser, "hanging");
    superuser.run("SELECT xdb.adopt()");
    assert_eq!(copy.count("xdb.failures"), 0);
    worker.wait_for_count("the copy's call is made", 20, 2, |call| call.target() == "Hang");
    // Lost in a database that runs, as an earlier release left it after such a restore.
    superuser.run("DELETE FROM xdb.process_type WHERE process_type = 'careful'; UPDATE xdb.registry SET generation = generation + 1");
    copy.run("SELECT xdb.skip_timer('p0', 'Wait-1')");
    wait_until("the call without a worker is reported", 20, || {
        superuser.one("SELECT coalesce(reason, '') = 'process types of running processes are not registered: \"careful\" (1 process)' FROM xdb.status()")
    });
    assert_eq!(copy.count("xdb.failures WHERE detail LIKE '%is not registered%'"), 5);
    // The role that registers the type decides what processes of other roles do.
    superuser.run("SELECT xdb.grant_usage('other', deployer => true)");
    let mut deployer = cluster.connect("copy_lost", "other");
    deployer.run(&format!("SELECT xdb.register_worker('trap', '{}')", worker.url()));
    let trap = "SELECT xdb.register_process_type('careful', 'trap', '{\"states\": {}}')";
    deployer.refused(codes::INSUFFICIENT_PRIVILEGE, trap);
    register_again(&mut superuser, "careful");
    copy.completes("p0");
    assert_eq!(superuser.one::<Option<String>>("SELECT reason FROM xdb.status()"), None);
    worker.release();
    copy.completes("h");
    for number in 1..5 {
        copy.publish(&format!("p{number}"), "inbox", json!("more"));
        assert_eq!(copy.completes(&format!("p{number}")).result()["messages"], json!([number, "more"]));
    }
    sound(&mut superuser);
    drop((superuser, copy));
    cluster.superuser().drop_database("copy_lost", "WITH (FORCE)");
    finish(&mut app.db());
    app.done(&[]);
}

/// After a crash and in the copy.
#[test]
fn guards_children_static_waits_and_cron_timers_of_a_dump_go_on() {
    let static_wait = |queue: &str| any_of(&[local_queue("m", queue, 1)]).json();
    let app = App::alone("copy_kinds", ClusterOptions::default().own_clock());
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (_, "Begin") => {
            let child = |id: &str| json!({"processType": "child", "processId": id, "onClose": "ended"});
            next("Join", json!(null)).starting(json!([child("c1"), child("c2")])).into()
        }
        (Api::WaitUntil, "Join") => any_of(&[local_queue("m", "ended", 1)]).into(),
        (Api::WaitUntil, "Tick") => Reply::Json(
            200,
            json!({"commandRequest": {"waitingType": "AllOfCompletion", "timerCommands": [{"cron": "@every 1 hour"}]}}),
        ),
        (_, "Join") => force_complete(call.messages("m")[0]["processId"].clone()).into(),
        (_, target) => force_complete(json!(target)).into(),
    });
    let parent = Definition::starting_with("Begin").step("Begin").waiting_step("Join");
    app.register("parent", &parent.with("localQueues", json!(["ended"])));
    app.register("child", &Definition::starting_with("Work").waiting_step_with("Work", static_wait("go")));
    let mut ship = static_wait("sent");
    ship["guards"] = json!(["Recall"]);
    let order = Definition::starting_with("Ship").waiting_step_with("Ship", ship);
    app.register("order", &order.waiting_step_with("Recall", static_wait("recall")));
    app.register("tick", &Definition::starting_with("Tick").waiting_step("Tick"));
    let mut db = app.db();
    for (id, process_type) in [("p", "parent"), ("o", "order"), ("t", "tick")] {
        db.start(id, process_type).go();
    }
    // Join, two times Work, Ship, Recall and Tick.
    wait_until("all wait", 20, || db.count("xdb.state_executions WHERE status = 'WAITING'") == 6);
    app.kill_scheduler();
    let dump = app.cluster().dump("copy_kinds", &[]);
    app.cluster().restore("copy_kinds_restored", &dump);
    views::waits_for_adopt(app.cluster(), "copy_kinds_restored", &worker);
    app.cluster().connect("copy_kinds_restored", "boss").run("SELECT xdb.adopt()");
    let mut both = [app.cluster().connect("copy_kinds_restored", "app"), app.db()];
    for db in &mut both {
        db.publish("o", "recall", json!(null));
        assert_eq!(db.completes("o").result(), "Recall");
        db.publish("c1", "go", json!(null));
        assert_eq!(db.completes("p").result(), "c1", "its end is a message");
        wait_until("the other child ends with its parent", 20, || db.status("c2") == "TERMINATED");
        assert_eq!(db.status("t"), "RUNNING");
    }
    app.cluster().set_clock(3700.0);
    for db in &mut both {
        assert_eq!(db.completes("t").result(), "Tick");
        sound(db);
    }
    drop(both);
    app.cluster().superuser().drop_database("copy_kinds_restored", "WITH (FORCE)");
    app.done(&[]);
}
