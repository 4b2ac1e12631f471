//! Processes of many kinds in the middle of their work, for tests of what happens to a database meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::app::App;
use crate::db::Db;
use crate::definition::{Definition, quick_retries};
use crate::views;
use crate::wait::wait_until;
use crate::worker::{
    Answer, Api, Call, Reply, Worker, any_of, dead_end, error, global_queue, graceful_complete, local_queue, next,
    next_all, output, timer,
};

/// Processes of each kind.
pub const OF_EACH: usize = 5;

/// How often a counting process counts before it waits.
const COUNTS: u64 = 3;

const KINDS: [&str; 6] = ["counting", "failing", "joining", "sharing", "slow", "timed"];

/// The processes, and the worker that they wait for.
pub struct HalfWay {
    pub worker: Worker,
    healed: Arc<AtomicBool>,
}

impl HalfWay {
    /// Registers process types and starts processes of each. When this returns, the processes wait for messages and
    /// timers, hang in a call, or are retried after failures.
    pub fn start(app: &App) -> HalfWay {
        let healed = Arc::new(AtomicBool::new(false));
        let worker = app.worker({
            let healed = Arc::clone(&healed);
            move |call: &Call| handle(call, healed.load(Ordering::Relaxed))
        });
        register(app);
        let mut db = app.db();
        for kind in KINDS {
            start(&mut db, kind, "");
        }
        for number in 0..OF_EACH {
            assert_eq!(db.rpc(&format!("counting{number}"), "look", json!(number)), json!(number));
            db.publish(&format!("counting{number}"), "inbox", json!("early"));
        }
        let waiting = (OF_EACH * 4) as i64;
        wait_until("most of them wait", 30, || {
            db.count("xdb.state_executions WHERE status = 'WAITING'") == waiting
                && db.count("xdb.queue_messages WHERE received AND queue_name = 'inbox'") == OF_EACH as i64
        });
        worker.wait_for_count("the slow calls are under way", 20, OF_EACH, |call| call.target() == "Slow");
        worker.wait_for("one of them fails", 20, |call| call.target() == "Fail" && call.attempt() > 1);
        HalfWay { worker, healed }
    }

    /// Starts more processes of the kind that begins by waiting, while the others are half-way.
    pub fn start_more(&self, db: &mut Db, suffix: &str) {
        start(db, "counting", suffix);
    }

    /// Lets all processes complete, and checks what each has done.
    pub fn finish(&self, db: &mut Db, suffixes: &[&str]) {
        self.healed.store(true, Ordering::Relaxed);
        self.worker.release();
        for number in 0..OF_EACH {
            let id = |kind: &str, suffix: &str| format!("{kind}{number}{suffix}");
            for suffix in suffixes {
                let counting = id("counting", suffix);
                db.publish(&counting, "inbox", json!("late"));
                let early: &[&str] = if suffix.is_empty() { &["early", "late"] } else { &["late"] };
                let missing = 2 - early.len();
                (0..missing).for_each(|_| db.publish(&counting, "inbox", json!("later")));
                let messages: Vec<&str> = early.iter().copied().chain(std::iter::repeat_n("later", missing)).collect();
                assert_eq!(db.completes(&counting).result(), &json!({"messages": messages, "seen": "yes"}));
            }
            db.run(&format!("SELECT xdb.publish_global('box', '{number}')"));
            db.publish(&id("joining", ""), "parts", json!("last"));
            db.run(&format!("SELECT xdb.skip_timer('{}', 'Sleep-1')", id("timed", "")));
            for (kind, result) in [
                ("failing", json!("healed")),
                ("joining", json!(["part", "part", "last"])),
                ("slow", json!("slow")),
                ("timed", json!("awake")),
            ] {
                assert_eq!(db.completes(&id(kind, "")).result(), &result, "{kind}");
            }
        }
        let mut shared: Vec<i64> = Vec::new();
        for number in 0..OF_EACH {
            shared.extend(db.completes(&format!("sharing{number}")).result().as_i64());
        }
        shared.sort_unstable();
        assert_eq!(shared, (0..OF_EACH as i64).collect::<Vec<_>>());
        let counted = (OF_EACH * suffixes.len()) as i64;
        let after = COUNTS + 1;
        assert_eq!(db.count(&format!("counters WHERE id LIKE 'counting%' AND n = {after}")), counted);
        assert_eq!(db.count("counters WHERE id LIKE 'slow%' AND n = 1"), OF_EACH as i64);
        assert_eq!(views::with_status(db, "%", "RUNNING"), 0);
        assert_eq!(db.count("xdb.queue_messages"), 0);
    }
}

