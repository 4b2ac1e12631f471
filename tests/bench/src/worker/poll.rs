//! A wrapper of `epoll`, level-triggered.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// A set of descriptors to wait for.
pub struct Poll(OwnedFd);

/// The descriptors that are ready. The buffer is used again.
pub struct Ready(Vec<libc::epoll_event>);

impl Ready {
    pub fn new() -> Ready {
        Ready(Vec::with_capacity(256))
    }

    /// The descriptors.
    pub fn iter(&self) -> impl Iterator<Item = RawFd> {
        self.0.iter().map(|event| event.u64 as RawFd)
    }
}

impl Poll {
    pub fn new() -> Result<Poll> {
        // SAFETY: no preconditions.
        let poll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if poll < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and no other code has it.
        Ok(Poll(unsafe { OwnedFd::from_raw_fd(poll) }))
    }

    /// Waits from now on for data of this descriptor. Closing the descriptor removes it.
    pub fn add(&self, descriptor: &impl AsRawFd) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, descriptor, libc::EPOLLIN)
    }

    /// Sets whether to wait also until the descriptor can be written to.
    pub fn writes(&self, descriptor: &impl AsRawFd, wanted: bool) -> Result<()> {
        let events = if wanted { libc::EPOLLIN | libc::EPOLLOUT } else { libc::EPOLLIN };
        self.control(libc::EPOLL_CTL_MOD, descriptor, events)
    }

    fn control(&self, operation: i32, descriptor: &impl AsRawFd, events: i32) -> Result<()> {
        let descriptor = descriptor.as_raw_fd();
        let mut event = libc::epoll_event { events: events as u32, u64: descriptor as u64 };
        // SAFETY: the event lives during the call, and a wrong descriptor is an error.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, descriptor, &mut event) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    }

    /// Waits, but at most this long, until a descriptor is ready.
    pub fn wait(&self, ready: &mut Ready, at_most: Option<Duration>) -> Result<()> {
        // Rounded up: to wake before the time would be to turn round in circles until then.
        let timeout = at_most.map_or(-1, |time| time.as_micros().div_ceil(1000).min(60_000) as i32);
        ready.0.clear();
        // SAFETY: the vector has room for the requested number of events, and gets the length that the kernel has
        // written.
        let count = unsafe {
            let room = ready.0.capacity() as i32;
            let count = libc::epoll_wait(self.0.as_raw_fd(), ready.0.as_mut_ptr(), room, timeout);
            ready.0.set_len(count.max(0) as usize);
            count
        };
        if count < 0 {
            let error = Error::last_os_error();
            return if error.kind() == std::io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        Ok(())
    }
}
