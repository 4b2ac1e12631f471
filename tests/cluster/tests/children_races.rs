//! Races of parents and children: open ends of a parent or a child, the ends of both at once, and a child in the place of
//! a process that answers. Over HTTP, with functions and with pull workers.

use std::collections::BTreeMap;
use std::thread::{self, JoinHandle};

use xdb_cluster_tests::cluster::signal;
use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;

/// What answers the calls.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Handler {
    Http,
    Function,
    Pull,
}

/// Processes whose calls are answered with the input of the state. The call of `Held` is answered when the test says so.
/// `Work` waits for a message of `go`, and `Join` for one of `ended`. `Drain` takes up to three messages of `ended`, and
/// completes the process if no more of them are there.
fn member() -> Definition {
    let messages = |queue: &str, at_most: u32| {
        json!({"commandRequest": {"waitingType": "AnyOfCompletion",
            "localQueueCommands": [{"commandId": "m", "queueName": queue, "atLeast": 1, "atMost": at_most}]}})
    };
    Definition::starting_with("Begin")
        .step("Begin")
        .step("Held")
        .waiting_step_with("Work", messages("go", 1))
        .waiting_step_with("Join", messages("ended", 1))
        .waiting_step_with("Drain", messages("ended", 3))
        .with("localQueues", json!(["go", "ended"]))
}

/// The answer to a call of this state.
fn answer(state: &str, input: &Value) -> Value {
    if state == "Drain" { close_if_empty("ended", "Drain").json() } else { input.clone() }
}

/// A child that begins with this state, and what the call of the state is answered.
fn child(id: &str, state: &str, answer: &Answer) -> Value {
    json!({"processType": "member", "processId": id, "input": answer.json(), "onClose": "ended",
        "options": {"startingState": state}})
}

fn done() -> Answer {
    force_complete(json!(null))
}

struct Races {
    app: App,
    handler: Handler,
    worker: Worker,
}

