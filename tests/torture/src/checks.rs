//! Checks after a round, when all processes have ended: the tables, the worker's ledger and the clients' log must
//! agree.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use xdb_cluster_tests::db::Db;

use crate::beside::{FORWARD, SCHEDULE};
use crate::record::{Fate, Page};
use crate::shapes::Shape;
use crate::sql_checks;
use crate::world::World;

/// A violation, with the facts that show it.
pub type Violation = String;

/// The most violations of a kind that are reported.
const SHOWN: usize = 5;

/// The violations that were found. The same one is reported only a few times.
#[derive(Default)]
pub struct Findings {
    violations: Vec<Violation>,
    untold: BTreeMap<&'static str, usize>,
    counts: BTreeMap<&'static str, usize>,
}

impl Findings {
    pub fn add(&mut self, kind: &'static str, what: impl Into<String>) {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        if *count <= SHOWN {
            self.violations.push(format!("{kind}: {}", what.into()));
        } else {
            *self.untold.entry(kind).or_default() += 1;
        }
    }

    pub fn all(&mut self, kind: &'static str, what: impl IntoIterator<Item = String>) {
        what.into_iter().for_each(|what| self.add(kind, what));
    }

    /// The violations, and how many more there were of each kind.
    pub fn into_violations(self) -> Vec<Violation> {
        let more = self.untold.into_iter().map(|(kind, count)| format!("{kind}: and {count} more"));
        self.violations.into_iter().chain(more).collect()
    }
}

/// A process execution as the tables have it in the end.
struct Ended {
    process_id: String,
    process_type: String,
    execution: String,
    status: String,
    request: String,
    results: Value,
}

/// An effect on the application's tables.
struct Effect {
    call: String,
    nonce: u64,
    /// A function has answered, so the workers' ledger does not contain the answer.
    by_function: bool,
    messages: Vec<String>,
}

impl Effect {
    fn execution(&self) -> &str {
        self.call.split('/').next().unwrap_or_default()
    }
}

/// Runs all checks.
pub fn check(world: &World, db: &mut Db, page: &Page, findings: &mut Findings) {
    findings.all("worker", world.ledger.complaints());
    findings.all("client", page.complaints.iter().cloned());
    let ended = ended(db);
    let effects = effects(db);
    starts(db, page, &ended, findings);
    applied(world, &ended, &effects, findings);
    messages(page, &ended, &effects, findings);
    rpcs(page, &effects, findings);
    seen(page, &ended, findings);
    claimed(db, page, findings);
    resolved(db, page, findings);
    sql_checks::check(db, findings);
    sound(world, findings);
}

fn ended(db: &mut Db) -> Vec<Ended> {
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let sql = "SELECT process_id AS p, process_type AS t, execution_id AS e, status AS s, request_id AS r, results AS o \
        FROM xdb.process_execution";
    let rows = db.rows(sql);
    let ended = rows.iter().map(|row| Ended {
        process_id: text(row, "p"),
        process_type: text(row, "t"),
        execution: text(row, "e"),
        status: text(row, "s"),
        request: text(row, "r"),
        results: row["o"].clone(),
    });
    ended.collect()
}

fn effects(db: &mut Db) -> Vec<Effect> {
    let rows = db.rows("SELECT effect AS e FROM effects ORDER BY number");
    let effects = rows.iter().map(|row| {
        let effect = &row["e"];
        let messages = effect["messages"].as_array();
        Effect {
            call: effect["call"].as_str().unwrap_or_default().to_owned(),
            nonce: effect["nonce"].as_u64().unwrap_or_default(),
            by_function: effect["by"] == "function",
            messages: messages.into_iter().flatten().filter_map(|uid| uid.as_str()).map(str::to_owned).collect(),
        }
    });
    effects.collect()
}

