//! The beginning and the end of a visit: by the printed address, or with a role and its password.

use super::fields::{FormFields, field};
use super::state::Console;
use super::{guard, layout};
use crate::connection::ServerSession;
use crate::environment::Parameters;
use axum::extract::{Form, State};
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use maud::html;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The longest name of a role, in bytes.
const LONGEST_NAME: usize = 63;

/// The page for a visitor that has not logged in. `problem` is shown first.
pub(super) fn log_in_page(console: &Console, problem: Option<&str>) -> Response {
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

/// Begins a visit by the printed address.
pub(super) async fn begin_by_token(console: &Console, headers: &HeaderMap, token: &str) -> Response {
    if !console.visits.may_try() {
        return log_in_page(console, Some("Too many failed logins: wait for a minute."));
    }
    if !console.takes_token(token) {
        return log_in_page(console, Some("This address was used before, or is an old one."));
    }
    begin(console, headers, console.parameters.clone()).await
}

/// Begins a visit with a role and its password, or prints a new address.
pub(super) async fn log_in(
    State(console): State<Arc<Console>>,
    headers: HeaderMap,
    Form(mut form): Form<FormFields>,
) -> Response {
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

/// Ends a visit.
pub(super) async fn log_out(State(console): State<Arc<Console>>, headers: HeaderMap) -> Response {
    if let Some(name) = console.visit_name(&headers) {
        console.visits.end(name);
    }
    let cookie = console.cookie("", &headers);
    (StatusCode::SEE_OTHER, [(LOCATION, "./".to_owned()), (SET_COOKIE, cookie)]).into_response()
}
