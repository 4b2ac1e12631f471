//! Functions of the database answer the calls of states and RPCs in place of a worker. The function's writes and the
//! effects of its answer are one transaction.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::prelude::*;

/// A ledger that functions write, and the functions for the states of `Order`.
const ORDER: &str = "
    CREATE TABLE public.ledger (id int GENERATED ALWAYS AS IDENTITY, process text, what text, attempt int, who text, pid int, txid bigint);
    CREATE FUNCTION public.step(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
        n CONSTANT int := (request->'stateInput')::int;
    BEGIN
        INSERT INTO public.ledger (process, what, attempt, who, pid, txid)
        VALUES (request->'context'->>'processId', 'step ' || n, (request->'context'->>'attempt')::int, current_user, pg_backend_pid(),
                txid_current());
        IF n > 1 THEN
            RETURN jsonb_build_object('stateDecision', jsonb_build_object('nextStates', jsonb_build_array(
                jsonb_build_object('stateId', 'Step', 'stateInput', n - 1))));
        END IF;
        RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"GRACEFUL_COMPLETE_PROCESS\", \"closeInput\": \"all done\"}}}';
    END $$;";

/// Registers a type with functions only, without a worker.
fn register(app: &App, process_type: &str, definition: &Definition) {
    app.superuser().run(&format!("SELECT xdb.register_process_type('{process_type}', NULL, '{}')", definition.json()));
}

fn steps() -> Definition {
    Definition::starting_with("Step").step_with("Step", json!({"executeFunction": "public.step"}))
}

fn functions(name: &str, sql: &str) -> App {
    let app = App::new(name);
    app.db().run(ORDER);
    app.db().run(sql);
    app
}

/// The failure of a process's attempt. Waits until there is one.
fn failure(db: &mut Db, process_id: &str) -> Value {
    let sql = format!(
        "SELECT details->'failure' FROM xdb.history WHERE process_id = '{process_id}' AND event_type = 'AttemptFailed' \
         ORDER BY event_id LIMIT 1"
    );
    wait_until("an attempt fails", 60, || db.count(&format!("({sql}) f")) > 0);
    db.json(&sql)
}

/// The last failure of a process, as `describe_process` shows it. Waits until there is one.
fn last_failure(db: &mut Db, process_id: &str) -> Value {
    let sql = format!(
        "SELECT jsonb_build_object('errorType', error_type, 'detail', detail, 'sqlState', sql_state, 'context', context) \
         FROM xdb.failures WHERE process_id = '{process_id}'"
    );
    wait_until("an attempt fails", 60, || db.count(&format!("({sql}) f")) > 0);
    db.json(&sql)
}

#[test]
fn states_that_functions_answer_follow_each_other_in_one_transaction_as_the_owner() {
    let app = functions("functions_steps", "");
    let mut db = app.db();
    register(&app, "Steps", &steps());
    db.start("p", "Steps").input(json!(5)).go();
    assert_eq!(db.completes("p").result(), "all done");
    let ledger = db.rows("SELECT what, attempt, who, pid, txid FROM ledger ORDER BY id");
    let what: Vec<_> = ledger.iter().map(|row| row["what"].clone()).collect();
    assert_eq!(what, ["step 5", "step 4", "step 3", "step 2", "step 1"]);
    assert!(ledger.iter().all(|row| row["attempt"] == 1 && row["who"] == "app"), "{ledger:?}");
    assert!(ledger.iter().all(|row| row["txid"] == ledger[0]["txid"]), "one transaction: {ledger:?}");
    assert_ne!(ledger[0]["pid"], json!(app.scheduler()), "a runner calls functions, and never the scheduler");
    views::assert_history_is_whole(&mut db, "p");
    app.done(&[]);
}

#[test]
fn many_processes_are_answered_each_step_once() {
    let app = functions("functions_many", "");
    let mut db = app.db();
    register(&app, "Steps", &steps());
    for n in 0..100 {
        db.start(&format!("p{n}"), "Steps").input(json!(3)).go();
    }
    wait_until("all complete", 120, || views::with_status(&mut db, "p%", "COMPLETED") == 100);
    assert_eq!(db.count("ledger"), 300);
    assert_eq!(db.count("(SELECT FROM ledger GROUP BY process, what HAVING count(*) > 1) twice"), 0);
    app.done(&[]);
}

/// Functions of several processes are called in one transaction. If one of them waits for a lock, it is called again
/// alone, with its full time.
#[test]
fn a_function_that_waits_for_a_lock_is_called_alone_and_has_all_of_its_time() {
    let app = App::alone("functions_together", ClusterOptions::default().set("xdb.runners", "1"));
    let mut db = app.db();
    db.run(
        "CREATE TABLE rows (id int PRIMARY KEY); INSERT INTO rows VALUES (1);
         CREATE TABLE ledger (process text, what text);
         CREATE FUNCTION take_row(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             IF request->'context'->>'processId' LIKE 'waits%' THEN
                 BEGIN
                     PERFORM FROM public.rows FOR UPDATE;
                     INSERT INTO public.ledger VALUES (request->'context'->>'processId', 'took it');
                 EXCEPTION WHEN lock_not_available THEN
                     INSERT INTO public.ledger VALUES (request->'context'->>'processId', 'gave up');
                 END;
             ELSE
                 INSERT INTO public.ledger VALUES (request->'context'->>'processId', 'needed no row');
             END IF;
             RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"GRACEFUL_COMPLETE_PROCESS\"}}}';
         END $$",
    );
    let definition = Definition::starting_with("Take").step_with("Take", json!({"executeFunction": "public.take_row"}));
    register(&app, "Take", &definition);
    let mut holder = app.db();
    holder.run("BEGIN");
    holder.run("SELECT FROM rows FOR UPDATE");
    let mut superuser = app.superuser();
    superuser.run("SELECT xdb.pause_process_type('Take')");
    for id in ["a", "b", "waits", "c", "d"] {
        db.start(id, "Take").go();
    }
    superuser.run("SELECT xdb.resume_process_type('Take')");
    wait_until("it waits for the row, longer than it may beside other calls", 20, || {
        superuser.count("pg_locks WHERE NOT granted AND clock_timestamp() - waitstart > interval '200 ms'") > 0
    });
    holder.run("COMMIT");
    for id in ["a", "b", "waits", "c", "d"] {
        db.completes(id);
    }
    assert_eq!(
        db.rows("SELECT process, what FROM ledger ORDER BY process"),
        [
            json!({"process": "a", "what": "needed no row"}),
            json!({"process": "b", "what": "needed no row"}),
            json!({"process": "c", "what": "needed no row"}),
            json!({"process": "d", "what": "needed no row"}),
            json!({"process": "waits", "what": "took it"}),
        ]
    );
    assert_eq!(failures(&mut db), 0, "no attempt was spent on it");
    app.done(&[]);
}

/// A function that blocks delays only processes of its own owner.
#[test]
fn functions_of_two_owners_are_never_in_one_transaction() {
    let app = functions("functions_owners", "GRANT INSERT ON ledger TO other; GRANT EXECUTE ON FUNCTION step TO other");
    let (mut db, mut other) = (app.db(), app.session("other"));
    register(&app, "Steps", &steps());
    let mut superuser = app.superuser();
    superuser.run("SELECT xdb.pause_process_type('Steps')");
    for n in 0..40 {
        db.start(&format!("p{n}"), "Steps").input(json!(2)).go();
        other.start(&format!("q{n}"), "Steps").input(json!(2)).go();
    }
    superuser.run("SELECT xdb.resume_process_type('Steps')");
    wait_until("all complete", 120, || views::with_status(&mut superuser, "%", "COMPLETED") == 80);
    assert_eq!(superuser.count("ledger WHERE who = 'other'"), 80);
    assert_eq!(superuser.count("ledger"), 160);
    assert_eq!(superuser.count("(SELECT FROM ledger GROUP BY txid HAVING count(DISTINCT who) > 1) mixed"), 0);
    app.done(&[]);
}

fn failures(db: &mut Db) -> i64 {
    db.count("xdb.history WHERE event_type IN ('AttemptFailed', 'AttemptsFolded')")
}

#[test]
fn a_function_waits_reads_and_writes_attributes_and_gets_messages() {
    let app = functions(
        "functions_attributes",
        "CREATE TABLE item (id text PRIMARY KEY, n int); INSERT INTO item VALUES ('r', 1);
         CREATE FUNCTION wait_for(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_object(
             'commandRequest', '{\"waitingType\": \"AnyOfCompletion\", \"localQueueCommands\": [{\"commandId\": \"m\", \"queueName\": \"inbox\", \"atLeast\": 1}]}'::jsonb,
             'writeToLocalAttributes', '{\"asked\": true}'::jsonb) $$;
         CREATE FUNCTION take(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             RETURN jsonb_build_object(
                 'writeToGlobalAttributes', jsonb_build_object('n', (request->'loadedGlobalAttributes'->>'n')::int + 1),
                 'writeToLocalAttributes', jsonb_build_object('got', request#>'{commandResults,localQueueResults,0,messages,0,payload}'),
                 'stateDecision', '{\"nextStates\": [{\"stateId\": \"Tell\"}]}'::jsonb);
         END $$;
         CREATE FUNCTION tell(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_object('stateDecision',
             jsonb_build_object('threadCloseDecision', jsonb_build_object('closeType', 'FORCE_COMPLETE_PROCESS', 'closeInput',
             jsonb_build_object('n', request->'loadedGlobalAttributes'->'n', 'local', request->'loadedLocalAttributes')))) $$;",
    );
    let mut db = app.db();
    let locked = json!({"lockType": "EXCLUSIVE_LOCK", "policy": "ALL"});
    let definition = Definition::starting_with("Take")
        .waiting_step_with(
            "Take",
            json!({"waitUntilFunction": "public.wait_for", "executeFunction": "public.take", "loadGlobalAttributes": locked,
                   "loadLocalAttributes": locked}),
        )
        .step_with("Tell", json!({"executeFunction": "public.tell"}))
        .maps("public.item", "id", &["n"]);
    register(&app, "Items", &definition);
    db.start("p", "Items").key("r").go();
    wait_until("it waits", 30, || views::waits(&mut db, "p").len() == 1);
    db.publish("p", "inbox", json!({"letter": 7}));
    // A step sees what an earlier step of the same transaction has written.
    assert_eq!(db.completes("p").result(), &json!({"n": 2, "local": {"asked": true, "got": {"letter": 7}}}));
    assert_eq!(db.one::<i32>("SELECT n FROM item"), 2);
    views::assert_history_is_whole(&mut db, "p");
    app.done(&[]);
}

/// Several steps in one transaction take messages from one queue. Each takes what the steps before it have left.
#[test]
fn steps_of_one_transaction_consume_one_message_each() {
    let app = functions(
        "functions_queue",
        "CREATE FUNCTION wait_for(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_object('commandRequest',
             '{\"waitingType\": \"AnyOfCompletion\", \"localQueueCommands\": [{\"queueName\": \"inbox\"}]}'::jsonb) $$;",
    );
    let mut db = app.db();
    let options = json!({"waitUntilFunction": "public.wait_for", "executeFunction": "public.step"});
    register(&app, "Letters", &Definition::starting_with("Step").waiting_step_with("Step", options));
    let mut superuser = app.superuser();
    superuser.run("SELECT xdb.pause_process_type('Letters')");
    db.start("p", "Letters").input(json!(6)).go();
    for number in 1..=6 {
        db.publish("p", "inbox", json!(number));
    }
    wait_until("they are taken in", 15, || superuser.count("xdb.queue_message") == 6);
    superuser.run("SELECT xdb.resume_process_type('Letters')");
    db.completes("p");
    assert_eq!(db.one::<i64>("SELECT count(DISTINCT txid) FROM ledger"), 1, "one transaction");
    views::assert_history_is_whole(&mut db, "p");
    app.done(&[]);
}

#[test]
fn one_type_mixes_functions_and_a_worker() {
    let app = functions("functions_mixed", "");
    let mut db = app.db();
    let worker = app.worker(|call: &Call| next("Step", json!(call.input().as_i64().unwrap_or(0) + 1)));
    app.register("Mixed", &steps().with("startingState", json!("Ask")).step("Ask"));
    db.start("p", "Mixed").input(json!(1)).go();
    assert_eq!(db.completes("p").result(), "all done");
    assert_eq!(worker.count(|_| true), 1);
    assert_eq!(db.count("ledger"), 2);
    // From the next call on it is as registered last.
    app.pause();
    db.start("q", "Mixed").input(json!(1)).go();
    app.register(
        "Mixed",
        &steps().with("startingState", json!("Ask")).step_with("Ask", json!({"executeFunction": "public.step"})),
    );
    app.superuser().run("SELECT xdb.resume_engine()");
    db.completes("q");
    assert_eq!(worker.count(|_| true), 1, "the call that waited for the worker is a function's");
    app.done(&[]);
}

#[test]
fn an_error_of_a_function_is_a_failed_attempt_and_leaves_nothing() {
    let app = functions(
        "functions_fail",
        "CREATE FUNCTION misbehave(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
         DECLARE how CONSTANT text := request->>'stateInput';
         BEGIN
             INSERT INTO public.ledger (process, what) VALUES (request->'context'->>'processId', how);
             IF (request->'context'->>'attempt')::int > 1 THEN
                 RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}';
             END IF;
             CASE how
                 WHEN 'raise' THEN RAISE EXCEPTION 'no such account' USING ERRCODE = 'AC404';
                 WHEN 'null' THEN RETURN NULL;
                 WHEN 'garbage' THEN RETURN '[1, 2]';
                 WHEN 'nowhere' THEN RETURN '{\"stateDecision\": {}}';
                 WHEN 'serialize' THEN RAISE serialization_failure;
                 WHEN 'temporary' THEN CREATE TEMPORARY TABLE t (n int);
                 WHEN 'role' THEN SET LOCAL ROLE postgres;
                 WHEN 'listen' THEN EXECUTE 'LISTEN x';
                 WHEN 'drop' THEN DROP TABLE public.own;
                     RETURN '{\"stateDecision\": {}}';
                 WHEN 'publish' THEN PERFORM xdb.publish(request->'context'->>'processId', 'q', '1');
                 WHEN 'stop' THEN PERFORM xdb.stop_process(request->'context'->>'processId');
                 WHEN 'start' THEN PERFORM xdb.start_process(request->'context'->>'processId', 'Bad', id_reuse_policy => 'TERMINATE_IF_RUNNING');
                 WHEN 'retry' THEN PERFORM xdb.retry_now(request->'context'->>'processId');
                 WHEN 'reassign' THEN PERFORM xdb.reassign_owned('app', 'heir');
                 WHEN 'many' THEN RAISE EXCEPTION '%', (SELECT string_agg(error, ' ') FROM (
                     SELECT error FROM xdb.stop_process(ARRAY[request->'context'->>'processId'])
                     UNION ALL SELECT error FROM xdb.retry_now(ARRAY[request->'context'->>'processId'])
                     UNION ALL SELECT error FROM xdb.skip_timer(ARRAY[request->'context'->>'processId'], 'Bad-1')) AS e)
                     USING ERRCODE = 'XD016';
                 WHEN 'rpc' THEN PERFORM xdb.invoke_rpc('other', 'r');
                 WHEN 'wait' THEN PERFORM xdb.wait_for_process('other', '1 s');
             END CASE;
             RETURN NULL;
         END $$;
         CREATE TABLE own (n int); INSERT INTO own VALUES (1);",
    );
    app.superuser().run("CREATE ROLE heir; GRANT heir TO app");
    let mut db = app.db();
    let bad = Definition::starting_with("Bad").step_with("Bad", json!({"executeFunction": "public.misbehave"}));
    register(&app, "Bad", &bad);
    let cases = [
        ("raise", "AC404", "no such account"),
        ("null", "InvalidAnswer", "the function returned NULL"),
        ("garbage", "InvalidAnswer", "must be an object"),
        ("nowhere", "InvalidAnswer", "decides nothing"),
        ("serialize", "40001", ""),
        ("temporary", "42501", "security-restricted operation"),
        ("role", "42501", ""),
        ("listen", "42501", "LISTEN"),
        ("drop", "InvalidAnswer", "decides nothing"),
        ("publish", "XD016", "xdb.publish()"),
        ("stop", "XD016", "xdb.stop_process()"),
        ("start", "XD016", "xdb.start_process()"),
        ("retry", "XD016", "xdb.retry_now()"),
        ("reassign", "XD016", "xdb.reassign_owned()"),
        (
            "many",
            "XD016",
            "xdb.stop_process() for the same process a function that answers a call of a process can't call xdb.retry_now()",
        ),
        ("rpc", "XD016", "invoke_rpc"),
        ("wait", "XD016", "wait_for_process"),
    ];
    for (how, ..) in cases {
        db.start(how, "Bad").input(json!(how)).go();
    }
    for (how, kind, words) in cases {
        let failed = failure(&mut db, how);
        assert_eq!(failed["errorType"], kind, "{how}: {failed}");
        assert!(failed["detail"].as_str().is_some_and(|detail| detail.contains(words)), "{how}: {failed}");
        db.completes(how);
        // The attempt that failed is undone, with what it wrote.
        assert_eq!(db.count(&format!("ledger WHERE process = '{how}'")), 1, "{how}");
        views::assert_history_is_whole(&mut db, how);
    }
    assert_eq!(db.count("own"), 1, "what it dropped is there again");
    app.done(&[]);
}

#[test]
fn a_function_starts_stops_and_publishes_to_other_processes_once() {
    let app = functions(
        "functions_others",
        "CREATE FUNCTION drive(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             PERFORM xdb.start_process('child', 'Waits');
             PERFORM xdb.publish('other', 'inbox', '\"hello\"');
             PERFORM xdb.stop_process('victim');
             IF (request->'context'->>'attempt')::int = 1 THEN RAISE EXCEPTION 'once more'; END IF;
             RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}';
         END $$;",
    );
    let mut db = app.db();
    let _worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        _ => force_complete(call.messages("m")[0].clone()),
    });
    app.register("Waits", &mailbox());
    register(
        &app,
        "Drives",
        &Definition::starting_with("Drive").step_with("Drive", json!({"executeFunction": "public.drive"})),
    );
    db.start("other", "Waits").go();
    db.start("victim", "Waits").go();
    db.start("driver", "Drives").go();
    db.completes("driver");
    assert_eq!(db.completes("other").result(), "hello");
    assert_eq!(db.outcome("victim").status(), "TERMINATED");
    assert_eq!(db.count("xdb.processes WHERE process_id = 'child'"), 1);
    db.publish("child", "inbox", json!(1));
    db.completes("child");
    app.done(&[]);
}

#[test]
fn a_function_that_never_ends_is_cancelled_and_other_functions_continue() {
    let app = App::alone("functions_endless", ClusterOptions::default().set("xdb.runners", "2"));
    let mut db = app.db();
    db.run(ORDER);
    db.run(
        "CREATE FUNCTION endless(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.ledger (process, what) VALUES (request->'context'->>'processId', 'endless');
             IF (request->'context'->>'attempt')::int > 1 THEN
                 RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}';
             END IF;
             LOOP END LOOP;
         END $$;",
    );
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("Quick", &one_step());
    register(&app, "Steps", &steps());
    let options = json!({"executeFunction": "public.endless", "executeApiTimeoutSeconds": 2});
    register(&app, "Endless", &Definition::starting_with("Loop").step_with("Loop", options));
    db.start("endless", "Endless").go();
    // The scheduler serves workers meanwhile, and the other runner functions.
    for n in 0..5 {
        db.start(&format!("quick{n}"), "Quick").go();
        db.completes(&format!("quick{n}"));
    }
    let failed = failure(&mut db, "endless");
    assert_eq!(failed["errorType"], "57014", "{failed}");
    db.completes("endless");
    assert_eq!(db.count("ledger WHERE what = 'endless'"), 1);
    db.start("steps", "Steps").input(json!(2)).go();
    db.completes("steps");
    app.done(&[]);
}

