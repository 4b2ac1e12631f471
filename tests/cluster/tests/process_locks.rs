//! Locks of processes: a process gets all of its locks before its first call, and has them until it closes.

use std::sync::{Arc, Mutex};

use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;

/// What answers the calls. More races with pull workers are in `isolation/process_locks`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Handler {
    Http,
    Function,
    Pull,
}

const HANDLERS: [Handler; 3] = [Handler::Http, Handler::Function, Handler::Pull];

/// The functions of `Hold`, and those of `One` and `Two`. The latter do what `Exclusive` says. Pull workers answer with
/// what they return.
const FUNCTIONS: &str = "
    CREATE TABLE public.calls (n bigserial, process text);
    CREATE TABLE public.notes (n bigserial, note text, locks jsonb, made_by xid8 DEFAULT pg_current_xact_id(),
        saw pg_snapshot DEFAULT pg_current_snapshot());
    CREATE TABLE public.inside (process text, locks jsonb);
    CREATE FUNCTION public.hold(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO public.calls (process) VALUES (request #>> '{context,processId}');
        RETURN '{\"commandRequest\": {\"waitingType\": \"AnyOfCompletion\", \"localQueueCommands\": [{\"queueName\": \"go\"}]}}';
    END $$;
    CREATE FUNCTION public.done(request jsonb) RETURNS jsonb LANGUAGE sql RETURN
        '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}'::jsonb;
    CREATE FUNCTION public.modes(locks jsonb) RETURNS TABLE (name text, shared boolean) LANGUAGE sql AS $$
        SELECT coalesce(l ->> 'name', l #>> '{}'), l ->> 'mode' IS NOT NULL FROM jsonb_array_elements(locks) AS l $$;
    CREATE FUNCTION public.conflict(one jsonb, other jsonb) RETURNS boolean LANGUAGE sql AS $$
        SELECT EXISTS (SELECT FROM public.modes(one) AS o JOIN public.modes(other) AS p USING (name) WHERE NOT (o.shared AND p.shared)) $$;
    CREATE FUNCTION public.one(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
        me CONSTANT text := request #>> '{context,processId}';
        wanted CONSTANT jsonb := request -> 'stateInput';
        is_alone CONSTANT boolean := NOT EXISTS (SELECT FROM public.inside AS i WHERE public.conflict(i.locks, wanted));
    BEGIN
        INSERT INTO public.inside VALUES (me, wanted);
        INSERT INTO public.notes (note, locks) VALUES (CASE WHEN is_alone THEN me ELSE me || ' with another' END, wanted);
        RETURN jsonb_build_object('stateDecision', jsonb_build_object('nextStates',
            jsonb_build_array(jsonb_build_object('stateId', 'Two', 'stateInput', wanted))));
    END $$;
    CREATE FUNCTION public.two(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
        DELETE FROM public.inside WHERE process = request #>> '{context,processId}';
        RETURN public.done(request);
    END $$;";

/// Registers a type whose calls are answered by functions.
fn register_functions(app: &App, process_type: &str, definition: &Definition) {
    let definition = jsonb(definition.json());
    app.superuser().run(&format!("SELECT xdb.register_process_type('{process_type}', NULL, {definition})"));
}

/// A session that is a pull worker, until its connection ends.
fn pull(mut db: Db) {
    std::thread::spawn(move || {
        let claim = "SELECT coalesce(json_agg(claimed), '[]')::text
            FROM xdb.claim_calls('pull', 2, wait => '1 s', lease => '2 s') AS claimed";
        while let Ok(Some(claimed)) = db.try_maybe::<String>(claim) {
            let claimed: Vec<Value> = serde_json::from_str(&claimed).expect("it is JSON");
            for row in &claimed {
                let call = Call::claimed(row);
                let function = match (call.api, call.target()) {
                    (Api::WaitUntil, _) => "hold",
                    (_, "Hold") => "done",
                    (_, "One") => "one",
                    _ => "two",
                };
                let token = literal(row["token"].as_str().expect("a text"));
                let answer = format!("public.{function}({})", jsonb(&row["request"]));
                match db.try_run(&format!("SELECT xdb.complete_call({token}, {answer})")) {
                    // It claims the call again when the lease has ended.
                    Err(error) if error.code == codes::CALL_IS_LOST || error.code.starts_with("40") => {}
                    Err(error) => return eprintln!("a pull worker ends: {error:?}"),
                    Ok(()) => {}
                }
            }
        }
    });
}

/// Sessions that are pull workers, if the calls are theirs.
fn pull_if(handler: Handler, session: impl Fn() -> Db) {
    if handler == Handler::Pull {
        (0..2).for_each(|_| pull(session()));
    }
}

/// `work` waits in `Hold` for a message of `go`, then completes. `Hold` is its first call. Over HTTP, it answers the RPC
/// `ask` too.
fn application_of(handler: Handler, name: &str, options: ClusterOptions) -> (App, Worker) {
    let app = App::alone(&format!("{name}_{handler:?}").to_lowercase(), options);
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!("asked")),
        (Api::WaitUntil, _) => any_of(&[local_queue("go", "go", 1)]),
        _ => force_complete(json!("done")),
    });
    app.register("one", &one_step());
    let definition = Definition::starting_with("Hold");
    match handler {
        Handler::Http => {
            let definition = definition.waiting_step("Hold").rpc("ask", json!({}));
            app.register("work", &definition);
            app.register("sequential", &definition.with("locks", json!(["sequential"])));
        }
        Handler::Function => {
            app.db().run(FUNCTIONS);
            let functions = json!({"waitUntilFunction": "public.hold", "executeFunction": "public.done"});
            register_functions(&app, "work", &definition.waiting_step_with("Hold", functions));
        }
        Handler::Pull => {
            app.db().run(FUNCTIONS);
            app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
            app.register_with("pull", "work", &definition.waiting_step("Hold"));
            pull_if(handler, || app.db());
        }
    }
    (app, worker)
}

fn application(name: &str, options: ClusterOptions) -> (App, Worker) {
    application_of(Handler::Http, name, options)
}

fn start(db: &mut Db, id: &str, locks: Value) {
    db.start(id, "work").options(json!({"locks": locks})).go();
}

fn share(name: &str) -> Value {
    json!({"name": name, "mode": "SHARE"})
}

/// Lets a holder complete.
fn ends(db: &mut Db, id: &str) {
    db.publish(id, "go", json!(null));
    db.completes(id);
}

/// The processes that have this lock, in the order of their names.
fn holders(db: &mut Db, lock: &str) -> Vec<String> {
    db.all(&format!("SELECT process_id FROM xdb.locks WHERE name = {} AND granted ORDER BY process_id", literal(lock)))
}

fn wait_for_holders(db: &mut Db, lock: &str, ids: &[&str]) {
    wait_until(&format!("{ids:?} have {lock}"), 10, || holders(db, lock) == ids);
}

/// The processes whose first call was made, in its order.
fn called(worker: &Worker) -> Vec<String> {
    let first = |call: &Call| call.api == Api::WaitUntil;
    worker.calls().iter().filter(|call| first(call)).map(|call| call.process_id().to_owned()).collect()
}

/// When this process has completed, the engine has made turns that began after everything before this call.
fn turns_pass(db: &mut Db, id: &str) {
    db.start(id, "one").go();
    db.completes(id);
}

fn are_sound(db: &mut Db) {
    let sql = "SELECT problem FROM (SELECT DISTINCT process_id FROM xdb.processes) AS p, xdb.check_process(process_id) AS c (problem)";
    assert_eq!(db.all::<String>(sql), [""; 0]);
}

/// `a` holds the lock `name`, `b` and then `c` wait for it, and the engine has judged that.
fn a_holds_and_b_and_c_wait(db: &mut Db) {
    start(db, "a", json!(["name"]));
    wait_for_holders(db, "name", &["a"]);
    ["b", "c"].iter().for_each(|id| start(db, id, json!(["name"])));
    turns_pass(db, "other");
}

/// Nothing is left once all have closed.
fn all_released(app: &App) {
    wait_until("no lock is left", 10, || app.superuser().count("xdb.process_lock") == 0);
}

/// Seed 3: "only one state machine is processed at a time per user/account".
#[test]
fn only_one_state_machine_is_processed_at_a_time_per_user_or_account() {
    let (app, worker) = application("lock_account", ClusterOptions::default());
    let mut db = app.db();
    start(&mut db, "a", json!(["account:42"]));
    wait_for_holders(&mut db, "account:42", &["a"]);
    start(&mut db, "b", json!(["account:42"]));
    start(&mut db, "c", json!(["account:43"]));
    wait_for_holders(&mut db, "account:43", &["c"]);
    turns_pass(&mut db, "other");
    worker.wait_for_count("a and c are called", 10, 2, |call| call.api == Api::WaitUntil);
    assert_eq!(called(&worker).iter().filter(|id| *id == "b").count(), 0);
    let described = db.json("SELECT xdb.describe_process('b')");
    assert_eq!(described["waitingForProcessLocks"], json!([{"name": "account:42", "mode": "EXCLUSIVE"}]));
    are_sound(&mut db);
    ends(&mut db, "a");
    wait_for_holders(&mut db, "account:42", &["b"]);
    ["b", "c"].iter().for_each(|id| ends(&mut db, id));
    assert_eq!(db.json("SELECT xdb.describe_process('b')")["waitingForProcessLocks"], json!(null));
    all_released(&app);
    app.done(&[]);
}

/// Seed 3: a global lock has a `LookupKey` "across all state machine types", the type and id of its origin, and an
/// `UnlockTimestamp` that is null or in the future. A local lock is one of its type.
#[test]
fn a_global_and_a_local_lock_by_lookup_key_with_their_origin_and_unlock_timestamp() {
    let (app, _worker) = application("lock_tables", ClusterOptions::default());
    let mut db = app.db();
    db.start("transfer-7", "work").options(json!({"locks": ["acct456", "Transfer/key123", share("system")]})).go();
    wait_for_holders(&mut db, "acct456", &["transfer-7"]);
    db.start("payout-1", "sequential").timeout("1 hour").options(json!({"locks": ["acct456"]})).go();
    start(&mut db, "payout-2", json!(["Payout/key123", "acct456"]));
    wait_until("both wait", 10, || db.count("xdb.locks WHERE place IS NOT NULL") == 4);
    let shown = "SELECT name, process_type, process_id, mode, granted, place, expires_at IS NULL AS held_until_it_ends
        FROM xdb.locks ORDER BY lower(name) COLLATE \"C\", process_id DESC";
    let row = |name: &str, process_type: &str, id: &str, mode: &str, granted: bool, place: Value, open: bool| json!({"name": name, "process_type": process_type, "process_id": id, "mode": mode, "granted": granted, "place": place, "held_until_it_ends": open});
    assert_eq!(
        db.rows(shown),
        [
            row("acct456", "work", "transfer-7", "EXCLUSIVE", true, json!(null), true),
            row("acct456", "work", "payout-2", "EXCLUSIVE", false, json!(2), true),
            row("acct456", "sequential", "payout-1", "EXCLUSIVE", false, json!(1), false),
            row("Payout/key123", "work", "payout-2", "EXCLUSIVE", false, json!(1), true),
            row("sequential", "sequential", "payout-1", "EXCLUSIVE", false, json!(1), false),
            row("system", "work", "transfer-7", "SHARE", true, json!(null), true),
            row("Transfer/key123", "work", "transfer-7", "EXCLUSIVE", true, json!(null), true),
        ]
    );
    let due = "SELECT expires_at > now() AND since < now() FROM xdb.locks WHERE process_id = 'payout-1' LIMIT 1";
    assert!(db.one::<bool>(due));
    // A role sees the locks of its own processes only.
    assert_eq!(app.session("other").count("xdb.locks"), 0);
    ["transfer-7", "payout-1", "payout-2"].iter().for_each(|id| ends(&mut db, id));
    all_released(&app);
    app.done(&[]);
}

/// Seed 3: a "system-wide maintenance task must prevent all other operations".
#[test]
fn a_system_wide_maintenance_task_prevents_all_other_operations() {
    let (app, _worker) = application("lock_maintenance", ClusterOptions::default());
    let mut db = app.db();
    for id in ["a", "b"] {
        start(&mut db, id, json!([share("system"), id]));
    }
    wait_for_holders(&mut db, "system", &["a", "b"]);
    start(&mut db, "maintenance", json!(["system"]));
    // It waits for the operations under way, and those that come later wait for it.
    start(&mut db, "c", json!([share("system"), "c"]));
    turns_pass(&mut db, "other");
    assert_eq!(holders(&mut db, "system"), ["a", "b"]);
    ends(&mut db, "a");
    turns_pass(&mut db, "another");
    assert_eq!(holders(&mut db, "system"), ["b"]);
    ends(&mut db, "b");
    wait_for_holders(&mut db, "system", &["maintenance"]);
    start(&mut db, "d", json!([share("system")]));
    are_sound(&mut db);
    ends(&mut db, "maintenance");
    wait_for_holders(&mut db, "system", &["c", "d"]);
    ["c", "d"].iter().for_each(|id| ends(&mut db, id));
    all_released(&app);
    app.done(&[]);
}

/// Seed 4: the queue modes Parallel, Sequential and ParallelByKey (`SysParallelKey`).
#[test]
fn queue_modes_parallel_sequential_and_parallel_by_sys_parallel_key() {
    let (app, worker) = application("lock_queue_modes", ClusterOptions::default());
    let mut db = app.db();
    let first_calls = |count| drop(worker.wait_for_count("first calls", 10, count, |call| call.api == Api::WaitUntil));
    // Parallel.
    ["p1", "p2"].iter().for_each(|id| start(&mut db, id, json!([])));
    first_calls(2);
    // Sequential: the type holds the lock.
    ["s1", "s2"].iter().for_each(|id| drop(db.start(id, "sequential").go()));
    first_calls(3);
    // ParallelByKey: the start has a lock with the key.
    for (id, key) in [("k1", "Email/1"), ("k2", "Email/1"), ("k3", "Email/2")] {
        start(&mut db, id, json!([key]));
    }
    first_calls(5);
    turns_pass(&mut db, "other");
    let mut so_far = called(&worker);
    so_far.sort();
    assert_eq!(so_far, ["k1", "k3", "p1", "p2", "s1"]);
    ["s1", "k1", "k3", "p1", "p2"].iter().for_each(|id| ends(&mut db, id));
    ["s2", "k2"].iter().for_each(|id| ends(&mut db, id));
    all_released(&app);
    app.done(&[]);
}

/// The names of these locks, each with whether it is shared.
fn modes(locks: &Value) -> Vec<(&str, bool)> {
    let mode = |lock: &Value| lock["mode"] == "SHARE";
    let name = |lock| Value::as_str(lock).or_else(|| lock["name"].as_str()).expect("a lock has a name");
    locks.as_array().expect("a list of locks").iter().map(|lock| (name(lock), mode(lock))).collect()
}

/// Whether two processes may not have these locks at the same time.
fn exclude(some: &Value, others: &Value) -> bool {
    let others = modes(others);
    modes(some).iter().any(|(name, shared)| others.iter().any(|(other, too)| name == other && !(*shared && *too)))
}

/// `steps`, whose input is the list of its locks. From `One` to the end of `Two` its handler notes which processes are
/// inside together although their locks exclude each other.
struct Exclusive {
    noted: Option<(Worker, Arc<Mutex<Vec<String>>>)>,
}

impl Exclusive {
    fn of(app: &App, handler: Handler) -> Exclusive {
        let definition = Definition::starting_with("One");
        let of = |name: &str| json!({"executeFunction": format!("public.{name}")});
        match handler {
            Handler::Http => {}
            Handler::Function => {
                register_functions(app, "steps", &definition.step_with("One", of("one")).step_with("Two", of("two")));
                return Exclusive { noted: None };
            }
            Handler::Pull => {
                app.register_with("pull", "steps", &definition.step("One").step("Two"));
                return Exclusive { noted: None };
            }
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        let (noted, inside) = (order.clone(), Mutex::new(Vec::<(String, Value)>::new()));
        let worker = app.worker_named("alone", move |call: &Call| {
            let (me, locks) = (call.process_id().to_owned(), call.input().clone());
            let mut inside = inside.lock().expect("no thread panics");
            if call.target() == "One" {
                let others: Vec<_> =
                    inside.iter().filter(|(other, of)| *other != me && exclude(&locks, of)).cloned().collect();
                let note = if others.is_empty() { me.clone() } else { format!("{me} with {others:?}") };
                inside.push((me, locks.clone()));
                noted.lock().expect("no thread panics").push(note);
                return next("Two", locks);
            }
            inside.retain(|(other, _)| *other != me);
            force_complete(json!("done"))
        });
        app.register_with("alone", "steps", &definition.step("One").step("Two"));
        Exclusive { noted: Some((worker, order)) }
    }

    /// The processes in the order of their first calls, each with those that should not have been inside.
    fn notes(&self, db: &mut Db) -> Vec<String> {
        match &self.noted {
            Some((_, order)) => order.lock().expect("no thread panics").clone(),
            // A function sees what every earlier holder of its locks has written. The server makes that visible before it
            // releases the locks of a transaction, so advisory locks would not tell.
            None => db.all(
                "SELECT note || CASE WHEN EXISTS (SELECT FROM notes AS before WHERE before.n < notes.n
                    AND conflict(before.locks, notes.locks) AND NOT pg_visible_in_snapshot(before.made_by, notes.saw))
                    THEN ' with another' ELSE '' END FROM notes ORDER BY n",
            ),
        }
    }
}

#[test]
fn two_hundred_sessions_on_one_name_come_one_at_a_time_and_in_order() {
    for handler in HANDLERS {
        let (app, _other) =
            application_of(handler, "lock_many", ClusterOptions::default().set("max_connections", "250"));
        let steps = Exclusive::of(&app, handler);
        let mut db = app.db();
        start(&mut db, "holder", json!(["name"]));
        wait_for_holders(&mut db, "name", &["holder"]);
        let sessions: Vec<Mutex<Db>> = (0..200).map(|_| Mutex::new(app.db())).collect();
        at_once(200, |n| {
            let mut db = sessions[n].lock().expect("no other thread has it");
            let id = format!("p{n}");
            db.start(&id, "steps").input(json!(["name"])).options(json!({"locks": ["name"]})).go();
        });
        let expected =
            db.all::<String>("SELECT process_id FROM xdb.locks WHERE NOT granted ORDER BY since, execution_id");
        assert_eq!(expected.len(), 200);
        are_sound(&mut db);
        ends(&mut db, "holder");
        wait_until("all have ended", 60, || db.count("xdb.processes WHERE status = 'RUNNING'") == 0);
        assert_eq!(steps.notes(&mut db), expected);
        all_released(&app);
        app.done(&[]);
    }
}

#[test]
fn names_in_opposite_orders_and_mixed_modes_never_deadlock() {
    for handler in HANDLERS {
        let (app, _other) = application_of(handler, "lock_orders", ClusterOptions::default());
        let steps = Exclusive::of(&app, handler);
        let sessions: Vec<Mutex<Db>> = (0..8).map(|_| Mutex::new(app.db())).collect();
        at_once(8, |n| {
            let mut db = sessions[n].lock().expect("no other thread has it");
            for round in 0..12 {
                let id = format!("p{n}-{round}");
                // Each name is exclusive for some processes and shared for others, in another order.
                let lock =
                    |at: usize, name: &str| if (at + n + round).is_multiple_of(3) { json!(name) } else { share(name) };
                let mut locks: Vec<_> =
                    ["a", "b", "c", "d"].iter().enumerate().map(|(at, name)| lock(at, name)).collect();
                locks.rotate_left((n + round / 2) % 4);
                locks.truncate(2 + n % 3);
                db.start(&id, "steps").input(json!(locks)).options(json!({"locks": locks})).go();
            }
        });
        let mut db = app.db();
        wait_until("all have ended", 60, || db.count("xdb.processes WHERE status = 'RUNNING'") == 0);
        let order = steps.notes(&mut db);
        assert_eq!((order.len(), order.iter().filter(|note| note.contains("with")).count()), (96, 0), "{order:?}");
        all_released(&app);
        app.done(&[]);
    }
}

/// `a` is due before `b`, and its session commits while `b` holds the lock.
#[test]
fn a_start_that_commits_late_waits_for_a_later_one_that_holds_the_lock() {
    for handler in HANDLERS {
        let (app, _worker) = application_of(handler, "lock_late", ClusterOptions::default());
        let (mut db, mut late) = (app.db(), app.db());
        late.run("BEGIN");
        start(&mut late, "a", json!(["name"]));
        start(&mut db, "b", json!(["name"]));
        wait_for_holders(&mut db, "name", &["b"]);
        late.run("COMMIT");
        turns_pass(&mut db, "other");
        assert_eq!(holders(&mut db, "name"), ["b"]);
        start(&mut db, "c", json!(["name"]));
        turns_pass(&mut db, "another");
        are_sound(&mut db);
        ["b", "a", "c"].iter().for_each(|id| {
            wait_for_holders(&mut db, "name", &[id]);
            ends(&mut db, id);
        });
        all_released(&app);
        app.done(&[]);
    }
}

#[test]
fn an_open_stop_of_a_waiting_process_does_not_stop_the_queue() {
    for handler in HANDLERS {
        let (app, _worker) = application_of(handler, "lock_open_stop", ClusterOptions::default());
        let mut db = app.db();
        a_holds_and_b_and_c_wait(&mut db);
        let mut stopper = app.db();
        stopper.run("BEGIN; SELECT xdb.stop_process('b')");
        ends(&mut db, "a");
        wait_for_holders(&mut db, "name", &["c"]);
        stopper.run("ROLLBACK");
        // It is judged again although no row says so.
        ends(&mut db, "c");
        wait_for_holders(&mut db, "name", &["b"]);
        // A holder whose stop is not committed has its lock.
        start(&mut db, "d", json!(["name"]));
        stopper.run("BEGIN; SELECT xdb.stop_process('b')");
        turns_pass(&mut db, "another");
        assert_eq!(holders(&mut db, "name"), ["b"]);
        stopper.run("COMMIT");
        wait_for_holders(&mut db, "name", &["d"]);
        ends(&mut db, "d");
        // The same if no other process waits, and the stop of the only request is rolled back.
        start(&mut db, "e", json!(["name"]));
        wait_for_holders(&mut db, "name", &["e"]);
        start(&mut db, "f", json!(["name"]));
        turns_pass(&mut db, "third");
        stopper.run("BEGIN; SELECT xdb.stop_process('f')");
        ends(&mut db, "e");
        turns_pass(&mut db, "fourth");
        stopper.run("ROLLBACK");
        wait_for_holders(&mut db, "name", &["f"]);
        ends(&mut db, "f");
        all_released(&app);
        app.done(&[]);
    }
}

#[test]
fn a_stop_and_a_timeout_of_a_waiting_process_let_others_come_forward() {
    let (app, worker) = application("lock_stop", ClusterOptions::default().own_clock());
    let mut db = app.db();
    start(&mut db, "a", json!([share("name")]));
    wait_for_holders(&mut db, "name", &["a"]);
    db.start("b", "work").timeout("1 hour").options(json!({"locks": ["name"]})).go();
    start(&mut db, "c", json!([share("name")]));
    start(&mut db, "d", json!(["name"]));
    start(&mut db, "e", json!([share("name")]));
    turns_pass(&mut db, "other");
    assert_eq!(holders(&mut db, "name"), ["a"]);
    app.cluster().set_clock(3700.0);
    wait_for_holders(&mut db, "name", &["a", "c"]);
    assert_eq!(db.status("b"), "TIMEOUT");
    db.run("SELECT xdb.stop_process('d')");
    wait_for_holders(&mut db, "name", &["a", "c", "e"]);
    assert!(!called(&worker).iter().any(|id| id == "b" || id == "d"));
    ["a", "c", "e"].iter().for_each(|id| ends(&mut db, id));
    all_released(&app);
    app.done(&[]);
}

#[test]
fn all_four_kinds_of_handlers_release_the_lock_when_they_close_the_process() {
    let (app, _worker) = application("lock_handlers", ClusterOptions::default());
    app.db().run(
        "CREATE FUNCTION answer(request jsonb) RETURNS jsonb LANGUAGE sql RETURN
             '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}'::jsonb;
         CREATE FUNCTION close(request jsonb) RETURNS jsonb LANGUAGE sql RETURN
             '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}'::jsonb;",
    );
    let mut boss = app.superuser();
    let function = Definition::starting_with("Do").step_with("Do", json!({"executeFunction": "public.answer"}));
    boss.run(&format!("SELECT xdb.register_process_type('function', NULL, '{}')", function.json()));
    let rpc = Definition::without_start().rpc("close", json!({"function": "public.close"}));
    boss.run(&format!("SELECT xdb.register_process_type('rpc', NULL, '{}')", rpc.json()));
    boss.run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "pulled", &one_step());
    let mut db = app.db();
    let locks = || json!({"locks": ["name"]});
    db.start("http", "work").options(locks()).go();
    wait_for_holders(&mut db, "name", &["http"]);
    for (id, of) in [("function", "function"), ("pull", "pulled"), ("rpc", "rpc"), ("last", "work")] {
        db.start(id, of).options(locks()).go();
    }
    turns_pass(&mut db, "other");
    let claim = "SELECT token::text FROM xdb.claim_calls('pull', wait => '20 s')";
    assert_eq!(db.count("xdb.claim_calls('pull')"), 0, "it waits for its lock");
    std::thread::scope(|scope| {
        // The grant wakes a session that waits for calls.
        let claimed = scope.spawn(|| app.db().one::<String>(claim));
        wait_until("a session waits", 10, || {
            db.count("pg_stat_activity WHERE query LIKE 'SELECT token%' AND wait_event = 'Extension'") == 1
        });
        ends(&mut db, "http");
        db.completes("function");
        let token = claimed.join().expect("no panic");
        assert_eq!(holders(&mut db, "name"), ["pull"]);
        let answer = literal(&force_complete(json!("done")).json().to_string());
        db.run(&format!("BEGIN; SELECT xdb.complete_call('{token}', {answer})"));
        assert_eq!(holders(&mut app.db(), "name"), ["pull"], "not committed yet");
        db.run("COMMIT");
    });
    wait_for_holders(&mut db, "name", &["rpc"]);
    db.run("SELECT xdb.invoke_rpc('rpc', 'close')");
    wait_for_holders(&mut db, "name", &["last"]);
    ends(&mut db, "last");
    all_released(&app);
    app.done(&[]);
}

#[test]
fn an_rpc_waits_for_the_locks_of_its_process_and_then_fails() {
    let (app, worker) = application("lock_rpc", ClusterOptions::default());
    let mut db = app.db();
    start(&mut db, "a", json!(["name"]));
    wait_for_holders(&mut db, "name", &["a"]);
    start(&mut db, "b", json!(["another", "name"]));
    let error = db.refused(codes::WAITS_FOR_LOCKS, "SELECT xdb.invoke_rpc('b', 'ask', timeout => '300 ms')");
    assert_eq!(error.message, "process \"b\" waits for its locks");
    assert_eq!(error.detail, "Process \"a\" holds the lock \"name\".");
    // A holder that the caller may not see is not named.
    let mut other = app.session("other");
    other.start("c", "work").options(json!({"locks": ["name"]})).go();
    let error = other.refused(codes::WAITS_FOR_LOCKS, "SELECT xdb.invoke_rpc('c', 'ask', timeout => '300 ms')");
    assert_eq!(error.detail, "It waits for the lock \"name\".");
    assert_eq!(worker.count(|call| call.api == Api::Rpc), 0);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| app.db().rpc("b", "ask", json!(null)));
        wait_until("it waits", 10, || {
            db.count("pg_stat_activity WHERE query LIKE 'SELECT xdb.invoke_rpc%' AND wait_event = 'Extension'") == 1
        });
        ends(&mut db, "a");
        assert_eq!(asking.join().expect("no panic"), "asked");
    });
    ends(&mut db, "b");
    other.publish("c", "go", json!(null));
    other.completes("c");
    all_released(&app);
    app.done(&[]);
}

