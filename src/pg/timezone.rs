//! Ticks of cron expressions in the time zones of the server.
//!
//! Limitations: a time zone is read from its file at each use. The file is small, and in the cache of the system.

use jiff::tz::TimeZone;
use pgrx::pg_sys;
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use xdb_engine::{Cron, Timestamp, UnknownName};

/// The first tick after a moment: see [`xdb_protocol::next_tick`].
pub fn next_tick(cron: &Cron, after: Timestamp) -> Result<Timestamp, UnknownName> {
    xdb_protocol::next_tick(cron, after, named)
}

/// The time zone of this name, if `pg_timezone_names` has it. Zones with leap seconds are not among them.
fn named(name: &str) -> Option<TimeZone> {
    let is_canonical = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if !is_canonical || name.starts_with("right/") {
        return None;
    }
    TimeZone::tzif(name, &std::fs::read(directory().join(name)).ok()?).ok()
}

/// Where the server's files are: its own, or those of the system if it was built to use these.
fn directory() -> PathBuf {
    let mut share = [0 as c_char; pg_sys::MAXPGPATH as usize];
    // SAFETY: `my_exec_path` is a C string from the start of the server on, and the buffer has the size that the function
    // asks for. It writes a C string.
    let share = unsafe {
        pg_sys::get_share_path((&raw const pg_sys::my_exec_path).cast(), share.as_mut_ptr());
        CStr::from_ptr(share.as_ptr())
    };
    let own = Path::new(&*share.to_string_lossy()).join("timezone");
    if own.is_dir() { own } else { PathBuf::from("/usr/share/zoneinfo") }
}
