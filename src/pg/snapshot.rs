//! Sleeping without a snapshot.
//!
//! A statement keeps its snapshot until it ends, and while it does, vacuum removes nothing anywhere in the server that this
//! snapshot might still see. A function that sleeps for an hour would hold vacuum back for an hour. Where the statement is
//! nothing but the call of that function, nobody looks at anything with its snapshot any more: it is given back for the sleep,
//! and a new one takes its place afterwards, as between two statements of a transaction.
//!
//! Three hold it while the function runs: the portal's `QueryDesc`, its `EState`, and the stack of active snapshots. The two
//! registrations belong to the portal's resource owner, which forgets them here and remembers the new ones. In between, both
//! places are null: an error during the sleep (a cancel, a timeout) aborts the transaction, and the server neither runs nor ends
//! the executor of a portal that failed, but would let go of null as of any snapshot.

use super::catch::{Result, catch};
use super::raw::elements;
use pgrx::pg_sys;

mod server {
    use pgrx::pg_sys;
    // Declared here because `catch` needs the functions themselves, not pgrx's wrappers.
    unsafe extern "C-unwind" {
        pub fn GetActiveSnapshot() -> pg_sys::Snapshot;
        pub fn GetTransactionSnapshot() -> pg_sys::Snapshot;
        pub fn InvalidateCatalogSnapshot();
        pub fn PopActiveSnapshot();
        pub fn PushActiveSnapshot(snapshot: pg_sys::Snapshot);
        pub fn RegisterSnapshotOnOwner(snapshot: pg_sys::Snapshot, owner: pg_sys::ResourceOwner) -> pg_sys::Snapshot;
        pub fn UnregisterSnapshotFromOwner(snapshot: pg_sys::Snapshot, owner: pg_sys::ResourceOwner);
        pub fn func_volatile(function: pg_sys::Oid) -> std::ffi::c_char;
    }
}

/// Runs `body`, which sleeps and uses no snapshot, without the snapshot of the statement that has made this call, if that
/// statement does nothing else; otherwise with it. Nothing that looks with a snapshot may be open.
pub(super) fn without<T>(call: pg_sys::FunctionCallInfo, body: impl FnOnce() -> T) -> Result<T> {
    // SAFETY: Postgres has made this call and waits for it.
    let statement = unsafe { Statement::of_nothing_but(call)? };
    let Some(statement) = statement.filter(|statement| statement.give_back()) else { return Ok(body()) };
    // A panic, which is an error on its way to the caller, passes through: see above.
    let value = body();
    statement.take_new()?;
    Ok(value)
}

/// A running statement that is nothing but one call.
struct Statement {
    query: *mut pg_sys::QueryDesc,
    owner: pg_sys::ResourceOwner,
}

