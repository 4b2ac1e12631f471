//! What `xdb.now` may say.

use proptest::prelude::*;
use xdb_pure_tests::clock_offset::parse_offset;

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

#[test]
fn distances_are_summed_up_with_their_own_signs() {
    for (text, micros) in [
        ("", 0),
        ("  ", 0),
        ("0 s", 0),
        ("3 days", 3 * DAY),
        ("+3 days", 3 * DAY),
        ("-1 hour", -3600 * SECOND),
        ("- 1 HOUR", -3600 * SECOND),
        ("3days -2h", 3 * DAY - 7200 * SECOND),
        ("1 week 1 day 1 min 1 s 1 ms 1 us", 8 * DAY + 61 * SECOND + 1001),
        ("1.5 s", 1_500_000),
        (".5 ms", 500),
        ("0.0000019 s", 1),
        ("42 days 10:11:12.25", 42 * DAY + 36_672 * SECOND + 250_000),
        ("-3 days -02:30", -3 * DAY - 9000 * SECOND),
        ("00:00:00", 0),
        ("36500 days", 36_500 * DAY),
    ] {
        assert_eq!(parse_offset(text), Ok(micros), "{text}");
    }
}

#[test]
fn what_is_no_distance_is_refused_with_a_reason() {
    for (text, reason) in [
        ("tomorrow", "no number"),
        ("3", "no unit"),
        ("3 fortnights", "is no unit"),
        ("1 month", "no fixed length"),
        ("2 years", "no fixed length"),
        ("2027-01-01", "point in time"),
        ("2027-01-01T00:00:00Z", "point in time"),
        ("1/2/2027", "point in time"),
        ("36501 days", "more than 36500 days"),
        ("-36501 days", "more than 36500 days"),
        ("999999999999999 weeks", "more than 36500 days"),
        ("9999999999999999 s", "more than 15 digits"),
        ("--1 s", "no number"),
        ("1..5 s", "unit"),
        ("10:60", "written as in"),
        ("1.5:30", "written as in"),
        ("10:", "no number"),
        ("3 tage\u{e4}", "is no unit"),
    ] {
        let error = parse_offset(text).expect_err(text);
        assert!(error.contains(reason), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
        if let Ok(micros) = parse_offset(&text) {
            prop_assert!(micros.abs() <= 36_500 * DAY);
        }
    }

    #[test]
    fn digits_units_and_signs_are_read_or_refused(text in "([-+ .:0-9]|day|h|min|us| ){0,20}") {
        let _ = parse_offset(&text);
    }

    #[test]
    fn a_distance_is_what_it_says(days in -36_000_i64..36_000, seconds in 0_i64..86_400) {
        prop_assert_eq!(parse_offset(&format!("{days} days {seconds} s")), Ok(days * DAY + seconds * SECOND));
    }
}
