//! `xdb console`: pages about processes, made by this program. A browser needs no JavaScript for them.
//!
//! - The role of the visitor's own connection decides what is seen and done. There is no other check of rights.
//! - Every request passes [`guard`]: the host must be known, and what changes something must come from our own pages.
//! - Read-only means two things: no action is taken, and the sessions of the server are read-only.
//!
//! Limitations: there is no TLS. So logins by password need a loopback address, and a proxy with TLS before others.

mod actions;
pub mod guard;
mod layout;
mod pages;
pub mod pictures;
mod process_page;
mod samples;
pub mod visits;

use crate::connection::{ServerSession, Trouble, Use};
use crate::environment::Parameters;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Form, Query, Request, State};
use axum::http::header::{CONTENT_TYPE, COOKIE, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use maud::{Markup, html};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::{MappedMutexGuard, MutexGuard};
use visits::{Visit, Visits};
use zeroize::Zeroizing;

/// The largest form, in bytes.
const LARGEST_FORM: usize = 64 * 1024;

/// The longest name of a role, in bytes.
const LONGEST_NAME: usize = 63;

/// The header of the requests that `xdb.js` makes by itself.
const READ_AGAIN: &str = "xdb-read-again";

/// What the command line says.
pub struct ConsoleOptions {
    pub listen: SocketAddr,
    /// Further hosts by which browsers may name the console.
    pub hosts: Vec<String>,
    /// Where a proxy has the console, such as `/xdb`. Empty: at its root.
    pub base_path: String,
    /// Visitors log in with a role and its password.
    pub login: bool,
    pub read_only: bool,
    pub hide_payloads: bool,
}

/// The parts of a query or form.
pub type FormFields = HashMap<String, String>;

/// A field, unless it is missing or empty.
pub fn field<'f>(fields: &'f FormFields, name: &str) -> Option<&'f str> {
    fields.get(name).map(String::as_str).filter(|value| !value.is_empty())
}

pub struct Console {
    pub options: ConsoleOptions,
    /// Of a visitor without a password of its own, or where such visitors connect to.
    parameters: Parameters,
    hosts: Vec<String>,
    /// With the port: browsers send the cookies of a host to all of its ports.
    cookie_name: String,
    visits: Visits,
    samples: samples::Samples,
    /// The name in the printed address. It works once.
    token: Mutex<Option<String>>,
}

impl Console {
    fn usage(&self) -> Use {
        Use { program: "xdb console", reads_only: self.options.read_only, statement_timeout: "3s" }
    }

    fn new_token(&self) -> Result<String, Trouble> {
        let token = visits::secret()?;
        *self.token.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(token.clone());
        Ok(token)
    }

    fn takes_token(&self, token: &str) -> bool {
        let mut expected = self.token.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let fits = expected.as_deref() == Some(token);
        if fits {
            *expected = None;
        }
        fits
    }

    fn visit_name<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == self.cookie_name).map(|(_, value)| value)
    }

    fn cookie(&self, value: &str, headers: &HeaderMap) -> String {
        let secure = if guard::host(headers).is_some_and(|host| guard::is_loopback(&host)) { "" } else { "; Secure" };
        let ends = if value.is_empty() { "; Max-Age=0" } else { "" };
        let (name, path) = (&self.cookie_name, &self.options.base_path);
        format!("{name}={value}; Path={path}/; HttpOnly; SameSite=Strict{secure}{ends}")
    }
}

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
    let own = [address.to_string(), format!("localhost:{}", address.port())];
    let hosts = own.into_iter().chain(options.hosts.iter().map(|host| host.to_ascii_lowercase())).collect();
    let (visits, samples, token) = (Visits::default(), samples::Samples::default(), Mutex::default());
    let cookie_name = format!("xdb_console_{}", address.port());
    let console = Console { options, parameters, hosts, cookie_name, visits, samples, token };
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

/// The list; or with a token, the beginning of a visit.
async fn list(state: State<Arc<Console>>, headers: HeaderMap, query: Query<FormFields>) -> Response {
    match field(&query, "token") {
        Some(token) if !state.options.login => begin_by_token(&state, &headers, token).await,
        _ => page_of::<pages::ListPage>(state, headers, query).await,
    }
}

