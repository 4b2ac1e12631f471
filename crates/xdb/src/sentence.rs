//! Why is a process where it is? The answer is one sentence for each thread, and further sentences about the process.
//!
//! The sentences are a function of the document of `xdb.describe_process()` and of a moment. They read nothing else,
//! so each case is tested without a server. Two keys are optional additions of the reader, which `xdb.describe_process()`
//! does not give:
//!
//! - `typeMissing` of the process: its process type is not registered.
//! - `pulls` of a thread: its worker is a pull worker.
//!
//! Limitations: `xdb.describe_process()` gives no maximum number of attempts.

use crate::text::{ago, ahead, lasted, listed, moment, plain, quoted};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::fmt;

/// Why a thread or a process is where it is. The word is for programs, the sentence for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The step of the thread. None: the sentence is about the process.
    pub step: Option<String>,
    pub why: Case,
    pub sentence: String,
}

macro_rules! why {
    ($($(#[$comment:meta])* $name:ident = $word:literal,)+) => {
        /// The cases.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Case { $($(#[$comment])* $name),+ }

        impl Case {
            /// All cases.
            pub const ALL: &[Case] = &[$(Case::$name),+];
        }

        impl fmt::Display for Case {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Case::$name => $word),+ })
            }
        }
    };
}

why! {
    // Of a thread.
    /// A worker or function handles the call.
    Calling = "CALLING",
    /// The last attempt failed, and the next one is due later.
    Retrying = "RETRYING",
    /// The call was planned for later, by `start_at` or a delay.
    Later = "LATER",
    /// The call is due, and was not made yet.
    Due = "DUE",
    /// The call is due, and no session of its pull worker has claimed it.
    NotClaimed = "NOT_CLAIMED",
    Waiting = "WAITING",
    /// The call waits for locks on attributes.
    AttributeLocks = "ATTRIBUTE_LOCKS",
    Incident = "INCIDENT",
    /// The engine makes no call that has crashed the server three times.
    Held = "HELD",
    /// The worker can't be reached.
    Breaker = "BREAKER",
    /// The engine makes no calls: it is paused, waits for an adoption, or does not run.
    Engine = "ENGINE",
    /// The call waits for a runner, because a table of the process is slow.
    SlowTable = "SLOW_TABLE",
    /// A function should answer the call, and no runner calls it.
    NoRunner = "NO_RUNNER",
    // Of a process, or of a thread whose call it delays.
    Paused = "PAUSED",
    ProcessLocks = "PROCESS_LOCKS",
    Owner = "OWNER",
    /// The process type is not registered.
    TypeMissing = "TYPE_MISSING",
    // Of a process.
    Closed = "CLOSED",
    /// The process closes when open publishers have ended.
    Closing = "CLOSING",
    /// Another session has locked what the process needs.
    HeldUp = "HELD_UP",
    NoThread = "NO_THREAD",
    Completing = "COMPLETING",
    Compensating = "COMPENSATING",
    Children = "CHILDREN",
}

impl Explanation {
    /// For programs.
    pub fn json(&self) -> Value {
        json!({"stateExecutionId": self.step, "why": self.why.to_string(), "sentence": self.sentence})
    }
}

/// The sentences about a process: first those of its threads, in their order, then those of the process itself.
pub fn explain(process: &Value, now: Timestamp) -> Vec<Explanation> {
    if text(process, "status") != Some("RUNNING") {
        return vec![Explanation { step: None, why: Case::Closed, sentence: closed(process, now) }];
    }
    let threads = process["threads"].as_array().map_or(&[][..], Vec::as_slice);
    let mut all: Vec<_> = threads.iter().map(|thread| of_thread(process, thread, now)).collect();
    let said: Vec<_> = all.iter().map(|one| one.why).collect();
    let about = |(why, sentence)| Explanation { step: None, why, sentence };
    all.extend(of_process(process, now, &said).into_iter().map(about));
    all
}

