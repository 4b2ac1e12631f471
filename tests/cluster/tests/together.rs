//! Features combined: pull workers, functions, pauses, priorities, merged starts, retention, and registrations that
//! change meanwhile.

use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::prelude::*;

/// A process type whose only state is for a pull worker of members of `app`.
fn pulled(app: &App, process_type: &str, definition: &Definition) {
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", process_type, definition);
}

/// A worker may do its work in the transaction that has claimed its call. Processes of other roles go on, and its own
/// process closes when it can.
#[test]
fn an_open_claim_keeps_a_process_open_and_the_engine_continues() {
    let app = App::alone("together_claim", ClusterOptions::default());
    pulled(&app, "pulled", &one_step());
    let (mut db, mut holder, mut superuser) = (app.db(), app.db(), app.superuser());
    let claimed = |db: &mut Db| db.one::<String>("SELECT token FROM xdb.claim_calls('pull', lease => '1 hour')");
    for (shift, what) in [("2 hours", "claim"), ("4 hours", "extend"), ("6 hours", "give back")] {
        let process = what.replace(' ', "_");
        db.start(&process, "pulled").timeout("1 hour").go();
        let token = if what == "claim" { String::new() } else { claimed(&mut holder) };
        holder.run("BEGIN");
        match what {
            "claim" => drop(claimed(&mut holder)),
            "extend" => holder.run(&format!("SELECT xdb.extend_call('{token}', '1 hour')")),
            _ => holder.run(&format!("SELECT xdb.fail_call('{token}')")),
        }
        app.cluster().set("xdb.now", shift);
        let closing = format!("xdb.process_execution WHERE process_id = '{process}' AND closing = 'UNCONDITIONAL'");
        wait_until(&format!("the timeout waits for the session that has it ({what})"), 30, || {
            superuser.count(&closing) == 1
        });
        assert_eq!(db.status(&process), "RUNNING");
        holder.run("COMMIT");
        wait_until(&format!("it has timed out ({what})"), 30, || db.status(&process) == "TIMEOUT");
        holder.run("SELECT count(*) FROM xdb.claim_calls('pull')");
    }
    app.done(&[]);
}

/// A transaction that has claimed a call may publish to the process, although a close waits for this transaction.
#[test]
fn a_pull_worker_with_an_open_claim_may_publish_to_a_closing_process() {
    let app = App::new("together_publish");
    let definition =
        Definition::starting_with("Fork").step("Fork").step("Work").step("End").with("localQueues", json!(["box"]));
    pulled(&app, "pulled", &definition);
    let (mut db, mut holder, mut superuser) = (app.db(), app.db(), app.superuser());
    db.start("p", "pulled").go();
    let token = db.one::<String>("SELECT token FROM xdb.claim_calls('pull')");
    let fork = json!({"stateDecision": {"nextStates": [{"stateId": "Work"}, {"stateId": "End"}]}});
    db.run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&fork)));
    holder.run("BEGIN");
    let claimed = holder.rows("SELECT token, request->>'stateId' AS state FROM xdb.claim_calls('pull', 1)");
    assert_eq!(claimed.len(), 1, "{claimed:?}");
    superuser.run("UPDATE xdb.process_execution SET closing = 'CONDITIONAL' WHERE process_id = 'p'");
    holder.run("SET statement_timeout = '20 s'; SELECT xdb.publish('p', 'box', '1'); COMMIT");
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}

/// After its process type has moved to another worker or to functions, no session claims the calls of the old worker.
#[test]
fn calls_follow_their_type_away_from_an_idle_pull_worker() {
    let app = App::new("together_moved");
    let _worker = app.worker(|_| force_complete(json!("by the worker")));
    app.db().run(
        "CREATE FUNCTION finish(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
            SELECT '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\", \"closeInput\": \"by a function\"}}}'::jsonb $$",
    );
    let mut db = app.db();
    for process_type in ["to_url", "to_function"] {
        pulled(&app, process_type, &one_step());
        db.start(process_type, process_type).go();
        db.start(&format!("{process_type}_urgent"), process_type).options(json!({"priority": 5})).go();
        // The call is parked, and resumed after the type has moved.
        db.start(&format!("{process_type}_paused"), process_type).go();
        db.run(&format!("SELECT xdb.pause_process('{process_type}_paused')"));
    }
    // The claim finds the paused calls, and gives the others back.
    db.run("SELECT xdb.fail_call(token) FROM xdb.claim_calls('pull', 10) AS c");
    app.register("to_url", &one_step());
    let function =
        one_step().with("states", json!({"Only": {"skipWaitUntil": true, "executeFunction": "public.finish"}}));
    app.superuser().run(&format!("SELECT xdb.register_process_type('to_function', NULL, {})", jsonb(function.json())));
    for (process_type, by) in [("to_url", "by the worker"), ("to_function", "by a function")] {
        db.run(&format!("SELECT xdb.resume_process('{process_type}_paused')"));
        for suffix in ["", "_urgent", "_paused"] {
            assert_eq!(db.completes(&format!("{process_type}{suffix}")).result(), by, "{suffix}");
        }
    }
    app.done(&[]);
}