async fn page_of<P: Page>(
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

/// The visit's session. One that was lost is opened again.
pub async fn connected<'v>(
    console: &Console,
    visit: &'v Visit,
) -> Result<MappedMutexGuard<'v, ServerSession>, Trouble> {
    let mut connection = visit.connection.lock().await;
    if connection.as_ref().is_none_or(ServerSession::is_lost) {
        *connection = None;
        let opened = ServerSession::open(visit.parameters(), console.usage()).await;
        *connection = Some(
            opened.map_err(|trouble| Trouble { message: format!("not connected: {}", trouble.message), ..trouble })?,
        );
    }
    MutexGuard::try_map(connection, Option::as_mut).map_err(|_| Trouble::new("not connected"))
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

fn log_in_page(console: &Console, problem: Option<&str>) -> Response {
    let body = html! {
        @if let Some(problem) = problem { p.bad role="alert" { (problem) } }
        @if console.options.login {
            form method="post" action="login" {
                label { "Role " input name="role" required autocomplete="username"; }
                label { "Password " input name="password" type="password" autocomplete="current-password"; }
                button { "Log in" }
            }
        } @else {
            p { "Open the address that xdb console has printed in its terminal. Each address works once." }
            form method="post" action="login" { button { "Print a new address" } }
        }
    };
    (StatusCode::UNAUTHORIZED, Html(layout::outside("Log in", body).into_string())).into_response()
}

async fn begin_by_token(console: &Console, headers: &HeaderMap, token: &str) -> Response {
    if !console.visits.may_try() {
        return log_in_page(console, Some("Too many failed logins: wait for a minute."));
    }
    if !console.takes_token(token) {
        return log_in_page(console, Some("This address was used before, or is an old one."));
    }
    begin(console, headers, console.parameters.clone()).await
}

async fn log_in(State(console): State<Arc<Console>>, headers: HeaderMap, Form(mut form): Form<FormFields>) -> Response {
    if !console.visits.may_try() {
        return log_in_page(&console, Some("Too many failed logins: wait for a minute."));
    }
    if !console.options.login {
        if let Ok(token) = console.new_token() {
            let host = guard::host(&headers).unwrap_or_default();
            eprintln!("xdb console: http://{host}{}/?token={token}", console.options.base_path);
        }
        return log_in_page(&console, Some("A new address was printed."));
    }
    let password = Zeroizing::new(form.remove("password").unwrap_or_default());
    let role = field(&form, "role").unwrap_or_default();
    // Postgres cuts longer names, so a role would have many.
    if role.len() > LONGEST_NAME {
        return log_in_page(&console, Some("The name of a role has at most 63 bytes."));
    }
    // Under trust or peer, any password would do.
    match ServerSession::open(&console.parameters.of_role(role, None), console.usage()).await {
        Ok(session) => {
            session.close().await;
            return log_in_page(&console, Some("Postgres asks for no password of this role: see pg_hba.conf."));
        }
        Err(trouble) if !trouble.asks_for_password() => return log_in_page(&console, Some(&trouble.message)),
        Err(_) => {}
    }
    begin(&console, &headers, console.parameters.of_role(role, Some(&password))).await
}

/// Connects, and sends the browser to the list.
async fn begin(console: &Console, headers: &HeaderMap, parameters: Parameters) -> Response {
    let place = match console.visits.place() {
        Ok(place) => place,
        Err(full) => {
            // No password was tried.
            console.visits.succeeded();
            return log_in_page(console, Some(&full.message));
        }
    };
    let begun = async {
        let session = ServerSession::open(&parameters, console.usage()).await?;
        console.visits.begin(parameters, session, place)
    };
    match begun.await {
        Ok(name) => {
            console.visits.succeeded();
            let cookie = console.cookie(&name, headers);
            (StatusCode::SEE_OTHER, [(LOCATION, "./".to_owned()), (SET_COOKIE, cookie)]).into_response()
        }
        Err(trouble) => log_in_page(console, Some(&trouble.message)),
    }
}

async fn log_out(State(console): State<Arc<Console>>, headers: HeaderMap) -> Response {
    if let Some(name) = console.visit_name(&headers) {
        console.visits.end(name);
    }
    let cookie = console.cookie("", &headers);
    (StatusCode::SEE_OTHER, [(LOCATION, "./".to_owned()), (SET_COOKIE, cookie)]).into_response()
}
