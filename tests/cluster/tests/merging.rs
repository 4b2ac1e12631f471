//! Starts with a correlation key: they are merged into a pending start, and the merged start runs once.

use std::collections::BTreeMap;
use std::sync::Mutex;

use xdb_cluster_tests::prelude::*;

const ADD: &str = "CREATE FUNCTION app_add(pending jsonb, new jsonb) RETURNS jsonb LANGUAGE sql
    RETURN to_jsonb(pending::numeric + new::numeric)";

/// A process type `job` of one state, whose worker completes at once.
fn application(name: &str, options: ClusterOptions) -> (App, Worker) {
    let app = App::alone(name, options);
    let worker = app.worker(|_: &Call| force_complete(json!("done")));
    app.register("job", &one_step());
    app.db().run(ADD);
    (app, worker)
}

fn start(db: &mut Db, input: &str, options: &Value, start_at: &str) -> String {
    let sql = format!(
        "SELECT xdb.start_process(NULL, 'job', input => '{input}', options => '{options}', start_at => {start_at})::text"
    );
    db.one(&sql)
}

/// The input of each execution's last call.
fn called_with(worker: &Worker) -> BTreeMap<String, Value> {
    worker.calls().iter().map(|call| (call.call_id().to_owned(), call.input().clone())).collect()
}

/// The delay of a guard counts from the first call, so a merge must not move that call away from the timer.
#[test]
fn a_start_that_would_move_the_first_call_is_not_merged_while_a_guard_has_a_timer() {
    let (app, _worker) = application("merge_guarded", ClusterOptions::default());
    let timer = json!({"waitingType": "AnyOfCompletion", "timerCommands": [{"delayInSeconds": 3600}]});
    let message = json!({"waitingType": "AnyOfCompletion", "localQueueCommands": [{"queueName": "stop"}]});
    let mut db = app.db();
    for (wait, start_at, merged) in [(&timer, "REPLACE", false), (&timer, "KEEP", true), (&message, "REPLACE", true)] {
        let guarded = one_step().waiting_step_with("Guard", json!({"commandRequest": wait}));
        app.register("job", &guarded.with("guards", json!(["Guard"])));
        let options = json!({"correlationKey": "key", "merge": {"startAt": start_at}});
        let ids = ["1 hour", "2 hours"]
            .map(|after| start(&mut db, "1", &options, &format!("clock_timestamp() + interval '{after}'")));
        assert_eq!(ids[0] == ids[1], merged, "{wait} {start_at}");
        db.run("SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE status = 'RUNNING'");
    }
    app.done(&[]);
}

#[test]
fn of_sixty_four_sessions_every_start_is_counted_once() {
    let (app, worker) = application("merge_counters", ClusterOptions::default());
    let sessions: Vec<Mutex<Db>> = (0..64).map(|_| Mutex::new(app.db())).collect();
    let each = 25;
    at_once(64, |n| {
        let mut db = sessions[n].lock().expect("no other thread has it");
        for round in 0..each {
            // Some starts are due at once, so they are claimed while other starts are merged into them.
            let options =
                json!({"correlationKey": format!("key-{}", (n + round) % 3), "merge": {"input": "public.app_add"}});
            let start_at = if round % 3 == 0 { "NULL" } else { "clock_timestamp() + interval '30 ms'" };
            start(&mut db, "1", &options, start_at);
        }
    });
    let mut db = app.db();
    wait_until("all have closed", 60, || db.count("xdb.processes WHERE status = 'RUNNING'") == 0);
    let called = called_with(&worker);
    let sum: i64 = called.values().map(|input| input.as_i64().expect("a number")).sum();
    assert_eq!(sum, 64 * each as i64);
    let executions = db.count("xdb.processes");
    assert_eq!(executions as usize, called.len(), "each execution was called");
    let merged = db.count("xdb.history WHERE event_type = 'StartMerged'");
    assert_eq!(executions + merged, 64 * each as i64, "each start is an execution, or was merged into one");
    assert!(merged > 0 && executions > 3, "{executions} executions, {merged} merged");
    app.done(&[]);
}

