//! The state machine of a process execution: commands in, events out.
//!
//! ```text
//!             Command                      Event, Event, ...
//!  (an answer came, a timer   ┌────────┐  (the state waits, a message   ┌───────┐
//!   fired, a caller stops     │ decide │   was consumed, the process    │ apply │──▶ Execution
//!   the process, ...)    ────▶└────────┘   closed, ...)            ────▶└───────┘        │
//!                                 ▲                                                      │
//!                                 └──────────────────────────────────────────────────────┘
//! ```
//!
//! [`decide`] takes an [`Execution`] and a [`Command`]. It returns the [`Event`]s that follow, or why the command is
//! refused. Only [`Execution::apply`] changes an execution: in live processing, in [`Replay`] and in tests.
//!
//! The time and a random number for jitter come with the [`Context`]. So the same history gives the same execution, for
//! ever.
//!
//! Limitations: nothing here reads a clock, does I/O, starts a thread or knows that Postgres exists.
//!
//! # The life of a state execution
//!
//! A decision names the next states, and each of them starts a thread. A [`StateExecution`] is one step of a thread.
//! Its [`Phase`] says how far the step is:
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
//! In `WAIT_UNTIL` and `EXECUTE` the worker is called, and called again after a failed attempt. In `WAITING` the step
//! is only a row. A wait that can end at once ends in the same decision. The other effects of an answer (written
//! attributes, published messages) have their own events, before the event that ends the call.
//!
//! If the retries of a state are spent, its options decide: the process fails, or another state follows, or an incident
//! is raised. With an incident the state stays at its call. The call is not made until a caller retries it.
//!
//! The process runs until a `ProcessClosed`. Its reason is one of these:
//! - a decision that forces the close
//! - the end of the last thread after a graceful completion was requested
//! - spent retries
//! - the timeout
//! - a caller who stops the process
//!
//! A closed process refuses all commands except read-only RPCs.
//!
//! # Executions in part
//!
//! An execution may be loaded in part: the states and queues that a command needs, and counters for the rest. What
//! is decided for a loaded state does not depend on the states that were not loaded.
//!
//! # Where to look
//!
//! | file | what it has |
//! |---|---|
//! | `command.rs`, `event.rs` | all commands, and all events |
//! | `execution.rs` | an execution between two events |
//! | `decide.rs`, `global_queues.rs` | what follows from a command |
//! | `apply.rs` | what an event changes |
//! | `wait.rs`, `retry.rs` | when a wait is over, and when a call is made again |
//! | `definition.rs`, `options.rs` | a registered process type, and the options of its states |
//! | `merge.rs` | a start that is merged into a pending one |
//! | `replay.rs` | an execution rebuilt from its history, and snapshots in place of older events |
//! | `types.rs`, `json.rs` | times, ids, words and JSON values |

mod apply;
mod command;
mod decide;
mod definition;
mod event;
mod execution;
mod global_queues;
mod json;
mod merge;
mod options;
mod replay;
mod retry;
mod types;
mod wait;

pub use apply::FIRST_STATE;
pub use command::*;
pub use decide::{Context, Quotas, decide};
pub use definition::*;
pub use event::*;
pub use execution::*;
pub use global_queues::*;
pub use json::Json;
pub use merge::{MergeOptions, MergedInput, MergedStart, merge_start, merged};
pub use options::*;
pub use replay::{MessageIds, Replay, Snapshot, history_cut};
pub use retry::{
    FailedAttempt, LONGEST_UNREGISTERED_PAUSE, REGISTERED_WITHIN, REPEATS_AT_ONCE, Retry, next_repeat, next_retry,
};
pub use types::*;
