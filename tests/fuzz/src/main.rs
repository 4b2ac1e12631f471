//! Hostile input at random, without an end: SQL functions with unexpected arguments, and workers whose answers are
//! invalid: over HTTP, as a pull worker, and as functions.
//!
//! See `docs/internals/torture.md`. `SEED` and `MINUTES` come from the environment. Exit codes: 1 for a violation, 2
//! for wrong options.
//!
//! Checks: no session is lost, no error is an internal one, the server never restarts, and every process agrees with
//! its history. Half of the sessions can get little more memory than at their begin.

mod hostile;
mod values;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use xdb_cluster_tests::cluster::limit_memory;
use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::log;
use xdb_cluster_tests::options::{clock_seed, number};
use xdb_cluster_tests::prelude::*;
use xdb_cluster_tests::random::Random;

/// In bytes.
const LONGEST_STATEMENT: usize = 256 << 20;

/// Roles of the sessions. `boss` registers, pauses and purges as well.
const SESSIONS: [&str; 6] = ["app", "app", "other", "other", "boss", "app"];

/// The additional memory of a session with little memory, in bytes.
const LITTLE: u64 = 48 * 1024 * 1024;

/// The additional memory of all processes of the server, in bytes, as under `ulimit -v`.
const OF_SERVER: u64 = 256 * 1024 * 1024;

/// Lines of the log that are normal in such a run.
const EXPLAINED: &[&str] = &["out of memory", "bytes were needed", "a turn of the scheduler failed"];

/// A function as the catalog has it: its name, and the names and types of its arguments.
struct Function {
    name: String,
    arguments: Vec<(String, String)>,
    /// How many arguments are required.
    needed: usize,
}

fn main() -> ExitCode {
    let (seed, length) = match options() {
        Ok(options) => options,
        Err(what) => {
            eprintln!("{what}");
            return ExitCode::from(2);
        }
    };
    println!("SEED={seed}, for {:.1} minutes", length.as_secs_f64() / 60.0);
    let violations = run(seed, length);
    if violations.is_empty() {
        println!("No violation.");
        return ExitCode::SUCCESS;
    }
    println!("VIOLATIONS, to be had again perhaps with SEED={seed}:");
    violations.iter().for_each(|violation| println!("  {violation}"));
    ExitCode::FAILURE
}

fn options() -> Result<(u64, Duration), String> {
    let minutes = number("MINUTES", 10.0)?;
    let length = Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| format!("MINUTES: {error}"))?;
    Ok((number("SEED", clock_seed())?, length))
}

