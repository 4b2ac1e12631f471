//! The application's functions. Starts and answers call them, some answer calls in place of workers, and some merge
//! inputs.
//!
//! A definition has their names, not oids. Each call looks the function up by its name and the types of its arguments.
//! So a function that was dropped and created again, or restored from a dump, is found.
//!
//! The callers of this file have switched to the right role (see `pg::identity`), and decide what an error means. The
//! `search_path` is pinned for all of these functions, in every session. So code of one role never finds objects that
//! another role has put under the same names.
//!
//! Limitations: a function that was renamed is not found until its type is registered again.

use super::children::Starts;
use super::table::statements;
use crate::error;
use crate::pg::catch::{PgError, Result, sqlstate};
use crate::pg::identity::with_pinned_path;
use crate::pg::routine;
use crate::pg::spi::Spi;
use crate::pg::subxact::now_in_table;
use pgrx::pg_sys;
use xdb_engine::{Definition, FunctionCall, Json};

statements! {
    // Quoted where needed, so that SQL can contain the name.
    NAMED = "SELECT pg_catalog.cardinality(a.parts) AS parts, \
            pg_catalog.quote_ident(a.parts[1]) || '.' || pg_catalog.quote_ident(a.parts[2]) AS name \
        FROM (SELECT pg_catalog.parse_ident($1) AS parts) AS a"
        => fn parts(name: &str) -> Option<(i32, Option<String>)>;
    KIND = "SELECT p.prokind = 'f' AND NOT p.proretset AS is_plain, \
            p.prorettype = 'jsonb'::pg_catalog.regtype OR $3 AND p.prorettype = 'void'::pg_catalog.regtype AS fits, \
            pg_catalog.starts_with(n.nspname::text, 'pg_temp') AS is_temporary, pg_catalog.has_function_privilege($2::oid, p.oid, 'EXECUTE') \
                AND pg_catalog.has_schema_privilege($2::oid, n.oid, 'USAGE') AS may_execute \
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE p.oid = $1::oid"
        => fn kind(function: pg_sys::Oid, role: pg_sys::Oid, may_give_nothing: bool) -> Option<(bool, bool, bool, bool)>;
    // Found by its name and argument types.
    MERGING = "SELECT p.oid, p.prokind = 'f' AND NOT p.proretset AND p.prorettype = 'pg_catalog.jsonb'::pg_catalog.regtype AS fits, \
            pg_catalog.has_function_privilege(p.oid, 'EXECUTE') AS may_execute \
        FROM pg_catalog.pg_proc p WHERE p.oid = pg_catalog.to_regprocedure($1)"
        => fn merging(signature: &str) -> Option<(pg_sys::Oid, bool, bool)>;
}

/// One call of a function.
#[derive(Debug)]
struct Called {
    oid: u32,
    /// JSON text.
    argument: String,
}

/// What an answer or a start runs besides its writes: children to start, and then functions to call, in their order.
/// `context` is JSON text about the caller, the second argument of each function.
#[derive(Debug, Default)]
pub struct FunctionCalls {
    starts: Option<Starts>,
    called: Vec<Called>,
    context: String,
}

impl FunctionCalls {
    /// Looks the functions up, with the engine's rights. Asks for `context` only if there are any functions.
    pub fn look_up(
        definition: &Definition,
        calls: &[FunctionCall],
        context: impl FnOnce() -> Result<String>,
    ) -> Result<Self> {
        if calls.is_empty() {
            return Ok(Self::default());
        }
        let called = calls.iter().map(|call| {
            // The engine accepted the call only because the definition lists the function.
            let listed = definition.functions.get(&call.function);
            let name = listed.ok_or_else(|| PgError::internal("a function that is not listed is called"))?;
            let oid = find(name, 2)?;
            let argument = call.argument.as_ref().map_or("null", |argument| argument.as_str()).to_owned();
            Ok(Called { oid, argument })
        });
        Ok(Self { starts: None, called: called.collect::<Result<_>>()?, context: context()? })
    }

    /// These calls, after the starts of children.
    pub fn after(self, starts: Option<Starts>) -> Self {
        Self { starts, ..self }
    }

    /// The functions, and what stands for the tables of the children.
    pub fn objects(&self) -> Vec<u32> {
        let tables = self.starts.as_ref().map(|starts| starts.tables);
        tables.into_iter().chain(self.called.iter().map(|function| function.oid)).collect()
    }

