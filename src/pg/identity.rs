//! As whom SQL runs, and with which settings.

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

/// Whether this process is one of the engine's: then what runs here runs inside the engine.
pub fn is_engine() -> bool {
    IS_ENGINE.load(Ordering::Relaxed)
}

/// From here on this process is one of the engine's.
pub fn begin_engine() {
    IS_ENGINE.store(true, Ordering::Relaxed);
}

/// A parameter and its value.
pub type Setting = (CString, CString);

const SEARCH_PATH: [(&CStr, &CStr); 1] = [(c"search_path", c"pg_catalog, pg_temp")];

/// Runs `body` as the cluster's own superuser, with a pinned `search_path`. This is how a function that was called by
/// an ordinary role reaches the system tables.
pub fn as_engine<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let superuser = pg_sys::Oid::from(pg_sys::BOOTSTRAP_SUPERUSERID);
    scope(Some((superuser, pg_sys::SECURITY_LOCAL_USERID_CHANGE as c_int)), &SEARCH_PATH, Settings::AllBack, body)
}

/// Runs `body` on users' tables in a caller's transaction: as the caller, with the caller's `search_path`, and the formats of
/// values pinned. What a trigger sets stays, but `role` and `session_authorization` it can't set, as in a function of
/// another's rights.
///
/// If a superuser has become the caller by `SET ROLE`, nothing that a trigger does may reach the superuser later: the trigger is
/// restricted as in a step. It makes nothing temporary, its settings end with it, and Postgres refuses to defer a trigger, which could
/// change its role at the commit. If [`is_restricted`], `body` has constraints checked at once.
pub fn as_caller<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let caller = current_user();
    as_role_of_session(caller, is_lent_by_superuser(caller), body)
}

/// The role of the session: in a `SECURITY DEFINER` function it is still the caller's.
pub fn session_role() -> pg_sys::Oid {
    // SAFETY: a plain accessor.
    unsafe { pg_sys::GetOuterUserId() }
}

/// Runs `body`, which has code run that the session has deferred, as the role as which Postgres runs it at the commit: the session's,
/// and not that of a function of another's rights which has called. But not as a superuser who has become the caller.
///
/// Where it is `restricted`, Postgres refuses to defer a trigger again. If `body` has all constraints checked at once, nothing of that
/// code is left to run later.
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

/// Runs `body`, which calls a function of the users in a caller's transaction: as [`as_caller`], with a pinned `search_path` that
/// only the function's own takes the place of.
pub fn as_caller_of_function<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    as_caller(|| with_pinned_path(body))
}

/// Runs `body` with a pinned `search_path`, which only the functions' own take the place of.
pub fn with_pinned_path<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    scope(None, &SEARCH_PATH, Settings::PinnedBack, body)
}

/// Whether the session, or what has called a function of another's rights, has a superuser's rights beside those of this role.
fn is_lent_by_superuser(role: pg_sys::Oid) -> bool {
    // SAFETY: plain accessors.
    let behind = unsafe { [pg_sys::GetAuthenticatedUserId(), pg_sys::GetSessionUserId(), pg_sys::GetOuterUserId()] };
    behind.iter().any(|lender| *lender != role && is_superuser(*lender)) && !is_superuser(role)
}

/// Whether deferred triggers are refused here.
pub fn is_restricted() -> bool {
    // SAFETY: a plain accessor.
    unsafe { pg_sys::InSecurityRestrictedOperation() }
}

/// Runs `body` with the formats of values pinned and nothing else changed.
pub fn with_value_formats<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    scope(None, &FORMATS, Settings::PinnedBack, body)
}

/// Runs `body` with a `lock_timeout` of this length, or the session's if that is shorter.
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

/// Runs `body` on users' tables as the owner of a process, in the engine's own transaction. Local user id change
/// alone is not enough: RESTRICTED_OPERATION keeps a trigger from `RESET ROLE`, and a deferred one from running
/// later as the engine.
///
/// `own` are the owner's settings of custom parameters. `lock_timeout` overrides the session's, where a lock is known to be held.
///
/// All cursors of the session but those that run a statement now are closed at the end: the engine has none of its own.
///
/// What fails leaves something behind in the session: see [`clean_session`].
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

