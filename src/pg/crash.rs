//! Points at which tests stop the server, as a power cut would.
//!
//! Only a build with the feature `crash-points` has them; in every other one a point is nothing. A point is armed by a file of
//! the data directory that holds its name.

/// The file that names the armed point. A server process works in the data directory.
#[cfg(feature = "crash-points")]
const ARMED: &str = "xdb_crash_point";

/// Kills this process if the point of this name is armed, and disarms it: whoever comes by later lives.
#[cfg(feature = "crash-points")]
pub fn point(name: &str) {
    if std::fs::read_to_string(ARMED).is_ok_and(|armed| armed.trim() == name) && std::fs::remove_file(ARMED).is_ok() {
        // SAFETY: has no preconditions. SIGKILL leaves no time for anything else.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

/// Nothing.
#[cfg(not(feature = "crash-points"))]
pub const fn point(_: &str) {}
