//! Everything that touches the server process.
//!
//! Other rooms see values and closures: a statement that runs, a body that runs as another role, a wait that ends. What
//! Postgres needs for that (memory contexts, resource owners, callbacks, `longjmp`) stays in this room.
//!
//! ```text
//!   api, scheduler, turn, store
//!     │ values, closures, Result<_, PgError>
//!     ▼
//!   spi ── param, types ── index_plans   statements and their parameters
//!   identity ── settings                 which role they run as, and with which settings
//!   subxact ── catch                     failures are undone, and come back as values
//!   latch ── wake ── shmem               waiting, and waking other processes at commit
//!     │ unsafe
//!     ▼
//!   the server
//! ```
//!
//! | file | what it is for |
//! |---|---|
//! | `catch.rs`, `raw.rs` | errors of the server as complete values; functions called without pgrx's boundary |
//! | `function.rs` | SQL functions as the server calls them: arguments, results, raising errors |
//! | `spi.rs`, `param.rs`, `types.rs` | statements, prepared once per session; parameters, columns, names of types |
//! | `index_plans.rs` | plans of statements on system tables: made once, by index |
//! | `identity.rs`, `settings.rs` | which role SQL runs as; settings that only the engine may change |
//! | `subxact.rs` | subtransactions, time limits, conditional locks on tables |
//! | `session.rs`, `process.rs` | an engine process: its connection, its transactions, its signals, its end |
//! | `worker.rs`, `databases.rs` | what the launcher needs: background workers, the list of databases |
//! | `latch.rs`, `wake.rs` | waiting; wake-ups at commit |
//! | `commit.rs` | which commits need not be flushed at once |
//! | `shmem.rs`, `shmem/` | shared memory: slots, statistics of calls, waiting sessions, marks, what blocks processes |
//! | `hook.rs`, `extension.rs` | statements that concern the engine; the extension in the catalog |
//! | `clock_offset.rs`, `descriptors.rs` | the offset of the clock; file descriptors reserved in the server |
//! | `json.rs` | `jsonb` as text |
//! | `in_hand.rs` | records which calls an engine process has in hand, for the scheduler after a crash |
//! | `memory.rs` | turns missing memory into an error, so that the process does not end |
//! | `row_locks.rs` | whether another transaction has locked a row for a close |
//! | `snapshot.rs` | releases the snapshot of a session that only waits, while it sleeps |
//! | `names.rs`, `routine.rs` | lists of names in settings; functions of the application by their names |
//! | `secret_sources.rs` | secrets in the environment and in files |
//! | `timezone.rs` | ticks of cron expressions in the time zones of the server |
//! | `tests.rs` | tests inside of a server, only in builds for tests |
//! | `compat.rs` | what differs between the major versions of Postgres |
//! | `crash.rs` | crash points, only in builds for tests |
//!
//! Rules:
//! - An error is a value, [`catch::PgError`], on its way to the edge in `function.rs`. If code of the application or a
//!   lock wait may raise one, it is caught at the call with all its fields: no destructor is pending in a frame that
//!   the server may jump over. Other functions of the server are called through pgrx: their errors are panics until
//!   [`catch::run_caught`].
//! - A callback at commit or exit touches only atomics and latches: an error there would crash the server.
//! - Only the main thread uses this room.
//! - `unsafe` is only used here. The exceptions are the system calls of `http`, in the files that
//!   `scripts/source_checks.py` names.
//! - Shared memory may be lost, and its arrays may be full: all code works without a place.

pub mod catch;
pub mod clock_offset;
pub mod commit;
pub mod compat;
pub mod crash;
pub mod databases;
pub mod descriptors;
pub mod extension;
pub mod function;
pub mod hook;
pub mod identity;
pub mod in_hand;
pub mod index_plans;
pub mod json;
pub mod latch;
pub mod memory;
pub mod names;
pub mod param;
pub mod process;
pub mod raw;
pub mod routine;
pub mod row_locks;
pub mod secret_sources;
pub mod session;
pub mod settings;
pub mod shmem;
mod snapshot;
pub mod spi;
pub mod subxact;
#[cfg(feature = "pg_test")]
mod tests;
pub mod timezone;
pub mod types;
pub mod wake;
pub mod worker;
