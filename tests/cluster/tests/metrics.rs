//! `xdb.metrics()` and `xdb.openmetrics()`: what is counted, who may read it, and the text of a scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;

/// The value of the sample with exactly these labels, in whole numbers. A sample that is not there counts as zero.
fn metric(db: &mut Db, name: &str, labels: Value) -> i64 {
    db.one(&format!(
        "SELECT COALESCE(sum(value), 0)::int8 FROM xdb.metrics() WHERE name = {} AND labels = {}",
        literal(name),
        jsonb(&labels)
    ))
}

fn wait_for(db: &mut Db, name: &str, labels: Value, expected: i64) {
    let mut now = 0;
    wait_until(&format!("{name} {labels} is {expected}"), 20, || {
        now = metric(db, name, labels.clone());
        now == expected
    });
}

fn calls(worker: &str, api: &str, outcome: &str) -> Value {
    json!({"worker": worker, "api": api, "outcome": outcome})
}

#[test]
fn starts_steps_and_closes_are_counted_by_type() {
    let app = App::new("metrics_types");
    let _worker = app.worker(|call: &Call| match (call.process_id(), call.target()) {
        (_, "First") => next("Second", json!(null)).into(),
        ("fails", _) => error(500, "Broken", "it does not work"),
        ("hangs" | "late", _) => Reply::hang(force_complete(json!(null))),
        _ => force_complete(json!(null)).into(),
    });
    app.register("two", &Definition::starting_with("First").step("First").step("Second"));
    app.register(
        "fails",
        &Definition::starting_with("Only").step_with("Only", json!({"executeApiRetryPolicy": attempts(3)})),
    );
    app.register("hangs", &one_step());
    let (mut db, mut boss) = (app.db(), app.session("boss"));
    for n in 0..3 {
        db.start(&format!("two-{n}"), "two").go();
        db.completes(&format!("two-{n}"));
    }
    db.start("fails", "fails").go();
    wait_until("it has failed", 20, || db.status("fails") == "FAILED");
    db.start("hangs", "hangs").go();
    db.run("SELECT xdb.stop_process('hangs')");
    db.start("late", "hangs").timeout("1 s").go();
    wait_until("it has timed out", 20, || db.status("late") == "TIMEOUT");
    for (name, labels, expected) in [
        ("xdb_processes_started_total", json!({"type": "two"}), 3),
        ("xdb_processes_started_total", json!({"type": "hangs"}), 2),
        ("xdb_processes_closed_total", json!({"type": "two", "status": "completed"}), 3),
        ("xdb_processes_closed_total", json!({"type": "two", "status": "failed"}), 0),
        ("xdb_processes_closed_total", json!({"type": "fails", "status": "failed"}), 1),
        ("xdb_processes_closed_total", json!({"type": "hangs", "status": "terminated"}), 1),
        ("xdb_processes_closed_total", json!({"type": "hangs", "status": "timeout"}), 1),
        ("xdb_steps_total", json!({"type": "two"}), 6),
        ("xdb_steps_total", json!({"type": "fails"}), 0),
        ("xdb_state_failures_total", json!({"type": "fails"}), 1),
        ("xdb_calls_total", calls("stub", "execute", "ok"), 6),
        ("xdb_calls_total", calls("stub", "execute", "worker_error"), 3),
        // A call that is cut off is not counted. The process timeout is a timer.
        ("xdb_call_duration_seconds_count", json!({"worker": "stub", "api": "execute"}), 9),
        ("xdb_timers_fired_total", json!({}), 1),
        ("xdb_timer_lateness_seconds_count", json!({}), 1),
    ] {
        wait_for(&mut boss, name, labels, expected);
    }
    app.done(&[]);
}

