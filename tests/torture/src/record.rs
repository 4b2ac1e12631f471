//! The clients' own log: what they asked for, and what they know to have become of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use serde_json::Value;

use crate::shapes::Shape;

/// What became of an operation, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was committed, and the client was told.
    Acknowledged,
    /// Its transaction was rolled back.
    RolledBack,
    /// The server refused it.
    Refused,
    /// The answer was lost, and the client did not ask again.
    Unknown,
}

/// A start of a process.
pub struct Start {
    pub shape: Shape,
    pub fate: Fate,
    /// How many steps, timers, messages or threads there are to be.
    pub length: u64,
    /// Of starts of the same id, all but the last may have been stopped by the next.
    pub last: bool,
}

/// A message of a client.
pub struct Message {
    pub process_id: String,
    pub fate: Fate,
    /// Its place among those that its client published to the process, one after the other.
    pub place: u64,
}

/// An RPC of a client.
pub struct Rpc {
    pub process_id: String,
    pub fate: Fate,
    /// The number that the answer carried.
    pub nonce: Option<u64>,
}

/// A process that a client saw closed.
pub struct Seen {
    pub process_id: String,
    pub status: String,
    pub results: Value,
}

/// What clients did in this round.
#[derive(Default)]
pub struct Page {
    /// By request id, which is the process id where that is started once.
    pub starts: BTreeMap<String, (String, Start)>,
    pub messages: BTreeMap<String, Message>,
    pub rpcs: BTreeMap<String, Rpc>,
    pub seen: Vec<Seen>,
    /// Answers to calls that were fetched, by their numbers.
    pub answers: BTreeMap<u64, Fate>,
    /// Of each process, how many of its incidents were resolved.
    pub resolved: BTreeMap<String, u64>,
    /// What no client should ever meet.
    pub complaints: Vec<String>,
}

/// The log, in memory and in a file for a reader.
pub struct Record {
    page: Mutex<Page>,
    file: Mutex<File>,
    begun: Instant,
}

impl Record {
    /// An empty one; the file is made.
    pub fn create(path: &Path) -> std::io::Result<Record> {
        Ok(Record { page: Mutex::default(), file: Mutex::new(File::create(path)?), begun: Instant::now() })
    }

    /// What is known so far.
    pub fn page(&self) -> MutexGuard<'_, Page> {
        self.page.lock().expect("nothing panics with the lock")
    }

    /// The page of a round that is over; a new one begins.
    pub fn turn_the_page(&self) -> Page {
        std::mem::take(&mut *self.page())
    }

    /// Writes a line for a reader.
    pub fn note(&self, line: &str) {
        let text = format!("{:>9.3} {line}\n", self.begun.elapsed().as_secs_f64());
        if let Err(error) = self.file.lock().expect("nothing panics with the lock").write_all(text.as_bytes()) {
            eprintln!("the clients' log can't be written: {error}");
        }
    }

    /// A start and what became of it.
    pub fn start(&self, request: &str, process_id: &str, start: Start) {
        self.note(&format!("start {process_id} ({request}): {:?}", start.fate));
        self.page().starts.insert(request.to_owned(), (process_id.to_owned(), start));
    }

    /// A message and what became of it.
    pub fn message(&self, uid: &str, message: Message) {
        self.note(&format!("publish {uid}: {:?}", message.fate));
        self.page().messages.insert(uid.to_owned(), message);
    }

    /// An RPC and what became of it.
    pub fn rpc(&self, key: &str, rpc: Rpc) {
        self.note(&format!("rpc {key}: {:?} {:?}", rpc.fate, rpc.nonce));
        self.page().rpcs.insert(key.to_owned(), rpc);
    }

    /// An answer to a call that was fetched, and what became of it.
    pub fn answer(&self, call: &str, nonce: u64, fate: Fate) {
        self.note(&format!("answer {nonce} to {call}: {fate:?}"));
        self.page().answers.insert(nonce, fate);
    }

    /// An incident that was resolved.
    pub fn resolved(&self, process_id: &str) {
        self.note(&format!("resolved {process_id}"));
        *self.page().resolved.entry(process_id.to_owned()).or_default() += 1;
    }

    /// A process that was seen closed.
    pub fn seen(&self, seen: Seen) {
        self.note(&format!("seen {} {}", seen.process_id, seen.status));
        self.page().seen.push(seen);
    }

    /// Something that no client should ever meet.
    pub fn complain(&self, what: String) {
        self.note(&format!("COMPLAINT {what}"));
        self.page().complaints.push(what);
    }
}
