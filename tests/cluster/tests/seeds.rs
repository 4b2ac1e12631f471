//! The tables of the design documents that XDB was asked to replace, row by row: the records of a workflow engine's stream
//! as histories, the tables of locks as rows of `xdb.locks`, the transitions of a state machine as rows of
//! `xdb.transitions`, the modes of queues in the words of their document.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex};

use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;

// --- the records of a stream -----------------------------------------------------------------------------------------

/// The history of a process: the events of each transaction, in their order. An event of a step is followed by the step.
fn transactions(app: &App, id: &str) -> Vec<Vec<String>> {
    let rows = app.superuser().rows(&format!(
        "SELECT e.xmin::text AS transaction, h.event_type || COALESCE(' ' || COALESCE(h.details ->> 'stateExecutionId', (
             SELECT b.details ->> 'stateExecutionId' FROM xdb.history AS b WHERE b.execution_id = h.execution_id
                 AND b.event_type = 'StateStarted' AND b.details -> 'seq' = h.details -> 'seq')), '') AS event
         FROM xdb.history AS h JOIN xdb.processes AS p USING (execution_id)
         JOIN xdb.history_event AS e ON e.execution_id = h.execution_id AND e.event_id = h.event_id
         WHERE p.process_id = {} AND p.is_latest ORDER BY h.event_id",
        literal(id)
    ));
    let mut all: Vec<(Value, Vec<String>)> = Vec::new();
    for row in rows {
        let event = row["event"].as_str().unwrap_or_default().to_owned();
        match all.last_mut() {
            Some((transaction, events)) if *transaction == row["transaction"] => events.push(event),
            _ => all.push((row["transaction"].clone(), vec![event])),
        }
    }
    all.into_iter().map(|(_, events)| events).collect()
}

/// Compares the history of a process with the rows of a table, event by event.
fn is(app: &App, id: &str, table: &[&[&str]]) {
    let found = transactions(app, id);
    let expected: Vec<Vec<String>> =
        table.iter().map(|row| row.iter().map(|event| event.to_string()).collect()).collect();
    assert_eq!(found, expected, "{id}");
    let problems: Vec<String> = app.superuser().all(&format!("SELECT problem FROM xdb.check_process({})", literal(id)));
    assert_eq!(problems, [""; 0], "{id}");
}

/// An application whose calls the test answers itself, as a job worker that activates and completes jobs.
fn jobs(name: &str, types: &[(&str, Definition)]) -> App {
    let app = App::new(name);
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    types.iter().for_each(|(name, definition)| app.register_with("pull", name, definition));
    app
}

/// Activates the job of this state.
fn activate(db: &mut Db, state: &str) -> String {
    activate_with(db, "pull", state)
}

fn activate_with(db: &mut Db, worker: &str, state: &str) -> String {
    let row = db.rows(&format!("SELECT token, request FROM xdb.claim_calls('{worker}', 1, wait => '20 s')")).remove(0);
    assert_eq!(row["request"]["stateId"], state);
    row["token"].as_str().expect("a token").to_owned()
}

fn completing(token: &str, answer: &Answer) -> String {
    format!("SELECT xdb.complete_call('{token}', {})", jsonb(&answer.json()))
}

/// Activates the job of this state, and completes it.
fn complete(db: &mut Db, state: &str, answer: Answer) {
    let token = activate(db, state);
    db.run(&completing(&token, &answer));
}

fn waits_for(queue: &str) -> Value {
    json!({"commandRequest": {"waitingType": "AnyOfCompletion",
        "localQueueCommands": [{"commandId": "m", "queueName": queue, "count": 1}]}})
}

fn guard_timer(seconds: u32, interrupting: bool) -> Value {
    json!({"interrupting": interrupting, "commandRequest": {"waitingType": "AnyOfCompletion",
        "timerCommands": [{"commandId": "t", "delayInSeconds": seconds}]}})
}

/// `Ship` with the boundary event `Boundary`, then `Last`.
fn with_boundary(boundary: Value) -> Definition {
    Definition::starting_with("Ship")
        .step_with("Ship", json!({"guards": ["Boundary"]}))
        .waiting_step_with("Boundary", boundary)
        .step("Last")
}

/// `CreateWorkflowInstance` → Created, `Process:Activate_Element`; `ServiceTask:Activate_Element` → Activating, Activated,
/// `Job:Created`; `Job:Complete` → Completed, `ServiceTask:Complete_Element` → Completed, `Sequence_Flow_Taken`.
#[test]
fn a_workflow_instance_is_created_and_its_service_tasks_are_completed() {
    let definition = Definition::starting_with("First").step("First").step("Last");
    let app = jobs("seed_service_task", &[("order", definition)]);
    let mut db = app.db();
    db.start("p", "order").go();
    complete(&mut db, "First", next("Last", json!(null)).locals(json!({"variable": 1})));
    complete(&mut db, "Last", graceful_complete(json!(null)));
    is(
        &app,
        "p",
        &[
            &["ProcessStarted", "StateStarted First-1"],
            &["LocalAttributesWritten", "StateCompleted First-1", "StateStarted Last-1"],
            &["StateCompleted Last-1", "CompletionRequested", "ProcessClosed"],
        ],
    );
    app.done(&[]);
}