/// Seed 4: `Merge` "determines whether the new instance should be dropped, merged with the existing one, or created as
/// a separate one".
#[test]
fn the_new_instance_is_dropped_merged_with_the_existing_one_or_created_as_a_separate_one() {
    let (app, worker) = application("merge_decides", ClusterOptions::default());
    let mut db = app.db();
    db.run(
        "CREATE FUNCTION decide(pending jsonb, new jsonb) RETURNS jsonb LANGUAGE sql RETURN CASE new ->> 'what'
            WHEN 'drop' THEN pending WHEN 'merge' THEN pending || jsonb_build_object('n', (pending ->> 'n')::int + (new ->> 'n')::int) END",
    );
    let by_function = json!({"correlationKey": "k", "merge": {"input": "public.decide"}});
    let mut ask = |what: &str, n: i32| {
        start(&mut db, &json!({"what": what, "n": n}).to_string(), &by_function, "now() + interval '1 hour'")
    };
    let first = ask("first", 1);
    assert_eq!([ask("drop", 10), ask("merge", 100)], [first.clone(), first.clone()]);
    let separate = ask("separate", 1000);
    assert_ne!(separate, first);
    assert_eq!(ask("merge", 10_000), separate, "with the latest one in the queue");
    app.cluster().set("xdb.now", "2 hours");
    [&first, &separate].into_iter().for_each(|id| drop(db.completes(id)));
    let inputs: BTreeMap<_, _> =
        worker.calls().iter().map(|call| (call.process_id().to_owned(), call.input().clone())).collect();
    assert_eq!(inputs[&first], json!({"what": "first", "n": 101}));
    assert_eq!(inputs[&separate], json!({"what": "separate", "n": 11_000}));
    assert_eq!(worker.calls().len(), 2);
    app.done(&[]);
}

#[test]
fn it_happens_again_within_ten_minutes_and_is_emailed_once() {
    let (app, worker) = application("merge_email", ClusterOptions::default());
    let mut db = app.db();
    let throttle = json!({"correlationKey": "customer-7", "merge": {"withinSeconds": 600}});
    let first = start(&mut db, "\"it happened\"", &throttle, "now() + interval '10 minutes'");
    for _ in 0..3 {
        assert_eq!(start(&mut db, "\"again\"", &throttle, "now() + interval '10 minutes'"), first);
    }
    assert_ne!(start(&mut db, "\"much later\"", &throttle, "now() + interval '21 minutes'"), first);
    app.cluster().set("xdb.now", "11 min");
    db.completes(&first);
    assert_eq!(worker.calls().iter().map(|call| call.input().clone()).collect::<Vec<_>>(), ["it happened"]);
    app.done(&[]);
}

#[test]
fn multiple_events_are_batched_into_one_by_event_id() {
    let (app, worker) = application("merge_events", ClusterOptions::default());
    let mut db = app.db();
    db.run(
        "CREATE FUNCTION count_events(pending jsonb, new jsonb) RETURNS jsonb LANGUAGE sql RETURN
            pending || jsonb_build_object('event_count', (pending ->> 'event_count')::int + (new ->> 'event_count')::int)",
    );
    let count = |event: &str| json!({"correlationKey": event, "merge": {"input": "public.count_events"}});
    for event in ["e-1", "e-2", "e-1", "e-1"] {
        let input = format!("{{\"event\": \"{event}\", \"event_count\": 1}}");
        start(&mut db, &input, &count(event), "now() + interval '5 s'");
    }
    wait_until("both are called", 20, || db.count("xdb.processes WHERE status = 'COMPLETED'") == 2);
    let mut counts: Vec<_> = worker
        .calls()
        .iter()
        .map(|call| (call.input()["event"].clone(), call.input()["event_count"].clone()))
        .collect();
    counts.sort_by_key(|(event, _)| event.to_string());
    assert_eq!(counts, [(json!("e-1"), json!(3)), (json!("e-2"), json!(1))]);
    app.done(&[]);
}

#[test]
fn likes_are_batched_and_updated_once_every_x_minutes() {
    let (app, worker) = application("merge_likes", ClusterOptions::default());
    let mut db = app.db();
    // Debounced, but delayed by two seconds at most.
    let like = json!({"correlationKey": "resource-9",
        "merge": {"input": "public.app_add", "startAt": "REPLACE", "atMostSeconds": 2}});
    let began = Instant::now();
    let mut likes = 0;
    while began.elapsed() < Duration::from_millis(3500) {
        start(&mut db, "1", &like, "clock_timestamp() + interval '1 s'");
        likes += 1;
    }
    wait_until("all are counted", 20, || db.count("xdb.processes WHERE status = 'RUNNING'") == 0);
    let updates = called_with(&worker);
    assert_eq!(updates.values().map(|input| input.as_i64().expect("a number")).sum::<i64>(), likes);
    assert!((2..=4).contains(&updates.len()), "{} updates for {likes} likes", updates.len());
    app.done(&[]);
}

