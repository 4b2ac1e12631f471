//! `xdb.check_process`: it finds every change that a superuser makes by hand, and reports nothing else.

use xdb_cluster_tests::prelude::*;
use xdb_cluster_tests::tamper::{problems, tamper};

/// One process with rows in every table. `Fork` starts four states: the first waits, the second is called repeatedly,
/// the third is called in an hour, and the fourth leaves a result.
fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!("asked")).into(),
        (Api::WaitUntil, _) => any_of(&[timer("t", 3600.0), local_queue("m", "inbox", 5)]).into(),
        (_, "Fork") => Reply::from(
            next_all(&[("Wait", json!({"n": 1.50})), ("Rest", json!(2)), ("Often", json!(3)), ("Leave", json!(4))])
                .locals(json!({"k": {"a": 1}})),
        ),
        (_, "Leave") => graceful_complete(json!("left")).into(),
        (_, _) => error(503, "Busy", "later"),
    });
    let rest = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 3600, "maximumIntervalSeconds": 3600}});
    let definition = Definition::starting_with("Fork")
        .step("Fork")
        .waiting_step("Wait")
        .step_with("Rest", rest)
        .step("Often")
        .step("Leave")
        .rpc("ask", json!({}));
    app.register("rich", &definition);
    (app, worker)
}

/// Starts one process, and pauses the engine when everything has happened to it.
fn start(app: &App, process_id: &str, history: &str) {
    let mut db = app.db();
    db.start(process_id, "rich").timeout("1 day").locals(json!({"l": null})).options(json!({"history": history})).go();
    db.run(&format!("SELECT xdb.publish('{process_id}', 'inbox', '[1]', message_id => 'first')"));
    db.run(&format!("SELECT xdb.publish('{process_id}', 'other', '[2]')"));
    db.run(&format!("SELECT xdb.invoke_rpc('{process_id}', 'ask', idempotency_key => 'once')"));
    let mut superuser = app.superuser();
    wait_until("everything has happened", 30, || {
        superuser.one(&format!(
            "SELECT count(*) FILTER (WHERE s.status = 'WAITING') = 1 AND count(*) FILTER (WHERE s.status = 'COMPLETED') = 2
                AND count(*) FILTER (WHERE (s.call ->> 'failedAttempts')::int >= 12) = 1
                AND count(*) FILTER (WHERE s.state_id = 'Rest' AND (s.call ->> 'failedAttempts')::int = 1) = 1
                AND (SELECT count(*) FROM xdb.queue_message m WHERE m.execution_id = p.execution_id) = 2
             FROM xdb.process_execution p JOIN xdb.state_execution s USING (execution_id)
             WHERE p.process_id = '{process_id}' GROUP BY p.execution_id"
        ))
    });
    superuser.run("SELECT xdb.pause_engine()");
    // Nothing is under way any more that could change the process meanwhile.
    wait_until("no call is under way", 10, || {
        superuser.one("SELECT state = 'paused' AND in_flight = 0 FROM xdb.status()")
    });
    db.run(&format!("SELECT xdb.publish('{process_id}', 'inbox', '[3]', message_id => 'arrived')"));
}

const OWN: &str = "UPDATE xdb.process_execution SET";