/// Multi-instance, parallel: `MultiInstanceBody:Activate_Element` → a `ServiceTask:Activate_Element` of each element, then
/// `ServiceTask:Complete_Element` (first, last), `MultiInstanceBody:Complete_Element` with the output collection.
#[test]
fn a_parallel_multi_instance_body_completes_with_its_last_service_task() {
    let join = json!({"commandRequest": {"waitingType": "AnyOfCompletion",
        "localQueueCommands": [{"commandId": "m", "queueName": "output", "count": 2}]}});
    let definition = Definition::starting_with("Body").step("Body").step("Task").waiting_step_with("Join", join);
    let app = jobs("seed_parallel", &[("order", definition)]);
    let mut db = app.db();
    db.start("p", "order").input(json!([1, 2])).go();
    complete(&mut db, "Body", next_all(&[("Task", json!(1)), ("Task", json!(2)), ("Join", json!(null))]));
    for output in 1..=2 {
        complete(&mut db, "Task", dead_end().publish("output", json!(output)));
    }
    let token = activate(&mut db, "Join");
    let collection = db.json("SELECT jsonb_agg(m -> 'payload' ORDER BY m -> 'payload') FROM xdb.history AS h, jsonb_array_elements(details -> 'messages') AS m
        WHERE process_id = 'p' AND event_type = 'MessagesReceived'");
    db.run(&completing(&token, &graceful_complete(collection)));
    assert_eq!(db.completes("p").result(), &json!([1, 2]));
    is(
        &app,
        "p",
        &[
            &["ProcessStarted", "StateStarted Body-1"],
            &[
                "StateCompleted Body-1",
                "StateStarted Task-1",
                "StateStarted Task-2",
                "StateStarted Join-1",
                "WaitStarted Join-1",
            ],
            &["MessagesReceived", "StateCompleted Task-1"],
            &["MessagesReceived", "CommandCompleted Join-1", "WaitCompleted Join-1", "StateCompleted Task-2"],
            &["ResultGiven Join-1", "StateCompleted Join-1", "CompletionRequested", "ProcessClosed"],
        ],
    );
    app.done(&[]);
}

/// Multi-instance, sequential: the first `ServiceTask:Complete_Element` activates the next one, with the loop counter.
#[test]
fn a_sequential_multi_instance_body_activates_one_service_task_after_the_other() {
    let app = jobs("seed_sequential", &[("order", Definition::starting_with("Task").step("Task"))]);
    let mut db = app.db();
    db.start("p", "order").input(json!(0)).go();
    complete(&mut db, "Task", next("Task", json!(1)));
    complete(&mut db, "Task", graceful_complete(json!("output collection")));
    is(
        &app,
        "p",
        &[
            &["ProcessStarted", "StateStarted Task-1"],
            &["StateCompleted Task-1", "StateStarted Task-2"],
            &["ResultGiven Task-2", "StateCompleted Task-2", "CompletionRequested", "ProcessClosed"],
        ],
    );
    let inputs: Vec<i32> = db.all("SELECT input::int FROM xdb.state_executions WHERE process_id = 'p' ORDER BY number");
    assert_eq!(inputs, [0, 1], "the loop counter");
    app.done(&[]);
}

/// `CallActivity:Activate_Element` → child Created; `Process:Complete_Element` of the child → `CallActivity:Complete_Element`.
#[test]
fn a_call_activity_is_activated_and_completed_by_the_process_that_it_created() {
    let parent = Definition::starting_with("Call").step("Call").waiting_step_with("Called", waits_for("ended"));
    let child = Definition::starting_with("Task").step("Task");
    let app = jobs("seed_call_activity", &[("parent", parent), ("child", child)]);
    let mut db = app.db();
    db.start("p", "parent").go();
    let children = json!([{"processType": "child", "processId": "c", "input": "variables", "onClose": "ended"}]);
    complete(&mut db, "Call", next("Called", json!(null)).starting(children));
    complete(&mut db, "Task", graceful_complete(json!("variables out")));
    complete(&mut db, "Called", graceful_complete(json!(null)));
    db.completes("p");
    is(
        &app,
        "c",
        &[
            &["ProcessStarted", "StateStarted Task-1"],
            &["ResultGiven Task-1", "StateCompleted Task-1", "CompletionRequested", "ProcessClosed"],
        ],
    );
    is(
        &app,
        "p",
        &[
            &["ProcessStarted", "StateStarted Call-1"],
            &["ChildrenStarted", "StateCompleted Call-1", "StateStarted Called-1", "WaitStarted Called-1"],
            &["MessagesReceived", "CommandCompleted Called-1", "WaitCompleted Called-1"],
            &["StateCompleted Called-1", "CompletionRequested", "ProcessClosed"],
        ],
    );
    // The child was created in the transaction that activated it.
    let of = |id: &str, event: &str| {
        app.superuser().one::<String>(&format!(
            "SELECT e.xmin::text FROM xdb.history_event AS e JOIN xdb.history AS h USING (execution_id, event_id)
             WHERE h.process_id = '{id}' AND h.event_type = '{event}'"
        ))
    };
    assert_eq!(of("c", "ProcessStarted"), of("p", "ChildrenStarted"));
    app.done(&[]);
}

/// `Process:Terminate_Element` → `ServiceTask:Terminate_Element` (A, B) → `Process:Element_Terminated`; then each child's.
#[test]
fn a_process_is_terminated_with_its_service_tasks_and_then_its_children() {
    let parent =
        Definition::starting_with("Begin").step("Begin").step("A").step("B").waiting_step_with("C", waits_for("q"));
    let child = Definition::starting_with("Rest").waiting_step_with("Rest", waits_for("q"));
    let app = jobs("seed_termination", &[("parent", parent), ("child", child)]);
    let mut db = app.db();
    db.start("p", "parent").go();
    let all = next_all(&[("A", json!(null)), ("B", json!(null)), ("C", json!(null))]);
    complete(&mut db, "Begin", all.starting(json!([{"processType": "child", "processId": "c"}])));
    let token = activate(&mut db, "A");
    db.run("SELECT xdb.stop_process('p')");
    // "They can no longer be processed, because the workflow instance has been terminated."
    db.refused(codes::CALL_IS_LOST, &completing(&token, &dead_end()));
    wait_until("the child has closed", 20, || db.status("c") == "TERMINATED");
    is(
        &app,
        "p",
        &[
            &["ProcessStarted", "StateStarted Begin-1"],
            &[
                "ChildrenStarted",
                "StateCompleted Begin-1",
                "StateStarted A-1",
                "StateStarted B-1",
                "StateStarted C-1",
                "WaitStarted C-1",
            ],
            &["ProcessClosed"],
        ],
    );
    is(&app, "c", &[&["ProcessStarted", "StateStarted Rest-1", "WaitStarted Rest-1"], &["ProcessClosed"]]);
    let aborted: Vec<String> = db.all(
        "SELECT state_execution_id FROM xdb.state_executions WHERE process_id = 'p' AND status = 'ABORTED' ORDER BY 1",
    );
    assert_eq!(aborted, ["A-1", "B-1", "C-1"]);
    app.done(&[]);
}

/// `Job:Fail` (no retries) → Failed, `Incident:Created`; `VariableDocument:Update` → Updated; `Job:Update_Retries`;
/// `Incident:Resolve` → Resolved.
#[test]
fn a_job_without_retries_creates_an_incident_that_is_resolved_after_its_variables_are_updated() {
    let options = json!({"executeApiRetryPolicy": {"maximumAttempts": 1},
        "stateFailureRecoveryOptions": {"policy": "RAISE_INCIDENT"}});
    let app = jobs("seed_incident", &[("order", Definition::starting_with("Task").step_with("Task", options))]);
    let mut db = app.db();
    db.start("p", "order").go();
    let token = activate(&mut db, "Task");
    db.run(&format!("SELECT xdb.fail_call('{token}', '{{\"errorType\": \"NoMoney\"}}')"));
    assert_eq!(db.count("xdb.incidents WHERE process_id = 'p'"), 1);
    db.run("SELECT xdb.set_local_attributes('p', '{\"money\": 5}')");
    db.run("SELECT xdb.retry_now('p')");
    complete(&mut db, "Task", graceful_complete(json!(null)));
    is(
        &app,
        "p",
        &[
            &["ProcessStarted", "StateStarted Task-1"],
            &["IncidentRaised Task-1"],
            &["LocalAttributesWritten"],
            &["RetryRequested Task-1"],
            &["StateCompleted Task-1", "CompletionRequested", "ProcessClosed"],
        ],
    );
    let resolves = db.json("SELECT details -> 'resolves' FROM xdb.history WHERE event_type = 'RetryRequested'");
    assert_eq!(resolves, true);
    app.done(&[]);
}

/// `ServiceTask:Activate_Element` → Activated, `Timer:Created`, `Job:Created`. `Timer:Trigger` → Triggered,
/// `ServiceTask:Terminate_Element` → Terminated, `BoundaryEvent:Activate_Element`; a later `Job:Complete` is rejected. Or
/// `Job:Complete` comes first, and the timer is cancelled.
#[test]
fn an_interrupting_boundary_timer_event_is_triggered_or_its_service_task_is_completed() {
    let definition = with_boundary(guard_timer(3600, true));
    let app = jobs("seed_boundary_timer", &[("order", definition)]);
    let mut db = app.db();
    let activated: &[&str] =
        &["ProcessStarted", "StateStarted Ship-1", "StateStarted Boundary-1", "WaitStarted Boundary-1"];
    db.start("triggered", "order").go();
    assert_eq!(db.all::<String>("SELECT kind FROM xdb.timers WHERE process_id = 'triggered'"), ["TIMER_COMMAND"]);
    let token = activate(&mut db, "Ship");
    db.run("SELECT xdb.skip_timer('triggered', 'Boundary-1')");
    db.refused(codes::CALL_IS_LOST, &completing(&token, &next("Last", json!(null))));
    complete(&mut db, "Boundary", graceful_complete(json!(null)));
    is(
        &app,
        "triggered",
        &[
            activated,
            &["TimerSkipped Boundary-1", "WaitCompleted Boundary-1", "StateAborted Ship-1"],
            &["StateCompleted Boundary-1", "CompletionRequested", "ProcessClosed"],
        ],
    );
    db.start("completed", "order").go();
    complete(&mut db, "Ship", next("Last", json!(null)));
    db.refused(codes::NOT_WAITING, "SELECT xdb.skip_timer('completed', 'Boundary-1')");
    complete(&mut db, "Last", graceful_complete(json!(null)));
    is(
        &app,
        "completed",
        &[
            activated,
            &["StateCompleted Ship-1", "StateAborted Boundary-1", "StateStarted Last-1"],
            &["StateCompleted Last-1", "CompletionRequested", "ProcessClosed"],
        ],
    );
    // The same by the clock: the timer fires in a turn of the engine.
    app.register_with("pull", "soon", &with_boundary(guard_timer(1, true)));
    db.start("fired", "soon").go();
    activate(&mut db, "Ship");
    complete(&mut db, "Boundary", graceful_complete(json!(null)));
    is(
        &app,
        "fired",
        &[
            activated,
            &["CommandCompleted Boundary-1", "WaitCompleted Boundary-1", "StateAborted Ship-1"],
            &["StateCompleted Boundary-1", "CompletionRequested", "ProcessClosed"],
        ],
    );
    app.done(&[]);
}

/// A boundary message event that does not interrupt: the service task goes on beside it.
#[test]
fn a_non_interrupting_boundary_message_event_leaves_its_service_task_activated() {
    let mut boundary = waits_for("news");
    boundary["interrupting"] = json!(false);
    let app = jobs("seed_boundary_message", &[("order", with_boundary(boundary))]);
    let mut db = app.db();
    db.start("p", "order").go();
    let token = activate(&mut db, "Ship");
    db.publish("p", "news", json!(1));
    complete(&mut db, "Boundary", dead_end());
    db.run(&completing(&token, &graceful_complete(json!(null))));
    db.completes("p");
    is(
        &app,
        "p",
        &[
            &["ProcessStarted", "StateStarted Ship-1", "StateStarted Boundary-1", "WaitStarted Boundary-1"],
            &["MessagesReceived", "CommandCompleted Boundary-1", "WaitCompleted Boundary-1"],
            &["StateCompleted Boundary-1"],
            &["StateCompleted Ship-1", "CompletionRequested", "ProcessClosed"],
        ],
    );
    app.done(&[]);
}

/// "The event sub process element can be triggered by timer, message and error." A message interrupts the main flow.
#[test]
fn an_event_sub_process_is_triggered_by_a_message_and_terminates_the_main_flow() {
    let definition = Definition::starting_with("Begin")
        .step("Begin")
        .step("A")
        .step("B")
        .waiting_step_with("Sub", waits_for("cancel"))
        .with("guards", json!(["Sub"]));
    let app = jobs("seed_sub_message", &[("order", definition)]);
    let mut db = app.db();
    db.start("p", "order").go();
    complete(&mut db, "Begin", next_all(&[("A", json!(null)), ("B", json!(null))]));
    db.publish("p", "cancel", json!(1));
    wait_until("it has triggered", 20, || views::waits(&mut db, "p").is_empty());
    complete(&mut db, "Sub", graceful_complete(json!(null)));
    is(
        &app,
        "p",
        &[
            &["ProcessStarted", "StateStarted Begin-1", "StateStarted Sub-1", "WaitStarted Sub-1"],
            &["StateCompleted Begin-1", "StateStarted A-1", "StateStarted B-1"],
            &[
                "MessagesReceived",
                "CommandCompleted Sub-1",
                "WaitCompleted Sub-1",
                "StateAborted A-1",
                "StateAborted B-1",
            ],
            &["StateCompleted Sub-1", "CompletionRequested", "ProcessClosed"],
        ],
    );
    app.done(&[]);
}

/// `Job:Throw_Error` → Error_Thrown, `ServiceTask:Terminate_Element` (main) → Terminated, `StartEvent:Activate_Element` (sub).
#[test]
fn an_event_sub_process_is_triggered_by_an_error_that_a_job_throws() {
    let recovery = json!({"stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE",
        "stateFailureProceedStateId": "Sub"}});
    let definition = Definition::starting_with("Begin")
        .step("Begin")
        .step_with("Main", recovery)
        .waiting_step_with("Other", waits_for("q"))
        .step("Sub")
        .step("Last");
    let app = jobs("seed_sub_error", &[("order", definition)]);
    let mut db = app.db();
    db.start("p", "order").go();
    complete(&mut db, "Begin", next_all(&[("Main", json!(null)), ("Other", json!(null))]));
    let token = activate(&mut db, "Main");
    db.run(&format!("SELECT xdb.fail_call('{token}', '{{\"errorType\": \"OutOfStock\", \"final\": true}}')"));
    complete(&mut db, "Sub", next("Last", json!(null)).aborting(&["*"]));
    complete(&mut db, "Last", graceful_complete(json!(null)));
    is(
        &app,
        "p",
        &[
            &["ProcessStarted", "StateStarted Begin-1"],
            &["StateCompleted Begin-1", "StateStarted Main-1", "StateStarted Other-1", "WaitStarted Other-1"],
            &["StateFailed Main-1", "StateStarted Sub-1"],
            &["StateAborted Other-1", "StateCompleted Sub-1", "StateStarted Last-1"],
            &["StateCompleted Last-1", "CompletionRequested", "ProcessClosed"],
        ],
    );
    app.done(&[]);
}

