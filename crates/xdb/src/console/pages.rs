//! The pages of the console, except that of one process. No page counts rows or skips rows: each begins at a key.

use super::fields::field;
use super::layout::{ROWS, TextRow, encoded, more_note, process_link, shown, table, text, value};
use super::page::{Page, PageRequest};
use super::pictures;
use crate::connection::Trouble;
use crate::sentence::explain;
use crate::show::documents;
use jiff::Timestamp;
use maud::{Markup, html};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// The most workers, and the most types, of the page about them. One more is read.
const REGISTERED: usize = 1000;

// The last column of a statement with a next page is the key of the row. The statement gets the key of the last row that
// was shown, and reads the rows after it.

// In ORDER BY, a name without its table would be that of a column of the result, which is a text.
//
// Of the views, Postgres reads all rows that fit before it sorts them: they are security barriers. So pages of what has no
// bound are chosen from the tables, under the same row-level security. LIMIT 1 keeps the view a look-up of each row.

const LIST: &str = "SELECT p.process_id, p.execution_id::text, p.process_type, p.owner::text, p.status, \
        CASE WHEN p.paused THEN 'paused' END, to_char(p.started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), \
        left(CASE WHEN p.status <> 'RUNNING' THEN COALESCE(p.reason, p.result::text) END, 200), (p.reason IS NULL)::text, p.execution_id::text \
    FROM (SELECT process_id, execution_id FROM xdb.process_execution \
        WHERE ($1 IS NULL OR process_id ^@ $1) AND ($2 IS NULL OR process_type = $2) AND ($3 IS NULL OR status = $3) \
            AND ($4 IS NULL OR owner_name = $4) AND ($5 IS NULL OR execution_id < $5::uuid) \
        ORDER BY execution_id DESC LIMIT 51) AS e \
    CROSS JOIN LATERAL (SELECT * FROM xdb.processes AS q WHERE q.process_id = e.process_id AND q.execution_id = e.execution_id LIMIT 1) AS p \
    ORDER BY p.execution_id DESC";

const STATUSES: [&str; 5] = ["RUNNING", "COMPLETED", "FAILED", "TIMEOUT", "TERMINATED"];

const FAILURES: &str = "SELECT f.process_id, f.execution_id::text, p.process_type, f.state_execution_id, f.error_type, f.http_status::text, \
        left(f.detail, 500), f.attempt::text, to_char(f.failed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), \
        to_char(f.next_attempt_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), jsonb_build_array(f.failed, f.execution_id, f.step)::text \
    FROM (SELECT * FROM (SELECT *, COALESCE(failed_at, 'infinity') AS failed, COALESCE(state_execution_id, '') AS step FROM xdb.failures) AS a \
        WHERE (state_status IS NULL OR state_status IN ('WAIT_UNTIL', 'EXECUTE')) AND ($1 IS NULL \
            OR (failed, execution_id, step) < (($1::jsonb ->> 0)::timestamptz, ($1::jsonb ->> 1)::uuid, $1::jsonb ->> 2)) \
        ORDER BY failed DESC, execution_id DESC, step DESC LIMIT 51) AS f \
    LEFT JOIN LATERAL (SELECT process_type FROM xdb.processes AS q WHERE q.process_id = f.process_id AND q.execution_id = f.execution_id LIMIT 1) AS p ON true \
    ORDER BY f.failed DESC, f.execution_id DESC, f.step DESC";

const INCIDENTS: &str = "SELECT process_id, execution_id::text, state_execution_id, error_type, left(detail, 500), attempt::text, \
        to_char(raised_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), jsonb_build_array(raised_at, execution_id, state_execution_id)::text \
    FROM xdb.incidents AS i WHERE $1 IS NULL OR (raised_at, execution_id, state_execution_id) \
        < (($1::jsonb ->> 0)::timestamptz, ($1::jsonb ->> 1)::uuid, $1::jsonb ->> 2) \
    ORDER BY i.raised_at DESC, i.execution_id DESC, i.state_execution_id DESC LIMIT 51";

const WORKERS: &str = "SELECT name, COALESCE(url, CASE WHEN registered_at IS NOT NULL THEN 'a pull worker' END), owner::text, \
        in_flight::text, max_concurrency::text, waiting::text, breaker, calls::text, failures::text, \
        to_char(last_error_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') \
    FROM xdb.workers ORDER BY name LIMIT 1001";

