//! The cost of pull workers that wait, and which calls each session gets. Tested with counts of statements.

use xdb_cluster_tests::prelude::*;

/// Members of `app` claim the calls of the type `plain`. Its starts give a priority.
fn application(name: &str) -> App {
    let options = ClusterOptions::default()
        .set("shared_preload_libraries", "xdb,pg_stat_statements")
        .set("pg_stat_statements.track", "all");
    let app = App::alone(name, options);
    app.superuser().run("CREATE EXTENSION pg_stat_statements; SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "plain", &one_step());
    app
}

fn start(db: &mut Db, prefix: &str, count: usize, priority: i64) {
    db.run(&format!(
        "SELECT count(xdb.start_process('{prefix}-' || n, 'plain', options => '{{\"priority\": {priority}}}'))
         FROM generate_series(1, {count}) n"
    ));
}

/// The statements that ran within functions since the last call.
fn statements(superuser: &mut Db) -> Vec<String> {
    let all = superuser
        .all("SELECT query FROM pg_stat_statements CROSS JOIN LATERAL generate_series(1, calls) WHERE NOT toplevel");
    superuser.run("SELECT pg_stat_statements_reset()");
    all
}

#[test]
fn a_poll_for_nothing_is_one_statement_and_one_for_calls_is_four() {
    const CLAIM: &str = "SELECT token FROM xdb.claim_calls('pull', 10)";
    let app = application("polls_statements");
    let (mut db, mut worker, mut superuser) = (app.db(), app.db(), app.superuser());
    start(&mut db, "known", 1, 0);
    let token: String = worker.one(CLAIM);
    worker.run(&format!("SELECT xdb.fail_call('{token}', '{{\"retryAfterSeconds\": 3600}}')"));
    for _ in 0..3 {
        worker.run(CLAIM);
        statements(&mut superuser);
        worker.run(CLAIM);
        let one = statements(&mut superuser);
        assert_eq!(one.len(), 1, "{one:#?}");
    }
    for round in 0..3 {
        start(&mut db, &format!("p-{round}"), 15, 0);
        start(&mut app.session("other"), &format!("q-{round}"), 5, 3);
        statements(&mut superuser);
        assert_eq!(worker.all::<String>(CLAIM).len(), 10);
        let all = statements(&mut superuser);
        assert!(all.len() <= 4, "{all:#?}");
        while !worker.all::<String>(CLAIM).is_empty() {}
        start(&mut db, &format!("r-{round}"), 1, 0);
        assert_eq!(worker.all::<String>(CLAIM).len(), 1);
        statements(&mut superuser);
        assert!(worker.all::<String>(CLAIM).is_empty());
        let after_calls = statements(&mut superuser);
        assert!(after_calls.len() <= 3, "{after_calls:#?}");
    }
    app.done(&[]);
}

#[test]
fn a_call_wakes_one_of_the_sessions_that_wait() {
    const SESSIONS: i64 = 30;
    const CALLS: i64 = 10;
    let app = application("polls_woken");
    let waiting = "pg_stat_activity WHERE query LIKE '%claim_calls(%wait%' AND wait_event = 'Extension'";
    std::thread::scope(|scope| {
        for _ in 0..SESSIONS {
            let app = &app;
            scope.spawn(move || {
                let claim = "SELECT token FROM xdb.claim_calls('pull', wait => '1 h')";
                let _ended_in_the_end = app.db().try_run(claim);
            });
        }
        let (mut db, mut superuser) = (app.db(), app.superuser());
        wait_until("all wait", 60, || superuser.count(waiting) == SESSIONS);
        statements(&mut superuser);
        let (took, ()) = timed(|| {
            for number in 0..CALLS {
                start(&mut db, &format!("p-{number}"), 1, 0);
                wait_until("it is claimed", 20, || superuser.count(waiting) == SESSIONS - number - 1);
            }
        });
        // The session that watches polls once a second. Woken sessions poll too.
        let polls: i64 = superuser.one(
            "SELECT sum(calls)::bigint FROM pg_stat_statements WHERE NOT toplevel AND query LIKE 'WITH worker AS%'",
        );
        let most = 3 * CALLS + took.as_secs() as i64;
        assert!(polls <= most, "{polls} polls for {CALLS} calls in {took:?}");
        superuser.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE query LIKE '%claim_calls(%wait%' AND pid <> pg_backend_pid()",
        );
    });
    app.done(&[]);
}

