//! The library of the tests of `src/http`, which is built here without Postgres: a reactor, and workers that misbehave.

pub mod gate;
#[path = "../../../src/http/mod.rs"]
pub mod http;
pub mod rig;
pub mod stub;
#[path = "../../../src/transport.rs"]
pub mod transport;
