//! Checks in SQL after a round, when all processes have ended. Each query returns one row per violation.

use std::time::{Duration, Instant};

use xdb_cluster_tests::db::Db;

use crate::checks::Findings;

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
        "deeds and answers disagree",
        "SELECT format('answer %s to %s: %s deeds, applied %s times', nonce, call, sum(d), sum(a)) FROM (
             SELECT call, nonce, 1 AS d, 0 AS a FROM deeds WHERE call NOT LIKE '%/wait-until'
             UNION ALL SELECT effect ->> 'call', (effect ->> 'nonce')::bigint, 0, 1 FROM effects WHERE effect ? 'by') found
         GROUP BY call, nonce HAVING sum(d) <> 1 OR sum(a) <> 1",
    ),
    (
        "deeds and waits disagree",
        "SELECT format('%s: %s waits, %s deeds for %s calls', execution_id, waits, deeds, calls) FROM (
             SELECT p.execution_id,
                 (SELECT count(*) FROM xdb.history_event h
                  WHERE h.execution_id = p.execution_id AND h.event_type = 'WaitStarted') AS waits,
                 count(d.call) AS deeds, count(DISTINCT d.call) AS calls
             FROM xdb.process_execution p
             LEFT JOIN (SELECT split_part(call, '/', 1) AS x, call FROM deeds WHERE call LIKE '%/wait-until') d
                 ON d.x = p.execution_id::text
             WHERE p.process_type IN ('letters', 'parcels') AND p.history_limit IS NULL
             GROUP BY p.execution_id) counts
         WHERE deeds <> calls OR deeds <> waits",
    ),
    (
        "miscounted",
        "SELECT format('tally %s is %s after %s answers', t.id, t.n, count(e.number))
         FROM tallies t LEFT JOIN effects e ON e.effect ->> 'tally' = t.id
         GROUP BY t.id, t.n HAVING t.n <> count(e.number)",
    ),
    (
        "merges do not add up",
        "SELECT format('%s starts, %s of them processes, %s merged', asked, begun, merged) FROM (
             SELECT (SELECT count(*) FROM asked) AS asked,
                 (SELECT count(*) FROM xdb.process_execution WHERE process_type = 'merge') AS begun,
                 (SELECT count(*) FROM xdb.history_event WHERE event_type = 'StartMerged') AS merged) counts
         WHERE asked <> begun + merged",
    ),
    (
        "incident not resolved once",
        "SELECT format('%s: %s incidents, %s resolved', execution_id, raised, resolved) FROM (
             SELECT p.execution_id, count(*) FILTER (WHERE event_type = 'IncidentRaised') AS raised,
                 count(*) FILTER (WHERE event_type = 'RetryRequested' AND details -> 'resolves' = 'true') AS resolved
             FROM xdb.process_execution p
             JOIN xdb.history_event h USING (execution_id)
             WHERE p.process_type = 'incident' AND p.history_limit IS NULL GROUP BY p.execution_id) counts
         WHERE raised = 0 OR raised <> resolved
         UNION ALL SELECT format('%s stands at %s', process_id, state_execution_id) FROM xdb.incidents",
    ),
    (
        // A call that is under way may end in a pause. One of a state that has begun in it may not begin.
        "called while paused",
        "SELECT format('%s: state %s, begun as event %s, has %s as event %s, in the pause since event %s', p.execution_id,
             s.details ->> 'seq', s.event_id, e.event_type, e.event_id, p.event_id)
         FROM xdb.history_event p
         JOIN xdb.history_event s ON s.execution_id = p.execution_id AND s.event_id > p.event_id
         JOIN xdb.history_event e ON e.execution_id = p.execution_id AND e.event_id > s.event_id
             AND e.details -> 'seq' = s.details -> 'seq'
         WHERE p.event_type = 'ProcessPaused' AND s.event_type = 'StateStarted'
             AND e.event_type IN ('WaitStarted', 'StateCompleted', 'AttemptFailed')
             -- A static wait begins without a call.
             AND NOT (e.event_type = 'WaitStarted' AND s.details ? 'staticWait')
             AND NOT EXISTS (SELECT FROM xdb.history_event r WHERE r.execution_id = p.execution_id
                 AND r.event_type = 'ProcessResumed' AND r.event_id BETWEEN p.event_id AND e.event_id)",
    ),
    (
        // One end for each process, that of its way, and two reminders at most.
        "guards do not add up",
        "SELECT format('%s (%s): reminded %s times, shipped %s, recalled %s, cancelled %s', process_id, execution_id,
             reminded, shipped, recalled, cancelled) FROM (
             SELECT p.process_id, p.execution_id, regexp_replace(p.process_id, '^.*-', '') AS way,
                 count(*) FILTER (WHERE state = 'Nag') AS reminded, count(*) FILTER (WHERE state = 'Ship') AS shipped,
                 count(*) FILTER (WHERE state = 'Recall') AS recalled,
                 count(*) FILTER (WHERE state = 'Cancelled') AS cancelled
             FROM xdb.process_execution p LEFT JOIN done ON x = p.execution_id::text
             WHERE p.process_id LIKE 'guarded-%' GROUP BY p.process_id, p.execution_id) counts
         WHERE reminded > 2 OR shipped + recalled + cancelled <> 1 OR shipped <> 1 AND way IN ('alone', 'ship')
             OR recalled <> 1 AND way = 'recall' OR cancelled <> 1 AND way = 'cancel' OR reminded <> 2 AND way = 'alone'
         UNION ALL SELECT format('%s (%s): joined %s times, halted %s', process_id, execution_id, joined, halted) FROM (
             SELECT p.process_id, p.execution_id, regexp_replace(p.process_id, '^.*-', '') AS way,
                 count(*) FILTER (WHERE state = 'Join') AS joined, count(*) FILTER (WHERE state = 'Halt') AS halted
             FROM xdb.process_execution p LEFT JOIN done ON x = p.execution_id::text
             WHERE p.process_id LIKE 'watched-%' GROUP BY p.process_id, p.execution_id) counts
         WHERE joined + halted <> 1 OR joined <> 1 AND way = 'all' OR halted <> 1 AND way = 'branch'",
    ),
    (
        "not one winner",
        "SELECT format('%s (%s): %s winners, %s at the end', p.process_id, p.execution_id,
             count(*) FILTER (WHERE state IN ('Runner', 'Racer')), count(*) FILTER (WHERE state = 'Finish'))
         FROM xdb.process_execution p LEFT JOIN done ON x = p.execution_id::text
         WHERE p.process_id LIKE 'race-%' GROUP BY p.process_id, p.execution_id
         HAVING count(*) FILTER (WHERE state IN ('Runner', 'Racer')) <> 1 OR count(*) FILTER (WHERE state = 'Finish') <> 1",
    ),
    (
        // The latest step is undone first, each once, and the row counts what is left.
        "undone wrongly",
        "SELECT format('%s (%s) is %s: did %s, undid %s, counts %s', process_id, execution_id, status, did, undid, n)
         FROM (
             SELECT p.process_id, p.execution_id, p.status, w.n,
                 array_agg(step ORDER BY number DESC) FILTER (WHERE state = 'Book') AS did,
                 array_agg(done.effect ->> 'undoes' ORDER BY number) FILTER (WHERE state = 'Undo') AS undid
             FROM xdb.process_execution p JOIN work w ON w.id = p.process_id LEFT JOIN done ON x = p.execution_id::text
             WHERE p.process_id LIKE 'saga-%' GROUP BY p.process_id, p.execution_id, p.status, w.n) steps
         WHERE status = 'COMPLETED' AND undid IS NOT NULL OR status = 'FAILED' AND (undid IS DISTINCT FROM did OR n <> 0)",
    ),
    (
        // The effect of an answer names the children that it has started.
        "children do not add up",
        "WITH born AS MATERIALIZED (
             SELECT x AS parent, b ->> 'id' AS id, b -> 'ends' AS ends, b -> 'n' AS n
             FROM done CROSS JOIN LATERAL jsonb_array_elements(effect -> 'children') AS b WHERE effect ? 'children')
         SELECT format('%s of %s: %s executions, %s, not one that is %s', id, parent, count(p.execution_id),
             array_agg(concat_ws(' ', p.status, p.results)), ends)
         FROM born LEFT JOIN xdb.process_execution p ON p.process_id = id GROUP BY id, parent, ends, n
         HAVING count(p.execution_id) <> 1 OR bool_or(p.parent_id::text IS DISTINCT FROM parent OR NOT ends ? p.status
             OR p.status = 'COMPLETED' AND n <> 'null' AND p.results #> '{0,output,n}' IS DISTINCT FROM n)
         UNION ALL SELECT format('%s (%s): no effect names it', p.process_id, p.execution_id)
         FROM xdb.process_execution p
         WHERE p.process_id LIKE 'child-%' AND NOT EXISTS (SELECT FROM born WHERE id = p.process_id)
         UNION ALL SELECT format('%s was told of the ends of %s', x, effect -> 'messages') FROM done
         WHERE state = 'Await' AND (SELECT array_agg(m ORDER BY m) FROM jsonb_array_elements_text(effect -> 'messages') AS m)
             IS DISTINCT FROM (SELECT array_agg(id ORDER BY id) FROM born WHERE parent = x)",
    ),
    (
        "child outlived its parent",
        "SELECT format('%s (%s): closed at %s, its parent %s at %s', c.process_id, c.execution_id, c.closed_at, p.process_id,
             p.closed_at)
         FROM xdb.process_execution c JOIN xdb.process_execution p ON p.execution_id = c.parent_id
         WHERE c.started_by ->> 'whenParentCloses' IS NULL AND c.closed_at > p.closed_at + interval '60 s'",
    ),
    (
        // The id of a process that a schedule starts ends with the second of its tick.
        "tick doubled or early",
        "SELECT format('%s: %s executions, the first at %s', process_id, count(*), min(started_at))
         FROM xdb.process_execution WHERE process_type = 'tick' GROUP BY process_id
         HAVING count(*) > 1 OR min(started_at) <
             to_timestamp(right(process_id, 16), 'YYYYMMDD\"T\"HH24MISS\"Z\"')::timestamp AT TIME ZONE 'UTC'",
    ),
    (
        "changes and history disagree",
        "WITH executions AS (
             SELECT execution_id::text AS x, history_limit IS NULL AS whole FROM xdb.process_execution
             -- Types have no changes while wake-ups alone move the engine.
             WHERE process_type NOT IN ('forward', 'Schedule') AND process_id NOT LIKE '%-proof-%'),
         changes AS MATERIALIZED (
             SELECT number, change ->> 'processExecutionId' AS x, (change ->> 'eventId')::bigint AS event_id,
                 change ->> 'eventType' AS event_type, change -> 'details' AS details FROM forwarded)
         SELECT format('%s %s of %s: %s times in the history, %s forwarded', event_type, event_id, x, sum(h), sum(c)) FROM (
             SELECT execution_id::text AS x, event_id, event_type, details, 1 AS h, 0 AS c FROM xdb.history_event
             WHERE event_type IN ('ProcessStarted', 'StateStarted', 'StateCompleted', 'StateFailed', 'StateAborted',
                 'IncidentRaised', 'ProcessClosed')
             UNION ALL SELECT x, event_id, event_type, details, 0, 1 FROM changes) found
         LEFT JOIN executions USING (x) WHERE c = 1 OR executions IS NOT NULL
         GROUP BY x, event_id, event_type, details HAVING sum(c) <> 1 OR sum(h) < 1 AND bool_and(whole IS NOT FALSE)
         UNION ALL SELECT format('%s: started %s times, closed %s times as forwarded', x, started, closed) FROM (
             SELECT x, count(*) FILTER (WHERE event_type = 'ProcessStarted') AS started,
                 count(*) FILTER (WHERE event_type = 'ProcessClosed') AS closed
             FROM executions LEFT JOIN changes USING (x) GROUP BY x) counts WHERE started <> 1 OR closed <> 1
         UNION ALL SELECT format('%s: event %s was forwarded after event %s', x, event_id, before) FROM (
             SELECT x, event_id, lag(event_id) OVER (PARTITION BY x ORDER BY number) AS before FROM changes) ordered
         WHERE before >= event_id",
    ),
    (
        // A process with locks works from its first answered call to its close.
        "two under one lock",
        "WITH works AS (
             SELECT h.execution_id, l.key AS name, l.value #>> '{}' AS mode, c.event_time AS until,
                 (SELECT min(f.event_time) FROM xdb.history_event f WHERE f.execution_id = h.execution_id
                     AND f.event_type IN ('WaitStarted', 'StateCompleted', 'AttemptFailed')) AS since
             FROM xdb.history_event h CROSS JOIN LATERAL jsonb_each(h.details -> 'locks') AS l
             JOIN xdb.history_event c ON c.execution_id = h.execution_id AND c.event_type = 'ProcessClosed'
             WHERE h.event_type = 'ProcessStarted' AND h.details ? 'locks')
         SELECT format('%s: %s (%s) until %s, and %s (%s) since %s', a.name, a.execution_id, a.mode, a.until,
             b.execution_id, b.mode, b.since)
         FROM works a JOIN works b ON a.name = b.name AND a.execution_id <> b.execution_id
         WHERE (a.mode = 'EXCLUSIVE' OR b.mode = 'EXCLUSIVE') AND a.since <= b.since AND b.since < a.until",
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
             UNION ALL SELECT 'process_lock' FROM xdb.process_lock WHERE status <> 'RELEASED'
             UNION ALL SELECT 'paused types' FROM xdb.process_type WHERE pause_mode IS NOT NULL
             UNION ALL SELECT 'pauses' FROM xdb.process_execution WHERE pause_mode IS NOT NULL
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
];

