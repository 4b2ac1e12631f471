//! State options of a movement or a start override the registered ones. Tested by the requests that a worker gets.

use std::collections::BTreeSet;

use xdb_cluster_tests::prelude::*;

/// The registered options of the state `S`: long timeouts, three attempts, and one attribute of each kind.
fn registered() -> Value {
    json!({
        "waitUntilApiTimeoutSeconds": 60, "executeApiTimeoutSeconds": 60,
        "waitUntilApiRetryPolicy": attempts(3), "executeApiRetryPolicy": attempts(3),
        "loadGlobalAttributes": {"policy": "PARTIAL", "names": ["form"]},
        "loadLocalAttributes": {"policy": "PARTIAL", "names": ["x"]},
    })
}

/// The attributes of `waitUntil` and `execute`. None if it is not called.
struct Loaded {
    wait_until: Option<(&'static str, &'static str)>,
    execute: (&'static str, &'static str),
}

fn loaded(wait_until: (&'static str, &'static str), execute: (&'static str, &'static str)) -> Loaded {
    Loaded { wait_until: Some(wait_until), execute }
}

fn keys(value: &Value) -> String {
    let keys: BTreeSet<_> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.into_iter().collect::<Vec<_>>().join(" ")
}

/// Starts `S` with these options in both ways: `start-<name>` with the start, `move-<name>` with a movement.
fn start_both(db: &mut Db, name: &str, options: &Value) -> [String; 2] {
    let locals = json!({"x": 1, "y": 2});
    let globals = json!({"form": {}, "status": "new"});
    let ids = [format!("start-{name}"), format!("move-{name}")];
    let start = db.start(&ids[0], "direct").key(&ids[0]).locals(locals.clone()).globals(globals.clone());
    start.options(json!({"startingStateConfig": options})).go();
    db.start(&ids[1], "moved").key(&ids[1]).locals(locals).globals(globals).input(options.clone()).go();
    ids
}

/// Process types that run `S` at once, or after a movement whose options are the input.
fn application(name: &str, others: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(move |call: &Call| match call.target() {
        "Go" => {
            let movement = json!({"stateId": "S", "stateConfig": call.input()});
            Reply::Json(200, json!({"stateDecision": {"nextStates": [movement]}}))
        }
        _ => others(call),
    });
    let states = |definition: Definition| {
        let mapped = definition.maps("public.users", "user_id", &["form", "status"]).step("Rescue");
        mapped.waiting_step_with("S", registered())
    };
    app.register("direct", &states(Definition::starting_with("S")));
    app.register("moved", &states(Definition::starting_with("Go").step("Go")));
    (app, worker)
}

