//! Requirements for jobs that are called todos. Tests have the names of the sentences that describe them.

use std::sync::atomic::{AtomicUsize, Ordering};

use xdb_cluster_tests::prelude::*;

/// A definition of jobs that are deleted once they are complete.
fn todo(state: &str) -> Definition {
    Definition::starting_with(state).with("retentionSeconds", json!(0))
}

fn enqueue(db: &mut Db, process_type: &str, more: &str) -> String {
    db.one(&format!("SELECT xdb.start_process(NULL, '{process_type}'{more})::text"))
}

#[test]
fn a_todo_gets_a_globally_unique_id_of_the_system() {
    let app = App::new("todo_id");
    let worker = app.worker(|_: &Call| force_complete(json!("sent")));
    app.register("email", &one_step());
    let mut db = app.db();
    let mut ids: Vec<_> = (0..20).map(|n| enqueue(&mut db, "email", &format!(", input => '{n}'"))).collect();
    for id in &ids {
        assert_eq!(db.completes(id).result(), &json!("sent"));
    }
    assert_eq!(worker.count(|call| call.process_id() == call.body["context"]["processExecutionId"]), 20);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 20);
    app.done(&[]);
}

#[test]
fn the_queue_sequence_is_maintained_based_on_the_start_date() {
    let app = App::new("todo_sequence");
    let worker = app.worker(|_: &Call| force_complete(json!(null)));
    // One at a time: two that one turn finds due are called at once otherwise, and come in any order.
    app.superuser().run(&format!("SELECT xdb.register_worker('stub', '{}', max_concurrency => 1)", worker.url()));
    app.register("email", &one_step());
    let mut db = app.db();
    db.run("BEGIN");
    for n in [3, 1, 4, 2] {
        let at = format!(", input => '{n}', start_at => now() + interval '1 s' + {n} * interval '400 ms'");
        enqueue(&mut db, "email", &at);
    }
    db.run("COMMIT");
    let calls = worker.wait_for_count("all are called", 20, 4, |_| true);
    let order: Vec<_> = calls.iter().map(|call| call.input().clone()).collect();
    assert_eq!(order, [1, 2, 3, 4]);
    wait_until("all are done", 10, || db.count("xdb.processes WHERE status = 'RUNNING'") == 0);
    app.done(&[]);
}

#[test]
fn the_distribution_is_done_based_on_the_sharding_key() {
    let app = App::new("todo_shards");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(call.body["context"].get("shard").cloned().unwrap_or_default()),
        (_, "First") => next("Second", json!(null)),
        _ => graceful_complete(json!(null)),
    });
    app.register("email", &Definition::starting_with("First").step("First").step("Second"));
    app.register("idle", &Definition::without_start());
    let mut db = app.db();
    for (id, key) in [("a", Some("k-1")), ("b", Some("k-1")), ("c", Some("k-2")), ("d", None)] {
        let options = key.map_or(json!({}), |key| json!({"shardKey": key}));
        db.start(id, "email").options(options.clone()).go();
        db.start(&format!("{id}-rpc"), "idle").options(options).go();
        db.completes(id);
    }
    let shard = |of: &str| {
        let calls = worker.calls();
        let told: Vec<_> = calls
            .iter()
            .filter(|call| call.process_id() == of)
            .map(|call| (call.body["context"].get("shard").cloned(), call.headers.get("xdb-shard").cloned()))
            .collect();
        assert_eq!(told.len(), 2);
        assert_eq!(told[0], told[1], "both calls of {of}");
        told[0].clone()
    };
    let (a, header) = shard("a");
    let number = a.as_ref().and_then(Value::as_u64).expect("a number");
    assert!(number < 1024);
    assert_eq!(header, Some(number.to_string()));
    assert_eq!(shard("b"), shard("a"));
    assert_ne!(shard("c"), shard("a"));
    assert_eq!(shard("d"), (None, None), "it was not chosen");
    assert_eq!(db.rpc("a-rpc", "any", json!(null)), json!(number), "RPCs too");
    assert_eq!(db.rpc("d-rpc", "any", json!(null)), json!(null));
    app.done(&[]);
}

