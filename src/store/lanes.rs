//! The lanes of the table `task`: which lanes exist, which lane a moved call gets, and which leases are void there.
//!
//! Limitations: the file has no statements, only SQL fragments for those of other files.

use super::registry::NO_WORKER;

/// The lane of the scheduler's calls.
pub const SCHEDULERS_LANE: i16 = 0;
/// The lane of the runners' calls.
pub const RUNNERS_LANE: i16 = 1;
/// The lane of calls that a pause has parked: see [`super::parked`].
pub(super) const PARKED_LANE: i16 = 2;
/// The lane of calls that are held after crashes: see [`super::crashes`].
pub(super) const CRASHED_LANE: i16 = 3;

/// Moves the task `t` to its worker and lane of now, when it is not paused and no table is slow. Meanwhile its process
/// type may have moved to another worker, or to functions. Then no later walk looks at the old worker's calls.
pub(super) fn own_place() -> String {
    let types_worker = "SELECT y.worker_id FROM xdb.process_execution p JOIN xdb.process_type y ON y.type_id = p.type_id \
        WHERE p.execution_id = t.execution_id";
    let worker = format!(
        "CASE WHEN t.worker_id = {NO_WORKER} THEN {NO_WORKER} ELSE COALESCE(({types_worker}), {NO_WORKER}) END"
    );
    format!("worker_id = {worker}, lane = {}", lane_at(&worker, &SCHEDULERS_LANE.to_string()))
}

/// The lane of a call that gets this worker and was in the lane `before`. Functions answer calls without a worker.
pub(super) fn lane_at(worker: &str, before: &str) -> String {
    format!("CASE WHEN {worker} = {NO_WORKER} THEN {RUNNERS_LANE} ELSE {before} END")
}

/// The lane that an engine process claims from.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub number: i16,
    /// The epoch of the process's leases.
    pub epoch: i64,
}

/// The condition that the scheduler's task `t` has no valid lease. A lease of an epoch below the scheduler's own is
/// void, because the process that had it has ended.
pub(super) fn free_for_scheduler(own: &str, now: &str) -> String {
    format!("(t.lease_until IS NULL OR t.lease_epoch < {own} OR t.lease_until <= {now})")
}

/// The condition that the runners' task `t` has no valid lease. Runners run at the same time, so a lease is void if no
/// row has its epoch. A higher epoch than the statement sees belongs to a runner that has begun since, and its lease is
/// valid.
pub(super) fn free_for_runners(own: &str, now: &str) -> String {
    format!(
        "(t.lease_until IS NULL OR t.lease_until <= {now} \
            OR t.lease_epoch <> {own} AND t.lease_epoch <= (SELECT max(m.epoch) FROM xdb.engine m) \
                AND NOT EXISTS (SELECT FROM xdb.engine e WHERE e.epoch = t.lease_epoch))"
    )
}
