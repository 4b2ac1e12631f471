//! Errors for callers of SQL functions: SQLSTATE, message, detail and hint. `docs/errors.md` lists the SQLSTATEs.
//!
//! Limitations: only errors that don't depend on a server are here. The server and the simulator share them.

use std::fmt;
use xdb_engine::{
    ExecutionId, Failure, IdReusePolicy, NOT_REGISTERED, Pause, PauseMode, Rejection, StateExecutionId, listed,
};

/// An error of a function, for its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    sqlstate: &'static [u8; 5],
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    /// The worker's name for its error, in the field where Postgres puts the name of a type.
    pub datatype: Option<String>,
}

impl Refusal {
    pub fn new(sqlstate: &'static [u8; 5], message: impl Into<String>) -> Self {
        Self { sqlstate, message: message.into(), detail: None, hint: None, datatype: None }
    }

    /// An error that should not happen.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(b"XX000", message)
    }

    /// Adds a DETAIL, which is a sentence.
    pub fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    /// Adds a HINT, which is a sentence.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The SQLSTATE as bytes.
    pub fn code(&self) -> &'static [u8; 5] {
        self.sqlstate
    }

    /// The SQLSTATE as text.
    pub fn sqlstate(&self) -> &'static str {
        std::str::from_utf8(self.sqlstate).unwrap_or("XX000")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

/// How much of an unknown word a message repeats.
const SHOWN_CHARACTERS: usize = 100;

/// Turns a message into a DETAIL: with a full stop, and with a capital letter unless it begins with a field name.
pub fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    let is_word =
        text.split(' ').next().is_some_and(|first| !first.contains(|c: char| c.is_uppercase() || "._[\"".contains(c)));
    let first = match characters.next() {
        Some(first) if is_word => first.to_uppercase().to_string(),
        first => first.map(String::from).unwrap_or_default(),
    };
    let stop = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{stop}", characters.as_str())
}

