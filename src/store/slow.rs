//! What is slow inside the database, as the scheduler and its runners have found out: the table `slow_object`.

use super::table::{record, run, statements, table};
use super::versions;
use crate::pg::catch::Result;
use crate::pg::param::{Interval, value};
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;
use std::collections::HashMap;
use std::time::Duration;
use xdb_engine::Timestamp;
use xdb_sched::slow::{FORGOTTEN_AFTER, Mark, Reason};

table! {
    /// Something that is slow, or was within the last hour.
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
    /// A mark that is set, and the one that a probe leaves.
    struct Marking<'a> of SlowObject<'a> { object: pg_sys::Oid, reason: &'a str, pause: Interval }
}

statements! {
    TABLES = "SELECT o.object, o.reason, o.pause, o.mended_at IS NOT NULL AS is_mended, \
            GREATEST(pg_catalog.clock_timestamp() - COALESCE(o.probed_at, o.since), '0') AS age FROM xdb.slow_object o \
        WHERE o.kind = 'TABLE' AND (o.mended_at IS NULL OR o.mended_at > pg_catalog.clock_timestamp() - $1::interval)";
    MARK = format!("INSERT INTO xdb.slow_object AS o (kind, object, reason, pause) SELECT 'TABLE', v.object, v.reason, v.pause \
        FROM {} ON CONFLICT (kind, object) DO UPDATE SET since = pg_catalog.clock_timestamp(), reason = EXCLUDED.reason, \
            pause = EXCLUDED.pause, probed_at = NULL, mended_at = NULL", super::table::batch::<Marking>());
    PROBED = "UPDATE xdb.slow_object SET pause = $3::interval, probed_at = pg_catalog.clock_timestamp(), \
            mended_at = CASE WHEN $4::bool THEN pg_catalog.clock_timestamp() END \
        WHERE kind = 'TABLE' AND object = $1::oid AND reason = $2::text AND mended_at IS NULL";
    FORGET = "DELETE FROM xdb.slow_object o WHERE o.mended_at < pg_catalog.clock_timestamp() - $1::interval \
            OR o.kind = 'TABLE' AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = o.object)";
    FORGET_ALL = "DELETE FROM xdb.slow_object";
    NAMES = "SELECT o.object::regclass::text || ': ' || o.reason AS name FROM xdb.slow_object o \
        WHERE o.kind = 'TABLE' AND o.mended_at IS NULL ORDER BY o.since, o.object";
}

/// A mark, and how long it has been there without a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    pub mark: Mark,
    pub age: Duration,
}

/// Users' tables that are slow, or were within the last hour, by oid.
pub fn tables(spi: &Spi) -> Result<HashMap<u32, Marked>> {
    let read = |row: &Row| {
        // A reason of a later version.
        let reason = Reason::parse(row.get("reason")?).unwrap_or(Reason::Limit);
        let mark = Mark { reason, pause: row.get::<Interval>("pause")?.0, is_mended: row.get("is_mended")? };
        let age = row.get::<Interval>("age")?.0;
        Ok((row.get::<pg_sys::Oid>("object")?.to_u32(), Marked { mark, age }))
    };
    Ok(spi.rows(&TABLES, &[value(Interval(FORGOTTEN_AFTER))], read)?.into_iter().collect())
}

/// The scheduler has found out that a table is slow.
pub fn mark(spi: &Spi, relation: u32, mark: Mark) -> Result<()> {
    run(spi, &MARK, &[Marking { object: relation.into(), reason: mark.reason.as_str(), pause: Interval(mark.pause) }])?;
    Ok(())
}

/// What a runner's probe of a table has shown. It counts unless somebody has marked the table anew since.
pub fn probed(spi: &Spi, relation: u32, mark: Mark) -> Result<()> {
    let object = pg_sys::Oid::from(relation);
    let params = [value(object), value(mark.reason.as_str()), value(Interval(mark.pause)), value(mark.is_mended)];
    if spi.run(&PROBED, &params)? > 0 && mark.is_mended {
        crate::pg::wake::wake_scheduler_at_commit();
    }
    Ok(())
}

/// Forgets what was mended long ago, and what is gone.
pub fn forget(spi: &Spi) -> Result<()> {
    if versions::is_own() {
        spi.run(&FORGET, &[value(Interval(FORGOTTEN_AFTER))])?;
    }
    Ok(())
}

/// A copy finds out for itself.
pub(super) fn forget_all(spi: &Spi) -> Result<()> {
    if versions::is_own() {
        spi.run(&FORGET_ALL, &[])?;
    }
    Ok(())
}

/// Names of what is slow, with the reason.
pub fn names(spi: &Spi) -> Result<Vec<String>> {
    if versions::is_own() { spi.rows(&NAMES, &[], |row| row.get("name")) } else { Ok(Vec::new()) }
}