const TYPES: &str = "SELECT process_type, worker, owner::text, version::text, concat_ws(' ', pause_mode, pause_reason), \
        (definition -> 'globalQueues')::text \
    FROM xdb.process_types ORDER BY process_type LIMIT 1001";

const QUEUE_OF_PROCESS: &str = "SELECT queue_name, \"position\"::text, message_id, left(payload::text, 4097), \
        CASE WHEN received THEN 'received' ELSE 'published' END, jsonb_build_array(execution_id, queue_name, \"position\")::text \
    FROM xdb.queue_messages AS m WHERE process_id = $1 AND ($2 IS NULL OR execution_id < ($2::jsonb ->> 0)::uuid \
        OR execution_id = ($2::jsonb ->> 0)::uuid AND (queue_name, \"position\") > ($2::jsonb ->> 1, ($2::jsonb ->> 2)::bigint)) \
    ORDER BY m.execution_id DESC, m.queue_name, m.\"position\" LIMIT 51";

const GLOBAL_QUEUE: &str = "SELECT queue_name, \"position\"::text, message_id, left(payload::text, 4097), key, \"position\"::text \
    FROM xdb.queue_messages AS m WHERE process_id IS NULL AND queue_name = $1 AND ($2 IS NULL OR \"position\" > $2::bigint) ORDER BY m.\"position\" LIMIT 51";

const SCHEDULES: &str = "SELECT p.process_id, p.execution_id::text, p.owner::text, CASE WHEN p.paused THEN 'paused' END, \
        (SELECT to_char(min(t.fire_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') FROM xdb.timers t \
            WHERE t.process_id = p.process_id AND t.execution_id = p.execution_id AND t.kind = 'TIMER_COMMAND'), \
        left(xdb.get_local_attributes(p.process_id, NULL, p.execution_id)::text, 500), p.process_id \
    FROM (SELECT * FROM xdb.processes WHERE process_type = 'Schedule' AND status = 'RUNNING' AND ($1 IS NULL OR process_id > $1) ORDER BY process_id LIMIT 51) AS p";

const LOCKS: &str = "SELECT name, mode, CASE WHEN granted THEN 'holds' ELSE 'waits' END, process_id, execution_id::text, process_type, \
        to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), place::text \
    FROM xdb.locks AS l WHERE $1 IS NULL OR name = $1 ORDER BY l.name, l.granted DESC, l.place LIMIT 51";

/// The same and, if there are more rows, a link to them. The page of the link gets the key of the last row in the field
/// `key`, and the fields `kept` of this page.
fn below(asked: &PageRequest<'_>, page: &str, kept: &[&str], key: &str, rows: &[TextRow], more: bool) -> Markup {
    let kept = kept.iter().filter_map(|name| Some((*name, field(asked.fields, name)?)));
    let last = rows.last().and_then(|row| row.last()?.as_deref()).filter(|_| more);
    let next = last.map(|last| {
        let fields = kept.chain([(key, last)]).map(|(name, value)| format!("{name}={}", encoded(value)));
        format!("{page}?{}", fields.collect::<Vec<_>>().join("&"))
    });
    html! {
        (more_note(more, rows))
        @if let Some(next) = next { p { a href=(next) rel="next" { "Next page" } } }
    }
}

/// A text as a cell. Characters that would change the order of the others are escaped.
fn plain(row: &TextRow, column: usize) -> Markup {
    html! { (crate::text::visible(text(row, column))) }
}

pub struct ListPage;

impl Page for ListPage {
    const TITLE: &'static str = "Processes";

