//! Makes sure that nothing outlives the test process, however the process ends.
//!
//! One thread spawns all servers and lives as long as the process. The kernel sends its signal about the parent's death
//! when the parent *thread* ends. So a server that a test's own thread has spawned would die with that test.
//!
//! Statics are never dropped. So a handler of `exit` closes what a test binary shares. A later run removes directories
//! that a killed run has left.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, Once, OnceLock};
use std::thread;

type Spawn = (Command, Sender<std::io::Result<Child>>);

/// Spawns a child that gets `SIGQUIT` (Postgres' immediate shutdown) when this process ends.
pub fn spawn(mut command: Command) -> std::io::Result<Child> {
    // SAFETY: prctl is async-signal-safe. The closure runs after the change of user, which would clear the setting.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGQUIT) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    static KEEPER: OnceLock<Mutex<Sender<Spawn>>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (requests, inbox) = channel::<Spawn>();
        let body = move || {
            for (mut command, answer) in inbox {
                // The caller waits for the answer, so the channel is open.
                answer.send(command.spawn()).expect("the asking thread is waiting");
            }
        };
        thread::Builder::new().name("keeper".into()).spawn(body).expect("a thread can be started");
        Mutex::new(requests)
    });
    let (answer, result) = channel();
    keeper.lock().expect("never poisoned").send((command, answer)).expect("the keeper never ends");
    result.recv().expect("the keeper always answers")
}

static AT_EXIT: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

/// Runs `action` when the process exits by itself.
pub fn at_exit(action: impl FnOnce() + Send + 'static) {
    extern "C" fn run_all() {
        let actions = AT_EXIT.lock().map(|mut actions| std::mem::take(&mut *actions)).unwrap_or_default();
        for action in actions {
            // A panic must not leave an `extern "C"` function, and the other actions must run.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(action)).is_err() {
                eprintln!("what was shared by the tests could not be closed");
            }
        }
    }
    static REGISTERED: Once = Once::new();
    // SAFETY: `run_all` is a plain function that lives as long as the program.
    REGISTERED.call_once(|| assert_eq!(unsafe { libc::atexit(run_all) }, 0, "atexit"));
    AT_EXIT.lock().expect("never poisoned").push(Box::new(action));
}

/// Removes directories `<prefix><pid>-<number>` whose process no longer exists.
pub fn sweep(base: &Path, prefix: &str) {
    let Ok(entries) = base.read_dir() else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(prefix)).and_then(|rest| rest.split('-').next());
        let Some(pid) = pid.and_then(|pid| pid.parse::<i32>().ok()) else {
            continue;
        };
        // SAFETY: signal 0 only asks whether the process exists.
        let ended =
            unsafe { libc::kill(pid, 0) } == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        // A directory that was kept for a reader has this mark, see `Cluster`.
        if ended
            && !entry.path().join("kept").exists()
            && let Err(error) = std::fs::remove_dir_all(entry.path())
        {
            eprintln!("left behind by an earlier run: {}: {error}", entry.path().display());
        }
    }
}
