//! Calls that load, lock and write rows of the application, under triggers, rules, policies and privileges on columns.
//! Tested for workers and functions that answer states, for RPCs and for pull workers.

use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::prelude::*;

/// The way in which an answer reaches a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Http,
    Function,
    Rpc,
    Claimed,
}

const WAYS: [Way; 4] = [Way::Http, Way::Function, Way::Rpc, Way::Claimed];
const LOCKS: [&str; 3] = ["NO_LOCKING", "SHARE_LOCK", "EXCLUSIVE_LOCK"];

/// The values that a call has loaded. Or the SQLSTATE and the message of the error.
type CallResult = Result<Value, (String, String)>;

/// An application whose processes write their input and return what they have loaded.
struct Rows {
    app: App,
    _worker: Worker,
    processes: usize,
}

impl Rows {
    fn new(name: &str) -> Rows {
        let app = App::new(name);
        let worker = app.worker(|call: &Call| {
            let (loaded, written) = (call.body["loadedGlobalAttributes"].clone(), call.input().clone());
            let answer = if call.api == Api::Rpc { output(loaded) } else { force_complete(loaded) };
            if written.is_null() { answer } else { answer.globals(written) }
        });
        app.superuser().run("SELECT xdb.register_worker('claims', NULL, role => 'app')");
        app.db().run(
            "CREATE FUNCTION answers(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_strip_nulls(jsonb_build_object(
                 'writeToGlobalAttributes', CASE WHEN jsonb_typeof(request -> 'stateInput') = 'object' THEN request -> 'stateInput' END))
             || jsonb_build_object('stateDecision', jsonb_build_object('threadCloseDecision', jsonb_build_object(
                 'closeType', 'FORCE_COMPLETE_PROCESS', 'closeInput', request -> 'loadedGlobalAttributes'))) $$",
        );
        Rows { app, _worker: worker, processes: 0 }
    }

    /// Registers process types for the rows of a table, for every way and every lock. The key is `id`.
    fn map(&self, table: &str, columns: &[&str]) {
        for (way, lock) in WAYS.iter().flat_map(|way| LOCKS.map(|lock| (*way, lock))) {
            let mut config = json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": lock}});
            let definition = match way {
                Way::Rpc => Definition::without_start().rpc("Write", config),
                _ => {
                    config["executeApiRetryPolicy"] = attempts(2);
                    if way == Way::Function {
                        config["executeFunction"] = json!("public.answers");
                    }
                    Definition::starting_with("Write").step_with("Write", config)
                }
            };
            let worker = if way == Way::Claimed { "claims" } else { "stub" };
            let process_type = format!("{way:?} {lock} {table}");
            self.app.register_with(worker, &process_type, &definition.maps(&format!("public.{table}"), "id", columns));
        }
    }

    /// Makes a process load the row with this key under the lock, and write these values.
    fn go(&mut self, way: Way, lock: &str, table: &str, key: &str, written: Value) -> CallResult {
        self.processes += 1;
        let (mut db, process) = (self.app.db(), format!("p{}", self.processes));
        let process_type = format!("{way:?} {lock} {table}");
        if way == Way::Rpc {
            db.start(&process, &process_type).key(key).go();
            let call = format!("SELECT xdb.invoke_rpc('{process}', 'Write', {})::text", jsonb(&written));
            let result = db.try_one::<String>(&call).map_err(|error| (error.code.clone(), error.message.clone()));
            return result.map(|text| serde_json::from_str(&text).expect("it is JSON"));
        }
        db.start(&process, &process_type).key(key).input(written).go();
        while way == Way::Claimed && db.status(&process) == "RUNNING" {
            claims_and_completes(&mut db, &process)?;
        }
        let outcome = db.outcome(&process);
        match outcome.status() {
            "COMPLETED" => Ok(outcome.result().clone()),
            _ => {
                let failure = views::failures(&mut db, &process).pop().expect("there is one");
                assert_eq!(failure["attempt"], 2, "{failure}");
                let (code, detail) = (failure["sql_state"].as_str(), failure["detail"].as_str().expect("a text"));
                let code = code.unwrap_or_default().to_owned();
                let message = detail.split_once(&format!(" ({code})")).map_or(detail, |(message, _)| message);
                Err((code.clone(), message.to_owned()))
            }
        }
    }

    /// Checks that every way gives this result, under each of these locks.
    fn all_give(
        &mut self,
        what: &str,
        locks: &[&str],
        (table, key): (&str, &str),
        written: &Value,
        expected: &CallResult,
    ) {
        for (way, lock) in WAYS.iter().flat_map(|way| locks.iter().map(|lock| (*way, *lock))) {
            assert_eq!(self.go(way, lock, table, key, written.clone()), *expected, "{what}: {way:?} {lock}");
        }
    }
}

