//! The errors of the extension, a function each. SQLSTATE class `XD`; `docs/errors.md` lists them. Those that say nothing of a
//! server have their words in `crates/protocol/src/refusal.rs`.

use crate::pg::catch::{PgError, sqlstate};
use xdb_engine::{Failure, NOT_REGISTERED, Pause, Quotas, Rejection, StateExecutionId};
use xdb_protocol::refusal::{self, Refusal, sentence};

/// As the server's own refusals.
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

/// Errors that say nothing of a server. Their words are in the protocol crate.
macro_rules! refusals {
    ($($name:ident($($argument:ident: $of:ty),+);)+) => {
        $(pub fn $name($($argument: $of),+) -> PgError { refusal::$name($($argument),+).into() })+
    };
}

refusals! {
    unknown_process(process_id: &str);
    unknown_process_type(name: &str);
    unknown_state(name: &str);
    unknown_state_execution(id: &StateExecutionId);
    unknown_queue(name: &str, known: &str);
    already_started(process_id: &str, why: &str);
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
    unknown_worker(name: &str) = b"XD005", "unknown worker \"{name}\"";
    locks_not_granted(rpc_name: &str, what: &str) = b"XD020", "RPC \"{rpc_name}\" did not get its locks in time",
        detail format!("It waited for {what}."),
        hint "Another transaction has them: pg_catalog.pg_blocking_pids() says whose, while it waits.";
    /// The waits before the call took all of the time.
    no_time_to_call(rpc_name: &str) = b"XD020", "RPC \"{rpc_name}\" had no time left for its call";
    /// What a token stands for is not the caller's to end.
    call_is_lost() = b"XD025", "the call is not yours any more",
        detail "Its lease is over, it was made again, or it has ended; or there is none of that token.",
        hint "Roll back. If the answer to a commit was lost, it may be this very call that ended: xdb.describe_process() tells.";
    answer_not_applied(process_id: &str, what: &str) = b"XD010",
        "the answer to a call of process \"{process_id}\" can't be applied",
        detail sentence(what);
    /// An RPC of a worker that fetches its calls.
    worker_is_not_called(rpc_name: &str) = b"XD026", "RPC \"{rpc_name}\" can't be called",
        detail "The worker of the process type has no URL: it fetches its calls, and RPCs are not among them.";
    /// Calls of a worker that is called by the engine can't be claimed.
    worker_has_url(worker: &str) = b"XD026", "the calls of worker \"{worker}\" can't be claimed",
        detail "It has a URL: the engine calls it.",
        hint "Register it without a URL and with a role, whose members claim its calls.";
    needs_read_committed(function: &str) = b"0A000", "{function} needs a transaction of isolation level READ COMMITTED",
        hint "It has to see what is due now. xdb.complete_call() can be called in a transaction of any level.";
    /// A process's owner, with whose rights a call would use tables.
    owner_is_unfit(why: &str) = b"XD010", "the call can't use tables as the owner of its process",
        detail sentence(why);
    /// The code of others would find them.
    temporary_objects() = b"42501", "tables of the process's owner can't be used in a session with temporary objects",
        detail "Triggers of these tables run with the owner's rights, and find names in pg_temp first.",
        hint "DISCARD TEMP removes the session's temporary objects; or be a member of the owner.";
    /// Code of a process's owner has made something in another's session.
    left_temporary_objects() = b"42501", "a trigger of the process's owner has left temporary objects in the session";
    /// A session has no thread or no descriptor for its connection to workers.
    no_client(why: &std::io::Error) = b"53000", "no connection to workers can be made: {why}",
        hint "The server is short of descriptors or threads. Nothing was called: call again.";
    subscribed(subscriptions: &[String]) = b"XD021", "a subscription replicates into the tables of xdb",
        detail format!("Subscriptions: {}.", subscriptions.join(", ")),
        hint "Drop it when all has arrived, then adopt.";
    not_preloaded() = b"XD011", "xdb is not loaded at server start",
        hint "Add this line to postgresql.conf and restart the server: shared_preload_libraries = 'xdb'";
    standby() = b"XD012", "this server is a standby",
        hint "Processes run on the primary; here the views of schema xdb can be read.";
    own_writes() = b"XD014", "this transaction would wait for its own uncommitted changes",
        hint "Commit first, then wait.";
    local_attributes_too_large(has: impl std::fmt::Display, most: impl std::fmt::Display) = b"XD015",
        "the process would have too many local attributes: {has}, and {most} are allowed",
        hint "All of them have to fit into a request: xdb.max_request_size bounds their bytes.";
    inside_engine(function: &str) = b"XD016", "{function} can't be called while the engine applies a step",
        hint "A trigger on a table that a process writes may start, publish and stop, but not wait or call.";
    host_not_allowed(what: impl AsRef<str>) = b"XD017", "the worker's host is not allowed",
        detail sentence(what.as_ref()),
        hint "A superuser can extend xdb.allowed_worker_hosts.";
    in_use(what: String, why: String) = b"XD018", "{what}",
        detail why;
    other_schema(reason: String, remedy: String) = b"XD022", "{reason}",
        hint remedy;
    /// The transaction does not see what others have done meanwhile, and would have to. Who makes it again does.
    could_not_serialize(why: impl std::fmt::Display) = b"40001", "could not serialize access: {why}";
    superuser_process() = b"XD013", "superusers can't start processes here",
        detail "The steps of a process run with the rights of the role that started it.",
        hint "Use an ordinary role, or set xdb.allow_superuser_processes.";
    superuser_rpc() = b"XD013", "superusers can't invoke RPCs here that use mapped tables or functions",
        detail "Triggers and policies of these tables, and functions, run with the rights of the caller.",
        hint "Use an ordinary role, with SET ROLE, or set xdb.allow_superuser_processes.";
    no_worker_for_rpc(rpc_name: &str) = b"XD026", "nobody answers RPC \"{rpc_name}\"",
        detail "Its process type has no worker, and the RPC no function.",
        hint "The definition names functions in \"rpcs\".";
    /// A step of the process itself is what calls.
    own_step(function: &str) = b"XD016", "a function that answers a call of a process can't call {function} for it",
        hint "Its answer says what becomes of the process.";
    /// What runs as a part of a process's step, a start or an RPC has changed the process behind its back.
    changed_itself() = b"XD016", "a trigger or a function that a process calls can't change this very process",
        hint "The answer that writes the table, or calls the function, says what becomes of the process.";
    /// A secret that is in the server and not in the database.
    may_not_refer() = b"42501", "permission denied to refer to a secret",
        detail "The secret is in a file or the environment of the server.",
        hint "Only a superuser may give such a secret to a worker. Whoever the worker belongs to may name it again afterwards.";
    /// Whoever names a function has the processes of others call it.
    may_not_name(function: &str) = b"42501", "permission denied for function {function}",
        hint "Whoever registers a function needs EXECUTE on it and USAGE on its schema, and so do the owners of the processes that call it.";
    may_not_call(function: &str) = b"42501", "permission denied for function {function}";
    may_not_reassign() = b"42501", "permission denied to reassign what a role owns",
        hint "Only a superuser, or a member of both roles, may do this.";
    not_adopted() = b"55000", "the owners in this database are roles of another server",
        hint "Run xdb.adopt() first.";
    missing_owners(names: &[String]) = b"XD021", "roles that own running processes are missing",
        detail format!("There is no role {}.", names.join(", ")),
        hint "Create them, or stop the processes of these roles, and adopt the database then.";
    /// As the server itself says it, who would lock the table first.
    table_denied(name: &str) = b"42501", "permission denied for table {name}";
    /// `which` names them.
    missing_types(which: &str) = b"XD021", "process types of running processes are not registered",
        detail format!("Missing: {which}."),
        hint "Register them again with xdb.register_process_type(), or stop these processes, and adopt the database then.";
    queue_full(queue: &str, process_id: &str, quotas: &Quotas) = b"XD029",
        "local queue \"{queue}\" of process \"{process_id}\" is full",
        detail format!("Its limits are reached: {}.", quotas.of_queues()),
        hint "Publish again when the process has consumed messages.";
    global_queues_full(quotas: &Quotas) = b"XD029", "the current role has no room for more messages in global queues",
        detail format!("Its limits are reached: {}.", quotas.of_queues()),
        hint "Publish again when messages of it have been used up. They are counted every ten seconds.";
    too_many_running(limit: u32) = b"XD029",
        "the current role has as many running processes as it may: xdb.max_running_processes is {limit}",
        hint "Start again when some have ended, which are counted every ten seconds; or have a superuser raise the limit with ALTER ROLE.";
}

