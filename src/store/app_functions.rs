//! Functions of the users that merge inputs: what they are by the catalog, and the SQL that calls them.

use super::catalog::quote;
use super::table::statements;
use crate::error;
use crate::pg::catch::Result;
use crate::pg::param::{Jsonb, value};
use crate::pg::spi::Spi;
use xdb_engine::Json;

statements! {
    // By its name and argument types: what is found is called under the name that it has there.
    FIND = "SELECT n.nspname::text AS schema, p.proname::text AS name, \
            p.prokind = 'f' AND NOT p.proretset AND p.prorettype = 'pg_catalog.jsonb'::pg_catalog.regtype AS fits \
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
        WHERE p.oid = pg_catalog.to_regprocedure($1)";
}

/// What a function makes of two inputs, as whoever is the current user. Outer None: it does not want them merged.
pub fn merge(spi: &Spi, function: &str, pending: Option<&Json>, new: Option<&Json>) -> Result<Option<Json>> {
    let signature = format!("{function}(pg_catalog.jsonb, pg_catalog.jsonb)");
    let found = spi.first(&FIND, &[value(signature.as_str())], |row| {
        Ok((row.get::<String>("schema")?, row.get::<String>("name")?, row.get::<bool>("fits")?))
    })?;
    let refused = |what: String| Err(error::invalid_argument("options.merge.input", what));
    let (schema, name) = match found {
        Some((schema, name, true)) => (schema, name),
        Some(_) => return refused(format!("{function}(jsonb, jsonb) is no function that returns one jsonb")),
        None => return refused(format!("there is no function {function}(jsonb, jsonb)")),
    };
    let sql = format!("SELECT {}.{}($1::jsonb, $2::jsonb)::text AS merged", quote(&schema), quote(&name));
    let params = [value(pending.map(Jsonb::from)), value(new.map(Jsonb::from))];
    let merged = spi.on_users_tables().first(sql.as_str(), &params, |row| row.get::<Option<String>>("merged"))?;
    Ok(merged.flatten().map(Json::from_trusted))
}
