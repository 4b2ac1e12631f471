//! Everything that loads executions, in batches and in part, by its name.

pub use super::claim::leases;
pub use super::execution::{Lock, executions, existing, lock_for_close, mark_closing, unmark_closing};
pub use super::inbox::{
    Arrival, Arrivals, InboxKey, arrivals, delete_arrivals, delete_arrivals_of, has_unseen_arrivals, message_ids,
};
pub use super::loaded::{Loaded, Meta};
pub use super::queue::{QueueDemand, queues};
pub use super::state::{answered, states, states_in, states_with_unrecorded_attempts, states_without_inputs};
pub use super::timer::{DueTimer, delete_timers};
