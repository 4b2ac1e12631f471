//! Lines of calls: which lines are known, and in which lines a call may wait.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use xdb_sched::lines::{FORGOTTEN_AFTER, Level, Lines};
use xdb_sched::room::Line;

fn line(worker: i32, owner: u32) -> Level {
    level(worker, owner, 0)
}

fn level(worker: i32, owner: u32, priority: i8) -> Level {
    Level { line: Line { worker, owner }, priority }
}

fn waiting(lines: &Lines, worker: i32) -> Vec<u32> {
    lines.waiting(worker).map(|line| line.owner).collect()
}

#[test]
fn a_line_may_have_calls_until_a_scan_has_found_it_drained() {
    let (mut lines, now) = (Lines::default(), Instant::now());
    assert!(!lines.is_drained(1), "no scan has been made");
    lines.found([line(1, 1), line(1, u32::MAX), line(2, 0)], now);
    assert_eq!((waiting(&lines, 1), waiting(&lines, 2)), (vec![1, u32::MAX], vec![0]));
    assert!(!lines.drained(&BTreeSet::from([line(1, 1), line(1, u32::MAX)])));
    assert!(lines.is_drained(1) && !lines.is_drained(2) && lines.is_drained(3));
    let all = [(line(1, 1).line, false), (line(1, u32::MAX).line, false), (line(2, 0).line, true)];
    assert_eq!(lines.iter().collect::<Vec<_>>(), all);
    lines.found([line(1, 5)], now);
    assert_eq!(waiting(&lines, 1), [5], "a new one");
    lines.drained(&BTreeSet::new());
    assert_eq!(waiting(&lines, 1), [1, 5, u32::MAX]);
}

#[test]
fn a_line_that_was_not_found_for_long_is_forgotten() {
    let (mut lines, now) = (Lines::default(), Instant::now());
    lines.found([line(1, 1), line(1, 2)], now);
    lines.found([line(1, 2)], now + FORGOTTEN_AFTER);
    assert_eq!(lines.levels().collect::<Vec<_>>(), [line(1, 1), line(1, 2)]);
    lines.found([], now + FORGOTTEN_AFTER + Duration::from_millis(1));
    assert_eq!(lines.levels().collect::<Vec<_>>(), [line(1, 2)]);
    assert!(lines.drained(&BTreeSet::from([line(1, 2)])), "the other one is forgotten");
}

#[test]
fn a_line_has_a_level_for_each_priority_and_waits_if_any_of_them_does() {
    let (mut lines, now) = (Lines::default(), Instant::now());
    let [low, plain, high] = [-10, 0, 10].map(|priority| level(1, 7, priority));
    let others = [level(1, 8, 5), level(2, 7, 5)];
    lines.found([plain, high, low].into_iter().chain(others), now);
    assert_eq!(lines.levels_of(plain.line).collect::<Vec<_>>(), [high, plain, low], "the highest comes first");
    assert_eq!(lines.above_another().collect::<Vec<_>>(), [plain, high], "of this line alone");
    lines.drained(&BTreeSet::from([low, high]));
    assert_eq!(lines.iter().collect::<Vec<_>>(), [(plain.line, true), (others[0].line, true), (others[1].line, true)]);
    lines.drained(&BTreeSet::from([low, plain, high]));
    assert_eq!(waiting(&lines, 1), [8]);
    assert!(!lines.is_drained(1) && lines.has(&low) && !lines.has(&level(1, 8, 0)));
}
