//! Owners share a worker. One owner with very many calls does not block other owners. The roles are `app` and `other`.

use xdb_cluster_tests::prelude::*;

const PATIENT: u64 = 60;

/// A limit for a busy machine, far below the time for which calls hang.
const AT_MOST: Duration = Duration::from_secs(10);

/// The role `app` is greedy, and `other` is modest. Both use one worker. Its calls of the type `slow` hang until it is
/// healed.
fn application(name: &str, max_concurrency: Option<u32>) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match call.target() {
        "Slow" => Reply::hang(force_complete(json!(null))),
        "Endless" => next("Endless", json!(null)).into(),
        _ => force_complete(json!(null)).into(),
    });
    let patient = json!({"executeApiTimeoutSeconds": PATIENT});
    app.register("slow", &Definition::starting_with("Slow").step_with("Slow", patient));
    app.register("endless", &Definition::starting_with("Endless").step("Endless"));
    app.register("quick", &one_step());
    if let Some(most) = max_concurrency {
        let url = worker.url();
        app.superuser().run(&format!("SELECT xdb.register_worker('stub', '{url}', max_concurrency => {most})"));
    }
    (app, worker)
}

fn start_many(db: &mut Db, prefix: &str, process_type: &str, count: u32) {
    db.run(&format!(
        "SELECT count(xdb.start_process('{prefix}-' || n, '{process_type}')) FROM generate_series(1, {count}) n"
    ));
}

fn of(prefix: &'static str) -> impl Fn(&Call) -> bool {
    move |call: &Call| call.process_id().starts_with(prefix)
}

/// Runs processes of the modest role one after the other, and checks that they are quick whatever another role does. A
/// busy machine may delay one of them, but not most of them. A process without a place waits until the hanging calls
/// end. A process that no scan finds waits for a poll.
fn quick_ones(modest: &mut Db, count: u32, beside: &str) {
    let one = |number| {
        let id = format!("modest-{number}");
        let (took, _) = timed(|| {
            modest.start(&id, "quick").go();
            modest.completes(&id)
        });
        took
    };
    let mut took: Vec<_> = (1..=count).map(one).collect();
    took.sort();
    let usual = took[took.len() / 2];
    assert!(usual < Duration::from_secs(1), "they took {took:?} beside {beside}");
    assert!(took.iter().all(|took| *took < AT_MOST), "they took {took:?} beside {beside}");
}

/// Checks that everything completes, whatever hangs.
fn finish(app: &App, worker: &Worker, pattern: &str, count: i64) {
    worker.misbehave(|_| force_complete(json!(null)));
    worker.release();
    let mut db = app.superuser();
    wait_until("all complete", 60, || views::with_status(&mut db, pattern, "COMPLETED") == count);
}

/// Runs `starts` while the engine is paused. So the engine finds all started processes at once.
fn at_once(app: &App, starts: impl FnOnce()) {
    app.pause();
    starts();
    app.resume();
}

#[test]
fn calls_of_one_that_hang_do_not_keep_another_from_the_worker() {
    let (app, worker) = application("fair_hanging", Some(64));
    let (mut greedy, mut modest) = (app.db(), app.session("other"));
    start_many(&mut greedy, "greedy", "slow", 300);
    // Alone it gets nearly everything: eight ninths of 64.
    worker.wait_for_count("its calls", 20, 57, of("greedy"));
    quick_ones(&mut modest, 20, "calls that hang");
    assert_eq!(worker.count(of("greedy")), 57);
    finish(&app, &worker, "greedy-%", 300);
    app.done(&[]);
}

#[test]
fn hanging_calls_leave_places_for_another_worker_too() {
    let (app, worker) = application("fair_two_workers", Some(64));
    let _other = app.worker_named("second", |_| force_complete(json!(null)));
    app.register_with("second", "elsewhere", &one_step());
    let (mut greedy, mut modest) = (app.db(), app.session("other"));
    start_many(&mut greedy, "greedy", "slow", 300);
    worker.wait_for_count("its calls", 20, 57, of("greedy"));
    for process_type in ["quick", "elsewhere"] {
        modest.start(process_type, process_type).go();
        let (took, _) = timed(|| modest.completes(process_type));
        assert!(took < AT_MOST, "{process_type} took {took:?} beside calls that hang");
    }
    finish(&app, &worker, "greedy-%", 300);
    app.done(&[]);
}

