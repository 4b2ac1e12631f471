//! The application: clients start processes of every shape, publish, call RPCs, stop, watch, and roll back.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use serde_json::{Value, json};
use xdb_cluster_tests::codes;
use xdb_cluster_tests::db::{Db, SqlError, jsonb, literal};

use crate::hand::Urgent;
use crate::record::{Fate, Message, Rpc, Seen, Start};
use crate::schema::{COUNTERS, MERGE_KEYS, SHARED_ROWS};
use crate::session::{Attempt, Session};
use crate::shapes::Shape;
use crate::world::World;
use xdb_cluster_tests::random::Random;

/// One client. For each process that it starts, it runs the story of its shape.
pub struct Client<'a> {
    world: &'a World,
    session: Session<'a>,
    random: Random,
    /// The beginning of the ids of its processes.
    name: String,
    number: u64,
    /// Some of its processes have a priority. While calls with a priority exist, no other call follows at once from an
    /// answer. So some rounds have no priorities.
    with_priorities: bool,
}

/// A start that is being built.
struct Plan {
    shape: Shape,
    /// One of the shape's process types.
    process_type: String,
    /// One of the shape's ways, or nothing.
    way: &'static str,
    process_id: String,
    request: String,
    length: u64,
    last: bool,
    /// How much of the history is kept.
    history: Value,
    priority: Option<i64>,
    locks: Value,
    starting_state: Option<&'static str>,
    /// More of the input.
    input: Value,
}

impl Plan {
    fn start(&self, fate: Fate) -> Start {
        Start { shape: self.shape, way: self.way, fate, length: self.length, last: self.last }
    }

    fn options(&self) -> Value {
        json!({"requestId": self.request, "history": self.history, "priority": self.priority, "locks": self.locks,
            "startingState": self.starting_state})
    }

    /// `start_process` as an expression, and the application's row that stands for the start.
    fn sql(&self, milliseconds: u64) -> (String, String) {
        let key = match self.shape {
            Shape::Shared => format!("s{}", milliseconds % SHARED_ROWS),
            Shape::Counter => format!("x{}", milliseconds % COUNTERS),
            _ => self.process_id.clone(),
        };
        let policy = if self.shape == Shape::Reuse { "TERMINATE_IF_RUNNING" } else { "ALLOW_IF_NO_RUNNING" };
        let timeout = if self.shape == Shape::Timeout { "interval '1200 ms'" } else { "NULL" };
        let shares = matches!(self.shape, Shape::Shared | Shape::Counter);
        let mut input = json!({"left": self.length, "milliseconds": milliseconds});
        if let (Some(input), Value::Object(more)) = (input.as_object_mut(), self.input.clone()) {
            input.extend(more);
        }
        let globals = if shares { "NULL" } else { "'{\"n\": 0}'" };
        let start = format!(
            "xdb.start_process({id}, '{kind}', {input}, global_attribute_pk => {key}, global_attributes => {globals}, \
             id_reuse_policy => '{policy}', timeout => {timeout}, options => {options})",
            id = literal(&self.process_id),
            kind = self.process_type,
            input = jsonb(&input),
            key = literal(&key),
            options = jsonb(&self.options()),
        );
        let order = format!(
            "INSERT INTO orders VALUES ({}, {}) ON CONFLICT DO NOTHING",
            literal(&self.request),
            literal(&self.process_id)
        );
        (start, order)
    }
}

