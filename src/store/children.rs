//! Children: how a step or an RPC starts them, the locks on their parents, and what follows when a parent or a child
//! closes.
//!
//! A step starts its children by `xdb.start_processes`, like a caller. The links to the parent don't come with the
//! argument, where any caller could forge them: this session notes them, and the call takes them.
//!
//! Limitations: the message about a child leaves out results that are larger than `xdb.max_payload_size`.

use super::loaded::Loaded;
use super::process::{self, PublishersLock};
use super::registry::TypeId;
use super::table::statements;
use super::timer::{OF_PARENT, PARENT_CLOSED};
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::identity::{is_engine, with_pinned_path};
use crate::pg::param::value;
use crate::pg::shmem::counters::{Count, OfMessages};
use crate::pg::spi::{self, Spi};
use crate::pg::subxact::now_in_table;
use crate::pg::wake;
use pgrx::pg_sys;
use std::cell::RefCell;
use std::collections::BTreeSet;
use xdb_engine::{ExecutionId, NewChildren, StartedBy, Timestamp};
use xdb_protocol::bulk_start;

statements! {
    /// The parents that get a message when these executions close.
    PARENTS = "SELECT DISTINCT parent_id FROM xdb.process_execution \
        WHERE execution_id = ANY ($1) AND parent_id IS NOT NULL AND started_by ? 'onClose' ORDER BY parent_id"
        => pub fn parents_to_inform(ids: &[ExecutionId]) -> Vec<ExecutionId>;
    // A message whose id its queue has seen is not inserted. A parent that does not run gets none.
    INFORM = "WITH closed AS MATERIALIZED (SELECT p.execution_id, c.started_by ->> 'onClose' AS queue_name, \
            c.execution_id::text AS message_id, p.shard, p.owner, pg_catalog.jsonb_build_object( \
                'processId', c.process_id, 'processExecutionId', c.execution_id, 'processType', c.process_type, \
                'status', c.status) \
            || CASE WHEN c.reason IS NULL THEN '{}' ELSE pg_catalog.jsonb_build_object('reason', c.reason) END \
            || CASE WHEN pg_catalog.octet_length(c.results::text) > $2 THEN '{\"omitted\": true}' \
                ELSE pg_catalog.jsonb_build_object('results', c.results, 'result', \
                    CASE pg_catalog.jsonb_array_length(c.results) WHEN 1 THEN c.results -> 0 -> 'output' END) END AS payload \
            FROM xdb.process_execution c JOIN xdb.process_execution p ON p.execution_id = c.parent_id \
            WHERE c.execution_id = ANY ($1) AND p.status = 'RUNNING'), \
        new AS (INSERT INTO xdb.message_key (execution_id, queue_name, message_id) \
            SELECT execution_id, queue_name, message_id FROM closed ORDER BY execution_id, queue_name, message_id \
            ON CONFLICT DO NOTHING RETURNING execution_id, queue_name, message_id) \
        INSERT INTO xdb.inbox (execution_id, shard, queue_name, message_id, payload, bytes, published_at, owner) \
        SELECT c.execution_id, c.shard, c.queue_name, c.message_id, c.payload, \
            pg_catalog.octet_length(c.payload::text), $3, c.owner \
        FROM closed c JOIN new n USING (execution_id, queue_name, message_id) ORDER BY c.message_id"
        => fn inform(closed: &[ExecutionId], most: i32, now: Timestamp) -> u64;
    STOP = format!("WITH stopped AS (INSERT INTO xdb.timer (execution_id, seq, command, shard, kind, fire_at, owner) \
            SELECT c.execution_id, 0, {OF_PARENT}, c.shard, '{PARENT_CLOSED}', $2, c.owner FROM xdb.process_execution c \
            WHERE c.parent_id = ANY ($1) AND c.status = 'RUNNING' AND c.started_by ->> 'whenParentCloses' IS NULL \
            ON CONFLICT DO NOTHING RETURNING owner) \
        SELECT DISTINCT owner FROM stopped") => fn stop(closed: &[ExecutionId], now: Timestamp) -> Vec<pg_sys::Oid>;
}

/// Runs as the owner of the parent, or as the caller of an RPC. So it is planned like a statement of theirs.
const START: &str = "SELECT FROM xdb.start_processes($1::pg_catalog.text::pg_catalog.jsonb)";