fn run(seed: u64, length: Duration) -> Vec<String> {
    let options = ClusterOptions::default()
        .set("xdb.max_response_size", "4MB")
        .set("max_stack_depth", "1MB")
        // Statements of hours would fill a disk.
        .set("log_min_error_statement", "panic");
    let app = App::alone("fuzz", options);
    // Processes that begin later inherit it.
    for pid in [app.cluster().postmaster().expect("it runs"), app.scheduler()] {
        limit_memory(pid, OF_SERVER);
    }
    app.db()
        .run("INSERT INTO counters SELECT 'k' || n FROM generate_series(0, 9) n; GRANT ALL ON counters TO other, boss");
    let chance = Mutex::new(Random::new(seed, "worker"));
    let worker = app.worker_named("worker-a", move |call: &Call| {
        hostile::reply(&mut chance.lock().unwrap_or_else(|poisoned| poisoned.into_inner()), call)
    });
    app.session("boss").run(&format!(
        "SELECT xdb.register_worker('worker-b', '{url}');
         SELECT xdb.register_process_type('odd', 'worker-b', {definition});
         SELECT xdb.register_process_type('odd-2', 'worker-b', '{{\"states\": {{\"Start\": {{}}, \"Wait\": {{}}, \"Guard\": {{}}}}, \"startingState\": \"Start\",
             \"globalQueues\": [\"*\"]}}');
         SELECT xdb.register_process_type('Schedule', NULL, '{{\"startingState\": \"Tick\", \"states\": {{\"Tick\":
             {{\"waitUntilFunction\": \"xdb.schedule_wait\", \"executeFunction\": \"xdb.schedule_tick\"}}}}}}')",
        url = worker.url(),
        definition = jsonb(&values::definition()),
    ));
    answer_with_functions(&app, &mut Random::new(seed, "functions"));
    app.superuser().run(&format!(
        "SELECT xdb.register_worker('worker-c', NULL, role => 'app');
         SELECT xdb.register_process_type('odd-pull', 'worker-c', {});
         SELECT xdb.register_process_type('odd-function', NULL, {})",
        jsonb(&values::definition()),
        jsonb(&values::definition_with_functions()),
    ));
    let functions = functions(&mut app.superuser());
    let until = Instant::now() + length;
    let counts = Mutex::new(BTreeMap::<String, u64>::new());
    let mut violations = std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS.len())
            .map(|number| {
                let (app, functions, counts) = (&app, &functions, &counts);
                scope.spawn(move || {
                    session(app, number, Random::new(seed, &format!("session {number}")), functions, until, counts)
                })
            })
            .collect();
        sessions
            .into_iter()
            .flat_map(|session| session.join().unwrap_or_else(|_| vec!["a session panicked".to_owned()]))
            .collect::<Vec<_>>()
    });
    for (code, count) in counts.into_inner().unwrap_or_default() {
        println!("{count:>8}  {code}");
    }
    violations.extend(afterwards(&app, worker));
    if !violations.is_empty() {
        app.cluster().keep();
        println!("The server's directory with its log: {}", app.cluster().directory().display());
    }
    violations
}

/// How many answers the functions of the application choose from: a power of two.
const ANSWERS: u32 = 256;

/// Makes the functions that answer calls of `odd-function`. Each attempt gets one of the answers.
fn answer_with_functions(app: &App, random: &mut Random) {
    let mut db = app.db();
    let rows = hostile::answers(random, ANSWERS).join(", ");
    db.run(&format!(
        "CREATE TABLE public.answers (n int PRIMARY KEY, waits jsonb, decides jsonb, asked jsonb);
         GRANT SELECT ON public.answers TO PUBLIC;
         INSERT INTO public.answers VALUES {rows}"
    ));
    for name in ["waits", "decides", "asked"] {
        db.run(&format!(
            "CREATE FUNCTION public.{name}(request jsonb) RETURNS jsonb LANGUAGE sql AS
             $$ SELECT {name} FROM public.answers WHERE n = (hashtext(request::text) & {}) $$",
            ANSWERS - 1
        ));
    }
}

/// Claims calls for the pull worker. Each is returned with its token.
fn claim(db: &mut Db) -> Result<Vec<(String, Call)>, SqlError> {
    let calls = db.try_all::<String>("SELECT to_jsonb(c)::text FROM xdb.claim_calls('worker-c', 5) AS c")?;
    let of = |text: &String| {
        let claimed: Value = serde_json::from_str(text).unwrap_or_default();
        let api = if claimed["api"] == "WAIT_UNTIL_API" { Api::WaitUntil } else { Api::Execute };
        let token = claimed["token"].as_str().unwrap_or_default().to_owned();
        (token, hostile::call(api, claimed["request"].clone()))
    };
    Ok(calls.iter().map(of).collect())
}

/// All functions of the extension that sessions may call. So new functions are included.
fn functions(superuser: &mut Db) -> Vec<Function> {
    let rows = superuser.rows(
        "SELECT p.proname AS name, p.pronargs - p.pronargdefaults AS needed,
            coalesce((SELECT jsonb_agg(jsonb_build_array(coalesce(p.proargnames[n], ''), format_type(p.proargtypes[n - 1], NULL)) ORDER BY n)
                FROM generate_series(1, p.pronargs) n), '[]') AS arguments
         FROM pg_proc p WHERE p.pronamespace = 'xdb'::regnamespace ORDER BY p.oid::regprocedure::text",
    );
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let function = |row: &Value| Function {
        name: text(&row["name"]),
        needed: row["needed"].as_u64().unwrap_or_default() as usize,
        arguments: row["arguments"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|argument| (text(&argument[0]), text(&argument[1])))
            .collect(),
    };
    rows.iter().map(function).collect()
}

/// Makes the calls of one session until the time is over. Returns the violations.
fn session(
    app: &App,
    number: usize,
    mut random: Random,
    functions: &[Function],
    until: Instant,
    counts: &Mutex<BTreeMap<String, u64>>,
) -> Vec<String> {
    let role = SESSIONS[number];
    let mut violations = Vec::new();
    let mut db = connect(app, role, number % 2 == 1);
    let mut in_transaction = 0;
    // Calls of the pull worker, with their tokens.
    let mut claimed: Vec<(String, Call)> = Vec::new();
    // A session that has used up its memory for good finds nothing more.
    let mut short_of_memory = 0;
    while Instant::now() < until && violations.len() < 5 {
        let mut claims = false;
        let sql = if in_transaction == 0 && random.permille(150) {
            in_transaction = random.between(1, 6) + 1;
            "BEGIN".to_owned()
        } else if let Some((token, call)) = claimed.pop() {
            hostile::pulled(&mut random, &token, &call)
        } else if role == "app" && random.permille(150) {
            claims = true;
            "xdb.claim_calls".to_owned()
        } else {
            call(&mut random, functions)
        };
        // No client can send more, or a zero byte.
        if sql.len() > LONGEST_STATEMENT || sql.contains('\0') {
            continue;
        }
        let done = if claims { claim(&mut db).map(|calls| claimed = calls) } else { db.try_run(&sql) };
        let code = match done {
            Ok(()) => "done".to_owned(),
            Err(error) => {
                if error.code.starts_with("XX") || error.code == "08006" {
                    violations.push(format!(
                        "{role}: {} {}: {}",
                        error.code,
                        error.message,
                        sql.chars().take(300).collect::<String>()
                    ));
                }
                if error.code == "08006" {
                    return violations;
                }
                if in_transaction > 0 {
                    db.run("ROLLBACK");
                }
                in_transaction = 0;
                short_of_memory = if error.code == codes::OUT_OF_MEMORY { short_of_memory + 1 } else { 0 };
                if short_of_memory == 20 {
                    db = connect(app, role, number % 2 == 1);
                    short_of_memory = 0;
                }
                error.code
            }
        };
        if in_transaction > 0 {
            in_transaction -= 1;
            if in_transaction == 0 && db.try_run(random.pick::<&str>(&["COMMIT", "ROLLBACK"])).is_err() {
                db.run("ROLLBACK");
            }
        }
        *counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).entry(code).or_default() += 1;
    }
    violations
}

