//! Which versions of the schema the SQL of this library works with.
//!
//! A server gets a new library when it is restarted, and each of its databases the schema that belongs to it when somebody
//! runs `ALTER EXTENSION xdb UPDATE` there. In between, the library works with the schema of an older release, or everything
//! in that database waits and says so.

use crate::error;
use crate::pg::catch::Result;
use crate::pg::extension;
use crate::pg::spi::Statement;

/// The version of this library, and of the schema that it was released with.
pub const OWN: &str = env!("CARGO_PKG_VERSION");

/// Older versions that the library works with as well.
const OLDER: &[&str] = &["0.1.0", "0.2.0"];

/// What to say about a schema that this library doesn't work with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub schema: String,
}

impl Mismatch {
    pub fn of(schema: &str) -> Option<Self> {
        (schema != OWN && !OLDER.contains(&schema)).then(|| Self { schema: schema.to_owned() })
    }

    pub fn reason(&self) -> String {
        format!("the server runs version {OWN} of xdb, which does not work with version {} of its schema", self.schema)
    }

    pub fn remedy(&self) -> String {
        if is_newer(&self.schema) {
            format!("Install version {} of xdb, or a later one, and restart the server.", self.schema)
        } else {
            "Run ALTER EXTENSION xdb UPDATE in this database.".to_owned()
        }
    }
}

/// Whether a version is later than that of this library. Parts that are no numbers count as zero.
fn is_newer(version: &str) -> bool {
    let parts = |version: &str| version.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u64>>();
    parts(version) > parts(OWN)
}

/// What is wrong with the schema of this database, if anything is.
pub fn mismatch() -> Option<Mismatch> {
    extension::with_version(Mismatch::of)
}

/// Whether the schema is that of this library. An older one has no table of what is slow: there nothing is.
pub fn is_own() -> bool {
    extension::with_version(|schema| schema == OWN)
}

/// Refuses an option that a schema of an older release has no room for.
pub fn need_own(option: &str) -> Result<()> {
    match is_own() {
        true => Ok(()),
        false => Err(error::invalid_argument(option, "it needs ALTER EXTENSION xdb UPDATE in this database")),
    }
}

/// The statement for the schema of this library, or for an older one.
pub(super) fn of_schema(own: &'static Statement, older: &'static Statement) -> &'static Statement {
    if is_own() { own } else { older }
}

/// Refuses to work with a schema that this library doesn't know.
pub fn check() -> Result<()> {
    match mismatch() {
        None => Ok(()),
        Some(mismatch) => Err(error::other_schema(mismatch.reason(), mismatch.remedy())),
    }
}
