//! The setting `xdb.now` in the server: checked in every process, in force everywhere at once.
//!
//! A session reads its settings again when it gets round to it, so settings of their own would let sessions disagree
//! about the time for a while. What counts is therefore one number in shared memory, which the postmaster writes when
//! it reads the configuration, before it tells anybody else to.
use super::function::read_as_interval;
use super::shmem;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, pg_guard, pg_sys};
use std::ffi::{CStr, CString, c_char, c_void};

/// Far beyond any test, and far from where timestamps end.
const MOST_DAYS: i64 = 36_500;
const DAY: i64 = 86_400_000_000;

static NOW: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

/// Defines the setting.
pub fn define() {
    // SAFETY: the hooks neither panic nor keep what they are given.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            c"xdb.now",
            c"Shifts the clock of processes, for tests.",
            c"A distance from the real time such as '3 days' or '-1 hour 30 min'; empty means none. Moves timers, backoff, process timeouts and start_at of all databases, and retention only backward. Default empty.",
            &NOW,
            GucContext::Sighup,
            GucFlags::default(),
            Some(check),
            Some(assign),
            None,
        );
    }
}

/// Reads a value: empty, or an interval of a fixed length as Postgres reads it. What is not text is as wrong as text that means nothing.
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
        _ if month != 0 => Err("months and years have no fixed length: say it in days".to_owned()),
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
    // SAFETY: the server reads the texts, which it expects in this context, right after this hook.
    unsafe {
        let keep = |text: &CStr| pg_sys::MemoryContextStrdup(pg_sys::ErrorContext, text.as_ptr());
        pg_sys::GUC_check_errdetail_string = keep(&detail);
        pg_sys::GUC_check_errhint_string =
            keep(c"It is empty, or a distance from the real time such as '3 days' or '-1 hour 30 min'.");
    }
    false
}

#[pg_guard]
unsafe extern "C-unwind" fn assign(value: *const c_char, _extra: *mut c_void) {
    // SAFETY: a value that the check has accepted; the flag never changes in the life of a process.
    let (offset, is_postmaster) = unsafe { (read(value).unwrap_or(0), !pg_sys::IsUnderPostmaster) };
    shmem::set_clock_offset(offset, is_postmaster);
}
