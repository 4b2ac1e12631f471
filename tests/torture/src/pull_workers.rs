//! Pull workers: sessions that claim a call, do a deed of their own and answer in one transaction, well or badly.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use xdb_cluster_tests::codes;
use xdb_cluster_tests::db::{Db, SqlError, jsonb, literal};
use xdb_cluster_tests::random::Random;
use xdb_cluster_tests::worker::{Answer, Api, Call};

use crate::hand::Hand;
use crate::ledger::Order;
use crate::record::Fate;
use crate::session::{self, Attempt, Session, passes};
use crate::shapes::{PULL_WORKER, Shape};
use crate::world::World;

/// One pull worker.
pub struct PullWorker<'a> {
    world: &'a World,
    hand: &'a Hand,
    session: Session<'a>,
    random: Random,
}

/// A call under a lease.
struct Claimed {
    call: Call,
    token: String,
    order: Order,
    /// Only a crash can give the call to another session before this.
    until: Instant,
}

impl Claimed {
    /// Reads a row of `claim_calls`.
    fn read(text: &str, until: Instant, runs_since: i64) -> Option<Claimed> {
        let claimed: Value = serde_json::from_str(text).ok()?;
        let token = claimed["token"].as_str()?.to_owned();
        let order = Order::of_lease(&token, runs_since)?;
        let api = match claimed["api"].as_str()? {
            "WAIT_UNTIL_API" => Api::WaitUntil,
            "EXECUTE_API" => Api::Execute,
            _ => return None,
        };
        let body = claimed["request"].clone();
        let (path, headers, raw) = (String::new(), HashMap::new(), String::new());
        Some(Claimed { call: Call { api, path, headers, body, raw, at: Instant::now() }, token, order, until })
    }
}

fn claim_sql(most: u64, wait: Duration, lease: Duration) -> String {
    format!(
        "SELECT jsonb_build_object('token', token, 'api', api, 'request', request)::text
         FROM xdb.claim_calls('{PULL_WORKER}', max_calls => {most}, wait => '{} ms', lease => '{} ms')",
        wait.as_millis(),
        lease.as_millis()
    )
}

fn deed_sql(call: &Call, nonce: u64) -> String {
    format!("INSERT INTO deeds (call, nonce) VALUES ({}, {nonce})", literal(call.call_id()))
}

fn complete_sql(token: &str, answer: &Answer) -> String {
    format!("SELECT xdb.complete_call({}, {})", literal(token), jsonb(&answer.json()))
}

