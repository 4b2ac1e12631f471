//! The breaker of a worker: when it opens, probes and closes. Tested with a clock of its own and random steps.

use proptest::prelude::*;
use std::time::{Duration, Instant};
use xdb_sched::breaker::*;

use Reachability::{Reached, Unknown, Unreachable};

/// A breaker and its clock.
struct Bench {
    breaker: Breaker,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Self { breaker: Breaker::default(), now: Instant::now() }
    }

    fn opened() -> Self {
        let mut bench = Self::new();
        bench.calls(FAILURES, Unreachable);
        assert_eq!(bench.admits(), Admission::None);
        bench
    }

    fn calls(&mut self, count: u32, reachability: Reachability) {
        for _ in 0..count {
            let ticket = self.begin();
            self.end(ticket, reachability);
        }
    }

    fn begin(&mut self) -> Ticket {
        self.breaker.begin(self.now)
    }

    fn end(&mut self, ticket: Ticket, reachability: Reachability) {
        self.breaker.end(ticket, reachability, self.now, 0.0);
    }

    fn admits(&mut self) -> Admission {
        self.breaker.admits(self.now)
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Waits until the next probe may be made, and makes it.
    fn probe(&mut self) -> (Duration, Ticket) {
        let at = self.breaker.next_change(self.now).expect("a probe is to come");
        let waited = at - self.now;
        self.now = at - Duration::from_millis(1);
        assert_eq!(self.admits(), Admission::None);
        self.now = at;
        assert_eq!(self.admits(), Admission::Probe);
        let ticket = self.begin();
        assert_eq!(self.admits(), Admission::None, "one probe at a time");
        (waited, ticket)
    }
}

#[test]
fn it_opens_after_several_failures_in_a_row() {
    let mut bench = Bench::new();
    bench.calls(FAILURES - 1, Unreachable);
    assert_eq!(bench.admits(), Admission::All);
    bench.calls(1, Reached);
    bench.calls(FAILURES - 1, Unreachable);
    bench.calls(5, Unknown);
    assert_eq!(bench.admits(), Admission::All);
    assert_eq!(bench.breaker.open(), None);
    bench.calls(1, Unreachable);
    assert_eq!(bench.admits(), Admission::None);
    assert_eq!(bench.breaker.open(), Some(Open { since: bench.now, next_probe: Some(bench.now + FIRST_WAIT) }));
}

#[test]
fn probes_come_ever_later_and_one_that_gets_through_closes_it() {
    let mut bench = Bench::opened();
    let since = bench.now;
    let mut waits = Vec::new();
    for _ in 0..8 {
        let (waited, ticket) = bench.probe();
        waits.push(waited.as_secs());
        assert_eq!(bench.breaker.open(), Some(Open { since, next_probe: None }));
        bench.pass(Duration::from_millis(10));
        bench.end(ticket, Unreachable);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30]);
    let (_, ticket) = bench.probe();
    bench.end(ticket, Reached);
    assert_eq!(bench.admits(), Admission::All);
    assert_eq!(bench.breaker.next_change(bench.now), None);
    // After that, the wait begins with the shortest one again.
    bench.calls(FAILURES, Unreachable);
    assert_eq!(bench.probe().0, FIRST_WAIT);
}

#[test]
fn a_probe_that_was_not_made_is_made_again_without_a_longer_wait() {
    let mut bench = Bench::opened();
    let (_, ticket) = bench.probe();
    bench.end(ticket, Unknown);
    assert_eq!(bench.probe().0, FIRST_WAIT);
}

#[test]
fn a_probe_waits_for_a_call_that_is_due() {
    let mut bench = Bench::opened();
    bench.pass(Duration::from_secs(3600));
    assert_eq!(bench.breaker.next_change(bench.now), None, "time alone changes nothing more");
    assert_eq!(bench.admits(), Admission::Probe);
}

