//! Children: processes that an answer starts (`startProcesses`), the message to the parent when one closes, and their
//! end with their parent. By workers over HTTP, functions, pull workers and RPCs. Their races are in `children_races.rs`.

use std::collections::BTreeMap;

use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;

/// A type whose processes wait for a message of `go`, and then complete with it.
fn register_child(app: &App) {
    app.register("child", &Definition::starting_with("Work").waiting_step("Work"));
}

/// A parent that starts the children of its input, waits for the ends of `n` of them, and completes with the messages.
fn register_parent(app: &App) {
    let definition = Definition::starting_with("Begin").step("Begin").waiting_step("Join");
    app.register("parent", &definition.with("localQueues", json!(["ended"])).rpc("add", json!({})));
}

fn handler(call: &Call) -> Answer {
    match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!(null)).starting(call.input().clone()),
        (_, "Begin") => {
            let input = call.input();
            next("Join", json!(input["n"])).starting(input["children"].clone())
        }
        (Api::WaitUntil, "Join") => any_of(&[local_queue("ended", "ended", call.input().as_u64().unwrap_or(1) as u32)]),
        (_, "Join") => force_complete(json!(call.messages("ended"))),
        (Api::WaitUntil, _) => any_of(&[local_queue("go", "go", 1)]),
        _ => force_complete(call.messages("go")[0].clone()),
    }
}

fn family(name: &str) -> (App, Worker, Db) {
    let app = App::new(name);
    let worker = app.worker(handler);
    register_child(&app);
    register_parent(&app);
    let db = app.db();
    (app, worker, db)
}

fn start(db: &mut Db, id: &str, n: u32, children: Value) {
    db.start(id, "parent").input(json!({"n": n, "children": children})).go();
}

fn waits(db: &mut Db, id: &str) {
    wait_until(&format!("{id} waits"), 20, || views::waits(db, id).len() == 1);
}

fn is_sound(db: &mut Db, ids: &[&str]) {
    for id in ids {
        assert_eq!(
            db.all::<String>(&format!("SELECT problem FROM xdb.check_process({})", literal(id))),
            [""; 0],
            "{id}"
        );
        views::assert_history_is_whole(db, id);
    }
}

fn reason(db: &mut Db, id: &str) -> String {
    db.one(&format!("SELECT coalesce(reason, '') FROM xdb.processes WHERE process_id = {}", literal(id)))
}

#[test]
fn a_job_creates_other_jobs() {
    let (app, _worker, mut db) = family("children_jobs");
    let later = json!({"processType": "child", "processId": "later", "startAt": "2100-01-01T00:00:00Z",
        "whenParentCloses": "LEAVE", "options": {"priority": 3}, "timeoutSeconds": 0});
    start(&mut db, "p", 1, json!([{"processType": "child", "processId": "now", "onClose": "ended"}, later]));
    waits(&mut db, "now");
    let parent: String = db.one("SELECT execution_id::text FROM xdb.processes WHERE process_id = 'p'");
    let of_parent = format!("xdb.processes WHERE parent_execution_id = '{parent}'");
    assert_eq!(db.count(&of_parent), 2);
    // The history of the parent names its children, in their order.
    let children: Value = db.json(
        "SELECT details -> 'children' FROM xdb.history WHERE process_id = 'p' AND event_type = 'ChildrenStarted'",
    );
    assert_eq!((&children[0]["processId"], &children[1]["processType"]), (&json!("now"), &json!("child")));
    let described = db.json("SELECT xdb.describe_process('p')");
    assert_eq!(described["children"].as_array().map(Vec::len), Some(2), "{described}");
    let described = db.json("SELECT xdb.describe_process('now')");
    assert_eq!(
        (&described["parent"]["processId"], &described["parent"]["stateExecutionId"]),
        (&json!("p"), &json!("Begin-1"))
    );
    db.publish("now", "go", json!("done"));
    db.completes("p");
    // It goes on without its parent.
    assert_eq!(db.status("later"), "RUNNING");
    is_sound(&mut db, &["p", "now", "later"]);
    db.run("SELECT xdb.stop_process('later')");
    app.done(&[]);
}