/// The same in a client's transaction, whose session this is: nothing of it is taken back, and the time limits are the client's.
/// What the owner's code may leave in the session, and what it may find there, is for the caller to look at.
///
/// `configured` are the settings that decide what statements mean, as the server is configured.
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
        // The owner may want another of these.
        own.iter().for_each(|(name, value)| set_own(name, value));
        body()
    })
}

/// Runs `body` without sending its messages to the client: it is code of a role whose rights the client does not have. Setting
/// `client_min_messages` is not enough, because it does not suppress the level INFO.
///
/// Errors reach the client by the way of [`super::catch`]. If the session is terminated meanwhile, the client sees the connection
/// end without the message that says so.
pub fn unheard<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    struct Heard(pg_sys::CommandDest::Type);
    impl Drop for Heard {
        fn drop(&mut self) {
            // SAFETY: a variable of the server, in the one thread that uses it.
            unsafe { pg_sys::whereToSendOutput = self.0 };
        }
    }
    // SAFETY: as above. It is put back on every way out; no error of the server's jumps over this frame.
    let _heard = unsafe { Heard((&raw mut pg_sys::whereToSendOutput).replace(pg_sys::CommandDest::DestNone)) };
    body()
}

/// The schema of the session's temporary objects, if it ever had any.
pub fn temporary_schema() -> Option<pg_sys::Oid> {
    let (mut schema, mut toast) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
    // SAFETY: an accessor.
    unsafe { pg_sys::GetTempNamespaceState(&raw mut schema, &raw mut toast) };
    (schema != pg_sys::InvalidOid).then_some(schema)
}

/// Runs `body` as [`as_process_owner`] does, for a function that waits for a lock for this number of milliseconds. In a deadlock the
/// function gives way before a session does.
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

/// Closes the cursors and the descriptors of large objects that a trigger has left open: the code of the next owner could read from
/// them, or find the name of a cursor taken. An error closes them by itself. Code at the end of a cursor's statement still runs as the
/// owner.
fn close_cursors() -> Result<()> {
    // SAFETY: raw calls, which do nothing where nothing is open. A cursor that a language has pinned is an error here, as it would be
    // at the commit.
    unsafe {
        catch(|| {
            raw::PortalHashTableDeleteAll();
            raw::AtEOXact_LargeObject(true);
        })
    }
}

/// Takes back what a trigger may have done to the session and what no abort takes back. To be called after a use of users' tables,
/// also where it failed and was undone.
///
/// - The advisory locks of the session: the code of the next owner would hold them too. Those of the transaction stay until its end.
/// - The seed of `random()`: a trigger that has set it would know the next owner's random numbers.
pub fn clean_session() {
    // SAFETY: looks through the locks that this process has, and gives back those of the session.
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

/// Drops what a trigger has made in `pg_temp`, so that the owner of the next process does not run it. Functions may be made there
/// even in a restricted operation; with earlier minor versions of Postgres also types, which every `search_path` finds first. An
/// error takes them back by itself.
fn empty_temporary_schema() {
    if temporary_schema().is_some() {
        // SAFETY: a deletion in the transaction that is open, which runs no user's code.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::ResetTempTableNamespace();
        }
    }
}

/// What of the settings is put back at the end of a scope.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settings {
    /// Those that the scope pinned. What a caller's trigger sets stays.
    PinnedBack,
    /// Every change since the scope began. A user's trigger must not leave a `search_path` or a timeout behind for
    /// the engine, however it set it.
    AllBack,
}

/// Changes identity and settings around `body` and puts both back. On an error they are left as they are: the
/// abort that must follow restores them.
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
        // SAFETY: the caller's identity is put back below, or by the abort.
        unsafe { pg_sys::SetUserIdAndSecContext(as_user, context | flags) };
    }
    let result = body()?;
    // SAFETY: puts back what was there.
    unsafe {
        pg_sys::SetUserIdAndSecContext(user, context);
        pg_sys::AtEOXact_GUC(back == Settings::PinnedBack, level);
    }
    Ok(result)
}

/// With the rights of a superuser.
const SUSET: pg_sys::GucContext::Type = pg_sys::GucContext::PGC_SUSET;