#[test]
fn a_probe_that_takes_long_has_been_connected() {
    let mut bench = Bench::opened();
    let (_, ticket) = bench.probe();
    assert_eq!(bench.breaker.next_change(bench.now), Some(bench.now + PROBE_PATIENCE));
    bench.pass(PROBE_PATIENCE - Duration::from_millis(1));
    assert_eq!(bench.admits(), Admission::None);
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.admits(), Admission::All);
    bench.end(ticket, Unreachable);
    bench.calls(FAILURES - 1, Unreachable);
    assert_eq!(bench.admits(), Admission::All, "what began before the closing does not count");
}

#[test]
fn calls_that_began_before_it_opened_delay_no_probe_and_may_close_it() {
    let mut bench = Bench::new();
    let early: Vec<_> = (0..FAILURES + 10).map(|_| bench.begin()).collect();
    for ticket in &early[..FAILURES as usize + 5] {
        bench.end(*ticket, Unreachable);
    }
    assert_eq!(bench.breaker.next_change(bench.now), Some(bench.now + FIRST_WAIT));
    bench.end(early[FAILURES as usize + 6], Reached);
    assert_eq!(bench.admits(), Admission::All);
    bench.end(early[FAILURES as usize + 7], Unreachable);
    bench.calls(FAILURES - 1, Unreachable);
    assert_eq!(bench.admits(), Admission::All);
}

#[test]
fn a_reset_forgets_everything() {
    let mut bench = Bench::opened();
    let (_, ticket) = bench.probe();
    bench.breaker.reset();
    assert_eq!(bench.admits(), Admission::All);
    bench.end(ticket, Unreachable);
    bench.calls(FAILURES - 1, Unreachable);
    assert_eq!(bench.admits(), Admission::All);
}

#[test]
fn waits_are_stretched_by_a_tenth_at_most() {
    for (jitter, wait) in [(0.0, 1000), (0.5, 1050), (1.0, 1100), (7.0, 1100), (-1.0, 1000)] {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES {
            let ticket = breaker.begin(now);
            breaker.end(ticket, Unreachable, now, jitter);
        }
        assert_eq!(breaker.next_change(now), Some(now + Duration::from_millis(wait)));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Begin,
    End(usize, Reachability),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let reachability = prop_oneof![3 => Just(Unreachable), 1 => Just(Reached), 1 => Just(Unknown)];
    prop_oneof![
        4 => Just(Step::Begin),
        4 => (0_usize..64, reachability).prop_map(|(which, reachability)| Step::End(which, reachability)),
        2 => (0_u64..20_000).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Whatever happens: there are never two probes at once, and the breaker can always close again.
    #[test]
    fn it_never_locks_a_worker_out(steps in prop::collection::vec(step(), 0..400)) {
        let mut bench = Bench::new();
        let mut under_way: Vec<(Ticket, bool)> = Vec::new();
        for step in steps {
            match step {
                Step::Begin => match bench.admits() {
                    Admission::None => {}
                    admission => {
                        let ticket = bench.begin();
                        under_way.push((ticket, admission == Admission::Probe));
                    }
                },
                Step::End(which, reachability) if !under_way.is_empty() => {
                    let which = which % under_way.len();
                    let (ticket, _) = under_way.swap_remove(which);
                    bench.end(ticket, reachability);
                }
                Step::End(..) => {}
                Step::Pass(millis) => bench.pass(Duration::from_millis(millis)),
            }
            match bench.breaker.open() {
                None => prop_assert_eq!(bench.admits(), Admission::All),
                Some(Open { since, next_probe }) => {
                    prop_assert!(since <= bench.now);
                    if next_probe.is_none() {
                        prop_assert!(under_way.iter().any(|(_, probe)| *probe), "a probe is under way");
                    }
                }
            }
        }
        bench.pass(LONGEST_WAIT * 2);
        prop_assert_ne!(bench.admits(), Admission::None);
    }
}
