//! Functions of the server, declared without pgrx's error boundary.
//!
//! The boundary turns an ERROR into a Rust panic and back. It loses constraint fields and the SQLSTATEs that pgrx does
//! not know, and it must not run in a signal handler. It also ends the server if the current memory context has no room
//! for its copy of the error. So what allocates much is called from here, inside of [`catch`](super::catch::catch).
//! Hazard: if a function here can raise an error, its caller must have no destructor pending in its frame.
use pgrx::pg_sys;
use std::ffi::{CStr, c_char, c_int, c_void};

unsafe extern "C-unwind" {
    /// Never raises an error; safe in callbacks after the commit.
    pub fn SetLatch(latch: *mut pg_sys::Latch);
    /// The server's SIGTERM handler: the next check for interrupts ends the process with exit code 1.
    pub fn die(signal: c_int);
    /// The server's SIGHUP handler: sets `ConfigReloadPending` and the latch.
    pub fn SignalHandlerForConfigReload(signal: c_int);
    /// Input and output of `jsonb`, for [`DirectFunctionCall1Coll`]. Errors are raised directly.
    pub fn jsonb_in(call: pg_sys::FunctionCallInfo) -> pg_sys::Datum;
    pub fn jsonb_out(call: pg_sys::FunctionCallInfo) -> pg_sys::Datum;
    /// Calls a function of the server with one argument and one result. Errors are raised directly.
    pub fn DirectFunctionCall1Coll(
        function: unsafe extern "C-unwind" fn(pg_sys::FunctionCallInfo) -> pg_sys::Datum,
        collation: pg_sys::Oid,
        argument: pg_sys::Datum,
    ) -> pg_sys::Datum;
    pub fn palloc(bytes: usize) -> *mut c_void;
    /// As [`palloc`]; the memory is zero.
    pub fn palloc0(bytes: usize) -> *mut c_void;
    /// The server's own utility processing. Errors are raised directly.
    pub fn standard_ProcessUtility(
        statement: *mut pg_sys::PlannedStmt,
        query: *const c_char,
        read_only_tree: bool,
        context: pg_sys::ProcessUtilityContext::Type,
        params: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        receiver: *mut pg_sys::DestReceiver,
        completion: *mut pg_sys::QueryCompletion,
    );
}

/// The index of this process in the server's process array, by which other processes find its latch.
///
/// `None` before the process has a place there, and after it has given the place up.
pub fn my_procno() -> Option<i32> {
    // SAFETY: MyProc, when set, points into the array that ProcGlobal->allProcs starts.
    unsafe {
        if pg_sys::MyProc.is_null() || pg_sys::ProcGlobal.is_null() {
            return None;
        }
        i32::try_from(pg_sys::MyProc.offset_from((*pg_sys::ProcGlobal).allProcs)).ok()
    }
}

/// Sets the latch of the process with this index. If the index is outdated, another process wakes up without need.
///
/// Never raises an error.
pub fn set_latch_of(procno: i32) {
    // SAFETY: the array lives in shared memory as long as the server; the index is checked against its length.
    unsafe {
        let global = pg_sys::ProcGlobal;
        if global.is_null() {
            return;
        }
        let Ok(index) = u32::try_from(procno) else {
            return;
        };
        if index < (*global).allProcCount {
            SetLatch(&raw mut (*(*global).allProcs.add(index as usize)).procLatch);
        }
    }
}

/// The real time in microseconds since the server's epoch (2000-01-01).
pub fn now_micros() -> i64 {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// A copy of a C string of the server; None for null.
///
/// # Safety
/// The pointer must be null, or point to a C string.
pub(super) unsafe fn text(text: *const c_char) -> Option<String> {
    // SAFETY: as the caller says.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// A new memory context of the usual sizes.
///
/// # Safety
/// The parent must be valid.
pub(super) unsafe fn memory_context(parent: pg_sys::MemoryContext, name: &'static CStr) -> pg_sys::MemoryContext {
    // SAFETY: as the caller says.
    unsafe {
        pg_sys::AllocSetContextCreateExtended(
            parent,
            name.as_ptr(),
            pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
        )
    }
}

/// The elements of a list of pointers; a null list is empty.
///
/// # Safety
/// The list must live as long as the iterator.
pub(super) unsafe fn elements<T>(list: *mut pg_sys::List) -> impl Iterator<Item = *mut T> {
    // SAFETY: the list is null, or valid as long as the statement, with `length` elements.
    let length = if list.is_null() { 0 } else { unsafe { (*list).length } };
    (0..length as usize).map(move |index| unsafe { (*(*list).elements.add(index)).ptr_value.cast::<T>() })
}
