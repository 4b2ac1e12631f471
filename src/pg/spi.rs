//! SQL statements: prepared once per session, run through SPI, with complete errors.

use super::catch::{PgError, Result, catch};
use super::param::{FromColumn, Param, other_type};
use super::{compat, index_plans, memory};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_long};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicPtr, Ordering};

mod raw {
    use pgrx::pg_sys;
    use std::ffi::{c_char, c_int, c_long};
    // Declared here because `catch` needs the functions themselves, not pgrx's wrappers.
    unsafe extern "C-unwind" {
        pub fn SPI_prepare_cursor(
            sql: *const c_char,
            count: c_int,
            types: *mut pg_sys::Oid,
            options: c_int,
        ) -> pg_sys::SPIPlanPtr;
        pub fn SPI_execute_plan(
            plan: pg_sys::SPIPlanPtr,
            values: *mut pg_sys::Datum,
            nulls: *const c_char,
            read_only: bool,
            limit: c_long,
        ) -> c_int;
        pub fn SPI_execute(sql: *const c_char, read_only: bool, limit: c_long) -> c_int;
    }
}

/// A statement on system tables. `store::table::statements!` declares all of them, and lists them for the test that
/// prepares each.
pub struct Statement {
    pub name: &'static str,
    text: LazyLock<String>,
    /// The plans that this session keeps.
    plans: Plans,
}

impl Statement {
    pub const fn new(name: &'static str, text: fn() -> String) -> Self {
        Self { name, text: LazyLock::new(text), plans: Plans([const { AtomicPtr::new(std::ptr::null_mut()) }; 2]) }
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A statement that can be run.
#[derive(Clone, Copy)]
pub enum Sql<'a> {
    System(&'static Statement),
    /// A text made when it is needed, because it contains names of the application's tables.
    Text(&'a str),
}

impl From<&'static Statement> for Sql<'_> {
    fn from(statement: &'static Statement) -> Self {
        Self::System(statement)
    }
}

impl<'a> From<&'a str> for Sql<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Sql<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a> Sql<'a> {
    /// Its name in an error.
    fn name(self) -> &'a str {
        match self {
            Self::System(statement) => statement.name,
            Self::Text(text) => text,
        }
    }

    fn text(self) -> &'a str {
        match self {
            Self::System(statement) => statement.text(),
            Self::Text(text) => text,
        }
    }
}

thread_local! {
    /// Plans of texts that this session keeps.
    static PLANS: RefCell<HashMap<String, Plans>> = RefCell::new(HashMap::new());
    /// How many kept plans run now, one within another.
    static RUNNING: Cell<u32> = const { Cell::new(0) };
}

/// The plans of a text, by [`Form`]. Null: not made yet. (A statement is static, so its plans are atomic.)
#[derive(Default)]
struct Plans([AtomicPtr<pg_sys::_SPI_plan>; 2]);

#[derive(Clone, Copy)]
enum Form {
    AsItStands,
    /// See [`one_row`].
    OfOneRow,
}

impl Form {
    fn of(columns: &[Param]) -> Self {
        if columns.iter().any(|column| column.is_array) { Self::AsItStands } else { Self::OfOneRow }
    }
}

/// Most plans of texts. Statements on the application's tables have a text for each table and set of columns.
const MAX_PLANS: usize = 1000;

/// No limit, for SPI.
const ALL_ROWS: usize = 0;

/// A connection to SPI, for running statements. The connection ends with the closure of [`connect`].
#[derive(Clone, Copy)]
pub struct Spi {
    tables: TablesOf,
    /// Statements use the active snapshot. Otherwise each takes its own, and sees what this transaction wrote.
    with_active_snapshot: bool,
}

/// Whose tables statements use. Decides how they are planned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TablesOf {
    /// System tables only: planned once, see [`index_plans`].
    System,
    /// Planned as the server does; triggers may run other statements meanwhile.
    App,
}

/// Runs `body` with SPI. After an error the transaction must be aborted, which closes what is open.
pub fn connect<T>(body: impl FnOnce(&Spi) -> Result<T>) -> Result<T> {
    // SAFETY: results are copied out before it is finished.
    check("SPI_connect", unsafe { pg_sys::SPI_connect() })?;
    let result = body(&Spi { tables: TablesOf::System, with_active_snapshot: false })?;
    // SAFETY: as above.
    check("SPI_finish", unsafe { pg_sys::SPI_finish() })?;
    Ok(result)
}

fn check(what: &str, code: c_int) -> Result<c_int> {
    match code {
        0.. => Ok(code),
        _ => Err(PgError::internal(format!("{what} failed with code {code}"))),
    }
}

impl Spi {
    /// This connection, for statements that use the application's tables.
    pub fn on_app_tables(&self) -> Self {
        Self { tables: TablesOf::App, ..*self }
    }

