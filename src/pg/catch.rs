//! Postgres errors as complete Rust values: SQLSTATE, texts, and the names of table and constraint.
//!
//! pgrx turns a caught error into a panic. It keeps only the SQLSTATEs that it knows, and no names. An application
//! needs both: its triggers raise codes of their own, and `appDatabaseError` names the constraint.
//!
//! Limitations: very long texts are cut.

use super::identity::is_engine;
use pgrx::pg_sys;
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

/// An ERROR of Postgres or of the extension, on its way to a caller, the log, or a worker.
#[derive(Clone, Debug)]
pub struct PgError(Box<Fields>);

/// The fields of an error report. The fields of a caught error have a bounded length.
// Wide because a report of Postgres has as many fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields {
    /// Packed as Postgres packs it; see [`sqlstate`].
    pub code: c_int,
    pub message: String,
    pub detail: Option<String>,
    /// The detail shows nothing of the tables where the error occurred, so all receivers of the error may see it. False
    /// for caught errors: a cast in a trigger can show data that the client did not write.
    pub detail_shows_no_rows: bool,
    /// A detail for the server's log only.
    pub detail_log: Option<String>,
    pub hint: Option<String>,
    /// Where the error occurred. Complete: it includes what ran around that place. See [`raise`].
    pub context: Option<String>,
    /// Position in the client's statement, from 1.
    pub position: c_int,
    /// A statement that the client has not sent, and the position in it, from 1.
    pub internal_query: Option<String>,
    pub internal_position: c_int,
    pub schema: Option<String>,
    pub table: Option<String>,
    pub column: Option<String>,
    pub datatype: Option<String>,
    pub constraint: Option<String>,
    /// The server cancelled the statement. False if code of the application raised the same SQLSTATE.
    pub cancelled: bool,
}

pub type Result<T> = std::result::Result<T, PgError>;

impl Deref for PgError {
    type Target = Fields;
    fn deref(&self) -> &Fields {
        &self.0
    }
}

impl DerefMut for PgError {
    fn deref_mut(&mut self) -> &mut Fields {
        &mut self.0
    }
}

/// Packs a five-character SQLSTATE.
pub const fn sqlstate(code: &[u8; 5]) -> c_int {
    let mut packed = 0;
    let mut i = 0;
    while i < 5 {
        packed |= (((code[i] - b'0') & 0x3f) as c_int) << (6 * i);
        i += 1;
    }
    packed
}

pub const INTERNAL_ERROR: c_int = sqlstate(b"XX000");
pub const UNDEFINED_TABLE: c_int = sqlstate(b"42P01");
pub const NO_DATA: c_int = sqlstate(b"02000");
pub const QUERY_CANCELED: c_int = sqlstate(b"57014");
pub const LOCK_NOT_AVAILABLE: c_int = sqlstate(b"55P03");
pub const DEADLOCK_DETECTED: c_int = sqlstate(b"40P01");
pub const UNIQUE_VIOLATION: c_int = sqlstate(b"23505");
pub const OUT_OF_MEMORY: c_int = sqlstate(b"53200");
pub const SERIALIZATION_FAILURE: c_int = sqlstate(b"40001");

/// Why an error may pass by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// Another session holds a lock.
    Lock,
    /// A conflict with another session, or a cancellation by an operator.
    Conflict,
    /// The server lacks memory or disk. Such an error says nothing about the statement.
    Server,
}

impl PgError {
    pub fn new(code: c_int, message: impl Into<String>) -> Self {
        Self(Box::new(Fields { code, message: message.into(), ..Fields::default() }))
    }

