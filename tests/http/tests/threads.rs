//! The threads of `src/http`: their names, and that they block signals.

use std::collections::HashSet;
use std::fs;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use xdb_http_tests::http::Lookup;
use xdb_http_tests::rig::{PATIENCE, Rig, answer, call, policy};
use xdb_http_tests::stub::Stub;

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
    // A thread of the resolver exists while it resolves a name.
    let (begun, has_begun) = channel();
    let (go_on, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let lookup: Lookup = Arc::new(move |_| {
        begun.send(()).unwrap();
        gate.lock().unwrap().recv_timeout(PATIENCE).map_err(std::io::Error::other)?;
        Ok(vec![[127, 0, 0, 1].into()])
    });
    let rig = Rig::with_lookup(policy("worker.test"), 4, lookup);
    rig.submit(call(0, format!("http://worker.test:{}/", stub.address.port()), PATIENCE));
    has_begun.recv_timeout(PATIENCE).unwrap();
    assert_eq!(blocked_signals(&me), before);

    let mut seen = HashSet::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().file_name().into_string().unwrap();
        let Ok(name) = fs::read_to_string(format!("/proc/self/task/{task}/comm")) else {
            continue;
        };
        let name = name.trim().to_owned();
        if !name.starts_with("xdb ") {
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
    for name in ["xdb http", "xdb resolver"] {
        assert!(seen.contains(name), "{seen:?}");
    }
    go_on.send(()).unwrap();
    assert_eq!(rig.collect(1).remove(0).outcome, answer(200, "{}"));
}