impl Races {
    fn of(handler: Handler, name: &str) -> Races {
        let name = format!("children_{name}_{handler:?}").to_lowercase();
        let options = ClusterOptions::default().set("xdb.runners", "4").set("track_commit_timestamp", "on");
        let app = App::alone(&name, options);
        app.db().run(&format!(
            "CREATE TABLE public.go (execution text);
             CREATE FUNCTION public.answer(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
                 WHILE request ->> 'stateId' = 'Held' AND NOT EXISTS (
                     SELECT FROM public.go WHERE execution = request #>> '{{context,processExecutionId}}')
                 LOOP
                     PERFORM pg_sleep(0.01);
                 END LOOP;
                 RETURN CASE request ->> 'stateId' WHEN 'Drain' THEN {} ELSE request -> 'stateInput' END;
             END $$;",
            jsonb(&answer("Drain", &json!(null)))
        ));
        let worker = app.worker(|call: &Call| {
            let reply = Reply::Json(200, answer(call.target(), call.input()));
            if call.target() == "Held" { Reply::hang(reply) } else { reply }
        });
        app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
        match handler {
            Handler::Http => app.register("member", &member()),
            Handler::Pull => app.register_with("pull", "member", &member()),
            Handler::Function => {
                let mut definition = member().json().clone();
                for (_, state) in definition["states"].as_object_mut().expect("states") {
                    state["executeFunction"] = json!("public.answer");
                }
                let definition = literal(&definition.to_string());
                app.superuser().run(&format!("SELECT xdb.register_process_type('member', NULL, {definition})"));
            }
        }
        Races { app, handler, worker }
    }

    fn db(&self) -> Db {
        self.app.db()
    }

    /// Starts a process with this state. Returns its execution.
    fn start(&self, id: &str, state: &str, answer: &Answer) -> String {
        self.db().start(id, "member").input(answer.json()).options(json!({"startingState": state})).go()
    }

    /// Completes the calls that are due at a pull worker.
    fn works(&self, db: &mut Db) {
        if self.handler == Handler::Pull {
            for row in db.rows("SELECT token, request FROM xdb.claim_calls('pull', 3)") {
                let (token, request) = (row["token"].as_str().unwrap_or_default(), &row["request"]);
                let reply = answer(request["stateId"].as_str().unwrap_or_default(), &request["stateInput"]);
                let completed = db.try_run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&reply)));
                assert!(completed.as_ref().is_ok() || is_lost(&completed), "{completed:?}");
            }
        }
    }

    /// Waits until a condition holds. A pull worker works meanwhile.
    fn until(&self, what: &str, condition: impl Fn(&mut Db) -> bool) {
        let mut db = self.db();
        wait_until(what, 60, || {
            self.works(&mut db);
            condition(&mut db)
        });
    }

    /// Claims one call of each of these executions.
    fn claim(&self, executions: &[&str]) -> BTreeMap<String, String> {
        let (mut db, mut tokens) = (self.db(), BTreeMap::new());
        wait_until("the calls are claimed", 20, || {
            for row in db.rows("SELECT token, request FROM xdb.claim_calls('pull', 1)") {
                let execution = row["request"]["context"]["processExecutionId"].as_str().unwrap_or_default();
                tokens.insert(execution.to_owned(), row["token"].as_str().unwrap_or_default().to_owned());
            }
            executions.iter().all(|execution| tokens.contains_key(*execution))
        });
        tokens
    }

    /// The latest execution of a process.
    fn execution(&self, id: &str) -> String {
        self.db().one(&format!("SELECT execution_id::text FROM xdb.processes WHERE process_id = '{id}' AND is_latest"))
    }

    /// Completes a call in another session, which has to wait for a lock. Returns when the session waits.
    fn completes_and_waits(&self, token: &str, answer: &Answer) -> JoinHandle<Result<(), SqlError>> {
        let (mut db, sql) = (self.db(), complete(token, answer));
        let completing = thread::spawn(move || db.try_run(&sql));
        let waiting = "pg_stat_activity WHERE query LIKE '%complete_call%' AND wait_event_type = 'Lock'";
        let mut superuser = self.app.superuser();
        wait_until("the session waits", 20, || superuser.count(waiting) == 1);
        completing
    }

    /// Sends the message that a process waits for in `Work`. The process would close with this answer, and has to wait.
    /// Returns when it waits.
    fn would_close(&self, id: &str, answer: &Answer) -> Option<JoinHandle<Result<(), SqlError>>> {
        self.db().publish(id, "go", json!(null));
        if self.handler == Handler::Pull {
            let execution = self.execution(id);
            return Some(self.completes_and_waits(&self.claim(&[&execution])[&execution], answer));
        }
        let marked = format!("xdb.process_execution WHERE process_id = '{id}' AND closing IS NOT NULL");
        let mut superuser = self.app.superuser();
        wait_until(&format!("{id} is about to close"), 20, || superuser.count(&marked) == 1);
        None
    }

    fn is_sound(&self, ids: &[&str]) {
        let mut db = self.db();
        for id in ids {
            let problems: Vec<String> = db.all(&format!("SELECT problem FROM xdb.check_process('{id}')"));
            assert_eq!(problems, [""; 0], "{id}");
            views::assert_history_is_whole(&mut db, id);
        }
    }

    /// Checks that nothing of closed processes is left, and that no attempt has failed.
    fn end(self) {
        let mut superuser = self.app.superuser();
        wait_until("nothing is left", 20, || superuser.count("xdb.timer") + superuser.count("xdb.inbox") == 0);
        let failed: Vec<String> = superuser.all(
            "SELECT details::text FROM xdb.history WHERE event_type IN ('AttemptFailed', 'AttemptsFolded', 'StateFailed')",
        );
        assert_eq!(failed, [""; 0]);
        self.app.done(&[]);
    }
}

