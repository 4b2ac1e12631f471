//! Settings. Each is documented in `docs/settings.md`.

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::ffi::CString;
use xdb_engine::{Duration, Quotas};

/// A setting that is text.
type Text = Option<CString>;

const NONE: GucFlags = GucFlags::empty();
const MS: GucFlags = GucFlags::UNIT_MS;
const KB: GucFlags = GucFlags::UNIT_KB;
const SECONDS: GucFlags = GucFlags::UNIT_S;
const SUPERUSER_ONLY: GucFlags = GucFlags::SUPERUSER_ONLY;

/// The most answers, timers, processes with messages, and due calls per worker and owner, that one turn takes. More would give more
/// throughput, and longer transactions.
pub static CLAIM_BATCH: GucSetting<i32> = GucSetting::<i32>::new(256);

/// The longest time between two scans for due work. Commits wake the scheduler at once; this is the floor under wake-ups.
pub static POLL_INTERVAL_MS: GucSetting<i32> = GucSetting::<i32>::new(1000);

/// The most threads of an execution that live at one time, and the most timers that its states wait for.
pub static MAX_THREADS: GucSetting<i32> = GucSetting::<i32>::new(20_000);

/// Makes settings of these three limits, in a build for tests alone: a test would need thousands of processes to reach them, and could
/// not tell a wake-up from a poll.
#[cfg(feature = "crash-points")]
fn define_limits() {
    for (name, limit, flags) in [
        (c"xdb.test_claim_batch", &CLAIM_BATCH, NONE),
        (c"xdb.test_poll_interval", &POLL_INTERVAL_MS, MS),
        (c"xdb.test_max_threads", &MAX_THREADS, NONE),
    ] {
        GucRegistry::define_int_guc(name, c"A limit.", c"For tests.", limit, 1, i32::MAX, GucContext::Sighup, flags);
    }
}

/// The most commands of one wait.
const MAX_COMMANDS: usize = 1000;

/// The shortest time between two attempts of a call.
const MIN_RETRY_INTERVAL: Duration = Duration(100_000);

/// The longest timeout of a call that may be asked for.
pub const MAX_CALL_TIMEOUT: Duration = Duration(3_600_000_000);

/// The most local attributes of an execution.
pub const MAX_LOCAL_ATTRIBUTES: usize = 10_000;

/// The bytes that messages in queues may have, for each message that there may be.
const BYTES_OF_A_MESSAGE: usize = 2560;

/// Each setting once: its type and default, the range of a number, who may set it, its flags, its name, and what `pg_settings` says
/// of it.
macro_rules! settings {
    ($($setting:ident: $type:ident = $default:expr, $($least:literal..=$most:expr,)? $context:ident, $flags:ident,
        $name:literal, $short:literal, $long:literal;)*) => {
        $(pub static $setting: GucSetting<$type> = GucSetting::<$type>::new($default);)*

        /// Defines the settings, in every process that loads the library.
        pub fn define() {
            $(settings!(@$type $name, $short, $long, &$setting, $($least, $most,)? GucContext::$context, $flags);)*
            #[cfg(feature = "crash-points")]
            define_limits();
            crate::pg::clock_offset::define();
            crate::pg::settings::reserve_prefix();
        }
    };
    (@bool $($argument:expr),*) => { GucRegistry::define_bool_guc($($argument),*) };
    (@i32 $($argument:expr),*) => { GucRegistry::define_int_guc($($argument),*) };
    (@Text $($argument:expr),*) => { GucRegistry::define_string_guc($($argument),*) };
}

