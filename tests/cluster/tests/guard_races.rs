//! The answer of a guarded state, the timer of a guard and the message of a guard at the same moment, in all orders. Over
//! HTTP, with functions and with pull workers. The first one that is decided wins, and the others change nothing.

use std::collections::BTreeMap;

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

/// What happens to the guarded state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Answer,
    Message,
    Timer,
}

use Event::{Answer as Answered, Message, Timer};

impl Event {
    /// The state whose step completes if this event wins.
    fn state(self) -> &'static str {
        match self {
            Answered => "Ship",
            Message => "Recall",
            Timer => "Late",
        }
    }
}

/// `Ship` is guarded by `Recall`, which waits for a message, and by `Late`, which waits for `patience` seconds. Each of the three
/// goes to `Rest` with its own name. `Rest` waits for a message and completes the process with that name. `Cancelled`
/// guards the process and completes it. `Nap` waits for a message that never comes.
fn order(patience: u32) -> Definition {
    let waits = |commands: Value| json!({"commandRequest": commands});
    let message = |queue: &str| {
        waits(json!({"waitingType": "AnyOfCompletion",
            "localQueueCommands": [{"commandId": "m", "queueName": queue}]}))
    };
    let late = waits(json!({"waitingType": "AnyOfCompletion", "timerCommands": [{"delayInSeconds": patience}]}));
    Definition::starting_with("Ship")
        .step_with("Ship", json!({"guards": ["Recall", "Late"], "executeApiRetryPolicy": attempts(5)}))
        .waiting_step_with("Recall", message("recall"))
        .waiting_step_with("Late", late)
        .waiting_step_with("Rest", message("end"))
        .waiting_step_with("Cancelled", message("cancel"))
        .waiting_step_with("Nap", message("never"))
        .with("guards", json!(["Cancelled"]))
}

/// The answer to a call of this state. `fans_out`: `Ship` goes to thirty steps.
fn answer(state: &str, input: &Value, fans_out: bool) -> Answer {
    match state {
        "Ship" if fans_out => next_all(&vec![("Nap", json!(1)); 30]),
        "Rest" => force_complete(input.clone()),
        "Cancelled" => force_complete(json!("cancelled")),
        _ => next("Rest", json!(state)),
    }
}

