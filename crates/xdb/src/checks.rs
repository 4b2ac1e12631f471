//! What `xdb doctor` concludes from what it has read. Each function makes the lines of one check, without I/O.

use crate::hosts::{self, HostPolicy};
use crate::text::{quoted, role_literal, visible};
use serde_json::{Value, json};
use std::net::IpAddr;

/// The setting of Postgres that every installation needs.
const PRELOAD: &str = "shared_preload_libraries";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Good,
    Bad,
    /// The role may not read what the check needs.
    Unknown,
}

/// One line of the doctor.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub check: &'static str,
    pub health: Health,
    pub message: String,
    pub fix: Option<String>,
}

impl Finding {
    pub fn good(check: &'static str, message: impl Into<String>) -> Finding {
        Finding { check, health: Health::Good, message: message.into(), fix: None }
    }

    pub fn bad(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { check, health: Health::Bad, message: message.into(), fix: Some(fix.into()) }
    }

    pub fn unknown(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { check, health: Health::Unknown, message: message.into(), fix: Some(fix.into()) }
    }

    /// For people: one line.
    pub fn line(&self) -> String {
        let fix = self.fix.as_ref().map_or_else(String::new, |fix| format!(" -> {}", visible(fix)));
        format!("{:<8} {}: {}{fix}", self.word(), self.check, visible(&self.message))
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({"check": self.check, "status": self.word(), "message": self.message, "fix": self.fix})
    }

    fn word(&self) -> &'static str {
        match self.health {
            Health::Good => "ok",
            Health::Bad => "problem",
            Health::Unknown => "unknown",
        }
    }
}

/// A line of the configuration files that sets `shared_preload_libraries`.
#[derive(Clone, Debug)]
pub struct PreloadLine {
    pub file: String,
    pub line: String,
    pub libraries: String,
}

/// `shared_preload_libraries`, as far as the role may read it.
#[derive(Clone, Debug, Default)]
pub struct Preload {
    /// Whether the server has loaded the library. None: it is not known.
    pub loaded: Option<bool>,
    /// The value of the running server. None: the role may not read it.
    pub running: Option<String>,
    /// The lines of the configuration files in the order in which Postgres reads them; the last one wins. None: the
    /// role may not read them.
    pub lines: Option<Vec<PreloadLine>>,
    /// The configuration file.
    pub file: Option<String>,
}

fn has_xdb(libraries: &str) -> bool {
    let base = |entry: &str| {
        let entry = entry.trim().trim_matches('"').trim_matches('\'');
        entry.rsplit('/').next().unwrap_or(entry).trim_end_matches(".so").to_owned()
    };
    libraries.split(',').any(|entry| base(entry) == "xdb")
}

/// Whether the library is preloaded, now and after the next restart, and which line of which file decides that.
pub fn preload(preload: &Preload) -> Finding {
    const CHECK: &str = "preload";
    let loaded = preload.loaded.or_else(|| preload.running.as_deref().map(has_xdb));
    let Some(loaded) = loaded else {
        return Finding::unknown(
            CHECK,
            format!("this role may not read {PRELOAD}"),
            "GRANT pg_read_all_settings to the role",
        );
    };
    let Some(lines) = &preload.lines else {
        return match loaded {
            true => Finding::good(CHECK, "the server has loaded the library"),
            false => Finding::bad(
                CHECK,
                "the server has not loaded the library",
                format!(
                    "add xdb to {PRELOAD}, and restart Postgres; a superuser's xdb doctor shows the line that decides"
                ),
            ),
        };
    };
    by_lines(CHECK, loaded, preload, lines)
}

