"""An order that is cancelled at the same time as another event."""

from __future__ import annotations

import threading

import order
import pytest
from order import Order
from test_order import shop, status

import xdb
from xdb.testing.pytest_plugin import Database

__all__ = ["shop"]


def test_it_is_cancelled_while_the_warehouse_is_asked(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The customer's cancellation holds: the parcel does not leave, or comes back."""
    events: list[str] = []
    asked, cancelled = threading.Event(), threading.Event()

    def ship(order_id: str, article: str) -> None:
        asked.set()
        assert cancelled.wait(60)
        events.append("leaves")

    monkeypatch.setattr(order.warehouse, "ship", ship)
    monkeypatch.setattr(order.warehouse, "call_back", lambda order_id: events.append("stays, or comes back"))
    shop.client.publish(Order.paid, "order-1", "p-1")
    assert asked.wait(60)
    assert shop.client.rpc(Order.cancel, "order-1", "changed my mind")
    cancelled.set()
    assert shop.client.wait(Order, "order-1").output == "changed my mind"
    assert events == ["leaves", "stays, or comes back"] and status(shop) == "cancelled"
    assert not shop.client.rpc(Order.cancel, "order-1", "once more")


def test_it_is_cancelled_between_the_warehouse_and_the_end(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """`shipped` has read no cancellation, and one is committed before its answer is applied: the step is repeated."""
    called: list[bool] = []
    shipped = Order.shipped.fn

    def late(self: Order) -> xdb.Decision:
        answer: xdb.Decision = shipped(self)
        if not called:
            called.append(shop.client.rpc(Order.cancel, "order-1", "changed my mind"))
        return answer

    monkeypatch.setattr(Order._xdb.states["shipped"], "fn", late)
    shop.client.publish(Order.paid, "order-1", "p-1")
    outcome = shop.client.wait(Order, "order-1")
    assert called == [True] and (outcome.status, outcome.output) == ("FAILED", "changed my mind")
    assert status(shop) == "cancelled"


def test_it_is_paid_and_cancelled_at_once(
    shop: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In either order of the payment and the cancellation. The parcel does not leave before the cancellation is noted."""
    cancelled, ship = threading.Event(), order.warehouse.ship

    def ship_later(order_id: str, article: str) -> None:
        assert cancelled.wait(60)
        ship(order_id, article)

    monkeypatch.setattr(order.warehouse, "ship", ship_later)
    shop.client.publish(Order.paid, "order-1", "p-1")
    assert shop.client.rpc(Order.cancel, "order-1", "changed my mind")
    cancelled.set()
    assert shop.client.wait(Order, "order-1").status == "FAILED"
    assert status(shop) == "cancelled"
    printed = capsys.readouterr().out
    assert "leaves" not in printed.rpartition("stays, or comes back")[2]
    assert ("goes back" in printed) == (shop.execute("SELECT payment FROM orders") == [("p-1",)])
