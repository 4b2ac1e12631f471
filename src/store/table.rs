//! Tables as Rust knows them. Each table is described once, and statements are generated from the description.
//!
//! - [`record!`] makes a struct whose fields are named columns. A field's type gives the type of the column; an
//!   `Option` may be null. The record gives the parameters of a batch, in the order of the fields, and reads a row by
//!   the names of its columns.
//! - [`table!`] makes the record of a whole table, with its key, and the columns that `check_process` compares.
//! - [`record!`]` of` a table has some of its columns: those that a statement writes or reads.
//! - [`statements!`] declares statements. A test prepares all of them, and compares all tables with the catalog. If
//!   running a statement needs no other code, the macro also makes the function that runs it.

use crate::pg::catch::Result;
use crate::pg::param::{FromColumn, Param, SqlType, SqlValue, array, value};
use crate::pg::spi::{Row, Spi, Statement};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;

/// A column of a record.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    pub of: SqlType,
    /// Only the test that compares tables with the catalog reads it. At run time, a null in a column that is not
    /// nullable is an error of the field's type.
    #[cfg_attr(not(feature = "pg_test"), allow(dead_code))]
    pub nullable: bool,
}

/// Rows with named columns, for a batch.
pub trait Record: Sized {
    const COLUMNS: &'static [Column];

    /// The parameters of a batch for [`Spi::run_batch`], without some columns.
    fn columns(rows: &[Self], without: &[&str]) -> Vec<Param>;

    /// The parameters of a batch as arrays, even for a single row.
    fn arrays(rows: &[Self]) -> Vec<Param>;
}

/// A type that a row can be read as. A record is read by the names of its columns, other values by position.
pub trait Read<'r>: Sized {
    fn read(row: &Row<'r>) -> Result<Self>;
}

/// Values of consecutive columns.
pub trait Values<'r>: Sized {
    const COUNT: usize;
    fn read_from(row: &Row<'r>, place: usize) -> Result<Self>;
}

impl<'r, T: FromColumn<'r>> Values<'r> for T {
    const COUNT: usize = 1;
    fn read_from(row: &Row<'r>, place: usize) -> Result<Self> {
        row.at(place)
    }
}

macro_rules! values {
    ($($value:ident)+) => {
        impl<'r, $($value: Values<'r>),+> Values<'r> for ($($value,)+) {
            const COUNT: usize = $($value::COUNT +)+ 0;
            fn read_from(row: &Row<'r>, mut place: usize) -> Result<Self> {
                let mut next = |count| {
                    place += count;
                    place - count
                };
                Ok(($($value::read_from(row, next($value::COUNT))?,)+))
            }
        }
    };
}

values! { A B }
values! { A B C }
values! { A B C D }
values! { A B C D E }

impl<'r, T: Values<'r>> Read<'r> for T {
    fn read(row: &Row<'r>) -> Result<Self> {
        T::read_from(row, 0)
    }
}

/// The result type of a statement's function. The default is the result without rows, or without a run.
pub trait Gives: Default {
    fn of(spi: &Spi, statement: &'static Statement, params: &[Param]) -> Result<Self>;

    /// Like [`Gives::of`], with a batch as parameters. An empty batch runs nothing.
    fn of_batch<R: Record>(spi: &Spi, statement: &'static Statement, rows: &[R]) -> Result<Self> {
        if rows.is_empty() { Ok(Self::default()) } else { Self::of(spi, statement, &R::arrays(rows)) }
    }
}

impl Gives for () {
    fn of(spi: &Spi, statement: &'static Statement, params: &[Param]) -> Result<Self> {
        spi.run(statement, params).map(drop)
    }

    fn of_batch<R: Record>(spi: &Spi, statement: &'static Statement, rows: &[R]) -> Result<Self> {
        run(spi, statement, rows).map(drop)
    }
}

/// The number of affected rows.
impl Gives for u64 {
    fn of(spi: &Spi, statement: &'static Statement, params: &[Param]) -> Result<Self> {
        spi.run(statement, params)
    }

