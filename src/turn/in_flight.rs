//! Calls that are under way.

use crate::calls::CallRecord;
use xdb_sched::breaker::Ticket;

/// Each with what its answer is applied by, and what its end tells the breaker.
pub type InFlight = xdb_sched::room::InFlight<(CallRecord, Ticket)>;
