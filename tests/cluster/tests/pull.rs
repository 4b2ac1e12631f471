//! Pull workers. Their writes are committed exactly once, whatever crashes. A waiting session is woken by the commit
//! that makes a call due.

use std::sync::atomic::{AtomicBool, Ordering};
use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::prelude::*;

const STEPS: i64 = 5;

/// A process type of a pull worker. Members of `app` claim its calls, and have tables of their own.
fn application(name: &str, options: ClusterOptions) -> App {
    let app = App::alone(name, options);
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with(
        "pull",
        "counter",
        &Definition::starting_with("Count").step("Count").maps("public.counters", "id", &["n"]),
    );
    app.db().run("CREATE TABLE ledger (process_id text, n bigint)");
    app
}

/// Claims one call, does its work, and completes it in the same transaction as the work. Returns whether there was a
/// call. `crashes` says whether the worker crashes between work and answer.
fn work_once(db: &mut Db, crashes: impl FnOnce() -> bool) -> Result<bool, SqlError> {
    let claim = "SELECT jsonb_build_object('token', token, 'request', request)::text
        FROM xdb.claim_calls('pull', wait => '500 ms', lease => '2 s')";
    let Some(claimed) = db.try_maybe::<String>(claim)? else { return Ok(false) };
    let claimed: Value = serde_json::from_str(&claimed).expect("it is JSON");
    if crashes() {
        return Ok(false);
    }
    let (token, request) = (claimed["token"].as_str().expect("a text"), &claimed["request"]);
    let process = request["context"]["processId"].as_str().expect("a text").to_owned();
    let n = request["loadedGlobalAttributes"]["n"].as_i64().expect("a number") + 1;
    let decision = if n < STEPS { next("Count", json!(null)) } else { force_complete(json!(n)) };
    let answer = decision.globals(json!({"n": n})).json();
    db.try_run(&format!(
        "BEGIN; INSERT INTO ledger VALUES ('{process}', {n}); SELECT xdb.complete_call('{token}', {}); COMMIT",
        jsonb(&answer)
    ))?;
    Ok(true)
}

/// Works until `stop` is set, and continues whatever happens to its session.
fn works(app: &App, stop: &AtomicBool, mut crashes: impl FnMut() -> bool) {
    let connect =
        || app.cluster().try_connect(app.database(), "app", Duration::from_secs(30)).expect("the server is there");
    let mut db = connect();
    while !stop.load(Ordering::SeqCst) {
        let mut crashed = false;
        match work_once(&mut db, || {
            crashed = crashes();
            crashed
        }) {
            Ok(_) if !crashed => {}
            // After the lease has ended, another worker claims the call.
            Ok(_) => db = connect(),
            Err(error) => {
                let expected = ["XD025", "40001", "40P01", "57P01", "57P02", "57P03", "08006", "08P01"];
                assert!(error.code.is_empty() || expected.contains(&&*error.code), "{error:?}");
                if db.try_run("ROLLBACK").is_err() {
                    db = connect();
                }
            }
        }
    }
}

#[test]
fn pull_workers_over_a_plain_connection_are_exactly_once_despite_crashes() {
    let app = application("pull_ledger", ClusterOptions::default());
    let mut db = app.db();
    let count = 30;
    for n in 0..count {
        db.start(&format!("c{n}"), "counter").key(&format!("c{n}")).globals(json!({"n": 0})).go();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (app, stop) = (&app, &stop);
        let mut turns = 0;
        let dying = move || {
            turns += 1;
            turns % 3 == 0
        };
        scope.spawn(move || works(app, stop, dying));
        scope.spawn(move || works(app, stop, || false));
        scope.spawn(move || works(app, stop, || false));
        let steps = |least: i64| {
            let connected = app.cluster().try_connect(app.database(), "app", Duration::from_secs(30));
            connected.is_ok_and(|mut db| db.count("ledger") >= least)
        };
        wait_until("some steps are made", 60, || steps(20));
        app.kill_scheduler();
        wait_until("more steps are made", 60, || steps(50));
        app.cluster().crash();
        app.cluster().launch();
        wait_until("all steps are made", 90, || steps(count * STEPS));
        stop.store(true, Ordering::SeqCst);
    });
    let mut db = app.db();
    for n in 0..count {
        assert_eq!(db.completes(&format!("c{n}")).result(), STEPS);
    }
    assert_eq!(db.count("ledger"), count * STEPS, "work of a step counted twice");
    assert_eq!(db.count("(SELECT DISTINCT process_id, n FROM ledger) AS steps"), count * STEPS);
    assert_eq!(db.count(&format!("counters WHERE n = {STEPS}")), count);
    app.done(AFTER_A_CRASH);
}

/// Whether a session that runs this waits for a standby that does not exist. Every commit that is flushed waits for it.
fn waits_for_standby(app: &App, sql: &str) -> bool {
    let mut db = app.db();
    let pid: i32 = db.one("SELECT pg_backend_pid()");
    std::thread::scope(|scope| {
        let session = scope.spawn(move || db.run(sql));
        let mut superuser = app.superuser();
        let waiting = format!("pg_stat_activity WHERE pid = {pid} AND wait_event = 'SyncRep'");
        let mut waits = false;
        wait_until("it is done, or waits", 20, || {
            waits = waits || superuser.count(&waiting) == 1;
            waits || session.is_finished()
        });
        if waits {
            superuser.run(&format!("SELECT pg_cancel_backend({pid})"));
        }
        waits
    })
}