#[test]
fn a_call_activity_is_a_child_process_with_variables_in_and_out_while_its_parent_waits() {
    let app = App::new("children_call");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (_, "Begin") => next("Join", json!(null))
            .starting(json!([{"processType": "double", "processId": "d", "input": 21, "onClose": "ended"}])),
        (Api::WaitUntil, _) => any_of(&[local_queue("ended", "ended", 1)]),
        (_, "Join") => force_complete(call.messages("ended")[0].clone()),
        _ => force_complete(json!({"twice": call.input().as_i64().unwrap_or_default() * 2})),
    });
    register_parent(&app);
    app.register("double", &one_step());
    let mut db = app.db();
    db.start("p", "parent").go();
    let message = db.completes("p").result().clone();
    let execution: String = db.one("SELECT execution_id::text FROM xdb.processes WHERE process_id = 'd'");
    assert_eq!(
        message,
        json!({"processId": "d", "processExecutionId": execution, "processType": "double", "status": "COMPLETED",
            "result": {"twice": 42}, "results": [{"stateExecutionId": "Only-1", "output": {"twice": 42}}]})
    );
    let context = worker.wait_for("the call", 10, |call| call.executes("Only")).body["context"]["parent"].clone();
    let parent: String = db.one("SELECT execution_id::text FROM xdb.processes WHERE process_id = 'p'");
    assert_eq!(context, json!({"processId": "p", "processExecutionId": parent, "stateExecutionId": "Begin-1"}));
    is_sound(&mut db, &["p", "d"]);
    app.done(&[]);
}

#[test]
fn children_are_terminated_right_after_their_parent_and_late_completes_are_rejected() {
    let app = App::new("children_termination");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (_, "Begin") => next("Join", json!(null))
            .starting(json!([
            {"processType": "parent", "processId": "c", "input": "inner", "onClose": "ended"}]))
            .into(),
        (Api::WaitUntil, "Join") => any_of(&[local_queue("ended", "ended", 9)]).into(),
        _ => Reply::hang(force_complete(json!("late"))),
    });
    let middle = Definition::starting_with("Begin").step("Begin").waiting_step("Join");
    app.register("grandparent", &middle.with("localQueues", json!(["ended"])));
    app.register("parent", &one_step());
    let mut db = app.db();
    db.start("p", "grandparent").go();
    worker.wait_for("the call of the child", 10, |call| call.executes("Only"));
    db.run("SELECT xdb.stop_process('p', reason => 'enough')");
    wait_until("the child has closed", 10, || db.status("c") == "TERMINATED");
    worker.release();
    assert_eq!((reason(&mut db, "c"), reason(&mut db, "p")), ("its parent closed".to_owned(), "enough".to_owned()));
    let closed_at = |db: &mut Db, id: &str| -> f64 {
        db.one(&format!(
            "SELECT EXTRACT(epoch FROM event_time)::float8 FROM xdb.history WHERE process_id = '{id}' AND event_type = 'ProcessClosed'"
        ))
    };
    assert!(closed_at(&mut db, "p") <= closed_at(&mut db, "c"));
    is_sound(&mut db, &["p", "c"]);
    app.done(&[]);
}

#[test]
fn children_of_children_end_too_however_their_parent_closes() {
    let (app, _worker, mut db) = family("children_generations");
    let child = |id: &str, children: Value| json!([{"processType": "parent", "processId": id, "input": {"n": 1, "children": children}}]);
    let leaf = json!([{"processType": "child", "processId": "leaf"}]);
    db.start("root", "parent")
        .input(json!({"n": 1, "children": child("middle", child("lower", leaf))}))
        .timeout("1 hour")
        .go();
    waits(&mut db, "leaf");
    db.run("SELECT xdb.stop_process('root', 'FAIL')");
    wait_until("all have closed", 20, || db.count("xdb.processes WHERE status = 'RUNNING'") == 0);
    for id in ["middle", "lower", "leaf"] {
        assert_eq!(db.status(id), "TERMINATED");
        assert_eq!(reason(&mut db, id), "its parent closed");
    }
    is_sound(&mut db, &["root", "middle", "lower", "leaf"]);
    assert_eq!(app.superuser().count("xdb.timer"), 0);
    assert_eq!(app.superuser().count("xdb.inbox"), 0);
    app.done(&[]);
}

#[test]
fn a_thousand_children_are_started_by_one_answer_and_joined_by_a_queue() {
    let (app, _worker, mut db) = family("children_thousand");
    let children: Vec<_> = (0..1000).map(|_| json!({"processType": "quick", "onClose": "ended"})).collect();
    let quick = app.worker_named("quick", |_: &Call| force_complete(json!(1)));
    app.register_with("quick", "quick", &Definition::starting_with("Quick").step("Quick"));
    start(&mut db, "p", 1000, json!(children));
    wait_until("they are joined", 120, || db.status("p") == "COMPLETED");
    assert_eq!(db.one::<i32>("SELECT jsonb_array_length(result) FROM xdb.processes WHERE process_id = 'p'"), 1000);
    assert_eq!(quick.count(|call| call.executes("Quick")), 1000);
    is_sound(&mut db, &["p"]);
    app.done(&[]);
}

