//! The errors of the extension, one function for each. Their SQLSTATEs have the class `XD`, or are those of Postgres.
//! `docs/errors.md` lists them. Errors that don't depend on a server have their texts in
//! `crates/protocol/src/refusal.rs`.

use crate::pg::catch::{PgError, sqlstate};
use xdb_engine::{ExecutionId, Failure, NOT_REGISTERED, Pause, Quotas, Rejection, StateExecutionId};
use xdb_protocol::refusal::{self, Refusal, sentence};

/// The SQLSTATE of Postgres for a missing privilege.
const INSUFFICIENT_PRIVILEGE: i32 = sqlstate(b"42501");

impl PgError {
    fn of(code: &[u8; 5], message: String) -> Self {
        Self::new(sqlstate(code), message)
    }
}

impl From<Refusal> for PgError {
    fn from(refusal: Refusal) -> Self {
        let mut error = Self::of(refusal.code(), refusal.message);
        (error.detail, error.hint) = (refusal.detail, refusal.hint);
        error.of_datatype(refusal.datatype)
    }
}

/// Makes a function for each error whose text is in the protocol crate.
macro_rules! refusals {
    ($($name:ident($($argument:ident: $of:ty),+);)+) => {
        $(pub fn $name($($argument: $of),+) -> PgError { refusal::$name($($argument),+).into() })+
    };
}

refusals! {
    unknown_process(process_id: &str);
    unknown_process_type(name: &str);
    unknown_state(name: &str);
    unknown_step(id: &StateExecutionId);
    unknown_queue(name: &str, known: &str);
    already_started(process_id: &str, why: &str, hint: &str);
    no_worker_for_rpc(rpc_name: &str);
    reuse_refused(process_id: &str, latest: ExecutionId, why: &str);
    not_running(process_id: &str, why: impl Into<String>);
    invalid_definition(what: impl std::fmt::Display);
    invalid_argument(name: &str, what: impl std::fmt::Display);
    unknown_word(name: &str, word: &str, known: &[&str]);
    worker_failed(rpc_name: &str, what: impl AsRef<str>);
    key_of_another_rpc(key: &str);
    payload(name: &str, what: impl std::fmt::Display);
    over_quota(what: impl std::fmt::Display);
    paused(what: &str, pause: &Pause);
    request_too_large(bytes: usize, most: usize);
    rejected(process_id: &str, rejection: &Rejection);
    rejected_start(process_id: &str, rejection: &Rejection);
}

