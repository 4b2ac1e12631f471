//! Functions of the application: found in the catalog by name, and called by oid. A statement with the name could call
//! another function: an overload with defaults makes a name ambiguous.

use super::catch::{PgError, Result, catch, sqlstate};
use super::identity::current_user;
use super::json::with_text;
use super::raw::{DirectFunctionCall1Coll, jsonb_in, memory_context, palloc0, text};
use super::{compat, memory};
use pgrx::pg_sys;
use std::ffi::{CString, c_char, c_int, c_short};
use std::mem::{size_of, zeroed};

mod raw {
    use pgrx::pg_sys;
    use std::ffi::c_int;
    // Declared here because `catch` needs the functions themselves, not pgrx's wrappers.
    unsafe extern "C-unwind" {
        pub fn LookupFuncName(
            name: *mut pg_sys::List,
            arguments: c_int,
            types: *const pg_sys::Oid,
            missing_ok: bool,
        ) -> pg_sys::Oid;
        pub fn CommandCounterIncrement();
        pub fn GetTransactionSnapshot() -> pg_sys::Snapshot;
        pub fn PushActiveSnapshot(snapshot: pg_sys::Snapshot);
        pub fn fmgr_info(function: pg_sys::Oid, info: *mut pg_sys::FmgrInfo);
        pub fn RunFunctionExecuteHook(function: pg_sys::Oid);
        pub fn pgstat_init_function_usage(
            frame: pg_sys::FunctionCallInfo,
            usage: *mut pg_sys::PgStat_FunctionCallUsage,
        );
        pub fn pgstat_end_function_usage(usage: *mut pg_sys::PgStat_FunctionCallUsage, finalize: bool);
    }
}

const INSUFFICIENT_PRIVILEGE: c_int = sqlstate(b"42501");
const UNDEFINED_FUNCTION: c_int = sqlstate(b"42883");
const WRONG_OBJECT_TYPE: c_int = sqlstate(b"42809");

/// The oid of the function with this number of `jsonb` arguments. The name has its schema and is quoted as in SQL.
/// None: there is no such function.
pub fn of_jsonb(name: &str, arguments: usize) -> Result<Option<u32>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let types = vec![pg_sys::JSONBOID; arguments];
    let list = compat::qualified_name(&name);
    // SAFETY: the types outlive the look-up. It raises an error if the current user may not use the schema.
    let found = unsafe { catch(|| raw::LookupFuncName(list, arguments as c_int, types.as_ptr(), true))? };
    Ok((found != pg_sys::InvalidOid).then(|| found.to_u32()))
}

/// Calls a function found by [`of_jsonb`], as the current user. Arguments and result are texts of `jsonb`. None: the
/// function returned NULL, or it returns `void`.
///
/// The function sees what this transaction has written. After an error the transaction or subtransaction must be
/// aborted.
pub fn call(oid: u32, arguments: &[Option<&str>]) -> Result<Option<String>> {
    let function = pg_sys::Oid::from(oid);
    let returns_json = check(function)?;
    let texts: std::result::Result<Vec<_>, _> =
        arguments.iter().map(|argument| argument.map(CString::new).transpose()).collect();
    let texts = texts.map_err(|_| PgError::internal("an argument of a function holds a NUL character"))?;
    // SAFETY: the function takes this number of jsonb values, and `check` has verified its result type. After an error,
    // the abort releases snapshot and memory.
    unsafe {
        let context = memory_context(pg_sys::CurrentMemoryContext, c"call of a function");
        let before = pg_sys::MemoryContextSwitchTo(context);
        let answer = catch(|| {
            raw::CommandCounterIncrement();
            raw::PushActiveSnapshot(raw::GetTransactionSnapshot());
            invoke(function, &texts)
        });
        pg_sys::MemoryContextSwitchTo(before);
        // A large value may still be in its toast table, and reading it needs the snapshot.
        let text = answer?.filter(|_| returns_json).map(|answer| with_text(answer, memory::owned)).transpose()?;
        pg_sys::PopActiveSnapshot();
        pg_sys::CommandCounterIncrement();
        pg_sys::MemoryContextDelete(context);
        Ok(text)
    }
}

/// Whether a function returns `jsonb`, rather than `void`. Error: the function can't be called, or not by the current
/// user. The function may have been replaced since it was registered or found.
fn check(function: pg_sys::Oid) -> Result<bool> {
    // SAFETY: look-ups in the catalog, raw calls without destructors; the names are read before anything else runs.
    unsafe {
        let schema = catch(|| pg_sys::get_func_namespace(function))?;
        if schema == pg_sys::InvalidOid {
            return Err(PgError::new(UNDEFINED_FUNCTION, "the function was dropped while it was about to be called"));
        }
        let of = |name: *mut c_char| text(name).unwrap_or_default();
        let denied = |what: &str| Err(PgError::new(INSUFFICIENT_PRIVILEGE, format!("permission denied for {what}")));
        // Before anything that takes a lock: a function dropped meanwhile is not looked up again.
        let is_plain =
            pg_sys::get_func_prokind(function) as u8 == pg_sys::PROKIND_FUNCTION && !pg_sys::get_func_retset(function);
        let returns = pg_sys::get_func_rettype(function);
        if !compat::may_use_schema(schema, current_user()) {
            return denied(&format!("schema {}", of(pg_sys::get_namespace_name(schema))));
        }
        if !compat::may_execute(function, current_user()) {
            return denied(&format!("function {}", of(pg_sys::get_func_name(function))));
        }
        match returns {
            pg_sys::JSONBOID if is_plain => Ok(true),
            pg_sys::VOIDOID if is_plain => Ok(false),
            _ => {
                let name = of(pg_sys::format_procedure(function));
                let what = format!("{name} is not a plain function that returns jsonb or void");
                Err(PgError::new(WRONG_OBJECT_TYPE, what))
            }
        }
    }
}

/// The function's result, called as the server calls functions. None: NULL.
///
/// # Safety
/// Call it in [`catch`]. The function must take this number of `jsonb` values.
unsafe fn invoke(function: pg_sys::Oid, arguments: &[Option<CString>]) -> Option<pg_sys::Datum> {
    // SAFETY: as the caller says. The frame has room for the arguments after it.
    unsafe {
        let info: *mut pg_sys::FmgrInfo = palloc0(size_of::<pg_sys::FmgrInfo>()).cast();
        let size = size_of::<pg_sys::FunctionCallInfoBaseData>() + size_of::<pg_sys::NullableDatum>() * arguments.len();
        let frame: pg_sys::FunctionCallInfo = palloc0(size).cast();
        raw::fmgr_info(function, info);
        (*frame).flinfo = info;
        (*frame).nargs = arguments.len() as c_short;
        let places = (*frame).args.as_mut_slice(arguments.len());
        for (place, argument) in places.iter_mut().zip(arguments) {
            match argument {
                Some(text) => {
                    let text = pg_sys::Datum::from(text.as_ptr());
                    place.value = DirectFunctionCall1Coll(jsonb_in, pg_sys::InvalidOid, text);
                }
                None if (*info).fn_strict => return None,
                None => place.isnull = true,
            }
        }
        let hook = pg_sys::object_access_hook;
        if hook.is_some() {
            raw::RunFunctionExecuteHook(function);
        }
        let mut usage: pg_sys::PgStat_FunctionCallUsage = zeroed();
        raw::pgstat_init_function_usage(frame, &raw mut usage);
        let answer = (*info).fn_addr.map(|body| body(frame));
        raw::pgstat_end_function_usage(&raw mut usage, true);
        answer.filter(|_| !(*frame).isnull)
    }
}
