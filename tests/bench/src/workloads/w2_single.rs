//! W2: many processes of one state.

use super::{Workload, w1_chain};
use crate::chain;
use crate::lab::Lab;
use crate::report::{Row, Target, figure};

pub const WORKLOAD: Workload =
    Workload { name: "W2", about: "processes of one no-op state, from a backlog that is started before", measure };

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let processes = lab.options.scaled(50_000, 500);
    let runs = lab.runs("W2", || chain::plain(&lab.stage(), processes, 1))?;
    Ok(vec![Row {
        workload: "W2 single",
        ran: format!("{processes} processes of one state"),
        latency: w1_chain::LATENCY,
        runs,
        targets: vec![Target::at_least(figure::PROCESSES, 6000.0)],
    }])
}
