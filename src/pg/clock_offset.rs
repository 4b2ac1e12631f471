//! The setting `xdb.now` in the server: checked in each process, and effective in all processes at once.
//!
//! Sessions reload settings at different times. With a setting of its own, each session could have a different time for
//! a while. So the value in effect is one number in shared memory. The postmaster writes it when it reads the
//! configuration, before it signals other processes.
use super::function::read_as_interval;
use super::shmem;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, pg_guard, pg_sys};
use std::ffi::{CStr, CString, c_char, c_void};

/// Largest offset in days: far beyond any test, and far from the end of timestamps.
const MOST_DAYS: i64 = 36_500;
const DAY: i64 = 86_400_000_000;

static NOW: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

/// Defines the setting.
pub fn define() {
    // SAFETY: the hooks don't panic, and don't keep their arguments.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            c"xdb.now",
            c"Shifts the clock of processes, for tests.",
            c"An interval such as '3 days' or '-1 hour 30 min' that is added to the real time; empty means none. It moves timers, backoff, process timeouts and start_at of all databases, and retention only backward. Default empty.",
            &NOW,
            GucContext::Sighup,
            GucFlags::default(),
            Some(check),
            Some(assign),
            None,
        );
    }
}

/// Reads a value: empty, or an interval of a fixed length as Postgres reads it. The error says what is wrong.
unsafe fn read(value: *const c_char) -> Result<i64, String> {
    if value.is_null() {
        return Ok(0);
    }
    // SAFETY: a C string, by contract of the caller.
    let text = unsafe { CStr::from_ptr(value) }.to_str().map_err(|_| "it is not UTF-8")?;
    if text.trim().is_empty() {
        return Ok(0);
    }
    let pg_sys::Interval { time, day, month } = read_as_interval(text).map_err(|error| error.message.clone())?;
    match i64::from(day).saturating_mul(DAY).saturating_add(time) {
        _ if month != 0 => Err("months and years have no fixed length: use days".to_owned()),
        offset if offset.saturating_abs() > MOST_DAYS * DAY => Err(format!("it is more than {MOST_DAYS} days")),
        offset => Ok(offset),
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn check(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: the server passes a pointer to the value.
    let Err(why) = (unsafe { read(*value) }) else { return true };
    let detail = CString::new(format!("It can't be read: {why}.")).unwrap_or_default();
    // SAFETY: the server expects the texts in this context, and reads them right after this hook.
    unsafe {
        let keep = |text: &CStr| pg_sys::MemoryContextStrdup(pg_sys::ErrorContext, text.as_ptr());
        pg_sys::GUC_check_errdetail_string = keep(&detail);
        pg_sys::GUC_check_errhint_string =
            keep(c"The value must be empty or an interval such as '3 days' or '-1 hour 30 min'.");
    }
    false
}

#[pg_guard]
unsafe extern "C-unwind" fn assign(value: *const c_char, _extra: *mut c_void) {
    // SAFETY: the check has accepted the value; the flag never changes during the life of a process.
    let (offset, is_postmaster) = unsafe { (read(value).unwrap_or(0), !pg_sys::IsUnderPostmaster) };
    shmem::set_clock_offset(offset, is_postmaster);
}
