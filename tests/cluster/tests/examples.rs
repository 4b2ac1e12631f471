//! The examples in SQL: a trip that is undone, a nightly report with children, and a delivery with guards.

use xdb_cluster_tests::prelude::*;

const TRIP: &str = include_str!("../../../examples/trip/setup.sql");
const TRIPS: &str = include_str!("../../../examples/trip/trips.sql");
const REPORT: &str = include_str!("../../../examples/nightly-report/setup.sql");
const SCHEDULE: &str = include_str!("../../../examples/nightly-report/schedule.sql");
const DELIVERY: &str = include_str!("../../../examples/delivery/setup.sql");
const ORDERS: &str = include_str!("../../../examples/delivery/orders.sql");

/// The database of an example, whose role has run its setup.
fn application(name: &str, setup: &str) -> (App, Db) {
    let app = App::new(name);
    app.superuser().run("SELECT xdb.grant_usage('app', deployer => true)");
    let mut db = app.db();
    db.run(setup);
    (app, db)
}

/// Starts a trip of alice, with its row.
fn book_trip(db: &mut Db, id: &str) {
    db.run(&format!(
        "INSERT INTO public.trips (id, customer, flight, hotel, price, begins_at)
             VALUES ('{id}', 'alice', 'Rome', 'Forum', 250, now() + interval '30 days');
         SELECT xdb.start_process('{id}', 'Trip')"
    ));
}

fn status_of(db: &mut Db, table: &str, id: &str) -> String {
    db.one(&format!("SELECT status FROM public.{table} WHERE id = '{id}'"))
}

/// Free seats and rooms, and the balance of alice.
fn left(db: &mut Db) -> Value {
    db.json(
        "SELECT jsonb_build_array((SELECT seats FROM public.flights), (SELECT rooms FROM public.hotels),
                                  (SELECT balance FROM public.accounts WHERE customer = 'alice'))",
    )
}

#[test]
fn trips_are_undone_by_their_customer_and_by_a_step_that_fails() {
    let (app, mut db) = application("example_trips", TRIP);
    db.run(TRIPS);
    for trip in ["trip-1", "trip-2"] {
        let outcome = db.outcome(trip);
        assert_eq!(outcome.status(), "FAILED", "{trip}");
        assert_eq!(status_of(&mut db, "trips", trip), "cancelled");
    }
    assert_eq!(db.outcome("trip-1").result(), "ill");
    assert_eq!(left(&mut db), json!([3, 3, 1000]));
    app.done(&[]);
}

#[test]
fn a_trip_that_begins_can_not_be_cancelled() {
    let (app, mut db) = application("example_trip_begins", TRIP);
    book_trip(&mut db, "trip");
    wait_until("it is booked", 20, || status_of(&mut db, "trips", "trip") == "booked");
    wait_until("it waits", 20, || db.count("xdb.waits WHERE state_execution_id = 'Travel-1'") == 1);
    assert_eq!(left(&mut db), json!([2, 2, 750]));
    db.run("SELECT xdb.skip_timer('trip', 'Travel-1')");
    assert_eq!(db.completes("trip").result(), "a good trip");
    db.refused("XD007", "SELECT xdb.invoke_rpc('trip', 'cancel', '\"too late\"')");
    assert_eq!(left(&mut db), json!([2, 2, 750]));
    app.done(&[]);
}

#[test]
fn a_trip_is_cancelled_before_its_first_step() {
    let (app, mut db) = application("example_trip_early", TRIP);
    db.run(
        "INSERT INTO public.trips (id, customer, flight, hotel, price, begins_at)
             VALUES ('trip', 'alice', 'Rome', 'Forum', 250, now() + interval '30 days');
         SELECT xdb.start_process('trip', 'Trip', start_at => now() + interval '1 day')",
    );
    db.rpc("trip", "cancel", json!("ill"));
    assert_eq!(db.outcome("trip").result(), "ill");
    assert_eq!((status_of(&mut db, "trips", "trip").as_str(), left(&mut db)), ("cancelled", json!([3, 3, 1000])));
    app.done(&[]);
}

