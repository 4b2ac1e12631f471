//! Merges a start into an execution whose first call has not begun: the resulting input, and the time of the first
//! call.

use crate::words;
use crate::{Command, Duration, Execution, FIRST_STATE, Json, Start, Timestamp};
use std::collections::BTreeMap;

/// How a start is merged into an execution with the same correlation key that waits for its first call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergeOptions {
    pub input: MergedInput,
    pub start_at: MergedStart,
    /// Merge only if the new start is due less than this after the pending one.
    pub within: Option<Duration>,
    /// A merge never delays the first call by more than this after the first start was made.
    pub at_most: Option<Duration>,
}

/// The input of a merged start.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum MergedInput {
    /// The input of the pending start.
    #[default]
    Keep,
    /// The input of the new start.
    Replace,
    /// Both inputs, combined by [`merged`].
    Merge,
    /// The result of a function of both inputs, with its qualified name.
    Function(String),
}

impl MergedInput {
    /// The words for inputs that need no function.
    pub const WORDS: &'static [&'static str] = &["KEEP", "REPLACE", "MERGE"];

    /// The input that the word stands for. None if the word is unknown.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "KEEP" => Some(Self::Keep),
            "REPLACE" => Some(Self::Replace),
            "MERGE" => Some(Self::Merge),
            _ => None,
        }
    }
}

words! {
    /// When a merged start is due.
    #[derive(Default)]
    MergedStart {
        /// When the pending start is due: the first start decides.
        #[default]
        Keep = "KEEP",
        /// When the new start is due: the last start decides.
        Replace = "REPLACE",
        Earliest = "EARLIEST",
        Latest = "LATEST",
    }
}

impl MergeOptions {
    /// When the merged start is due. The pending start is due at `pending`, and its first start was made at `first`.
    /// The new start is due at `new`. None: the starts are too far apart to be merged.
    pub fn due(&self, first: Timestamp, pending: Timestamp, new: Timestamp) -> Option<Timestamp> {
        if self.within.is_some_and(|within| new >= pending + within) {
            return None;
        }
        let due = match self.start_at {
            MergedStart::Keep => pending,
            MergedStart::Replace => new,
            MergedStart::Earliest => pending.min(new),
            MergedStart::Latest => pending.max(new),
        };
        // A pending start that is already due later than that keeps its time.
        Some(match self.at_most {
            Some(most) if due > pending => due.min((first + most).max(pending)),
            _ => due,
        })
    }
}

/// The command that merges a start into a pending execution. `function` calls the function of the database with this
/// name, with the pending and the new input.
///
/// None: the execution has begun, the two starts are too far apart, the merge would move the first call away from timers
/// of guards, or the function returns no input.
pub fn merge_start<E>(
    pending: &Execution,
    start: &Start,
    options: &MergeOptions,
    now: Timestamp,
    function: impl FnOnce(&str, Option<&Json>, Option<&Json>) -> Result<Option<Json>, E>,
) -> Result<Option<Command>, E> {
    let Some(call) = pending.first_call() else { return Ok(None) };
    let new_due = start.start_at.map_or(now, |at| at.max(now));
    let Some(not_before) = options.due(pending.started_at, call.not_before, new_due) else { return Ok(None) };
    // Timers of guards count from the due time of the first call, so a merge must not move it.
    if pending.timers > 0 && not_before != call.not_before {
        return Ok(None);
    }
    let old = pending.states.get(&FIRST_STATE).and_then(|state| state.input.as_ref());
    let new = start.input.as_ref();
    let input = match &options.input {
        MergedInput::Keep => old.cloned(),
        MergedInput::Replace => new.cloned(),
        MergedInput::Merge => merged(old, new),
        MergedInput::Function(name) => match function(name, old, new)? {
            None => return Ok(None),
            // JSON null means: no input.
            made => made.filter(|made| made.as_str() != "null"),
        },
    };
    Ok(Some(Command::MergeStart { input, not_before }))
}

/// Combines two inputs. Objects: the keys of both, where the new values win. Arrays: one after the other. Otherwise the
/// new input.
pub fn merged(pending: Option<&Json>, new: Option<&Json>) -> Option<Json> {
    let (Some(old), Some(added)) = (pending, new) else { return new.or(pending).cloned() };
    let objects = (object(old), object(added));
    if let (Some(mut members), Some(more)) = objects {
        members.extend(more);
        let member = |(name, value): (&String, &Json)| {
            // A string always has a JSON form.
            format!("{}:{}", serde_json::to_string(name).unwrap_or_default(), value.as_str())
        };
        return Some(joined('{', members.iter().map(member), '}'));
    }
    match (array(old), array(added)) {
        (Some(mut items), Some(more)) => {
            items.extend(more);
            Some(joined('[', items.iter().map(|item| item.as_str().to_owned()), ']'))
        }
        _ => Some(added.clone()),
    }
}

fn object(json: &Json) -> Option<BTreeMap<String, Json>> {
    serde_json::from_str(json.as_str()).ok()
}

fn array(json: &Json) -> Option<Vec<Json>> {
    serde_json::from_str(json.as_str()).ok()
}

fn joined(open: char, parts: impl Iterator<Item = String>, close: char) -> Json {
    Json::from_trusted(format!("{open}{}{close}", parts.collect::<Vec<_>>().join(",")))
}
