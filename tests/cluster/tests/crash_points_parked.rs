//! The server is stopped at the named points of pauses, parked calls, locks of processes, incidents, and starts that are
//! merged. Nothing is lost or done twice.
//!
//! As in `crash_points.rs`, these tests need a build of the extension with crash points.
#![cfg(feature = "crash-points")]

use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::prelude::*;

/// An application in a server of its own, which records every write of `counters.n`. `steps` goes through `One` and
/// `Two`, and each adds one to the row.
fn application(name: &str, options: ClusterOptions) -> (App, Worker) {
    let app = App::alone(&format!("parked_{name}"), options);
    app.db().run(
        "CREATE TABLE audit (id text, n int);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.audit VALUES (new.id, new.n); RETURN new; END $$;
         CREATE TRIGGER note AFTER UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION note();",
    );
    let worker = app.worker(|call: &Call| {
        let n = json!(call.global("n").as_i64().unwrap_or_default() + 1);
        match call.target() {
            "One" => next("Two", json!(null)).globals(json!({"n": n})),
            "Only" => force_complete(json!("done")),
            _ => force_complete(call.input().clone()).globals(json!({"n": n})),
        }
    });
    let mapped = |definition: Definition| definition.maps("public.counters", "id", &["n"]);
    app.register("steps", &mapped(Definition::starting_with("One").step("One").step("Two")));
    let stays =
        json!({"executeApiRetryPolicy": attempts(1), "stateFailureRecoveryOptions": {"policy": "RAISE_INCIDENT"}});
    app.register("stays", &mapped(Definition::starting_with("Two").step_with("Two", stays)));
    (app, worker)
}

/// Starts a process, and repeats the start after crashes.
fn start(app: &App, id: &str, process_type: &str) {
    let request = json!({"requestId": id});
    let begin = |db: &mut Db| {
        db.start(id, process_type).key(id).globals(json!({"n": 0})).options(request.clone()).try_go().is_ok()
    };
    while !begin(&mut app.db()) {}
}

/// How many calls are parked. None: the server has crashed meanwhile.
fn parked(app: &App) -> Option<i64> {
    let within = Duration::from_secs(5);
    let mut db = app.cluster().try_connect(app.database(), "postgres", within).ok()?;
    db.try_one("SELECT count(*) FROM xdb.task WHERE lane = 2").ok()
}

fn wait_for_parked(app: &App, count: i64) {
    wait_until(&format!("{count} calls are parked"), 30, || parked(app) == Some(count));
}

/// Checks that each process has completed, and that each of its steps has written to its row exactly once.
fn complete(app: &App, ids: &[String], steps: i32) {
    let mut db = app.db();
    for id in ids {
        db.completes(id);
        let written = db.all::<i32>(&format!("SELECT n FROM audit WHERE id = '{id}' ORDER BY n"));
        assert_eq!(written, (1..=steps).collect::<Vec<_>>(), "{id}");
        views::assert_history_is_whole(&mut db, id);
    }
}

fn done(app: App, worker: Worker) {
    drop(worker);
    app.done(AFTER_A_CRASH);
}

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("p{n}")).collect()
}

/// How many events of this type a process has.
fn events(app: &App, id: &str, event_type: &str) -> i64 {
    app.db().count(&format!("xdb.history WHERE process_id = '{id}' AND event_type = '{event_type}'"))
}

#[test]
fn in_a_turn_that_parks_the_call_of_a_paused_process() {
    let (app, worker) = application("process", ClusterOptions::default());
    app.pause();
    start(&app, "p0", "steps");
    app.db().run("SELECT xdb.pause_process('p0')");
    app.cluster().arm("turn-park-paused");
    // The engine may be there before this comes back.
    let _ = app.superuser().try_run("SELECT xdb.resume_engine()");
    app.cluster().wait_for_crash("turn-park-paused");
    wait_for_parked(&app, 1);
    assert_eq!(worker.count(|_| true), 0);
    app.db().run("SELECT xdb.resume_process('p0')");
    complete(&app, &ids(1), 2);
    done(app, worker);
}

