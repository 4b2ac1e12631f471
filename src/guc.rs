//! Stands in for the settings while the plumbing is tested.
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::ffi::CString;

pub static ENABLED: GucSetting<bool> = GucSetting::<bool>::new(true);
pub static DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

pub fn register() {
    GucRegistry::define_bool_guc(
        c"xdb.enabled",
        c"",
        c"",
        &ENABLED,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"xdb.databases",
        c"",
        c"",
        &DATABASES,
        GucContext::Sighup,
        GucFlags::default(),
    );
}
