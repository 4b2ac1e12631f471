//! A Postgres server of the tests' own, with its own directory and socket, and without a TCP port.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::db::{Db, SqlError};
use crate::wait::wait_until;
use crate::{install, keeper, log, skew};

/// Roles that every cluster has. All are ordinary. Each database decides which of them may use the extension.
pub const ROLES: &[&str] = &["app", "other", "boss", "stranger"];

const DIRECTORY_PREFIX: &str = "xdb-test-";

/// The directory of the sockets. Short, because a socket's path must be short.
const SOCKETS: &str = "s";

/// The port, which is part of the socket's name.
pub(crate) const PORT: u16 = 5432;

/// The file of the data directory that names the armed crash point.
const CRASH_POINT: &str = "xdb_crash_point";

/// The options of a cluster.
pub struct ClusterOptions {
    preload: bool,
    own_clock: bool,
    settings: Vec<(String, String)>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        ClusterOptions { preload: true, own_clock: false, settings: Vec::new() }
    }
}

impl ClusterOptions {
    /// The library stays out of `shared_preload_libraries`.
    pub fn not_preloaded(mut self) -> Self {
        self.preload = false;
        self
    }

    /// The server's clock can be set. Lookups of names below `silent.test` never end. Names below `absent.test` do not
    /// exist.
    pub fn own_clock(mut self) -> Self {
        self.own_clock = true;
        self
    }

    /// One more line of `postgresql.conf`.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}

/// A running server. When dropped, it is stopped and its directory is removed. After a panic the directory stays and
/// its path is printed.
pub struct Cluster {
    directory: PathBuf,
    /// The directory of the server's programs. It changes with an upgrade.
    pub(crate) bindir: Mutex<PathBuf>,
    /// The lines that were added to `postgresql.conf`.
    pub(crate) configuration: String,
    server: Mutex<Option<Child>>,
    keep: AtomicBool,
    /// The number of crashes that were waited for.
    crashes: AtomicUsize,
}

impl Cluster {
    /// A new cluster with the roles of [`ROLES`].
    pub fn start(options: ClusterOptions) -> Cluster {
        Cluster::with_roles(install::data_directory, options)
    }

    /// A cluster with a system identifier of its own. All other clusters of the tests have the same one.
    pub fn start_elsewhere(options: ClusterOptions) -> Cluster {
        Cluster::with_roles(install::new_data_directory, options)
    }

    fn with_roles(make_data: impl FnOnce(&Path), options: ClusterOptions) -> Cluster {
        let cluster = Cluster::create(make_data, &options);
        let mut superuser = cluster.superuser();
        for role in ROLES {
            superuser.run(&format!("CREATE ROLE {role} LOGIN"));
        }
        cluster
    }

