//! The items of a turn share its time in the application's tables, and keep the order in which they came.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use xdb_cluster_tests::prelude::*;

/// An application whose processes write a row of the table `busy` in a loop, until they get the message to end. The
/// writes use the table without a pause, but are too short to mark it as slow.
struct Busy {
    app: App,
    _worker: Worker,
    ends: Arc<AtomicBool>,
}

impl Busy {
    fn new(app: App, processes: usize) -> Busy {
        app.db().run(
            "CREATE TABLE busy (id text PRIMARY KEY, n int);
             INSERT INTO busy SELECT 'busy-' || n FROM generate_series(1, 100) n;
             CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM pg_sleep(tg_argv[0]::float8); RETURN new; END $$;
             CREATE TRIGGER busy BEFORE UPDATE ON busy FOR EACH ROW EXECUTE FUNCTION take_long('0.002');
             CREATE TABLE mine (id text PRIMARY KEY, n int);
             INSERT INTO mine SELECT 'mine-' || n FROM generate_series(1, 40) n;",
        );
        let ends = Arc::new(AtomicBool::new(false));
        let worker = app.worker({
            let ends = Arc::clone(&ends);
            move |call: &Call| match call.target() {
                "Again" if !ends.load(Ordering::Relaxed) => next("Again", json!(null)).globals(json!({"n": 1})),
                "Again" => force_complete(json!(null)),
                _ => force_complete(call.global("n").clone()).globals(json!({"n": 2})),
            }
        });
        let nothing = json!({"loadGlobalAttributes": {"policy": "NONE"}});
        let again = Definition::starting_with("Again").step_with("Again", nothing);
        app.register("busy", &again.maps("public.busy", "id", &["n"]));
        app.register("mine", &one_step().maps("public.mine", "id", &["n"]));
        let mut db = app.db();
        (1..=processes).for_each(|n| drop(db.start(&format!("busy-{n}"), "busy").key(&format!("busy-{n}")).go()));
        wait_until("they are busy", 30, || worker.count(|call| call.process_id().starts_with("busy")) > 5 * processes);
        Busy { app, _worker: worker, ends }
    }

    fn start(&self, numbers: std::ops::RangeInclusive<usize>) {
        let mut db = self.app.db();
        for n in numbers {
            db.start(&format!("mine-{n}"), "mine").key(&format!("mine-{n}")).go();
        }
    }

    fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        let mut db = self.app.db();
        wait_until("all complete", 60, || views::with_status(&mut db, "%", "RUNNING") == 0);
        self.app.done(&[]);
    }
}

#[test]
fn reading_calls_and_closing_answers_continue_while_other_answers_use_up_every_turn() {
    let options = ClusterOptions::default().set("xdb.apply_timeout", "100ms");
    let busy = Busy::new(App::alone("turns_busy", options), 100);
    // It reads its row before its call, and writes it when it closes: both come after the answers of a turn.
    busy.start(1..=40);
    let mut db = busy.app.db();
    wait_until("they complete", 30, || views::with_status(&mut db, "mine-%", "COMPLETED") == 40);
    assert_eq!(db.count("mine WHERE n = 2"), 40);
    busy.end();
}

#[test]
fn a_slow_table_is_found_though_another_one_is_always_used_before_it() {
    let busy = Busy::new(App::alone("turns_slow", ClusterOptions::default()), 40);
    busy.app.db().run("CREATE TRIGGER slow BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION take_long('60')");
    busy.start(1..=1);
    let mut superuser = busy.app.superuser();
    wait_until("it is found", 30, || views::engine(&mut superuser).contains("public.mine: took longer"));
    busy.app.db().run("DROP TRIGGER slow ON mine");
    busy.end();
}

/// A gate that is closed until it is opened.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn open(&self) {
        *self.0.lock().expect("never poisoned") = true;
        self.1.notify_all();
    }

    fn pass(&self) {
        let shut = self.0.lock().expect("never poisoned");
        drop(self.1.wait_while(shut, |is_open| !*is_open).expect("never poisoned"));
    }
}

/// Prevents turns while answers come in.
struct Pause {
    db: Db,
    superuser: Db,
}

impl Pause {
    fn begin(app: &App) -> Pause {
        let mut db = app.superuser();
        // No turn begins while a session has locked the engine's table.
        db.run("BEGIN; LOCK TABLE xdb.engine");
        Pause { db, superuser: app.superuser() }
    }

    /// Waits until this number of calls is not answered yet.
    fn left(&mut self, count: i64) {
        let in_flight = "SELECT in_flight::int8 FROM xdb.workers";
        wait_until("answers come in", 30, || self.superuser.one::<i64>(in_flight) == count);
    }

    fn end(mut self) {
        self.db.run("COMMIT");
    }
}

/// More answers than one transaction applies after one of them has failed.
const LATER: usize = 40;

