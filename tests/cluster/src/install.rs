//! Finds Postgres and the user that runs it. Copies a data directory that was initialised once.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The operating system's user that a server runs as, if it is not the user of the tests.
#[derive(Clone, Copy)]
pub struct OsUser {
    uid: u32,
    gid: u32,
}

/// The user for servers. None: the user of the tests. Postgres refuses to run as root, so servers of root run as
/// `postgres`.
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

/// One of the server's programs, run as the server's user. The environment contains nothing that changes what the
/// program does.
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

/// Runs a program to its end. If it fails, the panic shows its output.
pub fn run(command: &mut Command) {
    output(command);
}

/// Runs a program to its end. Returns its standard output.
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

/// The directory of all files of the tests: `XDB_TEST_DIR`, or the system's temporary directory.
pub fn base_directory() -> PathBuf {
    let base = std::env::var_os("XDB_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    fs::create_dir_all(&base).unwrap_or_else(|error| panic!("{}: {error}", base.display()));
    base
}

/// Makes a directory that only the server's user may enter.
pub fn server_directory(path: &Path) {
    fs::create_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    give_to_server(path);
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("our own directory");
}

/// Makes the server's user the owner of a file.
pub fn give_to_server(path: &Path) {
    if let Some(user) = server_user() {
        std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// Makes a data directory at `target`, which must not exist. It is a copy of one that initdb made once for all test
/// runs.
pub fn data_directory(target: &Path) {
    copy(template(), target);
}

/// Copies a directory with its owners.
pub fn copy(from: &Path, target: &Path) {
    run(program_outside("cp").arg("-a").arg("--reflink=auto").arg(from).arg(target));
}

/// Makes a data directory by initdb. Copies have the system identifier of their original, and this one has its own.
pub fn new_data_directory(target: &Path) {
    init_data_directory(bindir(), target, &[]);
}

/// Makes a data directory by the initdb of a server of any version, with more options.
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

/// A program that is not part of Postgres, run as the user of the tests.
fn program_outside(name: &str) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null());
    command
}

/// The directory of the programs of the tested server.
pub fn bindir() -> &'static Path {
    static BINDIR: OnceLock<PathBuf> = OnceLock::new();
    BINDIR.get_or_init(|| bindir_of(&own_pg_config()))
}

/// The directory of the programs of the server with this `pg_config`.
pub fn bindir_of(pg_config: &str) -> PathBuf {
    PathBuf::from(ask(pg_config, "--bindir"))
}

/// A name for the server's version and build. Servers with the same name can use each other's data.
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
