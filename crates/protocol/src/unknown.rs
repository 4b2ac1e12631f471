//! Keys of an answer that nobody asks for: they change nothing, and are told.

use crate::fields::cut;
use std::cell::{Cell, RefCell};

/// How many are told of one answer, and how long they may be together: whatever an answer has, what is told of it is short.
const MOST: usize = 8;
const MOST_BYTES: usize = 600;
/// Of one place. The end of a longer one is kept, where the key is.
const MOST_CHARS: usize = 120;

/// The unknown keys of one answer. Each is noted where its object is read, and its place grows on the way out.
#[derive(Default)]
pub(crate) struct Unknown {
    places: RefCell<Vec<String>>,
    /// There are more than are told.
    more: Cell<bool>,
}

impl Unknown {
    /// Notes the keys of an object that are not among the known ones.
    pub fn note<'k>(&self, keys: impl Iterator<Item = &'k String>, known: &[&str]) {
        for key in keys.filter(|key| !known.contains(&key.as_str())) {
            let mut places = self.places.borrow_mut();
            if places.len() >= MOST {
                self.more.set(true);
                return;
            }
            places.push(cut(key, MOST_CHARS).escape_debug().to_string());
        }
    }

    /// How many were noted so far.
    pub fn count(&self) -> usize {
        self.places.borrow().len()
    }

    /// Those that were noted after the first `before` ones are in the value of this key.
    pub fn under(&self, before: usize, key: &str) {
        for place in self.places.borrow_mut().iter_mut().skip(before) {
            let dot = if place.starts_with('[') { "" } else { "." };
            *place = format!("{key}{dot}{place}");
        }
    }

    /// Those that were noted after the first `before` ones are in this item of a list, whose first items had those from
    /// `of_list` on. What several items have in the same place is told once.
    pub fn in_item(&self, of_list: usize, before: usize, index: usize) {
        let mut places = self.places.borrow_mut();
        let item = places.split_off(before);
        for place in item {
            let same = |other: &String| other.split_once("].").is_some_and(|(_, other)| *other == place);
            if !places.iter().skip(of_list).any(same) {
                places.push(format!("[{index}].{place}"));
            }
        }
    }

    /// A sentence for each.
    pub fn warnings(self) -> Vec<String> {
        let (mut warnings, mut more, mut bytes) = (Vec::new(), self.more.get(), 0);
        for place in self.places.into_inner() {
            let chars = place.chars().count();
            let short = match chars.checked_sub(MOST_CHARS) {
                Some(1..) => format!("…{}", place.chars().skip(chars - MOST_CHARS).collect::<String>()),
                _ => place,
            };
            bytes += short.len();
            if bytes > MOST_BYTES {
                more = true;
                break;
            }
            warnings.push(format!("unknown key {short}"));
        }
        if more {
            warnings.push("further unknown keys".to_owned());
        }
        warnings
    }
}
