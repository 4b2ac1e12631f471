//! The engine's own processes.

mod apply;
mod breakers;
pub mod calls;
mod global;
mod hand_out;
mod in_flight;
pub mod launcher;
pub mod lifecycle;
mod lock_display;
mod locks;
mod looks;
mod maintenance;
mod owners;
pub mod scheduler;
pub mod settings;
mod turn;
mod user_tables;
