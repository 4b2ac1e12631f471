//! Many sessions change the same processes and rows in any order, in transactions of several statements. They check for
//! deadlocks after a millisecond. Meanwhile the scheduler and its runners work on the same processes, with answers over
//! HTTP and of functions, and the sessions are pull workers too. Answers start children with ids that sessions use too,
//! parents end with their children, processes wait for locks of processes, guards repeat and interrupt, and old
//! processes are purged.
//!
//! Sessions are cancelled all the time. The engine is never cancelled, spends no attempt on deadlocks, and does
//! everything once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::options::small_or_large;
use xdb_cluster_tests::prelude::*;

const SESSIONS: usize = 10;

/// How long the storm lasts: 15 seconds, and nine minutes in its large form. After ten minutes the engine forgets that a
/// table was slow.
fn storm() -> Duration {
    Duration::from_secs(small_or_large(15, 540))
}

/// Processes that loop until they get the message to quit: plainly, under an exclusive lock, on a slow table, by
/// functions, by a pull worker. The last ones close repeatedly, unless there is a message.
const LOOPING: [&str; 12] = [
    "plain0",
    "plain1",
    "plain2",
    "locked0",
    "locked1",
    "locked2",
    "slow0",
    "slow1",
    "function0",
    "function1",
    "pulled0",
    "pulled1",
];
const DRAINING: [&str; 2] = ["drain0", "drain1"];

fn wait(seconds: f64) -> Answer {
    let inbox = json!({"localQueueCommands": {"commandId": "m", "queueName": "inbox", "atLeast": 1, "atMost": 20}});
    any_of(&[inbox, timer("t", seconds), global_queue("g", "jobs", 1)])
}

/// A guard that waits for a message of `bark`, or for this time.
fn guard(seconds: f64, interrupting: bool) -> Value {
    let wait = json!({"waitingType": "AnyOfCompletion", "localQueueCommands": [{"queueName": "bark", "atMost": 20}],
        "timerCommands": [{"commandId": "t", "delayInSeconds": seconds}]});
    json!({"commandRequest": wait, "interrupting": interrupting})
}

fn handler(call: &Call) -> Answer {
    let drains = call.process_id().starts_with("drain");
    let got: Vec<_> = [call.messages("m"), call.messages("g")].concat();
    let answer = match (call.api, call.target()) {
        (Api::Rpc, _) => {
            let rpcs = call.global("rpcs").as_i64().unwrap_or_default() + 1;
            return output(json!(null)).publish("inbox", call.input().clone()).globals(json!({"rpcs": rpcs}));
        }
        (Api::WaitUntil, "Short") => return any_of(&[local_queue("m", "inbox", 1)]),
        (_, "Short" | "Hurry") => return force_complete(json!(null)),
        (_, "Watch") => return next("Watch", json!(null)),
        (Api::WaitUntil, "Kid") => return any_of(&[timer("t", 0.1)]),
        (_, "Kid") => return force_complete(json!(null)),
        (_, "Family") => return next("Kid", json!(null)).starting(json!([kid(0), kid(1), kid(2)])),
        (Api::WaitUntil, _) => return wait(if drains { 0.05 } else { 0.2 }),
        _ if drains => close_if_empty("inbox", "Loop"),
        _ if got.contains(&json!("quit")) => force_complete(json!(null)),
        _ if ["plain", "pulled"].iter().any(|kind| call.process_id().starts_with(kind)) => {
            next("Loop", json!(null)).starting(child(call))
        }
        _ => next("Loop", json!(null)),
    };
    if got.is_empty() { answer } else { answer.globals(json!({"got": got})) }
}