#[test]
fn an_answer_of_wait_until_starts_children_and_waits_for_their_ends() {
    let app = App::new("children_waited");
    let child = |queue: &str| json!({"processType": "child", "onClose": queue});
    let worker = app.worker(move |call: &Call| match (call.api, call.process_id()) {
        (Api::WaitUntil, "p") => {
            any_of(&[local_queue("ended", "ended", 2)]).starting(json!([child("ended"), child("ended")]))
        }
        (Api::WaitUntil, _) => any_of(&[local_queue("go", "go", 1)]),
        (_, "p") => force_complete(json!(call.messages("ended").len())),
        _ => force_complete(json!(null)),
    });
    worker.misbehave(move |_| {
        any_of(&[local_queue("ended", "ended", 2)]).starting(json!([child("ended"), child("lost")]))
    });
    register_child(&app);
    let parent = Definition::starting_with("Join").waiting_step("Join").with("localQueues", json!(["ended"]));
    app.register("parent", &parent);
    let mut db = app.db();
    db.start("p", "parent").go();
    wait_until("it is refused", 20, || views::fails_saying(&mut db, "p", &["\"lost\" in onClose"]));
    worker.heal();
    db.run("SELECT xdb.retry_now('p')");
    wait_until("both wait", 20, || db.count("xdb.waits WHERE queue_name = 'go'") == 2);
    is_sound(&mut db, &["p"]);
    let children: Vec<String> = db.all("SELECT process_id FROM xdb.processes WHERE parent_execution_id IS NOT NULL");
    assert_eq!(children.len(), 2, "the answer that was refused has started none");
    children.iter().for_each(|id| db.publish(id, "go", json!(null)));
    assert_eq!(db.completes("p").result(), &json!(2));
    is_sound(&mut db, &["p"]);
    app.done(&[]);
}

#[test]
fn an_rpc_starts_children_of_its_caller_and_of_no_step() {
    let (app, _worker, mut db) = family("children_rpc");
    start(&mut db, "p", 1, json!([]));
    waits(&mut db, "p");
    app.superuser().run("CREATE ROLE helper LOGIN; GRANT app TO helper; SELECT xdb.grant_usage('helper')");
    let mut helper = app.session("helper");
    helper.rpc("p", "add", json!([{"processType": "child", "processId": "c", "onClose": "ended"}]));
    waits(&mut app.superuser(), "c");
    assert_eq!(app.superuser().one::<String>("SELECT owner FROM xdb.processes WHERE process_id = 'c'"), "helper");
    let event = helper.json("SELECT details -> 'startedBy' FROM xdb.history WHERE process_id = 'c' AND event_id = 1");
    assert_eq!((&event["processId"], &event["stateExecutionId"]), (&json!("p"), &Value::Null));
    // The owner of the parent does not see the child.
    let described = db.json("SELECT xdb.describe_process('p')");
    assert_eq!(described["children"], Value::Null, "{described}");
    assert_eq!(helper.json("SELECT xdb.describe_process('p')")["children"][0]["processId"], "c");
    helper.publish("c", "go", json!(7));
    assert_eq!(db.completes("p").result()[0]["result"], 7);
    is_sound(&mut helper, &["p", "c"]);
    app.done(&[]);
}

#[test]
fn a_pull_worker_starts_children_and_closes_one() {
    let (app, _worker, mut db) = family("children_pull");
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "pulled", &one_step());
    app.register_with("pull", "puller", &one_step().with("localQueues", json!(["ended"])));
    db.start("p", "puller").go();
    let claim = "SELECT token FROM xdb.claim_calls('pull', 1, wait => '10 s')";
    let complete = |db: &mut Db, token: &str, answer: &Answer| {
        db.try_run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&answer.json())))
    };
    let token: String = db.one(claim);
    let again = next("Only", json!(null));
    let children = |ids: &[&str]| -> Value {
        ids.iter().map(|id| json!({"processType": "pulled", "processId": id, "onClose": "ended"})).collect()
    };
    // A refused child is an error with its own SQLSTATE, and nothing is applied.
    db.start("taken", "child").go();
    let error = complete(&mut db, &token, &again.clone().starting(children(&["c", "taken"]))).expect_err("refused");
    assert_eq!(error.code, "XD006", "{error:?}");
    assert_eq!(db.count("xdb.processes WHERE process_id = 'c'"), 0);
    complete(&mut db, &token, &again.starting(children(&["c"]))).expect("applied");
    // The calls of the child and of the parent's next step, in any order.
    let claim =
        "SELECT token, request -> 'context' ->> 'processId' AS id FROM xdb.claim_calls('pull', 1, wait => '10 s')";
    let mut tokens = BTreeMap::new();
    for _ in 0..2 {
        let row = db.rows(claim).remove(0);
        tokens.insert(row["id"].to_string(), row["token"].as_str().unwrap_or_default().to_owned());
    }
    let token = tokens.get("\"c\"").expect("the child's call");
    complete(&mut db, token, &force_complete(json!(3))).expect("applied");
    wait_until("the parent has the message", 10, || {
        db.count("xdb.queue_messages WHERE process_id = 'p' AND queue_name = 'ended'") == 1
    });
    is_sound(&mut db, &["p", "c"]);
    for id in ["p", "taken"] {
        db.run(&format!("SELECT xdb.stop_process('{id}')"));
    }
    app.done(&[]);
}

