//! Settings. `docs/settings.md` documents each.

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::ffi::CString;
use xdb_engine::{Duration, Quotas};

/// The type of a text setting.
type Text = Option<CString>;

const NONE: GucFlags = GucFlags::empty();
const MS: GucFlags = GucFlags::UNIT_MS;
const KB: GucFlags = GucFlags::UNIT_KB;
const SECONDS: GucFlags = GucFlags::UNIT_S;
const SUPERUSER_ONLY: GucFlags = GucFlags::SUPERUSER_ONLY;

/// The most items of each kind that one turn takes: answers, timers, processes with messages, and due calls per worker
/// and owner. A larger value gives more throughput and longer transactions.
pub static CLAIM_BATCH: GucSetting<i32> = GucSetting::<i32>::new(256);

/// The longest time between two scans for due work. Commits wake the scheduler at once. The scan finds work whose
/// wake-up was lost.
pub static POLL_INTERVAL_MS: GucSetting<i32> = GucSetting::<i32>::new(1000);

/// The most threads that one execution has at a time, and the most timers that its states wait for.
pub static MAX_THREADS: GucSetting<i32> = GucSetting::<i32>::new(Quotas::FIXED.threads as i32);

/// Makes settings of these three limits, in test builds only. Without them a test would need thousands of processes to
/// reach a limit, and couldn't tell a wake-up from a poll.
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

/// The longest timeout of a call that a definition or an answer may set.
pub const MAX_CALL_TIMEOUT: Duration = Quotas::FIXED.call_timeout;

/// The most local attributes of an execution.
pub const MAX_LOCAL_ATTRIBUTES: usize = 10_000;

/// The limit on the bytes of queued messages, per message of `xdb.max_queue_messages`.
const BYTES_OF_A_MESSAGE: usize = 2560;

