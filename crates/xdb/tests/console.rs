//! `xdb console` over raw HTTP: who sees what, which requests are refused, what actions do.

mod common;

use common::{Answered, Serving, digits, program, set_version, with_long_numbers};
use xdb_cluster_tests::prelude::*;

const HOSTILE: &str = "\"><img src=x onerror=alert(1)><script>alert(2)</script>";

const PAGES: [&str; 7] = ["/", "/process?id=mine", "/failing", "/workers", "/queues?id=mine", "/schedules", "/locks"];

fn application(name: &str) -> (App, Worker) {
    application_on(name, ClusterOptions::default())
}

fn application_on(name: &str, options: ClusterOptions) -> (App, Worker) {
    let app = App::alone(name, options);
    let worker = app.worker(|call: &Call| match (call.api, call.process_id()) {
        (_, id) if id == HOSTILE || id.starts_with("fails") => error(503, "Down<b>", HOSTILE),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "box", 1)]).into(),
        _ => force_complete(json!("done")).into(),
    });
    app.register(
        "mailbox",
        &Definition::starting_with("Wait").waiting_step_with(
            "Wait",
            json!({
        "waitUntilApiRetryPolicy": {"initialIntervalSeconds": 1000, "maximumIntervalSeconds": 1000}}),
        ),
    );
    (app, worker)
}

fn serve(app: &App, arguments: &[&str]) -> Serving {
    let mut command = program(app.cluster(), app.database(), "app");
    command.args(["console", "--listen", "127.0.0.1:0"]).args(arguments);
    Serving::start(command)
}

/// From now on, the password of each role but the superuser's is `x`.
fn ask_for_passwords(app: &App) {
    let mut superuser = app.superuser();
    for role in ["app", "other", "stranger"] {
        superuser.run(&format!("ALTER ROLE {role} PASSWORD 'x'"));
    }
    let lines = app.cluster().data_directory().join("pg_hba.conf");
    std::fs::write(lines, "local all postgres trust\nlocal all all scram-sha-256\n").expect("pg_hba.conf");
    superuser.run("SELECT pg_reload_conf()");
    let asks = || {
        let shown = program(app.cluster(), app.database(), "app").args(["show", "mine"]).output().expect("xdb show");
        String::from_utf8_lossy(&shown.stderr).contains("password")
    };
    wait_until("passwords are asked for", 20, asks);
}

/// A logged-in browser.
struct Browser<'s> {
    console: &'s Serving,
    cookie: String,
}

/// The cookie of an answer that begins a visit.
fn cookie(answer: &Answered) -> String {
    assert_eq!(answer.status, 303, "{}", answer.body);
    let cookie = answer.header("set-cookie").expect("a cookie");
    assert!(
        cookie.contains("httponly") && cookie.contains("samesite=strict") && !cookie.contains("secure"),
        "{cookie}"
    );
    cookie.split(';').next().expect("it has a value").to_owned()
}