/// Every acknowledged start has ended, and every start that was rolled back has left nothing. The same holds for the
/// application's row of the start's transaction.
fn starts(db: &mut Db, page: &Page, ended: &[Ended], findings: &mut Findings) {
    let by_request: BTreeMap<&str, &Ended> = ended.iter().map(|ended| (ended.request.as_str(), ended)).collect();
    let orders: BTreeSet<String> = db.all::<String>("SELECT request FROM orders").into_iter().collect();
    let rows: BTreeSet<String> = db.all::<String>("SELECT id FROM work").into_iter().collect();
    for (request, (process_id, start)) in &page.starts {
        let found = by_request.get(request.as_str());
        let ordered = orders.contains(request);
        match start.fate {
            Fate::Acknowledged if found.is_none() => {
                findings.add("lost start", format!("{process_id} ({request}) was acknowledged and is not there"));
            }
            Fate::RolledBack | Fate::Refused if found.is_some() || ordered => {
                findings.add("ghost start", format!("{process_id} ({request}) was {:?} and is there", start.fate));
            }
            Fate::RolledBack if rows.contains(process_id) => {
                findings.add("ghost row", format!("{process_id} was rolled back and its row is there"));
            }
            _ => {}
        }
        if found.is_some() != ordered {
            let what = format!("{process_id} ({request}): process {}, order {ordered}", found.is_some());
            findings.add("half a transaction", what);
        }
        let Some(found) = found else { continue };
        if !start.shape.ends(start.way).contains(&found.status.as_str()) || (start.last && found.status == "RUNNING") {
            findings.add("wrong end", format!("{process_id} ({}) is {}", found.execution, found.status));
        }
        let last_one_completes = start.shape == Shape::Reuse && start.last && start.fate == Fate::Acknowledged;
        if last_one_completes && found.status != "COMPLETED" {
            findings.add("wrong end", format!("{process_id} ({}), the last, is {}", found.execution, found.status));
        }
        let counts = start.shape.counts() && found.status == "COMPLETED";
        if counts && found.results[0]["output"]["n"] != start.length {
            let what = format!("{process_id} counted to {} instead of {}", found.results, start.length);
            findings.add("wrong sum", what);
        }
    }
    // What starts that are merged ask for are messages. No client has asked for what a schedule starts.
    let complete = |ended: &&Ended| [Shape::Merge, Shape::Tick].iter().any(|shape| ended.process_type == shape.name());
    for ended in ended.iter().filter(complete).filter(|ended| ended.status != "COMPLETED") {
        findings.add("wrong end", format!("{} is {}", ended.process_id, ended.status));
    }
    // The effects of their parents name the children.
    let others = ended.iter().filter(|ended| !complete(ended) && !ended.process_id.starts_with("child-"));
    let others = others.filter(|ended| ![SCHEDULE, FORWARD].contains(&ended.process_type.as_str()));
    for ended in others.filter(|ended| !page.starts.contains_key(&ended.request)) {
        findings
            .add("ghost start", format!("{} ({}) was not started by any client", ended.process_id, ended.execution));
    }
    let known: BTreeSet<&String> = page.starts.keys().collect();
    for request in orders.iter().filter(|request| !known.contains(request)) {
        findings.add("ghost row", format!("an order without a request: {request}"));
    }
}

/// Every effect belongs to an answer of the worker that was given before the call was made again. Each was applied
/// once.
fn applied(world: &World, ended: &[Ended], effects: &[Effect], findings: &mut Findings) {
    let executions: BTreeSet<&str> = ended.iter().map(|ended| ended.execution.as_str()).collect();
    let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
    for effect in effects {
        let objection = || world.ledger.objection(effect.nonce, &effect.call);
        if let Some(objection) = (!effect.by_function).then(objection).flatten() {
            findings.add("wrong answer applied", objection);
        }
        if let Some(before) = calls.insert(&effect.call, effect.nonce) {
            let what = format!("{} by the answers {before} and {}", effect.call, effect.nonce);
            findings.add("applied twice", what);
        }
        if !executions.contains(effect.execution()) {
            findings.add("effect without an execution", format!("{} of an execution that is not there", effect.call));
        }
    }
}

/// Every message was consumed once, or was refused, or was rolled back. Messages were consumed in the order of
/// publishing.
fn messages(page: &Page, ended: &[Ended], effects: &[Effect], findings: &mut Findings) {
    let mut consumed: BTreeMap<&str, Vec<&Effect>> = BTreeMap::new();
    for effect in effects {
        for uid in &effect.messages {
            consumed.entry(uid).or_default().push(effect);
        }
    }
    for (uid, by) in &consumed {
        if by.len() > 1 {
            let calls: Vec<_> = by.iter().map(|effect| effect.call.as_str()).collect();
            findings.add("message consumed twice", format!("{uid} by {}", calls.join(", ")));
        }
    }
    for (uid, message) in &page.messages {
        let by = consumed.get(uid.as_str());
        match message.fate {
            Fate::Acknowledged if by.is_none() => {
                findings.add("message lost", format!("{uid} was acknowledged, and no state got it"));
            }
            Fate::Refused | Fate::RolledBack if by.is_some() => {
                findings.add("ghost message", format!("{uid} was {:?}, and a state got it", message.fate));
            }
            _ => {}
        }
    }
    // The numbers of steps give the order of consumption.
    let mut places: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for (uid, message) in page.messages.iter().filter(|(_, message)| message.place > 0) {
        if let Some(effect) = consumed.get(uid.as_str()).and_then(|by| by.first()) {
            let number = effect.call.split('/').nth(1).and_then(|state| state.rsplit('-').next()?.parse().ok());
            places.entry(&message.process_id).or_default().push((message.place, number.unwrap_or_default()));
        }
    }
    for (process_id, mut order) in places {
        order.sort_unstable();
        if order.windows(2).any(|two| two[0].1 >= two[1].1) {
            findings.add("out of order", format!("{process_id} got its messages so: {order:?} (published, taken)"));
        }
    }
    let joined: BTreeMap<&str, usize> = effects
        .iter()
        .filter(|effect| effect.call.contains("/Join-"))
        .map(|e| (e.execution(), e.messages.len()))
        .collect();
    for ended in ended {
        let Some((_, start)) = page.starts.get(&ended.request) else { continue };
        let got = joined.get(ended.execution.as_str()).copied();
        let got = match start.shape {
            Shape::Fan => got.unwrap_or_default(),
            // A guard may have ended the thread that waits.
            Shape::Watched => got.unwrap_or(start.length as usize),
            _ => continue,
        };
        if got as u64 != start.length {
            let what = format!("{} joined {got} of its {} threads", ended.process_id, start.length);
            findings.add("message lost", what);
        }
    }
}

