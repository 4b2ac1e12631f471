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


def test_a_start_has_all_rows_of_its_class_and_no_others(client: Any) -> None:
    with pytest.raises(TypeError, match=r"^Order starts with the key of each of its rows: give rows=\[Orders\.row\(key\)\]$"):
        client.start(Order, "o")
    with pytest.raises(TypeError, match=r"give rows=\[Orders\.row\(key\), Stock\.row\(key\)\]$"):
        client.start(Delivery, "d")
    with pytest.raises(TypeError, match=r"give rows=\[Stock\.row\(key\)\]$"):
        client.start_many([xdb.Start(Delivery, "d", rows=[Orders.row("1")])])
    with pytest.raises(TypeError, match=r"^Order has no row of the table public\.stock; its rows are Orders$"):
        client.start(Order, "o", rows=[Orders.row("1"), STOCK])
    with pytest.raises(TypeError, match=r"^Idle has no row of the table public\.orders; its rows are none$"):
        client.start(Idle, "i", rows=[Orders.row("1")])
    with pytest.raises(TypeError, match="is no subclass of xdb.Process"):
        client.start("Order", "o")
    with pytest.raises(TypeError, match=r"^rows= has rows by their keys, as Orders\.row\(key\), not <class"):
        client.start(Order, "o", rows=[Orders])
    with pytest.raises(TypeError, match=r"^rows= has rows by their keys, as User\.row\(key\), not 'r'"):
        client.start(Order, "o", rows=["r"])


def test_members_are_given_as_the_class_has_them(client: Any) -> None:
    for call, message in (
        (lambda: client.rpc("price", "o", 3), "an RPC is given as its class has it, as SignUp.confirm, not 'price'"),
        (lambda: client.rpc(Order.pay, "o", 3), "an RPC is given as its class has it, as SignUp.confirm, not the state Order.pay"),
        (lambda: client.publish("paid", "o", "cash"), "a queue is given as its class has it, as SignUp.verified, not 'paid'"),
        (lambda: client.publish(Order.parcels, "o", "p"), "a queue is given .*, not the global queue parcels"),
        (lambda: client.publish_global("parcels", "p"), "a global queue is given as its class has it, as SignUp.prices, not 'parcels'"),
        (lambda: client.publish_global(Order.paid, "p"), "a global queue is given .*, not the queue paid"),
        (lambda: client.wait_for_state("pay", "o"), "a state is given as its class has it, as SignUp.verify, not 'pay'"),
        (lambda: client.skip_timer("pay", "o"), "a state is given as its class has it"),
        (lambda: client.retry_now("o", "pay", 1), "a state is given as its class has it"),
        (lambda: client.start(Idle, "i", starting_state="rest"), "a state is given as its class has it"),
    ):
        with pytest.raises(TypeError, match=f"^{message}"):
            call()


def test_a_status_that_there_is_not(client: Any) -> None:
    with pytest.raises(ValueError, match="^status is one of 'RUNNING', 'COMPLETED', 'FAILED', 'TIMEOUT', 'TERMINATED', not 'DONE'$"):
        list(client.list(status="DONE"))


def test_what_the_attributes_of_a_process_are_not() -> None:
    seen = view(Order, {"note": "n", "tries": 3})
    assert (seen.note, seen.tries) == ("n", 3)
    with pytest.raises(xdb.NotLoaded, match="^Orders.status is a column of a row, and there are the local attributes alone: ask its table$"):
        seen.order.status
    with pytest.raises(xdb.CallOver, match=r"^Order.tries can't be written: .* write them with set_local\(\)$"):
        seen.tries = 4
    with pytest.raises(xdb.CallOver, match="^nothing can be published to paid: "):
        seen.paid.publish("cash")
