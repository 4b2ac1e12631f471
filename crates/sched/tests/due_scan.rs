//! Where scans begin, and that nothing is left behind for long.

use proptest::prelude::*;
use std::time::{Duration, Instant};
use xdb_sched::due_scan::*;

const POLL: Duration = Duration::from_secs(1);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn the_first_scan_begins_at_the_head() {
    let scan = DueScan::<u8, i64>::default();
    assert!(scan.from_head(Instant::now()));
    assert_eq!(scan.from(&1), None);
}

#[test]
fn a_scan_from_the_head_is_paid_for_with_time_and_made_once_per_poll_interval() {
    let mut scan = DueScan::<u8, i64>::default();
    let now = Instant::now();
    for (took, next) in [(0, 0), (10, 200), (100, 1000), (900, 1000), (3000, 3000)] {
        scan.scanned_from_head(now, millis(took), POLL);
        assert!(scan.from_head(now + millis(next)), "{took} ms");
        assert!(next == 0 || !scan.from_head(now + millis(next - 1)), "{took} ms");
    }
}

#[test]
fn a_scan_begins_where_the_cursor_was_a_margin_ago() {
    let mut scan = DueScan::<u8, u64>::default();
    let began = Instant::now();
    // Each millisecond the cursor is where the clock is.
    for time in 0..1000 {
        scan.advance(1, time, began + millis(time));
        let from = scan.from(&1).expect("there is a cursor");
        let margin = MARGIN.as_millis() as u64;
        assert!(from <= time.saturating_sub(margin - 1) && from + 2 * margin >= time, "at {time} from {from}");
    }
    assert_eq!(scan.from(&2), None, "nothing is known of others");
    scan.scanned_from_head(began, POLL, POLL);
    scan.forget_all();
    assert_eq!(scan.from(&1), None);
    assert!(scan.from_head(began));
}

#[test]
fn a_cursor_goes_back_at_once() {
    let mut scan = DueScan::<u8, u64>::default();
    let began = Instant::now();
    for time in 0..10 {
        scan.advance(1, 1000 * time, began + MARGIN * time as u32);
    }
    scan.advance(1, 500, began + MARGIN * 10);
    assert_eq!(scan.from(&1), Some(500));
}

/// Rows, transactions that have written some and are open, and the scans of an engine. Time is in milliseconds.
struct World {
    base: Instant,
    time: u64,
    /// Due time or id, when it is committed, until when somebody has it locked.
    rows: Vec<Row>,
    scan: DueScan<(), u64>,
    /// What a scan from the head costs.
    cost: u64,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    due: u64,
    committed_at: u64,
    free_at: u64,
}

impl World {
    fn now(&self) -> Instant {
        self.base + millis(self.time)
    }

    /// Answers with the rows that were there and due, and that it has not seen.
    fn scan(&mut self, at_most: usize, commits: bool) -> Vec<Row> {
        let (began, time) = (self.now(), self.time);
        let head = self.scan.from_head(began);
        let from = self.scan.from(&()).filter(|_| !head).unwrap_or(0);
        let is_there = |row: &Row| row.committed_at <= time && row.free_at <= time && row.due <= time;
        let mut seen: Vec<_> = self.rows.iter().filter(|row| is_there(row) && row.due >= from).copied().collect();
        seen.sort_by_key(|row| row.due);
        seen.truncate(at_most);
        if head {
            self.time += self.cost;
            self.scan.scanned_from_head(self.now(), millis(self.cost), POLL);
        }
        let is_full = seen.len() == at_most;
        if commits {
            self.scan.advance((), seen.last().filter(|_| is_full).map_or(time, |last| last.due), began);
            for taken in &seen {
                let place =
                    self.rows.iter().position(|row| row.due == taken.due && row.committed_at == taken.committed_at);
                self.rows.swap_remove(place.expect("it was there"));
            }
        }
        let unseen = self.rows.iter().filter(|row| is_there(row) && commits && !is_full);
        unseen.copied().collect()
    }
}

#[derive(Clone, Debug)]
enum Act {
    /// Somebody writes a row that is due then, and commits so much later; somebody else has it locked for so long after that.
    Write {
        open_for: u64,
        locked_for: u64,
    },
    Scan {
        at_most: usize,
        commits: bool,
    },
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let open_for = prop_oneof![3 => 0u64..40, 1 => 0u64..3000];
    let locked_for = prop_oneof![4 => Just(0u64), 1 => 0u64..3000];
    prop_oneof![
        4 => (open_for, locked_for).prop_map(|(open_for, locked_for)| Act::Write { open_for, locked_for }),
        4 => (1usize..5, prop::bool::weighted(0.9)).prop_map(|(at_most, commits)| Act::Scan { at_most, commits }),
        4 => (1u64..60).prop_map(Act::Pass),
        1 => (1u64..2000).prop_map(Act::Pass),
    ]
}

proptest! {
    /// What was written within the margin is seen by the next scan that has not found enough before; everything else by a
    /// scan one poll interval later.
    #[test]
    fn nothing_is_left_behind(acts in prop::collection::vec(act(), 1..120), cost in 0u64..200) {
        let mut world = World { base: Instant::now(), time: 0, rows: Vec::new(), scan: DueScan::default(), cost };
        let margin = MARGIN.as_millis() as u64;
        for act in acts {
            match act {
                Act::Write { open_for, locked_for } => {
                    let committed_at = world.time + open_for;
                    world.rows.push(Row { due: world.time, committed_at, free_at: committed_at + locked_for });
                }
                Act::Pass(time) => world.time += time,
                Act::Scan { at_most, commits } => {
                    for row in world.scan(at_most, commits) {
                        let late = row.committed_at.max(row.free_at) - row.due;
                        prop_assert!(late >= margin, "{row:?} was not seen");
                    }
                }
            }
        }
        // All commit and let go; from a poll interval later on, scans see everything that there is.
        world.time = world.rows.iter().map(|row| row.free_at).max().unwrap_or(0).max(world.time) + POLL.as_millis() as u64;
        while !world.rows.is_empty() {
            let before = world.rows.len();
            let unseen = world.scan(3, true);
            prop_assert!(unseen.is_empty(), "{unseen:?}");
            prop_assert!(world.rows.len() < before);
        }
    }
}
