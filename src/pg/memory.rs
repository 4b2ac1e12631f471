//! Memory that is not there is an error of whoever asked for it.
//!
//! Where an allocation of Rust's fails the process aborts, and a server restarts that has lost a process so. Postgres' own
//! allocations fail as errors. So, where the memory of a process is limited (`ulimit -v`, strict overcommit):
//!
//! - What comes from outside, and may be large, is asked for with [`owned`] and [`room_for`], before it is taken.
//! - What is small comes out of a reserve then. [`replenish`] sees that there is one before a turn begins, [`Reserve`] before a
//!   function does. Once it is in use nothing more is read: what is small may be much together.
//! - The reserve of an engine process is memory that the system has promised. A session has promised memory only while its function
//!   holds something large: under strict overcommit a promise to each of a thousand idle sessions would take the memory of others.
//!   Otherwise a session reserves addresses, which is what `ulimit -v` counts, and has some room in its heap.
//!
//! Nobody can do so much against a system that kills who uses memory that it has promised: for that there are settings, which
//! bound how much a call, a start and an execution may take.

use super::catch::{PgError, Result, sqlstate};
use super::identity::is_engine;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// More than what a function or a turn needs besides that which it asks for. Until it is used it takes addresses, no memory.
const RESERVE: usize = 4 * 1024 * 1024;

/// What is smaller needs no question: it fits into the reserve.
const LARGE: usize = RESERVE / 16;

/// The room that a session's heap has when a function begins. The allocator keeps as much when it is freed, and more would be a mapping
/// of its own.
const ROOM_IN_HEAP: usize = 96 * 1024;

/// The reserve; null while there is none.
static HELD: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The system has promised the memory of the reserve: it can be written.
static PROMISED: AtomicBool = AtomicBool::new(false);

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
    let given = unmap();
    if given {
        IN_USE.store(true, Ordering::Release);
    }
    given
}

/// False if there is no reserve.
fn unmap() -> bool {
    let held = HELD.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: so much was mapped there, and nobody else has it any more.
    !held.is_null() && unsafe { libc::munmap(held, RESERVE) == 0 }
}

/// Sees to a reserve: an error while there is no memory for one.
pub fn replenish() -> Result<()> {
    if !HELD.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let promised = is_engine();
    let access = if promised { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    // SAFETY: new memory, of which nobody knows.
    let new = unsafe { libc::mmap(ptr::null_mut(), RESERVE, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    if new == libc::MAP_FAILED {
        return Err(short_of(RESERVE));
    }
    IN_USE.store(false, Ordering::Release);
    PROMISED.store(promised, Ordering::Release);
    // Threads only take it away.
    HELD.store(new, Ordering::Release);
    Ok(())
}

/// Has the system promise the memory of the reserve, if there is one.
fn have_promised() -> Result<()> {
    if PROMISED.load(Ordering::Acquire) {
        return Ok(());
    }
    // No other thread may unmap it meanwhile.
    let held = HELD.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: so much is mapped there, and nobody uses it.
    if !held.is_null() && unsafe { libc::mprotect(held, RESERVE, libc::PROT_READ | libc::PROT_WRITE) } == 0 {
        PROMISED.store(true, Ordering::Release);
    }
    HELD.store(held, Ordering::Release);
    if held.is_null() || PROMISED.load(Ordering::Acquire) { Ok(()) } else { Err(short_of(RESERVE)) }
}

/// The reserve of a function, until it is dropped.
pub struct Reserve {
    /// By the engine, or by a function that has called this one.
    was_promised: bool,
}

impl Reserve {
    pub fn new() -> Result<Self> {
        let was_promised = PROMISED.load(Ordering::Acquire);
        replenish()?;
        if !is_engine() {
            can_have(ROOM_IN_HEAP)?;
        }
        Ok(Self { was_promised })
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // The system takes the promise back with the addresses alone.
        if !self.was_promised && PROMISED.swap(false, Ordering::AcqRel) {
            unmap();
        }
    }
}

/// An error once the reserve is in use.
pub fn check_reserve() -> Result<()> {
    if IN_USE.load(Ordering::Acquire) { Err(short_of(RESERVE)) } else { Ok(()) }
}

/// Whether so much could be had now, besides the reserve.
pub fn room_for(bytes: usize) -> Result<()> {
    if bytes < LARGE {
        return check_reserve();
    }
    have_promised()?;
    can_have(bytes)
}

/// Takes so much, and gives it back at once.
fn can_have(bytes: usize) -> Result<()> {
    // SAFETY: nothing is written.
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
