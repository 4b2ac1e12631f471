//! Steps write the application's rows. If the table refuses a write, the worker gets the error.

use xdb_cluster_tests::prelude::*;

/// An application with a table that refuses many writes, and a row `r` in it. When released, the worker first writes
/// `write`. If that is refused, it completes the process with the error that it got.
struct Refusing {
    app: App,
    worker: Worker,
}

impl Refusing {
    fn new(name: &str, write: Value) -> Refusing {
        let app = App::new(name);
        app.db().run(
            "CREATE TABLE account (id text PRIMARY KEY, n int CONSTRAINT not_too_much CHECK (n < 10), email text UNIQUE);
             INSERT INTO account VALUES ('r', 1, 'r@example.org'), ('taken', 1, 'taken@example.org');",
        );
        let worker = app.worker(move |call: &Call| match (call.target(), call.refused_write()) {
            ("Write", Value::Null) => {
                let go_on = next("After", json!(null)).globals(write.clone());
                Reply::hang(go_on.locals(json!({"left": "behind"})).publish("q", json!(1)))
            }
            ("Write", refused) => force_complete(json!({"write_error": refused, "left": call.local("left")})).into(),
            _ => Reply::from(force_complete(json!("written"))),
        });
        // Nothing is loaded, so that it is the write and nothing else that the table refuses.
        let definition = Definition::starting_with("Write")
            .step_with("Write", json!({"loadGlobalAttributes": {"policy": "NONE"}}))
            .step("After")
            .maps("public.account", "id", &["n", "email"]);
        app.register("writer", &definition);
        Refusing { app, worker }
    }

    /// Runs the process, with `meanwhile` between its first call and the answer. Returns the result.
    fn result(&self, meanwhile: &str) -> Value {
        let mut db = self.app.db();
        db.start("p", "writer").key("r").go();
        self.worker.wait_for("the first call", 10, |_| true);
        db.run(meanwhile);
        self.worker.release();
        db.completes("p").result().clone()
    }

    /// Runs the process like [`Refusing::result`], if the write is refused. Returns the error that the worker got.
    fn write_error(&self, meanwhile: &str) -> Value {
        let result = self.result(meanwhile);
        let mut db = self.app.db();
        assert_eq!(result["left"], json!(null), "a refused answer left a local attribute behind");
        assert_eq!(views::messages(&mut db, "p"), 0, "a refused answer left a message behind");
        assert_eq!(self.worker.count(|call| call.target() == "After"), 0, "a refused answer went on");
        let keys: Vec<String> = self.worker.calls().iter().map(|call| call.idempotency_key().to_owned()).collect();
        assert_eq!(keys.len(), 2);
        assert_ne!(keys[0], keys[1], "the request has changed, so the key has to");
        result["write_error"].clone()
    }
}

#[test]
fn a_constraint_refuses() {
    let test = Refusing::new("table_check", json!({"n": 99}));
    let write_error = test.write_error("");
    assert_eq!(write_error["sqlState"], codes::CHECK_VIOLATION);
    assert_eq!(write_error["constraint"], "not_too_much");
    assert!(write_error["table"].as_str().is_some_and(|table| table.contains("account")), "{write_error}");
    assert!(write_error["message"].as_str().is_some_and(|message| message.contains("not_too_much")), "{write_error}");
    assert_eq!(test.app.db().one::<i32>("SELECT n FROM account WHERE id = 'r'"), 1);
    test.app.done(&[]);
}

#[test]
fn a_unique_index_refuses() {
    let test = Refusing::new("table_unique", json!({"email": "taken@example.org"}));
    assert_eq!(test.write_error("")["sqlState"], codes::UNIQUE_VIOLATION);
    test.app.done(&[]);
}

#[test]
fn a_type_refuses() {
    let test = Refusing::new("table_type", json!({"n": "many"}));
    let write_error = test.write_error("");
    assert_eq!(write_error["sqlState"], "22P02", "{write_error}");
    test.app.done(&[]);
}

#[test]
fn a_privilege_is_missing() {
    let test = Refusing::new("table_privilege", json!({"n": 2}));
    test.app.superuser().run("REVOKE UPDATE ON account FROM app");
    assert_eq!(test.write_error("")["sqlState"], codes::INSUFFICIENT_PRIVILEGE);
    test.app.done(&[]);
}

#[test]
fn the_table_was_dropped() {
    let test = Refusing::new("table_dropped", json!({"n": 2}));
    assert_eq!(test.write_error("DROP TABLE account")["sqlState"], codes::UNDEFINED_TABLE);
    test.app.done(&[]);
}

#[test]
fn a_renamed_table_is_followed() {
    let test = Refusing::new("table_renamed", json!({"n": 2}));
    assert_eq!(test.result("ALTER TABLE account RENAME TO accounts"), "written");
    assert_eq!(test.app.db().one::<i32>("SELECT n FROM accounts WHERE id = 'r'"), 2);
    test.app.done(&[]);
}

