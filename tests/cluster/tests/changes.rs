//! Events of processes that are published to a global queue when they are saved: the definition's key `changes`.

use xdb_cluster_tests::prelude::*;

/// The types `Order`, `Quiet` and `Parcel` have the changes `order-events`; `Quiet` keeps no history, and `Parcel` raises
/// an incident. `Forward` takes up to 500
/// changes at a time, and writes them to a table.
fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    app.superuser().run(
        "CREATE TABLE public.exported (number int GENERATED ALWAYS AS IDENTITY, key text, change jsonb);
         GRANT INSERT, SELECT ON public.exported TO PUBLIC;
         CREATE FUNCTION public.export(argument jsonb, context jsonb) RETURNS void LANGUAGE sql AS $$
             INSERT INTO public.exported (key, change) SELECT m->>'key', m->'payload'
             FROM jsonb_array_elements(argument) WITH ORDINALITY AS a (m, n) ORDER BY n $$",
    );
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => Reply::Json(
            200,
            json!({"commandRequest": {"waitingType": "AllOfCompletion", "globalQueueCommands": [
                {"commandId": "m", "queueName": "order-events", "atLeast": 1, "atMost": 500}]}}),
        ),
        (_, "Forward") => {
            let taken = call.body["commandResults"]["globalQueueResults"][0]["messages"].clone();
            let next = json!({"stateDecision": {"nextStates": [{"stateId": "Forward"}]},
                "callFunctions": [{"function": "export", "argument": taken}]});
            Reply::Json(200, next)
        }
        (_, "Pick") => next_all(&[("Pack", json!({"box": 1})), ("Pack", json!(null))]).into(),
        (_, "Ship") => error(500, "Lost", "the parcel is lost"),
        (_, "Pack") if call.input().is_null() => error(500, "Torn", "the box is torn"),
        _ => graceful_complete(json!("done")).into(),
    });
    let mut order = Definition::starting_with("Pick")
        .step("Pick")
        .step_with(
            "Pack",
            json!({"executeApiRetryPolicy": {"maximumAttempts": 1}, "stateFailureRecoveryOptions": {
                "policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Mend"}}),
        )
        .step("Mend")
        .json()
        .clone();
    order["changes"] = json!("order-events");
    order["globalQueues"] = json!([]);
    let mut quiet = order.clone();
    quiet["history"] = json!("none");
    let incident = json!({"executeApiRetryPolicy": {"maximumAttempts": 1},
        "stateFailureRecoveryOptions": {"policy": "RAISE_INCIDENT"}});
    let parcel = Definition::starting_with("Ship").step_with("Ship", incident).with("globalQueues", json!([]));
    let parcel = parcel.with("changes", json!("order-events"));
    let mut forward = Definition::starting_with("Forward").waiting_step("Forward").json().clone();
    forward["globalQueues"] = json!(["order-events"]);
    forward["functions"] = json!({"export": "public.export"});
    for (name, definition) in
        [("Order", order), ("Quiet", quiet), ("Parcel", parcel.json().clone()), ("Forward", forward)]
    {
        let sql = format!("SELECT xdb.register_process_type('{name}', 'stub', '{definition}')");
        app.superuser().run(&sql);
    }
    (app, worker)
}

/// "Kafka events for state changes if configured", "exporters see every record": each change once, in the order of its
/// process, with the details of the history.
#[test]
fn exporters_see_every_record_of_state_changes_if_configured() {
    let (app, _worker) = application("changes");
    let mut db = app.db();
    db.start("forward", "Forward").go();
    for n in 0..20 {
        db.start(&format!("order-{n}"), "Order").go();
        db.start(&format!("quiet-{n}"), "Quiet").go();
    }
    db.run("SELECT xdb.start_processes('[{\"process_type\": \"Order\", \"process_id\": \"order-bulk\"}]')");
    db.run("BEGIN; SELECT xdb.start_process('never', 'Order'); ROLLBACK");
    db.start("order-parcel", "Parcel").go();
    wait_until("an incident is raised", 60, || db.count("xdb.incidents WHERE process_id = 'order-parcel'") == 1);
    db.run("SELECT xdb.stop_process('order-parcel')");
    wait_until("all complete", 60, || {
        db.count("xdb.processes WHERE process_id <> 'forward' AND status = 'COMPLETED'") == 41
    });
    let closed = "public.exported WHERE change->>'eventType' = 'ProcessClosed'";
    wait_until("all are forwarded", 60, || db.count(closed) == 42);
    let differences = db.count(
        "(SELECT process_id, execution_id::text, event_id, event_type, details, event_time FROM xdb.history
          WHERE process_id LIKE 'order-%' AND event_type IN ('ProcessStarted', 'StateStarted', 'StateCompleted', 'StateFailed',
              'StateAborted', 'IncidentRaised', 'ProcessClosed')
          EXCEPT ALL SELECT key, change->>'processExecutionId', (change->>'eventId')::bigint, change->>'eventType',
              change->'details', (change->>'eventTime')::timestamptz FROM public.exported WHERE key LIKE 'order-%') AS d",
    );
    assert_eq!(differences, 0);
    let changes = |like: &str| format!("public.exported WHERE key LIKE '{like}'");
    let of_parcel = ["ProcessStarted", "StateStarted", "IncidentRaised", "ProcessClosed"];
    assert_eq!(db.count(&changes("order-%")), 21 * 10 + of_parcel.len() as i64);
    assert_eq!(db.count(&changes("quiet-%")), 20 * 10, "without history, too");
    assert_eq!(db.count(&changes("never")), 0);
    let out_of_order = db.count(
        "(SELECT FROM (SELECT (change->>'eventId')::int AS id, lag((change->>'eventId')::int) OVER (PARTITION BY key ORDER BY number)
          AS before FROM public.exported) AS e WHERE id <= before) AS o",
    );
    assert_eq!(out_of_order, 0);
    let (of_order, of_quiet) = ("order-0", "quiet-0");
    let types = |db: &mut Db, key: &str| -> Vec<String> {
        db.all(&format!("SELECT change->>'eventType' FROM public.exported WHERE key = '{key}' ORDER BY number"))
    };
    let started = types(&mut db, of_order);
    assert_eq!(started[..5], ["ProcessStarted", "StateStarted", "StateCompleted", "StateStarted", "StateStarted"]);
    assert!(started.contains(&"StateFailed".to_owned()), "{started:?}");
    assert_eq!(types(&mut db, of_quiet).len(), 10);
    assert_eq!(types(&mut db, "order-parcel"), of_parcel);
    let owners: Vec<String> =
        app.superuser().all("SELECT DISTINCT owner_name FROM xdb.global_message WHERE queue_name = 'order-events'");
    assert!(owners.iter().all(|owner| owner == "app"), "{owners:?}");
    db.run("SELECT xdb.stop_process('forward')");
    app.done(&[]);
}
