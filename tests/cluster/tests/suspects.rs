//! A call that brings the server down does so twice and is held; everybody else goes on.

use xdb_cluster_tests::log::{self, AFTER_A_CRASH};
use xdb_cluster_tests::prelude::*;

/// An engine process dies as it reads the row of a call or writes that of an answer, where `faults` says so: of `kill -9`, as it would
/// of a system without memory or of a broken library.
const FAULTS: &str = "
    CREATE TABLE faults (id text, doing text);
    CREATE FUNCTION fault(id text, doing text) RETURNS bool LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        IF EXISTS (SELECT FROM public.faults f WHERE f.id = fault.id AND f.doing = fault.doing)
           AND EXISTS (SELECT FROM pg_stat_activity WHERE pid = pg_backend_pid() AND backend_type LIKE 'xdb %') THEN
            EXECUTE format('COPY (SELECT) TO PROGRAM ''kill -9 %s''', pg_backend_pid());
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

/// An application with a server of its own, in which the process `bad` is one of several.
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

    /// All at once, as one turn finds them, with this fault in `bad`.
    fn start(&self, ids: &[&str], fault: Option<&str>) {
        let mut superuser = self.app.superuser();
        self.app.pause();
        let mut db = self.app.db();
        for id in ids {
            db.start(id, "one").key(id).globals(json!({"n": 0})).go();
        }
        if let Some(doing) = fault {
            superuser.run(&format!("INSERT INTO faults VALUES ('bad', '{doing}')"));
        }
        // The server may die before it has answered.
        let _ = superuser.try_run("SELECT xdb.resume()");
    }

    fn deaths(&self) -> usize {
        log::crashes(&self.app.cluster().log())
    }

    /// What the table of suspects has, as soon as the server answers.
    fn suspects(&self, which: &str) -> Option<Vec<String>> {
        let sql = format!(
            "SELECT p.process_id FROM xdb.crash_suspect c JOIN xdb.process_execution p USING (execution_id)
             WHERE {which} ORDER BY p.process_id"
        );
        self.cluster().try_connect(self.app.database(), "postgres", Duration::from_secs(20)).ok()?.try_all(&sql).ok()
    }

    fn is_held(&self, ids: &[&str]) -> bool {
        self.suspects("c.held_at IS NOT NULL").is_some_and(|held| held == ids)
    }

    fn cluster(&self) -> &Cluster {
        self.app.cluster()
    }

    /// `bad` is held, and shown to its owner.
    fn bad_is_held(&self, deaths: usize) {
        wait_until("the call is held", 60, || self.is_held(&["bad"]));
        assert_eq!(self.deaths(), deaths);
        let mut db = self.app.db();
        let failures = views::failures(&mut db, "bad");
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert_eq!((&failures[0]["error_type"], &failures[0]["api"]), (&json!("CallHeld"), &json!("EXECUTE_API")));
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

    /// No call is a suspect any more.
    fn all_is_forgotten(&self) {
        let mut superuser = self.app.superuser();
        wait_until("nothing is suspected", 20, || superuser.count("xdb.crash_suspect") == 0);
        assert_eq!(superuser.count("xdb.task WHERE lane = 2"), 0);
        let reason = "SELECT reason IS NULL FROM xdb.status()";
        assert!(superuser.one::<bool>(reason));
    }

    fn done(self) {
        drop(self.worker);
        self.app.done(AFTER_A_CRASH);
    }
}

const GOOD: [&str; 5] = ["a", "b", "c", "d", "e"];

/// All start with `bad`, which kills whoever does this for it.
fn a_call_kills_the_server(story: Story, fault: &str) {
    let all: Vec<_> = GOOD.into_iter().chain(["bad"]).collect();
    story.start(&all, Some(fault));
    story.bad_is_held(2);
    let mut db = story.app.db();
    GOOD.iter().for_each(|id| drop(db.completes(id)));
    story.start(&["later"], None);
    db.completes("later");
    assert!(story.is_held(&["bad"]));

    // Another try begins from nothing, and costs two deaths again.
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('bad', 'Only-1')"), 1);
    wait_until("the server has died four times", 60, || story.deaths() == 4);
    story.bad_is_held(4);
    story.heal();
    let mut db = story.app.db();
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('bad')"), 1);
    assert_eq!(db.completes("bad").result(), 1);
    assert_eq!(db.one::<i32>("SELECT n FROM counters WHERE id = 'a'"), 1, "each was applied once");
    assert_eq!(views::failures(&mut db, "bad"), Vec::<Value>::new());
    story.all_is_forgotten();
    story.done();
}

