//! Background workers: how the launcher describes them, starts them, and notices their end.

use pgrx::bgworkers::BackgroundWorkerBuilder;
use pgrx::pg_sys;

const LIBRARY: &str = "xdb";

/// Describes a process of this library. Names of databases are short enough for the name of a process.
pub fn describe(name: &str, kind: &str, function: &str) -> BackgroundWorkerBuilder {
    BackgroundWorkerBuilder::new(name).set_type(kind).set_library(LIBRARY).set_function(function).enable_spi_access()
}

/// Why [`start`] has started no process.
pub fn all_in_use() -> String {
    // SAFETY: set once at the start of the server.
    let most = unsafe { pg_sys::max_worker_processes };
    format!("all {most} worker processes of max_worker_processes are in use")
}

/// Asks the postmaster for a process; `None` if all worker processes are in use.
pub fn start(worker: BackgroundWorkerBuilder, argument: u64) -> Option<Handle> {
    let worker = worker.set_argument(Some(pg_sys::Datum::from(argument as usize)));
    let mut handle = std::ptr::null_mut();
    // SAFETY: the description is copied; the handle is allocated where it outlives this call. (pgrx's own is never
    // freed.)
    unsafe {
        let mut worker = pg_sys::BackgroundWorker::from(&worker.set_notify_pid(pg_sys::MyProcPid));
        let before = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
        let registered = pg_sys::RegisterDynamicBackgroundWorker(&mut worker, &mut handle);
        pg_sys::MemoryContextSwitchTo(before);
        // Lazily: a handle that was not given must not be dropped.
        registered.then(|| Handle(handle))
    }
}

/// The server's handle of a process that this launcher has started.
pub struct Handle(*mut pg_sys::BackgroundWorkerHandle);

impl Handle {
    pub fn has_stopped(&self) -> bool {
        let mut pid = 0;
        // SAFETY: the handle is valid until dropped.
        let status = unsafe { pg_sys::GetBackgroundWorkerPid(self.0, &mut pid) };
        status == pg_sys::BgwHandleStatus::BGWH_STOPPED
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: allocated by the server for the launcher.
        unsafe { pg_sys::pfree(self.0.cast()) };
    }
}
