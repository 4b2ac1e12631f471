//! A call that crashes the server three times is held, and all other calls go on. Tested with triggers that kill their
//! process.

use xdb_cluster_tests::log::{self, AFTER_A_CRASH};
use xdb_cluster_tests::prelude::*;

/// An engine process is killed when it reads the row of a call or writes the row of an answer, as `faults` says. The
/// signal stands for a system without memory or a broken library. With `once`, a directory remembers that it has
/// happened.
const FAULTS: &str = "
    CREATE TABLE faults (id text, doing text, once bool);
    CREATE FUNCTION fault(id text, doing text) RETURNS bool LANGUAGE plpgsql SECURITY DEFINER AS $$
    DECLARE
        once bool;
    BEGIN
        SELECT f.once INTO once FROM public.faults f WHERE f.id = fault.id AND f.doing = fault.doing;
        IF FOUND AND EXISTS (SELECT FROM pg_stat_activity WHERE pid = pg_backend_pid() AND backend_type LIKE 'xdb %') THEN
            EXECUTE format('COPY (SELECT) TO PROGRAM %L',
                format(CASE WHEN once THEN 'cat >&2; if mkdir fault; then kill -9 %s; fi' ELSE 'kill -9 %s' END, pg_backend_pid()));
        END IF;
        RETURN true;
    END $$;
    CREATE FUNCTION write_fault() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM public.fault(new.id, 'write'); RETURN new; END $$;
    CREATE TRIGGER fault BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION write_fault();
    ALTER TABLE counters ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY reads ON counters FOR SELECT USING (public.fault(id, 'read'));
    CREATE POLICY inserts ON counters FOR INSERT WITH CHECK (true);
    CREATE POLICY updates ON counters FOR UPDATE USING (true);";