/// Sets a custom parameter until the current nest level ends, with the rights of the current user. A value that the user may not set is
/// left out, as in a session of the user's own.
fn set_own(name: &CStr, value: &CStr) {
    let context = if is_superuser(current_user()) { SUSET } else { pg_sys::GucContext::PGC_USERSET };
    set_if_possible(name, value, context);
}

/// Sets a parameter until the current nest level ends, unless it can't have this value.
fn set_if_possible(name: &CStr, value: &CStr, context: pg_sys::GucContext::Type) {
    set_with(name, value, context, pg_sys::GucAction::GUC_ACTION_SAVE, pg_sys::DEBUG1);
}

/// Sets a parameter until the transaction ends.
pub fn set_local(name: &CStr, value: &CStr) -> Result<()> {
    set_with(name, value, SUSET, pg_sys::GucAction::GUC_ACTION_LOCAL, 0);
    Ok(())
}

/// Sets a parameter until the current nest level ends, to a constant that every server accepts.
fn set(name: &CStr, value: &CStr) {
    set_with(name, value, SUSET, pg_sys::GucAction::GUC_ACTION_SAVE, 0);
}

/// Sets a parameter, unless it has this value already: comparing is cheaper. What is wrong with the value is reported at `level`; zero:
/// it is an error.
fn set_with(name: &CStr, value: &CStr, context: pg_sys::GucContext::Type, action: pg_sys::GucAction::Type, level: u32) {
    let (name, source) = (name.as_ptr(), pg_sys::GucSource::PGC_S_SESSION);
    // SAFETY: the text that is given is read before anything else runs, and the strings outlive the call.
    unsafe {
        let now = pg_sys::GetConfigOption(name, true, false);
        if now.is_null() || CStr::from_ptr(now) != value {
            pg_sys::set_config_option(name, value.as_ptr(), context, source, action, true, level as c_int, false);
        }
    }
}

/// The effective user.
pub fn current_user() -> pg_sys::Oid {
    // SAFETY: a plain accessor.
    unsafe { pg_sys::GetUserId() }
}

/// Name of a role, if there is one.
pub fn role_name(role: pg_sys::Oid) -> Result<Option<String>> {
    // SAFETY: a look-up in the catalog.
    Ok(unsafe { text(pg_sys::GetUserNameFromId(role, true)) })
}

/// The role of this name, if there is one.
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

/// Whether a role has this privilege on a table, or on a column of it. True for a table that is gone: using it says so.
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

/// Whether a role can reach the functions of XDB at all: it may use their schema.
pub fn may_use_xdb(role: pg_sys::Oid) -> Result<bool> {
    // SAFETY: look-ups in the catalog, raw calls without destructors.
    unsafe {
        catch(|| {
            let schema = pg_sys::get_namespace_oid(EXTENSION.as_ptr(), true);
            schema == pg_sys::InvalidOid || compat::may_use_schema(schema, role)
        })
    }
}

/// The name of a table without its schema, as the server's own errors have it.
pub fn table_name(relation: u32) -> Option<String> {
    // SAFETY: a look-up in the catalog.
    unsafe { text(pg_sys::get_rel_name(pg_sys::Oid::from(relation))) }
}

/// Whether a role has the privileges of another one without `SET ROLE`: `pg_has_role(role, of, 'USAGE')`.
pub fn has_privileges_of(role: pg_sys::Oid, of: pg_sys::Oid) -> bool {
    // SAFETY: catalog look-ups on the main thread; a role that is gone has no members.
    unsafe { pg_sys::has_privs_of_role(role, of) }
}

/// Whether a role may see figures of all processes, as a member of `pg_monitor` may.
pub fn monitors(role: pg_sys::Oid) -> bool {
    has_privileges_of(role, pg_sys::Oid::from(pg_sys::ROLE_PG_MONITOR))
}

pub fn is_superuser(role: pg_sys::Oid) -> bool {
    // SAFETY: as above.
    unsafe { pg_sys::superuser_arg(role) }
}

/// Whether a role is an operator, which may stop, pause and change processes of every role: it was granted the operators' functions.
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
