//! Plans statements on system tables: once, and always by index.
//!
//! Plans are kept. A plan made while a table is small or not analyzed yet would scan the whole table for ever. Each of
//! these statements finds its rows by an index, however large the table is. So the planner gets fixed large sizes, and
//! no statistics. A plan is then the same before and after the first `ANALYZE`, and for all parameters.

use super::raw::elements;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::c_int;

/// Rows and pages of a system table, for the planner.
const ROWS: f64 = 1e7;
const PAGES: pg_sys::BlockNumber = 300_000;
/// Pages of an index for that number of rows, and its levels above the leaves.
const INDEX_PAGES: pg_sys::BlockNumber = 40_000;
const INDEX_LEVELS: i32 = 2;

/// Distinct values per row in the first column of a key: a thousand rows have the same value. Without this, the planner
/// would assume a share of the table, and prefer other ways to find rows.
const DISTINCT_OF_KEYS: f32 = -0.001;

/// The first oid outside of the server's own catalog.
const FIRST_NORMAL_OID: u32 = pg_sys::FirstNormalObjectId;

thread_local! {
    static OURS: Cell<bool> = const { Cell::new(false) };
}

static mut PREVIOUS_INFO: pg_sys::get_relation_info_hook_type = None;
static mut PREVIOUS_STATISTICS: pg_sys::get_relation_stats_hook_type = None;

/// Installs the hooks, when the library is loaded. Once per process.
pub fn register() {
    // SAFETY: _PG_init runs once, before any thread exists.
    unsafe {
        PREVIOUS_INFO = pg_sys::get_relation_info_hook;
        pg_sys::get_relation_info_hook = Some(relation_info);
        PREVIOUS_STATISTICS = pg_sys::get_relation_stats_hook;
        pg_sys::get_relation_stats_hook = Some(relation_statistics);
    }
}

/// Without `#[pg_guard]`: an error of the chained hook passes through this frame, which holds nothing to drop.
unsafe extern "C-unwind" fn relation_info(
    root: *mut pg_sys::PlannerInfo,
    relation: pg_sys::Oid,
    is_parent: bool,
    info: *mut pg_sys::RelOptInfo,
) {
    // SAFETY: the planner passes valid nodes; `indexlist` holds only nodes of this type.
    unsafe {
        if let Some(previous) = PREVIOUS_INFO {
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

/// As above. True: the planner looks for no statistics itself.
unsafe extern "C-unwind" fn relation_statistics(
    root: *mut pg_sys::PlannerInfo,
    entry: *mut pg_sys::RangeTblEntry,
    attribute: pg_sys::AttrNumber,
    found: *mut pg_sys::VariableStatData,
) -> bool {
    // SAFETY: the planner passes valid nodes, except the relation, which may be missing. The result is still empty.
    unsafe {
        if !OURS.get() || (*entry).relid.to_u32() < FIRST_NORMAL_OID {
            return PREVIOUS_STATISTICS.is_some_and(|previous| previous(root, entry, attribute, found));
        }
        let leads = |index: *mut pg_sys::IndexOptInfo| (*index).unique && *(*index).indexkeys == i32::from(attribute);
        if let Some(relation) = (*found).rel.as_ref()
            && elements::<pg_sys::IndexOptInfo>(relation.indexlist).any(leads)
        {
            (*found).statsTuple = statistics(DISTINCT_OF_KEYS);
            (*found).freefunc = Some(free_statistics);
        }
        true
    }
}

/// A row of `pg_statistic` that only says how many values a column has, in the form of `stadistinct`.
fn statistics(distinct: f32) -> pg_sys::HeapTuple {
    const HEADER: usize = size_of::<pg_sys::HeapTupleData>().next_multiple_of(pg_sys::MAXIMUM_ALIGNOF as usize);
    const OFFSET: usize = size_of::<pg_sys::HeapTupleHeaderData>().next_multiple_of(pg_sys::MAXIMUM_ALIGNOF as usize);
    const LENGTH: usize = OFFSET + size_of::<pg_sys::FormData_pg_statistic>();
    // SAFETY: everything is in one new piece of memory, zero except for what is written here. Only the columns of fixed
    // length are filled. The server reads no other columns if no kind of further statistics exists.
    unsafe {
        let tuple = pg_sys::palloc0(HEADER + LENGTH).cast::<pg_sys::HeapTupleData>();
        let header = tuple.byte_add(HEADER).cast::<pg_sys::HeapTupleHeaderData>();
        (*header).t_hoff = OFFSET as u8;
        (*header.byte_add(OFFSET).cast::<pg_sys::FormData_pg_statistic>()).stadistinct = distinct;
        (*tuple).t_len = LENGTH as u32;
        (*tuple).t_data = header;
        tuple
    }
}

unsafe extern "C-unwind" fn free_statistics(tuple: pg_sys::HeapTuple) {
    // SAFETY: one that `statistics` made, in one piece.
    unsafe { pg_sys::pfree(tuple.cast()) };
}

/// While this lives, plans are made for large tables, by index, and kept. Only for statements on system tables: no
/// statement of a trigger of the application is planned meanwhile.
pub struct ByIndex {
    before: [bool; SWITCHES],
    plan_cache_mode: c_int,
}

const SWITCHES: usize = 8;

/// Switches of the planner. On: ways to find rows one by one by an index, which a session may have turned off. Off: all
/// other ways, and the compilation of expressions, which costs of this size would start.
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
    /// For tests: plans are made for all parameters.
    #[cfg(feature = "pg_test")]
    pub fn begin_generic() -> Self {
        let by_index = Self::begin();
        // SAFETY: as in `begin`.
        unsafe {
            (&raw mut pg_sys::plan_cache_mode).write(pg_sys::PlanCacheMode::PLAN_CACHE_MODE_FORCE_GENERIC_PLAN as c_int)
        };
        by_index
    }

    pub fn begin() -> Self {
        OURS.set(true);
        let auto = pg_sys::PlanCacheMode::PLAN_CACHE_MODE_AUTO as c_int;
        // SAFETY: variables behind the server's settings, in the only thread that uses them. A setting changed in
        // between would be undone, but nothing here changes any.
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