/// Lists each setting once: type, default, range of a number, context, flags, name, and the two descriptions in
/// `pg_settings`.
macro_rules! settings {
    ($($setting:ident: $type:ident = $default:expr, $($least:literal..=$most:expr,)? $context:ident, $flags:ident,
        $name:literal, $short:literal, $long:literal;)*) => {
        $(pub static $setting: GucSetting<$type> = GucSetting::<$type>::new($default);)*

        /// Defines the settings. Every process that loads the library calls it.
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
        c"If off, the schedulers of all databases stop, and calls under way are retried later. Functions that start, publish and stop still work. Default on.";
    DATABASES: Text = Some(c""), Sighup, NONE,
        c"xdb.databases", c"Databases whose processes run.",
        c"A comma-separated list. Names with commas, quotes, blanks or capitals need double quotes. Empty means every database that has the extension. Default empty.";
    MAX_IN_FLIGHT: i32 = 1024, 1..=100_000, Sighup, NONE,
        c"xdb.max_in_flight", c"Maximum number of calls of one scheduler that are under way.",
        c"At the limit the scheduler claims no more calls. Calls beyond a third of max_files_per_process wait for a connection. Default 1024.";
    APPLY_TIMEOUT_MS: i32 = 250, 10..=60_000, Sighup, MS,
        c"xdb.apply_timeout", c"Maximum time per turn that a scheduler spends in tables of the application, for all processes together.",
        c"Steps that do not fit wait for the next turn. If one use of a table takes that long, the steps of its processes run in a runner for ten minutes. Default 250ms.";
    RUNNERS: i32 = 3, 1..=crate::pg::shmem::RUNNERS as i32, Sighup, NONE,
        c"xdb.runners", c"Maximum number of runners of a database. Runners call functions in place of workers, and run the steps of slow tables.",
        c"Each runner takes one of max_worker_processes while it has work. Default 3.";
    ALLOW_SUPERUSER_PROCESSES: bool = false, Suset, NONE,
        c"xdb.allow_superuser_processes", c"Lets superusers start processes, and invoke RPCs that use mapped tables or functions.",
        c"Steps of such processes write tables of the application with all rights. Default off.";
    RPC_TIMEOUT_MS: i32 = 10_000, 1..=3_600_000, Userset, MS,
        c"xdb.rpc_timeout", c"Maximum time of an RPC, waits included, if neither the call nor the definition sets one.",
        c"The caller's transaction stays open for that time. Default 10s.";
    TRACEPARENT: Text = Some(c""), Userset, NONE,
        c"xdb.traceparent", c"Trace context of the session, in the format of the W3C header traceparent.",
        c"Processes that are started without a traceparent of their own get this one, and RPCs send it. Default empty: none.";
    MAX_RESPONSE_KB: i32 = 4 * 1024, 1..=1024 * 1024, Suset, KB,
        c"xdb.max_response_size", c"Maximum size of an answer of a worker.",
        c"A larger answer fails the attempt. Default 4MB.";
    MAX_PAYLOAD_KB: i32 = 1024, 1..=256 * 1024, Suset, KB,
        c"xdb.max_payload_size", c"Maximum size of one input, output, message or attribute.",
        c"A larger value is an error for a caller and a failed attempt for a worker. Default 1MB.";
    MAX_REQUEST_KB: i32 = 16 * 1024, 64..=512 * 1024, Suset, KB,
        c"xdb.max_request_size", c"Maximum size of a request to a worker.",
        c"A larger request is not sent: the attempt or the RPC fails. The limit also holds for a JSON argument of a function, and for the local attributes of an execution. Default 16MB.";
    MAX_QUEUE_MESSAGES: i32 = 100_000, 1..=100_000_000, Suset, NONE,
        c"xdb.max_queue_messages", c"Maximum number of messages in the local queues of an execution, and in global queues of a role.",
        c"At the limit, or at 2560 bytes times the limit, publishing is refused. Messages of a role are counted every ten seconds. Default 100000.";
    MAX_RUNNING_PROCESSES: i32 = 0, 0..=i32::MAX, Suset, NONE,
        c"xdb.max_running_processes", c"Maximum number of running processes of a role.",
        c"At the limit, starts are refused. Running processes are counted every ten seconds. ALTER ROLE sets the limit of one role; a session's own value has no effect. 0 means no limit. Default 0.";
    RETENTION_SECONDS: i32 = 7 * 86_400, -1..=i32::MAX, Sighup, SECONDS,
        c"xdb.retention", c"How long closed executions are kept.",
        c"Older executions are deleted in small batches. -1 keeps them until xdb.purge() is called. Default 7d.";
    ALLOWED_WORKER_HOSTS: Text = Some(c"localhost, 127.0.0.1, ::1"), Suset, SUPERUSER_ONLY,
        c"xdb.allowed_worker_hosts", c"Hosts that workers may run on.",
        c"A comma-separated list of host names, *.suffix patterns, addresses and CIDR blocks, each with an optional :port. Checked at registration and at every connection. Default 'localhost, 127.0.0.1, ::1'.";
    SSL_CA_FILE: Text = Some(c""), Sighup, SUPERUSER_ONLY,
        c"xdb.ssl_ca_file", c"File with certificates of authorities that sign certificates of workers.",
        c"PEM format. These authorities are trusted in addition to those that browsers trust. The file is read again when the configuration is reloaded. Relative to the data directory. Default empty: no file.";
    SECRETS_DIRECTORY: Text = Some(c""), Sighup, SUPERUSER_ONLY,
        c"xdb.secrets_directory", c"Directory of the files that hold workers' secrets.",
        c"The secret of a worker that is registered with file:NAME is in the file NAME of this directory. Files are read again when the configuration is reloaded. Relative to the data directory. Default empty: no such secret can be used.";
}

/// The value of a text setting.
pub fn text(setting: &GucSetting<Option<CString>>) -> String {
    setting.get().map(|value| value.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The largest input, message or attribute, in bytes.
pub fn max_payload_bytes() -> usize {
    MAX_PAYLOAD_KB.get() as usize * 1024
}

/// The largest answer of a worker, in bytes.
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

/// The limits of one process, from the settings and the constants above.
pub fn quotas() -> Quotas {
    let queue_messages = MAX_QUEUE_MESSAGES.get() as usize;
    Quotas {
        threads: MAX_THREADS.get() as usize,
        queue_messages,
        queue_bytes: queue_messages.saturating_mul(BYTES_OF_A_MESSAGE),
        ..Quotas::FIXED
    }
}

/// How long closed executions are kept. None: for ever.
pub fn retention() -> Option<Duration> {
    let seconds = RETENTION_SECONDS.get();
    (seconds >= 0).then(|| Duration(i64::from(seconds) * 1_000_000))
}

/// The names in a list such as `xdb.databases`. An empty list means all databases. None if the list can't be parsed.
pub fn listed_databases(list: &str) -> Option<Vec<String>> {
    if list.trim().is_empty() { Some(Vec::new()) } else { crate::pg::names::split(list) }
}
