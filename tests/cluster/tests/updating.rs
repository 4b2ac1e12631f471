//! Databases with the schema of an older release: the library works with it, and brings it up to date.

use std::sync::atomic::{AtomicBool, Ordering};
use xdb_cluster_tests::catalog::schema;
use xdb_cluster_tests::half_way::HalfWay;
use xdb_cluster_tests::prelude::*;

/// Releases that can be brought up to date, from the oldest.
fn older(db: &mut Db) -> Vec<String> {
    let versions: Vec<String> = db.all(
        "SELECT v.version FROM pg_available_extension_versions v JOIN pg_available_extensions e USING (name)
         WHERE name = 'xdb' AND v.version <> e.default_version
           AND EXISTS (SELECT FROM pg_extension_update_paths('xdb')
                       WHERE source = v.version AND target = e.default_version AND path IS NOT NULL)
         ORDER BY string_to_array(v.version, '.')::int[]",
    );
    assert!(versions.iter().any(|version| version == "0.1.0"), "{versions:?}");
    versions
}

/// The releases, each with a number that is good in a name.
fn releases() -> Vec<(usize, String)> {
    older(&mut Cluster::shared().superuser()).into_iter().enumerate().collect()
}

fn version(app: &App) -> String {
    app.superuser().one("SELECT extversion FROM pg_extension WHERE extname = 'xdb'")
}

#[test]
fn processes_of_an_older_schema_run_through_its_update() {
    for (number, release) in releases() {
        let app = App::of_version(&format!("updated_{number}"), &release);
        let half_way = HalfWay::start(&app);
        let mut db = app.db();
        // The session goes on over the update, with all that it has in memory.
        half_way.start_more(&mut db, "before");
        app.superuser().run("ALTER EXTENSION xdb UPDATE");
        assert_ne!(version(&app), release);
        half_way.start_more(&mut db, "after");
        half_way.finish(&mut db, &["", "before", "after"]);
        // Who could administer before can do so after, and is given what is new.
        app.session("boss").run("SELECT xdb.pause(), xdb.resume()");
        app.superuser().run("SELECT xdb.grant_usage('boss', admin => true)");
        assert_eq!(app.session("boss").one::<String>("SELECT xdb.library_version()"), version(&app));
        let error = db.try_run("SELECT xdb.library_version()").expect_err("app was not given what is new");
        assert_eq!(error.code, "42501");
        app.done(&[]);
    }
}

#[test]
fn an_update_changes_nothing_for_global_queues_that_are_in_use() {
    let app = App::of_version("updated_queues", "0.2.0");
    let _worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[global_queue("m", "jobs", 1)]),
        _ => force_complete(json!(call.messages("m"))),
    });
    app.register("take", &mailbox());
    let mut superuser = app.superuser();
    // As that release has stored it.
    superuser.run("UPDATE xdb.process_type SET definition = definition - 'globalQueues', version = version + 1");
    let publish = |db: &mut Db, id: &str| {
        db.run(&format!("SELECT xdb.publish_global('jobs', '\"{id}\"', message_id => '{id}')"));
    };
    let (mut db, mut other) = (app.db(), app.session("other"));
    publish(&mut db, "used");
    db.start("t1", "take").go();
    assert_eq!(db.completes("t1").result(), &json!(["used"]));
    publish(&mut db, "there");
    publish(&mut other, "there");
    assert_eq!(superuser.count("xdb.global_message"), 1, "ids were everybody's");
    superuser.run("ALTER EXTENSION xdb UPDATE");
    // Whose an id was that no message has any more, nobody knows: it is everybody's, until it is forgotten.
    publish(&mut db, "used");
    publish(&mut other, "used");
    publish(&mut db, "there");
    publish(&mut other, "there");
    let messages: Vec<String> =
        superuser.all("SELECT message_id || ' ' || owner_name FROM xdb.global_message ORDER BY number");
    assert_eq!(messages, ["there app", "there other"]);
    assert_eq!(superuser.json("SELECT definition->'globalQueues' FROM xdb.process_type"), json!(["*"]));
    db.start("t2", "take").go();
    assert_eq!(db.completes("t2").result(), &json!(["there"]));
    app.done(&[]);
}