/// A trigger of the child's table runs as the owner of the parent, whatever answers the call, and can't change its role.
/// The role of the pull worker has no rights on the tables.
#[test]
fn children_of_a_step_are_started_as_the_owner_of_the_process() {
    let app = App::new("children_owner");
    let (mut superuser, mut db, mut other) = (app.superuser(), app.db(), app.session("other"));
    db.run(
        "CREATE TABLE public.places (id text PRIMARY KEY, n int);
         CREATE TABLE public.witness (id text, who name);
         CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             BEGIN RESET ROLE; EXCEPTION WHEN OTHERS THEN NULL; END;
             INSERT INTO public.witness VALUES (new.id, current_user);
             RETURN new;
         END $$;
         CREATE TRIGGER note BEFORE INSERT ON public.places FOR EACH ROW EXECUTE FUNCTION public.note();
         CREATE FUNCTION public.begins(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT request -> 'stateInput' $$;",
    );
    superuser.run("SELECT xdb.register_worker('pull', NULL, role => 'other')");
    let worker = app.worker(|call: &Call| Reply::Json(200, call.input().clone()));
    app.register("child", &Definition::without_start().maps("public.places", "id", &["n"]));
    let function = Definition::starting_with("Only").step_with("Only", json!({"executeFunction": "public.begins"}));
    app.register("http", &one_step());
    app.register("function", &function);
    app.register_with("pull", "pull", &one_step());
    for id in ["http", "function", "pull"] {
        let child = json!([{"processType": "child", "processId": format!("child of {id}"), "globalAttributePk": id,
            "globalAttributes": {"n": 1}, "whenParentCloses": "LEAVE"}]);
        db.start(id, id).input(force_complete(json!(null)).starting(child).json()).go();
    }
    let completed =
        "SELECT xdb.complete_call(token, request -> 'stateInput') FROM xdb.claim_calls('pull', 1, wait => '10 s')";
    assert_eq!(other.rows(completed).len(), 1);
    for id in ["http", "function", "pull"] {
        db.completes(id);
        let child = format!("child of {id}");
        let owner: String = superuser.one(&format!("SELECT owner FROM xdb.processes WHERE process_id = '{child}'"));
        assert_eq!(owner, "app", "{child}");
        assert_eq!(superuser.all::<String>(&format!("SELECT who::text FROM witness WHERE id = '{id}'")), ["app"]);
        is_sound(&mut db, &[id, &child]);
        db.run(&format!("SELECT xdb.stop_process('{child}')"));
    }
    assert_eq!(db.count("xdb.history WHERE event_type = 'AttemptFailed'"), 0);
    drop(worker);
    app.done(&[]);
}

/// The lease of the last attempt of a child has ended. The claim that finds this closes the child.
#[test]
fn a_claim_that_closes_a_child_keeps_its_parent_from_closing_before_the_message_is_there() {
    let app = App::new("children_claim");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (_, "Begin") => {
            next("Gate", json!(null)).starting(json!([{"processType": "pulled", "processId": "c", "onClose": "ended"}]))
        }
        (Api::WaitUntil, "Gate") => any_of(&[local_queue("go", "go", 1)]),
        (_, "Gate") => close_if_empty("ended", "Join"),
        (Api::WaitUntil, _) => any_of(&[local_queue("ended", "ended", 1)]),
        _ => force_complete(call.messages("ended")[0].clone()),
    });
    let definition = Definition::starting_with("Begin").step("Begin").waiting_step("Gate").waiting_step("Join");
    app.register("parent", &definition.with("localQueues", json!(["go", "ended"])));
    let mut superuser = app.superuser();
    superuser.run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    let once = json!({"executeApiRetryPolicy": attempts(1)});
    app.register_with("pull", "pulled", &Definition::starting_with("Only").step_with("Only", once));
    let mut db = app.db();
    db.start("p", "parent").go();
    waits(&mut db, "p");
    assert_eq!(db.count("xdb.claim_calls('pull', wait => '10 s', lease => '1 microsecond')"), 1);
    let mut claimer = app.db();
    wait_until("a claim has found that the lease has ended", 20, || {
        claimer.run("BEGIN; SELECT count(*) FROM xdb.claim_calls('pull')");
        let has_failed = claimer.status("c") == "FAILED";
        if !has_failed {
            claimer.run("ROLLBACK");
        }
        has_failed
    });
    db.publish("p", "go", json!(null));
    wait_until("the parent is about to close", 20, || {
        superuser.count("xdb.process_execution WHERE process_id = 'p' AND closing IS NOT NULL") == 1
    });
    claimer.run("COMMIT");
    assert_eq!(db.completes("p").result()["status"], "FAILED");
    is_sound(&mut db, &["p", "c"]);
    drop(worker);
    app.done(&[]);
}

