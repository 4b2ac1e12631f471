//! Threads inside a server process: deaf to signals.

use std::any::Any;
use std::sync::mpsc::sync_channel;
use std::{io, mem, ptr, thread};

/// What the system's libraries take for a thread besides its stack, with much to spare.
const BEGINNING: usize = 1024 * 1024;

/// Starts a thread, whose name is what tools show; the system keeps 15 bytes of it.
///
/// All signals are blocked in it, and in what libraries start from it. The server's latches are signals: a thread that
/// received one instead of the main thread would swallow a wake-up.
///
/// Where memory is limited (`ulimit -v`) and the system's libraries find none for a thread's own variables, they end the
/// process, and with it the server. So the room is tried first, and the caller takes no more of it until the thread has them.
pub fn spawn(name: &str, stack: usize, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let _blocked = BlockedSignals::block()?;
    let (begin, has_begun) = sync_channel(1);
    try_room(stack + BEGINNING)?;
    thread::Builder::new().name(name.to_owned()).stack_size(stack).spawn(move || {
        // Fails only when nobody waits any more.
        let _ = begin.send(());
        body();
    })?;
    has_begun.recv().map_err(|_| io::Error::from(io::ErrorKind::Other))
}

/// Whether so many bytes of addresses could be had now.
fn try_room(bytes: usize) -> io::Result<()> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, of which nobody knows, is given back at once.
    unsafe {
        let room = libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0);
        if room == libc::MAP_FAILED || libc::munmap(room, bytes) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// What a panic says.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    }
}

/// Blocks all signals in this thread until it is dropped; a thread started meanwhile inherits that.
struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn block() -> io::Result<Self> {
        // SAFETY: a sigset_t is plain bytes, and both calls write only into the sets given.
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
        // SAFETY: the set is the one that the system gave. The call fails only for an unknown "how".
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}