#[test]
fn changes_by_hand_are_found() {
    let (app, _worker) = application("sound_tampered");
    start(&app, "p", "full");
    let own = |what: &str| format!("{OWN} {what} WHERE $OURS");
    let state =
        |id: &str, what: &str| format!("UPDATE xdb.state_execution SET {what} WHERE $OURS AND state_id = '{id}'");
    let task = |id: &str, what: &str| {
        format!(
            "UPDATE xdb.task t SET {what} FROM xdb.state_execution s WHERE t.$OURS AND s.$OURS AND s.seq = t.seq AND s.state_id = '{id}'"
        )
    };
    let changes: Vec<(String, &str)> = vec![
        (
            own("status = 'COMPLETED', closed_at = now(), live_threads = 0"),
            "process_execution: status is \"COMPLETED\" and should be \"RUNNING\"",
        ),
        (
            own("status = 'FAILED', closed_at = '2001-02-03 04:05:06.7Z', live_threads = 0"),
            "closed_at is 2001-02-03T04:05:06.700000Z and should be null",
        ),
        (own("shard = (shard + 1) % 1024"), "process_execution: shard is"),
        (own("process_type = 'poor'"), "process_type is \"poor\" and should be \"rich\""),
        (own("started_at = started_at + interval '1 microsecond'"), "process_execution: started_at is"),
        (own("timeout_at = NULL"), "process_execution: timeout_at is null"),
        (own("timeout_at = 'infinity'"), "process_execution: timeout_at is"),
        (own("reason = 'none'"), "process_execution: reason is \"none\" and should be null"),
        (own("next_event = next_event + 1"), "process_execution: next_event is"),
        (own("next_state = 1"), "process_execution: next_state is 1 and should be 6"),
        (own("next_message = 9"), "process_execution: next_message is 9 and should be 3"),
        (own("priority = 3"), "process_execution: priority is 3 and should be 0"),
        (own("pause_mode = 'WAIT'"), "process_execution: pause_mode is \"WAIT\" and should be null"),
        (
            own("paused_until = '2001-02-03Z'"),
            "process_execution: paused_until is 2001-02-03T00:00:00.000000Z and should be null",
        ),
        (own("live_threads = 1"), "process_execution: live_threads is 1 and should be 3"),
        (own("queued_messages = 1"), "process_execution: queued_messages is 1 and should be 2"),
        (own("queued_bytes = 0"), "process_execution: queued_bytes is 0 and should be"),
        (own("timers = 0"), "process_execution: timers is 0 and should be 1"),
        (own("completing = false"), "process_execution: completing is false and should be true"),
        (own("state_numbers = '{}'"), "process_execution: state_numbers is {}"),
        (own("results = '[]'"), "process_execution: results is []"),
        (
            "UPDATE xdb.latest_execution SET execution_id = gen_random_uuid() WHERE $OURS".into(),
            "which is no execution",
        ),
        ("DELETE FROM xdb.latest_execution WHERE $OURS".into(), "latest_execution: is missing"),
        (state("Wait", "shard = (shard + 1) % 1024"), "state_execution {\"seq\": 2}: shard is"),
        (
            state("Wait", "state_id = 'Whit'"),
            "state_execution {\"seq\": 2}: state_id is \"Whit\" and should be \"Wait\"",
        ),
        (state("Wait", "number = 2"), "state_execution {\"seq\": 2}: number is 2 and should be 1"),
        (state("Wait", "status = 'EXECUTE', call = '{}'"), "state_execution {\"seq\": 2}: status is \"EXECUTE\""),
        (state("Wait", "started_at = now()"), "state_execution {\"seq\": 2}: started_at is"),
        (state("Fork", "ended_at = now()"), "state_execution {\"seq\": 1}: ended_at is"),
        (state("Wait", "input = '{\"n\": 1.51}'"), "input is {\"n\": 1.51} and should be {\"n\": 1.5"),
        (
            state("Wait", "config = '{\"skipWaitUntil\": true}'"),
            "config is {\"skipWaitUntil\": true} and should be null",
        ),
        (state("Wait", "recovery = '{}'"), "recovery is {} and should be null"),
        (state("Rest", "call = jsonb_set(call, '{failedAttempts}', '0')"), "state_execution {\"seq\": 3}: call is"),
        (state("Rest", "call = jsonb_set(call, '{failedAttempts}', '11')"), "state_execution {\"seq\": 3}: call is"),
        (state("Often", "call = jsonb_set(call, '{failedAttempts}', '7')"), "state_execution {\"seq\": 4}: call is"),
        (state("Often", "call = jsonb_set(call, '{generation}', '-1')"), "state_execution {\"seq\": 4}: call is"),
        (
            state("Wait", "wait = jsonb_set(wait, '{waitingType}', '\"AllOfCompletion\"')"),
            "state_execution {\"seq\": 2}: wait is",
        ),
        (state("Rest", "last_failure = NULL"), "state_execution {\"seq\": 3}: last_failure is null"),
        (state("Rest", "last_failure = jsonb_set(last_failure, '{failure,detail}', '\"never\"')"), "last_failure is"),
        ("DELETE FROM xdb.state_execution WHERE $OURS AND seq = 1".into(), "state_execution {\"seq\": 1}: is missing"),
        (
            "INSERT INTO xdb.state_execution (execution_id, seq, shard, state_id, number, status, started_at, ended_at)
          VALUES ('$ID', 9, 1, 'X', 1, 'ABORTED', now(), now())"
                .into(),
            "state_execution {\"seq\": 9}: unexpected row",
        ),
        (task("Rest", "due_at = now()"), "task {\"seq\": 3}: due_at is"),
        (task("Often", "due_at = now()"), "task {\"seq\": 4}: due_at is"),
        (task("Rest", "api = 'WAIT_UNTIL_API'"), "task {\"seq\": 3}: api is \"WAIT_UNTIL_API\""),
        (task("Rest", "shard = (t.shard + 1) % 1024"), "task {\"seq\": 3}: shard is"),
        (task("Rest", "owner = 10"), "task {\"seq\": 3}: owner is"),
        (task("Rest", "attempt = 0"), "task {\"seq\": 3}: attempt is 0, and more attempts than that have failed"),
        (task("Rest", "first_attempt_at = NULL"), "task {\"seq\": 3}: it has begun an attempt"),
        (
            task("Rest", "lease_until = now(), lease_epoch = 0"),
            "task {\"seq\": 3}: only one of lease_epoch and lease_until is set",
        ),
        (task("Rest", "worker_id = 77"), "task {\"seq\": 3}: its worker is not registered"),
        ("DELETE FROM xdb.task WHERE $OURS AND seq = 3".into(), "task {\"seq\": 3}: is missing"),
        (
            "INSERT INTO xdb.task (execution_id, seq, shard, worker_id, api, due_at, owner)
          VALUES ('$ID', 2, 1, 1, 'EXECUTE_API', 'infinity', 0)"
                .into(),
            "task {\"seq\": 2}: unexpected row",
        ),
        (
            "UPDATE xdb.timer SET fire_at = now() WHERE $OURS AND seq = 0".into(),
            "timer {\"seq\": 0, \"command\": 0}: fire_at is",
        ),
        (
            "UPDATE xdb.timer SET fire_at = now() WHERE $OURS AND seq = 2".into(),
            "timer {\"seq\": 2, \"command\": 0}: fire_at is",
        ),
        (
            "UPDATE xdb.timer SET shard = (shard + 1) % 1024 WHERE $OURS AND seq = 2".into(),
            "timer {\"seq\": 2, \"command\": 0}: shard is",
        ),
        (
            "UPDATE xdb.timer SET command = 4 WHERE $OURS AND seq = 2".into(),
            "timer {\"seq\": 2, \"command\": 4}: unexpected row",
        ),
        ("DELETE FROM xdb.timer WHERE $OURS AND seq = 0".into(), "timer {\"seq\": 0, \"command\": 0}: is missing"),
        (
            "DELETE FROM xdb.queue_waiter WHERE $OURS".into(),
            "queue_waiter {\"seq\": 2, \"queue_name\": \"inbox\", \"wait_order\":",
        ),
        ("UPDATE xdb.queue_waiter SET wait_order = 1 WHERE $OURS".into(), "\"wait_order\": 1}: unexpected row"),
        (
            "UPDATE xdb.queue_message SET payload = '[9]' WHERE $OURS AND number = 2".into(),
            "payload is [9] and should be [2]",
        ),
        (
            "UPDATE xdb.queue_message SET message_id = 'x' WHERE $OURS AND number = 2".into(),
            "message_id is \"x\" and should be null",
        ),
        ("UPDATE xdb.queue_message SET received_at = now() WHERE $OURS AND number = 2".into(), "received_at is"),
        (
            "UPDATE xdb.queue_message SET queue_name = 'inbox' WHERE $OURS AND number = 2".into(),
            "queue_message {\"number\": 2, \"queue_name\": \"inbox\"}: unexpected row",
        ),
        (
            "DELETE FROM xdb.queue_message WHERE $OURS AND number = 1".into(),
            "queue_message {\"number\": 1, \"queue_name\": \"inbox\"}: is missing",
        ),
        (
            "DELETE FROM xdb.message_key WHERE $OURS AND message_id = 'first'".into(),
            "message_key {\"message_id\": \"first\", \"queue_name\": \"inbox\"}: is missing",
        ),
        (
            "DELETE FROM xdb.message_key WHERE $OURS AND message_id = 'arrived'".into(),
            "message_key {\"message_id\": \"arrived\", \"queue_name\": \"inbox\"}: is missing",
        ),
        (
            "INSERT INTO xdb.message_key VALUES ('$ID', 'inbox', 'never')".into(),
            "message_key {\"message_id\": \"never\", \"queue_name\": \"inbox\"}: unexpected row",
        ),
        ("UPDATE xdb.inbox SET shard = (shard + 1) % 1024 WHERE $OURS".into(), ": shard is"),
        (
            "UPDATE xdb.local_attribute SET value = '{\"a\": 2}' WHERE $OURS AND key = 'k'".into(),
            "local_attribute {\"key\": \"k\"}: value is {\"a\": 2} and should be {\"a\": 1}",
        ),
        (
            "DELETE FROM xdb.local_attribute WHERE $OURS AND key = 'l'".into(),
            "local_attribute {\"key\": \"l\"}: is missing",
        ),
        (
            "INSERT INTO xdb.local_attribute VALUES ('$ID', 'n', '0')".into(),
            "local_attribute {\"key\": \"n\"}: unexpected row",
        ),
    ];
    let changes: Vec<(&str, &str)> = changes.iter().map(|(change, expected)| (change.as_str(), *expected)).collect();
    tamper(&app, "p", &changes);

    // How JSON is spelled makes no difference.
    let mut db = app.superuser();
    db.run("BEGIN");
    db.run("UPDATE xdb.state_execution SET input = '{\"n\": 1.5000}' WHERE state_id = 'Wait'");
    assert_eq!(problems(&mut db, "p"), Vec::<String>::new());
    db.run("ROLLBACK");
    app.done(&[]);
}

