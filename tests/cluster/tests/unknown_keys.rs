//! Unknown keys of answers change nothing. The event of each answer has a warning about them.

use xdb_cluster_tests::prelude::*;

const DEAD_END: &str = r#""stateDecision":{"threadCloseDecision":{"closeType":"DEAD_END"}}"#;

fn answer(text: &str) -> Reply {
    Reply::Raw(200, text.as_bytes().to_vec())
}

/// The warnings of all events of a process, in order.
fn warnings(db: &mut Db, process_id: &str) -> Vec<String> {
    db.all(&format!(
        "SELECT format('%s: %s', event_type, warning) FROM xdb.history, jsonb_array_elements_text(details -> 'warnings') warning
         WHERE process_id = '{}' ORDER BY event_id",
        process_id
    ))
}

fn closed(db: &mut Db, process_id: &str) {
    wait_until("the threads are over", 10, || {
        db.one(&format!("SELECT live_threads = 0 FROM xdb.processes WHERE process_id = '{}'", process_id))
    });
}

#[test]
fn each_answer_with_an_unknown_key_has_a_warning_in_its_event() {
    let app = App::new("unknown_told");
    let _worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => answer(
            r#"{"commandRequest":{"waitingType":"AnyOfCompletion","timerCommands":[{"delayInSeconds":0,"comandId":"x"}]}}"#,
        ),
        _ => answer(&format!(r#"{{{DEAD_END},"writeToGlobalAttribute":{{"n":1}}}}"#)),
    });
    app.register("waiting", &Definition::starting_with("Wait").waiting_step("Wait"));
    let mut db = app.db();
    for process_id in ["first", "second"] {
        db.start(process_id, "waiting").go();
        closed(&mut db, process_id);
        assert_eq!(
            warnings(&mut db, process_id),
            [
                "WaitStarted: unknown key commandRequest.timerCommands[0].comandId",
                "StateCompleted: unknown key writeToGlobalAttribute"
            ]
        );
    }
    app.done(&[]);
}

