"""What a client is given by mistake is refused before any SQL is sent, in words of Python."""

from __future__ import annotations

from typing import Any

import pytest
from shop import Delivery, Idle, Order, Orders, Stock

import xdb
from xdb.process import view


@pytest.fixture
def client() -> Any:
    """A client that can't send anything."""

    def unreachable() -> Any:
        raise AssertionError("it was sent")

    return xdb.Client(unreachable)


STOCK = Stock.row({"article": "a", "place": "b"})


def test_a_start_has_exactly_the_rows_of_its_class(client: Any) -> None:
    with pytest.raises(TypeError, match=r"^rows= lacks rows that Order maps: give rows=\[Orders\.row\(key\)\]$"):
        client.start(Order, "o")
    with pytest.raises(TypeError, match=r"give rows=\[Orders\.row\(key\), Stock\.row\(key\)\]$"):
        client.start(Delivery, "d")
    with pytest.raises(TypeError, match=r"give rows=\[Stock\.row\(key\)\]$"):
        client.start_many([xdb.Start(Delivery, "d", rows=[Orders.row("1")])])
    with pytest.raises(TypeError, match=r"^Order maps no row of table public\.stock; its rows are Orders$"):
        client.start(Order, "o", rows=[Orders.row("1"), STOCK])
    with pytest.raises(TypeError, match=r"^Idle maps no row of table public\.orders; its rows are none$"):
        client.start(Idle, "i", rows=[Orders.row("1")])
    with pytest.raises(TypeError, match="is not a subclass of xdb.Process"):
        client.start("Order", "o")
    with pytest.raises(TypeError, match=r"^rows= contains <class .*: write Orders\.row\(key\)$"):
        client.start(Order, "o", rows=[Orders])
    with pytest.raises(TypeError, match=r"^rows= contains 'r': write User\.row\(key\)$"):
        client.start(Order, "o", rows=["r"])


def test_members_are_given_as_the_class_has_them(client: Any) -> None:
    for call, message in (
        (lambda: client.rpc("price", "o", 3), "'price' is not an RPC: give the member of the class, as in SignUp.confirm"),
        (lambda: client.rpc(Order.pay, "o", 3), "the state Order.pay is not an RPC: give the member of the class, as in SignUp.confirm"),
        (lambda: client.publish("paid", "o", "cash"), "'paid' is not a queue: give the member of the class, as in SignUp.verified"),
        (lambda: client.publish(Order.parcels, "o", "p"), "the global queue parcels is not a queue"),
        (lambda: client.publish_global("parcels", "p"), "'parcels' is not a global queue: give the member of the class, as in SignUp.prices"),
        (lambda: client.publish_global(Order.paid, "p"), "the queue paid is not a global queue"),
        (lambda: client.wait_for_state("pay", "o"), "'pay' is not a state: give the member of the class, as in SignUp.verify"),
        (lambda: client.skip_timer("pay", "o"), "'pay' is not a state"),
        (lambda: client.retry_now("o", "pay", 1), "'pay' is not a state"),
        (lambda: client.start(Idle, "i", starting_state="rest"), "'rest' is not a state"),
    ):
        with pytest.raises(TypeError, match=f"^{message}"):
            call()


def test_a_move_has_the_name_of_a_step_and_a_list_of_movements(client: Any) -> None:
    for step, next_states, message in (
        (Order.pay, [], "the state Order.pay is not a step: give the name of one, with its number, as in 'pay-1'"),
        (1, [], "1 is not a step: give the name of one, with its number, as in 'charge-1'"),
        ("pay-1", Order.pay(None), r"next_states=Decision.* is not a list of movements: write \[Order.refund\(...\)\], or \[\]"),
        ("pay-1", "pay", "next_states='pay' is not a list of movements"),
        ("pay-1", None, "next_states=None is not a list of movements"),
        ("pay-1", [Order.pay], "next_states= contains .* which is not a movement: call a state, as in"),
        ("pay-1", ["pay"], "next_states= contains 'pay', which is not a movement"),
        ("pay-1", [xdb.complete()], "next_states= contains Decision"),
        ("pay-1", [xdb.complete_if_empty(Order.paid, otherwise=Order.pay(None))], "next_states= contains Decision"),
    ):
        with pytest.raises(TypeError, match=f"^{message}"):
            client.move_state("o", step, next_states)


def test_a_status_that_there_is_not(client: Any) -> None:
    with pytest.raises(ValueError, match="^status='DONE' is unknown: give one of 'RUNNING', 'COMPLETED', 'FAILED', 'TIMEOUT', 'TERMINATED'$"):
        list(client.list(status="DONE"))


def test_a_view_of_a_process_can_not_write_or_publish() -> None:
    seen = view(Order, {"note": "n", "tries": 3})
    assert (seen.note, seen.tries) == ("n", 3)
    with pytest.raises(xdb.NotLoaded, match="^Orders.status is a column, and only local attributes can be read here: read it from its table$"):
        seen.order.status
    with pytest.raises(xdb.CallOver, match=r"^can't write Order.tries: .* write them with set_local\(\)$"):
        seen.tries = 4
    with pytest.raises(xdb.CallOver, match="^can't publish to paid: "):
        seen.paid.publish("cash")