impl<'s> Browser<'s> {
    /// With the address that the console has printed.
    fn open(console: &'s Serving) -> Browser<'s> {
        let path = &console.url[console.url.find("/?").expect("a token")..];
        Browser { console, cookie: cookie(&console.get(path)) }
    }

    /// With a role of the login form.
    fn log_in(console: &'s Serving, role: &str) -> Browser<'s> {
        let answer = post(console, "/login", &format!("role={role}&password=x"), &["Sec-Fetch-Site: same-origin"]);
        Browser { console, cookie: cookie(&answer) }
    }

    fn get(&self, path: &str) -> Answered {
        let host = format!("Host: {}", self.console.authority());
        self.console.send(&[&format!("GET {path} HTTP/1.1"), &host, &format!("Cookie: {}", self.cookie)], "")
    }

    fn act(&self, body: &str) -> Answered {
        post(self.console, "/action", body, &["Sec-Fetch-Site: same-origin", &format!("Cookie: {}", self.cookie)])
    }
}

fn post(console: &Serving, path: &str, body: &str, headers: &[&str]) -> Answered {
    let (line, host) = (format!("POST {path} HTTP/1.1"), format!("Host: {}", console.authority()));
    let mut head = vec![&*line, &*host, "Content-Type: application/x-www-form-urlencoded"];
    head.extend(headers);
    console.send(&head, body)
}

fn starts(app: &App, role: &str, ids: &[&str]) {
    let mut db = app.session(role);
    for id in ids {
        db.start(id, "mailbox").go();
    }
    let mut superuser = app.superuser();
    wait_until("all wait or fail", 20, || {
        superuser.count(
            "xdb.processes p WHERE NOT EXISTS (SELECT FROM xdb.waits w WHERE w.process_id = p.process_id) \
            AND NOT EXISTS (SELECT FROM xdb.failures f WHERE f.process_id = p.process_id)",
        ) == 0
    });
}

#[test]
fn a_printed_address_works_once_and_shows_all_pages() {
    let (app, _worker) = application("console_pages");
    starts(&app, "app", &["mine", "fails", HOSTILE]);
    let console = serve(&app, &[]);
    assert_eq!(console.get("/").status, 401);
    let browser = Browser::open(&console);
    let again = console.get(&console.url[console.url.find("/?").expect("a token")..]);
    assert_eq!(again.status, 401, "a token is used once");
    assert_eq!(app.superuser().count("pg_stat_activity WHERE application_name = 'xdb console'"), 1);
    for page in PAGES {
        let answer = browser.get(page);
        assert_eq!(answer.status, 200, "{page}: {}", answer.body);
        for (name, value) in [
            (
                "content-security-policy",
                "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
            ),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{page}");
        }
        assert!(!answer.body.contains("role=\"alert\""), "{page}: {}", answer.body);
        for hostile in ["<img", "<script>", "Down<b>"] {
            assert!(!answer.body.contains(hostile), "{page}: {}", answer.body);
        }
    }
    let list = browser.get("/").body;
    assert!(list.contains("It waits for a message of queue &quot;box&quot;"), "{list}");
    let failing = browser.get("/failing").body;
    assert!(failing.contains("Down&lt;b&gt;"), "{failing}");
    for (path, kind) in [("/xdb.css", "text/css"), ("/xdb.js", "text/javascript")] {
        assert_eq!(console.get(path).header("content-type"), Some(kind));
    }
    let gone = post(&console, "/logout", "", &["Sec-Fetch-Site: same-origin", &format!("Cookie: {}", browser.cookie)]);
    assert_eq!(gone.status, 303);
    assert_eq!(browser.get("/").status, 401);
}

#[test]
fn requests_of_other_sites_are_refused() {
    let (app, _worker) = application("console_sites");
    starts(&app, "app", &["mine"]);
    let console = serve(&app, &["--host", "console.example"]);
    let far = format!("GET {} HTTP/1.1", &console.url[console.url.find("/?").expect("a token")..]);
    let begun = console.send(&[&far, "Host: console.example"], "");
    assert!(begun.header("set-cookie").is_some_and(|cookie| cookie.contains("; secure")), "behind a proxy with TLS");
    let console = serve(&app, &["--host", "console.example"]);
    let browser = Browser::open(&console);
    let cookie = format!("Cookie: {}", browser.cookie);
    let foreign = console.send(&["GET / HTTP/1.1", "Host: evil.example", &cookie], "");
    assert_eq!(foreign.status, 403, "a name that leads here is no host of the console");
    assert_eq!(console.send(&["GET / HTTP/1.1", "Host: console.example", &cookie], "").status, 200);
    let two = [&*format!("Host: {}", console.authority()), "Host: evil.example"];
    assert!([400, 403].contains(&console.send(&["GET / HTTP/1.1", two[0], two[1], &cookie], "").status));
    let stop = "action=stop&id=mine&confirm=mine&execution=00000000-0000-0000-0000-000000000000";
    let own = format!("Origin: http://{}", console.authority());
    for (headers, status) in [
        (vec!["Sec-Fetch-Site: cross-site"], 403),
        (vec!["Sec-Fetch-Site: same-site", &*own], 403),
        (vec!["Origin: http://evil.example"], 403),
        (vec!["Origin: null"], 403),
        (vec![], 403),
        (vec![&*own], 200),
    ] {
        let mut headers = headers;
        headers.push(&cookie);
        let answer = post(&console, "/action", stop, &headers);
        assert_eq!(answer.status, status, "{headers:?}");
        assert_eq!(
            status == 403,
            answer.body.contains("A proxy in between has to pass the header Host on"),
            "{}",
            answer.body
        );
    }
    assert_eq!(app.db().status("mine"), "RUNNING");
    assert_eq!(browser.get("/action").status, 405);
}

#[test]
fn a_role_that_needs_no_password_cant_log_in() {
    let (app, _worker) = application("console_trust");
    let console = serve(&app, &["--login"]);
    let refused = post(&console, "/login", "role=app&password=x", &["Sec-Fetch-Site: same-origin"]);
    assert!(refused.status == 401 && refused.body.contains("asks for no password"), "{}", refused.body);
    assert!(refused.header("set-cookie").is_none());
    let long =
        post(&console, "/login", &format!("role={}&password=x", "r".repeat(64)), &["Sec-Fetch-Site: same-origin"]);
    assert!(long.body.contains("at most 63 bytes"), "{}", long.body);

    // If the try without a password fails for another reason, the one with a password is not made.
    app.superuser().run("ALTER ROLE app CONNECTION LIMIT 0");
    let refused = post(&console, "/login", "role=app&password=x", &["Sec-Fetch-Site: same-origin"]);
    app.superuser().run("ALTER ROLE app CONNECTION LIMIT -1");
    assert!(refused.status == 401 && refused.body.contains("too many connections"), "{}", refused.body);
    assert_eq!(app.cluster().log().matches("too many connections for role").count(), 1);
    ask_for_passwords(&app);
    Browser::log_in(&console, "app");
}

#[test]
fn each_role_sees_its_own_processes() {
    let (app, _worker) = application("console_roles");
    starts(&app, "app", &["mine"]);
    starts(&app, "other", &["theirs"]);
    let console = serve(&app, &["--login"]);
    ask_for_passwords(&app);
    let (mine, theirs) = (Browser::log_in(&console, "app"), Browser::log_in(&console, "other"));
    assert!(mine.get("/").body.contains(">mine<") && !mine.get("/").body.contains(">theirs<"));
    assert!(theirs.get("/").body.contains(">theirs<") && !theirs.get("/").body.contains(">mine<"));
    assert_eq!(theirs.get("/process?id=mine").status, 404);
    assert_eq!(theirs.get("/process?id=theirs").status, 200);
    let stranger = Browser::log_in(&console, "stranger");
    let refused = stranger.get("/").body;
    for part in ["permission denied for schema xdb", "SELECT xdb.grant_usage('stranger'), as a superuser"] {
        assert!(refused.contains(part), "{refused}");
    }
    for _ in 0..5 {
        let answer = post(&console, "/login", "role=nobody&password=x", &["Sec-Fetch-Site: same-origin"]);
        assert!(answer.status == 401 && answer.body.contains("password authentication failed"), "{}", answer.body);
    }
    let answer = post(&console, "/login", "role=app&password=x", &["Sec-Fetch-Site: same-origin"]);
    assert!(answer.status == 401 && answer.body.contains("Too many failed logins"), "{}", answer.body);
    assert_eq!(mine.get("/").status, 200, "those who are logged in stay so");
}

#[test]
fn actions_show_their_statement_and_have_their_effect() {
    let (app, _worker) = application("console_actions");
    starts(&app, "app", &["mine", "fails"]);
    let console = serve(&app, &[]);
    let browser = Browser::open(&console);
    let mut db = app.db();
    let mut execution = |id: &str| db.text(&format!("SELECT xdb.describe_process('{id}') ->> 'processExecutionId'"));
    let (mine, fails) = (execution("mine"), execution("fails"));
    let page = browser.get("/process?id=mine").body;
    for label in ["Retry now", "Publish", "Skip timer", "Pause", "Resume", "Stop"] {
        assert!(page.contains(&format!("<button>{label}</button>")), "{page}");
    }
    let paused = browser.act(&format!("action=pause&id=mine&execution={mine}&reason=it%27s+late"));
    let sql = format!("SELECT xdb.pause_process('mine', reason =&gt; 'it''s late', execution_id =&gt; '{mine}'::uuid)");
    assert!(paused.body.contains(&sql) && paused.body.contains("Done."), "{}", paused.body);
    assert_eq!(app.db().text("SELECT xdb.describe_process('mine') #>> '{pause,reason}'"), "it's late");
    browser.act(&format!("action=resume&id=mine&execution={mine}"));
    assert_eq!(app.db().text("SELECT xdb.describe_process('mine') -> 'pause'"), "NULL");
    let retried = browser.act(&format!("action=retry&id=fails&execution={fails}"));
    assert!(retried.body.contains("Result: <code>1</code>"), "{}", retried.body);
    let kept = browser.act(&format!("action=stop&id=fails&execution={fails}&confirm=other"));
    assert!(kept.body.contains("type the process id"), "{}", kept.body);
    assert_eq!(app.db().status("fails"), "RUNNING");
    browser.act(&format!("action=stop&id=fails&execution={fails}&confirm=fails"));
    assert_eq!(app.db().status("fails"), "TERMINATED");
    let refused = browser.act(&format!("action=publish&id=mine&execution={mine}&queue=box&payload=%7Bno"));
    assert!(refused.body.contains("invalid input syntax for type json"), "{}", refused.body);
    browser.act(&format!(
        "action=publish&id=mine&execution={mine}&queue=box&payload=12345678901234567890123456789012345678901"
    ));
    app.db().completes("mine");
    let closed = browser.get("/process?id=mine").body;
    assert!(closed.contains("12345678901234567890123456789012345678901"), "no digit is lost: {closed}");
    assert!(!closed.contains("<button>Stop</button>"));
    let messages = console.end();
    let actions = [
        "pause \"mine\"",
        "resume \"mine\"",
        "retry \"fails\"",
        "stop \"fails\"",
        "publish \"mine\"",
        "publish \"mine\"",
    ];
    let lines = actions.map(|action| format!("xdb console: role \"app\" {}\n", action.replace(' ', " process ")));
    assert_eq!(messages, lines.concat());
}

#[test]
fn an_action_is_offered_only_if_the_role_may_call_its_function() {
    let (app, _worker) = application("console_offers");
    starts(&app, "app", &["mine"]);
    let console = serve(&app, &[]);
    let browser = Browser::open(&console);
    // The functions of this name that take many processes stay.
    let actions = [
        ("Stop", "stop_process(text, text, text, uuid)"),
        ("Retry now", "retry_now(text, text, uuid)"),
        ("Publish", "publish"),
        ("Skip timer", "skip_timer(text, text, text, uuid)"),
        ("Pause", "pause_process"),
        ("Resume", "resume_process"),
    ];
    for (revoked, (_, function)) in actions.iter().enumerate() {
        app.superuser().run(&format!("REVOKE EXECUTE ON FUNCTION xdb.{function} FROM app"));
        let page = browser.get("/process?id=mine").body;
        for (place, (label, _)) in actions.iter().enumerate() {
            assert_eq!(page.contains(&format!("<button>{label}</button>")), place > revoked, "{label}: {page}");
        }
    }
    let execution = app.db().text("SELECT xdb.describe_process('mine') ->> 'processExecutionId'");
    let refused = browser.act(&format!("action=stop&id=mine&execution={execution}&confirm=mine"));
    assert!(refused.body.contains("permission denied for function stop_process"), "{}", refused.body);
    assert_eq!(app.db().status("mine"), "RUNNING");
}

#[test]
fn a_read_only_console_changes_nothing() {
    let (app, _worker) = application("console_read_only");
    starts(&app, "app", &["mine"]);
    let console = serve(&app, &["--read-only"]);
    let browser = Browser::open(&console);
    let execution = app.db().text("SELECT xdb.describe_process('mine') ->> 'processExecutionId'");
    assert!(!browser.get("/process?id=mine").body.contains("<button>Stop</button>"));
    let answer = browser.act(&format!("action=stop&id=mine&execution={execution}&confirm=mine"));
    assert_eq!(answer.status, 405);
    assert_eq!(app.db().status("mine"), "RUNNING");
    // The sessions of the server are read-only too, so a page could not write if it tried to.
    app.superuser().run(
        "CREATE OR REPLACE FUNCTION xdb.get_local_attributes(process_id text, keys text[] DEFAULT NULL, execution_id uuid DEFAULT NULL)
         RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb('read-only: ' || current_setting('transaction_read_only')) $$",
    );
    let page = browser.get("/process?id=mine").body;
    assert!(page.contains("read-only: on"), "{page}");
    let other = serve(&app, &[]);
    let page = Browser::open(&other).get("/process?id=mine").body;
    assert!(page.contains("read-only: off"), "{page}");
}

#[test]
fn numbers_of_any_length_are_shown_and_hide_no_other_row() {
    let (app, _worker) = with_long_numbers("console_numbers");
    let console = serve(&app, &[]);
    let browser = Browser::open(&console);
    let list = browser.get("/").body;
    assert_eq!(list.matches("It waits for a message of queue &quot;box&quot;").count(), 2, "{list}");
    for id in ["40", "400"] {
        let page = browser.get(&format!("/process?id={id}"));
        assert!(page.status == 200 && page.body.contains("It waits for a message"), "{}", page.body);
        assert!(page.body.contains(&format!(": {}", digits(id))), "{}", page.body);
    }
}

#[test]
fn an_open_list_asks_for_figures_every_five_seconds_if_the_role_may_read_them() {
    let (app, _worker) = application("console_figures");
    let console = serve(&app, &[]);
    let browser = Browser::open(&console);
    let opens = || (0..4).for_each(|_| assert_eq!(browser.get("/").status, 200));
    opens();
    let log = app.cluster().log();
    assert!(!log.contains("|42501>"), "a page is refused something: {log}");
    app.superuser().run(
        "CREATE SEQUENCE public.scrapes; GRANT USAGE ON SEQUENCE public.scrapes TO app; GRANT pg_monitor TO app;
         CREATE OR REPLACE FUNCTION xdb.metrics() RETURNS TABLE (name text, type text, unit text, help text, labels jsonb, value float8)
         LANGUAGE sql AS $$ SELECT 'xdb_calls_total', 'counter', '', '', '{}'::jsonb, nextval('public.scrapes')::float8 $$",
    );
    let (took, ()) = timed(opens);
    assert!(browser.get("/").body.contains("aria-label=\"Figures\""));
    let scrapes: i64 = app.superuser().one("SELECT last_value FROM public.scrapes WHERE is_called");
    assert!(scrapes <= 2 + took.as_secs() as i64 / 5, "{scrapes} scrapes in {took:?}");
}

#[test]
fn hidden_payloads_are_on_no_page() {
    const SECRET: &str = "s3cret";
    let app = App::alone("console_hidden", ClusterOptions::default());
    let _worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "box", 1)]),
        (_, "Split") => {
            Answer::deciding(json!({"nextStates": [{"stateId": "End", "stateInput": SECRET}, {"stateId": "Wait"}]}))
        }
        (_, "Complete") => force_complete(json!(SECRET)),
        (_, "Fail") => force_fail(json!(SECRET)),
        _ => graceful_complete(json!(SECRET)),
    });
    app.register("splitting", &Definition::starting_with("Split").step("Split").step("End").waiting_step("Wait"));
    app.register("completing", &Definition::starting_with("Complete").step("Complete"));
    app.register("failing", &Definition::starting_with("Fail").step("Fail"));
    app.superuser().run("SELECT xdb.grant_usage('app', deployer => true)");
    let mut db = app.db();
    db.run(
        r#"SELECT xdb.register_process_type('Schedule', NULL, '{"startingState": "Tick", "states": {"Tick":
            {"waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}}}');
        SELECT xdb.schedule('nightly', '0 3 * * *', '{"process_type": "failing", "process_id": "x", "input": "s3cret"}');
        SELECT xdb.publish_global('jobs', '"s3cret"')"#,
    );
    for (id, process_type) in
        [("mine", "splitting"), ("stopped", "splitting"), ("completed", "completing"), ("failed", "failing")]
    {
        db.start(id, process_type).input(json!(SECRET)).locals(json!({"name": SECRET})).go();
    }
    wait_until("two have a result and wait, two have closed", 20, || {
        db.count("xdb.processes WHERE status = 'RUNNING' AND result IS NOT NULL") == 2
            && db.count("xdb.waits WHERE process_id IN ('mine', 'stopped')") == 2
            && db.count("xdb.processes WHERE status IN ('COMPLETED', 'FAILED')") == 2
    });
    db.run("SELECT xdb.stop_process('stopped'), xdb.set_local_attributes('nightly', '{\"note\": \"s3cret\"}')");
    db.publish("mine", "other", json!(SECRET));
    let (shows, hides) = (serve(&app, &[]), serve(&app, &["--hide-payloads"]));
    let (shows, hides) = (Browser::open(&shows), Browser::open(&hides));
    let shown =
        ["/?id=stopped", "/?id=completed", "/process?id=mine", "/queues?id=mine", "/queues?queue=jobs", "/schedules"];
    for page in shown {
        let body = shows.get(page).body;
        assert!(body.contains(SECRET), "the test is about a page without payloads: {page}: {body}");
    }
    let further = ["/process?id=stopped", "/process?id=completed", "/process?id=failed", "/process?id=nightly"];
    for page in PAGES.into_iter().chain(shown).chain(further) {
        let answer = hides.get(page);
        assert!(answer.status == 200 && !answer.body.contains(SECRET), "{page}: {}", answer.body);
    }
}