/// The same, for a role that may read the files of the configuration.
fn by_lines(check: &'static str, loaded: bool, preload: &Preload, lines: &[PreloadLine]) -> Finding {
    let place = |line: &PreloadLine| format!("{}, line {}: {PRELOAD} = '{}'", line.file, line.line, line.libraries);
    let with =
        |libraries: &str| if libraries.trim().is_empty() { "xdb".to_owned() } else { format!("{libraries}, xdb") };
    match lines.split_last() {
        Some((wins, _)) if has_xdb(&wins.libraries) && loaded => {
            Finding::good(check, format!("the server has loaded the library ({})", place(wins)))
        }
        Some((wins, _)) if has_xdb(&wins.libraries) => Finding::bad(
            check,
            format!("the server has not loaded the library yet; {}", place(wins)),
            "restart Postgres; if that does not help, another setting wins, for instance one of the command line",
        ),
        // The command line decides.
        _ if loaded && preload.running.as_deref().is_some_and(has_xdb) && lines.is_empty() => {
            Finding::good(check, "the server has loaded the library (by its command line)")
        }
        Some((wins, others)) => {
            let loses = others.iter().rev().find(|line| has_xdb(&line.libraries));
            let loses = loses.map_or_else(String::new, |line| format!(", not {}", place(line)));
            let when = if loaded {
                "after the next restart the server will not load the library"
            } else {
                "the server has not loaded the library"
            };
            Finding::bad(
                check,
                format!("{when}: this line wins, {}{loses}", place(wins)),
                format!("set {PRELOAD} = '{}' there, and restart Postgres", with(&wins.libraries)),
            )
        }
        None => {
            let file = preload.file.as_deref().unwrap_or("postgresql.conf");
            Finding::bad(
                check,
                "the server has not loaded the library, and no line of the configuration names it",
                format!("add the line {PRELOAD} = 'xdb' to {file}, and restart Postgres"),
            )
        }
    }
}

/// Versions of the server, of the library that it runs, and of the schema of the database.
#[derive(Clone, Debug, Default)]
pub struct InstalledVersions {
    pub server: u32,
    pub database: String,
    /// The version that CREATE EXTENSION would make. None: the files of the extension are missing.
    pub available: Option<String>,
    pub schema: Option<String>,
    pub library: Option<String>,
}

/// Patch versions of a minor version share one schema.
fn minor(version: &str) -> Vec<u32> {
    version.split('.').take(2).map(|part| part.parse().unwrap_or(0)).collect()
}

pub fn versions(versions: &InstalledVersions) -> Finding {
    const CHECK: &str = "versions";
    let InstalledVersions { server, database, available, schema, library } = versions;
    let major = server / 10_000;
    if !(15..=18).contains(&major) {
        return Finding::bad(CHECK, format!("Postgres {major} is not supported"), "use Postgres 15 to 18");
    }
    match (schema, library) {
        (None, _) if available.is_none() => Finding::bad(
            CHECK,
            "the files of the extension are not installed for this server",
            format!("install XDB for Postgres {major}"),
        ),
        (None, _) => Finding::bad(
            CHECK,
            format!("the database {} does not have the extension", quoted(database)),
            format!("connect to the right database, or run CREATE EXTENSION xdb in {}", quoted(database)),
        ),
        (Some(schema), None) => Finding::unknown(
            CHECK,
            format!("the schema is {schema}, the library's version can't be read"),
            "use a role that may use XDB",
        ),
        (Some(schema), Some(library)) => {
            let installed = available.as_deref().map(minor).unwrap_or_default();
            let shown = format!("Postgres {major}, library {library}, schema {schema}");
            match minor(schema).cmp(&minor(library)) {
                std::cmp::Ordering::Less => Finding::bad(CHECK, shown, "ALTER EXTENSION xdb UPDATE"),
                std::cmp::Ordering::Greater if installed < minor(schema) => Finding::bad(
                    CHECK,
                    match available {
                        Some(available) => format!("{shown}; version {available} is installed"),
                        None => format!("{shown}; no version is installed"),
                    },
                    format!("install version {schema} of xdb, and restart Postgres"),
                ),
                std::cmp::Ordering::Greater => Finding::bad(
                    CHECK,
                    shown,
                    "restart Postgres: the server runs an older library than its database needs",
                ),
                _ if installed > minor(library) => Finding::bad(
                    CHECK,
                    format!("{shown}; {} is installed", available.as_deref().unwrap_or_default()),
                    "restart Postgres, then ALTER EXTENSION xdb UPDATE",
                ),
                _ => Finding::good(CHECK, shown),
            }
        }
    }
}