fn of_thread(process: &Value, thread: &Value, now: Timestamp) -> Explanation {
    let (why, sentence) = match thread {
        _ if thread["status"] == "WAITING" => (Case::Waiting, waiting(thread, now)),
        _ if thread["incident"] == true => (Case::Incident, incident(thread, now)),
        _ if !thread["held"].is_null() => (Case::Held, held(thread)),
        _ => match time(thread, "callUntil") {
            Some(until) => (Case::Calling, calling(process, thread, until, now)),
            None => not_called(process, thread, now),
        },
    };
    Explanation { step: text(thread, "stateExecutionId").map(str::to_owned), why, sentence }
}

/// A call that is not under way.
fn not_called(process: &Value, thread: &Value, now: Timestamp) -> (Case, String) {
    let due = time(thread, "nextAttemptAt");
    if let Some(due) = due.filter(|due| *due > now) {
        return match thread["lastFailure"].is_null() {
            true => (Case::Later, format!("{} is planned for later: it is due {}.", the_call(thread), ahead(due, now))),
            false => (Case::Retrying, retrying(thread, due, now)),
        };
    }
    if let Some(why) = type_missing(process) {
        // Only the type says what would answer it.
        return (Case::TypeMissing, format!("{} is not made: {why}", sentence(&api(thread))));
    }
    let call = the_call(thread);
    let obstacle = [
        pause(process, now).map(|why| (Case::Paused, why)),
        process_locks(process).map(|why| (Case::ProcessLocks, why)),
        owner_problem(process).map(|why| (Case::Owner, why)),
    ];
    if let Some((why, sentence)) = obstacle.into_iter().flatten().next() {
        return (why, format!("{call} is not made: {sentence}"));
    }
    if let Some(locks) = text(thread, "waitingForLocks") {
        let locks = quoted(locks);
        return (
            Case::AttributeLocks,
            format!("{call} waits for locks on attributes, {locks}: xdb.attribute_locks shows the calls that wait."),
        );
    }
    if let Some(said) = engines_reason(thread, now) {
        return said;
    }
    let due = due.map_or_else(|| "is due".to_owned(), |due| format!("has been due for {}", lasted(due, now)));
    let failed = failure(&thread["lastFailure"], now).map_or_else(String::new, |failed| format!(" {failed}"));
    match thread["pulls"] == true {
        true => {
            (Case::NotClaimed, format!("{call} {due}, and no session of the pull worker has claimed the call.{failed}"))
        }
        false => {
            let cause = match text(thread, "worker") {
                Some(_) => "the worker has no free place, no program claims its calls, or the engine has a backlog",
                None => "the engine has a backlog",
            };
            (Case::Due, format!("{call} {due}, and was not made yet: {cause}.{failed}"))
        }
    }
}

/// Why the engine does not make a call, as `notCalled` says.
fn engines_reason(thread: &Value, now: Timestamp) -> Option<(Case, String)> {
    let said = &thread["notCalled"];
    let lasts = time(said, "since").map_or_else(String::new, |since| format!(" for {}", lasted(since, now)));
    let (call, worker) = (
        the_call(thread),
        text(thread, "worker").map_or_else(|| "The worker".to_owned(), |name| format!("Worker {}", quoted(name))),
    );
    Some(match text(said, "why")? {
        "BREAKER" => (
            Case::Breaker,
            format!(
                "{worker} could not be reached{lasts}: the engine makes one call now and then to test it, and all others when it answers."
            ),
        ),
        "ENGINE" => (
            Case::Engine,
            format!("{call} is not made, because the engine has made no calls{lasts}: xdb.status() says why."),
        ),
        "SLOW_TABLE" => (
            Case::SlowTable,
            format!(
                "{call} waits for a runner{lasts}, because a table of the process is slow: xdb.status() names the table."
            ),
        ),
        "NO_RUNNER" => (
            Case::NoRunner,
            format!("{call} waits for a runner{lasts}, and none makes it: runner_error of xdb.status() may say why."),
        ),
        other => (Case::Due, format!("{call} is not made{lasts}: {}.", quoted(other))),
    })
}

