//! A call as a value: may it be made, what is sent, what was answered, and what follows from the answer. It is one path, and whoever
//! makes a call goes along it: the scheduler's turn, a runner that calls a function, a worker that fetches its calls, an RPC, the
//! simulator.
//!
//! | file | what it is for |
//! |---|---|
//! | `eligible.rs` | whether a call may be made now, and who makes it |
//! | `request.rs` | what is sent |
//! | `answer.rs` | what was answered, as the command that the engine decides about |
//! | `apply.rs` | what follows from an answer: `apply`, and the trait `Driver` of what loads, locks and writes |
//!
//! Nothing here touches a table, a socket or a clock.

mod answer;
mod apply;
mod eligible;
mod request;

pub use answer::{Answered, Attempt, decode_answer, failed_by_policy, read_answer, read_rpc_answer};
pub use apply::{CloseLock, Driver, Outcome, Used, Written, apply};
pub use eligible::{
    Asker, CallOf, Facts, Maker, Marked, Paused, Reason, TypeFacts, TypeWorker, Unfit, Verdict, eligible,
};
pub use request::{Attributes, CallRequest, Loads, Origin, OutgoingCall, too_large, versions_of};