/// The engine of the database.
#[derive(Clone, Debug, Default)]
pub struct EngineStatus {
    pub state: String,
    pub reason: Option<String>,
    pub runner_error: Option<String>,
    /// None: the role may not see it.
    pub ownerless: Option<u64>,
}

pub fn engine(engine: &EngineStatus, is_standby: bool) -> Finding {
    const CHECK: &str = "engine";
    let reason = engine.reason.as_deref().unwrap_or_default();
    let shown = if reason.is_empty() { engine.state.clone() } else { format!("{}: {reason}", engine.state) };
    let fix = match &*engine.state {
        "running" if reason.is_empty() => return Finding::good(CHECK, shown),
        "stopped" if is_standby => return Finding::good(CHECK, shown),
        "running" => "see \"Nothing runs at all\" in docs/stuck.md",
        "paused" => "SELECT xdb.resume_engine()",
        "waiting for adopt" => "SELECT xdb.adopt(), if the processes of this copy should run here",
        "waiting for update" => "do what the check of the versions says",
        "starting" => {
            "end the session that has locked the extension, usually by ALTER EXTENSION in an open transaction"
        }
        "stopped" if reason.contains("xdb.enabled") => "ALTER SYSTEM SET xdb.enabled = on; SELECT pg_reload_conf()",
        "stopped" if reason.contains("xdb.databases") => {
            "add the database to xdb.databases, and SELECT pg_reload_conf()"
        }
        "backing off" if reason.contains("max_worker_processes") => "raise max_worker_processes, and restart Postgres",
        "backing off" => "read the server log",
        _ => "mend what the reason names",
    };
    Finding::bad(CHECK, shown, fix)
}

/// The worker processes of the server.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    pub most: u64,
    /// None: the role may not count them.
    pub used: Option<u64>,
}

pub fn slots(slots: Slots, engine: Option<&EngineStatus>) -> Finding {
    const CHECK: &str = "worker processes";
    let short = |text: &Option<String>| text.as_deref().is_some_and(|text| text.contains("max_worker_processes"));
    let engine_lacks = engine.is_some_and(|engine| short(&engine.reason) || short(&engine.runner_error));
    let Slots { most, used } = slots;
    match used {
        _ if engine_lacks || used.is_some_and(|used| used >= most) => Finding::bad(
            CHECK,
            format!("all {most} of max_worker_processes are in use"),
            format!("raise max_worker_processes above {most}, and restart Postgres"),
        ),
        Some(used) => Finding::good(CHECK, format!("{used} of max_worker_processes = {most} are in use")),
        None => Finding::unknown(
            CHECK,
            format!("max_worker_processes is {most}; this role may not count those in use"),
            "GRANT pg_monitor to the role",
        ),
    }
}

/// A registered worker.
#[derive(Clone, Debug)]
pub struct RegisteredWorker {
    pub name: String,
    /// None: a pull worker, or one whose URL the role may not see.
    pub url: Option<String>,
    pub is_hidden: bool,
    pub breaker: Option<String>,
    /// Calls that are due and not under way.
    pub waiting: u64,
    /// For how many seconds the first of them has waited.
    pub waiting_seconds: u64,
}

/// What came of a connection from this machine: the addresses of the host, or why it has none; and the problem of the
/// connection.
#[derive(Clone, Debug)]
pub struct Reached {
    pub addresses: Result<Vec<IpAddr>, String>,
    pub problem: Option<String>,
}