/// Claims a call, if there is one, and completes it with the answer of the HTTP worker.
fn claims_and_completes(db: &mut Db, process: &str) -> Result<(), (String, String)> {
    let claim = "SELECT jsonb_build_object('token', token, 'request', request)::text FROM xdb.claim_calls('claims', wait => '1 s')";
    let Some(claimed) = db.try_maybe::<String>(claim).expect("it may claim") else { return Ok(()) };
    let claimed: Value = serde_json::from_str(&claimed).expect("it is JSON");
    let (token, request) = (claimed["token"].as_str().expect("a text"), &claimed["request"]);
    assert_eq!(request["context"]["processId"], process);
    let answer = force_complete(request["loadedGlobalAttributes"].clone());
    let written = request["stateInput"].clone();
    let answer = if written.is_null() { answer } else { answer.globals(written) };
    let completed = db.try_run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&answer.json())));
    completed.map_err(|error| {
        db.run(&format!("SELECT xdb.fail_call('{token}', '{{\"final\": true}}')"));
        (error.code.clone(), error.message.clone())
    })
}

/// A trigger function with this body.
fn trigger(name: &str, body: &str) -> String {
    format!(
        "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;
         CREATE TRIGGER {name} BEFORE UPDATE ON {name} FOR EACH ROW EXECUTE FUNCTION {name}();"
    )
}

fn refused(code: &str, message: &str) -> CallResult {
    Err((code.to_owned(), message.to_owned()))
}

#[test]
fn a_change_that_changes_nothing_and_is_left_out_is_written() {
    let mut rows = Rows::new("rows_same");
    let same = "IF NEW.status = OLD.status AND NEW.amount = OLD.amount THEN RETURN NULL; END IF; RETURN NEW;";
    let tables = [
        (
            "suppressed",
            "CREATE TRIGGER z BEFORE UPDATE ON suppressed FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
                .to_owned(),
        ),
        ("compared", trigger("compared", same)),
        (
            "ruled",
            "CREATE RULE same AS ON UPDATE TO ruled WHERE NEW.status = OLD.status DO INSTEAD NOTHING".to_owned(),
        ),
        // It does by itself what it keeps from being done.
        (
            "by_itself",
            trigger(
                "by_itself",
                "IF pg_trigger_depth() > 1 THEN RETURN NEW; END IF;
                 UPDATE public.by_itself t SET status = NEW.status, amount = NEW.amount, more = NEW.more WHERE t.id = NEW.id; RETURN NULL;",
            ),
        ),
    ];
    let values = json!({"status": "same", "amount": 1.5, "more": {"a": [1, null]}, "note": null});
    for (table, sql) in tables {
        rows.app.db().run(&format!(
            "CREATE TABLE {table} (id text PRIMARY KEY, status text, amount numeric, more json, note xml);
             INSERT INTO {table} VALUES ('r', 'same', 1.50, '{{\"a\": [1,null]}}'); {sql}"
        ));
        rows.map(table, &["status", "amount", "more", "note"]);
        rows.all_give(table, &["NO_LOCKING", "EXCLUSIVE_LOCK"], (table, "r"), &values, &Ok(values.clone()));
        let missing = refused("02000", &format!("table public.{table} has no row with id = missing"));
        rows.all_give(table, &["NO_LOCKING"], (table, "missing"), &json!({"status": "new"}), &missing);
    }
    rows.app.done(&[]);
}