fn complete(token: &str, answer: &Answer) -> String {
    format!("SELECT xdb.complete_call('{token}', {})", jsonb(&answer.json()))
}

fn is_lost(completed: &Result<(), SqlError>) -> bool {
    completed.as_ref().is_err_and(|error| error.code == codes::CALL_IS_LOST)
}

/// The messages that a process has received.
fn received(db: &mut Db, id: &str) -> i64 {
    db.count(&format!(
        "xdb.history, jsonb_array_elements(details -> 'messages') WHERE process_id = '{id}' AND event_type = 'MessagesReceived'
         AND value ->> 'queue' = 'ended'"
    ))
}

fn has_ended(db: &mut Db, id: &str) -> bool {
    db.status(id) != "RUNNING"
}

/// A child would close while a session has stopped its parent and has not committed. The child waits for the session.
fn the_close_of_a_child_waits_for_an_open_stop_of_its_parent(handler: Handler) {
    let races = Races::of(handler, "open_stop");
    let (mut db, mut session) = (races.db(), races.db());
    for (parent, id, end) in [("p", "c", "ROLLBACK"), ("q", "d", "COMMIT")] {
        races.start(parent, "Begin", &next("Join", done().json()).starting(json!([child(id, "Work", &done())])));
        races.until("the child waits", |db| db.count(&format!("xdb.waits WHERE process_id = '{id}'")) == 1);
        session.run(&format!("BEGIN; SELECT xdb.stop_process('{parent}')"));
        let completing = races.would_close(id, &done());
        assert_eq!(db.status(id), "RUNNING");
        session.run(end);
        races.until("both have ended", |db| has_ended(db, parent) && has_ended(db, id));
        if let Some(completing) = completing {
            assert_eq!(completing.join().expect("no panic"), Ok(()));
        }
        // The parent gets the message if it goes on.
        let (status, messages) = if end == "COMMIT" { ("TERMINATED", 0) } else { ("COMPLETED", 1) };
        assert_eq!((db.status(parent).as_str(), received(&mut db, parent)), (status, messages));
        races.is_sound(&[parent, id]);
    }
    races.end();
}

/// A parent would close while a transaction has closed its child and has not committed. The parent waits for the
/// transaction, and gets the message.
fn the_close_of_a_parent_waits_for_an_open_close_of_its_child(handler: Handler) {
    let races = Races::of(handler, "open_close");
    let (mut db, mut session) = (races.db(), races.db());
    let if_empty = close_if_empty("ended", "Drain");
    for (parent, id, end) in [("p", "c", "COMMIT"), ("q", "d", "ROLLBACK")] {
        races.start(parent, "Begin", &next("Work", if_empty.json()).starting(json!([child(id, "Work", &done())])));
        races.until("the child waits", |db| db.count(&format!("xdb.waits WHERE process_id = '{id}'")) == 1);
        let close = if handler == Handler::Pull {
            db.publish(id, "go", json!(null));
            let execution = races.execution(id);
            complete(&races.claim(&[&execution])[&execution], &done())
        } else {
            format!("SELECT xdb.stop_process('{id}')")
        };
        session.run(&format!("BEGIN; {close}"));
        let completing = races.would_close(parent, &if_empty);
        assert_eq!(db.status(parent), "RUNNING");
        session.run(end);
        races.until("both have ended", |db| has_ended(db, parent) && has_ended(db, id));
        if let Some(completing) = completing {
            assert_eq!(completing.join().expect("no panic"), Ok(()));
        }
        assert_eq!(received(&mut db, parent), i64::from(end == "COMMIT"));
        assert_eq!(db.status(parent), "COMPLETED");
        races.is_sound(&[parent, id]);
    }
    races.end();
}