    fn of_batch<R: Record>(spi: &Spi, statement: &'static Statement, rows: &[R]) -> Result<Self> {
        run(spi, statement, rows)
    }
}

/// Implements [`Gives`] for result types that are made from rows.
macro_rules! gives {
    ($([$($bounds:tt)*] $type:ty = $rows:ident: Vec<$row:ty> => $given:expr;)+) => { $(
        impl<$($bounds)*> Gives for $type {
            fn of(spi: &Spi, statement: &'static Statement, params: &[Param]) -> Result<Self> {
                let $rows: Vec<$row> = rows(spi, statement, params)?;
                Ok($given)
            }
        }
    )+ };
}

gives! {
    [] bool = rows: Vec<bool> => rows.first().copied().unwrap_or_default();
    [] i64 = rows: Vec<i64> => rows.first().copied().unwrap_or_default();
    [T: for<'r> Read<'r>] Option<T> = rows: Vec<T> => rows.into_iter().next();
    [T: for<'r> Read<'r>] Vec<T> = rows: Vec<T> => rows;
    [T: for<'r> Read<'r> + Ord] BTreeSet<T> = rows: Vec<T> => rows.into_iter().collect();
    [T: for<'r> Read<'r> + Eq + Hash] HashSet<T> = rows: Vec<T> => rows.into_iter().collect();
    [K: for<'r> Values<'r> + Ord, V: for<'r> Values<'r>] BTreeMap<K, V> = rows: Vec<(K, V)> => rows.into_iter().collect();
    [K: for<'r> Values<'r> + Eq + Hash, V: for<'r> Values<'r>] HashMap<K, V> = rows: Vec<(K, V)> => rows.into_iter().collect();
}

/// A parameter of a statement's function: a value or an array.
pub trait Parameter {
    fn param(self) -> Param;
}

impl<T: SqlValue> Parameter for T {
    fn param(self) -> Param {
        value(self)
    }
}

impl<T: SqlValue> Parameter for &[T] {
    fn param(self) -> Param {
        array(self)
    }
}

impl<T: SqlValue> Parameter for &BTreeSet<T> {
    fn param(self) -> Param {
        array(self)
    }
}

/// A whole table of the schema `xdb`.
pub trait Table: Record {
    const NAME: &'static str;
    const KEY: &'static [&'static str];
    /// Columns that follow from an execution's history, besides the key. `check_process` compares them.
    const COMPARED: &'static [&'static str];
}

/// Some columns of a table.
pub trait TablePart: Record {
    type Of: Table;
}

/// The rows that a statement returns.
pub fn rows<R: for<'r> Read<'r>>(spi: &Spi, statement: &'static Statement, params: &[Param]) -> Result<Vec<R>> {
    // The path to the function would have a single lifetime.
    #[allow(clippy::redundant_closure)]
    spi.rows(statement, params, |row| R::read(row))
}

/// Runs a statement on a batch. An empty batch runs nothing.
pub fn run<R: Record>(spi: &Spi, statement: &'static Statement, rows: &[R]) -> Result<u64> {
    run_but(spi, statement, rows, &[])
}

/// Like [`run`], without some columns of the record.
pub fn run_but<R: Record>(spi: &Spi, statement: &'static Statement, rows: &[R], without: &[&str]) -> Result<u64> {
    if rows.is_empty() { Ok(0) } else { spi.run_batch(statement, &R::columns(rows, without)) }
}

/// The batch as a relation `v` with the record's columns. It uses the first parameters.
pub fn batch<R: Record>() -> String {
    batch_but::<R>(&[])
}

/// Like [`batch`], without some columns of the record. For [`run_but`].
pub fn batch_but<R: Record>(without: &[&str]) -> String {
    format!("(SELECT {}) AS v", elements::<R>(without))
}

/// The columns of the relation that [`batch_but`] makes.
pub fn elements<R: Record>(without: &[&str]) -> String {
    let columns = (1..).zip(R::COLUMNS.iter().filter(|column| !without.contains(&column.name)));
    let columns = columns.map(|(n, column)| format!("{} AS {}", element(n, column), column.name));
    columns.collect::<Vec<_>>().join(", ")
}

fn element(number: usize, column: &Column) -> String {
    let SqlType { name, column: stored, .. } = column.of;
    let cast = if name == stored { String::new() } else { format!("::{stored}") };
    format!("unnest(${number}::{name}[]){cast}")
}

fn names<R: Record>() -> Vec<&'static str> {
    names_but::<R>(&[])
}

/// The names of the record's columns, without some of them.
pub fn names_but<R: Record>(without: &[&str]) -> Vec<&'static str> {
    R::COLUMNS.iter().map(|column| column.name).filter(|name| !without.contains(name)).collect()
}

/// Inserts a batch of rows. Columns that are not in the record get their defaults.
pub fn insert<P: TablePart>() -> String {
    insert_as::<P>("", &[])
}

/// Like [`insert`], without some columns of the record. These get their defaults. For [`run_but`].
pub fn insert_but<P: TablePart>(without: &[&str]) -> String {
    insert_as::<P>("", without)
}

/// Like [`insert`], with given values for identity columns.
pub fn insert_with_identity<P: TablePart>() -> String {
    insert_as::<P>("OVERRIDING SYSTEM VALUE ", &[])
}