fn calling(process: &Value, thread: &Value, until: Timestamp, now: Timestamp) -> String {
    let by = match text(thread, "worker") {
        Some(worker) => format!("Worker {}", quoted(worker)),
        None => "A function of the database".to_owned(),
    };
    let repeats =
        thread["repeats"].as_u64().map_or_else(String::new, |times| format!(", repeated {}", count(times, "time")));
    let began = time(thread, "firstAttemptAt")
        .map_or_else(String::new, |first| format!(" The first attempt began {}.", ago(first, now)));
    // Then an answer waits in the engine, and the tables don't say of which call.
    let answer_waits = !process["closing"].is_null() || entries(process, "heldUpBy").is_some();
    let ends = if answer_waits {
        ", or has answered it.".to_owned()
    } else if until > now {
        format!(". The engine gives up at the latest {}.", ahead(until, now))
    } else {
        ". Its time is over, and the engine is about to repeat the call.".to_owned()
    };
    format!("{by} handles {}, attempt {}{repeats}{ends}{began}", api(thread), thread["attempt"])
}

fn retrying(thread: &Value, due: Timestamp, now: Timestamp) -> String {
    let failed = failure(&thread["lastFailure"], now).unwrap_or_default();
    let again = match text(thread, "worker") {
        Some(worker) => format!("calls worker {} again", quoted(worker)),
        None => "calls the function again".to_owned(),
    };
    format!("The engine {again} {} (attempt {}). {failed}", ahead(due, now), thread["attempt"])
}

fn incident(thread: &Value, now: Timestamp) -> String {
    let last = &thread["lastFailure"];
    let spent =
        last["attempt"].as_u64().map_or_else(String::new, |attempts| format!(" after {}", count(attempts, "attempt")));
    let failed = failure(last, now).map_or_else(String::new, |failed| format!(" {failed}"));
    format!("Its retries are spent{spent}: the engine makes no further attempt until xdb.retry_now().{failed}")
}

fn held(thread: &Value) -> String {
    format!("The server crashed three times during {}: the engine holds the call until xdb.retry_now().", api(thread))
}

fn waiting(thread: &Value, now: Timestamp) -> String {
    let since = time(thread, "waitingSince")
        .map_or_else(String::new, |since| format!(" It has waited for {}.", lasted(since, now)));
    let commands = thread["waitingFor"].as_array().map_or(&[][..], Vec::as_slice);
    let open = commands.iter().filter(|command| command["status"] == "WAITING_COMMAND");
    let open: Vec<_> = open.map(|command| awaited(command, now)).collect();
    if open.is_empty() {
        return match commands.is_empty() {
            true => "Its wait has not begun yet.".to_owned(),
            false => format!("All that it waited for has come: the engine is about to make the next call.{since}"),
        };
    }
    let (what, last) = match text(thread, "waitingType") {
        Some("AllOfCompletion") => ("", "and"),
        Some("AnyOfCombination") => ("one of its combinations of ", "and"),
        _ => ("", "or"),
    };
    let waits = if thread["guard"] == true { "It is a guard, and waits" } else { "It waits" };
    format!("{waits} for {what}{}.{since}", listed(&open, last))
}

/// A command that a step waits for.
fn awaited(command: &Value, now: Timestamp) -> String {
    if let Some(fires) = time(command, "fireAt") {
        return match fires > now {
            true => format!("a timer that fires {}", ahead(fires, now)),
            false => format!("a timer that is due since {}", moment(fires)),
        };
    }
    let (queue, least) =
        (quoted(text(command, "queueName").unwrap_or_default()), command["atLeast"].as_u64().unwrap_or(1));
    let messages = if least == 1 { "a message".to_owned() } else { format!("{least} messages") };
    match (command["global"] == true, text(command, "key")) {
        (true, Some(key)) => format!("{messages} with the key {} of the global queue {queue}", quoted(key)),
        (true, None) => format!("{messages} of the global queue {queue}"),
        (false, _) => match command["messagesInQueue"].as_u64() {
            None | Some(0) => format!("{messages} of queue {queue}"),
            Some(there) => format!("{messages} of queue {queue}, which has {there}"),
        },
    }
}