impl Statement {
    /// The statement of this call, if it does nothing else and its transaction takes a snapshot for each statement.
    ///
    /// # Safety
    /// Postgres has made the call and waits for it.
    unsafe fn of_nothing_but(call: pg_sys::FunctionCallInfo) -> Result<Option<Self>> {
        // SAFETY: the active portal and what hangs on it live as long as its statement runs. That it has made this very call, and
        // not another statement within it, is known by the call's expression, which is one of its plan's.
        unsafe {
            let portal = pg_sys::ActivePortal;
            if portal.is_null() || pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 {
                return Ok(None);
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
            let is_alone = is_plain && !expression.is_null() && makes_one_call((*query).plannedstmt, expression)?;
            Ok(is_alone.then_some(Self { query, owner }))
        }
    }

    /// Gives the snapshot back; not if it isn't the only one of the transaction that is active.
    fn give_back(&self) -> bool {
        // SAFETY: none of these raises an error: the snapshot is the active one, and registered twice with this owner.
        unsafe {
            let snapshot = (*self.query).snapshot;
            if !pg_sys::ActiveSnapshotSet() || server::GetActiveSnapshot() != snapshot {
                return false;
            }
            // It stays what it is, for its registrations.
            server::PopActiveSnapshot();
            if pg_sys::ActiveSnapshotSet() {
                server::PushActiveSnapshot(snapshot);
                return false;
            }
            (*self.query).snapshot = std::ptr::null_mut();
            (*(*self.query).estate).es_snapshot = std::ptr::null_mut();
            server::UnregisterSnapshotFromOwner(snapshot, self.owner);
            server::UnregisterSnapshotFromOwner(snapshot, self.owner);
            server::InvalidateCatalogSnapshot();
        }
        true
    }

    fn take_new(&self) -> Result<()> {
        let (query, owner) = (self.query, self.owner);
        // SAFETY: raw calls; the statement still runs. What was registered when one of them fails is the owner's to let go.
        unsafe {
            catch(|| {
                let snapshot = server::RegisterSnapshotOnOwner(server::GetTransactionSnapshot(), owner);
                (*query).snapshot = snapshot;
                (*(*query).estate).es_snapshot = server::RegisterSnapshotOnOwner(snapshot, owner);
                server::PushActiveSnapshot(snapshot);
            })
        }
    }
}

type Node = *mut pg_sys::Node;

/// Whether all that a statement does is to make this call, once: its plan is a lone `Result` or `FunctionScan`, which reads no
/// table, and computes nothing else but what looks at nothing.
unsafe fn makes_one_call(statement: *mut pg_sys::PlannedStmt, call: Node) -> Result<bool> {
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
        if !is_lone {
            return Ok(false);
        }
        let mut calls = match (*plan).type_ {
            pg_sys::NodeTag::T_Result if (*plan.cast::<pg_sys::Result>()).resconstantqual.is_null() => Some(0),
            pg_sys::NodeTag::T_FunctionScan => {
                let functions = (*plan.cast::<pg_sys::FunctionScan>()).functions;
                calls_of_all(elements::<pg_sys::RangeTblFunction>(functions).map(|f| (*f).funcexpr), call)?
            }
            _ => None,
        };
        for entry in elements::<pg_sys::TargetEntry>((*plan).targetlist) {
            calls = add(calls, calls_in((*entry).expr.cast(), call)?);
        }
        Ok(calls == Some(1))
    }
}

/// How often this call stands in an expression; `None` if the expression does anything else that may look at the database.
unsafe fn calls_in(node: Node, call: Node) -> Result<Option<u32>> {
    // SAFETY: as above.
    unsafe {
        if node.is_null() {
            return Ok(None);
        }
        match (*node).type_ {
            pg_sys::NodeTag::T_Const | pg_sys::NodeTag::T_Var => Ok(Some(0)),
            pg_sys::NodeTag::T_Param => {
                let is_callers = (*node.cast::<pg_sys::Param>()).paramkind == pg_sys::ParamKind::PARAM_EXTERN;
                Ok(is_callers.then_some(0))
            }
            pg_sys::NodeTag::T_FuncExpr => {
                let function = node.cast::<pg_sys::FuncExpr>();
                let inside = calls_of_all(elements((*function).args), call)?;
                if node == call {
                    return Ok(add(inside, Some(1)));
                }
                let is_plain = !(*function).funcretset && is_immutable((*function).funcid)?;
                Ok(inside.filter(|_| is_plain))
            }
            pg_sys::NodeTag::T_OpExpr => {
                let operator = node.cast::<pg_sys::OpExpr>();
                let inside = calls_of_all(elements((*operator).args), call)?;
                let is_plain = is_immutable((*operator).opfuncid)?;
                Ok(inside.filter(|_| is_plain))
            }
            pg_sys::NodeTag::T_RelabelType => calls_in((*node.cast::<pg_sys::RelabelType>()).arg.cast(), call),
            pg_sys::NodeTag::T_CoerceViaIO => calls_in((*node.cast::<pg_sys::CoerceViaIO>()).arg.cast(), call),
            _ => Ok(None),
        }
    }
}

unsafe fn calls_of_all(nodes: impl Iterator<Item = Node>, call: Node) -> Result<Option<u32>> {
    let mut calls = Some(0);
    for node in nodes {
        // SAFETY: as the caller says.
        calls = add(calls, unsafe { calls_in(node, call)? });
    }
    Ok(calls)
}

fn add(one: Option<u32>, other: Option<u32>) -> Option<u32> {
    Some(one? + other?)
}

/// Whether a function computes from its arguments alone.
fn is_immutable(function: pg_sys::Oid) -> Result<bool> {
    // SAFETY: a look-up in the catalog.
    let volatility = unsafe { catch(|| server::func_volatile(function))? };
    Ok(volatility as u8 == pg_sys::PROVOLATILE_IMMUTABLE)
}
