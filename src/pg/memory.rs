//! Turns missing memory into an error of the code that asked for it.
//!
//! If an allocation of Rust fails, the process aborts, and then the whole server restarts. Allocations of Postgres fail
//! as errors. So the following holds where the memory of a process is limited (`ulimit -v`, strict overcommit):
//!
//! - Large input from outside is checked with [`owned`] and [`room_for`] before it is allocated.
//! - Small allocations then use a reserve. [`replenish`] makes sure that there is one before a turn begins, [`Reserve`]
//!   before a function begins. Once the reserve is in use, nothing more is read: many small values may be large
//!   together.
//! - The reserve of an engine process is memory that the system has promised. A session has promised memory only while
//!   its function holds something large. Under strict overcommit, a promise to each of a thousand idle sessions would
//!   use up the memory. Otherwise a session reserves addresses, which `ulimit -v` counts, and keeps some room in its
//!   heap.
//!
//! Limitations: a system that kills processes for using promised memory still does so. Settings limit how much a call,
//! a start and an execution may use.

use super::catch::{OUT_OF_MEMORY, PgError, Result};
use super::identity::is_engine;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Bytes of the reserve. A function or a turn needs less, apart from the memory it checks for. An unused reserve takes
/// addresses only.
const RESERVE: usize = 4 * 1024 * 1024;

/// Smaller allocations are not checked: they fit into the reserve.
const LARGE: usize = RESERVE / 16;

/// Room in a session's heap when a function begins. The allocator keeps this much when it is freed. More would be a
/// mapping of its own.
const ROOM_IN_HEAP: usize = 96 * 1024;

/// The reserve. Null: there is none. Threads only take it away. The main thread puts it back.
static HELD: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The system has promised the memory of the reserve: it can be written.
static PROMISED: AtomicBool = AtomicBool::new(false);

/// The reserve was given back since it last existed.
static IN_USE: AtomicBool = AtomicBool::new(false);

struct WithReserve;

#[global_allocator]
static ALLOCATOR: WithReserve = WithReserve;

// SAFETY: the system's allocator does all the work. It is asked again after the reserve was given back to it.
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
        // SAFETY: as the caller says; if it fails, the old memory is unchanged.
        again(|| unsafe { System.realloc(from, layout, size) })
    }

    unsafe fn dealloc(&self, from: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(from, layout) }
    }
}

/// Tries once, and a second time after giving the reserve back.
fn again(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let memory = allocate();
    if memory.is_null() && give_back() { allocate() } else { memory }
}

/// Gives the reserve back to the system. Touches only atomics and the system, so any thread may call it.
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
    // SAFETY: this size was mapped there, and no other code has the pointer any more.
    !held.is_null() && unsafe { libc::munmap(held, RESERVE) == 0 }
}

/// Makes sure that there is a reserve. Error: there is no memory for one.
pub fn replenish() -> Result<()> {
    if !HELD.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let promised = is_engine();
    let access = if promised { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    // SAFETY: new memory, which no other code uses.
    let new = unsafe { libc::mmap(ptr::null_mut(), RESERVE, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    if new == libc::MAP_FAILED {
        return Err(short_of(RESERVE));
    }
    IN_USE.store(false, Ordering::Release);
    PROMISED.store(promised, Ordering::Release);
    // Threads only take the reserve away.
    HELD.store(new, Ordering::Release);
    Ok(())
}

/// Makes the system promise the memory of the reserve, if there is one.
fn have_promised() -> Result<()> {
    if PROMISED.load(Ordering::Acquire) {
        return Ok(());
    }
    // No other thread may unmap it meanwhile.
    let held = HELD.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: this size is mapped there, and no other code uses it.
    if !held.is_null() && unsafe { libc::mprotect(held, RESERVE, libc::PROT_READ | libc::PROT_WRITE) } == 0 {
        PROMISED.store(true, Ordering::Release);
    }
    HELD.store(held, Ordering::Release);
    if held.is_null() || PROMISED.load(Ordering::Acquire) { Ok(()) } else { Err(short_of(RESERVE)) }
}

/// Keeps the reserve of a function until it is dropped.
pub struct Reserve {
    /// The engine, or an outer function, had the memory promised already.
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
        // The system takes the promise back only together with the addresses.
        if !self.was_promised && PROMISED.swap(false, Ordering::AcqRel) {
            unmap();
        }
    }
}

/// An error once the reserve is in use.
pub fn check_reserve() -> Result<()> {
    if IN_USE.load(Ordering::Acquire) { Err(short_of(RESERVE)) } else { Ok(()) }
}

/// Checks whether this number of bytes is available now, besides the reserve.
pub fn room_for(bytes: usize) -> Result<()> {
    if bytes < LARGE {
        return check_reserve();
    }
    have_promised()?;
    can_have(bytes)
}

/// Allocates this number of bytes and frees them at once.
fn can_have(bytes: usize) -> Result<()> {
    // SAFETY: nothing is written.
    unsafe {
        // Without the black box, the compiler removes an allocation that is not used.
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
    PgError::new(OUT_OF_MEMORY, "out of memory").detail(format!("{bytes} bytes were needed."))
}