/// Locked or broken tables of one owner do not block other owners' calls at the same pull worker.
#[test]
fn calls_with_locked_or_broken_tables_block_no_other_owners_calls() {
    let app = App::new("together_owners");
    let mut other = app.session("other");
    other.run(
        "CREATE TABLE theirs (id text PRIMARY KEY, n int);
         ALTER TABLE theirs ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
         CREATE TABLE how (code text);
         CREATE FUNCTION grumble() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
             IF (SELECT code FROM public.how) IS NULL THEN RETURN true; END IF;
             RAISE EXCEPTION 'no' USING ERRCODE = (SELECT code FROM public.how);
         END $$;
         CREATE POLICY grumbling ON theirs USING (grumble());",
    );
    pulled(&app, "mine", &one_step());
    let policy = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 3600}});
    app.register_with(
        "pull",
        "theirs",
        &Definition::starting_with("Only").step_with("Only", policy).maps("public.theirs", "id", &["n"]),
    );
    let mut db = app.db();
    db.run("SET lock_timeout = '20 s'; SET statement_timeout = '60 s'");
    // The owners take turns, so a claim of two calls asks for one of each.
    let claimed = |db: &mut Db, calls: i32| -> Vec<String> {
        db.all(&format!(
            "SELECT request->'context'->>'processId' FROM xdb.claim_calls('pull', {calls}, lease => '1 hour')"
        ))
    };
    // An error of the table itself fails the attempt. This includes codes of a server in trouble, and a cancelled
    // statement. A passing error leaves the call for another claim.
    for code in ["57014", "57P01", "55000", "40003", "55P03", "40001", "40P01", "53200", "58030"] {
        other.run("DELETE FROM how");
        other.start(&format!("theirs_{code}"), "theirs").key(&format!("k{code}")).globals(json!({"n": 1})).go();
        other.run(&format!("INSERT INTO how VALUES ('{code}')"));
        db.start(&format!("mine_{code}"), "mine").go();
        assert_eq!(claimed(&mut db, 2), [format!("mine_{code}")], "{code}");
    }
    other.run("DELETE FROM how");
    other.run("BEGIN; LOCK TABLE theirs");
    db.start("last", "mine").go();
    assert_eq!(claimed(&mut db, 2), ["last"]);
    // A session that waits for calls blocks no other session meanwhile.
    let (took, none) = timed(|| db.all::<String>("SELECT token FROM xdb.claim_calls('pull', wait => '1 hour')"));
    assert!(none.is_empty() && took < Duration::from_secs(10), "{none:?} after {took:?}");
    other.run("COMMIT");
    // A passing error costs no attempt, and the call can be claimed as soon as the error has passed.
    assert_eq!(claimed(&mut db, 1), ["theirs_55P03"]);
    let failed: Vec<String> = other.all("SELECT process_id FROM xdb.failures ORDER BY 1");
    assert_eq!(failed, ["theirs_40003", "theirs_55000", "theirs_57014", "theirs_57P01"]);
    app.done(&[]);
}

/// Locked tables do not block other owners' calls, however many of these calls were due before.
#[test]
fn a_thousand_calls_with_locked_tables_block_no_other_owners_calls() {
    const MANY: i64 = 1200;
    let app = App::new("together_thousand");
    let mut other = app.session("other");
    other.run("CREATE TABLE theirs (id text PRIMARY KEY, n int)");
    pulled(&app, "mine", &one_step());
    pulled(&app, "theirs", &one_step().maps("public.theirs", "id", &["n"]));
    other.run(&format!(
        "SELECT count(xdb.start_process('theirs' || n, 'theirs', global_attribute_pk => 'k' || n, \
             global_attributes => '{{\"n\": 1}}')) FROM generate_series(1, {MANY}) n"
    ));
    other.run("BEGIN; LOCK TABLE theirs");
    let mut db = app.db();
    db.start("mine", "mine").go();
    let claimed = "SELECT request->'context'->>'processId' FROM xdb.claim_calls('pull')";
    assert_eq!(db.all::<String>(claimed), ["mine"]);
    other.run("COMMIT");
    assert_eq!(db.all::<String>(claimed), ["theirs1"]);
    app.done(&[]);
}

