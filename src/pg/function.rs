//! SQL functions as Postgres calls them: arguments, results and errors.
//!
//! The functions are declared in `sql/always/functions.sql`, which shows the whole SQL surface, and named here. An
//! error is raised after everything that the function owned was dropped, with its SQLSTATE and all its fields.

use super::catch::{PgError, Result, catch, edge, sqlstate, throw};
use super::param::{FromColumn, SqlValue, from_postgres, other_type};
use super::raw::jsonb_in;
use super::{json, memory, snapshot};
use pgrx::datum::{Range, RangeBound};
use pgrx::{Array, FromDatum, pg_sys};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::rc::Rc;
use xdb_engine::{Duration, ExecutionId, Timestamp};

mod raw {
    use pgrx::pg_sys;
    unsafe extern "C-unwind" {
        pub fn interval_in(call: pg_sys::FunctionCallInfo) -> pg_sys::Datum;
        pub fn timestamptz_in(call: pg_sys::FunctionCallInfo) -> pg_sys::Datum;
        pub fn DirectFunctionCall3Coll(
            function: unsafe extern "C-unwind" fn(pg_sys::FunctionCallInfo) -> pg_sys::Datum,
            collation: pg_sys::Oid,
            text: pg_sys::Datum,
            element: pg_sys::Datum,
            modifier: pg_sys::Datum,
        ) -> pg_sys::Datum;
        pub fn tuplestore_putvalues(
            store: *mut pg_sys::Tuplestorestate,
            description: pg_sys::TupleDesc,
            values: *mut pg_sys::Datum,
            nulls: *mut bool,
        );
    }
}

/// The declared types of a function's arguments and result.
struct DeclaredTypes {
    arguments: Vec<pg_sys::Oid>,
    result: pg_sys::Oid,
}

thread_local! {
    /// By the function's oid. The types of a function never change: another declaration is another function.
    static SIGNATURES: RefCell<HashMap<pg_sys::Oid, Rc<DeclaredTypes>>> = RefCell::default();
}

impl DeclaredTypes {
    fn of(function: pg_sys::Oid) -> Rc<Self> {
        if let Some(known) = SIGNATURES.with_borrow(|known| known.get(&function).cloned()) {
            return known;
        }
        let (mut types, mut count): (*mut pg_sys::Oid, c_int) = (std::ptr::null_mut(), 0);
        // SAFETY: gives an array with this number of types, which is copied.
        let signature = unsafe {
            let result = pg_sys::get_func_signature(function, &raw mut types, &raw mut count);
            Rc::new(Self { arguments: (0..count as usize).map(|number| *types.add(number)).collect(), result })
        };
        SIGNATURES.with_borrow_mut(|known| known.insert(function, signature.clone()));
        signature
    }
}

/// The elements of an array of texts.
pub type Texts = Vec<Option<String>>;

/// Bytes of memory for each byte of short texts in an array.
const IN_MEMORY: usize = 16;

/// The arguments of a call, counted from 0.
pub struct Args {
    call: pg_sys::FunctionCallInfo,
    signature: Rc<DeclaredTypes>,
}

impl Args {
    /// # Safety
    /// `call` must come from Postgres, for a function that is being called.
    unsafe fn new(call: pg_sys::FunctionCallInfo) -> Self {
        // SAFETY: as the caller says.
        let signature = DeclaredTypes::of(unsafe { (*(*call).flinfo).fn_oid });
        Self { call, signature }
    }

    /// An argument of this type. If it is declared with another type, it is not touched. If the SQL declaration does
    /// not have it, it is null.
    fn datum(&self, number: usize, wanted: pg_sys::Oid) -> Option<pg_sys::Datum> {
        let declared = *self.signature.arguments.get(number)?;
        if declared != wanted {
            throw(other_type(format_args!("argument {number} of an SQL function"), declared, wanted));
        }
        // SAFETY: Postgres passes this number of arguments.
        unsafe {
            let argument = (*self.call).args.as_slice((*self.call).nargs as usize).get(number)?;
            (!argument.isnull).then_some(argument.value)
        }
    }

