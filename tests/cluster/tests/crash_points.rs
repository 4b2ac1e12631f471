//! The server is stopped at each named point of the engine, as by a power cut. Nothing is lost or done twice.
//!
//! These tests need a build of the extension with crash points: `scripts/crash-points` makes it and runs them.
#![cfg(feature = "crash-points")]

use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::prelude::*;

/// The number of steps of a counter.
const STEPS: u64 = 3;

fn handler(call: &Call) -> Reply {
    let n = call.global("n").as_u64().unwrap_or_default() + 1;
    match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!(n)).globals(json!({"n": n})).publish("noise", json!(n)).into(),
        (Api::WaitUntil, "Sleep") => any_of(&[timer("t", 3.0)]).into(),
        (Api::WaitUntil, "Long") => any_of(&[timer("t", 3600.0)]).into(),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]).into(),
        (_, "Count") if n < STEPS => next("Count", json!(null)).globals(json!({"n": n})).into(),
        (_, "Fail") if call.attempt() < 2 => error(500, "Once", "and never again"),
        (_, "Read") => force_complete(json!(call.messages("m"))).globals(json!({"n": n})).into(),
        _ => force_complete(json!(n)).globals(json!({"n": n})).into(),
    }
}

/// An application in a server of its own. Every write to the application's row is recorded.
struct Story {
    app: App,
    worker: Worker,
}

impl Story {
    fn new(name: &str) -> Story {
        let app = App::alone(&format!("point_{}", name.replace('-', "_")), ClusterOptions::default());
        let worker = app.worker(handler);
        let counts = |definition: Definition| definition.maps("public.counters", "id", &["n"]).rpc("poke", json!({}));
        app.register("counter", &counts(Definition::starting_with("Count").step("Count")));
        app.register("mail", &counts(mailbox()));
        app.register("sleeper", &counts(Definition::starting_with("Sleep").waiting_step("Sleep")));
        app.register("long", &counts(Definition::starting_with("Long").waiting_step("Long")));
        let slow = json!({"initialIntervalSeconds": 3600});
        app.register(
            "failing",
            &counts(Definition::starting_with("Fail").step_with("Fail", json!({"executeApiRetryPolicy": slow}))),
        );
        app.db().run(
            "CREATE TABLE audit (id text, n int);
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN INSERT INTO public.audit VALUES (new.id, new.n); RETURN new; END $$;
             CREATE TRIGGER note AFTER UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION note();",
        );
        Story { app, worker }
    }

    fn start(&self, process_id: &str, process_type: &str) -> String {
        let mut db = self.app.db();
        start(&mut db, process_id, process_type).expect("a start")
    }

    /// Does work during which the server crashes at the point.
    fn crash_at(&self, point: &str, work: impl FnOnce(&mut Db) -> Result<(), SqlError>) {
        let mut db = self.app.db();
        self.app.crash_at(point, || work(&mut db));
    }

    /// Checks that every step of the process has written to its row exactly once, and that there were this many steps.
    fn wrote_once(&self, process_id: &str, steps: u64) {
        let mut db = self.app.db();
        let written = db.all::<i32>(&format!("SELECT n FROM audit WHERE id = '{process_id}' ORDER BY n"));
        assert_eq!(written, (1..=steps as i32).collect::<Vec<_>>(), "{process_id}");
    }

    fn completes(&self, process_id: &str, steps: u64) {
        let mut db = self.app.db();
        db.completes(process_id);
        self.wrote_once(process_id, steps);
        views::assert_history_is_whole(&mut db, process_id);
    }

    fn waits(&self, process_id: &str) {
        let mut db = self.app.db();
        wait_until("it waits", 20, || !views::waits(&mut db, process_id).is_empty());
    }

    fn done(self) {
        drop(self.worker);
        self.app.done(AFTER_A_CRASH);
    }
}

fn start(db: &mut Db, process_id: &str, process_type: &str) -> Result<String, SqlError> {
    let request = json!({"requestId": process_id});
    db.start(process_id, process_type).key(process_id).globals(json!({"n": 0})).options(request).try_go()
}

