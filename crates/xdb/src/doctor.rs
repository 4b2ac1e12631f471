//! `xdb doctor`: reads what [`crate::checks`] judges.
//!
//! Limitations: it sees one database, with the rights of its role. It connects to workers from the machine where it
//! runs, which may reach others than the server does.

use crate::checks::{
    self, EngineStatus, Finding, InstalledVersions, Preload, PreloadLine, Reached, RegisteredWorker, Slots,
};
use crate::connection::{ServerSession, Trouble};
use crate::hosts;
use std::net::IpAddr;
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// How long a connection to a worker may take.
const REACH: Duration = Duration::from_secs(3);

/// The most workers that are tried, so that a database with many takes no minutes.
const MOST_WORKERS: usize = 256;

const SERVER: &str = "SELECT current_setting('server_version_num'), current_database()::text, pg_is_in_recovery()::text, \
    current_setting('max_worker_processes'), pg_has_role('pg_read_all_settings', 'USAGE')::text, \
    (has_table_privilege('pg_file_settings', 'SELECT') AND has_function_privilege('pg_show_all_file_settings()', 'EXECUTE'))::text, \
    pg_has_role('pg_read_all_stats', 'USAGE')::text";

const RUNNING_PRELOAD: &str =
    "SELECT (SELECT setting FROM pg_settings WHERE name = 'shared_preload_libraries'), current_setting('config_file')";

// A line with an error is none that wins. A setting that takes a restart has an error too, until the restart.
const PRELOAD_LINES: &str = "SELECT sourcefile, sourceline::text, setting FROM pg_file_settings \
    WHERE lower(name) = 'shared_preload_libraries' ORDER BY seqno";

const EXTENSION: &str = "SELECT \
    (SELECT default_version::text FROM pg_available_extensions WHERE name = 'xdb'), \
    (SELECT extversion::text FROM pg_extension WHERE extname = 'xdb'), \
    (SELECT has_schema_privilege(oid, 'USAGE')::text FROM pg_namespace WHERE nspname = 'xdb'), current_user::text";

const STATUS: &str = "SELECT state, reason, runner_error, ownerless_processes::text FROM xdb.status()";

// Background workers have types of their own; all other processes have one of these.
const SLOTS_USED: &str = "SELECT count(*)::text FROM pg_stat_activity WHERE backend_type <> ALL ('{client backend,autovacuum launcher,\
    autovacuum worker,checkpointer,background writer,walwriter,walsender,walreceiver,walsummarizer,archiver,startup,logger,\
    stats collector,slotsync worker,io worker,standalone backend}')";

const WORKERS: &str = "SELECT name, url, (registered_at IS NULL)::text, breaker, COALESCE(waiting, 0)::text, \
    COALESCE(extract(epoch FROM clock_timestamp() - waiting_since)::bigint, 0)::text FROM xdb.workers ORDER BY name LIMIT 257";

const ALLOWED: &str = "SELECT current_setting('xdb.allowed_worker_hosts', true)";

// Predefined roles get the schema for single functions.
const ROLES: &str = "SELECT r.rolname::text FROM pg_namespace n CROSS JOIN LATERAL aclexplode(n.nspacl) a \
    JOIN pg_roles r ON r.oid = a.grantee WHERE n.nspname = 'xdb' AND a.privilege_type = 'USAGE' AND a.grantee <> n.nspowner \
    AND r.rolname !~ '^pg_' AND NOT EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = n.oid AND p.proname = 'start_process' \
        AND has_function_privilege(r.oid, p.oid, 'EXECUTE')) ORDER BY 1";

/// What is known of the server before the extension is asked.
struct Server {
    version: u32,
    database: String,
    is_standby: bool,
    max_worker_processes: u64,
    reads_settings: bool,
    reads_files: bool,
    reads_stats: bool,
}

/// All findings about the server and database of the session.
pub async fn examine(session: &ServerSession) -> Result<Vec<Finding>, Trouble> {
    let server = server(session).await?;
    let installed = row(session, EXTENSION).await?;
    let [available, schema, may_use, role] = <[_; 4]>::try_from(installed).map_err(|_| Trouble::new("no row"))?;
    let may_use = may_use.as_deref() == Some("true");
    let mut findings = Vec::new();
    let (status, loaded) = match may_use {
        true => status(session).await?,
        false => (None, None),
    };
    findings.push(checks::preload(&preload(session, &server, loaded).await?));
    let library = match may_use {
        true => session.value("SELECT xdb.library_version()", &[]).await?,
        false => None,
    };
    let versions = InstalledVersions {
        server: server.version,
        database: server.database.clone(),
        available,
        schema: schema.clone(),
        library,
    };
    findings.push(checks::versions(&versions));
    if schema.is_some() && !may_use {
        let role = role.unwrap_or_default();
        let fix = format!("SELECT xdb.grant_usage({}), as a superuser", crate::text::role_literal(&role));
        findings.push(Finding::bad(
            "roles",
            format!("this role, {}, may not use XDB", crate::text::quoted(&role)),
            fix,
        ));
    }
    if let Some(status) = &status {
        findings.push(checks::engine(status, server.is_standby));
    }
    let used = match server.reads_stats {
        true => session.value(SLOTS_USED, &[]).await?.and_then(|used| used.parse().ok()),
        false => None,
    };
    findings.push(checks::slots(Slots { most: server.max_worker_processes, used }, status.as_ref()));
    if may_use && status.is_some() {
        match workers(session, &server).await {
            // The finding about versions says why they can't be read.
            Err(trouble) if trouble.code.as_deref() == Some("XD022") => {}
            found => findings.extend(found?),
        }
        let without_start: Vec<_> = session.rows(ROLES, &[]).await?.into_iter().flatten().flatten().collect();
        findings.extend(checks::roles(&without_start, status.and_then(|status| status.ownerless)));
    }
    Ok(findings)
}

