//! Reads settings from the catalogs:
//! * custom parameters that `ALTER ROLE … SET` and `ALTER DATABASE … SET` define. Their names have a dot, and they are
//!   not this extension's;
//! * settings that decide what statements mean, as the server and the database define them.

use super::table::statements;
use crate::pg::catch::{PgError, Result};
use crate::pg::identity::Setting;
use crate::pg::process;
use crate::pg::settings::MEANINGS;
use crate::pg::spi::Spi;
use pgrx::pg_sys;
use std::ffi::CString;

statements! {
    // Settings of the role that the engine logs in as apply in the engine's session, and must not reach other roles.
    // For those roles they are empty, unless another setting applies.
    OF_ROLE = format!(
        "SELECT DISTINCT ON (lower(c.name)) c.name, CASE WHEN c.is_the_engines THEN '' ELSE c.value END AS value FROM ( \
            SELECT substr(u.setting, 1, strpos(u.setting, '=') - 1) AS name, \
                substr(u.setting, strpos(u.setting, '=') + 1) AS value, \
                s.setrole <> $1 AND s.setrole = {engine} AS is_the_engines, s.setrole, s.setdatabase \
            FROM pg_catalog.pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS u (setting) \
            WHERE s.setdatabase IN (0, $2) AND s.setrole IN (0, {engine}, $1)) AS c \
        WHERE strpos(c.name, '.') > 0 AND lower(c.name) NOT LIKE 'xdb.%' \
        ORDER BY lower(c.name), c.is_the_engines, c.setrole <> 0 DESC, c.setdatabase <> 0 DESC",
        engine = pg_sys::BOOTSTRAP_SUPERUSERID
    ) => fn of_role(role: pg_sys::Oid, database: pg_sys::Oid) -> Vec<(String, String)>;
    // As for a new session whose role and client set nothing. The server's command line is not considered.
    MEANING = format!(
        "SELECT s.name, COALESCE( \
            (SELECT substr(u.setting, strpos(u.setting, '=') + 1) \
                FROM pg_catalog.pg_db_role_setting d CROSS JOIN unnest(d.setconfig) AS u (setting) \
                WHERE d.setrole = 0 AND d.setdatabase IN (0, $1) AND starts_with(u.setting, s.name || '=') \
                ORDER BY d.setdatabase DESC LIMIT 1), \
            (SELECT f.setting FROM pg_catalog.pg_file_settings f WHERE lower(f.name) = lower(s.name) AND f.applied LIMIT 1), \
            s.boot_val, '') AS value \
        FROM pg_catalog.pg_settings s WHERE s.name IN ('{names}')",
        names = MEANINGS.join("', '")
    ) => fn meanings(database: pg_sys::Oid) -> Vec<(String, String)>;
}

/// The settings that decide what statements mean, as the server and the database define them.
pub fn configured(spi: &Spi) -> Result<Vec<Setting>> {
    settings(meanings(spi, process::database())?)
}

/// The custom settings of a new session of this role in this database. If there are several for one parameter,
/// Postgres' precedence holds. First: the role in the database. Then the role, then the database, then all.
pub fn custom_settings(spi: &Spi, role: pg_sys::Oid) -> Result<Vec<Setting>> {
    settings(of_role(spi, role, process::database())?)
}

fn settings(found: Vec<(String, String)>) -> Result<Vec<Setting>> {
    let text = |text| CString::new(text).map_err(|_| PgError::internal("a setting holds a zero byte"));
    found.into_iter().map(|(name, value)| Ok((text(name)?, text(value)?))).collect()
}