/// The engine crashes at a point that counters reach. The counters complete all the same.
fn counters_come_by(point: &str) {
    let story = Story::new(point);
    story.app.cluster().arm(point);
    let mut db = story.app.db();
    // The crash may come before the last one is started; a start can be repeated.
    for n in 0..10 {
        let id = format!("c{n}");
        while start(&mut db, &id, "counter").is_err() {
            db = story.app.db();
        }
    }
    story.app.cluster().wait_for_crash(point);
    (0..10).for_each(|n| story.completes(&format!("c{n}"), STEPS));
    story.done();
}

#[test]
fn between_claim_and_call() {
    counters_come_by("claim-call");
}

#[test]
fn between_answer_and_commit() {
    counters_come_by("answer-commit");
}

#[test]
fn between_commit_and_dispatch() {
    counters_come_by("commit-dispatch");
}

#[test]
fn in_a_turn_that_has_written_to_the_applications_tables() {
    counters_come_by("turn-tables");
}

#[test]
fn in_the_middle_of_saving_a_turn() {
    counters_come_by("turn-save");
}

#[test]
fn in_a_turn_that_claims() {
    counters_come_by("turn-claim");
}

#[test]
fn between_call_and_answer() {
    let story = Story::new("call-answer");
    story.worker.misbehave(|call: &Call| Reply::hang(handler(call)));
    story.start("c", "counter");
    story.worker.wait_for("the call", 10, |call| call.executes("Count"));
    story.app.cluster().arm("call-answer");
    story.app.cluster().wait_for_crash("call-answer");
    story.worker.heal();
    story.completes("c", STEPS);
    assert!(story.worker.count(|call| call.state_execution_id() == "Count-1") >= 2, "the call was repeated");
    story.done();
}

#[test]
fn in_a_turn_that_fires_a_timer() {
    let story = Story::new("timer");
    story.start("s", "sleeper");
    story.waits("s");
    story.app.cluster().arm("turn-save");
    story.app.cluster().wait_for_crash("turn-save");
    story.completes("s", 1);
    let fired = "xdb.history WHERE process_id = 's' AND event_type = 'CommandCompleted'";
    assert_eq!(story.app.db().count(fired), 1);
    story.done();
}

#[test]
fn in_a_turn_that_receives_messages() {
    let story = Story::new("messages");
    story.start("m", "mail");
    story.waits("m");
    story.app.cluster().arm("turn-save");
    let published = story.app.db().try_run("SELECT xdb.publish('m', 'inbox', '7', 'once')");
    story.app.cluster().wait_for_crash("turn-save");
    if published.is_err() {
        story.app.db().run("SELECT xdb.publish('m', 'inbox', '7', 'once')");
    }
    story.completes("m", 1);
    assert_eq!(story.app.db().outcome("m").result(), &json!([7]));
    story.done();
}

#[test]
fn while_a_close_waits_for_a_publisher() {
    let story = Story::new("turn-closing");
    story.worker.misbehave(|call: &Call| Reply::hang(handler(call)));
    story.start("f", "sleeper");
    // The worker is released when a publisher holds the process.
    story.worker.wait_for("its first call", 10, |call| call.process_id() == "f");
    story.worker.heal();
    story.worker.misbehave(|call: &Call| match call.api {
        Api::Execute => Reply::hang(handler(call)),
        _ => handler(call),
    });
    story.worker.wait_for("the call that closes", 20, |call| call.executes("Sleep"));
    let mut publisher = story.app.db();
    publisher.run("BEGIN; SELECT xdb.publish('f', 'noise', '1')");
    story.app.cluster().arm("turn-closing");
    story.worker.release();
    story.app.cluster().wait_for_crash("turn-closing");
    story.worker.heal();
    story.completes("f", 1);
    story.done();
}

