//! Which role SQL runs as, and with which settings.

use super::catch::{Result, catch};
use super::compat;
use super::extension::EXTENSION;
use super::raw::{DirectFunctionCall1Coll, text};
use super::settings::{FIXED_MEANINGS, FORMATS};
use pgrx::pg_sys;
use std::ffi::{CStr, CString, c_int};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

static IS_ENGINE: AtomicBool = AtomicBool::new(false);

/// Whether this process is an engine process. Then all code here runs inside the engine.
pub fn is_engine() -> bool {
    IS_ENGINE.load(Ordering::Relaxed)
}

/// Marks this process as an engine process.
pub fn begin_engine() {
    IS_ENGINE.store(true, Ordering::Relaxed);
}

pub type Setting = (CString, CString);

const SEARCH_PATH: [(&CStr, &CStr); 1] = [(c"search_path", c"pg_catalog, pg_temp")];

/// Runs `body` as the cluster's bootstrap superuser, with a pinned `search_path`. So a function that an ordinary role
/// has called can use the system tables.
pub fn as_engine<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let superuser = pg_sys::Oid::from(pg_sys::BOOTSTRAP_SUPERUSERID);
    scope(Some((superuser, pg_sys::SECURITY_LOCAL_USERID_CHANGE as c_int)), &SEARCH_PATH, Settings::AllBack, body)
}

/// Runs `body` on the application's tables in a caller's transaction, as the caller. The caller's `search_path` stays,
/// and the formats of values are pinned. Settings made by a trigger stay, but a trigger can't set `role` or
/// `session_authorization`, as in a `SECURITY DEFINER` function.
///
/// If a superuser has become the caller by `SET ROLE`, a trigger must not reach the superuser later. So the trigger is
/// restricted as in a step: it can't make temporary objects, and its settings end with it. Postgres refuses to defer a
/// trigger, which could change its role at the commit. If [`is_restricted`], `body` has constraints checked at once.
pub fn as_caller<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let caller = current_user();
    as_role_of_session(caller, is_lent_by_superuser(caller), body)
}

/// The session's role. In a `SECURITY DEFINER` function this is still the caller's role.
pub fn session_role() -> pg_sys::Oid {
    // SAFETY: a plain accessor.
    unsafe { pg_sys::GetOuterUserId() }
}

/// Runs `body`, which runs code that the session has deferred, as the role that Postgres would use at the commit. That
/// role is the session's, not the role of a calling `SECURITY DEFINER` function. But if the session is a superuser's,
/// it is the current role.
///
/// If `restricted`, Postgres refuses to defer a trigger again. If `body` has all constraints checked at once, no
/// deferred code is left.
pub fn as_at_commit<T>(restricted: bool, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let session = session_role();
    let role = if is_superuser(session) { current_user() } else { session };
    as_role_of_session(role, restricted || is_lent_by_superuser(role), body)
}

fn as_role_of_session<T>(role: pg_sys::Oid, restricted: bool, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let (more, back) = match restricted {
        true => (pg_sys::SECURITY_RESTRICTED_OPERATION, Settings::AllBack),
        false => (0, Settings::PinnedBack),
    };
    scope(Some((role, (pg_sys::SECURITY_LOCAL_USERID_CHANGE | more) as c_int)), &FORMATS, back, body)
}

/// Runs `body`, which calls a function of the application in a caller's transaction: like [`as_caller`], with a pinned
/// `search_path`. Only a function's own setting overrides this path.
pub fn as_caller_of_function<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    as_caller(|| with_pinned_path(body))
}

/// Runs `body` with a pinned `search_path`. Only a function's own setting overrides it.
pub fn with_pinned_path<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    scope(None, &SEARCH_PATH, Settings::PinnedBack, body)
}

/// Whether a superuser stands behind this role: in the session, or as the caller of a `SECURITY DEFINER` function.
fn is_lent_by_superuser(role: pg_sys::Oid) -> bool {
    // SAFETY: plain accessors.
    let behind = unsafe { [pg_sys::GetAuthenticatedUserId(), pg_sys::GetSessionUserId(), pg_sys::GetOuterUserId()] };
    behind.iter().any(|lender| *lender != role && is_superuser(*lender)) && !is_superuser(role)
}

/// Whether Postgres refuses deferred triggers here.
pub fn is_restricted() -> bool {
    // SAFETY: a plain accessor.
    unsafe { pg_sys::InSecurityRestrictedOperation() }
}

/// Runs `body` with pinned formats of values, and changes nothing else.
pub fn with_value_formats<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    scope(None, &FORMATS, Settings::PinnedBack, body)
}