#[test]
fn a_paused_process_and_type_keep_their_place_and_their_locks() {
    let (app, worker) = application("lock_pause", ClusterOptions::default());
    let mut db = app.db();
    a_holds_and_b_and_c_wait(&mut db);
    // The end of a pause does not resume the call of a process that waits for its lock.
    db.run("SELECT xdb.pause_process('b'); SELECT xdb.resume_process('b'); SELECT xdb.pause_process('b')");
    let mut boss = app.session("boss");
    boss.run("SELECT xdb.pause_process_type('work')");
    turns_pass(&mut db, "another");
    boss.run("SELECT xdb.resume_process_type('work')");
    turns_pass(&mut db, "third");
    assert_eq!(called(&worker), ["a"]);
    are_sound(&mut db);
    ends(&mut db, "a");
    wait_for_holders(&mut db, "name", &["b"]);
    turns_pass(&mut db, "fourth");
    assert_eq!(called(&worker), ["a"], "b holds the lock, and is paused");
    boss.run("SELECT xdb.pause_process_type('work')");
    db.run("SELECT xdb.resume_process('b')");
    turns_pass(&mut db, "fifth");
    assert_eq!(called(&worker), ["a"], "its type is paused");
    boss.run("SELECT xdb.resume_process_type('work')");
    ["b", "c"].iter().for_each(|id| ends(&mut db, id));
    assert_eq!(called(&worker), ["a", "b", "c"]);
    all_released(&app);
    app.done(&[]);
}