#[test]
fn a_history_that_cannot_be_replayed_is_found() {
    let (app, _worker) = application("sound_history");
    start(&app, "p", "full");
    let event = |what: &str| format!("UPDATE xdb.history_event SET {what} WHERE $OURS");
    let changes = [
        ("DELETE FROM xdb.history_event WHERE $OURS".to_owned(), "history_event: the history is empty"),
        (
            "DELETE FROM xdb.history_event WHERE $OURS AND event_id = 1".to_owned(),
            "event 1 is missing; the next one is 2",
        ),
        (
            "DELETE FROM xdb.history_event WHERE $OURS AND event_id = 3".to_owned(),
            "event 3 is missing; the next one is 4",
        ),
        (
            "DELETE FROM xdb.history_event h USING (SELECT max(event_id) AS last FROM xdb.history_event WHERE $OURS) l
             WHERE h.$OURS AND h.event_id = l.last"
                .to_owned(),
            "process_execution: next_event is",
        ),
        (event("event_id = 0") + " AND event_id = 1", "event 1 is missing; the next one is 0"),
        (event("event_type = 'Hatched'") + " AND event_id = 3", "event 3: event Hatched"),
        (event("event_type = 'StateStarted'") + " AND event_id = 1", "event 1: event StateStarted"),
        (event("details = '[]'") + " AND event_id = 2", "event 2: event"),
        (event("details = '{}'") + " AND event_type = 'WaitStarted'", ": event WaitStarted"),
        (
            event(
                "event_type = 'ProcessStarted', details = (SELECT details FROM xdb.history_event WHERE $OURS AND event_id = 1)",
            ) + " AND event_id = 2",
            "event 2 is ProcessStarted; the first one, and no other",
        ),
        (
            event("event_type = 'ProcessClosed', details = '{\"status\": \"COMPLETED\"}'") + " AND event_id = 4",
            ", after the process has closed",
        ),
        (
            event("details = jsonb_set(details, '{attempt}', '11')")
                + " AND event_type = 'AttemptFailed' AND details ->> 'attempt' = '10'",
            "of an attempt that is never recorded by itself",
        ),
    ];
    let changes: Vec<(&str, &str)> = changes.iter().map(|(change, expected)| (change.as_str(), *expected)).collect();
    tamper(&app, "p", &changes);
    app.done(&[]);
}