/// Runs `body` with this `lock_timeout`, or the session's if that is shorter.
pub fn with_lock_timeout<T>(at_most: std::time::Duration, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let milliseconds = at_most.as_millis().clamp(1, i32::MAX as u128) as i32;
    // SAFETY: reads a setting of the session.
    let own = unsafe { pg_sys::LockTimeout };
    if own > 0 && own <= milliseconds {
        return body();
    }
    let text = CString::new(format!("{milliseconds}ms")).unwrap_or_default();
    scope(None, &[(c"lock_timeout", &text)], Settings::PinnedBack, body)
}

/// Runs `body` with a `lock_timeout` of 300 ms and a `deadlock_timeout` of 200 ms, whatever the session has set.
pub fn with_short_waits<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let settings = [(c"deadlock_timeout", c"200ms"), (c"lock_timeout", c"300ms")];
    scope(None, &settings, Settings::PinnedBack, body)
}

mod raw {
    use pgrx::pg_sys;
    unsafe extern "C-unwind" {
        pub fn PortalHashTableDeleteAll();
        pub fn AtEOXact_LargeObject(is_commit: bool);
        pub fn setseed(call: pg_sys::FunctionCallInfo) -> pg_sys::Datum;
    }
}

/// Runs `body` on the application's tables as the owner of a process, in the engine's own transaction. A local change
/// of the user id is not enough. RESTRICTED_OPERATION keeps a trigger from `RESET ROLE`, and a deferred trigger from
/// running later as the engine.
///
/// `own` are the owner's settings of custom parameters. `lock_timeout` overrides the session's, if a lock is known to
/// be held.
///
/// At the end all cursors of the session are closed, except those of running statements: the engine has no cursors of
/// its own.
///
/// Failed code leaves something in the session: see [`clean_session`].
pub fn as_process_owner<T>(
    owner: pg_sys::Oid,
    own: &[Setting],
    lock_timeout: Option<&CStr>,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let flags = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
    let result = scope(Some((owner, flags as c_int)), &FORMATS, Settings::AllBack, || {
        own.iter().for_each(|(name, value)| set_own(name, value));
        set(SEARCH_PATH[0].0, SEARCH_PATH[0].1);
        if let Some(timeout) = lock_timeout {
            set(c"lock_timeout", timeout);
        }
        let value = body()?;
        close_cursors()?;
        Ok(value)
    })?;
    empty_temporary_schema();
    clean_session();
    Ok(result)
}

/// Runs `body` as the owner in a client's transaction. Nothing in the session is reset, and the client's time limits
/// apply. The caller must check what the owner's code may leave in the session, and may find there.
///
/// `configured` are the settings that decide what statements mean, as configured in the server.
pub fn as_owner_in_session<T>(
    owner: pg_sys::Oid,
    configured: &[Setting],
    own: &[Setting],
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let flags = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
    scope(Some((owner, flags as c_int)), &FORMATS, Settings::AllBack, || {
        SEARCH_PATH.iter().chain(&FIXED_MEANINGS).for_each(|(name, value)| set_if_possible(name, value, SUSET));
        configured.iter().for_each(|(name, value)| set_if_possible(name, value, SUSET));
        // The owner may have set some of these.
        own.iter().for_each(|(name, value)| set_own(name, value));
        body()
    })
}

/// Runs `body` without sending its messages to the client, because the client does not have the rights of the code's
/// role. The setting `client_min_messages` is not enough: it does not suppress the level INFO.
///
/// Errors reach the client through [`super::catch`]. If the session is terminated meanwhile, the client gets no message
/// about it.
pub fn unheard<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    struct Heard(pg_sys::CommandDest::Type);
    impl Drop for Heard {
        fn drop(&mut self) {
            // SAFETY: a variable of the server, in the only thread that uses it.
            unsafe { pg_sys::whereToSendOutput = self.0 };
        }
    }
    // SAFETY: as above. It is restored on each way out; no error of the server jumps over this frame.
    let _heard = unsafe { Heard((&raw mut pg_sys::whereToSendOutput).replace(pg_sys::CommandDest::DestNone)) };
    body()
}

/// The schema of the session's temporary objects, if it has one.
pub fn temporary_schema() -> Option<pg_sys::Oid> {
    let (mut schema, mut toast) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
    // SAFETY: an accessor.
    unsafe { pg_sys::GetTempNamespaceState(&raw mut schema, &raw mut toast) };
    (schema != pg_sys::InvalidOid).then_some(schema)
}

/// Runs `body` like [`as_process_owner`], for a function that waits this number of milliseconds for a lock. In a
/// deadlock the function fails before a session does.
pub fn as_function_owner<T>(
    owner: pg_sys::Oid,
    own: &[Setting],
    milliseconds: c_int,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let timeout = CString::new(format!("{milliseconds}ms")).unwrap_or_default();
    scope(None, &[(c"deadlock_timeout", c"200ms")], Settings::PinnedBack, || {
        as_process_owner(owner, own, Some(&timeout), body)
    })
}

