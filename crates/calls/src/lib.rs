//! A call as a value: may it be made, what is sent, what was answered, and what follows from the answer. There is one
//! path, for the scheduler's turn, a runner that calls a function, a pull worker's session, an RPC and the simulator.
//!
//! | file | what it is for |
//! |---|---|
//! | `eligible.rs` | whether a call may be made now, and which process makes it |
//! | `request.rs` | the request |
//! | `answer.rs` | the answer, as the command that the engine decides about |
//! | `apply.rs` | what follows from an answer: `apply`, and the trait `Driver` that loads, locks and writes for it |
//!
//! Limitations: nothing here touches a table, a socket or a clock.

mod answer;
mod apply;
mod eligible;
mod request;

pub use answer::{Answered, Attempt, decode_answer, failed_by_policy, read_answer, read_rpc_answer};
pub use apply::{CloseLock, Driver, Outcome, Used, Written, apply};
pub use eligible::{
    Asker, CallOf, Facts, Maker, Marked, NotCalled, Paused, Reason, TypeFacts, TypeWorker, Unfit, Verdict, eligible,
    not_called,
};
pub use request::{Attributes, CallOrigin, CallRequest, Loads, OutgoingCall, too_large};