/// `allowed`: the setting `xdb.allowed_worker_hosts`. None: the role may not read it.
pub fn worker(worker: &RegisteredWorker, reached: Option<&Reached>, allowed: Option<&str>) -> Finding {
    const CHECK: &str = "worker";
    let name = quoted(&worker.name);
    if worker.is_hidden {
        return Finding::unknown(CHECK, format!("{name} belongs to another role"), "run xdb doctor as an operator");
    }
    let Some((url, reached)) = worker.url.as_ref().zip(reached) else {
        return match (worker.waiting, worker.waiting_seconds) {
            (waiting, seconds) if waiting > 0 && seconds >= 60 => Finding::bad(
                CHECK,
                format!(
                    "{name} is a pull worker: {waiting} calls wait, the first for {}",
                    crate::text::duration(seconds as i64)
                ),
                "start the program that claims its calls",
            ),
            _ => Finding::good(CHECK, format!("{name} is a pull worker")),
        };
    };
    let shown = format!("{name} at {url}");
    let addresses = match &reached.addresses {
        Ok(addresses) => addresses,
        Err(problem) => {
            return Finding::bad(
                CHECK,
                format!("{shown}: {problem}"),
                "mend the name, or register the worker with its URL",
            );
        }
    };
    if let Some(refused) = allowed.and_then(|allowed| not_allowed(url, addresses, allowed)) {
        return Finding::bad(
            CHECK,
            format!("{shown}: {refused}"),
            "add the host to xdb.allowed_worker_hosts, and SELECT pg_reload_conf()",
        );
    }
    match (&reached.problem, worker.breaker.as_deref()) {
        (Some(problem), _) => Finding::bad(
            CHECK,
            format!("{shown} can't be reached from this machine: {problem}"),
            "start the worker, or register it with its URL",
        ),
        (None, Some("open")) => Finding::bad(
            CHECK,
            format!("{shown} can be reached from this machine, but the server could not reach it: the breaker is open"),
            "run xdb doctor on the server; the breaker closes when the server reaches the worker",
        ),
        _ => Finding::good(CHECK, format!("{shown} can be reached from this machine")),
    }
}

/// Why `allowed`, the setting `xdb.allowed_worker_hosts`, refuses a URL with these addresses.
pub fn not_allowed(url: &str, addresses: &[IpAddr], allowed: &str) -> Option<String> {
    let url = hosts::validate_url(url).ok()?;
    let policy = match HostPolicy::parse(allowed) {
        Ok(policy) => policy,
        Err(problem) => return Some(format!("{} can't be read: {problem}", hosts::SETTING)),
    };
    policy.filter(&url.host, addresses, url.port).err()
}

