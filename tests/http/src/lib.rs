//! Tests of the engine's HTTP room, which is built here without Postgres.

pub mod gate;
#[path = "../../../src/http/mod.rs"]
pub mod http;
pub mod rig;
pub mod stub;
#[path = "../../../src/transport.rs"]
pub mod transport;