/// When the fault comes.
#[derive(Clone, Copy)]
enum Fault {
    Always(&'static str),
    Once(&'static str),
    Never,
}

/// An application in a server of its own. The process `bad` is one of several.
struct Story {
    app: App,
    worker: Worker,
}

impl Story {
    fn new(name: &str) -> Story {
        let app = App::alone(name, ClusterOptions::default());
        let worker = app.worker(|call: &Call| {
            let n = call.global("n").as_i64().unwrap_or_default() + 1;
            force_complete(json!(n)).globals(json!({"n": n}))
        });
        app.register("one", &one_step().maps("public.counters", "id", &["n"]));
        app.superuser().run(FAULTS);
        Story { app, worker }
    }

    /// Starts these processes so that one turn finds all of them. `bad` has this fault.
    fn start(&self, ids: &[&str], fault: Fault) {
        let mut superuser = self.app.superuser();
        self.app.pause();
        let mut db = self.app.db();
        for id in ids {
            db.start(id, "one").key(id).globals(json!({"n": 0})).go();
        }
        if let Fault::Always(doing) | Fault::Once(doing) = fault {
            let once = matches!(fault, Fault::Once(_));
            superuser.run(&format!("INSERT INTO faults VALUES ('bad', '{doing}', {once})"));
        }
        // The server may crash before it has answered.
        let _ = superuser.try_run("SELECT xdb.resume_engine()");
    }

    fn crashes(&self) -> usize {
        log::crashes(&self.app.cluster().log())
    }

    /// The processes of these tasks. None: the server does not answer.
    fn tasks(&self, which: &str) -> Option<Vec<String>> {
        let sql = format!(
            "SELECT p.process_id FROM xdb.task t JOIN xdb.process_execution p USING (execution_id)
             WHERE {which} ORDER BY p.process_id"
        );
        self.cluster().try_connect(self.app.database(), "postgres", Duration::from_secs(20)).ok()?.try_all(&sql).ok()
    }

    fn is_held(&self, ids: &[&str]) -> bool {
        self.tasks("t.lane = 3").is_some_and(|held| held == ids)
    }

    fn cluster(&self) -> &Cluster {
        self.app.cluster()
    }

    /// Checks that the call of this state of `bad` is held, and shown to its owner.
    fn bad_is_held(&self, state: &str, crashes: usize) {
        wait_until("the call is held", 60, || self.is_held(&["bad"]));
        assert_eq!(self.crashes(), crashes);
        let mut db = self.app.db();
        let failures = views::failures(&mut db, "bad");
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert_eq!((&failures[0]["error_type"], &failures[0]["api"]), (&json!("CallHeld"), &json!("EXECUTE_API")));
        assert_eq!(failures[0]["state_execution_id"], state);
        assert!(views::fails_saying(&mut db, "bad", &["xdb.retry_now()"]), "{failures:?}");
        let described = db.json("SELECT xdb.describe_process('bad')");
        let thread = &described["threads"][0];
        assert!(thread["held"].as_str().is_some_and(|text| text.contains("xdb.retry_now()")), "{described}");
        assert!(thread.get("nextAttemptAt").is_none(), "{described}");
        let reason = self.app.session("boss").text("SELECT reason FROM xdb.status()");
        assert!(reason.contains("1 call is held"), "{reason}");
        assert_eq!(self.app.session("other").count("xdb.failures"), 0);
    }

    fn heal(&self) {
        self.app.superuser().run("DELETE FROM faults");
    }

    fn nothing_is_left(&self) {
        let mut superuser = self.app.superuser();
        assert_eq!(superuser.count("xdb.task"), 0);
        assert!(superuser.one::<bool>("SELECT reason IS NULL FROM xdb.status()"));
    }

    fn done(self) {
        drop(self.worker);
        self.app.done(AFTER_A_CRASH);
    }
}

const GOOD: [&str; 5] = ["a", "b", "c", "d", "e"];

/// All processes start with `bad`, which kills the engine process that works on it.
fn a_call_kills_the_server(story: Story, fault: &'static str) {
    let all: Vec<_> = GOOD.into_iter().chain(["bad"]).collect();
    story.start(&all, Fault::Always(fault));
    story.bad_is_held("Only-1", 3);
    let mut db = story.app.db();
    GOOD.iter().for_each(|id| drop(db.completes(id)));
    story.start(&["later"], Fault::Never);
    db.completes("later");
    assert!(story.is_held(&["bad"]));

    // Another try begins from nothing, and costs three crashes again.
    // The server may crash before it has answered.
    let _ = db.try_run("SELECT xdb.retry_now('bad', 'Only-1')");
    wait_until("the server has crashed six times", 60, || story.crashes() == 6);
    story.bad_is_held("Only-1", 6);
    story.heal();
    // A movement by hand ends the held call with its step.
    let mut db = story.app.db();
    db.run("SELECT xdb.move_state('bad', 'Only-1', '[{\"stateId\": \"Only\"}]')");
    assert_eq!(db.completes("bad").result(), 1);
    let steps: Vec<String> = db.all(
        "SELECT state_execution_id || ' ' || status FROM xdb.state_executions WHERE process_id = 'bad' ORDER BY 1",
    );
    assert_eq!(steps, ["Only-1 ABORTED", "Only-2 COMPLETED"]);
    assert_eq!(db.one::<i32>("SELECT n FROM counters WHERE id = 'a'"), 1, "each was applied once");
    assert_eq!(views::failures(&mut db, "bad"), Vec::<Value>::new());
    story.nothing_is_left();
    story.done();
}

#[test]
fn a_call_whose_preparation_crashes_the_scheduler_is_held_after_three_crashes() {
    a_call_kills_the_server(Story::new("suspects_prepared"), "read");
}

#[test]
fn a_call_whose_answer_crashes_the_scheduler_is_held_too() {
    a_call_kills_the_server(Story::new("suspects_applied"), "write");
}

#[test]
fn a_call_that_kills_runners_is_held_too() {
    let story = Story::new("suspects_runner");
    story.app.make_slow("app", "public.counters", "id", json!({"n": 0}));
    a_call_kills_the_server(story, "read");
}

/// A following call is prepared in the transaction that decides it, and after a crash in a later one. So this call is
/// held, and not the call or timer before it, which was in hand at the first crash.
fn a_crashing_call_that_follows_another_is_held_itself(story: Story, wait_until: fn() -> Answer) {
    story.worker.misbehave(move |call: &Call| match call.target() {
        "First" => next("Then", json!(null)),
        _ if call.executes("Then") => force_complete(json!("done")),
        _ => wait_until(),
    });
    let none = json!({"policy": "NONE"});
    story.app.register(
        "one",
        &Definition::starting_with("First")
            .step_with("First", json!({"loadGlobalAttributes": none}))
            .waiting_step_with("Then", json!({"waitUntilLoadGlobalAttributes": none}))
            .maps("public.counters", "id", &["n"]),
    );
    story.start(&["bad"], Fault::Always("read"));
    story.bad_is_held("Then-1", 4);
    story.heal();
    let mut db = story.app.db();
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('bad')"), 1);
    assert_eq!(db.completes("bad").result(), "done");
    story.nothing_is_left();
    story.done();
}

#[test]
fn of_calls_that_follow_from_answers_the_one_that_kills_is_held() {
    a_crashing_call_that_follows_another_is_held_itself(Story::new("suspects_follow"), no_command);
}

#[test]
fn of_calls_that_follow_from_timers_the_one_that_kills_is_held() {
    a_crashing_call_that_follows_another_is_held_itself(Story::new("suspects_timer"), || any_of(&[timer("soon", 0.5)]));
}

#[test]
fn a_call_that_waits_for_its_worker_is_never_held() {
    let story = Story::new("suspects_innocent");
    story.worker.misbehave(|_| Reply::hang(force_complete(json!("at last")).globals(json!({"n": 1}))));
    story.start(&["slow"], Fault::Never);
    let calls = |count| story.worker.wait_for_count("the slow call", 30, count, |call| call.process_id() == "slow");
    calls(1);
    story.start(&["bad"], Fault::Always("read"));
    story.bad_is_held("Only-1", 3);
    calls(4);
    // Once for each life of the server.
    for crashes in 4..7 {
        story.app.kill_scheduler();
        calls(crashes + 1);
        assert_eq!(story.crashes(), crashes);
        assert!(story.is_held(&["bad"]));
    }
    story.worker.heal();
    story.app.db().completes("slow");
    story.heal();
    story.app.db().run("SELECT xdb.retry_now('bad')");
    story.app.db().completes("bad");
    story.nothing_is_left();
    story.done();
}

#[test]
fn only_calls_in_hand_at_a_crash_are_counted_and_only_for_their_attempt() {
    let story = Story::new("suspects_counted");
    story.worker.misbehave(|call: &Call| match call.process_id() {
        "bad" => error(500, "Failed", "for now"),
        _ => Reply::hang(force_complete(json!(null))),
    });
    let calls = |count| story.worker.wait_for_count("the calls", 30, count, |call| call.process_id() != "bad");
    story.start(&["answered", "stopped"], Fault::Never);
    calls(2);
    // An end in good order is no crash.
    let scheduler = story.app.scheduler();
    story.app.superuser().run(&format!("SELECT pg_terminate_backend({scheduler})"));
    calls(4);
    story.cluster().stop();
    story.cluster().launch();
    calls(6);
    // A call that waits for its worker is not in hand.
    story.app.kill_scheduler();
    calls(8);
    assert_eq!(story.tasks("t.crashes > 0"), Some(Vec::new()));
    story.start(&["bad"], Fault::Once("read"));
    calls(10);
    assert_eq!(story.crashes(), 2);
    let mut db = story.app.db();
    wait_until("the attempt has failed", 20, || !views::failures(&mut db, "bad").is_empty());
    assert_eq!(story.tasks("t.crashes > 0 AND p.process_id = 'bad'"), Some(Vec::new()));
    db.run("SELECT xdb.stop_process('stopped'); SELECT xdb.stop_process('bad')");
    story.worker.release();
    db.completes("answered");
    story.nothing_is_left();
    story.done();
}

#[test]
fn many_suspects_are_called_again_and_leave_time_for_other_calls() {
    let story = Story::new("suspects_many");
    let ids: Vec<_> = (0..40).map(|number| format!("s{number}")).collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).chain(["bad"]).collect();
    story.worker.misbehave(|call: &Call| match call.process_id() {
        "other" => Reply::from(force_complete(json!("done"))),
        _ => Reply::hang(force_complete(json!(null))),
    });
    story.start(&ids, Fault::Once("read"));
    story.worker.wait_for_count("all are made again", 60, ids.len(), |_| true);
    assert_eq!(story.tasks("t.crashes = 1").map(|suspects| suspects.len()), Some(ids.len()));
    // As with a standby for which each commit waits.
    let mut superuser = story.app.superuser();
    superuser.run(
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN old; END $$;
         CREATE TRIGGER slowly BEFORE DELETE ON xdb.task FOR EACH ROW WHEN (old.crashes > 0) EXECUTE FUNCTION slowly()",
    );
    story.worker.release();
    let mut db = story.app.db();
    db.start("other", "one").key("other").go();
    db.completes("other");
    let left = superuser.count("xdb.task");
    superuser.run("DROP FUNCTION slowly() CASCADE");
    assert!(left > 0, "it has waited for all of them");
    ids.iter().for_each(|id| drop(db.completes(id)));
    assert_eq!(story.crashes(), 1);
    story.nothing_is_left();
    story.done();
}

#[test]
fn a_held_call_is_made_in_a_copy() {
    let story = Story::new("suspects_copied");
    story.start(&["bad"], Fault::Always("read"));
    story.bad_is_held("Only-1", 3);
    story.heal();
    story.app.cluster().superuser().run("CREATE DATABASE suspects_copy TEMPLATE suspects_copied");
    story.cluster().connect("suspects_copy", "boss").run("SELECT xdb.adopt()");
    story.cluster().connect("suspects_copy", "app").completes("bad");
    story.app.cluster().superuser().drop_database("suspects_copy", "WITH (FORCE)");
    assert!(story.is_held(&["bad"]));
    story.app.db().run("SELECT xdb.stop_process('bad')");
    story.nothing_is_left();
    story.done();
}

/// Without a crash, a turn needs no extra commit after the start of the server.
#[test]
fn a_call_is_prepared_with_its_lease_from_the_start_of_the_server_on() {
    let app = App::alone("suspects_start", ClusterOptions::default());
    let worker = app.worker(|_| Reply::hang(force_complete(json!(null))));
    app.register("one", &one_step().maps("public.counters", "id", &["n"]));
    let mut db = app.db();
    // Reading the row for a call notes in which transaction that is.
    let mut superuser = app.superuser();
    superuser.run(
        "CREATE TABLE noted (xid text);
         CREATE FUNCTION note() RETURNS bool LANGUAGE plpgsql SECURITY DEFINER AS $$
         BEGIN
             IF EXISTS (SELECT FROM pg_stat_activity WHERE pid = pg_backend_pid() AND backend_type LIKE 'xdb %') THEN
                 INSERT INTO public.noted VALUES (pg_current_xact_id()::text);
             END IF;
             RETURN true;
         END $$;
         INSERT INTO counters VALUES ('p', 0);
         ALTER TABLE counters ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
         CREATE POLICY reads ON counters USING (public.note());",
    );
    db.start("p", "one").key("p").go();
    worker.wait_for("the call", 20, |_| true);
    let prepared = superuser.all::<String>("SELECT DISTINCT xid FROM noted");
    assert_eq!(prepared, superuser.all::<String>("SELECT xmin::text FROM xdb.task"));
    worker.release();
    db.completes("p");
    drop(worker);
    app.done(&[]);
}