/// The engine starts another runner for one call that waits while the only runner is in a function.
#[test]
fn a_call_waits_for_no_long_function_while_there_may_be_another_runner() {
    let app = functions(
        "functions_behind",
        "CREATE TABLE go (id int);
         CREATE FUNCTION long(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             WHILE NOT EXISTS (SELECT FROM public.go) LOOP PERFORM pg_sleep(0.01); END LOOP;
             RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}';
         END $$;",
    );
    let mut db = app.db();
    let options = json!({"executeFunction": "public.long", "executeApiTimeoutSeconds": 60});
    register(&app, "Long", &Definition::starting_with("Wait").step_with("Wait", options));
    register(&app, "Steps", &steps());
    db.start("long", "Long").go();
    wait_until("a runner is in the function", 20, || app.superuser().count(ASLEEP) == 1);
    db.start("short", "Steps").input(json!(3)).go();
    db.completes("short");
    assert_eq!(db.status("long"), "RUNNING");
    db.run("INSERT INTO go VALUES (1)");
    db.completes("long");
    app.done(&[]);
}

#[test]
fn a_function_that_swallows_its_cancellation_ends_its_runner_alone() {
    let app = App::alone("functions_swallow", ClusterOptions::default());
    let mut db = app.db();
    db.run(ORDER);
    db.run(
        "CREATE TABLE switch (on_ boolean); INSERT INTO switch VALUES (true);
         CREATE FUNCTION swallow(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             WHILE (SELECT on_ FROM public.switch) LOOP
                 BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END;
             END LOOP;
             RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}';
         END $$;",
    );
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("Quick", &one_step());
    let options = json!({"executeFunction": "public.swallow", "executeApiTimeoutSeconds": 1});
    register(&app, "Swallows", &Definition::starting_with("Loop").step_with("Loop", options));
    let scheduler = app.scheduler();
    db.start("p", "Swallows").go();
    wait_until("the function is named", 60, || {
        views::engine(&mut app.superuser())
            .contains("swallow(jsonb): a statement could not be cancelled, so the engine process ended itself")
    });
    assert_eq!(app.scheduler(), scheduler, "the scheduler goes on");
    db.start("quick", "Quick").go();
    db.completes("quick");
    assert_eq!(db.status("p"), "RUNNING");
    // The function is marked for a while. When the marks have expired and the function ends, the process completes.
    db.run("UPDATE switch SET on_ = false");
    app.ten_minutes_pass();
    db.completes("p");
    let shown = views::engine(&mut app.superuser());
    assert!(!shown.contains("all tables of"), "the scheduler never calls it: {shown}");
    app.done(&["could not be cancelled", "terminating background worker"]);
}

