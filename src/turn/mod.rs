//! One turn: one transaction that applies what has come in and claims what is due. The scheduler's turns serve all
//! processes. The turns of runners serve slow tables and functions, one step at a time.
//!
//! Each phase takes the value that the phase before has made, and makes the value for the next phase:
//!
//! ```text
//!  Backlog ─▶ begin ──▶ gather ───▶ load ─────▶ decide ──────▶ save ─────▶ claim ────▶ prepare ─▶ COMMIT ─▶ settle
//!  (answers)  epoch,    due timers, executions  events in      the         leases for  requests             calls go
//!             pause,    messages,   under their memory;        difference  due calls,  with their           waiting
//!             registry  global      row locks   application's  as rows     if places   attributes           items stay
//!                       queues                  tables                     are free
//!             Started   Work        Batch       Decided        Saved       Claims      Prepared             Next
//! ```
//!
//! | file | what it is for |
//! |---|---|
//! | `role.rs` | the differences between the scheduler and the runners |
//! | `memory.rs` | what an engine process keeps between its turns; all of it may be lost |
//! | `backlog.rs`, `item.rs` | items that wait to be applied, and executions that are deferred |
//! | `transaction.rs` | the transaction, and its retries after a failure: in parts, then one item at a time |
//! | `types.rs`, `next.rs` | what all phases know of the turn; when the next turn is due |
//! | `gather.rs`, `scans.rs` | finding due work; where the scans for it begin |
//! | `load.rs`, `decide.rs`, `save.rs` | from items to rows; `decide.rs` has the driver of `xdb_calls::apply` |
//! | `claim.rs`, `prepare.rs`, `settle.rs` | from due calls to requests; the work after the commit |
//! | `app_tables.rs`, `slow_tables.rs` | the application's tables: as the owner, within a budget; which are slow |
//! | `process_locks.rs` | which processes get their locks: between saving and claiming |
//! | `global_queues.rs` | which waiting steps get the messages of global queues |
//! | `attribute_locks.rs` | which calls get which locks on attributes, and which rows functions avoid |
//! | `breakers.rs`, `owners.rs` | workers that can't be reached; roles that may not own processes |
//! | `owner_settings.rs` | settings of roles, for the steps that use tables |
//!
//! Rules that hold in every phase:
//! - No transaction is open while a worker is being called: requests are submitted after the commit.
//! - The scheduler waits only for rows of the application and unique keys, for 50 ms at most. A runner waits for 500
//!   ms.
//! - If a transaction fails, its items are retried in smaller transactions, so only the faulty item fails.
//! - Correctness never depends on memory: a scheduler that starts finds everything in the tables.

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
mod process_locks;
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
pub use slow_tables::SlowTables;
pub use transaction::take_turn;