#[test]
fn a_change_that_a_trigger_or_a_rule_vetoes_is_refused_with_a_message_about_it() {
    let mut rows = Rows::new("rows_vetoed");
    let log = "CREATE TABLE log (what text)";
    rows.app.db().run(log);
    let tables = [
        ("vetoed", trigger("vetoed", "RETURN NULL;")),
        ("final", trigger("final", "IF OLD.status = 'old' THEN RETURN NULL; END IF; RETURN NEW;")),
        ("read_only", "CREATE RULE none AS ON UPDATE TO read_only DO INSTEAD NOTHING".to_owned()),
        (
            "logged",
            "CREATE RULE logged AS ON UPDATE TO logged DO INSTEAD INSERT INTO public.log VALUES (NEW.status)"
                .to_owned(),
        ),
    ];
    for (table, sql) in tables {
        rows.app.db().run(&format!(
            "CREATE TABLE {table} (id text PRIMARY KEY, status text); INSERT INTO {table} VALUES ('r', 'old'); {sql}"
        ));
        rows.map(table, &["status"]);
        let kept = format!("a trigger or a rule of table public.{table} kept the row with id = r as it was");
        let locks = ["NO_LOCKING", "SHARE_LOCK"];
        rows.all_give(table, &locks, (table, "r"), &json!({"status": "new"}), &refused("09000", &kept));
    }
    assert_eq!(rows.app.db().count("log"), 0, "what was refused is undone");

    // One that takes the row away has taken it away.
    rows.app.db().run(&format!(
        "CREATE TABLE moved (id text PRIMARY KEY, status text); {}",
        trigger("moved", "DELETE FROM public.moved t WHERE t.id = NEW.id; RETURN NULL;")
    ));
    rows.map("moved", &["status"]);
    for way in WAYS {
        rows.app.db().run("INSERT INTO moved VALUES ('r', 'old') ON CONFLICT DO NOTHING");
        let result = rows.go(way, "NO_LOCKING", "moved", "r", json!({"status": "new"}));
        assert_eq!(result, refused("02000", "table public.moved has no row with id = r"), "{way:?}");
    }
    rows.app.done(&[]);
}

#[test]
fn privileges_on_columns_are_enough_for_every_lock() {
    let mut rows = Rows::new("rows_columns");
    rows.app.superuser().run(
        "CREATE TABLE people (id text PRIMARY KEY, status text, salary numeric);
         CREATE TABLE parts (id text PRIMARY KEY, status text, salary numeric) PARTITION BY LIST (id);
         CREATE TABLE parts_r PARTITION OF parts FOR VALUES IN ('r');
         INSERT INTO people VALUES ('r', 'old', 9); INSERT INTO parts TABLE people;
         GRANT SELECT (id, status), INSERT (id, status), UPDATE (status) ON people, parts TO app",
    );
    for table in ["people", "parts"] {
        rows.map(table, &["status"]);
        let result = Ok(json!({"status": "old"}));
        rows.all_give(table, &LOCKS, (table, "r"), &json!({"status": "old"}), &result);
        rows.all_give(table, &LOCKS, (table, "r"), &Value::Null, &result);
        rows.all_give(table, &LOCKS, (table, "missing"), &Value::Null, &Ok(json!({"status": null})));
    }
    let mut superuser = rows.app.superuser();
    // A change of loaded columns is found without the row's version.
    superuser.run("UPDATE people SET status = 'new'");
    rows.all_give("changed", &LOCKS, ("people", "r"), &Value::Null, &Ok(json!({"status": "new"})));
    // Without UPDATE nothing can be locked, and that is no null either.
    superuser.run("REVOKE UPDATE (status) ON people FROM app");
    let denied = refused("42501", "permission denied for table people");
    rows.all_give("revoked", &LOCKS[1..], ("people", "r"), &Value::Null, &denied);
    rows.all_give("read", &LOCKS[..1], ("people", "r"), &Value::Null, &Ok(json!({"status": "new"})));
    rows.app.done(&[]);
}