#[test]
fn in_a_turn_that_parks_calls_of_a_paused_type() {
    let (app, worker) = application("type", ClusterOptions::default());
    app.session("boss").run("SELECT xdb.pause_process_type('steps')");
    app.cluster().arm("turn-park-paused");
    let ids = ids(40);
    ids.iter().for_each(|id| start(&app, id, "steps"));
    app.cluster().wait_for_crash("turn-park-paused");
    wait_for_parked(&app, 40);
    assert_eq!(worker.count(|_| true), 0);
    app.session("boss").run("SELECT xdb.resume_process_type('steps')");
    complete(&app, &ids, 2);
    done(app, worker);
}

#[test]
fn in_a_turn_of_a_runner_that_parks_calls_of_functions() {
    let (app, worker) = application("function", ClusterOptions::default());
    app.db().run(
        "CREATE TABLE ledger (process text);
         CREATE FUNCTION answer(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.ledger VALUES (request->'context'->>'processId');
             RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"GRACEFUL_COMPLETE_PROCESS\"}}}';
         END $$;",
    );
    let definition = Definition::starting_with("Do").step_with("Do", json!({"executeFunction": "public.answer"}));
    let mut boss = app.superuser();
    boss.run(&format!("SELECT xdb.register_process_type('answered', NULL, '{}')", definition.json()));
    boss.run("SELECT xdb.pause_process_type('answered')");
    app.cluster().arm("turn-park-paused");
    let _ = app.db().start("p", "answered").try_go();
    app.cluster().wait_for_crash("turn-park-paused");
    wait_for_parked(&app, 1);
    assert_eq!(app.db().count("ledger"), 0);
    app.superuser().run("SELECT xdb.resume_process_type('answered')");
    let mut db = app.db();
    db.completes("p");
    assert_eq!(db.count("ledger"), 1);
    done(app, worker);
}

#[test]
fn in_a_claim_of_a_session_that_parks_a_call() {
    let (app, worker) = application("claim", ClusterOptions::default());
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "pulled", &one_step());
    let mut db = app.db();
    db.run("BEGIN; SELECT xdb.start_process('p', 'pulled'); SELECT xdb.pause_process('p'); COMMIT");
    let claim = "SELECT count(*) FROM xdb.claim_calls('pull')";
    app.crash_at("claim-park-paused", || db.try_run(claim));
    assert_eq!(parked(&app), Some(0), "it was not committed");
    let mut db = app.db();
    assert_eq!(db.one::<i64>(claim), 0);
    assert_eq!(parked(&app), Some(1));
    db.run("SELECT xdb.resume_process('p')");
    assert_eq!(db.one::<i64>(claim), 1);
    db.run("SELECT xdb.stop_process('p')");
    done(app, worker);
}

#[test]
fn in_the_walk_that_resumes_calls() {
    let (app, worker) = application("walk", ClusterOptions::default());
    app.session("boss").run("SELECT xdb.pause_process_type('steps')");
    let ids = ids(40);
    ids.iter().for_each(|id| start(&app, id, "steps"));
    wait_for_parked(&app, 40);
    app.cluster().arm("turn-walk-parked");
    // The engine may be there before this comes back.
    let _ = app.session("boss").try_run("SELECT xdb.resume_process_type('steps')");
    app.cluster().wait_for_crash("turn-walk-parked");
    complete(&app, &ids, 2);
    assert_eq!(parked(&app), Some(0));
    done(app, worker);
}

