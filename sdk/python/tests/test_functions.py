"""Functions of the database that an answer calls."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import pytest

import xdb
import xdb.testing
from xdb.testing import CalledFunction


@dataclass
class Reservation:
    sku: str
    quantity: Decimal


class Order(xdb.Process):
    reserve = xdb.Function[Reservation]("app.reserve_stock")
    note = xdb.Function[str]('app."Note it"', "told")

    @xdb.state(start=True)
    def take(self, sku: str) -> xdb.Decision:
        self.reserve(Reservation(sku, Decimal("1.50")))
        self.note("taken")
        return xdb.complete()

    @xdb.state
    def wrong(self) -> xdb.Decision:
        self.reserve("two")  # type: ignore[arg-type]
        return xdb.complete()

    @xdb.rpc
    def tell(self) -> None:
        self.note("told")


def test_the_definition_lists_them() -> None:
    assert Order.definition()["functions"] == {"reserve": "app.reserve_stock", "told": 'app."Note it"'}


def test_an_answer_calls_them_in_order() -> None:
    result = xdb.testing.call(Order.take, "a1")
    assert result.called == [
        CalledFunction("reserve", Reservation("a1", Decimal("1.50"))),
        CalledFunction("told", "taken"),
    ]
    assert xdb.testing.call(Order.tell).called == [CalledFunction("told", "told")]


def test_a_start_calls_them_in_order() -> None:
    calls = [Order.reserve.on_start(Reservation("a1", Decimal("1.50"))), Order.note.on_start("begun")]
    arguments = xdb.Start(Order, "o-1", "a1", calls=calls, priority=-3).arguments()
    assert arguments["options"] == {
        "priority": -3,
        "callFunctions": [
            {"function": "reserve", "argument": {"sku": "a1", "quantity": "1.50"}},
            {"function": "told", "argument": "begun"},
        ],
    }

    class Other(xdb.Process):
        reserve = xdb.Function[Reservation]("app.another")

    with pytest.raises(ValueError, match=r"reserve \(app.another\) is not a function of Order"):
        xdb.Start(Order, "o-1", "a1", calls=[Other.reserve.on_start(Reservation("a1", Decimal(1)))]).arguments()


def test_an_argument_that_does_not_fit_is_refused_where_it_is_given() -> None:
    with pytest.raises(xdb.CodecError, match="reserve"):
        xdb.testing.call(Order.wrong)
    with pytest.raises(xdb.CodecError, match="reserve"):
        Order.reserve.on_start("two")  # type: ignore[arg-type]


def test_an_annotation_alone_is_no_function() -> None:
    with pytest.raises(xdb.DefinitionError, match="is only annotated as a function"):

        class Annotated(xdb.Process):
            reserve: xdb.Function[Reservation]