#[test]
fn the_figures_say_what_the_engine_does_now() {
    let app = App::alone("metrics_figures", ClusterOptions::default());
    let _worker = app.worker(|call: &Call| match call.process_id() {
        "hangs" => Reply::hang(force_complete(json!(null))),
        "strays" => next("Nowhere", json!(null)).into(),
        _ => force_complete(json!(null)).into(),
    });
    app.register("one", &one_step());
    let (mut db, mut boss) = (app.db(), app.session("boss"));
    let stub = || json!({"worker": "stub"});
    db.start("hangs", "one").go();
    wait_for(&mut boss, "xdb_calls_in_flight", stub(), 1);
    let limit = boss.one::<i32>("SELECT max_concurrency FROM xdb.workers WHERE name = 'stub'");
    assert_eq!(metric(&mut boss, "xdb_worker_concurrency_limit", stub()), i64::from(limit));
    for (state, expected) in [("closed", 1), ("half-open", 0), ("open", 0)] {
        assert_eq!(
            metric(&mut boss, "xdb_breaker_state", json!({"worker": "stub", "state": state})),
            expected,
            "{state}"
        );
    }
    db.run("SELECT xdb.stop_process('hangs')");
    wait_for(&mut boss, "xdb_calls_in_flight", stub(), 0);
    db.start("strays", "one").go();
    wait_until("its call is repeated", 20, || metric(&mut boss, "xdb_call_repeats_total", stub()) > 0);
    db.run("SELECT xdb.stop_process('strays')");
    wait_for(&mut boss, "xdb_calls_due", json!({}), 0);

    let is_positive = |boss: &mut Db, name: &str| {
        boss.one::<bool>(&format!("SELECT value > 0 FROM xdb.metrics() WHERE name = {}", literal(name)))
    };
    app.pause();
    db.run("SELECT count(xdb.start_process('p' || n, 'one')) FROM generate_series(1, 3) n");
    wait_for(&mut boss, "xdb_calls_due", json!({}), 3);
    assert!(is_positive(&mut boss, "xdb_oldest_due_age_seconds"));
    app.resume();
    (1..=3).for_each(|n| drop(db.completes(&format!("p{n}"))));
    wait_for(&mut boss, "xdb_calls_due", json!({}), 0);
    assert!(!is_positive(&mut boss, "xdb_oldest_due_age_seconds"));
    assert_eq!((metric(&mut boss, "xdb_slow_objects", json!({})), metric(&mut boss, "xdb_runners", json!({}))), (0, 0));
    app.superuser().run(
        r#"CREATE FUNCTION public.nothing(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT NULL::jsonb FROM pg_sleep(2) $$;
           SELECT xdb.register_process_type('runs', NULL,
               '{"startingState": "R", "states": {"R": {"skipWaitUntil": true, "executeFunction": "public.nothing"}}}')"#,
    );
    db.start("runs", "runs").go();
    wait_for(&mut boss, "xdb_runners", json!({}), 1);
    db.run("SELECT xdb.stop_process('runs')");

    app.pause();
    assert!(!is_positive(&mut boss, "xdb_retention_overdue_seconds"));
    app.cluster().set("xdb.retention", "1");
    wait_until("an execution should have been deleted", 20, || is_positive(&mut boss, "xdb_retention_overdue_seconds"));
    // A bucket has what the bucket before has, and more.
    for name in ["xdb_turn_duration_seconds", "xdb_call_duration_seconds"] {
        let histogram = format!(
            "WITH m AS MATERIALIZED (SELECT name, labels, value FROM xdb.metrics()
                 WHERE COALESCE(labels ->> 'worker', 'stub') = 'stub'),
             b AS (SELECT labels, value, lag(value, 1, 0) OVER (ORDER BY (labels ->> 'le')::float8) AS before
                 FROM m WHERE name = '{name}_bucket')
             SELECT jsonb_build_object('steps', count(*), 'last', max(value), 'rises', bool_and(value >= before),
                 'ends', max(value) FILTER (WHERE labels ->> 'le' = '+Inf'),
                 'count', (SELECT value FROM m WHERE name = '{name}_count'),
                 'turns', (SELECT value FROM m WHERE name = 'xdb_turns_total'),
                 'has_sum', (SELECT value > 0 FROM m WHERE name = '{name}_sum'))
             FROM b"
        );
        let read = boss.json(&histogram);
        assert!(read["rises"] == json!(true) && read["has_sum"] == json!(true), "{name}: {read}");
        assert!(read["ends"] == read["count"] && read["last"] == read["count"], "{name}: {read}");
        assert!(read["steps"].as_i64() > Some(5) && read["count"].as_f64() > Some(0.0), "{name}: {read}");
        assert!(name.starts_with("xdb_call") || read["count"] == read["turns"], "{name}: {read}");
    }
    app.done(&[]);
}