#[test]
fn a_database_with_another_version_says_what_to_do() {
    let (app, _worker) = application("console_version");
    let console = serve(&app, &[]);
    let browser = Browser::open(&console);
    let shows = |page: &str, parts: &[&str]| {
        let body = browser.get(page).body;
        for part in parts {
            assert!(body.contains(part), "{page}: {part}: {body}");
        }
    };
    app.superuser().run("ALTER VIEW xdb.processes RENAME COLUMN paused TO halted");
    shows("/", &["column p.paused does not exist", "in another version than this program: see xdb doctor"]);
    app.superuser().run("ALTER VIEW xdb.processes RENAME COLUMN halted TO paused");
    for (schema, remedy) in [
        ("0.0.9", "Run ALTER EXTENSION xdb UPDATE in this database."),
        ("99.1.0", "Install version 99.1.0 of xdb and restart the server."),
    ] {
        set_version(&app, schema);
        let reason = format!("which can't run version {schema} of its schema");
        shows("/process?id=mine", &[&reason, remedy]);
        shows("/", &["Nothing is here.", &reason]);
    }
}

/// The texts of a column of a table, in all its pages. `after_each` is called after each page.
fn in_all_pages(
    browser: &Browser<'_>,
    first: &str,
    table: usize,
    column: usize,
    mut after_each: impl FnMut(),
) -> Vec<String> {
    let (mut seen, mut path) = (Vec::new(), Some(format!("/{first}")));
    while let Some(asked) = path {
        let page = browser.get(&asked).body;
        let part = page.split("<table>").nth(table + 1).unwrap_or_else(|| panic!("{asked}: {page}"));
        let rows = part.split("</tbody>").next().into_iter().flat_map(|body| body.split("<tr>").skip(2));
        let cells = rows.filter_map(|row| row.split("<td>").nth(column + 1)?.split("</td>").next());
        let texts = cells.map(|cell| cell.split('<').filter_map(|piece| piece.rsplit('>').next()).collect::<String>());
        let before = seen.len();
        seen.extend(texts);
        assert!((1..=50).contains(&(seen.len() - before)), "{asked}: {page}");
        after_each();
        let next = part.split_once("\" rel=\"next\"").and_then(|(before, _)| before.rsplit_once("href=\""));
        path = next.map(|(_, address)| format!("/{}", address.trim_start_matches("./").replace("&amp;", "&")));
    }
    seen
}

