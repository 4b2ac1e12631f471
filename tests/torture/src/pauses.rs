//! Pauses processes and process types, and ends the pauses.

use std::thread;
use std::time::{Duration, Instant};

use xdb_cluster_tests::codes;
use xdb_cluster_tests::db::{SqlError, literal};
use xdb_cluster_tests::random::Random;

use crate::shapes::Shape;
use crate::world::World;

/// How many processes are paused at a time.
const PROCESSES: u64 = 12;

/// The limit for ending pauses. Clients whose requests a pause refuses wait for its end, and so does the end of the
/// round.
const RESUMED_WITHIN: Duration = Duration::from_secs(60);

/// Pauses processes again and again, until the round is over.
pub fn go_on(world: &World, name: &str) {
    let mut random = Random::new(world.seed, &format!("pauses {name}"));
    while !world.stopping() {
        thread::sleep(Duration::from_millis(random.between(50, 800)));
        let length = Duration::from_millis(random.between(100, 1500));
        of_processes(world, &mut random, length);
    }
}

/// Pauses some running processes. Some pauses end by themselves, most are ended after `length`, and some stay until the
/// end of the round.
fn of_processes(world: &World, random: &mut Random, length: Duration) {
    let Some(mut db) = world.superuser(Duration::from_secs(2)) else { return };
    let running = format!(
        "SELECT process_id FROM xdb.process_execution WHERE status = 'RUNNING' ORDER BY md5(process_id || {}) LIMIT {PROCESSES}",
        literal(&random.below(1000).to_string())
    );
    let Ok(ids) = db.try_all::<String>(&running) else { return };
    let mut to_resume = Vec::new();
    for id in ids {
        let pause = Pause::draw(random);
        let done = db.try_run(&format!("SELECT xdb.pause_process({}, {})", literal(&id), pause.arguments()));
        world.record.note(&format!("paused {id}: {} {done:?}", pause.arguments()));
        if done.is_err_and(|error| is_over(&error)) {
            continue;
        }
        // If the answer was lost, it is paused perhaps.
        let may_be_left =
            pause.mode == "WAIT" && ![Shape::Rpc, Shape::Letters].iter().any(|s| id.starts_with(s.name()));
        if pause.until.is_none() && !(may_be_left && random.permille(200)) {
            to_resume.push(id);
        }
    }
    drop(db);
    rest(world, length);
    let resumes = to_resume.iter().map(|id| format!("SELECT xdb.resume_process({})", literal(id)));
    resume(world, resumes.collect());
}

/// Pauses some process types, for `length` or until the round is over.
pub fn of_types(world: &World, mut random: Random, length: Duration) {
    let Some(mut db) = world.superuser(Duration::from_secs(2)) else { return };
    let mut shapes = Shape::ALL.to_vec();
    random.shuffle(&mut shapes);
    shapes.truncate(random.between(1, 4) as usize);
    let mut resumes = Vec::new();
    for shape in shapes {
        let pause = Pause::draw(&mut random);
        for name in shape.types().map(|(name, _)| literal(&name)) {
            let done = db.try_run(&format!("SELECT xdb.pause_process_type({name}, {})", pause.arguments()));
            world.record.note(&format!("paused {name}: {} {done:?}", pause.arguments()));
            if pause.until.is_none() {
                // Also if the answer was lost.
                resumes.push(format!("SELECT xdb.resume_process_type({name})"));
            }
        }
    }
    drop(db);
    rest(world, length);
    resume(world, resumes);
}

struct Pause {
    mode: &'static str,
    until: Option<u64>,
}

impl Pause {
    fn draw(random: &mut Random) -> Pause {
        let mode = if random.permille(400) { "REJECT" } else { "WAIT" };
        Pause { mode, until: random.permille(400).then(|| random.between(300, 3000)) }
    }

    fn arguments(&self) -> String {
        let until = self.until.map_or("NULL".to_owned(), |ms| format!("clock_timestamp() + interval '{ms} ms'"));
        format!("'{}', {until}, 'the rack'", self.mode)
    }
}

/// Whether the process has ended: then it is not paused any more.
fn is_over(error: &SqlError) -> bool {
    matches!(&*error.code, codes::UNKNOWN_PROCESS | codes::NOT_RUNNING)
}

/// Waits for this time, or until the round is over.
fn rest(world: &World, length: Duration) {
    let until = Instant::now() + length;
    while Instant::now() < until && !world.stopping() {
        thread::sleep(Duration::from_millis(50));
    }
}

/// Runs each of these statements until it succeeds: other faults hit this session too.
fn resume(world: &World, mut left: Vec<String>) {
    let deadline = Instant::now() + RESUMED_WITHIN;
    while !left.is_empty() {
        if let Some(mut db) = world.superuser(Duration::from_secs(5)) {
            left.retain(|sql| db.try_run(sql).is_err_and(|error| !is_over(&error)));
        }
        if Instant::now() > deadline && !left.is_empty() {
            return world.record.complain(format!("these could not be done in {RESUMED_WITHIN:?}: {left:?}"));
        }
    }
}
