//! Reading any text takes memory and steps in proportion to its length. The allocator of this test counts the memory of
//! each thread.

mod common;

use common::{LIMITS, documents};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use xdb_engine::*;
use xdb_protocol::*;

struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    // A thread that is ending has no counters.
    let _ = HELD.try_with(|held| {
        held.set(held.get().saturating_add(bytes));
        MOST.with(|most| most.set(most.get().max(held.get())));
        ASKED.with(|asked| asked.set(asked.get() + bytes));
    });
}

fn uncount(bytes: usize) {
    let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(bytes)));
}

// SAFETY: all calls go to the system's allocator, and counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        uncount(layout.size());
        // SAFETY: as asked for.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // If the block has to move, the old and the new one exist at the same time.
        count(size);
        uncount(layout.size());
        // SAFETY: as asked for.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Clone, Copy, Debug)]
struct Cost {
    /// The most bytes that were allocated at a time.
    most: usize,
    /// The sum of all allocations. Bytes that are copied repeatedly count each time.
    asked: usize,
}

fn cost_of(work: impl FnOnce()) -> Cost {
    HELD.set(0);
    MOST.set(0);
    ASKED.set(0);
    work();
    Cost { most: MOST.get(), asked: ASKED.get() }
}

/// The shortest item of a list has two bytes of text, and takes some words of memory, twice while the list grows.
const BYTES_PER_BYTE: usize = 32;
const BYTES_PER_BYTE_IN_ALL: usize = 80;
const BYTES_AT_LEAST: usize = 20_000;

fn assert_bounded(what: &str, input: &[u8], decode: impl FnOnce()) -> usize {
    let cost = cost_of(decode);
    let start = String::from_utf8_lossy(&input[..input.len().min(200)]).into_owned();
    let (most, asked) = (BYTES_PER_BYTE * input.len(), BYTES_PER_BYTE_IN_ALL * input.len());
    assert!(cost.most <= most + BYTES_AT_LEAST, "{what}: {cost:?} for {} bytes: {start}", input.len());
    assert!(cost.asked <= asked + BYTES_AT_LEAST, "{what}: {cost:?} for {} bytes: {start}", input.len());
    cost.asked
}

const STORED: [&str; 31] = [
    "ProcessStarted",
    "StateStarted",
    "StartMerged",
    "WaitStarted",
    "CommandCompleted",
    "GlobalMessagesTaken",
    "TimerSkipped",
    "WaitCompleted",
    "StateCompleted",
    "AttemptFailed",
    "AttemptsFolded",
    "CallRepeated",
    "RetryRequested",
    "IncidentRaised",
    "StateFailed",
    "StateAborted",
    "LocalAttributesWritten",
    "GlobalAttributesWritten",
    "ChildrenStarted",
    "MessagesReceived",
    "GlobalMessagesPublished",
    "RpcApplied",
    "CompletionRequested",
    "ResultGiven",
    "ProcessPaused",
    "ProcessResumed",
    "CompensationAdded",
    "CompensationStarted",
    "ProcessClosed",
    "CommandRejected",
    "Snapshot",
];

fn short(result: Result<(), String>) {
    if let Err(error) = result {
        assert!(!error.is_empty() && error.chars().count() < 2000, "{error}");
    }
}

/// Gives the bytes to all readers. Returns how many bytes of memory each has allocated.
fn read_everywhere(bytes: &[u8]) -> Vec<usize> {
    let mut asked = Vec::new();
    let mut bounded = |what: &str, decode: &dyn Fn()| asked.push(assert_bounded(what, bytes, decode));
    bounded("an answer to waitUntil", &|| short(decode_wait_until(bytes, &LIMITS).map(drop)));
    bounded("an answer to execute", &|| short(decode_execute(bytes, &LIMITS).map(drop)));
    bounded("an answer of an RPC", &|| short(decode_rpc(bytes, &LIMITS).map(drop)));
    bounded("an error", &|| {
        let (failure, _) = decode_error(500, None, bytes);
        assert!(failure.detail.chars().count() <= MAX_DETAIL_CHARS && !failure.detail.contains('\0'));
        assert!(failure.error_type.is_none_or(|word| word.chars().count() <= 200));
    });
    let Ok(text) = std::str::from_utf8(bytes) else { return asked };
    bounded("a definition", &|| short(parse_definition(text).map(drop)));
    bounded("start options", &|| short(parse_start_options(text).map(drop)));
    bounded("a payload", &|| short(check_payload(text, 1 << 30).map(drop).map_err(|e| e.to_string())));
    bounded("a step's id", &|| drop(text.parse::<StateExecutionId>()));
    for name in STORED {
        bounded(name, &|| drop(Event::from_parts(name, text)));
    }
    bounded("a name", &|| drop(Event::from_parts(text, "{}")));
    bounded("a stored definition", &|| drop(serde_json::from_str::<Definition>(text)));
    bounded("stored options", &|| drop(serde_json::from_str::<StateConfig>(text)));
    bounded("a stored state", &|| drop(serde_json::from_str::<StateExecution>(text)));
    bounded("a stored phase", &|| drop(serde_json::from_str::<Phase>(text)));
    bounded("a stored wait", &|| drop(serde_json::from_str::<Wait>(text)));
    bounded("a stored failure", &|| drop(serde_json::from_str::<LastFailure>(text)));
    bounded("a stored value", &|| drop(serde_json::from_str::<Json>(text)));
    asked
}