/// The functions of the states. That of `Ship` takes part in its transaction, and ends when a row says how: with its
/// answer, or with an error.
const FUNCTIONS: &str = "
    CREATE TABLE public.go (process text, fails boolean);
    CREATE TABLE public.work (process text, state text, at timestamptz DEFAULT clock_timestamp());
    CREATE FUNCTION public.answer(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
        id CONSTANT text := request #>> '{context,processId}';
        state CONSTANT text := request ->> 'stateId';
        failing boolean;
    BEGIN
        INSERT INTO public.work VALUES (id, state);
        IF state = 'Ship' THEN
            LOOP
                SELECT g.fails INTO failing FROM public.go AS g WHERE g.process = id;
                EXIT WHEN FOUND;
                PERFORM pg_sleep(0.01);
            END LOOP;
            IF failing THEN
                RAISE EXCEPTION 'not shipped';
            END IF;
        END IF;
        RETURN CASE
            WHEN state = 'Ship' AND id LIKE 'fan%' THEN jsonb_build_object('stateDecision', jsonb_build_object('nextStates',
                (SELECT jsonb_agg('{\"stateId\": \"Nap\"}'::jsonb) FROM generate_series(1, 30))))
            WHEN state IN ('Rest', 'Cancelled') THEN jsonb_build_object('stateDecision', jsonb_build_object('threadCloseDecision',
                jsonb_build_object('closeType', 'FORCE_COMPLETE_PROCESS', 'closeInput',
                    CASE state WHEN 'Rest' THEN request -> 'stateInput' ELSE '\"cancelled\"' END)))
            ELSE jsonb_build_object('stateDecision', jsonb_build_object('nextStates',
                jsonb_build_array(jsonb_build_object('stateId', 'Rest', 'stateInput', state)))) END;
    END $$;";

/// The application, with processes that are at the call of `Ship`.
struct Races {
    app: App,
    handler: Handler,
    worker: Worker,
    /// Claimed calls of `Ship`, by process.
    tokens: BTreeMap<String, String>,
}

impl Races {
    fn of(handler: Handler, name: &str) -> Races {
        let name = format!("{name}_{handler:?}").to_lowercase();
        let options = ClusterOptions::default().set("xdb.apply_timeout", "1min").set("xdb.runners", "8");
        let app = App::alone(&name, options);
        app.db().run(FUNCTIONS);
        let worker = app.worker(|call: &Call| {
            let reply = answer(call.target(), call.input(), call.process_id().starts_with("fan"));
            if call.target() == "Ship" { Reply::hang(reply) } else { reply.into() }
        });
        app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
        for (process_type, patience) in [("order", 3600), ("patient", 86_400)] {
            let definition = order(patience);
            match handler {
                Handler::Http => app.register(process_type, &definition),
                Handler::Pull => app.register_with("pull", process_type, &definition),
                Handler::Function => {
                    let mut definition = definition.json().clone();
                    for (_, state) in definition["states"].as_object_mut().expect("states") {
                        state["executeFunction"] = json!("public.answer");
                    }
                    let definition = literal(&definition.to_string());
                    app.superuser()
                        .run(&format!("SELECT xdb.register_process_type('{process_type}', NULL, {definition})"));
                }
            }
        }
        Races { app, handler, worker, tokens: BTreeMap::new() }
    }

    /// Starts a process, and waits until the call of its `Ship` is under way.
    fn start(&mut self, id: &str, process_type: &str) {
        let mut db = self.app.db();
        db.start(id, process_type).go();
        match self.handler {
            Handler::Http => {
                self.worker.wait_for("the call", 10, |call| call.executes("Ship") && call.process_id() == id);
            }
            Handler::Pull => {
                let token = db.one("SELECT token FROM xdb.claim_calls('pull', 1, wait => '10 s')");
                self.tokens.insert(id.to_owned(), token);
            }
            Handler::Function => {
                // Nothing of the function is committed. Its runner sleeps in the function.
                let sleeps = "pg_stat_activity WHERE backend_type = 'xdb runner' AND wait_event = 'PgSleep'";
                let others = db.count("xdb.state_executions WHERE state_id = 'Ship' AND status = 'EXECUTE'");
                let mut superuser = self.app.superuser();
                wait_until("the function runs", 20, || superuser.count(sleeps) >= others);
            }
        }
    }

    /// Answers the call of `Ship`. Whether the answer was applied, if the worker is told.
    fn answers(&self, id: &str) -> Option<bool> {
        match self.handler {
            Handler::Http => self.worker.release(),
            Handler::Function => self.app.db().run(&format!("INSERT INTO go VALUES ({}, false)", literal(id))),
            Handler::Pull => return Some(self.complete(id, &mut self.app.db()).is_ok()),
        }
        None
    }

    /// The answer of a pull worker.
    fn complete(&self, id: &str, db: &mut Db) -> Result<(), SqlError> {
        let reply = answer("Ship", &json!(null), id.starts_with("fan"));
        let done = db.try_run(&format!("SELECT xdb.complete_call('{}', {})", self.tokens[id], jsonb(&reply.json())));
        assert!(done.as_ref().is_err_and(|error| error.code == codes::CALL_IS_LOST) || done.is_ok(), "{done:?}");
        done
    }

    /// Completes the calls that are due at a pull worker.
    fn works(&self, db: &mut Db) {
        if self.handler == Handler::Pull {
            for row in db.rows("SELECT token, request FROM xdb.claim_calls('pull', 5)") {
                let (token, request) = (row["token"].as_str().unwrap_or_default(), &row["request"]);
                let reply = answer(request["stateId"].as_str().unwrap_or_default(), &request["stateInput"], false);
                db.run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&reply.json())));
            }
        }
    }

    /// The result of a process that completes.
    fn completes(&self, id: &str) -> Value {
        let mut db = self.app.db();
        wait_until(&format!("{id} has ended"), 20, || {
            self.works(&mut db);
            db.status(id) != "RUNNING"
        });
        db.completes(id).result().clone()
    }

    /// The state whose step led to `Rest`.
    fn winner(&self, id: &str) -> String {
        let mut db = self.app.db();
        let input = format!(
            "SELECT input #>> '{{}}' FROM xdb.state_executions WHERE process_id = '{id}' AND state_id = 'Rest'"
        );
        wait_until(&format!("{id} rests"), 20, || {
            self.works(&mut db);
            db.try_maybe::<String>(&input).expect("a query").is_some()
        });
        db.one(&input)
    }

    /// Exactly one event had an effect.
    fn only_one_counts(&self, id: &str, winner: Event, message: bool) {
        let mut db = self.app.db();
        assert_eq!(self.winner(id), winner.state(), "{id}");
        let with = |db: &mut Db, status: &str| -> Vec<String> {
            db.all(&format!(
                "SELECT state_execution_id FROM xdb.state_executions WHERE process_id = '{id}' AND status = '{status}' ORDER BY 1"
            ))
        };
        assert_eq!(with(&mut db, "COMPLETED"), [format!("{}-1", winner.state())], "{id}");
        let losers: Vec<_> = ["Late", "Recall", "Ship"]
            .iter()
            .filter(|state| **state != winner.state())
            .map(|state| format!("{state}-1"))
            .collect();
        assert_eq!(with(&mut db, "ABORTED"), losers, "{id}");
        assert_eq!(with(&mut db, "WAITING"), ["Cancelled-1", "Rest-1"], "{id}");
        assert_eq!(views::timers(&mut db, id), 0, "{id}");
        wait_until("the message is received or consumed", 10, || {
            db.count(&format!("xdb.queue_messages WHERE process_id = '{id}' AND NOT received")) == 0
        });
        assert_eq!(
            views::messages(&mut db, id),
            i64::from(message && winner != Message),
            "{id}: a message that lost stays"
        );
        let threads: i32 = db.one(&format!("SELECT live_threads FROM xdb.processes WHERE process_id = '{id}'"));
        assert_eq!(threads, 1, "{id}");
        assert_eq!(db.all::<String>(&format!("SELECT problem FROM xdb.check_process('{id}')")), [""; 0]);
        views::assert_history_is_whole(&mut db, id);
        db.publish(id, "end", json!(null));
        assert_eq!(self.completes(id), winner.state());
    }
}

