//! The parts of a query or form.

use std::collections::HashMap;

/// The parts of a query or form.
pub type FormFields = HashMap<String, String>;

/// A field, unless it is missing or empty.
pub fn field<'f>(fields: &'f FormFields, name: &str) -> Option<&'f str> {
    fields.get(name).map(String::as_str).filter(|value| !value.is_empty())
}