#[test]
fn calls_that_waited_for_locks_in_an_older_schema_are_not_shown_as_held() {
    let app = App::of_version("updated_lanes", "0.2.0");
    let _worker = app.worker(|_| Reply::hang(force_complete(json!(null))));
    app.register("one", &one_step());
    let (mut db, mut superuser) = (app.db(), app.superuser());
    app.pause();
    db.start("p", "one").go();
    // Where the engine of that release has kept them, before the one of now begins.
    superuser.run("UPDATE xdb.task SET lane = 2");
    let thread = &db.json("SELECT xdb.describe_process('p')")["threads"][0];
    assert!(thread.get("held").is_none() && thread.get("nextAttemptAt").is_some(), "{thread}");
    superuser.run("UPDATE xdb.task SET lane = 0; SELECT xdb.resume()");
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn an_update_in_the_middle_of_much_work_fails_nobody() {
    for (number, release) in releases() {
        let app = App::of_version(&format!("updated_busy_{number}"), &release);
        let _worker = app.worker(|call: &Call| match call.input().as_i64() {
            Some(left) if left > 0 => next("Only", json!(left - 1)),
            _ => graceful_complete(json!("done")),
        });
        app.register("one", &one_step());
        let done = AtomicBool::new(false);
        let started = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|client| {
                    let (app, done) = (&app, &done);
                    scope.spawn(move || {
                        let mut db = app.db();
                        let mut started = 0;
                        while !done.load(Ordering::Relaxed) {
                            db.start(&format!("c{client}-{started}"), "one").input(json!(3)).go();
                            started += 1;
                        }
                        started
                    })
                })
                .collect();
            // Whatever fails here, the clients come to their end.
            let _done = SetOnDrop(&done);
            let mut db = app.db();
            wait_until("work goes on", 20, || views::with_status(&mut db, "%", "COMPLETED") > 50);
            app.superuser().run("ALTER EXTENSION xdb UPDATE");
            let before = views::with_status(&mut db, "%", "COMPLETED");
            wait_until("work goes on after it", 20, || views::with_status(&mut db, "%", "COMPLETED") > before + 50);
            done.store(true, Ordering::Relaxed);
            clients.into_iter().map(|client| client.join().expect("no call failed")).sum::<i64>()
        });
        let mut db = app.db();
        wait_until("all are done", 60, || views::with_status(&mut db, "%", "COMPLETED") == started);
        app.done(&[]);
    }
}

#[test]
fn calls_in_old_lanes_and_tables_that_were_set_aside_go_on() {
    let app = App::of_version("updated_lanes", "0.2.0");
    let worker = app.worker(|call: &Call| {
        let n = call.global("n").as_i64().unwrap_or_default() + 1;
        Reply::hang(force_complete(json!(n)).globals(json!({"n": n})))
    });
    app.db().run(
        "CREATE TABLE mine (id text PRIMARY KEY, n int); INSERT INTO mine SELECT 'p' || n, 0 FROM generate_series(1, 9) n;
         CREATE TABLE locked (id text PRIMARY KEY)",
    );
    app.register("mine", &one_step().maps("public.mine", "id", &["n"]));
    let mut db = app.db();
    for n in 1..=9 {
        db.start(&format!("p{n}"), "mine").key(&format!("p{n}")).go();
    }
    worker.wait_for_count("all calls", 20, 9, |_| true);
    // As the engine of that version would leave them when it is stopped.
    let mut superuser = app.superuser();
    superuser.run(
        "BEGIN;
         INSERT INTO xdb.set_aside (relation, reason) VALUES
             ('public.mine', 'writes took longer than xdb.apply_timeout'), ('public.locked', 'another session kept it locked');
         WITH old AS (SELECT execution_id, row_number() OVER () % 3 AS lane FROM xdb.task)
         UPDATE xdb.task t SET lane = old.lane, lease_epoch = CASE old.lane WHEN 1 THEN e.epoch ELSE 0 END,
             lease_until = CASE old.lane WHEN 1 THEN 'infinity'::timestamptz END
         FROM old, xdb.engine e WHERE t.execution_id = old.execution_id AND e.lane = 1;
         COMMIT;
         ALTER EXTENSION xdb UPDATE",
    );
    assert_eq!(
        superuser.all::<String>("SELECT object::regclass::text FROM xdb.slow_object WHERE mended_at IS NULL"),
        ["mine"],
        "what was locked is not slow"
    );
    assert_eq!(superuser.count("xdb.engine WHERE lane BETWEEN 1 AND 9"), 0);
    assert_eq!(
        superuser.count("xdb.task t JOIN xdb.process_execution p USING (execution_id) WHERE t.owner = p.owner"),
        9
    );
    worker.wait_for_count("all calls are made again", 30, 18, |_| true);
    worker.heal();
    worker.release();
    for n in 1..=9 {
        db.completes(&format!("p{n}"));
    }
    assert_eq!(db.count("mine WHERE n = 1"), 9);
    app.done(&[]);
}