#[test]
fn only_what_commits_is_counted() {
    let app = App::new("metrics_commits");
    let _worker = app.worker(|_: &Call| all_of(&[local_queue("m", "inbox", 100)]));
    app.register("mail", &mailbox());
    let (mut db, mut boss) = (app.db(), app.session("boss"));
    db.run("BEGIN; SELECT xdb.start_process('never', 'mail'); SELECT xdb.publish_global('g', '1'); ROLLBACK");
    db.run(
        "BEGIN; SELECT xdb.start_process('p', 'mail');
         SAVEPOINT a; SELECT xdb.start_process('q', 'mail'); SELECT xdb.publish('p', 'inbox', '1'); ROLLBACK TO a;
         SAVEPOINT b; SELECT xdb.publish('p', 'inbox', '1'); SAVEPOINT c; SELECT xdb.publish('p', 'inbox', '2'); RELEASE b;
         SELECT xdb.publish_global('g', '1'); COMMIT",
    );
    // A message that was published before is none.
    db.run("SELECT xdb.publish('p', 'inbox', '3', 'once'); SELECT xdb.publish('p', 'inbox', '3', 'once')");
    assert_eq!(metric(&mut boss, "xdb_processes_started_total", json!({"type": "mail"})), 1);
    assert_eq!(metric(&mut boss, "xdb_messages_published_total", json!({"scope": "local"})), 3);
    assert_eq!(metric(&mut boss, "xdb_messages_published_total", json!({"scope": "global"})), 1);
    app.done(&[]);
}

#[test]
fn the_message_about_a_child_is_counted_as_others_are() {
    let app = App::new("metrics_children");
    let child = json!([{"processType": "child", "onClose": "ended"}]);
    let _worker = app.worker(move |call: &Call| match (call.api, call.target()) {
        (_, "Begin") => next("Join", json!(null)).starting(child.clone()),
        (Api::WaitUntil, _) => any_of(&[local_queue("all", "ended", 1)]),
        _ => force_complete(json!(null)),
    });
    app.register("child", &one_step());
    let parent = Definition::starting_with("Begin").step("Begin").waiting_step("Join");
    app.register("parent", &parent.with("localQueues", json!(["ended"])));
    let (mut db, mut boss) = (app.db(), app.session("boss"));
    db.start("p", "parent").go();
    db.completes("p");
    for name in ["xdb_messages_published_total", "xdb_messages_taken_total"] {
        wait_for(&mut boss, name, json!({"scope": "local"}), 1);
    }
    app.done(&[]);
}

#[test]
fn each_call_is_counted_once_by_its_outcome() {
    let app = App::new("metrics_outcomes");
    app.db().run("ALTER TABLE counters ADD CHECK (n < 10)");
    let worker = app.worker(|call: &Call| match (call.process_id(), call.attempt()) {
        ("slow", 1) => Reply::hang(force_complete(json!(null))),
        ("invalid", 1) => Reply::Json(200, json!({"stateDecision": 7})),
        ("refused", 1) => force_complete(json!(null)).globals(json!({"n": 99})).into(),
        ("failed", 1) => error(400, "Timeout", "the name of an error does not decide"),
        _ => force_complete(json!(null)).into(),
    });
    let quick = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 1}, "executeApiTimeoutSeconds": 1});
    app.register(
        "one",
        &Definition::starting_with("Only").step_with("Only", quick).maps("public.counters", "id", &["n"]),
    );
    let gone = app.worker_named("gone", |_| force_complete(json!(null)));
    app.register_with("gone", "away", &one_step());
    gone.go_away();
    let (mut db, mut boss) = (app.db(), app.session("boss"));
    for id in ["slow", "invalid", "refused", "failed"] {
        db.start(id, "one").key(id).globals(json!({"n": 0})).go();
    }
    db.start("away", "away").go();
    for id in ["slow", "invalid", "refused", "failed"] {
        db.completes(id);
    }
    worker.release();
    for outcome in ["timeout", "invalid_answer", "database_error", "worker_error"] {
        wait_for(&mut boss, "xdb_calls_total", calls("stub", "execute", outcome), 1);
    }
    wait_for(&mut boss, "xdb_calls_total", calls("stub", "execute", "ok"), 4);
    wait_until("it can't be reached", 20, || {
        metric(&mut boss, "xdb_calls_total", calls("gone", "execute", "unreachable")) > 0
    });
    gone.come_back();
    db.completes("away");
    app.done(&[]);
}