/// `IntermediateCatchEvent:Activate_Element` → `MessageSubscription:Opened`; `Message:Publish` → Published, Correlating,
/// Correlated; `IntermediateCatchEvent:Complete_Element`.
#[test]
fn an_intermediate_message_catch_event_is_correlated_once() {
    let catch = json!({"commandRequest": {"waitingType": "AnyOfCompletion",
        "globalQueueCommands": [{"commandId": "m", "queueName": "payments", "key": "order-7"}]}});
    let definition = Definition::starting_with("Catch").waiting_step_with("Catch", catch);
    let app = jobs("seed_catch", &[("order", definition)]);
    let mut db = app.db();
    db.start("p", "order").go();
    db.run("SELECT xdb.publish_global('payments', '1', key => 'other')");
    db.run("SELECT xdb.publish_global('payments', '2', key => 'order-7')");
    complete(&mut db, "Catch", graceful_complete(json!(null)));
    is(
        &app,
        "p",
        &[
            &["ProcessStarted", "StateStarted Catch-1", "WaitStarted Catch-1"],
            &["GlobalMessagesTaken Catch-1", "WaitCompleted Catch-1"],
            &["StateCompleted Catch-1", "CompletionRequested", "ProcessClosed"],
        ],
    );
    assert_eq!(db.count("xdb.queue_messages WHERE queue_name = 'payments'"), 1, "the message of another key stays");
    app.done(&[]);
}