#[test]
fn a_call_that_kills_who_prepares_it_is_held_after_two_deaths() {
    a_call_kills_the_server(Story::new("suspects_prepared"), "read");
}

#[test]
fn a_call_whose_answer_kills_who_applies_it_is_held_too() {
    a_call_kills_the_server(Story::new("suspects_applied"), "write");
}

#[test]
fn a_call_that_kills_runners_is_held_too() {
    let story = Story::new("suspects_runner");
    story.app.make_slow("app", "public.counters", "id", json!({"n": 0}));
    a_call_kills_the_server(story, "read");
}

#[test]
fn who_was_under_way_at_both_deaths_is_made_again_by_itself() {
    let story = Story::new("suspects_innocent");
    story.worker.misbehave(|_| Reply::hang(force_complete(json!("at last")).globals(json!({"n": 1}))));
    story.start(&["slow"], None);
    let calls = |count| story.worker.wait_for_count("the slow call", 30, count, |call| call.process_id() == "slow");
    calls(1);
    story.start(&["bad"], Some("read"));
    story.bad_is_held(2);
    // Once for each life of the server.
    calls(3);
    for (deaths, made) in [(3, 4), (4, 5)] {
        story.app.kill_scheduler();
        calls(made);
        assert_eq!(story.deaths(), deaths);
        assert!(story.is_held(&["bad"]));
    }
    assert_eq!(story.suspects("c.deaths = 1"), Some(vec!["slow".to_owned()]));
    story.worker.heal();
    story.app.db().completes("slow");
    wait_until("it is none any more", 10, || story.suspects("true").is_some_and(|left| left == ["bad"]));
    story.heal();
    story.app.db().run("SELECT xdb.retry_now('bad')");
    story.app.db().completes("bad");
    story.all_is_forgotten();
    story.done();
}

#[test]
fn a_suspect_is_none_any_more_when_its_call_is_over() {
    let story = Story::new("suspects_over");
    story.worker.misbehave(|call: &Call| match call.process_id() {
        "failed" => Reply::hang(error(500, "Failed", "for now")),
        _ => Reply::hang(force_complete(json!(null))),
    });
    let ids = ["answered", "failed", "stopped", "purged"];
    story.start(&ids, None);
    let calls = |count| story.worker.wait_for_count("the calls", 30, count, |_| true);
    calls(4);
    // An end in good order is no death.
    let scheduler = story.app.scheduler();
    story.app.superuser().run(&format!("SELECT pg_terminate_backend({scheduler})"));
    calls(8);
    story.cluster().stop();
    story.cluster().launch();
    calls(12);
    assert_eq!(story.suspects("true"), Some(Vec::new()));
    story.app.kill_scheduler();
    calls(16);
    assert_eq!(story.suspects("c.held_at IS NULL").map(|all| all.len()), Some(4));

    let mut db = story.app.db();
    db.run("SELECT xdb.stop_process('stopped'); SELECT xdb.stop_process('purged')");
    assert_eq!(story.suspects("true"), Some(vec!["answered".to_owned(), "failed".to_owned()]));
    story.app.superuser().run("SELECT xdb.purge('0 s')");
    story.worker.release();
    db.completes("answered");
    wait_until("all of them are forgotten", 20, || story.suspects("true") == Some(Vec::new()));
    db.run("SELECT xdb.stop_process('failed')");
    story.all_is_forgotten();
    story.done();
}

