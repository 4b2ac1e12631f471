//! The errors of the extension, one function each. SQLSTATE class `XD`; `docs/errors.md` lists them.

use crate::pg::catch::{PgError, sqlstate};
use xdb_engine::{Quotas, Rejection, StateExecutionId};

/// As the server's own refusals.
const INSUFFICIENT_PRIVILEGE: i32 = sqlstate(b"42501");

/// Somebody wants more than there may be.
const QUOTA_EXCEEDED: i32 = sqlstate(b"XD029");

/// How much of a word that means nothing is repeated.
const SHOWN_CHARACTERS: usize = 100;

/// A message as a DETAIL: with a capital and a full stop.
fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    let stop = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{stop}", characters.as_str())
}

pub fn unknown_process(process_id: &str) -> PgError {
    PgError::new(sqlstate(b"XD001"), format!("unknown process \"{process_id}\""))
}

pub fn unknown_process_type(name: &str) -> PgError {
    PgError::new(sqlstate(b"XD002"), format!("unknown process type \"{name}\""))
}

pub fn unknown_state(name: &str) -> PgError {
    PgError::new(sqlstate(b"XD003"), format!("unknown state \"{name}\""))
}

pub fn unknown_state_execution(id: &StateExecutionId) -> PgError {
    PgError::new(sqlstate(b"XD003"), format!("unknown state execution \"{id}\""))
}

pub fn unknown_queue(name: &str) -> PgError {
    PgError::new(sqlstate(b"XD004"), format!("unknown local queue \"{name}\""))
        .hint("The process type lists its queues in \"localQueues\".")
}

pub fn unknown_global_queue(name: &str) -> PgError {
    PgError::new(sqlstate(b"XD004"), format!("unknown global queue \"{name}\""))
        .hint("The process type lists its queues in \"globalQueues\".")
}

pub fn unknown_worker(name: &str) -> PgError {
    PgError::new(sqlstate(b"XD005"), format!("unknown worker \"{name}\""))
}

pub fn already_started(process_id: &str, why: &str) -> PgError {
    PgError::new(sqlstate(b"XD006"), format!("process \"{process_id}\" was already started")).detail(why)
}

pub fn not_running(process_id: &str, why: impl Into<String>) -> PgError {
    PgError::new(sqlstate(b"XD007"), format!("process \"{process_id}\" is not running")).detail(why)
}

pub fn invalid_definition(what: impl std::fmt::Display) -> PgError {
    PgError::new(sqlstate(b"XD008"), format!("invalid definition of a process type: {what}"))
}

pub fn invalid_argument(name: &str, what: impl std::fmt::Display) -> PgError {
    PgError::new(sqlstate(b"XD009"), format!("invalid value for {name}: {what}"))
}

/// An argument that must not be NULL is.
pub fn missing(name: &str) -> PgError {
    invalid_argument(name, "it must not be null")
}

/// A word that is none of the known ones.
pub fn unknown_word(name: &str, word: &str, known: &[&str]) -> PgError {
    let (short, more) = match word.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => (&word[..end], "…"),
        None => (word, ""),
    };
    let error = invalid_argument(name, format_args!("\"{short}{more}\" is unknown"));
    if known.is_empty() { error } else { error.hint(format!("Known are {}.", known.join(", "))) }
}

pub fn worker_failed(rpc_name: &str, what: impl AsRef<str>) -> PgError {
    PgError::new(sqlstate(b"XD010"), format!("RPC \"{rpc_name}\" failed in its worker")).detail(sentence(what.as_ref()))
}

pub fn locks_not_granted(rpc_name: &str, what: &str) -> PgError {
    PgError::new(sqlstate(b"XD020"), format!("RPC \"{rpc_name}\" did not get its locks in time"))
        .detail(format!("It waited for {what}."))
        .hint("Another transaction has them: pg_catalog.pg_blocking_pids() says whose, while it waits.")
}

pub fn local_attributes_changed(rpc_name: &str) -> PgError {
    let what = format!("could not serialize access: what RPC \"{rpc_name}\" has read of local attributes has changed");
    PgError::new(crate::pg::catch::SERIALIZATION_FAILURE, what)
}

