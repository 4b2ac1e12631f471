//! Slow tables: a runner, a process beside the scheduler, makes their calls and applies their answers one by one. All
//! other processes go on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xdb_cluster_tests::cluster::signal;
use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::prelude::*;

/// The most calls of one owner on which a runner has leases. One of its sixteen places is reserved for other owners.
const CALLS: usize = 15;

/// An application with the table `mine` of a hundred rows. The process type `mine` writes one of them, and `quick`
/// needs no table. Each write is recorded with its transaction and its process.
struct Slow {
    app: App,
    worker: Worker,
    /// Calls of `mine` hang until the worker is released.
    hangs: Arc<AtomicBool>,
}

impl Slow {
    fn new(app: App) -> Slow {
        app.db().run(
            "CREATE TABLE mine (id text PRIMARY KEY, n int NOT NULL DEFAULT 0);
             INSERT INTO mine SELECT 'p' || n FROM generate_series(1, 300) n;
             CREATE TABLE written (id text, txid bigint, pid int);
             CREATE FUNCTION pause() RETURNS float8 LANGUAGE sql AS 'SELECT 0.0::float8';
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM pg_sleep(public.pause());
                 INSERT INTO public.written VALUES (new.id, txid_current(), pg_backend_pid());
                 RETURN new; END $$;
             CREATE TRIGGER note BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION note();",
        );
        let hangs = Arc::new(AtomicBool::new(false));
        let worker = app.worker({
            let hangs = Arc::clone(&hangs);
            move |call: &Call| {
                if !call.process_id().starts_with('p') {
                    return Reply::from(force_complete(json!(null)));
                }
                let n = call.global("n").as_i64().unwrap_or_default() + 1;
                let answer = force_complete(json!(n)).globals(json!({"n": n}));
                if hangs.load(Ordering::Relaxed) { Reply::hang(answer) } else { answer.into() }
            }
        });
        app.register("mine", &one_step().maps("public.mine", "id", &["n"]));
        app.register("quick", &one_step());
        Slow { app, worker, hangs }
    }

    fn alone(name: &str, options: ClusterOptions) -> Slow {
        Slow::new(App::alone(name, options))
    }

    /// Makes each write take this time from now on.
    fn set_write_time(&self, seconds: f64) {
        self.app.db().run(&format!(
            "CREATE OR REPLACE FUNCTION pause() RETURNS float8 LANGUAGE sql AS 'SELECT {seconds:.3}::float8'"
        ));
    }

    fn mark(&self) {
        self.app.make_slow("app", "public.mine", "id", json!({"n": 0}));
    }

    fn is_slow(&self) -> bool {
        views::engine(&mut self.app.superuser()).contains("public.mine: ")
    }

    fn hang(&self, hang: bool) {
        self.hangs.store(hang, Ordering::Relaxed);
    }

    fn start(&self, numbers: std::ops::RangeInclusive<usize>) {
        let mut db = self.app.db();
        for n in numbers {
            db.start(&format!("p{n}"), "mine").key(&format!("p{n}")).go();
        }
    }

    /// Checks that twenty quick processes complete one after the other.
    fn quick_processes_complete(&self, round: &str) {
        let mut db = self.app.db();
        let (took, ()) = timed(|| {
            for n in 0..20 {
                let id = format!("quick-{round}-{n}");
                db.start(&id, "quick").go();
                db.completes(&id);
            }
        });
        assert!(took < Duration::from_secs(20), "twenty processes without the table took {took:?}");
    }

    /// Checks that all of these complete, and that each has written its row once.
    fn complete(&self, count: usize) {
        let mut db = self.app.db();
        wait_until("all complete", 120, || views::with_status(&mut db, "p%", "COMPLETED") == count as i64);
        assert_eq!(db.count("mine WHERE n = 1"), count as i64);
        assert_eq!(db.count("mine WHERE n > 1"), 0);
        assert_eq!(db.count("written"), count as i64, "each was written once");
    }

    fn runners(&self) -> i64 {
        i64::from(self.app.superuser().one::<i32>("SELECT runners FROM xdb.status()"))
    }

