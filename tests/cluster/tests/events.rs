//! The events of the history, and when they are recorded.

use xdb_cluster_tests::prelude::*;

#[test]
fn a_message_is_an_event_when_the_process_receives_it() {
    let app = App::new("history_messages");
    let _worker = app.worker(|_| any_of(&[local_queue("m", "inbox", 2)]));
    app.register("mail", &mailbox());
    let mut db = app.db();
    db.start("p", "mail").go();
    wait_until("it waits", 10, || !views::waits(&mut db, "p").is_empty());
    let received = "xdb.history WHERE event_type = 'MessagesReceived'";
    app.superuser().run("SELECT xdb.pause_engine()");
    let mut superuser = app.superuser();
    wait_until("the engine stands still", 10, || superuser.one("SELECT state = 'paused' FROM xdb.status()"));
    db.publish("p", "inbox", json!(1));
    assert_eq!(db.count(received), 0);
    assert_eq!(db.text("SELECT received FROM xdb.queue_messages"), "f");
    superuser.run("SELECT xdb.resume_engine()");
    wait_until("it is taken in", 10, || db.count(received) == 1);
    assert_eq!(db.text("SELECT received FROM xdb.queue_messages"), "t");
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}

#[test]
fn how_much_is_kept_is_set_by_the_type_and_overridden_by_the_start() {
    let app = App::new("history_type");
    let _worker = app.worker(|_| force_complete(json!(null)));
    app.register("kept", &one_step());
    app.register("silent", &one_step().with("history", json!("none")));
    let mut db = app.db();
    for (id, process_type, history) in
        [("a", "kept", None), ("b", "silent", None), ("c", "kept", Some("none")), ("d", "silent", Some("full"))]
    {
        let start = db.start(id, process_type);
        match history {
            Some(history) => start.options(json!({"history": history})).go(),
            None => start.go(),
        };
        db.completes(id);
    }
    let kept: Vec<String> = db.all("SELECT DISTINCT process_id FROM xdb.history ORDER BY 1");
    assert_eq!(kept, ["a", "d"]);
    for id in ["a", "d"] {
        views::assert_history_is_whole(&mut db, id);
    }
    app.done(&[]);
}

#[test]
fn failed_attempts_are_events_and_after_ten_a_count() {
    let app = App::new("history_folded");
    let worker = app.worker(|call: &Call| match call.attempt() {
        ..15 => error(500, "Broken", &format!("attempt {}", call.attempt())),
        _ => force_complete(json!("the fifteenth")).into(),
    });
    let at_once = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 0}});
    app.register("one", &Definition::starting_with("Only").step_with("Only", at_once));
    let mut db = app.db();
    db.start("p", "one").go();
    assert_eq!(db.completes("p").result(), "the fifteenth");
    assert_eq!(worker.count(|_| true), 15);
    let attempts: Vec<i32> = db
        .all("SELECT (details->>'attempt')::int FROM xdb.history WHERE event_type = 'AttemptFailed' ORDER BY event_id");
    assert_eq!(attempts, (1..=10).collect::<Vec<_>>());
    let folded = db.json("SELECT details FROM xdb.history WHERE event_type = 'AttemptsFolded'");
    assert_eq!((&folded["count"], &folded["lastAttempt"]), (&json!(4), &json!(14)), "{folded}");
    assert!(folded.to_string().contains("attempt 14"), "{folded}");
    views::assert_history_is_whole(&mut db, "p");
    app.done(&[]);
}