    /// An error that should not happen.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(INTERNAL_ERROR, message)
    }

    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Removes the places in statements where the error occurred. They don't concern its receiver.
    pub fn without_place(mut self) -> Self {
        (self.context, self.internal_query) = (None, None);
        (self.position, self.internal_position) = (0, 0);
        self
    }

    /// Adds a detail that shows nothing of the tables where the error occurred.
    pub fn detail_without_rows(mut self, detail: impl Into<String>) -> Self {
        self.detail_shows_no_rows = true;
        self.detail(detail)
    }

    /// DETAIL, if a receiver without rights on the tables may see it.
    pub fn public_detail(&self) -> Option<&str> {
        self.detail.as_deref().filter(|_| self.detail_shows_no_rows)
    }

    /// The functions that ran, innermost first, with their lines. The rest of CONTEXT may contain statements and values
    /// of rows, so it is left out.
    pub fn functions(&self) -> Option<String> {
        let is_function = |line: &&str| line.starts_with("PL/") || line.starts_with("SQL function ");
        let lines: Vec<_> = self.context.as_deref()?.lines().filter(is_function).take(MOST_FUNCTIONS).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// The error for a receiver without rights on the tables. DETAIL that may show rows moves to the server's log.
    pub fn redacted(mut self) -> Self {
        if !self.detail_shows_no_rows {
            self.detail_log = self.detail_log.take().or(self.detail.take());
        }
        self.without_place()
    }

    /// Adds the name of the table that the error is about.
    pub fn of_table(mut self, table: &str) -> Self {
        self.table = Some(table.to_owned());
        self
    }

    /// Puts text into the field for the name of a type, where drivers find it.
    pub fn of_datatype(mut self, name: Option<String>) -> Self {
        self.datatype = name;
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The SQLSTATE as text.
    pub fn sqlstate(&self) -> String {
        (0..5).map(|i| char::from((((self.code >> (6 * i)) & 0x3f) as u8).wrapping_add(b'0'))).collect()
    }

    /// Why the error may pass by itself. None: the same fails again. `of_engine`: a statement of the engine has failed.
    /// Then an operator has cancelled it, or another transaction has written the same key. The application's statements
    /// also fail so at their time limits and at their own constraints.
    pub fn passes(&self, of_engine: bool) -> Option<Passing> {
        match self.code {
            LOCK_NOT_AVAILABLE => Some(Passing::Lock),
            DEADLOCK_DETECTED | SERIALIZATION_FAILURE => Some(Passing::Conflict),
            QUERY_CANCELED | UNIQUE_VIOLATION if of_engine => Some(Passing::Conflict),
            _ if matches!(&self.sqlstate()[..2], "53" | "58") => Some(Passing::Server),
            _ => None,
        }
    }

    /// The error in a caught panic.
    pub fn from_panic(payload: Box<dyn std::any::Any + Send>) -> Self {
        use pgrx::pg_sys::panic::{CaughtError, ErrorReportWithLevel};
        let payload = match payload.downcast::<Self>() {
            Ok(thrown) => return *thrown,
            Err(payload) => payload,
        };
        let report = |report: &ErrorReportWithLevel| {
            let mut error = Self::new(report.sql_error_code() as c_int, report.message());
            error.detail = report.detail().map(str::to_owned);
            error.hint = report.hint().map(str::to_owned);
            error
        };
        match payload.downcast::<CaughtError>() {
            Ok(caught) => match *caught {
                CaughtError::PostgresError(ref inner) | CaughtError::ErrorReport(ref inner) => report(inner),
                CaughtError::RustPanic { ref ereport, .. } => report(ereport),
            },
            Err(payload) => match payload.downcast::<ErrorReportWithLevel>() {
                Ok(inner) => report(&inner),
                Err(payload) => {
                    let text = payload
                        .downcast_ref::<&str>()
                        .map(|s| (*s).to_owned())
                        .or_else(|| payload.downcast_ref::<String>().cloned());
                    Self::internal(text.unwrap_or_else(|| "panic".to_owned()))
                }
            },
        }
    }
}

impl std::fmt::Display for PgError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.message, self.sqlstate())?;
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        Ok(())
    }
}

/// Runs a call into Postgres and catches the ERROR that it may raise.
///
/// # Safety
/// `call` must make raw C calls only (no function that pgrx wraps), must not panic, and must own nothing that has a
/// destructor: an ERROR jumps over its frame. After an error the transaction or subtransaction must be aborted.
pub unsafe fn catch<T>(call: impl FnOnce() -> T) -> Result<T> {
    // SAFETY: as the caller says. The memory context is restored, as PG_CATCH requires.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        if let Some(value) = unless_error(call) {
            return Ok(value);
        }
        pg_sys::CurrentMemoryContext = context;
        // Without memory for the copy, this is an error too. The server has room for five errors that are not flushed.
        // So this error must not reach the next `catch`, and from there the next.
        let data = unless_error(|| raw::CopyErrorData());
        pg_sys::FlushErrorState();
        let Some(data) = data else { return Err(PgError::new(OUT_OF_MEMORY, "out of memory")) };
        let error = PgError(Box::new(fields(&*data)));
        pg_sys::FreeErrorData(data);
        Err(error)
    }
}

/// As [`catch`], where no error can be returned: throws it.
///
/// # Safety
/// As for [`catch`].
pub(super) unsafe fn or_throw<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: as the caller says.
    unsafe { catch(call) }.unwrap_or_else(|error| throw(error))
}

/// Runs a call into Postgres. None: it raised an ERROR, which the server still holds.
///
/// # Safety
/// As for [`catch`].
unsafe fn unless_error<T>(call: impl FnOnce() -> T) -> Option<T> {
    let mut result = MaybeUninit::<T>::uninit();
    // SAFETY: the previous handlers are restored on both ways out, as PG_TRY does.
    unsafe {
        let exception_stack = pg_sys::PG_exception_stack;
        let context_stack = pg_sys::error_context_stack;
        let jumped = cee_scape::call_with_sigsetjmp(false, |buffer| {
            pg_sys::PG_exception_stack = std::ptr::from_ref(buffer).cast_mut().cast();
            result.write(call());
            0
        });
        pg_sys::PG_exception_stack = exception_stack;
        pg_sys::error_context_stack = context_stack;
        (jumped == 0).then(|| result.assume_init())
    }
}

/// Most functions of a CONTEXT that are kept.
const MOST_FUNCTIONS: usize = 10;

/// Most bytes of a field in a session. Code that raises an error could use up the server's memory.
const LONGEST: usize = 64 * 1024;

/// Most bytes of a field in the engine, which stores errors in histories and sends them to workers.
const LONGEST_IN_ENGINE: usize = 4 * 1024;

