//! Where Postgres is, who runs it, and a data directory that was initialised once and is copied ever after.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The operating system's user that a server runs as, where that is not ourselves.
#[derive(Clone, Copy)]
pub struct OsUser {
    uid: u32,
    gid: u32,
}

/// `None`: servers run as whoever runs the tests. Postgres refuses to run as root, so root's servers belong to `postgres`.
pub fn server_user() -> Option<OsUser> {
    static USER: OnceLock<Option<OsUser>> = OnceLock::new();
    *USER.get_or_init(|| {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return None;
        }
        let name = CString::new("postgres").expect("no NUL in the name");
        // SAFETY: the name is a C string; the answer is read at once, inside OnceLock's critical section.
        let entry = unsafe { libc::getpwnam(name.as_ptr()).as_ref() };
        let entry = entry.expect("tests that run as root need an operating system user `postgres`");
        Some(OsUser { uid: entry.pw_uid, gid: entry.pw_gid })
    })
}

/// One of the server's programs, to be run as the server's user, without the environment that would change what it does.
pub fn program(bindir: &Path, name: &str) -> Command {
    let mut command = Command::new(bindir.join(name));
    if let Some(user) = server_user() {
        command.uid(user.uid).gid(user.gid);
    }
    for (key, _) in std::env::vars() {
        // A backtrace would be put into the DETAIL of every error that the extension raises.
        if key.starts_with("PG") || key.starts_with("RUST_") || key.starts_with("LC_") || key == "LANG" {
            command.env_remove(key);
        }
    }
    command.env("LC_ALL", "C").env("TZ", "UTC").current_dir("/").stdin(Stdio::null());
    command
}

/// Runs a program to its end; what it printed is the panic when it fails.
pub fn run(command: &mut Command) {
    output(command);
}

/// The same, and gives what it printed on its standard output.
pub fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The directory under which everything of the tests lives: `XDB_TEST_DIR`, or the system's temporary directory.
pub fn base_directory() -> PathBuf {
    let base = std::env::var_os("XDB_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    fs::create_dir_all(&base).unwrap_or_else(|error| panic!("{}: {error}", base.display()));
    base
}

/// A new directory that the server's user, and nobody else, may enter.
pub fn server_directory(path: &Path) {
    fs::create_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    give_to_server(path);
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("our own directory");
}

/// Makes the server's user the owner of a file of ours.
pub fn give_to_server(path: &Path) {
    if let Some(user) = server_user() {
        std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// A fresh data directory at `target`, which must not exist: a copy of one that initdb made once for all test runs.
pub fn data_directory(target: &Path) {
    copy(template(), target);
}

/// Copies a directory with its owners.
pub fn copy(from: &Path, target: &Path) {
    run(program_outside("cp").arg("-a").arg("--reflink=auto").arg(from).arg(target));
}

/// The same, by initdb itself: copies have the system identifier of what they were copied from.
pub fn new_data_directory(target: &Path) {
    init_data_directory(bindir(), target, &[]);
}

/// The same, by the initdb of a server of any version, with more options.
pub fn init_data_directory(bindir: &Path, target: &Path, options: &[&str]) {
    run(program(bindir, "initdb")
        .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"])
        .args(options)
        .arg("-D")
        .arg(target));
}

fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let base = base_directory();
        // SAFETY: geteuid has no preconditions.
        let name = format!("xdb-initdb-{}-{}", server_version(), unsafe { libc::geteuid() });
        let template = base.join(&name);
        let lock = File::create(base.join(format!("{name}.lock"))).expect("the base directory is writable");
        // SAFETY: the descriptor is open for as long as `lock` lives; closing it gives the lock back.
        let locked = unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) };
        assert_eq!(locked, 0, "flock: {}", std::io::Error::last_os_error());
        let data = template.join("data");
        // The marker is written last: a template without it is what an interrupted run left behind.
        let complete = template.join("complete");
        if !complete.exists() {
            if template.exists() {
                fs::remove_dir_all(&template).expect("a template of ours");
            }
            server_directory(&template);
            new_data_directory(&data);
            File::create(&complete).expect("a directory of ours");
        }
        data
    })
}

/// A program that is not Postgres', as ourselves.
fn program_outside(name: &str) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null());
    command
}

/// Where the programs of the server are that the tests run with.
pub fn bindir() -> &'static Path {
    static BINDIR: OnceLock<PathBuf> = OnceLock::new();
    BINDIR.get_or_init(|| bindir_of(&own_pg_config()))
}

/// Where the programs of the server with this `pg_config` are.
pub fn bindir_of(pg_config: &str) -> PathBuf {
    PathBuf::from(ask(pg_config, "--bindir"))
}

/// Tells servers apart that can't use each other's data, and those that were built in different ways.
fn server_version() -> String {
    let version = ask(&own_pg_config(), "--version");
    version.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.').collect()
}

fn own_pg_config() -> String {
    std::env::var("PG_CONFIG").unwrap_or_else(|_| "pg_config".into())
}

fn ask(pg_config: &str, option: &str) -> String {
    let output = Command::new(pg_config).arg(option).output().unwrap_or_else(|error| panic!("{pg_config}: {error}"));
    assert!(output.status.success(), "{pg_config} {option}: {}", output.status);
    String::from_utf8(output.stdout).expect("pg_config prints text").trim().to_owned()
}