#[test]
fn while_a_pause_ends_by_itself() {
    let (app, worker) = application("until", ClusterOptions::default().own_clock());
    let mut db = app.db();
    app.session("boss").run("SELECT xdb.pause_process_type('steps', until => now() + interval '2 hours')");
    ids(2).iter().for_each(|id| start(&app, id, "steps"));
    db.run("SELECT xdb.pause_process('p0', until => now() + interval '1 hour')");
    wait_for_parked(&app, 2);
    // That of a process is a timer of it.
    app.cluster().arm("turn-save");
    app.cluster().set_clock(3700.0);
    app.cluster().wait_for_crash("turn-save");
    wait_until("its pause is over", 30, || events(&app, "p0", "ProcessResumed") == 1);
    assert_eq!((worker.count(|_| true), app.db().count("xdb.timers")), (0, 0));
    wait_for_parked(&app, 2);
    // That of a type counts as a registration.
    app.cluster().arm("register");
    app.cluster().set_clock(7300.0);
    app.cluster().wait_for_crash("register");
    complete(&app, &ids(2), 2);
    assert_eq!(app.superuser().count("xdb.process_type WHERE pause_mode IS NOT NULL"), 0);
    done(app, worker);
}

#[test]
fn in_a_pause_and_in_its_end() {
    let (app, worker) = application("session", ClusterOptions::default());
    app.pause();
    start(&app, "p0", "steps");
    let paused = |app: &App| app.db().one::<bool>("SELECT paused FROM xdb.processes WHERE process_id = 'p0'");
    let (pause, resume) = ("SELECT xdb.pause_process('p0')", "SELECT xdb.resume_process('p0')");
    app.crash_at("caller-save", || app.db().try_run(pause));
    assert!(!paused(&app));
    app.crash_at("caller-committed", || app.db().try_run(pause));
    assert!(paused(&app), "it was committed, although no session was notified");
    app.superuser().run("SELECT xdb.resume_engine()");
    wait_for_parked(&app, 1);
    app.crash_at("caller-save", || app.db().try_run(resume));
    assert!(paused(&app));
    // The server may lose the commit that parked the call, because commits that write only leases and lanes are not
    // flushed. Then the call is parked again.
    wait_for_parked(&app, 1);

    let (pause_type, resume_type) =
        ("SELECT xdb.pause_process_type('steps')", "SELECT xdb.resume_process_type('steps')");
    let type_paused = |app: &App| app.superuser().count("xdb.process_type WHERE pause_mode IS NOT NULL") == 1;
    app.crash_at("register", || app.session("boss").try_run(pause_type));
    assert!(!type_paused(&app));
    app.session("boss").run(pause_type);
    app.db().run(resume);
    wait_for_parked(&app, 1);
    app.crash_at("register", || app.session("boss").try_run(resume_type));
    assert!(type_paused(&app));
    assert_eq!(worker.count(|_| true), 0);
    app.session("boss").run(resume_type);
    complete(&app, &ids(1), 2);
    done(app, worker);
}

#[test]
fn while_an_incident_is_raised_and_while_it_is_resolved() {
    let (app, worker) = application("incident", ClusterOptions::default());
    worker.misbehave(|_| error(422, "NoAddress", "where to?"));
    let raised = |app: &App| app.db().count("xdb.incidents WHERE process_id = 'p0' AND detail = 'where to?'");
    app.cluster().arm("answer-commit");
    start(&app, "p0", "stays");
    app.cluster().wait_for_crash("answer-commit");
    wait_until("it stands", 30, || raised(&app) == 1);
    assert_eq!(events(&app, "p0", "IncidentRaised"), 1);
    assert_eq!(app.superuser().count("xdb.task"), 0, "nothing makes its call");
    worker.heal();
    let retry = "SELECT xdb.retry_now('p0')";
    app.crash_at("caller-save", || app.db().try_run(retry));
    assert_eq!((raised(&app), app.superuser().count("xdb.task")), (1, 0));
    app.crash_at("caller-committed", || app.db().try_run(retry));
    // It is resolved: there is nothing to be retried, or it has completed already.
    app.db().try_run(retry).unwrap_or_else(|error| assert_eq!(error.code, "XD007"));
    complete(&app, &ids(1), 1);
    assert_eq!(events(&app, "p0", "RetryRequested"), 1);
    done(app, worker);
}

