//! What all pages of the console have: their head, the links between them, and the parts that they are made of.

use super::visits::Visit;
use crate::connection::{ServerSession, Trouble};
use maud::{DOCTYPE, Markup, html};

const LINKS: [(&str, &str); 6] = [
    ("./", "Processes"),
    ("failing", "Failing"),
    ("workers", "Workers and types"),
    ("queues", "Queues"),
    ("schedules", "Schedules"),
    ("locks", "Locks"),
];

/// Longest value that a page shows, in characters.
pub const LONGEST_VALUE: usize = 4096;

/// The state of the engine, for the head of a page.
pub async fn engine(session: &ServerSession) -> String {
    let read = session.value("SELECT concat_ws(': ', 'engine ' || state, reason) FROM xdb.status()", &[]).await;
    read.unwrap_or_else(|trouble| Some(trouble.message)).unwrap_or_default()
}

/// A page for a visitor.
pub fn page(title: &str, visit: &Visit, engine: Option<String>, body: Markup) -> Markup {
    let head = html! {
        nav aria-label="Pages" { @for (address, name) in LINKS { a href=(address) aria-current=[(title == name).then_some("page")] { (name) } " " } }
        div.status {
            p { (visit.database) " · role " (visit.role) @if let Some(engine) = engine { " · " (engine) } }
            form.inline method="post" action="logout" { button { "Log out" } }
        }
    };
    document(title, head, body)
}

/// A page for a visitor that has not logged in.
pub fn outside(title: &str, body: Markup) -> Markup {
    document(title, html! {}, body)
}

fn document(title: &str, head: Markup, body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · xdb" }
                link rel="icon" href="xdb.svg";
                link rel="stylesheet" href="xdb.css";
                script src="xdb.js" defer {}
            }
            body {
                header { (head) p.bad #trouble role="status" hidden {} }
                main { h1 { (title) } (body) }
            }
        }
    }
}

pub fn trouble(trouble: &Trouble) -> Markup {
    html! {
        p.bad role="alert" {
            @if let Some(code) = &trouble.code { code { (code) } " " }
            (trouble.message)
        }
        @if let Some(hint) = &trouble.hint { p { (hint) } }
        @if trouble.code.as_deref() == Some("57014") {
            p { "The server takes at most three seconds for a page. Ask for less: a process id, a status, a type." }
        }
    }
}

/// A row of texts; None is a missing value.
pub type TextRow = Vec<Option<String>>;

/// A table. `cell` makes the cell of a column of a row.
pub fn table(columns: &[&str], rows: &[TextRow], cell: impl Fn(usize, &TextRow) -> Markup) -> Markup {
    html! {
        @if rows.is_empty() { p { "Nothing is here." } } @else {
            table {
                thead { tr { @for column in columns { th scope="col" { (column) } } } }
                tbody { @for row in rows { tr { @for column in 0..columns.len() { td { (cell(column, row)) } } } } }
            }
        }
    }
}

/// Rows of a table. One more is read, which says whether there are more.
pub const ROWS: usize = 50;

/// Cuts rows to the most that a page shows. Returns whether there are more.
pub fn shown(rows: &mut Vec<TextRow>, most: usize) -> bool {
    let more = rows.len() > most;
    rows.truncate(most);
    more
}

/// What stands below a table: how many rows it has, and whether there are more.
pub fn more_note(more: bool, rows: &[TextRow]) -> Markup {
    html! { p.note { (rows.len()) " shown" @if more { ", more exist" } } }
}

/// The text of a column.
pub fn text(row: &TextRow, column: usize) -> &str {
    row.get(column).and_then(Option::as_deref).unwrap_or_default()
}

/// A value of the application, or a note that it is hidden.
pub fn value(text: &str, is_hidden: bool) -> Markup {
    match is_hidden {
        true if !text.is_empty() => html! { i { "hidden" } },
        _ => {
            let cut: String = text.chars().take(LONGEST_VALUE).collect();
            let is_cut = cut.len() < text.len();
            html! { code.value { (cut) @if is_cut { "…" } } @if is_cut { " cut after " (LONGEST_VALUE) " characters" } }
        }
    }
}

/// A link to a process. Without an execution, to its latest one.
pub fn process_link(process_id: &str, execution: &str) -> Markup {
    let mut address = format!("process?id={}", encoded(process_id));
    if !execution.is_empty() {
        address.push_str(&format!("&execution={}", encoded(execution)));
    }
    html! { a href=(address) { (crate::text::visible(process_id)) } }
}

/// A text as a part of an address.
pub fn encoded(text: &str) -> String {
    let mut shown = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => shown.push(byte.into()),
            _ => shown.push_str(&format!("%{byte:02X}")),
        }
    }
    shown
}
