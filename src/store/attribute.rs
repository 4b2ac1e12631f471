//! Local attributes: the table `local_attribute`.

use super::table::{Read, insert, run, select, statements, table};
use crate::pg::catch::Result;
use crate::pg::param::{Jsonb, array};
use crate::pg::spi::Spi;
use std::collections::{BTreeMap, HashMap};
use xdb_engine::{ExecutionId, Json};

table! {
    /// A local attribute.
    pub struct LocalAttribute<'a> in "local_attribute" {
        key { execution_id: ExecutionId, key: &'a str }
        compared { value: Jsonb<'a> }
    }
}

statements! {
    WRITE = format!("{} ON CONFLICT (execution_id, key) DO UPDATE SET value = excluded.value", insert::<LocalAttribute>());
    OF_EXECUTIONS = format!("SELECT {} FROM xdb.local_attribute a WHERE a.execution_id = ANY ($1)",
        select::<LocalAttribute>("a"));
}

pub(super) fn write(spi: &Spi, attributes: &[LocalAttribute]) -> Result<()> {
    run(spi, &WRITE, attributes)?;
    Ok(())
}

/// Local attributes of these executions, by key, as JSON text.
pub fn local_attributes(spi: &Spi, ids: &[ExecutionId]) -> Result<HashMap<ExecutionId, BTreeMap<String, String>>> {
    let mut attributes: HashMap<ExecutionId, BTreeMap<String, String>> = HashMap::new();
    if ids.is_empty() {
        return Ok(attributes);
    }
    let rows = spi.rows(&OF_EXECUTIONS, &[array(ids)], |row| {
        let LocalAttribute { execution_id, key, value } = LocalAttribute::read(row)?;
        Ok((execution_id, key.to_owned(), value.0.into_owned()))
    })?;
    for (id, key, value) in rows {
        attributes.entry(id).or_default().insert(key, value);
    }
    Ok(attributes)
}

/// Those of one execution, as the active snapshot shows them.
pub(super) fn all(spi: &Spi, id: ExecutionId) -> Result<BTreeMap<String, Json>> {
    let rows = spi.rows(&OF_EXECUTIONS, &[array([id])], |row| {
        let LocalAttribute { key, value, .. } = LocalAttribute::read(row)?;
        Ok((key.to_owned(), value.to_json()))
    })?;
    Ok(rows.into_iter().collect())
}