#[test]
fn the_scheduler_sleeps_while_a_pull_worker_works() {
    const STEPS: i64 = 300;
    let app = application("polls_asleep");
    let (mut db, mut superuser) = (app.db(), app.superuser());
    app.register_with("pull", "chain", &one_step());
    db.start("p", "chain").go();
    statements(&mut superuser);
    let again = r#"{"stateDecision": {"nextStates": [{"stateId": "Only"}]}}"#;
    let (took, ()) = timed(|| {
        for _ in 0..STEPS {
            let token: String = db.one("SELECT token FROM xdb.claim_calls('pull')");
            db.run(&format!("SELECT xdb.complete_call('{token}', '{again}')"));
        }
    });
    // A turn begins with one statement on this row. Without a wake-up there is a turn for each poll.
    let mut turns = || -> i64 {
        superuser.one("SELECT COALESCE(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query LIKE '%FROM xdb.engine m CROSS JOIN%'")
    };
    let (made, most) = (turns(), 20 + 2 * took.as_secs() as i64);
    assert!(made <= most, "{made} turns for {STEPS} steps in {took:?}");
    wait_until("turns are counted", 20, || turns() > 0);
    app.done(&[]);
}

#[test]
fn the_backlog_of_other_shards_is_not_scanned() {
    const BACKLOG: i64 = 50_000;
    const CALLS: i64 = 40;
    let app = application("polls_shards");
    let (mut worker, mut superuser) = (app.db(), app.superuser());
    // No worker claims these calls.
    superuser.run(&format!(
        "INSERT INTO xdb.task (execution_id, seq, shard, worker_id, api, due_at, owner)
         SELECT gen_random_uuid(), 1, 0, w.worker_id, 'EXECUTE_API', now() - interval '1 hour', 'app'::regrole
         FROM xdb.worker w, generate_series(1, {BACKLOG})"
    ));
    start(&mut app.db(), "p", 600, 0);
    let mut read = |worker: &mut Db| {
        worker.run("SELECT pg_stat_force_next_flush()");
        superuser.one::<i64>("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'task_claim'")
    };
    let mut read_by = |claims: i64| {
        let before = read(&mut worker);
        for _ in 0..claims {
            worker.one::<String>("SELECT token FROM xdb.claim_calls('pull', shards => '[512,1023]')");
        }
        read(&mut worker) - before
    };
    // A cursor begins at the head, and follows after twice its margin.
    wait_until("the session scans from its cursor", 20, || read_by(1) < BACKLOG);
    // Only scans from the head walk over the backlog. They take a two-hundredth of the time.
    let read = read_by(CALLS);
    assert!(read < CALLS / 4 * BACKLOG, "{read} entries were read for {CALLS} calls");
    app.superuser().run("DELETE FROM xdb.task WHERE due_at < now() - interval '30 minutes'");
    app.done(&[]);
}

#[test]
fn calls_of_other_shards_that_come_due_wake_no_session() {
    let app = application("polls_others");
    let (mut db, mut worker, mut superuser) = (app.db(), app.db(), app.superuser());
    // The worker's line is known.
    start(&mut db, "known", 1, 0);
    let token: String = worker.one("SELECT token FROM xdb.claim_calls('pull')");
    superuser.run(
        "INSERT INTO xdb.task (execution_id, seq, shard, worker_id, api, due_at, owner)
         SELECT gen_random_uuid(), 2, 0, w.worker_id, 'EXECUTE_API', now() + n * interval '20 ms', 'app'::regrole
         FROM xdb.worker w, generate_series(1, 500) n",
    );
    statements(&mut superuser);
    let (took, ()) =
        timed(|| worker.run("SELECT * FROM xdb.claim_calls('pull', wait => '4 s', shards => '[512,1023]')"));
    let polls = statements(&mut superuser).iter().filter(|text| text.starts_with("WITH worker AS")).count();
    // One for each poll interval.
    let most = 5 + 2 * took.as_secs() as usize;
    assert!(polls <= most, "{polls} polls in {took:?}");
    superuser.run("DELETE FROM xdb.task WHERE seq = 2");
    worker.run(&format!("SELECT xdb.complete_call('{token}', '{}')", force_complete(json!(null)).json()));
    app.done(&[]);
}