#[test]
fn without_a_history_the_tables_have_to_agree_with_each_other() {
    let (app, _worker) = application("sound_none");
    start(&app, "p", "none");
    tamper(
        &app,
        "p",
        &[
            ("UPDATE xdb.process_execution SET live_threads = 1 WHERE $OURS", "live_threads is 1 and should be 3"),
            (
                "UPDATE xdb.process_execution SET queued_messages = 3 WHERE $OURS",
                "queued_messages is 3 and should be 2",
            ),
            ("UPDATE xdb.process_execution SET queued_bytes = 0 WHERE $OURS", "queued_bytes is 0 and should be"),
            ("UPDATE xdb.process_execution SET timers = 2 WHERE $OURS", "timers is 2 and should be 1"),
            ("UPDATE xdb.process_execution SET next_state = 2 WHERE $OURS", "next_state is 2 and should be 6"),
            ("UPDATE xdb.process_execution SET state_numbers = '{}' WHERE $OURS", "state_numbers is {}"),
            ("UPDATE xdb.process_execution SET state_numbers = '[]' WHERE $OURS", "process_execution: "),
            (
                "UPDATE xdb.process_execution SET next_message = 1 WHERE $OURS",
                "next_message is 1, and there is a message 1",
            ),
            ("UPDATE xdb.state_execution SET wait = '{}' WHERE $OURS AND seq = 2", "state_execution {\"seq\": 2}: "),
            ("UPDATE xdb.state_execution SET last_failure = NULL WHERE $OURS AND seq = 3", "last_failure is null"),
            ("DELETE FROM xdb.task WHERE $OURS AND seq = 3", "task {\"seq\": 3}: is missing"),
            ("DELETE FROM xdb.timer WHERE $OURS AND seq = 0", "timer {\"seq\": 0, \"command\": 0}: is missing"),
            ("DELETE FROM xdb.timer WHERE $OURS AND seq = 2", "timer {\"seq\": 2, \"command\": 0}: is missing"),
            ("DELETE FROM xdb.queue_waiter WHERE $OURS", "\"queue_name\": \"inbox\""),
            (
                "DELETE FROM xdb.message_key WHERE $OURS AND message_id = 'first'",
                "message_key {\"message_id\": \"first\"",
            ),
            (
                "INSERT INTO xdb.history_event VALUES ('$ID', 1, now(), 'CompletionRequested', '{}')",
                "history_event: there are 1, and no history is kept",
            ),
        ],
    );
    app.done(&[]);
}

