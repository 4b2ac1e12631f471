//! The state machine of a process execution: commands in, events out.
//!
//! ```text
//!             Command                      Event, Event, ...
//!  (an answer came, a timer   ┌────────┐  (the state waits, a message   ┌───────┐
//!   fired, an operator stops  │ decide │   was taken, the process       │ apply │──▶ Execution
//!   the process, ...)    ────▶└────────┘   closed, ...)            ────▶└───────┘        │
//!                                 ▲                                                      │
//!                                 └──────────────────────────────────────────────────────┘
//! ```
//!
//! [`decide`] reads an [`Execution`] and a [`Command`]. It returns the [`Event`]s that follow, or says why the command
//! is refused. Only [`Execution::apply`] changes an execution: in live processing, in [`Replay`] and in tests.
//!
//! Limitations: nothing here reads a clock, does I/O, starts a thread or knows Postgres. The time and a random number
//! for jitter come with the [`Context`]. So the same history gives the same execution, for ever.
//!
//! # The life of a step
//!
//! A decision names the next states, and each of them starts a thread. A [`StateExecution`] is one step of a thread.
//! Its [`Phase`] says where the step stands:
//!
//! ```text
//!        StateStarted                        StateStarted, with skipWaitUntil
//!             │                                             │
//!             ▼                                             ▼
//!      ┌────────────┐  WaitStarted   ┌─────────┐  WaitCompleted  ┌─────────┐  StateCompleted
//!      │ WAIT_UNTIL │───────────────▶│ WAITING │────────────────▶│ EXECUTE │─────────────────▶ COMPLETED
//!      └────────────┘                └─────────┘                 └─────────┘
//!        │        ▲                    │     ▲                     │     ▲
//!        └────────┘                    └─────┘                     └─────┘
//!      AttemptFailed,            CommandCompleted,           AttemptFailed,
//!      CallRepeated,             GlobalMessagesTaken,        CallRepeated,
//!      RetryRequested,           TimerSkipped                RetryRequested,
//!      IncidentRaised                                        IncidentRaised
//!
//!      from WAIT_UNTIL and EXECUTE:   StateFailed (the retries are spent) ────▶ FAILED
//!      from each of the three:        ProcessClosed ──────────────────────────▶ ABORTED
//! ```
//!
//! A state with a static wait starts in `WAITING`, and its commands come with `WaitStarted`.
//!
//! In `WAIT_UNTIL` and `EXECUTE` the handler is called, and called again after a failed attempt. In `WAITING` the step
//! is only a row. A wait that can end at once ends in the same decision. The effects of an answer (attributes,
//! messages) have events of their own, before the event that ends the call.
//!
//! After a state has failed, the state in its options follows, or the process fails. With an incident the state does
//! not fail: it stays at its call, which is not made until a retry is requested.
//!
//! The process runs until a `ProcessClosed`. The reason is one of these:
//! - a decision forces the close
//! - the last thread ends after a graceful completion was requested
//! - the retries are spent
//! - the process times out
//! - a caller stops the process
//!
//! A closed process refuses all commands except read-only RPCs.
//!
//! # Executions in part
//!
//! An execution may be loaded in part: the states and queues that a command needs, and counters for the rest. A
//! decision about a loaded state does not depend on how many other states were left out.
//!
//! # Where to look
//!
//! | file | what it has |
//! |---|---|
//! | `command.rs`, `event.rs` | everything that can be asked for, and everything that can happen |
//! | `execution.rs` | an execution between two events |
//! | `decide.rs`, `global_queues.rs` | which events follow from a command |
//! | `apply.rs` | what an event changes |
//! | `wait.rs`, `retry.rs` | when a wait is over, and when a call is made again |
//! | `compensation.rs` | undoes what completed steps did |
//! | `guards.rs` | guards: states that wait beside others, and may end them |
//! | `request.rs` | what a state asks to wait for |
//! | `static_wait.rs` | waits that the options of a state say |
//! | `definition.rs`, `options.rs` | what is registered for a process type |
//! | `children.rs`, `family.rs` | processes that an answer starts, and their parent |
//! | `merge.rs` | how a start is merged into another one |
//! | `process_locks.rs` | the locks that a process asks for |
//! | `replay.rs` | rebuilds an execution from its history; snapshots that replace a part of the history |
//! | `json.rs`, `types.rs` | values: JSON of the application, times, ids, words |

mod abort;
mod apply;
mod children;
mod command;
mod compensation;
mod decide;
mod definition;
mod event;
mod execution;
mod family;
mod global_queues;
mod guards;
mod json;
mod merge;
mod options;
mod process_locks;
mod replay;
mod request;
mod retry;
mod static_wait;
mod types;
mod wait;

pub use apply::FIRST_STATE;
pub use children::NewChildren;
pub use command::*;
pub use compensation::MOST_COMPENSATIONS;
pub use decide::{Context, NextTick, Quotas, decide};
pub use definition::*;
pub use event::*;
pub use execution::*;
pub use family::*;
pub use global_queues::*;
pub use guards::{MOST_GUARDS, Unloaded};
pub use json::Json;
pub use merge::{MergeOptions, MergedInput, MergedStart, merge_start, merged};
pub use options::*;
pub use process_locks::{LockMode, MOST_LOCKS, ProcessLocks};
pub use replay::{MessageIds, Replay, Snapshot, history_cut};
pub use request::*;
pub use retry::{
    FailedAttempt, LONGEST_UNREGISTERED_PAUSE, REGISTERED_WITHIN, REPEATS_AT_ONCE, Retry, next_repeat, next_retry,
};
pub use types::*;
