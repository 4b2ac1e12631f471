//! The process of the example `examples/signup`, from the form to the welcome.

use xdb_cluster_tests::prelude::*;

/// Inserts the row and starts the process in one transaction, as the application does.
fn sign_up(db: &mut Db, user: &str) -> String {
    db.run("BEGIN");
    db.run(&format!("INSERT INTO users (user_id) VALUES ('{user}')"));
    let execution = db
        .start(&format!("signup-{user}"), "signup")
        .key(user)
        .globals(json!({"form": {"email": format!("{user}@example.org")}}))
        .go();
    db.run("COMMIT");
    execution
}

fn reminders(db: &mut Db, process_id: &str) -> u64 {
    db.json(&format!("SELECT xdb.get_local_attributes('{process_id}')"))["reminders"].as_u64().unwrap_or_default()
}

#[test]
fn a_user_signs_up_is_reminded_and_verifies() {
    let app = SignupApp::new("signup_story");
    let mut db = app.db();
    sign_up(&mut db, "ann");

    let submit = app.worker.wait_for("the first step", 5, |call| call.executes("Submit"));
    assert_eq!(submit.global("form"), &json!({"email": "ann@example.org"}));
    assert_eq!(submit.state_execution_id(), "Submit-1");
    assert_eq!(submit.attempt(), 1);

    wait_until("two reminders are sent", 10, || reminders(&mut db, "signup-ann") >= 2);
    assert_eq!(db.text("SELECT status FROM users WHERE user_id = 'ann'"), "waiting");
    assert_eq!(db.status("signup-ann"), "RUNNING");

    assert_eq!(db.rpc("signup-ann", "verify", json!("email")), "done");
    let outcome = db.completes("signup-ann");
    assert!(outcome.result()["reminders"].as_u64() >= Some(2), "{:?}", outcome.results());
    assert_eq!(outcome.results().len(), 1);
    assert_eq!(db.text("SELECT status || ' by ' || source FROM users WHERE user_id = 'ann'"), "verified by email");

    // A closed process may still be asked, and its history adds up to what the tables hold.
    assert_eq!(db.rpc("signup-ann", "verify", json!("again")), "already verified");
    assert_eq!(db.text("SELECT source FROM users WHERE user_id = 'ann'"), "email");
    views::assert_history_is_whole(&mut db, "signup-ann");
    app.done(&[]);
}

#[test]
fn a_reminder_is_never_early() {
    let app = SignupApp::new("signup_timer");
    let mut db = app.db();
    sign_up(&mut db, "ann");
    let asked = app.worker.wait_for("what Verify waits for", 5, |call| call.api == Api::WaitUntil);
    let fired = app.worker.wait_for("the reminder", 10, |call| call.executes("Verify"));
    assert!(fired.fired("remind"));
    assert!(fired.messages("verified").is_empty());
    assert!(fired.at - asked.at >= Duration::from_secs_f64(xdb_cluster_tests::signup::REMINDER_SECONDS));
    app.done(&[]);
}

#[test]
fn every_view_shows_the_process_only_to_its_owner() {
    let app = SignupApp::new("signup_views");
    let mut db = app.db();
    sign_up(&mut db, "ann");
    wait_until("Verify waits", 10, || !views::waits(&mut db, "signup-ann").is_empty());
    db.run("SELECT xdb.publish('signup-ann', 'verify', message_id => 'm1')");
    db.completes("signup-ann");

    let mut other = app.session("other");
    let mut boss = app.session("boss");
    for view in ["processes", "state_executions", "history"] {
        let rows = format!("xdb.{view} WHERE process_id = 'signup-ann'");
        assert!(db.count(&rows) > 0, "the owner sees nothing in xdb.{view}");
        assert!(boss.count(&rows) > 0, "the administrator sees nothing in xdb.{view}");
        assert_eq!(other.count(&rows), 0, "another role sees xdb.{view}");
    }
    for view in ["waits", "timers", "queue_messages", "failures"] {
        assert_eq!(other.count(&format!("xdb.{view}")), 0, "another role sees xdb.{view}");
    }
    app.done(&[]);
}

#[test]
fn many_users_sign_up_at_once() {
    let app = SignupApp::new("signup_many");
    let users: Vec<String> = (0..40).map(|n| format!("user{n}")).collect();
    at_once(8, |session| {
        let mut db = app.db();
        for user in users.iter().skip(session).step_by(8) {
            sign_up(&mut db, user);
        }
    });
    let mut db = app.db();
    wait_until("all of them wait for verification", 20, || db.count("users WHERE status = 'waiting'") == 40);
    at_once(8, |session| {
        let mut db = app.db();
        for user in users.iter().skip(session).step_by(8) {
            assert_eq!(db.rpc(&format!("signup-{user}"), "verify", json!("link")), "done");
        }
    });
    for user in &users {
        db.completes(&format!("signup-{user}"));
    }
    assert_eq!(db.count("users WHERE status = 'verified' AND source = 'link'"), 40);
    app.done(&[]);
}