settings! {
    ENABLED: bool = true, Sighup, NONE,
        c"xdb.enabled", c"Runs processes in this server.",
        c"Off stops the schedulers of all databases; calls in flight are made again later. Functions that start, publish and stop go on working. Default on.";
    DATABASES: Text = Some(c""), Sighup, NONE,
        c"xdb.databases", c"Databases whose processes run.",
        c"A comma-separated list of names, in double quotes where they have commas, quotes, blanks or capitals; empty means every database that has the extension. Default empty.";
    MAX_IN_FLIGHT: i32 = 1024, 1..=100_000, Sighup, NONE,
        c"xdb.max_in_flight", c"Most calls of one scheduler that are under way at once.",
        c"Claiming stops there. Those beyond a third of max_files_per_process wait for a connection. Default 1024.";
    APPLY_TIMEOUT_MS: i32 = 250, 10..=60_000, Sighup, MS,
        c"xdb.apply_timeout", c"Longest time that a scheduler spends in users' tables in one turn, for all processes together.",
        c"What does not fit waits for the next turn. If one use of a table takes that long, the steps of its processes run in a runner for ten minutes. Default 250ms.";
    RUNNERS: i32 = 3, 1..=crate::pg::shmem::RUNNERS as i32, Sighup, NONE,
        c"xdb.runners", c"Most runners of a database: processes that carry out the steps of slow tables.",
        c"Each takes one of max_worker_processes while there is work for it. Default 3.";
    ALLOW_SUPERUSER_PROCESSES: bool = false, Suset, NONE,
        c"xdb.allow_superuser_processes", c"Lets superusers start processes.",
        c"Their steps would write users' tables with all rights. Default off.";
    RPC_TIMEOUT_MS: i32 = 10_000, 1..=3_600_000, Userset, MS,
        c"xdb.rpc_timeout", c"Longest time until the worker of an RPC has answered, waits included, where neither call nor definition says.",
        c"The caller's transaction stays open meanwhile. Default 10s.";
    TRACEPARENT: Text = Some(c""), Userset, NONE,
        c"xdb.traceparent", c"Trace context of what the session does, as the header traceparent of W3C has it.",
        c"A process that is started without one of its own has this one, and an RPC is sent with it. Default empty: none.";
    MAX_RESPONSE_KB: i32 = 4 * 1024, 1..=1024 * 1024, Suset, KB,
        c"xdb.max_response_size", c"Largest answer that is read from a worker.",
        c"A larger one fails the attempt. Default 4MB.";
    MAX_PAYLOAD_KB: i32 = 1024, 1..=256 * 1024, Suset, KB,
        c"xdb.max_payload_size", c"Largest size of one input, output, message or attribute.",
        c"A larger one is an error for a caller and a failed attempt for a worker. Default 1MB.";
    MAX_REQUEST_KB: i32 = 16 * 1024, 64..=512 * 1024, Suset, KB,
        c"xdb.max_request_size", c"Largest request to a worker.",
        c"What would be larger is not sent: the attempt fails, or the RPC. A JSON argument of a function, and the local attributes of an execution, may have as much. Default 16MB.";
    MAX_QUEUE_MESSAGES: i32 = 100_000, 1..=100_000_000, Suset, NONE,
        c"xdb.max_queue_messages", c"Most messages in the local queues of an execution, and in global queues of a role.",
        c"While there are as many, or 2560 bytes for each of them, publishing is refused. Those of a role are counted from time to time. Default 100000.";
    MAX_RUNNING_PROCESSES: i32 = 0, 0..=i32::MAX, Suset, NONE,
        c"xdb.max_running_processes", c"Most running processes of a role.",
        c"While there are as many, or more, starts are refused. Counted from time to time. Set for one role with ALTER ROLE; a session's own value has no effect. 0 means no limit. Default 0.";
    RETENTION_SECONDS: i32 = 7 * 86_400, -1..=i32::MAX, Sighup, SECONDS,
        c"xdb.retention", c"How long closed executions are kept.",
        c"Older ones are deleted, a few at a time. -1 keeps them until xdb.purge() is called. Default 7d.";
    ALLOWED_WORKER_HOSTS: Text = Some(c"localhost, 127.0.0.1, ::1"), Suset, SUPERUSER_ONLY,
        c"xdb.allowed_worker_hosts", c"Hosts that workers may live on.",
        c"Host names, *.suffix patterns, addresses and CIDR blocks that a worker's URL may resolve to, each with :port behind it or for all ports, separated by commas; checked at registration and at every connection. Default 'localhost, 127.0.0.1, ::1'.";
    SSL_CA_FILE: Text = Some(c""), Sighup, SUPERUSER_ONLY,
        c"xdb.ssl_ca_file", c"File with certificates of authorities that may certify workers.",
        c"In PEM; they are trusted besides those that browsers trust. Read again when the configuration is reloaded. Relative to the data directory. Default empty: no file.";
    SECRETS_DIRECTORY: Text = Some(c""), Sighup, SUPERUSER_ONLY,
        c"xdb.secrets_directory", c"Directory of the files that hold workers' secrets.",
        c"A worker whose secret is registered as file:NAME has it in the file of this name there. Read again when the configuration is reloaded. Relative to the data directory. Default empty: no such secret can be used.";
}

/// A string setting as Rust text.
pub fn text(setting: &GucSetting<Option<CString>>) -> String {
    setting.get().map(|value| value.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The largest accepted size of one input, message or attribute, in bytes.
pub fn max_payload_bytes() -> usize {
    MAX_PAYLOAD_KB.get() as usize * 1024
}

/// The largest accepted answer of a worker, in bytes.
pub fn max_response_bytes() -> usize {
    MAX_RESPONSE_KB.get() as usize * 1024
}

/// The largest request to a worker, and the largest JSON argument of most functions, in bytes.
pub fn max_request_bytes() -> usize {
    MAX_REQUEST_KB.get() as usize * 1024
}

/// The largest argument of `start_processes`, and of functions that take an array of process ids, in bytes.
pub fn max_bulk_bytes() -> usize {
    4 * max_request_bytes()
}

/// What one process may ask for.
pub fn quotas() -> Quotas {
    let queue_messages = MAX_QUEUE_MESSAGES.get() as usize;
    Quotas {
        commands: MAX_COMMANDS,
        threads: MAX_THREADS.get() as usize,
        retry_interval: MIN_RETRY_INTERVAL,
        call_timeout: MAX_CALL_TIMEOUT,
        queue_messages,
        queue_bytes: queue_messages.saturating_mul(BYTES_OF_A_MESSAGE),
    }
}

/// How long closed executions are kept; None: for ever.
pub fn retention() -> Option<Duration> {
    let seconds = RETENTION_SECONDS.get();
    (seconds >= 0).then(|| Duration(i64::from(seconds) * 1_000_000))
}

/// The names in a list as `xdb.databases` has it; none means all. `None` if it can't be read.
pub fn listed_databases(list: &str) -> Option<Vec<String>> {
    if list.trim().is_empty() { Some(Vec::new()) } else { crate::pg::names::split(list) }
}
