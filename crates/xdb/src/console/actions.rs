//! What a visitor can do to a process. Each action is one SQL statement, which the page shows.

use super::fields::{FormFields, field};
use super::layout::{self, process_link};
use super::login::log_in_page;
use super::page::PageRequest;
use super::state::{Console, connected};
use crate::connection::Trouble;
use crate::text::literal;
use axum::extract::{Form, State};
use axum::http::HeaderMap;
use axum::response::{Html, IntoResponse, Response};
use maud::{Markup, html};
use serde_json::Value;
use std::sync::Arc;

/// An action: its name in forms, its label, and the function that the role must be allowed to call.
struct Action {
    name: &'static str,
    label: &'static str,
    function: &'static str,
    /// Further fields of its form, with their labels.
    fields: &'static [(&'static str, &'static str)],
}

const ACTIONS: [Action; 6] = [
    Action { name: "retry", label: "Retry now", function: "xdb.retry_now(text,text,uuid)", fields: &[] },
    Action {
        name: "publish",
        label: "Publish",
        function: "xdb.publish(text,text,jsonb,text,uuid)",
        fields: &[("queue", "queue"), ("payload", "message (JSON)")],
    },
    Action {
        name: "skip",
        label: "Skip timer",
        function: "xdb.skip_timer(text,text,text,uuid)",
        fields: &[("step", "step"), ("command", "command id (optional)")],
    },
    Action {
        name: "pause",
        label: "Pause",
        function: "xdb.pause_process(text,text,timestamptz,text,uuid)",
        fields: &[("reason", "reason (optional)")],
    },
    Action { name: "resume", label: "Resume", function: "xdb.resume_process(text,uuid)", fields: &[] },
    Action {
        name: "stop",
        label: "Stop",
        function: "xdb.stop_process(text,text,text,uuid)",
        fields: &[("confirm", "type the process id"), ("reason", "reason (optional)")],
    },
];

/// Whether the role may call each of these functions, in their order.
const MAY: &str = "SELECT has_function_privilege(to_regprocedure(f.name), 'EXECUTE')::text \
    FROM jsonb_array_elements_text($1::jsonb) WITH ORDINALITY AS f (name, n) ORDER BY f.n";

/// The forms of the actions that the visitor may take on a running process.
pub async fn buttons(asked: &PageRequest<'_>, process: &Value) -> Result<Markup, Trouble> {
    if asked.console.options.read_only || process["status"] != "RUNNING" {
        return Ok(html! {});
    }
    let functions = Value::from(ACTIONS.map(|action| action.function).to_vec()).to_string();
    let may = asked.session.rows(MAY, &[Some(&functions)]).await?;
    let of = |key: &str| process[key].as_str().unwrap_or_default();
    let allowed = ACTIONS.iter().zip(&may).filter(|(_, may)| layout::text(may, 0) == "true").map(|(action, _)| action);
    Ok(html! {
        section aria-label="Actions" {
            h3 { "Actions" }
            @for action in allowed {
                form.inline method="post" action="action" {
                    input type="hidden" name="action" value=(action.name);
                    input type="hidden" name="id" value=(of("processId"));
                    input type="hidden" name="execution" value=(of("processExecutionId"));
                    @for (name, label) in action.fields { label { (label) " " input name=(name) autocomplete="off"; } }
                    button { (action.label) }
                }
            }
        }
    })
}

/// Takes an action, and shows its statement and result.
pub async fn act(State(console): State<Arc<Console>>, headers: HeaderMap, Form(form): Form<FormFields>) -> Response {
    let Some(visit) = console.visit_name(&headers).and_then(|name| console.visits.find(name)) else {
        return log_in_page(&console, Some("You are logged out, and nothing was done."));
    };
    let id = field(&form, "id").unwrap_or_default();
    let statement = statement(&form);
    let done = match &statement {
        Ok(sql) => {
            eprintln!(
                "xdb console: role {} {} process {}",
                crate::text::quoted(&visit.role),
                crate::text::plain(field(&form, "action").unwrap_or_default()),
                crate::text::quoted(id)
            );
            async { connected(&console, &visit).await?.run(sql).await }.await
        }
        Err(problem) => Err(Trouble::new(problem.clone())),
    };
    let body = html! {
        @if let Ok(sql) = &statement {
            p { "The statement:" }
            pre { code { (sql) } }
        }
        @match &done {
            Ok(result) => p { "Done. " @if let Some(result) = result { "Result: " code { (result) } } },
            Err(trouble) => (layout::trouble(trouble)),
        }
        p { "Back to process " (process_link(id, field(&form, "execution").unwrap_or_default())) }
    };
    Html(layout::page("Action", &visit, None, body).into_string()).into_response()
}

/// The statement of an action, or why there is none.
fn statement(form: &FormFields) -> Result<String, String> {
    let of = |name: &str| field(form, name).map_or_else(|| "NULL".to_owned(), literal);
    let needed = |name: &str| field(form, name).map(literal).ok_or_else(|| format!("{name} is missing"));
    let (id, execution) = (needed("id")?, format!("{}::uuid", needed("execution")?));
    Ok(match field(form, "action").unwrap_or_default() {
        "retry" => format!("SELECT xdb.retry_now({id}, execution_id => {execution})"),
        "publish" => {
            let payload = field(form, "payload").unwrap_or("null");
            format!(
                "SELECT xdb.publish({id}, {}, {}::jsonb, execution_id => {execution})",
                needed("queue")?,
                literal(payload)
            )
        }
        "skip" => format!("SELECT xdb.skip_timer({id}, {}, {}, {execution})", needed("step")?, of("command")),
        "pause" => format!("SELECT xdb.pause_process({id}, reason => {}, execution_id => {execution})", of("reason")),
        "resume" => format!("SELECT xdb.resume_process({id}, execution_id => {execution})"),
        "stop" if field(form, "confirm") != field(form, "id") => {
            return Err("nothing was done: type the process id to stop the process".to_owned());
        }
        "stop" => format!("SELECT xdb.stop_process({id}, reason => {}, execution_id => {execution})", of("reason")),
        other => return Err(format!("there is no action \"{other}\"")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(fields: &[(&str, &str)]) -> FormFields {
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn no_field_becomes_sql() {
        let hostile = form(&[
            ("action", "stop"),
            ("id", "a'); DROP TABLE x; --\\"),
            ("confirm", "a'); DROP TABLE x; --\\"),
            ("execution", "e'"),
            ("reason", "it's"),
        ]);
        assert_eq!(
            statement(&hostile).as_deref(),
            Ok("SELECT xdb.stop_process('a''); DROP TABLE x; --\\', reason => 'it''s', execution_id => 'e'''::uuid)")
        );
    }

    #[test]
    fn a_stop_is_confirmed_by_the_process_id() {
        let asked = form(&[("action", "stop"), ("id", "a"), ("execution", "e"), ("confirm", "b")]);
        assert_eq!(statement(&asked), Err("nothing was done: type the process id to stop the process".to_owned()));
        assert!(statement(&form(&[("action", "drop"), ("id", "a"), ("execution", "e")])).is_err());
        assert!(statement(&form(&[("action", "retry")])).is_err());
    }
}
