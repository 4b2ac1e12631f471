//! One turn: one transaction that applies what has come in and claims what is due. The scheduler makes them for everything, and
//! runners for what is slow, one step at a time.
//!
//! Each phase takes the value that the one before has made, and gives the next one its own:
//!
//! ```text
//!  Backlog ─▶ begin ──▶ gather ─────▶ load ─────▶ decide ──────▶ save ──────▶ claim ──────▶ prepare ─▶ COMMIT ─▶ settle
//!  (answers)  │ epoch    │ due timers,  │ executions  │ events in    │ the         │ leases for   │ requests     │ calls go out,
//!             │ pause    │ messages,    │ under their │ memory;      │ difference  │ due calls,   │ with their   │ what waits is
//!             │ registry │ global       │ row locks   │ users'       │ as rows     │ within the   │ attributes   │ kept for the
//!             ▼          ▼ queues       ▼             ▼ tables       ▼             ▼ room         ▼              ▼ next turn
//!            Started    Work           Batch         Decided        Saved         Claims         Prepared       Next
//! ```
//!
//! | file | what it is for |
//! |---|---|
//! | `role.rs` | the scheduler and the runners: all that they do differently |
//! | `memory.rs` | what a process keeps between its turns; all of it may be lost |
//! | `backlog.rs` | answers that wait to be applied, and executions that are left alone for a while |
//! | `transaction.rs` | the transaction, and what is done when it fails: again in parts, then one by one |
//! | `types.rs`, `next.rs` | what all phases know of the turn, and when they want the next one |
//! | `gather.rs`, `scans.rs` | what is due, and where the scans for it begin |
//! | `load.rs`, `decide.rs`, `save.rs` | from items to rows; `decide.rs` has the driver of `xdb_calls::apply` |
//! | `claim.rs`, `prepare.rs`, `settle.rs` | from due calls to requests, and what is left to do after the commit |
//! | `priorities.rs` | the scans where some processes have priorities |
//! | `app_tables.rs`, `slow_tables.rs` | users' tables: as their owners, within a budget of time; and which are slow |
//! | `global_queues.rs` | who gets the messages of global queues |
//! | `attribute_locks.rs` | who may have which locks on attributes, and what functions leave to them |
//! | `breakers.rs`, `owners.rs` | workers that can't be reached, roles that may not own processes |
//! | `owner_settings.rs` | what roles have set for themselves, where their steps use tables |
//!
//! Rules that hold in every phase:
//! - No transaction is open while a worker is being called: requests are submitted after the commit.
//! - Nothing is waited for but a user's row or a unique key, and that for 50 ms at most; a runner waits for 500 ms.
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
mod item;
mod load;
mod memory;
mod next;
mod owner_settings;
mod owners;
mod prepare;
mod priorities;
mod role;
mod save;
mod scans;
mod settle;
mod slow_tables;
mod transaction;
mod types;

pub use app_tables::refused;
pub use memory::Memory;
pub use next::{Next, RETRY, Why};
pub use owners::why_unfit;
pub use role::RUNNERS_CALLS;
pub use transaction::take_turn;
