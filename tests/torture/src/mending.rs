//! The operator of the rack: resolves incidents, moves steps, releases held calls, and ends pauses.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use xdb_cluster_tests::codes;
use xdb_cluster_tests::db::{Db, jsonb, literal};
use xdb_cluster_tests::random::Random;

use crate::session::{Attempt, Session, passes};
use crate::shapes::Shape;
use crate::world::World;

/// Resolves incidents until the round is over. Most are repaired before, some are not. Some resolutions are rolled
/// back.
pub fn resolve(world: &World, name: &str) {
    let mut session = Session::new(world, "app");
    let mut random = Random::new(world.seed, &format!("resolver {name}"));
    let found = "SELECT process_id FROM xdb.incidents ORDER BY random() LIMIT 1";
    while !world.stopping() {
        thread::sleep(Duration::from_millis(random.between(20, 150)));
        let Attempt::Done(Some(id)) = session.attempt(|db| db.try_maybe::<String>(found)) else { continue };
        let mends = random.permille(700);
        let end = if random.permille(150) { "ROLLBACK" } else { "COMMIT" };
        let attempt = session.attempt(|db| {
            db.try_run("BEGIN")?;
            if mends {
                db.try_run(&format!("SELECT {}", mended(&literal(&id))))?;
            }
            let resolved = db.try_text(&format!("SELECT xdb.retry_now({})", literal(&id)))?;
            db.try_run(end)?;
            Ok(resolved)
        });
        match attempt {
            Attempt::Done(Some(retried)) if end == "COMMIT" && retried == "1" => world.record.resolved(&id),
            // Another session has resolved it, and the process has ended.
            Attempt::Refused(error) if error.code == codes::NOT_RUNNING || passes(&error) => {}
            Attempt::Refused(error) => world.record.complain(format!("the incident of {id} stays: {error:?}")),
            _ => {}
        }
    }
}

/// Starts steps again in the place of others, until the round is over.
pub fn move_steps(world: &World, name: &str) {
    let mut session = Session::new(world, "app");
    let mut random = Random::new(world.seed, &format!("mover {name}"));
    let found = format!(
        "SELECT jsonb_build_object('process', process_id, 'step', state_execution_id, 'next',
             jsonb_build_array(jsonb_build_object('stateId', state_id, 'stateInput', input)))::text
         FROM xdb.state_executions WHERE process_id LIKE '{}-%' AND ended_at IS NULL ORDER BY random() LIMIT 1",
        Shape::Moved.name()
    );
    while !world.stopping() {
        thread::sleep(Duration::from_millis(random.between(20, 150)));
        let Attempt::Done(Some(found)) = session.attempt(|db| db.try_maybe::<String>(&found)) else { continue };
        let Ok(found) = serde_json::from_str::<Value>(&found) else { continue };
        let (process, step) = (&found["process"], &found["step"]);
        let [of, at] = [process, step].map(|id| literal(id.as_str().unwrap_or_default()));
        let moved = format!("SELECT xdb.move_state({of}, {at}, {}, 'the rack')", jsonb(&found["next"]));
        match session.attempt(|db| db.try_run(&moved)) {
            Attempt::Done(()) => world.record.note(&format!("moved {step} of {process}")),
            // The step or the process has ended meanwhile.
            Attempt::Refused(error)
                if matches!(&*error.code, codes::NOT_RUNNING | codes::UNKNOWN_STATE) || passes(&error) => {}
            Attempt::Refused(error) => world.record.complain(format!("{step} of {process} does not move: {error:?}")),
            Attempt::Unknown => {}
        }
    }
}

fn mended(id: &str) -> String {
    format!("xdb.set_local_attributes({id}, '{{\"mended\": true}}')")
}

/// Releases once everything that only an operator would release. If a process has ended meanwhile, the statement fails,
/// and the next call does the rest.
pub fn release_held(db: &mut Db) {
    let incidents = format!("SELECT {}, xdb.retry_now(process_id) FROM xdb.incidents", mended("process_id"));
    for sql in [
        // A fault may have come twice in the moment in which a call was made.
        "SELECT xdb.retry_now(process_id, state_execution_id, execution_id) FROM xdb.failures WHERE error_type = 'CallHeld'",
        "SELECT xdb.resume_process_type(process_type) FROM xdb.process_type WHERE pause_mode IS NOT NULL",
        "SELECT xdb.resume_process(process_id, execution_id) FROM xdb.process_execution
         WHERE status = 'RUNNING' AND pause_mode IS NOT NULL",
        incidents.as_str(),
    ] {
        // Several statements in a row would be one transaction.
        let _ = db.try_run(sql);
    }
}
