//! What one feature does to another: calls that are fetched, functions, pauses, priorities, starts that are merged, retention, and
//! registrations that change them under way.

use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::prelude::*;

/// A process type whose only state members of `app` fetch.
fn fetched(app: &App, process_type: &str, definition: &Definition) {
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", process_type, definition);
}

/// A superuser may be a caller of RPCs, and never runs the code of others: also not what came while the call waited.
#[test]
fn a_superuser_calls_no_function_that_came_while_the_rpc_waited_for_the_end_of_a_pause() {
    let app = App::new("together_superuser");
    app.db().run(
        "CREATE TABLE ran (who text);
         CREATE FUNCTION trap(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.ran VALUES (current_user);
             RETURN '{}';
         END $$;",
    );
    app.superuser().run("SELECT xdb.register_worker('nobody', 'http://127.0.0.1:1')");
    app.register_with("nobody", "trapped", &Definition::without_start().rpc("r", json!({})));
    let (mut db, mut watch) = (app.db(), app.superuser());
    db.start("p", "trapped").go();
    watch.run("SELECT xdb.pause_process_type('trapped')");
    std::thread::scope(|scope| {
        let app = &app;
        let called = scope
            .spawn(move || app.superuser().refused("XD013", "SELECT xdb.invoke_rpc('p', 'r', timeout => '1 min')"));
        let waiting = "pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT xdb.invoke_rpc(%' AND wait_event_type IS NOT NULL";
        wait_until("the call waits", 30, || watch.count(waiting) == 1);
        let definition = Definition::without_start().rpc("r", json!({"function": "public.trap"}));
        watch.run(&format!(
            "BEGIN; SELECT xdb.register_process_type('trapped', NULL, {}); SELECT xdb.resume_process_type('trapped'); COMMIT",
            jsonb(definition.json())
        ));
        called.join().expect("it is refused");
    });
    assert_eq!(db.all::<String>("SELECT who FROM ran"), Vec::<String>::new());
    db.run("SELECT xdb.invoke_rpc('p', 'r')");
    assert_eq!(db.all::<String>("SELECT who FROM ran"), ["app"]);
    app.done(&[]);
}