#[test]
fn while_a_scheduler_begins() {
    let story = Story::new("begin");
    let epoch = "SELECT epoch FROM xdb.engine WHERE lane = 0";
    let before = story.app.superuser().one::<i64>(epoch);
    story.app.cluster().arm("begin");
    let pid = story.app.scheduler();
    story.app.cluster().ask_to_end(&format!("pid = {pid}"));
    story.app.cluster().wait_for_crash("begin");
    story.start("c", "counter");
    story.completes("c", STEPS);
    assert!(story.app.superuser().one::<i64>(epoch) > before, "epochs grow");
    story.done();
}

#[test]
fn while_old_executions_are_deleted() {
    let story = Story::new("retention");
    story.start("c", "counter");
    story.completes("c", STEPS);
    story.app.cluster().arm("retention");
    story.app.cluster().set("xdb.retention", "1");
    story.app.cluster().wait_for_crash("retention");
    let mut superuser = story.app.superuser();
    wait_until("it is deleted after all", 30, || {
        superuser.count("xdb.process_execution") == 0 && superuser.count("xdb.history_event") == 0
    });
    assert_eq!(superuser.count("xdb.latest_execution") + superuser.count("xdb.state_execution"), 0);
    story.done();
}

#[test]
fn in_a_purge() {
    let story = Story::new("purge");
    story.start("c", "counter");
    story.completes("c", STEPS);
    story.crash_at("purge", |_| story.app.superuser().try_run("SELECT xdb.purge('0 s')"));
    let mut superuser = story.app.superuser();
    assert_eq!(superuser.count("xdb.process_execution"), 1);
    assert_eq!(superuser.one::<i64>("SELECT xdb.purge('0 s')"), 1);
    story.done();
}

/// After a crash in the middle of a start, nothing of it exists, and it can be repeated.
fn a_start_crashes_at(point: &str) {
    let story = Story::new(&format!("start-{point}"));
    story.crash_at(point, |db| start(db, "c", "counter").map(drop));
    let mut superuser = story.app.superuser();
    for table in ["process_execution", "latest_execution", "state_execution", "task", "history_event"] {
        assert_eq!(superuser.count(&format!("xdb.{table}")), 0, "{table}");
    }
    assert_eq!(superuser.count("counters"), 0);
    story.start("c", "counter");
    story.completes("c", STEPS);
    story.done();
}

#[test]
fn in_a_start_that_has_written_everything() {
    a_start_crashes_at("start");
}

#[test]
fn in_the_middle_of_saving_a_start() {
    a_start_crashes_at("caller-save");
}

#[test]
fn in_a_bulk_start() {
    let story = Story::new("bulk-start");
    let starts: Vec<_> = (0..5)
        .map(|n| {
            let id = format!("c{n}");
            json!({"process_id": id, "process_type": "counter", "global_attribute_pk": id, "global_attributes": {"n": 0}})
        })
        .collect();
    let sql = format!("SELECT count(*) FROM xdb.start_processes('{}')", Value::Array(starts));
    story.crash_at("bulk-start", |db| db.try_run(&sql));
    assert_eq!(story.app.superuser().count("xdb.process_execution"), 0);
    story.app.db().run(&sql);
    (0..5).for_each(|n| story.completes(&format!("c{n}"), STEPS));
    story.done();
}

#[test]
fn after_the_commit_and_before_the_caller_knows() {
    let story = Story::new("caller-committed");
    story.crash_at("caller-committed", |db| start(db, "c", "counter").map(drop));
    let committed = story.app.db().one::<String>("SELECT execution_id::text FROM xdb.processes WHERE process_id = 'c'");
    assert_eq!(story.start("c", "counter"), committed, "the repeated start is the same one");
    story.completes("c", STEPS);

    story.start("m", "mail");
    story.waits("m");
    story.crash_at("caller-committed", |db| db.try_run("SELECT xdb.publish('m', 'inbox', '7', 'once')"));
    // The message was committed, so the process may have ended by now.
    let again = story.app.db().try_run("SELECT xdb.publish('m', 'inbox', '7', 'once')");
    assert!(again.is_ok() || again.as_ref().is_err_and(|error| error.code == codes::NOT_RUNNING), "{again:?}");
    story.completes("m", 1);
    assert_eq!(story.app.db().outcome("m").result(), &json!([7]));

    story.start("r", "long");
    let rpc = "SELECT xdb.invoke_rpc('r', 'poke', idempotency_key => 'k')::text";
    story.crash_at("caller-committed", |db| db.try_run(rpc));
    assert_eq!(story.app.db().one::<String>(rpc), "1", "the first answer");
    story.wrote_once("r", 1);
    story.done();
}

