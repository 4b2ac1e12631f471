//! W8: an engine with nothing to do.

use std::time::{Duration, Instant};

use super::Workload;
use crate::chain;
use crate::lab::{Lab, Stage};
use crate::machine;
use crate::meter;
use crate::report::{Row, Run, Target};

pub const WORKLOAD: Workload = Workload { name: "W8", about: "an engine with nothing to do", measure };

pub const ENGINE: &str = "engine, % of a core";
pub const SERVER: &str = "all of the server, % of a core";
const XIDS: &str = "transaction ids used";
const WAL: &str = "WAL bytes written";

/// After this time without other WAL, the background writer writes the open transactions to the WAL.
pub const SERVERS_OWN: Duration = Duration::from_secs(16);

/// This part of a core, in percent, counts as nothing.
pub const HARDLY_ANY: f64 = 0.1;

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let length = lab.options.scaled_time(Duration::from_secs(30), Duration::from_secs(3));
    let stage = lab.stage();
    // One that has worked, so that it has everything that work makes it hold.
    chain::plain(&stage, 100, 5)?;
    // What it still has to do for the workloads before would be counted.
    set_autovacuum(lab, "off");
    let runs = stage.come_to_rest(SERVERS_OWN).and_then(|()| lab.runs("W8", || Ok(Idle::over(&stage, length))));
    set_autovacuum(lab, "on");
    let runs = runs?;
    Ok(vec![Row {
        workload: "W8 idle",
        ran: format!("{} s of nothing to do", length.as_secs()),
        latency: "",
        runs,
        targets: vec![Target::at_most(XIDS, 0.0), Target::at_most(WAL, 0.0), Target::at_most(ENGINE, HARDLY_ANY)],
    }])
}

fn set_autovacuum(lab: &Lab, value: &str) {
    lab.observe(|db| {
        db.run(&format!("ALTER SYSTEM SET autovacuum = {value}"));
        db.run("SELECT pg_reload_conf()");
    });
}

/// The server's consumption up to a moment.
pub struct Idle {
    engine: f64,
    server: f64,
    xid: f64,
    wal: f64,
    at: Instant,
}

impl Idle {
    fn now(stage: &Stage<'_>) -> Idle {
        let pids: Vec<i32> =
            stage.lab.observe(|db| db.all("SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'xdb %'"));
        let xid = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::float8";
        Idle {
            engine: pids.into_iter().map(machine::exact_cpu_of).sum(),
            xid: stage.lab.observe(|db| db.one(xid)),
            wal: meter::wal(stage),
            server: stage.lab.cluster.postmaster().map_or(f64::NAN, machine::cpu_of_tree),
            at: Instant::now(),
        }
    }

    /// The consumption in this time.
    pub fn over(stage: &Stage<'_>, length: Duration) -> Run {
        let before = Idle::now(stage);
        std::thread::sleep(length);
        let after = Idle::now(stage);
        let percent = 100.0 / (after.at - before.at).as_secs_f64();
        let mut run = Run::default();
        run.set(ENGINE, (after.engine - before.engine) * percent);
        run.set(SERVER, (after.server - before.server) * percent);
        run.set(XIDS, after.xid - before.xid);
        run.set(WAL, after.wal - before.wal);
        run
    }
}