#[test]
fn large_requests_that_hang_keep_no_small_one_from_going_out() {
    let options = ClusterOptions::default().set("xdb.max_in_flight", "64");
    let app = App::alone("fair_bytes", options);
    let worker = app.worker(|call: &Call| match call.target() {
        "Slow" => Reply::hang(force_complete(json!(null))),
        _ => force_complete(json!(null)).into(),
    });
    let patient = json!({"executeApiTimeoutSeconds": PATIENT});
    app.register("slow", &Definition::starting_with("Slow").step_with("Slow", patient));
    app.register("quick", &one_step());
    let (mut greedy, mut modest) = (app.db(), app.session("other"));
    greedy.run(
        "SELECT count(xdb.start_process('greedy-' || n, 'slow', to_jsonb(repeat('x', 200000)))) FROM generate_series(1, 60) n",
    );
    // Each takes two places: another one would leave less than a ninth of 64 free.
    worker.wait_for_count("its calls", 20, 29, of("greedy"));
    quick_ones(&mut modest, 5, "large requests that hang");
    modest.start("modest-large", "quick").input(json!("x".repeat(200_000))).go();
    modest.completes("modest-large");
    assert_eq!(worker.count(of("greedy")), 29);
    finish(&app, &worker, "greedy-%", 60);
    app.done(&[]);
}

/// Four processes make this decision at once. It begins enough threads that each process fills a turn.
fn each_fills_a_turn(name: &str, decision: Value) {
    let app = App::alone(name, ClusterOptions::default());
    let worker = app.worker(move |call: &Call| match call.target() {
        "Only" => Reply::hang(Reply::Json(200, json!({"stateDecision": decision}))),
        _ => dead_end().into(),
    });
    app.register("wide", &Definition::starting_with("Only").step("Only").step("Leaf"));
    let mut db = app.db();
    start_many(&mut db, "wide", "wide", 4);
    worker.wait_for_count("the calls", 20, 4, |_| true);
    for number in 1..=4 {
        db.publish(&format!("wide-{number}"), "full", json!(number));
    }
    // Whichever answer comes first, the others are in the backlog at the engine's next turn.
    worker.release();
    let mut superuser = app.superuser();
    let begun = "xdb.state_execution WHERE state_id = 'Leaf'";
    wait_until("all have begun", 60, || superuser.count(begun) == 4 * THREADS as i64);
    let turns: i64 = superuser.one(
        "SELECT count(DISTINCT xmin::text) FROM xdb.history_event
         WHERE event_type = 'StateCompleted' AND details ->> 'seq' = '1'",
    );
    assert_eq!(turns, 4, "each fills a turn");
    app.done(&[]);
}

const THREADS: usize = 4500;

#[test]
fn one_turn_applies_large_answers_up_to_its_budget() {
    each_fills_a_turn("fair_portions", json!({"nextStates": vec![json!({"stateId": "Leaf"}); THREADS]}));
}

#[test]
fn the_next_states_of_a_conditional_close_may_be_large_too() {
    let close = json!({"closeType": "FORCE_COMPLETE_PROCESS", "whenLocalQueuesEmpty": ["full"], "closeInput": null});
    let next = vec![json!({"stateId": "Leaf"}); THREADS];
    each_fills_a_turn("fair_portions_close", json!({"conditionalClose": close, "nextStates": next}));
}

#[test]
fn a_large_answer_that_ends_many_threads_goes() {
    let app = App::alone("fair_close", ClusterOptions::default());
    let _worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, queue) => any_of(&[local_queue("q", queue, 1)]),
        (Api::Execute, "Only") => {
            let leaves = (0..5000).map(|_| ("Leaf", json!(null)));
            next_all(&leaves.chain([("End", json!(null))]).collect::<Vec<_>>())
        }
        (_, _) => force_complete(json!("done")).locals(json!({"page": "x".repeat(45_000)})),
    });
    app.register("wide", &Definition::starting_with("Only").step("Only").waiting_step("Leaf").waiting_step("End"));
    let mut db = app.db();
    db.start("p", "wide").go();
    wait_until("all wait", 60, || app.superuser().count("xdb.queue_waiter") == 5001);
    db.publish("p", "End", json!(null));
    assert_eq!(db.completes("p").result(), &json!("done"));
    app.done(&[]);
}

