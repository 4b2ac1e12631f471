//! A worker that answers as a test says: well, badly, or not at all.

mod call;
mod reply;
mod server;

pub use call::{Api, Call};
pub use reply::{
    Answer, Reply, all_of, any_combination, any_of, close_if_empty, compensate, dead_end, error, force_complete,
    force_fail, global_queue, graceful_complete, local_queue, next, next_all, no_command, output, timer,
};
pub use server::{Ledger, Worker};
