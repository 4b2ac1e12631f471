//! Tests of single files of the extension that know nothing of Postgres, and are built here without it.

#[path = "../../../src/worker/breaker.rs"]
pub mod breaker;
#[path = "../../../src/clock/offset.rs"]
pub mod clock_offset;
#[path = "../../../src/worker/fronts.rs"]
pub mod fronts;
#[path = "../../../src/worker/lock_queue.rs"]
pub mod lock_queue;
