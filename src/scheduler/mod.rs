//! The engine's own processes: the launcher, one scheduler per database where the extension is, and its runners.
//!
//! The life of a slot, of which each scheduler and each runner has one:
//!
//! ```text
//!  Idle ──launcher asks──▶ Requested ──process claims the slot──▶ Live ──process ends──▶ Exited ──launcher notes it──▶ Idle
//!    ▲                         │                                                                                  │
//!    └────── start is lost ────┘                    again at once, after a backoff, or when somebody asks ◀───────┘
//! ```
//!
//! | file | what it is for |
//! |---|---|
//! | `launcher.rs` | one process without a database that keeps a scheduler running for each that needs one |
//! | `life.rs` | a process, scheduler or runner, from its start to its exit |
//! | `main_loop.rs` | the loop: wait, take answers in, make a turn |
//! | `duties.rs` | besides: the scheduler looks after its runners, a runner leaves when there is no work |
//! | `maintenance.rs` | between turns: retention, and messages whose time is over |
//! | `sums.rs` | between turns: what roles have is counted |

mod duties;
pub mod launcher;
mod life;
mod main_loop;
mod maintenance;
mod sums;