#[test]
fn leftover_waits_of_a_closed_process_are_found() {
    let (app, _worker) = application("sound_closed");
    start(&app, "p", "full");
    let mut db = app.db();
    db.run("SELECT xdb.stop_process('p', 'FAIL', 'enough')");
    let task = "INSERT INTO xdb.task (execution_id, seq, shard, worker_id, api, due_at, owner)
                VALUES ('$ID', 3, 1, 1, 'EXECUTE_API', 'infinity', 0)";
    let timer = "INSERT INTO xdb.timer VALUES ('$ID', 0, 0, 1, 'PROCESS_TIMEOUT', 'infinity', 0)";
    let message = "INSERT INTO xdb.queue_message VALUES ('$ID', 'inbox', 1, 1, NULL, '1', now())";
    let arrival = "INSERT INTO xdb.inbox (execution_id, shard, queue_name, bytes, published_at, owner)
                   VALUES ('$ID', 1, 'inbox', 0, now(), 0)";
    tamper(
        &app,
        "p",
        &[
            (
                "UPDATE xdb.process_execution SET status = 'TERMINATED' WHERE $OURS",
                "status is \"TERMINATED\" and should be \"FAILED\"",
            ),
            ("UPDATE xdb.process_execution SET reason = NULL WHERE $OURS", "reason is null and should be \"enough\""),
            ("UPDATE xdb.process_execution SET closed_at = now() WHERE $OURS", "closed_at is"),
            ("UPDATE xdb.state_execution SET status = 'COMPLETED' WHERE $OURS AND seq = 2", "should be \"ABORTED\""),
            ("UPDATE xdb.state_execution SET last_failure = NULL WHERE $OURS AND seq = 4", "last_failure is null"),
            (task, "task {\"seq\": 3}: unexpected row"),
            (timer, "timer {\"seq\": 0, \"command\": 0}: unexpected row"),
            (message, "queue_message {\"number\": 1, \"queue_name\": \"inbox\"}: unexpected row"),
            ("INSERT INTO xdb.queue_waiter VALUES ('$ID', 'inbox', 5, 2)", "queue_waiter {"),
            ("INSERT INTO xdb.message_key VALUES ('$ID', 'inbox', 'first')", "message_key {"),
            (arrival, "inbox {\"inbox_id\": "),
        ],
    );
    // The id goes on, and both executions are sound; each is checked by its own id.
    let first: String = db.one("SELECT execution_id::text FROM xdb.processes WHERE process_id = 'p'");
    let second = db.start("p", "rich").go();
    for id in [&first, &second] {
        assert_eq!(
            db.all::<String>(&format!("SELECT problem FROM xdb.check_process('p', '{id}')")),
            Vec::<String>::new()
        );
    }
    db.refused("XD001", "SELECT * FROM xdb.check_process('p', gen_random_uuid())");
    let mut superuser = app.superuser();
    superuser.run(&format!("BEGIN; UPDATE xdb.latest_execution SET execution_id = '{first}'"));
    let wrong = format!("latest_execution: names {first}, which is not the latest execution");
    let of_second = superuser.all::<String>(&format!("SELECT problem FROM xdb.check_process('p', '{second}')"));
    assert_eq!(of_second, [wrong]);
    superuser.run("ROLLBACK");
    app.done(&[]);
}

