//! Threads inside a server process: deaf to signals.

use std::any::Any;
use std::{io, mem, ptr, thread};

/// Starts a thread, whose name is what tools show; the system keeps 15 bytes of it.
///
/// All signals are blocked in it, and in what libraries start from it. The server's latches are signals: a thread that
/// received one instead of the main thread would swallow a wake-up.
pub fn spawn(name: &str, stack: usize, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let _blocked = BlockedSignals::block()?;
    thread::Builder::new().name(name.to_owned()).stack_size(stack).spawn(body).map(drop)
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
