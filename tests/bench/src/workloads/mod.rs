//! The workloads, one in each file.

mod by_hand;
mod growth;
mod tenants;
mod w10_rpc;
mod w11_start;
mod w12_fan_out;
mod w13_many_open;
mod w14_functions;
mod w15_pull;
mod w16_pull_idle;
mod w17_children;
mod w18_schedules;
mod w19_locks;
mod w1_chain;
mod w20_scrape;
mod w2_single;
mod w3_latency;
mod w4_waits;
mod w5_timers;
mod w6_old_snapshot;
mod w7_slow_worker;
mod w8_idle;
mod w9_attributes;

use crate::lab::Lab;
use crate::report::Row;

/// A workload.
pub struct Workload {
    pub name: &'static str,
    pub about: &'static str,
    /// Measures as often as the options say. An error is a violation.
    pub measure: fn(&Lab) -> Result<Vec<Row>, String>,
}

/// All workloads, in the order of the table.
pub const WORKLOADS: &[Workload] = &[
    w1_chain::WORKLOAD,
    w2_single::WORKLOAD,
    w3_latency::WORKLOAD,
    w4_waits::WORKLOAD,
    w5_timers::WORKLOAD,
    w6_old_snapshot::WORKLOAD,
    w7_slow_worker::WORKLOAD,
    w8_idle::WORKLOAD,
    w9_attributes::WORKLOAD,
    w10_rpc::WORKLOAD,
    w11_start::WORKLOAD,
    w12_fan_out::WORKLOAD,
    w13_many_open::WORKLOAD,
    w14_functions::WORKLOAD,
    w15_pull::WORKLOAD,
    w16_pull_idle::WORKLOAD,
    w17_children::WORKLOAD,
    w18_schedules::WORKLOAD,
    w19_locks::WORKLOAD,
    w20_scrape::WORKLOAD,
    growth::WORKLOAD,
    tenants::WORKLOAD,
];
