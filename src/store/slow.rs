//! What is slow inside the database, as the scheduler and its runners have found out: rows of `xdb.slow_object`.

use crate::pg::catch::Result;
use crate::pg::param::{Param, value};
use crate::pg::spi::{Row, Spi};
use crate::store::versions;
use pgrx::pg_sys;
use std::collections::HashMap;
use std::time::Duration;
use xdb_sched::slow::{FORGOTTEN_AFTER, Mark, Reason};
use xdb_sched::table_health::Relation;

/// A mark, and how long it has been there without a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    pub mark: Mark,
    pub age: Duration,
}

/// Users' tables that are slow, or were within the last hour.
pub fn tables(spi: &Spi) -> Result<HashMap<Relation, Marked>> {
    const SELECT: &str = "SELECT object, reason, (EXTRACT(EPOCH FROM pause) * 1000)::bigint, mended_at IS NOT NULL, \
            (EXTRACT(EPOCH FROM pg_catalog.clock_timestamp() - COALESCE(probed_at, since)) * 1000)::bigint \
        FROM xdb.slow_object WHERE kind = 'TABLE' \
            AND (mended_at IS NULL OR mended_at > pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $1 / 1000.0))";
    let time = |row: &Row, column| Ok(Duration::from_millis(row.need::<i64>(column)?.max(0) as u64));
    let read = |row: &Row| {
        // A reason of a later version.
        let reason = Reason::parse(&row.need::<String>(2)?).unwrap_or(Reason::Limit);
        let mark = Mark { reason, pause: time(row, 3)?, is_mended: row.need(4)? };
        Ok((row.need::<pg_sys::Oid>(1)?.to_u32(), Marked { mark, age: time(row, 5)? }))
    };
    Ok(spi.rows(SELECT, &[millis(FORGOTTEN_AFTER)], read)?.into_iter().collect())
}

/// The scheduler has found out that a table is slow.
pub fn mark(spi: &Spi, relation: Relation, mark: Mark) -> Result<()> {
    const UPSERT: &str = "INSERT INTO xdb.slow_object AS o (kind, object, reason, pause) \
        VALUES ('TABLE', $1, $2, pg_catalog.make_interval(secs => $3 / 1000.0)) \
        ON CONFLICT (kind, object) DO UPDATE SET since = pg_catalog.clock_timestamp(), reason = EXCLUDED.reason, \
            pause = EXCLUDED.pause, probed_at = NULL, mended_at = NULL";
    spi.run(UPSERT, &[oid(relation), value(mark.reason.as_str()), millis(mark.pause)])?;
    Ok(())
}

/// What a runner's probe of a table has shown. It counts unless somebody has marked the table anew since.
pub fn probed(spi: &Spi, relation: Relation, mark: Mark) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.slow_object SET pause = pg_catalog.make_interval(secs => $3 / 1000.0), \
            probed_at = pg_catalog.clock_timestamp(), mended_at = CASE WHEN $4 THEN pg_catalog.clock_timestamp() END \
        WHERE kind = 'TABLE' AND object = $1 AND reason = $2 AND mended_at IS NULL";
    let params = [oid(relation), value(mark.reason.as_str()), millis(mark.pause), value(mark.is_mended)];
    if spi.run(UPDATE, &params)? > 0 && mark.is_mended {
        crate::pg::wake::wake_scheduler_at_commit();
    }
    Ok(())
}

/// Forgets what was mended long ago, and what is gone.
pub fn forget(spi: &Spi) -> Result<()> {
    if !versions::is_own() {
        return Ok(());
    }
    const DELETE: &str = "DELETE FROM xdb.slow_object o \
        WHERE o.mended_at < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $1 / 1000.0) \
            OR o.kind = 'TABLE' AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = o.object)";
    spi.run(DELETE, &[millis(FORGOTTEN_AFTER)])?;
    Ok(())
}

/// A copy finds out for itself.
pub fn forget_all(spi: &Spi) -> Result<()> {
    if versions::is_own() {
        spi.run("DELETE FROM xdb.slow_object", &[])?;
    }
    Ok(())
}

/// Names of what is slow, with the reason.
pub fn names(spi: &Spi) -> Result<Vec<String>> {
    if !versions::is_own() {
        return Ok(Vec::new());
    }
    const SELECT: &str = "SELECT o.object::regclass::text || ': ' || o.reason FROM xdb.slow_object o \
        WHERE o.kind = 'TABLE' AND o.mended_at IS NULL ORDER BY o.since, o.object";
    spi.rows(SELECT, &[], |row| row.need(1))
}

fn oid(relation: Relation) -> Param {
    value(pg_sys::Oid::from(relation))
}

fn millis(time: Duration) -> Param {
    value(time.as_millis() as i64)
}
