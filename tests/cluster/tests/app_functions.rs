//! Answers and starts call functions of the database, in the transaction that applies them. Tested with a table `stock`
//! that functions write.

use xdb_cluster_tests::prelude::*;

/// An application with stock that functions reduce, and a process type whose answers call these functions. The
/// functions record what they do.
fn shop(name: &str) -> App {
    shop_of(App::new(name))
}

fn shop_of(app: App) -> App {
    app.db().run(
        "CREATE TABLE public.stock (sku text PRIMARY KEY, left_over int NOT NULL CONSTRAINT enough CHECK (left_over >= 0), note text);
         INSERT INTO public.stock VALUES ('a1', 10, 'new'), ('b2', 1, 'new');
         CREATE TABLE public.noted (number int GENERATED ALWAYS AS IDENTITY, what text, context jsonb, who text, path text, note text);
         CREATE FUNCTION public.reserve(argument jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             UPDATE public.stock SET left_over = left_over - (argument->>'quantity')::int WHERE sku = argument->>'sku';
             IF NOT FOUND THEN RAISE EXCEPTION 'there is no %', argument->>'sku' USING ERRCODE = 'SH404'; END IF;
             RETURN '1';
         END $$;
         CREATE FUNCTION public.note(argument jsonb, context jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.noted (what, context, who, path, note) VALUES (argument #>> '{}', context, current_user,
                 current_setting('search_path'), (SELECT s.note FROM public.stock s WHERE sku = 'a1'));
         END $$;",
    );
    app
}

fn definition() -> Definition {
    Definition::starting_with("Take")
        .step("Take")
        .step("After")
        .rpc("take", json!({}))
        .maps("public.stock", "sku", &["note"])
        .with("functions", json!({"reserve": "public.reserve", "note": "public.note"}))
}

fn left(app: &App, sku: &str) -> i32 {
    app.db().one(&format!("SELECT left_over FROM stock WHERE sku = '{sku}'"))
}

#[test]
fn an_answer_calls_functions_in_order_as_the_owner_after_its_attributes() {
    let app = shop("functions_called");
    let mut db = app.db();
    let _worker = app.worker(|call: &Call| match call.target() {
        "Take" => next("After", json!(null)).globals(json!({"note": "sold"})).calls(&[
            ("note", json!("first")),
            ("reserve", json!({"sku": "a1", "quantity": 2})),
            ("reserve", json!({"sku": "b2", "quantity": 1})),
            ("note", json!(null)),
        ]),
        _ => force_complete(json!("sold")),
    });
    app.register("shop", &definition());
    db.start("p", "shop").key("a1").go();
    assert_eq!(db.completes("p").result(), "sold");
    assert_eq!((left(&app, "a1"), left(&app, "b2")), (8, 0));
    assert_eq!(db.all::<Option<String>>("SELECT what FROM noted ORDER BY number"), [Some("first".to_owned()), None]);
    // A null argument is JSON's: the function is called, however it is declared.
    let noted = db.rows("SELECT context, who, path, note FROM noted WHERE what = 'first'").remove(0);
    assert_eq!((&noted["who"], &noted["note"]), (&json!("app"), &json!("sold")));
    assert_eq!(noted["path"], "pg_catalog, pg_temp");
    let context = &noted["context"];
    assert_eq!(context["processId"], "p");
    assert_eq!(context["stateExecutionId"], "Take-1");
    assert_eq!(context["attempt"], 1);
    assert_eq!(context["owner"], "app");
    assert!(context["callId"].as_str().is_some_and(|id| id.ends_with("/Take-1/execute")), "{context}");
    app.done(&[]);
}

#[test]
fn a_function_that_raises_refuses_the_whole_answer() {
    let app = shop("functions_refused");
    let mut db = app.db();
    let worker = app.worker(|call: &Call| match (call.target(), call.refused_write()) {
        ("Take", Value::Null) => next("After", json!(null))
            .globals(json!({"note": "sold"}))
            .locals(json!({"left": "behind"}))
            .publish("q", json!(1))
            .calls(&[("note", json!("x")), ("reserve", json!({"sku": call.input(), "quantity": 3}))]),
        ("Take", refused) => force_complete(json!({"outcome": refused, "left": call.local("left")})),
        _ => force_complete(json!(null)),
    });
    app.register("shop", &definition());
    db.start("of-no-sku", "shop").key("a1").input(json!("zz")).go();
    db.start("of-a-constraint", "shop").key("a1").input(json!("b2")).go();
    let outcome = db.completes("of-no-sku").result().clone();
    assert_eq!(outcome["outcome"]["sqlState"], "SH404", "{outcome}");
    assert_eq!(outcome["outcome"]["message"], "there is no zz");
    let outcome = db.completes("of-a-constraint").result().clone();
    assert_eq!(outcome["outcome"]["sqlState"], codes::CHECK_VIOLATION, "{outcome}");
    assert_eq!(outcome["outcome"]["constraint"], "enough");
    assert_eq!(outcome["left"], json!(null));
    assert_eq!(db.count("noted"), 0, "the call before it is undone too");
    assert_eq!(db.count("stock WHERE note = 'sold'"), 0, "and what was written");
    assert_eq!((left(&app, "a1"), left(&app, "b2")), (10, 1));
    assert_eq!(worker.count(|call| call.target() == "After"), 0);
    app.done(&[]);
}

#[test]
fn an_answer_with_too_many_calls_is_invalid_and_an_unlisted_function_waits_for_its_registration() {
    let app = shop("functions_unknown");
    let mut db = app.db();
    let _worker = app.worker(|call: &Call| match (call.process_id(), call.attempt()) {
        ("unlisted", 1) => force_complete(json!(null)).calls(&[("other", json!(1))]),
        ("many", 1) => force_complete(json!(null)).calls(&vec![("note", json!(1)); 101]),
        _ => force_complete(json!("outcome")),
    });
    app.register("shop", &definition());
    db.start("many", "shop").key("a1").go();
    db.completes("many");
    let failed = db
        .json("SELECT details->'failure' FROM xdb.history WHERE process_id = 'many' AND event_type = 'AttemptFailed'");
    assert_eq!(failed["errorType"], "InvalidAnswer", "{failed}");
    assert!(failed["detail"].as_str().is_some_and(|detail| detail.contains("at most 100 are allowed")), "{failed}");
    db.start("unlisted", "shop").key("a1").go();
    wait_until("it is reported", 10, || views::fails_saying(&mut db, "unlisted", &[r#"unknown function "other""#]));
    assert_eq!(db.text("SELECT error_type FROM xdb.failures WHERE process_id = 'unlisted'"), "NotRegistered");
    db.run("SELECT xdb.stop_process('unlisted')");
    assert_eq!(db.count("noted"), 0);
    app.done(&[]);
}

#[test]
fn a_function_that_changes_the_process_that_calls_it_is_refused() {
    let app = shop("functions_own");
    let mut db = app.db();
    db.run(
        "CREATE FUNCTION stop(argument jsonb, context jsonb) RETURNS void LANGUAGE plpgsql AS $$
             BEGIN PERFORM xdb.stop_process(context ->> 'processId'); END $$",
    );
    let _worker = app.worker(|_: &Call| force_complete(json!("done")).calls(&[("stop", json!(null))]));
    let once = json!({"executeApiRetryPolicy": {"maximumAttempts": 1}});
    let stopping = Definition::starting_with("Only").step_with("Only", once);
    app.register("stopping", &stopping.with("functions", json!({"stop": "public.stop"})));
    db.start("p", "stopping").go();
    assert_eq!(db.outcome("p").status(), "FAILED");
    let reason = db.text("SELECT reason FROM xdb.processes WHERE process_id = 'p'");
    assert!(reason.contains("can't change the same process (XD016)"), "{reason}");
    app.done(&[]);
}

/// The calls of a process are in the line of its owner. If its owner changes behind the step's back, the step fails.
#[test]
fn a_step_in_which_its_process_changes_hands_is_refused() {
    // One after the other, since they make a role.
    for app in [App::new("functions_hands"), App::hostile("hostile_hands")] {
        changing_hands_is_refused(shop_of(app));
    }
}

fn changing_hands_is_refused(app: App) {
    app.superuser().run("CREATE ROLE heir LOGIN; GRANT heir TO app; GRANT ALL ON public.stock TO heir");
    app.superuser().run("SELECT xdb.grant_usage('heir')");
    let mut db = app.db();
    db.run(
        "CREATE FUNCTION public.give(argument jsonb, context jsonb) RETURNS void LANGUAGE plpgsql AS $$
             BEGIN PERFORM xdb.reassign_owned('app', 'heir'); END $$;
         CREATE TABLE public.deeds (id text PRIMARY KEY, n int);
         CREATE FUNCTION public.give_by_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM xdb.reassign_owned('app', 'heir'); RETURN NEW; END $$;
         CREATE TRIGGER give BEFORE UPDATE ON public.deeds FOR EACH ROW EXECUTE FUNCTION public.give_by_trigger();",
    );
    let _worker = app.worker(|call: &Call| match (call.api, call.process_id()) {
        (Api::Rpc, _) => output(json!(null)).globals(json!({"n": 2})),
        (_, "by-function") => next("Only", json!(null)).calls(&[("give", json!(null))]),
        (_, "by-trigger") => next("Only", json!(null)).globals(json!({"n": 1})),
        _ => force_complete(json!(null)),
    });
    let once = json!({"executeApiRetryPolicy": {"maximumAttempts": 1}});
    let giving = Definition::starting_with("Only").step_with("Only", once).maps("public.deeds", "id", &["n"]);
    let giving = giving.with("functions", json!({"give": "public.give"})).rpc("touch", json!({}));
    app.register("giving", &giving);
    let waiting = mailbox().maps("public.deeds", "id", &["n"]).rpc("touch", json!({}));
    app.register("waiting", &waiting);
    for id in ["by-function", "by-trigger"] {
        db.start(id, "giving").key(id).globals(json!({"n": 0})).go();
        assert_eq!(db.outcome(id).status(), "FAILED", "{id}");
        let reason = db.text(&format!("SELECT reason FROM xdb.processes WHERE process_id = '{id}'"));
        assert!(reason.contains("can't change the same process (XD016)"), "{id}: {reason}");
    }
    db.start("by-rpc", "waiting").key("r").globals(json!({"n": 0})).go();
    let error = db.again(|db| db.try_run("SELECT xdb.invoke_rpc('by-rpc', 'touch')")).expect_err("it changes hands");
    assert_eq!(error.code, "XD016", "{error:?}");
    assert!(error.message.contains("can't change the same process"), "{error:?}");
    assert_eq!(db.text("SELECT owner FROM xdb.processes WHERE process_id = 'by-rpc'"), "app");
    db.run("SELECT xdb.stop_process('by-rpc')");
    app.superuser().run("DROP OWNED BY heir; DROP ROLE heir");
    app.done(&[]);
}

#[test]
fn a_function_is_found_by_its_name_when_it_is_called() {
    let app = shop("functions_by_name");
    let mut db = app.db();
    let worker = app.worker(|call: &Call| match call.refused_write() {
        Value::Null => Reply::hang(force_complete(json!("called")).calls(&[("note", json!("x"))])),
        refused => force_complete(refused["sqlState"].clone()).into(),
    });
    app.register("shop", &definition());
    db.start("renamed", "shop").key("a1").go();
    worker.wait_for("it is called", 10, |_| true);
    db.run("ALTER FUNCTION note(jsonb, jsonb) RENAME TO notes");
    worker.release();
    assert_eq!(db.completes("renamed").result(), "42883");
    // A function that was created again under this name is called.
    db.run(
        "CREATE FUNCTION note(argument jsonb, context jsonb) RETURNS void LANGUAGE sql
         AS $$ INSERT INTO public.noted (what) VALUES ('of the new one') $$",
    );
    db.start("made-anew", "shop").key("a1").go();
    worker.wait_for("it is called", 10, |call| call.process_id() == "made-anew");
    worker.release();
    assert_eq!(db.completes("made-anew").result(), "called");
    assert_eq!(db.all::<String>("SELECT what FROM noted"), ["of the new one"]);
    // The owner needs EXECUTE when it is called.
    app.superuser().run("REVOKE EXECUTE ON FUNCTION note(jsonb, jsonb) FROM PUBLIC; ALTER FUNCTION note(jsonb, jsonb) OWNER TO postgres");
    db.start("denied", "shop").key("a1").go();
    worker.wait_for("it is called", 10, |call| call.process_id() == "denied");
    worker.release();
    assert_eq!(db.completes("denied").result(), codes::INSUFFICIENT_PRIVILEGE);
    app.done(&[]);
}

#[test]
fn an_rpc_and_a_start_call_functions_in_their_transaction_as_the_caller() {
    let app = shop("functions_of_callers");
    let mut db = app.db();
    let _worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => output(json!("taken")).calls(&[("note", json!("rpc")), ("reserve", call.input().clone())]),
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        Api::Execute => force_complete(json!(null)),
    });
    app.register("shop", &definition().waiting_step("Take"));
    let start = |id: &str, calls: Value| {
        format!(
            "SELECT xdb.start_process('{id}', 'shop', global_attribute_pk => 'a1', options => '{}')",
            json!({"callFunctions": calls})
        )
    };
    db.run("SET search_path = public, pg_temp");
    db.run(&start("p", json!([{"function": "note", "argument": "start"}])));
    let noted = db.rows("SELECT context, who, path FROM noted").remove(0);
    assert_eq!(noted["context"]["processId"], "p", "{noted}");
    assert_eq!(noted["context"].get("attempt"), None, "a start is no call of a worker");
    assert_eq!(noted["path"], "pg_catalog, pg_temp", "also in a caller's transaction");

    // Both are undone with the caller's transaction.
    db.run("BEGIN");
    assert_eq!(db.rpc("p", "take", json!({"sku": "a1", "quantity": 1})), json!("taken"));
    assert_eq!(left_in(&mut db), 9);
    db.run("ROLLBACK");
    assert_eq!((left_in(&mut db), db.count("noted")), (10, 1));
    db.rpc("p", "take", json!({"sku": "a1", "quantity": 1}));
    assert_eq!((left_in(&mut db), db.count("noted")), (9, 2));
    let noted = db.json("SELECT context FROM noted WHERE what = 'rpc'");
    assert!(noted["callId"].as_str().is_some_and(|id| id.contains("/rpc/")), "{noted}");
    // An RPC that only calls functions has changed its process too.
    assert_eq!(db.count("xdb.history WHERE process_id = 'p' AND event_type = 'RpcApplied'"), 1);

    // An exception is the caller's error, with nothing of the answer applied.
    let refused = db.refused("SH404", "SELECT xdb.invoke_rpc('p', 'take', '{\"sku\": \"zz\", \"quantity\": 1}')");
    assert_eq!(refused.message, "there is no zz");
    db.refused("23514", &start("q", json!([{"function": "reserve", "argument": {"sku": "b2", "quantity": 2}}])));
    db.refused("XD009", &start("q", json!([{"function": "other"}])));
    db.refused("XD009", &start("q", json!([{"name": "note"}])));
    assert_eq!(db.count("xdb.processes WHERE process_id = 'q'"), 0);
    assert_eq!((left_in(&mut db), db.count("noted")), (9, 2));

    // Many at once call each start's, in the order of their ids.
    let many: Vec<Value> = (0..3)
        .map(|n| {
            json!({"process_id": format!("m{n}"), "process_type": "shop", "global_attribute_pk": "a1",
                   "options": {"callFunctions": [{"function": "note", "argument": format!("m{n}")}]}})
        })
        .collect();
    db.run(&format!("SELECT xdb.start_processes('{}')", json!(many)));
    assert_eq!(db.all::<String>("SELECT what FROM noted WHERE what LIKE 'm%' ORDER BY number"), ["m0", "m1", "m2"]);
    app.done(&[]);
}

fn left_in(db: &mut Db) -> i32 {
    db.one("SELECT left_over FROM stock WHERE sku = 'a1'")
}

#[test]
fn a_slow_function_makes_the_steps_of_types_that_list_it_a_runners() {
    let options = ClusterOptions::default().set("xdb.apply_timeout", "200ms");
    let app = shop_of(App::alone("functions_slow", options));
    let mut db = app.db();
    db.run(
        "CREATE OR REPLACE FUNCTION reserve(argument jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             PERFORM pg_sleep(0.6);
             INSERT INTO public.noted (what, who) VALUES ('slow', pg_backend_pid()::text);
             RETURN NULL;
         END $$",
    );
    let _worker = app.worker(|call: &Call| match call.process_id().starts_with("slow") {
        true => force_complete(json!(null)).calls(&[("reserve", json!(1))]),
        false => force_complete(json!(null)),
    });
    app.register("shop", &definition());
    app.register("other", &one_step());
    for n in 0..3 {
        db.start(&format!("slow-{n}"), "shop").key("a1").go();
    }
    db.start("bystander", "other").go();
    db.completes("bystander");
    for n in 0..3 {
        db.completes(&format!("slow-{n}"));
    }
    assert_eq!(db.count("noted WHERE what = 'slow'"), 3, "each was called once, where it counts");
    let slow = views::engine(&mut app.superuser());
    assert!(slow.contains("reserve(jsonb,jsonb): took longer than xdb.apply_timeout"), "{slow}");
    let scheduler = app.scheduler().to_string();
    assert_eq!(db.count(&format!("noted WHERE who = '{scheduler}'")), 0, "the scheduler has given them away");
    app.done(&["is slow"]);
}