#[test]
fn rows_that_a_close_could_not_see_are_cleaned_up() {
    let app = App::new("sound_unseen");
    let _worker = app.worker(|_| any_of(&[local_queue("m", "inbox", 1)]));
    app.register("mail", &mailbox());
    app.pause();
    let mut db = app.db();
    db.start("p", "mail").go();
    let mut closer = app.db();
    closer.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM users");
    db.run("SELECT xdb.publish('p', 'inbox', '1', message_id => 'unseen')");
    closer.run("SELECT xdb.stop_process('p'); COMMIT");
    assert_eq!(db.status("p"), "TERMINATED");
    assert_eq!(problems(&mut db, "p").len(), 2, "the message and its id are left");
    app.superuser().run("SELECT xdb.resume_engine()");
    wait_until("both are deleted", 10, || problems(&mut db, "p").is_empty());
    app.done(&[]);
}

#[test]
fn a_process_at_work_is_never_reported() {
    let app = App::new("sound_at_work");
    let _worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!(null)).publish("inbox", json!("asked")).locals(json!({"k": 1})).into(),
        (Api::WaitUntil, _) => any_of(&[timer("t", 0.01), local_queue("m", "inbox", 2)]).into(),
        _ if !call.attempt().is_multiple_of(3) => error(500, "Flaky", "again"),
        _ => Reply::from(next("Loop", json!(null)).publish("inbox", json!(1)).locals(json!({"k": 2}))),
    });
    app.register("busy", &Definition::starting_with("Loop").waiting_step("Loop").rpc("ask", json!({})));
    let mut db = app.db();
    for n in 0..8 {
        db.start(&format!("b{n}"), "busy").timeout("1 hour").go();
    }
    let until = Instant::now() + Duration::from_secs(4);
    let checks = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut db = app.db();
            while Instant::now() < until {
                for n in 0..8 {
                    db.publish(&format!("b{n}"), "inbox", json!(n));
                    db.rpc(&format!("b{n}"), "ask", json!(null));
                }
            }
        });
        let mut checks = 0;
        while Instant::now() < until {
            for n in 0..8 {
                assert_eq!(problems(&mut db, &format!("b{n}")), Vec::<String>::new());
                checks += 1;
            }
        }
        checks
    });
    assert!(checks >= 8, "{checks}");
    assert!(views::ended_states(&mut db, "b0") > 0, "nothing was at work");
    app.superuser().run("SELECT xdb.pause_engine()");
    for n in 0..8 {
        db.run(&format!("SELECT xdb.stop_process('b{n}')"));
    }
    app.done(&[]);
}

#[test]
fn an_answer_that_is_not_applied_is_in_the_history() {
    let app = App::new("sound_rejected");
    let worker = app.worker(|_| Reply::hang(force_complete(json!("late"))));
    app.register("one", &one_step());
    let mut db = app.db();
    for history in ["full", "none"] {
        db.start(history, "one").options(json!({"history": history})).go();
    }
    worker.wait_for_count("both calls", 10, 2, |_| true);
    // Another session has the lease now, and it lasts long.
    app.superuser()
        .run("UPDATE xdb.task SET lease_number = lease_number + 1000, lease_until = now() + interval '1 hour'");
    worker.release();
    wait_until("the answer was refused", 10, || db.count("xdb.history WHERE event_type = 'CommandRejected'") > 0);
    let rejected = db.json("SELECT details FROM xdb.history WHERE event_type = 'CommandRejected'");
    assert_eq!(rejected["command"], "ExecuteAnswered", "{rejected}");
    assert_eq!(rejected["seq"], 1, "{rejected}");
    assert_eq!(rejected["attempt"], 1, "{rejected}");
    assert!(rejected["reason"].as_str().is_some_and(|reason| reason.contains("lease")), "{rejected}");
    wait_until("both calls have ended", 10, || app.superuser().one("SELECT in_flight = 0 FROM xdb.status()"));
    let counted = "SELECT value = 2 FROM xdb.metrics() WHERE name = 'xdb_answers_rejected_total'";
    wait_until("both are counted", 10, || app.superuser().one(counted));
    for history in ["full", "none"] {
        assert_eq!(db.status(history), "RUNNING");
        assert_eq!(problems(&mut db, history), Vec::<String>::new());
    }
    assert_eq!(views::events(&mut db, "none"), 0);

    // The call is made again, and its answer counts.
    worker.heal();
    worker.misbehave(|_| force_complete(json!("in time")));
    app.superuser().run("UPDATE xdb.task SET lease_until = now(), due_at = due_at");
    assert_eq!(db.completes("full").result(), "in time");
    assert_eq!(db.completes("none").result(), "in time");
    app.done(&[]);
}

