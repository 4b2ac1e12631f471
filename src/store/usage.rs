//! Counts the states that running processes of a type are in, and the queues that they wait for. A new definition of
//! the type must not remove these.
//!
//! Limitations: reads all running processes of the type. Counts are cut at 10,000.

use super::registry::TypeId;
use super::table::statements;

/// Counts stop here.
const MOST: i64 = 10_000;

statements! {
    // Uses the index of running executions: no other index leads from a type to its executions.
    /// Each state and queue that a live step is in, or waits for.
    USAGE = format!("SELECT u.kind, u.name, least(count(*), {MOST}) AS live FROM xdb.process_execution p CROSS JOIN LATERAL ( \
            SELECT 'STATE'::text AS kind, s.state_id AS name FROM xdb.state_execution s \
                WHERE s.execution_id = p.execution_id AND s.ended_at IS NULL \
            UNION ALL SELECT 'LOCAL_QUEUE', w.queue_name FROM xdb.queue_waiter w WHERE w.execution_id = p.execution_id \
            UNION ALL SELECT 'GLOBAL_QUEUE', d.queue_name FROM ( \
                SELECT DISTINCT g.seq, g.queue_name FROM xdb.global_waiter g WHERE g.execution_id = p.execution_id) AS d \
        ) AS u WHERE p.status = 'RUNNING' AND p.type_id = $1 GROUP BY u.kind, u.name ORDER BY u.kind, u.name")
        => pub fn of_type(id: TypeId) -> Vec<Usage>;
}

/// A kind, a name, and a count: the live steps in this state, or that wait for this queue.
pub type Usage = (String, String, i64);
