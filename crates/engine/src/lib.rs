//! The state machine of a process execution: commands in, events out.
//!
//! [`decide`] looks at an [`Execution`] and a [`Command`] and answers with the [`Event`]s that follow, or says why
//! the command is refused. [`Execution::apply`] is the only thing that changes an execution, in live processing, in
//! replay and in tests. Nothing here reads a clock, does I/O, starts a thread or knows that Postgres exists.
//!
//! An execution may be loaded in part: the states and queues that a command needs, and counters for the rest. What
//! is decided for a loaded state does not depend on how many others were left out.

mod apply;
mod command;
mod decide;
mod definition;
mod event;
mod execution;
mod global;
mod json;
mod options;
mod replay;
mod retry;
mod types;
mod wait;

pub use command::*;
pub use decide::{Context, decide};
pub use definition::*;
pub use event::*;
pub use execution::*;
pub use global::*;
pub use json::Json;
pub use options::*;
pub use replay::{MessageIds, Replay, Snapshot, history_cut};
pub use retry::{REPEATS_AT_ONCE, Retry, next_repeat, next_retry};
pub use types::*;
pub use wait::taken_at_once;
