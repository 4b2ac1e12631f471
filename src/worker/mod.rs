//! The engine's own processes.

pub mod launcher;
pub mod lifecycle;
pub mod scheduler;
pub mod settings;
