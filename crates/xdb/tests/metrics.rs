//! `xdb metrics`, with `xdb.openmetrics()`, and with a function in its place that does what the test says.

mod common;

use common::{Serving, program};
use xdb_cluster_tests::prelude::*;

/// Replaces the function.
fn exposes(db: &mut Db, query: &str) {
    db.run(&format!(
        "CREATE OR REPLACE FUNCTION xdb.openmetrics(classic boolean DEFAULT false) RETURNS text LANGUAGE sql AS $$ {query} $$;
         GRANT EXECUTE ON FUNCTION xdb.openmetrics TO app"
    ));
}

fn serve(app: &App) -> Serving {
    let mut command = program(app.cluster(), app.database(), "app");
    command.args(["metrics", "--listen", "127.0.0.1:0"]);
    Serving::start(command)
}

const FAILED: &str = "# TYPE xdb_scrape_error gauge\n\
    # HELP xdb_scrape_error 1 if the metrics could not be read from the server.\nxdb_scrape_error 1\n# EOF\n";

#[test]
fn metrics_are_served_and_a_failed_scrape_is_no_error_of_http() {
    let app = App::alone("metrics", ClusterOptions::default());
    let mut db = app.superuser();
    let metrics = serve(&app);
    assert_eq!(metrics.get("/metrics").body, FAILED, "the role may not read the figures");
    db.run("GRANT pg_monitor TO app");
    let body = metrics.get("/metrics").body;
    assert!(body.contains("\nxdb_engine_info{") && body.ends_with("\nxdb_scrape_error 0\n# EOF\n"), "{body}");

    exposes(&mut db, "SELECT E'# TYPE xdb_calls gauge\\nxdb_calls 7\\n# EOF\\n'");
    let answer = metrics.get("/metrics");
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("application/openmetrics-text; version=1.0.0; charset=utf-8"))
    );
    assert_eq!(
        answer.body,
        FAILED.replace("error 1\n#", "error 0\n#").replacen("# TYPE", "# TYPE xdb_calls gauge\nxdb_calls 7\n# TYPE", 1)
    );
    assert_eq!(metrics.get("/other").status, 404);
    for (host, status) in [("localhost:9433", 200), ("metrics.example", 403), ("127.0.0.1.example", 403)] {
        let answer = metrics.send(&["GET /metrics HTTP/1.1", &format!("Host: {host}")], "");
        assert_eq!(answer.status, status, "{host}: a name that leads here is no host of this machine");
    }

    // It takes longer than the second that a scrape may take.
    exposes(&mut db, "SELECT E'xdb_timeout ' || current_setting('statement_timeout') || E'\\n# EOF\\n'");
    assert!(metrics.get("/metrics").body.starts_with("xdb_timeout 1s\n"));
    exposes(&mut db, "SELECT pg_sleep(60)::text");
    let answer = metrics.get("/metrics");
    assert_eq!((answer.status, &*answer.body), (200, FAILED));

    // The server is away, and comes back.
    exposes(&mut db, "SELECT E'# EOF\\n'");
    drop(db);
    app.cluster().stop();
    assert_eq!(metrics.get("/metrics").body, FAILED);
    app.cluster().launch();
    wait_until("metrics are read again", 20, || metrics.get("/metrics").body.contains("xdb_scrape_error 0"));
}

#[test]
fn scrapes_at_the_same_time_share_one_session() {
    let app = App::alone("metrics_many", ClusterOptions::default());
    let mut db = app.superuser();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'xdb metrics'";
    exposes(&mut db, &format!("SELECT E'xdb_sessions ' || ({sessions}) || E'\\n# EOF\\n'"));
    db.run("GRANT pg_monitor TO app");
    let metrics = serve(&app);
    let answers = at_once(10, |_| metrics.get("/metrics").body);
    assert!(answers.iter().all(|answer| answer.starts_with("xdb_sessions 1\n")), "{answers:?}");
}