/// A claim locks few rows beyond its call until its transaction ends.
#[test]
fn a_claim_in_an_open_transaction_locks_hardly_more_than_its_call() {
    let app = App::new("together_few");
    let mut other = app.session("other");
    other.run("CREATE TABLE theirs (id text PRIMARY KEY, n int)");
    pulled(&app, "mine", &one_step());
    pulled(&app, "theirs", &one_step().maps("public.theirs", "id", &["n"]));
    other.start("theirs", "theirs").key("k").globals(json!({"n": 1})).go();
    other.run("BEGIN; LOCK TABLE theirs");
    let (mut db, mut beside) = (app.db(), app.db());
    db.run("SELECT count(xdb.start_process('mine' || n, 'mine')) FROM generate_series(1, 20) n");
    db.run("BEGIN");
    assert_eq!(db.all::<String>("SELECT request->'context'->>'processId' FROM xdb.claim_calls('pull')"), ["mine1"]);
    let others = beside.count("xdb.claim_calls('pull', 100)");
    assert!(others >= 18, "{others} of the 19 others can be claimed");
    db.run("COMMIT");
    other.run("COMMIT");
    app.done(&[]);
}

/// A superuser may call RPCs, but never runs code of other roles. That includes code that was created while the RPC
/// waited.
#[test]
fn a_superuser_calls_no_function_that_came_while_the_rpc_waited_for_the_end_of_a_pause() {
    let app = App::new("together_superuser");
    app.db().run(
        "CREATE TABLE ran (who text);
         CREATE FUNCTION trap(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.ran VALUES (current_user);
             RETURN '{}';
         END $$;",
    );
    app.superuser().run("SELECT xdb.register_worker('unused', 'http://127.0.0.1:1')");
    app.register_with("unused", "trapped", &Definition::without_start().rpc("r", json!({})));
    let (mut db, mut watch) = (app.db(), app.superuser());
    db.start("p", "trapped").go();
    watch.run("SELECT xdb.pause_process_type('trapped')");
    std::thread::scope(|scope| {
        let app = &app;
        let called = scope
            .spawn(move || app.superuser().refused("XD013", "SELECT xdb.invoke_rpc('p', 'r', timeout => '1 min')"));
        let waiting = "pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT xdb.invoke_rpc(%' AND wait_event_type IS NOT NULL";
        wait_until("the call waits", 30, || watch.count(waiting) == 1);
        let definition = Definition::without_start().rpc("r", json!({"function": "public.trap"}));
        watch.run(&format!(
            "BEGIN; SELECT xdb.register_process_type('trapped', NULL, {}); SELECT xdb.resume_process_type('trapped'); COMMIT",
            jsonb(definition.json())
        ));
        called.join().expect("it is refused");
    });
    assert_eq!(db.all::<String>("SELECT who FROM ran"), Vec::<String>::new());
    db.run("SELECT xdb.invoke_rpc('p', 'r')");
    assert_eq!(db.all::<String>("SELECT who FROM ran"), ["app"]);
    app.done(&[]);
}

/// In a copy, claimed calls of the original are free, and priorities stay.
#[test]
fn in_an_adopted_copy_claimed_calls_are_free_and_priorities_hold() {
    let app = App::alone("together_copied", ClusterOptions::default());
    pulled(&app, "pulled", &one_step());
    let mut db = app.db();
    for (process, priority) in [("urgent", 7), ("lazy", -7), ("plain", 0)] {
        db.start(process, "pulled").options(json!({"priority": priority})).go();
    }
    let claim = "SELECT request->'context'->>'processId' FROM xdb.claim_calls('pull', 2, lease => '1 day')";
    assert_eq!(db.all::<String>(claim), ["urgent", "plain"]);
    let (cluster, dump) = (app.cluster(), app.cluster().dump("together_copied", &[]));
    cluster.restore("together_copy", &dump);
    let mut copy = cluster.connect("together_copy", "app");
    assert_eq!(copy.all::<String>(claim), Vec::<String>::new(), "it is not adopted");
    cluster.connect("together_copy", "boss").run("SELECT xdb.adopt()");
    assert_eq!(copy.all::<String>(claim), ["urgent", "plain"]);
    assert_eq!(copy.all::<String>(claim), ["lazy"]);
    let tasks = "SELECT lane || ' ' || priority FROM xdb.task ORDER BY priority";
    assert_eq!(cluster.connect("together_copy", "postgres").all::<String>(tasks), ["0 -7", "0 0", "0 7"]);
    drop(copy);
    cluster.superuser().drop_database("together_copy", "WITH (FORCE)");
    app.done(&[]);
}
