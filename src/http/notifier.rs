//! The file descriptor that tells the main thread that calls have finished.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An `eventfd`: readable from the first [`notify`](Notifier::notify) after a
/// [`clear`](Notifier::clear).
///
/// A thread can't set a latch of the server, so the main thread waits on this descriptor beside its
/// latch. It clears first and drains then; the other way round loses a wake-up.
#[derive(Debug)]
pub struct Notifier {
    fd: OwnedFd,
}

impl Notifier {
    /// Opens the descriptor.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was opened just now, and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Notifier { fd })
    }

    /// The descriptor to wait on. It stays open as long as the notifier lives.
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Makes the descriptor readable.
    pub fn notify(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes are what an eventfd takes. The only error that an open eventfd
        // gives is a full counter, and a full counter is readable already.
        unsafe { libc::write(self.raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes the descriptor unreadable until the next [`notify`](Notifier::notify).
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight writable bytes are what an eventfd fills. The only error that an open eventfd
        // gives is an empty counter, which is what is wanted.
        unsafe { libc::read(self.raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}
