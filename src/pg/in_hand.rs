//! The calls that an engine process has in hand: it prepares them, or applies their answers, in the transaction that is open.
//!
//! When a process dies by a signal, the server takes its transactions and the shared memory away. So each engine process notes in a file
//! what it has in hand, and the first scheduler after a crash reads the files of its database. A process that ends otherwise deletes its
//! file: after a shutdown there is none. The files stand beside that of `pg_stat_statements`, in a directory that backups and standbys
//! leave out. They are not synced: what a process has written outlives the process.
//!
//! A call that was in hand at a crash is a *suspect*. Of all processes of a database one has a suspect in hand at a time, and that is one
//! suspect: so a crash that follows counts against this one alone. The lock is one on the scheduler's file, and ends with its process.
//!
//! Limitations: a power cut may bring back an older note, and a file that can't be written counts nothing. What is noted wrongly has to be
//! so three times before a call is held.

use super::shmem::Role;
use pgrx::pg_sys;
use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use xdb_engine::{ExecutionId, StateSeq};

/// Names a call.
pub type Call = (ExecutionId, StateSeq);

/// In the file, behind the number of the calls.
const BYTES: usize = 20;

/// What this process has in hand.
struct InHand {
    path: String,
    file: File,
    database: pg_sys::Oid,
    /// The file: how many calls, and these.
    noted: Vec<u8>,
    /// The lock, while one of them is a suspect.
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

/// Makes the file of this process.
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

/// This process has these calls in hand too, until [`release`].
pub fn take(calls: impl IntoIterator<Item = Call>) {
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

/// Takes the lock that who has a suspect in hand needs, until [`release`]. False: another process has it, or this one has a suspect in
/// hand already.
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

/// The transaction is over, and nothing in hand.
pub fn release() {
    mine(|mine| {
        mine.suspect = None;
        if mine.noted.len() > size_of::<u32>() {
            mine.noted.truncate(size_of::<u32>());
            mine.write();
        }
    });
}

/// This process ends, and not by a crash. Called while it exits: cannot fail.
pub fn end() {
    if let Some(InHand { path, .. }) = MINE.take() {
        let _ = fs::remove_file(path);
    }
}

/// What the engine processes of a database had in hand when the server crashed. None: none of them was there.
pub fn at_crash(database: pg_sys::Oid) -> Option<Vec<Call>> {
    let files: Vec<_> = roles().filter_map(|role| fs::read(path(database, role)).ok()).collect();
    (!files.is_empty()).then(|| files.iter().flat_map(|file| calls(file)).collect())
}

/// What was in hand is counted.
pub fn forget(database: pg_sys::Oid) {
    for role in roles() {
        let _ = fs::remove_file(path(database, role));
    }
}

fn roles() -> impl Iterator<Item = Role> {
    (0..Role::COUNT).map(Role::from_index)
}

/// Reads a file, which may be cut off or empty.
fn calls(file: &[u8]) -> impl Iterator<Item = Call> {
    let (count, calls) = file.split_first_chunk().unwrap_or((&[0; 4], &[]));
    let read = |call: &[u8]| {
        let (execution, seq) = (*call.first_chunk()?, *call.last_chunk()?);
        Some((ExecutionId(execution), StateSeq(u32::from_ne_bytes(seq))))
    };
    calls.chunks_exact(BYTES).take(u32::from_ne_bytes(*count) as usize).filter_map(read)
}

impl InHand {
    /// In one piece. If the disk is full, no note is made and nothing else fails.
    fn write(&mut self) {
        let count = (self.noted.len() - size_of::<u32>()) / BYTES;
        self.noted[..size_of::<u32>()].copy_from_slice(&(count as u32).to_ne_bytes());
        let _ = self.file.write_all_at(&self.noted, 0);
    }
}
