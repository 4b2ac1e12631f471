//! What was told already: a thing that comes again with every answer is told once.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// What is remembered of one subject, and of how many: whatever workers answer, it takes little room.
const OF_ONE: usize = 64;
const SUBJECTS: usize = 1_000;

/// What was told of each subject, say of a state of a process type. Of a subject of which too much was told, nothing more is
/// told; with too many subjects, all is forgotten and told again.
#[derive(Debug, Default)]
pub struct Told {
    told: HashMap<u64, HashSet<u64>>,
    /// Told in the transaction that is open.
    unsettled: Vec<(u64, u64)>,
}

impl Told {
    /// Keeps of the texts those that are told of this subject for the first time. Two that differ in the numbers of items alone
    /// are the same.
    pub fn keep_new(&mut self, subject: impl Hash, texts: &mut Vec<String>) {
        if texts.is_empty() {
            return;
        }
        let subject = hash(&subject);
        if self.told.len() >= SUBJECTS && !self.told.contains_key(&subject) {
            self.told.clear();
        }
        let of_subject = self.told.entry(subject).or_default();
        texts.retain(|text| {
            let text = hash(&without_numbers(text));
            let is_new = of_subject.len() < OF_ONE && of_subject.insert(text);
            if is_new {
                self.unsettled.push((subject, text));
            }
            is_new
        });
    }

    /// The transaction has committed.
    pub fn settle(&mut self) {
        self.unsettled.clear();
    }

    /// The transaction was rolled back: nobody was told.
    pub fn undo(&mut self) {
        for (subject, text) in self.unsettled.drain(..) {
            if let Some(of_subject) = self.told.get_mut(&subject) {
                of_subject.remove(&text);
            }
        }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// `[7]` becomes `[]`.
fn without_numbers(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut in_brackets = false;
    for c in text.chars() {
        in_brackets = c == '[' || in_brackets && c.is_ascii_digit();
        if !(in_brackets && c.is_ascii_digit()) {
            kept.push(c);
        }
    }
    kept
}
