//! `xdb.adopt()`: makes the processes of a copied database its own.
//!
//! Limitations: the caller has checked that all owners and process types exist.

use super::registry::{MissingType, WITHOUT_TYPE};
use super::table::statements;
use super::{claim, engine, instance, owners};
use crate::pg::catch::Result;
use crate::pg::param::value;
use crate::pg::spi::Spi;

/// Whether the owner of the row `t` must be found by its name. In another server all owners are: an oid there may
/// belong to any role. In the same server a role keeps its oid, even if it is renamed. If no role has the oid, a role
/// of the same name may have been created again.
const BY_NAME: &str = "($1::bool OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner))";

/// Sets the owners of a table by their names. Rows whose role is missing get owner 0, so only operators see them.
fn name_owners(table: &str) -> String {
    format!(
        "UPDATE xdb.{table} t \
        SET owner = COALESCE((SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = t.owner_name), 0) WHERE {BY_NAME}"
    )
}

statements! {
    /// Names of missing roles that own running processes.
    MISSING_OWNERS = format!("SELECT DISTINCT t.owner_name FROM xdb.process_execution t WHERE t.status = 'RUNNING' AND {BY_NAME} \
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = t.owner_name) ORDER BY 1 LIMIT 20")
        => pub fn missing_owners(roles_by_name: bool) -> Vec<String>;
    /// Process types of running executions that are not registered.
    MISSING_TYPES = format!("SELECT p.process_type, pg_catalog.count(*) AS running FROM xdb.process_execution p \
        WHERE {WITHOUT_TYPE} GROUP BY p.process_type ORDER BY p.process_type LIMIT 20")
        => pub fn missing_types() -> Vec<MissingType>;
    OWNERS = name_owners("process_execution");
    PUBLISHERS = name_owners("global_message");
    // All keys are deleted before the first is inserted, because roles may have swapped their oids. ORDER BY makes the
    // insert wait for the delete. Keys of a missing role are dropped: no session can use them.
    MESSAGE_IDS = format!("WITH gone AS (DELETE FROM xdb.global_message_key t WHERE {BY_NAME} RETURNING t.*) \
        INSERT INTO xdb.global_message_key (queue_name, message_id, published_at, owner, owner_name) \
        SELECT g.queue_name, g.message_id, g.published_at, r.oid, g.owner_name \
        FROM gone g JOIN pg_catalog.pg_roles r ON r.rolname = g.owner_name \
        ORDER BY 1, 2, 4 ON CONFLICT DO NOTHING");
    WORKERS = name_owners("worker");
    TYPES = name_owners("process_type");
    // Without a role, only superusers could claim the worker's calls.
    PULL_ROLES = "UPDATE xdb.worker t SET role = (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = t.role_name) \
        WHERE t.role_name IS NOT NULL AND ($1::bool OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.role))";
    NUMBERS = [
        ("inbox", "inbox_id", "inbox_inbox_id_seq"),
        ("worker", "worker_id", "worker_worker_id_seq"),
        ("process_type", "type_id", "process_type_type_id_seq"),
        ("mapped_table", "mapping_id", "mapping_id_seq"),
        ("global_message", "number", "global_message_number_seq"),
        ("global_waiter", "wait_order", "global_waiter_wait_order_seq"),
    ].map(|(table, column, sequence)| go_on(table, column, sequence)).join(" UNION ALL ");
}

/// Sets a sequence behind the last copied row. Logical replication copies rows, and not the position of sequences.
fn go_on(table: &str, column: &str, sequence: &str) -> String {
    format!(
        "SELECT pg_catalog.setval('xdb.{sequence}'::pg_catalog.regclass, m.last) \
        FROM (SELECT pg_catalog.max({column}) AS last FROM xdb.{table}) m, xdb.{sequence} s WHERE m.last >= s.last_value"
    )
}

/// Makes the processes of a copy this database's own. The copied leases are void: they belong to the other database.
/// With `roles_by_name`, owners are found by their names, because in another server the oids are void too.
pub fn adopt(spi: &Spi, roles_by_name: bool) -> Result<()> {
    // No scheduler can begin before this transaction commits.
    engine::close_gate(spi)?;
    for statement in [&OWNERS, &PUBLISHERS, &MESSAGE_IDS, &WORKERS, &TYPES, &PULL_ROLES] {
        spi.run(statement, &[value(roles_by_name)])?;
    }
    spi.run(&NUMBERS, &[])?;
    owners::put_into_lines(spi)?;
    claim::forget_leases(spi)?;
    instance::become_own(spi)?;
    // A scheduler may have been running since before the dump was restored. The new generation makes it read the
    // registrations again.
    instance::bump(spi)
}