    /// The pid of a runner.
    fn runner(&self) -> i32 {
        let sql =
            "SELECT min(pid) FROM pg_stat_activity WHERE backend_type = 'xdb runner' AND datname = current_database()";
        let mut superuser = self.app.superuser();
        let mut pid = None;
        wait_until("a runner runs", 20, || {
            pid = superuser.try_one::<Option<i32>>(sql).expect("it can be asked");
            pid.is_some()
        });
        pid.expect("just found")
    }
}

#[test]
fn no_turn_of_the_scheduler_spends_more_than_its_time_in_a_slow_table() {
    const PROCESSES: usize = 16;
    // One write is more than half of what a turn has, and far from all of it.
    let options = ClusterOptions::default().set("xdb.apply_timeout", "1s");
    let slow = Slow::alone("runners_budget", options);
    slow.set_write_time(0.6);
    slow.hang(true);
    slow.start(1..=PROCESSES);
    slow.worker.wait_for_count("all calls", 30, PROCESSES, |call| call.process_id().starts_with('p'));
    slow.hang(false);
    slow.worker.release();
    slow.quick_processes_complete("meanwhile");
    let mut db = slow.app.db();
    let scheduler = slow.app.scheduler();
    wait_until("all complete", 120, || views::with_status(&mut db, "p%", "COMPLETED") == PROCESSES as i64);
    let most: i64 = db.one(&format!(
        "SELECT COALESCE(max(count), 0) FROM (SELECT count(*) FROM written WHERE pid = {scheduler} GROUP BY txid) AS turns"
    ));
    assert!((1..=2).contains(&most), "a turn of the scheduler wrote {most} of them");
    slow.app.done(&[]);
}

#[test]
fn one_that_failed_before_makes_no_other_guarded() {
    // A turn that has used its time up is repeated with guards.
    let options = ClusterOptions::default().set("xdb.apply_timeout", "60s");
    let slow = Slow::alone("runners_guard", options);
    let mut holder = slow.app.db();
    holder.run("BEGIN; UPDATE mine SET n = 0 WHERE id = 'p300'");
    slow.start(300..=300);
    slow.worker.wait_for("its call", 10, |call| call.process_id() == "p300");
    // Makes turns in which only this call has failed.
    slow.quick_processes_complete("first");
    slow.start(1..=200);
    let mut db = slow.app.db();
    wait_until("its neighbours complete", 60, || views::with_status(&mut db, "p%", "COMPLETED") == 200);
    // A guard is a subtransaction, and the row has its number.
    let guarded = db.count("mine JOIN written USING (id) WHERE mine.xmin::text <> written.txid::text AND id <> 'p300'");
    assert_eq!(guarded, 0, "rows were written in subtransactions");
    holder.run("ROLLBACK");
    db.completes("p300");
    slow.app.done(&[]);
}

#[test]
fn three_hundred_processes_of_a_slow_table_complete_through_runners() {
    let slow = Slow::new(App::new("runners_many"));
    slow.set_write_time(0.01);
    slow.mark();
    slow.start(1..=300);
    slow.quick_processes_complete("meanwhile");
    slow.complete(300);
    let scheduler = slow.app.scheduler();
    let mut db = slow.app.db();
    assert_eq!(db.count(&format!("written WHERE pid = {scheduler}")), 0, "the scheduler wrote some");
    let most: i64 = db.one("SELECT max(count) FROM (SELECT count(*) FROM written GROUP BY txid) AS steps");
    assert_eq!(most, 1, "one step is one transaction");
    assert!(slow.is_slow());
    wait_until("runners without work end", 20, || slow.runners() == 0);
    slow.app.done(&[]);
}

#[test]
fn two_runners_share_the_work() {
    let slow = Slow::alone("runners_two", ClusterOptions::default().set("xdb.runners", "2"));
    slow.mark();
    slow.hang(true);
    slow.start(1..=40);
    slow.worker.wait_for_count("as many calls as two runners make", 30, 2 * CALLS, |_| true);
    // Turns in which they could claim more.
    slow.quick_processes_complete("meanwhile");
    let leases: Vec<i64> = slow.app.superuser().all(
        "SELECT count(*) FROM xdb.task t JOIN xdb.engine e ON e.epoch = t.lease_epoch AND e.lane >= 10 GROUP BY e.lane",
    );
    assert_eq!(leases, [CALLS as i64; 2]);
    assert_eq!(slow.worker.count(|call| call.process_id().starts_with('p')), 2 * CALLS);
    assert_eq!(slow.runners(), 2);
    slow.hang(false);
    slow.worker.release();
    slow.complete(40);
    let pids: i64 = slow.app.db().one("SELECT count(DISTINCT pid) FROM written");
    assert_eq!(pids, 2, "both have written");
    slow.app.done(&[]);
}

