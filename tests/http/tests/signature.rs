//! Signatures according to Standard Webhooks.

use proptest::prelude::*;
use xdb_http_tests::http::{check_secret, sign};

/// The vector of the specification's reference libraries.
#[test]
fn the_known_vector() {
    let signed = sign(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1_614_265_330,
        br#"{"test": 2432232314}"#,
    )
    .unwrap();
    assert_eq!(signed.id, "msg_p5jXN8AQM9LWM0D4loKWxJek");
    assert_eq!(signed.timestamp, "1614265330");
    assert_eq!(signed.signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
}

/// The vectors that every SDK tests: the signatures must be the same.
#[test]
fn the_vectors_of_the_sdks() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/conformance/signatures.json");
    let vectors: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut signed = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let Some(secret) = case["signedWith"].as_str() else { continue };
        let header = |name: &str| case["headers"][name].as_str().unwrap_or_else(|| panic!("no {name}: {case}"));
        let body = case["body"].as_str().or(vectors["body"].as_str()).unwrap();
        let timestamp = header("webhook-timestamp").parse().unwrap();
        let made = sign(secret, header("webhook-id"), timestamp, body.as_bytes()).unwrap();
        assert!(header("webhook-signature").split(' ').any(|each| each == made.signature), "{case}");
        signed += 1;
    }
    assert!(signed > 5);
}

#[test]
fn a_raw_secret_is_its_bytes() {
    let raw = sign("key", "id", 1, b"body").unwrap();
    assert_eq!(raw, sign("whsec_a2V5", "id", 1, b"body").unwrap());
    // Padding may be missing.
    assert_eq!(sign("whsec_a2V5cw==", "id", 1, b"").unwrap(), sign("whsec_a2V5cw", "id", 1, b"").unwrap());
}

#[test]
fn an_invalid_secret_is_reported_without_quoting_it() {
    for secret in ["whsec_!hidden!", "whsec_", ""] {
        let message = check_secret(secret).unwrap_err();
        assert!(!message.contains("hidden") && !message.contains('!'), "{message}");
        assert!(sign(secret, "id", 1, b"").is_err());
    }
    assert!(check_secret("any text").is_ok());
}

proptest! {
    #[test]
    fn every_part_counts(secret in "[a-z]{1,20}", id in "[a-z]{1,20}", time: u32, body: Vec<u8>, more: u8) {
        let time = u64::from(time);
        let signed = sign(&secret, &id, time, &body).unwrap().signature;
        let mut longer = body.clone();
        longer.push(more);
        for other in [
            sign(&format!("{secret}x"), &id, time, &body),
            sign(&secret, &format!("{id}x"), time, &body),
            sign(&secret, &id, time + 1, &body),
            sign(&secret, &id, time, &longer),
        ] {
            prop_assert_ne!(&signed, &other.unwrap().signature);
        }
    }
}