/// A session has no thread or no descriptor for its connection to workers.
pub fn no_client(why: &std::io::Error) -> PgError {
    PgError::new(sqlstate(b"53000"), format!("no connection to workers can be made: {why}"))
        .hint("The server is short of descriptors or threads. Nothing was called: call again.")
}

pub fn subscribed(subscriptions: &[String]) -> PgError {
    PgError::new(sqlstate(b"XD021"), "a subscription replicates into the tables of xdb")
        .detail(format!("Subscriptions: {}.", subscriptions.join(", ")))
        .hint("Drop it when all has arrived, then adopt.")
}

pub fn not_preloaded() -> PgError {
    PgError::new(sqlstate(b"XD011"), "xdb is not loaded at server start")
        .hint("Add this line to postgresql.conf and restart the server: shared_preload_libraries = 'xdb'")
}

pub fn standby() -> PgError {
    PgError::new(sqlstate(b"XD012"), "this server is a standby")
        .hint("Processes run on the primary; here the views of schema xdb can be read.")
}

pub fn own_writes() -> PgError {
    PgError::new(sqlstate(b"XD014"), "this transaction would wait for its own uncommitted changes")
        .hint("Commit first, then wait.")
}

pub fn payload(name: &str, what: impl std::fmt::Display) -> PgError {
    PgError::new(sqlstate(b"XD015"), format!("{name} {what}"))
}

pub fn local_attributes_too_large(has: impl std::fmt::Display, most: impl std::fmt::Display) -> PgError {
    let what = format!("the process would have too many local attributes: {has}, and {most} are allowed");
    PgError::new(sqlstate(b"XD015"), what).hint("The settings are xdb.max_local_attributes and xdb.max_local_bytes.")
}

pub fn request_too_large(bytes: usize, most: usize) -> PgError {
    let what = format!("what the call would send has {bytes} bytes, and xdb.max_request_size is {most}");
    PgError::new(sqlstate(b"XD015"), what)
}

pub fn inside_engine(function: &str) -> PgError {
    PgError::new(sqlstate(b"XD016"), format!("{function} can't be called while the engine applies a step"))
        .hint("A trigger on a table that a process writes may start, publish and stop, but not wait or call.")
}

pub fn host_not_allowed(what: impl AsRef<str>) -> PgError {
    PgError::new(sqlstate(b"XD017"), "the worker's host is not allowed")
        .detail(sentence(what.as_ref()))
        .hint("A superuser can extend xdb.allowed_worker_hosts.")
}

pub fn in_use(what: impl Into<String>, why: impl Into<String>) -> PgError {
    PgError::new(sqlstate(b"XD018"), what).detail(why)
}

pub fn superuser_process() -> PgError {
    PgError::new(sqlstate(b"XD013"), "superusers can't start processes here")
        .detail("The steps of a process run with the rights of the role that started it.")
        .hint("Use an ordinary role, or set xdb.allow_superuser_processes.")
}

pub fn superuser_rpc() -> PgError {
    PgError::new(sqlstate(b"XD013"), "superusers can't invoke RPCs here that use mapped tables")
        .detail("Triggers and policies of these tables run with the rights of the caller.")
        .hint("Use an ordinary role, with SET ROLE, or set xdb.allow_superuser_processes.")
}

/// Somebody changes, removes or uses what another role has registered. `owner` is its name, if it is there.
pub fn not_registered_by(what: &str, name: &str, owner: Option<&str>) -> PgError {
    let detail = match owner {
        Some(owner) => format!("It belongs to role \"{owner}\"."),
        None => "It belongs to no role that is there.".to_owned(),
    };
    PgError::new(INSUFFICIENT_PRIVILEGE, format!("permission denied for {what} \"{name}\"")).detail(detail).hint(
        "Members of the role that has registered it, and superusers, may do this. xdb.reassign_owned() gives it to another role.",
    )
}

/// A secret that is in the server and not in the database.
pub fn may_not_refer() -> PgError {
    PgError::new(INSUFFICIENT_PRIVILEGE, "permission denied to refer to a secret")
        .detail("The secret is in a file or the environment of the server.")
        .hint("Only a superuser may give such a secret to a worker. Whoever the worker belongs to may name it again afterwards.")
}