/// Roles that may use the schema and not start processes.
pub fn roles(without_start: &[String], ownerless: Option<u64>) -> Vec<Finding> {
    const CHECK: &str = "roles";
    let mut found: Vec<_> = without_start
        .iter()
        .map(|role| {
            Finding::bad(
                CHECK,
                format!("the role {} may use the schema xdb, and may not start processes", quoted(role)),
                format!("SELECT xdb.grant_usage({})", role_literal(role)),
            )
        })
        .collect();
    if let Some(count) = ownerless.filter(|count| *count > 0) {
        found.push(Finding::bad(
            CHECK,
            format!("{count} running processes have an owner that was dropped"),
            "xdb.reassign_owned(): see \"Before you drop a role\" in docs/operations.md",
        ));
    }
    if found.is_empty() {
        found.push(Finding::good(CHECK, "each role with the schema xdb may start processes"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(file: &str, line: &str, libraries: &str) -> PreloadLine {
        PreloadLine { file: file.to_owned(), line: line.to_owned(), libraries: libraries.to_owned() }
    }

    fn judged(loaded: bool, lines: Vec<PreloadLine>) -> String {
        let running = if loaded { "xdb" } else { "" };
        preload(&Preload {
            loaded: Some(loaded),
            running: Some(running.to_owned()),
            lines: Some(lines),
            file: Some("/c/postgresql.conf".to_owned()),
        })
        .line()
    }

    #[test]
    fn the_line_that_wins_is_named() {
        let ours = line("/c/postgresql.conf", "5", "xdb");
        let theirs = line("/c/postgresql.auto.conf", "3", "pg_stat_statements");
        for (loaded, lines, expected) in [
            (
                true,
                vec![ours.clone()],
                "ok       preload: the server has loaded the library (/c/postgresql.conf, line 5: shared_preload_libraries = 'xdb')",
            ),
            (
                false,
                vec![ours.clone()],
                "problem  preload: the server has not loaded the library yet; /c/postgresql.conf, line 5: shared_preload_libraries = 'xdb' \
                -> restart Postgres; if that does not help, another setting wins, for instance one of the command line",
            ),
            (
                false,
                vec![ours.clone(), theirs.clone()],
                "problem  preload: the server has not loaded the library: this line wins, /c/postgresql.auto.conf, line 3: \
                shared_preload_libraries = 'pg_stat_statements', not /c/postgresql.conf, line 5: shared_preload_libraries = 'xdb' \
                -> set shared_preload_libraries = 'pg_stat_statements, xdb' there, and restart Postgres",
            ),
            (
                true,
                vec![ours, theirs],
                "problem  preload: after the next restart the server will not load the library: this line wins, /c/postgresql.auto.conf, line 3: \
                shared_preload_libraries = 'pg_stat_statements', not /c/postgresql.conf, line 5: shared_preload_libraries = 'xdb' \
                -> set shared_preload_libraries = 'pg_stat_statements, xdb' there, and restart Postgres",
            ),
            (
                false,
                vec![],
                "problem  preload: the server has not loaded the library, and no line of the configuration names it \
                -> add the line shared_preload_libraries = 'xdb' to /c/postgresql.conf, and restart Postgres",
            ),
        ] {
            assert_eq!(judged(loaded, lines), expected);
        }
        assert!(has_xdb("pg_cron, $libdir/xdb") && has_xdb("\"xdb\"") && !has_xdb("xdb2, pg_xdb"));
    }

    #[test]
    fn versions_say_which_side_is_old() {
        let of = |schema: &str, library: &str, available: &str| {
            let [schema, library, available] = [schema, library, available].map(|version| Some(version.to_owned()));
            versions(&InstalledVersions { server: 150_020, database: "shop".to_owned(), available, schema, library })
                .fix
        };
        assert_eq!(of("0.4.0", "0.4.7", "0.4.0"), None);
        assert_eq!(of("0.3.0", "0.4.0", "0.4.0").as_deref(), Some("ALTER EXTENSION xdb UPDATE"));
        assert_eq!(
            of("0.4.0", "0.3.9", "0.3.9").as_deref(),
            Some("install version 0.4.0 of xdb, and restart Postgres")
        );
        assert!(of("0.4.0", "0.3.9", "0.4.0").is_some_and(|fix| fix.starts_with("restart Postgres:")));
        assert!(of("0.4.0", "0.4.0", "0.10.0").is_some_and(|fix| fix.starts_with("restart Postgres, then")));
    }

    #[test]
    fn a_host_that_is_not_allowed_is_named() {
        let of = |allowed: &str| {
            let registered = RegisteredWorker {
                name: "pay".to_owned(),
                url: Some("http://10.0.0.7:8080".to_owned()),
                is_hidden: false,
                breaker: None,
                waiting: 0,
                waiting_seconds: 0,
            };
            let reached = Reached { addresses: Ok(vec![IpAddr::from([10, 0, 0, 7])]), problem: None };
            worker(&registered, Some(&reached), Some(allowed)).line()
        };
        assert_eq!(
            of("10.0.0.0/8"),
            "ok       worker: \"pay\" at http://10.0.0.7:8080 can be reached from this machine"
        );
        assert_eq!(
            of("localhost"),
            "problem  worker: \"pay\" at http://10.0.0.7:8080: the worker address 10.0.0.7 is not permitted by xdb.allowed_worker_hosts \
             -> add the host to xdb.allowed_worker_hosts, and SELECT pg_reload_conf()"
        );
    }
}
