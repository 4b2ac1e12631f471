//! Databases with the schema of an older release: the library works with it, and brings it up to date.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
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
        let error = db.try_run("SELECT xdb.library_version()").expect_err("app is no administrator");
        assert_eq!(error.code, "42501");
        app.done(&[]);
    }
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

/// What the catalog has of everything in the extension, one line per fact.
fn schema(db: &mut Db) -> BTreeSet<String> {
    let facts: Vec<String> = db.all(
        r"SELECT format('member %s', pg_describe_object(classid, objid, objsubid)) FROM pg_depend
          WHERE deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'xdb')
          UNION ALL
          SELECT format('relation %s %s %s %s %s', c.oid::regclass, c.relkind, c.reloptions, c.relrowsecurity, c.relpersistence)
          FROM pg_class c WHERE c.relnamespace = 'xdb'::regnamespace
          UNION ALL
          SELECT format('column %s %s %s %s %s %s %s %s', a.attrelid::regclass, a.attnum, a.attname,
              format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attstorage,
              (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d WHERE (d.adrelid, d.adnum) = (a.attrelid, a.attnum)))
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
          WHERE c.relnamespace = 'xdb'::regnamespace AND a.attnum > 0
          UNION ALL
          SELECT format('constraint %s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint
          WHERE connamespace = 'xdb'::regnamespace
          UNION ALL
          SELECT format('index %s', pg_get_indexdef(i.indexrelid)) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
          WHERE c.relnamespace = 'xdb'::regnamespace
          UNION ALL
          SELECT format('view %s %s', c.oid::regclass, pg_get_viewdef(c.oid)) FROM pg_class c
          WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind = 'v'
          UNION ALL
          SELECT format('sequence %s %s', schemaname || '.' || sequencename, to_jsonb(s) - 'last_value') FROM pg_sequences s
          WHERE schemaname = 'xdb'
          UNION ALL
          SELECT format('function %s', pg_get_functiondef(oid)) FROM pg_proc WHERE pronamespace = 'xdb'::regnamespace
          UNION ALL
          SELECT format('policy %s %s %s %s %s', polrelid::regclass, polname, polcmd, pg_get_expr(polqual, polrelid), polroles)
          FROM pg_policy
          UNION ALL
          SELECT format('trigger %s', pg_get_triggerdef(t.oid)) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
          WHERE c.relnamespace = 'xdb'::regnamespace AND NOT t.tgisinternal
          UNION ALL
          SELECT format('privilege %s %s %s %s', o.object, a.grantee::regrole, a.privilege_type, a.is_grantable) FROM (
              SELECT oid::regclass::text, relacl FROM pg_class WHERE relnamespace = 'xdb'::regnamespace
              UNION ALL SELECT oid::regprocedure::text, proacl FROM pg_proc WHERE pronamespace = 'xdb'::regnamespace
              UNION ALL SELECT nspname, nspacl FROM pg_namespace WHERE nspname = 'xdb'
              UNION ALL SELECT a.attrelid::regclass || '.' || a.attname, a.attacl FROM pg_attribute a
                  JOIN pg_class c ON c.oid = a.attrelid WHERE c.relnamespace = 'xdb'::regnamespace
          ) o (object, acl), LATERAL aclexplode(o.acl) a
          UNION ALL
          SELECT format('owner %s', owner = (SELECT nspowner FROM pg_namespace WHERE nspname = 'xdb')) FROM (
              SELECT relowner FROM pg_class WHERE relnamespace = 'xdb'::regnamespace
              UNION SELECT proowner FROM pg_proc WHERE pronamespace = 'xdb'::regnamespace) o (owner)
          UNION ALL
          SELECT format('initial privilege %s %s %s', pg_describe_object(i.classoid, i.objoid, i.objsubid),
              CASE WHEN a.grantee = (SELECT nspowner FROM pg_namespace WHERE nspname = 'xdb') THEN 'owner'
                   ELSE a.grantee::regrole::text END, a.privilege_type)
          FROM pg_init_privs i, LATERAL aclexplode(i.initprivs) a
          WHERE (classoid, objoid) IN (SELECT classid, objid FROM pg_depend
              WHERE deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'xdb'))
          UNION ALL
          SELECT format('comment %s %s', pg_describe_object(classoid, objoid, objsubid), description) FROM pg_description
          WHERE (classoid, objoid) IN (SELECT classid, objid FROM pg_depend
              WHERE deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'xdb'))
          UNION ALL
          SELECT format('dumped %s %s', c::regclass, e.extcondition[i]) FROM pg_extension e,
              LATERAL unnest(e.extconfig) WITH ORDINALITY u (c, i) WHERE e.extname = 'xdb'",
    );
    facts.into_iter().collect()
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
        app.superuser().run("SELECT xdb.grant_usage('boss', admin => true)");
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
        app.done(&["canceling statement due to lock timeout"]);
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
