//! Databases whose settings and default privileges are as others have made them: the extension is the same there as anywhere.

use std::collections::BTreeSet;
use xdb_cluster_tests::catalog::schema;
use xdb_cluster_tests::prelude::*;

/// What the catalog has of privileges, those of the application's roles too.
fn privileges(db: &mut Db) -> BTreeSet<String> {
    db.run("SET search_path = pg_catalog");
    schema(db).into_iter().filter(|fact| fact.contains("privilege ")).collect()
}

/// Runs a statement as an application of serializable transactions does: again, where the engine was at the process meanwhile.
fn repeated(db: &mut Db, sql: &str) {
    wait_until("nothing is in the way", 20, || match db.try_run(sql) {
        Err(error) if error.code == "40001" => false,
        Err(error) => panic!("{sql}\n{error:?}"),
        Ok(()) => true,
    });
}

#[test]
fn a_process_runs_in_a_hostile_database() {
    let app = App::hostile("hostile_process");
    let _worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!(call.global("n"))),
        (Api::WaitUntil, _) => all_of(&[local_queue("m", "inbox", 1), timer("t", 0.1)]),
        _ => graceful_complete(json!(call.messages("m"))).globals(json!({"n": 7})).locals(json!({"kept": "yes"})),
    });
    let definition = mailbox().maps("public.counters", "id", &["n"]);
    app.register("mail", &definition.rpc("look", json!({"loadGlobalAttributes": {"policy": "ALL"}})));
    let mut db = app.db();
    assert_eq!(db.text("SHOW default_transaction_isolation"), "serializable");
    db.start("p", "mail").key("Äpfel 10").globals(json!({"n": 5})).go();
    repeated(&mut db, "CREATE TEMPORARY TABLE looked AS SELECT xdb.invoke_rpc('p', 'look') AS n");
    assert_eq!(db.json("SELECT n FROM pg_temp.looked"), json!(5));
    repeated(&mut db, "SELECT xdb.publish('p', 'inbox', '\"hello\"')");
    assert_eq!(db.completes("p").result(), &json!(["hello"]));
    assert_eq!(db.one::<i32>("SELECT n FROM public.counters WHERE id = 'Äpfel 10'"), 7);
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p')"), json!({"kept": "yes"}));
    for view in ["processes", "state_executions", "waits", "timers", "queue_messages", "failures", "history", "workers"]
    {
        db.one::<i64>(&format!("SELECT count(*) FROM xdb.{view}"));
    }
    // They are two, also where texts are compared without regard to case.
    for id in ["a", "A"] {
        db.start(id, "mail").key(id).go();
    }
    repeated(&mut db, "CREATE TEMPORARY TABLE ended AS SELECT * FROM xdb.stop_process(ARRAY['A', 'a', 'p'])");
    let ended: Vec<String> =
        db.all("SELECT process_id FROM pg_temp.ended WHERE stopped ORDER BY process_id COLLATE \"C\"");
    assert_eq!(ended, ["A", "a"]);
    assert_eq!(app.session("boss").text("SELECT state FROM xdb.status()"), "running");
    app.done(&[]);
}

#[test]
fn default_privileges_give_no_role_a_part_in_the_extension() {
    let (plain, hostile) = (App::new("hostile_plain"), App::hostile("hostile_privileges"));
    assert_eq!(privileges(&mut hostile.superuser()), privileges(&mut plain.superuser()));
    let operators_and_engines = [
        "SELECT xdb.pause()",
        "SELECT xdb.register_worker('w', 'http://127.0.0.1:1')",
        "TRUNCATE xdb.timer, xdb.task",
        "TABLE xdb.registry",
        "DELETE FROM xdb.engine",
        "SELECT setval('xdb.inbox_inbox_id_seq', 1)",
        "SELECT nextval('xdb.pull_lease')",
    ];
    for role in ["app", "stranger"] {
        let mut session = hostile.session(role);
        operators_and_engines.iter().for_each(|sql| drop(session.refused(codes::INSUFFICIENT_PRIVILEGE, sql)));
    }
    // What is meant for PUBLIC is PUBLIC's all the same: a view calls it as its reader.
    assert_eq!(hostile.db().one::<i64>("SELECT count(*) FROM xdb.failures"), 0);
    assert_eq!(hostile.db().one::<i64>("SELECT count(*) FROM xdb.processes"), 0);
    plain.done(&[]);
    hostile.done(&[]);
}