#[test]
fn columns_without_an_event_are_compared_too() {
    let app = App::new("sound_around");
    let mut db = app.db();
    db.run("CREATE TABLE pairs (a int, b int, c int, PRIMARY KEY (a, b))");
    let _worker = app.worker(|_| any_of(&[local_queue("m", "inbox", 1)]));
    let pairs = json!({"table": "public.pairs", "primaryKey": ["a", "b"], "attributes": {"c": "c"}});
    let users = json!({"table": "public.users", "primaryKey": "user_id", "attributes": {"status": "status"}});
    app.register("mapped", &mailbox().with("globalAttributes", json!([users, pairs])));
    app.register("plain", &mailbox());
    let keys = json!({"globalAttributeKeys": {"public.pairs": {"a": 1, "b": 2}}});
    db.start("mapped", "mapped").key("u").options(keys).go();
    db.start("plain", "plain").go();
    app.superuser().run("SELECT xdb.pause_engine()");
    let kind = "type_id is not that of its process type";
    let fit = "attribute_keys do not fit the tables of its mapping_id";
    let own = |what: &str| format!("{OWN} {what} WHERE $OURS");
    let changes = [
        (own("type_id = type_id + 100"), kind),
        ("UPDATE xdb.process_type SET process_type = 'other' WHERE process_type = 'mapped'".to_owned(), kind),
        (own("mapping_id = mapping_id + 100"), fit),
        (own("attribute_keys = '[]'"), fit),
        (own("attribute_keys = '[[\"u\"], [\"1\"]]'"), fit),
        (own("attribute_keys = '7'"), fit),
        ("DELETE FROM xdb.mapped_table WHERE position > 0".to_owned(), fit),
        (
            "UPDATE xdb.mapped_table SET key_columns = ARRAY['a', 'b'] WHERE relation = 'users'::regclass".to_owned(),
            fit,
        ),
        ("INSERT INTO xdb.purged VALUES ('$ID')".to_owned(), "purged: unexpected row"),
    ];
    let changes: Vec<_> = changes.iter().map(|(change, expected)| (change.as_str(), *expected)).collect();
    tamper(&app, "mapped", &changes);
    tamper(
        &app,
        "plain",
        &[
            ("UPDATE xdb.process_execution SET mapping_id = 77, attribute_keys = '[[\"u\"]]' WHERE $OURS", fit),
            ("DELETE FROM xdb.process_type WHERE process_type = 'plain'", kind),
        ],
    );
    app.done(&[]);
}

#[test]
fn other_changes_by_hand_are_found() {
    let (app, _worker) = application("sound_else");
    start(&app, "p", "full");
    // The execution of a row is changed, in every table with several rows for an execution.
    let moved = |table: &str| format!("UPDATE xdb.{table} SET execution_id = gen_random_uuid() WHERE $OURS");
    let changes = [
        (format!("{OWN} process_id = 'q' WHERE $OURS"), "process_id"),
        (moved("state_execution"), "state_execution {\"seq\": 1}: is missing"),
        (moved("task"), "task {\"seq\": 3}: is missing"),
        (moved("timer"), "timer {\"seq\": 0, \"command\": 0}: is missing"),
        (moved("queue_message"), "queue_message {\"number\": 1, \"queue_name\": \"inbox\"}: is missing"),
        (moved("queue_waiter"), "queue_waiter {"),
        (moved("message_key"), "message_key {"),
        (moved("local_attribute"), "local_attribute {\"key\": \"k\"}: is missing"),
        (moved("history_event"), "history_event: the history is empty"),
        ("UPDATE xdb.queue_message SET shard = (shard + 1) % 1024 WHERE $OURS".to_owned(), "shard is"),
        ("UPDATE xdb.queue_waiter SET seq = 3 WHERE $OURS".to_owned(), "queue_waiter {"),
        ("UPDATE xdb.queue_waiter SET queue_name = 'other' WHERE $OURS".to_owned(), "queue_waiter {"),
        ("UPDATE xdb.message_key SET queue_name = 'other' WHERE $OURS".to_owned(), "message_key {"),
        ("UPDATE xdb.local_attribute SET key = 'renamed' WHERE $OURS AND key = 'k'".to_owned(), "local_attribute {"),
    ];
    let changes: Vec<(&str, &str)> = changes.iter().map(|(change, expected)| (change.as_str(), *expected)).collect();
    tamper(&app, "p", &changes);
    app.done(&[]);
}

