//! Where scans begin, and that no row is missed for long. Tested with random writes, locks and scans.

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
    // In each millisecond, the cursor is set to the time of the clock.
    for time in 0..1000 {
        scan.advance(1, time, began + millis(time));
        let margin = MARGIN.as_millis() as u64;
        match scan.from(&1) {
            None => assert!(time < 2 * margin, "a new cursor begins at the head"),
            Some(from) => assert!(from <= time - margin && from + 2 * margin >= time, "at {time} from {from}"),
        }
    }
    assert_eq!(scan.from(&2), None, "nothing is known of other lines");
    scan.scanned_from_head(began, POLL, POLL);
    scan.forget_all();
    assert_eq!(scan.from(&1), None);
    assert!(scan.from_head(began));
}

#[test]
fn a_session_scans_from_the_head_less_often_but_once_per_poll_interval() {
    let began = Instant::now();
    let next = |took: u64| {
        let mut scan = DueScan::<u8, u64>::default();
        scan.session_scanned_from_head(began, millis(took), POLL);
        (0..3000).find(|after| scan.from_head(began + millis(*after)))
    };
    let poll = POLL.as_millis() as u64;
    assert_eq!(next(1), Some(200.min(poll)));
    assert_eq!(next(poll / 2), Some(poll), "a slow scan does not delay the next one");
    assert_eq!(next(2 * poll), Some(2 * poll));
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

/// Rows, some of them written by open transactions, and the scans of an engine. Times are in milliseconds.
struct World {
    base: Instant,
    time: u64,
    /// Rows that were written, and that no scan has taken yet.
    rows: Vec<Row>,
    written: usize,
    scan: DueScan<(), u64>,
    /// How long a scan from the head takes.
    cost: u64,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    number: usize,
    /// The place in the index: a due time, or an id.
    due: u64,
    committed_at: u64,
    /// Until when another session has the row locked.
    free_at: u64,
}

impl World {
    fn now(&self) -> Instant {
        self.base + millis(self.time)
    }

    /// Makes a scan. Returns the rows that were visible and due, but that it has not seen.
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
                let place = self.rows.iter().position(|row| row.number == taken.number);
                self.rows.swap_remove(place.expect("it was there"));
            }
        }
        let unseen = self.rows.iter().filter(|row| is_there(row) && commits && !is_full);
        unseen.copied().collect()
    }
}

#[derive(Clone, Debug)]
enum Act {
    /// A session writes a row that is due now, and commits after `open_for`. Another session locks the row for
    /// `locked_for` after that.
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
    /// A row that became visible within the margin is seen by the next scan that does not reach its limit before. Other
    /// rows are seen by a scan one poll interval later.
    #[test]
    fn nothing_is_left_behind(acts in prop::collection::vec(act(), 1..120), cost in 0u64..200) {
        let mut world = World { base: Instant::now(), time: 0, rows: Vec::new(), written: 0, scan: DueScan::default(), cost };
        let margin = MARGIN.as_millis() as u64;
        for act in acts {
            match act {
                Act::Write { open_for, locked_for } => {
                    let committed_at = world.time + open_for;
                    world.written += 1;
                    let (number, due, free_at) = (world.written, world.time, committed_at + locked_for);
                    world.rows.push(Row { number, due, committed_at, free_at });
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
        // All transactions commit and unlock. Scans after another poll interval see all rows.
        world.time = world.rows.iter().map(|row| row.free_at).max().unwrap_or(0).max(world.time) + POLL.as_millis() as u64;
        while !world.rows.is_empty() {
            let before = world.rows.len();
            let unseen = world.scan(3, true);
            prop_assert!(unseen.is_empty(), "{unseen:?}");
            prop_assert!(world.rows.len() < before);
        }
    }
}
