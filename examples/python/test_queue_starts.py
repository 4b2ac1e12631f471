from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg
import pytest
import queue_starts
from queue_starts import NewOrder, Order, Orders

from xdb.testing.pytest_plugin import Database


@pytest.fixture
def db(xdb_db: Database) -> Database:
    """A process takes the orders."""
    xdb_db.serve(Orders, Order)
    xdb_db.client.start(Orders, "orders")
    return xdb_db


def publish(db: Database, number: str, customer: str | None, article: str = "bicycle") -> None:
    db.client.publish_global(Orders.incoming, NewOrder(number, article), key=customer)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def completed(db: Database) -> set[str]:
    return {order.process_id for order in db.client.list(process=Order) if order.status == "COMPLETED"}


def refused(db: Database) -> list[tuple[str | None, dict[str, object]]]:
    return db.execute("SELECT key, payload FROM xdb.queue_messages WHERE queue_name = 'orders.refused' ORDER BY position")


def test_each_message_starts_an_order_once(db: Database) -> None:
    publish(db, "1", "alice")
    publish(db, "2", None)
    publish(db, "1", "carol", "tricycle")  # this number is there already
    publish(db, "3", "carol")
    wait_until(lambda: completed(db) == {"order-1", "order-2", "order-3"})
    [(key, payload)] = refused(db)
    assert (key, payload["order"]) == ("carol", {"number": "1", "article": "tricycle"})
    assert "order-1" in str(payload["why"])


def test_the_orders_of_a_customer_run_one_at_a_time_in_the_order_of_their_messages(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    of_bob = threading.Event()

    def ship(order: NewOrder) -> None:
        events.append(f"{order.number} begins")
        if order.number == "b1":
            of_bob.set()
        if order.number == "a1":
            assert of_bob.wait(20)  # an order of another customer does not wait for this one
        events.append(f"{order.number} ends")

    monkeypatch.setattr(queue_starts, "ship", ship)
    for number in ("a1", "a2", "b1", "a3"):
        publish(db, number, "alice" if number.startswith("a") else "bob")
    wait_until(lambda: len(completed(db)) == 4)
    of_alice = [event for event in events if event.startswith("a")]
    assert of_alice == ["a1 begins", "a1 ends", "a2 begins", "a2 ends", "a3 begins", "a3 ends"]


def test_an_order_goes_on_when_no_more_orders_are_taken(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, stopped = threading.Event(), threading.Event()

    def ship(order: NewOrder) -> None:
        begun.set()
        assert stopped.wait(20)

    monkeypatch.setattr(queue_starts, "ship", ship)
    publish(db, "1", "alice")
    assert begun.wait(60)
    db.client.stop("orders")
    stopped.set()
    assert db.client.wait(Order, "order-1").status == "COMPLETED"


@pytest.mark.parametrize("commits", [True, False])
def test_an_order_waits_for_a_session_that_starts_the_same_one(db: Database, commits: bool) -> None:
    taken = "SELECT true FROM xdb.state_executions WHERE process_id = 'orders' AND status = 'EXECUTE'"
    with psycopg.connect(db.dsn) as conn:
        db.client.start(Order, "order-1", NewOrder("1", "bicycle"), conn=conn)
        publish(db, "1", "alice")
        wait_until(lambda: len(db.execute(taken)) == 1)
        conn.commit() if commits else conn.rollback()
    wait_until(lambda: completed(db) == {"order-1"})
    wait_until(lambda: len(refused(db)) == commits and not db.execute(taken))
