//! Starts that are merged into a pending one: the resulting time and input, by examples.

use xdb_engine::*;

const SECOND: i64 = 1_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp(seconds * SECOND)
}

fn due(options: &MergeOptions, pending: i64, new: i64) -> Option<i64> {
    options.due(at(100), at(pending), at(new)).map(|due| due.0 / SECOND)
}

#[test]
fn a_merged_start_is_due_according_to_its_options() {
    let with = |start_at| MergeOptions { start_at, ..MergeOptions::default() };
    let both = |start_at| [due(&with(start_at), 110, 120), due(&with(start_at), 110, 105)];
    assert_eq!(both(MergedStart::Keep), [Some(110), Some(110)]);
    assert_eq!(both(MergedStart::Replace), [Some(120), Some(105)]);
    assert_eq!(both(MergedStart::Earliest), [Some(110), Some(105)]);
    assert_eq!(both(MergedStart::Latest), [Some(120), Some(110)]);
}

#[test]
fn a_start_that_is_due_too_late_is_not_merged() {
    let within = MergeOptions { within: Some(Duration(10 * SECOND)), ..MergeOptions::default() };
    assert_eq!(due(&within, 110, 119), Some(110));
    assert_eq!(due(&within, 110, 120), None, "not less than that long after it");
    assert_eq!(due(&within, 110, 90), Some(110), "before it is no time after it");
}

#[test]
fn a_merged_start_is_delayed_up_to_its_limit() {
    for start_at in [MergedStart::Replace, MergedStart::Latest] {
        let bounded = MergeOptions { start_at, at_most: Some(Duration(30 * SECOND)), ..MergeOptions::default() };
        assert_eq!(due(&bounded, 110, 120), Some(120), "{start_at}");
        assert_eq!(due(&bounded, 120, 131), Some(130), "{start_at}: the first was made at 100");
        assert_eq!(due(&bounded, 150, 160), Some(150), "{start_at}: it was due later by itself");
    }
    let earlier =
        MergeOptions { start_at: MergedStart::Replace, at_most: Some(Duration(0)), ..MergeOptions::default() };
    assert_eq!(due(&earlier, 110, 105), Some(105));
}

#[test]
fn inputs_are_merged_by_their_kind_and_keep_their_digits() {
    let merge = |old: &str, new: &str| {
        let json = |text: &str| (!text.is_empty()).then(|| Json::from_trusted(text));
        merged(json(old).as_ref(), json(new).as_ref()).map(|json| json.as_str().to_owned())
    };
    let is = |old, new, both: &str| assert_eq!(merge(old, new).as_deref(), Some(both), "{old} and {new}");
    is(
        r#"{"a": 1, "b": {"x": 1}}"#,
        r#"{"b": 1.50, "c": 12345678901234567890123}"#,
        r#"{"a":1,"b":1.50,"c":12345678901234567890123}"#,
    );
    is("[1, [2]]", "[3.0]", "[1,[2],3.0]");
    is("[]", "[]", "[]");
    is("{}", "{}", "{}");
    is("1", "2", "2");
    is("[1]", "2", "2");
    is("[1]", "{}", "{}");
    is("{\"\\\"\": 1}", "{}", "{\"\\\"\":1}");
    is("", "2", "2");
    is("[1]", "", "[1]");
    assert_eq!(merge("", ""), None);
}
