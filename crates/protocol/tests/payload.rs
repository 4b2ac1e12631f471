//! `check_payload`, compared with examples and with a slow reference.

use proptest::prelude::*;
use xdb_protocol::{PayloadError, check_payload};

const ROOM: usize = 10_000_000;

fn accepted(text: &str) {
    let json = check_payload(text, ROOM).unwrap_or_else(|error| panic!("{text:.80} {error}"));
    assert_eq!(json.as_str(), text);
}

fn refused(text: &str) -> PayloadError {
    check_payload(text, ROOM).err().unwrap_or_else(|| panic!("{text:.80} was accepted"))
}

#[test]
fn json_is_accepted_as_it_stands() {
    for text in [
        "null",
        " \t\r\n true ",
        "false",
        "0",
        "-0",
        "-0.0e+00",
        "1.50",
        "123456789012345678901234567890.000",
        "1E-5",
        "\"\"",
        r#""\"\\\/\b\f\n\r\té 😀 \ud83d\ude00 \u0001""#,
        "\"\u{7f}\"",
        "[]",
        "{}",
        "[ [ ] , { } ]",
        r#"{"a" : 1 , "a" : [1,2] , "" : {"b":null}}"#,
    ] {
        accepted(text);
    }
}

#[test]
fn invalid_json_is_refused_with_its_place() {
    for text in [
        "",
        "  ",
        "nul",
        "nulll",
        "True",
        "NaN",
        "Infinity",
        "-",
        "+1",
        "01",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x10",
        "1 2",
        "'a'",
        "\"a",
        "\"a\nb\"",
        "\"a\0b\"",
        r#""\x""#,
        r#""\u12g4""#,
        "\"\\",
        "[",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1}",
        "]",
        "{",
        "{1:2}",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a":1]"#,
        "[] []",
        "{}}",
        "\u{feff}1",
        "[é]",
        "1\u{a0}",
    ] {
        assert!(matches!(refused(text), PayloadError::Syntax(_)), "{text}");
    }
    assert_eq!(refused("[é]").to_string(), "is not JSON: expected value at line 1 column 2");
    assert_eq!(refused("[1").to_string(), "is not JSON: EOF while parsing a list at line 1 column 2");
}