#[test]
fn a_commit_of_claims_alone_waits_for_nothing() {
    let app = application("pull_flush", ClusterOptions::default().set("autovacuum", "off"));
    let mut superuser = app.superuser();
    superuser.run(
        "CREATE TABLE policy_reads (at timestamptz); GRANT ALL ON policy_reads TO app;
         CREATE TABLE watched (id text PRIMARY KEY, n bigint); GRANT ALL ON watched TO app;
         CREATE FUNCTION look() RETURNS bool LANGUAGE plpgsql AS
             'BEGIN INSERT INTO policy_reads VALUES (now()); RETURN true; END';
         CREATE POLICY watch ON watched USING (look());
         ALTER TABLE watched ENABLE ROW LEVEL SECURITY",
    );
    superuser.run("SELECT xdb.register_worker('watcher', NULL, role => 'app')");
    let watched = Definition::starting_with("Count").step("Count").maps("public.watched", "id", &["n"]);
    app.register_with("watcher", "watched", &watched);
    let mut db = app.db();
    for n in 0..12 {
        db.start(&format!("c{n}"), "counter").key(&format!("c{n}")).globals(json!({"n": 0})).go();
    }
    db.start("watched", "watched").key("w").globals(json!({"n": 0})).go();
    // Before this, a session that reads the changed catalog might also write there.
    superuser.run("VACUUM");
    app.cluster().set("synchronous_standby_names", "no_standby");
    let insert = "INSERT INTO ledger VALUES ('x', 1)";
    wait_until("commits wait for a standby", 20, || waits_for_standby(&app, insert));

    let claim = "SELECT * FROM xdb.claim_calls('pull')";
    let answer = jsonb(&force_complete(json!(1)).json());
    let complete = format!("SELECT xdb.complete_call(token, {answer}) FROM xdb.claim_calls('pull')");
    for (sql, waits) in [
        (claim.to_owned(), false),
        (format!("BEGIN; {claim}; {claim}; COMMIT"), false),
        (format!("BEGIN; SAVEPOINT s; {claim}; ROLLBACK TO s; {claim}; COMMIT"), true),
        (format!("BEGIN; {insert}; {claim}; COMMIT"), true),
        (format!("BEGIN; {claim}; {insert}; COMMIT"), true),
        (format!("BEGIN; {claim}; {insert}; {claim}; COMMIT"), true),
        (format!("BEGIN; {insert}; ROLLBACK; {claim}"), false),
        ("INSERT INTO ledger SELECT token, 1 FROM xdb.claim_calls('pull')".to_owned(), true),
        (complete, true),
        ("SELECT * FROM xdb.claim_calls('watcher')".to_owned(), true),
        (claim.to_owned(), false),
    ] {
        assert_eq!(waits_for_standby(&app, &sql), waits, "{sql}");
    }
    assert_eq!(db.count("policy_reads"), 1, "the policy has written");
    app.cluster().set("synchronous_standby_names", "");
    app.done(&[]);
}

/// The call of a worker that crashes costs an attempt when its lease ends. No worker has to run for that.
#[test]
fn a_lease_that_ends_is_a_failed_attempt() {
    let app = application("pull_lease", ClusterOptions::default());
    let mut db = app.db();
    let policy = json!({"executeApiRetryPolicy": {"maximumAttempts": 2, "initialIntervalSeconds": 0.1}});
    app.register_with("pull", "twice", &Definition::starting_with("Only").step_with("Only", policy));
    db.start("p", "twice").go();
    let claim = "SELECT count(*) FROM xdb.claim_calls('pull', wait => '200 ms', lease => '100 ms')";
    wait_until("the attempts are spent", 60, || {
        db.run(claim);
        db.status("p") == "FAILED"
    });
    let failed = db.rows("SELECT attempt, error_type, detail FROM xdb.failures WHERE process_id = 'p'");
    assert_eq!(failed[0]["attempt"], 2, "{failed:?}");
    assert_eq!(failed[0]["error_type"], "Timeout", "{failed:?}");
    app.done(&[]);
}

/// Holding the calls of a paused type skips calls with an expired lease that is not recorded yet.
#[test]
fn an_expired_lease_is_a_failed_attempt_despite_pauses() {
    let app = application("pull_lease_paused", ClusterOptions::default());
    let policy = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 3600}});
    app.register_with("pull", "patient", &Definition::starting_with("Only").step_with("Only", policy));
    let (mut db, mut superuser) = (app.db(), app.superuser());
    db.start("p", "patient").go();
    assert_eq!(db.count("xdb.claim_calls('pull', lease => '1 microsecond')"), 1);
    // No session can record the expired lease now.
    let mut other = app.db();
    other.run("BEGIN; SELECT xdb.set_local_attributes('p', '{\"n\": 1}')");
    db.start("q", "patient").go();
    superuser.run("SELECT xdb.pause_process_type('patient')");
    let all = "SELECT request->'context'->>'processId' FROM xdb.claim_calls('pull', 10, wait => '20 s')";
    assert_eq!(db.all::<String>(all), Vec::<String>::new());
    let parked = "SELECT process_id FROM xdb.task JOIN xdb.process_execution USING (execution_id) WHERE lane = 2";
    assert_eq!(superuser.all::<String>(parked), ["q"]);
    other.run("ROLLBACK");
    superuser.run("SELECT xdb.resume_process_type('patient')");
    // It counts, and its backoff holds.
    let mut claimed = Vec::new();
    let now = "SELECT request->'context'->>'processId' FROM xdb.claim_calls('pull', 10)";
    wait_until("the parked one is claimed, and the attempt is noted", 20, || {
        claimed.extend(db.all::<String>(now));
        !claimed.is_empty() && db.count("xdb.failures WHERE process_id = 'p'") > 0
    });
    assert_eq!(claimed, ["q"]);
    let failed = db.rows("SELECT attempt, error_type FROM xdb.failures WHERE process_id = 'p'");
    assert_eq!(failed, [json!({"attempt": 1, "error_type": "Timeout"})]);
    app.done(&[]);
}

