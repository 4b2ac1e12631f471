//! Locks the parents of processes that a session may close.
//!
//! Limitations: an answer of a pull worker, and of an RPC that has locked its process for the call, closes it under a
//! lock that the session has already. So there the parent is locked after the child.

use crate::pg::catch::{LOCK_NOT_AVAILABLE, PgError, Result};
use crate::pg::identity;
use crate::pg::spi::Spi;
use crate::pg::subxact::undone;
use crate::pg::wake;
use crate::store::children::parents_to_inform;
use crate::store::process::{PublishersLock, lock_for_close, lock_for_publish};
use xdb_engine::ExecutionId;

/// Locks the parents that get a message when these executions close, as a publisher locks them. So no parent closes
/// before the message is there. Waits for transactions that are about to close a parent.
pub(super) fn lock_parents_of(spi: &Spi, ids: &[ExecutionId]) -> Result<()> {
    parents_to_inform(spi, ids)?.into_iter().try_for_each(|parent| lock_parent(spi, parent))
}

/// Locks a parent, like [`lock_parents_of`].
pub(super) fn lock_parent(spi: &Spi, parent: ExecutionId) -> Result<()> {
    while let PublishersLock::Closing = lock_for_publish(spi, parent)? {
        if identity::is_engine() {
            // The step is retried soon.
            return Err(PgError::new(LOCK_NOT_AVAILABLE, "the parent of the process is about to close"));
        }
        // Waits for the close with an ordinary lock, which Postgres' deadlock detector sees.
        match undone(|| identity::with_short_waits(|| lock_for_close(spi, parent))) {
            Err(error) if error.code != LOCK_NOT_AVAILABLE => return Err(error),
            _ => {}
        }
    }
    wake::note_locked(parent.0);
    Ok(())
}
