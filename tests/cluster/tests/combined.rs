//! Locks, guards, static waits, cron timers and children where they meet.

use xdb_cluster_tests::db::literal;
use xdb_cluster_tests::prelude::*;

fn is_sound(db: &mut Db, id: &str) {
    assert_eq!(db.all::<String>(&format!("SELECT problem FROM xdb.check_process({})", literal(id))), [""; 0]);
    views::assert_history_is_whole(db, id);
}

fn waits_for_queue(queue: &str) -> Value {
    json!({"commandRequest": {"waitingType": "AnyOfCompletion",
        "localQueueCommands": [{"commandId": "m", "queueName": queue, "count": 1}]}})
}

/// A process without states that has the lock until it is stopped.
fn hold(app: &App, db: &mut Db, lock: &str) {
    app.register("holder", &Definition::without_start());
    db.start("holder", "holder").options(json!({"locks": [lock]})).go();
    wait_until("it has the lock", 10, || db.count("xdb.locks WHERE process_id = 'holder' AND granted") == 1);
}

#[test]
fn waits_that_end_before_a_process_has_its_locks_lead_to_no_call() {
    for state in ["Wait", "Work"] {
        let app = App::new(&format!("combined_locks_{}", state.to_lowercase()));
        let worker = app.worker(|call: &Call| force_complete(json!(call.target())));
        let definition = Definition::starting_with(state).step("Work").waiting_step_with("Wait", waits_for_queue("go"));
        let guarded =
            definition.waiting_step_with("Recall", waits_for_queue("recall")).with("guards", json!(["Recall"]));
        app.register("order", &guarded.with("locks", json!(["one"])));
        let mut db = app.db();
        hold(&app, &mut db, "one");
        db.start("p", "order").go();
        // The wait of the state ends, or that of the guard, which aborts the state's first call.
        let (queue, next) = if state == "Wait" { ("go", "Wait") } else { ("recall", "Recall") };
        db.publish("p", queue, json!(1));
        wait_until("the wait has ended", 10, || {
            let ended = "xdb.state_executions WHERE process_id = 'p' AND status = 'EXECUTE' AND state_execution_id = ";
            db.count(&format!("{ended}{}", literal(&format!("{next}-1")))) == 1
        });
        db.run("SELECT xdb.pause_process('p'); SELECT xdb.resume_process('p')");
        is_sound(&mut db, "p");
        assert_eq!(worker.count(|_| true), 0, "it has not got its lock");
        db.run("SELECT xdb.stop_process('holder')");
        assert_eq!(db.completes("p").result(), next);
        is_sound(&mut db, "p");
        app.done(&[]);
    }
}

#[test]
fn children_take_their_locks_one_after_the_other_while_the_parent_waits_for_them() {
    let app = App::new("combined_children");
    let worker = app.worker(|call: &Call| match (call.process_id(), call.api) {
        ("p", Api::Execute) if call.target() == "Begin" => {
            let child = |n: u32| -> Value {
                json!({"processType": "child", "processId": format!("child-{n}"), "onClose": "ended",
                    "options": {"locks": ["printer"]}})
            };
            next("Join", json!(null)).starting((0..10).map(child).collect())
        }
        ("p", _) => force_complete(json!(call.messages("m").len())),
        _ => force_complete(json!(call.process_id())),
    });
    let join = json!({"commandRequest": {"waitingType": "AnyOfCompletion",
        "localQueueCommands": [{"commandId": "m", "queueName": "ended", "count": 10}]}});
    app.register("parent", &Definition::starting_with("Begin").step("Begin").waiting_step_with("Join", join));
    app.register("child", &one_step());
    let mut db = app.db();
    db.start("p", "parent").go();
    assert_eq!(db.completes("p").result(), 10);
    is_sound(&mut db, "p");
    (0..10).for_each(|n| is_sound(&mut db, &format!("child-{n}")));
    wait_until("no lock is left", 10, || app.superuser().count("xdb.process_lock") == 0);
    drop(worker);
    app.done(&[]);
}

#[test]
fn a_static_wait_may_have_a_cron_timer() {
    let app = App::new("combined_cron");
    let worker = app.worker(|call: &Call| match call.target() {
        "Odd" => {
            let odd = json!({"commandRequest": {"waitingType": "AnyOfCompletion",
                "timerCommands": [{"cron": "@hourly", "timezone": "Nowhere/Odd"}]}});
            Answer::deciding(json!({"nextStates": [{"stateId": "Tick", "stateConfig": odd}]}))
        }
        _ => force_complete(json!("ticked")),
    });
    let tick = |zone: &str| {
        json!({"commandRequest": {"waitingType": "AnyOfCompletion",
            "timerCommands": [{"commandId": "t", "cron": "0 3 * * *", "timezone": zone}]}})
    };
    let definition = |zone: &str| Definition::starting_with("Tick").waiting_step_with("Tick", tick(zone)).step("Odd");
    let mut db = app.db();
    app.register("tick", &definition("Europe/Berlin"));
    let error = app
        .superuser()
        .try_run(&format!(
            "SELECT xdb.register_process_type('odd', 'stub', {})",
            literal(&definition("Mars/Olympus").json().to_string())
        ))
        .expect_err("an unknown time zone");
    assert_eq!(error.code, "XD008", "{error:?}");
    for part in ["states.Tick.commandRequest", "Mars/Olympus"] {
        assert!(error.message.contains(part), "{error:?}");
    }
    db.start("p", "tick").go();
    let local =
        "SELECT to_char(fire_at AT TIME ZONE 'Europe/Berlin', 'HH24:MI') FROM xdb.timers WHERE process_id = 'p'";
    assert_eq!(db.one::<String>(local), "03:00");
    db.run("SELECT xdb.skip_timer('p', 'Tick-1')");
    assert_eq!(db.completes("p").result(), "ticked");
    is_sound(&mut db, "p");
    // In an answer, an unknown zone is a failed attempt.
    db.start("q", "tick").options(json!({"startingState": "Odd"})).go();
    let failed = "xdb.failures WHERE process_id = 'q' AND error_type = 'InvalidAnswer' AND detail LIKE '%Nowhere/Odd%'";
    wait_until("it fails", 10, || db.count(failed) == 1);
    db.run("SELECT xdb.stop_process('q')");
    drop(worker);
    app.done(&[]);
}
