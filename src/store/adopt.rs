//! The processes of a copied database become its own.

use super::registry::{MissingType, WITHOUT_TYPE};
use super::table::statements;
use super::{claim, engine, instance, owners};
use crate::pg::catch::Result;
use crate::pg::param::value;
use crate::pg::spi::Spi;

/// Whether the owner of the row `t` is to be found by its name. In another system all are: the oid may be that of anybody. In the
/// same one a role keeps its oid, whatever it is called, and one that is gone may have been made again.
const BY_NAME: &str = "($1::bool OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner))";

/// Owners by their names. What belongs to a role that is not there is for operators to see, and nobody else.
fn name_owners(table: &str) -> String {
    format!(
        "UPDATE xdb.{table} t \
        SET owner = COALESCE((SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = t.owner_name), 0) WHERE {BY_NAME}"
    )
}

statements! {
    /// Names of roles that own running processes and are not there.
    MISSING_OWNERS = format!("SELECT DISTINCT t.owner_name FROM xdb.process_execution t WHERE t.status = 'RUNNING' AND {BY_NAME} \
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = t.owner_name) ORDER BY 1 LIMIT 20")
        => pub fn missing_owners(roles_by_name: bool) -> Vec<String>;
    /// The process types that running executions are of and that are not registered.
    MISSING_TYPES = format!("SELECT p.process_type, pg_catalog.count(*) AS running FROM xdb.process_execution p \
        WHERE {WITHOUT_TYPE} GROUP BY p.process_type ORDER BY p.process_type LIMIT 20")
        => pub fn missing_types() -> Vec<MissingType>;
    OWNERS = name_owners("process_execution");
    PUBLISHERS = name_owners("global_message");
    // All are taken out before one is put back, which the order sees to: roles may have changed their numbers with each other.
    // Ids of a role that is missing are forgotten, as nobody can use them.
    MESSAGE_IDS = format!("WITH gone AS (DELETE FROM xdb.global_message_key t WHERE {BY_NAME} RETURNING t.*) \
        INSERT INTO xdb.global_message_key (queue_name, message_id, published_at, owner, owner_name) \
        SELECT g.queue_name, g.message_id, g.published_at, r.oid, g.owner_name \
        FROM gone g JOIN pg_catalog.pg_roles r ON r.rolname = g.owner_name \
        ORDER BY 1, 2, 4 ON CONFLICT DO NOTHING");
    WORKERS = name_owners("worker");
    TYPES = name_owners("process_type");
    // Without it nobody claims but superusers.
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

/// Numbers go on where those of the copied rows end: logical replication brings the rows, and not where a sequence stands.
fn go_on(table: &str, column: &str, sequence: &str) -> String {
    format!(
        "SELECT pg_catalog.setval('xdb.{sequence}'::pg_catalog.regclass, m.last) \
        FROM (SELECT pg_catalog.max({column}) AS last FROM xdb.{table}) m, xdb.{sequence} s WHERE m.last >= s.last_value"
    )
}

/// Makes the processes of a copy this database's own. Leases are those of the other one, and so are, in another system,
/// the oids of roles: there the names count.
pub fn adopt(spi: &Spi, roles_by_name: bool) -> Result<()> {
    // Keeps a scheduler from beginning before this commits.
    engine::close_gate(spi)?;
    for statement in [&OWNERS, &PUBLISHERS, &MESSAGE_IDS, &WORKERS, &TYPES, &PULL_ROLES] {
        spi.run(statement, &[value(roles_by_name)])?;
    }
    spi.run(&NUMBERS, &[])?;
    owners::put_into_lines(spi)?;
    claim::forget_leases(spi)?;
    instance::become_own(spi)?;
    // A scheduler has been there since before the dump was restored.
    instance::bump(spi)
}