/// The call that a waiting session gets soon after `done`.
fn gets_soon(app: &App, what: &str, done: &mut dyn FnMut(&mut Db)) -> Value {
    std::thread::scope(|scope| {
        let claim = "SELECT token, api, request FROM xdb.claim_calls('pull', wait => '80 s')";
        let waits = scope.spawn(move || {
            let mut db = app.db();
            // It waits for a moment only while it meets calls that can't be given.
            loop {
                if let Some(claimed) = db.rows(claim).pop() {
                    return (claimed, Instant::now());
                }
            }
        });
        let mut look = app.superuser();
        wait_until("it waits", 20, || {
            look.count("pg_stat_activity WHERE query LIKE '%claim_calls(%wait%' AND wait_event = 'Extension' AND pid <> pg_backend_pid()") == 1
        });
        let mut session = app.db();
        let began = Instant::now();
        done(&mut session);
        let (claimed, woken) = waits.join().expect("no panic");
        let took = woken.saturating_duration_since(began);
        assert!(took < Duration::from_secs(15), "{what}: woken after {took:?}");
        claimed
    })
}

#[test]
#[ignore = "needs the build for tests"]
fn a_waiting_pull_worker_is_woken_by_the_commit_that_makes_a_call_due() {
    let app = application("pull_woken", ClusterOptions::default().set("xdb.test_poll_interval", "1h"));
    let mut definition = Definition::starting_with("Wait").waiting_step("Wait");
    definition = definition.step_with("Again", json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 1}}));
    app.register_with("pull", "waiter", &definition);
    let mut db = app.db();
    let claims = |what: &str, done: &mut dyn FnMut(&mut Db)| gets_soon(&app, what, done);
    let complete = |claimed: &Value, answer: Answer| {
        format!("SELECT xdb.complete_call('{}', {})", claimed["token"].as_str().expect("a text"), jsonb(&answer.json()))
    };
    let started = claims("a start", &mut |db| drop(db.start("p", "waiter").go()));
    assert_eq!(started["api"], "WAIT_UNTIL_API");
    // The engine makes the call due: by a timer, then by a message of a global queue.
    let fired = claims("a timer", &mut |db| db.run(&complete(&started, any_of(&[timer("t", 1.0)]))));
    assert_eq!(fired["request"]["commandResults"]["timerResults"][0]["status"], "COMPLETED_COMMAND", "{fired}");
    // The next step, in the same process.
    let next_step = claims("a step", &mut |db| db.run(&complete(&fired, next("Again", json!(null)))));
    // Backoff: no session commits anything when it ends.
    let token = next_step["token"].as_str().expect("a text").to_owned();
    let again = claims("a backoff that is over", &mut |db| {
        db.run(&format!("SELECT xdb.fail_call('{token}', '{{\"detail\": \"once more\"}}')"))
    });
    assert_eq!(again["request"]["context"]["attempt"], 2);
    let token = again["token"].as_str().expect("a text").to_owned();
    let given_back = claims("a call that is given back", &mut |db| db.run(&format!("SELECT xdb.fail_call('{token}')")));
    assert_eq!(given_back["request"]["context"]["attempt"], 2);
    let token = given_back["token"].as_str().expect("a text").to_owned();
    db.run(&format!("SELECT xdb.fail_call('{token}', '{{\"retryAfterSeconds\": 86400}}')"));
    let retried = claims("retry_now", &mut |db| db.run("SELECT xdb.retry_now('p')"));
    db.run(&complete(&retried, force_complete(json!(1))));
    app.pause();
    db.start("q", "waiter").go();
    let resumed = claims("the end of a pause", &mut |_| app.superuser().run("SELECT xdb.resume_engine()"));
    db.run(&complete(&resumed, no_command()));
    assert_eq!(db.text("SELECT api FROM xdb.claim_calls('pull')"), "EXECUTE_API");
    app.done(&[]);
}

/// No session polls. The engine resumes a parked call.
#[test]
#[ignore = "needs the build for tests"]
fn a_waiting_pull_worker_is_woken_by_the_end_of_a_pause() {
    let app = application("pull_resumed", ClusterOptions::default().set("xdb.test_poll_interval", "1h"));
    app.register_with("pull", "plain", &Definition::starting_with("Only").step("Only"));
    let (mut db, mut superuser) = (app.db(), app.superuser());
    let parked = |superuser: &mut Db, db: &mut Db| {
        assert_eq!(db.count("xdb.claim_calls('pull')"), 0, "it is paused");
        assert_eq!(superuser.count("xdb.task WHERE lane = 2"), 1);
    };
    let complete = |claimed: &Value, id: &str| {
        assert_eq!(claimed["request"]["context"]["processId"], id, "{claimed}");
        let token = claimed["token"].as_str().expect("a text");
        app.db().run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&force_complete(json!(id)).json())));
    };
    superuser.run("SELECT xdb.pause_process_type('plain')");
    db.start("type", "plain").go();
    parked(&mut superuser, &mut db);
    let call = gets_soon(&app, "a resumed type", &mut |_| {
        app.superuser().run("SELECT xdb.resume_process_type('plain')");
    });
    complete(&call, "type");
    db.run("BEGIN");
    db.start("process", "plain").go();
    db.run("SELECT xdb.pause_process('process'); COMMIT");
    parked(&mut superuser, &mut db);
    complete(
        &gets_soon(&app, "a resumed process", &mut |db| db.run("SELECT xdb.resume_process('process')")),
        "process",
    );
    // By itself.
    superuser.run("SELECT xdb.pause_process_type('plain', until => now() + interval '8 seconds')");
    db.start("until", "plain").go();
    parked(&mut superuser, &mut db);
    complete(&gets_soon(&app, "the end of a pause", &mut |_| {}), "until");
    // While a transaction that ends the pause is open, no process parks calls.
    superuser.run("SELECT xdb.pause_process_type('plain')");
    db.start("between", "plain").go();
    superuser.run("BEGIN; SELECT xdb.resume_process_type('plain')");
    let call = gets_soon(&app, "a pause whose end is not committed", &mut |_| superuser.run("COMMIT"));
    complete(&call, "between");
    app.done(&[]);
}