async fn row(session: &ServerSession, sql: &str) -> Result<Vec<Option<String>>, Trouble> {
    let rows = session.rows(sql, &[]).await?;
    rows.into_iter().next().ok_or_else(|| Trouble::new("the server gave no row"))
}

async fn server(session: &ServerSession) -> Result<Server, Trouble> {
    let row = row(session, SERVER).await?;
    let text = |column: usize| row.get(column).cloned().flatten().unwrap_or_default();
    let is = |column: usize| text(column) == "true";
    Ok(Server {
        version: text(0).parse().unwrap_or(0),
        database: text(1),
        is_standby: is(2),
        max_worker_processes: text(3).parse().unwrap_or(0),
        reads_settings: is(4),
        reads_files: is(5),
        reads_stats: is(6),
    })
}

/// The engine's status, and whether the library is preloaded: if it is not, the function is the error `XD011`.
async fn status(session: &ServerSession) -> Result<(Option<EngineStatus>, Option<bool>), Trouble> {
    match row(session, STATUS).await {
        Ok(row) => {
            let [state, reason, runner_error, ownerless] =
                <[_; 4]>::try_from(row).map_err(|_| Trouble::new("no row"))?;
            let ownerless = ownerless.and_then(|count| count.parse().ok());
            Ok((Some(EngineStatus { state: state.unwrap_or_default(), reason, runner_error, ownerless }), Some(true)))
        }
        Err(trouble) if trouble.code.as_deref() == Some("XD011") => Ok((None, Some(false))),
        Err(trouble) => Err(trouble),
    }
}

async fn preload(session: &ServerSession, server: &Server, loaded: Option<bool>) -> Result<Preload, Trouble> {
    let mut preload = Preload { loaded, ..Preload::default() };
    if server.reads_settings {
        let found = row(session, RUNNING_PRELOAD).await?;
        [preload.running, preload.file] = <[_; 2]>::try_from(found).map_err(|_| Trouble::new("no row"))?;
    }
    if server.reads_files {
        let line = |row: Vec<Option<String>>| {
            let [file, line, libraries] = <[_; 3]>::try_from(row).ok()?;
            Some(PreloadLine { file: file?, line: line?, libraries: libraries? })
        };
        preload.lines = Some(session.rows(PRELOAD_LINES, &[]).await?.into_iter().filter_map(line).collect());
    }
    Ok(preload)
}

async fn workers(session: &ServerSession, server: &Server) -> Result<Vec<Finding>, Trouble> {
    let allowed = match server.reads_settings {
        true => session.value(ALLOWED, &[]).await?,
        false => None,
    };
    let registered: Vec<_> = session.rows(WORKERS, &[]).await?.into_iter().filter_map(registered).collect();
    let tries: Vec<_> = registered
        .iter()
        .take(MOST_WORKERS)
        .map(|worker| worker.url.clone().filter(|_| !worker.is_hidden))
        .map(|url| {
            let allowed = allowed.clone();
            tokio::spawn(async move { Some(reach(&url?, allowed.as_deref()).await) })
        })
        .collect();
    let mut findings = Vec::new();
    if registered.is_empty() {
        findings.push(Finding::good("worker", "none is registered"));
    }
    for (worker, attempt) in registered.iter().zip(tries) {
        let reached = attempt.await.map_err(|error| Trouble::new(error.to_string()))?;
        findings.push(checks::worker(worker, reached.as_ref(), allowed.as_deref()));
    }
    if registered.len() > MOST_WORKERS {
        findings.push(Finding::unknown(
            "worker",
            format!("only the first {MOST_WORKERS} workers were tried"),
            "ask the server: SELECT * FROM xdb.workers",
        ));
    }
    Ok(findings)
}

fn registered(row: Vec<Option<String>>) -> Option<RegisteredWorker> {
    let [name, url, hidden, breaker, waiting, seconds] = <[_; 6]>::try_from(row).ok()?;
    let number = |text: Option<String>| text.and_then(|text| text.parse().ok()).unwrap_or(0);
    let is_hidden = hidden.as_deref() == Some("true");
    Some(RegisteredWorker {
        name: name?,
        url,
        is_hidden,
        breaker,
        waiting: number(waiting),
        waiting_seconds: number(seconds),
    })
}

/// Resolves the host of a URL on this machine, and connects to it if the setting allows that: another role has chosen
/// the URL.
async fn reach(registered: &str, allowed: Option<&str>) -> Reached {
    let url = match hosts::validate_url(registered) {
        Ok(url) => url,
        Err(problem) => return Reached { addresses: Err(problem), problem: None },
    };
    let found = timeout(REACH, lookup_host((&*url.host, url.port))).await;
    let places: Vec<_> = match found {
        Ok(Ok(places)) => places.collect(),
        Ok(Err(error)) => return Reached { addresses: Err(error.to_string()), problem: None },
        Err(_) => return Reached { addresses: Err("its name was not resolved in time".to_owned()), problem: None },
    };
    let addresses: Vec<IpAddr> = places.iter().map(|place| place.ip()).collect();
    if allowed.is_some_and(|allowed| checks::not_allowed(registered, &addresses, allowed).is_some()) {
        return Reached { addresses: Ok(addresses), problem: None };
    }
    let problem = match timeout(REACH, TcpStream::connect(&*places)).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no connection within {} s", REACH.as_secs())),
    };
    Reached { addresses: Ok(addresses), problem }
}