#[test]
fn a_list_in_pages_shows_each_process_once_while_others_start() {
    const PROCESSES: usize = 120;
    let (app, _worker) = application("console_paging");
    app.pause();
    let mut db = app.db();
    for number in 0..PROCESSES {
        db.start(&format!("p{number}"), "mailbox").go();
    }
    let console = serve(&app, &[]);
    let browser = Browser::open(&console);
    let mut new = 0;
    let seen = in_all_pages(&browser, "", 0, 0, || {
        db.start(&format!("new{new}"), "mailbox").go();
        new += 1;
    });
    let mut expected: Vec<_> = (0..PROCESSES).map(|number| format!("p{number}")).collect();
    expected.reverse();
    assert_eq!(seen, expected);
    app.resume();
}

#[test]
fn failures_messages_and_schedules_have_pages_too() {
    const ROWS: usize = 120;
    let (app, _worker) = application("console_pages_of_all");
    let once =
        json!({"waitUntilApiRetryPolicy": attempts(1), "stateFailureRecoveryOptions": {"policy": "RAISE_INCIDENT"}});
    app.register("incident", &Definition::starting_with("Wait").waiting_step_with("Wait", once));
    app.superuser().run("SELECT xdb.grant_usage('app', deployer => true)");
    starts(&app, "app", &["mine"]);
    let mut db = app.db();
    db.run(&format!(
        r#"SELECT xdb.register_process_type('Schedule', NULL, '{{"startingState": "Tick", "states": {{"Tick":
            {{"waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}}}}}}');
        SELECT count(xdb.start_process('fails' || n, 'incident')), count(xdb.publish('mine', 'other', to_jsonb(n))),
            count(xdb.publish_global('jobs', to_jsonb(n))),
            count(xdb.schedule('tick' || n, '0 3 1 1 *', '{{"process_type": "mailbox", "process_id": "x"}}'))
        FROM generate_series(1, {ROWS}) n"#
    ));
    wait_until("all have failed", 60, || db.count("xdb.incidents") == ROWS as i64);
    let console = serve(&app, &[]);
    let browser = Browser::open(&console);
    let named = |name: &str| (1..=ROWS).map(|n| format!("{name}{n}")).collect::<Vec<_>>();
    for (page, table, column, expected) in [
        ("failing", 0, 0, named("fails")),
        ("failing", 1, 0, named("fails")),
        ("queues?id=mine", 0, 3, named("")),
        ("queues?queue=jobs", 0, 3, named("")),
        ("schedules", 0, 0, named("tick")),
    ] {
        let mut seen = in_all_pages(&browser, page, table, column, || {});
        if column == 0 {
            seen.sort_by_key(|name| (name.len(), name.clone()));
        }
        assert_eq!(seen, expected, "table {table} of {page}");
    }
}

#[test]
fn a_restarted_server_is_found_again_behind_a_base_path() {
    let (app, _worker) = application("console_restart");
    starts(&app, "app", &["mine"]);
    let console = serve(&app, &["--base-path", "/tools/xdb"]);
    let path = console.url.split_once(console.authority()).expect("it has a host").1;
    let browser = Browser { console: &console, cookie: cookie(&console.get(path)) };
    assert_eq!(console.get("/tools/xdb").header("location"), Some("xdb/"));
    assert_eq!(browser.get("/tools/xdb/").status, 200);
    assert_eq!(browser.get("/").status, 404);
    app.cluster().stop();
    let lost = browser.get("/tools/xdb/");
    assert!(lost.status == 503 && lost.body.contains("not connected"), "{} {}", lost.status, lost.body);
    app.cluster().launch();
    wait_until("the page is there again", 20, || browser.get("/tools/xdb/process?id=mine").status == 200);
}

#[test]
fn a_process_with_fifty_thousand_events_has_its_newest_and_its_oldest_ones() {
    const COPIES: i64 = 50_000;
    let (app, _worker) = application("console_long");
    starts(&app, "app", &["mine"]);
    let mut superuser = app.superuser();
    let first = superuser.one::<i64>("SELECT max(event_id) FROM xdb.history_event");
    superuser.run(&format!(
        "INSERT INTO xdb.history_event SELECT execution_id, event_id + n, event_time, event_type, details
         FROM xdb.history_event, generate_series(1, {COPIES}) n WHERE event_id = {first}"
    ));
    let console = serve(&app, &[]);
    let browser = Browser::open(&console);
    let newest = browser.get("/process?id=mine").body;
    assert!(newest.contains(&format!("<td>{}</td>", first + COPIES)) && newest.contains("Older events"), "{newest}");
    assert!(newest.len() < 200_000, "{}", newest.len());
    let oldest = browser.get("/process?id=mine&before=100").body;
    assert!(
        oldest.contains("<td>99</td>") && oldest.contains("<td>1</td>") && !oldest.contains("Older events"),
        "{oldest}"
    );
}

#[test]
fn a_clock_that_was_set_back_makes_no_duration_negative_or_absurd() {
    const HOUR: f64 = 3600.0;
    let (app, _worker) = application_on("console_clock", ClusterOptions::default().own_clock());
    starts(&app, "app", &["mine", "before", "across", "fails"]);
    let mut db = app.db();
    db.publish("before", "box", json!(1));
    db.completes("before");
    app.cluster().set_clock(-HOUR);
    db.publish("across", "box", json!(1));
    db.completes("across");
    let console = serve(&app, &[]);
    let browser = Browser::open(&console);
    let processes = ["before", "across", "fails"].map(|id| format!("/process?id={id}"));
    for page in PAGES.into_iter().chain(processes.iter().map(String::as_str)) {
        let body = browser.get(page).body;
        let negative = body
            .as_bytes()
            .windows(3)
            .any(|part| !part[0].is_ascii_alphanumeric() && part[1] == b'-' && part[2].is_ascii_digit());
        assert!(!negative && !body.contains("role=\"alert\""), "{page}: {body}");
    }
    let shows = |page: &str, parts: &[&str]| {
        let body = browser.get(page).body;
        for part in parts {
            assert!(body.contains(part), "{page}: {part}: {body}");
        }
    };
    shows("/process?id=mine", &["It has waited for 0 s (the clock was set back).", "0.000 s so far"]);
    shows("/process?id=before", &["The process completed 0 s ago (the clock was set back)."]);
    // It has ended before it has started.
    shows("/process?id=across", &["</svg>0.000 s</td>"]);
    shows("/process?id=fails", &["Attempt 1 failed 0 s ago (the clock was set back) with HTTP 503"]);
    let absurd = app.superuser().all::<String>(
        r"SELECT concat_ws(' ', name, labels, value) FROM xdb.metrics() WHERE value < 0
            OR name ~ '_seconds(_sum)?$' AND name <> 'xdb_engine_start_time_seconds' AND value > 3000",
    );
    assert_eq!(absurd, [""; 0]);
    app.done(&[]);
}

#[test]
fn a_page_that_the_server_does_not_answer_says_so_after_three_seconds() {
    let (app, _worker) = application("console_slow");
    starts(&app, "app", &["mine"]);
    let console = serve(&app, &[]);
    let browser = Browser::open(&console);
    let mut superuser = app.superuser();
    let execution = superuser.text("SELECT xdb.describe_process('mine') ->> 'processExecutionId'");
    superuser.run("BEGIN; LOCK TABLE xdb.process_execution");
    let pause = format!("action=pause&id=mine&execution={execution}");
    for page in [browser.get("/").body, browser.act(&pause).body] {
        assert!(page.contains("lock timeout") && page.contains("try again"), "{page}");
    }
    superuser.run("ROLLBACK");
    superuser.run(
        "CREATE POLICY slow ON xdb.process_execution AS RESTRICTIVE TO app USING (pg_sleep(30)::text IS NOT NULL)",
    );
    let page = browser.get("/").body;
    assert!(page.contains("statement timeout") && page.contains("try again"), "{page}");
    superuser.run("DROP POLICY slow ON xdb.process_execution");
    let page = browser.get("/").body;
    assert!(page.contains("mine") && !page.contains("try again"), "{page}");
    app.done(&[]);
}

#[test]
fn an_address_of_the_network_is_refused() {
    let (app, _worker) = application("console_network");
    let mut command = program(app.cluster(), app.database(), "app");
    command.args(["console", "--listen", "0.0.0.0:0"]);
    let printed = common::run(command);
    assert_eq!(printed.code, 2);
    assert!(printed.err.contains("is no loopback address"), "{}", printed.err);
}
