//! Custom settings of roles (`ALTER ROLE … SET app.tenant`) hold while their steps use tables, and nowhere else.

use xdb_cluster_tests::prelude::*;

/// Each step returns what its row showed, writes 1, and returns the error if the write was refused. A policy shows a
/// row of `accounts` only if `app.tenant` is its tenant. A trigger records the settings and the role of each step.
fn application(name: &str) -> (App, Worker) {
    let app = App::alone(name, ClusterOptions::default());
    let worker = app.worker(|call: &Call| {
        let done = force_complete(json!({"shown": call.global("n"), "refused": call.refused_write()}));
        if call.refused_write().is_null() { done.globals(json!({"n": 1})) } else { done }
    });
    app.superuser().run(
        "CREATE TABLE accounts (id text PRIMARY KEY, tenant text NOT NULL, n int NOT NULL DEFAULT 0);
         ALTER TABLE accounts ENABLE ROW LEVEL SECURITY;
         CREATE POLICY own ON accounts USING (tenant = current_setting('app.tenant'));
         GRANT SELECT, INSERT, UPDATE ON accounts TO app, other;
         INSERT INTO accounts SELECT tenant || i, tenant FROM unnest('{a,b}'::text[]) tenant, generate_series(1, 20) i;
         CREATE TABLE seen (id text, who text, tenant text, role text, superuser text, timeout text, memory text, path text);
         GRANT INSERT ON seen TO app, other;
         CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.seen VALUES (new.id, current_user, current_setting('app.tenant', true),
                 current_setting('app.role', true), current_setting('app.superuser', true),
                 current_setting('xdb.rpc_timeout'), current_setting('work_mem'), current_setting('search_path'));
             SET app.tenant = 'left behind';
             RETURN new; END $$;
         CREATE TRIGGER look AFTER UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION look();
         ALTER ROLE app SET app.tenant = 'a';
         ALTER ROLE other SET app.tenant = 'b'",
    );
    app.register("writer", &one_step().maps("public.accounts", "id", &["n"]));
    (app, worker)
}

#[test]
fn policies_by_an_owners_setting_hold_in_steps() {
    let (app, _worker) = application("setting_policies");
    let (mut superuser, mut db, mut other) = (app.superuser(), app.db(), app.session("other"));
    // Their calls are due at once: one turn reads for both.
    app.pause();
    for i in 1..=20 {
        db.start(&format!("a{i}"), "writer").key(&format!("a{i}")).go();
        other.start(&format!("b{i}"), "writer").key(&format!("b{i}")).go();
    }
    // Rows that a policy hides from them.
    db.start("not a", "writer").key("b1").go();
    other.start("not b", "writer").key("a1").go();
    superuser.run("SELECT xdb.resume_engine()");
    for i in 1..=20 {
        let expected = json!({"shown": 0, "refused": null});
        assert_eq!(*db.completes(&format!("a{i}")).result(), expected);
        assert_eq!(*other.completes(&format!("b{i}")).result(), expected);
    }
    for (session, process, key) in [(&mut db, "not a", "b1"), (&mut other, "not b", "a1")] {
        let result = session.completes(process).result().clone();
        assert_eq!(result["shown"], Value::Null);
        let message = format!("table public.accounts has no row with id = {key}, or a policy hides it");
        assert_eq!(result["refused"]["message"], message);
        assert_eq!(result["refused"]["sqlState"], "02000");
    }
    // Without a policy there is no word of one.
    superuser.run("ALTER TABLE accounts DISABLE ROW LEVEL SECURITY");
    db.start("gone", "writer").key("gone").go();
    let message = db.completes("gone").result()["refused"]["message"].clone();
    assert_eq!(message, "table public.accounts has no row with id = gone");
    let wrong = "seen WHERE (who, tenant) NOT IN (('app', 'a'), ('other', 'b'))";
    assert_eq!((superuser.count(wrong), superuser.count("seen")), (0, 40));
    app.done(&[]);
}

#[test]
fn an_owners_setting_that_is_changed_is_seen_soon() {
    let (app, _worker) = application("setting_changed");
    let mut db = app.db();
    let may_write = |db: &mut Db, process: &str| {
        db.start(process, "writer").key("b2").go();
        db.completes(process).result()["refused"].is_null()
    };
    assert!(!may_write(&mut db, "before"));
    app.superuser().run("ALTER ROLE app SET app.tenant = 'b'");
    let changed = Instant::now();
    // While an owner's settings are cached, a step may have the old ones. Later steps have the new ones.
    for number in 1.. {
        let begins = changed.elapsed();
        if may_write(&mut db, &format!("p{number}")) {
            break;
        }
        assert!(begins < Duration::from_secs(10), "a step that began {begins:?} after the change has not seen it");
    }
    app.done(&[]);
}

