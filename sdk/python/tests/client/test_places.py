"""What does not fit its annotation is refused before any SQL, and the error says where it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from shop import Order, Orders, start_row

import xdb

NOWHERE: Any = xdb.Client("host=/nowhere")

CASES: list[tuple[Callable[[], object], str]] = [
    (lambda: NOWHERE.start(Order, "o", 5, rows=start_row("1")), "Order.pay(hint): int 5 is not str | None"),
    (lambda: NOWHERE.start(Order, "o", local={"tries": "x"}), "Order.tries: str 'x' is not int"),
    (lambda: NOWHERE.start_many([xdb.Start(Order, "o", local={"note": None})]), "Order.note: null is not str"),
    (lambda: NOWHERE.rpc(Order.price, "o", "three"), "Order.price(factor): str 'three' is not int"),
    (lambda: NOWHERE.publish(Order.paid, "o", 5), "paid: int 5 is not str"),
    (lambda: NOWHERE.publish_global(Order.parcels, ["p"]), "parcels: list ['p'] is not str"),
    (lambda: NOWHERE.set_local(Order, "o", tries="x"), "Order.tries: str 'x' is not int"),
    (lambda: Orders.row("1", total="x"), "Orders.total: str 'x' is not"),
    (lambda: Orders.row("a\0"), "Orders.order_id: the text has the character \\0"),
]


@pytest.mark.parametrize("call, message", CASES, ids=[message for _, message in CASES])
def test_the_place_of_the_error_is_in_the_message(call: Callable[[], object], message: str) -> None:
    with pytest.raises(xdb.CodecError, match="^" + re.escape(message)):
        call()
