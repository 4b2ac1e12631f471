//! Tests of single files of the extension that know nothing of Postgres, and are built here without it.

#[path = "../../../src/worker/breaker.rs"]
pub mod breaker;
#[path = "../../../src/clock/shift.rs"]
pub mod shift;
