//! Tests requests: the identity of a call, its attributes, and the limit on its size. Executions are made in memory.

use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration as Std;
use xdb_calls::*;
use xdb_engine::*;

const NOW: Timestamp = Timestamp(1_700_000_000_000_000);
const MOST: usize = 1000;

fn execution(phase: Phase) -> Execution {
    let mut execution = Execution::new(ExecutionId([0x12; 16]));
    execution.process_id = "order-1".to_owned();
    execution.process_type = "Order".to_owned();
    let state = StateExecution {
        seq: StateSeq(1),
        id: StateExecutionId { state_id: "Pay".to_owned(), number: 2 },
        input: Some(Json::from_trusted("[1.50]")),
        config: None,
        recovery: None,
        started_at: NOW,
        ended_at: None,
        phase,
    };
    execution.states.insert(StateSeq(1), Arc::new(state));
    execution
}

fn at_execute() -> Execution {
    execution(Phase::Execute { call: CallState { generation: 3, ..CallState::default() }, results: None })
}

fn origin(execution: &Execution) -> CallOrigin<'_> {
    CallOrigin { execution, owner: Some("alice".to_owned()), database: "app".into(), shard: Some(5) }
}

fn loading(policy: LoadPolicy, lock_type: LockType) -> Loading {
    Loading { policy, names: vec!["a".to_owned()], lock_type }
}

fn attributes(local: Loading) -> Attributes {
    let loads = Loads { global: loading(LoadPolicy::All, LockType::NoLocking), local };
    loads.attributes("{\"g\": 1}".to_owned(), [("a", "\"x\""), ("b", "2")].into_iter())
}

fn attempt(api: Api) -> Attempt {
    Attempt { seq: StateSeq(1), api, number: 4, first_at: NOW }
}

fn parsed(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

#[test]
fn the_request_of_a_state() {
    let execution = at_execute();
    let state = &execution.states[&StateSeq(1)];
    let call = OutgoingCall::of_state(origin(&execution), state, attempt(Api::Execute), Duration::from_seconds(30.0));
    let attributes = attributes(loading(LoadPolicy::Partial, LockType::NoLocking));
    let request = call.request(attributes, MOST).unwrap();
    assert_eq!(request.call.id, "12121212-1212-1212-1212-121212121212/Pay-2/execute");
    assert_eq!(request.key(), format!("{}/3", request.call.id));
    assert_eq!((request.path(), request.timeout()), (xdb_protocol::EXECUTE_PATH, Std::from_secs(30)));
    let body = parsed(&request.encode());
    let context = &body["context"];
    assert_eq!([&context["owner"], &context["database"], &context["processId"]], ["alice", "app", "order-1"]);
    assert_eq!([&context["attempt"], &context["shard"], &context["timeoutSeconds"]], [4, 5, 30]);
    assert_eq!(body["loadedGlobalAttributes"], json!({"g": 1}));
    assert_eq!(body["loadedLocalAttributes"], json!({"a": "x"}), "only what is wanted");
    assert!(body["commandResults"].is_object(), "execute gets empty results of commands");
    assert_eq!(context["stateExecutionId"], "Pay-2");
}

#[test]
fn wait_until_gets_no_results() {
    let execution = execution(Phase::WaitUntil(CallState::default()));
    let state = &execution.states[&StateSeq(1)];
    let call = OutgoingCall::of_state(origin(&execution), state, attempt(Api::WaitUntil), Duration::from_seconds(1.0));
    let attributes = attributes(Loading::default());
    let request = call.request(attributes, MOST).unwrap();
    assert_eq!(request.path(), xdb_protocol::WAIT_UNTIL_PATH);
    assert!(request.call.id.ends_with("/wait-until"));
    assert!(parsed(&request.encode()).get("commandResults").is_none());
}

#[test]
fn the_request_of_an_rpc() {
    let execution = at_execute();
    let input = Json::from_trusted("true");
    let call = OutgoingCall::of_rpc(origin(&execution), ("approve", Some(&input)), "k 1", NOW, Std::from_millis(1500));
    let attributes = attributes(Loading::default());
    let request = call.request(attributes, MOST).unwrap();
    assert_eq!(request.call.id, "12121212-1212-1212-1212-121212121212/rpc/approve/k%201");
    assert_eq!((request.path(), request.key()), (xdb_protocol::RPC_PATH, format!("{}/0", request.call.id)));
    let body = parsed(&request.encode());
    assert_eq!((&body["rpcName"], &body["input"]), (&json!("approve"), &json!(true)));
    assert_eq!((&body["context"]["attempt"], &body["context"]["timeoutSeconds"]), (&json!(1), &json!(1.5)));
    assert!(body["context"].get("stateExecutionId").is_none());
}

/// An attempt that loads other values under locks is another request.
#[test]
fn locked_values_are_part_of_the_key() {
    let execution = at_execute();
    let state = &execution.states[&StateSeq(1)];
    let key = |lock_type, value| {
        let call =
            OutgoingCall::of_state(origin(&execution), state, attempt(Api::Execute), Duration::from_seconds(1.0));
        let loads = Loads { global: loading(LoadPolicy::None, lock_type), local: loading(LoadPolicy::All, lock_type) };
        let attributes = loads.attributes("{}".to_owned(), [("a", value)].into_iter());
        call.request(attributes, MOST).unwrap().key()
    };
    assert_eq!(key(LockType::NoLocking, "1"), key(LockType::NoLocking, "2"));
    assert_eq!(key(LockType::Share, "1"), key(LockType::Share, "1"));
    assert_ne!(key(LockType::Share, "1"), key(LockType::Share, "2"));
}

#[test]
fn a_request_that_is_too_large_is_refused() {
    let execution = at_execute();
    let state = &execution.states[&StateSeq(1)];
    let request = |most| {
        let attributes = attributes(loading(LoadPolicy::All, LockType::NoLocking));
        let timeout = Duration::from_seconds(1.0);
        CallRequest::of_state(origin(&execution), state, attempt(Api::Execute), timeout, attributes, most)
    };
    let bytes = request(MOST).unwrap().bytes;
    assert!(request(bytes).is_ok());
    let what = format!("the request of the call would have {bytes} bytes; xdb.max_request_size is {}", bytes - 1);
    assert_eq!(*request(bytes - 1).unwrap_err(), Failure::of("RequestTooLarge", what));
}

/// With the policy ALL, a new attribute is a change. Without a lock nothing is a change.
#[test]
fn what_a_call_locks_has_a_fingerprint() {
    let names = ["a", "b"].map(str::to_owned);
    let fingerprint = |global, local, value, versions: &[&str]| {
        let versions: Vec<_> = versions.iter().map(|version| (*version).to_owned()).collect();
        Loads { global, local }.fingerprint(value, names.iter().zip(&versions))
    };
    let changes = |global: &Loading, local: &Loading| {
        let of = |value, versions: &[&str]| fingerprint(global.clone(), local.clone(), value, versions);
        let before = of("{}", &["1"]);
        [of("{\"a\":1}", &["1"]), of("{}", &["2"]), of("{}", &["1", "2"])].map(|now| now != before)
    };
    let unlocked = loading(LoadPolicy::All, LockType::NoLocking);
    let (all, some) = (loading(LoadPolicy::All, LockType::Share), loading(LoadPolicy::Partial, LockType::Exclusive));
    assert_eq!(changes(&unlocked, &all), [false, true, true]);
    assert_eq!(changes(&unlocked, &some), [false, true, false]);
    assert_eq!(changes(&all, &unlocked), [true, false, false]);
    assert_eq!(fingerprint(unlocked.clone(), unlocked, "{}", &["1"]), None);
}
