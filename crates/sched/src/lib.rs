//! What a scheduler keeps in memory between its turns, and the rules by which it shares places, time and bytes.
//!
//! The crate reads no clock, does no I/O, starts no thread and knows nothing of Postgres. Every moment is a parameter,
//! so everything is tested without a server.
//!
//! ```text
//!   a start asks for locks ── may the process have them? ── process_locks ─── no: its first call is parked
//!        ▼
//!   task rows that are due (timers and messages: due_owners)
//!        │  which lines are there?                    lines
//!        │  where does the scan begin?                due_scan
//!        │  whose turn is it at a pull worker?        turns
//!        │  did a lock or a failure defer it?         backoff
//!        │  is its definition in memory?              kept
//!        ▼
//!   a due call ── can its worker be reached? ──────── breaker ────── no: only a probe goes out
//!        │        is there a place for its owner? ─── room ───────── no: it stays unclaimed
//!        │        has this turn enough to read? ───── bytes ──────── yes: the next turn
//!        ▼
//!   a claimed call ── may it have its locks? ──────── lock_table (wanted_locks: which) ─── no: it is parked
//!        ▼
//!   under way, counted in room::InFlight
//!        ▼
//!   its answer ── has this turn enough to write? ──── bytes ──────── yes: the next turn
//!        │        is there time for tables? ───────── budget ─────── no: the next turn
//!        │        is one of its tables locked? ────── table_health ─ yes: later
//!        ▼
//!   applied: its locks are released, its place is free
//! ```
//!
//! Limitations: all of it may be lost at any moment. The tables hold everything.

pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod bytes;
pub mod due_owners;
pub mod due_scan;
pub mod kept;
pub mod lines;
pub mod lock_table;
pub mod process_locks;
pub mod room;
pub mod table_health;
pub mod turns;
pub mod wanted_locks;