/// Each cancellation comes at another moment of its trip. Two sessions cancel each trip.
#[test]
fn trips_can_be_cancelled_at_any_time() {
    let (app, mut db) = application("example_trips_any_time", TRIP);
    db.run("UPDATE public.flights SET seats = 40; UPDATE public.hotels SET rooms = 40; UPDATE public.accounts SET balance = 10000");
    for n in 0..40 {
        book_trip(&mut db, &format!("trip-{n}"));
    }
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut session = app.db();
                for n in 0..40 {
                    match session.try_run(&format!("SELECT xdb.invoke_rpc('trip-{n}', 'cancel', '\"ill\"')")) {
                        Ok(()) => {}
                        Err(error) => assert_eq!(error.code, "XD007", "{error:?}"),
                    }
                }
            });
        }
    });
    for n in 0..40 {
        assert_eq!(db.outcome(&format!("trip-{n}")).status(), "FAILED");
    }
    assert_eq!(db.count("public.trips WHERE status <> 'cancelled'"), 0);
    assert_eq!(left(&mut db), json!([40, 40, 10000]));
    app.done(&[]);
}

#[test]
fn a_report_adds_up_its_children() {
    let (app, mut db) = application("example_report", REPORT);
    db.run(SCHEDULE);
    db.run(
        "INSERT INTO public.shops VALUES ('oslo'), ('rome'), ('cairo');
         INSERT INTO public.sales VALUES ('rome', 12), ('rome', 30), ('cairo', 5);
         INSERT INTO public.sales VALUES ('oslo', 100, now() - interval '2 days')",
    );
    app.session("boss").run("SELECT xdb.pause_process_type('ShopSales')");
    // A tick now, as at three o'clock.
    wait_until("the schedule waits", 20, || db.count("xdb.waits WHERE process_id = 'nightly-report'") == 1);
    db.run("SELECT xdb.skip_timer('nightly-report', 'Tick-1')");
    let children = "xdb.processes WHERE process_type = 'ShopSales'";
    wait_until("the children have started", 20, || db.count(children) == 3);
    db.run(&format!("SELECT xdb.stop_process(process_id) FROM {children} AND process_id LIKE '%/cairo'"));
    app.session("boss").run("SELECT xdb.resume_process_type('ShopSales')");
    wait_until("there is a report", 20, || db.count("public.reports") == 1);
    let report = db.json("SELECT to_jsonb(r) FROM public.reports AS r");
    assert_eq!((&report["total"], &report["missing"]), (&json!(42), &json!(["cairo"])));
    assert_eq!(db.completes(report["id"].as_str().unwrap()).status(), "COMPLETED");
    let statuses: Vec<String> = db.all(&format!("SELECT status FROM {children} ORDER BY process_id"));
    assert_eq!(statuses, ["TERMINATED", "COMPLETED", "COMPLETED"]);
    db.run("SELECT xdb.stop_process('nightly-report')");
    app.done(&[]);
}

#[test]
fn a_report_without_shops_is_empty() {
    let (app, mut db) = application("example_report_empty", REPORT);
    db.start("report", "NightlyReport").go();
    db.completes("report");
    assert_eq!(
        db.json("SELECT to_jsonb(r) FROM public.reports AS r"),
        json!({"id": "report", "total": 0, "missing": []})
    );
    app.done(&[]);
}

#[test]
fn a_delivery_is_sent_and_one_is_recalled() {
    let (app, mut db) = application("example_deliveries", DELIVERY);
    db.run(ORDERS);
    assert_eq!(db.completes("order-1").result(), "parcel 7");
    let recalled = db.outcome("order-2");
    assert_eq!((recalled.status(), recalled.result()), ("FAILED", &json!("changed my mind")));
    assert_eq!(status_of(&mut db, "deliveries", "order-1"), "sent");
    assert_eq!(status_of(&mut db, "deliveries", "order-2"), "recalled");
    db.refused("XD007", "SELECT xdb.publish('order-1', 'recall', '\"too late\"')");
    assert_eq!(db.count("public.reminders"), 0);
    app.done(&[]);
}

