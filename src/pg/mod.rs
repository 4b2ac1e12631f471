//! What touches the server process.
//!
//! The rooms above see values and closures: a statement that is run, a body that runs as another role, a wait that ends. What
//! Postgres wants for that (memory contexts, resource owners, callbacks, `longjmp`) stays in here.
//!
//! ```text
//!   api, scheduler, turn, store
//!     │ values, closures, Result<_, PgError>
//!     ▼
//!   spi ── param, types ── index_plans   statements and their parameters
//!   identity ── settings                 as whom they run, and with which settings
//!   subxact ── catch                     what fails is undone, and comes back as a value
//!   latch ── wake ── shmem               who waits, and who wakes whom at commit
//!     │ unsafe
//!     ▼
//!   the server
//! ```
//!
//! | file | what it is for |
//! |---|---|
//! | `catch.rs`, `raw.rs` | errors of the server as whole values, and functions that are called without pgrx's boundary |
//! | `function.rs` | SQL functions as the server calls them: arguments, results, the one place where errors are raised |
//! | `spi.rs`, `param.rs`, `types.rs` | statements, prepared once per session; parameters, columns, names of types |
//! | `index_plans.rs` | plans of statements on system tables: made once, by index |
//! | `identity.rs`, `settings.rs` | as whom SQL runs; settings that nobody else may change |
//! | `subxact.rs` | subtransactions, time limits, conditional locks on tables |
//! | `session.rs`, `process.rs` | an engine process: its connection, its transactions, its signals, its end |
//! | `worker.rs`, `databases.rs` | what the launcher asks of the server: background workers, the list of databases |
//! | `latch.rs`, `wake.rs` | waiting, and what a commit sets off |
//! | `commit.rs` | which commits need not be flushed at once |
//! | `shmem.rs`, `shmem/` | shared memory: slots, statistics of calls, sessions that wait, marks, what holds processes up |
//! | `hook.rs`, `extension.rs` | statements that concern the engine; the extension as the catalog has it |
//! | `clock_offset.rs`, `descriptors.rs` | the offset of the clock; file descriptors that are reserved with the server |
//! | `json.rs` | `jsonb` as text |
//! | `in_hand.rs` | which calls an engine process has in hand, for the scheduler that comes after a crash |
//! | `memory.rs` | memory that is not there is an error, and no end of the process |
//! | `row_locks.rs` | whether others have locked a row for a close |
//! | `snapshot.rs` | a session that does nothing but wait gives its snapshot back while it sleeps |
//! | `names.rs`, `routine.rs` | lists of names in settings; users' functions by their names |
//! | `secret_sources.rs` | secrets in the environment and in files |
//! | `tests.rs` | tests inside of a server, in builds for tests alone |
//! | `compat.rs` | what differs between the major versions of Postgres |
//! | `crash.rs` | crash points, in builds for tests alone |
//!
//! Rules:
//! - An error is a value, [`catch::PgError`], on its way to the edge in `function.rs`. Where a user's code or a lock that is waited for
//!   may raise one, it is that from the call on, with all its fields: no destructor is pending in a frame that the server may jump
//!   out of. Other functions of the server are called as pgrx has them: their errors are panics until [`catch::run_caught`].
//! - Whatever a callback at commit or exit touches is an atomic or a latch: an error there would bring the server down.
//! - Only the main thread comes here.
//! - `unsafe` lives here. The exceptions are the system calls of `http`, in the files that `scripts/source_checks.py` names.
//! - Shared memory may be lost, and its arrays may be full: everybody gets along without a place.

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
pub mod types;
pub mod wake;
pub mod worker;