/// `Message:Publish` → `MessageStartEventSubscription:Correlated`, `Process:Activate_Element`: one instance for each
/// correlation key. The next message waits for its end.
#[test]
fn a_message_start_event_is_correlated_and_activates_a_process() {
    let take = json!({"commandRequest": {"waitingType": "AnyOfCompletion",
        "globalQueueCommands": [{"commandId": "m", "queueName": "orders"}]}});
    let consumer = Definition::starting_with("Take").waiting_step_with("Take", take);
    let order = Definition::starting_with("Work").step("Work");
    let app = jobs("seed_message_start", &[("consumer", consumer)]);
    app.superuser().run("SELECT xdb.register_worker('orders', NULL, role => 'app')");
    app.register_with("orders", "order", &order);
    let mut db = app.db();
    db.start("consumer", "consumer").go();
    let start = |id: &str| json!([{"processType": "order", "processId": id, "whenParentCloses": "LEAVE", "options": {"locks": ["orders/7"]}}]);
    for id in ["first", "second"] {
        db.run("SELECT xdb.publish_global('orders', '1', key => '7')");
        complete(&mut db, "Take", next("Take", json!(null)).starting(start(id)));
    }
    wait_until("one has the lock", 20, || db.count("xdb.locks WHERE granted") == 1);
    assert_eq!(db.all::<String>("SELECT process_id FROM xdb.locks WHERE NOT granted"), ["second"]);
    for id in ["first", "second"] {
        let token = activate_with(&mut db, "orders", "Work");
        assert_eq!(db.all::<String>("SELECT process_id FROM xdb.locks WHERE granted"), [id]);
        db.run(&completing(&token, &graceful_complete(json!(null))));
        assert_eq!(db.status(id), "COMPLETED");
    }
    is(
        &app,
        "consumer",
        &[
            &["ProcessStarted", "StateStarted Take-1", "WaitStarted Take-1"],
            &["GlobalMessagesTaken Take-1", "WaitCompleted Take-1"],
            &["ChildrenStarted", "StateCompleted Take-1", "StateStarted Take-2", "WaitStarted Take-2"],
            &["GlobalMessagesTaken Take-2", "WaitCompleted Take-2"],
            &["ChildrenStarted", "StateCompleted Take-2", "StateStarted Take-3", "WaitStarted Take-3"],
        ],
    );
    for id in ["first", "second"] {
        is(
            &app,
            id,
            &[
                &["ProcessStarted", "StateStarted Work-1"],
                &["StateCompleted Work-1", "CompletionRequested", "ProcessClosed"],
            ],
        );
        let started = db.json(&format!("SELECT details FROM xdb.history WHERE process_id = '{id}' AND event_id = 1"));
        assert_eq!(started["locks"], json!({"orders/7": "EXCLUSIVE"}), "{started}");
        assert_eq!(started["startedBy"]["processId"], "consumer", "{started}");
    }
    db.run("SELECT xdb.stop_process('consumer')");
    app.done(&[]);
}

