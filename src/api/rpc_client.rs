//! The session's connection to workers, for its RPCs: a reactor with one connection.
//!
//! Limitations: a session makes one call at a time.

use crate::http::{FollowedSettings, Notifier, Reactor};
use crate::pg::catch::Result;
use crate::pg::descriptors::Descriptors;
use crate::pg::latch::wait_for_fd_or_latch;
use crate::pg::process::configuration_read_at;
use crate::transport::{CallOutcome, FailureKind, Request};
use crate::{error, guc};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Client {
    reactor: Reactor,
    notifier: Arc<Notifier>,
    settings: FollowedSettings,
    /// Released when the client is dropped.
    _descriptors: Descriptors,
}

/// The descriptors of a client: two with which its reactor polls, one that wakes up the reactor, one that wakes up the
/// session, and a connection.
const DESCRIPTORS: usize = 5;

thread_local! {
    static CLIENT: RefCell<Option<Client>> = const { RefCell::new(None) };
}

/// Makes the call and waits for its end. Cancel, terminate and timeouts take effect at once.
pub fn call(call: Request) -> Result<CallOutcome> {
    let mut client = match CLIENT.with_borrow_mut(Option::take) {
        Some(client) => client,
        None => Client::new().map_err(|why| error::no_client(&why))?,
    };
    client.follow_settings()?;
    let deadline = Instant::now() + call.timeout + Duration::from_secs(1);
    client.reactor.submit(vec![call]);
    // If the statement is cancelled, the wait raises an error, and the client is dropped with its connection.
    let mut finished = Vec::new();
    loop {
        client.notifier.clear();
        client.reactor.drain(&mut finished);
        if let Some(finished) = finished.pop() {
            // After a panic, the next call makes a new client.
            if !matches!(finished.outcome, CallOutcome::Failed { kind: FailureKind::Panic, .. }) {
                CLIENT.set(Some(client));
            }
            return Ok(finished.outcome);
        }
        if Instant::now() > deadline {
            let kind = FailureKind::Timeout;
            return Ok(CallOutcome::Failed { kind, message: "the call timed out".to_owned() });
        }
        wait_for_fd_or_latch(client.notifier.raw_fd(), 1000);
    }
}

impl Client {
    fn new() -> std::io::Result<Self> {
        let mut descriptors = Descriptors::default();
        if !descriptors.reserve_all(DESCRIPTORS) {
            return Err(std::io::Error::other("the session has no file descriptor left"));
        }
        let notifier = Arc::new(Notifier::new()?);
        let reactor = Reactor::new(notifier.clone())?;
        // A session makes one call at a time.
        reactor.set_max_connections(1);
        Ok(Self { reactor, notifier, settings: FollowedSettings::default(), _descriptors: descriptors })
    }

    fn follow_settings(&mut self) -> Result<()> {
        let (hosts, authorities) = (guc::text(&guc::ALLOWED_WORKER_HOSTS), guc::text(&guc::SSL_CA_FILE));
        let (loaded, max_response_bytes) = (configuration_read_at(), guc::max_response_bytes());
        let unusable = self.settings.follow(&self.reactor, &hosts, &authorities, loaded, max_response_bytes);
        // A problem with the file of certificates is an error of each call that needs the file.
        unusable.hosts.map_or(Ok(()), |why| Err(error::host_not_allowed(why)))
    }
}