/// If a claimed call begins a wait, the engine completes it: timers, local queues, global queues.
#[test]
fn the_engine_completes_the_waits_of_a_claimed_call() {
    let app = application("pull_waits", ClusterOptions::default());
    let definition = Definition::starting_with("Wait").waiting_step("Wait").with("globalQueues", json!(["prices"]));
    app.register_with("pull", "waiter", &definition);
    let mut db = app.db();
    for (id, wait) in [
        ("timer", all_of(&[timer("t", 0.2)])),
        ("local", all_of(&[local_queue("m", "box", 1)])),
        ("global", all_of(&[global_queue("g", "prices", 1)])),
    ] {
        db.start(id, "waiter").go();
        if id == "local" {
            db.publish(id, "box", json!("before"));
        }
        let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', wait => '20 s')");
        db.run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&wait.json())));
        if id == "global" {
            db.run("SELECT xdb.publish_global('prices', '7')");
        }
        let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', wait => '20 s')");
        db.run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&force_complete(json!(id)).json())));
        assert_eq!(db.completes(id).result(), id);
    }
    app.done(&[]);
}

/// Messages of a local queue that were received before, and messages that the answer itself receives, are one queue.
#[test]
fn messages_received_before_come_before_those_that_an_answer_receives() {
    let app = application("pull_queue", ClusterOptions::default());
    let waiting = Definition::starting_with("Take").waiting_step("Take").with("localQueues", json!(["letters"]));
    app.register_with("pull", "letters", &waiting);
    let mut db = app.db();
    let claim = "SELECT token FROM xdb.claim_calls('pull', wait => '10 s')";
    db.start("p", "letters").go();
    let token: String = db.one(claim);
    db.publish("p", "letters", json!("old"));
    let mut superuser = app.superuser();
    wait_until("it was taken in", 15, || superuser.count("xdb.inbox") == 0);
    // From here on only answers receive messages.
    app.pause();
    db.publish("p", "letters", json!("new"));
    let wait =
        json!({"commandRequest": {"waitingType": "AnyOfCompletion", "localQueueCommands": [{"queueName": "letters"}]}});
    db.run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&wait)));
    assert_eq!(superuser.count("xdb.inbox"), 0);
    superuser.run("SELECT xdb.resume_engine()");
    let claimed =
        "SELECT jsonb_build_object('token', token, 'request', request) FROM xdb.claim_calls('pull', wait => '10 s')";
    let call = db.json(claimed);
    assert_eq!(call["request"]["commandResults"]["localQueueResults"][0]["messages"][0]["payload"], "old", "{call}");
    // A queue with a message that no step waits for is not empty, whatever the answer has received.
    app.pause();
    db.publish("p", "letters", json!("newer"));
    let close = json!({"stateDecision": {"conditionalClose": {"closeType": "FORCE_COMPLETE_PROCESS", "whenLocalQueuesEmpty": ["letters"]},
        "nextStates": [{"stateId": "Take"}]}});
    let token = call["token"].as_str().expect("a text");
    db.run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&close)));
    assert_eq!(db.status("p"), "RUNNING");
    superuser.run("SELECT xdb.resume_engine()");
    db.run("SELECT xdb.stop_process('p')");
    views::assert_history_is_whole(&mut db, "p");
    app.done(&[]);
}

#[test]
fn calls_with_a_high_priority_are_claimed_first() {
    let app = application("pull_priority", ClusterOptions::default());
    let mut db = app.db();
    for (id, priority) in [("low", -10), ("plain", 0), ("high", 10), ("middle", 1)] {
        let options = json!({"priority": priority});
        db.run(&format!(
            "SELECT xdb.start_process('{id}', 'counter', global_attribute_pk => '{id}', options => {})",
            jsonb(&options)
        ));
    }
    let first = "SELECT request->'context'->>'processId' FROM xdb.claim_calls('pull', max_calls => 3)";
    assert_eq!(db.all::<String>(first), ["high", "middle", "plain"]);
    assert_eq!(db.all::<String>(first), ["low"]);
    db.run("SELECT xdb.stop_process(process_id) FROM xdb.processes");
    app.done(&[]);
}

#[test]
fn each_pull_worker_claims_its_own_calls_of_all_owners() {
    let app = application("pull_owners", ClusterOptions::default());
    app.superuser().run("SELECT xdb.register_worker('others', NULL, role => 'other')");
    app.register_with("pull", "plain", &Definition::starting_with("Only").step("Only"));
    app.register_with("others", "theirs", &Definition::starting_with("Only").step("Only"));
    let (mut db, mut other) = (app.db(), app.session("other"));
    let count = 10;
    for n in 0..count {
        db.start(&format!("pull-app-{n}"), "plain").go();
        other.start(&format!("pull-other-{n}"), "plain").go();
        db.start(&format!("others-app-{n}"), "theirs").go();
        other.start(&format!("others-other-{n}"), "theirs").go();
    }
    db.refused("42501", "SELECT * FROM xdb.claim_calls('others')");
    let token: String = db.one("SELECT token FROM xdb.claim_calls('pull')");
    other.refused("XD025", &format!("SELECT xdb.fail_call('{token}')"));
    db.run(&format!("SELECT xdb.fail_call('{token}')"));
    let in_order = "SELECT request->'context'->>'processId' FROM xdb.claim_calls('pull', 1000)";
    db.run("BEGIN");
    let order: Vec<String> = db.all(in_order);
    db.run("ROLLBACK");
    // Owners take turns. Either of them may begin.
    let (first, second) = if order[0] == "pull-app-0" { ("app", "other") } else { ("other", "app") };
    let expected: Vec<_> =
        (0..count).flat_map(|n| [format!("pull-{first}-{n}"), format!("pull-{second}-{n}")]).collect();
    assert_eq!(order, expected);
    std::thread::scope(|scope| {
        for (role, worker) in [("app", "pull"), ("app", "pull"), ("other", "others"), ("other", "others")] {
            let app = &app;
            scope.spawn(move || {
                let mut db = app.session(role);
                let answer = jsonb(&force_complete(json!(worker)).json());
                let sql =
                    format!("SELECT count(xdb.complete_call(token, {answer})) FROM xdb.claim_calls('{worker}', 3)");
                while db.one::<i64>(&sql) > 0 {}
            });
        }
    });
    for (role, worker) in [("app", "pull"), ("other", "pull"), ("app", "others"), ("other", "others")] {
        let mut db = app.session(role);
        for n in 0..count {
            assert_eq!(db.completes(&format!("{worker}-{role}-{n}")).result(), worker);
        }
    }
    app.done(&[]);
}