thread_local! {
    /// The links of the children that a step or an RPC is about to start. Written by [`Starts::run`], taken by the call
    /// of `xdb.start_processes`.
    static LINKS: RefCell<Vec<(ExecutionId, StartedBy)>> = const { RefCell::new(Vec::new()) };
}

/// The type of the parents, if the oid is one of [`tables_of_children`].
pub fn parent_of_tables(oid: u32) -> Option<TypeId> {
    (oid >= 0x8000_0000).then_some((oid & 0x7fff_ffff) as TypeId)
}

/// The children that an answer starts.
#[derive(Debug)]
pub struct Starts {
    links: Vec<(ExecutionId, StartedBy)>,
    /// The argument of `xdb.start_processes`.
    processes: String,
    /// What stands for the tables of all children: see [`tables_of_children`].
    pub tables: u32,
}

/// What marks of slow tables, and waits for locks, call the tables that the children of a type's processes use. The
/// tables are known only when a child starts. No table has such an oid, unless two billion others were there before.
pub fn tables_of_children(parent: TypeId) -> u32 {
    0x8000_0000 | parent.unsigned_abs()
}

impl Starts {
    pub fn of(parent: &Loaded, children: &NewChildren<'_>) -> Self {
        Self {
            links: children.links(&parent.execution),
            processes: bulk_start(children.starts),
            tables: tables_of_children(parent.meta.type_id),
        }
    }

    /// Starts the children as the current user.
    pub fn run(&self) -> Result<()> {
        struct Over;
        impl Drop for Over {
            fn drop(&mut self) {
                drop(take_links());
            }
        }
        LINKS.set(self.links.clone());
        let _over = Over;
        now_in_table(self.tables);
        let start = || spi::connect(|spi| spi.on_app_tables().run(START, &[value(self.processes.as_str())]));
        // The tables of the children have been used meanwhile.
        with_pinned_path(start).map(drop).inspect_err(|_| now_in_table(self.tables))
    }
}

/// The executions and the parent of the processes to start, if a step or an RPC starts children now. Otherwise empty.
pub fn take_links() -> Vec<(ExecutionId, StartedBy)> {
    LINKS.take()
}

/// The parents among these that may not be informed now: another transaction is about to close them. The others are
/// locked as by a publisher. Does not wait.
pub fn parents_about_to_close(spi: &Spi, parents: &BTreeSet<ExecutionId>) -> Result<BTreeSet<ExecutionId>> {
    let mut closing = BTreeSet::new();
    for parent in parents {
        if matches!(process::lock_for_publish_or_skip(spi, *parent)?, PublishersLock::Closing) {
            closing.insert(*parent);
        }
    }
    Ok(closing)
}

/// Executions that close in a batch, and what follows from that for others.
#[derive(Default)]
pub struct Family {
    /// Children whose parents get a message.
    reporting: Vec<ExecutionId>,
    /// Executions that have started others.
    parents: Vec<ExecutionId>,
}

impl Family {
    /// Adds an execution that closes.
    pub fn closes(&mut self, loaded: &Loaded) {
        let execution = &loaded.execution;
        if execution.parent_to_inform().is_some() {
            self.reporting.push(execution.id);
        }
        if execution.has_children {
            self.parents.push(execution.id);
        }
    }

    /// Publishes messages to the parents, and makes timers due that stop the children. Call it after the closed rows
    /// were written. Returns the owners of the children.
    pub fn follow(&self, spi: &Spi, now: Timestamp) -> Result<Vec<pg_sys::Oid>> {
        if !self.reporting.is_empty() {
            let most = i32::try_from(guc::max_payload_bytes()).unwrap_or(i32::MAX);
            let informed = inform(spi, &self.reporting, most, now)?;
            if informed > 0 {
                wake::count_at_commit(Count::Messages(OfMessages::PublishedLocal), informed);
                wake::call_scheduler_at_commit();
            }
        }
        let stopped = if self.parents.is_empty() { Vec::new() } else { stop(spi, &self.parents, now)? };
        if !self.reporting.is_empty() || !self.parents.is_empty() {
            crash::point(if is_engine() { "turn-family" } else { "caller-family" });
        }
        Ok(stopped)
    }
}