#[test]
fn nul_and_half_pairs_are_refused() {
    assert_eq!(refused(r#"{"a\u0000":1}"#), PayloadError::NulCharacter { at: 3 });
    accepted(r#""\\u0000""#);
    for text in [r#""\ud800""#, r#""\udc00""#, r#""\ud800x""#, r#""\ud800\n""#, r#""\ud800\ud800""#, r#""\uDBFFA""#] {
        assert_eq!(refused(text), PayloadError::UnpairedSurrogate { at: 1 }, "{text}");
    }
}

#[test]
fn depth_is_bounded_without_recursion() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let nested = |levels: usize| {
            let inner = if open == "[" { "[]" } else { "{}" };
            format!("{}{inner}{}", open.repeat(levels - 1), close.repeat(levels - 1))
        };
        accepted(&nested(128));
        assert_eq!(refused(&nested(129)), PayloadError::TooDeep { max: 128 });
        assert_eq!(refused(&nested(1_000_000)), PayloadError::TooDeep { max: 128 });
        assert!(matches!(refused(&open.repeat(1_000_000)), PayloadError::Syntax(_)));
    }
}

#[test]
fn numbers_stay_within_numeric() {
    for text in [
        "1e131071",
        "-9.99e131071",
        "0.001e131074",
        "1e-16383",
        "1.5e-16382",
        "0e131072",
        "0e1073741822",
        "0.00e16",
        "0e-16383",
        "100e131069",
        "1e0000000000000000000000000001",
    ] {
        accepted(text);
    }
    accepted(&"9".repeat(131_072));
    accepted(&format!("0.{}", "1".repeat(16_383)));
    for text in [
        "1e131072",
        "10e131071",
        "0.001e131075",
        "1e-16384",
        "1.5e-16383",
        "0e-16384",
        "0.0e-16383",
        "0e1073741823",
        "1e999999999999999999999999",
        "1e-999999999999999999999999",
    ] {
        assert_eq!(refused(text), PayloadError::NumberOutOfRange { at: 0 }, "{text}");
    }
    assert_eq!(refused(&format!("[1,{}]", "9".repeat(131_073))), PayloadError::NumberOutOfRange { at: 3 });
    assert_eq!(refused(&format!("0.{}", "0".repeat(16_384))), PayloadError::NumberOutOfRange { at: 0 });
}

#[test]
fn size_is_bounded_also_with_numbers_written_out() {
    assert!(check_payload("[1,2]", 5).is_ok());
    assert_eq!(check_payload("[1,2]", 4), Err(PayloadError::TooLarge { bytes: 5, max: 4 }));
    assert!(check_payload("1e99", 100).is_ok());
    assert_eq!(check_payload("1e100", 100), Err(PayloadError::TooLargeWrittenOut { bytes: 101, max: 100 }));
    assert_eq!(check_payload("-1e-3", 5), Err(PayloadError::TooLargeWrittenOut { bytes: 6, max: 5 }));
    let bomb = format!("[{}1]", "1e131071,".repeat(1000));
    assert!(matches!(check_payload(&bomb, 1 << 20), Err(PayloadError::TooLargeWrittenOut { .. })));
}

/// A value as text, and whether `check_payload` should accept it.
#[derive(Clone, Debug)]
struct Sample {
    text: String,
    good: bool,
}

/// Writes the number out digit by digit, and counts the digits.
fn naive_number_is_good(whole: &str, fraction: &str, exponent: i64) -> bool {
    let digits = format!("{whole}{fraction}");
    let point = whole.len() as i64 + exponent;
    let before = match point {
        ..=0 => String::new(),
        point if point as usize <= digits.len() => digits[..point as usize].to_owned(),
        point => format!("{digits}{}", "0".repeat(point as usize - digits.len())),
    };
    let scale = (digits.len() as i64 - point).max(0);
    before.trim_start_matches('0').len() <= 131_072 && scale <= 16_383
}

fn number() -> impl Strategy<Value = Sample> {
    let exponent = prop_oneof![3 => -20i64..20, 1 => 131_060i64..131_080, 1 => -16_390i64..-16_370];
    (any::<bool>(), "0|[1-9][0-9]{0,12}", "[0-9]{0,12}", proptest::option::of(exponent), "[eE]\\+?").prop_map(
        |(negative, whole, fraction, exponent, e)| {
            let mut text = format!("{}{whole}", if negative { "-" } else { "" });
            if !fraction.is_empty() {
                text.push_str(&format!(".{fraction}"));
            }
            match exponent {
                Some(exponent @ 0..) => text.push_str(&format!("{e}{exponent}")),
                Some(exponent) => text.push_str(&format!("e{exponent}")),
                None => {}
            }
            Sample { good: naive_number_is_good(&whole, &fraction, exponent.unwrap_or(0)), text }
        },
    )
}

fn string() -> impl Strategy<Value = Sample> {
    let piece = prop_oneof![
        8 => "[ -!#-\\[\\]-~é😀]{1,5}",
        4 => r#"\\["\\/bfnrt]"#,
        4 => r"\\u[0-9a-cA-C][0-9a-f]{3}",
        2 => r"\\ud8[0-9a-f]{2}\\udc[0-9a-f]{2}",
        1 => r"\\u[dD][89a-fA-F][0-9a-f]{2}",
        1 => r"\\u0000",
    ];
    proptest::collection::vec(piece, 0..4).prop_map(|pieces| {
        let text = format!("\"{}\"", pieces.concat());
        let good = serde_json::from_str::<String>(&text).is_ok_and(|decoded| !decoded.contains('\0'));
        Sample { text, good }
    })
}

fn value() -> impl Strategy<Value = Sample> {
    let word = prop_oneof![Just("true"), Just("false"), Just("null")];
    let leaf = prop_oneof![word.prop_map(|w| Sample { text: w.to_owned(), good: true }), number(), string()];
    leaf.prop_recursive(5, 40, 6, |inner| {
        let space = "[ \t\n\r]{0,2}";
        let array = (proptest::collection::vec(inner.clone(), 0..6), space).prop_map(|(items, space)| Sample {
            good: items.iter().all(|item| item.good),
            text: format!("[{space}{}{space}]", items.iter().map(|i| &*i.text).collect::<Vec<_>>().join(",")),
        });
        let member = (string(), inner, space).prop_map(|(key, value, space)| Sample {
            good: key.good && value.good,
            text: format!("{}{space}:{space}{}", key.text, value.text),
        });
        let object = proptest::collection::vec(member, 0..6).prop_map(|members| Sample {
            good: members.iter().all(|member| member.good),
            text: format!("{{{}}}", members.iter().map(|m| &*m.text).collect::<Vec<_>>().join(" , ")),
        });
        prop_oneof![array, object]
    })
}

proptest! {
    #[test]
    fn agrees_with_the_reference(sample in value()) {
        let checked = check_payload(&sample.text, ROOM);
        prop_assert_eq!(checked.is_ok(), sample.good, "{:?}", checked);
        if let Ok(json) = checked {
            prop_assert_eq!(json.as_str(), sample.text);
        }
    }

    #[test]
    fn agrees_about_the_grammar_of_broken_texts(sample in value(), cut in any::<prop::sample::Index>(), put in "[\\[\\]{}:,\"0-9eE.+\\-tn\\\\u ]{0,3}") {
        let mut chars: Vec<char> = sample.text.chars().collect();
        let at = cut.index(chars.len());
        chars.splice(at..(at + 1).min(chars.len()), put.chars());
        let text: String = chars.into_iter().collect();
        let grammatical = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
        match check_payload(&text, ROOM) {
            Ok(_) => prop_assert!(grammatical),
            Err(PayloadError::Syntax(_)) => prop_assert!(!grammatical, "{}", text),
            // Only `jsonb` refuses the text. The scan ends there, so the rest is not checked.
            Err(_) => {}
        }
    }

    #[test]
    fn never_panics(text in "\\PC*") {
        let _ = check_payload(&text, ROOM);
    }
}