    /// Runs a statement. Returns the number of rows it affected.
    pub fn run<'s>(&self, sql: impl Into<Sql<'s>>, params: &[Param]) -> Result<u64> {
        self.execute(Form::AsItStands, sql.into(), params, ALL_ROWS)?;
        Ok(self.touched())
    }

    /// The number of rows that the last statement affected.
    fn touched(&self) -> u64 {
        // SAFETY: set by the execution.
        let rows = unsafe { pg_sys::SPI_processed };
        self.free_result();
        rows
    }

    /// Writes the rows of a batch, whose columns come from [`column`](super::param::column). Returns the number of
    /// affected rows. The statement reads columns with `unnest($n::type[])`. A single row uses the same text without
    /// `unnest`, because unpacking arrays costs more than writing a row.
    pub fn run_batch(&self, statement: &'static Statement, columns: &[Param]) -> Result<u64> {
        self.execute(Form::of(columns), Sql::System(statement), columns, ALL_ROWS)?;
        Ok(self.touched())
    }

    /// Runs a utility statement, which has no parameters and no plan.
    pub fn utility(&self, sql: &str) -> Result<()> {
        let text = c_string(sql)?;
        let pointer = text.as_ptr();
        // SAFETY: a raw call; the text outlives it.
        unsafe { check(sql, catch(|| raw::SPI_execute(pointer, false, 0))?)? };
        Ok(())
    }

    /// The rows of a statement, each converted by `read`.
    pub fn rows<'s, T>(
        &self,
        sql: impl Into<Sql<'s>>,
        params: &[Param],
        read: impl FnMut(&Row) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.execute(Form::AsItStands, sql.into(), params, ALL_ROWS)?;
        self.collect(read)
    }

    /// The first rows of a statement, at most `most`. The statement stops after them.
    pub fn rows_up_to<'s, T>(
        &self,
        most: usize,
        sql: impl Into<Sql<'s>>,
        params: &[Param],
        read: impl FnMut(&Row) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.execute(Form::AsItStands, sql.into(), params, most)?;
        self.collect(read)
    }

    /// The first row, if there is one.
    pub fn first<'s, T>(
        &self,
        sql: impl Into<Sql<'s>>,
        params: &[Param],
        read: impl FnMut(&Row) -> Result<T>,
    ) -> Result<Option<T>> {
        Ok(self.rows(sql, params, read)?.into_iter().next())
    }

    /// Makes the latest snapshot the active one for `body`, at any isolation level. All statements on the connection
    /// passed to `body` use this snapshot.
    pub fn with_latest_snapshot<T>(&self, body: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        // SAFETY: pushed and popped in pairs; an error is followed by an abort, which pops it.
        unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot()) };
        let value = body(&Self { with_active_snapshot: true, ..*self })?;
        // SAFETY: as above.
        unsafe { pg_sys::PopActiveSnapshot() };
        Ok(value)
    }

    fn execute(&self, form: Form, sql: Sql, params: &[Param], most: usize) -> Result<()> {
        let plan = self.plan(form, sql, params)?;
        let mut values: Vec<_> = params.iter().map(|p| p.datum).collect();
        let nulls: Vec<c_char> = params.iter().map(|p| if p.null { b'n' } else { b' ' } as c_char).collect();
        let (values, nulls) = (values.as_mut_ptr(), nulls.as_ptr());
        let _planning = (self.tables == TablesOf::System).then(index_plans::ByIndex::begin);
        // SAFETY: the plan is kept, the arrays outlive the call and match the plan's parameters.
        RUNNING.set(RUNNING.get() + 1);
        let code =
            unsafe { catch(|| raw::SPI_execute_plan(plan, values, nulls, self.with_active_snapshot, most as c_long)) };
        RUNNING.set(RUNNING.get() - 1);
        check(sql.name(), code?)?;
        Ok(())
    }

    fn plan(&self, form: Form, sql: Sql, params: &[Param]) -> Result<pg_sys::SPIPlanPtr> {
        let of_form = |plans: &Plans| plans.0[form as usize].load(Ordering::Relaxed);
        let kept = match sql {
            Sql::System(statement) => of_form(&statement.plans),
            Sql::Text(text) => PLANS.with_borrow(|plans| plans.get(text).map_or(std::ptr::null_mut(), of_form)),
        };
        if !kept.is_null() {
            return Ok(kept);
        }
        let plan = self.prepare(form, sql, params)?;
        let keep = |plans: &Plans| plans.0[form as usize].store(plan, Ordering::Relaxed);
        match sql {
            Sql::System(statement) => keep(&statement.plans),
            Sql::Text(text) => PLANS.with_borrow_mut(|plans| {
                make_room(plans);
                keep(plans.entry(text.to_owned()).or_default());
            }),
        }
        Ok(plan)
    }

    /// Makes a plan that is kept.
    fn prepare(&self, form: Form, sql: Sql, params: &[Param]) -> Result<pg_sys::SPIPlanPtr> {
        let text = match form {
            Form::AsItStands => c_string(sql.text())?,
            Form::OfOneRow => c_string(&one_row(sql.text())?)?,
        };
        let mut types: Vec<_> = params.iter().map(|p| p.oid).collect();
        let (pointer, types, count) = (text.as_ptr(), types.as_mut_ptr(), params.len() as c_int);
        let options = match self.tables {
            TablesOf::System => pg_sys::CURSOR_OPT_GENERIC_PLAN as c_int,
            TablesOf::App => 0,
        };
        // SAFETY: raw calls; text and types outlive them. A kept plan lives until the session ends or it is freed.
        unsafe {
            let plan = catch(|| raw::SPI_prepare_cursor(pointer, count, types, options))?;
            if plan.is_null() {
                return Err(PgError::internal(format!("could not prepare {}", sql.name())));
            }
            pg_sys::SPI_keepplan(plan);
            Ok(plan)
        }
    }

    fn collect<T>(&self, mut read: impl FnMut(&Row) -> Result<T>) -> Result<Vec<T>> {
        // SAFETY: the tuple table belongs to the statement that just ran.
        let (table, count) = unsafe { (pg_sys::SPI_tuptable, pg_sys::SPI_processed) };
        if table.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: the table has a description of its rows, and this number of rows. Each row is taken apart once, into
        // as many values as it has columns.
        let rows = unsafe {
            let description = (*table).tupdesc;
            let columns = compat::attributes(description);
            let mut values = vec![pg_sys::Datum::null(); columns.len()];
            let mut nulls = vec![true; columns.len()];
            let mut read_one = |number| {
                let tuple = *(*table).vals.add(number);
                pg_sys::heap_deform_tuple(tuple, description, values.as_mut_ptr(), nulls.as_mut_ptr());
                memory::check_reserve()?;
                read(&Row { columns, values: &values, nulls: &nulls, next: Cell::new(0) })
            };
            (0..count as usize).map(&mut read_one).collect()
        };
        self.free_result();
        rows
    }

    fn free_result(&self) {
        // SAFETY: frees the result of the last statement, which has been read.
        unsafe {
            if !pg_sys::SPI_tuptable.is_null() {
                pg_sys::SPI_freetuptable(pg_sys::SPI_tuptable);
            }
        }
    }
}