/// What a call has loaded under locks is not so any more.
pub fn call_has_changed(process_id: &str) -> PgError {
    could_not_serialize(format_args!("what a call of process \"{process_id}\" has loaded has changed"))
        .hint("Roll back, give the call back with xdb.fail_call(token), and claim again.")
}

/// As the answer of an RPC that can't be applied. Where it names what is not registered, the worker knows by a word that time may help.
pub fn call_not_applied(process_id: &str, failure: Failure) -> PgError {
    let error = answer_not_applied(process_id, &failure.detail);
    if failure.error_type.as_deref() != Some(NOT_REGISTERED) {
        return error;
    }
    error.of_datatype(failure.error_type).hint(format!(
        "Roll back, and call xdb.fail_call() with the errorType \"{NOT_REGISTERED}\": the call is made again, and costs no attempt."
    ))
}

pub fn may_not_claim(worker: &str, role: Option<&str>) -> PgError {
    let detail = match role {
        Some(role) => format!("Members of role \"{role}\" may claim its calls."),
        None => "The role whose members may claim its calls is gone.".to_owned(),
    };
    PgError::new(INSUFFICIENT_PRIVILEGE, format!("permission denied for worker \"{worker}\"")).detail(detail)
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

/// Somebody asks what the processes of a type do, which may be other roles', or pauses it.
pub fn not_of_operator(process_type: &str, owner: Option<&str>) -> PgError {
    not_registered_by("process type", process_type, owner)
        .hint("Members of the role that has registered it, operators and superusers may do this.")
}

/// Whoever maps a table must be allowed what the steps of processes do in it.
pub fn may_not_map(table: &str, missing: &str) -> PgError {
    table_denied(table).detail(format!("To map it, the current role lacks {missing} on what is mapped of it.")).hint(
        "To map a table, a role needs SELECT on the columns of the key and the attributes, and UPDATE on the latter.",
    )
}

/// With what to do about the server's own refusal of the schema: it is what a role meets first that was not granted anything.
pub fn explained(error: PgError) -> PgError {
    let of_schema = error.code == INSUFFICIENT_PRIVILEGE && error.message.to_lowercase().ends_with("schema xdb");
    if !of_schema || error.detail.is_some() {
        return error;
    }
    error.detail_without_rows(
        "xdb.grant_usage(role) lets a role use XDB: a superuser or the owner of the extension may call it.",
    )
}