xdb_protocol::errors! {
    PgError::of;
    unknown_worker(name: &str) = b"XD005", "unknown worker \"{name}\"",
        hint "Register it with xdb.register_worker(). xdb.workers shows the registered workers.";
    /// Its handlers would run with the rights of the role that makes a schedule.
    not_of_schedules(process_type: &str) = b"XD002", "process type \"{process_type}\" is not that of schedules",
        detail "It has another definition, which may run other code.";
    locks_not_granted(rpc_name: &str, what: &str) = b"XD020", "RPC \"{rpc_name}\" did not get its locks in time",
        detail format!("The RPC waited for {what}."),
        hint "Another transaction holds the locks. While the RPC waits, pg_blocking_pids() shows which one.";
    /// The waits before the call used up the timeout.
    no_time_to_call(rpc_name: &str) = b"XD020", "RPC \"{rpc_name}\" ran out of time before its call";
    /// The caller's lease on the call of this token is not valid.
    call_is_lost() = b"XD025", "lease lost: the call was reclaimed or already completed",
        detail "The lease has expired and the call was claimed again, the call has ended, or no call has this token.",
        hint "Roll back. If the result of a COMMIT was lost, your transaction may have completed the call: xdb.describe_process() shows that.";
    answer_not_applied(process_id: &str, what: &str) = b"XD010",
        "the answer to a call of process \"{process_id}\" can't be applied",
        detail sentence(what);
    /// A session tried to claim calls of an HTTP worker.
    worker_has_url(worker: &str) = b"XD026", "the calls of worker \"{worker}\" can't be claimed",
        detail "The worker has a URL, so the engine calls it.",
        hint "Register the worker without a URL and with a role. Members of the role claim its calls.";
    needs_read_committed(function: &str) = b"0A000", "{function} needs a transaction of isolation level READ COMMITTED",
        hint "The function must see the calls that are due now. xdb.complete_call() works at every isolation level.";
    /// The call would use tables with the rights of the process's owner, and can't.
    owner_is_unfit(why: &str) = b"XD010", "the call can't use tables with the rights of its process's owner",
        detail sentence(why),
        hint "Give the owner's processes to another role with xdb.reassign_owned().";
    /// Code of the owner would find temporary objects of the session before its own tables and functions.
    temporary_objects() = b"42501", "tables of the process's owner can't be used in a session with temporary objects",
        detail "Triggers of these tables run with the owner's rights, and find names in pg_temp first.",
        hint "Run DISCARD TEMP, or connect as a member of the owner.";
    /// Code of the process's owner has created temporary objects in the session of another role.
    left_temporary_objects() = b"42501", "a trigger of the process's owner has left temporary objects in the session";
    /// The session has no thread or no descriptor for a connection to workers.
    no_client(why: &std::io::Error) = b"53000", "can't open a connection to workers: {why}",
        hint "The server is short of file descriptors or threads. No worker was called: repeat the call.";
    subscribed(subscriptions: &[String]) = b"XD021", "a subscription replicates into the tables of xdb",
        detail format!("Subscriptions: {}.", subscriptions.join(", ")),
        hint "Drop the subscription after all rows have arrived, then run xdb.adopt().";
    not_preloaded() = b"XD011", "xdb is not in shared_preload_libraries",
        hint "Add this line to postgresql.conf and restart the server: shared_preload_libraries = 'xdb'";
    standby() = b"XD012", "this server is a standby",
        hint "Processes run on the primary. On a standby, the views of schema xdb can be read.";
    own_writes() = b"XD014", "this transaction would wait for its own uncommitted changes",
        hint "Commit first, then wait.";
    local_attributes_too_large(has: impl std::fmt::Display, most: impl std::fmt::Display) = b"XD015",
        "the process would have too many local attributes: {has}, and {most} are allowed",
        hint "All local attributes must fit into a request; xdb.max_request_size limits their bytes.";
    inside_engine(function: &str) = b"XD016", "{function} can't be called while the engine applies a step",
        hint "A trigger on a table that a process writes may start, publish and stop, but it can't wait or invoke RPCs.";
    host_not_allowed(what: impl AsRef<str>) = b"XD017", "the worker's host is not allowed",
        detail sentence(what.as_ref()),
        hint "A superuser can extend xdb.allowed_worker_hosts.";
    in_use(what: String, why: String, hint: &str) = b"XD018", "{what}",
        detail why,
        hint hint;
    other_schema(reason: String, remedy: String) = b"XD022", "{reason}",
        hint remedy;
    /// The transaction's snapshot does not show a change that it would have to see. A retry of the transaction sees it.
    could_not_serialize(why: impl std::fmt::Display) = b"40001", "could not serialize access: {why}",
        hint "Repeat the transaction.";
    /// `what` a superuser can't do: start processes, or own running ones.
    superuser_process(role: &str, what: &str) = b"XD013", "superuser \"{role}\" can't {what}",
        detail "The steps of a process run with the rights of the role that started it.",
        hint "Use an ordinary role, or set xdb.allow_superuser_processes.";
    superuser_rpc(role: &str) = b"XD013", "superuser \"{role}\" can't invoke RPCs that use mapped tables or functions",
        detail "Triggers and policies of these tables, and functions, run with the rights of the caller.",
        hint "Use an ordinary role, with SET ROLE, or set xdb.allow_superuser_processes.";
    /// The caller is a function that answers a step of this very process.
    own_step(function: &str) = b"XD016", "a function that answers a call of a process can't call {function} for the same process",
        hint "Make the change with the answer of the function.";
    /// A trigger or function that runs within a step, a start or an RPC has changed the same process.
    changed_itself() = b"XD016", "a trigger or a function that a process calls can't change the same process",
        hint "Make the change with the answer that writes the table or calls the function.";
    /// A role has named a secret that the server holds, and not the database.
    may_not_refer() = b"42501", "permission denied to refer to a secret",
        detail "The secret is in a file or the environment of the server.",
        hint "Only a superuser may give such a secret to a worker. Afterwards the worker's owner may name the same secret again.";
    /// A role has registered a function that it may not execute itself. Processes of other roles would call the
    /// function.
    may_not_name(function: &str) = b"42501", "permission denied for function {function}",
        hint "The role that registers a function, and the owners of the processes that call it, need EXECUTE on the function and USAGE on its schema.";
    may_not_call(function: &str) = b"42501", "permission denied for function {function}";
    no_figures(role: &str) = b"42501", "permission denied for the metrics of this database",
        hint format!("Run GRANT pg_monitor TO {role}, or xdb.grant_usage(role, operator => true).");
    may_not_reassign() = b"42501", "permission denied to reassign objects of a role",
        hint "Only a superuser, or a member of both roles, may do this.";
    not_adopted() = b"55000", "this database is a copy that was not adopted",
        detail "The owners in its tables are roles of another server.",
        hint "Run xdb.adopt() first.";
    missing_owners(names: &[String]) = b"XD021", "roles that own running processes are missing",
        detail format!("Missing roles: {}.", names.join(", ")),
        hint "Create the roles or stop their processes, then run xdb.adopt().";
    /// The message of Postgres for a table that may not be locked.
    table_denied(name: &str) = b"42501", "permission denied for table {name}";
    /// `which` lists the missing types.
    missing_types(which: &str) = b"XD021", "process types of running processes are not registered",
        detail format!("Missing: {which}."),
        hint "Register the types with xdb.register_process_type() or stop these processes, then run xdb.adopt().";
    queue_full(queue: &str, process_id: &str, quotas: &Quotas) = b"XD029",
        "local queue \"{queue}\" of process \"{process_id}\" is full",
        detail format!("Limits: {}.", quotas.of_queues()),
        hint "Publish again when the process has consumed messages.";
    global_queues_full(role: &str, quotas: &Quotas) = b"XD029",
        "role \"{role}\" has reached its limit of messages in global queues",
        detail format!("Limits: {}.", quotas.of_queues()),
        hint "Publish again after processes have consumed messages of the role. Messages are counted every ten seconds.";
    too_many_running(role: &str, limit: u32) = b"XD029",
        "role \"{role}\" has reached its limit of running processes: xdb.max_running_processes is {limit}",
        hint "Start the process again after others have ended (they are counted every ten seconds), or have a superuser raise the limit with ALTER ROLE.";
}