#[test]
fn starts_for_later_and_merged_starts_take_their_place_when_they_are_due() {
    let (app, worker) = application("lock_later", ClusterOptions::default().own_clock());
    let mut db = app.db();
    let later_with = |db: &mut Db, lock: &str, key: &str, seconds: i32| -> String {
        let options = json!({"locks": [lock], "correlationKey": key, "merge": {"startAt": "REPLACE"}});
        db.one(&format!("SELECT xdb.start_process(NULL, 'work', options => '{options}', start_at => now() + interval '{seconds} s')::text"))
    };
    let later = |db: &mut Db, key: &str, seconds: i32| later_with(db, "name", key, seconds);
    let late = later(&mut db, "late", 3600);
    start(&mut db, "a", json!(["name"]));
    wait_for_holders(&mut db, "name", &["a"]);
    assert_eq!(db.count("xdb.locks WHERE NOT granted AND place IS NULL"), 1, "not due yet");
    // A merge moves a request that waits out of the way.
    let moved = later(&mut db, "moved", 0);
    start(&mut db, "b", json!([share("name"), "other"]));
    turns_pass(&mut db, "one");
    assert_eq!(later_with(&mut db, "elsewhere", "moved", 7200), moved);
    assert_eq!(db.count("xdb.locks WHERE name = 'elsewhere'"), 0, "a merged start brings no locks of its own");
    ends(&mut db, "a");
    wait_for_holders(&mut db, "name", &["b"]);
    start(&mut db, "c", json!(["name"]));
    turns_pass(&mut db, "two");
    are_sound(&mut db);
    app.cluster().set_clock(3700.0);
    wait_until("it is due", 10, || db.count("xdb.locks WHERE place = 2") == 1);
    ends(&mut db, "b");
    wait_for_holders(&mut db, "name", &["c"]);
    ends(&mut db, "c");
    wait_for_holders(&mut db, "name", &[&late]);
    ends(&mut db, &late);
    app.cluster().set_clock(7300.0);
    ends(&mut db, &moved);
    assert_eq!(called(&worker), ["a", "b", "c", &late, &moved]);
    all_released(&app);
    app.done(&[]);
}

