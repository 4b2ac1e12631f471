//! The engine's processes: the launcher, and for each database with the extension one scheduler and its runners. What
//! happens in a turn is in [`crate::turn`].
//!
//! Each scheduler and runner has a slot in shared memory. The life of a slot:
//!
//! ```text
//!  Idle ──launcher asks──▶ Requested ──process claims it──▶ Live ──process ends──▶ Exited ──launcher sees it──▶ Idle
//!   ▲                         │                                                                              │
//!   └────── start is lost ────┘               at once, after a backoff, or when it is asked for ◀────────────┘
//! ```
//!
//! | file | what it is for |
//! |---|---|
//! | `launcher.rs` | one process without a database, which starts and ends the others |
//! | `life.rs` | a scheduler or runner from its start to its exit |
//! | `main_loop.rs` | the loop: wait, read answers, make a turn |
//! | `duties.rs` | work besides turns: retiring runners, showing the rate, ending an idle runner |
//! | `maintenance.rs` | between turns: purging old executions, messages and message ids |
//! | `sums.rs` | between turns: counting what roles have, for their quotas |
//!
//! Limitations: shared memory has slots for 64 schedulers and 64 runners. A database without a slot waits for one.

mod duties;
pub mod launcher;
mod life;
mod main_loop;
mod maintenance;
mod sums;