/// With and without a history: rules that used to be constraints of the tables.
#[test]
fn violations_without_a_constraint_are_found() {
    for history in ["full", "none"] {
        let (app, _worker) = application(&format!("sound_values_{history}"));
        start(&app, "p", history);
        let own = |what: &str| format!("{OWN} {what} WHERE $OURS");
        let state =
            |id: &str, what: &str| format!("UPDATE xdb.state_execution SET {what} WHERE $OURS AND state_id = '{id}'");
        let task = |what: &str| format!("UPDATE xdb.task SET {what} WHERE $OURS AND seq = 3");
        let timer = |what: &str| format!("UPDATE xdb.timer SET {what} WHERE $OURS AND seq = 0");
        let changes = [
            (own("status = 'ODD'"), "\"ODD\""),
            (own("closing = 'SOON'"), "process_execution: closing is an unknown word"),
            (own("live_threads = -1"), "process_execution: live_threads is -1 and should be 3"),
            (own("history_limit = -1"), "process_execution: history_limit is negative"),
            (own("closed_at = now()"), "process_execution: closed_at does not fit its status"),
            (own("status = 'FAILED'"), "process_execution: closed_at does not fit its status"),
            (own("status = 'FAILED', live_threads = 1"), "process_execution: live_threads is 1 and should be 3"),
            (
                own("status = 'FAILED', closed_at = now(), closing = 'CONDITIONAL'"),
                "process_execution: it is closed, and closing is set",
            ),
            (own("mapping_id = 7"), "process_execution: only one of mapping_id and attribute_keys is set"),
            (own("attribute_keys = '[]'"), "process_execution: only one of mapping_id and attribute_keys is set"),
            (state("Wait", "seq = -2"), "state_execution {\"seq\": -2}: seq is less than 1"),
            (state("Wait", "number = 0"), "state_execution {\"seq\": 2}: number is less than 1"),
            (state("Wait", "status = 'ODD'"), "\"ODD\""),
            (state("Wait", "ended_at = now()"), "state_execution {\"seq\": 2}: ended_at does not fit its status"),
            (state("Leave", "ended_at = NULL"), "state_execution {\"seq\": 5}: ended_at does not fit its status"),
            (state("Rest", "call = NULL"), "state_execution {\"seq\": 3}: call does not fit its status"),
            (state("Wait", "call = '{}'"), "state_execution {\"seq\": 2}: call does not fit its status"),
            (state("Wait", "wait = NULL"), "state_execution {\"seq\": 2}: it waits, and wait is null"),
            (task("lane = 9"), "task {\"seq\": 3}: its lane is unknown"),
            (task("priority = 3"), "task {\"seq\": 3}: priority is 3 and should be 0"),
            (task("api = 'ODD'"), "task {\"seq\": 3}: api is \"ODD\""),
            (task("attempt = -1"), "task {\"seq\": 3}: attempt is -1, and more attempts than that have failed"),
            (timer("kind = 'ODD'"), "timer {\"seq\": 0, \"command\": 0}: kind is \"ODD\""),
            (timer("kind = 'TIMER_COMMAND'"), "timer {\"seq\": 0, \"command\": 0}: kind is \"TIMER_COMMAND\""),
            ("UPDATE xdb.inbox SET bytes = -1 WHERE $OURS".to_owned(), ": bytes is negative"),
        ];
        let changes: Vec<_> = changes.iter().map(|(change, expected)| (change.as_str(), *expected)).collect();
        tamper(&app, "p", &changes);
        app.done(&[]);
    }
}