/// The functions that answer as the handler does.
fn functions() -> String {
    format!(
        "CREATE FUNCTION public.loop_wait(request jsonb) RETURNS jsonb LANGUAGE sql RETURN {wait};
         CREATE FUNCTION public.loop_execute(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
         DECLARE
             got CONSTANT jsonb := coalesce((SELECT jsonb_agg(m -> 'payload')
                 FROM jsonb_path_query(request, '$.commandResults.*[*].messages[*]') AS m), '[]');
             number CONSTANT int := split_part(request #>> '{{context,stateExecutionId}}', '-', 2);
             answer jsonb := {quit};
         BEGIN
             IF NOT got @> '[\"quit\"]' THEN
                 answer := {next} || jsonb_build_object('startProcesses', jsonb_build_array({kids} -> number % 3));
             END IF;
             IF got <> '[]' THEN
                 answer := answer || jsonb_build_object('writeToGlobalAttributes', jsonb_build_object('got', got));
             END IF;
             RETURN answer;
         END $$;
         CREATE FUNCTION public.poke(request jsonb) RETURNS jsonb LANGUAGE sql RETURN jsonb_build_object(
             'publishToLocalQueue', jsonb_build_array(jsonb_build_object('queueName', 'inbox', 'payload', request -> 'input')),
             'writeToGlobalAttributes', jsonb_build_object(
                 'rpcs', coalesce((request #>> '{{loadedGlobalAttributes,rpcs}}')::int, 0) + 1));",
        wait = jsonb(&wait(0.2).json()),
        quit = jsonb(&force_complete(json!(null)).json()),
        next = jsonb(&next("Loop", json!(null)).json()),
        kids = jsonb(&json!([kid(0), kid(1), kid(2)])),
    )
}

/// Every received message is recorded as an effect. In the engine, a trigger also writes a shared row, and publishes to
/// another process.
fn application() -> (App, Worker, Arc<Mutex<Vec<String>>>) {
    // No process reads the messages of `noise`, and the large form publishes many.
    let options = ClusterOptions::default().set("deadlock_timeout", "1ms").set("xdb.max_queue_messages", "10000000");
    let app = App::alone("deadlock_storm", options);
    app.db().run(
        "CREATE TABLE parents (id text PRIMARY KEY, touched int NOT NULL DEFAULT 0);
         CREATE TABLE work (id text PRIMARY KEY, parent text NOT NULL REFERENCES parents, plain int NOT NULL DEFAULT 0,
             rpcs int NOT NULL DEFAULT 0, got jsonb);
         CREATE TABLE slow_work (LIKE work INCLUDING ALL);
         CREATE TABLE effects (process text, message jsonb);
         CREATE FUNCTION effect() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.effects SELECT new.id, m FROM jsonb_array_elements(new.got) m;
             IF tg_table_name = 'slow_work' THEN PERFORM pg_sleep(0.3); END IF;
             UPDATE public.parents SET touched = touched + 1 WHERE id = new.parent;
             BEGIN PERFORM xdb.publish(CASE new.id WHEN 'plain0' THEN 'locked0' ELSE 'plain0' END, 'noise', '1');
             EXCEPTION WHEN SQLSTATE 'XD007' THEN NULL; END;
             RETURN new; END $$;
         CREATE TRIGGER effect AFTER UPDATE OF got ON work FOR EACH ROW EXECUTE FUNCTION effect();
         CREATE TRIGGER effect AFTER UPDATE OF got ON slow_work FOR EACH ROW EXECUTE FUNCTION effect();
         INSERT INTO parents VALUES ('x'), ('y');",
    );
    app.superuser().run("SELECT xdb.grant_usage('app', admin => true)");
    let again = Arc::new(Mutex::new(Vec::new()));
    let noted = again.clone();
    let worker = app.forgetful_worker(move |call: &Call| {
        // Calls that are given to the other scheduler are made again there, and nothing else is.
        if call.attempt() > 1 && !call.process_id().starts_with("slow") {
            noted.lock().unwrap().push(call.process_id().to_owned());
        }
        handler(call)
    });
    let looping = |config: Value, table: &str| {
        Definition::starting_with("Loop")
            .waiting_step_with("Loop", config.clone())
            .maps(table, "id", &["rpcs", "got"])
            .rpc("poke", config)
    };
    let exclusive = json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}});
    let watched = json!({"guards": ["Watch"]});
    let plain = looping(json!({}), "public.work").waiting_step_with("Watch", guard(0.4, false));
    app.register("plain", &plain.clone().waiting_step_with("Loop", watched.clone()));
    app.register("drain", &plain.with("guards", json!(["Watch"])));
    app.register("locked", &looping(exclusive, "public.work"));
    app.register("slow", &looping(json!({}), "public.slow_work"));
    app.db().run(&functions());
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    // Pull workers answer no RPCs.
    let poked = |config: Value| {
        let definition = Definition::starting_with("Loop").waiting_step_with("Loop", config);
        definition.maps("public.work", "id", &["rpcs", "got"]).rpc("poke", json!({"function": "public.poke"}))
    };
    let pulled = poked(json!({})).waiting_step_with("Loop", watched).waiting_step_with("Watch", guard(0.4, false));
    app.register_with("pull", "pulled", &pulled);
    let function = poked(json!({"waitUntilFunction": "public.loop_wait", "executeFunction": "public.loop_execute"}));
    let register = format!("SELECT xdb.register_process_type('function', NULL, {})", jsonb(function.json()));
    app.superuser().run(&register);
    let short = Definition::starting_with("Short").waiting_step_with("Short", json!({"guards": ["Hurry"]}));
    app.register("short", &short.waiting_step_with("Hurry", guard(0.3, true)));
    app.register("kid", &Definition::starting_with("Kid").waiting_step("Kid"));
    app.register("family", &Definition::starting_with("Family").step("Family").waiting_step("Kid"));
    let mut db = app.db();
    for (n, id) in (0..).zip(LOOPING.iter().chain(&DRAINING)) {
        let table = if id.starts_with("slow") { "slow_work" } else { "work" };
        db.run(&format!("INSERT INTO {table} VALUES ('{id}', '{}')", if n % 2 == 0 { "x" } else { "y" }));
        start(&mut db, id).expect("a start");
    }
    (app, worker, again)
}

fn start(db: &mut Db, id: &str) -> Result<String, SqlError> {
    db.start(id, id.trim_end_matches(|c: char| c.is_ascii_digit())).key(id).try_go()
}

/// A child with one of three ids, in the place of the one that runs.
fn child(call: &Call) -> Value {
    let number = call.state_execution_id().rsplit('-').next().and_then(|number| number.parse::<u32>().ok());
    json!([kid(number.unwrap_or_default() % 3)])
}

fn kid(number: u32) -> Value {
    json!({"processType": "kid", "processId": format!("kid{number}"), "idReusePolicy": "TERMINATE_IF_RUNNING",
        "onClose": "noise", "options": {"locks": [format!("lock{number}")]}})
}

/// The effects of committed transactions.
#[derive(Default)]
struct Done {
    /// Messages that were published once, by process and message.
    published: BTreeSet<(String, String)>,
    /// Messages that were published to all.
    shared: BTreeSet<String>,
    /// Ids of messages that no process reads.
    kept: BTreeSet<String>,
    plain: BTreeMap<String, i64>,
    rpcs: BTreeMap<String, i64>,
    /// The errors of transactions that did not commit, with their numbers.
    errors: BTreeMap<String, usize>,
}

impl Done {
    fn absorb(&mut self, other: Done) {
        self.published.extend(other.published);
        self.shared.extend(other.shared);
        self.kept.extend(other.kept);
        for (mine, others) in [(&mut self.plain, other.plain), (&mut self.rpcs, other.rpcs)] {
            others.into_iter().for_each(|(id, count)| *mine.entry(id).or_default() += count);
        }
        other.errors.into_iter().for_each(|(code, count)| *self.errors.entry(code).or_default() += count);
    }
}

/// Random numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// One statement of a transaction, and its effects if the transaction commits.
fn statement(dice: &mut Dice, unique: &str, will: &mut Done) -> String {
    let ids = [&LOOPING[..], &DRAINING[..]].concat();
    let id = ids[dice.below(ids.len())];
    let (short, number) = (format!("short{}", dice.below(3)), dice.below(6));
    let table = if id.starts_with("slow") { "slow_work" } else { "work" };
    let mut publish = |to: &str, message: &str| {
        will.published.insert((to.to_owned(), message.to_owned()));
    };
    match dice.below(26) {
        0 | 1 => {
            publish(id, unique);
            format!("SELECT xdb.publish('{id}', 'inbox', '\"{unique}\"')")
        }
        2 => {
            // An id that other sessions use too. Each process gets it once.
            let id = LOOPING[dice.below(LOOPING.len())];
            publish(id, &format!("one of {id}-{number}"));
            format!("SELECT xdb.publish('{id}', 'inbox', '\"one of {id}-{number}\"', 'once-{number}')")
        }
        3 | 4 => {
            publish(id, unique);
            *will.rpcs.entry(id.to_owned()).or_default() += 1;
            format!("SELECT xdb.invoke_rpc('{id}', 'poke', '\"{unique}\"')")
        }
        5 => format!("SELECT xdb.set_local_attributes('{id}', '{{\"k\": {number}}}')"),
        6 => format!("SELECT xdb.retry_now('{id}')"),
        7 => {
            format!("SELECT xdb.skip_timer(process_id, state_execution_id, 't') FROM xdb.timers WHERE process_id = '{id}'")
        }
        8 | 9 => {
            *will.plain.entry(id.to_owned()).or_default() += 1;
            format!("UPDATE {table} SET plain = plain + 1 WHERE id = '{id}'")
        }
        10 => format!("UPDATE parents SET touched = touched + 1 WHERE id = '{}'", ["x", "y"][number % 2]),
        11 if number < 3 => {
            will.shared.insert(unique.to_owned());
            format!("SELECT xdb.publish_global('jobs', '\"shared {unique}\"', message_id => '{unique}')")
        }
        11 => {
            // An id that other sessions use too. No process reads the message, so it stays one message.
            will.kept.insert(number.to_string());
            format!("SELECT xdb.publish_global('kept', '1', message_id => '{number}')")
        }
        12 => format!(
            "SELECT count(*) FROM xdb.start_processes('[
                 {{\"process_id\": \"{short}\", \"process_type\": \"short\", \"id_reuse_policy\": \"TERMINATE_IF_RUNNING\"}},
                 {{\"process_id\": \"short0\", \"process_type\": \"short\", \"id_reuse_policy\": \"TERMINATE_IF_RUNNING\"}}]')"
        ),
        13 => format!("SELECT xdb.stop_process('{short}')"),
        14 => "SELECT xdb.purge('0 s')".to_owned(),
        15 | 16 => format!("SELECT xdb.stop_process('kid{}')", number % 3),
        17 => format!("SELECT xdb.start_process('kid{}', 'kid', id_reuse_policy => 'TERMINATE_IF_RUNNING')", number % 3),
        18 => format!("SELECT xdb.start_process('family{}', 'family', id_reuse_policy => 'TERMINATE_IF_RUNNING')", number % 2),
        19 => format!("SELECT xdb.stop_process('family{}')", number % 2),
        20 => {
            // Three locks in any order, each alone or shared.
            let lock = |n: usize| match (number + n) % 2 {
                0 => format!("\"lock{}\"", (number + n) % 3),
                _ => format!("{{\"name\": \"lock{}\", \"mode\": \"SHARE\"}}", (number + n) % 3),
            };
            let locks = format!("{{\"locks\": [{}, {}, {}]}}", lock(0), lock(1), lock(2));
            format!(
                "SELECT xdb.start_process('locker{}', 'kid', id_reuse_policy => 'TERMINATE_IF_RUNNING', options => '{locks}')",
                number % 3
            )
        }
        21 => format!("SELECT xdb.stop_process('locker{}')", number % 3),
        22 => format!(
            "SELECT xdb.move_state(process_id, state_execution_id, '[{{\"stateId\": \"Loop\"}}]')
             FROM xdb.state_executions WHERE process_id = '{id}' AND status = 'WAITING'
                 AND state_execution_id LIKE 'Loop-%' LIMIT 1"
        ),
        23 => format!("SELECT xdb.publish('{id}', 'bark', '1')"),
        24 => format!("SELECT xdb.publish('{short}', 'bark', '1')"),
        _ => format!("SELECT FROM {table} WHERE id = '{id}' FOR UPDATE"),
    }
}

/// Completes the calls that are due at the pull worker. A session that is cancelled in a deadlock completes its call
/// again, unless another session has stopped the process meanwhile.
fn pull(db: &mut Db, done: &mut Done) {
    for row in db.rows("SELECT token, api, request FROM xdb.claim_calls('pull', 2)") {
        let token = literal(row["token"].as_str().unwrap_or_default());
        let complete = format!("SELECT xdb.complete_call({token}, {})", jsonb(&handler(&Call::claimed(&row)).json()));
        while let Err(error) = db.try_run(&complete) {
            if error.code == codes::CALL_IS_LOST {
                break;
            }
            assert_eq!(error.code, "40P01", "{error:?}");
            *done.errors.entry(error.code).or_default() += 1;
        }
    }
}

/// The errors that a transaction of the storm may get, besides a deadlock.
const MET: [&str; 6] = [
    codes::NOT_RUNNING,
    codes::UNKNOWN_PROCESS,
    codes::UNKNOWN_STATE,
    codes::NOT_WAITING,
    codes::ALREADY_STARTED,
    codes::LOCKS_NOT_GRANTED,
];

fn session(app: &App, number: usize) -> Done {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1));
    let (mut db, mut done) = (app.db(), Done::default());
    let until = Instant::now() + storm();
    let mut transactions = 0;
    while Instant::now() < until {
        transactions += 1;
        let mut will = Done::default();
        let mut run = |db: &mut Db| -> Result<(), SqlError> {
            db.try_run("BEGIN")?;
            for step in 0..2 + dice.below(3) {
                let sql = statement(&mut dice, &format!("{number}-{transactions}-{step}"), &mut will);
                db.try_run(&sql)?;
            }
            db.try_run("COMMIT")
        };
        match run(&mut db) {
            Ok(()) => done.absorb(will),
            Err(error) => {
                assert!(error.code == "40P01" || MET.contains(&&*error.code), "{error:?}");
                *done.errors.entry(error.code).or_default() += 1;
                db.run("ROLLBACK");
            }
        }
        pull(&mut db, &mut done);
        let draining = DRAINING[number % DRAINING.len()];
        if transactions % 3 == 0
            && let Err(error) = start(&mut db, draining)
        {
            assert!(error.code == codes::ALREADY_STARTED || error.code == "40P01", "{error:?}");
            *done.errors.entry(error.code).or_default() += 1;
        }
    }
    done
}

#[test]
fn sessions_in_any_order_are_cancelled_and_the_engine_never_is() {
    let (app, _worker, again) = application();
    app.cluster().set("xdb.retention", "1");
    let all = Mutex::new(Done::default());
    at_once(SESSIONS, |number| {
        let done = session(&app, number);
        all.lock().unwrap().absorb(done);
    });
    let mut done = all.into_inner().unwrap();
    app.cluster().set("xdb.retention", "7d");
    let mut db = app.db();
    LOOPING.iter().for_each(|id| db.publish(id, "inbox", json!("quit")));
    wait_until("the processes of the pull worker have ended", 60, || {
        pull(&mut db, &mut done);
        views::with_status(&mut db, "pulled%", "RUNNING") == 0
    });
    LOOPING.iter().for_each(|id| drop(db.completes(id)));
    let mut superuser = app.superuser();
    for ids in ["family%", "kid%", "locker%"] {
        wait_until("those that close by themselves have closed", 60, || {
            views::with_status(&mut superuser, ids, "RUNNING") == 0
        });
    }
    wait_until("no lock is left", 20, || superuser.count("xdb.process_lock") == 0);
    let started = "xdb.history WHERE event_type = 'ProcessStarted' AND details ? 'startedBy'";
    assert!(superuser.count(started) > 0, "children were started");
    for ids in ["plain%", "pulled%"] {
        let triggered = "event_type = 'WaitCompleted' AND details ? 'guards'";
        let count = superuser.count(&format!("xdb.history WHERE process_id LIKE '{ids}' AND {triggered}"));
        assert!(count > 0, "no guard of a state of {ids} has triggered");
    }
    wait_until("what drains has closed", 60, || views::with_status(&mut superuser, "drain%", "RUNNING") == 0);

    let mut effects: Vec<String> = superuser
        .all("SELECT process || ': ' || (message #>> '{}') FROM effects WHERE message::text NOT LIKE '\"shared %'");
    let mut expected: Vec<_> = done.published.iter().map(|(id, message)| format!("{id}: {message}")).collect();
    expected.extend(LOOPING.iter().map(|id| format!("{id}: quit")));
    effects.sort();
    expected.sort();
    assert_eq!(effects, expected, "each message once, and no other");
    let of_all = |queue: &str| format!("SELECT message_id FROM xdb.global_message WHERE queue_name = '{queue}'");
    let mut shared: Vec<String> =
        superuser.all("SELECT substr(message #>> '{}', 8) FROM effects WHERE message::text LIKE '\"shared %'");
    shared.extend(superuser.all::<String>(&of_all("jobs")));
    shared.sort();
    assert_eq!(shared, done.shared.into_iter().collect::<Vec<_>>(), "each of those for all once");
    let mut kept: Vec<String> = superuser.all(&of_all("kept"));
    kept.sort();
    assert_eq!(kept, done.kept.into_iter().collect::<Vec<_>>(), "each id once");
    for (id, count) in &done.plain {
        let table = if id.starts_with("slow") { "slow_work" } else { "work" };
        assert_eq!(
            superuser.one::<i32>(&format!("SELECT plain FROM {table} WHERE id = '{id}'")),
            *count as i32,
            "{id}"
        );
    }
    for (id, count) in done.rpcs.iter().filter(|(id, _)| id.starts_with("locked")) {
        assert_eq!(superuser.one::<i32>(&format!("SELECT rpcs FROM work WHERE id = '{id}'")), *count as i32, "{id}");
    }
    assert!(views::engine(&mut superuser).contains("slow_work"), "the other scheduler was at work too");

    let spent = "xdb.history WHERE event_type IN ('AttemptFailed', 'AttemptsFolded', 'StateFailed')";
    assert_eq!(superuser.count(spent), 0, "no attempt was spent");
    assert_eq!(*again.lock().unwrap(), Vec::<String>::new(), "no call was made twice");
    let cancelled = done.errors.get("40P01").copied().unwrap_or_default() as i64;
    assert!(cancelled > 0, "no session was in a deadlock: {:?}", done.errors);
    let counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    wait_until("the server has counted them", 20, || superuser.one::<i64>(counted) >= cancelled);
    assert_eq!(superuser.one::<i64>(counted), cancelled, "all of them were the sessions'");
    let engine = |line: &&str| line.contains("<xdb") && (line.contains("deadlock") || line.contains("40P01"));
    assert_eq!(app.cluster().log().lines().find(engine), None);
    app.done(&[]);
}
