//! Bytes of the requests that are under way, and who may have more of them.
//!
//! Small requests are limited by their number alone ([`room`](crate::room)), so that nobody's large ones keep them out. The large ones
//! share a limit as calls share places: an owner gets more while it has fewer than [`SHARE`] times the bytes that are free.
//!
//! How large a request is, is known when it is made: then it may not fit, and its call is put back. Calls of its owner to this worker
//! are looked for again when it does.

use crate::room::{Line, Owner, SHARE};
use std::collections::HashMap;

/// A request with more bytes is large.
pub const LARGE: usize = 64 * 1024;

/// Bytes of the large requests that are under way. There may be one request beyond the limit.
#[derive(Clone, Debug, Default)]
pub struct Bytes {
    all: usize,
    owners: HashMap<Owner, usize>,
    /// In these lines is a request for which there was no room, of so many bytes.
    wanted: HashMap<Line, usize>,
}

impl Bytes {
    fn of(&self, owner: Owner) -> usize {
        self.owners.get(&owner).copied().unwrap_or(0)
    }

    /// Whether an owner's request with so many bytes may go out, where `most` may be under way. Whoever has none gets one as long as
    /// there is room for anything, however large it is.
    pub fn fits(&self, owner: Owner, bytes: usize, most: usize) -> bool {
        let (has, free) = (self.of(owner), most.saturating_sub(self.all));
        bytes <= LARGE || (has == 0 && free > 0) || has + bytes <= SHARE * free.saturating_sub(bytes)
    }

    /// A request goes out.
    pub fn add(&mut self, line: Line, bytes: usize) {
        self.wanted.remove(&line);
        if bytes > LARGE {
            self.all += bytes;
            *self.owners.entry(line.owner).or_default() += bytes;
        }
    }

    /// A request has ended.
    pub fn remove(&mut self, owner: Owner, bytes: usize) {
        if bytes <= LARGE {
            return;
        }
        self.all -= bytes;
        if let Some(has) = self.owners.get_mut(&owner) {
            *has -= bytes;
            if *has == 0 {
                self.owners.remove(&owner);
            }
        }
    }

    /// There was no room for a request. Until there is, no call of its line is looked for.
    pub fn wants(&mut self, line: Line, bytes: usize) {
        self.wanted.insert(line, bytes);
    }

    /// Whether there is room for what was refused last in this line, if anything was.
    pub fn admits(&self, line: Line, most: usize) -> bool {
        self.wanted.get(&line).is_none_or(|bytes| self.fits(line.owner, *bytes, most))
    }
}