#[test]
fn multiple_report_requests_are_a_single_report_within_60_minutes() {
    let (app, worker) = application("merge_reports", ClusterOptions::default());
    let mut db = app.db();
    db.run(
        "CREATE FUNCTION merge_report(pending jsonb, new jsonb) RETURNS jsonb LANGUAGE sql RETURN
            jsonb_build_object('from', least(pending ->> 'from', new ->> 'from'))",
    );
    let report = json!({"correlationKey": "vendor-7",
        "merge": {"input": "public.merge_report", "startAt": "REPLACE", "withinSeconds": 3600}});
    let mut ask = |from: &str, minutes: i32| {
        let at = format!("date_trunc('minute', now()) + interval '{minutes} min'");
        start(&mut db, &format!("{{\"from\": \"{from}\"}}"), &report, &at)
    };
    let first = ask("2026-11-05", 10);
    assert_eq!(ask("2026-11-01", 40), first);
    assert_eq!(ask("2026-11-03", 99), first, "less than an hour after the last one");
    let second = ask("2026-10-30", 160);
    assert_ne!(second, first, "more than an hour after it");
    app.cluster().set("xdb.now", "100 min");
    db.completes(&first);
    assert_eq!(worker.calls()[0].input(), &json!({"from": "2026-11-01"}));
    assert_eq!(db.status(&second), "RUNNING");
    app.done(&[]);
}

#[test]
fn a_process_that_has_begun_merges_no_other_start() {
    let (app, worker) = application("merge_begun", ClusterOptions::default());
    worker.misbehave(|_| Reply::hang(force_complete(json!("late"))));
    let mut db = app.db();
    let options = json!({"correlationKey": "k", "merge": {"input": "REPLACE"}});
    let first = start(&mut db, "1", &options, "NULL");
    worker.wait_for("the first is called", 10, |call| call.process_id() == first);
    let second = start(&mut db, "2", &options, "now() + interval '1 hour'");
    assert_ne!(second, first);
    assert_eq!(start(&mut db, "3", &options, "NULL"), second, "the latest one counts");
    // A failed attempt has begun too.
    worker.heal();
    worker.misbehave(|_| error(500, "Broken", "not now"));
    worker.release();
    let third = start(&mut db, "4", &json!({"correlationKey": "other"}), "NULL");
    wait_until("it is in backoff", 10, || views::fails_saying(&mut db, &third, &["not now"]));
    assert_ne!(start(&mut db, "5", &json!({"correlationKey": "other"}), "NULL"), third);
    worker.heal();
    db.completes(&third);
    db.completes(&first);
    app.done(&[]);
}

#[test]
fn a_merge_is_a_part_of_its_transaction_and_survives_a_crash() {
    let (app, worker) = application("merge_crash", ClusterOptions::default());
    let mut db = app.db();
    let add = json!({"correlationKey": "k", "merge": {"input": "public.app_add"}});
    let first = start(&mut db, "1", &add, "now() + interval '1 hour'");
    db.run("BEGIN");
    assert_eq!(start(&mut db, "10", &add, "NULL"), first);
    db.run("ROLLBACK");
    assert_eq!(start(&mut db, "100", &add, "NULL"), first);
    app.cluster().crash();
    app.cluster().launch();
    let mut db = app.db();
    assert_eq!(start(&mut db, "1000", &add, "NULL"), first, "it waits still");
    app.cluster().set("xdb.now", "2 hours");
    db.completes(&first);
    assert_eq!(called_with(&worker).into_values().filter(|input| input.is_number()).collect::<Vec<_>>(), [json!(1101)]);
    app.done(&[]);
}

#[test]
fn the_timeout_of_a_process_moves_with_its_beginning() {
    let (app, worker) = application("merge_timeout", ClusterOptions::default());
    worker.misbehave(|_| Reply::hang(force_complete(json!("late"))));
    app.register("short", &one_step().with("timeoutSeconds", json!(2)));
    let mut db = app.db();
    let ask = |db: &mut Db, after: &str| {
        db.one::<String>(&format!(
            "SELECT xdb.start_process(NULL, 'short', start_at => clock_timestamp() + interval '{after}',
                options => '{{\"correlationKey\": \"k\", \"merge\": {{\"startAt\": \"REPLACE\"}}}}')::text"
        ))
    };
    let first = ask(&mut db, "3 s");
    assert_eq!(ask(&mut db, "4 s"), first);
    assert_eq!(db.outcome(&first).status(), "TIMEOUT");
    assert_eq!(worker.count(|call| call.process_id() == first), 1, "it had begun");
    let ran: f64 = db.one(&format!(
        "SELECT extract(epoch FROM closed_at - started_at)::float8 FROM xdb.processes WHERE process_id = '{first}'"
    ));
    assert!((6.0..20.0).contains(&ran), "{ran} s");
    worker.release();
    app.done(&[]);
}