#[test]
fn a_deleted_row_is_not_created_again() {
    let test = Refusing::new("table_row_gone", json!({"n": 2}));
    assert_eq!(test.write_error("DELETE FROM account WHERE id = 'r'")["sqlState"], codes::NO_DATA);
    assert_eq!(test.app.db().count("account WHERE id = 'r'"), 0);
    test.app.done(&[]);
}

#[test]
fn an_unreadable_table_does_not_stop_the_processes_of_other_tables() {
    let app = App::new("table_unreadable");
    let mut db = app.db();
    db.run("CREATE TABLE doomed (id text PRIMARY KEY, n int); INSERT INTO doomed VALUES ('r', 1)");
    let worker = app.worker(|call: &Call| match (call.api, call.refused_write()) {
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]),
        (_, Value::Null) => force_complete(json!("read")),
        (_, refused) => force_complete(refused["sqlState"].clone()),
    });
    app.register("reader", &mailbox().maps("public.doomed", "id", &["n"]));
    app.register("other", &one_step());
    db.start("p", "reader").key("r").go();
    worker.wait_for("it is asked what it waits for", 10, |call| call.api == Api::WaitUntil);
    db.run("DROP TABLE doomed");
    db.publish("p", "inbox", json!(1));
    db.start("bystander", "other").go();
    db.completes("bystander");
    // The worker gets the error, or the failure is shown. Both say what happened.
    wait_until("the worker or a view shows it", 20, || {
        worker.count(|call| call.refused_write()["sqlState"] == codes::UNDEFINED_TABLE) > 0
            || views::fails_saying(&mut db, "p", &["42P01", "doomed"])
    });
    app.done(&[]);
}

#[test]
fn a_deferred_foreign_key_fails_its_own_step_and_no_other() {
    let app = App::new("table_deferred");
    let mut db = app.db();
    db.run(
        "CREATE TABLE parent (id text PRIMARY KEY);
         CREATE TABLE child (id text PRIMARY KEY,
             parent text REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
         INSERT INTO parent VALUES ('good');
         INSERT INTO child SELECT 'c' || n FROM generate_series(0, 19) n;",
    );
    // All twenty are answered at the same moment: good and bad writes meet in one batch.
    let worker = app.worker(|call: &Call| match call.refused_write() {
        Value::Null => Reply::hang(force_complete(json!("written")).globals(json!({"parent": call.input()}))),
        refused => force_complete(refused["sqlState"].clone()).into(),
    });
    app.register("adopt", &one_step().maps("public.child", "id", &["parent"]));
    for n in 0..20 {
        let parent = if n % 4 == 0 { "nobody" } else { "good" };
        db.start(&format!("p{n}"), "adopt").key(&format!("c{n}")).input(json!(parent)).go();
    }
    worker.wait_for_count("all calls", 10, 20, |_| true);
    worker.release();
    for n in 0..20 {
        let expected = if n % 4 == 0 { codes::FOREIGN_KEY_VIOLATION } else { "written" };
        assert_eq!(db.completes(&format!("p{n}")).result(), expected, "p{n}");
    }
    assert_eq!(db.count("child WHERE parent = 'good'"), 15);
    assert_eq!(worker.count(|_| true), 25, "a good step was called again");
    app.done(&[]);
}

#[test]
fn a_callers_own_deferred_foreign_key_stays_the_callers() {
    let app = App::new("table_callers_key");
    let mut db = app.db();
    db.run(
        "CREATE TABLE parent (id text PRIMARY KEY);
         CREATE TABLE child (id text PRIMARY KEY,
             parent text REFERENCES parent DEFERRABLE INITIALLY DEFERRED);",
    );
    let _worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => output(json!("moved")).globals(json!({"parent": call.input()})),
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        Api::Execute => force_complete(json!(null)),
    });
    app.register("child", &mailbox().maps("public.child", "id", &["parent"]).rpc("move", json!({})));

    db.run("BEGIN");
    db.start("p", "child").key("c").globals(json!({"parent": "late"})).go();
    db.run("INSERT INTO parent VALUES ('late')");
    db.run("COMMIT");

    db.run("BEGIN");
    assert_eq!(db.rpc("p", "move", json!("later")), "moved");
    db.run("INSERT INTO parent VALUES ('later')");
    db.run("COMMIT");
    assert_eq!(db.text("SELECT parent FROM child"), "later");

    db.run("BEGIN");
    db.start("orphan", "child").key("o").globals(json!({"parent": "never"})).go();
    db.refused(codes::FOREIGN_KEY_VIOLATION, "COMMIT");
    db.refused(codes::UNKNOWN_PROCESS, "SELECT xdb.describe_process('orphan')");
    app.done(&[]);
}
