//! The page of one process: the sentences, actions, its timeline, steps and attributes.

use super::actions;
use super::fields::field;
use super::layout::{LONGEST_VALUE, ROWS, TextRow, encoded, more_note, process_link, shown, table, text, value};
use super::page::{Page, PageRequest};
use super::pictures::Span;
use crate::connection::Trouble;
use crate::sentence::{Case, last_failure};
use crate::show;
use jiff::Timestamp;
use maud::{Markup, html};

/// Events of a page of the timeline. One more is read, which says whether there are more.
const EVENTS: usize = 200;

const EXECUTIONS: &str = "SELECT execution_id::text, status, to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') \
    FROM xdb.processes AS p WHERE process_id = $1 ORDER BY p.execution_id DESC LIMIT 51";

// See the statements of pages.rs: these read the last rows of tables, under row-level security.

const TIMELINE: &str = "SELECT event_id::text, to_char(event_time AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS'), event_type, \
        left(details::text, 4097) \
    FROM xdb.history_event AS h WHERE execution_id = $1::uuid AND ($2 IS NULL OR event_id < $2::bigint) \
        AND ($3 IS NULL OR event_type = ANY ($3::text[])) \
    ORDER BY h.event_id DESC LIMIT 201";

const STEPS: &str = "SELECT state_execution_id, status, extract(epoch FROM started_at)::text, \
        to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), \
        attempt::text, repeats::text, left(input::text, 4097), extract(epoch FROM ended_at)::text \
    FROM (SELECT seq, state_id, number FROM xdb.state_execution WHERE execution_id = $2::uuid ORDER BY seq DESC LIMIT 51) AS e \
    CROSS JOIN LATERAL (SELECT * FROM xdb.state_executions AS q WHERE q.process_id = $1 AND q.execution_id = $2::uuid \
        AND q.state_id = e.state_id AND q.number = e.number LIMIT 1) AS s \
    ORDER BY e.seq DESC";

const ATTRIBUTES: &str = "SELECT left(xdb.get_local_attributes($1, NULL, $2::uuid)::text, 4097)";

/// Kinds of events that the timeline can be reduced to.
const KINDS: [(&str, &str); 3] = [
    ("failures", "{AttemptFailed,AttemptsFolded,CallRepeated,IncidentRaised,StateFailed,CommandRejected}"),
    ("states", "{ProcessStarted,StateStarted,StateCompleted,StateFailed,StateAborted,ProcessClosed}"),
    ("messages", "{MessagesReceived,CommandCompleted,GlobalMessagesTaken,GlobalMessagesPublished}"),
];

pub struct ProcessPage;

impl Page for ProcessPage {
    const TITLE: &'static str = "Process";

    async fn body(asked: &PageRequest<'_>) -> Result<Markup, Trouble> {
        let id = field(asked.fields, "id").unwrap_or_default();
        let read = show::read(asked.session, id, field(asked.fields, "execution")).await?;
        let execution = read.process["processExecutionId"].as_str().unwrap_or_default();
        let of_execution = [Some(id), Some(execution)];
        let mut executions = asked.session.rows(EXECUTIONS, &[Some(id)]).await?;
        let mut steps = asked.session.rows(STEPS, &of_execution).await?;
        let (more_executions, more_steps) = (shown(&mut executions, ROWS), shown(&mut steps, ROWS));
        let attributes = asked.session.value(ATTRIBUTES, &of_execution).await?.unwrap_or_default();
        let events = events(asked, id, execution).await?;
        let buttons = actions::buttons(asked, &read.process).await?;
        let hidden = asked.console.options.hide_payloads;
        Ok(html! {
            h2 { (crate::text::visible(id)) }
            div data-refresh {
                (heading(&read, execution))
                section aria-label="Why is it where it is?" {
                    h3 { "Why is it where it is?" }
                    ul { @for one in &read.sentences {
                        li.bad[[Case::Incident, Case::Held, Case::Owner, Case::TypeMissing].contains(&one.why)] {
                            @if let Some(step) = &one.step { b { (crate::text::visible(step)) } ": " }
                            (one.sentence)
                        }
                    } }
                    @if let Some(failure) = last_failure(&read.process, read.now) { p { "Last failure: " (failure) } }
                }
            }
            (buttons)
            div data-refresh {
                h3 { "Timeline" }
                (timeline(&steps, read.now, hidden))
                (more_note(more_steps, &steps))
                (events)
                h3 { "Local attributes" }
                (value(&attributes, hidden))
                p { a href={ "queues?id=" (encoded(id)) } { "Messages in its queues" } }
                @if executions.len() > 1 {
                    h3 { "Executions of this process id" }
                    ul { @for row in &executions {
                        li { (process_link(id, text(row, 0))) " " (text(row, 0)) " " (text(row, 1)) " " (text(row, 2)) }
                    } }
                    (more_note(more_executions, &executions))
                }
            }
        })
    }
}

