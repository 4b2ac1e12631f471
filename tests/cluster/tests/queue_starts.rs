//! The example `queue-starts`: messages of a global queue start processes.

use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::prelude::*;

const SETUP: &str = include_str!("../../../examples/queue-starts/setup.sql");
const ORDERS: &str = include_str!("../../../examples/queue-starts/orders.sql");

fn application(app: App) -> App {
    app.superuser().run(SETUP);
    app.superuser().run("GRANT ALL ON public.orders TO PUBLIC");
    app
}

/// Messages of `orders` that wait, or that a step has taken.
fn left(app: &App) -> i64 {
    app.superuser().count("xdb.global_message WHERE queue_name = 'orders'")
}

#[test]
fn the_example_runs() {
    let app = application(App::new("queue_starts"));
    let mut db = app.db();
    db.run(ORDERS);
    wait_until("all are taken", 20, || left(&app) == 0);
    wait_until("the orders are written", 20, || db.count("public.orders") == 2);
    let customers: Vec<String> = db.all("SELECT customer FROM public.orders ORDER BY number");
    assert_eq!(customers, ["alice", "bob"]);
    let refused = db.json("SELECT payload FROM xdb.queue_messages WHERE queue_name = 'orders.refused'");
    assert_eq!((&refused["customer"], &refused["number"]), (&json!("carol"), &json!("1")));
    assert!(refused["why"].as_str().is_some_and(|why| why.contains("order-1")), "{refused}");
    db.run("SELECT xdb.stop_process('orders')");
    app.done(&[]);
}

/// "Message start event": each message starts one process, with clashes, three consumers and kills.
#[test]
fn a_message_start_event_starts_one_process_for_each_message() {
    let app = application(App::alone("queue_starts_many", ClusterOptions::default()));
    let mut db = app.db();
    for consumer in 0..3 {
        db.start(&format!("orders-{consumer}"), "Orders").go();
    }
    // Each tenth message has the number of an earlier one.
    let publish = |db: &mut Db, from: u32| {
        db.run(&format!(
            "SELECT xdb.publish_global('orders', jsonb_build_object('number', CASE WHEN n % 10 = 9 THEN n - 9 ELSE n END,
                'customer', 'c' || n), key => 'c' || n % 50, message_id => 'm' || n) FROM generate_series({from}, {from} + 499) AS n"
        ));
    };
    for slice in 0..4 {
        publish(&mut db, slice * 500);
        if slice % 2 == 1 {
            app.kill_scheduler();
            db = app.db();
        }
    }
    wait_until("all are taken", 120, || left(&app) == 0);
    wait_until("all orders are written", 60, || db.count("public.orders") == 1800);
    assert_eq!(db.count("xdb.queue_messages WHERE queue_name = 'orders.refused'"), 200);
    assert_eq!(db.count("xdb.processes WHERE process_type = 'Order'"), 1800);
    db.run("SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE process_type = 'Orders'");
    app.done(AFTER_A_CRASH);
}

/// "One instance per correlation key; the next message waits for its end": the orders of a key run in the order of their
/// messages.
#[test]
fn a_message_start_event_waits_for_the_end_of_the_process_with_its_key() {
    let app = application(App::alone("queue_starts_keys", ClusterOptions::default()));
    let mut db = app.db();
    // The first order of each key takes long.
    app.superuser().run(
        "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN IF NEW.number::int < 5 THEN PERFORM pg_sleep(0.1); END IF; RETURN NEW; END $$;
         CREATE TRIGGER slow BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.slow()",
    );
    db.start("orders", "Orders").go();
    db.run(
        "SELECT xdb.publish_global('orders', jsonb_build_object('number', n, 'customer', 'c' || n % 5), key => 'c' || n % 5)
         FROM generate_series(0, 299) AS n",
    );
    app.kill_scheduler();
    let mut db = app.db();
    wait_until("all orders are written", 60, || db.count("public.orders") == 300);
    wait_until("all have closed", 60, || {
        db.count("xdb.processes WHERE process_type = 'Order' AND status = 'RUNNING'") == 0
    });
    assert_eq!(views::orders_begun_too_early(&mut db), 0);
    db.run("SELECT xdb.stop_process('orders')");
    app.done(AFTER_A_CRASH);
}
