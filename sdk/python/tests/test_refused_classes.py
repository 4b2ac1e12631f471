"""More classes that are no processes: slips that a first program has, each refused where it is made."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
from support import post

import xdb

T = TypeVar("T")


class Stock(xdb.Row, table="public.stock", key="id"):
    amount: int


class Price(xdb.Row, table="public.stock", key="sku"):
    price: int


@dataclass
class Pair(Generic[T]):
    left: T
    right: T


def _two_rows_of_a_table() -> None:
    class P(xdb.Process):
        stock: Stock
        price: Price


def _wait_for_a_name_that_is_none() -> None:
    class P(xdb.Process):
        paid = xdb.Queue[str]()

        @xdb.state(wait=xdb.any_of(xdb.queue("payd"), xdb.timer(hours=1)))
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _queue_that_is_not_called() -> None:
    class P(xdb.Process):
        paid = xdb.Queue[str]


def _queue_of_a_later_class() -> None:
    class P(xdb.Process):
        paid = xdb.Queue["str | None"]


def _class_of_queues() -> None:
    class P(xdb.Process):
        paid = xdb.Queue


def _global_queue_that_is_not_called() -> None:
    class P(xdb.Process):
        prices = xdb.GlobalQueue[int]


def _function_that_is_not_called() -> None:
    class P(xdb.Process):
        reserve = xdb.Function[int]


def _wait_for_a_type() -> None:
    class P(xdb.Process):
        @xdb.state(wait=xdb.Queue[str])  # type: ignore
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _misspelt_option() -> None:
    class P(xdb.Process):
        @xdb.state(retires=xdb.Retry(attempts=2))  # type: ignore
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _option_of_a_state_for_an_rpc() -> None:
    class P(xdb.Process):
        @xdb.rpc(start=True)  # type: ignore
        def a(self) -> None:
            return None


def _rpc_that_decides() -> None:
    class P(xdb.Process):
        @xdb.rpc
        def a(self) -> xdb.Decision:
            return xdb.complete()


def _generic_dataclass() -> None:
    class P(xdb.Process):
        pair: Pair[int]


def _generic_dataclass_of_anything() -> None:
    class P(xdb.Process):
        pair: Pair  # type: ignore


def _row_without_its_table() -> None:
    class P(xdb.Row, key="id"):  # type: ignore
        a: int


def _row_without_anything() -> None:
    class P(Stock):  # type: ignore
        a: int


TYPE_PARAMETERS = "can't become JSON: write one class for each type"
SLIPS: list[tuple[Callable[[], None], str, str]] = [
    (_two_rows_of_a_table, "P", "Stock and Price map the same table, public.stock: a process has one row of each table"),
    (_wait_for_a_name_that_is_none, "P.a", "it waits for queue 'payd', which the class does not have"),
    (_queue_that_is_not_called, "P", "paid is a type that was not called: write paid = xdb.Queue[str]()"),
    (_queue_of_a_later_class, "P", "write paid = xdb.Queue[str | None]()"),
    (_class_of_queues, "P", "write paid = xdb.Queue[...]()"),
    (_global_queue_that_is_not_called, "P", 'write prices = xdb.GlobalQueue[int]("name")'),
    (_function_that_is_not_called, "P", 'write reserve = xdb.Function[int]("schema.name")'),
    (_wait_for_a_type, "P.a", "xdb.Queue[str] is a type that was not called: write xdb.Queue[str]()"),
    (_misspelt_option, "P.a", "@xdb.state has no option retires=; its options are start=, name=, wait=, retry=, "),
    (_option_of_a_state_for_an_rpc, "P.a", "@xdb.rpc has no option start=; its options are name=, timeout=, load=, lock="),
    (_rpc_that_decides, "P.a", "an RPC returns its output, not a decision: to start threads, call xdb.then(...)"),
    (_generic_dataclass, "P", f"pair: test_refused_classes.Pair[int] {TYPE_PARAMETERS}"),
    (_generic_dataclass_of_anything, "P", f"pair: left: ~T {TYPE_PARAMETERS}"),
    (_row_without_its_table, "P", "a row needs table= and key=, as str"),
    (_row_without_anything, "P", "a row needs table= and key=, as str"),
]


@pytest.mark.parametrize("make, where, message", SLIPS, ids=[each[0].__name__ for each in SLIPS])
def test_a_slip_is_refused_with_file_and_line(make: Callable[[], None], where: str, message: str) -> None:
    with pytest.raises(xdb.DefinitionError) as raised:
        make()
    first = make.__code__.co_firstlineno
    found = re.match(r"(.*test_refused_classes\.py):(\d+): ([\w.]+): (.*)", str(raised.value))
    assert found and message in found[4], raised.value
    assert found[3] == where and first < int(found[2]) <= first + 12


def test_a_queue_by_its_name_that_the_class_has() -> None:
    class P(xdb.Process):
        paid = xdb.Queue[str](name="payments")

        @xdb.state(wait=xdb.queue("payments"))
        def a(self) -> xdb.Decision:
            return xdb.complete()

    class Below(P):
        pass

    assert Below._xdb.waits["a"].request["localQueueCommands"][0]["queueName"] == "payments"


class Orders(xdb.Process):
    orders = xdb.Queue[str]()
    prices = xdb.GlobalQueue[int]("prices")

    @xdb.state
    def closes(self, queue: str) -> xdb.Decision:
        return xdb.complete_if_empty(self.orders, queue, otherwise=self.closes(queue))

    @xdb.state
    def closes_with_a_global_one(self) -> xdb.Decision:
        return xdb.complete_if_empty(self.prices, otherwise=self.closes(""))

    @xdb.state(wait=lambda self, queue: xdb.any_of(xdb.queue(queue), xdb.timer(hours=1)))
    def waits(self, queue: str) -> xdb.Decision:
        return xdb.complete()

    @xdb.rpc
    def decides(self, anything: bool) -> Any:
        return self.closes("orders")


def test_a_queue_that_a_handler_misspells_is_refused_before_the_engine_is_asked() -> None:
    worker = xdb.Worker(Orders)
    assert post(worker, "Orders", "closes", input="orders")[0] == 200
    assert post(worker, "Orders", "waits", "wait-until", input="orders")[0] == 200
    has = "which Orders does not have; its queues are orders"
    for name, api, given, detail in (
        ("closes", "execute", "order", f"Orders.closes names queue 'order', {has}"),
        ("closes_with_a_global_one", "execute", None, f"Orders.closes_with_a_global_one names queue 'prices', {has}"),
        ("waits", "wait-until", "order", f"wait= of Orders.waits names queue 'order', {has}"),
    ):
        status, answer = post(worker, "Orders", name, api, input=given)
        assert (status, answer["errorType"], answer["detail"]) == (500, "LookupError", detail)


def test_an_rpc_that_returns_a_decision_gets_a_hint_about_then() -> None:
    status, answer = post(xdb.Worker(Orders), "Orders", "decides", "rpc", input=True)
    assert status == 500 and "Orders.decides returned a decision, but an RPC returns its output: " in answer["detail"]
    assert "xdb.then(...)" in answer["detail"]