/// Calls that were taken since the old snapshot stay in the index, and claims pass over them.
#[test]
fn calls_are_claimed_under_an_old_snapshot() {
    let app = application("pull_old_snapshot", ClusterOptions::default());
    app.register_with("pull", "plain", &Definition::starting_with("Only").step("Only"));
    let (mut db, mut old) = (app.db(), app.superuser());
    let count = 300;
    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM xdb.task");
    db.run(&format!("SELECT xdb.start_process('p' || n, 'plain') FROM generate_series(1, {count}) AS n"));
    let answer = jsonb(&force_complete(json!(1)).json());
    let claimed: Vec<i64> = std::thread::scope(|scope| {
        let (app, answer) = (&app, &answer);
        let work = move || {
            let (mut db, mut all) = (app.db(), 0);
            let sql = format!("SELECT count(xdb.complete_call(token, {answer})) FROM xdb.claim_calls('pull', 4)");
            loop {
                match db.one::<i64>(&sql) {
                    0 => return all,
                    some => all += some,
                }
            }
        };
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
    });
    // A session that finds no call has seen that all others are claimed.
    assert_eq!(claimed.iter().sum::<i64>(), count, "{claimed:?}");
    assert_eq!(db.count("xdb.processes WHERE status = 'COMPLETED'"), count);
    old.run("COMMIT");
    app.done(&[]);
}

/// The engine calls a worker that gets a URL, and stops when the URL is removed.
#[test]
fn a_worker_is_called_or_claims_according_to_its_registration() {
    let app = application("pull_and_call", ClusterOptions::default());
    app.register_with("pull", "plain", &Definition::starting_with("Only").step("Only"));
    let (mut db, mut superuser) = (app.db(), app.superuser());
    db.start("p", "plain").go();
    let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', lease => '1 hour')");
    let worker = app.worker_named("pull", |call: &Call| match call.process_id() {
        "q" => Reply::hang(force_complete(json!("called"))),
        _ => Reply::from(force_complete(json!("called"))),
    });
    assert_eq!(db.completes("p").result(), "called");
    db.refused("XD025", &format!("SELECT xdb.complete_call('{token}', '{{}}')"));
    db.refused("XD026", "SELECT * FROM xdb.claim_calls('pull')");
    db.start("q", "plain").go();
    worker.wait_for("its call", 10, |call| call.process_id() == "q");
    superuser.run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    let answer = jsonb(&force_complete(json!("pulled")).json());
    let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', wait => '20 s', lease => '1 hour')");
    worker.release();
    db.run(&format!("SELECT xdb.complete_call('{token}', {answer})"));
    assert_eq!(db.completes("q").result(), "pulled");
    // The type moves to a pull worker, and its calls move with it.
    let called = app.worker_named("called", |_: &Call| error(500, "Broken", "for now"));
    app.register_with("called", "moves", &Definition::starting_with("Only").step("Only"));
    db.start("m", "moves").go();
    called.wait_for("its call", 10, |call| call.process_id() == "m");
    app.register_with("pull", "moves", &Definition::starting_with("Only").step("Only"));
    let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', wait => '20 s')");
    db.run(&format!("SELECT xdb.complete_call('{token}', {answer})"));
    assert_eq!(db.completes("m").result(), "pulled");
    app.done(&[]);
}