#[test]
fn a_first_step_that_is_moved_waits_for_the_locks_too() {
    let (app, worker) = application("lock_move", ClusterOptions::default());
    let mut db = app.db();
    start(&mut db, "a", json!(["name"]));
    wait_for_holders(&mut db, "name", &["a"]);
    start(&mut db, "b", json!(["name"]));
    turns_pass(&mut db, "other");
    db.run("SELECT xdb.move_state('b', 'Hold-1', '[{\"stateId\": \"Hold\"}, {\"stateId\": \"Hold\"}]')");
    turns_pass(&mut db, "another");
    assert_eq!(called(&worker), ["a"]);
    are_sound(&mut db);
    ends(&mut db, "a");
    worker.wait_for_count("both are called", 10, 2, |call| call.process_id() == "b" && call.api == Api::WaitUntil);
    ends(&mut db, "b");
    all_released(&app);
    app.done(&[]);
}

#[test]
fn locks_survive_crashes_kills_of_the_scheduler_and_a_restore() {
    for handler in HANDLERS {
        let (app, worker) = application_of(handler, "lock_crash", ClusterOptions::default());
        let mut db = app.db();
        a_holds_and_b_and_c_wait(&mut db);
        app.kill_scheduler();
        let mut db = app.db();
        pull_if(handler, || app.db());
        turns_pass(&mut db, "another");
        assert_eq!(holders(&mut db, "name"), ["a"]);
        // The copy has the row of a's call, too.
        wait_until("a waits", 10, || db.count("xdb.waits WHERE process_id = 'a'") == 1);
        // A lock that the dead scheduler was about to grant.
        app.superuser().run("UPDATE xdb.process_lock SET judge_at = NULL");
        let dump = app.cluster().dump(app.database(), &["-Fc"]);
        app.cluster().restore("lock_restored", &dump);
        let mut copy = app.cluster().connect("lock_restored", "postgres");
        copy.run("SELECT xdb.stop_process('a'); UPDATE xdb.process_lock SET judge_at = NULL; SELECT xdb.adopt()");
        let mut of_copy = app.cluster().connect("lock_restored", "app");
        pull_if(handler, || app.cluster().connect("lock_restored", "app"));
        wait_for_holders(&mut of_copy, "name", &["b"]);
        ["b", "c"].iter().for_each(|id| ends(&mut of_copy, id));
        ["a", "b", "c"].iter().for_each(|id| ends(&mut db, id));
        if handler == Handler::Http {
            let mut all = called(&worker);
            all.sort();
            assert_eq!(all, ["a", "b", "b", "c", "c"]);
        } else {
            let calls = "SELECT process FROM calls ORDER BY n";
            assert_eq!(db.all::<String>(calls), ["a", "b", "c"]);
            assert_eq!(of_copy.all::<String>(calls), ["a", "b", "c"]);
        }
        all_released(&app);
        app.done(&[]);
    }
}