fn register(app: &App) {
    let lock = json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}});
    let maps = |definition: Definition| definition.maps("public.counters", "id", &["n"]);
    let counting = Definition::starting_with("Count")
        .step("Count")
        .waiting_step("Wait")
        .step_with("Again", lock)
        .with("localAttributes", json!(["seen"]))
        .with("localQueues", json!(["inbox"]))
        .rpc("look", json!({"timeoutSeconds": 20}));
    let retried = json!({"executeApiRetryPolicy": quick_retries()});
    let long = json!({"executeApiTimeoutSeconds": 120});
    app.register("counting", &maps(counting));
    app.register("failing", &Definition::starting_with("Fail").step_with("Fail", retried));
    app.register("slow", &maps(Definition::starting_with("Slow").step_with("Slow", long)));
    // By its name too: a release before 0.3.0 knows of no other way.
    let sharing = Definition::starting_with("Share").waiting_step("Share");
    app.register("sharing", &sharing.with("globalQueues", json!(["*", "box"])));
    let joining = Definition::starting_with("Fan").step("Fan").step("Part").waiting_step("Join");
    app.register("joining", &joining.with("localQueues", json!(["parts"])));
    app.register("timed", &Definition::starting_with("Sleep").waiting_step("Sleep"));
}

fn start(db: &mut Db, kind: &str, suffix: &str) {
    for number in 0..OF_EACH {
        let id = format!("{kind}{number}{suffix}");
        match kind {
            "counting" | "slow" => db.start(&id, kind).key(&id).globals(json!({"n": 0})).go(),
            _ => db.start(&id, kind).go(),
        };
    }
}

fn handle(call: &Call, healed: bool) -> Reply {
    match (call.api, call.target()) {
        (Api::WaitUntil, "Wait") => any_of(&[timer("t", 3600.0), local_queue("m", "inbox", 2)]).into(),
        (Api::WaitUntil, "Share") => any_of(&[global_queue("m", "box", 1)]).into(),
        (Api::WaitUntil, "Join") => any_of(&[local_queue("m", "parts", 3)]).into(),
        (Api::WaitUntil, "Sleep") => any_of(&[timer("t", 7200.0)]).into(),
        (Api::Rpc, "look") => output(call.input().clone()).into(),
        (_, "Count") if n(call) + 1 < COUNTS => counted(next("Count", json!(null)), call).into(),
        (_, "Count") => counted(next("Wait", json!(null)).locals(json!({"seen": "yes"})), call).into(),
        (_, "Wait") => next("Again", json!({"messages": call.messages("m"), "seen": call.local("seen")})).into(),
        (_, "Again") => counted(graceful_complete(call.input().clone()), call).into(),
        (_, "Slow") if healed => counted(graceful_complete(json!("slow")), call).into(),
        (_, "Slow") => Reply::hang(counted(graceful_complete(json!("slow")), call)),
        (_, "Fail") if healed => graceful_complete(json!("healed")).into(),
        (_, "Fail") => error(503, "busy", "later"),
        (_, "Fan") => next_all(&[("Part", json!(null)), ("Part", json!(null)), ("Join", json!(null))]).into(),
        (_, "Part") => dead_end().publish("parts", json!("part")).into(),
        (_, "Share") => graceful_complete(call.messages("m").remove(0)).into(),
        (_, "Join") => graceful_complete(json!(call.messages("m"))).into(),
        (_, "Sleep") => graceful_complete(json!("awake")).into(),
        (api, target) => panic!("unexpected call: {api:?} of {target}"),
    }
}

fn n(call: &Call) -> u64 {
    call.global("n").as_u64().unwrap_or_default()
}

fn counted(answer: Answer, call: &Call) -> Answer {
    answer.globals(json!({"n": n(call) + 1}))
}