/// Closes cursors and descriptors of large objects that a trigger has left open. Code of the next owner could read from
/// them, or find a cursor's name in use. An error closes them by itself. Code at the end of a cursor's statement still
/// runs as the owner.
fn close_cursors() -> Result<()> {
    // SAFETY: raw calls, which do nothing if nothing is open. A cursor that a language has pinned raises an error here,
    // as at the commit.
    unsafe {
        catch(|| {
            raw::PortalHashTableDeleteAll();
            raw::AtEOXact_LargeObject(true);
        })
    }
}

/// Resets what a trigger may have done to the session and an abort does not undo. Call it after each use of the
/// application's tables, also after a failed one.
///
/// - Advisory locks of the session: the next owner's code would hold them too. Locks of the transaction stay until its
///   end.
/// - The seed of `random()`: a trigger that has set it could predict the next owner's random numbers.
pub fn clean_session() {
    // SAFETY: searches the locks of this process, and releases those of the session.
    unsafe { pg_sys::LockReleaseSession(pg_sys::USER_LOCKMETHOD as pg_sys::LOCKMETHODID) };
    forget_seed();
}

/// Seeds `random()` again, so that its values can't be predicted.
pub fn forget_seed() {
    // Each state has two random numbers.
    let bits = RandomState::new().build_hasher().finish();
    // A number from -1 to 1 with as many digits as it can have.
    let seed = (bits >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
    // SAFETY: calls a function of the server that takes such a number.
    unsafe {
        DirectFunctionCall1Coll(raw::setseed, pg_sys::InvalidOid, pg_sys::Datum::from(seed.to_bits()));
    }
}

/// Drops what a trigger has created in `pg_temp`, so that it does not run for the next owner. Functions can be created
/// there even in a restricted operation. In earlier minor versions of Postgres types can too, and each `search_path`
/// finds them first. An error undoes such objects by itself.
fn empty_temporary_schema() {
    if temporary_schema().is_some() {
        // SAFETY: a deletion in the open transaction, which runs no code of the application.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::ResetTempTableNamespace();
        }
    }
}

/// Which settings are restored at the end of a scope.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settings {
    /// Those that the scope pinned. Settings made by a caller's trigger stay.
    PinnedBack,
    /// All that changed since the scope began. A trigger of the application must not leave a `search_path` or a timeout
    /// for the engine in any way.
    AllBack,
}

/// Changes role and settings around `body`, and restores both. After an error they are not restored here: the abort
/// that must follow restores them.
fn scope<T>(
    identity: Option<(pg_sys::Oid, c_int)>,
    settings: &[(&CStr, &CStr)],
    back: Settings,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let mut user = pg_sys::InvalidOid;
    let mut context: c_int = 0;
    // SAFETY: plain accessors of the session's state.
    let level = unsafe {
        pg_sys::GetUserIdAndSecContext(&raw mut user, &raw mut context);
        pg_sys::NewGUCNestLevel()
    };
    settings.iter().for_each(|(name, value)| set(name, value));
    if let Some((as_user, flags)) = identity {
        // SAFETY: the caller's identity is restored below, or by the abort.
        unsafe { pg_sys::SetUserIdAndSecContext(as_user, context | flags) };
    }
    let result = body()?;
    // SAFETY: restores the previous state.
    unsafe {
        pg_sys::SetUserIdAndSecContext(user, context);
        pg_sys::AtEOXact_GUC(back == Settings::PinnedBack, level);
    }
    Ok(result)
}

/// With the rights of a superuser.
const SUSET: pg_sys::GucContext::Type = pg_sys::GucContext::PGC_SUSET;

/// Sets a custom parameter until the current nest level ends, with the rights of the current user. A value that the
/// user may not set is ignored, as in a session of that user.
fn set_own(name: &CStr, value: &CStr) {
    let context = if is_superuser(current_user()) { SUSET } else { pg_sys::GucContext::PGC_USERSET };
    set_if_possible(name, value, context);
}

/// Sets a parameter until the current nest level ends. An invalid value is ignored.
fn set_if_possible(name: &CStr, value: &CStr, context: pg_sys::GucContext::Type) {
    set_with(name, value, context, pg_sys::GucAction::GUC_ACTION_SAVE, pg_sys::DEBUG1);
}

/// Sets a parameter until the transaction ends.
pub fn set_local(name: &CStr, value: &CStr) -> Result<()> {
    set_with(name, value, SUSET, pg_sys::GucAction::GUC_ACTION_LOCAL, 0);
    Ok(())
}

/// Sets a parameter to a constant that each server accepts, until the current nest level ends.
fn set(name: &CStr, value: &CStr) {
    set_with(name, value, SUSET, pg_sys::GucAction::GUC_ACTION_SAVE, 0);
}

