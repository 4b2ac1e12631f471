//! Calls to workers over HTTP, in threads that never touch Postgres.
//!
//! Invariant: only the main thread may use the server: memory contexts, logging, settings. So nothing here imports the
//! server's bindings. Settings are passed in. Results return as a [`Reply`](crate::transport::Reply), and a
//! [`Notifier`] becomes readable.
//!
//! The [`Reactor`] turns each [`Request`](crate::transport::Request) into a reply. The reactor is a thread that has all
//! calls of its process open at once. Each engine process has a reactor. A session has one from its first RPC on,
//! limited to one connection. The session waits for the reply together with its latch.
//!
//! # The life of a call in the reactor
//!
//! ```text
//!  submit ──► in line ──► resolving ──► connecting ──► (TLS) ──► sending ──► waiting ──► receiving
//!               ▲ │           ▲                                     ▲           │            │
//!  no free      │ │           └─ one of the resolver's threads      │           │            ├──► reply
//!  descriptor ──┘ │                                                 │           │            │
//!                 └──────────── an idle connection to the worker ───┘           │            ▼
//!                     ▲                                                         │     idle connection
//!                     └── once more, over a new connection: a reused one was ◄──┘     (at most 4 s)
//!                         lost before a byte of the answer came
//! ```
//!
//! An answer may arrive while the request is still being sent. Then its connection is not used again.
//!
//! In each state a call can end at once: by its timeout, which counts from `submit`, by cancelling, or by a failure.
//! Each call ends exactly once.
//!
//! # Files
//!
//! | file | what it has |
//! |---|---|
//! | `authorities.rs` | trusted certificate authorities |
//! | `headers.rs`, `signature.rs` | checks of headers; signatures |
//! | `hosts.rs` | permitted URLs and addresses |
//! | `resolver.rs`, `threads.rs` | resolve names, in threads of their own; used by the registration of workers too |
//! | `notifier.rs` | wakes the main thread |
//! | `settings.rs` | passes settings to a reactor |
//! | `reactor/` | the calls |

mod authorities;
mod headers;
mod hosts;
mod notifier;
mod reactor;
mod resolver;
mod settings;
mod signature;
mod threads;

pub use authorities::Authorities;
pub use headers::validate_headers;
pub use hosts::{HostPolicy, WorkerUrl, validate_url};
pub use notifier::Notifier;
pub use reactor::{Connections, Dial, Means, Reactor};
pub use resolver::{Lookup, Names, system_lookup};
pub use settings::{FollowedSettings, Unusable};
pub use signature::{Signature, check_secret, sign};

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::transport::{CallOutcome, FailureKind};

/// Limit in bytes on all headers of an answer together, and on each header of a request.
const HEADER_LIMIT: usize = 16 * 1024;

/// Why a call failed. Never contains header values or secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpFailure {
    pub kind: FailureKind,
    pub message: String,
}

impl HttpFailure {
    fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        HttpFailure { kind, message: message.into() }
    }
}

impl From<HttpFailure> for CallOutcome {
    fn from(HttpFailure { kind, message }: HttpFailure) -> Self {
        CallOutcome::Failed { kind, message }
    }
}

/// Locks, and ignores poison. Each critical section here keeps its data consistent wherever it panics, and a panic in
/// one call must not end other calls.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