#[test]
fn every_loading_policy_and_the_skipping_of_wait_until() {
    let (app, worker) = application("options_loading", |call| match call.api {
        Api::WaitUntil => any_of(&[timer("soon", 0.02)]).into(),
        _ => force_complete(json!(call.fired("soon"))).into(),
    });
    let (all, none) = (json!({"policy": "ALL"}), json!({"policy": "NONE"}));
    let only = |name: &str| json!({"policy": "PARTIAL", "names": [name]});
    let usual = ("form", "x");
    let cases = [
        ("nothing", json!({}), loaded(usual, usual)),
        ("skip", json!({"skipWaitUntil": true}), Loaded { wait_until: None, execute: usual }),
        ("no_skip", json!({"skipWaitUntil": false}), loaded(usual, usual)),
        ("g_all", json!({"loadGlobalAttributes": all}), loaded(("form status", "x"), ("form status", "x"))),
        ("g_none", json!({"loadGlobalAttributes": none}), loaded(("", "x"), ("", "x"))),
        ("g_other", json!({"loadGlobalAttributes": only("status")}), loaded(("status", "x"), ("status", "x"))),
        ("g_wait", json!({"waitUntilLoadGlobalAttributes": none}), loaded(("", "x"), usual)),
        ("g_execute", json!({"executeLoadGlobalAttributes": only("status")}), loaded(usual, ("status", "x"))),
        (
            "g_both",
            json!({"loadGlobalAttributes": none, "executeLoadGlobalAttributes": all}),
            loaded(("", "x"), ("form status", "x")),
        ),
        ("l_all", json!({"loadLocalAttributes": all}), loaded(("form", "x y"), ("form", "x y"))),
        ("l_none", json!({"loadLocalAttributes": none}), loaded(("form", ""), ("form", ""))),
        ("l_wait", json!({"waitUntilLoadLocalAttributes": only("y")}), loaded(("form", "y"), usual)),
        ("l_execute", json!({"executeLoadLocalAttributes": all}), loaded(usual, ("form", "x y"))),
        (
            "l_both",
            json!({"loadLocalAttributes": all, "waitUntilLoadLocalAttributes": none}),
            loaded(("form", ""), ("form", "x y")),
        ),
    ];
    let mut db = app.db();
    for (name, options, expected) in cases {
        for id in start_both(&mut db, name, &options) {
            // The timer of a state that is not asked what it waits for has not fired.
            assert_eq!(db.completes(&id).result(), &json!(expected.wait_until.is_some()), "{id}");
            let of_state = |api: Api| {
                let mut calls = worker.calls().into_iter().filter(|c| c.process_id() == id && c.target() == "S");
                calls
                    .find(|call| call.api == api)
                    .map(|call| (keys(&call.body["loadedGlobalAttributes"]), keys(&call.body["loadedLocalAttributes"])))
            };
            let shown = |(global, local): (&str, &str)| (global.to_owned(), local.to_owned());
            assert_eq!(of_state(Api::WaitUntil), expected.wait_until.map(shown), "{id}: waitUntil");
            assert_eq!(of_state(Api::Execute), Some(shown(expected.execute)), "{id}: execute");
        }
    }
    app.done(&[]);
}

#[test]
fn both_timeouts() {
    let (app, worker) = application("options_timeouts", |call| {
        let answer: Reply = match call.api {
            Api::WaitUntil => no_command().into(),
            _ => force_complete(json!(call.attempt())).into(),
        };
        let hangs = match call.api {
            Api::WaitUntil => call.process_id().ends_with("wait_until"),
            _ => call.process_id().ends_with("execute"),
        };
        if hangs && call.attempt() == 1 { Reply::hang(answer) } else { answer }
    });
    let mut db = app.db();
    for (name, api, key, result) in [
        ("wait_until", Api::WaitUntil, "waitUntilApiTimeoutSeconds", 1),
        ("execute", Api::Execute, "executeApiTimeoutSeconds", 2),
    ] {
        for id in start_both(&mut db, name, &json!({key: 2})) {
            assert_eq!(db.completes(&id).result(), &json!(result), "{id}");
            let tried = worker.count(|call| call.process_id() == id && call.target() == "S" && call.api == api);
            assert_eq!(tried, 2, "{id}: it was given up once");
        }
    }
    app.done(&[]);
}