#[test]
fn functions_rpcs_and_pull_workers_are_counted() {
    let app = App::new("metrics_others");
    let _worker = app.worker(|call: &Call| match call.api {
        Api::Rpc if call.target() == "bad" => error(500, "Broken", "it does not work"),
        Api::Rpc => output(json!(1)).into(),
        _ => all_of(&[local_queue("m", "inbox", 1)]).into(),
    });
    let (mut db, mut boss, mut superuser) = (app.db(), app.session("boss"), app.superuser());
    db.run(
        "CREATE FUNCTION done(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
             SELECT '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}'::jsonb $$",
    );
    app.register("mail", &mailbox().rpc("ask", json!({})).rpc("bad", json!({})));
    app.register(
        "function",
        &Definition::starting_with("Only").step_with("Only", json!({"executeFunction": "public.done"})),
    );
    superuser.run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "pulled", &one_step());
    db.start("f", "function").go();
    db.completes("f");
    db.start("mail", "mail").go();
    db.rpc("mail", "ask", json!(null));
    db.run("BEGIN; SELECT xdb.invoke_rpc('mail', 'ask'); ROLLBACK");
    db.refused("XD010", "SELECT xdb.invoke_rpc('mail', 'bad')");
    db.start("pulled", "pulled").go();
    let claim = "SELECT token FROM xdb.claim_calls('pull', wait => '10 s')";
    let token: String = db.one(claim);
    db.run(&format!(
        "SELECT xdb.fail_call({}, '{{\"errorType\": \"Busy\", \"retryAfterSeconds\": 0}}')",
        literal(&token)
    ));
    let token: String = db.one(claim);
    let answer = json!({"stateDecision": {"threadCloseDecision": {"closeType": "FORCE_COMPLETE_PROCESS"}}});
    db.run(&format!("SELECT xdb.complete_call({}, {})", literal(&token), jsonb(&answer)));
    db.completes("pulled");
    for (labels, expected) in [
        (calls("(function)", "execute", "ok"), 1),
        (calls("stub", "wait_until", "ok"), 1),
        // An RPC is a call, whatever becomes of its transaction.
        (calls("stub", "rpc", "ok"), 2),
        (calls("stub", "rpc", "worker_error"), 1),
        (calls("pull", "execute", "worker_error"), 1),
        (calls("pull", "execute", "ok"), 1),
    ] {
        wait_for(&mut boss, "xdb_calls_total", labels, expected);
    }
    for (worker, api, expected) in [("(function)", "execute", 1), ("stub", "rpc", 3), ("pull", "execute", 0)] {
        wait_for(&mut boss, "xdb_call_duration_seconds_count", json!({"worker": worker, "api": api}), expected);
    }
    db.publish("mail", "inbox", json!(1));
    wait_for(&mut boss, "xdb_messages_taken_total", json!({"scope": "local"}), 1);
    app.done(&[]);
}

/// The samples of a scrape: the names of families in their order, and each sample with its labels. Fails if the text is
/// not as OpenMetrics 1.0 or, with `classic`, the text format of Prometheus wants it.
fn parse(text: &str, classic: bool) -> BTreeMap<String, f64> {
    let (mut families, mut samples) = (BTreeMap::new(), BTreeMap::new());
    let (mut family, mut kind) = (String::new(), String::new());
    let mut lines = text.lines().collect::<Vec<_>>();
    if !classic {
        assert_eq!(lines.pop(), Some("# EOF"));
    }
    assert!(text.ends_with('\n'));
    for line in lines {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            ["#", word @ ("TYPE" | "HELP" | "UNIT"), name, rest] => {
                if *name != family {
                    assert!(families.insert((*name).to_owned(), ()).is_none(), "{name} comes twice");
                    family = (*name).to_owned();
                }
                match *word {
                    "TYPE" => kind = (*rest).to_owned(),
                    "UNIT" => assert!(family.ends_with(&format!("_{rest}")), "{line}"),
                    _ => assert!(rest.ends_with('.'), "{line}"),
                }
            }
            ["#", ..] => panic!("{line}"),
            _ => {
                let (sample, value) = line.rsplit_once(' ').expect("a value");
                let name = sample.split('{').next().expect("a name");
                let suffix = name.strip_prefix(&family).unwrap_or_else(|| panic!("{line} in {family}"));
                let expected: &[&str] = match (kind.as_str(), classic) {
                    ("counter", false) => &["_total"],
                    ("info", false) => &["_info"],
                    ("histogram", _) => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                assert!(expected.contains(&suffix), "{line} in {family}, a {kind}");
                let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
                assert!(value.is_finite() && value >= 0.0, "{line}");
                assert!(samples.insert(sample.to_owned(), value).is_none(), "{line} comes twice");
            }
        }
    }
    samples
}