/// What the last attempt failed with.
fn failure(last: &Value, now: Timestamp) -> Option<String> {
    let failure = last.get("failure")?;
    let mut parts = Vec::new();
    if let Some(status) = failure["status"].as_u64() {
        parts.push(format!("HTTP {status}"));
    }
    if let Some(kind) = text(failure, "errorType") {
        parts.push(plain(kind));
    }
    if let Some(detail) = text(failure, "detail").filter(|detail| !detail.is_empty()) {
        parts.push(quoted(detail));
    }
    let at = time(last, "at").map_or_else(String::new, |at| format!(" {}", ago(at, now)));
    let attempt =
        last["attempt"].as_u64().map_or_else(|| "The last attempt".to_owned(), |number| format!("Attempt {number}"));
    let with = if parts.is_empty() { String::new() } else { format!(" with {}", parts.join(" ")) };
    Some(format!("{attempt} failed{at}{with}."))
}

/// The sentence about the last failure of a process, with its step.
pub fn last_failure(process: &Value, now: Timestamp) -> Option<String> {
    let last = &process["lastFailure"];
    let step = text(last, "stateExecutionId").map_or_else(String::new, |step| format!("{}: ", plain(step)));
    failure(last, now).map(|failed| format!("{step}{failed}"))
}

/// The facts about a running process that no sentence of a thread has given yet.
fn of_process(process: &Value, now: Timestamp, said: &[Case]) -> Vec<(Case, String)> {
    let new = |why: Case| !said.contains(&why);
    let completing = process["completing"] == true;
    let compensating = process["compensating"] == true;
    let ends = completing || compensating || !process["closing"].is_null();
    let no_thread = !ends && entries(process, "threads").is_none();
    let facts = [
        (Case::TypeMissing, type_missing(process).map(|why| sentence(&why))),
        (Case::Paused, pause(process, now).map(|why| sentence(&why))),
        (Case::ProcessLocks, process_locks(process).map(|why| sentence(&why))),
        (Case::Owner, owner_problem(process).map(|why| sentence(&why))),
        (Case::Closing, closing(process)),
        (Case::HeldUp, held_up(process, now)),
        (Case::Compensating, compensating.then(|| "The process is undoing its completed steps.".to_owned())),
        (Case::Completing, completing.then(|| "The process completes when its last thread ends.".to_owned())),
        (
            Case::NoThread,
            no_thread.then(|| "No thread is left: the process goes on when an RPC starts one.".to_owned()),
        ),
        (Case::Children, children(process)),
    ];
    facts.into_iter().filter(|(why, _)| new(*why)).filter_map(|(why, fact)| Some((why, fact?))).collect()
}

fn closed(process: &Value, now: Timestamp) -> String {
    let ended = match text(process, "status") {
        Some("COMPLETED") => "The process completed",
        Some("FAILED") => "The process failed",
        Some("TIMEOUT") => "The process reached its timeout",
        Some("TERMINATED") => "The process was stopped",
        _ => "The process closed",
    };
    let at = time(process, "closedAt").map_or_else(String::new, |at| format!(" {}", ago(at, now)));
    let reason = text(process, "reason").map_or_else(String::new, |reason| format!(": {}", quoted(reason)));
    format!("{ended}{at}{reason}.")
}

fn type_missing(process: &Value) -> Option<String> {
    let name = quoted(text(process, "processType").unwrap_or_default());
    (process["typeMissing"] == true).then(|| format!("the process type {name} is not registered; register it again."))
}

fn pause(process: &Value, now: Timestamp) -> Option<String> {
    let (what, pause) = match (&process["pause"], &process["typePause"]) {
        (Value::Null, Value::Null) => return None,
        (Value::Null, of_type) => (
            format!("the process type {} is paused", quoted(text(process, "processType").unwrap_or_default())),
            of_type,
        ),
        (own, _) => ("the process is paused".to_owned(), own),
    };
    let until = match time(pause, "until") {
        Some(until) => format!("; the pause ends {}", ahead(until, now)),
        None => {
            let resumes = if process["pause"].is_null() { "xdb.resume_process_type()" } else { "xdb.resume_process()" };
            format!(" until {resumes}")
        }
    };
    let reason = text(pause, "reason").map_or_else(String::new, |reason| format!(" ({})", quoted(reason)));
    Some(format!("{what}{reason}{until}."))
}

