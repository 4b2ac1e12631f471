//! Secrets that sign the calls to workers: the table `worker_secret`.
//!
//! A worker has no secret, one, or two during a change of secrets. With two, each call has both signatures. The table
//! has a secret itself, or the name of its source. If any secret of a worker can't be read, its calls are not made. So
//! no call ever has fewer signatures than its worker expects.

use super::registry::WorkerId;
use super::table::{insert, run, statements, table};
use crate::guc;
use crate::pg::catch::{PgError, Result};
use crate::pg::param::value;
use crate::pg::secret_sources;
use crate::pg::spi::{Row, Spi};
use std::collections::HashMap;
use std::sync::Arc;

table! {
    /// One secret of a worker.
    pub struct SecretRow<'a> in "worker_secret" {
        key { worker_id: WorkerId, position: i16 }
        other { source: &'a str, value: &'a str }
    }
}

statements! {
    DELETE = "DELETE FROM xdb.worker_secret WHERE worker_id = $1" => pub(super) fn delete(worker: WorkerId) -> ();
    INSERT = insert::<SecretRow>();
    OF_WORKER = format!("SELECT {COLUMNS} FROM xdb.worker w WHERE w.name = $1");
}

/// The secrets of the worker `w`: how many it should have, and the ones in the table.
pub(super) const COLUMNS: &str = "w.secrets, \
    ARRAY(SELECT s.source FROM xdb.worker_secret s WHERE s.worker_id = w.worker_id ORDER BY s.position) AS sources, \
    ARRAY(SELECT s.value FROM xdb.worker_secret s WHERE s.worker_id = w.worker_id ORDER BY s.position) AS secret_values";

/// A secret, or its source.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Secret {
    Literal(String),
    /// A variable of the server's environment.
    Environment(String),
    /// A file in `xdb.secrets_directory`.
    File(String),
}

/// The secrets that sign the calls to a worker: all of them, or why they can't be used.
pub type Signing = std::result::Result<Arc<[String]>, Arc<str>>;

const ENVIRONMENT: &str = "env";
const FILE: &str = "file";
const LITERAL: &str = "literal";

/// The longest name in usual file systems.
const LONGEST_NAME: usize = 255;

impl Secret {
    /// Parses the text of a registration: `env:NAME`, `file:NAME`, or the secret itself.
    pub fn parse(text: &str) -> std::result::Result<Self, &'static str> {
        let length = 1..=LONGEST_NAME;
        match text.split_once(':') {
            Some((ENVIRONMENT, name)) => {
                let is_name = name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
                match is_name && length.contains(&name.len()) {
                    true => Ok(Self::Environment(name.to_owned())),
                    false => Err("\"env:\" must be followed by the name of an environment variable"),
                }
            }
            Some((FILE, name)) => {
                // Excludes the directory itself, its parent, and hidden files.
                let is_name = !name.starts_with('.') && !name.contains(['/', '\0']);
                match is_name && length.contains(&name.len()) {
                    true => Ok(Self::File(name.to_owned())),
                    false => Err("\"file:\" must be followed by the name of a file, without a directory"),
                }
            }
            _ => Ok(Self::Literal(text.to_owned())),
        }
    }

    /// Whether the secret is in the server's environment or in a file.
    pub fn is_reference(&self) -> bool {
        !matches!(self, Self::Literal(_))
    }

    /// The secret itself, or why it can't be read.
    pub fn read(&self) -> std::result::Result<String, String> {
        match self {
            Self::Literal(text) => Ok(text.clone()),
            Self::Environment(name) => secret_sources::of_environment(name),
            Self::File(name) => secret_sources::of_file(&guc::text(&guc::SECRETS_DIRECTORY), name),
        }
    }

    fn stored(source: &str, value: String) -> Result<Self> {
        match source {
            LITERAL => Ok(Self::Literal(value)),
            ENVIRONMENT => Ok(Self::Environment(value)),
            FILE => Ok(Self::File(value)),
            _ => Err(PgError::internal("a secret has an unknown source")),
        }
    }

    fn as_row(&self, worker_id: WorkerId, position: i16) -> SecretRow<'_> {
        let (source, value) = match self {
            Self::Literal(text) => (LITERAL, text),
            Self::Environment(name) => (ENVIRONMENT, name),
            Self::File(name) => (FILE, name),
        };
        SecretRow { worker_id, position, source, value }
    }
}

/// Reads secrets, each once.
#[derive(Default)]
pub(super) struct Reader {
    read: HashMap<Secret, std::result::Result<String, String>>,
    /// Whether any secret comes from outside of the database. Its value may change without a registration.
    pub has_references: bool,
}

impl Reader {
    /// The secrets for calls to the worker of this row.
    pub fn signing(&mut self, row: &Row) -> Result<Signing> {
        let (wanted, secrets) = (row.get::<i16>("secrets")?, stored(row)?);
        self.has_references |= secrets.iter().any(Secret::is_reference);
        if secrets.len() != wanted.max(0) as usize {
            return Ok(Err("the dump that this database was restored from does not have it".into()));
        }
        let read = |secret: Secret| self.read.entry(secret).or_insert_with_key(Secret::read).clone();
        let all: std::result::Result<Vec<_>, _> = secrets.into_iter().map(read).collect();
        Ok(all.map(Into::into).map_err(Into::into))
    }
}

fn stored(row: &Row) -> Result<Vec<Secret>> {
    let (sources, values) = (row.get::<Vec<String>>("sources")?, row.get::<Vec<String>>("secret_values")?);
    sources.iter().zip(values).map(|(source, value)| Secret::stored(source, value)).collect()
}

/// The secrets of the worker with this name.
pub fn of_worker(spi: &Spi, name: &str) -> Result<Vec<Secret>> {
    Ok(spi.first(&OF_WORKER, &[value(name)], stored)?.unwrap_or_default())
}

/// Replaces all secrets of the worker by these.
pub(super) fn put(spi: &Spi, worker: WorkerId, secrets: &[Secret]) -> Result<()> {
    delete(spi, worker)?;
    let rows: Vec<_> = (1..).zip(secrets).map(|(position, secret)| secret.as_row(worker, position)).collect();
    run(spi, &INSERT, &rows)?;
    Ok(())
}
