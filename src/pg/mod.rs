//! Everything that touches the server process: shared memory, latches, transactions, hooks.

pub mod hook;
pub mod latch;
pub mod raw;
pub mod shmem;
pub mod wake;
