//! Settings. Each is documented in `docs/settings.md`.

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::collections::HashSet;
use std::ffi::CString;
use xdb_engine::{Duration, Quotas};

pub static ENABLED: GucSetting<bool> = GucSetting::<bool>::new(true);
pub static DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
pub static MAX_IN_FLIGHT: GucSetting<i32> = GucSetting::<i32>::new(1024);
pub static MAX_IN_FLIGHT_KB: GucSetting<i32> = GucSetting::<i32>::new(128 * 1024);
pub static CLAIM_BATCH: GucSetting<i32> = GucSetting::<i32>::new(256);
pub static RUNNERS: GucSetting<i32> = GucSetting::<i32>::new(2);
pub static APPLY_TIMEOUT_MS: GucSetting<i32> = GucSetting::<i32>::new(250);
pub static ALLOW_SUPERUSER_PROCESSES: GucSetting<bool> = GucSetting::<bool>::new(false);
pub static POLL_INTERVAL_MS: GucSetting<i32> = GucSetting::<i32>::new(1000);
pub static RPC_TIMEOUT_MS: GucSetting<i32> = GucSetting::<i32>::new(10_000);
pub static MAX_RESPONSE_KB: GucSetting<i32> = GucSetting::<i32>::new(4 * 1024);
pub static MAX_PAYLOAD_KB: GucSetting<i32> = GucSetting::<i32>::new(1024);
pub static MAX_REQUEST_KB: GucSetting<i32> = GucSetting::<i32>::new(16 * 1024);
pub static MAX_BULK_KB: GucSetting<i32> = GucSetting::<i32>::new(64 * 1024);
pub static MAX_LOCAL_ATTRIBUTES: GucSetting<i32> = GucSetting::<i32>::new(10_000);
pub static MAX_LOCAL_KB: GucSetting<i32> = GucSetting::<i32>::new(16 * 1024);
pub static MAX_COMMANDS: GucSetting<i32> = GucSetting::<i32>::new(1000);
pub static MAX_THREADS: GucSetting<i32> = GucSetting::<i32>::new(20_000);
pub static MAX_CALL_TIMEOUT_MS: GucSetting<i32> = GucSetting::<i32>::new(3_600_000);
pub static MAX_QUEUE_MESSAGES: GucSetting<i32> = GucSetting::<i32>::new(100_000);
pub static MAX_QUEUE_KB: GucSetting<i32> = GucSetting::<i32>::new(256 * 1024);
pub static MAX_RUNNING_PROCESSES: GucSetting<i32> = GucSetting::<i32>::new(0);
pub static MIN_RETRY_INTERVAL_MS: GucSetting<i32> = GucSetting::<i32>::new(100);
pub static RETENTION_SECONDS: GucSetting<i32> = GucSetting::<i32>::new(7 * 86_400);
pub static ALLOWED_WORKER_HOSTS: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c"localhost, 127.0.0.1, ::1"));
pub static TRACEPARENT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
pub static SSL_CA_FILE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
pub static SECRETS_DIRECTORY: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
pub static DUMP_SECRETS: GucSetting<bool> = GucSetting::<bool>::new(false);

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

