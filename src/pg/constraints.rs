//! CHECK constraints of the system tables, taken apart once per session.
//!
//! The server keeps a constraint as text. It parses the text anew for each statement that writes to the table, which of a
//! statement with a single row is as much work as the insertion of the row. While an own statement starts, the constraints of
//! the tables that it writes to are put in place as the server would do it, from trees that are kept. What is checked, when,
//! and what a violation says, remains the server's.

use super::index_plans;
use pgrx::{pg_guard, pg_sys};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};

static mut PREVIOUS: pg_sys::ExecutorStart_hook_type = None;

/// The constraints of a table, in the order in which the server has them.
struct Kept {
    /// As the catalog has them: kept trees are used as long as these are the same.
    texts: Vec<CString>,
    trees: Vec<*mut pg_sys::Expr>,
    /// Where the trees are.
    memory: pg_sys::MemoryContext,
}

thread_local! {
    /// By table.
    static KEPT: RefCell<HashMap<u32, Kept>> = RefCell::new(HashMap::new());
}

/// Puts the hook in place. When the library is loaded, once per process.
pub fn register() {
    // SAFETY: _PG_init runs once, before any thread exists.
    unsafe {
        PREVIOUS = pg_sys::ExecutorStart_hook;
        pg_sys::ExecutorStart_hook = Some(executor_start);
    }
}

/// Deliberately without `#[pg_guard]`: an error of the chained call must jump over this frame, which holds nothing to drop.
unsafe extern "C-unwind" fn executor_start(query: *mut pg_sys::QueryDesc, flags: c_int) {
    // SAFETY: the arguments are passed on as they came.
    unsafe {
        match PREVIOUS {
            Some(previous) => previous(query, flags),
            None => super::raw::standard_ExecutorStart(query, flags),
        }
        if index_plans::is_ours() {
            after_start((*query).estate);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn after_start(estate: *mut pg_sys::EState) {
    // SAFETY: the executor has opened the relations, and closes them when the statement ends. The list holds nodes of this type
    // alone.
    unsafe {
        let opened = (*estate).es_opened_result_relations;
        let count = if opened.is_null() { 0 } else { (*opened).length };
        for position in 0..count as usize {
            put_in_place(estate, (*(*opened).elements.add(position)).ptr_value.cast());
        }
    }
}

/// # Safety
/// Both belong to a statement that has just been started.
unsafe fn put_in_place(estate: *mut pg_sys::EState, result: *mut pg_sys::ResultRelInfo) {
    // SAFETY: an open relation has a description with as many constraints as it says. Expressions belong to the statement's
    // memory, as those that the server makes.
    unsafe {
        let relation = (*result).ri_RelationDesc;
        let constraints = (*(*relation).rd_att).constr;
        // Without checks the array is null.
        if constraints.is_null() || (*constraints).num_check == 0 || !(*result).ri_ConstraintExprs.is_null() {
            return;
        }
        let checks = std::slice::from_raw_parts((*constraints).check, (*constraints).num_check.into());
        // The server warns of a table that says something else in the catalog.
        if (*(*relation).rd_rel).relchecks as usize != checks.len() {
            return;
        }
        KEPT.with_borrow_mut(|kept| {
            let oid = (*relation).rd_id.to_u32();
            if !kept.get(&oid).is_some_and(|kept| kept.is_of(checks)) {
                if let Some(old) = kept.remove(&oid) {
                    pg_sys::MemoryContextDelete(old.memory);
                }
                kept.insert(oid, Kept::parse(checks));
            }
            let trees = &kept[&oid].trees;
            let before = pg_sys::MemoryContextSwitchTo((*estate).es_query_cxt);
            let states = pg_sys::palloc(size_of::<*mut pg_sys::ExprState>() * trees.len());
            let states = states.cast::<*mut pg_sys::ExprState>();
            for (position, tree) in trees.iter().enumerate() {
                states.add(position).write(pg_sys::ExecInitExpr(*tree, std::ptr::null_mut()));
            }
            (*result).ri_ConstraintExprs = states;
            pg_sys::MemoryContextSwitchTo(before);
        });
    }
}

impl Kept {
    /// # Safety
    /// The constraints are those of an open relation.
    unsafe fn parse(checks: &[pg_sys::ConstrCheck]) -> Self {
        // SAFETY: the texts are the catalog's, which parse; an error leaves a small context behind, until the session ends.
        unsafe {
            let memory = pg_sys::AllocSetContextCreateInternal(
                pg_sys::CacheMemoryContext,
                c"xdb constraints".as_ptr(),
                pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
                pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
                pg_sys::ALLOCSET_SMALL_MAXSIZE as usize,
            );
            let before = pg_sys::MemoryContextSwitchTo(memory);
            let trees = checks.iter().map(|check| pg_sys::expression_planner(pg_sys::stringToNode(check.ccbin).cast()));
            let trees = trees.collect();
            pg_sys::MemoryContextSwitchTo(before);
            Self { texts: checks.iter().map(|check| CStr::from_ptr(check.ccbin).to_owned()).collect(), trees, memory }
        }
    }

    /// # Safety
    /// As above.
    unsafe fn is_of(&self, checks: &[pg_sys::ConstrCheck]) -> bool {
        // SAFETY: the texts are C strings.
        let same =
            |(text, check): (&CString, &pg_sys::ConstrCheck)| unsafe { text.as_c_str() == CStr::from_ptr(check.ccbin) };
        self.texts.len() == checks.len() && self.texts.iter().zip(checks).all(same)
    }
}