    /// Runs `body`, which only sleeps. If possible, the statement's snapshot is released meanwhile: see [`snapshot`].
    /// Not allowed inside of [`connect`](super::spi::connect).
    pub fn sleep<T>(&self, body: impl FnOnce() -> T) -> T {
        snapshot::without(self.call, body)
    }

    fn get<T: for<'r> FromColumn<'r>>(&self, number: usize) -> Option<T> {
        // SAFETY: the argument is of that type.
        self.datum(number, T::OID).map(|datum| unsafe { T::read(datum) }.unwrap_or_else(|error| throw(error)))
    }

    pub fn text(&self, number: usize) -> Option<String> {
        self.get(number)
    }

    /// The texts of an array in order, including nulls. If the array has more than `most` bytes, it is not read, and
    /// the inner error is its size.
    pub fn texts(&self, number: usize, most: usize) -> Result<std::result::Result<Option<Texts>, usize>> {
        let Some(datum) = self.datum(number, pg_sys::TEXTARRAYOID) else { return Ok(Ok(None)) };
        // SAFETY: the argument is an array, whose header says how long it is.
        let bytes = unsafe { pg_sys::toast_raw_datum_size(datum) };
        if bytes > most {
            return Ok(Err(bytes));
        }
        memory::room_for(bytes.saturating_mul(IN_MEMORY))?;
        // SAFETY: it is an array of texts.
        let texts = unsafe { Array::<&str>::from_datum(datum, false) };
        // A null takes one bit of the array.
        memory::room_for(texts.as_ref().map_or(0, Array::len).saturating_mul(size_of::<Option<String>>()))?;
        Ok(Ok(texts.map(|texts| texts.iter().map(|text| text.map(str::to_owned)).collect())))
    }

    pub fn boolean(&self, number: usize) -> Option<bool> {
        self.get(number)
    }

    pub fn int(&self, number: usize) -> Option<i32> {
        self.get(number)
    }

    /// The text of a `jsonb`, with all digits. If it has more than `most` bytes, it is not read, and the inner error is
    /// its length.
    pub fn json(&self, number: usize, most: usize) -> Result<std::result::Result<Option<String>, usize>> {
        let Some(datum) = self.datum(number, pg_sys::JSONBOID) else { return Ok(Ok(None)) };
        let read = |text: &str| match text.len() {
            length if length > most => Ok(Err(length)),
            _ => memory::owned(text).map(|text| Ok(Some(text))),
        };
        // SAFETY: the argument is a jsonb.
        unsafe { json::with_text(datum, read) }
    }

    /// The first and the last number of an `int4range`, if bounded. The inner None: the range is empty.
    #[allow(clippy::type_complexity)]
    pub fn range(&self, number: usize) -> Option<Option<(Option<i32>, Option<i32>)>> {
        let datum = self.datum(number, pg_sys::INT4RANGEOID)?;
        // SAFETY: the argument is such a range.
        let range = unsafe { Range::<i32>::from_datum(datum, false)? };
        // Postgres normalises ranges: the upper bound is exclusive.
        let bound = |bound: Option<&RangeBound<i32>>, less: i32| match bound {
            Some(RangeBound::Inclusive(number)) => Some(*number),
            Some(RangeBound::Exclusive(number)) => Some(number.saturating_sub(less)),
            Some(RangeBound::Infinite) | None => None,
        };
        Some((!range.is_empty()).then(|| (bound(range.lower(), -1), bound(range.upper(), 1))))
    }

    /// A `regrole`. Zero is no role, and any other role may have been dropped.
    pub fn role(&self, number: usize) -> Option<pg_sys::Oid> {
        self.datum(number, pg_sys::REGROLEOID).map(|datum| pg_sys::Oid::from(datum.value() as u32))
    }

    pub fn execution_id(&self, number: usize) -> Option<ExecutionId> {
        self.get(number)
    }