const ORDERS: [[Event; 3]; 6] = [
    [Answered, Message, Timer],
    [Answered, Timer, Message],
    [Message, Answered, Timer],
    [Message, Timer, Answered],
    [Timer, Answered, Message],
    [Timer, Message, Answered],
];

/// Each event comes when the one before has been decided.
fn the_first_one_wins_in_every_order(handler: Handler) {
    let mut races = Races::of(handler, "race_orders");
    for (n, order) in ORDERS.into_iter().enumerate() {
        // While a function runs, nothing else is decided about its process.
        if handler == Handler::Function && order[0] != Answered {
            continue;
        }
        let id = format!("p{n}");
        races.start(&id, "order");
        let mut db = races.app.db();
        for (place, event) in order.into_iter().enumerate() {
            let first = place == 0;
            match event {
                Answered => match races.answers(&id) {
                    Some(applied) => assert_eq!(applied, first, "{order:?}"),
                    None if first => assert_eq!(races.winner(&id), "Ship"),
                    None => {
                        let in_flight = "SELECT in_flight FROM xdb.status()";
                        wait_until("its call is over", 10, || races.app.superuser().one::<i32>(in_flight) == 0);
                    }
                },
                Message => {
                    db.publish(&id, "recall", json!(1));
                    if first {
                        wait_until("the guard has triggered", 10, || views::messages(&mut db, &id) == 0);
                    }
                }
                Timer => {
                    let skipped = db.try_run(&format!("SELECT xdb.skip_timer('{id}', 'Late-1')"));
                    let late = skipped.as_ref().is_err_and(|error| error.code == codes::NOT_WAITING);
                    assert_eq!(late, !first, "{order:?}: {skipped:?}");
                }
            }
        }
        races.only_one_counts(&id, order[0], true);
    }
    races.app.done(&[]);
}