/// A claim closes a child whose owner no longer exists. While a session has stopped the parent and has not committed, a
/// claim passes the child over, and claims other calls.
#[test]
fn a_claim_does_not_wait_for_an_open_stop_of_the_parent_of_a_child_without_owner() {
    let (app, _worker, mut db) = family("children_ownerless");
    let mut superuser = app.superuser();
    superuser.run(
        "SELECT xdb.register_worker('pull', NULL, role => 'app'); CREATE ROLE parting LOGIN; GRANT app TO parting;
         SELECT xdb.grant_usage('parting')",
    );
    app.register_with("pull", "pulled", &one_step());
    start(&mut db, "p", 1, json!([]));
    waits(&mut db, "p");
    app.session("parting").rpc("p", "add", json!([{"processType": "pulled", "processId": "c", "onClose": "ended"}]));
    wait_until("the role is dropped", 10, || {
        superuser.try_run("SELECT xdb.revoke_usage('parting'); DROP ROLE parting").is_ok()
    });
    let mut stopping = app.db();
    stopping.run("BEGIN; SELECT xdb.stop_process('p')");
    db.start("other", "pulled").go();
    let mut claimer = app.db();
    claimer.run("SET lock_timeout = '10s'");
    assert_eq!(claimer.count("xdb.claim_calls('pull', 2)"), 1);
    assert_eq!(superuser.status("c"), "RUNNING");
    stopping.run("ROLLBACK");
    assert_eq!(claimer.count("xdb.claim_calls('pull', 2)"), 0);
    assert_eq!(superuser.status("c"), "FAILED");
    let message = db.completes("p").result()[0].clone();
    assert_eq!(message["status"], "FAILED");
    assert!(message["reason"].as_str().is_some_and(|reason| reason.contains("no longer exists")), "{message}");
    is_sound(&mut superuser, &["p", "c"]);
    db.run("SELECT xdb.stop_process('other')");
    app.done(&["parting"]);
}

#[test]
fn a_function_starts_children_in_its_own_transaction_or_not_at_all() {
    let (app, _worker, mut db) = family("children_function");
    db.run(
        "CREATE TABLE public.steps (process text, txid bigint);
         CREATE FUNCTION public.begins(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.steps VALUES (request->'context'->>'processId', txid_current());
             RETURN jsonb_build_object('startProcesses', request->'stateInput', 'stateDecision',
                 '{\"threadCloseDecision\": {\"closeType\": \"GRACEFUL_COMPLETE_PROCESS\"}}'::jsonb);
         END $$;",
    );
    let definition = Definition::starting_with("Go")
        .step_with("Go", json!({"executeFunction": "public.begins", "executeApiRetryPolicy": attempts(2)}));
    app.superuser().run(&format!("SELECT xdb.register_process_type('fun', NULL, '{}')", definition.json()));
    let leaving = |id: &str| json!([{"processType": "child", "processId": id, "whenParentCloses": "LEAVE"}]);
    db.start("p", "fun").input(leaving("c")).go();
    db.completes("p");
    waits(&mut db, "c");
    assert_eq!(db.count("steps WHERE process = 'p'"), 1);
    // The id runs already: the attempt fails, and nothing of it stays.
    db.start("q", "fun").input(leaving("c")).go();
    wait_until("q has failed", 20, || db.status("q") == "FAILED");
    assert!(views::fails_saying(&mut db, "q", &["already started", "XD006"]));
    assert_eq!(db.count("steps WHERE process = 'q'"), 0);
    is_sound(&mut db, &["p", "q", "c"]);
    db.run("SELECT xdb.stop_process('c')");
    app.done(&[]);
}

/// What answers calls with the children of their input. The first three answer `Only` of a type with their name.
const HANDLERS: [&str; 4] = ["http", "function", "pull", "rpc"];

/// Registers the types of the handlers, and starts `adds`, whose RPC is a handler too. An attempt after a refusal
/// completes its process with the refusal.
fn handlers(app: &App) -> Worker {
    let worker = app.worker(|call: &Call| match (call.api, call.target(), call.refused_write()) {
        (Api::Rpc, ..) => output(json!(null)).starting(call.input().clone()),
        (_, "Only", Value::Null) => force_complete(json!(null)).starting(call.input().clone()),
        (_, "Only", refused) => force_complete(refused.clone()),
        _ => any_of(&[local_queue("go", "go", 1)]),
    });
    let mut db = app.db();
    db.run(
        "CREATE FUNCTION public.starts(request jsonb) RETURNS jsonb LANGUAGE sql RETURN jsonb_build_object(
             'startProcesses', CASE WHEN NOT request ? 'appDatabaseError' THEN request -> 'stateInput' END,
             'stateDecision', jsonb_build_object('threadCloseDecision', jsonb_build_object(
                 'closeType', 'FORCE_COMPLETE_PROCESS', 'closeInput', request -> 'appDatabaseError')))",
    );
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    let ended = |definition: Definition| definition.with("localQueues", json!(["ended"]));
    app.register("http", &ended(one_step()));
    app.register_with("pull", "pull", &ended(one_step()));
    let function = Definition::starting_with("Only").step_with("Only", json!({"executeFunction": "public.starts"}));
    app.superuser()
        .run(&format!("SELECT xdb.register_process_type('function', NULL, {})", jsonb(ended(function).json())));
    app.register("adding", &ended(Definition::without_start()).rpc("add", json!({})));
    db.start("adds", "adding").go();
    worker
}

