//! Releases a statement's snapshot while a function sleeps.
//!
//! A statement keeps its snapshot until it ends. Meanwhile, vacuum removes no row in the whole server that this
//! snapshot might see. A function that sleeps for an hour would delay vacuum by an hour. If the statement is only the
//! call of that function, no code uses its snapshot any more. So the snapshot is released during the sleep, and a new
//! one is taken afterwards, as between two statements of a transaction.
//!
//! While the function runs, three places hold the snapshot: the portal's `QueryDesc`, its `EState`, and the stack of
//! active snapshots. The two registrations belong to the portal's resource owner, which drops them here and gets the
//! new ones. During the sleep both places are null. An error then (a cancel, a timeout) aborts the transaction. The
//! server neither runs nor ends the executor of a failed portal, and releasing null does nothing.

use pgrx::{pg_guard, pg_sys};
use std::ffi::c_void;

/// Runs `body`, which sleeps and uses no snapshot. If the statement only makes this call, its snapshot is released
/// meanwhile. No scan may be open that uses a snapshot.
pub(super) fn without<T>(call: pg_sys::FunctionCallInfo, body: impl FnOnce() -> T) -> T {
    // SAFETY: Postgres has made this call and waits for it.
    let statement = unsafe { RunningStatement::of_nothing_but(call) };
    let Some(statement) = statement.filter(|statement| statement.give_back()) else { return body() };
    // A panic, which is an error on its way to the caller, passes through: see above.
    let value = body();
    statement.take_new();
    value
}

/// A running statement that only makes one call.
struct RunningStatement {
    query: *mut pg_sys::QueryDesc,
    owner: pg_sys::ResourceOwner,
}

impl RunningStatement {
    /// The statement of this call, if it does nothing else and its transaction takes a snapshot for each statement.
    ///
    /// # Safety
    /// Postgres must have made the call and wait for it.
    unsafe fn of_nothing_but(call: pg_sys::FunctionCallInfo) -> Option<Self> {
        // SAFETY: the active portal and its parts live as long as its statement runs. The call's expression is part of
        // the portal's plan, so this portal made the call, and not a statement within it.
        unsafe {
            let portal = pg_sys::ActivePortal;
            if portal.is_null() || pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 {
                return None;
            }
            let (query, owner) = ((*portal).queryDesc, (*portal).resowner);
            let is_plain = (*portal).strategy == pg_sys::PortalStrategy::PORTAL_ONE_SELECT
                && (*portal).holdStore.is_null()
                && (*portal).createSubid == pg_sys::GetCurrentSubTransactionId()
                && !owner.is_null()
                && owner == pg_sys::CurrentResourceOwner
                && !query.is_null()
                && !(*query).estate.is_null()
                && (*query).crosscheck_snapshot.is_null()
                && !(*query).snapshot.is_null()
                && (*query).snapshot == (*(*query).estate).es_snapshot;
            let expression = (*(*call).flinfo).fn_expr;
            let is_alone = is_plain && !expression.is_null() && makes_one_call((*query).plannedstmt, expression);
            is_alone.then_some(Self { query, owner })
        }
    }

    /// Releases the snapshot. False: it is not the transaction's only active snapshot.
    fn give_back(&self) -> bool {
        // SAFETY: none of these raises an error: the snapshot is the active one, and registered twice with this owner.
        unsafe {
            let snapshot = (*self.query).snapshot;
            if !pg_sys::ActiveSnapshotSet() || pg_sys::GetActiveSnapshot() != snapshot {
                return false;
            }
            // The registrations keep the snapshot valid.
            pg_sys::PopActiveSnapshot();
            if pg_sys::ActiveSnapshotSet() {
                pg_sys::PushActiveSnapshot(snapshot);
                return false;
            }
            (*self.query).snapshot = std::ptr::null_mut();
            (*(*self.query).estate).es_snapshot = std::ptr::null_mut();
            pg_sys::UnregisterSnapshotFromOwner(snapshot, self.owner);
            pg_sys::UnregisterSnapshotFromOwner(snapshot, self.owner);
            pg_sys::InvalidateCatalogSnapshot();
        }
        true
    }