#[test]
fn a_schema_that_was_updated_is_that_of_a_new_installation() {
    let new = App::new("schema_new");
    let expected = schema(&mut new.superuser());
    assert!(expected.len() > 500, "{}", expected.len());
    for (number, release) in releases() {
        let app = App::of_version(&format!("schema_updated_{number}"), &release);
        let before = schema(&mut app.superuser());
        // Of a release in between perhaps nothing has changed yet.
        assert!(number > 0 || before != expected, "nothing has changed since {release}");
        app.superuser().run("ALTER EXTENSION xdb UPDATE");
        // As the update says: what is new is granted to nobody yet.
        app.superuser()
            .run("SELECT xdb.grant_usage('boss', admin => true), xdb.grant_usage('app'), xdb.grant_usage('other')");
        let now = schema(&mut app.superuser());
        let missing: Vec<_> = expected.difference(&now).collect();
        let left: Vec<_> = now.difference(&expected).collect();
        assert!(missing.is_empty() && left.is_empty(), "after {release}, missing: {missing:#?}, left: {left:#?}");
        app.done(&[]);
    }
    new.done(&[]);
}

#[test]
fn an_update_does_not_wait_long_and_may_be_made_by_another_superuser() {
    for (number, release) in releases() {
        let app = App::of_version(&format!("updated_late_{number}"), &release);
        app.superuser().run("CREATE ROLE another SUPERUSER LOGIN");
        let _worker = app.worker(|_: &Call| graceful_complete(json!("done")));
        app.register("one", &one_step());
        let mut db = app.db();
        db.start("first", "one").go();
        db.completes("first");
        // Looks, and leaves its transaction open.
        let mut open = app.db();
        open.run("BEGIN; SELECT xdb.describe_process('first')");
        let error = app.superuser().try_run("ALTER EXTENSION xdb UPDATE").expect_err("somebody is there");
        assert_eq!(error.code, "55P03");
        assert_eq!(version(&app), release);
        // It has not even asked them to leave.
        db.start("second", "one").go();
        db.completes("second");
        open.run("COMMIT");
        app.session("another").run("ALTER EXTENSION xdb UPDATE");
        let owners = "SELECT count(DISTINCT proowner) FROM pg_proc WHERE pronamespace = 'xdb'::regnamespace";
        assert_eq!(app.superuser().one::<i64>(owners), 1);
        db.start("third", "one").go();
        db.completes("third");
        app.done(&[]);
    }
}

#[test]
fn an_update_that_is_rolled_back_changes_nothing() {
    for (number, release) in releases() {
        let app = App::of_version(&format!("not_updated_{number}"), &release);
        let half_way = HalfWay::start(&app);
        let before = schema(&mut app.superuser());
        app.superuser().run("BEGIN; ALTER EXTENSION xdb UPDATE; ROLLBACK");
        assert_eq!((version(&app), schema(&mut app.superuser())), (release, before));
        half_way.finish(&mut app.db(), &[""]);
        app.done(&[]);
    }
}