#[test]
fn both_retry_policies_and_the_recovery() {
    let (app, worker) = application("options_retries", |call| {
        let failing = if call.process_id().contains("wait") { Api::WaitUntil } else { Api::Execute };
        match (call.target(), call.api) {
            ("Rescue", _) => force_complete(json!("rescued")).into(),
            (_, api) if api == failing => error(500, "Broken", "beyond repair"),
            _ => no_command().into(),
        }
    });
    let mut db = app.db();
    let recovery = json!({
        "policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Rescue",
        "stateFailureProceedStateConfig": {"loadLocalAttributes": {"policy": "PARTIAL", "names": ["y"]}},
    });
    let cases = [
        ("registered", json!({}), 3, "FAILED"),
        ("registered_wait", json!({}), 3, "FAILED"),
        ("fewer", json!({"executeApiRetryPolicy": attempts(1)}), 1, "FAILED"),
        ("more", json!({"executeApiRetryPolicy": attempts(5)}), 5, "FAILED"),
        ("fewer_wait", json!({"waitUntilApiRetryPolicy": attempts(1)}), 1, "FAILED"),
        ("more_wait", json!({"waitUntilApiRetryPolicy": attempts(5)}), 5, "FAILED"),
        // Each policy is for its own API.
        ("others", json!({"waitUntilApiRetryPolicy": attempts(1)}), 3, "FAILED"),
        ("others_wait", json!({"executeApiRetryPolicy": attempts(1)}), 3, "FAILED"),
        ("recovery", json!({"stateFailureRecoveryOptions": recovery}), 3, "COMPLETED"),
        ("recovery_wait", json!({"stateFailureRecoveryOptions": recovery}), 3, "COMPLETED"),
        (
            "short",
            json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 60, "maximumAttemptsDurationSeconds": 1}}),
            1,
            "FAILED",
        ),
    ];
    for (name, options, tried, status) in cases {
        for id in start_both(&mut db, name, &options) {
            assert_eq!(db.outcome(&id).status(), status, "{id}");
            let failing = if name.contains("wait") { Api::WaitUntil } else { Api::Execute };
            let calls = worker.calls();
            let of_process = || calls.iter().filter(|call| call.process_id() == id);
            let count = of_process().filter(|call| call.target() == "S" && call.api == failing).count();
            assert_eq!(count, tried, "{id}");
            if status == "COMPLETED" {
                let rescue = of_process().find(|call| call.target() == "Rescue").expect("it was called");
                assert_eq!(keys(&rescue.body["loadedLocalAttributes"]), "y", "{id}");
                assert_eq!(rescue.body["context"]["recoverFromStateExecutionId"], "S-1");
            }
        }
    }
    app.done(&[]);
}

#[test]
fn options_with_unknown_names_are_refused() {
    let (app, worker) = application("options_unknown", |call| match call.api {
        Api::WaitUntil => no_command().into(),
        _ => force_complete(json!("healed")).into(),
    });
    let mut db = app.db();
    let unknown = json!({"policy": "PARTIAL", "names": ["nobody"]});
    let recovery = |state: &str, config: Value| {
        json!({"stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE",
            "stateFailureProceedStateId": state, "stateFailureProceedStateConfig": config}})
    };
    let cases = [
        (json!({"loadGlobalAttributes": unknown}), "loadGlobalAttributes names the unknown attribute"),
        (json!({"waitUntilLoadGlobalAttributes": unknown}), "waitUntilLoadGlobalAttributes names the unknown"),
        (json!({"executeLoadGlobalAttributes": unknown}), "executeLoadGlobalAttributes names the unknown"),
        (recovery("Nowhere", json!({})), "stateFailureProceedStateId \"Nowhere\" is not listed in states"),
        (
            recovery("Rescue", json!({"loadGlobalAttributes": unknown})),
            "stateFailureRecoveryOptions.stateFailureProceedStateConfig.loadGlobalAttributes names the unknown",
        ),
    ];
    for (n, (options, message)) in cases.iter().enumerate() {
        let id = format!("start-{n}");
        let start = db.start(&id, "direct").key(&id).options(json!({"startingStateConfig": options}));
        let error = start.refused(codes::INVALID_ARGUMENT);
        assert!(error.message.contains(message) && error.message.contains("startingStateConfig"), "{error:?}");

        let id = format!("move-{n}");
        db.start(&id, "moved").key(&id).input(options.clone()).go();
        wait_until("the attempt fails", 20, || views::fails_saying(&mut db, &id, &["options of state"]));
        let text = views::failures(&mut db, &id)[0]["detail"].as_str().unwrap_or_default().to_owned();
        assert!(text.contains(message), "{text}");
        db.run(&format!("SELECT xdb.stop_process('{id}')"));
    }
    assert_eq!(worker.count(|call| call.target() == "S"), 0);
    app.done(&[]);
}
