//! Everything that touches the server process: errors, SPI, identity, shared memory, latches, hooks.

pub mod catch;
pub mod clock_offset;
pub mod compat;
pub mod crash;
pub mod descriptors;
pub mod extension;
pub mod function;
pub mod hook;
pub mod identity;
pub mod index_plans;
pub mod latch;
pub mod names;
pub mod param;
pub mod process;
pub mod raw;
pub mod session;
pub mod settings;
pub mod shmem;
mod snapshot;
pub mod spi;
pub mod subxact;
#[cfg(feature = "pg_test")]
mod tests;
pub mod types;
pub mod wake;