/// The text of a batch statement for one row: each `unnest($n::type[])` becomes `$n::type`.
fn one_row(sql: &str) -> Result<String> {
    let mut parts = sql.split("unnest(");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.try_fold(first, |text, part| match part.split_once("[])") {
        Some((parameter, rest)) => Ok(text + parameter + rest),
        None => Err(PgError::internal(format!("not a statement on a batch: {sql}"))),
    })
}

fn c_string(sql: &str) -> Result<CString> {
    CString::new(sql).map_err(|_| PgError::internal("a statement holds a NUL character"))
}

/// Frees all plans of texts if there are too many.
fn make_room(plans: &mut HashMap<String, Plans>) {
    // A trigger of an application's table may call a function of XDB while a plan runs. Then no plan is freed.
    if plans.len() >= MAX_PLANS && RUNNING.get() == 0 {
        let old = plans.drain().flat_map(|(_, plans)| plans.0.map(AtomicPtr::into_inner));
        // SAFETY: no plan runs.
        old.filter(|plan| !plan.is_null()).for_each(|plan| _ = unsafe { pg_sys::SPI_freeplan(plan) });
    }
}

/// One row of a result, valid only while it is read.
pub struct Row<'r> {
    columns: &'r [pg_sys::FormData_pg_attribute],
    values: &'r [pg_sys::Datum],
    nulls: &'r [bool],
    /// The index after the last column read. Columns are usually read in order, so the search begins here.
    next: Cell<usize>,
}

impl<'r> Row<'r> {
    /// The value of a column, by its name. Errors name the column.
    pub fn get<T: FromColumn<'r>>(&self, name: &str) -> Result<T> {
        let from = self.next.get();
        let places = (from..self.columns.len()).chain(0..from);
        let found = places.into_iter().find(|place| self.name(*place) == name.as_bytes());
        let place = found.ok_or_else(|| PgError::internal(format!("a statement gives no column {name}")))?;
        self.next.set(place + 1);
        self.at(place)
    }

    /// The value of a column by its index from 0, for results whose column names are unknown.
    pub fn at<T: FromColumn<'r>>(&self, place: usize) -> Result<T> {
        let oid = self.columns[place].atttypid;
        let column = || format!("column {} of a result", String::from_utf8_lossy(self.name(place)));
        if oid != T::OID {
            return Err(other_type(column(), oid, T::OID));
        }
        // SAFETY: the type was compared. The value lives as long as the result, of which this is a row.
        let value = if self.nulls[place] { T::null() } else { unsafe { T::read(self.values[place]) } };
        value.map_err(|mut error| {
            error.message = format!("{}: {}", column(), error.message);
            error
        })
    }

    fn name(&self, place: usize) -> &[u8] {
        // SAFETY: a name ends with a NUL character.
        unsafe { CStr::from_ptr(self.columns[place].attname.data.as_ptr()) }.to_bytes()
    }
}