    async fn body(asked: &PageRequest<'_>) -> Result<Markup, Trouble> {
        let of = |name: &str| field(asked.fields, name);
        let params = [of("id"), of("type"), of("status"), of("owner"), of("before")];
        let mut rows = asked.session.rows(LIST, &params).await?;
        let more = shown(&mut rows, ROWS);
        let does = what_they_do(asked, &rows).await;
        let cell = |column: usize, row: &TextRow| match column {
            0 => process_link(text(row, 0), text(row, 1)),
            1 => plain(row, 2),
            2 => html! { span class=(text(row, 4)) { (text(row, 4)) } @if !text(row, 5).is_empty() { " ⏸ paused" } },
            3 => plain(row, 6),
            4 => plain(row, 3),
            _ => match does.get(text(row, 1)) {
                Some(does) => html! { (does) },
                None => value(text(row, 7), asked.console.options.hide_payloads && text(row, 8) == "true"),
            },
        };
        let samples = asked.console.samples.read(asked.session).await;
        Ok(html! {
            div data-refresh { @if let Some(samples) = samples { (pictures::last_hour(&samples)) } }
            form method="get" action="./" role="search" {
                label { "Process id begins with " input name="id" value=[of("id")]; }
                label { "Type " input name="type" value=[of("type")]; }
                label { "Status "
                    select name="status" {
                        option value="" { "all" }
                        @for status in STATUSES { option value=(status) selected[of("status") == Some(status)] { (status) } }
                    }
                }
                label { "Owner " input name="owner" value=[of("owner")]; }
                button { "Search" }
            }
            div data-refresh {
                (table(&["Process", "Type", "Status", "Started (UTC)", "Owner", "Does now"], &rows, cell))
                (below(asked, "./", &["id", "type", "status", "owner"], "before", &rows, more))
            }
        })
    }
}

/// The first sentence about each running process, by execution. If the server does not give them in time, there are
/// none.
async fn what_they_do(asked: &PageRequest<'_>, rows: &[TextRow]) -> HashMap<String, String> {
    let running = rows.iter().filter(|row| text(row, 4) == "RUNNING");
    let ids: Vec<_> = running.map(|row| (text(row, 0), Some(text(row, 1)))).collect();
    let described = documents(asked.session, &ids).await.unwrap_or_default();
    let sentence = |(document, now, _): (Value, Timestamp, String)| {
        let mut all = explain(&document, now).into_iter();
        let first = all.next()?;
        let step = first.step.map_or_else(String::new, |step| format!("{}: ", crate::text::plain(&step)));
        let threads = all.filter(|other| other.step.is_some()).count();
        let others = if threads > 0 { format!(" ({threads} more threads)") } else { String::new() };
        let execution = document["processExecutionId"].as_str()?.to_owned();
        Some((execution, format!("{step}{}{others}", first.sentence)))
    };
    described.into_iter().filter_map(sentence).collect()
}

pub struct FailingPage;

impl Page for FailingPage {
    const TITLE: &'static str = "Failing";

    async fn body(asked: &PageRequest<'_>) -> Result<Markup, Trouble> {
        let (before, incidents_before) = ("before", "incidents_before");
        let mut incidents = asked.session.rows(INCIDENTS, &[field(asked.fields, incidents_before)]).await?;
        let more_incidents = shown(&mut incidents, ROWS);
        let mut failures = asked.session.rows(FAILURES, &[field(asked.fields, before)]).await?;
        let more = shown(&mut failures, ROWS);
        let mut groups: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for row in &failures {
            *groups.entry((text(row, 2), text(row, 4))).or_default() += 1;
        }
        let cell = |column: usize, row: &TextRow| match column {
            0 => process_link(text(row, 0), text(row, 1)),
            _ => plain(row, column + 1),
        };
        Ok(html! {
            div data-refresh {
                h2 { "Incidents" }
                p { "The retries of these steps are spent. The engine makes no attempt before xdb.retry_now()." }
                (table(&["Process", "Step", "Error", "Detail", "Attempts", "Raised (UTC)"], &incidents, cell))
                (below(asked, "failing", &[before], incidents_before, &incidents, more_incidents))
                h2 { "Calls that failed last" }
                @if !groups.is_empty() {
                    ul { @for ((process_type, error), count) in &groups {
                        li { (crate::text::visible(process_type)) ", " (crate::text::visible(error)) ": " (count) }
                    } }
                }
                (table(&["Process", "Type", "Step", "Error", "HTTP", "Detail", "Attempt", "Failed (UTC)", "Next attempt (UTC)"], &failures, cell))
                (below(asked, "failing", &[incidents_before], before, &failures, more))
            }
        })
    }
}

pub struct WorkersPage;

impl Page for WorkersPage {
    const TITLE: &'static str = "Workers and types";