#[test]
fn a_scrape_is_well_formed_whatever_the_names_are() {
    let app = App::new("metrics_names");
    let hostile = "a\"b\\c\nd{e=\"f\"} # 7";
    let _worker = app.worker_named(hostile, |_| force_complete(json!(null)));
    // These also stand for everything else.
    let _other = app.worker_named("(function)", |_| force_complete(json!(null)));
    app.register_with(hostile, hostile, &one_step());
    app.register_with("(function)", "other", &one_step());
    let (mut db, mut boss) = (app.db(), app.session("boss"));
    for (id, process_type) in [("p", hostile), ("q", "other")] {
        db.start(id, process_type).go();
        db.completes(id);
    }
    wait_for(&mut boss, "xdb_steps_total", json!({"type": hostile}), 1);
    let open = parse(&boss.text("SELECT xdb.openmetrics()"), false);
    let classic = parse(&boss.text("SELECT xdb.openmetrics(classic => true)"), true);
    let names = |samples: &BTreeMap<String, f64>| samples.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&open), names(&classic));
    let escaped = r#"a\"b\\c\nd{e=\"f\"} # 7"#;
    assert_eq!(open[&format!("xdb_steps_total{{type=\"{escaped}\"}}")], 1.0);
    assert_eq!(open["xdb_steps_total{type=\"other\"}"], 1.0);
    assert_eq!(open["xdb_engine_state{state=\"running\"}"], 1.0);
    // Both forms have the samples of the table.
    let rows: Vec<String> = boss.all("SELECT DISTINCT name FROM xdb.metrics()");
    let in_text: BTreeSet<_> =
        open.keys().map(|sample| sample.split('{').next().unwrap_or_default().to_owned()).collect();
    assert_eq!(rows.into_iter().collect::<BTreeSet<_>>(), in_text);
    app.done(&[]);
}

/// Every family of the documentation is in a scrape, and the other way round.
#[test]
fn the_documentation_lists_all_families() {
    let app = App::new("metrics_documented");
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step());
    let (mut db, mut boss) = (app.db(), app.session("boss"));
    db.start("p", "one").go();
    db.completes("p");
    wait_for(&mut boss, "xdb_steps_total", json!({"type": "one"}), 1);
    let scrape = boss.text("SELECT xdb.openmetrics(classic => true)");
    let families: BTreeSet<_> =
        scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let page = include_str!("../../../docs/monitoring.md");
    let documented = page
        .lines()
        .filter(|line| line.starts_with("| `xdb_"))
        .flat_map(|line| line.split('|').nth(1).unwrap_or_default().split('`').filter(|word| word.starts_with("xdb_")));
    assert_eq!(families, documented.collect::<BTreeSet<_>>());
    app.done(&[]);
}

#[test]
fn promtool_accepts_a_scrape() {
    let app = App::new("metrics_promtool");
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step());
    let (mut db, mut boss) = (app.db(), app.session("boss"));
    db.start("p", "one").go();
    db.completes("p");
    wait_for(&mut boss, "xdb_steps_total", json!({"type": "one"}), 1);
    let scrape = boss.text("SELECT xdb.openmetrics(classic => true)");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/promtool");
    let mut promtool = Command::new(script)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("scripts/promtool");
    promtool.stdin.take().expect("a pipe").write_all(scrape.as_bytes()).expect("promtool reads");
    let output = promtool.wait_with_output().expect("promtool ends");
    let says = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && says.is_empty(), "{says}");
    app.done(&[]);
}

#[test]
fn ten_thousand_types_give_at_most_201_labels() {
    const TYPES: i64 = 10_000;
    const USED: i64 = 1_000;
    let app = App::new("metrics_many_types");
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("type-0", &one_step());
    let (mut db, mut boss, mut superuser) = (app.db(), app.session("boss"), app.superuser());
    superuser.run("SELECT xdb.pause_engine()");
    superuser.run(&format!(
        "INSERT INTO xdb.process_type OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(t, jsonb_build_object(
             'type_id', t.type_id + n, 'process_type', 'type-' || n))).*
         FROM xdb.process_type t, generate_series(1, {TYPES}) n"
    ));
    db.run(&format!("SELECT count(xdb.start_process('p' || n, 'type-' || n * 7)) FROM generate_series(1, {USED}) n"));
    let started = "xdb.metrics() WHERE name = 'xdb_processes_started_total'";
    assert_eq!(boss.count(started), 201);
    assert_eq!(boss.one::<i64>(&format!("SELECT sum(value)::int8 FROM {started}")), USED);
    assert_eq!(metric(&mut boss, "xdb_processes_started_total", json!({"type": "other"})), USED - 200);
    let labels = "SELECT count(DISTINCT labels ->> 'type') FROM xdb.metrics() WHERE labels ? 'type'";
    assert_eq!(boss.one::<i64>(labels), 201);
    app.done(&[]);
}