    fn take_new(&self) {
        // SAFETY: the statement still runs. If one of these fails, the owner releases what was registered.
        unsafe {
            let snapshot = pg_sys::RegisterSnapshotOnOwner(pg_sys::GetTransactionSnapshot(), self.owner);
            (*self.query).snapshot = snapshot;
            (*(*self.query).estate).es_snapshot = pg_sys::RegisterSnapshotOnOwner(snapshot, self.owner);
            pg_sys::PushActiveSnapshot(snapshot);
        }
    }
}

type Node = *mut pg_sys::Node;

/// Whether a statement only makes this call, once. Its plan is a single `Result` or `FunctionScan`, which reads no
/// table, and its other expressions read nothing.
unsafe fn makes_one_call(statement: *mut pg_sys::PlannedStmt, call: Node) -> bool {
    // SAFETY: the planner's nodes, which live as long as the statement; a node's tag says what it is.
    unsafe {
        let plan = (*statement).planTree;
        let is_lone = (*statement).commandType == pg_sys::CmdType::CMD_SELECT
            && (*statement).subplans.is_null()
            && (*statement).rowMarks.is_null()
            && (*plan).lefttree.is_null()
            && (*plan).righttree.is_null()
            && (*plan).initPlan.is_null()
            && (*plan).qual.is_null();
        let mut expressions = Expressions { call, calls: 0 };
        let context = (&raw mut expressions).cast();
        let reads_nothing = match (*plan).type_ {
            pg_sys::NodeTag::T_Result => (*plan.cast::<pg_sys::Result>()).resconstantqual.is_null(),
            pg_sys::NodeTag::T_FunctionScan => {
                !may_read_database((*plan.cast::<pg_sys::FunctionScan>()).functions.cast(), context)
            }
            _ => false,
        };
        is_lone && reads_nothing && !may_read_database((*plan).targetlist.cast(), context) && expressions.calls == 1
    }
}

/// What a walk over all expressions has found.
struct Expressions {
    call: Node,
    /// How many times the call occurs.
    calls: u32,
}

/// Whether an expression may read the database, apart from the call. A walker of the server's: true ends the walk.
#[pg_guard]
unsafe extern "C-unwind" fn may_read_database(node: Node, context: *mut c_void) -> bool {
    // SAFETY: as above; the context is what the walk began with.
    unsafe {
        if node.is_null() {
            return false;
        }
        let expressions = context.cast::<Expressions>();
        let is_known = match (*node).type_ {
            _ if node == (*expressions).call => {
                (*expressions).calls += 1;
                true
            }
            pg_sys::NodeTag::T_Param => (*node.cast::<pg_sys::Param>()).paramkind == pg_sys::ParamKind::PARAM_EXTERN,
            pg_sys::NodeTag::T_FuncExpr => {
                !(*node.cast::<pg_sys::FuncExpr>()).funcretset && computes_from_its_arguments(node)
            }
            pg_sys::NodeTag::T_OpExpr | pg_sys::NodeTag::T_CoerceViaIO => computes_from_its_arguments(node),
            pg_sys::NodeTag::T_List
            | pg_sys::NodeTag::T_TargetEntry
            | pg_sys::NodeTag::T_RangeTblFunction
            | pg_sys::NodeTag::T_Const
            | pg_sys::NodeTag::T_Var
            | pg_sys::NodeTag::T_RelabelType => true,
            _ => false,
        };
        !is_known || pg_sys::expression_tree_walker(node, Some(may_read_database), context)
    }
}

/// Whether the functions that a node calls depend on their arguments only.
unsafe fn computes_from_its_arguments(node: Node) -> bool {
    // SAFETY: the node is one of an expression.
    !unsafe { pg_sys::check_functions_in_node(node, Some(is_not_immutable), std::ptr::null_mut()) }
}

#[pg_guard]
unsafe extern "C-unwind" fn is_not_immutable(function: pg_sys::Oid, _context: *mut c_void) -> bool {
    // SAFETY: a look-up in the catalog.
    (unsafe { pg_sys::func_volatile(function) }) as u8 != pg_sys::PROVOLATILE_IMMUTABLE
}