/// Seed 3: "serialize and deserialize state machines for storage and resumption", `ResumeFromStep`.
#[test]
fn an_instance_resumes_from_the_step_that_was_serialized_elsewhere() {
    let app = App::new("todo_resume");
    let worker = app.worker(|call: &Call| match call.target() {
        "AssignPart" => next("StoreInKDB", json!(null)),
        _ => graceful_complete(call.input().clone()),
    });
    app.register("order", &Definition::starting_with("AssignPart").step("AssignPart").step("StoreInKDB"));
    let mut db = app.db();
    let id = enqueue(&mut db, "order", r#", input => '{"order": 7}', options => '{"startingState": "StoreInKDB"}'"#);
    assert_eq!(db.completes(&id).result(), &json!({"order": 7}));
    assert_eq!(worker.count(|call| call.executes("AssignPart")), 0);
    app.done(&[]);
}

/// Each state of the todo's `switch` is a state; the tries of the seed are attempts.
#[test]
fn take_order_todo_is_re_executed_and_resumes_at_the_point_of_the_error() {
    let app = App::alone("todo_take_order", ClusterOptions::default().set("xdb.retention", "1s"));
    let assigning = AtomicUsize::new(0);
    let worker = app.worker(move |call: &Call| -> Reply {
        match (call.target(), call.attempt()) {
            // gPart.IsZero: Reexecute, which enters the pool again.
            ("AssignPart", 1) if assigning.fetch_add(1, Ordering::Relaxed) == 0 => {
                Answer::deciding(json!({"nextStates": [{"stateId": "AssignPart", "delayInSeconds": 0.3}]})).into()
            }
            // The catch block, with m_IsModified: ReexecuteUpdatedAfterError.
            ("AssignPart", 1) => {
                let retry = json!({"retry": {"errorType": "PartitionError", "retryAfterSeconds": 0.4}});
                Answer::deciding(retry).locals(json!({"order": {"tried": 1}})).into()
            }
            ("AssignPart", _) => {
                assert_eq!(call.local("order"), &json!({"tried": 1}), "its changes are saved");
                next("StoreInKDB", json!(null)).locals(json!({"order": {"part": 5}})).into()
            }
            // ReexecuteAfterError: the todo is re-scheduled for continued execution at the point of the error.
            ("StoreInKDB", 1) => {
                Reply::Json(500, json!({"errorType": "Down", "detail": "no KDB", "retryAfterSeconds": 0.3}))
            }
            ("StoreInKDB", _) => next("SendEmail", json!(null)).into(),
            ("SendEmail", _) => next("EnqueueAutoApprove", json!(null)).into(),
            _ => graceful_complete(call.local("order").clone()).into(),
        }
    });
    let states = ["AssignPart", "StoreInKDB", "SendEmail", "EnqueueAutoApprove"];
    let definition = states.iter().fold(todo("AssignPart"), |definition, state| definition.step(state));
    app.register("TakeOrder", &definition);
    let mut db = app.db();
    let id = enqueue(&mut db, "TakeOrder", ", input => '{\"order\": 5}'");
    worker.wait_for("the last state is executed", 30, |call| call.executes("EnqueueAutoApprove"));
    let calls = worker.calls();
    let made: Vec<_> = calls.iter().map(|call| (call.state_execution_id(), call.attempt())).collect();
    let expected = [
        ("AssignPart-1", 1),
        ("AssignPart-2", 1),
        ("AssignPart-2", 2),
        ("StoreInKDB-1", 1),
        ("StoreInKDB-1", 2),
        ("SendEmail-1", 1),
        ("EnqueueAutoApprove-1", 1),
    ];
    assert_eq!(made, expected);
    let gap = |from: usize, to: usize| calls[to].at.duration_since(calls[from].at).as_secs_f64();
    assert!(gap(0, 1) >= 0.3 && gap(1, 2) >= 0.4 && gap(3, 4) >= 0.3, "each waits as long as the code says");
    assert_ne!(calls[1].idempotency_key(), calls[2].idempotency_key(), "what was saved is another request");
    // Complete signals the runtime to discard the instance.
    wait_until("it is discarded", 90, || db.count(&format!("xdb.processes WHERE process_id = '{id}'")) == 0);
    db.refused(codes::UNKNOWN_PROCESS, &format!("SELECT xdb.describe_process('{id}')"));
    app.done(&[]);
}

#[test]
fn when_the_business_case_has_exhausted_its_retries_it_goes_to_the_reject_queue_for_later_consideration() {
    let app = App::new("todo_reject");
    let worker = app.worker(|call: &Call| -> Reply {
        match (call.api, call.target()) {
            (Api::WaitUntil, "Consider") => any_of(&[global_queue("r", "rejected", 1)]).into(),
            (_, "Consider") => graceful_complete(call.messages("r")[0].clone()).into(),
            (Api::WaitUntil, _) => no_command().into(),
            (_, "Reject") => {
                let why = call.body["context"]["recoverFromError"]["errorType"].clone();
                graceful_complete(json!("rejected"))
                    .publish_global("rejected", json!({"order": call.input(), "why": why}))
                    .into()
            }
            // RetryAfterErrorInMs: code chooses the delay, and throws when SysTries is too much.
            _ if call.attempt() < 3 => Reply::Json(500, json!({"errorType": "Busy", "retryAfterSeconds": 0.1})),
            _ => Reply::Json(500, json!({"errorType": "Exhausted", "final": true})),
        }
    });
    let recovery = json!({"stateFailureRecoveryOptions":
        {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Reject"}});
    app.register("order", &Definition::starting_with("Approve").step_with("Approve", recovery).step("Reject"));
    app.register("consider", &Definition::starting_with("Consider").waiting_step("Consider"));
    let mut db = app.db();
    let id = enqueue(&mut db, "order", ", input => '5'");
    assert_eq!(db.completes(&id).result(), &json!("rejected"));
    assert_eq!(worker.count(|call| call.executes("Approve")), 3);
    // Later.
    let later = enqueue(&mut db, "consider", "");
    assert_eq!(db.completes(&later).result(), &json!({"order": 5, "why": "Exhausted"}));
    app.done(&[]);
}