#[test]
fn a_policy_for_update_hides_no_value_and_its_refusal_counts_as_an_attempt() {
    let mut rows = Rows::new("rows_policy");
    let table = |name: &str, policy: &str| {
        format!(
            "CREATE TABLE {name} (id text PRIMARY KEY, title text, editor text);
             INSERT INTO {name} VALUES ('hers', 'seen', 'ada'), ('own', 'seen', 'app');
             GRANT SELECT, INSERT, UPDATE ON {name} TO app; ALTER TABLE {name} ENABLE ROW LEVEL SECURITY;
             CREATE POLICY r ON {name} FOR SELECT USING (id <> 'secret'); {policy}"
        )
    };
    let tables = [
        ("docs", "CREATE POLICY w ON docs FOR UPDATE USING (editor = current_user)"),
        (
            "restricted",
            "CREATE POLICY w ON restricted FOR UPDATE USING (true);
            CREATE POLICY x ON restricted AS RESTRICTIVE FOR UPDATE USING (editor = current_user)",
        ),
    ];
    for (name, policy) in tables {
        rows.app.superuser().run(&table(name, policy));
        rows.map(name, &["title"]);
        let hidden = refused(
            "42501",
            &format!("a policy for UPDATE of table public.{name} hides the row with id = hers from locks and writes"),
        );
        let (seen, written) = (Ok(json!({"title": "seen"})), json!({"title": "seen"}));
        rows.all_give("read", &LOCKS[..1], (name, "hers"), &Value::Null, &seen);
        rows.all_give("locked", &LOCKS[1..], (name, "hers"), &Value::Null, &hidden);
        rows.all_give("written", &LOCKS[..1], (name, "hers"), &written, &hidden);
        rows.all_give("own", &LOCKS, (name, "own"), &written, &seen);
        // Not there, as far as its owner can see.
        rows.all_give("missing", &LOCKS, (name, "missing"), &Value::Null, &Ok(json!({"title": null})));
        rows.app.superuser().run(&format!("INSERT INTO {name} VALUES ('secret', 'secret', 'app')"));
        rows.all_give("secret", &LOCKS, (name, "secret"), &Value::Null, &Ok(json!({"title": null})));
    }

    // No policy for UPDATE at all.
    rows.app.superuser().run(&table("none", ""));
    rows.map("none", &["title"]);
    let hidden =
        refused("42501", "a policy for UPDATE of table public.none hides the row with id = own from locks and writes");
    rows.all_give("none", &LOCKS[1..], ("none", "own"), &Value::Null, &hidden);
    rows.app.done(&[]);
}

/// A state that locks what it has loaded, and hangs until it is released.
fn hanging(name: &str, setup: &str, columns: &[&str], lock: &str) -> (App, Worker) {
    let app = App::new(name);
    app.db().run(setup);
    let worker = app.worker(|call: &Call| {
        let n = call.global("n").as_i64().unwrap_or_default() + 1;
        Reply::hang(force_complete(json!(n)).globals(json!({"n": n})))
    });
    let config = json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": lock}, "executeApiTimeoutSeconds": 60});
    app.register(
        "count",
        &Definition::starting_with("Add").step_with("Add", config).maps("public.parent", "id", columns),
    );
    (app, worker)
}

#[test]
fn a_column_that_other_sessions_write_all_the_time_repeats_no_call() {
    let setup = "CREATE TABLE parent (id text PRIMARY KEY, n int, m text, beat int DEFAULT 0);
        CREATE FUNCTION beats() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.beat := OLD.beat + 1; RETURN NEW; END $$;
        CREATE TRIGGER beats BEFORE UPDATE ON parent FOR EACH ROW EXECUTE FUNCTION beats();
        INSERT INTO parent VALUES ('r', 0, 'm')";
    for lock in &LOCKS[1..] {
        let (app, worker) = hanging(&format!("rows_beat_{}", lock.to_lowercase()), setup, &["n", "m"], lock);
        let mut db = app.db();
        db.start("p", "count").key("r").go();
        worker.wait_for("the call", 20, |_| true);
        // A heartbeat, an update that writes the present values, and one that changes a value and changes it back.
        db.run("UPDATE parent SET beat = 7");
        db.run("UPDATE parent SET n = n, m = m");
        db.run("UPDATE parent SET n = 5");
        db.run("UPDATE parent SET n = 0");
        db.run("DELETE FROM parent");
        db.run("INSERT INTO parent VALUES ('r', 0, 'm')");
        worker.release();
        assert_eq!(db.completes("p").result(), 1);
        assert_eq!((worker.count(|_| true), db.one::<i32>("SELECT n FROM parent")), (1, 1));
        // What is loaded counts, also what the call does not write.
        db.start("q", "count").key("r").go();
        worker.wait_for_count("the call", 20, 2, |_| true);
        db.run("UPDATE parent SET m = 'other'");
        worker.release();
        worker.wait_for_count("it is repeated", 20, 3, |_| true);
        worker.release();
        assert_eq!(db.completes("q").result(), 2);
        assert_eq!(db.count("xdb.history WHERE event_type = 'CallRepeated'"), 1);
        app.done(&[]);
    }
}