#[test]
fn an_answer_that_is_given_away_has_cost_no_attempt() {
    let slow = Slow::new(App::new("runners_attempt"));
    slow.hang(true);
    slow.start(1..=1);
    slow.worker.wait_for("the scheduler's call", 10, |_| true);
    slow.mark();
    slow.hang(false);
    slow.worker.release();
    slow.complete(1);
    let attempts: Vec<u64> = slow.worker.calls().iter().map(Call::attempt).collect();
    assert_eq!(attempts, [1, 1], "the runner's call is the same attempt");
    slow.app.done(&[]);
}

#[test]
fn one_runner_is_enough() {
    let slow = Slow::alone("runners_one", ClusterOptions::default().set("xdb.runners", "1"));
    slow.mark();
    slow.hang(true);
    slow.start(1..=40);
    slow.worker.wait_for_count("as many calls as one runner makes", 30, CALLS, |_| true);
    slow.quick_processes_complete("meanwhile");
    assert_eq!(slow.worker.count(|call| call.process_id().starts_with('p')), CALLS);
    assert_eq!(slow.runners(), 1);
    slow.hang(false);
    slow.worker.release();
    slow.complete(40);
    slow.app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn answers_that_wait_for_a_table_keep_no_other_answer_out_of_a_turn() {
    // Turns of eight items, in each of which one use of the table fits.
    let options = ClusterOptions::default().set("xdb.test_claim_batch", "8").set("xdb.apply_timeout", "500ms");
    let slow = Slow::alone("runners_line", options);
    slow.set_write_time(0.3);
    slow.start(1..=20);
    slow.worker.wait_for_count("the calls", 30, 20, |_| true);
    let mut db = slow.app.db();
    db.start("quick", "quick").go();
    db.completes("quick");
    let before = db.count("written");
    assert!(before <= 12, "it waited behind {before} of twenty uses of the table");
    slow.set_write_time(0.0);
    slow.complete(20);
    slow.app.done(&[]);
}

#[test]
fn a_runner_that_ends_loses_its_leases_and_nothing_else() {
    let slow = Slow::alone("runners_end", ClusterOptions::default());
    slow.mark();
    slow.hang(true);
    slow.start(1..=10);
    slow.worker.wait_for_count("the calls", 30, 10, |_| true);
    let scheduler = slow.app.scheduler();
    let epochs = "SELECT lane::int, epoch FROM xdb.engine ORDER BY lane";
    let before: BTreeMap<i32, i64> = pairs(&mut slow.app.superuser(), epochs);
    slow.app.superuser().run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE backend_type = 'xdb runner' AND datname = current_database()",
    );
    // Their leases are void as soon as the scheduler has seen it, and long before they end.
    slow.hang(false);
    slow.worker.wait_for_count("the calls are made again", 30, 20, |_| true);
    slow.worker.release();
    slow.complete(10);
    let after: BTreeMap<i32, i64> = pairs(&mut slow.app.superuser(), epochs);
    assert_eq!(slow.app.scheduler(), scheduler, "the scheduler is the same one");
    assert_eq!(after[&0], before[&0]);
    assert!(
        before.iter().filter(|(lane, _)| **lane >= 10).all(|(lane, epoch)| after[lane] > *epoch),
        "{before:?} {after:?}"
    );
    slow.app.done(&["terminating background worker", "terminating connection"]);
}