#[test]
fn in_a_merge() {
    let (app, worker) = application("merge", ClusterOptions::default());
    app.register("job", &one_step());
    app.db().run(
        "CREATE FUNCTION app_add(pending jsonb, new jsonb) RETURNS jsonb LANGUAGE sql
            RETURN to_jsonb(pending::numeric + new::numeric)",
    );
    app.pause();
    let start = |n: i32| {
        let options = json!({"correlationKey": "k", "merge": {"input": "public.app_add", "startAt": "REPLACE"}});
        format!("SELECT xdb.start_process(NULL, 'job', input => '{n}', options => '{options}')::text")
    };
    let first = app.db().one::<String>(&start(1));
    for point in ["merge", "caller-save"] {
        app.crash_at(point, || app.db().try_run(&start(10)));
        assert_eq!(events(&app, &first, "StartMerged"), 0, "{point}");
    }
    assert_eq!(app.db().one::<String>(&start(100)), first);
    app.crash_at("caller-committed", || app.db().try_run(&start(1000)));
    assert_eq!(app.db().one::<String>(&start(10_000)), first);
    app.superuser().run("SELECT xdb.resume_engine()");
    app.db().completes(&first);
    let called: Vec<_> =
        worker.calls().iter().map(|call| (call.process_id().to_owned(), call.input().clone())).collect();
    assert_eq!(called, [(first, json!(11_101))]);
    assert_eq!(app.db().count("xdb.processes"), 1);
    done(app, worker);
}

/// Starts `p0` to `p<count - 1>` under one lock, and repeats a start after crashes.
fn start_locked(app: &App, count: usize) {
    for id in ids(count) {
        let request = json!({"requestId": id, "locks": ["name"]});
        let begin = |db: &mut Db| {
            db.start(&id, "steps").key(&id).globals(json!({"n": 0})).options(request.clone()).try_go().is_ok()
        };
        while !begin(&mut app.db()) {}
    }
}

/// The calls of each process lie between those of the others.
fn were_alone(worker: &Worker, count: usize) {
    let mut order: Vec<_> = worker.calls().iter().map(|call| call.process_id().to_owned()).collect();
    order.dedup();
    assert_eq!(order, ids(count));
}

#[test]
fn in_a_start_with_locks() {
    let (app, worker) = application("start_locks", ClusterOptions::default());
    let locked = || {
        let options = json!({"locks": ["name"]});
        app.db().start("p0", "steps").key("p0").globals(json!({"n": 0})).options(options).try_go().map(drop)
    };
    app.crash_at("start-locks", locked);
    assert_eq!((app.db().count("xdb.locks"), app.db().count("xdb.processes")), (0, 0));
    start_locked(&app, 3);
    complete(&app, &ids(3), 2);
    were_alone(&worker, 3);
    assert_eq!(app.db().count("xdb.locks"), 0);
    done(app, worker);
}

#[test]
fn in_a_turn_that_grants_locks() {
    let (app, worker) = application("grant", ClusterOptions::default());
    app.cluster().arm("turn-grant");
    start_locked(&app, 3);
    app.cluster().wait_for_crash("turn-grant");
    complete(&app, &ids(3), 2);
    were_alone(&worker, 3);
    assert_eq!(app.db().count("xdb.locks"), 0);
    done(app, worker);
}

#[test]
fn in_a_turn_that_deletes_released_locks() {
    let (app, worker) = application("release", ClusterOptions::default());
    app.cluster().arm("turn-release");
    start_locked(&app, 3);
    app.cluster().wait_for_crash("turn-release");
    complete(&app, &ids(3), 2);
    wait_until("all are released", 30, || app.superuser().count("xdb.process_lock") == 0);
    // The call whose answer released the lock may have been made again: p0 is not alone twice.
    were_alone(&worker, 3);
    done(app, worker);
}