    /// The cluster that the tests of one binary share. Each test has a database of its own in the cluster.
    pub fn shared() -> &'static Cluster {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| {
            keeper::at_exit(|| {
                if let Some(cluster) = SHARED.get() {
                    cluster.close();
                }
            });
            Cluster::start(ClusterOptions::default())
        })
    }

    /// A hot standby of this cluster, streaming from it.
    pub fn standby(&self) -> Cluster {
        self.standby_with(ClusterOptions::default())
    }

    /// A hot standby of this cluster with other options.
    pub fn standby_with(&self, options: ClusterOptions) -> Cluster {
        let copy = |data: &Path| {
            let mut command = self.client("pg_basebackup");
            command.args(["--checkpoint=fast", "--no-sync", "--write-recovery-conf", "-D"]);
            install::run(command.arg(data));
        };
        Cluster::create(copy, &options)
    }

    /// Copies the running server's files, for [`Cluster::recover`]. The server must archive its WAL with
    /// [`Cluster::archiving`].
    pub fn base_backup(&self) -> PathBuf {
        let backup = self.directory.join("backup");
        let mut command = self.client("pg_basebackup");
        install::run(command.args(["--checkpoint=fast", "--no-sync", "--wal-method=none", "-D"]).arg(&backup));
        backup
    }

    /// Options of a server that archives its WAL into this directory. Makes the directory.
    pub fn archiving(directory: &Path) -> ClusterOptions {
        install::server_directory(directory);
        let command = format!("cp %p {}/%f", directory.display());
        ClusterOptions::default().set("archive_mode", "on").set("archive_command", &command)
    }

    /// A server that starts from a backup and replays the archive up to a restore point. Then it runs by itself.
    pub fn recover(backup: &Path, archive: &Path, restore_point: &str) -> Cluster {
        let copy = |data: &Path| {
            install::copy(backup, data);
            let signal = data.join("recovery.signal");
            fs::write(&signal, "").expect("a directory of ours");
            install::give_to_server(&signal);
        };
        let options = ClusterOptions::default()
            .set("archive_mode", "off")
            .set("restore_command", &format!("cp {}/%f %p", archive.display()))
            .set("recovery_target_name", restore_point)
            .set("recovery_target_action", "promote");
        let cluster = Cluster::create(copy, &options);
        wait_until("recovery is over", 60, || !cluster.superuser().one::<bool>("SELECT pg_is_in_recovery()"));
        cluster
    }

    /// Dumps a database into a file next to the data. `pg_dump` gets these options besides its format.
    pub fn dump(&self, database: &str, options: &[&str]) -> PathBuf {
        let file = self.directory.join(format!("{database}.dump"));
        let mut command = self.client("pg_dump");
        install::run(command.arg("--format=custom").args(options).arg("--file").arg(&file).arg(database));
        file
    }

    /// Makes a database from a dump, which may be from another cluster.
    pub fn restore(&self, database: &str, dump: &Path) {
        self.superuser().run(&format!("CREATE DATABASE {database} TEMPLATE template0"));
        self.restore_into(database, dump, &[]);
    }

    /// Restores a dump into an existing database. `pg_restore` gets these options.
    pub fn restore_into(&self, database: &str, dump: &Path, options: &[&str]) {
        let mut command = self.client("pg_restore");
        install::run(command.arg("--exit-on-error").args(options).args(["--dbname", database]).arg(dump));
    }

    fn client(&self, program: &str) -> std::process::Command {
        let mut command = self.program(program);
        command.arg("--host").arg(self.socket_directory()).arg("--port").arg(PORT.to_string());
        command.arg("--username=postgres");
        command
    }

    pub(crate) fn program(&self, name: &str) -> std::process::Command {
        install::program(&self.bindir.lock().expect("never poisoned"), name)
    }

    fn create(make_data: impl FnOnce(&Path), options: &ClusterOptions) -> Cluster {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let base = install::base_directory();
        keeper::sweep(&base, DIRECTORY_PREFIX);
        let next = || {
            base.join(format!("{DIRECTORY_PREFIX}{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)))
        };
        let mut directory = next();
        // One that was kept for a reader by a process that had our pid.
        while directory.exists() {
            directory = next();
        }
        install::server_directory(&directory);
        install::server_directory(&directory.join(SOCKETS));
        make_data(&directory.join("data"));
        let cluster = Cluster {
            directory: directory.clone(),
            bindir: Mutex::new(install::bindir().to_owned()),
            configuration: Cluster::configuration(&directory, options),
            server: Mutex::new(None),
            keep: AtomicBool::new(false),
            crashes: AtomicUsize::new(0),
        };
        let socket = cluster.socket_directory().join(format!(".s.PGSQL.{PORT}"));
        assert!(
            socket.as_os_str().len() < 100,
            "too long for a socket, choose another XDB_TEST_DIR: {}",
            socket.display()
        );
        cluster.configure(&cluster.data_directory());
        if options.own_clock {
            skew::prepare(&cluster.directory);
        }
        cluster.launch();
        cluster
    }

    fn configuration(directory: &Path, options: &ClusterOptions) -> String {
        let sockets = directory.join(SOCKETS);
        let mut lines = vec![
            // Another program may take a free TCP port before the server starts.
            ("listen_addresses", String::new()),
            ("port", PORT.to_string()),
            ("unix_socket_directories", sockets.display().to_string()),
            ("fsync", "on".into()),
            ("max_connections", "400".into()),
            // One scheduler for each database of the tests that share a cluster, and room for runners.
            ("max_worker_processes", "100".into()),
            ("shared_buffers", "64MB".into()),
            ("log_line_prefix", log::PREFIX.into()),
            ("log_destination", "stderr".into()),
            ("logging_collector", "off".into()),
            ("log_statement", "none".into()),
        ];
        if options.preload {
            lines.push(("shared_preload_libraries", "xdb".into()));
        }
        let own = lines.into_iter();
        own.chain(options.settings.iter().map(|(name, value)| (name.as_str(), value.clone())))
            .map(|(name, value)| format!("{name} = '{}'\n", value.replace('\'', "''")))
            .collect()
    }

    /// Adds this cluster's settings to those of a data directory.
    pub(crate) fn configure(&self, data: &Path) {
        // Last wins: a standby's copy brings the lines of its primary along.
        let path = data.join("postgresql.conf");
        let mut conf = fs::read_to_string(&path).expect("a data directory has a configuration");
        conf.push_str(&self.configuration);
        fs::write(&path, conf).expect("a file of ours");
    }

    /// Starts the server and waits until it accepts connections.
    pub fn launch(&self) {
        self.launch_with(&[]);
    }

    /// Starts the server with options on its command line.
    pub fn launch_with(&self, options: &[&str]) {
        if let Err(problem) = self.try_launch_with(options) {
            self.keep.store(true, Ordering::Relaxed);
            panic!("the server does not start: {problem}\n{}", log::tail(&self.log(), 60));
        }
    }

    /// Starts the server. This may fail: a killed postmaster can leave things that prevent a start for a moment.
    pub fn try_launch(&self) -> Result<(), String> {
        self.try_launch_with(&[])
    }

    fn try_launch_with(&self, options: &[&str]) -> Result<(), String> {
        let log = OpenOptions::new().create(true).append(true).open(self.log_path()).expect("a directory of ours");
        let mut command = self.program("postgres");
        command.args(options).arg("-D").arg(self.data_directory());
        skew::preload(&self.directory, &mut command);
        command.stdout(log.try_clone().expect("a descriptor is free")).stderr(Stdio::from(log));
        let child = keeper::spawn(command).unwrap_or_else(|error| panic!("postgres: {error}"));
        *self.server.lock().expect("never poisoned") = Some(child);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let Err(error) = self.try_connect("postgres", "postgres", Duration::from_millis(500)) else {
                return Ok(());
            };
            let mut server = self.server.lock().expect("never poisoned");
            let exited = server.as_mut().and_then(|child| child.try_wait().expect("a child of ours"));
            if exited.is_some() {
                // Another process may get its pid soon.
                *server = None;
            }
            if exited.is_some() || Instant::now() > deadline {
                return Err(format!("{error:?}, {exited:?}"));
            }
            drop(server);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops the server as a power cut would: nothing is flushed, and no client gets a message.
    pub fn crash(&self) {
        let Some(mut server) = self.server.lock().expect("never poisoned").take() else {
            return;
        };
        signal(server.id() as i32, libc::SIGQUIT);
        let deadline = Instant::now() + Duration::from_secs(20);
        while server.try_wait().expect("a child of ours").is_none() {
            if Instant::now() > deadline {
                eprintln!("the server ignores an immediate shutdown: {}", self.directory.display());
                signal(server.id() as i32, libc::SIGKILL);
                server.wait().expect("a child of ours");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the postmaster alone. Its children notice that some time later.
    pub fn kill(&self) {
        if let Some(mut server) = self.server.lock().expect("never poisoned").take() {
            signal(server.id() as i32, libc::SIGKILL);
            server.wait().expect("a child of ours");
        }
    }

    /// Kills one process of the server with SIGKILL, and returns when the server has recovered.
    ///
    /// 1. A session from before is the witness: the postmaster ends all sessions when it notices the death. Until then
    ///    it accepts new sessions, which it ends in the middle of their work.
    /// 2. From then on it refuses all connections until it has recovered.
    pub fn kill_process(&self, pid: i32) {
        let mut witness = self.superuser();
        signal(pid, libc::SIGKILL);
        wait_until("the postmaster has seen the death", 20, || witness.try_run("SELECT 1").is_err());
        self.try_connect("postgres", "postgres", Duration::from_secs(60)).expect("the server recovers");
    }

    /// The postmaster's pid, while it runs.
    pub fn postmaster(&self) -> Option<i32> {
        self.server.lock().expect("never poisoned").as_ref().map(|server| server.id() as i32)
    }

    /// Stops the server by a fast shutdown. Returns how long that took.
    pub fn stop(&self) -> Duration {
        let mut server = self.server.lock().expect("never poisoned").take().expect("the server runs");
        let asked = Instant::now();
        signal(server.id() as i32, libc::SIGINT);
        wait_until("the server stops", 60, || server.try_wait().expect("a child of ours").is_some());
        asked.elapsed()
    }

    /// Stops the server by a fast shutdown. False: it takes longer than `within`, and continues.
    pub fn try_stop(&self, within: Duration) -> bool {
        let mut server = self.server.lock().expect("never poisoned");
        let Some(child) = server.as_mut() else { return true };
        signal(child.id() as i32, libc::SIGINT);
        let deadline = Instant::now() + within;
        while child.try_wait().expect("a child of ours").is_none() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        *server = None;
        true
    }

    fn close(&self) {
        self.crash();
        if self.keep.load(Ordering::Relaxed) {
            let marked = fs::write(self.directory.join("kept"), "");
            eprintln!("kept for a reader: {} ({marked:?})", self.directory.display());
        } else if let Err(error) = fs::remove_dir_all(&self.directory) {
            eprintln!("{}: {error}", self.directory.display());
        }
    }

    /// Makes the directory stay for a reader.
    pub fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }

    /// A session of a role in a database.
    pub fn connect(&self, database: &str, role: &str) -> Db {
        self.try_connect(database, role, Duration::from_secs(20))
            .unwrap_or_else(|error| panic!("connect to {database} as {role}: {error:?}"))
    }

    /// Opens a session, or returns the error. Waits for a server that is starting or recovering from a crash.
    pub fn try_connect(&self, database: &str, role: &str, within: Duration) -> Result<Db, SqlError> {
        let deadline = Instant::now() + within;
        loop {
            match Db::connect(self, database, role, within) {
                // cannot_connect_now, and connections that a crash of the server cut
                Err(error) if matches!(&*error.code, "57P03" | "57P02" | "08006") && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                answer => return answer,
            }
        }
    }

    /// A session of the superuser in the database `postgres`.
    pub fn superuser(&self) -> Db {
        self.connect("postgres", "postgres")
    }

    /// Changes a setting for the whole cluster and reloads. If a crash point is armed, the server may die meanwhile.
    pub fn set(&self, name: &str, value: &str) {
        let set = || {
            let mut superuser = self.superuser();
            superuser.try_run(&format!("ALTER SYSTEM SET {name} = '{value}'"))?;
            superuser.try_run("SELECT pg_reload_conf()")
        };
        wait_until(&format!("{name} is set"), 30, || match set() {
            Err(error) if error.is_lost() => false,
            Err(error) => panic!("{name} = {value}: {error:?}"),
            Ok(()) => true,
        });
        // A new session reads the files after the postmaster has read them. So its value shows that the postmaster has.
        wait_until(&format!("{name} is {value}"), 30, || {
            let sql = format!(
                "SELECT current_setting('{name}') = '{value}' OR EXISTS (SELECT FROM pg_settings \
                 WHERE name = '{name}' AND setting = '{value}')"
            );
            self.superuser().try_one::<bool>(&sql) == Ok(true)
        });
    }

    /// Writes a file of this name, which the server may read, into its data directory.
    pub fn write_file(&self, name: &str, content: &str) {
        let path = self.data_directory().join(name);
        // Renamed into its place, so that no process reads half of it.
        let made = path.with_extension("new");
        fs::write(&made, content).expect("a directory of ours");
        install::give_to_server(&made);
        fs::rename(&made, &path).expect("a directory of ours");
    }

    /// Sets the clock of a server that has a clock of its own, to this many seconds ahead of the real one.
    pub fn set_clock(&self, seconds: f64) {
        skew::set(&self.directory, (seconds * 1e6) as i64);
    }

    /// Arms a crash point of a build with crash points. The first process of the server that reaches the point kills
    /// itself.
    pub fn arm(&self, point: &str) {
        let path = self.data_directory().join(CRASH_POINT);
        // Renamed into its place, so that no process reads half of it.
        let made = path.with_extension("new");
        fs::write(&made, point).expect("a directory of ours");
        install::give_to_server(&made);
        fs::rename(&made, &path).expect("a file of ours");
    }

    /// Terminates the processes that fulfil the condition on `pg_stat_activity`. If a crash point is armed, the server
    /// may die before it answers.
    pub fn ask_to_end(&self, condition: &str) {
        let _ = self
            .superuser()
            .try_run(&format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {condition}"));
    }

    /// Whether no process has reached the armed point yet.
    pub fn is_armed(&self) -> bool {
        self.data_directory().join(CRASH_POINT).exists()
    }

    /// Waits until a process has reached the armed point, and the server has recovered.
    pub fn wait_for_crash(&self, point: &str) {
        wait_until(&format!("a process comes by {point}"), 30, || !self.is_armed());
        // The process is about to die. Then the postmaster ends the other processes, and refuses connections until it
        // has recovered.
        let recovering = || log::crashes(&self.log()) > self.crashes.load(Ordering::Relaxed);
        wait_until(&format!("the server notices the crash at {point}"), 30, recovering);
        self.crashes.store(log::crashes(&self.log()), Ordering::Relaxed);
        drop(self.superuser());
    }

    /// The connection string by which another server reaches this one.
    pub fn conninfo(&self, database: &str) -> String {
        format!("host={} port={PORT} user=postgres dbname={database}", self.socket_directory().display())
    }

    /// The directory of the socket, for programs that connect by themselves.
    pub fn socket_directory(&self) -> PathBuf {
        self.directory.join(SOCKETS)
    }

    /// The directory of the cluster: data, log, sockets.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The data directory.
    pub fn data_directory(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Lines of trouble in the log that neither `allowed` nor the list for all tests explains.
    pub fn unexplained_errors(&self, allowed: &[&str]) -> Vec<String> {
        log::unexplained(&self.log(), None, allowed)
    }

    /// The scheduler's pid in a database, if a scheduler runs.
    pub fn find_scheduler(&self, database: &str) -> Option<i32> {
        let sql = format!(
            "SELECT pid FROM pg_stat_activity WHERE datname = '{database}' \
             AND (backend_type LIKE 'xdb scheduler%' OR application_name LIKE 'xdb scheduler%') LIMIT 1"
        );
        // After a crash the server may go down under this very query: then there is none yet.
        self.superuser().try_maybe(&sql).unwrap_or(None)
    }

    /// The scheduler's pid in a database. Waits until a scheduler runs.
    pub fn scheduler(&self, database: &str) -> i32 {
        let mut pid = None;
        wait_until(&format!("a scheduler runs in {database}"), 20, || {
            pid = self.find_scheduler(database);
            pid.is_some()
        });
        pid.expect("just found")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.keep();
            eprintln!("--- the end of the server's log ---\n{}", log::tail(&self.log(), 60));
        }
        self.close();
    }
}

/// Sends a signal to a process that the tests started.
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: kill has no preconditions; the callers pass pids of their own cluster.
    let sent = unsafe { libc::kill(pid, signal) };
    assert_eq!(sent, 0, "kill {pid}: {}", std::io::Error::last_os_error());
}

/// Sets the limit of open files of a running process. Open files stay open. Returns the limit before.
pub fn limit_files(pid: i32, limit: u64) -> u64 {
    let before = prlimit(pid, &["--nofile", "--output", "SOFT", "--noheadings"]);
    prlimit(pid, &[&format!("--nofile={limit}:")]);
    before.trim().parse().expect("a number")
}

/// Limits the addresses of a running process to this many bytes more than it has.
pub fn limit_memory(pid: i32, more: u64) {
    prlimit(pid, &[&format!("--as={}:", size(pid, "VmSize") + more)]);
}

/// Limits the memory that only the process may write, to this many bytes more than it has. The system promises this
/// memory, and counts it under strict overcommit.
pub fn limit_promised_memory(pid: i32, more: u64) {
    prlimit(pid, &[&format!("--data={}:", size(pid, "VmData") + more)]);
}

/// The size of this kind of memory of a process, in bytes.
pub fn size(pid: i32, kind: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(':')).expect("it has a size");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kilobytes * 1024
}

/// Runs the system's tool as the server's user. The user of the tests may not be allowed to.
fn prlimit(pid: i32, arguments: &[&str]) -> String {
    let mut command = install::program(Path::new("/usr/bin"), "prlimit");
    install::output(command.args(["--pid", &pid.to_string()]).args(arguments))
}
