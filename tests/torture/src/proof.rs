//! Without faults and without polling, no process waits: this shows that no wake-up is lost.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use xdb_cluster_tests::db::{Db, jsonb, literal};

use crate::checks::Findings;
use crate::hand::Hand;
use crate::pull_workers::PullWorker;
use crate::record::{Fate, Message, Start};
use crate::shapes::Shape;
use crate::world::World;

/// The shapes of these processes.
pub const SHAPES: &[Shape] = &[Shape::Chain, Shape::Mailbox, Shape::Letters, Shape::Steps, Shape::Claimed];
/// The number of processes, one after the other.
const TIMES: u32 = 3;
/// A limit far above the time that a woken engine takes, even on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(20);

/// Starts processes one after the other and waits for each. Only wake-ups make the engine read its tables.
pub fn wake_ups(world: &World, hand: &Hand, round: u32, findings: &mut Findings) {
    world.cluster().set("xdb.test_poll_interval", "3600000");
    let (mut db, mut superuser) = (world.app.db(), world.app.superuser());
    let mut proof = Proof { world, findings, db: &mut db, superuser: &mut superuser };
    let both = |proof: &mut Proof<'_>, number: u32| {
        proof.message(Shape::Mailbox, round, number) && proof.late_commit(round, number)
    };
    // Functions and pull workers have wake-ups of their own.
    let _all = (0..TIMES).all(|number| both(&mut proof, number))
        && proof.message(Shape::Letters, round, 0)
        && proof.functions(round)
        && proof.claimed(hand, round);
    world.cluster().set("xdb.test_poll_interval", "1000");
}

struct Proof<'a> {
    world: &'a World,
    findings: &'a mut Findings,
    db: &'a mut Db,
    superuser: &'a mut Db,
}

impl Proof<'_> {
    /// Waits until the engine has been idle for a while. Work that comes during a turn is found without a wake-up. An
    /// engine that has just worked may work again a moment later, or show its number of calls twice within a second.
    fn until_idle(&mut self) {
        const IDLE: &str = "SELECT coalesce(bool_and(state = 'idle' AND clock_timestamp() - state_change > '1500 ms'), false) \
            FROM pg_stat_activity WHERE backend_type LIKE 'xdb scheduler%'";
        let deadline = Instant::now() + AT_ONCE;
        while !self.superuser.one::<bool>(IDLE) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn ended(&mut self, process_id: &str, what: &str) -> bool {
        let begun = Instant::now();
        let seconds = AT_ONCE.as_secs();
        let answer = self.db.json(&format!("SELECT xdb.wait_for_process({}, '{seconds} s')", literal(process_id)));
        let ended = answer["status"] == "COMPLETED";
        if !ended {
            let found = format!("{process_id} is {answer}, {:?} after {what}, without polling", begun.elapsed());
            self.findings.add("wake-up lost", found);
        }
        ended
    }

    fn start(db: &mut Db, process_id: &str, shape: Shape, length: u64, work: &str) {
        let (id, kind) = (literal(process_id), shape.name());
        let (input, options) = (jsonb(&json!({"left": length})), jsonb(&json!({"requestId": process_id})));
        db.run(&format!(
            "BEGIN; INSERT INTO orders VALUES ({id}, {id});
             SELECT xdb.start_process({id}, '{kind}', {input}, global_attribute_pk => {id},
                 global_attributes => '{{\"n\": 0}}', options => {options}); {work}"
        ));
    }

    fn note(&self, process_id: &str, shape: Shape, length: u64) {
        let start = Start { shape, way: "", fate: Fate::Acknowledged, length, last: true };
        self.world.record.start(process_id, process_id, start);
    }

    /// Starts a process and, when it waits, publishes a message.
    fn message(&mut self, shape: Shape, round: u32, number: u32) -> bool {
        let process_id = format!("{}-proof-{round}-{number}", shape.name());
        self.until_idle();
        Self::start(self.db, &process_id, shape, 1, "COMMIT");
        self.note(&process_id, shape, 1);
        let waits = format!("xdb.waits WHERE process_id = {}", literal(&process_id));
        let deadline = Instant::now() + AT_ONCE;
        while self.db.count(&waits) == 0 {
            if Instant::now() > deadline {
                self.findings.add("wake-up lost", format!("{process_id} was not called {AT_ONCE:?} after its start"));
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.until_idle();
        let uid = format!("{process_id}/m1");
        let payload = jsonb(&json!({"uid": uid}));
        self.db.run(&format!("SELECT xdb.publish({}, 'inbox', {payload}, {})", literal(&process_id), literal(&uid)));
        let message = Message { process_id: process_id.clone(), fate: Fate::Acknowledged, place: 1 };
        self.world.record.message(&uid, message);
        self.ended(&process_id, "its message")
    }

    /// A start that commits after a later one has ended. A scan that resumes at its cursor would never find it.
    fn late_commit(&mut self, round: u32, number: u32) -> bool {
        let (late, early) =
            (format!("chain-proof-{round}-{number}-late"), format!("chain-proof-{round}-{number}-early"));
        let mut other = self.world.app.db();
        Self::start(&mut other, &late, Shape::Chain, 1, "");
        Self::start(self.db, &early, Shape::Chain, 1, "COMMIT");
        self.note(&early, Shape::Chain, 1);
        let ended = self.ended(&early, "its start");
        self.until_idle();
        other.run("COMMIT");
        self.note(&late, Shape::Chain, 1);
        ended && self.ended(&late, "its late commit")
    }

    /// Calls that runners make.
    fn functions(&mut self, round: u32) -> bool {
        let process_id = format!("steps-proof-{round}");
        self.until_idle();
        Self::start(self.db, &process_id, Shape::Steps, 3, "COMMIT");
        self.note(&process_id, Shape::Steps, 3);
        self.ended(&process_id, "its start")
    }

    /// A pull worker that waits for a call is woken by the start. A runner is woken by the worker's answer.
    fn claimed(&mut self, hand: &Hand, round: u32) -> bool {
        const WAITS: &str = "SELECT count(*) = 1 FROM pg_stat_activity \
            WHERE query LIKE '%claim_calls(%' AND wait_event = 'Extension' AND pid <> pg_backend_pid()";
        let process_id = format!("claimed-proof-{round}");
        let world = self.world;
        self.until_idle();
        let came = thread::scope(|scope| {
            let waits = scope.spawn(move || PullWorker::new(world, hand, &format!("{round}-proof")).one(AT_ONCE));
            let deadline = Instant::now() + AT_ONCE;
            while !self.superuser.one::<bool>(WAITS) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(2));
            }
            Self::start(self.db, &process_id, Shape::Claimed, 2, "COMMIT");
            self.note(&process_id, Shape::Claimed, 2);
            waits.join().expect("its panic is printed above")
        });
        if !came {
            let what = format!("a waiting pull worker did not get the call of {process_id} within {AT_ONCE:?}");
            self.findings.add("wake-up lost", what);
        }
        came && self.ended(&process_id, "its call was answered")
    }
}
