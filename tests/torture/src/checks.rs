//! What must hold when every process of a round has come to its end: the tables, the worker's ledger and the clients' log
//! tell the same story.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use xdb_cluster_tests::db::Db;

use crate::record::{Fate, Page};
use crate::shapes::Shape;
use crate::world::World;

/// Something that must not be, with what shows it.
pub type Violation = String;

/// At most so many of a kind are told.
const TOLD: usize = 5;

/// What was found, without telling the same a thousand times.
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
        if *count <= TOLD {
            self.violations.push(format!("{kind}: {}", what.into()));
        } else {
            *self.untold.entry(kind).or_default() += 1;
        }
    }

    fn all(&mut self, kind: &'static str, what: impl IntoIterator<Item = String>) {
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
    execution: String,
    status: String,
    request: String,
    results: Value,
}

/// An effect on the user's tables.
struct Effect {
    call: String,
    nonce: u64,
    messages: Vec<String>,
}

impl Effect {
    fn execution(&self) -> &str {
        self.call.split('/').next().unwrap_or_default()
    }
}

/// Compares everything with everything.
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
    in_sql(db, findings);
    sound(world, findings);
}

fn ended(db: &mut Db) -> Vec<Ended> {
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let sql = "SELECT process_id AS p, execution_id AS e, status AS s, request_id AS r, results AS o \
        FROM xdb.process_execution";
    let rows = db.rows(sql);
    let ended = rows.iter().map(|row| Ended {
        process_id: text(row, "p"),
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
            messages: messages.into_iter().flatten().filter_map(|uid| uid.as_str()).map(str::to_owned).collect(),
        }
    });
    effects.collect()
}

/// Every acknowledged start has come to its end, every one that was rolled back has left nothing, and the user's row of the
/// same transaction has shared its fate.
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
        if !start.shape.ends().contains(&found.status.as_str()) || (start.last && found.status == "RUNNING") {
            findings.add("wrong end", format!("{process_id} ({}) is {}", found.execution, found.status));
        }
        let last_one_completes = start.shape == Shape::Reuse && start.last && start.fate == Fate::Acknowledged;
        if last_one_completes && found.status != "COMPLETED" {
            findings.add("wrong end", format!("{process_id} ({}), the last, is {}", found.execution, found.status));
        }
        let counts = matches!(start.shape, Shape::Chain | Shape::Reuse) && found.status == "COMPLETED";
        if counts && found.results[0]["output"]["n"] != start.length {
            let what = format!("{process_id} counted to {} instead of {}", found.results, start.length);
            findings.add("wrong sum", what);
        }
    }
    for ended in ended.iter().filter(|ended| !page.starts.contains_key(&ended.request)) {
        findings.add("ghost start", format!("{} ({}) was started by nobody", ended.process_id, ended.execution));
    }
    let known: BTreeSet<&String> = page.starts.keys().collect();
    for request in orders.iter().filter(|request| !known.contains(request)) {
        findings.add("ghost row", format!("an order of nobody: {request}"));
    }
}

/// Every effect is that of an answer which the worker gave and nobody had given up, once.
fn applied(world: &World, ended: &[Ended], effects: &[Effect], findings: &mut Findings) {
    let executions: BTreeSet<&str> = ended.iter().map(|ended| ended.execution.as_str()).collect();
    let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
    for effect in effects {
        if let Some(objection) = world.ledger.objection(effect.nonce, &effect.call) {
            findings.add("wrong answer applied", objection);
        }
        if let Some(before) = calls.insert(&effect.call, effect.nonce) {
            let what = format!("{} by the answers {before} and {}", effect.call, effect.nonce);
            findings.add("applied twice", what);
        }
        if !executions.contains(effect.execution()) {
            findings.add("effect of nobody", format!("{} of an execution that is not there", effect.call));
        }
    }
}

/// Every message was consumed once, or refused, or rolled back; in the order in which it was published.
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
                findings.add("message lost", format!("{uid} was acknowledged, and nobody got it"));
            }
            Fate::Refused | Fate::RolledBack if by.is_some() => {
                findings.add("ghost message", format!("{uid} was {:?}, and somebody got it", message.fate));
            }
            _ => {}
        }
    }
    // The number of the state execution tells the order of consumption.
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
        let Some((_, start)) = page.starts.get(&ended.request).filter(|(_, start)| start.shape == Shape::Fan) else {
            continue;
        };
        let got = joined.get(ended.execution.as_str()).copied().unwrap_or_default();
        if got as u64 != start.length {
            let what = format!("{} joined {got} of its {} threads", ended.process_id, start.length);
            findings.add("message lost", what);
        }
    }
}