#[test]
fn they_hold_in_steps_of_runners_too_and_nothing_is_left_behind_there() {
    let (app, _worker) = application("setting_runners");
    let (mut superuser, mut db, mut other) = (app.superuser(), app.db(), app.session("other"));
    superuser.run(
        "CREATE TABLE runs (id text, pid int, who text, tenant text, path text, escape text, locks bigint, helper text, cursors bigint);
         GRANT INSERT ON runs TO app, other;
         CREATE OR REPLACE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE
             escape text := 'none';
             left_open refcursor := 'left open';
         BEGIN
             BEGIN
                 EXECUTE 'RESET ROLE';
             EXCEPTION WHEN OTHERS THEN escape := SQLSTATE;
             END;
             INSERT INTO public.runs SELECT new.id, pg_backend_pid(), current_user, current_setting('app.tenant'),
                 current_setting('search_path'), escape,
                 (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
                 to_regprocedure('pg_temp.helper()'), (SELECT count(*) FROM pg_cursors WHERE name = 'left open');
             PERFORM pg_advisory_lock(4711);
             CREATE FUNCTION pg_temp.helper() RETURNS int LANGUAGE sql AS 'SELECT 1';
             OPEN left_open FOR SELECT 1;
             SET app.tenant = 'left behind'; SET search_path = public;
             RETURN new; END $$;",
    );
    app.make_slow("app", "public.accounts", "id", json!({"n": 0, "tenant": "a"}));
    for i in 1..=10 {
        db.start(&format!("a{i}"), "writer").key(&format!("a{i}")).go();
        other.start(&format!("b{i}"), "writer").key(&format!("b{i}")).go();
    }
    for i in 1..=10 {
        let expected = json!({"shown": 0, "refused": null});
        assert_eq!(*db.completes(&format!("a{i}")).result(), expected);
        assert_eq!(*other.completes(&format!("b{i}")).result(), expected);
    }
    let scheduler = app.scheduler();
    assert_eq!(superuser.count(&format!("runs WHERE pid = {scheduler}")), 0, "the steps are runners'");
    let seen: Vec<String> = superuser
        .all("SELECT DISTINCT concat_ws(' ', who, tenant, path, escape, locks, helper, cursors) FROM runs ORDER BY 1");
    let clean = "pg_catalog, pg_temp 42501 0 0";
    assert_eq!(seen, [format!("app a {clean}"), format!("other b {clean}")]);
    app.done(&[]);
}

/// The settings that a step of this role sees: `app.tenant`, `app.role`, `app.superuser`.
fn sees(app: &App, role: &str, process: &str) -> (String, String, String) {
    let mut db = app.session(role);
    db.start(process, "writer").key(process).go();
    assert_eq!(db.completes(process).result()["refused"], Value::Null);
    let mut superuser = app.superuser();
    let seen = superuser.rows(&format!("SELECT * FROM seen WHERE id = '{process}'")).remove(0);
    let text = |name: &str| seen[name].as_str().unwrap_or("none").to_owned();
    assert_eq!(text("who"), role);
    assert_eq!((text("timeout"), text("memory")), ("10s".into(), "4MB".into()), "settings that are not custom");
    assert_eq!(text("path"), "pg_catalog, pg_temp");
    (text("tenant"), text("role"), text("superuser"))
}

#[test]
fn of_several_settings_the_one_that_postgres_uses_counts() {
    let (app, _worker) = application("setting_levels");
    let mut superuser = app.superuser();
    superuser.run(
        "ALTER TABLE accounts DISABLE ROW LEVEL SECURITY;
         ALTER ROLE ALL SET app.tenant = 'of all';
         ALTER DATABASE setting_levels SET app.tenant = 'of the database';
         ALTER ROLE other RESET app.tenant;
         ALTER ROLE app SET app.role = 'of the role';
         ALTER ROLE app IN DATABASE setting_levels SET \"App.Role\" = 'of the role = in the database';
         ALTER ROLE app IN DATABASE postgres SET app.role = 'elsewhere';
         ALTER ROLE app SET work_mem = '77MB';
         ALTER ROLE app SET search_path = public;
         ALTER ROLE app SET xdb.rpc_timeout = '77s';
         ALTER ROLE postgres SET app.superuser = 'of the superuser';
         ALTER ROLE postgres SET app.role = 'of the superuser'",
    );
    // As Postgres has them in sessions of these roles.
    let in_a_session = |role: &str| {
        let mut db = app.session(role);
        ["app.tenant", "app.role", "app.superuser"]
            .map(|name| db.text(&format!("SELECT current_setting('{name}', true)")))
    };
    assert_eq!(in_a_session("app"), ["a", "of the role = in the database", "NULL"]);
    assert_eq!(in_a_session("other"), ["of the database", "NULL", "NULL"]);
    // An engine that begins now has the superuser's settings in its own session.
    let before = app.scheduler();
    superuser.run(&format!("SELECT pg_terminate_backend({before})"));
    wait_until("another scheduler is there", 20, || {
        app.cluster().find_scheduler(app.database()).is_some_and(|pid| pid != before)
    });
    let none = String::new();
    assert_eq!(sees(&app, "app", "a1"), ("a".into(), "of the role = in the database".into(), none.clone()));
    assert_eq!(sees(&app, "other", "a2"), ("of the database".into(), none.clone(), none));
    app.done(&[]);
}
