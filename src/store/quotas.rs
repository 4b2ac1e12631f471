//! Counts what roles have stored: running processes, and messages of global queues. No row holds these sums, so all
//! rows are counted in slices.
//!
//! Limitations: a sum is as old as its slices. A role can exceed its quota until the next count.

use super::table::{Gives, statements};
use crate::pg::catch::Result;
use crate::pg::param::value;
use crate::pg::settings::whole_number;
use crate::pg::shmem::over::Quota;
use crate::pg::spi::Spi;
use pgrx::pg_sys;
use std::collections::HashMap;

statements! {
    // Settings for this database only come last, so that they override the others.
    LIMITS = "SELECT s.setrole AS owner, substr(e.entry, strpos(e.entry, '=') + 1) AS value \
        FROM pg_db_role_setting s CROSS JOIN LATERAL unnest(s.setconfig) AS e (entry) \
        WHERE split_part(e.entry, '=', 1) = 'xdb.max_running_processes' \
            AND (s.setdatabase = 0 OR s.setdatabase = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) \
        ORDER BY s.setdatabase <> 0" => fn set_limits() -> Vec<(pg_sys::Oid, String)>;
    // Uses the index of running executions.
    RUNNING = slice("p.process_id", "process_execution p", "p.status = 'RUNNING' AND p.process_id > $1", "0");
    MESSAGES = slice("m.number", "global_message m", "m.number > COALESCE(NULLIF($1, '')::bigint, 0)", "m.bytes");
}

/// Counts the next $2 rows of a table after the position $1, by owner. `last` is the position of the last row, if there
/// were $2 rows.
fn slice(place: &str, table: &str, which: &str, bytes: &str) -> String {
    format!(
        "WITH slice AS MATERIALIZED (SELECT {place} AS place, owner, {bytes} AS bytes FROM xdb.{table} \
            WHERE {which} ORDER BY {place} LIMIT $2) \
        SELECT s.owner, count(*) AS count, sum(s.bytes)::bigint AS bytes, \
            (SELECT l.place::text FROM slice l ORDER BY l.place OFFSET $2 - 1 LIMIT 1) AS last \
        FROM slice s GROUP BY s.owner"
    )
}

/// How many running processes roles may have. 0: no limit.
#[derive(Debug, Default)]
pub struct RunningLimits {
    of_role: HashMap<pg_sys::Oid, i32>,
    of_other_roles: i32,
}

impl RunningLimits {
    /// Reads the limits of roles and of the database. `of_other_roles` is the limit of all other roles.
    pub fn read(spi: &Spi, of_other_roles: i32) -> Result<Self> {
        let mut limits = Self { of_role: HashMap::new(), of_other_roles };
        for (owner, value) in set_limits(spi)? {
            let Some(limit) = whole_number(&value) else { continue };
            match owner {
                pg_sys::InvalidOid => limits.of_other_roles = limit,
                owner => drop(limits.of_role.insert(owner, limit)),
            }
        }
        Ok(limits)
    }

    /// Whether any role has a limit.
    pub fn has_any(&self) -> bool {
        self.of_other_roles > 0 || self.of_role.values().any(|limit| *limit > 0)
    }

    pub fn of(&self, owner: pg_sys::Oid) -> i32 {
        self.of_role.get(&owner).copied().unwrap_or(self.of_other_roles)
    }
}

/// The stored rows of a role.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    pub count: i64,
    pub bytes: i64,
}

/// Sums by role.
pub type Sums = HashMap<pg_sys::Oid, Sum>;

/// Adds the next rows of a quota after this position. Running processes are ordered by id, messages of global queues by
/// number. Messages that a state has taken count too. Returns the last position, if there may be more.
pub fn add(spi: &Spi, quota: Quota, sums: &mut Sums, after: &str, rows: i64) -> Result<Option<String>> {
    let statement = match quota {
        Quota::Running => &RUNNING,
        Quota::Messages => &MESSAGES,
    };
    let slice: Vec<(pg_sys::Oid, i64, i64, Option<String>)> = Gives::of(spi, statement, &[value(after), value(rows)])?;
    let mut reached = None;
    for (owner, count, bytes, last) in slice {
        let sum = sums.entry(owner).or_default();
        sum.count += count;
        sum.bytes += bytes;
        reached = last;
    }
    Ok(reached)
}
