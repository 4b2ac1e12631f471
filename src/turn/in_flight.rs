//! Calls that are under way.

use crate::calls::CallRecord;
use crate::guc;
use crate::http::Request;
use xdb_sched::breaker::Ticket;

/// Each with what its answer is applied by, and what its end tells the breaker.
pub type InFlight = xdb_sched::room::InFlight<(CallRecord, Ticket)>;

/// Hands requests to the transport, all at once; with them, so many are under way.
pub type Submit<'a> = dyn FnMut(Vec<Request>, usize) + 'a;

/// Most calls of one scheduler.
pub fn max_in_flight() -> usize {
    guc::MAX_IN_FLIGHT.get() as usize
}
