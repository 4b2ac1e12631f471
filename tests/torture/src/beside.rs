//! Processes that work beside those of the clients for a whole round: schedules, and one that forwards the changes of
//! all processes to a table.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use xdb_cluster_tests::codes;
use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::random::Random;

use crate::checks::Findings;
use crate::schema::SHARED_ROWS;
use crate::session::Session;
use crate::shapes::{CHANGES, Shape};
use crate::world::World;

/// The process type of schedules.
pub const SCHEDULE: &str = "Schedule";
/// The process type of what forwards changes.
pub const FORWARD: &str = "forward";

/// How many schedules tick at the same time.
const SCHEDULES: u64 = 3;
/// When all processes have ended, their changes are forwarded within this time.
const FORWARDED_WITHIN: Duration = Duration::from_secs(60);

/// Registers the types of these processes.
pub fn registrations() -> [String; 2] {
    let forward = json!({"startingState": "Forward", "globalQueues": [CHANGES], "history": {"keepLast": 10}, "states": {
        "Forward": {"executeFunction": "public.forward", "commandRequest": {"waitingType": "AnyOfCompletion",
            "globalQueueCommands": [{"queueName": CHANGES, "atLeast": 1, "atMost": 500}]}}}});
    let schedule = json!({"startingState": "Tick", "history": {"keepLast": 100}, "states": {
        "Tick": {"waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}}});
    [(FORWARD, forward), (SCHEDULE, schedule)]
        .map(|(name, definition)| format!("SELECT xdb.register_process_type('{name}', NULL, {})", jsonb(&definition)))
}

/// Has schedules that tick each second until the round is over. Some are replaced now and then.
pub fn schedules(world: &World, round: u32) {
    let mut session = Session::new(world, "app");
    let mut random = Random::new(world.seed, &format!("schedules {round}"));
    let name = |number: u64| format!("schedule-{round}-{number}");
    let schedule = |session: &mut Session<'_>, number: u64| {
        let start = json!({"process_type": Shape::Tick.name(), "process_id": format!("tick-{round}-{number}-{{time}}"),
            "input": {"left": 1}, "global_attribute_pk": format!("s{}", number % SHARED_ROWS)});
        let name = name(number);
        let sql = format!("SELECT xdb.schedule('{name}', '@every 1 second', {})", jsonb(&start));
        if let Err(error) = session.settle_run(&name, &sql) {
            world.record.complain(format!("{name} was refused: {error:?}"));
        }
    };
    (0..SCHEDULES).for_each(|number| schedule(&mut session, number));
    while !world.stopping() {
        thread::sleep(Duration::from_millis(random.between(50, 250)));
        if random.permille(50) {
            schedule(&mut session, random.below(SCHEDULES));
        }
    }
    (0..SCHEDULES).for_each(|number| stop(world, &mut session, &name(number)));
}

/// Starts the process that forwards changes.
pub fn begin_to_forward(world: &World, name: &str) {
    let sql =
        format!("SELECT xdb.start_process({}, '{FORWARD}', options => '{{\"requestId\": \"once\"}}')", literal(name));
    if let Err(error) = Session::new(world, "app").settle_run(name, &sql) {
        world.record.complain(format!("{name} was refused: {error:?}"));
    }
}

/// Waits until all changes are forwarded, and ends the process that forwards them.
pub fn forward_all(world: &World, name: &str, findings: &mut Findings) {
    let left = format!("SELECT count(*) FROM xdb.global_message WHERE queue_name = '{CHANGES}'");
    let deadline = Instant::now() + FORWARDED_WITHIN;
    loop {
        let left = world.superuser(Duration::from_secs(30)).map(|mut db| db.try_one::<i64>(&left));
        match left {
            Some(Ok(0)) => break,
            left if Instant::now() > deadline => {
                findings.add("changes and history disagree", format!("{left:?} changes are not forwarded"));
                break;
            }
            _ => thread::sleep(Duration::from_millis(20)),
        }
    }
    stop(world, &mut Session::new(world, "app"), name);
}

fn stop(world: &World, session: &mut Session<'_>, name: &str) {
    let sql = format!("SELECT xdb.stop_process({})", literal(name));
    match session.settle_run(&format!("the stop of {name}"), &sql) {
        // An earlier attempt, whose answer was lost, has stopped it.
        Err(error) if error.code != codes::NOT_RUNNING => {
            world.record.complain(format!("the stop of {name} was refused: {error:?}"));
        }
        _ => {}
    }
}
