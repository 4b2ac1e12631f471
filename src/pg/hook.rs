//! The utility hook. It empties a database for statements that need one without connections, and `CREATE EXTENSION`
//! starts the engine.
//!
//! The statement runs without pgrx's error boundary, so its errors pass through unchanged. Work that must follow even a
//! failed statement is done by the callbacks at the end of the transaction. Work after a successful statement follows
//! here.
use super::catch::{self, Result};
use super::extension::{self, EXTENSION};
use super::{compat, latch, raw, shmem, wake};
use pgrx::{check_for_interrupts, is_a, pg_guard, pg_sys};
use shmem::{Slot, SlotPhase};
use std::ffi::{CStr, c_char};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the statement waits for the engine to leave. The server waits as long for other connections.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the engine has to leave by itself. Then its processes are terminated.
const LEAVE_POLITELY: Duration = Duration::from_millis(300);

static mut PREVIOUS: pg_sys::ProcessUtility_hook_type = None;
static AFTER_SUBSCRIPTION: OnceLock<fn() -> Result<()>> = OnceLock::new();

/// Installs the hook. Call it only while the server loads `shared_preload_libraries`. `after_subscription` is called
/// after a statement that creates or alters a subscription in a database with the extension, in the statement's
/// transaction.
pub fn register(after_subscription: fn() -> Result<()>) {
    AFTER_SUBSCRIPTION.get_or_init(|| after_subscription);
    // SAFETY: _PG_init runs in the postmaster, before any other process or thread exists.
    unsafe {
        PREVIOUS = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
    }
}

