//! Records unknown keys of an answer. Such keys change nothing and become warnings.

use crate::fields::cut;
use std::cell::{Cell, RefCell};

/// How many keys of one answer become warnings, and their total length. So the warnings are short for any answer.
const MOST: usize = 8;
const MOST_BYTES: usize = 600;
/// Longest place in a warning. A longer one loses its beginning, because the key is at the end.
const MOST_CHARS: usize = 120;

/// A step on the path to the value being read.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Key(&'static str),
    Item(usize),
}

/// The unknown keys of one answer. Each is recorded when its object is read.
#[derive(Default)]
pub(crate) struct Unknown {
    /// The path of the object being read.
    way: RefCell<Vec<Step>>,
    /// Each place without and with the indexes of items. A key in the same place of several items of a list is recorded
    /// once.
    places: RefCell<Vec<(String, String)>>,
    /// Not all unknown keys were recorded.
    more: Cell<bool>,
}

impl Unknown {
    /// Reads a value that is one step further down.
    pub fn within<T>(&self, step: Step, read: impl FnOnce() -> T) -> T {
        self.way.borrow_mut().push(step);
        let made = read();
        self.way.borrow_mut().pop();
        made
    }

    /// Records the keys of an object that are not known.
    pub fn note<'k>(&self, keys: impl Iterator<Item = &'k String>, known: &[&str]) {
        let mut places = self.places.borrow_mut();
        for key in keys.filter(|key| !known.contains(&key.as_str())) {
            let (mut bare, mut place) = (String::new(), String::new());
            for step in self.way.borrow().iter() {
                match step {
                    Step::Key(key) => {
                        bare += &format!("{key}.");
                        place += &format!("{key}.");
                    }
                    Step::Item(number) => place.insert_str(place.len() - 1, &format!("[{number}]")),
                }
            }
            let key = cut(key, MOST_CHARS).escape_debug().to_string();
            let (bare, place) = (bare + &key, place + &key);
            if places.iter().any(|(known, _)| *known == bare) {
                continue;
            }
            if places.len() >= MOST {
                self.more.set(true);
                return;
            }
            places.push((bare, place));
        }
    }

    /// One sentence for each recorded key.
    pub fn warnings(self) -> Vec<String> {
        let (mut warnings, mut more, mut bytes) = (Vec::new(), self.more.get(), 0);
        for (_, place) in self.places.into_inner() {
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