/// The parent closes as soon as its queue is empty. The message of a child that closed before is in the queue, and that of
/// a child that closes later is dropped. Both also happen in one transaction.
fn no_message_of_a_child_is_lost_to_a_conditional_close_of_its_parent(handler: Handler) {
    let races = Races::of(handler, "conditional");
    let mut superuser = races.app.superuser();
    for round in 0..6 {
        let id = format!("p{round}");
        let children = (0..20).map(|n| child(&format!("{id}-{n}"), "Begin", &done())).collect();
        races.start(&id, "Begin", &next("Drain", json!(null)).starting(children));
        let workers = if handler == Handler::Pull { 4 } else { 1 };
        at_once(workers, |_| {
            races.until("all have ended", |db| has_ended(db, &id) && views::with_status(db, "%", "RUNNING") == 0);
        });
        let received = received(&mut superuser, &id);
        let consumed = superuser.count(&format!(
            "xdb.history, jsonb_array_elements(details -> 'messages')
             WHERE process_id = '{id}' AND event_type = 'CommandCompleted'"
        ));
        assert_eq!(consumed, received, "{id} closed when its queue was empty");
        let mut closed = |when: &str| {
            superuser.count(&format!(
                "xdb.process_execution AS c JOIN xdb.process_execution AS p ON p.execution_id = c.parent_id
                 WHERE p.process_id = '{id}' AND c.status = 'COMPLETED'
                     AND pg_xact_commit_timestamp(c.xmin) {when} pg_xact_commit_timestamp(p.xmin)"
            ))
        };
        let (before, at_the_latest) = (closed("<"), closed("<="));
        assert!((before..=at_the_latest).contains(&received), "{id}: {before}, {received}, {at_the_latest}");
        races.is_sound(&[&id]);
    }
    races.end();
}

/// The answer of one process starts a child in the place of a process that answers at the same moment. Over HTTP both
/// answers are in one turn, which is made again in parts. No attempt is spent.
fn an_answer_starts_a_child_in_the_place_of_a_process_that_answers_too(handler: Handler) {
    let races = Races::of(handler, "in_place");
    let (mut db, mut session) = (races.db(), races.db());
    let answers = next("Work", dead_end().json());
    for round in 0..6 {
        let id = format!("p{round}");
        let mut child = child("other", "Work", &done());
        child["idReusePolicy"] = json!("TERMINATE_IF_RUNNING");
        let starts = next("Join", done().json()).starting(json!([child]));
        let other = races.start("other", "Held", &answers);
        let sleeps = "pg_stat_activity WHERE backend_type = 'xdb runner' AND wait_event = 'PgSleep'";
        let mut superuser = races.app.superuser();
        if handler == Handler::Function {
            // One runner may lease both calls at once, and would then make them one after the other.
            wait_until("the first function runs", 20, || superuser.count(sleeps) == 1);
        }
        let executions = [other, races.start(&id, "Held", &starts)];
        match handler {
            Handler::Http => {
                for execution in &executions {
                    races.worker.wait_for("the call", 20, |call| {
                        call.executes("Held") && call.body["context"]["processExecutionId"] == **execution
                    });
                }
                let scheduler = races.app.scheduler();
                signal(scheduler, libc::SIGSTOP);
                races.worker.release();
                // A message for the process that is replaced is in the same turn too.
                db.publish("other", "go", json!(null));
                signal(scheduler, libc::SIGCONT);
            }
            Handler::Function => {
                wait_until("both functions run", 20, || superuser.count(sleeps) == 2);
                db.publish("other", "go", json!(null));
                let [other, starting] = &executions;
                let go = |db: &mut Db, execution: &str| db.run(&format!("INSERT INTO go VALUES ('{execution}')"));
                match round % 3 {
                    0 => db.run(&format!("INSERT INTO go VALUES ('{other}'), ('{starting}')")),
                    1 => [other, starting].into_iter().for_each(|execution| go(&mut db, execution)),
                    _ => {
                        // The start waits for the other function for a moment, and is made again until that has ended.
                        go(&mut db, starting);
                        let waits = "pg_stat_activity WHERE backend_type = 'xdb runner' AND wait_event_type = 'Lock'";
                        wait_until("the start waits", 20, || superuser.count(waits) == 1);
                        go(&mut db, other);
                    }
                }
            }
            Handler::Pull => {
                let tokens = races.claim(&[&executions[0], &executions[1]]);
                db.publish("other", "go", json!(null));
                let mut calls = [(&tokens[&executions[0]], &answers), (&tokens[&executions[1]], &starts)];
                if round % 2 == 1 {
                    calls.reverse();
                }
                session.run(&format!("BEGIN; {}", complete(calls[0].0, calls[0].1)));
                let second = races.completes_and_waits(calls[1].0, calls[1].1);
                session.run("COMMIT");
                let second = second.join().expect("no panic");
                assert_eq!(is_lost(&second), round % 2 == 1, "{second:?}");
                assert_eq!(second.is_ok(), round % 2 == 0, "{second:?}");
            }
        }
        let parent = format!("xdb.processes WHERE process_id = 'other' AND parent_execution_id = '{}'", executions[1]);
        wait_until("the child waits", 20, || {
            db.count(&parent) == 1 && db.count("xdb.waits WHERE process_id = 'other'") == 1
        });
        let statuses: Vec<String> =
            db.all("SELECT status FROM xdb.processes WHERE process_id = 'other' ORDER BY started_at DESC LIMIT 2");
        assert_eq!(statuses, ["RUNNING", "TERMINATED"]);
        races.is_sound(&[&id]);
        db.run(&format!("SELECT xdb.stop_process('{id}')"));
        wait_until("its child has ended", 20, || has_ended(&mut db, "other"));
    }
    races.end();
}