#[test]
fn check_process_finds_wrong_locks() {
    let (app, _worker) = application("lock_check", ClusterOptions::default());
    let mut db = app.db();
    start(&mut db, "a", json!(["name", share("system")]));
    wait_for_holders(&mut db, "name", &["a"]);
    app.pause();
    let mut superuser = app.superuser();
    for (change, problem) in [
        ("DELETE FROM xdb.process_lock WHERE name = 'name'", "process_lock {\"name\": \"name\"}: is missing"),
        ("UPDATE xdb.process_lock SET mode = 'SHARE'", "process_lock {\"name\": \"name\"}: mode is"),
        (
            "UPDATE xdb.process_lock SET status = 'WAITING', granted_at = NULL WHERE name = 'name'",
            "process_lock {\"name\": \"name\"}: the process has only some of its locks",
        ),
        (
            "UPDATE xdb.process_lock SET status = 'RELEASED'",
            "process_lock {\"name\": \"name\"}: its status does not fit that of the process",
        ),
        (
            "INSERT INTO xdb.process_lock SELECT execution_id, 'third', mode, status, due_at, granted_at, NULL, owner FROM xdb.process_lock WHERE name = 'name'",
            "process_lock {\"name\": \"third\"}: unexpected row",
        ),
        (
            "INSERT INTO xdb.process_lock SELECT gen_random_uuid(), name, mode, status, due_at, granted_at, NULL, owner FROM xdb.process_lock",
            "process_lock {\"name\": \"name\"}: another process holds the lock too",
        ),
        ("UPDATE xdb.process_execution SET locks = NULL", "process_execution: locks is null and should be"),
    ] {
        superuser.run(&format!("BEGIN; {change}"));
        let problems = superuser.all::<String>("SELECT problem FROM xdb.check_process('a') AS c (problem)");
        assert!(problems.iter().any(|found| found.contains(problem)), "{change}: {problems:?}");
        superuser.run("ROLLBACK");
    }
    db.run("SELECT xdb.stop_process('a')");
    assert_eq!(superuser.count("xdb.process_lock WHERE status = 'RELEASED'"), 2);
    assert_eq!(db.count("xdb.locks"), 0);
    app.resume();
    all_released(&app);
    app.done(&[]);
}

