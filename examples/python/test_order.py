from __future__ import annotations

from decimal import Decimal

import order
import pytest
from order import Order, OrderRow

from xdb.testing.pytest_plugin import Database


@pytest.fixture
def shop(xdb_db: Database) -> Database:
    """A shop with one order."""
    xdb_db.execute(order.TABLES)
    xdb_db.serve(Order)
    xdb_db.client.start(Order, "order-1", rows=[OrderRow.row("1", article="bicycle", total=Decimal("899.00"))])
    xdb_db.clock.settle()
    return xdb_db


def status(db: Database) -> str:
    [(found,)] = db.execute("SELECT status FROM orders")
    return str(found)


def test_it_is_shipped(shop: Database, capsys: pytest.CaptureFixture[str]) -> None:
    shop.client.publish(Order.paid, "order-1", "p-1")
    assert shop.client.wait(Order, "order-1").result == "shipped"
    assert status(shop) == "shipped"
    assert not shop.client.rpc(Order.cancel, "order-1", "changed my mind")
    assert "goes back" not in capsys.readouterr().out


def test_it_is_cancelled_before_it_is_paid(shop: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert shop.client.rpc(Order.cancel, "order-1", "changed my mind")
    outcome = shop.client.wait(Order, "order-1")
    assert (outcome.status, outcome.output, status(shop)) == ("FAILED", "changed my mind", "cancelled")
    assert "goes back" not in capsys.readouterr().out


def test_it_is_cancelled_while_a_step_fails(
    shop: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ship(order_id: str, article: str) -> None:
        raise ConnectionError("the warehouse does not answer")

    monkeypatch.setattr(order.warehouse, "ship", ship)
    shop.client.publish(Order.paid, "order-1", "p-1")
    shop.clock.advance(seconds=5)  # some of the eight attempts
    assert status(shop) == "paid"
    assert shop.client.rpc(Order.cancel, "order-1", "changed my mind")
    assert shop.client.wait(Order, "order-1").output == "changed my mind"
    assert status(shop) == "cancelled"
    assert capsys.readouterr().out.count("899.00 of payment p-1 goes back") == 1


def test_the_order_is_not_paid(shop: Database) -> None:
    assert shop.clock.run_until_closed("order-1").output == "it was not paid"