/// Whoever maps a table must be allowed what the steps of processes do in it.
pub fn may_not_map(table: &str, missing: &str) -> PgError {
    table_denied(table)
        .detail(format!("To map it, the current role lacks {missing} on what is mapped of it."))
        .hint("Whoever maps a table needs SELECT and INSERT on the columns of the key and the attributes, and UPDATE on the latter.")
}

pub fn may_not_reassign() -> PgError {
    PgError::new(INSUFFICIENT_PRIVILEGE, "permission denied to reassign what a role owns")
        .hint("Only a superuser, or a member of both roles, may do this.")
}

pub fn not_adopted() -> PgError {
    PgError::new(sqlstate(b"55000"), "the owners in this database are roles of another server")
        .hint("Run xdb.adopt() first.")
}

pub fn missing_owners(names: &[String]) -> PgError {
    PgError::new(sqlstate(b"XD021"), "roles that own running processes are missing")
        .detail(format!("There is no role {}.", names.join(", ")))
        .hint("Create them, or stop the processes of these roles, and adopt the database then.")
}

/// As the server itself says it, who would lock the table first.
pub fn table_denied(name: &str) -> PgError {
    PgError::new(INSUFFICIENT_PRIVILEGE, format!("permission denied for table {name}"))
}

/// `which` names them.
pub fn missing_types(which: &str) -> PgError {
    PgError::new(sqlstate(b"XD021"), "process types of running processes are not registered")
        .detail(format!("Missing: {which}."))
        .hint(
            "Register them again with xdb.register_process_type(), or stop these processes, and adopt the database then.",
        )
}

/// Somebody asks for more than a process may have. `what` names the setting and its value.
pub fn over_quota(what: impl Into<String>) -> PgError {
    PgError::new(QUOTA_EXCEEDED, what.into()).hint("Ask for less, or have a superuser raise the setting.")
}

pub fn queue_full(queue: &str, process_id: &str, quotas: &Quotas) -> PgError {
    PgError::new(QUOTA_EXCEEDED, format!("local queue \"{queue}\" of process \"{process_id}\" is full"))
        .detail(format!("Its limits are reached: {}.", quotas.of_queues()))
        .hint("Publish again when the process has taken messages. Full queues are counted every ten seconds.")
}

pub fn global_queues_full(quotas: &Quotas) -> PgError {
    PgError::new(QUOTA_EXCEEDED, "the current role has no room for more messages in global queues")
        .detail(format!("Its limits are reached: {}.", quotas.of_queues()))
        .hint("Publish again when messages of it have been used up. They are counted every ten seconds.")
}

pub fn too_many_running(limit: u32) -> PgError {
    let what =
        format!("the current role has as many running processes as it may: xdb.max_running_processes is {limit}");
    PgError::new(QUOTA_EXCEEDED, what).hint(
        "Start again when some have ended, which are counted every ten seconds; or have a superuser raise the limit with ALTER ROLE.",
    )
}

pub fn other_schema(reason: String, remedy: String) -> PgError {
    PgError::new(sqlstate(b"XD022"), reason).hint(remedy)
}

/// A refused command of a caller as the caller's error.
pub fn rejected(process_id: &str, rejection: &Rejection) -> PgError {
    match rejection {
        Rejection::NotRunning(status) => not_running(process_id, format!("Its status is {status}.")),
        Rejection::UnknownState(name) => unknown_state(name),
        Rejection::UnknownQueue(name) => unknown_queue(name),
        Rejection::UnknownGlobalQueue(name) => unknown_global_queue(name),
        Rejection::UnknownLocalAttribute(_) | Rejection::UnknownGlobalAttribute(_) | Rejection::InvalidOptions(_) => {
            PgError::new(sqlstate(b"XD009"), rejection.to_string())
        }
        Rejection::OverQuota(what) => over_quota(what),
        Rejection::NoTimer(_) => {
            PgError::new(sqlstate(b"XD019"), rejection.to_string()).hint("xdb.waits shows what it waits for.")
        }
        Rejection::Stale | Rejection::InvalidAnswer(_) | Rejection::UnusedInput => {
            PgError::internal(rejection.to_string())
        }
    }
}