/// The error that a pull worker or the caller of an RPC gets for these children. None: the handler is another one.
fn raised(db: &mut Db, handler: &str, id: &str, children: &Value) -> Option<SqlError> {
    let answered = match handler {
        "rpc" => format!("SELECT xdb.invoke_rpc('adds', 'add', {})", jsonb(children)),
        _ => {
            db.start(id, handler).input(children.clone()).go();
            if handler != "pull" {
                return None;
            }
            let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', wait => '10 s')");
            let answer = force_complete(json!(null)).starting(children.clone());
            format!("SELECT xdb.complete_call('{token}', {})", jsonb(&answer.json()))
        }
    };
    Some(db.try_run(&answered).expect_err("it is refused"))
}

#[test]
fn the_end_of_a_child_is_told_to_a_parent_of_a_paused_type_that_rejects_messages() {
    let (app, worker, mut db) = family("children_reject");
    let children: Vec<_> = (0..101)
        .map(|n| json!({"processType": "child", "processId": format!("c{n}"), "onClose": "ended", "whenParentCloses": "LEAVE"}))
        .collect();
    start(&mut db, "p", 1, json!(children));
    waits(&mut db, "p");
    waits(&mut db, "c7");
    let described = db.json("SELECT xdb.describe_process('p')");
    assert_eq!(described["children"].as_array().map(Vec::len), Some(100), "the first hundred");
    app.superuser().run("SELECT xdb.pause_process_type('parent', 'REJECT')");
    db.refused(codes::PAUSED, "SELECT xdb.publish('p', 'ended', '1')");
    db.publish("c7", "go", json!("seven"));
    db.completes("c7");
    assert_eq!(worker.count(|call| call.api == Api::Execute && call.target() == "Join"), 0, "p is paused");
    app.superuser().run("SELECT xdb.resume_process_type('parent')");
    let ended = db.completes("p").result().clone();
    assert_eq!((&ended[0]["processId"], &ended[0]["result"]), (&json!("c7"), &json!("seven")), "{ended}");
    db.run("SELECT count(xdb.stop_process(process_id)) FROM xdb.processes WHERE status = 'RUNNING'");
    is_sound(&mut db, &["p", "c7"]);
    app.done(&[]);
}

#[test]
fn a_refused_start_is_a_refused_write_and_the_next_attempt_knows_it() {
    let app = App::new("children_refused");
    let worker = handlers(&app);
    let mut db = app.db();
    db.run("CREATE TABLE places (id text PRIMARY KEY, n int CHECK (n < 10))");
    app.register("child", &mailbox().maps("public.places", "id", &["n"]));
    app.register("resting", &mailbox());
    app.superuser().run("SELECT xdb.pause_process_type('resting', 'REJECT')");
    db.start("runs", "child").key("runs").globals(json!({"n": 1})).go();
    let good =
        json!({"processType": "child", "processId": "good", "globalAttributePk": "good", "globalAttributes": {"n": 1}});
    for (name, bad, code) in [
        ("unknown", json!({"processType": "nowhere"}), "XD002"),
        ("rejecting", json!({"processType": "resting"}), "XD023"),
        ("running", json!({"processType": "child", "processId": "runs", "globalAttributePk": "x"}), "XD006"),
        ("table", json!({"processType": "child", "globalAttributePk": "y", "globalAttributes": {"n": 10}}), "23514"),
        ("keyless", json!({"processType": "child"}), "XD009"),
        (
            "stateless",
            json!({"processType": "child", "globalAttributePk": "z", "options": {"startingState": "No"}}),
            "XD009",
        ),
    ] {
        for handler in HANDLERS {
            let id = format!("{name}-{handler}");
            let (found, message) = match raised(&mut db, handler, &id, &json!([good, bad])) {
                Some(error) => (error.code, error.message),
                None => {
                    let refused = db.completes(&id).result().clone();
                    let text = |key: &str| refused[key].as_str().unwrap_or_default().to_owned();
                    (text("sqlState"), text("message"))
                }
            };
            assert_eq!(found, code, "{id}: {message}");
            assert!(message.starts_with("startProcesses[1]: "), "{id}: {message}");
            if handler == "pull" {
                db.run(&format!("SELECT xdb.stop_process('{id}')"));
            }
            is_sound(&mut db, &[if handler == "rpc" { "adds" } else { &id }]);
        }
    }
    assert_eq!(db.count("xdb.processes WHERE process_id = 'good'"), 0, "all children, or none");
    assert_eq!(db.count("places"), 1);
    db.run("SELECT xdb.stop_process(id) FROM unnest('{runs,adds}'::text[]) id");
    drop(worker);
    app.done(&[]);
}