#[test]
fn a_failed_duty_of_the_scheduler_is_not_retried_in_each_turn() {
    let slow = Slow::alone("runners_unretired", ClusterOptions::default());
    slow.mark();
    slow.start(1..=1);
    slow.complete(1);
    let mut superuser = slow.app.superuser();
    superuser.run("BEGIN; SELECT FROM xdb.engine WHERE lane >= 10 FOR UPDATE");
    // The runner ends by itself. Its leases can't be made void.
    wait_until("it has ended", 20, || slow.runners() == 0);
    let complaints = || slow.app.cluster().log().matches("a duty of the scheduler failed").count();
    wait_until("that is in the log", 20, || complaints() > 0);
    let (before, began) = (complaints(), Instant::now());
    slow.quick_processes_complete("meanwhile");
    let (more, seconds) = (complaints() - before, began.elapsed().as_secs() as usize);
    assert!(more <= 10 + 2 * seconds, "{more} lines in the log in {seconds} s");
    superuser.run("ROLLBACK");
    slow.app.done(&[]);
}

fn pairs(db: &mut Db, sql: &str) -> BTreeMap<i32, i64> {
    db.client().query(sql, &[]).expect("the rows").iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[test]
fn a_runner_that_is_killed_while_it_calls() {
    let slow = Slow::alone("runners_killed_calling", ClusterOptions::default());
    slow.mark();
    slow.hang(true);
    slow.start(1..=10);
    slow.worker.wait_for_count("the calls", 30, 10, |_| true);
    slow.app.cluster().kill_process(slow.runner());
    slow.hang(false);
    slow.worker.wait_for_count("the calls are made again", 60, 20, |_| true);
    slow.worker.release();
    slow.complete(10);
    slow.app.done(AFTER_A_CRASH);
}

#[test]
fn a_runner_that_is_killed_in_the_slow_table() {
    let slow = Slow::alone("runners_killed_writing", ClusterOptions::default());
    slow.set_write_time(3.0);
    slow.mark();
    slow.start(1..=3);
    let mut superuser = slow.app.superuser();
    let runner = slow.runner();
    wait_until("the runner is in the trigger", 30, || {
        superuser.count(&format!("pg_stat_activity WHERE pid = {runner} AND wait_event = 'PgSleep'")) == 1
    });
    slow.app.cluster().kill_process(runner);
    slow.set_write_time(0.0);
    slow.complete(3);
    slow.app.done(AFTER_A_CRASH);
}

#[test]
fn a_slow_table_is_the_schedulers_again_after_ten_minutes() {
    let slow = Slow::alone("runners_mended", ClusterOptions::default());
    slow.set_write_time(0.6);
    slow.start(1..=4);
    wait_until("the table is found to be slow", 30, || slow.is_slow());
    slow.set_write_time(0.0);
    slow.complete(4);
    let by_scheduler = |id: &str| {
        let scheduler = slow.app.scheduler();
        slow.app.db().count(&format!("written WHERE id = '{id}' AND pid = {scheduler}"))
    };
    slow.app.cluster().set("xdb.now", "9 min");
    slow.start(5..=5);
    slow.app.db().completes("p5");
    assert!(slow.is_slow());
    assert_eq!(by_scheduler("p5"), 0, "its step was a runner's");
    slow.app.ten_minutes_pass();
    slow.start(6..=6);
    slow.app.db().completes("p6");
    assert!(!slow.is_slow());
    assert_eq!(by_scheduler("p6"), 1);
    wait_until("runners without work end", 20, || slow.runners() == 0);
    slow.app.done(&[]);
}

#[test]
fn owners_take_turns_at_a_runner() {
    const GREEDY: usize = 20;
    let slow = Slow::alone("runners_turns", ClusterOptions::default().set("xdb.runners", "1"));
    let mut other = slow.app.session("other");
    other
        .run("CREATE TABLE theirs (id text PRIMARY KEY, n int NOT NULL DEFAULT 0); INSERT INTO theirs VALUES ('p', 0)");
    slow.app.register("theirs", &one_step().maps("public.theirs", "id", &["n"]));
    slow.mark();
    slow.app.make_slow("other", "public.theirs", "id", json!({"n": 0}));
    slow.set_write_time(0.5);
    slow.hang(true);
    slow.start(1..=GREEDY);
    slow.worker.wait_for_count("their calls", 60, CALLS, |_| true);
    slow.hang(false);
    slow.worker.release();
    let mut superuser = slow.app.superuser();
    wait_until("it applies their answers", 60, || superuser.count("written") > 0);
    let before = superuser.count("written");
    other.start("p-of-other", "theirs").key("p").go();
    other.completes("p-of-other");
    let meanwhile = superuser.count("written") - before;
    assert!(meanwhile <= 4, "{meanwhile} of another role's steps were carried out before one");
    wait_until("all complete", 60, || views::with_status(&mut superuser, "p%", "COMPLETED") == GREEDY as i64 + 1);
    slow.app.done(&[]);
}

/// A trigger that survives its cancellation.
const STUBBORN: &str = "CREATE FUNCTION stubborn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             LOOP
                 BEGIN PERFORM pg_sleep(60);
                 EXCEPTION WHEN query_canceled THEN PERFORM pg_sleep(60);
                 END;
             END LOOP; END $$";

#[test]
fn a_table_in_which_a_process_crashed_is_avoided_and_first_used_by_a_runner() {
    let app = App::alone("runners_deadly", ClusterOptions::default());
    let mut db = app.db();
    db.run(&format!(
        "CREATE TABLE mine (id text PRIMARY KEY, n int, pid int); INSERT INTO mine VALUES ('p'), ('q'); {STUBBORN};
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN new.pid := pg_backend_pid(); RETURN new; END $$;
         CREATE TRIGGER note BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION note();
         CREATE TRIGGER stubborn BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION stubborn();",
    ));
    let _worker = app.worker(|_: &Call| force_complete(json!(null)).globals(json!({"n": 1})));
    app.register("mine", &one_step().maps("public.mine", "id", &["n"]));
    db.start("p", "mine").key("p").go();
    let mut superuser = app.superuser();
    wait_until("the table is named", 30, || {
        views::engine(&mut superuser)
            .contains("public.mine: a statement could not be cancelled, so the engine process ended itself")
    });
    db.run("DROP TRIGGER stubborn ON mine");
    wait_until("its call waits for a runner", 30, || {
        superuser.count("xdb.task WHERE lane = 1 AND lease_until IS NULL") == 1
    });
    assert_eq!(db.status("p"), "RUNNING");
    app.ten_minutes_pass();
    db.completes("p");
    let scheduler = app.scheduler();
    let written_by = |db: &mut Db, id: &str| db.one::<i32>(&format!("SELECT pid FROM mine WHERE id = '{id}'"));
    assert_ne!(written_by(&mut db, "p"), scheduler, "the first use is a runner's");
    let shown = views::engine(&mut superuser);
    assert!(!shown.contains("public.mine: "), "{shown}");
    assert!(
        shown.contains(
            "all tables of processes of app: a statement could not be cancelled, so the engine process ended itself"
        ),
        "{shown}"
    );
    app.cluster().set("xdb.now", "1 hour 1 min");
    db.start("q", "mine").key("q").go();
    db.completes("q");
    assert_eq!(written_by(&mut db, "q"), scheduler);
    app.done(&[]);
}

#[test]
fn a_machine_that_stood_still_costs_no_process() {
    let limit = Duration::from_millis(400);
    let options = ClusterOptions::default().set("xdb.apply_timeout", "400ms");
    let slow = Slow::alone("runners_standstill", options);
    slow.set_write_time(0.2);
    let mut superuser = slow.app.superuser();
    let scheduler = slow.app.scheduler();
    let stopped = || std::fs::read_to_string(format!("/proc/{scheduler}/stat")).is_ok_and(|stat| stat.contains(") T "));
    let mut is_in_table =
        move || superuser.count(&format!("pg_stat_activity WHERE pid = {scheduler} AND wait_event = 'PgSleep'")) == 1;
    let mut started = 0;
    // Once it is stopped it shows whether that was in time.
    loop {
        started += 1;
        slow.start(started..=started);
        wait_until("the scheduler is in the table", 30, &mut is_in_table);
        signal(scheduler, libc::SIGSTOP);
        wait_until("the scheduler stands still", 10, stopped);
        if is_in_table() {
            break;
        }
        signal(scheduler, libc::SIGCONT);
    }
    std::thread::sleep(4 * limit);
    signal(scheduler, libc::SIGCONT);
    slow.complete(started);
    assert_eq!(slow.app.scheduler(), scheduler, "no other one was started");
    assert!(!views::engine(&mut slow.app.superuser()).contains("could not be cancelled"));
    slow.app.done(&[]);
}

#[test]
fn a_role_crashes_the_scheduler_once_even_with_many_deadly_tables() {
    const TABLES: usize = 4;
    let app = App::alone("runners_deadly_role", ClusterOptions::default());
    let _worker = app.worker(|call: &Call| match call.process_id().starts_with("greedy") {
        true => force_complete(json!(null)).globals(json!({"n": 1})),
        false => force_complete(json!(null)),
    });
    let (mut greedy, mut modest) = (app.db(), app.session("other"));
    greedy.run(STUBBORN);
    for number in 1..=TABLES {
        let name = format!("deadly_{number}");
        greedy.run(&format!(
            "CREATE TABLE {name} (id text PRIMARY KEY, n int); INSERT INTO {name} VALUES ('p', 0);
             CREATE TRIGGER stubborn BEFORE UPDATE ON {name} FOR EACH ROW EXECUTE FUNCTION stubborn();"
        ));
        app.register(&name, &one_step().maps(&format!("public.{name}"), "id", &["n"]));
    }
    app.register("quick", &one_step());
    for number in 1..=TABLES {
        greedy.start(&format!("greedy-{number}"), &format!("deadly_{number}")).key("p").go();
    }
    let mut superuser = app.superuser();
    let mut started = 0;
    wait_until("all of its tables have been tried", 120, || {
        started += 1;
        let id = format!("modest-{started}");
        let (took, _) = timed(|| {
            modest.start(&id, "quick").go();
            modest.completes(&id)
        });
        assert!(took < Duration::from_secs(5), "{id} took {took:?} beside tables that kill");
        views::engine(&mut superuser).matches("public.deadly_").count() == TABLES
    });
    let deaths =
        app.cluster().log().lines().filter(|line| line.contains("FATAL") && line.contains("xdb scheduler")).count();
    assert_eq!(deaths, 1, "later ones are runners'");
    let shown = views::engine(&mut superuser);
    assert!(
        shown.contains(
            "all tables of processes of app: a statement could not be cancelled, so the engine process ended itself"
        ),
        "{shown}"
    );
    app.done(&["terminating background worker"]);
}

#[test]
fn a_runner_that_cannot_be_started_is_reported() {
    // The launcher, the scheduler and the server's own one for replication.
    let slow = Slow::alone("runners_none", ClusterOptions::default().set("max_worker_processes", "3"));
    slow.mark();
    slow.start(1..=3);
    let mut superuser = slow.app.superuser();
    wait_until("the status shows it", 30, || {
        superuser
            .one::<Option<String>>("SELECT runner_error FROM xdb.status()")
            .is_some_and(|e| e.contains("max_worker_processes"))
    });
    slow.quick_processes_complete("without");
    assert_eq!(superuser.one::<i32>("SELECT runners FROM xdb.status()"), 0);
    // A table that is the scheduler's again needs no runner.
    let cluster = slow.app.cluster();
    cluster.set("xdb.enabled", "off");
    wait_until("the engine has ended", 20, || cluster.find_scheduler(slow.app.database()).is_none());
    cluster.set("xdb.enabled", "on");
    slow.complete(3);
    assert!(!slow.is_slow(), "a restart of the engine forgets it");
    wait_until("no table needs a runner", 20, || {
        superuser.one::<Option<String>>("SELECT runner_error FROM xdb.status()").is_none()
    });
    slow.app.done(&["worker processes of max_worker_processes are in use"]);
}

#[test]
fn a_runner_beyond_the_setting_is_not_started() {
    let app = App::alone("runners_setting", ClusterOptions::default());
    let mut superuser = app.superuser();
    for (value, code) in [("0", "22023"), ("17", "22023")] {
        let error = superuser.try_run(&format!("ALTER SYSTEM SET xdb.runners = {value}")).expect_err(value);
        assert_eq!(error.code, code);
    }
    app.done(&["xdb.runners"]);
}