    /// Starts the children and calls the functions. Their results are ignored.
    pub fn run(&self) -> Result<()> {
        self.starts.as_ref().map_or(Ok(()), Starts::run)?;
        for Called { oid, argument } in &self.called {
            now_in_table(*oid);
            with_pinned_path(|| routine::call(*oid, &[Some(argument), Some(&self.context)]))?;
        }
        Ok(())
    }
}

/// The answer of a function to a request, as the text of its `jsonb`.
pub fn answer(oid: u32, request: &str) -> Result<Option<String>> {
    now_in_table(oid);
    with_pinned_path(|| routine::call(oid, &[Some(request)]))
}

/// The oid of a function named in a definition. If it does not exist, gives the same error as Postgres.
pub fn find(name: &str, arguments: usize) -> Result<u32> {
    routine::of_jsonb(name, arguments)?.ok_or_else(|| {
        let types = vec!["jsonb"; arguments].join(", ");
        PgError::new(sqlstate(b"42883"), format!("function {name}({types}) does not exist"))
    })
}

/// What a function named in a definition must return.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ReturnType {
    Json,
    JsonOrNothing,
}

/// The name of a function as definitions store it: with its schema, quoted. An error if the text is not such a name.
/// Does not check that the function exists.
pub fn named(spi: &Spi, text: &str) -> Result<String> {
    let wrong = |what: String| error::invalid_definition(format!("function {text}: {what}"));
    let found = parts(spi, text)
        .map_err(|error| if error.code == NOT_A_NAME { wrong(error.message.clone()) } else { error })?;
    match found {
        Some((2, Some(name))) => Ok(name),
        Some((1, _)) => Err(wrong("its name needs a schema: no search_path is used".to_owned())),
        _ => Err(wrong("it is not a name with a schema".to_owned())),
    }
}

/// The SQLSTATEs of Postgres for a text that is not a valid name.
const INVALID_NAME: i32 = sqlstate(b"42602");
const SYNTAX_ERROR: i32 = sqlstate(b"42601");

/// The SQLSTATE of `parse_ident` for a text that is not a valid name.
const NOT_A_NAME: i32 = sqlstate(b"22023");

/// Checks that the function has the right arguments and result, and that the role may call it. Processes of other roles
/// would call the function for the role that registers it.
pub fn check(spi: &Spi, role: pg_sys::Oid, name: &str, arguments: usize, gives: ReturnType) -> Result<()> {
    let wrong = |what: &str| Err(error::invalid_definition(format!("function {name}: {what}")));
    let Some(oid) = routine::of_jsonb(name, arguments)? else {
        let types = vec!["jsonb"; arguments].join(", ");
        return wrong(&format!("there is no function {name}({types})"));
    };
    match kind(spi, oid.into(), role, gives == ReturnType::JsonOrNothing)? {
        Some((_, _, true, _)) => wrong("it is temporary: the engine can't see it"),
        Some((false, ..)) => wrong("it is not a plain function that returns one value"),
        Some((_, false, ..)) if gives == ReturnType::Json => wrong("it must return jsonb"),
        Some((_, false, ..)) => wrong("it must return jsonb or void"),
        Some((_, _, _, false)) => Err(error::may_not_name(name)),
        Some(_) => Ok(()),
        None => wrong("it no longer exists"),
    }
}

/// A function that merges two inputs into one.
pub struct MergeFunction {
    oid: u32,
}

impl MergeFunction {
    /// Looks the function up, with the current user's rights.
    pub fn find(spi: &Spi, function: &str) -> Result<Self> {
        let signature = format!("{function}(pg_catalog.jsonb, pg_catalog.jsonb)");
        let refused = |what: String| Err(error::invalid_argument("options.merge.input", what));
        let found = match merging(spi, &signature) {
            // What can't be a name. From 16 on, the server finds no function then.
            Err(error) if [INVALID_NAME, SYNTAX_ERROR].contains(&error.code) => None,
            found => found?,
        };
        match found {
            None => refused(format!("there is no function {function}(jsonb, jsonb)")),
            Some((_, false, _)) => {
                refused(format!("{function}(jsonb, jsonb) is not a function that returns one jsonb"))
            }
            Some((_, _, false)) => Err(error::may_not_call(function)),
            Some((oid, ..)) => Ok(Self { oid: oid.to_u32() }),
        }
    }

    /// The merged input. The function runs as the current user. The outer None means that the function refuses to
    /// merge.
    pub fn call(&self, pending: Option<&Json>, new: Option<&Json>) -> Result<Option<Json>> {
        let merged = routine::call(self.oid, &[pending.map(Json::as_str), new.map(Json::as_str)])?;
        Ok(merged.map(Json::from_trusted))
    }
}