fn heading(read: &show::Shown, execution: &str) -> Markup {
    let of = |key: &str| crate::text::visible(read.process[key].as_str().unwrap_or_default());
    let family = |process: &serde_json::Value| {
        process_link(
            process["processId"].as_str().unwrap_or_default(),
            process["processExecutionId"].as_str().unwrap_or_default(),
        )
    };
    html! {
        p { (of("processType")) " · " b { (of("status")) } " · owner " (of("owner")) " · execution " (execution) }
        @if read.process["parent"].is_object() { p { "Child of " (family(&read.process["parent"])) } }
        @if let Some(children) = read.process["children"].as_array() {
            p { "Children: " @for child in children { (family(child)) " " } }
        }
    }
}

/// The steps, each with its bar.
fn timeline(steps: &[TextRow], now: Timestamp, hides_inputs: bool) -> Markup {
    let seconds = |row: &TextRow, column| text(row, column).parse().ok();
    let times = |row: &TextRow| (seconds(row, 2).unwrap_or_default(), seconds(row, 8));
    let now = now.duration_since(Timestamp::UNIX_EPOCH).as_secs_f64();
    let span = Span::of(steps.iter().map(times), now);
    let cell = |column: usize, row: &TextRow| match column {
        2 => span.bar(times(row)),
        7 => value(text(row, 7), hides_inputs),
        _ => html! { (crate::text::visible(text(row, column))) },
    };
    table(&["Step", "Status", "Lasted", "Started (UTC)", "Ended (UTC)", "Attempt", "Repeats", "Input"], steps, cell)
}

async fn events(asked: &PageRequest<'_>, id: &str, execution: &str) -> Result<Markup, Trouble> {
    let chosen = field(asked.fields, "events");
    let kinds = KINDS.iter().find(|(name, _)| chosen == Some(*name)).map(|(_, types)| *types);
    let before = field(asked.fields, "before").filter(|before| before.parse::<i64>().is_ok());
    let mut rows = asked.session.rows(TIMELINE, &[Some(execution), before, kinds]).await?;
    let more = shown(&mut rows, EVENTS);
    let address = format!("process?id={}&execution={}", encoded(id), encoded(execution));
    let kept = chosen.map_or_else(String::new, |chosen| format!("&events={}", encoded(chosen)));
    let older = rows.last().filter(|_| more).map(|last| format!("{address}{kept}&before={}", text(last, 0)));
    let cell = |column: usize, row: &TextRow| match column {
        3 => value(text(row, 3), asked.console.options.hide_payloads),
        _ => html! { (text(row, column)) },
    };
    Ok(html! {
        h3 { "Events" }
        p {
            a href=(address) { "all" }
            @for (name, _) in KINDS { " · " a href={ (address) "&events=" (name) } { (name) } }
            " · newest first, details cut after " (LONGEST_VALUE) " characters"
        }
        (table(&["Event", "At (UTC)", "What", "Details"], &rows, cell))
        @if let Some(older) = older { p { a href=(older) rel="next" { "Older events" } } }
    })
}
