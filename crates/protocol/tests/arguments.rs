//! Arguments of SQL functions, and the errors for invalid ones.

use std::collections::BTreeMap;
use xdb_engine::{Json, ProcessStatus, Rejection, TableMapping};
use xdb_protocol::arguments::{name, name_if_given, payload, payloads, row_keys, state_execution_id};
use xdb_protocol::refusal::{self, Refusal};

fn table(name: &str, key: &[&str]) -> TableMapping {
    let primary_key = key.iter().map(|column| (*column).to_owned()).collect();
    TableMapping { table: name.to_owned(), primary_key, ..TableMapping::default() }
}

fn named(table: &str, columns: &[(&str, &str)]) -> BTreeMap<String, BTreeMap<String, Json>> {
    let columns = columns.iter().map(|(column, value)| ((*column).to_owned(), Json::from_trusted(*value)));
    BTreeMap::from([(table.to_owned(), columns.collect())])
}

fn refusal<T: std::fmt::Debug>(refused: Result<T, Refusal>) -> String {
    let refusal = refused.unwrap_err();
    format!("{} {}", refusal.sqlstate(), refusal.message)
}

#[test]
fn names_are_given_and_neither_empty_nor_endless() {
    assert_eq!(name("queue_name", Some("q".to_owned())), Ok("q".to_owned()));
    assert_eq!(name_if_given("key", None), Ok(None));
    assert_eq!(refusal(name("queue_name", None)), "XD009 invalid value for queue_name: it must not be null");
    assert_eq!(
        refusal(name("queue_name", Some(String::new()))),
        "XD009 invalid value for queue_name: it must not be empty"
    );
    let long = "x".repeat(1025);
    let what = "XD009 invalid value for key: it is 1025 bytes long; at most 1024 are allowed";
    assert_eq!(refusal(name_if_given("key", Some(long))), what);
    let what = "XD009 invalid value for state_execution_id: \"Submit\" is not the id of a step, like \"Submit-1\"";
    assert_eq!(refusal(state_execution_id(Some("Submit".to_owned()))), what);
}

#[test]
fn nothing_is_as_good_as_null() {
    assert_eq!(payload("input", None, 10), Ok(None));
    assert_eq!(payload("input", Some("null"), 10), Ok(None));
    assert_eq!(payloads("attributes", Some("null"), 10), Ok(BTreeMap::new()));
    assert_eq!(
        refusal(payload("input", Some("\"0123456789\""), 10)),
        "XD015 input is 12 bytes long; at most 10 are allowed"
    );
    let what = "XD015 attributes.a has the escape \\u0000 at byte 1: Postgres can't store NUL characters";
    assert_eq!(refusal(payloads("attributes", Some("{\"a\": \"\\u0000\"}"), 100)), what);
    assert_eq!(
        refusal(payloads("attributes", Some("[]"), 100)),
        "XD009 invalid value for attributes: it must be a JSON object"
    );
}

#[test]
fn every_mapped_table_has_a_key() {
    let nothing = BTreeMap::new();
    let (users, carts) = (table("users", &["id"]), table("carts", &["shop", "number"]));
    let keys = |key: &[&str]| key.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
    assert_eq!(row_keys(std::slice::from_ref(&users), Some("u1"), &nothing), Ok(vec![keys(&["u1"])]));
    let both = [users, carts];
    let of_cart = named("carts", &[("number", "7"), ("shop", "\"s\"")]);
    assert_eq!(row_keys(&both, Some("u1"), &of_cart), Ok(vec![keys(&["u1"]), keys(&["s", "7"])]));
    assert_eq!(row_keys(&[], None, &nothing), Ok(Vec::new()));
    for (refused, why) in [
        (row_keys(&[], Some("u1"), &nothing), "global_attribute_pk: the process type maps no table"),
        (
            row_keys(&both, Some("u1"), &nothing),
            "options.globalAttributeKeys: the process type maps table carts, so the key of its row is needed",
        ),
        (
            row_keys(&both, None, &of_cart),
            "global_attribute_pk: the process type maps table users, so the key of its row is needed",
        ),
        (
            row_keys(&both, Some("u1"), &named("carts", &[("shop", "1")])),
            "options.globalAttributeKeys: table carts needs the key columns shop, number and no other",
        ),
        (
            row_keys(&both, Some("u1"), &named("cars", &[("shop", "1")])),
            "options.globalAttributeKeys: \"cars\" is unknown",
        ),
    ] {
        assert_eq!(refusal(refused), format!("XD009 invalid value for {why}"));
    }
}

#[test]
fn a_refused_command_has_the_same_message_wherever_it_is_refused() {
    let refusal = refusal::rejected("p", &Rejection::NotRunning(ProcessStatus::Failed));
    assert_eq!((refusal.sqlstate(), refusal.message.as_str()), ("XD007", "process \"p\" is not running"));
    assert_eq!(refusal.detail.as_deref(), Some("Its status is FAILED."));
    assert_eq!(refusal::rejected("p", &Rejection::Stale).sqlstate(), "XX000");
    assert_eq!(refusal::rejected_start("p", &Rejection::UnusedInput).sqlstate(), "XD009");
    for wrong in [Rejection::InvalidOptions("too long".to_owned()), Rejection::InvalidAnswer("too long".to_owned())] {
        assert_eq!(refusal::rejected("p", &wrong).sqlstate(), "XD009");
        let message = "invalid value for options.startingStateConfig: too long";
        assert_eq!(refusal::rejected_start("p", &wrong).message, message);
    }
    let unknown = Rejection::UnknownQueue { name: "q".to_owned(), within: None, known: "a, b".to_owned() };
    let refusal = refusal::rpc_not_applied("peek", xdb_protocol::rejected_answer(&unknown).0);
    let detail = "Unknown local queue \"q\": known are a, b.";
    assert_eq!((refusal.sqlstate(), refusal.detail.as_deref()), ("XD010", Some(detail)));
}
