//! What becomes slow, and how it comes back.

use proptest::prelude::*;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use xdb_sched::slow::*;

const LIMIT: Duration = Duration::from_millis(250);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A scheduler, a runner and the rows between them.
struct World {
    now: Instant,
    rows: HashMap<u32, Mark>,
    watcher: Watcher,
    probes: Probes,
}

impl World {
    fn new() -> Self {
        Self { now: Instant::now(), rows: HashMap::new(), watcher: Watcher::default(), probes: Probes::default() }
    }

    /// A turn whose transaction commits, and a look of the runner at the rows.
    fn turn(&mut self) {
        let found = self.watcher.begin_turn(self.rows.clone(), self.now);
        self.rows.extend(found);
        self.probes.follow(&self.rows, |_| Duration::ZERO, self.now);
    }

    /// The scheduler uses a table.
    fn uses(&mut self, table: u32, took: Duration) {
        self.now += took;
        self.watcher.used(table, took, self.now);
        if took >= LIMIT {
            self.watcher.ran_into_limit(table);
        }
        self.turn();
    }

    /// The runner uses a table.
    fn runs(&mut self, table: u32, took: Duration) -> Option<Mark> {
        self.now += took;
        let mark = self.probes.used(table, took, LIMIT, self.now)?;
        self.rows.insert(table, mark);
        self.turn();
        Some(mark)
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.turn();
    }

    fn is_slow(&self, table: u32) -> bool {
        self.watcher.is_slow(&table)
    }
}

#[test]
fn a_use_that_runs_into_the_limit_makes_it_slow() {
    let mut world = World::new();
    world.uses(1, LIMIT - millis(1));
    assert!(!world.is_slow(1));
    world.uses(1, LIMIT);
    assert!(world.is_slow(1));
    assert_eq!(world.rows[&1], Mark { reason: Reason::Limit, pause: Duration::from_secs(1), is_mended: false });
}

#[test]
fn more_than_half_of_ten_seconds_makes_it_slow() {
    let mut world = World::new();
    for _ in 0..49 {
        world.uses(1, millis(100));
        world.pass(millis(100));
    }
    assert!(!world.is_slow(1), "half is not more than half");
    for _ in 0..4 {
        world.uses(1, millis(150));
        world.pass(millis(50));
    }
    assert!(world.is_slow(1));
    assert_eq!(world.rows[&1].reason, Reason::Share);
}

#[test]
fn much_that_was_long_ago_and_little_that_is_often_do_not() {
    let mut world = World::new();
    for _ in 0..20 {
        world.uses(1, millis(200));
    }
    world.pass(Duration::from_secs(10));
    for _ in 0..20 {
        world.uses(1, millis(200));
    }
    assert!(!world.is_slow(1), "four seconds within ten");
    for _ in 0..10_000 {
        world.uses(2, millis(1));
    }
    assert!(!world.is_slow(2), "each use is quick");
}

#[test]
fn one_that_is_slow_takes_no_other_with_it() {
    let mut world = World::new();
    for _ in 0..30 {
        world.uses(1, millis(200));
        world.uses(2, millis(6));
    }
    assert_eq!((world.is_slow(1), world.is_slow(2)), (true, false));
}

#[test]
fn a_probe_after_the_pause_brings_it_back() {
    let mut world = World::new();
    world.uses(1, LIMIT);
    assert_eq!(world.runs(1, millis(10)), None, "it is no probe yet");
    assert!(world.is_slow(1));
    world.pass(Duration::from_secs(1));
    let mark = world.runs(1, millis(10)).expect("it is a probe");
    assert!(mark.is_mended);
    assert!(!world.is_slow(1));
    assert_eq!(world.runs(1, millis(10)), None);
}