#[test]
fn two_busy_owners_get_equal_shares() {
    let (app, worker) = application("fair_equal", Some(64));
    at_once(&app, || {
        start_many(&mut app.db(), "first", "slow", 300);
        start_many(&mut app.session("other"), "second", "slow", 300);
    });
    worker.wait_for_count("the room is used", 20, 60, |_| true);
    let parts = [worker.count(of("first")), worker.count(of("second"))];
    assert!(parts.iter().all(|part| (29..=32).contains(part)), "{parts:?} of 64");
    finish(&app, &worker, "%", 600);
    app.done(&[]);
}

#[test]
fn thousands_of_due_calls_of_one_do_not_delay_another() {
    let (app, worker) = application("fair_backlog", None);
    let mut db = app.superuser();
    // In one transaction: a scan between two of them would find the calls of one role alone.
    db.run("BEGIN; SET ROLE app");
    start_many(&mut db, "greedy", "quick", 5000);
    db.run("SET ROLE other");
    start_many(&mut db, "modest", "quick", 100);
    db.run("COMMIT; RESET ROLE");
    wait_until("all of the other's are done", 60, || views::with_status(&mut db, "modest-%", "COMPLETED") == 100);
    let before = worker.calls().iter().rposition(of("modest")).expect("they were called");
    assert!(before < 500, "{before} calls were made before the last of the other's");
    wait_until("all complete", 60, || views::with_status(&mut db, "greedy-%", "COMPLETED") == 5000);
    app.done(&[]);
}

#[test]
fn owners_take_turns_at_a_worker_with_one_call_at_a_time() {
    let (app, worker) = application("fair_turns", Some(1));
    at_once(&app, || {
        start_many(&mut app.db(), "greedy", "quick", 200);
        start_many(&mut app.session("other"), "modest", "quick", 20);
    });
    let mut db = app.superuser();
    wait_until("all complete", 60, || views::with_status(&mut db, "%", "COMPLETED") == 220);
    let before = worker.calls().iter().rposition(of("modest")).expect("they were called");
    assert!(before <= 41, "{before} calls were made before the last of the other's");
    app.done(&[]);
}

/// Starts processes of a type with a priority.
fn prioritised(process_type: &str, prefix: &str, count: u32, priority: i32) -> String {
    format!(
        "SELECT count(xdb.start_process('{prefix}-' || n, '{process_type}', options => '{{\"priority\": {priority}}}'))
         FROM generate_series(1, {count}) n"
    )
}

/// How many calls an owner may count as behind the others: `BEHIND` of `crates/sched/src/room.rs`.
const BEHIND: usize = 4;

/// How many of the first calls each owner got. The names of an owner's processes begin with its word.
fn shares(first: &[String], owners: [&str; 3]) -> [usize; 3] {
    owners.map(|owner| first.iter().filter(|id| id.starts_with(owner)).count())
}

/// Priorities order the calls of one owner. How owners share a worker does not depend on them.
#[test]
fn owners_take_turns_at_a_small_worker_regardless_of_priorities() {
    let (app, worker) = application("fair_priorities", Some(1));
    for priority in [10, 0, -10] {
        at_once(&app, || {
            app.db().run(&prioritised("quick", &format!("greedy{priority}"), 60, priority));
            app.session("other").run(&prioritised("quick", &format!("modest-low{priority}"), 5, -1));
            app.session("other").run(&prioritised("quick", &format!("modest-high{priority}"), 5, 1));
            app.session("boss").run(&prioritised("quick", &format!("third{priority}"), 20, -priority));
        });
        let mut db = app.superuser();
        wait_until("all complete", 60, || views::with_status(&mut db, "%", "RUNNING") == 0);
        let calls: Vec<_> = worker.calls().iter().map(|call| call.process_id().to_owned()).collect();
        let calls = &calls[calls.len() - 90..];
        // While all three have calls, each gets a third. Who had fewer calls in the round before gets a few more.
        let got = shares(&calls[..27], ["greedy", "modest", "third"]);
        let third = 9 - BEHIND..=9 + BEHIND;
        assert!(got.iter().all(|calls| third.contains(calls)), "{got:?}, with priority {priority}: {calls:?}");
        let before = calls.iter().rposition(|id| id.starts_with("modest")).expect("they were called");
        assert!(before <= 31, "{before} calls were made before the last of its ten: {calls:?}");
        let of_modest: Vec<_> = calls.iter().filter(|id| id.starts_with("modest")).collect();
        assert!(of_modest[..5].iter().all(|id| id.starts_with("modest-high")), "{of_modest:?}");
    }
    app.done(&[]);
}