#[test]
fn calls_of_a_removed_function_are_claimed_by_the_pull_worker_at_any_priority() {
    let app = application("pull_not_function", ClusterOptions::default());
    app.db().run("CREATE FUNCTION never(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE 'not yet'; END $$");
    let register = |options: Value| {
        app.register_with("pull", "leaves", &Definition::starting_with("Only").step_with("Only", options));
    };
    register(json!({"executeFunction": "public.never", "executeApiRetryPolicy": {"initialIntervalSeconds": 1}}));
    let mut db = app.db();
    for (id, options) in [("none", "{}"), ("low", r#"{"priority": -5}"#), ("high", r#"{"priority": 5}"#)] {
        db.run(&format!("SELECT xdb.start_process('{id}', 'leaves', options => '{options}')"));
        db.run(&format!("SELECT xdb.start_process('parked-{id}', 'leaves', options => '{options}')"));
    }
    wait_until("each was called", 20, || {
        db.count("xdb.history WHERE event_type IN ('AttemptFailed', 'AttemptsFolded')") >= 6
    });
    db.run(
        "SELECT xdb.pause_process('parked-none'), xdb.pause_process('parked-low'), xdb.pause_process('parked-high')",
    );
    register(json!({}));
    db.run(
        "SELECT xdb.resume_process('parked-none'), xdb.resume_process('parked-low'), xdb.resume_process('parked-high')",
    );
    let answer = jsonb(&force_complete(json!("pulled")).json());
    for _ in 0..6 {
        let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', wait => '20 s')");
        db.run(&format!("SELECT xdb.complete_call('{token}', {answer})"));
    }
    assert_eq!(views::with_status(&mut db, "%", "COMPLETED"), 6);
    app.done(&[]);
}

#[test]
fn a_new_url_keeps_earlier_answers_and_voids_claims_that_commit_later() {
    let app = application("pull_url_races", ClusterOptions::default());
    app.register_with("pull", "plain", &Definition::starting_with("Only").step("Only"));
    let mut db = app.db();
    db.start("answered", "plain").go();
    let mut answers = app.db();
    let token: String = answers.one("SELECT token FROM xdb.claim_calls('pull')");
    answers.run("BEGIN; INSERT INTO ledger VALUES ('answered', 1)");
    let complete = |token: &str| {
        format!("SELECT xdb.complete_call('{token}', {})", jsonb(&force_complete(json!("pulled")).json()))
    };
    answers.run(&complete(&token));
    db.start("claimed", "plain").go();
    let mut claims = app.db();
    claims.run("BEGIN");
    let token: String = claims.one("SELECT token FROM xdb.claim_calls('pull', lease => '1 hour')");
    let worker = app.worker_named("pull", |_: &Call| force_complete(json!("called")));
    // The engine takes the worker's calls from now on, and comes by.
    db.start("later", "plain").go();
    assert_eq!(db.completes("later").result(), "called");
    answers.run("COMMIT");
    claims.run("COMMIT");
    assert_eq!(db.completes("answered").result(), "pulled");
    assert_eq!(worker.count(|call| call.process_id() == "answered"), 0);
    assert_eq!(db.count("ledger"), 1);
    assert_eq!(db.completes("claimed").result(), "called");
    claims.refused("XD025", &complete(&token));
    app.done(&[]);
}

/// Two pull workers count without a pause. States over HTTP that lock the same row still get their turn.
#[test]
fn states_and_pull_workers_that_count_in_one_row_lose_no_update_and_do_not_starve() {
    const STATES: i64 = 10;
    // Steps of slow tables are repeated without the marks that this is about.
    let app = application("pull_crowd", ClusterOptions::default().set("xdb.apply_timeout", "1min"));
    let locking = Definition::starting_with("Count")
        .step_with("Count", json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}}))
        .maps("public.counters", "id", &["n"]);
    app.register_with("pull", "pulled", &locking);
    let _worker = app.worker(|call: &Call| {
        // Long enough for other calls to come between.
        std::thread::sleep(Duration::from_millis(30));
        let n = json!(call.global("n").as_i64().unwrap_or_default() + 1);
        force_complete(n.clone()).globals(json!({"n": n}))
    });
    app.register("called", &locking);
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0)");
    for n in 0..2 {
        db.start(&format!("pulled{n}"), "pulled").key("r").go();
    }
    let stop = AtomicBool::new(false);
    let counts = || {
        let mut db = app.db();
        while !stop.load(Ordering::SeqCst) {
            let claim = "SELECT jsonb_build_object('token', token, 'n', request->'loadedGlobalAttributes'->'n')::text
                FROM xdb.claim_calls('pull', wait => '200 ms')";
            let Some(claimed) = db.try_maybe::<String>(claim).expect("it may claim") else { continue };
            let claimed: Value = serde_json::from_str(&claimed).expect("it is JSON");
            let (token, n) = (claimed["token"].as_str().expect("a text"), claimed["n"].as_i64().expect("a number") + 1);
            let answer = jsonb(&next("Count", json!(null)).globals(json!({"n": n})).json());
            let completed = db.try_run(&format!(
                "BEGIN; SELECT xdb.complete_call('{token}', {answer}); INSERT INTO ledger VALUES ('r', {n}); COMMIT"
            ));
            if let Err(error) = completed {
                assert!(["40001", "40P01"].contains(&&*error.code), "{error:?}");
                db.run(&format!("ROLLBACK; SELECT xdb.fail_call('{token}')"));
            }
        }
    };
    std::thread::scope(|scope| {
        let stopping = Stopping(&stop);
        scope.spawn(counts);
        scope.spawn(counts);
        wait_until("they count", 30, || db.count("ledger") >= 20);
        for n in 0..STATES {
            db.start(&format!("called{n}"), "called").key("r").go();
        }
        wait_until("the states are through", 45, || views::with_status(&mut db, "called%", "COMPLETED") == STATES);
        let before = db.count("ledger");
        wait_until("the other processes continue", 30, || db.count("ledger") > before);
        drop(stopping);
    });
    let counted = db.count("ledger") + STATES;
    assert_eq!(i64::from(db.one::<i32>("SELECT n FROM counters WHERE id = 'r'")), counted);
    assert_eq!(db.count("xdb.history WHERE event_type = 'AttemptFailed'"), 0);
    db.run("SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE status = 'RUNNING'");
    app.done(&[]);
}

/// Stops the threads of a test, however the test ends.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The owner's code runs with the owner's rights, and leaves the session unchanged. The worker's own code never runs
/// with them.
#[test]
fn neither_runs_with_the_rights_of_the_other() {
    let app = application("pull_rights", ClusterOptions::default());
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'other')");
    let mut db = app.db();
    db.run(
        "CREATE TABLE seen (who text, path text);
         CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS $$
         DECLARE left_open CURSOR FOR SELECT 1;
         BEGIN
             INSERT INTO public.seen VALUES (current_user, current_setting('search_path'));
             PERFORM set_config('search_path', 'nowhere', false);
             OPEN left_open;
             RETURN new;
         END $$;
         CREATE TRIGGER spy BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION spy();",
    );
    db.start("c", "counter").key("c").globals(json!({"n": 0})).go();
    db.run("DELETE FROM seen");
    let mut other = app.session("other");
    other.run(
        "CREATE TABLE deferring (id int PRIMARY KEY, who text);
         CREATE FUNCTION noting() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN UPDATE public.deferring SET who = current_user WHERE id = new.id; RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER noting AFTER INSERT ON deferring DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION noting();",
    );
    let token: String = other.one("SELECT token FROM xdb.claim_calls('pull')");
    let answer = jsonb(&force_complete(json!(1)).globals(json!({"n": 5})).json());
    other.run("BEGIN");
    other.run("DECLARE mine CURSOR FOR SELECT 1; SELECT pg_advisory_lock(7); INSERT INTO deferring VALUES (1)");
    other.run(&format!("SELECT xdb.complete_call('{token}', {answer})"));
    assert_eq!(other.all::<String>("SELECT name FROM pg_cursors WHERE is_holdable OR name <> ''"), ["mine"]);
    assert_ne!(other.text("SHOW search_path"), "nowhere");
    assert!(other.one::<bool>("SELECT pg_advisory_unlock(7)"), "its own lock was released");
    other.run("COMMIT");
    assert_eq!(other.all::<String>("SELECT who FROM deferring"), ["other"]);
    assert_eq!(db.all::<String>("SELECT who || ' ' || path FROM seen"), ["app pg_catalog, pg_temp"]);
    assert_eq!(db.completes("c").result(), 1);
    app.done(&[]);
}