/// An acknowledged RPC was applied once, with the answer that its client got; one that was rolled back was not.
fn rpcs(page: &Page, effects: &[Effect], findings: &mut Findings) {
    let mut applied: BTreeMap<String, &Effect> = BTreeMap::new();
    for effect in effects {
        if let Some((_, key)) = effect.call.split_once("/rpc/") {
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

/// What a client has seen closed has stayed so.
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

/// Checks that the server makes better itself: each query gives one line per violation.
const IN_SQL: &[(&str, &str)] = &[
    (
        "user rows and history disagree",
        "SELECT format('answer %s of %s: %s in the history, %s on the table', nonce, x, sum(h), sum(e)) FROM (
             SELECT execution_id::text AS x, details #>> '{attributes,effect,nonce}' AS nonce, 1 AS h, 0 AS e
             FROM xdb.history_event
             WHERE event_type = 'GlobalAttributesWritten' AND details -> 'attributes' ? 'effect'
             UNION ALL SELECT split_part(effect ->> 'call', '/', 1), effect ->> 'nonce', 0, 1 FROM effects) found
         GROUP BY nonce, x HAVING sum(e) <> 1 OR sum(h) > 1 OR sum(h) < 1 AND EXISTS
             (SELECT FROM xdb.process_execution WHERE execution_id::text = x AND history_limit IS NULL)",
    ),
    (
        "steps without an effect",
        "SELECT format('%s: %s steps and RPCs, %s effects', execution_id, steps, effects) FROM (
             SELECT execution_id,
                 count(*) FILTER (WHERE event_type IN ('StateCompleted', 'RpcApplied')) AS steps,
                 count(*) FILTER (WHERE event_type = 'GlobalAttributesWritten'
                     AND details -> 'attributes' ? 'effect') AS effects
             FROM xdb.history_event JOIN xdb.process_execution USING (execution_id)
             WHERE history_limit IS NULL GROUP BY execution_id) counts WHERE steps <> effects",
    ),
    (
        "lost update",
        "SELECT format('row %s counts %s after %s increments', w.id, w.n, count(e.number))
         FROM work w LEFT JOIN effects e ON e.row_id = w.id
         WHERE w.id ~ '^x[0-9]+$' GROUP BY w.id, w.n HAVING coalesce(w.n, 0) <> count(e.number)",
    ),
    (
        "timer fired twice",
        "SELECT format('%s: command %s of state %s, %s times', execution_id, details ->> 'command', details ->> 'seq',
             count(*))
         FROM xdb.history_event WHERE event_type = 'CommandCompleted'
         GROUP BY execution_id, details ->> 'seq', details ->> 'command' HAVING count(*) > 1",
    ),
    (
        "timer fired early",
        "SELECT format('%s: due at %s, fired at %s', c.execution_id, w.fire_at, c.event_time)
         FROM xdb.history_event c
         JOIN (SELECT execution_id, details ->> 'seq' AS seq, n - 1 AS command,
                   to_timestamp((command -> 'kind' -> 'timer' ->> 'fireAt')::float8 / 1e6) AS fire_at
               FROM xdb.history_event, jsonb_array_elements(details -> 'commands') WITH ORDINALITY AS t (command, n)
               WHERE event_type = 'WaitStarted' AND command -> 'kind' ? 'timer') w
             ON w.execution_id = c.execution_id AND w.seq = c.details ->> 'seq'
                 AND w.command = (c.details ->> 'command')::int
         WHERE c.event_type = 'CommandCompleted' AND c.event_time < w.fire_at - interval '1 ms'",
    ),
    (
        "timeout early",
        "SELECT format('%s: %s before %s', process_id, closed_at, timeout_at) FROM xdb.process_execution
         WHERE status = 'TIMEOUT' AND (timeout_at IS NULL OR closed_at < timeout_at)",
    ),
    (
        "left behind",
        "SELECT format('%s rows of %s', count(*), t) FROM (
             SELECT 'task' AS t FROM xdb.task UNION ALL SELECT 'timer' FROM xdb.timer
             UNION ALL SELECT 'inbox' FROM xdb.inbox UNION ALL SELECT 'queue_message' FROM xdb.queue_message
             UNION ALL SELECT 'queue_waiter' FROM xdb.queue_waiter UNION ALL SELECT 'message_key' FROM xdb.message_key
             UNION ALL SELECT 'global_message' FROM xdb.global_message
             UNION ALL SELECT 'global_waiter' FROM xdb.global_waiter
             UNION ALL SELECT 'global_passed_over' FROM xdb.global_passed_over
             UNION ALL SELECT 'attribute_locks' FROM xdb.attribute_locks
             UNION ALL SELECT 'closing marks' FROM xdb.process_execution WHERE closing IS NOT NULL
             UNION ALL SELECT 'live states' FROM xdb.state_execution WHERE ended_at IS NULL) rows
         GROUP BY t",
    ),
    (
        "rows of no execution",
        "SELECT format('%s rows of %s', count(*), t) FROM (
             SELECT execution_id, 'state_execution' AS t FROM xdb.state_execution
             UNION ALL SELECT execution_id, 'history_event' FROM xdb.history_event
             UNION ALL SELECT execution_id, 'local_attribute' FROM xdb.local_attribute
             UNION ALL SELECT execution_id, 'rpc_answer' FROM xdb.rpc_answer
             UNION ALL SELECT execution_id, 'latest_execution' FROM xdb.latest_execution) rows
         WHERE NOT EXISTS (SELECT FROM xdb.process_execution p WHERE p.execution_id = rows.execution_id)
         GROUP BY t",
    ),
    (
        "slow",
        "SELECT 'tables are slow: ' || object::regclass || ', ' || reason FROM xdb.slow_object WHERE mended_at IS NULL AND kind = 'TABLE'",
    ),
];

fn in_sql(db: &mut Db, findings: &mut Findings) {
    for (kind, sql) in IN_SQL {
        // What is being cleared away may take a moment.
        let deadline =
            Instant::now() + Duration::from_secs(if *kind == "left behind" || *kind == "slow" { 30 } else { 0 });
        let rows = loop {
            let rows = db.all::<String>(sql);
            if rows.is_empty() || Instant::now() >= deadline {
                break rows;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        findings.all(kind, rows);
    }
}

/// `xdb.check_process` of every execution, in two sessions.
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