fn process_locks(process: &Value) -> Option<String> {
    let locks = entries(process, "waitingForProcessLocks")?;
    let named = |lock: &Value| {
        let shared = if lock["mode"] == "SHARE" { " (shared)" } else { "" };
        format!("{}{shared}", quoted(text(lock, "name").unwrap_or_default()))
    };
    let names: Vec<_> = locks.iter().map(named).collect();
    let locks = if names.len() == 1 { "the lock" } else { "the locks" };
    Some(format!("the process waits for {locks} {}; xdb.locks shows the holders.", listed(&names, "and")))
}

fn owner_problem(process: &Value) -> Option<String> {
    let problem = plain(text(process, "ownerProblem")?);
    let owner = quoted(text(process, "owner").unwrap_or_default());
    let cure = "xdb.reassign_owned() gives it to another role";
    Some(format!("the process can't run as its owner {owner} ({problem}); {cure}."))
}

/// An array, unless it is empty.
fn entries<'v>(of: &'v Value, key: &str) -> Option<&'v Vec<Value>> {
    of[key].as_array().filter(|entries| !entries.is_empty())
}

fn closing(process: &Value) -> Option<String> {
    let word = text(process, "closing")?;
    let unless = if word == "CONDITIONAL" { ", unless they publish messages to it" } else { "" };
    Some(format!("The process closes when open transactions that publish to it have ended{unless}."))
}

fn held_up(process: &Value, now: Timestamp) -> Option<String> {
    let locks = entries(process, "heldUpBy")?;
    let named = |lock: &Value| {
        let table = text(lock, "table").map_or_else(|| "a table".to_owned(), |table| format!("table {}", plain(table)));
        let what = match text(lock, "lock") {
            Some("process") => "the process itself".to_owned(),
            Some("row") => format!("a row of {table}"),
            _ => table,
        };
        let lasts = time(lock, "since").map_or_else(String::new, |since| format!(" for {}", lasted(since, now)));
        format!("{what}{lasts}")
    };
    let locks: Vec<_> = locks.iter().map(named).collect();
    Some(format!(
        "Another session has locked {}: the process goes on when the lock is released.",
        listed(&locks, "and")
    ))
}

fn children(process: &Value) -> Option<String> {
    let children = entries(process, "children")?;
    let shown = children.iter().take(3).map(|child| quoted(text(child, "processId").unwrap_or_default()));
    let mut names: Vec<_> = shown.collect();
    let more = children.len().saturating_sub(3);
    if more > 0 {
        names.push(format!("{more} others"));
    }
    let verb = if children.len() == 1 { "runs" } else { "run" };
    Some(format!("{} {verb}: {}.", count(children.len() as u64, "child process"), listed(&names, "and")))
}

fn count(number: u64, what: &str) -> String {
    match (number, what.strip_suffix("process")) {
        (1, _) => format!("1 {what}"),
        (_, Some(_)) => format!("{number} {what}es"),
        _ => format!("{number} {what}s"),
    }
}

/// The text with a capital letter at its beginning.
fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

fn the_call(thread: &Value) -> String {
    match text(thread, "worker") {
        Some(worker) => format!("The call of worker {} ({})", quoted(worker), short_api(thread)),
        None => format!("The call of a function ({})", short_api(thread)),
    }
}

fn api(thread: &Value) -> String {
    format!("the {} call", short_api(thread))
}

fn short_api(thread: &Value) -> &'static str {
    match text(thread, "api").or_else(|| text(thread, "status")) {
        Some(api) if api.starts_with("WAIT_UNTIL") => "waitUntil",
        _ => "execute",
    }
}

fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value[key].as_str()
}

/// A moment of the document. Moments beyond the range of timestamps, such as `infinity`, count as none.
fn time(value: &Value, key: &str) -> Option<Timestamp> {
    value[key].as_str()?.parse().ok()
}

/// When a process started, for a heading.
pub fn started(process: &Value, now: Timestamp) -> Option<String> {
    time(process, "startedAt").map(|started| ago(started, now))
}