#[test]
fn an_event_trigger_that_grants_new_objects_gives_no_role_a_part() {
    let plain = App::new("hostile_no_trigger");
    let cluster = plain.cluster();
    cluster.superuser().run("CREATE DATABASE hostile_trigger TEMPLATE template0");
    let mut superuser = cluster.connect("hostile_trigger", "postgres");
    superuser.run(
        "CREATE FUNCTION public.grant_all() RETURNS event_trigger LANGUAGE plpgsql AS $$
         DECLARE made record;
         BEGIN
             FOR made IN SELECT * FROM pg_event_trigger_ddl_commands() LOOP
                 IF made.object_type = 'table' THEN
                     EXECUTE format('GRANT ALL ON %s TO stranger WITH GRANT OPTION', made.object_identity);
                     EXECUTE format('GRANT SELECT (xmin) ON %s TO app', made.object_identity);
                     EXECUTE format('SET LOCAL ROLE stranger; GRANT SELECT ON %s TO other; RESET ROLE', made.object_identity);
                 ELSIF made.object_type IN ('function', 'schema') THEN
                     EXECUTE format('GRANT ALL ON %s %s TO stranger', made.object_type, made.object_identity);
                 END IF;
             END LOOP;
         END $$;
         CREATE EVENT TRIGGER grant_all ON ddl_command_end WHEN tag IN ('CREATE TABLE', 'CREATE FUNCTION', 'CREATE SCHEMA')
             EXECUTE FUNCTION public.grant_all();
         CREATE EXTENSION xdb;
         SELECT xdb.grant_usage('app'), xdb.grant_usage('other'), xdb.grant_usage('boss', admin => true)",
    );
    assert_eq!(privileges(&mut superuser), privileges(&mut plain.superuser()));
    drop(superuser);
    cluster.superuser().drop_database("hostile_trigger", "WITH (FORCE)");
    plain.done(&[]);
}

#[test]
fn what_an_update_adds_is_its_owners_and_what_was_given_before_is_named() {
    let app = App::hostile_of_version("hostile_update", "0.2.0");
    let mut superuser = app.superuser();
    superuser.run("ALTER EXTENSION xdb UPDATE");
    let told = app.cluster().log();
    assert!(told.contains("default privileges gave roles a part in schema xdb when it was installed"), "{told}");
    assert!(told.contains("SELECT xdb.revoke_usage('app'); SELECT xdb.revoke_usage('stranger');"), "{told}");
    for function in ["xdb.reassign_owned(regrole, regrole)", "xdb.paused_types()", "xdb.status()"] {
        let direct = format!(
            "SELECT count(*) FROM pg_proc, LATERAL aclexplode(proacl) AS a WHERE pg_proc.oid = '{function}'::regprocedure
                 AND a.grantee IN ('app'::regrole, 'stranger'::regrole)"
        );
        assert_eq!(superuser.one::<i64>(&direct), 0, "{function}");
    }
    app.session("stranger").refused(codes::INSUFFICIENT_PRIVILEGE, "TABLE xdb.worker_secret");
    app.session("stranger").refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT nextval('xdb.pull_lease')");
    // What was given before stays until an administrator takes it back.
    superuser.run("SELECT xdb.revoke_usage('stranger'), xdb.revoke_usage('app'), xdb.grant_usage('app')");
    let fresh = "hostile_fresh";
    app.make_hostile_database(fresh);
    let mut of_fresh = app.cluster().connect(fresh, "postgres");
    of_fresh.run("CREATE EXTENSION xdb SCHEMA public; SELECT xdb.grant_usage('app')");
    let of = |db: &mut Db, role: &str| {
        let of_role = |fact: &String| fact.starts_with("privilege") && fact.contains(&format!(" {role} "));
        privileges(db).into_iter().filter(of_role).collect::<BTreeSet<_>>()
    };
    for role in ["app", "stranger"] {
        assert_eq!(of(&mut superuser, role), of(&mut of_fresh, role), "{role}");
    }
    drop(of_fresh);
    app.cluster().superuser().drop_database(fresh, "WITH (FORCE)");
    app.done(&[]);
}

#[test]
fn a_restore_into_a_hostile_database_gives_what_was_granted_and_no_more() {
    let app = App::new("hostile_dumped");
    app.superuser().run("GRANT SELECT ON xdb.timers TO stranger; GRANT USAGE ON SCHEMA xdb TO stranger");
    let dump = app.cluster().dump("hostile_dumped", &[]);
    app.make_hostile_database("hostile_restored");
    app.cluster().restore_into("hostile_restored", &dump, &[]);
    let mut restored = app.cluster().connect("hostile_restored", "postgres");
    assert_eq!(privileges(&mut restored), privileges(&mut app.superuser()));
    drop(restored);
    app.cluster().superuser().drop_database("hostile_restored", "WITH (FORCE)");
    app.done(&[]);
}