/// A random change of a document.
#[derive(Clone, Debug)]
enum Harm {
    Flip(Index, u8),
    Cut(Index),
    /// A part is repeated.
    Twice(Index, Index),
    /// A key and its value are repeated.
    KeyTwice(Index),
    /// A number is replaced.
    Number(Index, &'static str),
    /// A value is nested in brackets.
    Deeper(Index, usize, bool),
    /// A string gets longer.
    Longer(Index, &'static str, usize),
}

fn harm() -> impl Strategy<Value = Harm> {
    let number = prop::sample::select(
        &["1e999", "-1", "1e-9999", "99999999999999999999999", "0.1e300", "1e131071", "4294967296", "-0", "01", "NaN"]
            [..],
    );
    let text = prop::sample::select(&["x", "\\u0041", "\\u0000", "\\ud800", "é", "\\\\", "\u{1}"][..]);
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Harm::Flip(at, byte)),
        any::<Index>().prop_map(Harm::Cut),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Harm::Twice(from, to)),
        any::<Index>().prop_map(Harm::KeyTwice),
        (any::<Index>(), number).prop_map(|(at, number)| Harm::Number(at, number)),
        (any::<Index>(), 1..400usize, any::<bool>())
            .prop_map(|(at, levels, objects)| Harm::Deeper(at, levels, objects)),
        (any::<Index>(), text, 1..3000usize).prop_map(|(at, text, times)| Harm::Longer(at, text, times)),
    ]
}

/// One of the positions where `is_one` is true, chosen by the index. None: there is none.
fn found(bytes: &[u8], at: Index, is_one: impl Fn(usize) -> bool) -> Option<usize> {
    let places: Vec<usize> = (0..bytes.len()).filter(|place| is_one(*place)).collect();
    (!places.is_empty()).then(|| places[at.index(places.len())])
}

fn harmed(mut bytes: Vec<u8>, harm: &Harm) -> Vec<u8> {
    if bytes.is_empty() {
        return bytes;
    }
    // The end of the value: of a string, or of anything else up to the next comma or bracket.
    let end = |bytes: &[u8], from: usize| {
        (from..bytes.len()).find(|at| matches!(bytes[*at], b',' | b'}' | b']')).unwrap_or(bytes.len())
    };
    let value = |bytes: &[u8], place: usize| place > 0 && bytes[place - 1] == b':';
    match harm {
        Harm::Flip(at, byte) => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Harm::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Harm::Twice(from, to) => {
            let (a, b) = (from.index(bytes.len()), to.index(bytes.len()));
            let part = bytes[a.min(b)..a.max(b)].to_vec();
            bytes.splice(a.max(b)..a.max(b), part);
        }
        Harm::KeyTwice(at) => {
            let begins = |place: usize| bytes[place] == b'"' && matches!(bytes[..place].last(), Some(b'{' | b','));
            if let Some(from) = found(&bytes, *at, begins) {
                let mut member = bytes[from..end(&bytes, from)].to_vec();
                member.push(b',');
                bytes.splice(from..from, member);
            }
        }
        Harm::Number(at, number) => {
            let is_number = |place: usize| value(&bytes, place) && bytes[place].is_ascii_digit();
            if let Some(from) = found(&bytes, *at, is_number) {
                let to = end(&bytes, from);
                bytes.splice(from..to, number.bytes());
            }
        }
        Harm::Deeper(at, levels, objects) => {
            if let Some(from) = found(&bytes, *at, |place| value(&bytes, place) && !b"{[\"".contains(&bytes[place])) {
                let (open, close) = if *objects { ("{\"a\":", "}") } else { ("[", "]") };
                let to = end(&bytes, from);
                bytes.splice(to..to, close.repeat(*levels).into_bytes());
                bytes.splice(from..from, open.repeat(*levels).into_bytes());
            }
        }
        Harm::Longer(at, text, times) => {
            if let Some(quote) = found(&bytes, *at, |place| bytes[place] == b'"') {
                bytes.splice(quote + 1..quote + 1, text.repeat(*times).into_bytes());
            }
        }
    }
    bytes
}

