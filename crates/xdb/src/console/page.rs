//! A page that reads, and the answer to a request for one.

use super::fields::FormFields;
use super::layout;
use super::login::log_in_page;
use super::state::{Console, connected};
use super::visits::Visit;
use crate::connection::{ServerSession, Trouble};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use maud::{Markup, html};
use std::sync::Arc;

/// The header of the requests that `xdb.js` makes by itself.
const READ_AGAIN: &str = "xdb-read-again";

/// What a page shows, for its visitor.
pub struct PageRequest<'a> {
    pub console: &'a Console,
    pub session: &'a ServerSession,
    pub fields: &'a FormFields,
}

/// A page that reads.
pub trait Page {
    const TITLE: &'static str;
    fn body(asked: &PageRequest<'_>) -> impl Future<Output = Result<Markup, Trouble>> + Send;
}

/// Answers the request for a page.
pub(super) async fn page_of<P: Page>(
    State(console): State<Arc<Console>>,
    headers: HeaderMap,
    Query(fields): Query<FormFields>,
) -> Response {
    let find = |name: &str| match headers.contains_key(READ_AGAIN) {
        true => console.visits.look_at(name),
        false => console.visits.find(name),
    };
    let Some(visit) = console.visit_name(&headers).and_then(find) else {
        return log_in_page(&console, None);
    };
    let read = async {
        let session = connected(&console, &visit).await?;
        let body = P::body(&PageRequest { console: &console, session: &session, fields: &fields }).await?;
        Ok((body, layout::engine(&session).await))
    };
    match read.await {
        Ok((body, engine)) => Html(layout::page(P::TITLE, &visit, Some(engine), body).into_string()).into_response(),
        Err(trouble) => trouble_page(&visit, &trouble),
    }
}

fn trouble_page(visit: &Visit, trouble: &Trouble) -> Response {
    let status = match trouble.code.as_deref() {
        Some("XD001") => StatusCode::NOT_FOUND,
        Some(_) => StatusCode::OK,
        None => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = html! { div data-refresh { (layout::trouble(trouble)) } };
    (status, Html(layout::page("Trouble", visit, None, body).into_string())).into_response()
}
