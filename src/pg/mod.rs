//! Everything that touches the server process: errors, SPI, identity, shared memory, latches, hooks.

pub mod catch;
pub mod compat;
pub mod crash;
pub mod descriptors;
pub mod extension;
pub mod function;
pub mod hook;
pub mod identity;
pub mod latch;
pub mod param;
pub mod planning;
pub mod process;
pub mod raw;
pub mod session;
pub mod settings;
pub mod shift;
pub mod shmem;
pub mod spi;
pub mod subxact;
pub mod types;
pub mod wake;