#[test]
fn what_administrators_have_granted_and_users_have_built_survives_an_update() {
    for (number, release) in releases() {
        let app = App::of_version(&format!("updated_kept_{number}"), &release);
        let half_way = HalfWay::start(&app);
        let mut admin = app.superuser();
        admin.run(
            "CREATE ROLE reader; GRANT USAGE ON SCHEMA xdb TO reader; GRANT SELECT ON xdb.timers TO reader WITH GRANT OPTION;
             GRANT SELECT (name) ON xdb.worker TO reader; GRANT EXECUTE ON FUNCTION xdb.purge(interval) TO reader;
             GRANT SELECT ON xdb.history TO PUBLIC; REVOKE EXECUTE ON FUNCTION xdb.engine_figures() FROM pg_monitor;
             CREATE VIEW mine AS SELECT process_id, status FROM xdb.processes;
             CREATE VIEW all_of_it AS SELECT * FROM xdb.waits",
        );
        let privileges = |db: &mut Db| {
            let mut facts = schema(db);
            // These are gone, new, or made anew with another column: the update says whom to grant them to.
            let other = [
                "library_version",
                "xdb.set_aside",
                "xdb.slow_object",
                "xdb.crash_suspect",
                "xdb.correlated_start",
                "xdb.registration_count",
                "xdb.status()",
                "xdb.grant_usage",
                "xdb.incidents",
                "pause_process",
                "resume_process",
                "worker_counters",
                "process_type_names",
                "process_type_usage",
                "process_type_figures",
                "reassign_owned",
                "worker_secret",
                "xdb.process_types",
                "privilege type ",
                "shown_attribute_locks",
                "xdb.attribute_lock_",
                "xdb.attribute_lock ",
                "xdb.register_worker(",
                "claim_calls",
                "complete_call",
                "fail_call",
                "extend_call",
                "pull_lease",
                "registered_type_ids",
                "paused_types",
                "xdb.stop_process(text[]",
                "xdb.retry_now(text[]",
                "xdb.skip_timer(text[]",
            ];
            facts.retain(|fact| fact.starts_with("privilege") && !other.iter().any(|name| fact.contains(name)));
            facts
        };
        let before = privileges(&mut admin);
        admin.run("ALTER EXTENSION xdb UPDATE");
        assert_eq!(privileges(&mut admin), before);
        assert!(admin.one::<i64>("SELECT count(*) FROM mine") > 0);
        // A dump has them still, as what was granted and not as what the extension brings, and the processes too.
        let name = format!("updated_kept_{number}");
        let dump = app.cluster().dump(&name, &[]);
        let copy = format!("updated_copy_{number}");
        app.cluster().restore(&copy, &dump);
        let mut restored = app.cluster().connect(&copy, "postgres");
        let after = privileges(&mut restored);
        let lost: Vec<_> = before.difference(&after).collect();
        let more: Vec<_> = after.difference(&before).collect();
        assert!(lost.is_empty() && more.is_empty(), "lost: {lost:#?}, more: {more:#?}");
        let processes = "SELECT count(*) FROM xdb.processes";
        assert_eq!(restored.one::<i64>(processes), admin.one::<i64>(processes));
        half_way.finish(&mut app.db(), &[""]);
        app.done(&[]);
    }
}

#[test]
fn an_update_says_who_has_to_be_granted_what_is_new() {
    let app = App::of_version("updated_roles", "0.1.0");
    app.superuser().run("ALTER EXTENSION xdb UPDATE");
    let log = app.cluster().log();
    let hint = "HINT:  SELECT xdb.grant_usage('app'); SELECT xdb.grant_usage('boss', admin => true); SELECT xdb.grant_usage('other');";
    assert!(log.contains(hint), "{log}");
    // A view that they could read before reads what is new too.
    assert_eq!(app.db().count("xdb.failures"), 0);
    app.done(&[]);
}

#[test]
fn an_update_tells_operators_from_deployers() {
    let app = App::of_version("updated_kinds", "0.2.0");
    app.superuser().run(
        "CREATE ROLE ops; CREATE ROLE dev; SELECT xdb.grant_usage('ops'), xdb.grant_usage('dev');
         GRANT EXECUTE ON FUNCTION xdb.pause() TO ops;
         GRANT EXECUTE ON FUNCTION xdb.register_process_type(text, text, jsonb) TO dev;
         ALTER EXTENSION xdb UPDATE",
    );
    let log = app.cluster().log();
    for grant in ["('ops', operator => true)", "('dev', deployer => true)", "('boss', admin => true)"] {
        assert!(log.contains(&format!("SELECT xdb.grant_usage{grant};")), "{grant}: {log}");
    }
    app.done(&[]);
}

#[test]
fn an_update_names_workers_that_were_given_a_host_header() {
    let app = App::of_version("updated_headers", "0.2.0");
    let worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step());
    let mut superuser = app.superuser();
    for name in ["near", "o'far"] {
        superuser.run(&format!("SELECT xdb.register_worker('{}', '{}')", name.replace('\'', "''"), worker.url()));
    }
    // What the library of that version took.
    superuser.run(r#"UPDATE xdb.worker SET headers = '{"X-Team": "blue", "HOST": "elsewhere"}' WHERE name <> 'near'"#);
    superuser.run("ALTER EXTENSION xdb UPDATE");
    let log = app.cluster().log();
    let workers = "because a header \"Host\" was given for them: 'o''far', 'stub'";
    assert!(log.contains(workers), "{log}");
    // Where it would go is not known, so nobody is called.
    let mut db = app.db();
    db.start("p", "one").go();
    wait_until("the call fails", 10, || views::fails_saying(&mut db, "p", &["is set by the engine alone"]));
    assert_eq!(worker.count(|_| true), 0);
    superuser.run(&format!("SELECT xdb.register_worker('stub', '{}')", worker.url()));
    db.completes("p");
    app.done(&[]);
}

