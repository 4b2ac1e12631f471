//! `xdb console`: pages about processes, made by this program. A browser needs no JavaScript for them.
//!
//! - The role of the visitor's own connection decides what is seen and done. There is no other check of rights.
//! - Every request passes [`guard`]: the host must be known, and what changes something must come from our own pages.
//! - Read-only means two things: no action is taken, and the sessions of the server are read-only.
//!
//! Limitations: there is no TLS. So logins by password need a loopback address, and a proxy with TLS before others.

mod actions;
mod fields;
pub mod guard;
mod layout;
mod login;
mod page;
mod pages;
pub mod pictures;
mod process_page;
mod samples;
mod state;
pub mod visits;

pub use state::ConsoleOptions;

use crate::connection::Trouble;
use crate::environment::Parameters;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use fields::{FormFields, field};
use login::{begin_by_token, log_in, log_out};
use page::page_of;
use state::Console;
use std::sync::Arc;
use tokio::net::TcpListener;

/// The largest form, in bytes.
const LARGEST_FORM: usize = 64 * 1024;

/// Serves the console until the program ends. `announce` gets the address to open.
pub async fn serve(
    options: ConsoleOptions,
    parameters: Parameters,
    announce: impl FnOnce(String) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let loopback = options.listen.ip().is_loopback();
    if !loopback {
        return Err(Trouble::new(format!(
            "{} is no loopback address, and the console has no TLS: listen on 127.0.0.1, behind a proxy with TLS",
            options.listen
        )));
    }
    if !options.base_path.is_empty() && (!options.base_path.starts_with('/') || options.base_path.ends_with('/')) {
        return Err(Trouble::new("a base path begins with a slash and does not end with one"));
    }
    let listener = TcpListener::bind(options.listen).await;
    let listener = listener.map_err(|error| Trouble::new(format!("{}: {error}", options.listen)))?;
    let address = listener.local_addr().map_err(|error| Trouble::new(error.to_string()))?;
    let console = Console::new(options, parameters, address);
    let place = format!("http://{address}{}/", console.options.base_path);
    announce(if console.options.login { place } else { format!("{place}?token={}", console.new_token()?) })?;
    let console = Arc::new(console);
    let ending = Arc::clone(&console);
    tokio::spawn(async move { ending.visits.end_in_time().await });
    axum::serve(listener, router(console)).await.map_err(|error| Trouble::new(error.to_string()))
}

fn router(console: Arc<Console>) -> Router {
    let base = console.options.base_path.clone();
    let at = |page: &str| format!("{base}/{page}");
    let mut router = Router::new()
        .route(&at(""), get(list))
        .route(&at("process"), get(page_of::<process_page::ProcessPage>))
        .route(&at("failing"), get(page_of::<pages::FailingPage>))
        .route(&at("workers"), get(page_of::<pages::WorkersPage>))
        .route(&at("queues"), get(page_of::<pages::QueuesPage>))
        .route(&at("schedules"), get(page_of::<pages::SchedulesPage>))
        .route(&at("locks"), get(page_of::<pages::LocksPage>))
        .route(&at("action"), post(actions::act))
        .route(&at("login"), post(log_in))
        .route(&at("logout"), post(log_out))
        .route(&at("xdb.css"), get(async || ([(CONTENT_TYPE, "text/css")], include_str!("xdb.css"))))
        .route(&at("xdb.svg"), get(async || ([(CONTENT_TYPE, "image/svg+xml")], include_str!("xdb.svg"))))
        .route(&at("xdb.js"), get(async || ([(CONTENT_TYPE, "text/javascript")], include_str!("xdb.js"))));
    // Addresses in pages are relative to the base with a slash at its end.
    if let Some((_, last)) = base.rsplit_once('/') {
        let to = format!("{last}/");
        router = router.route(&base, get(async move || redirect(&to)));
    }
    router
        .fallback(async || (StatusCode::NOT_FOUND, "There is no such page.\n"))
        .layer(DefaultBodyLimit::max(LARGEST_FORM))
        .layer(from_fn_with_state(Arc::clone(&console), judge))
        .with_state(console)
}

/// What every request passes.
async fn judge(State(console): State<Arc<Console>>, request: Request, next: Next) -> Response {
    let refusal = refused(&console, &request);
    let mut response = match refusal {
        Some((status, why)) => (status, format!("{why}\n")).into_response(),
        None => next.run(request).await,
    };
    let headers = guard::HEADERS.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}

fn refused(console: &Console, request: &Request) -> Option<(StatusCode, &'static str)> {
    let host = guard::host(request.headers()).filter(|host| console.hosts.contains(host));
    let Some(host) = host else {
        return Some((StatusCode::FORBIDDEN, "This host is not known: start xdb console with --host."));
    };
    if [Method::GET, Method::HEAD].contains(request.method()) {
        return None;
    }
    if !guard::is_same_origin(request.headers(), &host) {
        return Some((
            StatusCode::FORBIDDEN,
            "This request does not come from a page of the console. A proxy in between has to pass the header Host on.",
        ));
    }
    let path = request.uri().path();
    let is_about_visits = path.ends_with("/login") || path.ends_with("/logout");
    (console.options.read_only && !is_about_visits)
        .then_some((StatusCode::METHOD_NOT_ALLOWED, "This console is read-only: it was started with --read-only."))
}

fn redirect(to: &str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, to.to_owned())]).into_response()
}

/// The list; or with a token, the beginning of a visit.
async fn list(state: State<Arc<Console>>, headers: HeaderMap, query: Query<FormFields>) -> Response {
    match field(&query, "token") {
        Some(token) if !state.options.login => begin_by_token(&state, &headers, token).await,
        _ => page_of::<pages::ListPage>(state, headers, query).await,
    }
}