#[test]
fn a_child_waits_for_an_open_stop_of_its_parent_over_http() {
    the_close_of_a_child_waits_for_an_open_stop_of_its_parent(Handler::Http);
}

#[test]
fn a_child_waits_for_an_open_stop_of_its_parent_with_functions() {
    the_close_of_a_child_waits_for_an_open_stop_of_its_parent(Handler::Function);
}

#[test]
fn a_child_waits_for_an_open_stop_of_its_parent_with_pull_workers() {
    the_close_of_a_child_waits_for_an_open_stop_of_its_parent(Handler::Pull);
}

#[test]
fn a_parent_waits_for_an_open_close_of_its_child_over_http() {
    the_close_of_a_parent_waits_for_an_open_close_of_its_child(Handler::Http);
}

#[test]
fn a_parent_waits_for_an_open_close_of_its_child_with_functions() {
    the_close_of_a_parent_waits_for_an_open_close_of_its_child(Handler::Function);
}

#[test]
fn a_parent_waits_for_an_open_close_of_its_child_with_pull_workers() {
    the_close_of_a_parent_waits_for_an_open_close_of_its_child(Handler::Pull);
}

#[test]
fn no_message_is_lost_to_a_conditional_close_over_http() {
    no_message_of_a_child_is_lost_to_a_conditional_close_of_its_parent(Handler::Http);
}

#[test]
fn no_message_is_lost_to_a_conditional_close_with_functions() {
    no_message_of_a_child_is_lost_to_a_conditional_close_of_its_parent(Handler::Function);
}

#[test]
fn no_message_is_lost_to_a_conditional_close_with_pull_workers() {
    no_message_of_a_child_is_lost_to_a_conditional_close_of_its_parent(Handler::Pull);
}

#[test]
fn a_child_takes_the_place_of_a_process_that_answers_over_http() {
    an_answer_starts_a_child_in_the_place_of_a_process_that_answers_too(Handler::Http);
}

#[test]
fn a_child_takes_the_place_of_a_process_that_answers_with_functions() {
    an_answer_starts_a_child_in_the_place_of_a_process_that_answers_too(Handler::Function);
}

#[test]
fn a_child_takes_the_place_of_a_process_that_answers_with_pull_workers() {
    an_answer_starts_a_child_in_the_place_of_a_process_that_answers_too(Handler::Pull);
}