/// Sets a parameter, unless it has this value already: comparing is cheaper. A problem with the value is reported at
/// `level`. Zero: it is an error.
fn set_with(name: &CStr, value: &CStr, context: pg_sys::GucContext::Type, action: pg_sys::GucAction::Type, level: u32) {
    let (name, source) = (name.as_ptr(), pg_sys::GucSource::PGC_S_SESSION);
    // SAFETY: the text is read before anything else runs, and the strings outlive the call.
    unsafe {
        let now = pg_sys::GetConfigOption(name, true, false);
        if now.is_null() || CStr::from_ptr(now) != value {
            pg_sys::set_config_option(name, value.as_ptr(), context, source, action, true, level as c_int, false);
        }
    }
}

pub fn current_user() -> pg_sys::Oid {
    // SAFETY: a plain accessor.
    unsafe { pg_sys::GetUserId() }
}

/// The name of a role, if it exists.
pub fn role_name(role: pg_sys::Oid) -> Result<Option<String>> {
    // SAFETY: a look-up in the catalog.
    Ok(unsafe { text(pg_sys::GetUserNameFromId(role, true)) })
}

/// The role with this name, if it exists.
pub fn role_named(name: &str) -> Result<Option<pg_sys::Oid>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    // SAFETY: the name outlives the call.
    let role = unsafe { pg_sys::get_role_oid(name.as_ptr(), true) };
    Ok((role != pg_sys::InvalidOid).then_some(role))
}

/// What a statement does to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableUse {
    Select,
    Update,
}

/// Whether a role has this privilege on a table, or on one of its columns. True for a table that was dropped: using it
/// gives the right error.
pub fn may_use_table(role: pg_sys::Oid, relation: u32, how: TableUse) -> Result<bool> {
    let mode = match how {
        TableUse::Select => pg_sys::ACL_SELECT,
        TableUse::Update => pg_sys::ACL_UPDATE,
    } as pg_sys::AclMode;
    let (relation, any) = (pg_sys::Oid::from(relation), pg_sys::AclMaskHow::ACLMASK_ANY);
    let mut is_missing = false;
    // SAFETY: look-ups in the catalog, raw calls without destructors.
    unsafe {
        catch(|| {
            pg_sys::pg_class_aclcheck_ext(relation, role, mode, &raw mut is_missing) == pg_sys::AclResult::ACLCHECK_OK
                || is_missing
                || pg_sys::pg_attribute_aclcheck_all(relation, role, mode, any) == pg_sys::AclResult::ACLCHECK_OK
        })
    }
}

/// Whether a role can reach the functions of XDB: it may use their schema.
pub fn may_use_xdb(role: pg_sys::Oid) -> Result<bool> {
    // SAFETY: look-ups in the catalog, raw calls without destructors.
    unsafe {
        catch(|| {
            let schema = pg_sys::get_namespace_oid(EXTENSION.as_ptr(), true);
            schema == pg_sys::InvalidOid || compat::may_use_schema(schema, role)
        })
    }
}

/// The name of a table without its schema, as in the server's own errors.
pub fn table_name(relation: u32) -> Option<String> {
    // SAFETY: a look-up in the catalog.
    unsafe { text(pg_sys::get_rel_name(pg_sys::Oid::from(relation))) }
}

/// Whether a role has the privileges of another role without `SET ROLE`: `pg_has_role(role, of, 'USAGE')`.
pub fn has_privileges_of(role: pg_sys::Oid, of: pg_sys::Oid) -> bool {
    // SAFETY: catalog look-ups on the main thread. A role that was dropped has no members.
    unsafe { pg_sys::has_privs_of_role(role, of) }
}

/// Whether a role may see figures of all processes, like a member of `pg_monitor`.
pub fn monitors(role: pg_sys::Oid) -> bool {
    has_privileges_of(role, pg_sys::Oid::from(pg_sys::ROLE_PG_MONITOR))
}

pub fn is_superuser(role: pg_sys::Oid) -> bool {
    // SAFETY: as above.
    unsafe { pg_sys::superuser_arg(role) }
}

/// Whether a role is an operator, which may stop, pause and change all processes: it was granted the operators'
/// functions.
pub fn is_administrator(role: pg_sys::Oid) -> bool {
    thread_local! {
        static PAUSE: std::cell::Cell<Option<pg_sys::Oid>> = const { std::cell::Cell::new(None) };
    }
    // SAFETY: catalog look-ups on the main thread.
    unsafe {
        let known = PAUSE.get().filter(|oid| !pg_sys::get_func_name(*oid).is_null());
        let pause = known.unwrap_or_else(|| {
            let name = compat::qualified_name(c"xdb.pause_engine");
            pg_sys::LookupFuncName(name, 0, std::ptr::null(), true)
        });
        PAUSE.set(Some(pause));
        pause != pg_sys::InvalidOid && compat::may_execute(pause, role)
    }
}