/// Events, a snapshot and rows of a process with data of all kinds.
fn stored() -> Vec<String> {
    let definition = r#"{"states":{"A":{"executeApiRetryPolicy":{"maximumAttempts":3}}}}"#;
    let state = r#"{"seq":1,"id":"A-1","input":[1.50],"config":{"skipWaitUntil":true,"loadLocalAttributes":
        {"policy":"PARTIAL","names":["x"]}},"recovery":{"stateExecutionId":"B-2","api":"EXECUTE_API","failure":
        {"detail":"no"}},"startedAt":5,"endedAt":null,"phase":{"waiting":{"order":3,"since":6,"waitingType":
        "AnyOfCombination","commands":[{"commandId":"t","kind":{"timer":{"fireAt":9}},"status":"WAITING_COMMAND"},
        {"commandId":"q","kind":{"localQueue":{"queue":"q","atLeast":1,"atMost":2}},"status":"COMPLETED_COMMAND",
        "messages":[{"number":1,"queue":"q","messageId":"m","payload":{"a":[null]}}]},{"kind":{"globalQueue":{"queue":
        "g","key":"k","atLeast":1,"atMost":1}},"status":"WAITING_COMMAND","globalMessages":[]}],"combinations":
        [[0],[1,2]]}}}"#;
    let phase = r#"{"execute":{"call":{"notBefore":7,"failedAttempts":2,"generation":1,"lastFailure":{"api":
        "EXECUTE_API","attempt":2,"at":7,"failure":{"status":500,"errorType":"E","detail":"d","appDatabaseError":
        {"sqlState":"23505","message":"m","table":"t","constraint":"c"}}}},"results":null}}"#;
    let snapshot = format!(
        r#"{{"execution":{{"processId":"p","processType":"T","startedAt":1,"timeoutAt":99,"nextState":2,"nextMessage":3,
        "stateNumbers":{{"A":1}},"completing":false,"states":{{"1":{state}}},"queues":{{"q":[{{"number":2,"queue":
        "q","payload":1}}]}},"localAttributes":{{"x":1e2}},"results":[{{"stateExecutionId":"A-1","output":"o"}}],
        "priority":0}},"receivedAt":{{"2":4}},"messageIds":{{"count":1,"digest":12}}}}"#
    );
    let started = r#"{"seq":1,"stateExecutionId":"A-1","input":[1],"config":{"executeApiTimeoutSeconds":1.5},
        "skipWaitUntil":false,"notBefore":5}"#;
    let received = r#"{"publisher":"Client","messages":[{"number":1,"queue":"q","messageId":"m","payload":{"a":1}}]}"#;
    let written = r#"{"attributes":{"x":{"n":1.50},"y":null}}"#;
    let child = r#"{"processId":"p","processType":"T","startedBy":{"processId":"q","processExecutionId":
        "01a1f8a5-1337-7008-b047-32488e30ad8e","stateExecutionId":"A-1","onClose":"q","whenParentCloses":"LEAVE"},
        "locks":{"a":"EXCLUSIVE","b":"SHARE"}}"#;
    let children = r#"{"children":[{"processId":"c","processExecutionId":"01a1f8a5-1337-7008-b047-32488e30ad8e",
        "processType":"T"}]}"#;
    let noted = r#"{"seq":1,"of":"A-1","stateId":"B"}"#;
    let all = [definition, state, phase, &snapshot, started, received, written, child, children, noted];
    all.iter().map(|text| text.lines().map(str::trim_start).collect()).collect()
}

#[test]
fn stored_values_pass_the_checks_of_their_types() {
    let texts = stored();
    assert!(serde_json::from_str::<Definition>(&texts[0]).is_ok());
    assert!(serde_json::from_str::<StateExecution>(&texts[1]).is_ok());
    assert!(serde_json::from_str::<Phase>(&texts[2]).is_ok());
    for (name, text) in [
        "Snapshot",
        "StateStarted",
        "MessagesReceived",
        "LocalAttributesWritten",
        "ProcessStarted",
        "ChildrenStarted",
        "CompensationAdded",
    ]
    .iter()
    .zip(&texts[3..])
    {
        Event::from_parts(name, text).unwrap_or_else(|error| panic!("{error}: {text}"));
    }
}