/// Seed 5: a job is created, activated in batches, completed, failed; its retries are updated.
#[test]
fn jobs_are_activated_in_batches_completed_failed_and_their_retries_updated() {
    let app = application("pull_jobs", ClusterOptions::default());
    let policy = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 3600, "maximumAttempts": 2}});
    app.register_with("pull", "job", &Definition::starting_with("Job").step_with("Job", policy));
    let mut db = app.db();
    for id in ["completed", "retried", "spent"] {
        db.start(id, "job").go();
    }
    let batch = db.rows(
        "SELECT token, request->'context'->>'processId' AS process, request->'context'->>'attempt' AS attempt
        FROM xdb.claim_calls('pull', 10) WITH ORDINALITY ORDER BY ordinality",
    );
    let of = |batch: &[Value], id: &str| -> String {
        let call =
            batch.iter().find(|call| call["process"] == id).unwrap_or_else(|| panic!("{id} is not in {batch:?}"));
        call["token"].as_str().expect("a text").to_owned()
    };
    assert_eq!(batch.len(), 3, "{batch:?}");
    let complete =
        |token: &str| format!("SELECT xdb.complete_call('{token}', {})", jsonb(&force_complete(json!(1)).json()));
    let fail = |token: &str, more: Value| format!("SELECT xdb.fail_call('{token}', {})", jsonb(&more));
    db.run(&complete(&of(&batch, "completed")));
    db.run(&fail(&of(&batch, "retried"), json!({"errorType": "Busy", "detail": "later"})));
    db.run(&fail(&of(&batch, "spent"), json!({"errorType": "Busy", "retryAfterSeconds": 0.1})));
    // Retries are updated: at once, in place of in an hour.
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('retried')"), 1);
    let again = db.rows("SELECT token, request->'context'->>'processId' AS process FROM xdb.claim_calls('pull', 10)");
    db.run(&complete(&of(&again, "retried")));
    let token = match again.len() {
        2 => of(&again, "spent"),
        _ => db.one("SELECT token FROM xdb.claim_calls('pull', wait => '20 s')"),
    };
    db.run(&fail(&token, json!({"errorType": "Busy", "detail": "for good"})));
    let mut history = |id: &str| -> Vec<String> {
        db.all(&format!("SELECT event_type FROM xdb.history WHERE process_id = '{id}' ORDER BY event_id"))
    };
    let begins = ["ProcessStarted", "StateStarted"];
    let completes = ["ResultGiven", "StateCompleted", "ProcessClosed"];
    assert_eq!(history("completed"), [&begins[..], &completes].concat());
    assert_eq!(history("retried"), [&begins[..], &["AttemptFailed", "RetryRequested"], &completes].concat());
    assert_eq!(history("spent"), [&begins[..], &["AttemptFailed", "StateFailed", "ProcessClosed"]].concat());
    app.done(&[]);
}

/// Seed 4: host sets have shards, and each process belongs to one of them for ever.
#[test]
fn host_sets_claim_the_calls_of_their_shards_only() {
    let app = application("pull_shards", ClusterOptions::default());
    app.register_with("pull", "plain", &Definition::starting_with("Only").step("Only"));
    let mut db = app.db();
    let count = 200;
    db.run(&format!("SELECT xdb.start_process('p' || n, 'plain') FROM generate_series(1, {count}) AS n"));
    let mut of_hosts = Vec::new();
    for shards in ["[0,341]", "[342,682]", "[683,)"] {
        let claimed: Vec<String> = db.all(&format!(
            "SELECT request->'context'->>'processId' FROM xdb.claim_calls('pull', 1000, shards => '{shards}')"
        ));
        assert!(claimed.len() > 40, "{} calls of {shards}", claimed.len());
        let wrong: i64 = app.superuser().count(&format!(
            "xdb.process_execution WHERE process_id = ANY (ARRAY[{}]) AND NOT shard::int <@ int4range('{shards}')",
            claimed.iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(", ")
        ));
        assert_eq!(wrong, 0);
        of_hosts.extend(claimed);
    }
    of_hosts.sort();
    of_hosts.dedup();
    assert_eq!(of_hosts.len(), count);
    app.done(&[]);
}

/// Names are found in `pg_temp` first. The client's objects are not there when an owner's code runs, and the owner's
/// objects do not stay there.
#[test]
fn owner_and_worker_do_not_find_each_others_objects_in_the_session() {
    let app = application("pull_traps", ClusterOptions::default());
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'other')");
    let mut db = app.db();
    db.run(
        "CREATE FUNCTION leaving() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             EXECUTE 'CREATE FUNCTION pg_temp.trap() RETURNS int LANGUAGE sql RETURN 1';
             RETURN new;
         END $$;
         CREATE TRIGGER leaving BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION leaving();",
    );
    db.start("c", "counter").key("c").globals(json!({"n": 0})).go();
    let mut other = app.session("other");
    other.run("CREATE TEMPORARY TABLE trap (a int)");
    other.refused("42501", "SELECT token FROM xdb.claim_calls('pull')");
    other.run("DISCARD TEMP");
    let token: String = other.one("SELECT token FROM xdb.claim_calls('pull')");
    let answer = jsonb(&force_complete(json!(1)).globals(json!({"n": 5})).json());
    let complete = format!("SELECT xdb.complete_call('{token}', {answer})");
    let refused = other.refused("42501", &complete);
    assert!(refused.message.contains("left temporary objects"), "{refused:?}");
    assert_eq!(app.superuser().count("pg_proc WHERE proname = 'trap'"), 0);
    assert_eq!(db.status("c"), "RUNNING");
    // If the client has the owner's rights, no such protection is needed.
    db.run("DROP TRIGGER leaving ON counters");
    app.superuser().run("GRANT app TO other");
    other.run(&format!("CREATE TEMPORARY TABLE trap (a int); {complete}"));
    assert_eq!(db.completes("c").result(), 1);
    app.superuser().run("REVOKE app FROM other");
    app.done(&[]);
}