/// Makes functions that return errors, each with its SQLSTATE and message, and optionally DETAIL and HINT.
/// `$error::$new` makes an error from a SQLSTATE and a message.
#[macro_export]
macro_rules! errors {
    ($error:ident::$new:ident;
    $($(#[$meta:meta])* $name:ident($($argument:ident: $of:ty),*) = $code:literal, $message:literal
        $(, detail $detail:expr)? $(, hint $hint:expr)?;)+) => {
        $($(#[$meta])*
        pub fn $name($($argument: $of),*) -> $error {
            $error::$new($code, format!($message))$(.detail($detail))?$(.hint($hint))?
        })+
    };
}

crate::errors! {
    Refusal::new;
    unknown_process(process_id: &str) = b"XD001", "unknown process \"{process_id}\"";
    unknown_process_type(name: &str) = b"XD002", "unknown process type \"{name}\"",
        hint "Register it with xdb.register_process_type(). xdb.process_types shows the registered types.";
    unknown_state(name: &str) = b"XD003", "unknown state \"{name}\"";
    unknown_step(id: &StateExecutionId) = b"XD003", "unknown step \"{id}\"";
    unknown_global_queue(name: &str) = b"XD004", "unknown global queue \"{name}\"",
        hint "The process type lists its queues in \"globalQueues\".";
    /// An idempotency key was used before, for another RPC or another input.
    key_of_another_rpc(key: &str) = b"XD030", "idempotency key \"{key}\" was used for another RPC or another input",
        detail "A key stands for one RPC and one input of a process execution.",
        hint "Use a new key for a new request. To repeat a request, use its key with the same input.";
    already_started(process_id: &str, why: &str, hint: &str) = b"XD006", "process \"{process_id}\" was already started",
        detail why,
        hint hint;
    /// The id reuse policy refuses a start. `why` says what the latest execution of the id has done.
    reuse_refused(process_id: &str, latest: ExecutionId, why: &str) = b"XD006", "process \"{process_id}\" was already started",
        detail format!("Execution {latest} {why}."),
        hint format!("id_reuse_policy says when an id may be used again: {}.", listed(IdReusePolicy::WORDS.iter().copied()));
    not_running(process_id: &str, why: impl Into<String>) = b"XD007", "process \"{process_id}\" is not running",
        detail why;
    invalid_definition(what: impl std::fmt::Display) = b"XD008", "invalid definition of a process type: {what}";
    invalid_argument(name: &str, what: impl std::fmt::Display) = b"XD009", "invalid value for {name}: {what}";
    /// The process type belongs to a pull worker, and RPCs can't be claimed.
    worker_is_not_called(rpc_name: &str) = b"XD026", "RPC \"{rpc_name}\" can't be called",
        detail "The worker of the process type has no URL. Pull workers answer no RPCs.";
    no_worker_for_rpc(rpc_name: &str) = b"XD026", "RPC \"{rpc_name}\" has no handler",
        detail "The process type has no worker, and the RPC has no function.",
        hint "Name a function for the RPC in \"rpcs\" of the definition, or register a worker for the process type.";
    local_attributes_changed(rpc_name: &str) = b"40001",
        "could not serialize access: another transaction has changed local attributes that RPC \"{rpc_name}\" has read",
        hint "Repeat the transaction.";
    payload(name: &str, what: impl std::fmt::Display) = b"XD015", "{name} {what}";
    /// The payloads and attributes of a request have more bytes than allowed.
    request_too_large(bytes: usize, most: usize) = b"XD015",
        "the request of the call would have {bytes} bytes; xdb.max_request_size is {most}";
    /// A caller asks for more than a process may have. `what` is the limit, with the setting that changes it, if any.
    over_quota(what: impl std::fmt::Display) = b"XD029", "{what}",
        hint "Ask for less. If the message names a setting, a superuser can raise it.";
}

/// `known` are the local queues that the process type lists.
pub fn unknown_queue(name: &str, known: &str) -> Refusal {
    let known = if known.is_empty() { "none".to_owned() } else { known.to_owned() };
    Refusal::new(b"XD004", format!("unknown local queue \"{name}\""))
        .hint(format!("The process type lists its queues in \"localQueues\": {known}."))
}

/// A required argument is NULL.
pub fn missing(name: &str) -> Refusal {
    invalid_argument(name, "it must not be null")
}

/// A word that is not among the known ones.
pub fn unknown_word(name: &str, word: &str, known: &[&str]) -> Refusal {
    let (short, more) = match word.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => (&word[..end], "…"),
        None => (word, ""),
    };
    let refusal = invalid_argument(name, format_args!("\"{short}{more}\" is unknown"));
    if known.is_empty() { refusal } else { refusal.hint(format!("Known values: {}.", listed(known.iter().copied()))) }
}

/// The call of an RPC failed. `what` says why.
pub fn worker_failed(rpc_name: &str, what: impl AsRef<str>) -> Refusal {
    Refusal::new(b"XD010", format!("RPC \"{rpc_name}\" failed in its worker")).detail(sentence(what.as_ref()))
}

/// A worker answered an RPC with a status other than 200.
pub fn worker_refused(rpc_name: &str, status: u16, failure: Failure) -> Refusal {
    let Failure { error_type, detail, .. } = failure;
    let kind = error_type.as_ref().map(|kind| format!("{kind}: ")).unwrap_or_default();
    let refusal = worker_failed(rpc_name, format!("HTTP status {status}: {kind}{detail}"));
    Refusal { datatype: error_type, ..refusal }
}

/// A pause rejects the request, or did not end within the caller's timeout. `what` is paused.
pub fn paused(what: &str, pause: &Pause) -> Refusal {
    let mut detail = match pause.mode {
        PauseMode::Reject => "It refuses requests".to_owned(),
        PauseMode::Wait => "It did not end in time".to_owned(),
    };
    if let Some(until) = pause.until {
        detail.push_str(&format!(" until {}", until.iso8601()));
    }
    detail.push_str(&pause.reason.as_ref().map_or_else(|| ".".to_owned(), |reason| format!(": {reason}")));
    Refusal::new(b"XD023", format!("{what} is paused")).detail(detail)
}

/// An RPC has waited in vain for the locks of its process. `holder` is a process that holds the lock, and that the caller
/// may see.
pub fn waits_for_lock(process_id: &str, lock: &str, holder: Option<&str>) -> Refusal {
    let detail = match holder {
        Some(holder) => format!("Process \"{holder}\" holds the lock \"{lock}\"."),
        None => format!("It waits for the lock \"{lock}\"."),
    };
    Refusal::new(b"XD024", format!("process \"{process_id}\" waits for its locks"))
        .detail(detail)
        .hint("xdb.locks shows which processes have a lock, and which wait for it.")
}

/// A caller's command that the engine refused.
pub fn rejected(process_id: &str, rejection: &Rejection) -> Refusal {
    match rejection {
        Rejection::NotRunning(status) => not_running(process_id, format!("Its status is {status}.")),
        Rejection::UnknownState { name, .. } => unknown_state(name),
        Rejection::UnknownQueue { name, known, .. } => unknown_queue(name, known),
        Rejection::UnknownGlobalQueue(name) => unknown_global_queue(name),
        Rejection::UnknownLocalAttribute(_)
        | Rejection::UnknownGlobalAttribute(_)
        | Rejection::UnknownFunction(_)
        | Rejection::InvalidOptions(_)
        | Rejection::InvalidAnswer(_) => Refusal::new(b"XD009", rejection.to_string()),
        Rejection::OverQuota(what) => over_quota(what),
        Rejection::NoTimer(_) => {
            Refusal::new(b"XD019", rejection.to_string()).hint("xdb.waits shows what the step waits for.")
        }
        Rejection::Stale | Rejection::UnusedInput => Refusal::internal(rejection.to_string()),
    }
}

/// A start that the engine refused.
pub fn rejected_start(process_id: &str, rejection: &Rejection) -> Refusal {
    match rejection {
        Rejection::UnknownState { name, known, .. } => {
            let what = format_args!("\"{name}\" is not listed in states; known are {known}");
            invalid_argument("options.startingState", what)
        }
        Rejection::InvalidOptions(what) | Rejection::InvalidAnswer(what) => {
            invalid_argument("options.startingStateConfig", what)
        }
        Rejection::UnusedInput => invalid_argument("input", "the process type has no starting state"),
        rejection => rejected(process_id, rejection),
    }
}

/// An RPC's answer that can't be applied.
pub fn rpc_not_applied(rpc_name: &str, failure: Failure) -> Refusal {
    let refusal = worker_failed(rpc_name, failure.detail);
    if failure.error_type.as_deref() != Some(NOT_REGISTERED) {
        return refusal;
    }
    let hint = "Register the worker's version of the process type, and invoke the RPC again.";
    Refusal { datatype: failure.error_type, ..refusal.hint(hint) }
}
