//! Tests `apply`, the only way in which an answer is applied. A driver in memory answers each step as a test says, or
//! at random.

#[path = "../../engine/tests/common/mod.rs"]
mod common;

use common::*;
use proptest::prelude::*;
use std::convert::Infallible;
use xdb_calls::*;
use xdb_engine::*;

/// The driver's result at each step.
#[derive(Clone, Debug)]
struct Replies {
    strict: bool,
    waits: bool,
    lock: Lock,
    too_large: bool,
    unchanged: Use,
    tables: Use,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lock {
    Held,
    Taken,
    Missing,
    Later,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Done,
    Changed,
    Refused,
    Later,
}

const WILLING: Replies = Replies {
    strict: false,
    waits: false,
    lock: Lock::Held,
    too_large: false,
    unchanged: Use::Done,
    tables: Use::Done,
};

struct Memory {
    world: World,
    replies: Replies,
    /// A message that is published before the lock for a close is taken.
    published: Option<&'static str>,
    asked: Vec<&'static str>,
}

/// The step that answered `Later`.
type Later = &'static str;

fn used<T>(of: Use, done: T, by: Later) -> Used<T, Later> {
    match of {
        Use::Done | Use::Changed => Used::Done(done),
        Use::Refused => Used::Refused(Failure::of("AppDatabaseError", by.to_owned())),
        Use::Later => Used::Later(by),
    }
}

impl Driver for Memory {
    type Error = Infallible;
    type Later = Later;

    fn decide(&mut self, command: &Command) -> Result<Result<Vec<Event>, Rejection>, Infallible> {
        self.asked.push("decide");
        Ok(self.world.decide(command))
    }

    fn is_strict(&self) -> bool {
        self.replies.strict
    }

    fn waits(&mut self, _: bool) -> Option<Later> {
        self.asked.push("waits");
        self.replies.waits.then_some("waits")
    }

    fn lock_for_close(&mut self, _: bool) -> Result<CloseLock<Later>, Infallible> {
        self.asked.push("lock");
        if let Some(queue) = self.published.take() {
            self.world.publish(queue, &["1"]);
        }
        Ok(match self.replies.lock {
            Lock::Held => CloseLock::Held,
            Lock::Taken => CloseLock::Taken,
            Lock::Missing => CloseLock::Missing,
            Lock::Later => CloseLock::Later("lock"),
        })
    }

    fn too_large(&mut self, _: &[Event]) -> Result<Option<String>, Infallible> {
        self.asked.push("too large");
        Ok(self.replies.too_large.then(|| "too much".to_owned()))
    }

    fn is_unchanged(&mut self) -> Result<Used<bool, Later>, Infallible> {
        self.asked.push("unchanged");
        Ok(used(self.replies.unchanged, self.replies.unchanged != Use::Changed, "unchanged"))
    }

    fn write_tables(&mut self, _: &Written<'_>) -> Result<Used<(), Later>, Infallible> {
        self.asked.push("tables");
        Ok(used(self.replies.tables, (), "tables"))
    }

