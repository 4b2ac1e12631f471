//! Waits: for the latch, for a file descriptor, or for time to pass. No wait here is for anything else.
//! else here.
//!
//! Each wait ends the process if the postmaster has died, resets the latch, and then handles interrupts. The caller
//! reads its flags and queues after the wait, so the next wait notices what happens in between. Limitations: file
//! descriptors are not read here.
use super::compat;
use pgrx::{check_for_interrupts, pg_sys};
use std::ffi::c_int;

/// The reason why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// The configuration was reloaded.
    Reloaded,
    /// A process has set the latch, or the descriptor is readable.
    Woken,
    /// The timeout.
    TimedOut,
}

/// What an engine process waits for. Kept for the life of the process, because rebuilding it for each wait costs system
/// calls.
pub struct WaitSet {
    set: *mut pg_sys::WaitEventSet,
}

impl WaitSet {
    /// Waits for the latch and for this descriptor, if given: an eventfd that stays open for the life of the process.
    pub fn new(fd: Option<c_int>) -> WaitSet {
        // SAFETY: the latch of a process lives as long as the process, and so does the set.
        unsafe {
            let set = compat::new_wait_event_set(3);
            let add = |events, fd, latch| {
                pg_sys::AddWaitEventToSet(set, events, fd, latch, std::ptr::null_mut());
            };
            add(pg_sys::WL_LATCH_SET, -1, pg_sys::MyLatch);
            add(pg_sys::WL_EXIT_ON_PM_DEATH, -1, std::ptr::null_mut());
            if let Some(fd) = fd {
                add(pg_sys::WL_SOCKET_READABLE, fd, std::ptr::null_mut());
            }
            WaitSet { set }
        }
    }

    /// Waits for at most this long; a negative timeout means without limit. Handles interrupts before and after, and
    /// reloads the configuration if asked to. Not allowed in a transaction.
    pub fn wait(&self, timeout_ms: i64) -> Waited {
        let nothing = pg_sys::WaitEvent { pos: 0, events: 0, fd: -1, user_data: std::ptr::null_mut() };
        let mut events = [nothing; 3];
        obey_interrupts_between_statements();
        // SAFETY: the set is valid for the life of the process, and the array has room for all events of the set.
        let count = unsafe {
            pg_sys::WaitEventSetWait(
                self.set,
                timeout_ms.max(-1) as std::ffi::c_long,
                events.as_mut_ptr(),
                events.len() as c_int,
                pg_sys::PG_WAIT_EXTENSION,
            )
        };
        if events[..count.max(0) as usize].iter().any(|event| event.events & pg_sys::WL_LATCH_SET != 0) {
            reset_latch();
        }
        obey_interrupts_between_statements();
        match count {
            _ if reload_configuration_if_asked() => Waited::Reloaded,
            ..=0 => Waited::TimedOut,
            _ => Waited::Woken,
        }
    }
}

/// For a background worker that runs no statement. A request to cancel a statement came too late and is dropped, as the
/// server does between the statements of a session.
fn obey_interrupts_between_statements() {
    // SAFETY: the signal handler sets the flag. No statement runs that it could cancel.
    unsafe { (&raw mut pg_sys::QueryCancelPending).write_volatile(0) };
    check_for_interrupts!();
}

/// Reloads the configuration after a SIGHUP. Returns whether it did. For background workers: in a client's session the
/// server does it. Not allowed in a transaction.
fn reload_configuration_if_asked() -> bool {
    // SAFETY: the signal handler sets the flag. It is cleared here before the reload, so no request is lost.
    unsafe {
        let asked = (&raw const pg_sys::ConfigReloadPending).read_volatile() != 0;
        if asked {
            (&raw mut pg_sys::ConfigReloadPending).write_volatile(0);
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
        asked
    }
}

fn reset_latch() {
    // SAFETY: a process resets its own latch.
    unsafe { pg_sys::ResetLatch(pg_sys::MyLatch) };
}

/// Waits for the latch of this process, for at most this long. For a client's session.
pub fn wait_for_latch(timeout_ms: i64) {
    wait(None, timeout_ms);
}

/// Waits for the latch of this process or for a readable descriptor, for at most this long. For a client's session.
pub fn wait_for_fd_or_latch(fd: c_int, timeout_ms: i64) {
    wait(Some(fd), timeout_ms);
}

fn wait(fd: Option<c_int>, timeout_ms: i64) {
    let mut wanted = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    if fd.is_some() {
        wanted |= pg_sys::WL_SOCKET_READABLE;
    }
    check_for_interrupts!();
    // SAFETY: waits for this process's own latch.
    let events = unsafe {
        pg_sys::WaitLatchOrSocket(
            pg_sys::MyLatch,
            wanted as c_int,
            fd.unwrap_or(-1),
            timeout_ms.max(0) as std::ffi::c_long,
            pg_sys::PG_WAIT_EXTENSION,
        ) as u32
    };
    if events & pg_sys::WL_LATCH_SET != 0 {
        reset_latch();
    }
    check_for_interrupts!();
}