impl<'a> PullWorker<'a> {
    pub fn new(world: &'a World, hand: &'a Hand, name: &str) -> PullWorker<'a> {
        let random = Random::new(world.seed, &format!("pull worker {name}"));
        PullWorker { world, hand, session: Session::new(world, "app"), random }
    }

    /// Works until the round has ended. While there are faults it sometimes works badly, and afterwards always well.
    pub fn run(mut self) {
        while !self.world.pull_workers_end.load(Ordering::Relaxed) {
            if self.world.pull_workers_rest.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
                continue;
            }
            if !self.world.stopping() && self.random.permille(100) {
                self.in_one_transaction();
                continue;
            }
            let most = self.random.between(1, 3);
            let claimed = self.claim(most, Duration::from_millis(200));
            let known = self.session.known_in(&self.world.with_calls);
            claimed.into_iter().for_each(|claimed| self.answer(claimed));
            drop(known);
        }
    }

    /// Waits for one call, and answers it well. False: no call came.
    pub fn one(&mut self, wait: Duration) -> bool {
        let claimed = self.claim(1, wait);
        let came = !claimed.is_empty();
        for claimed in &claimed {
            self.complete(claimed, "COMMIT");
        }
        came
    }

    fn lease(&mut self) -> Duration {
        Duration::from_millis(self.random.between(700, 2000))
    }

    fn claim(&mut self, most: u64, wait: Duration) -> Vec<Claimed> {
        let lease = self.lease();
        let sql = claim_sql(most, wait, lease);
        // The lease is counted from the claim, which may come later than this.
        let until = Instant::now() + lease;
        let claimed = match self.session.attempt(|db| db.try_all::<String>(&sql)) {
            Attempt::Done(claimed) => claimed,
            Attempt::Refused(error) => {
                self.complain_of("claim_calls", &error);
                thread::sleep(Duration::from_millis(20));
                return Vec::new();
            }
            Attempt::Unknown => return Vec::new(),
        };
        let read: Vec<_> =
            claimed.iter().filter_map(|text| Claimed::read(text, until, self.session.runs_since())).collect();
        if read.len() < claimed.len() {
            self.world.record.complain(format!("claim_calls gave {claimed:?}"));
        }
        for Claimed { call, order, .. } in &read {
            self.world.ledger.claimed(call, *order, until);
        }
        read
    }

    fn answer(&mut self, claimed: Claimed) {
        let how = if self.world.stopping() { 99 } else { self.random.below(100) };
        match how {
            0..8 => {
                self.complete(&claimed, "ROLLBACK");
                if self.random.permille(500) {
                    self.complete(&claimed, "COMMIT");
                }
            }
            8..15 => self.fail(&claimed, ", '{\"errorType\": \"Busy\", \"detail\": \"by chance\"}'"),
            15..20 => self.fail(&claimed, ""),
            20..28 => {
                let late = Duration::from_millis(self.random.between(50, 600));
                thread::sleep(claimed.until.saturating_duration_since(Instant::now()) + late);
                self.complete(&claimed, "COMMIT");
            }
            28..33 => self.session.hang_up(),
            33..41 => self.extend(claimed),
            _ => {
                self.complete(&claimed, "COMMIT");
            }
        }
    }

    /// Does the deed and completes the call in one transaction, which ends with `end`.
    fn complete(&mut self, claimed: &Claimed, end: &str) -> Fate {
        let (nonce, answer) = self.hand.claimed(&claimed.call, claimed.order);
        let mut fate = self.tries(claimed, nonce, &answer, end);
        if fate == Fate::Unknown && self.random.permille(500) {
            // If the first try was applied, or another session has the call, this try is refused. Then the result stays
            // unknown.
            fate = match self.tries(claimed, nonce, &answer, end) {
                Fate::Acknowledged => Fate::Acknowledged,
                _ => Fate::Unknown,
            };
        } else if fate == Fate::Refused && self.is_its_owner(claimed) {
            let what = format!("{} was refused under its lease", claimed.token);
            self.world.record.complain(what);
        }
        self.world.record.answer(claimed.call.call_id(), nonce, fate);
        fate
    }

    /// Tries once. `Refused`: the lease is lost. `RolledBack`: any other try that has left nothing.
    fn tries(&mut self, claimed: &Claimed, nonce: u64, answer: &Answer, end: &str) -> Fate {
        let between = Duration::from_millis(self.random.below(30));
        let mut ending = false;
        let attempt = self.session.attempt(|db| {
            db.try_run(&format!("BEGIN; {}", deed_sql(&claimed.call, nonce)))?;
            thread::sleep(between);
            db.try_run(&complete_sql(&claimed.token, answer))?;
            ending = true;
            db.try_run(end)
        });
        match attempt {
            Attempt::Done(()) if end == "COMMIT" => Fate::Acknowledged,
            Attempt::Unknown if ending && end == "COMMIT" => Fate::Unknown,
            Attempt::Refused(error) if error.code == codes::CALL_IS_LOST => Fate::Refused,
            Attempt::Refused(error) => {
                self.complain_of("complete_call", &error);
                Fate::RolledBack
            }
            Attempt::Done(()) | Attempt::Unknown => Fate::RolledBack,
        }
    }

    /// Fails the attempt, or gives the call back.
    fn fail(&mut self, claimed: &Claimed, failure: &str) {
        self.world.ledger.lease_ends(&claimed.call, claimed.order, Instant::now());
        let sql = format!("SELECT xdb.fail_call({}{failure})", literal(&claimed.token));
        if let Attempt::Refused(error) = self.session.attempt(|db| db.try_run(&sql)) {
            self.refused(claimed, "fail_call", &error);
        }
    }

    /// Extends the lease, and answers after its first end.
    fn extend(&mut self, mut claimed: Claimed) {
        let sql = format!("SELECT xdb.extend_call({}, '2 s')", literal(&claimed.token));
        let until = Instant::now() + Duration::from_secs(2);
        match self.session.attempt(|db| db.try_run(&sql)) {
            Attempt::Done(()) => claimed.until = until,
            Attempt::Refused(error) => return self.refused(&claimed, "extend_call", &error),
            // Whatever it is now, it is not less than the shorter one.
            Attempt::Unknown => return self.world.ledger.lease_ends(&claimed.call, claimed.order, Instant::now()),
        }
        self.world.ledger.lease_ends(&claimed.call, claimed.order, until);
        thread::sleep(Duration::from_millis(self.random.between(800, 1600)));
        self.complete(&claimed, "COMMIT");
    }

    /// Claims and answers in one transaction. A rollback means that there was no attempt.
    fn in_one_transaction(&mut self) {
        let end = if self.random.permille(700) { "COMMIT" } else { "ROLLBACK" };
        let (world, hand, sql) = (self.world, self.hand, claim_sql(1, Duration::ZERO, self.lease()));
        let (mut given, mut ending) = (None, false);
        let attempt = self.session.attempt(|db: &mut Db| {
            db.try_run("BEGIN")?;
            let text = db.try_text(&sql)?;
            let runs_since = session::runs_since(db)?;
            if let Some(claimed) = text.and_then(|text| Claimed::read(&text, Instant::now(), runs_since)) {
                world.ledger.looked_at(&claimed.call);
                let (nonce, answer) = hand.claimed(&claimed.call, claimed.order);
                let work = format!("{}; {}", deed_sql(&claimed.call, nonce), complete_sql(&claimed.token, &answer));
                given = Some((claimed, nonce));
                db.try_run(&work)?;
            }
            ending = true;
            db.try_run(end)
        });
        let fate = match attempt {
            Attempt::Done(()) if end == "COMMIT" => Fate::Acknowledged,
            Attempt::Unknown if ending && end == "COMMIT" => Fate::Unknown,
            Attempt::Refused(error) => {
                // The step may have ended between the claim and the answer.
                let may_abort = given.as_ref().is_some_and(|(claimed, _)| Shape::may_abort(claimed.call.process_id()));
                if error.code != codes::CALL_IS_LOST || !may_abort {
                    self.complain_of("claim_calls and complete_call", &error);
                }
                Fate::RolledBack
            }
            Attempt::Done(()) | Attempt::Unknown => Fate::RolledBack,
        };
        match given {
            Some((claimed, nonce)) => world.record.answer(claimed.call.call_id(), nonce, fate),
            None => thread::sleep(Duration::from_millis(20)),
        }
    }

    /// Complains about a refusal. A lost lease is normal once its time is over.
    fn refused(&self, claimed: &Claimed, what: &str, error: &SqlError) {
        if error.code != codes::CALL_IS_LOST {
            self.complain_of(what, error);
        } else if self.is_its_owner(claimed) {
            self.world.record.complain(format!("{what} of {} was refused under its lease", claimed.token));
        }
    }

    /// Whether the lease lasts, and neither a crash nor the end of its step can have undone it.
    fn is_its_owner(&self, claimed: &Claimed) -> bool {
        !Shape::may_abort(claimed.call.process_id())
            && Instant::now() < claimed.until
            && !claimed.order.is_before_a_crash(self.session.runs_since())
    }

    fn complain_of(&self, what: &str, error: &SqlError) {
        if !passes(error) {
            self.world.record.complain(format!("{what} was refused: {error:?}"));
        }
    }
}