#[test]
fn a_close_during_a_publish_is_rolled_back_and_repeated_as_the_same_attempt() {
    let app = functions(
        "functions_close",
        "CREATE FUNCTION close(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.ledger (process, what, attempt) VALUES
                 (request->'context'->>'processId', 'close', (request->'context'->>'attempt')::int);
             RETURN '{\"stateDecision\": {\"conditionalClose\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\",
                 \"whenLocalQueuesEmpty\": [\"letters\"]}, \"nextStates\": [{\"stateId\": \"Close\"}]}}';
         END $$;
         CREATE FUNCTION wait_for(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '{\"commandRequest\": {\"waitingType\":
             \"AnyOfCompletion\", \"localQueueCommands\": [{\"queueName\": \"letters\"}]}}'::jsonb $$;",
    );
    let mut db = app.db();
    let handlers = json!({"waitUntilFunction": "public.wait_for", "executeFunction": "public.close"});
    register(&app, "Closes", &Definition::starting_with("Close").waiting_step_with("Close", handlers));
    db.start("p", "Closes").go();
    wait_until("it waits", 30, || views::waits(&mut db, "p").len() == 1);
    let mut other = app.db();
    other.run("BEGIN; SELECT xdb.publish('p', 'letters', '2')");
    db.publish("p", "letters", json!(1));
    let mut superuser = app.superuser();
    wait_until("the close waits for the publisher", 30, || {
        superuser.count("xdb.process_execution WHERE process_id = 'p' AND closing IS NOT NULL") == 1
    });
    assert_eq!(db.count("ledger"), 0, "what the function did is undone with its close");
    other.run("COMMIT");
    // The message that came first is taken by the next state, which closes.
    db.completes("p");
    let failed = db.rows("SELECT details FROM xdb.history WHERE process_id = 'p' AND event_type = 'AttemptFailed'");
    assert_eq!(failed, Vec::<Value>::new());
    assert_eq!(db.rows("SELECT attempt FROM ledger ORDER BY id"), [json!({"attempt": 1}), json!({"attempt": 1})]);
    views::assert_history_is_whole(&mut db, "p");
    app.done(&[]);
}

#[test]
fn pauses_park_calls_of_functions() {
    let app = functions("functions_paused", "");
    let (mut db, mut superuser) = (app.db(), app.superuser());
    register(&app, "Steps", &steps());
    let parked = |superuser: &mut Db, id: &str| {
        let sql =
            format!("xdb.task JOIN xdb.process_execution USING (execution_id) WHERE process_id = '{id}' AND lane = 2");
        wait_until("the call is parked", 30, || superuser.count(&sql) == 1);
    };
    superuser.run("SELECT xdb.pause_process_type('Steps')");
    db.start("p", "Steps").input(json!(2)).go();
    parked(&mut superuser, "p");
    superuser.run("SELECT xdb.resume_process_type('Steps')");
    db.completes("p");
    db.run("BEGIN");
    db.start("q", "Steps").input(json!(2)).go();
    db.run("SELECT xdb.pause_process('q'); COMMIT");
    parked(&mut superuser, "q");
    assert_eq!(db.count("ledger WHERE process = 'q'"), 0);
    db.run("SELECT xdb.resume_process('q')");
    db.completes("q");
    assert_eq!(db.count("ledger"), 4);
    app.done(&[]);
}

#[test]
fn a_call_whose_function_crashes_the_server_is_held_the_third_time() {
    let app = App::alone("functions_deadly", ClusterOptions::default());
    app.db().run(ORDER);
    app.db().run(
        "CREATE TABLE switch (on_ boolean); INSERT INTO switch VALUES (true);
         CREATE FUNCTION deadly(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.ledger (process, what) VALUES (request->'context'->>'processId', 'deadly');
             IF (SELECT on_ FROM public.switch) THEN PERFORM pg_sleep(60); END IF;
             RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}';
         END $$;",
    );
    register(&app, "Steps", &steps());
    let options = json!({"executeFunction": "public.deadly", "executeApiTimeoutSeconds": 100});
    register(&app, "Deadly", &Definition::starting_with("Die").step_with("Die", options));
    app.db().start("p", "Deadly").go();
    let asleep = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'xdb runner' AND wait_event = 'PgSleep' \
                  AND datname = current_database() LIMIT 1";
    for _ in 0..3 {
        let mut superuser = app.superuser();
        let mut pid = None;
        wait_until("the function runs", 60, || {
            pid = superuser.try_maybe::<i32>(asleep).expect("it can be asked");
            pid.is_some()
        });
        app.cluster().kill_process(pid.expect("it runs"));
    }
    let mut db = app.db();
    wait_until("it is held", 60, || db.count("xdb.failures WHERE process_id = 'p' AND error_type = 'CallHeld'") == 1);
    db.start("steps", "Steps").input(json!(2)).go();
    db.completes("steps");
    // The operator has repaired the function, and releases the call.
    db.run("UPDATE switch SET on_ = false");
    db.run("SELECT xdb.retry_now('p')");
    db.completes("p");
    assert_eq!(db.count("ledger WHERE what = 'deadly'"), 1);
    app.done(AFTER_A_CRASH);
}

/// "A step is an SQL function: exactly once, no HTTP."
#[test]
fn an_sql_function_answers_a_step_exactly_once_without_http_despite_kills() {
    let app = App::alone("functions_killed", ClusterOptions::default());
    let mut db = app.db();
    db.run(ORDER);
    db.run(
        "CREATE OR REPLACE FUNCTION pause() RETURNS float8 LANGUAGE sql AS 'SELECT 0.02::float8';
         CREATE FUNCTION slowly(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             PERFORM pg_sleep(0.02);
             RETURN public.step(request);
         END $$;",
    );
    let definition = Definition::starting_with("Step").step_with("Step", json!({"executeFunction": "public.slowly"}));
    register(&app, "Steps", &definition);
    assert_eq!(app.superuser().count("xdb.worker WHERE url IS NOT NULL"), 0, "there is no worker to call");
    for n in 0..40 {
        db.start(&format!("p{n}"), "Steps").input(json!(4)).go();
    }
    let runner =
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'xdb runner' AND datname = current_database() LIMIT 1";
    // A runner is ended, and then the whole server crashes, with steps under way.
    for round in 0..3 {
        let mut superuser = app.superuser();
        wait_until("some steps are made", 60, || db.count("ledger") > 10 * (round + 1));
        if let Some(pid) = superuser.try_maybe::<i32>(runner).expect("it can be asked") {
            // The process has ended when this returns: the next round finds another one.
            superuser.run(&format!("SELECT pg_terminate_backend({pid}, 10000)"));
        }
    }
    if let Some(pid) = app.superuser().try_maybe::<i32>(runner).expect("it can be asked") {
        app.cluster().kill_process(pid);
    }
    wait_until("the server is back", 60, || {
        app.cluster()
            .try_connect(app.database(), "app", Duration::from_secs(5))
            .is_ok_and(|mut db| db.try_one::<i32>("SELECT 1").is_ok())
    });
    let mut db = app.db();
    wait_until("all complete", 120, || views::with_status(&mut db, "p%", "COMPLETED") == 40);
    assert_eq!(db.count("ledger"), 160, "each step has worked once");
    assert_eq!(db.count("(SELECT FROM ledger GROUP BY process, what HAVING count(*) > 1) twice"), 0);
    for n in 0..40 {
        views::assert_history_is_whole(&mut db, &format!("p{n}"));
    }
    app.done(AFTER_A_CRASH);
}

#[test]
fn an_rpc_with_a_function_is_called_in_the_callers_transaction() {
    let app = functions(
        "functions_rpc",
        "CREATE FUNCTION pay(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.ledger (process, what, who, pid) VALUES
                 (request->'context'->>'processId', request->>'rpcName', current_user, pg_backend_pid());
             IF request->'input' = '\"raise\"' THEN RAISE EXCEPTION 'no money' USING ERRCODE = 'PY001'; END IF;
             IF request->'input' = '\"null\"' THEN RETURN NULL; END IF;
             RETURN jsonb_build_object('output', request->'input', 'writeToLocalAttributes', '{\"paid\": true}'::jsonb,
                 'stateDecision', '{\"nextStates\": [{\"stateId\": \"Step\", \"stateInput\": 1}]}'::jsonb);
         END $$;",
    );
    let mut db = app.db();
    let definition = Definition::without_start()
        .step_with("Step", json!({"executeFunction": "public.step"}))
        .rpc("pay", json!({"function": "public.pay"}));
    register(&app, "Pays", &definition);
    db.start("p", "Pays").go();
    db.run("BEGIN");
    assert_eq!(db.rpc("p", "pay", json!(5)), json!(5));
    assert_eq!(db.one::<i32>("SELECT pid FROM ledger"), db.one::<i32>("SELECT pg_backend_pid()"));
    db.run("ROLLBACK");
    assert_eq!(db.count("ledger"), 0);
    // Its errors are the caller's.
    let refused = db.refused("PY001", "SELECT xdb.invoke_rpc('p', 'pay', '\"raise\"')");
    assert_eq!(refused.message, "no money");
    db.refused("XD010", "SELECT xdb.invoke_rpc('p', 'pay', '\"null\"')");
    db.refused("XD009", "SELECT xdb.invoke_rpc('p', 'other')");
    assert_eq!(db.count("ledger"), 0);
    assert_eq!(db.rpc("p", "pay", json!(7)), json!(7));
    assert_eq!(db.completes("p").result(), "all done");
    app.done(&[]);
}

/// Counts the runners in a function that sleeps.
const ASLEEP: &str =
    "pg_stat_activity WHERE backend_type = 'xdb runner' AND wait_event = 'PgSleep' AND datname = current_database()";

/// A function that sleeps for this time and then records its step.
fn sleeping(seconds: f64) -> String {
    format!(
        "CREATE FUNCTION sleeping(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             PERFORM pg_sleep({seconds:.3});
             INSERT INTO public.ledger (process, what) VALUES (request->'context'->>'processId', 'slept');
             RETURN '{{\"stateDecision\": {{\"threadCloseDecision\": {{\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}}}}';
         END $$;"
    )
}

fn sleeps() -> Definition {
    Definition::starting_with("Sleep").step_with("Sleep", json!({"executeFunction": "public.sleeping"}))
}

fn start_with(db: &mut Db, id: &str, process_type: &str, priority: i64) {
    db.start(id, process_type).input(json!(1)).options(json!({"priority": priority})).go();
}

#[test]
fn functions_are_called_by_priority_and_then_by_due_time() {
    let app = App::alone("functions_priority", ClusterOptions::default().set("xdb.runners", "1"));
    let (mut db, mut superuser) = (app.db(), app.superuser());
    db.run(ORDER);
    // A transaction calls no further function after 5 ms, and a function that takes longer beside others is undone and called
    // later. So each has a transaction of its own here, on fast and slow machines.
    db.run("ALTER TABLE ledger ADD slept text DEFAULT pg_sleep(0.01)::text");
    register(&app, "Steps", &steps());
    register(&app, "Other", &steps());
    let all = [("low", -10), ("plain-1", 0), ("high-1", 3), ("high-2", 3), ("top", 10), ("plain-2", 0)];
    let in_order = ["top", "high-1", "high-2", "plain-1", "plain-2", "low"];
    let called = "SELECT process FROM ledger WHERE process <> 'other' ORDER BY id";
    app.pause();
    all.iter().for_each(|(id, priority)| start_with(&mut db, id, "Steps", *priority));
    superuser.run("SELECT xdb.resume_engine()");
    db.completes("low");
    assert_eq!(db.all::<String>(called), in_order);
    // Also calls that were parked, and that a crash counted.
    db.run("TRUNCATE ledger");
    superuser.run("SELECT xdb.pause_process_type('Steps')");
    all.iter().for_each(|(id, priority)| start_with(&mut db, &format!("parked-{id}"), "Steps", *priority));
    wait_until("all are parked", 30, || superuser.count("xdb.task WHERE lane = 2") == all.len() as i64);
    // The engine parks without waiting for the disk.
    superuser.run("CHECKPOINT");
    app.cluster().crash();
    app.cluster().launch();
    let (mut db, mut superuser) = (app.db(), app.superuser());
    start_with(&mut db, "other", "Other", 0);
    db.completes("other");
    assert_eq!(superuser.count("xdb.task WHERE lane = 2"), all.len() as i64);
    superuser.run("SELECT xdb.resume_process_type('Steps')");
    db.completes("parked-low");
    assert_eq!(db.all::<String>(called), in_order.map(|id| format!("parked-{id}")));
    assert_eq!(db.count("xdb.history WHERE event_type = 'AttemptFailed'"), 0);
    app.done(&[]);
}

#[test]
fn an_urgent_function_does_not_wait_for_hundreds_of_other_functions() {
    let app = App::alone("functions_urgent", ClusterOptions::default());
    let (mut db, mut superuser) = (app.db(), app.superuser());
    db.run(ORDER);
    db.run(&sleeping(0.02));
    register(&app, "Sleeps", &sleeps());
    app.pause();
    for n in 0..400 {
        start_with(&mut db, &format!("busy-{n}"), "Sleeps", if n % 2 == 0 { -1 } else { 0 });
    }
    superuser.run("SELECT xdb.resume_engine()");
    wait_until("the runners are at it", 30, || db.count("ledger") >= 20);
    for n in 0..5 {
        let id = format!("urgent-{n}");
        start_with(&mut db, &id, "Sleeps", 5);
        db.completes(&id);
    }
    let waiting = views::with_status(&mut db, "busy-%", "RUNNING");
    assert!(waiting > 100, "only {waiting} other processes still wait");
    wait_until("all complete", 120, || views::with_status(&mut db, "busy-%", "COMPLETED") == 400);
    assert_eq!(db.count("ledger"), 405);
    app.done(&[]);
}

/// A state that counts in a row of the table `counters`, which it locks.
fn counting(more: Value) -> Definition {
    let mut config = json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}});
    config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    Definition::starting_with("Count").step_with("Count", config).maps("public.counters", "id", &["n"])
}

