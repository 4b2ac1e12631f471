//! W1: many processes of five states that do nothing.

use super::Workload;
use crate::chain;
use crate::lab::Lab;
use crate::report::{Row, Target, figure};

pub const WORKLOAD: Workload =
    Workload { name: "W1", about: "a chain of 5 no-op states, from a backlog that is started before", measure };

/// From the first request of a process until it is closed.
pub const LATENCY: &str = "first request of a process to its close";

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let processes = lab.options.scaled(20_000, 200);
    let runs = lab.runs("W1", || chain::plain(&lab.stage(), processes, 5))?;
    Ok(vec![Row {
        workload: "W1 chain",
        ran: format!("{processes} processes of 5 states"),
        latency: LATENCY,
        runs,
        targets: vec![Target::at_least(figure::STEPS, 8000.0)],
    }])
}