#[test]
fn no_answer_of_a_process_overtakes_one_that_waits_for_a_row() {
    let app = App::alone("turns_order", ClusterOptions::default());
    app.db().run(
        "CREATE TABLE mine (id text PRIMARY KEY, n int); INSERT INTO mine VALUES ('p', 0);
         CREATE SEQUENCE tries;
         CREATE FUNCTION try() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             PERFORM nextval('public.tries'); RETURN NULL; END $$;
         CREATE TRIGGER try BEFORE UPDATE ON mine FOR EACH STATEMENT EXECUTE FUNCTION try();",
    );
    let (first, later) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    let worker = app.worker({
        let (first, later) = (Arc::clone(&first), Arc::clone(&later));
        move |call: &Call| match call.target() {
            "Begin" => {
                let later = (0..LATER).map(|n| ("Later", json!(n)));
                let states: Vec<_> = std::iter::once(("First", json!(null))).chain(later).collect();
                next_all(&states)
            }
            "First" => {
                first.pass();
                dead_end().globals(json!({"n": 1})).locals(json!({"first": 1}))
            }
            _ => {
                later.pass();
                dead_end().locals(json!({"later": call.input()}))
            }
        }
    });
    let definition = Definition::starting_with("Begin").step("Begin").step("First").step("Later");
    app.register("p", &definition.maps("public.mine", "id", &["n"]));
    let mut db = app.db();
    db.start("p", "p").key("p").go();
    worker.wait_for_count("all calls", 30, 1 + LATER, |call| call.target() != "Begin");
    let mut holder = app.db();
    holder.run("BEGIN; UPDATE mine SET n = 0");
    let mut pause = Pause::begin(&app);
    first.open();
    pause.left(LATER as i64);
    later.open();
    pause.left(0);
    let tries = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tries";
    let before: i64 = db.one(tries);
    pause.end();
    wait_until("it is tried again and again", 30, || db.one::<i64>(tries) > before + 5);
    assert_eq!(views::ended_states(&mut db, "p"), 1, "answers have overtaken the one that waits");
    holder.run("ROLLBACK");
    wait_until("all are applied", 30, || views::ended_states(&mut db, "p") == 2 + LATER as i64);
    let order = "SELECT min(event_id) FILTER (WHERE details::text LIKE '%\"first\"%')
            < min(event_id) FILTER (WHERE details::text LIKE '%\"later\"%')
        FROM xdb.history WHERE event_type = 'LocalAttributesWritten'";
    assert!(db.one::<bool>(order));
    app.done(&[]);
}

#[test]
fn processes_that_share_a_row_write_it_in_the_order_of_their_answers() {
    let app = App::alone("turns_row", ClusterOptions::default());
    app.db().run("CREATE TABLE mine (id text PRIMARY KEY, n int); INSERT INTO mine VALUES ('r', 0)");
    let gates: Arc<[Gate; 2]> = Arc::default();
    let worker = app.worker({
        let gates = Arc::clone(&gates);
        move |call: &Call| match (call.process_id(), call.target()) {
            ("first", _) => {
                gates[0].pass();
                force_complete(json!(null)).globals(json!({"n": 1}))
            }
            (_, "Write") => {
                gates[1].pass();
                next("After", json!(null)).globals(json!({"n": 2}))
            }
            _ => force_complete(json!(null)),
        }
    });
    let definition = Definition::starting_with("Write").step("Write").step("After");
    app.register("p", &definition.maps("public.mine", "id", &["n"]));
    let mut db = app.db();
    for id in ["first", "second"] {
        db.start(id, "p").key("r").go();
    }
    worker.wait_for_count("both calls", 30, 2, |_| true);
    let mut pause = Pause::begin(&app);
    for (gate, left) in gates.iter().zip([1, 0]) {
        gate.open();
        pause.left(left);
    }
    pause.end();
    for id in ["first", "second"] {
        db.completes(id);
    }
    assert_eq!(db.one::<i32>("SELECT n FROM mine"), 2, "what was answered last was not written last");
    app.done(&[]);
}

#[test]
fn few_answers_are_guarded_in_one_transaction() {
    const ANSWERS: usize = 80;
    let app = App::alone("turns_guards", ClusterOptions::default());
    app.db().run(&format!(
        "CREATE TABLE mine (id text PRIMARY KEY, n int CHECK (n < {ANSWERS}));
         INSERT INTO mine SELECT 'p' || n, 0 FROM generate_series(1, {ANSWERS}) AS n;
         CREATE TABLE written (id text, txid xid8);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.written VALUES (NEW.id, pg_current_xact_id()); RETURN NEW; END $$;
         CREATE TRIGGER note BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION note();"
    ));
    let gate = Arc::new(Gate::default());
    let worker = app.worker({
        let gate = Arc::clone(&gate);
        move |call: &Call| {
            gate.pass();
            let n = call.process_id()[1..].parse::<usize>().expect("a number");
            match call.refused_write() {
                Value::Null => force_complete(json!("written")).globals(json!({"n": n})),
                refused => force_complete(refused["sqlState"].clone()),
            }
        }
    });
    app.register("p", &one_step().maps("public.mine", "id", &["n"]));
    let mut db = app.db();
    for n in 1..=ANSWERS {
        db.start(&format!("p{n}"), "p").key(&format!("p{n}")).go();
    }
    worker.wait_for_count("all calls", 30, ANSWERS, |_| true);
    let mut pause = Pause::begin(&app);
    gate.open();
    pause.left(0);
    pause.end();
    wait_until("all complete", 30, || views::with_status(&mut db, "p%", "COMPLETED") == ANSWERS as i64);
    assert_eq!(db.completes(&format!("p{ANSWERS}")).result(), codes::CHECK_VIOLATION);
    // A guard is a subtransaction, and the row has its number. More than 64 of them slow down every snapshot of the
    // server. An answer that has locked what it read takes two.
    let most = "SELECT max(count) FROM (SELECT count(DISTINCT mine.xmin::text) FROM mine JOIN written USING (id)
        WHERE mine.xmin::text <> written.txid::text GROUP BY written.txid) AS guards";
    let most: i64 = db.one(most);
    assert!((2..=32).contains(&most), "{most} in one transaction");
    app.done(&[]);
}
