//! Reads how a start is merged into another one, from the options of a start.

use crate::fields::{Fault, Object, Parsed, UnknownKeys, name, quote, seconds, word};
use xdb_engine::{Duration, MergeOptions, MergedInput, MergedStart};

pub(crate) fn merge_options(text: &str) -> Parsed<MergeOptions> {
    let mut object = Object::read(text, UnknownKeys::Refused)?;
    let options = MergeOptions {
        input: object.optional("input", input)?.unwrap_or_default(),
        start_at: object
            .optional("startAt", |text| word(text, MergedStart::WORDS, MergedStart::parse))?
            .unwrap_or_default(),
        within: object.optional("withinSeconds", |text| seconds(text).map(Duration::from_seconds))?,
        at_most: object.optional("atMostSeconds", |text| seconds(text).map(Duration::from_seconds))?,
    };
    let may_delay = matches!(options.start_at, MergedStart::Replace | MergedStart::Latest);
    if options.at_most.is_some() && !may_delay {
        return Err(Fault::new("needs startAt REPLACE or LATEST: no other value postpones a start").at("atMostSeconds"));
    }
    object.finish(options)
}

/// One of the words, or the qualified name of a function. A name without a schema is refused, so a misspelt word is an
/// error.
fn input(text: &str) -> Parsed<MergedInput> {
    let given = name(text)?;
    match MergedInput::parse(&given) {
        Some(known) => Ok(known),
        None if given.contains('.') && !given.contains('(') => Ok(MergedInput::Function(given)),
        None => {
            let words = MergedInput::WORDS.join(", ");
            Err(Fault::new(format!(
                "is {}: it must be one of {words}, or the name of a function with its schema",
                quote(&given)
            )))
        }
    }
}