/// The most calls that a runner has in hand, and claims of one owner at a time: `RUNNERS_CALLS` of `src/turn/role.rs`.
const RUNNERS_CALLS: usize = 16;

/// The most calls of `one` between two calls of `other`, or before its first one.
fn most_between(calls: &[String], one: &str, other: &str) -> usize {
    let last = calls.iter().rposition(|id| id.starts_with(other)).expect("they were called");
    let stretches = calls[..=last].split(|id| id.starts_with(other));
    stretches.map(|between| between.iter().filter(|id| id.starts_with(one)).count()).max().unwrap_or_default()
}

/// Between two claims for an owner, a runner claims once for each other owner, and may have calls of that owner in hand
/// from before. This holds for one runner: several runners don't wait for each other.
#[test]
fn owners_take_turns_at_functions_regardless_of_priorities() {
    let app = App::alone("fair_functions", ClusterOptions::default().set("xdb.runners", "1"));
    app.db().run(
        "CREATE TABLE public.called (id int GENERATED ALWAYS AS IDENTITY, process text);
         GRANT ALL ON public.called TO PUBLIC;
         CREATE FUNCTION public.note(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
         BEGIN
             INSERT INTO public.called (process) VALUES (request->'context'->>'processId');
             RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"GRACEFUL_COMPLETE_PROCESS\"}}}';
         END $$",
    );
    let definition = Definition::starting_with("Note").step_with("Note", json!({"executeFunction": "public.note"}));
    app.superuser().run(&format!("SELECT xdb.register_process_type('note', NULL, '{}')", definition.json()));
    for priority in [10, 0, -10] {
        at_once(&app, || {
            app.db().run(&prioritised("note", &format!("greedy{priority}"), 150, priority));
            app.session("other").run(&prioritised("note", &format!("modest-low{priority}"), 20, -1));
            app.session("other").run(&prioritised("note", &format!("modest-high{priority}"), 20, 1));
            app.session("boss").run(&prioritised("note", &format!("third{priority}"), 60, -priority));
        });
        let mut db = app.superuser();
        wait_until("all complete", 60, || views::with_status(&mut db, "%", "RUNNING") == 0);
        let calls: Vec<String> = db.all("SELECT process FROM public.called ORDER BY id");
        db.run("DELETE FROM public.called");
        // While all three have calls, each gets a third. A claim takes several calls of one owner.
        let got = shares(&calls[..90], ["greedy", "modest", "third"]);
        let third = 30 - RUNNERS_CALLS..=30 + RUNNERS_CALLS;
        assert!(got.iter().all(|calls| third.contains(calls)), "{got:?}, with priority {priority}: {calls:?}");
        // By due time, all calls with the lower priority would come first. A few calls may come later: on a busy machine,
        // a function that took 5 ms beside others is called again.
        let of_modest: Vec<_> = calls.iter().filter(|id| id.starts_with("modest")).collect();
        let high = of_modest[..20].iter().filter(|id| id.starts_with("modest-high")).count();
        assert!(high >= 15, "{high} calls of a higher priority came first: {of_modest:?}");
        for (one, other) in [("greedy", "modest"), ("greedy", "third"), ("third", "modest"), ("modest", "third")] {
            let most = most_between(&calls, one, other);
            assert!(
                most <= 2 * RUNNERS_CALLS,
                "{most} calls of {one} between two of {other}, with priority {priority}: {calls:?}"
            );
        }
    }
    app.done(&[]);
}

#[test]
fn endless_processes_leave_turns_to_other_owners() {
    let (app, worker) = application("fair_endless", Some(2));
    start_many(&mut app.db(), "greedy", "endless", 10);
    worker.wait_for_count("they go on", 20, 50, of("greedy"));
    quick_ones(&mut app.session("other"), 20, "processes that go on and on");
    finish(&app, &worker, "greedy-%", 10);
    app.done(&[]);
}

#[test]
fn a_single_owner_uses_all_of_a_few_places() {
    let (app, worker) = application("fair_small", Some(8));
    start_many(&mut app.db(), "greedy", "slow", 20);
    worker.wait_for_count("its calls", 20, 8, of("greedy"));
    finish(&app, &worker, "greedy-%", 20);
    app.done(&[]);
}