/// All events are there before the engine decides about any of them.
fn exactly_one_wins_if_all_come_at_once(handler: Handler) {
    let mut races = Races::of(handler, "race_at_once");
    let together: [&[Event]; 5] = [
        &[Answered, Message],
        &[Answered, Timer],
        &[Message, Timer],
        &[Answered, Message, Timer],
        &[Answered, Message, Timer],
    ];
    let scheduler = races.app.scheduler();
    let mut db = races.app.db();
    for (n, events) in together.into_iter().enumerate() {
        let (id, answers) = (format!("p{n}"), events.contains(&Answered));
        races.start(&id, if events.contains(&Timer) { "order" } else { "patient" });
        signal(scheduler, libc::SIGSTOP);
        if events.contains(&Message) {
            db.publish(&id, "recall", json!(1));
        }
        races.app.cluster().set("xdb.now", &format!("{} hours", 2 * (n + 1)));
        // The answers of functions and of pull workers need no scheduler. Some of them come while it goes on.
        let comes_first = handler == Handler::Http || n % 2 == 0;
        let mut applied = if answers && comes_first { races.answers(&id) } else { None };
        signal(scheduler, libc::SIGCONT);
        if answers && !comes_first {
            applied = races.answers(&id);
        }
        if !answers && handler == Handler::Function {
            db.run(&format!("INSERT INTO go VALUES ('{id}', true)"));
        }
        let winner = races.winner(&id);
        let found = events.iter().find(|event| event.state() == winner);
        let event = *found.unwrap_or_else(|| panic!("{id}: {winner} has won"));
        if let Some(applied) = applied {
            assert_eq!(applied, event == Answered, "{id}: the pull worker was told who has won");
        }
        if handler == Handler::Function && answers {
            assert_eq!(event, Answered, "{id}: the function had the process");
        }
        races.only_one_counts(&id, event, events.contains(&Message));
    }
    races.app.done(&[]);
}

/// A guard of the process triggers while the guarded state goes to thirty steps.
fn a_guard_of_the_process_triggers_while_its_threads_fan_out(handler: Handler) {
    let mut races = Races::of(handler, "race_fan_out");
    let scheduler = races.app.scheduler();
    let mut db = races.app.db();
    for n in 0..4 {
        let id = &format!("fan{n}");
        races.start(id, "order");
        signal(scheduler, libc::SIGSTOP);
        if n % 2 == 0 {
            db.publish(id, "cancel", json!(1));
        }
        races.answers(id);
        signal(scheduler, libc::SIGCONT);
        if n % 2 == 1 {
            db.publish(id, "cancel", json!(1));
        }
        assert_eq!(races.completes(id), "cancelled");
        let statuses: Vec<String> = db.all(&format!(
            "SELECT DISTINCT status FROM xdb.state_executions WHERE process_id = '{id}' AND state_id = 'Nap'"
        ));
        assert!(statuses.is_empty() || statuses == ["ABORTED"], "{id}: {statuses:?}");
        let alive = "status NOT IN ('COMPLETED', 'ABORTED')";
        assert_eq!(db.count(&format!("xdb.state_executions WHERE process_id = '{id}' AND {alive}")), 0);
        views::assert_history_is_whole(&mut db, id);
    }
    // A process whose answer came first has started all steps, and the guard has ended all of them.
    let fanned_out: Vec<i64> =
        db.all("SELECT count(*) FROM xdb.state_executions WHERE state_id = 'Nap' GROUP BY process_id");
    assert!(fanned_out.iter().all(|count| *count == 30), "{fanned_out:?}");
    races.app.done(&[]);
}

#[test]
fn the_first_of_timer_message_and_answer_wins_over_http() {
    the_first_one_wins_in_every_order(Handler::Http);
}

#[test]
fn the_first_of_timer_message_and_answer_wins_with_functions() {
    the_first_one_wins_in_every_order(Handler::Function);
}

#[test]
fn the_first_of_timer_message_and_answer_wins_with_pull_workers() {
    the_first_one_wins_in_every_order(Handler::Pull);
}

#[test]
fn exactly_one_of_timer_message_and_answer_counts_over_http() {
    exactly_one_wins_if_all_come_at_once(Handler::Http);
}

#[test]
fn exactly_one_of_timer_message_and_answer_counts_with_functions() {
    exactly_one_wins_if_all_come_at_once(Handler::Function);
}

#[test]
fn exactly_one_of_timer_message_and_answer_counts_with_pull_workers() {
    exactly_one_wins_if_all_come_at_once(Handler::Pull);
}

#[test]
fn a_guard_of_the_process_ends_threads_that_fan_out_over_http() {
    a_guard_of_the_process_triggers_while_its_threads_fan_out(Handler::Http);
}

#[test]
fn a_guard_of_the_process_ends_threads_that_fan_out_with_functions() {
    a_guard_of_the_process_triggers_while_its_threads_fan_out(Handler::Function);
}

#[test]
fn a_guard_of_the_process_ends_threads_that_fan_out_with_pull_workers() {
    a_guard_of_the_process_triggers_while_its_threads_fan_out(Handler::Pull);
}

