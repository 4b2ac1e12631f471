//! Shows the rows of `xdb.attribute_lock` in shared memory, and marks what calls want that were repeated again and again.

use super::turn::Scheduler;
use crate::pg::catch::Result;
use crate::pg::param::to_postgres;
use crate::pg::shmem::attribute_locks::{self, Name, Shown};
use crate::pg::spi::Spi;
use crate::store::locks;
use pgrx::pg_sys;

/// A call that was repeated so often goes first.
const REPEATS: i32 = 3;

impl Scheduler {
    pub(super) fn show_locks(&self, spi: &Spi) -> Result<()> {
        // SAFETY: set once at the start of the process.
        let database = unsafe { pg_sys::MyDatabaseId };
        let rows = locks::all(spi)?;
        let shown = |row: &locks::Row0| Shown {
            object: row.object,
            execution: row.key.0.0,
            state_seq: row.key.1.0,
            mode: row.mode as u32,
            granted: row.granted,
            due: to_postgres(row.due),
            name: Name::new(&row.name),
        };
        attribute_locks::show(database, &rows.iter().map(shown).collect::<Vec<_>>(), 0);
        let marks = rows.iter().filter(|row| row.repeats >= REPEATS);
        attribute_locks::set_marks(database, &marks.map(|row| (row.object, row.mode as u32)).collect::<Vec<_>>());
        Ok(())
    }
}