// --- the tables of locks ---------------------------------------------------------------------------------------------

/// "Global Lock (Locked State)": `| key123 | NULL |`. "Local Lock (Locked State)": `| 6789 | acct456 | true | NULL |`. "No
/// Lock or Unlocked State: the absence of a record with the relevant LookupKey."
#[test]
fn a_record_with_a_null_or_future_unlock_timestamp_is_a_lock_and_the_absence_of_a_record_is_none() {
    let app = App::new("seed_locks");
    let _worker = app.worker(|_: &Call| dead_end());
    app.register("Transfer", &Definition::without_start());
    app.register("Payout", &Definition::without_start());
    let mut db = app.db();
    let global = "SELECT name AS \"LookupKey\", expires_at AS \"UnlockTimestamp\" FROM xdb.locks
        WHERE granted AND name NOT LIKE process_type || '/%' ORDER BY name";
    let local = "SELECT process_id AS \"ID\", substr(name, length(process_type) + 2) AS \"LookupKey\", true AS \"UsesLocalLock\",
        expires_at AS \"UnlockedTimestamp\" FROM xdb.locks WHERE granted AND name LIKE process_type || '/%' ORDER BY name";
    assert_eq!((db.rows(global), db.rows(local)), (vec![], vec![]), "no lock");
    db.start("1", "Transfer").options(json!({"locks": ["key123"]})).go();
    db.start("6789", "Transfer").options(json!({"locks": ["Transfer/acct456"]})).go();
    let locked =
        |db: &mut Db, count| wait_until("the locks are granted", 10, || db.count("xdb.locks WHERE granted") == count);
    locked(&mut db, 2);
    assert_eq!(db.rows(global), [json!({"LookupKey": "key123", "UnlockTimestamp": null})]);
    let of_6789 = json!({"ID": "6789", "LookupKey": "acct456", "UsesLocalLock": true, "UnlockedTimestamp": null});
    assert_eq!(db.rows(local), std::slice::from_ref(&of_6789));
    // A local lock is one within its type: another type has a lock of the same key. A future timestamp is a lock too.
    db.start("6790", "Payout").timeout("1 hour").options(json!({"locks": ["Payout/acct456"]})).go();
    locked(&mut db, 3);
    let rows = db.rows(local);
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0]["ID"], &rows[1]), (&json!("6790"), &of_6789));
    let in_future = "SELECT expires_at > now() FROM xdb.locks WHERE process_id = '6790'";
    assert!(db.one::<bool>(in_future));
    // "A global lock is not overridden by a local lock and vice versa": who needs both waits for both.
    db.start("both", "Transfer").options(json!({"locks": ["key123", "Transfer/acct456"]})).go();
    for id in ["1", "6789"] {
        wait_until("it waits", 10, || {
            db.count("xdb.locks WHERE process_id = 'both' AND NOT granted AND place = 1") == 2
        });
        db.run(&format!("SELECT xdb.stop_process('{id}')"));
    }
    wait_until("it has both", 10, || db.count("xdb.locks WHERE process_id = 'both' AND granted") == 2);
    for id in ["both", "6790"] {
        db.run(&format!("SELECT xdb.stop_process('{id}')"));
    }
    assert_eq!((db.rows(global), db.rows(local)), (vec![], vec![]), "unlocked");
    app.done(&[]);
}

