//! The lanes of the table `task`: which there are, in which of them a call stands, and what leases are void there. No statements, but
//! what those of others consist of.

use super::registry::NO_WORKER;

/// The lane of the scheduler's calls.
pub const SCHEDULERS_LANE: i16 = 0;
/// The lane of the runners' calls.
pub const RUNNERS_LANE: i16 = 1;
/// The lane of calls that are held in a pause: see [`super::held`].
pub(super) const HELD_LANE: i16 = 2;
/// The lane of calls that are held after crashes: see [`super::crashes`].
pub(super) const CRASHED_LANE: i16 = 3;

/// The lanes of the scheduler's calls of processes with a priority: the higher it is, the lower the lane. Calls of all others stand in
/// [`SCHEDULERS_LANE`].
pub(super) const FIRST_PRIORITY_LANE: i16 = 16;
pub(super) const LAST_PRIORITY_LANE: i16 = 36;
const NO_PRIORITY: i16 = 26;

/// So much further are the lanes of calls of such processes that functions answer: they are the runners', as those of all others are
/// that functions answer.
const FUNCTIONS_FURTHER: i16 = 24;
pub const FIRST_FUNCTIONS_LANE: i16 = FIRST_PRIORITY_LANE + FUNCTIONS_FURTHER;
pub(super) const LAST_FUNCTIONS_LANE: i16 = LAST_PRIORITY_LANE + FUNCTIONS_FURTHER;

/// The scheduler's lane for calls of processes with this priority.
pub fn lane_of_priority(priority: i8) -> i16 {
    if priority == 0 { SCHEDULERS_LANE } else { NO_PRIORITY - i16::from(priority) }
}

/// The runners' lane for calls of processes with this priority that functions answer.
pub fn lane_of_functions(priority: i8) -> i16 {
    if priority == 0 { RUNNERS_LANE } else { lane_of_priority(priority) + FUNCTIONS_FURTHER }
}

pub(super) fn is_runners(lane: i16) -> bool {
    lane == RUNNERS_LANE || lane >= FIRST_FUNCTIONS_LANE
}

/// Whether calls in this lane of processes with a priority come before those without one.
pub fn comes_first(lane: i16) -> bool {
    lane < NO_PRIORITY || is_runners(lane) && lane < NO_PRIORITY + FUNCTIONS_FURTHER
}

/// By what an owner's calls in several lanes are ordered: those with the highest priority come first.
pub fn level(lane: i16) -> i16 {
    if lane < FIRST_PRIORITY_LANE { NO_PRIORITY } else { lane }
}

/// Puts the task `t` where it stands when nothing holds it and no table is slow: its process type may have moved to another worker, or to functions,
/// and nobody may look any more at what the old one was to do.
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

/// The lane of the task `k`, of the scheduler's, at another worker. If that is none, because functions answer all of the type's calls,
/// the level of priority stays.
pub(super) fn lane_at(worker: &str) -> String {
    format!(
        "CASE WHEN {worker} <> {NO_WORKER} THEN k.lane \
            WHEN k.lane BETWEEN {FIRST_PRIORITY_LANE} AND {LAST_PRIORITY_LANE} THEN k.lane + {FUNCTIONS_FURTHER} ELSE {RUNNERS_LANE} END"
    )
}

/// What a process claims from.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub number: i16,
    /// Of the leases that it gives.
    pub epoch: i64,
}

/// Nobody has a good lease on the task `t` of the scheduler. One below its own epoch is void: whoever held it is gone.
pub(super) fn free_for_scheduler(own: &str, now: &str) -> String {
    format!("(t.lease_until IS NULL OR t.lease_epoch < {own} OR t.lease_until <= {now})")
}

/// Nobody has a good lease on the task `t` of the runners. They live side by side, so a lease is void when no row has its epoch;
/// one above all that the statement sees is that of a runner which has begun since.
pub(super) fn free_for_runners(own: &str, now: &str) -> String {
    format!(
        "(t.lease_until IS NULL OR t.lease_until <= {now} \
            OR t.lease_epoch <> {own} AND t.lease_epoch <= (SELECT max(m.epoch) FROM xdb.engine m) \
                AND NOT EXISTS (SELECT FROM xdb.engine e WHERE e.epoch = t.lease_epoch))"
    )
}