/// The rows of a closed process say that its locks are free.
#[test]
fn a_purge_leaves_released_locks_to_the_scheduler_which_grants_them_to_others() {
    let (app, _worker) = application("lock_purge", ClusterOptions::default());
    let mut db = app.db();
    a_holds_and_b_and_c_wait(&mut db);
    app.pause();
    db.run("SELECT xdb.stop_process('a')");
    app.superuser().run("SELECT xdb.purge('0 s')");
    assert_eq!(db.count("xdb.processes WHERE process_id = 'a'"), 0);
    app.resume();
    wait_for_holders(&mut db, "name", &["b"]);
    ["b", "c"].iter().for_each(|id| ends(&mut db, id));
    all_released(&app);
    app.done(&[]);
}

/// `b` was due before the clock was set back, or before a server with another clock took over.
#[test]
fn a_request_that_is_not_due_any_more_is_granted_when_it_is_due_again() {
    for restarts in [false, true] {
        let (app, _worker) = application("lock_clock_back", ClusterOptions::default());
        app.cluster().set("xdb.now", "1 hour");
        let mut db = app.db();
        start(&mut db, "a", json!(["name"]));
        wait_for_holders(&mut db, "name", &["a"]);
        start(&mut db, "b", json!(["name"]));
        turns_pass(&mut db, "other");
        app.cluster().set("xdb.now", "0");
        if restarts {
            app.kill_scheduler();
            db = app.db();
        }
        turns_pass(&mut db, "another");
        start(&mut db, "c", json!([share("name")]));
        db.run("SELECT xdb.stop_process('a')");
        wait_for_holders(&mut db, "name", &["c"]);
        ends(&mut db, "c");
        turns_pass(&mut db, "third");
        assert_eq!(holders(&mut db, "name"), [""; 0], "b is not due");
        app.cluster().set("xdb.now", "1 hour");
        wait_for_holders(&mut db, "name", &["b"]);
        ends(&mut db, "b");
        all_released(&app);
        app.done(&[]);
    }
}

