//! What a scheduler keeps in memory between its turns.
//!
//! Nothing here reads a clock, does I/O, starts a thread or knows that Postgres exists: every moment is handed in, so all of
//! it is tested without a server. And all of it may be lost at any moment: the tables hold everything.
//!
//! ```text
//!   task rows that are due (timers and messages: due_owners)
//!        │  whose are there?                        lines
//!        │  where does the scan begin?              due_scan
//!        │  whose turn is it? (of those who fetch)  turns
//!        │  is somebody else at it right now?       backoff
//!        │  is its definition in memory?            kept
//!        ▼
//!   a due call ── can its worker be reached? ────── breaker ────── no: only a probe goes out
//!        │        is there room for its owner? ──── room ───────── no: it stays unclaimed
//!        │        has this turn enough to read? ─── bytes ──────── yes: the next turn
//!        ▼
//!   a claimed call ── may it have its locks? ────── lock_table (wanted_locks: which) ─── no: it waits with its lease
//!        ▼
//!   under way, counted in room::InFlight
//!        ▼
//!   its answer ── has this turn enough to write? ── bytes ──────── yes: the next turn
//!        │        is there time for users' tables in this turn?
//!        │                                          budget ─────── no: the next turn
//!        │        is one of them locked just now?   table_health ─ yes: later
//!        ▼
//!   applied: its locks are released, its place is free
//! ```

pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod bytes;
pub mod due_owners;
pub mod due_scan;
pub mod kept;
pub mod lines;
pub mod lock_table;
pub mod room;
pub mod table_health;
pub mod turns;
pub mod wanted_locks;