fn fields(data: &pg_sys::ErrorData) -> Fields {
    let longest = if is_engine() { LONGEST_IN_ENGINE } else { LONGEST };
    let text = |text: *const c_char| {
        // SAFETY: Postgres gives null or a terminated string.
        (!text.is_null()).then(|| shortened(unsafe { CStr::from_ptr(text) }.to_bytes(), longest))
    };
    Fields {
        code: data.sqlerrcode,
        message: text(data.message).unwrap_or_default(),
        detail: text(data.detail),
        detail_shows_no_rows: false,
        detail_log: text(data.detail_log),
        hint: text(data.hint),
        context: text(data.context),
        position: data.cursorpos,
        internal_query: text(data.internalquery),
        internal_position: data.internalpos,
        schema: text(data.schema_name),
        table: text(data.table_name),
        column: text(data.column_name),
        datatype: text(data.datatype_name),
        constraint: text(data.constraint_name),
        // SAFETY: as above.
        cancelled: data.sqlerrcode == QUERY_CANCELED
            && !data.funcname.is_null()
            && unsafe { CStr::from_ptr(data.funcname) } == c"ProcessInterrupts",
    }
}

/// The text, cut to at most this number of bytes: whole characters, then an ellipsis.
fn shortened(text: &[u8], longest: usize) -> String {
    if text.len() <= longest {
        return String::from_utf8_lossy(text).into_owned();
    }
    // The first byte of a character is never 0b10xxxxxx.
    let begins = |place: &usize| text[*place] & 0xC0 != 0x80;
    let end = (longest.saturating_sub(4)..=longest).rev().find(begins).unwrap_or(longest);
    String::from_utf8_lossy(&text[..end]).into_owned() + "…"
}

mod raw {
    use pgrx::pg_sys;
    use std::ffi::c_char;
    unsafe extern "C-unwind" {
        pub fn CopyErrorData() -> *mut pg_sys::ErrorData;
        pub fn ThrowErrorData(data: *mut pg_sys::ErrorData);
        pub fn pstrdup(text: *const c_char) -> *mut c_char;
    }
}

/// Raises the error in Postgres. Hazard: everything that the calling frames own must have been dropped. So only the
/// outermost frame of a function called by Postgres may call this; see [`edge`].
///
/// Code that runs around this place adds lines to the context of an error. A caught error has these lines already. So
/// it is raised without the chain that adds lines; the next catch restores the chain.
fn raise(error: PgError) -> ! {
    // SAFETY: called on the main thread, from a frame with nothing left to drop. Texts are copied into palloc'd memory
    // before the Rust strings are dropped.
    unsafe {
        let copy = |text: &String| {
            let text = CString::new(text.replace('\0', "")).unwrap_or_default();
            raw::pstrdup(text.as_ptr())
        };
        let copy_of = |text: &Option<String>| text.as_ref().map_or(std::ptr::null_mut(), copy);
        let mut data = pg_sys::ErrorData {
            elevel: pg_sys::PGERROR as c_int,
            sqlerrcode: error.code,
            message: copy(&error.message),
            detail: copy_of(&error.detail),
            detail_log: copy_of(&error.detail_log),
            hint: copy_of(&error.hint),
            context: copy_of(&error.context),
            cursorpos: error.position,
            internalquery: copy_of(&error.internal_query),
            internalpos: error.internal_position,
            schema_name: copy_of(&error.schema),
            table_name: copy_of(&error.table),
            column_name: copy_of(&error.column),
            datatype_name: copy_of(&error.datatype),
            constraint_name: copy_of(&error.constraint),
            ..pg_sys::ErrorData::default()
        };
        if error.context.is_some() {
            pg_sys::error_context_stack = std::ptr::null_mut();
        }
        drop(error);
        raw::ThrowErrorData(&raw mut data);
    }
    unreachable!("an ERROR was thrown")
}

/// The edge between Postgres and the extension. Runs the body of an SQL function, drops everything that the body owned,
/// and then raises its error, if any. Panics don't pass the edge either.
pub fn edge<T>(body: impl FnOnce() -> Result<T>) -> T {
    match run_caught(body) {
        Ok(value) => value,
        Err(error) => raise(error),
    }
}

/// Runs `body`. A panic (an ERROR that came through pgrx) becomes an ordinary error.
pub fn run_caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) => Err(PgError::from_panic(panic)),
    }
}

/// Throws an error where none can be returned, as a panic that [`run_caught`] catches. Only for errors that should not
/// happen, and for missing memory.
pub(super) fn throw(error: PgError) -> ! {
    std::panic::resume_unwind(Box::new(error))
}

/// Writes an error to the server's log without raising it.
pub fn log_error(what: &str, error: &PgError) {
    pgrx::log!("xdb: {what}: {error}");
}

/// Writes a line for developers to the server's log, if the settings ask for DEBUG1.
pub fn debug(what: impl FnOnce() -> String) {
    // SAFETY: compares the level with the settings.
    if unsafe { pg_sys::message_level_is_interesting(pg_sys::DEBUG1 as i32) } {
        pgrx::debug1!("xdb: {}", what());
    }
}
