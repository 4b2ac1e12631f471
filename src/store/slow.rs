//! What is slow inside the database, as the scheduler and its runners have found out: the table `slow_object`.

use super::table::{Record, record, statements, table};
use crate::pg::catch::Result;
use crate::pg::param::{Interval, value};
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;
use std::collections::HashMap;
use std::time::Duration;
use xdb_engine::Timestamp;
use xdb_sched::slow::{FORGOTTEN_AFTER, Mark, Reason};

table! {
    /// Something that is slow: a table, a function, or what a role uses, or was within the last hour.
    pub struct SlowObject<'a> in "slow_object" {
        key { kind: &'a str, object: pg_sys::Oid }
        other {
            since: Timestamp,
            reason: &'a str,
            pause: Interval,
            probed_at: Option<Timestamp>,
            mended_at: Option<Timestamp>,
        }
    }
}

record! {
    /// A mark that is set.
    struct Marking<'a> of SlowObject<'a> { kind: Option<&'a str>, object: pg_sys::Oid, reason: &'a str, pause: Interval }
}

/// A table, or a function: whichever has the oid.
const KIND: &str = "CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = v.object) \
    OR NOT EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.oid = v.object) THEN 'TABLE' ELSE 'FUNCTION' END";
/// All tables that steps of a role use. Nobody probes that: it is over when its pause is.
const ROLE: &str = "ROLE";

/// Since when the mark `o` is over, or when it will be; null: nobody knows.
const OVER_AT: &str = "CASE o.kind WHEN 'ROLE' THEN o.since + o.pause ELSE o.mended_at END";

statements! {
    MARKS = format!("SELECT o.kind, o.object, o.reason, o.pause, \
            COALESCE({OVER_AT} <= pg_catalog.clock_timestamp(), false) AS is_mended, \
            GREATEST(pg_catalog.clock_timestamp() - COALESCE(o.probed_at, o.since), '0') AS age FROM xdb.slow_object o \
        WHERE COALESCE({OVER_AT} > pg_catalog.clock_timestamp() - $1::interval, true)");
    MARK = format!("INSERT INTO xdb.slow_object AS o (kind, object, reason, pause) \
        SELECT COALESCE(v.kind, {KIND}), v.object, v.reason, v.pause FROM {} ON CONFLICT (kind, object) DO UPDATE SET since = pg_catalog.clock_timestamp(), reason = EXCLUDED.reason, \
            pause = EXCLUDED.pause, probed_at = NULL, mended_at = NULL \
        RETURNING lower(o.kind) AS kind", super::table::batch::<Marking>());
    PROBED = "UPDATE xdb.slow_object SET pause = $3::interval, probed_at = pg_catalog.clock_timestamp(), \
            mended_at = CASE WHEN $4::bool THEN pg_catalog.clock_timestamp() END \
        WHERE kind IN ('TABLE', 'FUNCTION') AND object = $1::oid AND reason = $2::text AND mended_at IS NULL \
        RETURNING lower(kind) AS kind";
    FORGET = format!("DELETE FROM xdb.slow_object o WHERE {OVER_AT} < pg_catalog.clock_timestamp() - $1::interval \
            OR o.kind = 'TABLE' AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = o.object) \
            OR o.kind = 'FUNCTION' AND NOT EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.oid = o.object) \
            OR o.kind = 'ROLE' AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = o.object)");
    FORGET_ALL = "DELETE FROM xdb.slow_object";
    NAMES = format!("SELECT CASE o.kind WHEN 'ROLE' \
                THEN 'all tables of processes of ' || o.object::regrole::text || ': a process died in one' \
                WHEN 'FUNCTION' THEN o.object::regprocedure::text || ': ' || o.reason \
                ELSE o.object::regclass::text || ': ' || o.reason END AS name FROM xdb.slow_object o \
        WHERE COALESCE({OVER_AT} > pg_catalog.clock_timestamp(), true) \
        ORDER BY o.since, o.kind, o.object");
}

/// A mark, and how long it has been there without a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    pub mark: Mark,
    pub age: Duration,
}

/// What is slow, or was within the last hour, by oid.
#[derive(Debug, Default)]
pub struct Marks {
    pub tables: HashMap<u32, Marked>,
    /// Roles in whose steps processes have died.
    pub roles: HashMap<u32, Mark>,
}

pub fn marks(spi: &Spi) -> Result<Marks> {
    let mut marks = Marks::default();
    let read = |row: &Row| {
        // A reason of a later version.
        let reason = Reason::parse(row.get("reason")?).unwrap_or(Reason::Limit);
        let mark = Mark { reason, pause: row.get::<Interval>("pause")?.0, is_mended: row.get("is_mended")? };
        let is_role = row.get::<&str>("kind")? == ROLE;
        Ok((is_role, row.get::<pg_sys::Oid>("object")?.to_u32(), mark, row.get::<Interval>("age")?.0))
    };
    for (is_role, object, mark, age) in spi.rows(&MARKS, &[value(Interval(FORGOTTEN_AFTER))], read)? {
        if is_role {
            marks.roles.insert(object, mark);
        } else {
            marks.tables.insert(object, Marked { mark, age });
        }
    }
    Ok(marks)
}

/// The scheduler has found out that a table or a function is slow. Says which of the two it is.
pub fn mark(spi: &Spi, object: u32, mark: Mark) -> Result<String> {
    mark_object(spi, None, object, mark)
}

/// A process has died in a step of this role.
pub fn mark_role(spi: &Spi, role: u32, mark: Mark) -> Result<()> {
    mark_object(spi, Some(ROLE), role, mark).map(drop)
}

fn mark_object(spi: &Spi, kind: Option<&str>, object: u32, mark: Mark) -> Result<String> {
    let (reason, pause) = (mark.reason.as_str(), Interval(mark.pause));
    let params = Marking::arrays(&[Marking { kind, object: object.into(), reason, pause }]);
    Ok(spi.first(&MARK, &params, |row| row.get("kind"))?.unwrap_or_default())
}

/// What a runner's probe of a table or a function has shown. It counts unless somebody has marked that anew since. Says which of
/// the two it is.
pub fn probed(spi: &Spi, object: u32, mark: Mark) -> Result<String> {
    let object = pg_sys::Oid::from(object);
    let params = [value(object), value(mark.reason.as_str()), value(Interval(mark.pause)), value(mark.is_mended)];
    let kind = spi.first(&PROBED, &params, |row| row.get("kind"))?;
    if kind.is_some() && mark.is_mended {
        crate::pg::wake::wake_scheduler_at_commit();
    }
    Ok(kind.unwrap_or_else(|| "object".to_owned()))
}

/// Forgets what was mended long ago, and what is gone.
pub fn forget(spi: &Spi) -> Result<()> {
    spi.run(&FORGET, &[value(Interval(FORGOTTEN_AFTER))])?;
    Ok(())
}

/// A copy finds out for itself.
pub(super) fn forget_all(spi: &Spi) -> Result<()> {
    spi.run(&FORGET_ALL, &[])?;
    Ok(())
}

/// Names of what is slow, with the reason.
pub fn names(spi: &Spi) -> Result<Vec<String>> {
    spi.rows(&NAMES, &[], |row| row.get("name"))
}
