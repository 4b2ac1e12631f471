//! The machine: its hardware, its load, and which process used how much CPU time. Everything is read from `/proc`.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The load averages of the last 1, 5 and 15 minutes.
pub fn load() -> [f64; 3] {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut numbers = text.split_whitespace().map(|word| word.parse().unwrap_or(f64::NAN));
    [(); 3].map(|()| numbers.next().unwrap_or(f64::NAN))
}

/// Waits until the load average of the last minute is low enough.
pub fn wait_for_quiet(below: f64) -> Result<(), String> {
    let deadline = Instant::now() + QUIET_WITHIN;
    while load()[0] > below {
        if Instant::now() > deadline {
            return Err(format!("the load average does not fall to {below} in {} s", QUIET_WITHIN.as_secs()));
        }
        // The kernel computes a new one every five seconds.
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

const QUIET_WITHIN: Duration = Duration::from_secs(1800);

/// The text after a name in a file of `/proc`, or an empty text.
fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).and_then(|line| line.split_once(':'));
    line.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

fn memory() -> String {
    field("/proc/meminfo", "MemTotal")
}

/// The machine's memory in megabytes.
pub fn megabytes() -> u64 {
    memory().strip_suffix(" kB").and_then(|kilobytes| kilobytes.parse::<u64>().ok()).unwrap_or_default() / 1024
}

/// A description of the machine for readers of the results.
pub fn description() -> Value {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "cpu": field("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": memory(),
        "kernel": kernel.trim(),
    })
}

/// CPU seconds that a process has used so far. None: there is no such process.
pub fn cpu_of(pid: i32) -> Option<f64> {
    let (own, _) = ticks(pid)?;
    Some(own as f64 / ticks_per_second())
}

/// CPU seconds of a process, of all its children, and of its ended children.
pub fn cpu_of_tree(parent: i32) -> f64 {
    let (own, ended) = ticks(parent).unwrap_or_default();
    let living: u64 = children(parent).into_iter().filter_map(ticks).map(|(own, ended)| own + ended).sum();
    (own + ended + living) as f64 / ticks_per_second()
}

/// CPU seconds of a process with all threads that it has had, to the nanosecond. Ticks are too coarse for some seconds
/// of idling, and threads of the pool end. Zero: there is no such process.
pub fn exact_cpu_of(pid: i32) -> f64 {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: both calls write to the given buffers. For a process that does not exist they return an error.
    let is_read =
        unsafe { libc::clock_getcpuclockid(pid, &mut clock) == 0 && libc::clock_gettime(clock, &mut time) == 0 };
    if is_read { time.tv_sec as f64 + time.tv_nsec as f64 / 1e9 } else { 0.0 }
}

/// CPU seconds of a thread of this process.
pub fn cpu_of_thread(thread: i32) -> f64 {
    scheduled(format!("/proc/self/task/{thread}/schedstat").as_ref()).unwrap_or(0.0)
}

fn scheduled(path: &std::path::Path) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
}

/// A line `<name>: <n> kB` of a process's status, in bytes.
pub fn memory_of(pid: i32, name: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0)
}

/// Raises the limit of open files of this process, and of the server that it starts, as far as possible. Returns the
/// limit.
pub fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a whole limit.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        }
    }
    limit.rlim_cur
}

/// How many threads a process has. None: there is no such process.
pub fn threads_of(pid: i32) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/task")).ok()?.count())
}

fn children(parent: i32) -> Vec<i32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The ticks of a process, and of its ended children that it has waited for.
fn ticks(pid: i32) -> Option<(u64, u64)> {
    ticks_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn ticks_in(stat: &str) -> Option<(u64, u64)> {
    // The name may have spaces and brackets: what counts begins after the last of these.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<u64> = rest.split_whitespace().skip(11).take(4).filter_map(|field| field.parse().ok()).collect();
    match fields[..] {
        [user, system, ended_user, ended_system] => Some((user + system, ended_user + ended_system)),
        _ => None,
    }
}

fn ticks_per_second() -> f64 {
    // SAFETY: sysconf has no preconditions.
    (unsafe { libc::sysconf(libc::_SC_CLK_TCK) }) as f64
}

/// Seconds since 1970 as `2027-01-31T235959Z`. Sorts by time, and can be part of a file name.
pub fn utc_stamp(seconds: u64) -> String {
    let (mut days, in_day) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (in_day / 3600, in_day / 60 % 60, in_day % 60);
    format!("{year}-{:02}-{:02}T{hour:02}{minute:02}{second:02}Z", month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_brackets_and_spaces() {
        let stat = "7 (postgres: a (b) c) S 1 7 7 0 -1 4194560 10 20 0 0 5 6 70 80 20 0 1 0 100";
        assert_eq!(ticks_in(stat), Some((11, 150)));
        assert_eq!(ticks_in("7 (x) S 1"), None);
    }

    #[test]
    fn this_process_has_used_time_and_memory() {
        let pid = std::process::id() as i32;
        let begun = exact_cpu_of(pid);
        while exact_cpu_of(pid) <= begun {
            std::hint::spin_loop();
        }
        assert!(cpu_of(pid).is_some());
        assert!(memory_of(pid, "VmHWM") >= memory_of(pid, "RssAnon"));
    }

    #[test]
    fn a_stamp_knows_leap_years() {
        assert_eq!(utc_stamp(0), "1970-01-01T000000Z");
        assert_eq!(utc_stamp(951_782_400), "2000-02-29T000000Z");
        assert_eq!(utc_stamp(1_798_761_599), "2026-12-31T235959Z");
    }
}
