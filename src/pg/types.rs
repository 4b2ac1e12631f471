//! Types, and their names in SQL.

use super::raw::text;
use pgrx::pg_sys;

/// The modifier of a type without one.
pub const NO_MODIFIER: i32 = -1;

/// A column's type: its oid and its modifier (a length, a precision).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type {
    pub oid: pg_sys::Oid,
    pub modifier: i32,
}

impl Type {
    /// The name in SQL with its schema, so that it means the same type under each `search_path`.
    pub fn name(self) -> String {
        let flags = pg_sys::FORMAT_TYPE_TYPEMOD_GIVEN | pg_sys::FORMAT_TYPE_FORCE_QUALIFY;
        // SAFETY: the text is copied.
        unsafe {
            let given = pg_sys::format_type_extended(self.oid, self.modifier, flags as u16);
            let name = text(given).unwrap_or_default();
            pg_sys::pfree(given.cast());
            name
        }
    }

    /// The base type of a domain; any other type itself.
    pub fn base(self) -> Self {
        let mut modifier = self.modifier;
        // SAFETY: a look-up in the catalog that writes the modifier.
        let oid = unsafe { pg_sys::getBaseTypeAndTypmod(self.oid, &raw mut modifier) };
        Self { oid, modifier }
    }

    /// Whether the type came with an extension, or was created by a user.
    pub fn is_user_defined(self) -> bool {
        self.oid.to_u32() >= pg_sys::FirstNormalObjectId
    }

    pub fn without_modifier(self) -> Self {
        Self { modifier: NO_MODIFIER, ..self }
    }

    /// Whether a cast to this type rounds, as storing a value does. A cast to another type with a modifier may cut a
    /// value that storing would refuse.
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