#[test]
fn in_a_publish() {
    let story = Story::new("publish");
    story.start("m", "mail");
    story.waits("m");
    story.crash_at("publish", |db| db.try_run("SELECT xdb.publish('m', 'inbox', '1', 'once')"));
    assert_eq!(story.app.superuser().count("xdb.inbox") + story.app.superuser().count("xdb.message_key"), 0);
    story.app.db().run("SELECT xdb.publish('m', 'inbox', '2', 'once')");
    story.completes("m", 1);
    assert_eq!(story.app.db().outcome("m").result(), &json!([2]));
    story.done();
}

/// After a crash, an RPC leaves nothing behind, not even its idempotency key, and it can be repeated.
fn an_rpc_crashes_at(point: &str) {
    let story = Story::new(&format!("rpc-{point}"));
    story.start("r", "long");
    story.waits("r");
    let rpc = "SELECT xdb.invoke_rpc('r', 'poke', idempotency_key => 'k')::text";
    story.crash_at(point, |db| db.try_run(rpc));
    story.wrote_once("r", 0);
    assert_eq!(story.app.superuser().count("xdb.rpc_answer"), 0);
    assert_eq!(story.app.db().one::<String>(rpc), "1");
    story.wrote_once("r", 1);
    story.done();
}

#[test]
fn in_an_rpc_with_an_answer() {
    an_rpc_crashes_at("rpc-answer");
}

#[test]
fn in_the_middle_of_saving_an_rpc() {
    an_rpc_crashes_at("caller-save");
}

#[test]
fn in_a_stop() {
    let story = Story::new("stop");
    story.start("l", "long");
    story.waits("l");
    story.crash_at("caller-save", |db| db.try_run("SELECT xdb.stop_process('l')"));
    assert_eq!(story.app.db().status("l"), "RUNNING");
    story.app.db().run("SELECT xdb.stop_process('l')");
    assert_eq!(story.app.db().status("l"), "TERMINATED");
    story.done();
}

#[test]
fn in_a_change_of_local_attributes_a_skip_and_a_retry() {
    let story = Story::new("manage");
    story.start("l", "long");
    story.waits("l");
    story.crash_at("caller-save", |db| db.try_run("SELECT xdb.set_local_attributes('l', '{\"a\": 1}')"));
    assert_eq!(story.app.db().json("SELECT xdb.get_local_attributes('l')"), json!({}));
    story.crash_at("caller-save", |db| db.try_run("SELECT xdb.skip_timer('l', 'Long-1')"));
    story.waits("l");
    story.app.db().run("SELECT xdb.skip_timer('l', 'Long-1')");
    story.completes("l", 1);

    story.start("f", "failing");
    let mut db = story.app.db();
    wait_until("it has failed", 20, || !views::failures(&mut db, "f").is_empty());
    story.crash_at("caller-save", |db| db.try_run("SELECT xdb.retry_now('f')"));
    assert_eq!(story.app.db().one::<i32>("SELECT xdb.retry_now('f')"), 1);
    story.completes("f", 1);
    story.done();
}

#[test]
fn in_a_registration_and_in_a_pause() {
    let story = Story::new("register");
    let definition = one_step().maps("public.counters", "id", &["n"]);
    let sql = format!("SELECT xdb.register_process_type('other', 'stub', '{}')", definition.json());
    story.crash_at("register", |_| story.app.superuser().try_run(&sql));
    story.app.db().start("o", "other").refused(codes::UNKNOWN_PROCESS_TYPE);
    story.app.superuser().run(&sql);
    story.crash_at("pause", |_| story.app.superuser().try_run("SELECT xdb.pause_engine()"));
    story.start("o", "other");
    story.completes("o", 1);
    story.done();
}