#[test]
fn answers_with_invalid_children_fail_and_say_where() {
    let app = App::new("children_invalid");
    let worker = handlers(&app);
    let mut db = app.db();
    let many: Vec<_> = (0..1001).map(|_| json!({"processType": "http"})).collect();
    let second = |bad: Value| {
        let mut child = json!({"processType": "http"});
        child.as_object_mut().expect("an object").extend(bad.as_object().expect("an object").clone());
        json!([{"processType": "http"}, child])
    };
    for (name, children, words) in [
        ("many", json!(many), &["startProcesses", "1001 entries", "1000"][..]),
        ("typeless", json!([{"processType": "http"}, {}]), &["startProcesses[1].processType", "is missing"]),
        ("request", second(json!({"options": {"requestId": "r"}})), &["startProcesses[1].options", "requestId"]),
        (
            "merged",
            second(json!({"options": {"correlationKey": "r"}})),
            &["startProcesses[1].options", "correlationKey"],
        ),
        (
            "forged",
            second(json!({"options": {"parent": "p"}})),
            &["startProcesses[1].options", "unknown key \"parent\""],
        ),
        (
            "word",
            second(json!({"whenParentCloses": "STAY"})),
            &["startProcesses[1].whenParentCloses", "STAY", "TERMINATE, LEAVE"],
        ),
        ("policy", second(json!({"idReusePolicy": "ALWAYS"})), &["startProcesses[1].idReusePolicy", "ALWAYS"]),
        ("time", second(json!({"startAt": "soon"})), &["startProcesses[1].startAt", "soon"]),
        ("queue", second(json!({"onClose": "lost"})), &["unknown local queue", "lost", "ended"]),
    ] {
        for handler in HANDLERS {
            let id = format!("{name}-{handler}");
            if let Some(error) = raised(&mut db, handler, &id, &children) {
                let said = format!("{} {} {}", error.message, error.detail, error.hint).to_lowercase();
                assert!(words.iter().all(|word| said.contains(&word.to_lowercase())), "{id}: {error:?}");
            } else {
                wait_until(&format!("{id} fails"), 10, || {
                    views::fails_saying(&mut db, &id, words)
                        || db.count(&format!(
                            "xdb.history WHERE process_id = '{id}' AND event_type = 'CallRepeated' AND details::text LIKE '%lost%'"
                        )) > 0
                });
            }
            if handler != "rpc" {
                db.run(&format!("SELECT xdb.stop_process('{id}')"));
            }
        }
    }
    // A caller names no parent.
    for options in [json!({"parent": {"processId": "p"}}), json!({"startedBy": "p"})] {
        db.start("c", "http").options(options.clone()).refused("XD009");
        db.refused("XD009", &format!("SELECT xdb.start_processes(jsonb_build_array(jsonb_build_object('process_type', 'http', 'options', {})))", jsonb(&options)));
    }
    db.run("SELECT xdb.stop_process('adds')");
    drop(worker);
    app.done(&[]);
}

/// A child in the place of the very process that starts it: the attempt fails, and nothing of the answer is applied.
#[test]
fn an_answer_that_would_start_a_child_in_the_place_of_its_own_process_is_a_failed_attempt() {
    let app = App::new("children_own_place");
    let worker = app.worker(|call: &Call| {
        let child =
            json!([{"processType": "one", "processId": call.process_id(), "idReusePolicy": "TERMINATE_IF_RUNNING"}]);
        force_complete(json!("first")).starting(child)
    });
    let options = json!({"executeApiRetryPolicy": attempts(2)});
    app.register("one", &Definition::starting_with("Only").step_with("Only", options));
    let mut db = app.db();
    db.start("p", "one").go();
    assert_eq!(db.outcome("p").status(), "FAILED");
    assert!(reason(&mut db, "p").contains("can't change the same process"), "{}", reason(&mut db, "p"));
    assert_eq!(db.count("xdb.processes"), 1);
    is_sound(&mut db, &["p"]);
    drop(worker);
    app.done(&[]);
}