#[test]
fn a_paused_process_has_not_begun_and_merges_other_starts() {
    let (app, worker) = application("merge_paused", ClusterOptions::default());
    let mut db = app.db();
    let add = json!({"correlationKey": "k", "merge": {"input": "public.app_add"}});
    // Both at once: it may not come due in between.
    db.run("BEGIN");
    let first = start(&mut db, "1", &add, "clock_timestamp() + interval '500 ms'");
    db.run(&format!("SELECT xdb.pause_process('{first}'); COMMIT"));
    // By the time that this one completes, the engine has found the other one due, and may not call it.
    db.start("other", "job").go();
    wait_until("it is due", 10, || {
        db.one::<bool>(&format!(
            "SELECT started_at + interval '600 ms' < clock_timestamp() FROM xdb.processes WHERE process_id = '{first}'"
        ))
    });
    db.start("another", "job").go();
    db.completes("another");
    assert_eq!(start(&mut db, "10", &add, "NULL"), first);
    db.run(&format!("SELECT xdb.resume_process('{first}')"));
    db.completes(&first);
    assert_eq!(called_with(&worker).into_values().filter(|input| input.is_number()).collect::<Vec<_>>(), [json!(11)]);

    let waits = start(&mut db, "1", &add, "now() + interval '1 hour'");
    app.superuser().run("SELECT xdb.pause_process_type('job', 'REJECT')");
    let sql = format!("SELECT xdb.start_process(NULL, 'job', input => '1', options => '{add}')");
    db.refused(codes::PAUSED, &sql);
    app.superuser().run("SELECT xdb.resume_process_type('job')");
    assert_eq!(start(&mut db, "1", &add, "NULL"), waits);
    db.run(&format!("SELECT xdb.stop_process('{waits}')"));
    app.done(&[]);
}

#[test]
fn a_merge_leaves_the_end_of_a_pause_where_it_is_and_moves_the_timeout() {
    let (app, worker) = application("merge_pause_until", ClusterOptions::default().own_clock());
    app.register("short", &one_step().with("timeoutSeconds", json!(7200)));
    let mut db = app.db();
    let ask = |db: &mut Db, hours: u32| {
        db.one::<String>(&format!(
            "SELECT xdb.start_process(NULL, 'short', input => '{hours}', start_at => now() + interval '{hours} h',
                options => '{{\"correlationKey\": \"k\", \"merge\": {{\"input\": \"REPLACE\", \"startAt\": \"REPLACE\"}}}}')::text"
        ))
    };
    let first = ask(&mut db, 1);
    db.run(&format!("SELECT xdb.pause_process('{first}', until => now() + interval '90 min')"));
    let fires = |db: &mut Db, kind: &str| {
        db.one::<f64>(&format!("SELECT extract(epoch FROM fire_at)::float8 FROM xdb.timers WHERE kind = '{kind}'"))
    };
    let (ends, times_out) = (fires(&mut db, "PROCESS_RESUME"), fires(&mut db, "PROCESS_TIMEOUT"));
    assert_eq!(ask(&mut db, 2), first);
    assert_eq!(fires(&mut db, "PROCESS_RESUME"), ends);
    let moved = fires(&mut db, "PROCESS_TIMEOUT") - times_out;
    assert!((3600.0..3700.0).contains(&moved), "{moved} s");
    // Had the one taken the other's place, the pause would not be over now, or the process would be.
    app.cluster().set_clock(5500.0);
    let paused = format!("SELECT paused FROM xdb.processes WHERE process_id = '{first}'");
    wait_until("the pause is over", 15, || !db.one::<bool>(&paused));
    db.start("other", "job").go();
    db.completes("other");
    assert_eq!(worker.count(|call| call.process_id() == first), 0, "it is not due yet");
    app.cluster().set_clock(7300.0);
    db.completes(&first);
    assert_eq!(worker.wait_for("its call", 5, |call| call.process_id() == first).input(), &json!(2));
    app.done(&[]);
}

/// The engine passes over the call of an open merge. After a rollback of the merge, the engine finds the call by
/// polling.
#[test]
fn a_merge_that_is_rolled_back_after_its_call_came_due_leaves_it_to_the_engine() {
    let (app, worker) = application("merge_rolled_back", ClusterOptions::default());
    let mut db = app.db();
    let add = json!({"correlationKey": "k", "merge": {"input": "public.app_add", "startAt": "KEEP"}});
    app.pause();
    let first = start(&mut db, "1", &add, "NULL");
    db.run("BEGIN");
    assert_eq!(start(&mut db, "10", &add, "NULL"), first);
    app.superuser().run("SELECT xdb.resume_engine()");
    let mut other = app.db();
    for id in ["other", "another"] {
        other.start(id, "job").go();
        other.completes(id);
    }
    assert_eq!(worker.count(|call| call.process_id() == first), 0, "it is being merged into");
    db.run("ROLLBACK");
    db.completes(&first);
    assert_eq!(worker.wait_for("its call", 5, |call| call.process_id() == first).input(), &json!(1));
    app.done(&[]);
}
