//! Checks the server's log: it may only contain trouble that the rack has made itself.

use std::collections::BTreeMap;

use xdb_cluster_tests::log::{AFTER_A_CRASH, troubles, unexplained};

use crate::checks::Findings;
use crate::world::World;

/// Lines that the rack's faults leave in a log, besides those of a crash.
const OURS: &[&str] = &[
    "terminating connection due to unexpected postmaster exit",
    "terminating autovacuum process due to administrator command",
    "terminating logical replication worker due to administrator command",
    "postmaster exited during a parallel transaction",
    // A start before all children of a killed postmaster have ended.
    "pre-existing shared memory block",
    "lock file \"postmaster.pid\" already exists",
    "connection to client lost",
    "could not send data to client",
    "canceling authentication due to timeout",
    // The rack's statement timeout for all roles also ends processes that are not the engine's.
    STATEMENT_TIMEOUT,
];

const STATEMENT_TIMEOUT: &str = "canceling statement due to statement timeout";

/// Lines that a full disk leaves.
const DISK_FULL: &[&str] = &["No space left on device", "was terminated by signal 6", "PANIC", "startup process (PID"];

/// Checks the part of the log that was written since `from`. Returns the end of the log.
pub fn check(world: &World, from: usize, wal_full: bool, findings: &mut Findings) -> usize {
    let log = world.cluster().log();
    let part = log.get(from..).unwrap_or_default();
    let mut allowed: Vec<&str> = AFTER_A_CRASH.iter().chain(OURS).copied().collect();
    if wal_full {
        allowed.extend(DISK_FULL);
    }
    for line in unexplained(part, None, &allowed) {
        findings.add("server log", line);
    }
    for trouble in troubles(part).filter(|t| t.backend.starts_with("xdb") && t.line.contains(STATEMENT_TIMEOUT)) {
        findings.add("server log", trouble.line);
    }
    for line in part.lines().filter(|line| line.contains("was terminated by signal ")) {
        let pid = line.split("(PID ").nth(1).and_then(|rest| rest.split(')').next()?.parse::<i32>().ok());
        let by_disk = wal_full && line.contains("signal 6");
        if !by_disk && !pid.is_some_and(|pid| world.was_killed(pid)) {
            findings.add("crash that is not ours", line);
        }
    }
    log.len()
}

/// The engine's lines in the log, counted by their texts, as a summary for a reader.
pub fn engine_lines(world: &World) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    for line in world.cluster().log().lines() {
        if let Some((_, message)) = line.split_once("> LOG:  xdb: ") {
            let words: String = message.chars().filter(|c| !c.is_ascii_digit()).take(100).collect();
            *lines.entry(words).or_default() += 1;
        }
    }
    lines
}