#[test]
fn claimed_calls_compare_values_too() {
    let rows = Rows::new("rows_claimed");
    let mut db = rows.app.db();
    db.run("CREATE TABLE items (id text PRIMARY KEY, status text, beat int); INSERT INTO items VALUES ('r', 'old', 0)");
    rows.map("items", &["status"]);
    db.start("p", "Claimed EXCLUSIVE_LOCK items").key("r").go();
    let token = db.text("SELECT token FROM xdb.claim_calls('claims', wait => '20 s')");
    let complete = format!("SELECT xdb.complete_call('{token}', {})", jsonb(&force_complete(json!(1)).json()));
    db.run("UPDATE items SET status = 'new'");
    db.refused("40001", &complete);
    db.run("UPDATE items SET status = 'old', beat = 1");
    db.run(&complete);
    assert_eq!(db.completes("p").result(), 1);
    rows.app.done(&[]);
}

const FAMILY: &str =
    "CREATE TABLE parent (id text PRIMARY KEY, n int, code text UNIQUE); INSERT INTO parent VALUES ('r', 0, 'c');
    CREATE TABLE child (of_parent text REFERENCES parent, of_code text REFERENCES parent (code))";

#[test]
fn an_exclusive_lock_waits_for_no_transaction_that_refers_to_the_row() {
    let (app, worker) = hanging("rows_family", FAMILY, &["n"], "EXCLUSIVE_LOCK");
    let mut db = app.db();
    let mut child = app.db();
    db.start("p", "count").key("r").go();
    worker.wait_for("the call", 20, |_| true);
    child.run("BEGIN; INSERT INTO child VALUES ('r', 'c')");
    worker.release();
    assert_eq!(db.completes("p").result(), 1);
    child.run("COMMIT");

    // Two sessions refer to the row, and then call an RPC that excludes other RPCs. They queue up, and make no
    // deadlock.
    app.db()
        .run("CREATE FUNCTION one(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '{\"output\": 1}'::jsonb $$");
    let exclusive = json!({"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"});
    for process in ["a", "b"] {
        let rpc = json!({"function": "public.one", "loadGlobalAttributes": exclusive});
        let definition = Definition::without_start().rpc("one", rpc).maps("public.parent", "id", &["n"]);
        app.register("called", &definition);
        db.start(process, "called").key("r").go();
    }
    let mut sessions = [app.db(), app.db()];
    for session in &mut sessions {
        session.run("BEGIN; INSERT INTO child VALUES ('r')");
    }
    let [first, second] = &mut sessions;
    first.run("SELECT xdb.invoke_rpc('a', 'one')");
    let waiting: i32 = second.one("SELECT pg_backend_pid()");
    std::thread::scope(|scope| {
        let called = scope.spawn(move || {
            second.run("SELECT xdb.invoke_rpc('b', 'one')");
            second.run("COMMIT");
        });
        let blocked = format!("SELECT cardinality(pg_blocking_pids({waiting})) > 0");
        wait_until("the second one waits for the first", 20, || db.one::<bool>(&blocked));
        first.run("COMMIT");
        called.join().expect("no deadlock");
    });
    assert_eq!(db.count("child"), 3);
    app.done(&[]);
}

#[test]
fn a_row_whose_key_can_not_be_written_is_shown() {
    let app = App::new("rows_key_share");
    app.db().run(FAMILY);
    let _worker = app.worker(|call: &Call| force_complete(json!(1)).globals(call.input().clone()));
    app.register("write", &one_step().maps("public.parent", "id", &["n", "code"]));
    let (mut db, mut child) = (app.db(), app.db());
    child.run("BEGIN; INSERT INTO child VALUES ('r', 'c')");
    db.start("n", "write").key("r").input(json!({"n": 1})).go();
    db.completes("n");
    // `code` is a key that other tables may refer to.
    db.start("code", "write").key("r").input(json!({"code": "d"})).go();
    wait_until("the row is shown", 20, || {
        let held = db.json("SELECT xdb.describe_process('code') -> 'heldUpBy' -> 0");
        (&held["lock"], &held["table"]) == (&json!("row"), &json!("public.parent"))
    });
    child.run("ROLLBACK");
    db.completes("code");
    assert_eq!(db.text("SELECT code FROM parent"), "d");
    app.done(&[]);
}
