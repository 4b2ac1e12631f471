//! One turn of a scheduler: one transaction that applies what has come in and claims what is due.
//!
//! Each phase takes the value that the one before has made, and gives the next one its own:
//!
//! ```text
//!  Backlog ─▶ begin ──▶ gather ─────▶ load ─────▶ decide ──────▶ save ──────▶ claim ──────▶ prepare ─▶ COMMIT ─▶ settle
//!  (answers)  │ epoch    │ due timers,  │ executions  │ events in    │ the         │ leases for   │ requests     │ calls go out,
//!             │ pause    │ messages,    │ under their │ memory;      │ difference  │ due calls,   │ with their   │ what waits is
//!             │ registry │ global       │ row locks   │ users'       │ as rows     │ within the   │ attributes   │ kept for the
//!             ▼          ▼ queues       ▼             ▼ tables       ▼             ▼ room         ▼              ▼ next turn
//!            Started    Work           Batch         Decided        Saved         Claims         Prepared       Progress
//! ```
//!
//! | file | what it is for |
//! |---|---|
//! | `memory.rs` | what a scheduler keeps between its turns; all of it may be lost |
//! | `backlog.rs` | answers that wait to be applied, and executions that are left alone for a while |
//! | `transaction.rs` | the transaction, and what is done when it fails: again in parts, then one by one |
//! | `gather.rs`, `scans.rs` | what is due, and where the scans for it begin |
//! | `load.rs`, `decide.rs`, `save.rs` | from items to rows |
//! | `claim.rs`, `prepare.rs`, `settle.rs` | from due calls to requests, and what is left to do after the commit |
//! | `app_tables.rs` | users' tables: as their owners, within a budget of time |
//! | `global_queues.rs` | who gets the messages of global queues |
//! | `attribute_locks.rs` | who may have which locks on attributes |
//! | `breakers.rs`, `in_flight.rs`, `owners.rs` | calls under way, workers that can't be reached, roles that may not own processes |
//!
//! Rules that hold in every phase:
//! - No transaction is open while a worker is being called: requests are submitted after the commit.
//! - Nothing is waited for but a user's row or a unique key, and that for 50 ms at most.
//! - What one item does wrong is undone with it alone: a transaction that fails is made again in smaller ones.
//! - What is in memory is never needed to be right: a scheduler that starts finds everything in the tables.

mod app_tables;
mod attribute_locks;
mod backlog;
mod breakers;
mod claim;
mod decide;
mod gather;
mod global_queues;
mod in_flight;
mod item;
mod load;
mod memory;
mod owners;
mod prepare;
mod save;
mod scans;
mod settle;
mod transaction;

pub use memory::Memory;
pub use transaction::{Progress, take_turn};
