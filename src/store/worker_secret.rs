//! Secrets that sign the calls to workers: the table `worker_secret`.
//!
//! A worker has none, one, or two while one takes the place of the other: then each call carries the signatures of both. A secret is
//! in the table, or the table says where it is. Where one that is there is not to be had, calls to its worker are not made: never is
//! one signed with less than its worker expects.

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

/// The secrets of the worker `w`: how many there are to be, and those that are there.
pub(super) const COLUMNS: &str = "w.secrets, \
    ARRAY(SELECT s.source FROM xdb.worker_secret s WHERE s.worker_id = w.worker_id ORDER BY s.position) AS sources, \
    ARRAY(SELECT s.value FROM xdb.worker_secret s WHERE s.worker_id = w.worker_id ORDER BY s.position) AS secret_values";

/// A secret, or where it is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Secret {
    Literal(String),
    /// A variable of the server's environment.
    Environment(String),
    /// A file below `xdb.secrets_directory`.
    File(String),
}

/// What calls to a worker are signed with: all of its secrets, or why they can't be signed.
pub type Signing = std::result::Result<Arc<[String]>, Arc<str>>;

const ENVIRONMENT: &str = "env";
const FILE: &str = "file";
const LITERAL: &str = "literal";

/// A name of a file system has no more.
const LONGEST_NAME: usize = 255;

impl Secret {
    /// As a registration has it: `env:NAME`, `file:NAME`, and everything else is the secret itself.
    pub fn parse(text: &str) -> std::result::Result<Self, &'static str> {
        let length = 1..=LONGEST_NAME;
        match text.split_once(':') {
            Some((ENVIRONMENT, name)) => {
                let is_name = name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
                match is_name && length.contains(&name.len()) {
                    true => Ok(Self::Environment(name.to_owned())),
                    false => Err("\"env:\" has to be followed by the name of an environment variable"),
                }
            }
            Some((FILE, name)) => {
                // Neither the directory itself, nor its parent, nor what is hidden.
                let is_name = !name.starts_with('.') && !name.contains(['/', '\0']);
                match is_name && length.contains(&name.len()) {
                    true => Ok(Self::File(name.to_owned())),
                    false => Err("\"file:\" has to be followed by the name of a file, without a directory"),
                }
            }
            _ => Ok(Self::Literal(text.to_owned())),
        }
    }

    /// The text is in the server, and not here.
    pub fn is_reference(&self) -> bool {
        !matches!(self, Self::Literal(_))
    }

    /// The secret itself, or why it is not to be had.
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
    /// Some are read from elsewhere: what they are may change with nobody telling.
    pub has_references: bool,
}

impl Reader {
    /// What calls to the worker of this row are signed with.
    pub fn signing(&mut self, row: &Row) -> Result<Signing> {
        let (wanted, secrets) = (row.get::<i16>("secrets")?, stored(row)?);
        self.has_references |= secrets.iter().any(Secret::is_reference);
        if secrets.len() != wanted.max(0) as usize {
            return Ok(Err("it did not come along with the dump that this database was restored from".into()));
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

/// The secrets of the worker of this name.
pub fn of_worker(spi: &Spi, name: &str) -> Result<Vec<Secret>> {
    Ok(spi.first(&OF_WORKER, &[value(name)], stored)?.unwrap_or_default())
}

/// Has these in place of all that the worker has.
pub(super) fn put(spi: &Spi, worker: WorkerId, secrets: &[Secret]) -> Result<()> {
    delete(spi, worker)?;
    let rows: Vec<_> = (1..).zip(secrets).map(|(position, secret)| secret.as_row(worker, position)).collect();
    run(spi, &INSERT, &rows)?;
    Ok(())
}
