//! Starts threads in a server process, with all signals blocked.

use std::any::Any;
use std::sync::mpsc::sync_channel;
use std::{io, mem, ptr, thread};

/// Bytes that the system's libraries need for a thread besides its stack. A generous estimate.
const BEGINNING: usize = 1024 * 1024;

/// Starts a thread. Tools show the first 15 bytes of its name.
///
/// All signals are blocked in the thread, and in threads that libraries start from it. Hazard: the server's latches are
/// signals, and a thread that receives such a signal swallows the main thread's wake-up.
///
/// Hazard: if memory is limited (`ulimit -v`) and the libraries can't allocate a thread's own variables, they end the
/// process, and so the server. So the memory is tried first. The caller allocates nothing until the thread has its
/// variables.
pub fn spawn(name: &str, stack: usize, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let _blocked = BlockedSignals::block()?;
    let (begin, has_begun) = sync_channel(1);
    try_room(stack + BEGINNING)?;
    thread::Builder::new().name(name.to_owned()).stack_size(stack).spawn(move || {
        // Fails only if the caller does not wait any more.
        let _ = begin.send(());
        body();
    })?;
    has_begun.recv().map_err(|_| io::Error::from(io::ErrorKind::Other))
}

/// Checks whether this number of bytes of address space is available now.
fn try_room(bytes: usize) -> io::Result<()> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the memory is new, unused, and returned at once.
    unsafe {
        let room = libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0);
        if room == libc::MAP_FAILED || libc::munmap(room, bytes) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The message of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    }
}

/// Blocks all signals in this thread until it is dropped. A thread started meanwhile inherits the block.
struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn block() -> io::Result<Self> {
        // SAFETY: a sigset_t is plain bytes, and both calls write only into the given sets.
        let (result, before) = unsafe {
            let mut all: libc::sigset_t = mem::zeroed();
            let mut before: libc::sigset_t = mem::zeroed();
            libc::sigfillset(&mut all);
            let result = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            (result, before)
        };
        match result {
            0 => Ok(BlockedSignals { before }),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the system. The call fails only for an unknown "how".
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}