    /// A moment. The inner None: it is infinite.
    pub fn time(&self, number: usize) -> Option<Option<Timestamp>> {
        Some(moment(self.datum(number, pg_sys::TIMESTAMPTZOID)?.value() as i64))
    }

    /// A length of time, with months of 30 days and days of 24 hours. The inner None: it is negative.
    pub fn interval(&self, number: usize) -> Option<Option<Duration>> {
        let datum = self.datum(number, pg_sys::INTERVALOID)?;
        // SAFETY: an interval datum points to an Interval.
        Some(length(unsafe { &*datum.cast_mut_ptr::<pg_sys::Interval>() }))
    }
}

/// A moment from Postgres' count; None if it is infinite.
fn moment(at: i64) -> Option<Timestamp> {
    (at != i64::MIN && at != i64::MAX).then(|| from_postgres(at))
}

/// Reads a text as an `interval`, like [`Args::interval`].
pub fn read_interval(text: &str) -> Result<Option<Duration>> {
    Ok(length(&read_as_interval(text)?))
}

/// Reads a text as an `interval`. Looks nothing up, so it works in the postmaster too.
pub(super) fn read_as_interval(text: &str) -> Result<pg_sys::Interval> {
    let interval = read(raw::interval_in, text)?.cast_mut_ptr::<pg_sys::Interval>();
    // SAFETY: the result of interval_in.
    Ok(unsafe { *interval })
}

/// Reads a text as a `timestamptz`, like [`Args::time`].
pub fn read_time(text: &str) -> Result<Option<Timestamp>> {
    Ok(moment(read(raw::timestamptz_in, text)?.value() as i64))
}

type Function = unsafe extern "C-unwind" fn(pg_sys::FunctionCallInfo) -> pg_sys::Datum;

fn read(input: Function, text: &str) -> Result<pg_sys::Datum> {
    let text = CString::new(text).map_err(|_| PgError::new(sqlstate(b"22021"), "it contains a NUL character"))?;
    let (pointer, no_element, no_modifier) = (pg_sys::Datum::from(text.as_ptr()), 0.into(), (-1).into());
    // SAFETY: an input function reads a C string that outlives the call.
    unsafe { catch(|| raw::DirectFunctionCall3Coll(input, pg_sys::InvalidOid, pointer, no_element, no_modifier)) }
}

/// A length of time, with months of 30 days and days of 24 hours; None if it is negative.
fn length(interval: &pg_sys::Interval) -> Option<Duration> {
    let days = i128::from(interval.month) * 30 + i128::from(interval.day);
    let micros = days * 86_400_000_000 + i128::from(interval.time);
    (micros >= 0).then(|| Duration(i64::try_from(micros).unwrap_or(i64::MAX)))
}

/// The result of a function.
pub enum Value {
    Null,
    Void,
    /// A value of the type with this oid: see [`Value::of`].
    Of(pg_sys::Oid, Box<dyn FnOnce() -> Option<pg_sys::Datum>>),
    /// The rows of a set-returning function, with columns from the first on. Missing columns are null.
    Rows(Vec<Vec<Value>>),
    /// JSON text, returned as `jsonb`.
    Json(String),
}

impl Value {
    /// The datum is made when the function returns: what is made during SPI ends with it.
    pub fn of<T: SqlValue + 'static>(value: T) -> Self {
        Self::Of(T::TYPE.oid, Box::new(move || value.datum()))
    }

    /// The datum, and whether it is null. A set has no datum.
    fn datum(self) -> Result<(pg_sys::Datum, bool)> {
        Ok(match self {
            Self::Null | Self::Rows(_) => (pg_sys::Datum::null(), true),
            Self::Void => (pg_sys::Datum::null(), false),
            Self::Of(_, datum) => datum().map_or((pg_sys::Datum::null(), true), |datum| (datum, false)),
            Self::Json(text) => (read(jsonb_in, &text)?, false),
        })
    }

    /// The type that the function must be declared with; `None` if any type is right.
    fn declared_as(&self) -> Option<pg_sys::Oid> {
        match self {
            Self::Null | Self::Rows(_) => None,
            Self::Void => Some(pg_sys::VOIDOID),
            Self::Of(oid, _) => Some(*oid),
            Self::Json(_) => Some(pg_sys::JSONBOID),
        }
    }
}

