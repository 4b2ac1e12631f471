//! Values in sentences for a person, and in statements: names and texts of applications, durations, moments.

use jiff::Timestamp;
use std::fmt::Write;

/// The most characters of a text that a sentence quotes.
const LONGEST_QUOTE: usize = 300;

/// From this many seconds on, a sentence names the moment beside the duration.
const NAMES_MOMENT: i64 = 3600;

/// Whether a terminal shows a character as it is: it does not obey it, or change the order of others by it.
fn is_shown(character: char) -> bool {
    matches!(character, '\'' | '"' | '\\') || character.escape_debug().len() == 1
}

/// A text without characters that a terminal does not show: they are escaped. Escaping a text twice changes nothing.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match is_shown(character) {
            true => shown.push(character),
            false => shown.extend(character.escape_debug()),
        }
    }
    shown
}

/// JSON without such characters, except the ends of its lines. It says the same.
pub fn visible_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        match character == '\n' || is_shown(character) {
            true => shown.push(character),
            false => {
                character.encode_utf16(&mut [0; 2]).iter().for_each(|unit| shown.push_str(&format!("\\u{unit:04x}")))
            }
        }
    }
    shown
}

/// A name of the application. A long one is cut.
pub fn plain(text: &str) -> String {
    match text.char_indices().nth(LONGEST_QUOTE) {
        Some((end, _)) => visible(&text[..end]) + "…",
        None => visible(text),
    }
}

/// Like [`plain`], in quotation marks.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", plain(text))
}

/// A text as Postgres reads it under `standard_conforming_strings`, which each session sets.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A role as a literal of the type `regrole`, which reads names as SQL does.
pub fn role_literal(role: &str) -> String {
    let is_plain = role.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    literal(&if is_plain { role.to_owned() } else { format!("\"{}\"", role.replace('"', "\"\"")) })
}

/// A list as in a sentence: `a, b and c`.
pub fn listed(parts: &[String], last: &str) -> String {
    match parts {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., end] => format!("{} {last} {end}", first.join(", ")),
    }
}

/// A duration in its two largest units.
pub fn duration(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (large, small) = match seconds {
        0..60 => return format!("{seconds} s"),
        60..3600 => ((seconds / 60, "min"), (seconds % 60, "s")),
        3600..86_400 => ((seconds / 3600, "h"), (seconds % 3600 / 60, "min")),
        _ => ((seconds / 86_400, "d"), (seconds % 86_400 / 3600, "h")),
    };
    let mut shown = format!("{} {}", large.0, large.1);
    if small.0 > 0 {
        let _ = write!(shown, " {} {}", small.0, small.1);
    }
    shown
}

/// A moment, in UTC, to the second.
pub fn moment(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn seconds_until(at: Timestamp, now: Timestamp) -> i64 {
    (at - now).as_secs_f64().round() as i64
}

/// How long something lasts that began at `since`. A clock that was set back makes no negative duration.
pub fn lasted(since: Timestamp, now: Timestamp) -> String {
    match -seconds_until(since, now) {
        seconds if seconds < -1 => "0 s (the clock was set back)".to_owned(),
        seconds if seconds >= NAMES_MOMENT => format!("{} (since {})", duration(seconds), moment(since)),
        seconds => duration(seconds),
    }
}

/// `4 s ago`, for the past.
pub fn ago(at: Timestamp, now: Timestamp) -> String {
    match -seconds_until(at, now) {
        seconds if seconds < -1 => "0 s ago (the clock was set back)".to_owned(),
        seconds if seconds >= NAMES_MOMENT => format!("{} ago ({})", duration(seconds), moment(at)),
        seconds => format!("{} ago", duration(seconds)),
    }
}

/// `in 6 s`, for the future.
pub fn ahead(at: Timestamp, now: Timestamp) -> String {
    match seconds_until(at, now) {
        seconds if seconds >= NAMES_MOMENT => format!("in {} ({})", duration(seconds), moment(at)),
        seconds => format!("in {}", duration(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_and_are_never_negative() {
        for (seconds, shown) in [
            (-5, "0 s"),
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (61, "1 min 1 s"),
            (3600, "1 h"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(seconds), shown);
        }
    }

    #[test]
    fn visible_json_says_the_same_in_characters_that_no_terminal_obeys() {
        let text = "{\"a\": \"\u{9b}2J\u{202e}ü\\n\u{1f600}\u{e0001}\"}\n";
        let shown = visible_json(text);
        assert_eq!(shown, "{\"a\": \"\\u009b2J\\u202eü\\n\u{1f600}\\udb40\\udc01\"}\n");
        let [one, other] = [text, &shown].map(|json| serde_json::from_str::<serde_json::Value>(json).expect("JSON"));
        assert_eq!(one, other);
    }

    #[test]
    fn a_role_is_a_literal_that_names_it() {
        for (role, literal) in
            [("app_2", "'\"app_2\"'"), ("my_app", "'my_app'"), ("It's \"me\"", "'\"It''s \"\"me\"\"\"'")]
        {
            assert_eq!(role_literal(role), literal);
        }
    }

    #[test]
    fn a_quoted_text_has_no_character_that_a_terminal_obeys() {
        assert_eq!(quoted("it's \"fine\" \\ – größe"), "\"it's \"fine\" \\ – größe\"");
        assert_eq!(quoted("\x1b[2J\r\n\u{9b}\u{202e}"), "\"\\u{1b}[2J\\r\\n\\u{9b}\\u{202e}\"");
        assert_eq!(quoted(&"x".repeat(1000)).chars().count(), LONGEST_QUOTE + 3);
    }
}
