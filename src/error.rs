//! The errors of the extension, one function each. SQLSTATE class `XD`; `docs/errors.md` lists them. Those that say nothing of a
//! server have their words in `crates/protocol/src/refusal.rs`.

use crate::pg::catch::{PgError, sqlstate};
use xdb_engine::{Failure, NOT_REGISTERED, Pause, Quotas, Rejection, StateExecutionId};
use xdb_protocol::refusal::{self, Refusal, sentence};

/// As the server's own refusals.
const INSUFFICIENT_PRIVILEGE: i32 = sqlstate(b"42501");

/// Somebody wants more than there may be.
const QUOTA_EXCEEDED: i32 = sqlstate(b"XD029");

impl From<Refusal> for PgError {
    fn from(refusal: Refusal) -> Self {
        let mut error = Self::new(sqlstate(refusal.code()), refusal.message);
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
    over_quota(what: impl Into<String>);
    paused(what: &str, pause: &Pause);
    request_too_large(bytes: usize, most: usize);
    rejected(process_id: &str, rejection: &Rejection);
    rejected_start(process_id: &str, rejection: &Rejection);
}

pub fn unknown_worker(name: &str) -> PgError {
    PgError::new(sqlstate(b"XD005"), format!("unknown worker \"{name}\""))
}

pub fn locks_not_granted(rpc_name: &str, what: &str) -> PgError {
    PgError::new(sqlstate(b"XD020"), format!("RPC \"{rpc_name}\" did not get its locks in time"))
        .detail(format!("It waited for {what}."))
        .hint("Another transaction has them: pg_catalog.pg_blocking_pids() says whose, while it waits.")
}

/// The waits before the call took all of the time.
pub fn no_time_to_call(rpc_name: &str) -> PgError {
    PgError::new(sqlstate(b"XD020"), format!("RPC \"{rpc_name}\" had no time left for its call"))
}

/// What a token stands for is not the caller's to end.
pub fn call_is_lost() -> PgError {
    PgError::new(sqlstate(b"XD025"), "the call is not yours any more")
        .detail("Its lease is over, it was made again, or it has ended; or there is none of that token.")
        .hint("Roll back. If the answer to a commit was lost, it may be this very call that ended: xdb.describe_process() tells.")
}

/// The transaction does not see what others have done meanwhile, and would have to. Who makes it again does.
pub fn could_not_serialize(why: impl std::fmt::Display) -> PgError {
    PgError::new(crate::pg::catch::SERIALIZATION_FAILURE, format!("could not serialize access: {why}"))
}

/// What a call has loaded under locks is not so any more.
pub fn call_has_changed(process_id: &str) -> PgError {
    could_not_serialize(format_args!("what a call of process \"{process_id}\" has loaded has changed"))
        .hint("Roll back, give the call back with xdb.fail_call(token), and claim again.")
}

/// As the answer of an RPC that can't be applied. Where it names what is not registered, the worker knows by a word that time may help.
pub fn call_not_applied(process_id: &str, failure: Failure) -> PgError {
    let error =
        PgError::new(sqlstate(b"XD010"), format!("the answer to a call of process \"{process_id}\" can't be applied"))
            .detail(sentence(&failure.detail));
    if failure.error_type.as_deref() != Some(NOT_REGISTERED) {
        return error;
    }
    error.of_datatype(failure.error_type).hint(format!(
        "Roll back, and call xdb.fail_call() with the errorType \"{NOT_REGISTERED}\": the call is made again, and costs no attempt."
    ))
}

/// An RPC of a worker that fetches its calls.
pub fn worker_is_not_called(rpc_name: &str) -> PgError {
    PgError::new(sqlstate(b"XD026"), format!("RPC \"{rpc_name}\" can't be called"))
        .detail("The worker of the process type has no URL: it fetches its calls, and RPCs are not among them.")
}

/// Calls of a worker that is called by the engine can't be claimed.
pub fn worker_has_url(worker: &str) -> PgError {
    PgError::new(sqlstate(b"XD026"), format!("the calls of worker \"{worker}\" can't be claimed"))
        .detail("It has a URL: the engine calls it.")
        .hint("Register it without a URL and with a role, whose members claim its calls.")
}

pub fn may_not_claim(worker: &str, role: Option<&str>) -> PgError {
    let detail = match role {
        Some(role) => format!("Members of role \"{role}\" may claim its calls."),
        None => "The role whose members may claim its calls is gone.".to_owned(),
    };
    PgError::new(INSUFFICIENT_PRIVILEGE, format!("permission denied for worker \"{worker}\"")).detail(detail)
}

pub fn needs_read_committed(function: &str) -> PgError {
    PgError::new(sqlstate(b"0A000"), format!("{function} needs a transaction of isolation level READ COMMITTED"))
        .hint("It has to see what is due now. xdb.complete_call() can be called in a transaction of any level.")
}

/// A process's owner, with whose rights a call would use tables.
pub fn owner_is_unfit(why: &str) -> PgError {
    PgError::new(sqlstate(b"XD010"), "the call can't use tables as the owner of its process").detail(sentence(why))
}

/// The code of others would find them.
pub fn temporary_objects() -> PgError {
    PgError::new(
        INSUFFICIENT_PRIVILEGE,
        "tables of the process's owner can't be used in a session with temporary objects",
    )
    .detail("Triggers of these tables run with the owner's rights, and find names in pg_temp first.")
    .hint("DISCARD TEMP removes the session's temporary objects; or be a member of the owner.")
}

/// Code of a process's owner has made something in another's session.
pub fn left_temporary_objects() -> PgError {
    PgError::new(INSUFFICIENT_PRIVILEGE, "a trigger of the process's owner has left temporary objects in the session")
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

pub fn local_attributes_too_large(has: impl std::fmt::Display, most: impl std::fmt::Display) -> PgError {
    let what = format!("the process would have too many local attributes: {has}, and {most} are allowed");
    PgError::new(sqlstate(b"XD015"), what)
        .hint("All of them have to fit into a request: xdb.max_request_size bounds their bytes.")
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
    PgError::new(sqlstate(b"XD013"), "superusers can't invoke RPCs here that use mapped tables or functions")
        .detail("Triggers and policies of these tables, and functions, run with the rights of the caller.")
        .hint("Use an ordinary role, with SET ROLE, or set xdb.allow_superuser_processes.")
}

pub fn no_worker_for_rpc(rpc_name: &str) -> PgError {
    PgError::new(sqlstate(b"XD026"), format!("nobody answers RPC \"{rpc_name}\""))
        .detail("Its process type has no worker, and the RPC no function.")
        .hint("The definition names functions in \"rpcs\".")
}

/// A step of the process itself is what calls.
pub fn own_step(function: &str) -> PgError {
    PgError::new(
        sqlstate(b"XD016"),
        format!("a function that answers a call of a process can't call {function} for it"),
    )
    .hint("Its answer says what becomes of the process.")
}

/// What runs as a part of a process's step, a start or an RPC has changed the process behind its back.
pub fn changed_itself() -> PgError {
    PgError::new(sqlstate(b"XD016"), "a trigger or a function that a process calls can't change this very process")
        .hint("The answer that writes the table, or calls the function, says what becomes of the process.")
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

/// A secret that is in the server and not in the database.
pub fn may_not_refer() -> PgError {
    PgError::new(INSUFFICIENT_PRIVILEGE, "permission denied to refer to a secret")
        .detail("The secret is in a file or the environment of the server.")
        .hint("Only a superuser may give such a secret to a worker. Whoever the worker belongs to may name it again afterwards.")
}

/// Whoever maps a table must be allowed what the steps of processes do in it.
pub fn may_not_map(table: &str, missing: &str) -> PgError {
    table_denied(table).detail(format!("To map it, the current role lacks {missing} on what is mapped of it.")).hint(
        "To map a table, a role needs SELECT on the columns of the key and the attributes, and UPDATE on the latter.",
    )
}

/// Whoever names a function has the processes of others call it.
pub fn may_not_name(function: &str) -> PgError {
    PgError::new(INSUFFICIENT_PRIVILEGE, format!("permission denied for function {function}"))
        .hint("Whoever registers a function needs EXECUTE on it and USAGE on its schema, and so do the owners of the processes that call it.")
}

pub fn may_not_call(function: &str) -> PgError {
    PgError::new(INSUFFICIENT_PRIVILEGE, format!("permission denied for function {function}"))
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

pub fn queue_full(queue: &str, process_id: &str, quotas: &Quotas) -> PgError {
    PgError::new(QUOTA_EXCEEDED, format!("local queue \"{queue}\" of process \"{process_id}\" is full"))
        .detail(format!("Its limits are reached: {}.", quotas.of_queues()))
        .hint("Publish again when the process has consumed messages.")
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
