"""`start_child` and `ChildClosed`: without an engine, and on the simulator."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import xdb
from xdb.children import MOST_CHILDREN
from xdb.testing import call
from xdb.testing.simulator import Simulator


class Shipping(xdb.Process):
    tries: int = 0

    @xdb.state(start=True)
    def pack(self, parcel: str) -> xdb.Decision:
        if parcel == "broken":
            return xdb.fail("it is broken")
        parent = self.call.parent
        return xdb.complete([parcel, parent.process_id if parent else None, parent.state_execution_id if parent else None])


class Nap(xdb.Process):
    go = xdb.Queue[str]()

    @xdb.state(start=True, wait=go.take())
    def rest(self) -> xdb.Decision:
        return xdb.complete()


class Order(xdb.Process):
    shipped = xdb.Queue[xdb.ChildClosed]()

    @xdb.state(start=True)
    def ship(self, parcels: list[str]) -> xdb.Decision:
        for parcel in parcels:
            self.start_child(Shipping, parcel, id=f"ship-{parcel}", on_close=self.shipped)
        self.start_child(Nap, id="nap", priority=-1)
        self.start_child(Nap, id="left", leave=True, timeout=timedelta(hours=1))
        return self.join(len(parcels))

    def all_shipped(self, count: int) -> xdb.Wait:
        return self.shipped.take(count)

    @xdb.state(wait=all_shipped)
    def join(self, count: int) -> xdb.Decision:
        return xdb.force_complete(sorted(f"{one.process_id} {one.status} {one.result}" for one in self.shipped.messages))

    @xdb.rpc
    def more(self, given: str) -> None:
        GIVEN[given](self)


def too_many(order: Any) -> None:
    for _ in range(MOST_CHILDREN + 1):
        order.start_child(Nap)


GIVEN: dict[str, Callable[[Any], None]] = {
    "queue": lambda order: order.start_child(Nap, on_close="shipped"),
    "class": lambda order: order.start_child("Nap"),
    "input": lambda order: order.start_child(Shipping, 7),
    "many": too_many,
    "nap": lambda order: order.start_child(Nap),
}


def test_the_answer_has_the_starts_as_in_the_protocol() -> None:
    ship, nap, left = call(Order.ship, ["a"]).children
    assert ship == {"processType": "Shipping", "processId": "ship-a", "input": "a", "onClose": "shipped"}
    assert nap == {"processType": "Nap", "processId": "nap", "options": {"priority": -1}}
    assert left == {"processType": "Nap", "processId": "left", "timeoutSeconds": 3600.0, "whenParentCloses": "LEAVE"}
    assert call(Order.more, "nap").children == [{"processType": "Nap"}]


def test_a_wrong_child_is_an_error_in_the_handler() -> None:
    for given, error, text in [
        ("queue", TypeError, "on_close=self.shipped"),
        ("class", TypeError, "Nap"),
        ("input", xdb.CodecError, "7"),
        ("many", ValueError, "1000"),
    ]:
        with pytest.raises(error, match=text):
            call(Order.more, given)


def test_the_message_about_a_child_is_read_and_written() -> None:
    closed = xdb.ChildClosed("c", "e", "Nap", "FAILED", None, [], "no more")
    assert not closed.completed
    seen = call(Order.join, 1, received={Order.shipped: [closed]}).decision
    assert seen is not None and "c FAILED None" in str(seen.body)
    large = xdb.ChildClosed("c", "e", "Nap", "COMPLETED", omitted=True)
    assert large.completed and "c COMPLETED None" in str(call(Order.join, 1, received={Order.shipped: [large]}).decision)


def test_a_parent_joins_its_children_and_ends_the_others() -> None:
    with Simulator(Order, Shipping, Nap) as simulator:
        order = simulator.start(Order, "o", ["a", "broken"])
        assert order.outcome.result == ["ship-a COMPLETED ['a', 'o', 'ship-1']", "ship-broken FAILED it is broken"]
        assert simulator.describe("nap").status == "TERMINATED"
        assert simulator.describe("left").status == "RUNNING"