fn connect(app: &App, role: &str, has_little_memory: bool) -> Db {
    let mut db = app.session(role);
    // What waits is to end soon.
    db.run("SET statement_timeout = '700ms'; SET lock_timeout = '500ms'");
    if has_little_memory {
        limit_memory(db.one("SELECT pg_backend_pid()"), LITTLE);
    }
    db
}

fn call(random: &mut Random, functions: &[Function]) -> String {
    // Processes that do something are what most mistakes need.
    let works = |function: &&Function| {
        ["start_process", "start_processes", "publish", "publish_global", "invoke_rpc", "schedule", "move_state"]
            .contains(&function.name.as_str())
    };
    let working: Vec<_> = functions.iter().filter(works).collect();
    let function = if random.permille(400) { random.pick(&working) } else { random.pick(functions) };
    let count = random.between(function.needed as u64, function.arguments.len() as u64) as usize;
    let arguments: Vec<_> =
        function.arguments[..count].iter().map(|(name, of_type)| values::argument(random, of_type, name)).collect();
    format!("SELECT * FROM xdb.{}({})", function.name, arguments.join(", "))
}

/// Checks what must hold after the hostile sessions have ended.
fn afterwards(app: &App, worker: Worker) -> Vec<String> {
    worker.heal();
    let mut violations = Vec::new();
    let mut superuser = app.superuser();
    superuser.run("SET statement_timeout = 0; SELECT xdb.pause_engine()");
    println!("{:>8}  executions", superuser.count("xdb.process_execution"));
    let problems: Vec<String> = superuser.all(
        "SELECT format('%s (%s): %s', left(p.process_id, 40), p.execution_id, c.problem)
         FROM xdb.process_execution p, LATERAL xdb.check_process(p.process_id, p.execution_id) c LIMIT 20",
    );
    violations.extend(problems);
    let log = app.cluster().log();
    if log::crashes(&log) > 0 {
        violations.push(format!("the server restarted {} times", log::crashes(&log)));
    }
    violations.extend(app.unexplained_errors(EXPLAINED).into_iter().take(20));
    violations
}
