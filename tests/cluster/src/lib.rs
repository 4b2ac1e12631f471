//! The library of the tests with a real server, real HTTP and real kills.
//!
//! A test tells a short story. It has an [`app::App`] (a database with the extension, ordinary roles, tables), a
//! [`worker::Worker`] that does what the test says, and sessions of the application. Then it checks the results.
//!
//! The extension must be installed for the Postgres of `pg_config` (or `PG_CONFIG`). Clusters are in `XDB_TEST_DIR`, or
//! in the temporary directory. If root runs the tests, they belong to the user `postgres`.

pub mod app;
pub mod catalog;
pub mod cluster;
pub mod codes;
pub mod db;
pub mod definition;
pub mod half_way;
mod install;
mod keeper;
pub mod log;
pub mod options;
pub mod random;
pub mod signup;
mod skew;
pub mod tamper;
pub mod tls;
mod upgrade;
pub mod views;
pub mod wait;
pub mod worker;

/// The names that nearly every test needs.
pub mod prelude {
    pub use crate::app::{App, SignupApp};
    pub use crate::cluster::{Cluster, ClusterOptions};
    pub use crate::codes;
    pub use crate::db::{Db, SqlError};
    pub use crate::definition::{Definition, attempts, mailbox, one_step, quick_retries};
    pub use crate::views;
    pub use crate::wait::{at_once, timed, wait_until};
    pub use crate::worker::{
        Answer, Api, Call, Reply, Worker, all_of, any_combination, any_of, close_if_empty, compensate, dead_end, error,
        force_complete, force_fail, global_queue, graceful_complete, local_queue, next, next_all, no_command, output,
        timer,
    };
    pub use serde_json::{Value, json};
    pub use std::time::{Duration, Instant};
}
