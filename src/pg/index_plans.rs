//! How statements on the system tables are planned: once, and always alike.
//!
//! A plan that is made while a table happens to be small, or before anybody has analyzed it, would walk over all of it, and is
//! kept. All of these statements find what they want by an index, however much there is; so the planner is told that there
//! is much. That also makes one plan good for all parameters.

use super::raw::elements;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::c_int;

/// Rows that the planner takes a system table to have, and pages of them.
const ROWS: f64 = 1e7;
const PAGES: pg_sys::BlockNumber = 300_000;
/// Pages of an index with so many rows, and its levels above the leaves.
const INDEX_PAGES: pg_sys::BlockNumber = 40_000;
const INDEX_LEVELS: i32 = 2;

/// The first oid that is not of the server's own catalog.
const FIRST_NORMAL_OID: u32 = pg_sys::FirstNormalObjectId;

thread_local! {
    static OURS: Cell<bool> = const { Cell::new(false) };
}

static mut PREVIOUS: pg_sys::get_relation_info_hook_type = None;

/// Puts the hook in place. When the library is loaded, once per process.
pub fn register() {
    // SAFETY: _PG_init runs once, before any thread exists.
    unsafe {
        PREVIOUS = pg_sys::get_relation_info_hook;
        pg_sys::get_relation_info_hook = Some(relation_info);
    }
}

/// Deliberately without `#[pg_guard]`: an error of the chained hook passes through this frame, which holds nothing to drop.
unsafe extern "C-unwind" fn relation_info(
    root: *mut pg_sys::PlannerInfo,
    relation: pg_sys::Oid,
    is_parent: bool,
    info: *mut pg_sys::RelOptInfo,
) {
    // SAFETY: the planner passes valid nodes; `indexlist` holds nodes of this type alone.
    unsafe {
        if let Some(previous) = PREVIOUS {
            previous(root, relation, is_parent, info);
        }
        if !OURS.get() || relation.to_u32() < FIRST_NORMAL_OID {
            return;
        }
        (*info).tuples = ROWS;
        (*info).pages = PAGES;
        for index in elements::<pg_sys::IndexOptInfo>((*info).indexlist) {
            (*index).tuples = ROWS;
            (*index).pages = INDEX_PAGES;
            (*index).tree_height = INDEX_LEVELS;
        }
    }
}

/// While this lives, what is planned is planned for large tables, by their indexes, and kept. For statements that use nothing
/// but system tables, so that no statement of a user's trigger is planned meanwhile.
pub struct ByIndex {
    before: [bool; SWITCHES],
    plan_cache_mode: c_int,
}

const SWITCHES: usize = 8;

/// Ways to find rows one after the other by an index, which a session may have switched off; all other ways; and the compilation of
/// expressions, which costs of this size would set off.
fn switches() -> [(*mut bool, bool); SWITCHES] {
    [
        (&raw mut pg_sys::enable_indexscan, true),
        (&raw mut pg_sys::enable_indexonlyscan, true),
        (&raw mut pg_sys::enable_nestloop, true),
        (&raw mut pg_sys::enable_seqscan, false),
        (&raw mut pg_sys::enable_bitmapscan, false),
        (&raw mut pg_sys::enable_hashjoin, false),
        (&raw mut pg_sys::enable_mergejoin, false),
        (&raw mut pg_sys::jit_enabled, false),
    ]
}

impl ByIndex {
    pub fn begin() -> Self {
        OURS.set(true);
        let auto = pg_sys::PlanCacheMode::PLAN_CACHE_MODE_AUTO as c_int;
        // SAFETY: variables of the server's settings, in the one thread that uses them. The settings stay what they are; one that
        // was set in between would be undone, and nothing here sets any.
        unsafe {
            Self {
                before: switches().map(|(switch, value)| switch.replace(value)),
                plan_cache_mode: (&raw mut pg_sys::plan_cache_mode).replace(auto),
            }
        }
    }
}

impl Drop for ByIndex {
    fn drop(&mut self) {
        OURS.set(false);
        // SAFETY: as above.
        unsafe {
            for ((switch, _), before) in switches().into_iter().zip(self.before) {
                switch.write(before);
            }
            (&raw mut pg_sys::plan_cache_mode).write(self.plan_cache_mode);
        }
    }
}