#[test]
fn a_257th_worker_is_called_and_has_no_figures() {
    const WORKERS: i64 = 257;
    // All databases of a server share the entries.
    let app = App::alone("metrics_many_workers", ClusterOptions::default());
    let worker = app.worker(|_: &Call| force_complete(json!(null)));
    let (mut db, mut boss) = (app.db(), app.session("boss"));
    app.superuser().run(&format!(
        "SELECT count(xdb.register_worker('worker-' || n, {}))
             + count(xdb.register_process_type('type-' || n, 'worker-' || n, {}))
         FROM generate_series(1, {WORKERS}) n",
        literal(&worker.url()),
        jsonb(one_step().json())
    ));
    db.run(&format!("SELECT count(xdb.start_process('p' || n, 'type-' || n)) FROM generate_series(1, {WORKERS}) n"));
    wait_until("all processes are completed", 30, || db.count("xdb.processes WHERE status = 'COMPLETED'") == WORKERS);
    let samples =
        |name: &str, of: &str| format!("xdb.metrics() WHERE name = '{name}' AND labels ->> 'worker' LIKE '{of}'");
    assert_eq!(boss.count(&samples("xdb_worker_concurrency_limit", "worker-%")), WORKERS);
    assert_eq!(boss.count(&samples("xdb_calls_in_flight", "worker-%")), 256);
    assert_eq!(boss.count(&samples("xdb_breaker_state", "worker-%")), 3 * 256);
    let name = boss.text(
        "SELECT name FROM xdb.workers WHERE breaker IS NULL AND calls IS NULL AND in_flight IS NULL AND waiting = 0",
    );
    assert_eq!(boss.count(&samples("xdb_breaker_state", &name)), 0, "{name}");
    app.done(&[]);
}

#[test]
fn several_scrapes_at_once_are_whole_while_processes_run() {
    let app = App::new("metrics_at_once");
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step());
    let mut db = app.db();
    db.run("SELECT count(xdb.start_process('p' || n, 'one')) FROM generate_series(1, 500) n");
    at_once(4, |_| {
        let mut boss = app.session("boss");
        let mut before = BTreeMap::new();
        for _ in 0..20 {
            let samples = parse(&boss.text("SELECT xdb.openmetrics()"), false);
            for (sample, value) in
                samples.iter().filter(|(sample, _)| sample.contains("_total") || sample.contains("_bucket"))
            {
                assert!(before.get(sample).is_none_or(|old| old <= value), "{sample} has fallen to {value}");
            }
            before = samples;
        }
    });
    wait_until("all complete", 60, || views::with_status(&mut db, "p%", "COMPLETED") == 500);
    wait_for(&mut app.session("boss"), "xdb_steps_total", json!({"type": "one"}), 500);
    app.done(&[]);
}

#[test]
fn operators_and_monitors_read_metrics_and_others_learn_what_they_need() {
    let app = App::new("metrics_rights");
    app.superuser().run(
        "DROP ROLE IF EXISTS metrics_monitor; CREATE ROLE metrics_monitor LOGIN; GRANT pg_monitor TO metrics_monitor",
    );
    let (mut db, mut stranger) = (app.db(), app.session("stranger"));
    for function in ["xdb.metrics()", "xdb.openmetrics()"] {
        let read = format!("SELECT count(*) FROM {function}");
        for role in ["boss", "metrics_monitor"] {
            assert!(app.session(role).one::<i64>(&read) > 0, "{role}");
        }
        let error = db.refused("42501", &read);
        assert_eq!(error.message, "permission denied for the metrics of this database");
        assert!(error.hint.contains("GRANT pg_monitor TO app"));
        stranger.refused("42501", &read);
    }
    app.done(&["permission denied"]);
}
