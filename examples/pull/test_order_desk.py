from __future__ import annotations

from collections.abc import Iterator

import order_desk
import psycopg
import pytest
from order_desk import Order, OrderRow

import xdb
from xdb.testing.pytest_plugin import Database


@pytest.fixture
def shop(xdb_db: Database) -> Iterator[Database]:
    """A shop with two bicycles, and two workers."""
    xdb_db.execute(order_desk.TABLES)
    xdb_db.execute("INSERT INTO stock VALUES ('bicycle', 2)")
    with psycopg.connect(xdb_db.superuser_dsn) as conn:
        order_desk.worker.register(conn, role="app")
    with xdb.PullWorker(Order, name="order-desk", connections=xdb_db.dsn, threads=2, wait=0.5) as worker:
        yield xdb_db
    worker.close()
    assert xdb_db.problems() == []


def order(db: Database, id: str) -> None:
    db.client.start(Order, f"order-{id}", id, rows=[OrderRow.row(id, article="bicycle", status="new")])


def booked(db: Database) -> tuple[int, int, int]:
    """How many bicycles are left, and how many invoices and shipments there are."""
    [(stock, invoices, shipments)] = db.execute(
        "SELECT amount, (SELECT count(*) FROM invoices), (SELECT count(*) FROM shipments) FROM stock"
    )
    return stock, invoices, shipments


def test_it_is_booked_once(shop: Database) -> None:
    order(shop, "1")
    shop.client.publish(Order.paid, "order-1", "cash")
    assert shop.client.wait(Order, "order-1").result == "cash"
    assert booked(shop) == (1, 1, 1)


def test_the_order_is_not_paid(shop: Database) -> None:
    order(shop, "1")
    assert shop.clock.run_until_closed("order-1").output == "it was not paid"
    assert booked(shop) == (2, 0, 0)


def test_the_table_refuses_a_sold_out_item(shop: Database) -> None:
    for id in ("1", "2", "3"):
        order(shop, id)
        if id != "3":
            shop.client.publish(Order.paid, f"order-{id}", "cash")
            assert shop.client.wait(Order, f"order-{id}").result == "cash"
    assert shop.clock.run_until_closed("order-3").output == "sold out"
    assert booked(shop) == (0, 2, 2)
    assert shop.execute("SELECT status FROM orders WHERE order_id = '3'") == [("sold out",)]