/// The lock of `p0` goes to `p1` only when the end of `p0` has committed.
#[test]
fn in_a_stop_that_releases_locks() {
    let (app, worker) = application("stop_releases", ClusterOptions::default());
    worker.misbehave(|_: &Call| Reply::hang(force_complete(json!("late"))));
    start_locked(&app, 3);
    worker.wait_for("p0 is called", 20, |call| call.process_id() == "p0");
    let stop = || app.db().try_run("SELECT xdb.stop_process('p0')");
    app.crash_at("caller-save", stop);
    assert_eq!(app.db().all::<String>("SELECT process_id FROM xdb.locks WHERE granted"), ["p0"]);
    app.crash_at("caller-committed", stop);
    worker.heal();
    complete(&app, &ids(3)[1..], 2);
    were_alone(&worker, 3);
    wait_until("all are released", 30, || app.superuser().count("xdb.process_lock") == 0);
    done(app, worker);
}

/// An answer that completes a process releases its locks.
fn an_answer_that_releases_locks_crashes_at(point: &str) {
    let (app, worker) = application(&format!("releases_{}", point.replace('-', "_")), ClusterOptions::default());
    worker.misbehave(|call: &Call| match call.target() {
        "One" => next("Two", json!(null)).globals(json!({"n": 1})).into(),
        _ => Reply::hang(force_complete(json!(null)).globals(json!({"n": 2}))),
    });
    start_locked(&app, 3);
    worker.wait_for("p0 is at its last call", 20, |call| call.executes("Two"));
    app.cluster().arm(point);
    worker.heal();
    app.cluster().wait_for_crash(point);
    complete(&app, &ids(3), 2);
    were_alone(&worker, 3);
    wait_until("all are released", 30, || app.superuser().count("xdb.process_lock") == 0);
    done(app, worker);
}

#[test]
fn in_the_middle_of_saving_an_answer_that_releases_locks() {
    an_answer_that_releases_locks_crashes_at("turn-save");
}

#[test]
fn between_an_answer_that_releases_locks_and_its_commit() {
    an_answer_that_releases_locks_crashes_at("answer-commit");
}

/// The locks of a pull worker's process, and of one whose function completes it.
#[test]
fn in_the_answers_of_pull_workers_and_functions_that_release_locks() {
    let (app, worker) = application("handlers_release", ClusterOptions::default());
    app.superuser().run(
        "SELECT xdb.register_worker('pull', NULL, role => 'app');
         CREATE FUNCTION public.ends(request jsonb) RETURNS jsonb LANGUAGE sql AS
             $$ SELECT '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}'::jsonb $$",
    );
    app.register_with("pull", "pulled", &one_step());
    let function = Definition::starting_with("Do").step_with("Do", json!({"executeFunction": "public.ends"}));
    app.superuser().run(&format!("SELECT xdb.register_process_type('function', NULL, '{}')", function.json()));
    let locks = json!({"locks": ["name"]});
    app.db().start("pull", "pulled").options(locks.clone()).go();
    let token: String = app.db().one("SELECT token FROM xdb.claim_calls('pull', wait => '20 s', lease => '1 hour')");
    app.db().start("function", "function").options(locks).go();
    let answer = format!("SELECT xdb.complete_call('{token}', '{}')", force_complete(json!("done")).json());
    let holders = |app: &App| app.db().all::<String>("SELECT process_id FROM xdb.locks WHERE granted");
    for point in ["caller-save", "pull-answer"] {
        app.crash_at(point, || app.db().try_run(&answer));
        assert_eq!(holders(&app), ["pull"], "{point}");
    }
    // The function gets the lock, and the server crashes before it has committed its end.
    app.cluster().arm("function-called");
    while app.db().try_run(&answer).is_err_and(|error| error.is_lost()) {}
    app.cluster().wait_for_crash("function-called");
    app.db().completes("function");
    assert_eq!(app.db().status("pull"), "COMPLETED");
    wait_until("all are released", 30, || app.superuser().count("xdb.process_lock") == 0);
    done(app, worker);
}