/// The values that a call loaded under locks have changed since.
pub fn call_has_changed(process_id: &str) -> PgError {
    could_not_serialize(format_args!("data that a call of process \"{process_id}\" has loaded was changed"))
        .hint("Roll back, return the call with xdb.fail_call(token), and claim again.")
}

/// The answer can't be applied. Gives the same error as an RPC. If the answer names something that is not registered,
/// the error's datatype says so, and the worker can retry later.
pub fn call_not_applied(process_id: &str, failure: Failure) -> PgError {
    let error = answer_not_applied(process_id, &failure.detail);
    if failure.error_type.as_deref() != Some(NOT_REGISTERED) {
        return error;
    }
    error.of_datatype(failure.error_type).hint(format!(
        "Roll back, and call xdb.fail_call() with the errorType \"{NOT_REGISTERED}\": the engine makes the call again and does not count the attempt."
    ))
}

/// The caller may not claim calls of this worker. `role` is the role whose members may, or None if it no longer exists.
pub fn may_not_claim(worker: &str, role: Option<&str>) -> PgError {
    let detail = match role {
        Some(role) => format!("Members of role \"{role}\" may claim its calls."),
        None => "The role whose members may claim its calls no longer exists.".to_owned(),
    };
    PgError::new(INSUFFICIENT_PRIVILEGE, format!("permission denied for worker \"{worker}\"")).detail(detail)
}

/// A role tried to change, remove or use what another role has registered. `owner` is the name of the other role, or
/// None if the role no longer exists.
pub fn not_registered_by(what: &str, name: &str, owner: Option<&str>) -> PgError {
    let detail = match owner {
        Some(owner) => format!("Its owner is role \"{owner}\"."),
        None => "Its owner no longer exists.".to_owned(),
    };
    PgError::new(INSUFFICIENT_PRIVILEGE, format!("permission denied for {what} \"{name}\""))
        .detail(detail)
        .hint("Members of the owner, and superusers, may do this. xdb.reassign_owned() changes the owner.")
}

/// A role tried to pause a process type, or to see what its processes do. The processes may belong to other roles.
pub fn not_of_operator(process_type: &str, owner: Option<&str>) -> PgError {
    not_registered_by("process type", process_type, owner)
        .hint("Members of the owner, operators and superusers may do this.")
}

/// A role tried to map a table without the privileges that the steps of processes need on the table.
pub fn may_not_map(table: &str, missing: &str) -> PgError {
    table_denied(table).detail(format!("To map it, the current role lacks {missing} on the mapped columns.")).hint(
        "To map a table, a role needs SELECT on the columns of the key and the attributes, and UPDATE on the columns of the attributes.",
    )
}

/// Adds a hint to Postgres' error for a missing privilege on the schema `xdb`. This error is the first one that a role
/// without any grants gets.
pub fn explained(error: PgError) -> PgError {
    let of_schema = error.code == INSUFFICIENT_PRIVILEGE && error.message.to_lowercase().ends_with("schema xdb");
    if !of_schema || error.detail.is_some() {
        return error;
    }
    error.detail_without_rows(
        "xdb.grant_usage(role) lets a role use XDB: a superuser or the owner of the extension may call it.",
    )
}
