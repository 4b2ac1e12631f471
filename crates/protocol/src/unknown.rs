//! Keys of an answer that nobody asks for: they change nothing, and are told.

use crate::fields::cut;
use std::cell::{Cell, RefCell};

/// How many are told of one answer, and how long they may be together: whatever an answer has, what is told of it is short.
const MOST: usize = 8;
const MOST_BYTES: usize = 600;
/// Of one place. The end of a longer one is kept, where the key is.
const MOST_CHARS: usize = 120;

/// A step on the way to what is read.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Key(&'static str),
    Item(usize),
}

/// The unknown keys of one answer. Each is noted where its object is read.
#[derive(Default)]
pub(crate) struct Unknown {
    /// Where the object is that is read now.
    way: RefCell<Vec<Step>>,
    /// Each without the numbers of items, and with them: what several items of a list have in the same place is told once.
    places: RefCell<Vec<(String, String)>>,
    /// There are more than are told.
    more: Cell<bool>,
}

impl Unknown {
    /// Reads what is one step further.
    pub fn within<T>(&self, step: Step, read: impl FnOnce() -> T) -> T {
        self.way.borrow_mut().push(step);
        let made = read();
        self.way.borrow_mut().pop();
        made
    }

    /// Notes the keys of an object that are not among the known ones.
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

    /// A sentence for each.
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