/// A day passes three times. The last reminder is due when the parcel is sent: it is the last one, or is not made.
#[test]
fn a_delivery_is_reminded_until_it_is_sent() {
    let (app, mut db) = application("example_reminders", DELIVERY);
    db.run("INSERT INTO public.deliveries VALUES ('order', 'lamp'); SELECT xdb.start_process('order', 'Delivery')");
    for n in 1..=2 {
        let step = format!("Remind-{n}");
        wait_until("it waits", 20, || db.count(&format!("xdb.waits WHERE state_execution_id = '{step}'")) == 1);
        db.run(&format!("SELECT xdb.skip_timer('order', '{step}')"));
        wait_until("it is reminded", 20, || db.count("public.reminders") == n);
    }
    wait_until("it waits", 20, || db.count("xdb.waits WHERE state_execution_id = 'Remind-3'") == 1);
    db.run(
        "BEGIN;
         SELECT xdb.skip_timer('order', 'Remind-3');
         SELECT xdb.publish('order', 'sent', '\"parcel 7\"');
         COMMIT",
    );
    assert_eq!(db.completes("order").result(), "parcel 7");
    assert!([2, 3].contains(&db.count("public.reminders")));
    assert_eq!(db.count("xdb.timers WHERE process_id = 'order'"), 0);
    app.done(&[]);
}

/// Both messages are accepted before the delivery closes, in both orders: the recall holds.
#[test]
fn a_recall_at_the_moment_of_the_answer_holds() {
    let (app, mut db) = application("example_recall", DELIVERY);
    for n in 0..20 {
        let order = format!("order-{n}");
        db.run(&format!(
            "INSERT INTO public.deliveries VALUES ('{order}', 'lamp'); SELECT xdb.start_process('{order}', 'Delivery')"
        ));
        let queues = if n % 2 == 0 { ["sent", "recall"] } else { ["recall", "sent"] };
        db.run(&format!(
            "BEGIN;
             SELECT xdb.publish('{order}', '{}', '\"first\"');
             SELECT xdb.publish('{order}', '{}', '\"second\"');
             COMMIT",
            queues[0], queues[1]
        ));
        assert_eq!(db.outcome(&order).status(), "FAILED", "{queues:?}");
        assert_eq!(status_of(&mut db, "deliveries", &order), "recalled", "{queues:?}");
    }
    app.done(&[]);
}

/// Each recall comes from another session at another moment. It is refused, or it holds.
#[test]
fn a_recall_that_is_accepted_holds() {
    let (app, mut db) = application("example_recalls", DELIVERY);
    db.run(
        "INSERT INTO public.deliveries SELECT 'order-' || n, 'lamp' FROM generate_series(0, 39) AS n;
         SELECT xdb.start_process(id, 'Delivery') FROM public.deliveries",
    );
    let accepted: Vec<bool> = std::thread::scope(|scope| {
        let recalls = scope.spawn(|| {
            let mut session = app.db();
            (0..40)
                .map(|n| session.try_run(&format!("SELECT xdb.publish('order-{n}', 'recall', '\"recalled\"')")).is_ok())
                .collect()
        });
        for n in 0..40 {
            let sent = db.try_run(&format!("SELECT xdb.publish('order-{n}', 'sent', '\"parcel\"')"));
            if let Err(error) = sent {
                assert_eq!(error.code, "XD007", "{error:?}");
            }
        }
        recalls.join().unwrap()
    });
    for (n, accepted) in accepted.into_iter().enumerate() {
        let order = format!("order-{n}");
        let (status, row) = if accepted { ("FAILED", "recalled") } else { ("COMPLETED", "sent") };
        assert_eq!(db.outcome(&order).status(), status, "{order}");
        assert_eq!(status_of(&mut db, "deliveries", &order), row);
    }
    app.done(&[]);
}