/// Adds the violations that the queries find.
pub fn check(db: &mut Db, findings: &mut Findings) {
    for (kind, sql) in IN_SQL {
        // What is being cleared away may take a moment.
        let deadline = Instant::now() + Duration::from_secs(if *kind == "left behind" { 30 } else { 0 });
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

/// How many things of each kind a round had. A reader sees that the checks had something to check.
const FIGURES: &[(&str, &str)] = &[
    ("answers of functions", "SELECT count(*) FROM effects WHERE effect ->> 'by' = 'function'"),
    ("answers to calls that were claimed", "SELECT count(*) FROM effects WHERE effect ->> 'by' = 'claimed'"),
    ("answers that functions counted", "SELECT sum(n)::bigint FROM tallies"),
    ("starts that were merged", "SELECT count(*) FROM xdb.history_event WHERE event_type = 'StartMerged'"),
    (
        "guards that have worked",
        "SELECT count(*) FROM done WHERE state IN ('Nag', 'Recall', 'Cancelled', 'Halt', 'Cancel')",
    ),
    ("steps that were aborted", "SELECT count(*) FROM xdb.history_event WHERE event_type = 'StateAborted'"),
    (
        "steps that were moved",
        "SELECT count(*) FROM xdb.history_event WHERE event_type = 'StateAborted' AND details ->> 'reason' = 'the rack'",
    ),
    ("steps that were undone", "SELECT count(*) FROM done WHERE state = 'Undo'"),
    ("children", "SELECT count(*) FROM xdb.process_execution WHERE parent_id IS NOT NULL"),
    (
        "children that ended with their parents",
        "SELECT count(*) FROM xdb.process_execution WHERE reason = 'its parent closed'",
    ),
    ("ticks", "SELECT count(*) FROM xdb.process_execution WHERE process_type = 'tick'"),
    ("changes that were forwarded", "SELECT count(*) FROM forwarded"),
    ("incidents", "SELECT count(*) FROM xdb.history_event WHERE event_type = 'IncidentRaised'"),
    ("pauses of processes", "SELECT count(*) FROM xdb.history_event WHERE event_type = 'ProcessPaused'"),
    (
        "states that began in a pause",
        "SELECT count(DISTINCT (s.execution_id, s.event_id)) FROM xdb.history_event p
         JOIN xdb.history_event s ON s.execution_id = p.execution_id AND s.event_id > p.event_id
         WHERE p.event_type = 'ProcessPaused' AND s.event_type = 'StateStarted'
             AND NOT EXISTS (SELECT FROM xdb.history_event r WHERE r.execution_id = p.execution_id
                 AND r.event_type = 'ProcessResumed' AND r.event_id BETWEEN p.event_id AND s.event_id)",
    ),
];

/// The figures of a round.
pub fn figures(db: &mut Db) -> impl Iterator<Item = (&'static str, i64)> {
    FIGURES.iter().map(move |(what, sql)| (*what, db.one(sql)))
}