/// Defines the settings, in every process that loads the library.
// Long because it is a list.
pub fn define() {
    let none = GucFlags::default();
    let (ms, kb) = (GucFlags::UNIT_MS, GucFlags::UNIT_KB);
    GucRegistry::define_bool_guc(
        c"xdb.enabled",
        c"Runs processes in this server.",
        c"Off stops the schedulers of all databases; calls in flight are made again later. Functions that start, publish and stop go on working. Default on.",
        &ENABLED,
        GucContext::Sighup,
        none,
    );
    GucRegistry::define_string_guc(
        c"xdb.databases",
        c"Databases whose processes run.",
        c"A comma-separated list of names, in double quotes where they have commas, quotes, blanks or capitals; empty means every database that has the extension. Default empty.",
        &DATABASES,
        GucContext::Sighup,
        none,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_in_flight",
        c"Most calls of one scheduler that are under way at once.",
        c"Claiming stops there. Those beyond a third of max_files_per_process wait for a connection. Default 1024.",
        &MAX_IN_FLIGHT,
        1,
        100_000,
        GucContext::Sighup,
        none,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_in_flight_bytes",
        c"Most memory that the requests under way may take.",
        c"Claiming stops there. Default 128MB.",
        &MAX_IN_FLIGHT_KB,
        64,
        i32::MAX,
        GucContext::Sighup,
        kb,
    );
    GucRegistry::define_int_guc(
        c"xdb.claim_batch",
        c"Most calls, answers and timers that one turn of a scheduler takes.",
        c"Larger batches give more throughput and longer transactions. Default 256.",
        &CLAIM_BATCH,
        1,
        10_000,
        GucContext::Sighup,
        none,
    );
    GucRegistry::define_int_guc(
        c"xdb.apply_timeout",
        c"Longest time that a scheduler spends in users' tables in one turn, for all processes together.",
        c"What does not fit waits for the next turn. A table that takes so long in one use is slow: the steps of its processes are a runner's, one by one, until it is quick again. Default 250ms.",
        &APPLY_TIMEOUT_MS,
        10,
        60_000,
        GucContext::Sighup,
        ms,
    );
    GucRegistry::define_int_guc(
        c"xdb.runners",
        c"Most runners of a database: processes that carry out the steps of slow tables.",
        c"Each takes one of max_worker_processes while there is work for it. Default 2.",
        &RUNNERS,
        1,
        crate::pg::shmem::RUNNERS as i32,
        GucContext::Sighup,
        none,
    );
    GucRegistry::define_bool_guc(
        c"xdb.allow_superuser_processes",
        c"Lets superusers start processes.",
        c"Their steps would write users' tables with all rights. Default off.",
        &ALLOW_SUPERUSER_PROCESSES,
        GucContext::Suset,
        none,
    );
    GucRegistry::define_int_guc(
        c"xdb.poll_interval",
        c"Longest time between two scans for due work.",
        c"Commits wake the scheduler at once; this is the floor under wake-ups. Default 1s.",
        &POLL_INTERVAL_MS,
        10,
        3_600_000,
        GucContext::Sighup,
        ms,
    );
    GucRegistry::define_int_guc(
        c"xdb.rpc_timeout",
        c"Longest time that an RPC waits for its worker, where neither call nor definition says otherwise.",
        c"The caller's transaction stays open meanwhile. Default 10s.",
        &RPC_TIMEOUT_MS,
        1,
        3_600_000,
        GucContext::Userset,
        ms,
    );
    GucRegistry::define_string_guc(
        c"xdb.traceparent",
        c"Trace context of what the session does, as the header traceparent of W3C has it.",
        c"A process that is started without one of its own has this one, and an RPC is sent with it. Default empty: none.",
        &TRACEPARENT,
        GucContext::Userset,
        none,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_response_size",
        c"Largest answer that is read from a worker.",
        c"A larger one fails the attempt. Default 4MB.",
        &MAX_RESPONSE_KB,
        1,
        1024 * 1024,
        GucContext::Suset,
        kb,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_payload_size",
        c"Largest size of one input, output, message or attribute.",
        c"A larger one is an error for a caller and a failed attempt for a worker. Default 1MB.",
        &MAX_PAYLOAD_KB,
        1,
        256 * 1024,
        GucContext::Suset,
        kb,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_request_size",
        c"Largest request to a worker.",
        c"What would be larger is not sent: the attempt fails, or the RPC. A JSON argument of a function may have as much. Default 16MB.",
        &MAX_REQUEST_KB,
        64,
        512 * 1024,
        GucContext::Suset,
        kb,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_commands",
        c"Most commands of one wait.",
        c"A wait with more is an answer that can't be applied. Default 1000.",
        &MAX_COMMANDS,
        1,
        100_000,
        GucContext::Suset,
        none,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_threads",
        c"Most threads of an execution that live at one time, most next states of an answer, and most timers of an execution.",
        c"An answer that would begin more can't be applied. Default 20000.",
        &MAX_THREADS,
        1,
        1_000_000,
        GucContext::Suset,
        none,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_call_timeout",
        c"Longest timeout of a call that options may ask for.",
        c"More is an error for a caller and an answer that can't be applied. What is registered already goes on. Default 1h.",
        &MAX_CALL_TIMEOUT_MS,
        1,
        i32::MAX,
        GucContext::Suset,
        ms,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_queue_messages",
        c"Most messages in the local queues of an execution, and in global queues of a role.",
        c"While there are as many, or more, publishing is refused. Counted from time to time. Default 100000.",
        &MAX_QUEUE_MESSAGES,
        1,
        100_000_000,
        GucContext::Suset,
        none,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_queue_bytes",
        c"Most bytes of messages in the local queues of an execution, and in global queues of a role.",
        c"While there are as many, or more, publishing is refused. Counted from time to time. Default 256MB.",
        &MAX_QUEUE_KB,
        1,
        i32::MAX,
        GucContext::Suset,
        kb,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_running_processes",
        c"Most running processes of a role.",
        c"While there are as many, or more, starts are refused. Counted from time to time. Set for one role with ALTER ROLE; a session's own value has no effect. 0 means no limit. Default 0.",
        &MAX_RUNNING_PROCESSES,
        0,
        i32::MAX,
        GucContext::Suset,
        none,
    );
    GucRegistry::define_int_guc(
        c"xdb.min_retry_interval",
        c"Shortest time between two attempts of a call.",
        c"Shorter intervals of retry policies count as this one. Default 100ms.",
        &MIN_RETRY_INTERVAL_MS,
        0,
        3_600_000,
        GucContext::Sighup,
        ms,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_bulk_size",
        c"Largest argument of xdb.start_processes().",
        c"Default 64MB.",
        &MAX_BULK_KB,
        64,
        512 * 1024,
        GucContext::Suset,
        kb,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_local_attributes",
        c"Most local attributes of an execution.",
        c"More are an error for a caller and a failed attempt for a worker. Default 10000.",
        &MAX_LOCAL_ATTRIBUTES,
        1,
        1_000_000,
        GucContext::Suset,
        none,
    );
    GucRegistry::define_int_guc(
        c"xdb.max_local_bytes",
        c"Most bytes of an execution's local attributes, keys and values together.",
        c"More are an error for a caller and a failed attempt for a worker. Default 16MB.",
        &MAX_LOCAL_KB,
        1,
        512 * 1024,
        GucContext::Suset,
        kb,
    );
    GucRegistry::define_int_guc(
        c"xdb.retention",
        c"How long closed executions are kept.",
        c"Older ones are deleted, a few at a time. -1 keeps them until xdb.purge() is called. Default 7d.",
        &RETENTION_SECONDS,
        -1,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_string_guc(
        c"xdb.allowed_worker_hosts",
        c"Hosts that workers may live on.",
        c"Host names, *.suffix patterns, addresses and CIDR blocks that a worker's URL may resolve to, each with :port behind it or for all ports, separated by commas; checked at registration and at every connection. Default 'localhost, 127.0.0.1, ::1'.",
        &ALLOWED_WORKER_HOSTS,
        GucContext::Suset,
        GucFlags::SUPERUSER_ONLY,
    );
    GucRegistry::define_string_guc(
        c"xdb.ssl_ca_file",
        c"File with certificates of authorities that may certify workers.",
        c"In PEM; they are trusted besides those that browsers trust. Read again when the configuration is reloaded. Relative to the data directory. Default empty: no file.",
        &SSL_CA_FILE,
        GucContext::Sighup,
        GucFlags::SUPERUSER_ONLY,
    );
    GucRegistry::define_string_guc(
        c"xdb.secrets_directory",
        c"Directory of the files that hold workers' secrets.",
        c"A worker whose secret is registered as file:NAME has it in the file of this name there. Read again when the configuration is reloaded. Relative to the data directory. Default empty: no such secret can be used.",
        &SECRETS_DIRECTORY,
        GucContext::Sighup,
        GucFlags::SUPERUSER_ONLY,
    );
    GucRegistry::define_bool_guc(
        c"xdb.dump_secrets",
        c"Lets pg_dump take along the secrets of workers that are in the database.",
        c"It counts in the session of pg_dump. Default off.",
        &DUMP_SECRETS,
        GucContext::Suset,
        none,
    );
    crate::pg::clock_offset::define();
    crate::pg::settings::reserve_prefix();
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