#[test]
fn probes_that_are_slow_and_relapses_double_the_pause() {
    let mut world = World::new();
    world.uses(1, LIMIT);
    let mut pauses = Vec::new();
    for round in 0..12 {
        let pause = world.rows[&1].pause;
        pauses.push(pause.as_secs());
        world.pass(pause - millis(1));
        assert_eq!(world.runs(1, Duration::ZERO), None);
        world.pass(millis(1));
        if round % 2 == 0 {
            world.runs(1, LIMIT).expect("it is a probe");
        } else {
            assert!(world.runs(1, millis(1)).expect("it is a probe").is_mended);
            world.uses(1, LIMIT);
        }
        assert!(world.is_slow(1));
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
}

#[test]
fn what_used_too_much_is_back_when_its_uses_are_short() {
    let mut world = World::new();
    for _ in 0..40 {
        world.uses(1, millis(150));
    }
    assert_eq!(world.rows[&1].reason, Reason::Share);
    world.pass(Duration::from_secs(1));
    assert!(!world.runs(1, millis(150)).expect("it is a probe").is_mended, "below the limit, and what it was before");
    world.pass(Duration::from_secs(2));
    assert!(world.runs(1, millis(4)).expect("it is a probe").is_mended);
}

#[test]
fn one_in_which_a_process_died_is_left_alone_for_ten_minutes_and_longer_each_time() {
    let mut world = World::new();
    world.uses(1, LIMIT);
    let minute = Duration::from_secs(60);
    for minutes in [10, 20, 40] {
        // The process that dies takes everything with it but the rows.
        (world.watcher, world.probes) = (Watcher::default(), Probes::default());
        world.turn();
        world.watcher.died_in(1);
        world.turn();
        assert_eq!(world.rows[&1], Mark { reason: Reason::Died, pause: minute * minutes, is_mended: false });
        assert_eq!(world.probes.kept_until(&1, world.now), Some(world.now + minute * minutes));
        world.pass(minute * minutes - millis(1));
        assert_eq!(world.probes.kept_until(&1, world.now), Some(world.now + millis(1)));
        assert_eq!(world.probes.kept_until(&2, world.now), None);
        world.pass(millis(1));
        assert_eq!(world.probes.kept_until(&1, world.now), None);
    }
    assert!(world.runs(1, millis(1)).expect("it is a probe").is_mended);
    world.watcher.died_in(1);
    assert_eq!(
        world.watcher.begin_turn(world.rows.clone(), world.now)[0].1.pause,
        minute * 80,
        "also when it was mended"
    );
}

#[test]
fn what_was_found_is_told_until_it_is_written_down() {
    let mut watcher = Watcher::default();
    let now = Instant::now();
    watcher.ran_into_limit(1);
    let found = watcher.begin_turn(HashMap::new(), now);
    assert_eq!(watcher.begin_turn(HashMap::new(), now), found, "the first turn has failed");
    assert!(watcher.begin_turn(found.into_iter().collect(), now).is_empty());
    assert!(watcher.is_slow(&1));
    assert!(watcher.begin_turn(HashMap::new(), now).is_empty());
    assert!(!watcher.is_slow(&1), "whoever took the mark away");
}

#[test]
fn reasons_are_read_as_they_were_written() {
    for reason in [Reason::Share, Reason::Limit, Reason::Died] {
        assert_eq!(Reason::parse(reason.as_str()), Some(reason));
    }
    assert_eq!(Reason::parse("bad luck"), None);
}

proptest! {
    /// Whatever a table does: a scheduler spends no more than about half of its time in it, and in the long run next to
    /// nothing while it stays as it is; and one that is mended comes back.
    #[test]
    fn a_slow_table_costs_little_and_comes_back(took in 6u64..400, share in 1u64..100) {
        let mut world = World::new();
        let mut spent = Duration::ZERO;
        let idle = millis((took * (100 - share)).div_ceil(share));
        let hour = world.now + Duration::from_secs(3600);
        while world.now < hour {
            let time = millis(took).min(LIMIT);
            if world.is_slow(1) {
                world.runs(1, millis(took));
            } else {
                world.uses(1, time);
                spent += time;
            }
            world.pass(idle.max(millis(1)));
        }
        let is_slow = took >= LIMIT.as_millis() as u64 || share > 55;
        if is_slow {
            prop_assert!(spent < Duration::from_secs(100), "{spent:?} of an hour");
        } else if share < 45 {
            prop_assert!(!world.is_slow(1));
        }
        let long = world.now + Duration::from_secs(601);
        while world.is_slow(1) && world.now < long {
            world.runs(1, millis(1));
            world.pass(Duration::from_secs(1));
        }
        prop_assert!(!world.is_slow(1));
    }
}

#[test]
fn a_runner_that_begins_later_waits_for_the_rest_of_the_pause() {
    let now = Instant::now();
    let mark = Mark { reason: Reason::Died, pause: Duration::from_secs(600), is_mended: false };
    let marks = HashMap::from([(1, mark), (2, mark)]);
    let mut probes = Probes::default();
    probes.follow(&marks, |key| Duration::from_secs(if *key == 1 { 599 } else { 700 }), now);
    let second = now + Duration::from_secs(1);
    assert_eq!((probes.kept_until(&1, now), probes.kept_until(&1, second)), (Some(second), None));
    assert_eq!(probes.kept_until(&2, now), None, "its pause is over");
}
