//! The cost of a message of a global queue does not grow with unrelated messages and waiters. Tested with counts of
//! read rows.

use xdb_cluster_tests::prelude::*;

/// Takes messages of a queue. The input says which queue and how many: `{"queue", "count"}`.
fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => {
            let count = call.input()["count"].as_u64().unwrap_or(1) as u32;
            any_of(&[global_queue("m", call.input()["queue"].as_str().expect("a queue"), count)])
        }
        _ => force_complete(json!(call.messages("m").len())),
    });
    app.register("take", &mailbox());
    (app, worker)
}

/// Waiters of a queue whose processes do not exist. The engine offers them nothing while there are fewer messages than
/// they need.
fn make_waiters(superuser: &mut Db, queue: &str, count: u32, at_least: u32) {
    superuser.run(&format!(
        "INSERT INTO xdb.global_waiter (execution_id, seq, command, queue_name, at_least)
         SELECT gen_random_uuid(), 1, 0, '{queue}', {at_least} FROM generate_series(1, {count});
         ANALYZE xdb.global_waiter"
    ));
}

/// Starts a process that waits for a message of this queue, and publishes the message.
fn one_takes(db: &mut Db, id: &str, queue: &str, key: &str) {
    db.start(id, "take").input(json!({"queue": queue})).go();
    wait_until(&format!("{id} waits"), 10, || !views::waits(db, id).is_empty());
    db.run(&format!("SELECT xdb.publish_global('{queue}', '1', key => {key})"));
    assert_eq!(db.completes(id).result(), &json!(1));
}

#[test]
fn other_queues_with_many_messages_and_waiters_are_not_scanned() {
    const MANY: i64 = 50_000;
    let (app, _worker) = application("growth_others");
    let (mut db, mut superuser) = (app.db(), app.superuser());
    superuser.run(&format!(
        "INSERT INTO xdb.global_message (queue_name, key, payload, bytes, owner, owner_name, published_at, fresh)
         SELECT 'many', 'k', '1', 1, 10, 'postgres', now(), false FROM generate_series(1, {MANY});
         ANALYZE xdb.global_message"
    ));
    make_waiters(&mut superuser, "crowd", MANY as u32, 2);
    // The scheduler reports what it has read with what it has deleted, or before.
    let used_up = "SELECT n_tup_del FROM pg_stat_user_tables WHERE relid = 'xdb.global_message'::regclass";
    let read = "SELECT sum(COALESCE(seq_tup_read, 0) + COALESCE(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables
                WHERE relid IN ('xdb.global_message'::regclass, 'xdb.global_waiter'::regclass)";
    let is_used_up = |superuser: &mut Db, count: i64| {
        wait_until("it is reported", 20, || {
            // Whatever turn: figures that wait for the next one are reported by it.
            app.db().run("SELECT xdb.publish_global('unread', '1', ttl => '1 hour')");
            superuser.one::<i64>(used_up) >= count
        });
        superuser.one::<i64>(read)
    };
    one_takes(&mut db, "first", "few", "NULL");
    let before = is_used_up(&mut superuser, 1);
    one_takes(&mut db, "second", "few", "NULL");
    one_takes(&mut db, "third", "few", "'other'");
    // Too little for every one of the crowd.
    db.run("SELECT xdb.publish_global('crowd', '1')");
    wait_until("it was offered", 10, || superuser.count("xdb.global_message WHERE fresh") == 0);
    let after = is_used_up(&mut superuser, 3);
    assert!(after - before < MANY / 2, "{} rows were read for three messages", after - before);
    app.done(&[]);
}

#[test]
fn many_waiters_for_too_few_messages_block_no_other_waiter() {
    let (app, _worker) = application("growth_crowd");
    let (mut db, mut superuser) = (app.db(), app.superuser());
    make_waiters(&mut superuser, "crowd", 5000, 5000);
    db.run("SELECT count(xdb.publish_global('crowd', '1')) FROM generate_series(1, 2000)");
    one_takes(&mut db, "p", "few", "NULL");
    // A process that needs only the present messages begins to wait after the crowd, and is served before it.
    db.start("q", "take").input(json!({"queue": "crowd", "count": 1500})).go();
    assert_eq!(db.completes("q").result(), &json!(1500));
    superuser.run("DELETE FROM xdb.global_waiter WHERE at_least = 5000");
    app.done(&[]);
}