    fn apply(&mut self, events: Vec<Event>) -> Result<(), Infallible> {
        self.asked.push("apply");
        let now = self.world.now;
        events.iter().for_each(|event| self.world.execution.apply(event, now));
        Ok(())
    }
}

/// A process whose first state is at `execute`.
fn memory(replies: Replies) -> Memory {
    let functions = [("book".to_owned(), "public.book".to_owned())].into();
    let world = World::started(Definition { functions, ..definition(&[("A", skipping()), ("B", skipping())]) });
    Memory { world, replies, published: None, asked: Vec::new() }
}

fn answer(decision: Decision, effects: Effects) -> Command {
    Command::ExecuteAnswered { seq: StateSeq(1), answer: ExecuteAnswer { decision, effects } }
}

/// An answer that calls a function, and has a warning.
fn calling(decision: Decision) -> Command {
    let call = FunctionCall { function: "book".to_owned(), argument: None };
    answer(decision, Effects { call_functions: vec![call], warnings: vec!["odd".to_owned()], ..Effects::default() })
}

fn applied(memory: &mut Memory, command: &Command) -> Outcome<Later> {
    let Ok(outcome) = apply(memory, command);
    outcome
}

/// The outcome of an answer that closes its process and calls a function.
fn outcome(replies: Replies) -> Outcome<Later> {
    applied(&mut memory(replies), &calling(close(CloseType::ForceComplete)))
}

fn failed_with(detail: &str, failure: Failure) -> Outcome<Later> {
    Outcome::Failed(Failure { detail: detail.to_owned(), ..failure }, Further::ByPolicy)
}

fn invalid() -> Failure {
    xdb_protocol::invalid_answer(String::new())
}

#[test]
fn an_answer_is_applied_after_everything_that_may_refuse_it() {
    let mut memory = memory(WILLING);
    assert_eq!(applied(&mut memory, &calling(close(CloseType::ForceComplete))), Outcome::Applied);
    assert_eq!(memory.asked, ["decide", "waits", "lock", "too large", "unchanged", "tables", "apply"]);
    assert!(!memory.world.execution.is_running());
}

#[test]
fn each_step_of_the_way_may_end_it() {
    let (unchanged, tables) = (|unchanged| Replies { unchanged, ..WILLING }, |tables| Replies { tables, ..WILLING });
    let refused = |by: &str| failed_with(&format!("{by}; odd"), Failure::of("AppDatabaseError", String::new()));
    assert_eq!(
        outcome(Replies { strict: true, ..WILLING }),
        failed_with("odd", invalid()),
        "warnings are reported once"
    );
    assert_eq!(outcome(Replies { waits: true, ..WILLING }), Outcome::Later("waits"));
    assert_eq!(outcome(Replies { lock: Lock::Missing, ..WILLING }), Outcome::Closing { conditional: false });
    assert_eq!(outcome(Replies { lock: Lock::Later, ..WILLING }), Outcome::Later("lock"));
    assert_eq!(outcome(Replies { too_large: true, ..WILLING }), failed_with("too much; odd", invalid()));
    assert_eq!(outcome(unchanged(Use::Changed)), Outcome::Repeat);
    assert_eq!(outcome(unchanged(Use::Refused)), refused("unchanged"));
    assert_eq!(outcome(unchanged(Use::Later)), Outcome::Later("unchanged"));
    assert_eq!(outcome(tables(Use::Refused)), refused("tables"));
    assert_eq!(outcome(tables(Use::Later)), Outcome::Later("tables"));
}

#[test]
fn an_answer_that_the_engine_rejects_is_a_failed_attempt_unless_it_is_late() {
    let mut memory = memory(WILLING);
    let unknown = applied(&mut memory, &calling(next(&["C"])));
    let Outcome::Failed(failure, further) = unknown else { panic!("{unknown:?}") };
    assert_eq!((failure.error_type.as_deref(), further), (Some(NOT_REGISTERED), Further::WhenRegistered));
    assert_eq!(failure.detail, "unknown state \"C\": known are A, B; odd");
    assert_eq!(applied(&mut memory, &calling(next(&["B"]))), Outcome::Applied);
    assert_eq!(applied(&mut memory, &calling(next(&["B"]))), Outcome::Over(Rejection::Stale));
    memory.world.execute(2, close(CloseType::ForceComplete));
    let closed = Rejection::NotRunning(ProcessStatus::Completed);
    assert_eq!(applied(&mut memory, &calling(next(&["B"]))), Outcome::Over(closed));
}

#[test]
fn a_close_is_decided_about_again_under_its_lock() {
    let conditional = Decision::ConditionalClose {
        close_type: CloseType::ForceComplete,
        queues: vec!["q".to_owned()],
        output: None,
        otherwise: vec![movement("B")],
    };
    let mut memory = memory(Replies { lock: Lock::Missing, ..WILLING });
    let command = answer(conditional, Effects::default());
    assert_eq!(applied(&mut memory, &command), Outcome::Closing { conditional: true });
    memory.replies.lock = Lock::Taken;
    memory.published = Some("q");
    memory.asked.clear();
    assert_eq!(applied(&mut memory, &command), Outcome::Applied);
    assert_eq!(memory.asked, ["decide", "waits", "lock", "decide", "too large", "unchanged", "apply"]);
    assert!(memory.world.execution.is_running(), "a message came before the lock");
}

#[test]
fn a_failed_attempt_skips_the_checks_of_answers() {
    let mut memory = memory(Replies { strict: true, unchanged: Use::Changed, tables: Use::Later, ..WILLING });
    let attempt = Attempt { seq: StateSeq(1), api: Api::Execute, number: 1, first_at: memory.world.now };
    let failed = attempt.failed(Failure::of("Timeout", "late".to_owned()), Further::ByPolicy);
    assert_eq!(applied(&mut memory, &failed), Outcome::Applied);
    assert_eq!(memory.asked, ["decide", "waits", "too large", "apply"]);
    let skipped = Command::SkipTimer { seq: StateSeq(1), command_id: None };
    assert!(matches!(applied(&mut memory, &skipped), Outcome::Over(_)), "it is refused, and no attempt has failed");
}

fn uses() -> impl Strategy<Value = Use> {
    prop::sample::select(vec![Use::Done, Use::Changed, Use::Refused, Use::Later])
}

prop_compose! {
    fn replies()(
        (strict, waits, too_large) in any::<(bool, bool, bool)>(),
        lock in prop::sample::select(vec![Lock::Held, Lock::Taken, Lock::Missing, Lock::Later]),
        unchanged in uses(),
        tables in uses(),
    ) -> Replies {
        Replies { strict, waits, lock, too_large, unchanged, tables }
    }
}

fn answers() -> impl Strategy<Value = Command> {
    let decisions = vec![next(&["B"]), next(&["C"]), close(CloseType::ForceComplete), close(CloseType::DeadEnd)];
    (prop::sample::select(decisions), any::<bool>()).prop_map(|(decision, calls)| match calls {
        true => calling(decision),
        false => answer(decision, Effects::default()),
    })
}

proptest! {
    #[test]
    fn an_outcome_other_than_applied_leaves_the_execution_as_it_was(replies in replies(), command in answers()) {
        let mut memory = memory(replies);
        let before = memory.world.execution.clone();
        let outcome = applied(&mut memory, &command);
        let is_applied = outcome == Outcome::Applied;
        prop_assert_eq!(memory.asked.contains(&"apply"), is_applied);
        prop_assert_eq!(memory.world.execution == before, !is_applied);
        // After the tables, only the execution in memory changes.
        let last = memory.asked.iter().rev().find(|asked| **asked != "apply");
        prop_assert!(!memory.asked.contains(&"tables") || last == Some(&"tables"));
    }
}