#[test]
fn what_was_registered_before_an_update_is_superusers_until_it_is_given_to_somebody() {
    for (number, release) in releases() {
        let app = App::of_version(&format!("updated_owners_{number}"), &release);
        let _worker = app.worker(|_: &Call| graceful_complete(json!("done")));
        app.register("one", &one_step());
        let again = &format!("SELECT xdb.register_process_type('one', 'stub', '{}')", one_step().json());
        let mut boss = app.session("boss");
        // Before the update the library knows of no owners.
        boss.run("SELECT xdb.register_worker('of boss', 'http://127.0.0.1:1'), xdb.unregister_worker('of boss')");
        app.superuser().run("ALTER EXTENSION xdb UPDATE; SELECT xdb.grant_usage('boss', admin => true)");
        boss.refused(codes::INSUFFICIENT_PRIVILEGE, again);
        app.superuser().run(again);
        assert_eq!(boss.count("xdb.process_types WHERE owner IS NULL"), 1);
        app.superuser().run("SELECT xdb.reassign_owned('-', 'boss')");
        boss.run(again);
        assert_eq!(boss.count("xdb.process_types WHERE owner = 'boss'"), 1);
        let mut db = app.db();
        db.start("p", "one").go();
        db.completes("p");
        app.done(&[]);
    }
}

#[test]
fn a_script_takes_over_nothing_that_somebody_else_has_made() {
    let app = App::new("squatted");
    let mut db = app.superuser();
    db.run("DROP EXTENSION xdb CASCADE; CREATE SCHEMA xdb AUTHORIZATION app");
    assert_eq!(db.try_run("CREATE EXTENSION xdb").expect_err("the schema is somebody's").code, "42P06");
    app.cluster().superuser().drop_database("squatted", "WITH (FORCE)");
    for (number, release) in releases() {
        let app = App::of_version(&format!("squatted_{number}"), &release);
        let mut db = app.superuser();
        // As if they were new in this version, and somebody may create in the schema.
        for (object, foreign) in [
            (
                "FUNCTION xdb.purge(interval)",
                "FUNCTION xdb.purge(older_than interval) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
            ),
            ("VIEW xdb.timers", "VIEW xdb.timers AS SELECT 'x' AS process_id, gen_random_uuid() AS execution_id, 'x' AS state_execution_id,
                 'x' AS command_id, 'x' AS kind, now() AS fire_at"),
            (
                "FUNCTION xdb.library_version()",
                "FUNCTION xdb.library_version() RETURNS text LANGUAGE sql AS 'SELECT ''0.0.1''::text'",
            ),
        ] {
            let known = release != "0.1.0" || !object.contains("library_version");
            let drop = if known { format!("ALTER EXTENSION xdb DROP {object}; DROP {object};") } else { String::new() };
            db.run(&format!(
                "BEGIN; {drop} GRANT CREATE ON SCHEMA xdb TO app; SET LOCAL ROLE app; CREATE {foreign}; RESET ROLE; COMMIT"
            ));
            let error = db.try_run("ALTER EXTENSION xdb UPDATE").expect_err("it is not of the extension");
            assert_eq!(error.code, "55000", "{error:?}");
            assert!(error.message.contains("is not a member of extension"), "{error:?}");
            assert_eq!(version(&app), release);
            db.run(&format!("DROP {object}"));
        }
        app.cluster().superuser().drop_database(&format!("squatted_{number}"), "WITH (FORCE)");
    }
}

#[test]
fn a_session_that_an_update_waits_for_is_not_cancelled_for_it() {
    for (number, release) in releases() {
        let app = App::of_version(&format!("updated_around_{number}"), &release);
        let _worker = app.worker(|_: &Call| graceful_complete(json!("done")));
        app.register("one", &one_step());
        let mut db = app.db();
        db.start("first", "one").go();
        db.completes("first");
        let mut reader = app.db();
        let mut told = None;
        // Until an update has come in between: it gives up after a while, on a busy machine before the session goes on.
        while version(&app) == release {
            reader.run("BEGIN; SELECT count(*) FROM xdb.history");
            std::thread::scope(|scope| {
                let update = scope.spawn(|| app.superuser().try_run("ALTER EXTENSION xdb UPDATE"));
                let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'ALTER EXTENSION%' AND state = 'active'
                             AND wait_event IS NOT NULL)";
                wait_until("it is under way", 20, || app.superuser().one::<bool>(waits) || update.is_finished());
                // Holds what the update wants, and wants what the update holds.
                reader.run("SELECT xdb.publish_global('nobody', '1'); SELECT count(*) FROM xdb.processes; COMMIT");
                told = update.join().expect("no panic").err();
            });
            if let Some(error) = &told {
                assert_eq!(error.code, "55P03", "{error:?}");
            }
        }
        app.done(&[]);
    }
}