/// The turn that would trigger the guard defers while the function has the process. If the function fails, it is undone
/// and the guard triggers.
#[test]
fn a_guard_waits_for_a_function_that_runs() {
    let mut races = Races::of(Handler::Function, "race_function");
    let mut db = races.app.db();
    for (id, fails) in [("answers", false), ("fails", true)] {
        races.start(id, "order");
        db.publish(id, "recall", json!(1));
        // The engine has made turns for others meanwhile.
        db.run(&format!("INSERT INTO go VALUES ('other {id}', false)"));
        db.start(&format!("other {id}"), "order").go();
        assert_eq!(races.winner(&format!("other {id}")), "Ship");
        assert_eq!(db.count(&format!("xdb.state_executions WHERE process_id = '{id}' AND status = 'ABORTED'")), 0);
        db.run(&format!("INSERT INTO go VALUES ('{id}', {fails})"));
        let winner = if fails { Message } else { Answered };
        races.only_one_counts(id, winner, true);
        let shipped = db.count(&format!("work WHERE process = '{id}' AND state = 'Ship'"));
        assert_eq!(shipped, i64::from(!fails), "the work of a failed attempt is undone");
        db.publish(&format!("other {id}"), "end", json!(null));
        races.completes(&format!("other {id}"));
    }
    races.app.done(&[]);
}

/// Guards trigger while the call of their state is parked: in a pause of the type, and while the process waits for its
/// locks. Of two guards the first one wins. What follows waits for the end of the pause, and for the grant.
fn guards_trigger_while_calls_are_parked(handler: Handler) {
    let races = Races::of(handler, "race_parked");
    let (mut db, mut boss) = (races.app.db(), races.app.superuser());
    races.app.register_with("stub", "holder", &Definition::without_start());
    db.start("holder", "holder").options(json!({"locks": ["name"]})).go();
    wait_until("it has the lock", 10, || db.count("xdb.locks WHERE granted") == 1);
    boss.run("SELECT xdb.pause_process_type('order')");
    let triggers = [
        ("message", "SELECT xdb.publish('{id}', 'recall', '1')", Message, true),
        ("timer", "SELECT xdb.skip_timer('{id}', 'Late-1')", Timer, false),
        (
            "both",
            "BEGIN; SELECT xdb.skip_timer('{id}', 'Late-1'); SELECT xdb.publish('{id}', 'recall', '1'); COMMIT",
            Timer,
            true,
        ),
    ];
    for (id, sql, ..) in &triggers {
        for id in [format!("paused {id}"), format!("locked {id}")] {
            let locks = if id.starts_with("locked") { json!(["name"]) } else { json!([]) };
            db.start(&id, if id.starts_with("locked") { "patient" } else { "order" })
                .options(json!({"locks": locks}))
                .go();
            db.run(&sql.replace("{id}", &id));
        }
    }
    let triggered = "xdb.state_executions WHERE state_id IN ('Recall', 'Late') AND status = 'EXECUTE'";
    wait_until("all guards have triggered", 20, || db.count(triggered) == 6);
    assert_eq!(db.count("xdb.state_executions WHERE state_id = 'Ship' AND status = 'ABORTED'"), 6);
    races.works(&mut db);
    assert_eq!(db.count(triggered), 6, "no call is made");
    assert_eq!(races.worker.count(|_| true), 0);
    assert_eq!(db.count("work"), 0);
    boss.run("SELECT xdb.resume_process_type('order')");
    for (id, _, winner, message) in &triggers {
        races.only_one_counts(&format!("paused {id}"), *winner, *message);
    }
    assert_eq!(db.count(triggered), 3, "the others wait for the lock");
    db.run("SELECT xdb.stop_process('holder')");
    for (id, _, winner, message) in &triggers {
        races.only_one_counts(&format!("locked {id}"), *winner, *message);
    }
    races.app.done(&[]);
}

#[test]
fn guards_trigger_while_calls_are_parked_over_http() {
    guards_trigger_while_calls_are_parked(Handler::Http);
}

#[test]
fn guards_trigger_while_calls_are_parked_with_functions() {
    guards_trigger_while_calls_are_parked(Handler::Function);
}

#[test]
fn guards_trigger_while_calls_are_parked_with_pull_workers() {
    guards_trigger_while_calls_are_parked(Handler::Pull);
}
