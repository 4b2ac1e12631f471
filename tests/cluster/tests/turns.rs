//! What the items of a turn share: its time in users' tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xdb_cluster_tests::prelude::*;

/// An application in which processes write a row of the table `busy` again and again, until they are told to end. A write takes
/// so long that the table is used without a pause, and is not slow.
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
fn calls_that_read_and_answers_that_close_go_on_while_others_use_up_every_turn() {
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
    let mut reason = None;
    wait_until("it is found", 30, || {
        let found =
            superuser.all::<String>("SELECT reason FROM xdb.slow_object WHERE object = 'public.mine'::regclass");
        reason = found.into_iter().next();
        reason.is_some()
    });
    // Not because it has cost half of the time for ten seconds.
    assert_eq!(reason.as_deref(), Some("took longer than xdb.apply_timeout"));
    busy.app.db().run("DROP TRIGGER slow ON mine");
    busy.end();
}