/// A session that locked nothing finds the call of its token in two statements, once.
#[test]
fn the_call_of_an_answer_is_loaded_once() {
    let app = application("polls_answers");
    let (mut db, mut worker, mut superuser) = (app.db(), app.db(), app.superuser());
    let locks = json!({"loadLocalAttributes": {"policy": "ALL", "lockType": "SHARE_LOCK"}});
    app.register_with("pull", "locking", &Definition::starting_with("Only").step_with("Only", locks));
    for (process_type, most) in [("plain", 9), ("locking", 10)] {
        for round in 0..3 {
            db.start(&format!("{process_type}-{round}"), process_type).go();
            let token: String = worker.one("SELECT token FROM xdb.claim_calls('pull')");
            statements(&mut superuser);
            worker.run(&format!("SELECT xdb.complete_call('{token}', '{}')", force_complete(json!(null)).json()));
            let all = statements(&mut superuser);
            let count = |part| all.iter().filter(|text| text.contains(part)).count();
            assert_eq!((count("pg_has_role"), count("without_arrivals")), (1, 1), "{all:#?}");
            assert!(all.len() <= most, "{process_type}: {all:#?}");
        }
    }
    app.done(&[]);
}

#[test]
fn owners_take_turns_regardless_of_priorities() {
    let app = application("polls_turns");
    let (mut greedy, mut modest, mut third) = (app.db(), app.session("other"), app.session("boss"));
    for priority in [10, 0, -10] {
        start(&mut greedy, &format!("greedy{priority}"), 400, priority);
        start(&mut modest, &format!("modest{priority}-low"), 5, -1);
        start(&mut modest, &format!("modest{priority}-high"), 5, 1);
        start(&mut third, &format!("third{priority}"), 40, -priority);
        // Of one session, and of sessions that claim once.
        let of_one: Vec<String> = {
            let mut worker = app.db();
            let claim = "SELECT request->'context'->>'processId' FROM xdb.claim_calls('pull')";
            (0..15).map(|_| worker.one(claim)).collect()
        };
        let of = |owner| of_one.iter().filter(|id| id.starts_with(owner)).collect::<Vec<_>>();
        let of_modest = of("modest");
        assert_eq!((of("greedy").len(), of_modest.len(), of("third").len()), (5, 5, 5), "{of_one:?}");
        assert!(of_modest.iter().all(|id| id.contains("-high")), "an owner's own priorities count: {of_one:?}");
        let claim = "SELECT request->'context'->>'processId' FROM xdb.claim_calls('pull', 15)";
        let at_once: Vec<String> = app.db().all(claim);
        assert_eq!(at_once.iter().filter(|id| id.contains("-low")).count(), 5, "{at_once:?}");
        app.superuser().run("SELECT count(xdb.stop_process(process_id)) FROM xdb.processes WHERE status = 'RUNNING'");
    }
    app.done(&[]);
}

/// An owner's turn comes after the owner that the session served last, although no call was due in between.
#[test]
fn owners_take_turns_although_calls_trickle_in() {
    const ROLES: [&str; 3] = ["app", "other", "boss"];
    let app = application("polls_trickle");
    let (mut owners, mut worker) = (ROLES.map(|role| app.session(role)), app.db());
    let claim = "SELECT split_part(request->'context'->>'processId', '-', 1) FROM xdb.claim_calls('pull')";
    let mut served = Vec::new();
    for round in 0..10 {
        assert_eq!(worker.all::<String>(claim), Vec::<String>::new());
        for (role, db) in ROLES.iter().zip(&mut owners) {
            start(db, &format!("{role}-{round}"), 1, 0);
        }
        served.extend(ROLES.map(|_| worker.one::<String>(claim)));
    }
    for (nth, owner) in served.iter().enumerate() {
        assert_eq!(*owner, served[nth % ROLES.len()], "{served:?}");
    }
    app.done(&[]);
}
