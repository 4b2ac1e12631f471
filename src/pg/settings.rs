//! Settings of engine processes, which `ALTER ROLE` and `ALTER DATABASE` can't change.
use super::compat::{DEADLY_SETTINGS, MORE_SETTINGS, each_setting};
use pgrx::pg_sys;
use std::ffi::{CStr, CString};

/// Reserves the extension's prefix for its own settings. Call it after all of them are defined.
pub fn reserve_prefix() {
    // SAFETY: the name is a constant.
    unsafe { pg_sys::MarkGUCPrefixReserved(c"xdb".as_ptr()) };
}

/// A whole number, as written in a setting of a role or a database.
pub fn whole_number(text: &str) -> Option<i32> {
    let text = CString::new(text).ok()?;
    let mut number = 0;
    // SAFETY: a C string, and a place to write the number to.
    let is_one = unsafe { pg_sys::parse_int(text.as_ptr(), &raw mut number, 0, std::ptr::null_mut()) };
    is_one.then_some(number)
}

/// Formats in which columns are converted, in the engine and for callers alike.
pub const FORMATS: [(&CStr, &CStr); 9] = [
    (c"TimeZone", c"UTC"),
    // The order counts too: it decides what 01/02/2026 means.
    (c"DateStyle", c"ISO, MDY"),
    (c"IntervalStyle", c"iso_8601"),
    (c"bytea_output", c"hex"),
    (c"extra_float_digits", c"1"),
    (c"xmlbinary", c"base64"),
    (c"xmloption", c"content"),
    (c"lc_monetary", c"C"),
    (c"timezone_abbreviations", c"Default"),
];

/// Settings that decide what an owner's statements mean, find or create. In a client's session they must be as
/// configured in the server or the database, as in the engine. The client may have changed them. The list is complete:
/// a test goes through all settings that a client may change.
pub const MEANINGS: [&str; 15] = [
    "standard_conforming_strings",
    "backslash_quote",
    "transform_null_equals",
    "array_nulls",
    "gin_fuzzy_search_limit",
    "default_text_search_config",
    "lc_numeric",
    "lc_time",
    "default_table_access_method",
    "default_tablespace",
    "default_toast_compression",
    "password_encryption",
    "scram_iterations",
    "createrole_self_grant",
    "restrict_nonsystem_relation_kind",
];

/// Further settings of this kind, with the engine's values, or the defaults. The first one decides how later ones are
/// written.
pub const FIXED_MEANINGS: [(&CStr, &CStr); 7] = [
    (c"quote_all_identifiers", c"off"),
    (c"row_security", c"on"),
    (c"session_replication_role", c"origin"),
    (c"lo_compat_privileges", c"off"),
    (c"plpgsql.check_asserts", c"on"),
    (c"plpgsql.extra_errors", c"none"),
    (c"plpgsql.extra_warnings", c"none"),
];

/// Settings that are pinned before the connection.
const BEFORE_CONNECTION: [(&CStr, &CStr); 10] = [
    (c"role", c"none"),
    (c"exit_on_error", c"off"),
    (c"search_path", c"pg_catalog, pg_temp"),
    (c"zero_damaged_pages", c"false"),
    (c"statement_timeout", c"0"),
    (c"idle_in_transaction_session_timeout", c"0"),
    (c"idle_session_timeout", c"0"),
    (c"default_transaction_isolation", c"read committed"),
    (c"default_transaction_read_only", c"off"),
    (c"default_transaction_deferrable", c"off"),
];

/// Settings that are pinned after connecting. Connecting itself waits as long as any client would, for instance for a
/// statement on the database. A session that has not connected can't block other sessions.
const AFTER_CONNECTION: [(&CStr, &CStr); 5] = [
    (c"lock_timeout", c"50ms"),
    // The engine never searches for deadlocks, so a search never cancels it: its lock_timeout ends a wait first.
    (c"deadlock_timeout", c"10min"),
    (c"jit", c"off"),
    (c"row_security", c"on"),
    (c"session_replication_role", c"origin"),
];

fn set(name: &CStr, value: &CStr) {
    // SAFETY: C strings; the source overrides configuration file, database and role, also after a reload.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}

/// Pins the settings that are needed while connecting.
pub fn pin_before_connection() {
    BEFORE_CONNECTION.iter().chain(MORE_SETTINGS).for_each(|(name, value)| set(name, value));
}

/// Pins the other settings.
pub fn pin_after_connection() {
    AFTER_CONNECTION.iter().chain(&FORMATS).for_each(|(name, value)| set(name, value));
    pin_synchronous_commit();
    forbid_deadly_settings();
}

/// Makes this process refuse a `SET` that would end it with the next error, or after a time. Any role may set these,
/// and a trigger could do so in the process that all roles depend on. A reset after the step would be too late.
fn forbid_deadly_settings() {
    each_setting(|setting| {
        // SAFETY: the name of a setting is a C string.
        if DEADLY_SETTINGS.contains(&unsafe { CStr::from_ptr(setting.name) }) {
            setting.context = pg_sys::GucContext::PGC_SIGHUP;
        }
    });
}

/// An applied answer must stay applied, so `off` is overridden. Waiting for standbys stays the administrator's choice.
/// Call it again after each reload of the configuration.
pub fn pin_synchronous_commit() {
    // SAFETY: reads a setting.
    let off = pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_OFF as i32;
    if unsafe { pg_sys::synchronous_commit } == off {
        set(c"synchronous_commit", c"on");
    }
}
