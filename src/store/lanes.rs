//! The lanes of the table `task`: which lanes exist, which lane a call is in, and which leases are void there.
//!
//! Limitations: the file has no statements, only SQL fragments for those of other files.

use super::registry::NO_WORKER;

/// The lane of the scheduler's calls.
pub const SCHEDULERS_LANE: i16 = 0;
/// The lane of the runners' calls.
pub const RUNNERS_LANE: i16 = 1;
/// The lane of calls that are held because of a pause: see [`super::held`].
pub(super) const HELD_LANE: i16 = 2;
/// The lane of calls that are held after crashes: see [`super::crashes`].
pub(super) const CRASHED_LANE: i16 = 3;

/// The lanes of the scheduler's calls of processes with a priority: the higher the priority, the lower the lane. All
/// other calls of the scheduler are in [`SCHEDULERS_LANE`].
pub(super) const FIRST_PRIORITY_LANE: i16 = 16;
pub(super) const LAST_PRIORITY_LANE: i16 = 36;
const NO_PRIORITY: i16 = 26;

/// The distance from a priority's lane to the lane of its calls that functions answer. Runners claim from the latter.
const FUNCTIONS_FURTHER: i16 = 24;
/// The lanes of calls that functions answer, of processes with a priority.
pub const FIRST_FUNCTIONS_LANE: i16 = FIRST_PRIORITY_LANE + FUNCTIONS_FURTHER;
pub(super) const LAST_FUNCTIONS_LANE: i16 = LAST_PRIORITY_LANE + FUNCTIONS_FURTHER;

/// The scheduler's lane for calls of processes with this priority.
pub fn lane_of_priority(priority: i8) -> i16 {
    if priority == 0 { SCHEDULERS_LANE } else { NO_PRIORITY - i16::from(priority) }
}

/// The runners' lane for calls that functions answer, of processes with this priority.
pub fn lane_of_functions(priority: i8) -> i16 {
    if priority == 0 { RUNNERS_LANE } else { lane_of_priority(priority) + FUNCTIONS_FURTHER }
}

/// Whether runners claim from this lane.
pub(super) fn is_runners(lane: i16) -> bool {
    lane == RUNNERS_LANE || lane >= FIRST_FUNCTIONS_LANE
}

/// Whether calls in this lane come before calls of processes without a priority.
pub fn comes_first(lane: i16) -> bool {
    lane < NO_PRIORITY || is_runners(lane) && lane < NO_PRIORITY + FUNCTIONS_FURTHER
}

/// The sort key for one owner's calls in several lanes, by priority: the highest priority first.
pub fn level(lane: i16) -> i16 {
    if lane < FIRST_PRIORITY_LANE { NO_PRIORITY } else { lane }
}

/// Moves the task `t` to its worker and lane of now, when no pause holds it and no table is slow. Meanwhile its process
/// type may have moved to another worker, or to functions. Then no later walk looks at the old worker's calls.
pub(super) fn own_place() -> String {
    let types_worker = "SELECT y.worker_id FROM xdb.process_execution p JOIN xdb.process_type y ON y.type_id = p.type_id \
        WHERE p.execution_id = t.execution_id";
    let worker = format!(
        "CASE WHEN t.worker_id = {NO_WORKER} THEN {NO_WORKER} ELSE COALESCE(({types_worker}), {NO_WORKER}) END"
    );
    let (schedulers, functions) = (schedulers_lane(), functions_lane());
    format!("worker_id = {worker}, lane = CASE WHEN {worker} = {NO_WORKER} THEN {functions} ELSE {schedulers} END")
}

/// The scheduler's lane for the task `t`.
pub(super) fn schedulers_lane() -> String {
    by_priority(NO_PRIORITY, SCHEDULERS_LANE)
}

/// The lane for the task `t`, which a function answers.
pub(super) fn functions_lane() -> String {
    by_priority(NO_PRIORITY + FUNCTIONS_FURTHER, RUNNERS_LANE)
}

fn by_priority(middle: i16, without: i16) -> String {
    format!(
        "COALESCE((SELECT {middle} - p.priority FROM xdb.process_execution p \
            WHERE p.execution_id = t.execution_id AND p.priority <> 0), {without})"
    )
}

/// The lane of the task `k` of the scheduler, at another worker. If functions now answer all calls of the type, the
/// task goes to the runners with the same priority.
pub(super) fn lane_at(worker: &str) -> String {
    format!(
        "CASE WHEN {worker} <> {NO_WORKER} THEN k.lane \
            WHEN k.lane BETWEEN {FIRST_PRIORITY_LANE} AND {LAST_PRIORITY_LANE} THEN k.lane + {FUNCTIONS_FURTHER} ELSE {RUNNERS_LANE} END"
    )
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