#[test]
fn a_session_closes_parent_and_child_in_any_order() {
    let (app, _worker, mut db) = family("children_sessions");
    for (round, order) in [["p", "c"], ["c", "p"]].into_iter().enumerate() {
        let (parent, child) = (format!("p{round}"), format!("c{round}"));
        start(&mut db, &parent, 1, json!([{"processType": "child", "processId": child, "onClose": "ended"}]));
        waits(&mut db, &child);
        let stop = order.map(|of| format!("SELECT xdb.stop_process('{of}{round}')")).join("; ");
        db.run(&format!("BEGIN; {stop}; COMMIT"));
        assert_eq!((db.status(&parent), db.status(&child)), ("TERMINATED".to_owned(), "TERMINATED".to_owned()));
        is_sound(&mut db, &[&parent, &child]);
    }
    // Both are closed at once, by two sessions.
    for round in 10..20 {
        let (parent, child) = (format!("p{round}"), format!("c{round}"));
        start(&mut db, &parent, 1, json!([{"processType": "child", "processId": child, "onClose": "ended"}]));
        waits(&mut db, &child);
        at_once(2, |number| {
            let id = if number == 0 { &parent } else { &child };
            let stopped = app.db().try_run(&format!("SELECT xdb.stop_process('{id}')"));
            assert!(stopped.is_ok() || stopped.as_ref().is_err_and(|error| error.code == "XD007"), "{stopped:?}");
        });
        is_sound(&mut db, &[&parent, &child]);
    }
    wait_until("nothing is left", 10, || app.superuser().count("xdb.timer") + app.superuser().count("xdb.inbox") == 0);
    app.done(&[]);
}

#[test]
fn a_start_waits_for_its_process_id_no_longer_than_for_a_row() {
    let (app, _worker, mut db) = family("children_busy_id");
    db.start("c", "child").go();
    db.run("SELECT xdb.stop_process('c')");
    let mut holder = app.db();
    holder.run("BEGIN; SELECT xdb.start_process('c', 'child')");
    start(&mut db, "p", 1, json!([{"processType": "child", "processId": "c"}]));
    // Other processes go on meanwhile.
    start(&mut db, "q", 1, json!([{"processType": "child", "processId": "d", "onClose": "ended"}]));
    waits(&mut db, "d");
    db.publish("d", "go", json!(1));
    db.completes("q");
    holder.run("ROLLBACK");
    waits(&mut db, "c");
    assert_eq!(db.count("xdb.history WHERE process_id = 'p' AND event_type = 'AttemptFailed'"), 0);
    is_sound(&mut db, &["p"]);
    db.run("SELECT xdb.stop_process('p')");
    wait_until("all have closed", 10, || db.count("xdb.processes WHERE status = 'RUNNING'") == 0);
    app.done(&[]);
}

#[test]
fn a_slow_table_of_a_child_makes_the_step_a_runners() {
    let app = App::new("children_slow");
    let worker = app.worker(|call: &Call| match call.target() {
        "Only" => force_complete(json!(null)).starting(json!([{"processType": "child", "processId": "c",
            "globalAttributePk": "c", "globalAttributes": {"n": 1}, "whenParentCloses": "LEAVE"}])),
        _ => any_of(&[local_queue("go", "inbox", 1)]),
    });
    let mut db = app.db();
    db.run(
        "CREATE TABLE slow (id text PRIMARY KEY, n int);
         CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN new; END $$;
         CREATE TRIGGER dawdle BEFORE INSERT ON slow FOR EACH ROW EXECUTE FUNCTION dawdle()",
    );
    app.register("one", &one_step());
    app.register("child", &mailbox().maps("public.slow", "id", &["n"]));
    db.start("p", "one").go();
    assert_eq!(db.completes("p").status(), "COMPLETED");
    assert_eq!(db.count("slow"), 1);
    let marked = "children of one: took longer than xdb.apply_timeout";
    assert!(views::engine(&mut app.superuser()).contains(marked));
    waits(&mut db, "c");
    is_sound(&mut db, &["p", "c"]);
    db.run("SELECT xdb.stop_process('c')");
    drop(worker);
    app.done(&[]);
}

#[test]
fn results_that_are_too_large_for_a_message_are_left_out() {
    let (app, _worker, mut db) = family("children_large");
    start(&mut db, "p", 1, json!([{"processType": "child", "processId": "c", "onClose": "ended"}]));
    waits(&mut db, "c");
    app.cluster().set("xdb.max_payload_size", "10kB");
    db.run("SELECT xdb.publish('c', 'go', to_jsonb(repeat('x', 10230)))");
    let message = db.completes("p").result()[0].clone();
    app.cluster().set("xdb.max_payload_size", "1MB");
    assert_eq!((&message["omitted"], &message["status"]), (&json!(true), &json!("COMPLETED")));
    assert_eq!(message.get("results"), None);
    is_sound(&mut db, &["p", "c"]);
    app.done(&[]);
}
