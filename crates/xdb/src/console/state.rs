//! The console: what all of its requests share.

use super::guard;
use super::samples::Samples;
use super::visits::{Visit, Visits, secret};
use crate::connection::{ServerSession, Trouble, Use};
use crate::environment::Parameters;
use axum::http::HeaderMap;
use axum::http::header::COOKIE;
use std::net::SocketAddr;
use std::sync::Mutex;
use tokio::sync::{MappedMutexGuard, MutexGuard};

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

pub struct Console {
    pub options: ConsoleOptions,
    /// Of a visitor without a password of its own, or where such visitors connect to.
    pub(super) parameters: Parameters,
    pub(super) hosts: Vec<String>,
    /// With the port: browsers send the cookies of a host to all of its ports.
    cookie_name: String,
    pub(super) visits: Visits,
    pub(super) samples: Samples,
    /// The name in the printed address. It works once.
    token: Mutex<Option<String>>,
}

impl Console {
    /// The console that listens at this address.
    pub fn new(options: ConsoleOptions, parameters: Parameters, address: SocketAddr) -> Self {
        let own = [address.to_string(), format!("localhost:{}", address.port())];
        let hosts = own.into_iter().chain(options.hosts.iter().map(|host| host.to_ascii_lowercase())).collect();
        let (visits, samples, token) = (Visits::default(), Samples::default(), Mutex::default());
        let cookie_name = format!("xdb_console_{}", address.port());
        Self { options, parameters, hosts, cookie_name, visits, samples, token }
    }

    pub fn usage(&self) -> Use {
        Use { program: "xdb console", reads_only: self.options.read_only, statement_timeout: "3s" }
    }

    pub fn new_token(&self) -> Result<String, Trouble> {
        let token = secret()?;
        *self.token.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(token.clone());
        Ok(token)
    }

    pub fn takes_token(&self, token: &str) -> bool {
        let mut expected = self.token.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let fits = expected.as_deref() == Some(token);
        if fits {
            *expected = None;
        }
        fits
    }

    pub fn visit_name<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == self.cookie_name).map(|(_, value)| value)
    }

    pub fn cookie(&self, value: &str, headers: &HeaderMap) -> String {
        let secure = if guard::host(headers).is_some_and(|host| guard::is_loopback(&host)) { "" } else { "; Secure" };
        let ends = if value.is_empty() { "; Max-Age=0" } else { "" };
        let (name, path) = (&self.cookie_name, &self.options.base_path);
        format!("{name}={value}; Path={path}/; HttpOnly; SameSite=Strict{secure}{ends}")
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