/// An acknowledged RPC was applied once, with the answer that its client got. An RPC that was rolled back was not
/// applied.
fn rpcs(page: &Page, effects: &[Effect], findings: &mut Findings) {
    let mut applied: BTreeMap<String, &Effect> = BTreeMap::new();
    for effect in effects {
        // The call is the execution's, of the RPC of this name, with this key.
        if let Some((_, key)) = effect.call.split_once("/rpc/").and_then(|(_, call)| call.split_once('/')) {
            applied.insert(key.replace("%2F", "/"), effect);
        }
    }
    for (key, rpc) in &page.rpcs {
        match (rpc.fate, applied.get(key)) {
            (Fate::Acknowledged, None) => findings.add("rpc lost", format!("{key} of {}", rpc.process_id)),
            (Fate::Acknowledged, Some(effect)) if rpc.nonce != Some(effect.nonce) => {
                let what = format!("{key}: {:?} was answered and {} applied", rpc.nonce, effect.nonce);
                findings.add("rpc with another answer", what);
            }
            (Fate::RolledBack | Fate::Refused, Some(_)) => {
                findings.add("ghost rpc", format!("{key} of {} was {:?}", rpc.process_id, rpc.fate));
            }
            _ => {}
        }
    }
}

/// Processes that a client saw closed have stayed closed.
fn seen(page: &Page, ended: &[Ended], findings: &mut Findings) {
    let outputs = |results: &Value| -> Vec<Value> {
        results.as_array().into_iter().flatten().map(|result| result["output"].clone()).collect()
    };
    let by_id: BTreeMap<&str, &Ended> = ended.iter().map(|ended| (ended.process_id.as_str(), ended)).collect();
    for seen in &page.seen {
        // Of an id that is used again, the latest execution was seen, whichever that was.
        if seen.process_id.starts_with(Shape::Reuse.name()) {
            continue;
        }
        let now = by_id.get(seen.process_id.as_str());
        if !now.is_some_and(|now| now.status == seen.status && outputs(&now.results) == outputs(&seen.results)) {
            let now = now.map(|now| format!("{} {}", now.status, now.results));
            let what = format!("{} was {} {} and is {now:?}", seen.process_id, seen.status, seen.results);
            findings.add("seen and undone", what);
        }
    }
}

/// A pull worker knows whether its answer was committed. The deed of the same transaction must agree.
fn claimed(db: &mut Db, page: &Page, findings: &mut Findings) {
    let deeds: BTreeSet<i64> = db.all("SELECT nonce FROM deeds").into_iter().collect();
    for (nonce, fate) in &page.answers {
        match (fate, deeds.contains(&(*nonce as i64))) {
            (Fate::Acknowledged, false) => {
                findings.add("answer lost", format!("{nonce} was acknowledged, and its deed is not there"));
            }
            (Fate::RolledBack | Fate::Refused, true) => {
                findings.add("ghost answer", format!("{nonce} was {fate:?}, and its deed is there"));
            }
            _ => {}
        }
    }
}

/// The history has a retry request for each incident that a client has resolved.
fn resolved(db: &mut Db, page: &Page, findings: &mut Findings) {
    let sql = "SELECT process_id AS p, count(*) AS n FROM xdb.history_event JOIN xdb.process_execution USING (execution_id) \
        WHERE event_type = 'RetryRequested' AND history_limit IS NULL GROUP BY process_id \
        UNION ALL SELECT process_id, NULL FROM xdb.process_execution WHERE history_limit IS NOT NULL";
    let rows = db.rows(sql);
    // None: the number is no longer known.
    let known: BTreeMap<&str, Option<u64>> =
        rows.iter().filter_map(|row| Some((row["p"].as_str()?, row["n"].as_u64()))).collect();
    for (process_id, times) in &page.resolved {
        let Some(requested) = known.get(process_id.as_str()).copied().unwrap_or(Some(0)) else { continue };
        if requested < *times {
            let what = format!("{process_id} was had to go on {times} times, and its history has {requested}");
            findings.add("resolved and undone", what);
        }
    }
}

/// Runs `xdb.check_process` for every execution, in two sessions.
fn sound(world: &World, findings: &mut Findings) {
    let half = |rest: i32| {
        let sql = format!(
            "SELECT format('%s (%s): %s', p.process_id, p.execution_id, c.problem)
             FROM xdb.process_execution p, LATERAL xdb.check_process(p.process_id, p.execution_id) c
             WHERE p.shard % 2 = {rest} ORDER BY p.execution_id"
        );
        match world.superuser(Duration::from_secs(30)) {
            Some(mut db) => {
                db.run("SET statement_timeout = 0");
                db.all::<String>(&sql)
            }
            None => vec!["no session to check with".to_owned()],
        }
    };
    let problems = std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        let mut problems = half(0);
        problems.extend(other.join().expect("its panic is printed above"));
        problems
    });
    findings.all("check_process", problems);
}
