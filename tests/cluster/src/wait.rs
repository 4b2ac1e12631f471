//! Waits for conditions. Tests never wait just for time to pass.

use std::time::{Duration, Instant};

/// Polls until `condition` holds. After `seconds` it panics and names the condition.
pub fn wait_until(what: &str, seconds: u64, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !condition() {
        assert!(Instant::now() < deadline, "timed out after {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs `body` in `count` threads at once, each with its number. Returns all results.
pub fn at_once<T: Send>(count: usize, body: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = std::sync::Barrier::new(count);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let (barrier, body) = (&barrier, &body);
                scope.spawn(move || {
                    barrier.wait();
                    body(number)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("its panic is printed above")).collect()
    })
}

/// Runs `body`. Returns how long it took, and its result.
pub fn timed<T>(body: impl FnOnce() -> T) -> (Duration, T) {
    let begun = Instant::now();
    let answer = body();
    (begun.elapsed(), answer)
}
