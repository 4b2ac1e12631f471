//! `xdb.check_process` for the things that processes share: global queues, and locks on attributes.

use xdb_cluster_tests::prelude::*;
use xdb_cluster_tests::tamper::tamper;

#[test]
fn messages_of_global_queues_that_a_state_has_are_checked() {
    let app = App::new("sound_global");
    let _worker = app.worker(|_| {
        let key = json!({"globalQueueCommands": {"commandId": "k", "queueName": "none", "key": "k", "count": 3}});
        all_of(&[timer("t", 3600.0), global_queue("g", "jobs", 2), key])
    });
    app.register("hold", &mailbox());
    let mut db = app.db();
    for history in ["full", "none"] {
        db.run(r#"SELECT xdb.publish_global('jobs', '[1]', key => 'k'), xdb.publish_global('jobs', '[2]')"#);
        db.start(history, "hold").options(json!({"history": history})).go();
        let taken = format!(
            "xdb.global_message g JOIN xdb.process_execution p ON p.execution_id = g.taken_by WHERE process_id = '{history}'"
        );
        wait_until("it has both", 10, || app.superuser().count(&taken) == 2);
        let first = "WHERE taken_by = '$ID' AND key = 'k'";
        let change = |what: &str| format!("UPDATE xdb.global_message SET {what} {first}");
        let free = "taken_by = NULL, taken_seq = NULL, taken_command = NULL, taken_at = NULL";
        let changes = [
            (change("payload = '[3]'"), "payload is [3] and should be [1]"),
            (change("queue_name = 'other'"), "queue_name is \"other\" and should be \"jobs\""),
            (change("key = NULL"), "key is null and should be \"k\""),
            (change("message_id = 'x'"), "message_id is \"x\" and should be null"),
            (change("taken_seq = 7"), "taken_seq is 7 and should be 1"),
            (change("taken_command = 2"), "taken_command is 2 and should be 1"),
            (change(free), "}: is missing"),
            (format!("DELETE FROM xdb.global_message {first}"), "}: is missing"),
            (
                "INSERT INTO xdb.global_message (queue_name, bytes, owner, owner_name, published_at, fresh, taken_by, taken_seq, \
                 taken_command, taken_at) VALUES ('jobs', 0, 10, 'x', now(), false, '$ID', 1, 1, now())"
                    .into(),
                "}: unexpected row",
            ),
            (
                "DELETE FROM xdb.global_waiter WHERE $OURS".into(),
                "global_waiter {\"seq\": 1, \"command\": 2}: is missing",
            ),
            ("UPDATE xdb.global_waiter SET command = 1 WHERE $OURS".into(), "\"command\": 1}: unexpected row"),
            ("UPDATE xdb.global_waiter SET queue_name = 'jobs' WHERE $OURS".into(), "should be \"none\""),
            ("UPDATE xdb.global_waiter SET key = NULL WHERE $OURS".into(), "key is null and should be \"k\""),
            ("UPDATE xdb.global_waiter SET at_least = 1 WHERE $OURS".into(), "at_least is 1 and should be 3"),
            ("UPDATE xdb.global_waiter SET at_least = 0 WHERE $OURS".into(), "at_least is 0 and should be 3"),
            (change("fresh = true"), "it is taken, and fresh"),
        ];
        let changes: Vec<_> = changes.iter().map(|(change, expected)| (change.as_str(), *expected)).collect();
        tamper(&app, history, &changes);
        let id: String =
            db.one(&format!("SELECT execution_id::text FROM xdb.processes WHERE process_id = '{history}'"));
        db.run(&format!("SELECT xdb.stop_process('{history}')"));
        app.superuser().run("DELETE FROM xdb.global_message");
        let left = format!(
            "INSERT INTO xdb.global_waiter (execution_id, seq, command, queue_name, at_least) VALUES ('{id}', 1, 2, 'none', 3)"
        );
        tamper(&app, history, &[(left.as_str(), "global_waiter {\"seq\": 1, \"command\": 2}: unexpected row")]);
    }
    app.done(&[]);
}
