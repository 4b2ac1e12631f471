//! Publishes events of processes to the global queue that their definition names in `changes`. Part of saving: the
//! messages are in the transaction of the events.
//!
//! Limitations: quotas never refuse these messages. They count for the owner of the process.

use super::global_queue::OWNER_NAME;
use super::loaded::Loaded;
use super::table::{batch, record, run, statements};
use crate::pg::catch::Result;
use crate::pg::param::Jsonb;
use crate::pg::spi::Spi;
use crate::pg::wake;
use pgrx::pg_sys;
use xdb_engine::{ExecutionId, Timestamp};

record! {
    /// An event to be published. Its message has the process id as its key.
    pub struct ChangeMessage<'a> {
        queue_name: &'a str,
        process_id: &'a str,
        execution_id: ExecutionId,
        process_type: &'a str,
        event_id: u64,
        event_time: Timestamp,
        event_type: &'a str,
        details: Jsonb<'a>,
        owner: pg_sys::Oid,
    }
}

statements! {
    PUBLISH = format!("INSERT INTO xdb.global_message (queue_name, key, payload, bytes, owner, owner_name, published_at) \
        SELECT v.queue_name, v.process_id, m.payload, pg_catalog.octet_length(m.payload::text), v.owner, {OWNER_NAME}, \
            v.event_time \
        FROM {} CROSS JOIN LATERAL (SELECT pg_catalog.jsonb_build_object('processId', v.process_id, \
            'processExecutionId', v.execution_id, 'processType', v.process_type, 'eventId', v.event_id, \
            'eventTime', pg_catalog.to_jsonb(v.event_time AT TIME ZONE 'UTC') #>> '{{}}' || '+00:00', 'eventType', v.event_type, 'details', v.details)) AS m (payload)",
        batch::<ChangeMessage>());
}

/// Adds the new events of an execution that are changes, in their order.
pub fn collect<'a>(changes: &mut Vec<ChangeMessage<'a>>, loaded: &'a Loaded) {
    let Loaded { meta, before, execution, events, .. } = loaded;
    let Some(queue_name) = meta.process_type.as_deref().and_then(|found| found.definition.changes.as_deref()) else {
        return;
    };
    let recorded = events.iter().filter(|(event, _)| event.is_recorded());
    for (event_id, (event, event_time)) in
        (before.next_event..).zip(recorded).filter(|(_, (event, _))| event.is_change())
    {
        let (event_type, details) = event.to_parts();
        changes.push(ChangeMessage {
            queue_name,
            process_id: &execution.process_id,
            execution_id: execution.id,
            process_type: &execution.process_type,
            event_id,
            event_time: *event_time,
            event_type,
            details: Jsonb(details.into()),
            owner: meta.owner,
        });
    }
}

/// Publishes changes.
pub fn publish(spi: &Spi, changes: &[ChangeMessage<'_>]) -> Result<()> {
    if run(spi, &PUBLISH, changes)? > 0 {
        wake::wake_scheduler_at_commit();
    }
    Ok(())
}
