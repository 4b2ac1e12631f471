//! The state machine of a process execution: commands in, events out.
//!
//! ```text
//!             Command                      Event, Event, ...
//!  (an answer came, a timer   ┌────────┐  (the state waits, a message   ┌───────┐
//!   fired, somebody stops     │ decide │   was taken, the process       │ apply │──▶ Execution
//!   the process, ...)    ────▶└────────┘   closed, ...)            ────▶└───────┘        │
//!                                 ▲                                                      │
//!                                 └──────────────────────────────────────────────────────┘
//! ```
//!
//! [`decide`] looks at an [`Execution`] and a [`Command`] and answers with the [`Event`]s that follow, or says why
//! the command is refused. [`Execution::apply`] is the only thing that changes an execution: in live processing, in
//! [`Replay`] and in tests. Nothing here reads a clock, does I/O, starts a thread or knows that Postgres exists: the time
//! and a random number for jitter come with the [`Context`]. So the same history gives the same execution, for ever.
//!
//! # The life of a state execution
//!
//! A decision names the next states, and each of them starts a thread. A [`StateExecution`] is one step of a thread;
//! its [`Phase`] is where it stands:
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
//! In `WAIT_UNTIL` and `EXECUTE` the worker is called, and is called again after a failed attempt; in `WAITING` nothing is
//! held but a row. A wait that can end at once ends in the same decision. What an answer did besides (attributes that it
//! wrote, messages that it published) is told by events of their own, before the one that ends its call. A state that
//! failed is followed by the one that its options name, or it fails the process. Or it does not fail: with an incident it
//! stays at its call, which nothing makes until somebody requests it.
//!
//! The process runs until a `ProcessClosed`: by a decision that forces it, by the end of its last thread once a graceful
//! completion was requested, by spent retries, its timeout, or somebody who stops it. Closed is closed: all commands but
//! a read-only RPC are refused from then on.
//!
//! # Parts
//!
//! An execution may be loaded in part: the states and queues that a command needs, and counters for the rest. What
//! is decided for a loaded state does not depend on how many others were left out.
//!
//! # Where to look
//!
//! | file | what it has |
//! |---|---|
//! | `command.rs`, `event.rs` | everything that can be asked, and everything that can happen |
//! | `execution.rs` | what there is between two events |
//! | `decide.rs`, `global_queues.rs` | what follows from a command |
//! | `apply.rs` | what an event changes |
//! | `wait.rs`, `retry.rs` | when a wait is over, and when a call is made again |
//! | `definition.rs`, `options.rs` | what a process type is registered with |
//! | `merge.rs` | what becomes of a start that is merged into another one |
//! | `replay.rs` | an execution out of its history, and snapshots that stand for a part of it |

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
