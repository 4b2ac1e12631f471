//! Calls to workers over HTTP, by threads that know nothing of Postgres.
//!
//! A thread that isn't the main one must never touch the server: no memory contexts, no logging, no
//! settings. So nothing in this room imports the server's bindings; what it needs from settings is
//! handed in, and what it has to tell comes back as a [`Reply`](crate::transport::Reply) and a readable [`Notifier`].
//!
//! One way leads from a [`Request`](crate::transport::Request) to its reply: the [`Reactor`], a thread that has all calls open at a
//! time. An engine has one. So has a session from its first RPC on, with room for one connection; it waits
//! for the reply beside its latch.
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
//! An answer may come while the request is still being sent; its connection is not used again.
//!
//! From every state a call may end at once: its time is over, which is counted from `submit`, or it fails. However
//! it ends, it ends once.
//!
//! # What lives where
//!
//! | file | what |
//! |---|---|
//! | `authorities.rs` | whose certificates are trusted |
//! | `headers.rs`, `signature.rs` | what can be sent, and signed |
//! | `hosts.rs` | which URLs and addresses are permitted |
//! | `resolver.rs`, `threads.rs` | names to addresses, by threads of its own; also for the registration of a worker |
//! | `notifier.rs` | wakes the main thread |
//! | `settings.rs` | what a reactor has from settings |
//! | `reactor/` | the calls themselves |

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

use crate::transport::{FailureKind, Outcome};

/// The headers of an answer together, and each header of a request.
const HEADER_LIMIT: usize = 16 * 1024;

/// What went wrong, for a program and for a person. Never holds header values or secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpFailure {
    /// For a program.
    pub kind: FailureKind,
    /// For a person.
    pub message: String,
}

impl HttpFailure {
    fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        HttpFailure { kind, message: message.into() }
    }
}

impl From<HttpFailure> for Outcome {
    fn from(HttpFailure { kind, message }: HttpFailure) -> Self {
        Outcome::Failed { kind, message }
    }
}

/// Locks without caring for poison: every critical section of this room leaves its data whole at each
/// point where it could panic, and a panic of one call must not end all others.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