fn insert_as<P: TablePart>(clause: &str, without: &[&str]) -> String {
    let columns = (1..).zip(P::COLUMNS.iter().filter(|column| !without.contains(&column.name)));
    let values: Vec<_> = columns.map(|(n, column)| element(n, column)).collect();
    let names = names_but::<P>(without).join(", ");
    format!("INSERT INTO xdb.{} ({names}) {clause}SELECT {}", P::Of::NAME, values.join(", "))
}

/// Inserts one row. Its columns may be arrays.
pub fn insert_row<P: TablePart>() -> String {
    let value = |(number, column): (usize, &Column)| format!("${number}::{}::{}", column.of.name, column.of.column);
    let values: Vec<_> = (1..).zip(P::COLUMNS).map(value).collect();
    format!("INSERT INTO xdb.{} ({}) VALUES ({})", P::Of::NAME, names::<P>().join(", "), values.join(", "))
}

/// Updates the record's columns in the rows with its keys.
pub fn update<P: TablePart>() -> String {
    update_but::<P>(&[])
}

/// Like [`update`], without some columns of the record. For [`run_but`].
pub fn update_but<P: TablePart>(without: &[&str]) -> String {
    let sets = set_to_v(&names_but::<P>(&[P::Of::KEY, without].concat()));
    format!("UPDATE xdb.{} t SET {sets} FROM {} WHERE {}", P::Of::NAME, batch_but::<P>(without), is_v("t", P::Of::KEY))
}

/// SET clauses from the columns of `v`.
pub fn set_to_v(columns: &[&str]) -> String {
    columns.iter().map(|name| format!("{name} = v.{name}")).collect::<Vec<_>>().join(", ")
}

/// Deletes the rows of a table that equal the record in the record's columns.
pub fn delete<T: Table, R: Record>() -> String {
    format!("DELETE FROM xdb.{} t USING {} WHERE {}", T::NAME, batch::<R>(), is_v("t", &names::<R>()))
}

/// The condition that a relation and `v` have the same values in these columns.
fn is_v(relation: &str, columns: &[&str]) -> String {
    columns.iter().map(|name| format!("{relation}.{name} = v.{name}")).collect::<Vec<_>>().join(" AND ")
}

/// The record's columns as a result from which it can be read.
pub fn select<R: Record>(relation: &str) -> String {
    select_but::<R>(relation, &[])
}

/// Like [`select`], without some columns.
pub fn select_but<R: Record>(relation: &str, without: &[&str]) -> String {
    let column = |column: &Column| {
        let (name, SqlType { name: read, column: stored, .. }) = (column.name, column.of);
        if read == stored { format!("{relation}.{name}") } else { format!("{relation}.{name}::{read} AS {name}") }
    };
    R::COLUMNS.iter().filter(|column| !without.contains(&column.name)).map(column).collect::<Vec<_>>().join(", ")
}

