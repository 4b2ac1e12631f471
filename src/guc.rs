//! Settings. Each is documented in `docs/settings.md`.

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::collections::HashSet;
use std::ffi::CString;
use xdb_engine::{Duration, Quotas};

/// A setting that is text.
type Text = Option<CString>;

const NONE: GucFlags = GucFlags::empty();
const MS: GucFlags = GucFlags::UNIT_MS;
const KB: GucFlags = GucFlags::UNIT_KB;
const SECONDS: GucFlags = GucFlags::UNIT_S;
const SUPERUSER_ONLY: GucFlags = GucFlags::SUPERUSER_ONLY;

/// Each setting once: its type and default, the range of a number, who may set it, its flags, its name, and what `pg_settings` says
/// of it.
macro_rules! settings {
    ($($setting:ident: $type:ident = $default:expr, $($least:literal..=$most:expr,)? $context:ident, $flags:ident,
        $name:literal, $short:literal, $long:literal;)*) => {
        $(pub static $setting: GucSetting<$type> = GucSetting::<$type>::new($default);)*

        /// Defines the settings, in every process that loads the library.
        pub fn define() {
            $(settings!(@$type $name, $short, $long, &$setting, $($least, $most,)? GucContext::$context, $flags);)*
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
    MAX_IN_FLIGHT_KB: i32 = 128 * 1024, 64..=i32::MAX, Sighup, KB,
        c"xdb.max_in_flight_bytes", c"Most memory that the requests under way may take.",
        c"Claiming stops there. Default 128MB.";
    CLAIM_BATCH: i32 = 256, 1..=10_000, Sighup, NONE,
        c"xdb.claim_batch", c"Most calls, answers and timers that one turn of a scheduler takes.",
        c"Larger batches give more throughput and longer transactions. Default 256.";
    APPLY_TIMEOUT_MS: i32 = 250, 10..=60_000, Sighup, MS,
        c"xdb.apply_timeout", c"Longest time that a scheduler spends in users' tables in one turn, for all processes together.",
        c"What does not fit waits for the next turn. If one use of a table takes that long, the steps of its processes run in a runner for ten minutes. Default 250ms.";
    RUNNERS: i32 = 3, 1..=crate::pg::shmem::RUNNERS as i32, Sighup, NONE,
        c"xdb.runners", c"Most runners of a database: processes that carry out the steps of slow tables.",
        c"Each takes one of max_worker_processes while there is work for it. Default 3.";
    ALLOW_SUPERUSER_PROCESSES: bool = false, Suset, NONE,
        c"xdb.allow_superuser_processes", c"Lets superusers start processes.",
        c"Their steps would write users' tables with all rights. Default off.";
    POLL_INTERVAL_MS: i32 = 1000, 10..=3_600_000, Sighup, MS,
        c"xdb.poll_interval", c"Longest time between two scans for due work.",
        c"Commits wake the scheduler at once; this is the floor under wake-ups. Default 1s.";
    RPC_TIMEOUT_MS: i32 = 10_000, 1..=3_600_000, Userset, MS,
        c"xdb.rpc_timeout", c"Longest time that an RPC waits for its worker, where neither call nor definition says otherwise.",
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
        c"What would be larger is not sent: the attempt fails, or the RPC. A JSON argument of a function may have as much. Default 16MB.";
    MAX_COMMANDS: i32 = 1000, 1..=100_000, Suset, NONE,
        c"xdb.max_commands", c"Most commands of one wait.",
        c"A wait with more is an answer that can't be applied. Default 1000.";
    MAX_THREADS: i32 = 20_000, 1..=1_000_000, Suset, NONE,
        c"xdb.max_threads", c"Most threads of an execution that live at one time, most next states of an answer, and most timers of an execution.",
        c"An answer that would begin more can't be applied. Default 20000.";
    MAX_CALL_TIMEOUT_MS: i32 = 3_600_000, 1..=i32::MAX, Suset, MS,
        c"xdb.max_call_timeout", c"Longest timeout of a call that options may ask for.",
        c"More is an error for a caller and an answer that can't be applied. What is registered already goes on. Default 1h.";
    MAX_QUEUE_MESSAGES: i32 = 100_000, 1..=100_000_000, Suset, NONE,
        c"xdb.max_queue_messages", c"Most messages in the local queues of an execution, and in global queues of a role.",
        c"While there are as many, or more, publishing is refused. Counted from time to time. Default 100000.";
    MAX_QUEUE_KB: i32 = 256 * 1024, 1..=i32::MAX, Suset, KB,
        c"xdb.max_queue_bytes", c"Most bytes of messages in the local queues of an execution, and in global queues of a role.",
        c"While there are as many, or more, publishing is refused. Counted from time to time. Default 256MB.";
    MAX_RUNNING_PROCESSES: i32 = 0, 0..=i32::MAX, Suset, NONE,
        c"xdb.max_running_processes", c"Most running processes of a role.",
        c"While there are as many, or more, starts are refused. Counted from time to time. Set for one role with ALTER ROLE; a session's own value has no effect. 0 means no limit. Default 0.";
    MIN_RETRY_INTERVAL_MS: i32 = 100, 0..=3_600_000, Sighup, MS,
        c"xdb.min_retry_interval", c"Shortest time between two attempts of a call.",
        c"Shorter intervals of retry policies count as this one. Default 100ms.";
    MAX_BULK_KB: i32 = 64 * 1024, 64..=512 * 1024, Suset, KB,
        c"xdb.max_bulk_size", c"Largest argument of xdb.start_processes(), and of functions that take an array of process ids.",
        c"Default 64MB.";
    MAX_LOCAL_ATTRIBUTES: i32 = 10_000, 1..=1_000_000, Suset, NONE,
        c"xdb.max_local_attributes", c"Most local attributes of an execution.",
        c"More are an error for a caller and a failed attempt for a worker. Default 10000.";
    MAX_LOCAL_KB: i32 = 16 * 1024, 1..=512 * 1024, Suset, KB,
        c"xdb.max_local_bytes", c"Most bytes of an execution's local attributes, keys and values together.",
        c"More are an error for a caller and a failed attempt for a worker. Default 16MB.";
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
    DUMP_SECRETS: bool = false, Suset, NONE,
        c"xdb.dump_secrets", c"Lets pg_dump take along the secrets of workers that are in the database.",
        c"It counts in the session of pg_dump. Default off.";
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

/// The largest argument of `start_processes`, in bytes.
pub fn max_bulk_bytes() -> usize {
    MAX_BULK_KB.get() as usize * 1024
}

/// The most bytes of an execution's local attributes.
pub fn max_local_bytes() -> usize {
    MAX_LOCAL_KB.get() as usize * 1024
}

/// What one process may ask for.
pub fn quotas() -> Quotas {
    Quotas {
        commands: MAX_COMMANDS.get() as usize,
        threads: MAX_THREADS.get() as usize,
        retry_interval: Duration(i64::from(MIN_RETRY_INTERVAL_MS.get()) * 1000),
        call_timeout: max_call_timeout(),
        queue_messages: MAX_QUEUE_MESSAGES.get() as usize,
        queue_bytes: MAX_QUEUE_KB.get() as usize * 1024,
    }
}

/// The longest timeout of a call that may be asked for.
pub fn max_call_timeout() -> Duration {
    Duration(i64::from(MAX_CALL_TIMEOUT_MS.get()) * 1000)
}

/// How long closed executions are kept; None: for ever.
pub fn retention() -> Option<Duration> {
    let seconds = RETENTION_SECONDS.get();
    (seconds >= 0).then(|| Duration(i64::from(seconds) * 1_000_000))
}

/// The names in a list as `xdb.databases` has it; none means all. `None` if it can't be read.
///
/// Where there are no quotes, names are also taken as they are written: so the list was read before it could have quotes.
pub fn listed_databases(list: &str) -> Option<HashSet<String>> {
    let as_sql = if list.trim().is_empty() { Some(Vec::new()) } else { crate::pg::names::split(list) };
    if list.contains('"') {
        return as_sql.map(HashSet::from_iter);
    }
    let as_written = list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    Some(as_written.chain(as_sql.into_iter().flatten()).collect())
}
