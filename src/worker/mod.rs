//! The engine's own processes.

mod apply;
mod breaker;
mod breakers;
pub mod calls;
mod deferred;
mod fronts;
mod global;
mod hand_out;
mod in_flight;
pub mod launcher;
pub mod lifecycle;
mod lock_display;
pub mod lock_queue;
mod locks;
mod looks;
mod maintenance;
mod owners;
pub mod scheduler;
pub mod settings;
mod turn;
mod user_tables;