/// The worker of the processes of `app` is the role `other`, which has no rights on their tables.
fn with_worker_of_another_role(name: &str) -> (App, Db) {
    let app = application(name, ClusterOptions::default());
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'other')");
    let other = app.session("other");
    (app, other)
}

/// The statement that answers a call of a counter: it writes this value, and closes.
fn complete_writing(token: &str, n: Value) -> String {
    let answer = jsonb(&force_complete(json!(1)).globals(json!({"n": n})).json());
    format!("SELECT xdb.complete_call('{token}', {answer})")
}

#[test]
fn an_error_shows_a_worker_no_more_of_the_owners_rows_than_it_has_written() {
    let (app, mut other) = with_worker_of_another_role("pull_errors");
    let mut db = app.db();
    db.run("ALTER TABLE counters ADD COLUMN secret text DEFAULT 'confidential data', ADD CHECK (n < 100)");
    db.start("c", "counter").key("c").globals(json!({"n": 0})).go();
    let token: String = other.one("SELECT token FROM xdb.claim_calls('pull')");
    let complete = |n: Value| complete_writing(&token, n);
    let refused = other.refused("23514", &complete(json!(1000)));
    assert_eq!(refused.detail, "", "{refused:?}");
    // What its type refuses is what the worker has written.
    let refused = other.refused("22P02", &complete(json!("much")));
    assert!(refused.detail.contains("public.counters"), "{refused:?}");
    // A cast of the owner's own is of what it has.
    db.run(
        "CREATE FUNCTION casts() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM ('{' || new.secret || '}')::json; RETURN new; END $$;
         CREATE TRIGGER casts BEFORE UPDATE ON counters FOR EACH ROW WHEN (new.n = 7) EXECUTE FUNCTION casts()",
    );
    let refused = other.refused("22P02", &complete(json!(7)));
    assert_eq!(refused.detail, "", "{refused:?}");
    app.superuser().run("GRANT app TO other");
    let refused = other.refused("23514", &complete(json!(1000)));
    assert!(refused.detail.contains("confidential data"), "{refused:?}");
    let refused = other.refused("22P02", &complete(json!(7)));
    assert!(refused.detail.contains("confidential"), "{refused:?}");
    app.superuser().run("REVOKE app FROM other");
    other.run(&complete(json!(5)));
    assert_eq!(db.completes("c").result(), 1);
    app.done(&[]);
}

#[test]
fn the_owners_code_means_the_same_under_any_settings_of_a_worker() {
    let (app, mut other) = with_worker_of_another_role("pull_meanings");
    let mut db = app.db();
    db.run(
        r"CREATE TABLE seen (quoted text);
          CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS $$
          BEGIN
              EXECUTE 'INSERT INTO public.seen VALUES (''a\b'' || (NULL = NULL)::text), (''a\b'')';
              ASSERT new.n < 100, 'too much';
              RETURN new;
          END $$;
          CREATE TRIGGER spy BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION spy();",
    );
    db.start("c", "counter").key("c").globals(json!({"n": 0})).go();
    other.run(
        "SET standard_conforming_strings = off; SET escape_string_warning = off; SET transform_null_equals = on;
         SET plpgsql.check_asserts = off",
    );
    let token: String = other.one("SELECT token FROM xdb.claim_calls('pull')");
    let complete = |n: i32| complete_writing(&token, json!(n));
    other.refused("P0004", &complete(1000));
    other.run(&complete(5));
    assert_eq!(other.text("SHOW standard_conforming_strings"), "off", "its own again");
    assert_eq!(db.all::<Option<String>>("SELECT quoted FROM seen ORDER BY quoted"), [Some(r"a\b".to_owned()), None]);
    assert_eq!(db.completes("c").result(), 1);
    app.done(&[]);
}

#[test]
fn a_former_member_of_the_role_does_not_get_a_call_that_comes_due() {
    let (app, mut other) = with_worker_of_another_role("pull_revoked");
    let mut superuser = app.superuser();
    superuser.run(
        "CREATE ROLE members; GRANT members TO other; SELECT xdb.register_worker('pull', NULL, role => 'members')",
    );
    let mut db = app.db();
    std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| other.refused("42501", "SELECT token FROM xdb.claim_calls('pull', wait => '60 s')"));
        wait_until("it waits", 20, || {
            superuser.count("pg_stat_activity WHERE usename = 'other' AND wait_event_type = 'Extension'") == 1
        });
        superuser.run("REVOKE members FROM other");
        db.start("c", "counter").key("c").globals(json!({"n": 0})).go();
        waiting.join().expect("it was refused");
    });
    assert_eq!(superuser.count("xdb.task WHERE lease_until IS NOT NULL"), 0);
    superuser.run(
        "SELECT xdb.stop_process('c'); SELECT xdb.register_worker('pull', NULL, role => 'other'); DROP ROLE members",
    );
    app.done(&[]);
}

#[test]
fn a_token_that_a_crash_rolls_back_is_not_given_again() {
    // The claim is not flushed by chance, and the sequence counts on from the checkpoint.
    let app = application("pull_token", ClusterOptions::default().set("wal_writer_delay", "10s"));
    app.db().start("p", "counter").key("c").globals(json!({"n": 0})).go();
    app.superuser().run("CHECKPOINT");
    let claim = "SELECT token FROM xdb.claim_calls('pull', wait => '20 s', lease => '1 hour')";
    let lost: String = app.db().one(claim);
    app.cluster().crash();
    app.cluster().launch();
    let mut db = app.db();
    let token: String = db.one(claim);
    assert_ne!(token, lost);
    let answer = jsonb(&force_complete(json!(1)).json());
    db.refused("XD025", &format!("SELECT xdb.complete_call('{lost}', {answer})"));
    db.run(&format!("SELECT xdb.complete_call('{token}', {answer})"));
    db.completes("p");
    app.done(AFTER_A_CRASH);
}
