//! A file descriptor that wakes the main thread when calls have finished.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An `eventfd`: readable after [`notify`](Notifier::notify), until [`clear`](Notifier::clear).
///
/// Threads can't set a latch of the server. So the main thread waits for this descriptor together with its latch.
/// Hazard: clear first, then drain. The reverse order loses a wake-up.
#[derive(Debug)]
pub struct Notifier {
    fd: OwnedFd,
}

impl Notifier {
    /// Opens the descriptor. Error: no descriptor is free.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Notifier { fd })
    }

    /// The descriptor to wait for. It stays open until the notifier is dropped.
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Makes the descriptor readable.
    pub fn notify(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: an eventfd reads these eight bytes. The only error of an open eventfd is a full counter, and then it
        // is readable already.
        unsafe { libc::write(self.raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes the descriptor unreadable until the next [`notify`](Notifier::notify).
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: an eventfd fills these eight bytes. The only error of an open eventfd is an empty counter, which is
        // the wanted state.
        unsafe { libc::read(self.raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}