/// The row `r` of the table `counters`, and a function that runs this statement and counts in the row, again and again
/// until the switch is off.
fn counts_while_on(statement: &str) -> String {
    format!(
        "INSERT INTO counters VALUES ('r', 0);
         CREATE TABLE switch (on_ boolean); INSERT INTO switch VALUES (true);
         CREATE FUNCTION count_on(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             {statement};
             RETURN jsonb_build_object(
                 'writeToGlobalAttributes', jsonb_build_object('n', (request->'loadedGlobalAttributes'->>'n')::int + 1),
                 'stateDecision', CASE WHEN (SELECT on_ FROM public.switch)
                     THEN '{{\"nextStates\": [{{\"stateId\": \"Count\"}}]}}'::jsonb
                     ELSE '{{\"threadCloseDecision\": {{\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}}'::jsonb END);
         END $$;"
    )
}

/// A runner that has called quick functions leases several at once. If these take long, it gives them back after the
/// first one, and other runners call them too.
#[test]
fn slow_functions_that_are_due_at_once_are_shared_by_all_runners() {
    const CALLS: i64 = 16;
    let app = App::alone("functions_shared", ClusterOptions::default().set("xdb.runners", "4"));
    let mut db = app.db();
    db.run(
        "CREATE TABLE public.called (runner int, process text);
         CREATE FUNCTION public.sleeps(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             PERFORM pg_sleep((request ->> 'stateInput')::float8);
             INSERT INTO public.called VALUES (pg_backend_pid(), request #>> '{context,processId}');
             RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"GRACEFUL_COMPLETE_PROCESS\"}}}';
         END $$",
    );
    let definition = Definition::starting_with("Sleep").step_with("Sleep", json!({"executeFunction": "public.sleeps"}));
    register(&app, "Sleeps", &definition);
    let all = |db: &mut Db, prefix: &str, count: i64, seconds: f64| {
        db.run(&format!(
            "SELECT count(xdb.start_process('{prefix}' || n, 'Sleeps', '{seconds}')) FROM generate_series(1, {count}) n"
        ));
        wait_until("all complete", 60, || views::with_status(db, &format!("{prefix}%"), "COMPLETED") == count);
    };
    all(&mut db, "quick", 20, 0.0);
    all(&mut db, "slow", CALLS, 0.3);
    let most: i64 = db.one(
        "SELECT max(calls) FROM (SELECT count(*) AS calls FROM public.called WHERE process LIKE 'slow%' GROUP BY runner) AS r",
    );
    assert!(most <= CALLS / 2, "one runner made {most} of {CALLS} calls");
    assert_eq!(db.count("public.called"), 20 + CALLS);
    assert_eq!(db.count("xdb.history WHERE event_type = 'AttemptFailed'"), 0);
    app.done(&[]);
}

/// Functions lock what they load. If a state was repeated too often because of that, they avoid its rows for a while.
#[test]
fn states_and_functions_that_count_in_one_row_lose_no_update_and_do_not_starve() {
    const STATES: i64 = 10;
    // Steps of slow tables are repeated without the marks that this is about.
    let app = App::alone("functions_crowd", ClusterOptions::default().set("xdb.apply_timeout", "1min"));
    app.db().run(ORDER);
    app.db().run(&counts_while_on(
        "INSERT INTO public.ledger (process, what) VALUES (request->'context'->>'processId', 'count')",
    ));
    let mut db = app.db();
    let _worker = app.worker(|call: &Call| {
        // Long enough for functions to come between.
        std::thread::sleep(Duration::from_millis(30));
        let n = json!(call.global("n").as_i64().unwrap_or_default() + 1);
        force_complete(n.clone()).globals(json!({"n": n}))
    });
    app.register("States", &counting(json!({})));
    register(&app, "Functions", &counting(json!({"executeFunction": "public.count_on"})));
    for n in 0..8 {
        db.start(&format!("function{n}"), "Functions").key("r").go();
    }
    wait_until("functions count", 30, || db.count("ledger") >= 50);
    for n in 0..STATES {
        db.start(&format!("state{n}"), "States").key("r").go();
    }
    let (took, ()) = timed(|| {
        wait_until("the states are through", 60, || views::with_status(&mut db, "state%", "COMPLETED") == STATES);
    });
    assert!(took < Duration::from_secs(45), "{took:?}");
    let before = db.count("ledger");
    wait_until("functions go on", 30, || db.count("ledger") > before);
    db.run("UPDATE switch SET on_ = false");
    wait_until("all complete", 60, || views::with_status(&mut db, "function%", "COMPLETED") == 8);
    let counted = db.count("ledger") + STATES;
    assert_eq!(i64::from(db.one::<i32>("SELECT n FROM counters WHERE id = 'r'")), counted);
    assert_eq!(db.count("xdb.history WHERE event_type = 'AttemptFailed'"), 0);
    app.done(&[]);
}

/// A call that was repeated often is made again only after a pause, in which functions do not avoid its rows. So its rows
/// are marked a moment before it is made: otherwise the functions under way would change what it has just loaded, each
/// time.
#[test]
fn a_state_that_is_repeated_after_pauses_gets_its_row_from_functions() {
    const DISTURBED: u64 = 12;
    let app = App::alone("functions_paused", ClusterOptions::default().set("xdb.apply_timeout", "1min"));
    let mut db = app.db();
    db.run(&counts_while_on("PERFORM pg_sleep(0.02)"));
    let calls = Arc::new(AtomicU64::new(0));
    let (other, counted) = (Mutex::new(app.db()), calls.clone());
    let _worker = app.worker(move |call: &Call| {
        if counted.fetch_add(1, Ordering::SeqCst) < DISTURBED {
            // Another session never stops changing the row at first.
            other.lock().expect("never poisoned").run("UPDATE counters SET n = n + 1");
        }
        force_complete(json!(null)).globals(json!({"n": call.global("n").as_i64().unwrap_or_default() + 1}))
    });
    let policy = json!({"initialIntervalSeconds": 0.3, "backoffCoefficient": 1.0});
    app.register("State", &counting(json!({"executeApiRetryPolicy": policy})));
    register(&app, "Functions", &counting(json!({"executeFunction": "public.count_on"})));
    for n in 0..8 {
        db.start(&format!("function{n}"), "Functions").key("r").go();
    }
    wait_until("functions count", 30, || db.one::<i32>("SELECT n FROM counters") >= 10);
    db.start("state", "State").key("r").go();
    wait_until("the state is through", 60, || db.status("state") == "COMPLETED");
    let further = calls.load(Ordering::SeqCst) - DISTURBED;
    assert!(further <= 3, "{further} calls after the other session had stopped");
    db.run("UPDATE switch SET on_ = false");
    wait_until("all complete", 60, || views::with_status(&mut db, "function%", "COMPLETED") == 8);
    app.done(&[]);
}

/// Each function locks the row before the function before it releases it. So the answer of a state never finds the row
/// free, until functions avoid it.
#[test]
fn functions_that_hold_a_row_all_of_the_time_leave_it_to_the_answer_of_a_state() {
    let app = App::alone(
        "functions_hold",
        ClusterOptions::default().set("xdb.runners", "2").set("xdb.apply_timeout", "1min"),
    );
    let mut db = app.db();
    db.run(&counts_while_on("PERFORM pg_sleep(0.1)"));
    let _worker = app.worker(|call: &Call| match call.global("n").as_i64() {
        Some(n) => force_complete(json!(null)).globals(json!({"n": n + 1})).into(),
        None => error(400, "NoRow", "it was not loaded"),
    });
    app.register("State", &counting(json!({})));
    register(&app, "Functions", &counting(json!({"executeFunction": "public.count_on"})));
    for n in 0..6 {
        db.start(&format!("function{n}"), "Functions").key("r").go();
    }
    wait_until("functions count", 30, || db.one::<i32>("SELECT n FROM counters") >= 10);
    db.start("state", "State").key("r").go();
    wait_until("the state is through", 45, || db.status("state") == "COMPLETED");
    let before = db.one::<i32>("SELECT n FROM counters");
    wait_until("functions go on", 30, || db.one::<i32>("SELECT n FROM counters") > before);
    db.run("UPDATE switch SET on_ = false");
    wait_until("all complete", 60, || views::with_status(&mut db, "function%", "COMPLETED") == 6);
    app.done(&[]);
}

/// Process types for functions, for a slow table, and for a worker that needs neither, with this number of runners.
fn kinds(name: &str, runners: &str) -> (App, Worker) {
    let app = App::alone(name, ClusterOptions::default().set("xdb.runners", runners));
    let mut db = app.db();
    db.run(ORDER);
    db.run(
        "CREATE TABLE mine (id text PRIMARY KEY, n int NOT NULL DEFAULT 0);
         INSERT INTO mine SELECT 'm' || n FROM generate_series(0, 99) n;
         CREATE FUNCTION pause() RETURNS float8 LANGUAGE sql AS 'SELECT 0.0::float8';
         CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep(public.pause()); RETURN new; END $$;
         CREATE TRIGGER sleep BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION sleep();",
    );
    let worker = app.worker(|call: &Call| match call.process_id().starts_with('m') {
        true => force_complete(json!(1)).globals(json!({"n": 1})),
        false => force_complete(json!(1)),
    });
    app.register("mine", &one_step().maps("public.mine", "id", &["n"]));
    app.register("quick", &one_step());
    (app, worker)
}

fn make_slow(app: &App) {
    app.make_slow("app", "public.mine", "id", json!({"n": 0}));
}

/// All runners call long functions of two owners, and more calls of both wait.
fn long_functions_come_first(name: &str, runners: i64) {
    const FUNCTIONS: i64 = 16;
    let (app, _worker) = kinds(name, &runners.to_string());
    let mut db = app.db();
    db.run(&sleeping(1.0));
    register(&app, "Sleeps", &sleeps());
    db.run("GRANT INSERT ON ledger TO other; GRANT EXECUTE ON FUNCTION sleeping TO other");
    let mut other = app.session("other");
    for n in 0..FUNCTIONS {
        let owner = if n % 2 == 0 { &mut db } else { &mut other };
        owner.start(&format!("sleeps{n}"), "Sleeps").go();
    }
    let mut superuser = app.superuser();
    wait_until("all runners are at functions", 30, || superuser.count(ASLEEP) == runners);
    make_slow(&app);
    for n in 0..3 {
        db.start(&format!("m{n}"), "mine").key(&format!("m{n}")).go();
    }
    // Calls that need no runner do not wait for one.
    for n in 0..10 {
        let id = format!("quick{n}");
        db.start(&id, "quick").go();
        db.completes(&id);
    }
    let slept = db.count("ledger");
    assert!(slept < FUNCTIONS / 2, "steps over HTTP have waited for {slept} functions");
    for n in 0..3 {
        db.completes(&format!("m{n}"));
    }
    let slept = db.count("ledger");
    assert!(slept < FUNCTIONS - runners, "steps of the slow table have waited for {slept} functions");
    wait_until("all complete", 60, || views::with_status(&mut superuser, "sleeps%", "COMPLETED") == FUNCTIONS);
    assert_eq!(db.count("ledger"), FUNCTIONS);
    app.done(&[]);
}

#[test]
fn functions_that_take_long_keep_steps_of_a_slow_table_waiting_for_one_runner_at_most() {
    long_functions_come_first("functions_first_two", 2);
}

#[test]
fn one_runner_alone_takes_turns_between_functions_and_steps_of_a_slow_table() {
    long_functions_come_first("functions_first_one", 1);
}

#[test]
fn steps_of_a_slow_table_keep_no_function_waiting() {
    const STEPS: i64 = 16;
    for runners in ["1", "2"] {
        let (app, _worker) = kinds(&format!("functions_last_{runners}"), runners);
        let mut db = app.db();
        db.run("CREATE OR REPLACE FUNCTION pause() RETURNS float8 LANGUAGE sql AS 'SELECT 0.5::float8'");
        register(&app, "Steps", &steps());
        make_slow(&app);
        for n in 0..STEPS {
            db.start(&format!("m{n}"), "mine").key(&format!("m{n}")).go();
        }
        wait_until("runners are at the table", 30, || db.count("mine WHERE n = 1") >= 1);
        for n in 0..3 {
            let id = format!("steps{n}");
            db.start(&id, "Steps").input(json!(2)).go();
            db.completes(&id);
        }
        let written = db.count("mine WHERE n = 1");
        assert!(written < STEPS - 1, "functions have waited for {written} writes, with {runners} runners");
        wait_until("all complete", 60, || views::with_status(&mut db, "m%", "COMPLETED") == STEPS);
        app.done(&[]);
    }
}

#[test]
fn a_function_that_drops_its_table_or_writes_other_rows_has_the_rights_of_its_owner() {
    let app = functions(
        "functions_reaching",
        "CREATE TABLE item (id text PRIMARY KEY, n int); INSERT INTO item VALUES ('own', 1), ('others', 1);
         CREATE FUNCTION reach(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
         DECLARE
             how CONSTANT text := request->>'stateInput';
             answer jsonb := '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}';
         BEGIN
             INSERT INTO public.ledger (process, what) VALUES (request->'context'->>'processId', how);
             IF (request->'context'->>'attempt')::int > 1 THEN
                 RETURN answer;
             END IF;
             CASE how
                 WHEN 'drop' THEN DROP TABLE public.item;
                 WHEN 'hidden' THEN UPDATE public.hidden SET n = 5;
                 WHEN 'others' THEN UPDATE public.item SET n = 5 WHERE id = 'others';
             END CASE;
             RETURN answer || '{\"writeToGlobalAttributes\": {\"n\": 2}}';
         END $$;",
    );
    let mut db = app.db();
    app.session("other").run("CREATE TABLE hidden (n int); INSERT INTO hidden VALUES (1)");
    let reaches = Definition::starting_with("Reach").step_with("Reach", json!({"executeFunction": "public.reach"}));
    register(&app, "Reaches", &reaches.maps("public.item", "id", &["n"]));
    for (how, kind) in [("drop", "AppDatabaseError"), ("hidden", "42501")] {
        db.start(how, "Reaches").key("own").input(json!(how)).go();
        let failed = failure(&mut db, how);
        assert_eq!(failed["errorType"], kind, "{failed}");
        db.completes(how);
        assert_eq!(db.all::<i32>("SELECT n FROM item ORDER BY id"), [1, 1], "it is as it was");
        assert_eq!(db.count(&format!("ledger WHERE process = '{how}'")), 1);
    }
    // Another process is mapped to this row, and a session holds it.
    let mut holder = app.db();
    holder.run("BEGIN; UPDATE item SET n = 1 WHERE id = 'others'");
    db.start("others", "Reaches").key("own").input(json!("others")).go();
    let mut superuser = app.superuser();
    let waiting = "pg_stat_activity WHERE backend_type = 'xdb runner' AND wait_event_type = 'Lock' AND datname = current_database()";
    wait_until("the function waits for the row", 30, || superuser.count(waiting) == 1);
    holder.run("COMMIT");
    db.completes("others");
    assert_eq!(db.all::<i32>("SELECT n FROM item ORDER BY id"), [5, 2]);
    assert_eq!(db.count("ledger WHERE process = 'others'"), 1);
    app.done(&[]);
}

/// A function that runs until a gate opens, or waits for a locked row. Each has a name.
const HANGS: &str = "
    CREATE TABLE public.gate (open boolean); INSERT INTO public.gate VALUES (false);
    CREATE TABLE public.rows (id int PRIMARY KEY); INSERT INTO public.rows VALUES (1);
    CREATE FUNCTION public.hang(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
        CASE request->>'stateInput'
            WHEN 'sleep' THEN
                LOOP
                    PERFORM pg_sleep(0.1);
                    EXIT WHEN (SELECT open FROM public.gate);
                END LOOP;
            WHEN 'row' THEN PERFORM FROM public.rows FOR UPDATE;
            WHEN 'loop' THEN
                LOOP
                    EXIT WHEN (SELECT open FROM public.gate);
                END LOOP;
        END CASE;
        RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}';
    END $$;
    GRANT ALL ON public.gate, public.rows, public.ledger TO other; GRANT EXECUTE ON FUNCTION public.hang, public.step TO other;";

fn runners(number: &str) -> ClusterOptions {
    ClusterOptions::default().set("xdb.runners", number)
}

/// Creates functions that may hang for a minute.
fn hanging(app: App) -> App {
    app.db().run(ORDER);
    app.db().run(HANGS);
    register(&app, "Steps", &steps());
    let options = json!({"executeFunction": "public.hang", "executeApiTimeoutSeconds": 60});
    register(&app, "Hangs", &Definition::starting_with("Hang").step_with("Hang", options));
    app
}

/// Starts processes whose functions hang, and waits until one does. Meanwhile functions of another owner must answer.
fn functions_of_another_owner_answer(app: App, how: &str) {
    let app = hanging(app);
    let (mut db, mut other, mut locker) = (app.db(), app.session("other"), app.db());
    locker.run("BEGIN; SELECT FROM public.rows FOR UPDATE");
    for n in 0..20 {
        db.start(&format!("hangs{n}"), "Hangs").input(json!(how)).go();
    }
    let runners_at_work = "pg_stat_activity WHERE backend_type = 'xdb runner' AND datname = current_database() \
         AND xact_start < clock_timestamp() - interval '300 ms'";
    let mut superuser = app.superuser();
    wait_until("functions hang", 60, || superuser.count(runners_at_work) > 0);
    for n in 0..5 {
        other.start(&format!("goes{n}"), "Steps").input(json!(2)).go();
        other.completes(&format!("goes{n}"));
    }
    assert_eq!(views::with_status(&mut db, "hangs%", "RUNNING"), 20, "they hang all the time");
    assert_eq!(failures(&mut superuser), 0, "no attempt was spent on it");
    locker.run("ROLLBACK");
    db.run("UPDATE public.gate SET open = true");
    wait_until("they end", 120, || views::with_status(&mut superuser, "hangs%", "COMPLETED") == 20);
    app.done(&[]);
}

#[test]
fn sleeping_functions_of_one_owner_leave_a_runner_to_other_owners() {
    functions_of_another_owner_answer(App::alone("functions_leave_sleep", runners("2")), "sleep");
}

#[test]
fn sleeping_functions_of_one_owner_leave_a_runner_to_other_owners_in_a_hostile_database() {
    functions_of_another_owner_answer(App::hostile_alone("hostile_leave_sleep", runners("2")), "sleep");
}

#[test]
fn functions_of_one_owner_that_wait_for_a_row_leave_a_runner_to_other_owners() {
    functions_of_another_owner_answer(App::alone("functions_leave_row", runners("2")), "row");
}

#[test]
fn looping_functions_of_one_owner_leave_one_of_three_runners_to_other_owners() {
    functions_of_another_owner_answer(App::alone("functions_leave_loop", runners("3")), "loop");
}

/// Quick functions of several owners are called in turns, even if all calls of one owner were due first.
#[test]
fn an_owner_with_many_functions_and_one_runner_keeps_no_other_waiting() {
    let app = hanging(App::alone("functions_turns", runners("1")));
    let (mut db, mut other, mut superuser) = (app.db(), app.session("other"), app.superuser());
    superuser.run("SELECT xdb.pause_engine()");
    for n in 0..300 {
        db.start(&format!("many{n}"), "Steps").input(json!(1)).go();
    }
    other.start("one", "Steps").input(json!(1)).go();
    superuser.run("SELECT xdb.resume_engine()");
    wait_until("all complete", 120, || views::with_status(&mut superuser, "%", "COMPLETED") == 301);
    let before: i64 =
        superuser.one("SELECT count(*) FROM ledger WHERE id < (SELECT id FROM ledger WHERE process = 'one')");
    assert!(before < 150, "{before} of the other owner came before");
    app.done(&[]);
}

/// A start may shorten the time of its functions, and not lengthen it.
fn a_start_shortens_the_time(app: App) {
    let mut db = app.db();
    db.run(ORDER);
    db.run(HANGS);
    let of = |seconds: Value| {
        json!({"executeFunction": "public.hang", "executeApiTimeoutSeconds": seconds,
               "executeApiRetryPolicy": {"maximumAttempts": 1}})
    };
    register(&app, "Short", &Definition::starting_with("Hang").step_with("Hang", of(json!(1))));
    register(&app, "Long", &Definition::starting_with("Hang").step_with("Hang", of(json!(3000))));
    for (id, process_type, asked) in [("lengthened", "Short", 3600), ("shortened", "Long", 1)] {
        db.start(id, process_type)
            .input(json!("sleep"))
            .options(json!({"startingStateConfig": {"executeApiTimeoutSeconds": asked}}))
            .go();
        let failed = last_failure(&mut db, id);
        assert_eq!(failed["errorType"], "57014", "{id}: {failed}");
    }
    app.done(&[]);
}

#[test]
fn a_start_may_shorten_the_time_of_a_function_and_not_lengthen_it() {
    a_start_shortens_the_time(App::alone("functions_time", ClusterOptions::default()));
}

#[test]
fn a_start_may_shorten_the_time_of_a_function_in_a_hostile_database() {
    a_start_shortens_the_time(App::hostile_alone("hostile_time", ClusterOptions::default()));
}

/// The registered function is called, whatever else has its name. If it was replaced by a function of another kind, it
/// is not called.
#[test]
fn a_function_is_called_by_its_argument_types_and_never_as_another_kind() {
    let app = functions(
        "functions_named",
        "CREATE FUNCTION named(request jsonb) RETURNS jsonb LANGUAGE sql AS
             $$ SELECT '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\", \"closeInput\": \"it\"}}}'::jsonb $$;
         CREATE FUNCTION named(request jsonb, dry_run boolean DEFAULT false) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
         CREATE FUNCTION named(request json) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
         CREATE FUNCTION named(request anyelement, more int DEFAULT 0) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
         CREATE FUNCTION named(VARIADIC requests jsonb[]) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
         CREATE FUNCTION waits(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '{\"commandRequest\": {\"waitingType\": \"EmptyCommand\"}}'::jsonb $$;
         CREATE FUNCTION waits(request jsonb, dry_run boolean DEFAULT false) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';",
    );
    let mut db = app.db();
    let options = json!({"waitUntilFunction": "public.waits", "executeFunction": "public.named",
        "executeApiRetryPolicy": {"maximumAttempts": 1}});
    register(&app, "Named", &Definition::starting_with("A").step_with("A", options));
    db.start("p", "Named").go();
    assert_eq!(db.completes("p").result(), "it");
    for (number, (again, kind, words)) in [
        ("", "42883", "function public.named(jsonb) does not exist"),
        (
            "CREATE FUNCTION named(request jsonb) RETURNS int LANGUAGE sql AS 'SELECT 7'",
            "42809",
            "not a plain function",
        ),
        (
            "CREATE FUNCTION named(request jsonb) RETURNS text LANGUAGE sql AS $$ SELECT '{}' $$",
            "42809",
            "not a plain function",
        ),
        (
            "CREATE FUNCTION named(request jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT request'",
            "42809",
            "not a plain function",
        ),
        ("CREATE PROCEDURE named(request jsonb) LANGUAGE sql AS ''", "42883", "does not exist"),
        ("CREATE AGGREGATE named(jsonb) (SFUNC = jsonb_concat, STYPE = jsonb)", "42809", "not a plain function"),
        ("CREATE FUNCTION named(request jsonb) RETURNS void LANGUAGE sql AS ''", "InvalidAnswer", "returned NULL"),
    ]
    .into_iter()
    .enumerate()
    {
        db.run(&format!("DROP ROUTINE IF EXISTS named(jsonb); {again}"));
        let id = format!("p{number}");
        db.start(&id, "Named").go();
        let failed = last_failure(&mut db, &id);
        assert_eq!(failed["errorType"], kind, "{again}: {failed}");
        assert!(failed["detail"].as_str().is_some_and(|detail| detail.contains(words)), "{again}: {failed}");
    }
    app.done(&[]);
}

/// A failed function names its place, only to the owner of the process. It shows no text of a statement and no value of
/// a row, and no worker gets it.
#[test]
fn a_failure_of_a_function_names_the_functions_and_their_lines() {
    let app = functions(
        "functions_place",
        "CREATE FUNCTION inner_one(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
             EXECUTE format('INSERT INTO public.ledger (process, attempt) VALUES (%L, 1 / %s)', 'a secret', n);
             RETURN 1;
         END $$;
         CREATE FUNCTION middle(n int) RETURNS int LANGUAGE sql AS 'SELECT 1; SELECT public.inner_one(n)';
         CREATE FUNCTION outermost(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             -- A line more.
             PERFORM public.middle((request->'stateInput')::int);
             RETURN NULL;
         END $$;
         CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today' USING ERRCODE = 'AU001'; END $$;
         CREATE TRIGGER audit BEFORE INSERT ON counters FOR EACH ROW EXECUTE FUNCTION audit();
         CREATE FUNCTION listed(argument jsonb, context jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.counters (id) VALUES ('a secret');
         END $$;",
    );
    let mut db = app.db();
    let recovered = |call: &Call| match call.target() {
        "Recover" => force_complete(call.body["context"]["recoverFromError"].clone()),
        _ => force_complete(json!(null)).calls(&[("listed", json!(1))]),
    };
    let _worker = app.worker(recovered);
    let recovery = json!({"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Recover"});
    let retries = json!({"maximumAttempts": 1});
    let function = json!({"executeFunction": "public.outermost", "executeApiRetryPolicy": retries,
        "stateFailureRecoveryOptions": recovery});
    let worker = json!({"executeApiRetryPolicy": retries, "stateFailureRecoveryOptions": recovery});
    let definition = Definition::starting_with("Do").step_with("Do", function).step("Recover");
    app.register("Function", &definition);
    let definition = Definition::starting_with("Do").step_with("Do", worker).step("Recover");
    app.register("Worker", &definition.with("functions", json!({"listed": "public.listed"})));
    for (id, process_type, code, lines) in [
        (
            "p",
            "Function",
            "22012",
            &["inner_one(integer) line 2 at EXECUTE", "SQL function \"middle\"", "outermost(jsonb) line 3 at PERFORM"]
                [..],
        ),
        ("q", "Worker", "AU001", &["audit() line 1 at RAISE", "listed(jsonb,jsonb) line 2 at SQL statement"]),
    ] {
        db.start(id, process_type).input(json!(0)).go();
        let recovered = db.completes(id).result().to_string();
        let failed = last_failure(&mut db, id);
        let code_shown = if id == "p" { &failed["errorType"] } else { &failed["sqlState"] };
        assert_eq!(code_shown, code, "{failed}");
        let context = failed["context"].as_str().unwrap_or_default();
        assert_eq!(context.lines().count(), lines.len(), "{context}");
        for (line, words) in context.lines().zip(lines) {
            assert!(line.contains(words), "{words}: {context}");
        }
        assert!(!context.contains("secret"), "{context}");
        assert!(!recovered.contains("line 1") && !recovered.contains("line 2"), "{recovered}");
    }
    app.done(&[]);
}