proptest! {
    #[test]
    fn bytes_of_any_kind(bytes in vec(any::<u8>(), 0..2000)) {
        read_everywhere(&bytes);
    }

    #[test]
    fn texts_of_any_kind(text in any::<String>(), json in r#"[\[\]{}",:0-9eE.\-ntrufalse \\]{0,300}"#) {
        read_everywhere(text.as_bytes());
        read_everywhere(json.as_bytes());
        read_everywhere(format!("{{\"{text}\":{json}}}").as_bytes());
    }

    #[test]
    fn documents_that_were_harmed(which in any::<Index>(), harms in vec(harm(), 1..6)) {
        let mut all: Vec<String> = documents().into_iter().map(|(_, document)| document.to_string()).collect();
        all.extend(stored());
        let mut bytes = all[which.index(all.len())].clone().into_bytes();
        for harm in &harms {
            bytes = harmed(bytes, harm);
        }
        read_everywhere(&bytes);
    }
}

/// Texts that can grow: a beginning, a part to repeat, and an end.
fn growing() -> Vec<(&'static str, &'static str, &'static str)> {
    vec![
        ("", "[", ""),
        ("", "{\"a\":", ""),
        ("\"", "x", "\""),
        ("\"", "\\u0041", "\""),
        ("\"", "é", ""),
        ("", "9", ""),
        ("0.", "0", "1"),
        ("1e", "9", ""),
        ("", " ", "{}"),
        ("{\"detail\":\"", "\\n", "\"}"),
        ("{\"errorType\":\"", "\u{7f}", "\"}"),
        ("{\"a\":1", ",\"a\":1", "}"),
        ("{\"", "k", "\":1}"),
        ("[1", ",1", "]"),
        ("{\"publishToLocalQueue\":[1", ",1", "]}"),
        ("{\"publishToLocalQueue\":[{\"queueName\":\"q\"}", ",{\"queueName\":\"q\"}", "],\"output\":1}"),
        ("{\"output\":[1", ",1", "]}"),
        ("{\"output\":[1", ",1e999", "]}"),
        ("{\"stateDecision\":{\"nextStates\":[{\"stateId\":\"A\"}", ",{\"stateId\":\"A\"}", "]}}"),
        (
            "{\"commandRequest\":{\"waitingType\":\"AllOfCompletion\",\"timerCommands\":[{\"delayInSeconds\":1}",
            ",{\"delayInSeconds\":1}",
            "]}}",
        ),
        (
            "{\"commandRequest\":{\"waitingType\":\"AllOfCompletion\",\"timerCommands\":[{\"cron\":\"@daily\"}",
            ",{\"cron\":\"1-5/2,7 * * jan-dec mon\"}",
            "]}}",
        ),
        (
            "{\"commandRequest\":{\"waitingType\":\"AnyOfCombination\",\"timerCommands\":[{\"commandId\":\"t\",\
            \"delayInSeconds\":1}],\"combinations\":[[\"t\"]",
            ",[\"t\"]",
            "]}}",
        ),
        (
            "{\"commandRequest\":{\"waitingType\":\"AnyOfCombination\",\"timerCommands\":[{\"commandId\":\"t\",\
            \"delayInSeconds\":1}],\"combinations\":[[\"t\"",
            ",\"t\"",
            "]]}}",
        ),
        ("{\"states\":{\"A\":{\"loadLocalAttributes\":{\"policy\":\"PARTIAL\",\"names\":[\"a\"", ",\"a\"", "]}}}}"),
        ("{\"localQueues\":[\"q\"", ",\"q\"", "]}"),
        ("{\"startingStateConfig\":", "{\"stateFailureRecoveryOptions\":{\"stateFailureProceedStateConfig\":", ""),
        ("{\"seq\":1,\"waitingType\":\"AnyOfCompletion\",\"commands\":[],\"combinations\":[[]", ",[]", "]}"),
        ("{\"seq\":1,\"command\":1,\"messages\":[1", ",1", "]}"),
        ("{\"attributes\":{\"a\":1", ",\"a\":1", "}}"),
        (
            "{\"publisher\":\"Rpc\",\"messages\":[{\"number\":1,\"queue\":\"q\"}",
            ",{\"number\":1,\"queue\":\"q\"}",
            "]}",
        ),
    ]
}

/// A step that takes the square of the length would show in the allocated memory, or take too long to end.
#[test]
fn twice_the_text_is_twice_the_work() {
    for (begin, part, end) in growing() {
        let text = |bytes: usize| format!("{begin}{}{end}", part.repeat(bytes / part.len()));
        read_everywhere(text(1 << 19).as_bytes());
        let [one, two] = [1 << 17, 1 << 18].map(|bytes| read_everywhere(text(bytes).as_bytes()));
        assert!(one.len() > 20, "all have read it");
        for (one, two) in one.into_iter().zip(two) {
            assert!(two <= one * 5 / 2 + BYTES_AT_LEAST, "{begin}{part}...: {one} bytes, and for twice the text {two}");
        }
    }
}