    async fn body(asked: &PageRequest<'_>) -> Result<Markup, Trouble> {
        let mut workers = asked.session.rows(WORKERS, &[]).await?;
        let mut types = asked.session.rows(TYPES, &[]).await?;
        let (more_workers, more_types) = (shown(&mut workers, REGISTERED), shown(&mut types, REGISTERED));
        let cell = |column: usize, row: &TextRow| plain(row, column);
        let worker_columns = [
            "Worker",
            "URL",
            "Owner",
            "In flight",
            "At most",
            "Waiting",
            "Breaker",
            "Calls",
            "Failures",
            "Last error (UTC)",
        ];
        Ok(html! {
            div data-refresh {
                (table(&worker_columns, &workers, cell))
                (more_note(more_workers, &workers))
                h2 { "Process types" }
                (table(&["Type", "Worker", "Owner", "Version", "Pause", "Global queues"], &types, cell))
                (more_note(more_types, &types))
                p.note { "An operator, and a member of the owner, see more than names." }
            }
        })
    }
}

pub struct QueuesPage;

impl Page for QueuesPage {
    const TITLE: &'static str = "Queues";

    async fn body(asked: &PageRequest<'_>) -> Result<Markup, Trouble> {
        let [id, queue, after] = ["id", "queue", "after"].map(|name| field(asked.fields, name));
        let mut rows = match (id, queue) {
            (Some(id), _) => asked.session.rows(QUEUE_OF_PROCESS, &[Some(id), after]).await?,
            (None, Some(queue)) => asked.session.rows(GLOBAL_QUEUE, &[Some(queue), after]).await?,
            (None, None) => Vec::new(),
        };
        let more = shown(&mut rows, ROWS);
        let cell = |column: usize, row: &TextRow| match column {
            3 => value(text(row, 3), asked.console.options.hide_payloads),
            _ => plain(row, column),
        };
        let last = if id.is_some() { "State" } else { "Key" };
        Ok(html! {
            form method="get" action="queues" role="search" {
                label { "Queues of process " input name="id" value=[id]; }
                label { "or global queue " input name="queue" value=[queue]; }
                button { "Show" }
            }
            @if id.is_some() || queue.is_some() {
                (table(&["Queue", "Position", "Message id", "Payload", last], &rows, cell))
                (below(asked, "queues", &["id", "queue"], "after", &rows, more))
            } @else {
                p { "Name a process or a global queue. The page of types lists the global queues that types use." }
            }
        })
    }
}

pub struct SchedulesPage;

impl Page for SchedulesPage {
    const TITLE: &'static str = "Schedules";

    async fn body(asked: &PageRequest<'_>) -> Result<Markup, Trouble> {
        let mut rows = asked.session.rows(SCHEDULES, &[field(asked.fields, "after")]).await?;
        let more = shown(&mut rows, ROWS);
        let cell = |column: usize, row: &TextRow| match column {
            0 => process_link(text(row, 0), text(row, 1)),
            4 => value(text(row, 5), asked.console.options.hide_payloads),
            _ => plain(row, column + 1),
        };
        Ok(html! {
            div data-refresh {
                (table(&["Schedule", "Owner", "Pause", "Next tick (UTC)", "Attributes"], &rows, cell))
                (below(asked, "schedules", &[], "after", &rows, more))
            }
        })
    }
}

pub struct LocksPage;

impl Page for LocksPage {
    const TITLE: &'static str = "Locks";

    async fn body(asked: &PageRequest<'_>) -> Result<Markup, Trouble> {
        let name = field(asked.fields, "name");
        let mut rows = asked.session.rows(LOCKS, &[name]).await?;
        let more = shown(&mut rows, ROWS);
        let cell = |column: usize, row: &TextRow| match column {
            3 => process_link(text(row, 3), text(row, 4)),
            0..=2 => plain(row, column),
            _ => plain(row, column + 1),
        };
        Ok(html! {
            form method="get" action="locks" role="search" {
                label { "Lock " input name="name" value=[name]; }
                button { "Show" }
            }
            div data-refresh {
                (table(&["Lock", "Mode", "", "Process", "Type", "Since (UTC)", "Place"], &rows, cell))
                (more_note(more, &rows))
            }
        })
    }
}
