//! The SQLSTATEs of class `XD`, by name. Tests compare errors with these names only.

/// The caller sees no process of this id. Processes that the caller may not see give the same error, so it reveals
/// nothing.
pub const UNKNOWN_PROCESS: &str = "XD001";
/// The process type is not registered.
pub const UNKNOWN_PROCESS_TYPE: &str = "XD002";
/// The process type does not list the state, or the step does not exist.
pub const UNKNOWN_STATE: &str = "XD003";
/// The process type does not list the queue.
pub const UNKNOWN_QUEUE: &str = "XD004";
/// The worker is not registered.
pub const UNKNOWN_WORKER: &str = "XD005";
/// The id reuse policy refuses the start.
pub const ALREADY_STARTED: &str = "XD006";
/// The process is closed.
pub const NOT_RUNNING: &str = "XD007";
/// The definition of a process type contradicts itself, or does not fit the tables.
pub const INVALID_DEFINITION: &str = "XD008";
/// An argument or an option has an invalid value.
pub const INVALID_ARGUMENT: &str = "XD009";
/// The worker failed while an RPC was being invoked.
pub const WORKER_FAILED: &str = "XD010";
/// The library is not in `shared_preload_libraries`.
pub const NOT_PRELOADED: &str = "XD011";
/// The server is a standby.
pub const STANDBY: &str = "XD012";
/// The process may be seen, but not driven, by the caller.
pub const NOT_PERMITTED: &str = "XD013";
/// The function would wait for changes that the caller itself has not committed.
pub const WOULD_WAIT_FOR_ITSELF: &str = "XD014";
/// `jsonb` does not accept the payload, or the payload is too large.
pub const PAYLOAD_REFUSED: &str = "XD015";
/// The function waits or calls, and was called from inside the engine.
pub const INSIDE_ENGINE: &str = "XD016";
/// The worker's host is outside `xdb.allowed_worker_hosts`.
pub const HOST_NOT_ALLOWED: &str = "XD017";
/// Running processes still use the object that was to be removed.
pub const STILL_IN_USE: &str = "XD018";
/// The step does not wait for this timer.
pub const NOT_WAITING: &str = "XD019";

/// An RPC did not get its locks in time.
pub const LOCKS_NOT_GRANTED: &str = "XD020";
/// Roles that own running processes of a copy are missing.
pub const MISSING_OWNERS: &str = "XD021";
/// The library does not work with the version of the schema.
pub const OTHER_SCHEMA: &str = "XD022";

/// The process or its type is paused.
pub const PAUSED: &str = "XD023";
/// The RPC has waited in vain for the locks of its process.
pub const WAITS_FOR_LOCKS: &str = "XD024";
/// Lease lost: the call was reclaimed, or is over.
pub const CALL_IS_LOST: &str = "XD025";
/// A quota is used up.
pub const OVER_QUOTA: &str = "XD029";
/// An idempotency key was used for another RPC, or another input.
pub const KEY_REUSED: &str = "XD030";

/// `serialization_failure`.
pub const SERIALIZATION_FAILURE: &str = "40001";
/// `out_of_memory`.
pub const OUT_OF_MEMORY: &str = "53200";
/// `insufficient_resources`: of descriptors or threads.
pub const TOO_FEW_RESOURCES: &str = "53000";
/// `insufficient_privilege`: Postgres' own, raised where a role was never granted the extension.
pub const INSUFFICIENT_PRIVILEGE: &str = "42501";
/// `query_canceled`: a cancel or a `statement_timeout`.
pub const QUERY_CANCELED: &str = "57014";
/// `undefined_function`.
pub const UNDEFINED_FUNCTION: &str = "42883";
/// `undefined_table`.
pub const UNDEFINED_TABLE: &str = "42P01";
/// `unique_violation`.
pub const UNIQUE_VIOLATION: &str = "23505";
/// `foreign_key_violation`.
pub const FOREIGN_KEY_VIOLATION: &str = "23503";
/// `check_violation`.
pub const CHECK_VIOLATION: &str = "23514";
/// `no_data`: the row of a step's write no longer exists.
pub const NO_DATA: &str = "02000";