impl<'a> Client<'a> {
    pub fn new(world: &'a World, name: String, with_priorities: bool) -> Client<'a> {
        let random = Random::new(world.seed, &format!("client {name}"));
        Client { world, session: Session::new(world, "app"), random, name, number: 0, with_priorities }
    }

    /// Works until the round is over.
    pub fn run(mut self) {
        while !self.world.stopping() {
            if self.world.ahead.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            self.story();
        }
    }

    fn story(&mut self) {
        if self.world.behind.load(Ordering::Relaxed) && self.random.permille(500) {
            return self.bulk();
        }
        match self.random.below(190) {
            0..6 => self.plain(Shape::Chain),
            6..11 => self.plain(Shape::Counter),
            11..15 => self.pool(),
            15..25 => self.plain(Shape::Timer),
            25..38 => self.mailbox(Shape::Mailbox),
            38..46 => self.plain(Shape::Fan),
            46..60 => self.conditional(),
            60..68 => self.rpcs(Shape::Rpc),
            68..71 => self.plain(Shape::Recover),
            71..73 => self.plain(Shape::Fail),
            73..76 => self.plain(Shape::Timeout),
            76..79 => self.stop(),
            79..82 => self.reuse(),
            82..87 => self.plain(Shape::Shared),
            87..90 => self.plain(Shape::Refused),
            90..93 => self.late_commit(),
            93..97 => self.rolled_back(),
            97..99 => self.lost(),
            99..106 => self.plain(Shape::Steps),
            106..110 => self.mailbox(Shape::Letters),
            110..113 => self.rpcs(Shape::Letters),
            113..120 => self.plain(Shape::Claimed),
            120..124 => self.mailbox(Shape::Parcels),
            124..128 => self.plain(Shape::Tally),
            128..133 => self.merges(),
            133..136 => self.plain(Shape::Incident),
            136..139 => self.plain(Shape::Delayed),
            139..152 => self.guarded(),
            152..160 => self.watched(),
            160..166 => self.plain(Shape::Race),
            166..175 => self.saga(),
            175..183 => self.family(),
            183..189 => self.mailbox(Shape::Moved),
            _ => self.bulk(),
        }
    }

    fn plan(&mut self, shape: Shape) -> Plan {
        self.number += 1;
        let way = shape.ways();
        let way = if way.is_empty() { "" } else { *self.random.pick(way) };
        let mut process_id = format!("{}-{}-{}", shape.name(), self.name, self.number);
        if !way.is_empty() {
            process_id = format!("{process_id}-{way}");
        }
        // A pull worker fails no state for good.
        let is_claimed = shape.has_twin() && way != "fail" && self.random.permille(400);
        let process_type = if is_claimed { shape.twin() } else { shape.name().to_owned() };
        let length = match shape {
            Shape::Chain | Shape::Mailbox | Shape::Fan | Shape::Moved => self.random.between(2, 4),
            Shape::Watched | Shape::Saga | Shape::Parent => self.random.between(2, 4),
            Shape::Race => self.random.between(1, 3),
            Shape::Steps | Shape::Claimed | Shape::Letters | Shape::Parcels => self.random.between(2, 4),
            Shape::Timer | Shape::Rpc | Shape::Conditional | Shape::Delayed => self.random.between(1, 2),
            Shape::Reuse => 3,
            _ => 1,
        };
        let history = match self.random.below(10) {
            0 => json!("none"),
            1 => json!({"keepLast": self.random.between(1, 6)}),
            _ => json!("full"),
        };
        let priority =
            (self.with_priorities && self.random.permille(200)).then(|| self.random.between(0, 20) as i64 - 10);
        // Those of other shapes have RPCs or timeouts, which don't wait for a lock.
        let locks = match shape {
            Shape::Chain | Shape::Timer | Shape::Fan if self.random.permille(150) => self.locks(),
            _ => json!([]),
        };
        Plan {
            shape,
            process_type,
            way,
            request: process_id.clone(),
            process_id,
            length,
            last: true,
            history,
            priority,
            locks,
            starting_state: None,
            input: json!({}),
        }
    }

    /// One or two of a few locks, some of them shared.
    fn locks(&mut self) -> Value {
        let first = self.random.below(6);
        let mut names = vec![first];
        if self.random.permille(400) {
            names.push((first + 1 + self.random.below(5)) % 6);
        }
        let mut lock = |name: u64| match self.random.permille(300) {
            true => json!({"name": format!("lock-{name}"), "mode": "SHARE"}),
            false => json!(format!("lock-{name}")),
        };
        names.into_iter().map(&mut lock).collect()
    }

    fn count(&self, processes: u64) {
        self.world.started.fetch_add(processes, Ordering::Relaxed);
    }

    /// Starts a process, with the application's own row in the same transaction. Repeats that until the result is
    /// known.
    fn started(&mut self, shape: Shape) -> Option<Plan> {
        let plan = self.plan(shape);
        self.start(&plan, "").then_some(plan)
    }

    fn start(&mut self, plan: &Plan, more: &str) -> bool {
        let (start, order) = plan.sql(self.random.between(150, 900));
        let sql = format!("BEGIN; {order}; SELECT {start}; {more} COMMIT");
        let outcome = self.session.settle_run(&format!("the start of {}", plan.process_id), &sql);
        let fate = self.fate("start", &plan.process_id, &outcome);
        self.world.record.start(&plan.request, &plan.process_id, plan.start(fate));
        if fate == Fate::Acknowledged {
            self.count(1);
            self.world.offer(&plan.process_id);
        }
        fate == Fate::Acknowledged
    }

    fn fate<T>(&self, what: &str, which: &str, outcome: &Result<T, SqlError>) -> Fate {
        fate(self.world, &self.session, what, which, outcome)
    }

    fn plain(&mut self, shape: Shape) {
        self.started(shape);
    }

    fn publish_sql(process_id: &str, uid: &str) -> String {
        let payload = jsonb(&json!({"uid": uid}));
        format!("xdb.publish({}, 'inbox', {payload}, {})", literal(process_id), literal(uid))
    }

    /// Publishes. Sometimes publishes the same message again.
    fn publish(&mut self, process_id: &str, place: u64) {
        let uid = format!("{process_id}/m{place}");
        let sql = format!("SELECT {}", Self::publish_sql(process_id, &uid));
        let outcome = self.session.settle_run(&format!("message {uid}"), &sql);
        let fate = self.fate("publish", &uid, &outcome);
        self.world.record.message(&uid, Message { process_id: process_id.to_owned(), fate, place });
        if fate == Fate::Acknowledged && self.random.permille(250) {
            // Whatever the result of the repeat, the message was published once. The process may have closed meanwhile.
            let again = self.session.settle_run(&format!("message {uid} again"), &sql);
            self.fate("publish", &uid, &again);
        }
    }

    fn mailbox(&mut self, shape: Shape) {
        let Some(plan) = self.started(shape) else { return };
        // Without rests, the process begins to take messages when they all have arrived. With them, each may arrive in the
        // turn in which the process closes, because it found its inbox empty.
        let rests = self.random.permille(500);
        for place in 1..=plan.length {
            if rests && place > 1 {
                std::thread::sleep(Duration::from_millis(self.random.below(100)));
            }
            self.publish(&plan.process_id, place);
        }
    }

    /// Publishes messages with which steps and guards of a process race. A process that another one has ended gets no
    /// more.
    fn race(&mut self, process_id: &str, queues: &[&str]) {
        let payload = |queue: &str| jsonb(&json!({"uid": format!("{process_id}/{queue}")}));
        let publish =
            |queue: &&str| format!("xdb.publish({}, '{queue}', {}, '{queue}')", literal(process_id), payload(queue));
        let publishes: Vec<_> = queues.iter().map(publish).collect();
        let statements = match self.random.permille(500) {
            true => vec![format!("SELECT {}", publishes.join(", "))],
            false => publishes.iter().map(|publish| format!("SELECT {publish}")).collect(),
        };
        for sql in statements {
            let outcome = self.session.settle_run(&format!("a message to {process_id}"), &sql);
            self.fate("publish", process_id, &outcome);
        }
    }

    /// A message for the step, for one of its guards, or for all of them.
    fn guarded(&mut self) {
        let Some(plan) = self.started(Shape::Guarded) else { return };
        let mut queues = match plan.way {
            "ship" => vec!["inbox"],
            "recall" => vec!["recall"],
            "cancel" => vec!["cancel"],
            "any" => vec!["inbox", "recall", "cancel"],
            _ => return,
        };
        self.random.shuffle(&mut queues);
        self.race(&plan.process_id, &queues);
    }

    fn watched(&mut self) {
        let Some(plan) = self.started(Shape::Watched) else { return };
        if plan.way == "halt" {
            self.race(&plan.process_id, &["halt"]);
        }
    }

    fn saga(&mut self) {
        let Some(plan) = self.started(Shape::Saga) else { return };
        if plan.way == "cancel" {
            self.race(&plan.process_id, &["cancel"]);
        }
    }

    /// A process that starts others. Its effect names them, each with the statuses in which it may end.
    fn family(&mut self) {
        let mut plan = self.plan(Shape::Parent);
        let children: Vec<_> = (0..plan.length).map(|number| self.child(&plan.process_id, number, plan.way)).collect();
        let (then, count) = match plan.way {
            "await" => ("Await", plan.length),
            "stop" => ("Await", plan.length + 1),
            _ => ("Done", 0),
        };
        plan.starting_state = self.random.permille(400).then_some("Beget");
        plan.input = of_parent(children, then, count);
        // Its children have begun, or not.
        let milliseconds = self.random.below(600);
        plan.input["delay"] = json!(milliseconds as f64 / 1000.0);
        if self.start(&plan, "") && plan.way == "stop" {
            std::thread::sleep(Duration::from_millis(milliseconds));
            self.stop_process(&plan.process_id);
        }
    }

    /// A child, as an answer starts it, and what its parent's effect says about it.
    fn child(&mut self, parent: &str, number: u64, way: &str) -> (Value, Value) {
        let id = format!("child-{parent}-{number}");
        let left = self.random.between(1, 3);
        let mut input = json!({"left": left, "milliseconds": self.random.between(50, 400)});
        let works = *self.random.pick(&[Shape::Chain, Shape::Steps, Shape::Claimed]);
        let (shape, ends, mode) = match (way, self.random.below(4)) {
            ("await", _) | (_, 0) => (works, vec!["COMPLETED"], "LEAVE"),
            (_, 1) => (works, vec!["COMPLETED", "TERMINATED"], "TERMINATE"),
            (_, 2) => (Shape::Stop, vec!["TERMINATED"], "TERMINATE"),
            _ => {
                // It waits for more children than it has.
                let grandchild = self.child(&id, 0, if parent.starts_with("child-") { "await" } else { way });
                input = of_parent(vec![grandchild], "Await", 2);
                (Shape::Parent, vec!["TERMINATED"], "TERMINATE")
            }
        };
        let locks = if shape == Shape::Chain && self.random.permille(300) { self.locks() } else { json!([]) };
        let start = json!({"processType": shape.name(), "processId": id, "input": input, "globalAttributePk": id,
            "globalAttributes": {"n": 0}, "onClose": "ended", "whenParentCloses": mode, "options": {"locks": locks}});
        let born = json!({"id": id, "ends": ends, "n": shape.counts().then_some(left)});
        (start, born)
    }

    /// The first message comes with the start. The others come while the process decides whether there are any.
    fn conditional(&mut self) {
        let plan = self.plan(Shape::Conditional);
        let uid = format!("{}/m0", plan.process_id);
        let more = format!("SELECT {};", Self::publish_sql(&plan.process_id, &uid));
        let started = self.start(&plan, &more);
        let fate = if started { Fate::Acknowledged } else { Fate::Unknown };
        self.world.record.message(&uid, Message { process_id: plan.process_id.clone(), fate, place: 0 });
        if started {
            for place in 1..=plan.length {
                self.publish(&plan.process_id, place);
            }
        }
    }

    /// Publishes as many messages as there are processes that take one, in any order.
    fn pool(&mut self) {
        let plan = self.plan(Shape::Pool);
        let uid = format!("{}/m0", plan.process_id);
        let payload = jsonb(&json!({"uid": uid}));
        let more = format!("SELECT xdb.publish_global('pool', {payload}, message_id => {});", literal(&uid));
        let started = self.start(&plan, &more);
        let fate = if started { Fate::Acknowledged } else { Fate::Unknown };
        self.world.record.message(&uid, Message { process_id: plan.process_id, fate, place: 0 });
        if started && self.random.permille(250) {
            let again = self.session.settle_run(&format!("message {uid} again"), &format!("BEGIN; {more} COMMIT"));
            self.fate("publish", &uid, &again);
        }
    }

    /// Starts with a few keys, many of which are merged. The ids in the inputs are the messages of the process that
    /// takes them in.
    fn merges(&mut self) {
        for _ in 0..self.random.between(2, 6) {
            self.number += 1;
            let uid = format!("merge-{}-{}", self.name, self.number);
            let sql = self.merge_sql(&uid);
            let fate = if self.random.permille(150) {
                // However it ends, it is not committed.
                let attempt = self.session.attempt(|db| db.try_run(&format!("BEGIN; {sql}; ROLLBACK")));
                if let Attempt::Unknown = attempt {
                    self.world.record.note(&format!("{uid} was rolled back with its session"));
                }
                Fate::RolledBack
            } else {
                let outcome = self.session.settle_run(&format!("the start of {uid}"), &sql);
                self.fate("start", &uid, &outcome)
            };
            self.count(u64::from(fate == Fate::Acknowledged));
            self.world.record.message(&uid, Message { process_id: uid.clone(), fate, place: 0 });
        }
    }

    /// One statement. Repeated after its commit, it does nothing.
    fn merge_sql(&mut self, uid: &str) -> String {
        let key = self.random.below(MERGE_KEYS);
        let start_at = *self.random.pick(&["KEEP", "REPLACE", "EARLIEST", "LATEST"]);
        let mut merge = json!({"input": "public.merge_asked", "startAt": start_at});
        if matches!(start_at, "REPLACE" | "LATEST") {
            merge["atMostSeconds"] = json!(2);
        } else if self.random.permille(300) {
            merge["withinSeconds"] = json!(0.5);
        }
        let options = json!({"correlationKey": format!("key-{key}"), "merge": merge});
        let due = match self.random.below(1000) {
            500.. => "NULL".to_owned(),
            milliseconds => format!("clock_timestamp() + interval '{milliseconds} ms'"),
        };
        format!(
            "WITH new AS (INSERT INTO asked VALUES ({uid}) ON CONFLICT DO NOTHING RETURNING uid)
             SELECT xdb.start_process(NULL, 'merge', {input}, global_attribute_pk => 'm{key}', start_at => {due},
                 options => {options}) FROM new",
            uid = literal(uid),
            input = jsonb(&json!({"uids": [uid]})),
            options = jsonb(&options)
        )
    }

    fn rpcs(&mut self, shape: Shape) {
        let Some(plan) = self.started(shape) else { return };
        for number in 0..plan.length {
            let key = format!("{}/r{number}", plan.process_id);
            let sql = Self::rpc_sql(&plan.process_id, &key);
            if self.random.permille(150) {
                self.rolled_back_rpc(&plan.process_id, &format!("{key}-undone"));
            }
            let asked = |db: &mut Db| db.try_one::<String>(&format!("SELECT {sql}::text"));
            let outcome = self.session.in_rpc(|session| session.settle(&format!("rpc {key}"), asked));
            let fate = self.fate("rpc", &key, &outcome);
            let nonce = outcome.ok().and_then(|text| nonce_of(&text));
            self.world.record.rpc(&key, Rpc { process_id: plan.process_id.clone(), fate, nonce });
            if self.random.permille(250) {
                let again = self.session.settle(&format!("rpc {key} again"), asked).ok();
                let again = again.and_then(|text| nonce_of(&text));
                if again.is_some() && again != nonce {
                    let what = format!("rpc {key} answered {nonce:?}, and {again:?} when it was repeated");
                    self.world.record.complain(what);
                }
            }
        }
    }

    fn rpc_sql(process_id: &str, key: &str) -> String {
        let (id, uid) = (literal(process_id), jsonb(&json!({"uid": key})));
        format!("xdb.invoke_rpc({id}, 'poke', {uid}, idempotency_key => {})", literal(key))
    }

    fn rolled_back_rpc(&mut self, process_id: &str, key: &str) {
        let sql = Self::rpc_sql(process_id, key);
        let undone = |db: &mut Db| db.try_run(&format!("BEGIN; SELECT {sql}; ROLLBACK"));
        // However it ends, nothing of it is committed.
        if let Attempt::Unknown = self.session.in_rpc(|session| session.attempt(undone)) {
            self.world.record.note(&format!("rpc {key} was undone with its session"));
        }
        let rpc = Rpc { process_id: process_id.to_owned(), fate: Fate::RolledBack, nonce: None };
        self.world.record.rpc(key, rpc);
    }

    fn stop(&mut self) {
        if let Some(plan) = self.started(Shape::Stop) {
            self.stop_process(&plan.process_id);
        }
    }

    fn stop_process(&mut self, process_id: &str) {
        let sql = format!("SELECT xdb.stop_process({}, 'TERMINATE', 'as planned')", literal(process_id));
        let outcome = self.session.settle_run(&format!("the stop of {process_id}"), &sql);
        // A refusal means that an earlier attempt, whose answer was lost, has stopped the process.
        self.fate("stop", process_id, &outcome);
    }

    fn reuse(&mut self) {
        let mut plan = self.plan(Shape::Reuse);
        let times = self.random.between(2, 3);
        for time in 1..=times {
            plan.request = format!("{}/{time}", plan.process_id);
            plan.last = time == times;
            self.start(&plan, "");
        }
    }

    /// The start commits long after its first call has become due.
    fn late_commit(&mut self) {
        let plan = self.plan(Shape::Chain);
        let (start, order) = plan.sql(0);
        let begin = format!("BEGIN; {order}; SELECT {start}");
        let pause = Duration::from_millis(self.random.between(200, 1500));
        let mut begun = false;
        let attempt = self.session.attempt(|db| {
            db.try_run(&begin)?;
            begun = true;
            std::thread::sleep(pause);
            db.try_run("COMMIT")
        });
        match attempt {
            Attempt::Done(()) => {
                self.world.record.start(&plan.request, &plan.process_id, plan.start(Fate::Acknowledged));
                self.count(1);
            }
            Attempt::Unknown if begun => {
                self.start(&plan, "");
            }
            _ => self.world.record.start(&plan.request, &plan.process_id, plan.start(Fate::RolledBack)),
        }
    }

    /// Starts that are rolled back. For half of them a savepoint is rolled back, and its transaction starts another
    /// process and commits.
    fn rolled_back(&mut self) {
        let undone = self.plan(Shape::Mailbox);
        let (start, order) = undone.sql(0);
        let message = Self::publish_sql(&undone.process_id, &format!("{}/m1", undone.process_id));
        let work = format!("{order}; SELECT {start}; SELECT {message}");
        if self.random.permille(500) {
            // However this ends, it is not committed.
            let attempt = self.session.attempt(|db| db.try_run(&format!("BEGIN; {work}; ROLLBACK")));
            if let Attempt::Unknown = attempt {
                self.world.record.note(&format!("{} was rolled back with its session", undone.process_id));
            }
        } else {
            let plan = self.plan(Shape::Chain);
            let (start, order) = plan.sql(0);
            let sql = format!(
                "BEGIN; SAVEPOINT undone; {work}; ROLLBACK TO SAVEPOINT undone; {order}; SELECT {start}; COMMIT"
            );
            let outcome = self.session.settle_run(&format!("the start of {}", plan.process_id), &sql);
            let fate = self.fate("start", &plan.process_id, &outcome);
            self.world.record.start(&plan.request, &plan.process_id, plan.start(fate));
            self.count(u64::from(fate == Fate::Acknowledged));
        }
        self.world.record.start(&undone.request, &undone.process_id, undone.start(Fate::RolledBack));
    }

    /// A start whose answer may be lost. Then it is not repeated.
    fn lost(&mut self) {
        let plan = self.plan(Shape::Chain);
        let (start, order) = plan.sql(0);
        let fate = match self.session.attempt(|db| db.try_run(&format!("BEGIN; {order}; SELECT {start}; COMMIT"))) {
            Attempt::Done(()) => Fate::Acknowledged,
            Attempt::Refused(_) => Fate::RolledBack,
            Attempt::Unknown => Fate::Unknown,
        };
        self.count(u64::from(fate == Fate::Acknowledged));
        self.world.record.start(&plan.request, &plan.process_id, plan.start(fate));
    }

    /// Starts many processes at once.
    fn bulk(&mut self) {
        let count = self.random.between(10, 60);
        let plans: Vec<_> = (0..count)
            .map(|_| {
                let mut plan = self.plan(Shape::Chain);
                plan.length = self.random.between(1, 2);
                plan
            })
            .collect();
        let starts: Vec<_> = plans
            .iter()
            .map(|plan| {
                json!({"process_id": plan.process_id, "process_type": plan.shape.name(), "input": {"left": plan.length},
                       "global_attribute_pk": plan.process_id, "global_attributes": {"n": 0},
                       "options": plan.options()})
            })
            .collect();
        let orders: Vec<_> =
            plans.iter().map(|p| format!("({}, {})", literal(&p.request), literal(&p.process_id))).collect();
        let sql = format!(
            "BEGIN; INSERT INTO orders VALUES {} ON CONFLICT DO NOTHING; SELECT count(*) FROM xdb.start_processes({}); COMMIT",
            orders.join(", "),
            jsonb(&Value::Array(starts))
        );
        let outcome = self.session.settle_run(&format!("{count} starts from {}", plans[0].process_id), &sql);
        let fate = self.fate("start", &plans[0].process_id, &outcome);
        for plan in &plans {
            self.world.record.start(&plan.request, &plan.process_id, plan.start(fate));
        }
        if fate == Fate::Acknowledged {
            self.count(count);
        }
    }
}

/// The input of a process that starts these children, and then goes to this state.
fn of_parent(children: Vec<(Value, Value)>, then: &str, count: u64) -> Value {
    let (starts, born): (Vec<_>, Vec<_>) = children.into_iter().unzip();
    json!({"children": starts, "born": born, "then": then, "count": count})
}

fn nonce_of(output: &str) -> Option<u64> {
    serde_json::from_str::<Value>(output).ok()?["nonce"].as_u64()
}

/// The fate that follows from an outcome. An unexpected error is a complaint.
fn fate<T>(world: &World, session: &Session, what: &str, which: &str, outcome: &Result<T, SqlError>) -> Fate {
    match outcome {
        Ok(_) => Fate::Acknowledged,
        Err(error) if error.code == "unsettled" => Fate::Unknown,
        // An earlier attempt, whose answer was lost, may have published the very message with which the process ended.
        Err(error) if error.code == codes::NOT_RUNNING && what == "publish" && session.was_lost() => Fate::Unknown,
        // A start that publishes in its transaction finds its own process closed. An earlier attempt, whose answer was
        // lost, has done everything.
        Err(error) if error.code == codes::NOT_RUNNING && what == "start" && session.was_lost() => Fate::Acknowledged,
        // The process is not running (any more): for a message or a stop that is an answer.
        Err(error) if error.code == codes::NOT_RUNNING && what != "start" => Fate::Refused,
        Err(error) => {
            world.record.complain(format!("{what} {which} was refused: {error:?}"));
            Fate::Refused
        }
    }
}

/// Longer than a turn usually waits and takes.
const URGENT_WITHIN_MS: u64 = 60;

/// Publishes messages that the worker wants published about now, until the round is over. The times are spread, so that
/// some commit while a turn decides whether their process may close.
pub fn publish_urgently(world: &World, urgent: &Mutex<Receiver<Urgent>>) {
    let mut session = Session::new(world, "app");
    let mut random = Random::new(world.seed, "urgent");
    loop {
        let next = urgent.lock().expect("never poisoned").recv_timeout(Duration::from_millis(50));
        let Urgent { process_id, uid } = match next {
            Ok(urgent) => urgent,
            Err(RecvTimeoutError::Timeout) if !world.stopping() => continue,
            Err(_) => return,
        };
        std::thread::sleep(Duration::from_millis(random.below(URGENT_WITHIN_MS)));
        let sql = format!("SELECT {}", Client::publish_sql(&process_id, &uid));
        let outcome = session.settle_run(&format!("message {uid}"), &sql);
        let fate = fate(world, &session, "publish", &uid, &outcome);
        world.record.message(&uid, Message { process_id, fate, place: 0 });
    }
}

/// Watches processes end, and records what it sees. A closed process must stay closed.
pub fn watch(world: &World) {
    let mut session = Session::new(world, "app");
    while !world.stopping() {
        let Some(process_id) = world.to_watch() else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let sql = format!("SELECT xdb.wait_for_process({}, '2 s')::text", literal(&process_id));
        let Attempt::Done(text) = session.attempt(|db| db.try_one::<String>(&sql)) else { continue };
        let Ok(answer) = serde_json::from_str::<Value>(&text) else {
            world.record.complain(format!("{process_id}: wait_for_process answered {text}"));
            continue;
        };
        let status = answer["status"].as_str().unwrap_or_default();
        if answer["timedOut"] != true && status != "RUNNING" {
            let seen = Seen { process_id, status: status.to_owned(), results: answer["results"].clone() };
            world.record.seen(seen);
        }
    }
}
