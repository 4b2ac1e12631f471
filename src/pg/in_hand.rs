//! Records which calls an engine process has in hand: the calls that the open transaction prepares, or whose answers it
//! applies.
//!
//! When a process is killed by a signal, the server resets its transactions and shared memory. So each engine process
//! records its calls in a file. The first scheduler after a crash reads the files of its database. A process that ends
//! otherwise deletes its file, so there is none after a shutdown. The files are next to the file of
//! `pg_stat_statements`, in a directory that backups and standbys leave out. They are not synced: written data outlives
//! the process.
//!
//! A call that was in hand at a crash is a *suspect*. All engine processes of a database together have at most one
//! suspect in hand. So the next crash counts against this call alone. The lock for it is on the scheduler's file, and
//! ends with its process.
//!
//! Limitations: a power cut may restore an older record, and a crash does not count if the file can't be written. A
//! call is held only after three crashes, so one wrong record does little harm.

use super::shmem::Role;
use pgrx::pg_sys;
use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use xdb_engine::{ExecutionId, StateKey, StateSeq};

/// Bytes of a call in the file, after the number of calls.
const BYTES: usize = 20;

/// The calls that this process has in hand.
struct InHand {
    path: String,
    file: File,
    database: pg_sys::Oid,
    /// The content of the file: the number of calls, and the calls.
    noted: Vec<u8>,
    /// The lock, while one of the calls is a suspect.
    suspect: Option<File>,
}

thread_local! {
    static MINE: RefCell<Option<InHand>> = const { RefCell::new(None) };
}

fn path(database: pg_sys::Oid, role: Role) -> String {
    format!("pg_stat_tmp/xdb_in_hand.{}.{}", database.to_u32(), role.index())
}

fn mine<T>(body: impl FnOnce(&mut InHand) -> T) -> Option<T> {
    MINE.with_borrow_mut(|mine| mine.as_mut().map(body))
}

/// Creates the file of this process.
pub fn begin(database: pg_sys::Oid, role: Role) {
    let path = path(database, role);
    match File::create(&path) {
        Ok(file) => {
            let noted = vec![0; size_of::<u32>()];
            MINE.set(Some(InHand { path, file, database, noted, suspect: None }));
        }
        Err(error) => pgrx::log!("xdb: calls that crash the server can't be recorded in \"{path}\": {error}"),
    }
}

/// Adds calls that this process has in hand until [`release`].
pub fn take(calls: impl IntoIterator<Item = StateKey>) {
    mine(|mine| {
        let before = mine.noted.len();
        for (execution, seq) in calls {
            mine.noted.extend(execution.0);
            mine.noted.extend(seq.0.to_ne_bytes());
        }
        if mine.noted.len() > before {
            mine.write();
        }
    });
}

/// Takes the lock for having a suspect in hand, until [`release`]. False: another process holds the lock, or this process
/// has a suspect already. True without a lock if this process has no file.
pub fn take_suspect() -> bool {
    let taken = mine(|mine| {
        if mine.suspect.is_some() {
            return false;
        }
        mine.suspect = File::open(path(mine.database, Role::Scheduler)).ok().filter(|file| file.try_lock().is_ok());
        mine.suspect.is_some()
    });
    taken.unwrap_or(true)
}

/// The transaction is over: no call is in hand.
pub fn release() {
    mine(|mine| {
        mine.suspect = None;
        if mine.noted.len() > size_of::<u32>() {
            mine.noted.truncate(size_of::<u32>());
            mine.write();
        }
    });
}

/// This process ends normally. Called during exit: can't fail.
pub fn end() {
    if let Some(InHand { path, .. }) = MINE.take() {
        let _ = fs::remove_file(path);
    }
}

/// The calls that engine processes of a database had in hand when the server crashed. None: no process left a file.
pub fn at_crash(database: pg_sys::Oid) -> Option<Vec<StateKey>> {
    let files: Vec<_> = roles().filter_map(|role| fs::read(path(database, role)).ok()).collect();
    (!files.is_empty()).then(|| files.iter().flat_map(|file| calls(file)).collect())
}

/// Deletes the files after their calls were counted.
pub fn forget(database: pg_sys::Oid) {
    for role in roles() {
        let _ = fs::remove_file(path(database, role));
    }
}

fn roles() -> impl Iterator<Item = Role> {
    (0..Role::COUNT).map(Role::from_index)
}

/// Reads a file, which may be truncated or empty.
fn calls(file: &[u8]) -> impl Iterator<Item = StateKey> {
    let (count, calls) = file.split_first_chunk().unwrap_or((&[0; 4], &[]));
    let read = |call: &[u8]| {
        let (execution, seq) = (*call.first_chunk()?, *call.last_chunk()?);
        Some((ExecutionId(execution), StateSeq(u32::from_ne_bytes(seq))))
    };
    calls.chunks_exact(BYTES).take(u32::from_ne_bytes(*count) as usize).filter_map(read)
}

impl InHand {
    /// Writes the record at once. If the disk is full, the record is missing, and nothing else fails.
    fn write(&mut self) {
        let count = (self.noted.len() - size_of::<u32>()) / BYTES;
        self.noted[..size_of::<u32>()].copy_from_slice(&(count as u32).to_ne_bytes());
        let _ = self.file.write_all_at(&self.noted, 0);
    }
}
