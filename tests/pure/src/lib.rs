//! Tests of single files of the extension that know nothing of Postgres, and are built here without it.

#[path = "../../../src/worker/breaker.rs"]
pub mod breaker;
#[path = "../../../src/worker/fronts.rs"]
pub mod fronts;
#[path = "../../../src/worker/lock_queue.rs"]
pub mod lock_queue;
#[path = "../../../src/clock/shift.rs"]
pub mod shift;
