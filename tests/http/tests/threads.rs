//! The threads themselves.

use std::collections::HashSet;
use std::fs;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use xdb_http_tests::http::{Pool, Reactor, Threads, Work};
use xdb_http_tests::rig::{PATIENCE, Rig, answer};
use xdb_http_tests::stub::Stub;

enum Job {
    Say(u32),
    PanicText,
    PanicFormatted(u32),
    PanicOdd,
    PanicTwice,
}

struct Talk(Mutex<Sender<String>>);

impl Talk {
    fn start(max: usize) -> (Threads<Talk>, Receiver<String>) {
        let (sender, receiver) = channel();
        (Threads::new("xdb test", max, Talk(Mutex::new(sender))), receiver)
    }

    fn say(&self, text: String) {
        self.0.lock().unwrap().send(text).unwrap();
    }
}

impl Work for Talk {
    type Job = Job;

    fn run(&self, job: &mut Job) {
        match job {
            Job::Say(number) => self.say(format!("said {number}")),
            Job::PanicText | Job::PanicTwice => panic!("text"),
            Job::PanicFormatted(number) => panic!("number {number}"),
            Job::PanicOdd => std::panic::panic_any(1u8),
        }
    }

    fn panicked(&self, job: Job, message: String) {
        assert!(!matches!(job, Job::PanicTwice));
        self.say(format!("panicked: {message}"));
    }
}

#[test]
fn a_panic_is_reported_and_survived() {
    let (threads, heard) = Talk::start(1);
    for job in [Job::PanicText, Job::PanicFormatted(7), Job::PanicOdd, Job::PanicTwice, Job::Say(1)] {
        threads.submit(job).unwrap();
    }
    for expected in ["panicked: text", "panicked: number 7", "panicked: a panic without a message", "said 1"] {
        assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), expected);
    }
    threads.stop();
    assert!(threads.wait_ended(Instant::now() + PATIENCE));
    assert_eq!(threads.free(), 1);
    assert!(threads.submit(Job::Say(2)).is_err());
}

struct Meet(Barrier);

impl Work for Meet {
    type Job = ();

    fn run(&self, (): &mut ()) {
        self.0.wait();
    }

    fn panicked(&self, (): (), message: String) {
        panic!("{message}");
    }
}

/// Each round can only end when all its jobs run at the same time: no job may wait behind another while
/// there are threads for both.
#[test]
fn jobs_never_wait_while_threads_are_free() {
    const AT_ONCE: usize = 8;
    let threads = Threads::new("xdb test", AT_ONCE, Meet(Barrier::new(AT_ONCE)));
    let deadline = Instant::now() + PATIENCE;
    for _ in 0..500 {
        for _ in 0..AT_ONCE {
            threads.submit(()).unwrap();
        }
        while threads.free() < AT_ONCE {
            assert!(Instant::now() < deadline, "a job was left behind");
            std::thread::yield_now();
        }
    }
}

fn blocked_signals(task: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/self/task/{task}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("SigBlk:"))?;
    u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
}

#[test]
fn all_signals_are_blocked_in_the_threads_and_nowhere_else() {
    // SAFETY: no arguments, no failure.
    let me = unsafe { libc::gettid() }.to_string();
    let before = blocked_signals(&me);
    let stub = Stub::answering(200, "{}");
    // By name, so that a thread of the resolver is there, too.
    let url = format!("http://localhost:{}/", stub.address.port());
    let engine = Rig::<Reactor>::new(4);
    assert_eq!(engine.get(&url), answer(200, "{}"));
    let session = Rig::<Pool>::new(1);
    assert_eq!(session.get(&url), answer(200, "{}"));
    assert_eq!(blocked_signals(&me), before);

    let mut seen = HashSet::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().file_name().into_string().unwrap();
        let Ok(name) = fs::read_to_string(format!("/proc/self/task/{task}/comm")) else {
            continue;
        };
        let name = name.trim().to_owned();
        if !["xdb call", "xdb http", "xdb resolver", "xdb test"].contains(&name.as_str()) {
            continue;
        }
        let Some(blocked) = blocked_signals(&task) else {
            continue;
        };
        for signal in (1..=31).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal)) {
            assert!(blocked & 1 << (signal - 1) != 0, "signal {signal} reaches the thread {name}");
        }
        seen.insert(name);
    }
    for name in ["xdb call", "xdb http", "xdb resolver"] {
        assert!(seen.contains(name), "{seen:?}");
    }
}
