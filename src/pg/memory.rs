//! Memory that is not there is an error of whoever asked for it.
//!
//! Where an allocation of Rust's fails the process aborts, and a server restarts that has lost a process so. Postgres' own
//! allocations fail as errors. So, where the memory of a process is limited (`ulimit -v`, strict overcommit):
//!
//! - What comes from outside, and may be large, is asked for with [`owned`] and [`room_for`], before it is taken.
//! - What is small comes out of a reserve then. [`replenish`] sees that there is one before a function or a turn begins. Once it is
//!   in use nothing more is read: what is small may be much together.
//!
//! Nobody can do so much against a system that kills who uses memory that it has promised: for that there are settings, which
//! bound how much a call, a start and an execution may take.

use super::catch::{PgError, Result, sqlstate};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// More than what a function or a turn needs besides that which it asks for. Until it is used it takes addresses, no memory; with strict
/// overcommit it counts for every session, so that it can't be much.
const RESERVE: usize = 4 * 1024 * 1024;

/// The reserve; null while there is none.
static HELD: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// It was given back since there was one last.
static IN_USE: AtomicBool = AtomicBool::new(false);

struct WithReserve;

#[global_allocator]
static ALLOCATOR: WithReserve = WithReserve;

// SAFETY: the system's allocator does it all. It is asked again when the reserve was given back to it.
unsafe impl GlobalAlloc for WithReserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        again(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        again(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, from: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller says; where it fails, what was there is still there.
        again(|| unsafe { System.realloc(from, layout, size) })
    }

    unsafe fn dealloc(&self, from: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(from, layout) }
    }
}

/// The first try, or the second one, with the reserve.
fn again(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let memory = allocate();
    if memory.is_null() && give_back() { allocate() } else { memory }
}

/// Gives the reserve back to the system. It touches atomics alone, and the system: any thread may come here.
fn give_back() -> bool {
    let held = HELD.swap(ptr::null_mut(), Ordering::AcqRel);
    if held.is_null() {
        return false;
    }
    IN_USE.store(true, Ordering::Release);
    // SAFETY: so much was mapped there, and nobody else has it any more.
    unsafe { libc::munmap(held, RESERVE) == 0 }
}

/// Sees to a reserve: an error while there is no memory for one.
pub fn replenish() -> Result<()> {
    if !HELD.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, of which nobody knows.
    let new = unsafe { libc::mmap(ptr::null_mut(), RESERVE, access, kind, -1, 0) };
    if new == libc::MAP_FAILED {
        return Err(short_of(RESERVE));
    }
    IN_USE.store(false, Ordering::Release);
    if HELD.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: another thread was first, and nobody knows of this one.
        unsafe { libc::munmap(new, RESERVE) };
    }
    Ok(())
}

/// An error once the reserve is in use.
pub fn check_reserve() -> Result<()> {
    if IN_USE.load(Ordering::Acquire) { Err(short_of(RESERVE)) } else { Ok(()) }
}

/// Whether so much could be had now, besides the reserve.
pub fn room_for(bytes: usize) -> Result<()> {
    // What fits into the reserve needs no other question.
    if bytes < RESERVE / 4 {
        return check_reserve();
    }
    // SAFETY: it is given back at once.
    unsafe {
        // A compiler knows what these functions do, and takes out what nobody uses.
        let memory = std::hint::black_box(libc::malloc(bytes));
        if memory.is_null() {
            return Err(short_of(bytes));
        }
        libc::free(memory);
    }
    Ok(())
}

/// A copy of a text that may be long.
pub fn owned(text: &str) -> Result<String> {
    room_for(text.len())?;
    Ok(text.to_owned())
}

fn short_of(bytes: usize) -> PgError {
    PgError::new(sqlstate(b"53200"), "out of memory").detail(format!("{bytes} bytes were needed."))
}
