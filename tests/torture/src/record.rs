//! The clients' own log: their requests, and the results that they know.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use serde_json::Value;

use crate::shapes::Shape;

/// The result of an operation, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The operation was committed, and the client got the answer.
    Acknowledged,
    /// Its transaction was rolled back.
    RolledBack,
    /// The server refused it.
    Refused,
    /// The answer was lost, and the client did not repeat the operation.
    Unknown,
}

/// A start of a process.
pub struct Start {
    pub shape: Shape,
    /// See [`Shape::ways`].
    pub way: &'static str,
    pub fate: Fate,
    /// The expected number of steps, timers, messages or threads.
    pub length: u64,
    /// The last start of an id. The next start may have stopped any earlier one.
    pub last: bool,
}

/// A message of a client.
pub struct Message {
    pub process_id: String,
    pub fate: Fate,
    /// Its position among the messages that its client published to the process one after the other.
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

/// The operations of clients in this round.
#[derive(Default)]
pub struct Page {
    /// By request id. The request id is the process id if that is started only once.
    pub starts: BTreeMap<String, (String, Start)>,
    pub messages: BTreeMap<String, Message>,
    pub rpcs: BTreeMap<String, Rpc>,
    pub seen: Vec<Seen>,
    /// Answers to claimed calls, by their numbers.
    pub answers: BTreeMap<u64, Fate>,
    /// How many incidents were resolved, by process.
    pub resolved: BTreeMap<String, u64>,
    /// Errors that no client should ever get.
    pub complaints: Vec<String>,
}

/// The log, in memory and in a file for a reader.
pub struct Record {
    page: Mutex<Page>,
    file: Mutex<File>,
    begun: Instant,
}

impl Record {
    /// An empty record. Creates the file.
    pub fn create(path: &Path) -> std::io::Result<Record> {
        Ok(Record { page: Mutex::default(), file: Mutex::new(File::create(path)?), begun: Instant::now() })
    }

    /// The page so far.
    pub fn page(&self) -> MutexGuard<'_, Page> {
        self.page.lock().expect("nothing panics with the lock")
    }

    /// Takes the page of a finished round, and begins a new one.
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

    /// Records a start and its result.
    pub fn start(&self, request: &str, process_id: &str, start: Start) {
        self.note(&format!("start {process_id} ({request}): {:?}", start.fate));
        self.page().starts.insert(request.to_owned(), (process_id.to_owned(), start));
    }

    /// Records a message and its result.
    pub fn message(&self, uid: &str, message: Message) {
        self.note(&format!("publish {uid}: {:?}", message.fate));
        self.page().messages.insert(uid.to_owned(), message);
    }

    /// Records an RPC and its result.
    pub fn rpc(&self, key: &str, rpc: Rpc) {
        self.note(&format!("rpc {key}: {:?} {:?}", rpc.fate, rpc.nonce));
        self.page().rpcs.insert(key.to_owned(), rpc);
    }

    /// Records an answer to a claimed call, and its result.
    pub fn answer(&self, call: &str, nonce: u64, fate: Fate) {
        self.note(&format!("answer {nonce} to {call}: {fate:?}"));
        self.page().answers.insert(nonce, fate);
    }

    /// Records a resolved incident.
    pub fn resolved(&self, process_id: &str) {
        self.note(&format!("resolved {process_id}"));
        *self.page().resolved.entry(process_id.to_owned()).or_default() += 1;
    }

    /// Records a process that was seen closed.
    pub fn seen(&self, seen: Seen) {
        self.note(&format!("seen {} {}", seen.process_id, seen.status));
        self.page().seen.push(seen);
    }

    /// Records an error that no client should ever get.
    pub fn complain(&self, what: String) {
        self.note(&format!("COMPLAINT {what}"));
        self.page().complaints.push(what);
    }
}
