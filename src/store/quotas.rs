//! What roles have that no row has the sum of: running processes, and messages of global queues. Counted in slices of all rows.

use super::table::statements;
use crate::pg::catch::Result;
use crate::pg::param::Param;
use crate::pg::param::{FromColumn, value};
use crate::pg::settings::whole_number;
use crate::pg::spi::{Row, Spi, Statement};
use pgrx::pg_sys;
use std::collections::HashMap;

statements! {
    // What holds for this database alone comes last.
    LIMITS = "SELECT s.setrole AS owner, substr(e.entry, strpos(e.entry, '=') + 1) AS value \
        FROM pg_db_role_setting s CROSS JOIN LATERAL unnest(s.setconfig) AS e (entry) \
        WHERE split_part(e.entry, '=', 1) = 'xdb.max_running_processes' \
            AND (s.setdatabase = 0 OR s.setdatabase = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) \
        ORDER BY s.setdatabase <> 0";
    // By the index of those that run.
    RUNNING = "WITH slice AS MATERIALIZED (SELECT p.process_id, p.owner FROM xdb.process_execution p \
            WHERE p.status = 'RUNNING' AND p.process_id > $1 ORDER BY p.process_id LIMIT $2) \
        SELECT s.owner, count(*) AS count, 0::bigint AS bytes, \
            (SELECT l.process_id FROM slice l ORDER BY l.process_id OFFSET $2 - 1 LIMIT 1) AS more_after \
        FROM slice s GROUP BY s.owner";
    MESSAGES = "WITH slice AS MATERIALIZED (SELECT m.number, m.owner, m.bytes FROM xdb.global_message m \
            WHERE m.number > $1 ORDER BY m.number LIMIT $2) \
        SELECT s.owner, count(*) AS count, sum(s.bytes)::bigint AS bytes, \
            (SELECT l.number FROM slice l ORDER BY l.number OFFSET $2 - 1 LIMIT 1) AS more_after \
        FROM slice s GROUP BY s.owner";
}

/// How many running processes roles may have; 0: any number.
#[derive(Debug, Default)]
pub struct Limits {
    of_role: HashMap<pg_sys::Oid, i32>,
    of_others: i32,
}

impl Limits {
    /// As roles and the database have them set now; `of_others` holds for all else.
    pub fn read(spi: &Spi, of_others: i32) -> Result<Self> {
        let read = |row: &Row| Ok((row.get("owner")?, row.get::<String>("value")?));
        let mut limits = Self { of_role: HashMap::new(), of_others };
        for (owner, value) in spi.rows(&LIMITS, &[], read)? {
            let Some(limit) = whole_number(&value) else { continue };
            match owner {
                pg_sys::InvalidOid => limits.of_others = limit,
                owner => drop(limits.of_role.insert(owner, limit)),
            }
        }
        Ok(limits)
    }

    /// Whether there is any.
    pub fn has_any(&self) -> bool {
        self.of_others > 0 || self.of_role.values().any(|limit| *limit > 0)
    }

    pub fn of(&self, owner: pg_sys::Oid) -> i32 {
        self.of_role.get(&owner).copied().unwrap_or(self.of_others)
    }
}

/// What was counted of a role.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    pub count: i64,
    pub bytes: i64,
}

pub type Sums = HashMap<pg_sys::Oid, Sum>;

/// Adds the running processes of the next slice, by process id. Gives the place that it came to, if there may be more behind.
pub fn add_running(spi: &Spi, sums: &mut Sums, after: &str, rows: i64) -> Result<Option<String>> {
    add(spi, &RUNNING, value(after), sums, rows)
}

/// The same with messages of global queues, by number: free ones, and those that a state has taken and not used up.
pub fn add_messages(spi: &Spi, sums: &mut Sums, after: i64, rows: i64) -> Result<Option<i64>> {
    add(spi, &MESSAGES, value(after), sums, rows)
}

fn add<P: for<'r> FromColumn<'r>>(
    spi: &Spi,
    statement: &'static Statement,
    after: Param,
    sums: &mut Sums,
    rows: i64,
) -> Result<Option<P>> {
    let mut place = None;
    let read = |row: &Row| {
        Ok((row.get("owner")?, row.get::<i64>("count")?, row.get::<i64>("bytes")?, row.get::<Option<P>>("more_after")?))
    };
    for (owner, count, bytes, more_after) in spi.rows(statement, &[after, value(rows)], read)? {
        let sum: &mut Sum = sums.entry(owner).or_default();
        sum.count += count;
        sum.bytes += bytes;
        place = more_after;
    }
    Ok(place)
}