/// Makes a record: see the head of this file.
macro_rules! record {
    ($($(#[$meta:meta])* $vis:vis struct $Name:ident $(<$life:lifetime>)? $(of $Table:ty)?
     { $($(#[$note:meta])* $column:ident : $type:ty),* $(,)? })+) => { $(
        $(#[$meta])*
        $vis struct $Name $(<$life>)? { $($(#[$note])* pub $column: $type),* }

        impl $(<$life>)? $crate::store::table::Record for $Name $(<$life>)? {
            const COLUMNS: &'static [$crate::store::table::Column] = &[$($crate::store::table::Column {
                name: stringify!($column),
                of: <$type as $crate::pg::param::SqlValue>::TYPE,
                nullable: <$type as $crate::pg::param::SqlValue>::NULLABLE,
            }),*];

            fn columns(rows: &[Self], without: &[&str]) -> Vec<$crate::pg::param::Param> {
                let mut params = Vec::with_capacity(Self::COLUMNS.len());
                $(if !without.contains(&stringify!($column)) {
                    params.push($crate::pg::param::column(rows.iter().map(|row| &row.$column)));
                })*
                params
            }

            fn arrays(rows: &[Self]) -> Vec<$crate::pg::param::Param> {
                vec![$($crate::pg::param::array(rows.iter().map(|row| &row.$column))),*]
            }
        }

        $crate::store::table::record!(@read $Name $(<$life>)? { $($column),* });
        $crate::store::table::record!(@part [$Name $(<$life>)?] $($Table)?);
    )+ };
    (@part [$Name:ident $(<$life:lifetime>)?]) => {};
    (@part [$Name:ident $(<$life:lifetime>)?] $Table:ty) => {
        impl $(<$life>)? $crate::store::table::TablePart for $Name $(<$life>)? {
            type Of = $Table;
        }
    };
    (@read $Name:ident <$life:lifetime> { $($column:ident),* }) => {
        impl<$life> $crate::store::table::Read<$life> for $Name<$life> {
            fn read(row: &$crate::pg::spi::Row<$life>) -> $crate::pg::catch::Result<Self> {
                Ok(Self { $($column: row.get(stringify!($column))?),* })
            }
        }
    };
    (@read $Name:ident { $($column:ident),* }) => {
        impl<'r> $crate::store::table::Read<'r> for $Name {
            fn read(row: &$crate::pg::spi::Row<'r>) -> $crate::pg::catch::Result<Self> {
                Ok(Self { $($column: row.get(stringify!($column))?),* })
            }
        }
    };
}
pub(super) use record;

/// Makes a table: see the head of this file. `compared` columns follow from an execution's history. `other` columns do
/// not, or belong to rows without a history.
macro_rules! table {
    ($(#[$meta:meta])* $vis:vis struct $Name:ident $(<$life:lifetime>)? in $table:literal {
        key { $($(#[$knote:meta])* $key:ident : $ktype:ty),* $(,)? }
        $(compared { $($(#[$cnote:meta])* $compared:ident : $ctype:ty),* $(,)? })?
        $(other { $($(#[$onote:meta])* $other:ident : $otype:ty),* $(,)? })?
    }) => {
        $crate::store::table::record! {
            $(#[$meta])*
            // All columns of a table are described, even if no code makes its rows.
            #[allow(dead_code)]
            $vis struct $Name $(<$life>)? of Self {
                $($(#[$knote])* $key: $ktype,)*
                $($($(#[$cnote])* $compared: $ctype,)*)?
                $($($(#[$onote])* $other: $otype,)*)?
            }
        }

        impl $(<$life>)? $crate::store::table::Table for $Name $(<$life>)? {
            const NAME: &'static str = $table;
            const KEY: &'static [&'static str] = &[$(stringify!($key)),*];
            const COMPARED: &'static [&'static str] = &[$($(stringify!($compared)),*)?];
        }
    };
}
pub(super) use table;

/// Declares the statements of a file, and lists them in `STATEMENTS`. If a text has several forms, each form is a
/// statement.
///
/// `NAME = text => fn name(a: A, …) -> G;` also makes a function that runs the statement with these parameters and
/// returns `G`: see [`Gives`]. With `rows: [R]` as its first parameter, the function takes a batch, which uses the
/// first parameters of the statement. An empty batch runs nothing.
macro_rules! statements {
    ($($(#[$meta:meta])* $name:ident = $text:expr $(=> $vis:vis fn $function:ident ($($args:tt)*) -> $gives:ty)?;)+) => {
        $($(#[$meta])* pub(in $crate::store) static $name: $crate::pg::spi::Statement =
            $crate::pg::spi::Statement::new(concat!(module_path!(), "::", stringify!($name)), || String::from($text));)+

        $($crate::store::table::statements!(@run $name { $(#[$meta])* $($vis fn $function)? } $(($($args)*) -> $gives)?);)+

        /// All statements of the file.
        #[cfg(feature = "pg_test")]
        pub(in $crate::store) static STATEMENTS: &[&$crate::pg::spi::Statement] = &[$(&$name),+];
    };
    (@run $name:ident { $($docs:tt)* }) => {};
    (@run $name:ident { $($function:tt)+ } ($rows:ident: [$row:ty]) -> $gives:ty) => {
        $($function)+(spi: &$crate::pg::spi::Spi, $rows: &[$row]) -> $crate::pg::catch::Result<$gives> {
            $crate::store::table::Gives::of_batch(spi, &$name, $rows)
        }
    };
    (@run $name:ident { $($function:tt)+ } ($rows:ident: [$row:ty], $($arg:ident: $type:ty),+) -> $gives:ty) => {
        $($function)+(spi: &$crate::pg::spi::Spi, $rows: &[$row], $($arg: $type),+) -> $crate::pg::catch::Result<$gives> {
            if $rows.is_empty() {
                return Ok(Default::default());
            }
            let mut params = <$row as $crate::store::table::Record>::arrays($rows);
            $(params.push($crate::store::table::Parameter::param($arg));)+
            $crate::store::table::Gives::of(spi, &$name, &params)
        }
    };
    (@run $name:ident { $($function:tt)+ } ($($arg:ident: $type:ty),*) -> $gives:ty) => {
        $($function)+(spi: &$crate::pg::spi::Spi $(, $arg: $type)*) -> $crate::pg::catch::Result<$gives> {
            let params = [$($crate::store::table::Parameter::param($arg)),*];
            $crate::store::table::Gives::of(spi, &$name, &params)
        }
    };
}
pub(super) use statements;