#[test]
fn a_start_for_later_whose_first_state_has_a_static_wait_takes_its_place_when_it_is_due() {
    let (app, _worker) = application("lock_static", ClusterOptions::default());
    let wait =
        json!({"commandRequest": {"waitingType": "AnyOfCompletion", "localQueueCommands": [{"queueName": "go"}]}});
    app.register("static", &Definition::starting_with("Hold").waiting_step_with("Hold", wait));
    let mut db = app.db();
    db.run("SELECT xdb.start_process('later', 'static', options => '{\"locks\": [\"name\"]}', start_at => now() + interval '1 hour')");
    db.start("now", "static").options(json!({"locks": ["name"]})).go();
    wait_for_holders(&mut db, "name", &["now"]);
    assert_eq!(db.count("xdb.locks WHERE process_id = 'later' AND NOT granted AND place IS NULL"), 1);
    app.cluster().set("xdb.now", "1 hour");
    wait_until("it is due", 10, || db.count("xdb.locks WHERE process_id = 'later' AND place = 1") == 1);
    ends(&mut db, "now");
    wait_for_holders(&mut db, "name", &["later"]);
    ends(&mut db, "later");
    all_released(&app);
    app.done(&[]);
}

#[test]
fn a_bulk_start_and_a_process_without_states_take_locks_too() {
    let (app, _worker) = application("lock_bulk", ClusterOptions::default());
    app.register("manual", &Definition::without_start());
    let mut db = app.db();
    // A manual lock is a process without states.
    db.start("mine", "manual").timeout("1 hour").options(json!({"locks": ["name"]})).go();
    wait_for_holders(&mut db, "name", &["mine"]);
    let starts: Vec<_> = (0..50)
        .map(|n| json!({"process_id": format!("p{n}"), "process_type": "work", "options": {"locks": [share("name"), format!("k{}", n % 10)]}}))
        .collect();
    db.run(&format!("SELECT xdb.start_processes({})", literal(&json!(starts).to_string())));
    turns_pass(&mut db, "other");
    assert_eq!(holders(&mut db, "name"), ["mine"]);
    db.run("SELECT xdb.stop_process('mine')");
    wait_until("the first of each key", 10, || holders(&mut db, "name").len() == 10);
    are_sound(&mut db);
    for n in 0..50 {
        ends(&mut db, &format!("p{n}"));
    }
    all_released(&app);
    app.done(&[]);
}

