//! Crash points: places where tests stop the server, as a power cut would.
//!
//! Limitations: only builds with the feature `crash-points` have them. In other builds, a point does nothing. A file of
//! the data directory arms the point that it names.

/// The file that names the armed point. Server processes work in the data directory.
#[cfg(feature = "crash-points")]
const ARMED: &str = "xdb_crash_point";

/// Kills this process if the point of this name is armed. The point is disarmed first, so it kills one process only.
#[cfg(feature = "crash-points")]
pub fn point(name: &str) {
    if std::fs::read_to_string(ARMED).is_ok_and(|armed| armed.trim() == name) && std::fs::remove_file(ARMED).is_ok() {
        // SAFETY: has no preconditions. SIGKILL leaves no time for anything else.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

/// Does nothing in this build.
#[cfg(not(feature = "crash-points"))]
pub const fn point(_: &str) {}
