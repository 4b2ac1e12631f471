//! Types as SQL names them.

use super::catch::{Result, catch};
use pgrx::pg_sys;
use std::ffi::{CStr, c_char};

mod raw {
    use pgrx::pg_sys;
    use std::ffi::c_char;
    unsafe extern "C-unwind" {
        pub fn format_type_extended(oid: pg_sys::Oid, modifier: i32, flags: u16) -> *mut c_char;
        pub fn getBaseTypeAndTypmod(oid: pg_sys::Oid, modifier: *mut i32) -> pg_sys::Oid;
    }
}

/// The modifier of a type without one.
pub const NO_MODIFIER: i32 = -1;

/// A column's type: its oid and its modifier (a length, a precision).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type {
    pub oid: pg_sys::Oid,
    pub modifier: i32,
}

impl Type {
    /// The name as SQL, with its schema, so that no `search_path` makes another type of it.
    pub fn name(self) -> Result<String> {
        let flags = pg_sys::FORMAT_TYPE_TYPEMOD_GIVEN | pg_sys::FORMAT_TYPE_FORCE_QUALIFY;
        // SAFETY: a raw call; the text is copied.
        unsafe {
            let text = catch(|| raw::format_type_extended(self.oid, self.modifier, flags as u16))?;
            let name = CStr::from_ptr(text.cast::<c_char>()).to_string_lossy().into_owned();
            pg_sys::pfree(text.cast());
            Ok(name)
        }
    }

    /// What a domain is made of; any other type itself.
    pub fn base(self) -> Result<Self> {
        let mut modifier = self.modifier;
        let pointer = &raw mut modifier;
        // SAFETY: a raw call that writes the modifier.
        let oid = unsafe { catch(|| raw::getBaseTypeAndTypmod(self.oid, pointer))? };
        Ok(Self { oid, modifier })
    }

    pub fn without_modifier(self) -> Self {
        Self { modifier: NO_MODIFIER, ..self }
    }

    /// Whether a cast to this type rounds, as storing a value does. A cast to any other type with a modifier may cut
    /// what storing would refuse.
    pub fn rounds(self) -> bool {
        const ROUNDING: [pg_sys::Oid; 6] = [
            pg_sys::NUMERICOID,
            pg_sys::TIMESTAMPOID,
            pg_sys::TIMESTAMPTZOID,
            pg_sys::TIMEOID,
            pg_sys::TIMETZOID,
            pg_sys::INTERVALOID,
        ];
        ROUNDING.contains(&self.oid)
    }
}
