//! The schemas that this library works with: the schemas of its own minor version. A patch version (0.N.x) never
//! changes the schema.
//!
//! A server gets a new library when it is restarted. Each database gets the library's schema when it updates the
//! extension: `ALTER EXTENSION xdb UPDATE`. In between, the engine waits in that database, functions raise `XD022`, and
//! `xdb.status()` gives the reason. Nothing is lost.

use crate::error;
use crate::pg::catch::Result;
use crate::pg::extension;
use std::fmt;

/// The version of this library.
pub const OWN: &str = env!("CARGO_PKG_VERSION");

/// The schema of a database has another minor version than this library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    schema: String,
}

impl Mismatch {
    pub fn of(schema: &str) -> Option<Self> {
        (minor(schema) != minor(OWN)).then(|| Self { schema: schema.to_owned() })
    }

    fn reason(&self) -> String {
        format!("the server runs version {OWN} of xdb, which can't run version {} of its schema", self.schema)
    }

    fn remedy(&self) -> String {
        if minor(&self.schema) > minor(OWN) {
            format!("Install version {} of xdb and restart the server.", self.schema)
        } else {
            "Run ALTER EXTENSION xdb UPDATE in this database.".to_owned()
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {}", self.reason(), self.remedy())
    }
}

/// The major and the minor version. A part that is not a number counts as zero.
fn minor(version: &str) -> Vec<u64> {
    version.split('.').take(2).map(|part| part.parse().unwrap_or(0)).collect()
}

/// Why the schema of this database does not fit, or None.
pub fn mismatch() -> Option<Mismatch> {
    extension::with_version(Mismatch::of)
}

/// An error if the schema has another minor version.
pub fn check() -> Result<()> {
    match mismatch() {
        None => Ok(()),
        Some(mismatch) => Err(error::other_schema(mismatch.reason(), mismatch.remedy())),
    }
}