/// "Global Lock Table (for tracking global locks)": ID, StateMachineType ("so we know where this lock originated"),
/// StateMachineID, LookupKey ("that we're locking across all state machine types"), LockTimestamp, UnlockTimestamp.
#[test]
fn the_global_lock_table_tracks_where_each_lock_originated() {
    let app = App::new("seed_global_lock_table");
    let _worker = app.worker(|_: &Call| dead_end());
    for of_type in ["TypeA", "TypeB"] {
        app.register(of_type, &Definition::without_start());
    }
    let mut db = app.db();
    let execution = db.start("a", "TypeA").timeout("1 hour").options(json!({"locks": ["user-1"]})).go();
    wait_until("it has the lock", 10, || db.count("xdb.locks WHERE granted") == 1);
    db.start("b", "TypeB").options(json!({"locks": ["user-1"]})).go();
    wait_until("it waits", 10, || db.count("xdb.locks WHERE place = 1") == 1);
    let table = "SELECT l.execution_id AS \"ID\", l.process_type AS \"StateMachineType\", l.process_id AS \"StateMachineID\",
        l.name AS \"LookupKey\", l.since BETWEEN p.started_at AND clock_timestamp() AS \"LockTimestamp\",
        l.expires_at = p.timeout_at AS \"UnlockTimestamp\" FROM xdb.locks AS l JOIN xdb.processes AS p USING (execution_id) WHERE l.granted";
    assert_eq!(
        db.rows(table),
        [json!({"ID": execution, "StateMachineType": "TypeA", "StateMachineID": "a", "LookupKey": "user-1",
            "LockTimestamp": true, "UnlockTimestamp": true})]
    );
    db.run("SELECT xdb.stop_process('a')");
    wait_until("the next one has it", 10, || db.count("xdb.locks WHERE granted AND process_id = 'b'") == 1);
    assert_eq!(db.rows(table)[0]["UnlockTimestamp"], Value::Null);
    db.run("SELECT xdb.stop_process('b')");
    app.done(&[]);
}