/// Without `#[pg_guard]`: an error of the chained call must jump over this frame, which holds nothing to drop.
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn process_utility(
    statement: *mut pg_sys::PlannedStmt,
    query: *const c_char,
    read_only_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    receiver: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: the arguments are passed on unchanged.
    unsafe {
        let is_subscription = before_statement(statement, context);
        let next = PREVIOUS.unwrap_or(raw::standard_ProcessUtility);
        next(statement, query, read_only_tree, context, params, environment, receiver, completion);
        if is_subscription {
            subscription_changed();
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn subscription_changed() {
    catch::edge(|| {
        // SAFETY: in the transaction of the statement, whose changes must be visible.
        unsafe { pg_sys::CommandCounterIncrement() };
        let after = AFTER_SUBSCRIPTION.get().filter(|_| extension::current() != pg_sys::InvalidOid);
        after.map_or(Ok(()), |after| after())
    });
}

/// Prepares for the statement. Returns whether it creates or alters a subscription.
#[pg_guard]
unsafe extern "C-unwind" fn before_statement(
    statement: *mut pg_sys::PlannedStmt,
    context: pg_sys::ProcessUtilityContext::Type,
) -> bool {
    // SAFETY: the server passes a valid statement, and the node tag says what kind of node it is.
    unsafe {
        let node = (*statement).utilityStmt;
        if node.is_null() {
            return false;
        }
        match (*node).type_ {
            pg_sys::NodeTag::T_CreateSubscriptionStmt | pg_sys::NodeTag::T_AlterSubscriptionStmt => return true,
            // For any extension: CASCADE can create this one.
            pg_sys::NodeTag::T_CreateExtensionStmt => extension_changes(),
            pg_sys::NodeTag::T_AlterExtensionStmt => {
                let stmt = node.cast::<pg_sys::AlterExtensionStmt>();
                if is_this_extension((*stmt).extname) {
                    extension::notify_sessions();
                    extension_changes();
                }
            }
            pg_sys::NodeTag::T_DropStmt => {
                let stmt = node.cast::<pg_sys::DropStmt>();
                if (*stmt).removeType == pg_sys::ObjectType::OBJECT_EXTENSION && drops_this_extension((*stmt).objects) {
                    extension_changes();
                }
            }
            pg_sys::NodeTag::T_TransactionStmt => {
                let stmt = node.cast::<pg_sys::TransactionStmt>();
                if (*stmt).kind == pg_sys::TransactionStmtKind::TRANS_STMT_COMMIT_PREPARED {
                    // What the prepared transaction did is unknown here: it may have created the extension.
                    wake::wake_all_at_commit();
                    wake::poke_launcher_at_commit();
                }
            }
            pg_sys::NodeTag::T_DropdbStmt
            | pg_sys::NodeTag::T_RenameStmt
            | pg_sys::NodeTag::T_AlterDatabaseStmt
            | pg_sys::NodeTag::T_CreatedbStmt => {
                // The server refuses these statements in a transaction block, so a block does not stop the engine.
                if context == pg_sys::ProcessUtilityContext::PROCESS_UTILITY_TOPLEVEL
                    && !pg_sys::IsTransactionBlock()
                    && let Some(database) = database_to_vacate(node)
                {
                    vacate(database);
                }
            }
            _ => {}
        }
        false
    }
}

/// The launcher checks whether there is an engine to start. A running engine checks at once whether its extension is
/// still the same.
fn extension_changes() {
    wake::poke_launcher_at_commit();
    wake::wake_scheduler_at_commit();
}

unsafe fn is_this_extension(name: *const c_char) -> bool {
    // SAFETY: a name in a parse tree is a C string or null.
    !name.is_null() && unsafe { CStr::from_ptr(name) } == EXTENSION
}

unsafe fn drops_this_extension(objects: *mut pg_sys::List) -> bool {
    // SAFETY: the objects of a DROP EXTENSION are String nodes.
    unsafe {
        raw::elements::<pg_sys::Node>(objects).any(|object| {
            is_a(object, pg_sys::NodeTag::T_String) && is_this_extension((*object.cast::<pg_sys::String>()).sval)
        })
    }
}

/// The database that must have no connections for this statement. None for other statements, and if the user may not
/// run this one.
///
/// Without the check of privileges, any role could stop any engine with a statement that then fails.
unsafe fn database_to_vacate(node: *mut pg_sys::Node) -> Option<pg_sys::Oid> {
    // SAFETY: as in `before_statement`.
    unsafe {
        match (*node).type_ {
            pg_sys::NodeTag::T_DropdbStmt => owned_database((*node.cast::<pg_sys::DropdbStmt>()).dbname),
            pg_sys::NodeTag::T_RenameStmt => {
                let stmt = node.cast::<pg_sys::RenameStmt>();
                if (*stmt).renameType != pg_sys::ObjectType::OBJECT_DATABASE {
                    return None;
                }
                owned_database((*stmt).subname).filter(|_| may_create_databases())
            }
            pg_sys::NodeTag::T_AlterDatabaseStmt => {
                let stmt = node.cast::<pg_sys::AlterDatabaseStmt>();
                option((*stmt).options, c"tablespace")?;
                owned_database((*stmt).dbname)
            }
            pg_sys::NodeTag::T_CreatedbStmt => {
                wake::rescan_at_commit();
                let stmt = node.cast::<pg_sys::CreatedbStmt>();
                let template = match option((*stmt).options, c"template") {
                    Some(option) if !(*option).arg.is_null() => pg_sys::defGetString(option),
                    _ => c"template1".as_ptr().cast_mut(),
                };
                let database = existing_database(template)?;
                (may_create_databases() && (is_template(database) || owns(database))).then_some(database)
            }
            _ => None,
        }
    }
}

unsafe fn option(options: *mut pg_sys::List, name: &CStr) -> Option<*mut pg_sys::DefElem> {
    // SAFETY: the options of a statement are DefElem nodes with a name.
    unsafe { raw::elements::<pg_sys::DefElem>(options).find(|option| CStr::from_ptr((**option).defname) == name) }
}

unsafe fn existing_database(name: *const c_char) -> Option<pg_sys::Oid> {
    if name.is_null() {
        return None;
    }
    // SAFETY: a C string from the parse tree; a catalog read inside the statement's transaction.
    let database = unsafe { pg_sys::get_database_oid(name, true) };
    (database != pg_sys::InvalidOid).then_some(database)
}

unsafe fn owned_database(name: *const c_char) -> Option<pg_sys::Oid> {
    // SAFETY: as above. The server refuses these statements for the session's own database.
    unsafe { existing_database(name).filter(|database| *database != pg_sys::MyDatabaseId && owns(*database)) }
}

fn owns(database: pg_sys::Oid) -> bool {
    // SAFETY: a plain accessor; the statement has a transaction.
    compat::owns_database(database, unsafe { pg_sys::GetUserId() })
}

/// Written here because early minor releases of 15 don't export the server's function.
fn may_create_databases() -> bool {
    // SAFETY: a plain accessor, and a look-up in the catalog; a role's row has this form.
    unsafe {
        let role = pg_sys::GetUserId();
        pg_sys::superuser_arg(role)
            || of_row(pg_sys::SysCacheIdentifier::AUTHOID, role, |form: &pg_sys::FormData_pg_authid| form.rolcreatedb)
    }
}

fn is_template(database: pg_sys::Oid) -> bool {
    // SAFETY: a database's row has this form.
    unsafe {
        of_row(pg_sys::SysCacheIdentifier::DATABASEOID, database, |form: &pg_sys::FormData_pg_database| {
            form.datistemplate
        })
    }
}

/// Reads a catalog row of the form `T`; false without a row.
unsafe fn of_row<T>(cache: pg_sys::SysCacheIdentifier::Type, key: pg_sys::Oid, read: impl FnOnce(&T) -> bool) -> bool {
    // SAFETY: a catalog read inside the statement's transaction; nothing of the row is kept when it is released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(cache as i32, pg_sys::Datum::from(key));
        if tuple.is_null() {
            return false;
        }
        let value = read(&*pg_sys::GETSTRUCT(tuple).cast::<T>());
        pg_sys::ReleaseSysCache(tuple);
        value
    }
}

/// Keeps the engine out of the database until the end of the transaction, and waits until it has left.
///
/// If the engine does not leave in time, the statement fails because of its connection.
fn vacate(database: pg_sys::Oid) {
    if !shmem::is_preloaded() {
        return;
    }
    wake::release_blocks_at_end();
    if !shmem::block(database) {
        return;
    }
    let started = Instant::now();
    let mut politely = true;
    Slot::of_database(database).for_each(Slot::ask_to_leave);
    // A scheduler that was started and has no slot yet sees the block itself.
    while Slot::of_database(database).any(|slot| slot.phase() == SlotPhase::Live) {
        if started.elapsed() > LEAVE_TIMEOUT {
            return;
        }
        if politely && started.elapsed() > LEAVE_POLITELY {
            politely = false;
            Slot::of_database(database).for_each(Slot::terminate);
        }
        latch::wait_for_latch(10);
    }
    check_for_interrupts!();
}
