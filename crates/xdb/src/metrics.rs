//! `xdb metrics`: serves `xdb.openmetrics()` over HTTP, for Prometheus.
//!
//! One scrape is in flight at a time, and its statement takes at most a second. Scrapes that come meanwhile get the
//! same answer. A scrape that fails is answered with `xdb_scrape_error 1` and the status 200: an error of HTTP would
//! look like a server that is down.

use crate::connection::{ServerSession, Trouble, Use};
use crate::console::guard;
use crate::environment::Parameters;
use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::Instant;

const SCRAPES: Use = Use { program: "xdb metrics", reads_only: true, statement_timeout: "1s" };

const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The end of every exposition.
const END: &str = "# EOF\n";

/// What the scrapes share.
struct Scraper {
    parameters: Parameters,
    /// Only this machine can ask.
    is_loopback: bool,
    /// Held while a scrape is in flight.
    last: Mutex<Last>,
}

/// The session, and the last exposition with the moment at which its scrape began.
#[derive(Default)]
struct Last {
    session: Option<ServerSession>,
    exposition: Option<(Instant, String)>,
}

/// Serves metrics until the program ends. `announce` gets the address before the first request is served.
pub async fn serve(
    parameters: Parameters,
    listen: SocketAddr,
    announce: impl FnOnce(SocketAddr) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let listener = TcpListener::bind(listen).await.map_err(|error| Trouble::new(format!("{listen}: {error}")))?;
    announce(listener.local_addr().map_err(|error| Trouble::new(error.to_string()))?)?;
    let scraper = Arc::new(Scraper { parameters, is_loopback: listen.ip().is_loopback(), last: Mutex::default() });
    let router = Router::new().route("/metrics", get(answer)).with_state(scraper);
    axum::serve(listener, router).await.map_err(|error| Trouble::new(error.to_string()))
}

async fn answer(State(scraper): State<Arc<Scraper>>, headers: HeaderMap) -> Response {
    // A page of another site that has its name resolved to this machine, in a browser of this machine, has another host.
    if scraper.is_loopback && !guard::host(&headers).is_some_and(|host| guard::is_loopback(&host)) {
        return (StatusCode::FORBIDDEN, "This host is not known: ask for localhost.\n").into_response();
    }
    ([(CONTENT_TYPE, CONTENT)], scraper.scrape().await).into_response()
}

impl Scraper {
    async fn scrape(&self) -> String {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        // It began after this scrape was asked for: it is as new as one of its own.
        if let Some((began, exposition)) = &last.exposition
            && *began >= asked
        {
            return exposition.clone();
        }
        let began = Instant::now();
        let read = self.read(&mut last).await;
        let exposition = read.map_or_else(|trouble| failed(&trouble), |text| succeeded(&text));
        last.exposition = Some((began, exposition.clone()));
        exposition
    }

    async fn read(&self, last: &mut Last) -> Result<String, Trouble> {
        // A session that failed is not used again.
        let session = match last.session.take().filter(|session| !session.is_lost()) {
            Some(session) => session,
            None => ServerSession::open(&self.parameters, SCRAPES).await?,
        };
        let text = session.value("SELECT xdb.openmetrics()", &[]).await?;
        last.session = Some(session);
        text.ok_or_else(|| Trouble::new("xdb.openmetrics() gave nothing"))
    }
}

fn succeeded(text: &str) -> String {
    format!("{}{}", text.strip_suffix(END).unwrap_or(text), scrape_error(0))
}

fn failed(trouble: &Trouble) -> String {
    let hint = trouble.hint.as_ref().map_or_else(String::new, |hint| format!(" ({hint})"));
    eprintln!("xdb metrics: {}", crate::text::visible(&format!("{}{hint}", trouble.message)));
    scrape_error(1)
}

fn scrape_error(error: u8) -> String {
    format!(
        "# TYPE xdb_scrape_error gauge\n# HELP xdb_scrape_error 1 if the metrics could not be read from the server.\nxdb_scrape_error {error}\n{END}"
    )
}