/// Calls the body of a function, and gives Postgres its value or its error.
pub fn call(info: pg_sys::FunctionCallInfo, body: fn(&Args) -> Result<Value>) -> pg_sys::Datum {
    edge(|| {
        let _reserve = memory::Reserve::new()?;
        // SAFETY: Postgres is calling.
        let args = unsafe { Args::new(info) };
        let value = body(&args)?;
        if let Some(wanted) = value.declared_as().filter(|wanted| *wanted != args.signature.result) {
            return Err(other_type("the result of an SQL function", args.signature.result, wanted));
        }
        let (datum, null) = match value {
            Value::Rows(rows) => {
                // SAFETY: as above.
                unsafe { give_set(info, rows)? };
                (pg_sys::Datum::null(), true)
            }
            other => other.datum()?,
        };
        // SAFETY: as above.
        unsafe { (*info).isnull = null };
        Ok(datum)
    })
}

/// Returns all rows of a set at once. The declaration in another version may have fewer columns than the rows, or more:
/// new columns are always last.
///
/// # Safety
/// Postgres must be calling a function.
unsafe fn give_set(info: pg_sys::FunctionCallInfo, rows: Vec<Vec<Value>>) -> Result<()> {
    // SAFETY: as the caller says. Values in the store are copied, and the store lives as long as the statement.
    unsafe {
        let set = (*info).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        if set.is_null() || (*set).expectedDesc.is_null() {
            return Err(PgError::internal("an SQL function that gives rows is not declared to return a set"));
        }
        let before = pg_sys::MemoryContextSwitchTo((*(*set).econtext).ecxt_per_query_memory);
        let store = pg_sys::tuplestore_begin_heap(true, false, pg_sys::work_mem);
        pg_sys::MemoryContextSwitchTo(before);
        let columns = (*(*set).expectedDesc).natts as usize;
        for row in rows {
            let (mut values, mut nulls) = (vec![pg_sys::Datum::null(); columns], vec![true; columns]);
            for (number, value) in row.into_iter().take(columns).enumerate() {
                let declared = pg_sys::SPI_gettypeid((*set).expectedDesc, number as c_int + 1);
                if let Some(wanted) = value.declared_as().filter(|wanted| *wanted != declared) {
                    return Err(other_type(format_args!("column {number} of an SQL function"), declared, wanted));
                }
                (values[number], nulls[number]) = value.datum()?;
            }
            let (description, values, nulls) = ((*set).expectedDesc, values.as_mut_ptr(), nulls.as_mut_ptr());
            catch(|| raw::tuplestore_putvalues(store, description, values, nulls))?;
        }
        (*set).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
        (*set).setResult = store;
    }
    Ok(())
}

/// A row of values: each a [`SqlValue`](super::param::SqlValue).
#[macro_export]
macro_rules! row {
    ($($value:expr),* $(,)?) => { vec![$($crate::pg::function::Value::of($value)),*] };
}

/// Makes SQL functions from Rust functions that take [`Args`] and return a [`Value`].
#[macro_export]
macro_rules! sql_functions {
    ($($symbol:ident / $info:ident => $body:path;)+) => {
        $(
            /// Called by Postgres; declared in `sql/always/functions.sql`.
            #[unsafe(no_mangle)]
            pub extern "C-unwind" fn $symbol(info: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
                $crate::pg::function::call(info, $body)
            }

            /// The calling convention, for Postgres.
            #[unsafe(no_mangle)]
            pub extern "C-unwind" fn $info() -> &'static pgrx::pg_sys::Pg_finfo_record {
                static RECORD: pgrx::pg_sys::Pg_finfo_record = pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
                &RECORD
            }
        )+
    };
}