#[test]
fn wrong_locks_are_refused() {
    let (app, _worker) = application("lock_refused", ClusterOptions::default());
    let mut db = app.db();
    let names: Vec<_> = (0..33).map(|n| n.to_string()).collect();
    let long = "x".repeat(1025);
    for (locks, what) in [
        (json!(names), "locks has 33 entries; at most 32 are allowed".to_owned()),
        (json!(["a", "b", "a"]), "locks has the lock \"a\" twice".to_owned()),
        (json!(["a", share("a")]), "locks has the lock \"a\" twice".to_owned()),
        (json!([""]), "locks[0] is empty".to_owned()),
        (json!([long]), "locks[0] is 1025 bytes long; at most 1024 are allowed".to_owned()),
        (json!([{"name": "a", "mode": "S"}]), "locks[0].mode \"S\" is unknown; known are EXCLUSIVE, SHARE".to_owned()),
        (
            json!([{"name": "a", "seconds": 5}]),
            "locks[0] has the unknown key \"seconds\"; known are name, mode".to_owned(),
        ),
        (json!([{"mode": "SHARE"}]), "locks[0].name is missing".to_owned()),
        (json!([7]), "locks[0] must be a string or an object".to_owned()),
        (json!("a"), "locks must be an array".to_owned()),
    ] {
        let error = db.start("p", "work").options(json!({"locks": locks})).refused(codes::INVALID_ARGUMENT);
        assert_eq!(error.message, format!("invalid value for options: {what}"));
        let definition = Definition::without_start().with("locks", locks);
        let register =
            format!("SELECT xdb.register_process_type('t', NULL, {})", literal(&definition.json().to_string()));
        let error = app.superuser().refused(codes::INVALID_DEFINITION, &register);
        assert_eq!(error.message, format!("invalid definition of a process type: {what}"));
    }
    // Those of the start and of the type together.
    let error = db.start("p", "sequential").options(json!({"locks": names[..32]})).refused(codes::OVER_QUOTA);
    assert_eq!(error.message, "the process has 33 locks, with those of its type; the limit is 32");
    assert_eq!(app.superuser().count("xdb.process_lock"), 0);
    app.done(&[]);
}

#[test]
fn requests_of_one_owner_do_not_delay_a_request_of_another() {
    let (app, _worker) = application("lock_owners", ClusterOptions::default());
    // A scheduler that starts judges all locks at once.
    turns_pass(&mut app.db(), "first");
    app.pause();
    app.db().run(
        "SELECT count(xdb.start_process('greedy-' || n, 'work', options => jsonb_build_object('locks', jsonb_build_array('l' || n))))
         FROM generate_series(1, 1200) n",
    );
    let mut modest = app.session("other");
    start(&mut modest, "modest", json!(["free"]));
    let mut superuser = app.superuser();
    superuser.run("SELECT xdb.resume_engine()");
    wait_for_holders(&mut modest, "free", &["modest"]);
    wait_until("all are granted", 60, || superuser.count("xdb.process_lock WHERE granted_at IS NOT NULL") == 1201);
    let before = superuser
        .count("xdb.process_lock WHERE granted_at <= (SELECT granted_at FROM xdb.process_lock WHERE name = 'free')");
    // One turn looks at 1,000 requests, half of them for each owner.
    assert!(before <= 501, "{before} requests were granted before it or with it");
    superuser.run("SELECT xdb.reassign_owned('other', 'app')");
    assert_eq!(superuser.all::<String>("SELECT problem FROM xdb.check_process('modest') AS c (problem)"), [""; 0]);
    app.superuser().run("SELECT xdb.stop_process(array_agg(process_id)) FROM xdb.processes");
    all_released(&app);
    app.done(&[]);
}