#[test]
fn answers_of_many_suspects_leave_time_for_others() {
    let story = Story::new("suspects_many");
    let ids: Vec<_> = (0..80).map(|number| format!("s{number}")).collect();
    story.worker.misbehave(|call: &Call| match call.process_id() {
        "other" => Reply::from(force_complete(json!("done"))),
        _ => Reply::hang(force_complete(json!(null))),
    });
    story.start(&ids.iter().map(String::as_str).collect::<Vec<_>>(), None);
    story.worker.wait_for_count("the calls", 30, 80, |_| true);
    story.app.kill_scheduler();
    story.worker.wait_for_count("all are made again", 60, 160, |_| true);
    // As it is with a standby that is waited for at each commit.
    let mut superuser = story.app.superuser();
    superuser.run(
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN new; END $$;
         CREATE TRIGGER slowly BEFORE UPDATE ON xdb.crash_suspect FOR EACH ROW WHEN (new.deaths = 2)
             EXECUTE FUNCTION slowly()",
    );
    story.worker.release();
    let mut db = story.app.db();
    db.start("other", "one").key("other").go();
    db.completes("other");
    let left = superuser.count("xdb.crash_suspect");
    superuser.run("DROP FUNCTION slowly() CASCADE");
    assert!(left > 0, "it has waited for all of them");
    ids.iter().for_each(|id| drop(db.completes(id)));
    story.all_is_forgotten();
    story.done();
}

#[test]
fn what_was_held_is_made_in_a_copy() {
    let story = Story::new("suspects_copied");
    story.start(&["bad"], Some("read"));
    story.bad_is_held(2);
    story.heal();
    story.app.cluster().superuser().run("CREATE DATABASE suspects_copy TEMPLATE suspects_copied");
    story.cluster().connect("suspects_copy", "boss").run("SELECT xdb.adopt()");
    story.cluster().connect("suspects_copy", "app").completes("bad");
    assert_eq!(story.cluster().connect("suspects_copy", "postgres").count("xdb.crash_suspect"), 0);
    story.app.cluster().superuser().drop_database("suspects_copy", "WITH (FORCE)");
    assert!(story.is_held(&["bad"]));
    story.app.db().run("SELECT xdb.stop_process('bad')");
    story.all_is_forgotten();
    story.done();
}

#[test]
fn a_call_is_prepared_after_its_lease_in_the_first_minute_and_with_it_later() {
    let app = App::alone("suspects_minute", ClusterOptions::default().own_clock());
    let worker = app.worker(|_| Reply::hang(force_complete(json!(null))));
    app.register("one", &one_step().maps("public.counters", "id", &["n"]));
    let mut db = app.db();
    // Reading the row for a call notes in which transaction that is.
    let mut superuser = app.superuser();
    superuser.run(
        "CREATE TABLE noted (id text, xid text);
         CREATE FUNCTION note(id text) RETURNS bool LANGUAGE plpgsql SECURITY DEFINER AS $$
         BEGIN
             IF EXISTS (SELECT FROM pg_stat_activity WHERE pid = pg_backend_pid() AND backend_type LIKE 'xdb %') THEN
                 INSERT INTO public.noted VALUES (id, pg_current_xact_id()::text);
             END IF;
             RETURN true;
         END $$;
         INSERT INTO counters VALUES ('early', 0), ('late', 0);
         ALTER TABLE counters ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
         CREATE POLICY reads ON counters USING (public.note(id));",
    );
    let mut transactions = |id: &str| {
        db.start(id, "one").key(id).go();
        worker.wait_for("the call", 20, |call| call.process_id() == id);
        let prepared = superuser.all::<String>(&format!("SELECT DISTINCT xid FROM noted WHERE id = '{id}'"));
        let leased = superuser.all::<String>(&format!(
            "SELECT t.xmin::text FROM xdb.task t JOIN xdb.process_execution p USING (execution_id) WHERE p.process_id = '{id}'"
        ));
        worker.release();
        db.completes(id);
        (leased, prepared)
    };
    let (leased, prepared) = transactions("early");
    assert_eq!((leased.len(), prepared.len()), (1, 1));
    assert_ne!(leased, prepared);
    app.cluster().set_clock(61.0);
    let (leased, prepared) = transactions("late");
    assert_eq!(leased, prepared);
    drop(worker);
    app.done(&[]);
}