/// `STATE_MACHINE_TYPE_LOCK`: `| TypeA | ImmediateReject | NULL |`, `| TypeB | SleepState | 2024-01-01 |`.
#[test]
fn the_state_machine_type_lock_table_rejects_immediately_or_sleeps() {
    let app = App::new("seed_type_locks");
    let _worker = app.worker(|_: &Call| dead_end());
    for of_type in ["TypeA", "TypeB"] {
        app.register(of_type, &Definition::without_start());
    }
    app.superuser().run(
        "SELECT xdb.pause_process_type('TypeA', 'REJECT'); SELECT xdb.pause_process_type('TypeB', 'WAIT', until => '2100-01-01 00:00Z')",
    );
    let mut db = app.db();
    let table = "SELECT process_type AS \"StateMachineType\",
        CASE pause_mode WHEN 'REJECT' THEN 'ImmediateReject' WHEN 'WAIT' THEN 'SleepState' END AS \"LockType\",
        to_char(paused_until AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS \"UnlockTimestamp\" FROM xdb.process_types ORDER BY process_type";
    let row = |of_type: &str, lock: &str, until: Value| json!({"StateMachineType": of_type, "LockType": lock, "UnlockTimestamp": until});
    assert_eq!(
        app.superuser().rows(table),
        [row("TypeA", "ImmediateReject", json!(null)), row("TypeB", "SleepState", json!("2100-01-01"))]
    );
    db.start("a", "TypeA").refused(codes::PAUSED);
    db.start("b", "TypeB").go();
    db.run("SELECT xdb.stop_process('b')");
    app.done(&[]);
}

// --- the history of a state machine ----------------------------------------------------------------------------------

/// "History of executed transitions: handler names, initial and modified states, arbitrary data." The machine moves
/// forward and backward. A handler has the name of its state.
#[test]
fn a_history_of_executed_transitions_has_handler_names_initial_and_modified_states_and_arbitrary_data() {
    let app = App::new("seed_transitions");
    let worker = app.worker(|call: &Call| match call.state_execution_id() {
        "Draft-1" => next("Review", json!({"pages": 1})).locals(json!({"author": "Ann"})),
        "Review-1" => next("Draft", json!("too short")),
        "Draft-2" => next("Review", json!({"pages": 9})).locals(json!({"author": "Bob", "drafts": 2})),
        _ => graceful_complete(json!(null)).locals(json!({"approved": true})),
    });
    app.register("Letter", &Definition::starting_with("Draft").step("Draft").step("Review"));
    let mut db = app.db();
    db.start("p", "Letter").input(json!("a letter")).go();
    db.completes("p");
    let table = "SELECT regexp_replace(from_state, '-[0-9]+$', '') AS \"HandlerName\", from_state AS \"InitialState\",
        to_state AS \"ModifiedState\", outcome AS \"Outcome\", input AS \"Input\", written AS \"Data\"
        FROM xdb.transitions WHERE process_id = 'p' ORDER BY event_id";
    let row = |from: Value, to: Value, input: Value, data: Value| {
        let handler = from.as_str().map(|step| step.trim_end_matches("-1").trim_end_matches("-2"));
        let outcome = if from.is_null() { json!(null) } else { json!("COMPLETED") };
        json!({"HandlerName": handler, "InitialState": from, "ModifiedState": to, "Outcome": outcome, "Input": input, "Data": data})
    };
    let rows = [
        row(json!(null), json!("Draft-1"), json!("a letter"), json!(null)),
        row(json!("Draft-1"), json!("Review-1"), json!({"pages": 1}), json!({"author": "Ann"})),
        row(json!("Review-1"), json!("Draft-2"), json!("too short"), json!(null)),
        row(json!("Draft-2"), json!("Review-2"), json!({"pages": 9}), json!({"author": "Bob", "drafts": 2})),
        row(json!("Review-2"), json!(null), json!(null), json!({"approved": true})),
    ];
    assert_eq!(db.rows(table), rows);
    let executed: Vec<_> = worker.calls().iter().map(|call| json!(call.target())).collect();
    assert_eq!(executed, rows[1..].iter().map(|row| row["HandlerName"].clone()).collect::<Vec<_>>());
    let times = "SELECT bool_and(event_time BETWEEN p.started_at AND clock_timestamp())
        FROM xdb.transitions AS t JOIN xdb.processes AS p USING (execution_id) WHERE p.process_id = 'p'";
    assert!(db.one::<bool>(times));
    app.done(&[]);
}

// --- the modes of queues ---------------------------------------------------------------------------------------------

/// Which todos of a queue are executed at this moment, and in which order they began.
#[derive(Default)]
struct Executing {
    inside: BTreeSet<String>,
    began: Vec<String>,
    most: usize,
    /// Todos of one key that were executed at the same time.
    clashes: Vec<String>,
}

/// "The HostSet members execute Todos sequentially, in-parallel, or parallel by-key, as configured on a queue level execute
/// mode." "Items with the same key get executed sequentially." "Todos are dequeued in the order of submission and
/// SysStartDate constraint, processed sequentially or in parallel depending on a SysParallelKey."
#[test]
fn host_set_members_execute_todos_sequentially_in_parallel_or_parallel_by_key() {
    const KEYS: usize = 3;
    const TODOS: usize = 12;
    let app = App::alone("seed_modes", ClusterOptions::default().own_clock());
    let queues: Arc<(Mutex<BTreeMap<String, Executing>>, Condvar)> = Arc::default();
    let of_worker = queues.clone();
    let key_of = |id: &str| id.rsplit('-').next().and_then(|n| n.parse::<usize>().ok()).unwrap_or_default() % KEYS;
    let _worker = app.worker(move |call: &Call| {
        let id = call.process_id().to_owned();
        let queue = id.split('-').next().unwrap_or_default().to_owned();
        let (all, changed) = &*of_worker;
        let mut guard = all.lock().expect("no thread panics");
        let of_queue = guard.entry(queue.clone()).or_default();
        let clash = of_queue.inside.iter().find(|other| key_of(other) == key_of(&id)).cloned();
        of_queue.clashes.extend(clash.map(|other| format!("{id} with {other}")));
        of_queue.inside.insert(id.clone());
        of_queue.began.push(id.clone());
        of_queue.most = of_queue.most.max(of_queue.inside.len());
        changed.notify_all();
        // Todos wait until as many are executed at once as the mode allows.
        let wanted = match &*queue {
            "Parallel" => TODOS,
            "ParallelByKey" => KEYS,
            _ => 1,
        };
        let fewer = |all: &mut BTreeMap<String, Executing>| all.get(&queue).is_some_and(|of| of.most < wanted);
        let (mut guard, waited) =
            changed.wait_timeout_while(guard, Duration::from_secs(20), fewer).expect("no thread panics");
        assert!(!waited.timed_out(), "{queue}: fewer todos are executed at once than its mode allows");
        guard.get_mut(&queue).expect("made above").inside.remove(&id);
        force_complete(json!("Complete"))
    });
    app.register("Parallel", &one_step());
    app.register("Sequential", &one_step().with("locks", json!(["Sequential"])));
    app.register("ParallelByKey", &one_step());
    let mut db = app.db();
    // Submitted first, with a later start date.
    db.run("SELECT xdb.start_process('Sequential-99', 'Sequential', start_at => now() + interval '1 hour')");
    for n in 0..TODOS {
        for queue in ["Parallel", "Sequential", "ParallelByKey"] {
            let (id, key) = (format!("{queue}-{n}"), format!("{queue}/{}", n % KEYS));
            let locks = if queue == "ParallelByKey" { json!([key]) } else { json!([]) };
            db.start(&id, queue).options(json!({"locks": locks})).go();
        }
    }
    wait_until("all but one have completed", 60, || db.count("xdb.processes WHERE status = 'RUNNING'") == 1);
    app.cluster().set_clock(3700.0);
    db.completes("Sequential-99");
    let all = queues.0.lock().expect("no thread panics");
    let numbers =
        |of: &[String]| -> Vec<usize> { of.iter().filter_map(|id| id.rsplit('-').next()?.parse().ok()).collect() };
    assert_eq!(all["Parallel"].most, TODOS);
    assert_eq!(all["Sequential"].most, 1);
    let ordered: Vec<_> = (0..TODOS).chain([99]).collect();
    assert_eq!(numbers(&all["Sequential"].began), ordered, "in the order of submission and start date");
    assert_eq!((all["ParallelByKey"].most, &all["ParallelByKey"].clashes), (KEYS, &Vec::new()));
    for key in 0..KEYS {
        let began: Vec<_> = all["ParallelByKey"].began.iter().filter(|id| key_of(id) == key).cloned().collect();
        let in_order: Vec<_> = (0..TODOS).filter(|n| n % KEYS == key).collect();
        assert_eq!(numbers(&began), in_order, "items with the same key get executed sequentially");
    }
    drop(all);
    app.done(&[]);
}