#[test]
fn a_failed_attempt_reports_unknown_keys() {
    let app = App::new("unknown_failed");
    let worker = app.worker(|call: &Call| match (call.process_id(), call.attempt()) {
        (_, 2) => dead_end().into(),
        ("rejected", _) => answer(&format!(r#"{{{DEAD_END},"writeToLocalAttributes":{{"k":1}},"extra":1}}"#)),
        ("misspelt", _) => answer(r#"{"stateDecison":{}}"#),
        ("refused", _) => answer(&format!(r#"{{{DEAD_END},"writeToGlobalAttributes":{{"n":"x"}},"extra":1}}"#)),
        _ => dead_end().into(),
    });
    let definition = Definition::starting_with("Step").step("Step");
    let definition = definition.maps("public.counters", "id", &["n"]).with("localAttributes", json!([]));
    app.register("counting", &definition);
    let mut db = app.db();
    for (process_id, detail) in
        [("misspelt", "stateDecision is missing; unknown key stateDecison"), ("refused", "; unknown key extra")]
    {
        db.start(process_id, "counting").key(process_id).globals(json!({"n": 0})).go();
        closed(&mut db, process_id);
        let failure: String = db.one(&format!(
            "SELECT details -> 'failure' ->> 'detail' FROM xdb.history
             WHERE process_id = '{}' AND event_type = 'AttemptFailed'",
            process_id
        ));
        assert!(failure.ends_with(detail), "{failure}");
        assert_eq!(worker.count(|call| call.process_id() == process_id), 2);
    }
    // No attempt of this process fails, but the warnings are recorded all the same.
    db.start("rejected", "counting").key("rejected").globals(json!({"n": 0})).go();
    let words = [r#"unknown local attribute "k"; unknown key extra"#];
    wait_until("it is reported", 10, || views::fails_saying(&mut db, "rejected", &words));
    db.run("SELECT xdb.stop_process('rejected')");
    app.done(&[]);
}

#[test]
fn a_type_with_strict_answers_refuses_unknown_keys() {
    let app = App::new("unknown_strict");
    let _worker = app.worker(|call: &Call| match (call.api, call.attempt()) {
        (Api::WaitUntil, 1) => answer(r#"{"commandRequest":{"waitingType":"EmptyCommand"},"extra":null}"#),
        (Api::WaitUntil, _) => no_command().into(),
        (Api::Execute, 1) => answer(&format!(
            r#"{{{DEAD_END},"writeToLocalAttributes":{{"applied":true}},"publishToLocalQueue":[{{"queueName":"q","pay":1}}]}}"#
        )),
        (Api::Execute, _) => dead_end().into(),
        (Api::Rpc, _) => answer(r#"{"output":1,"writeToLocalAttributes":{"applied":true},"writeToGlobalAttribute":{}}"#),
    });
    let definition = Definition::starting_with("Wait").waiting_step("Wait");
    app.register("strict", &definition.with("strictAnswers", json!(true)).rpc("Ask", json!({})));
    let mut db = app.db();
    db.start("p", "strict").go();
    closed(&mut db, "p");
    let failures: Vec<String> = db.all(
        "SELECT details -> 'failure' ->> 'errorType' || ': ' || (details -> 'failure' ->> 'detail') FROM xdb.history
         WHERE process_id = 'p' AND event_type = 'AttemptFailed' ORDER BY event_id",
    );
    assert_eq!(failures, ["InvalidAnswer: unknown key extra", "InvalidAnswer: unknown key publishToLocalQueue[0].pay"]);
    let error = db.refused("XD010", "SELECT xdb.invoke_rpc('p', 'Ask')");
    assert!(format!("{error:?}").contains("nknown key writeToGlobalAttribute"), "{error:?}");
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p')"), json!({}));
    assert_eq!(warnings(&mut db, "p"), Vec::<String>::new());
    app.done(&[]);
}

#[test]
fn a_session_gets_a_notice_of_each_unknown_key_of_an_rpc() {
    let app = App::new("unknown_rpc");
    let _worker = app.worker(|call: &Call| match call.target() {
        "Write" => answer(r#"{"output":1,"writeToLocalAttributes":{"k":1},"writeToGlobalAttribute":{}}"#),
        "Read" => answer(r#"{"output":1,"writeToGlobalAttribute":{}}"#),
        _ => no_command().into(),
    });
    app.register("asked", &Definition::without_start().rpc("Write", json!({})).rpc("Read", json!({})));
    let mut db = app.db();
    db.start("p", "asked").go();
    // An answer that changes nothing has no event: its caller gets a NOTICE.
    for rpc_name in ["Write", "Write", "Read", "Read"] {
        db.run(&format!("SELECT xdb.invoke_rpc('p', '{rpc_name}')"));
    }
    let notice = |rpc: &str| format!(r#"NOTICE: xdb: answer to RPC "{rpc}": unknown key writeToGlobalAttribute"#);
    assert_eq!(db.notices(), ["Write", "Write", "Read", "Read"].map(notice));
    assert_eq!(warnings(&mut db, "p"), ["RpcApplied: unknown key writeToGlobalAttribute"; 2]);
    app.done(&[]);
}

/// The warnings of one answer are short, whatever the worker sends.
#[test]
fn a_flood_of_unknown_keys_has_short_warnings() {
    let app = App::new("unknown_flood");
    let _worker = app.worker(|call: &Call| {
        let keys: String = (0..20_000).map(|n| format!(r#""{}k{n}":1,"#, call.process_id())).collect();
        answer(&format!("{{{keys}{DEAD_END}}}"))
    });
    app.register("flood", &Definition::starting_with("Step").step("Step"));
    let mut db = app.db();
    db.start("p", "flood").go();
    closed(&mut db, "p");
    let lengths: Vec<i32> = db.all(
        "SELECT octet_length(details ->> 'warnings') FROM xdb.history
         WHERE event_type = 'StateCompleted'",
    );
    assert!(lengths.len() == 1 && (1..1_000).contains(&lengths[0]), "{lengths:?}");
    app.done(&[]);
}
