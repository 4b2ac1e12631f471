//! Reads the server's log, and finds lines of trouble that a test does not expect.

/// The value of `log_line_prefix`: time, pid, kind of process, database, SQLSTATE.
pub const PREFIX: &str = "%m [%p] <%b|%d|%e> ";

/// Lines that look like trouble, and are normal in a test cluster.
const ALWAYS_EXPLAINED: &[&str] = &[
    // A client that was still connected when its database was dropped or its cluster stopped.
    "terminating connection due to administrator command",
    // Autovacuum was at work in a database that was dropped, or had a lock that a test needed.
    "terminating autovacuum process due to administrator command",
    "canceling autovacuum task",
    "terminating background worker \"xdb",
    // An engine process was about to start in a database that was dropped.
    "<xdb scheduler||3D000> FATAL:  database ",
    "<xdb runner||3D000> FATAL:  database ",
    "the database system is starting up",
    "the database system is shutting down",
    "the database system is in recovery mode",
    "the database system is not yet accepting connections",
    "enabling \"trust\" authentication",
];

/// Lines that `kill -9` of a server process causes, for tests that do so.
pub const AFTER_A_CRASH: &[&str] = &[
    "terminating connection because of crash of another server process",
    "was terminated by signal 9",
    "all server processes terminated; reinitializing",
    "database system was interrupted",
];

/// One line of the log about trouble.
#[derive(Debug, PartialEq)]
pub struct Trouble<'a> {
    /// `client backend`, `xdb scheduler`, …
    pub backend: &'a str,
    /// The database. Empty for a process without one.
    pub database: &'a str,
    /// The SQLSTATE.
    pub state: &'a str,
    /// ERROR, FATAL, PANIC or WARNING.
    pub severity: &'a str,
    /// The whole line.
    pub line: &'a str,
}

/// All lines of trouble in a log.
pub fn troubles(log: &str) -> impl Iterator<Item = Trouble<'_>> {
    log.lines().filter_map(|line| {
        let (_, rest) = line.split_once("] <")?;
        let (origin, message) = rest.split_once("> ")?;
        let mut origin = origin.split('|');
        let (backend, database, state) = (origin.next()?, origin.next()?, origin.next()?);
        let severity = ["ERROR", "FATAL", "PANIC", "WARNING"]
            .into_iter()
            .find(|severity| message.strip_prefix(severity).is_some_and(|rest| rest.starts_with(':')))?;
        Some(Trouble { backend, database, state, severity, line })
    })
}

/// Failed assertions of the server. Only a server that was built with assertions has any.
pub fn failed_assertions(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter(|line| line.starts_with("TRAP: "))
}

/// The unexpected lines. A client's own error went to the client, where the test judges it. An internal error (class
/// `XX`) and a failed assertion are always defects.
pub fn unexplained(log: &str, database: Option<&str>, allowed: &[&str]) -> Vec<String> {
    let unexplained = troubles(log)
        .filter(|trouble| database.is_none_or(|database| trouble.database == database || trouble.database.is_empty()))
        .filter(|trouble| {
            let clients_own = trouble.backend == "client backend"
                && matches!(trouble.severity, "ERROR" | "WARNING")
                && !trouble.state.starts_with("XX");
            !clients_own || trouble.severity == "PANIC"
        })
        .filter(|trouble| !ALWAYS_EXPLAINED.iter().chain(allowed).any(|known| trouble.line.contains(known)))
        .map(|trouble| trouble.line);
    failed_assertions(log).chain(unexplained).map(str::to_owned).collect()
}

/// How many times the postmaster has restarted all processes after the death of one.
pub fn crashes(log: &str) -> usize {
    log.lines().filter(|line| line.contains("all server processes terminated; reinitializing")).count()
}

/// The last `count` lines.
pub fn tail(log: &str, count: usize) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
2025-01-01 00:00:00.000 UTC [7] <client backend|a|XD001> ERROR:  no such process
2025-01-01 00:00:00.000 UTC [7] <client backend|a|XX000> ERROR:  cache lookup failed
2025-01-01 00:00:00.000 UTC [8] <xdb scheduler|b|23505> WARNING:  a batch failed
2025-01-01 00:00:00.000 UTC [8] <xdb scheduler|b|00000> LOG:  ERROR: is only a word here
2025-01-01 00:00:00.000 UTC [9] <postmaster||00000> LOG:  ready
\tand a continuation that mentions ERROR: too";

    #[test]
    fn a_clients_own_error_is_explained_and_an_internal_one_is_not() {
        let of_a = unexplained(LOG, Some("a"), &[]);
        assert_eq!(of_a.len(), 1);
        assert!(of_a[0].contains("cache lookup failed"));
    }

    #[test]
    fn the_engines_troubles_count_unless_allowed() {
        assert_eq!(unexplained(LOG, None, &[]).len(), 2);
        assert_eq!(unexplained(LOG, Some("b"), &["a batch failed"]), Vec::<String>::new());
    }

    #[test]
    fn a_failed_assertion_is_never_explained() {
        let log = "TRAP: failed Assert(\"a\"), File: \"b.c\", Line: 1, PID: 7\nan innocent TRAP: of words";
        assert_eq!(unexplained(log, Some("a"), &["TRAP"]).len(), 1);
    }

    #[test]
    fn the_tail_of_a_short_log_is_all_of_it() {
        assert_eq!(tail("a\nb", 60), "a\nb");
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
    }
}
