"""`xdb.abort()`, which ends other threads, and the movements of `move_state()`: without an engine."""

from __future__ import annotations

import asyncio
import contextvars
import re
from collections.abc import Callable
from typing import Any

import pytest
from support import post

import xdb
from xdb.live import MOST_ABORTED
from xdb.testing import call, wait


def packing(self: Any) -> xdb.Wait:
    xdb.abort(self.pay)
    return xdb.timer(hours=1)


class Shop(xdb.Process):
    noted = xdb.Queue[str]()

    @xdb.state(start=True)
    def pay(self) -> xdb.Decision:
        return xdb.complete()

    @xdb.state(name="Pack", wait=packing)
    def pack(self) -> xdb.Decision:
        xdb.abort(self.pay, "Pack-2")
        self.noted.publish("packed")
        return self.refund("no more red ones")

    @xdb.state
    def refund(self, why: str) -> xdb.Decision:
        xdb.abort(Shop.pay, self.pack)
        xdb.abort(self.pay, "pay-3")
        return xdb.retry("Busy")

    @xdb.state
    async def late(self, after: str) -> xdb.Decision:
        await asyncio.gather(asyncio.to_thread(xdb.abort, "*", "refund"))
        return xdb.end_thread()

    @xdb.state
    def any(self, given: str) -> xdb.Decision:
        GIVEN[given](self)
        return xdb.end_thread()

    @xdb.rpc
    def cancel(self, why: str) -> str:
        xdb.abort("*")
        xdb.then(self.refund(why))
        return "cancelled"


class Other(Shop):
    """Has the states of `Shop`, one of which is its own."""

    @xdb.state(start=True)
    def pay(self) -> xdb.Decision:
        xdb.abort(self.pack, Shop.refund)
        return xdb.complete()


class Foreign(xdb.Process):
    @xdb.state(start=True)
    def elsewhere(self) -> xdb.Decision:
        return xdb.complete()


GIVEN: dict[str, Callable[[Any], object]] = {
    "a state of another class": lambda self: xdb.abort(Foreign.elsewhere),
    "an overridden state": lambda self: xdb.abort(self.refund, Other.pay),
    "an unknown name": lambda self: xdb.abort("nowhere"),
    "the method's name": lambda self: xdb.abort("pack"),
    "a step of an unknown state": lambda self: xdb.abort("nowhere-1"),
    "a step 0": lambda self: xdb.abort("Pack-0"),
    "a step without a number": lambda self: xdb.abort("Pack-"),
    "an empty text": lambda self: xdb.abort(""),
    "a movement": lambda self: xdb.abort(self.pay()),
    "None": lambda self: xdb.abort(None),  # type: ignore[arg-type]
    "a list": lambda self: xdb.abort(["Pack-1"]),  # type: ignore[arg-type]
    "nothing": lambda self: xdb.abort(),
    "many": lambda self: xdb.abort(*(f"Pack-{n}" for n in range(1, MOST_ABORTED + 2))),
    "many in two calls": lambda self: (xdb.abort(*(f"Pack-{n}" for n in range(1, MOST_ABORTED + 1))), xdb.abort("pay-1")),
    "as many as are allowed": lambda self: [xdb.abort(*(f"Pack-{n}" for n in range(1, MOST_ABORTED + 1))) for _ in range(2)],
}
WORKER = xdb.Worker(Shop)


def test_an_answer_names_what_it_aborts_beside_its_decision() -> None:
    status, answer = post(WORKER, "Shop", "Pack")
    assert status == 200 and answer == {
        "stateDecision": {"nextStates": [{"stateId": "refund", "stateInput": "no more red ones"}]},
        "publishToLocalQueue": [{"queueName": "noted", "payload": "packed"}],
        "abortStates": ["pay", "Pack-2"],
    }
    assert "abortStates" not in post(WORKER, "Shop", "pay")[1]
    assert post(WORKER, "Shop", "cancel", "rpc", input="why")[1] == {
        "output": "cancelled",
        "stateDecision": {"nextStates": [{"stateId": "refund", "stateInput": "why"}]},
        "abortStates": ["*"],
    }


def test_a_test_of_one_handler_sees_it() -> None:
    assert call(Shop.pack).aborted == ["pay", "Pack-2"] and call(Shop.pay).aborted == []
    result = call(Shop.refund, "why")
    assert (result.aborted, result.decision) == (["pay", "Pack", "pay-3"], xdb.retry("Busy"))
    assert call(Shop.late, "a thread").aborted == ["*"]
    assert call(Shop.cancel, "why").aborted == ["*"]
    assert call(Other.pay).aborted == ["Pack", "refund"]
    assert len(call(Shop.any, "as many as are allowed").aborted) == MOST_ABORTED


@pytest.mark.parametrize(
    "given, kind, message",
    [
        ("a state of another class", ValueError, "got Foreign.elsewhere, which is not a state of Shop: give a state"),
        ("an overridden state", ValueError, "got Other.pay, which is not a state of Shop"),
        ("an unknown name", ValueError, "got 'nowhere', which is neither a state nor a step of Shop: give a state"),
        ("the method's name", ValueError, "got 'pack', which is neither"),
        ("a step of an unknown state", ValueError, "got 'nowhere-1', which is neither"),
        ("a step 0", ValueError, "got 'Pack-0', which is neither"),
        ("a step without a number", ValueError, "got 'Pack-', which is neither"),
        ("an empty text", ValueError, "got '', which is neither"),
        ("a movement", TypeError, "got a decision, because a state was called: give a state"),
        ("None", TypeError, "got None: give a state"),
        ("a list", TypeError, re.escape("got ['Pack-1']: give a state")),
        ("nothing", TypeError, re.escape('names nothing: write xdb.abort(self.pay), or xdb.abort("*") for all other threads')),
        ("many", ValueError, "would name 1001 states and steps; the limit is 1000"),
        ("many in two calls", ValueError, "would name 1001 states and steps"),
    ],
)
def test_what_can_not_be_aborted_is_refused_at_once(given: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=rf"^xdb\.abort\(\) {message}"):
        call(Shop.any, given)


def test_the_error_says_what_to_write() -> None:
    with pytest.raises(ValueError) as refused:
        call(Shop.any, "an unknown name")
    assert str(refused.value).endswith(
        'give a state (self.pay, self.pack, self.refund, self.late, self.any), the name of a step such as "pay-1", '
        'or "*" for all other threads'
    )


def test_it_works_within_states_and_rpcs_only() -> None:
    with pytest.raises(LookupError, match=r"^there is no call here: xdb.abort\(\) works within handlers$"):
        xdb.abort("*")
    with pytest.raises(TypeError, match=r"^xdb.abort\(\) is for states and RPCs: a function of wait= only says what to wait for$"):
        wait(Shop.pack)
    assert post(WORKER, "Shop", "Pack", "wait-until")[1]["errorType"] == "TypeError"


def test_it_is_too_late_after_the_handler_has_returned() -> None:
    class Held(xdb.Process):
        @xdb.state(start=True)
        def work(self) -> xdb.Decision:
            contexts.append(contextvars.copy_context())
            return xdb.end_thread()

    contexts: list[contextvars.Context] = []
    assert post(xdb.Worker(Held), "Held", "work")[0] == 200
    with pytest.raises(xdb.CallOver, match="^can't abort threads: the handler has returned"):
        contexts[0].run(xdb.abort, "work-7")


class Sent:
    """A connection that keeps the arguments of `xdb.move_state`."""

    def __init__(self) -> None:
        self.sent: list[tuple[str | None, ...]] = []

    def execute(self, sql: str, params: tuple[str | None, ...]) -> list[tuple[str]]:
        assert sql.startswith("SELECT xdb.move_state(")
        self.sent.append(params)
        return [("",)]


def test_a_step_is_moved_to_movements() -> None:
    conn, client = Sent(), xdb.Client("host=/nowhere")
    client.move_state("o-1", "Pack-1", [Shop.refund("why") + Shop.pay(), Shop.pay.later(days=1)()], "by hand", conn=conn)
    client.move_state("o-1", "Pack-1", (), conn=conn)
    movements = '[{"stateId":"refund","stateInput":"why"},{"stateId":"pay"},{"stateId":"pay","delayInSeconds":86400.0}]'
    assert conn.sent == [("o-1", "Pack-1", movements, "by hand", None), ("o-1", "Pack-1", "[]", None, None)]


class Support(xdb.Process):
    """Its handlers move steps of `Shop`; a state has a name of that class."""

    @xdb.state(start=True)
    def refund(self) -> xdb.Decision:
        xdb.Client("host=/nowhere").move_state("o-1", "Pack-1", [Shop.refund("why")], conn=Sent())
        return xdb.complete()

    @xdb.rpc
    def forgets(self) -> None:
        Shop.refund("why")


def test_a_handler_moves_a_step_of_another_process() -> None:
    """The movement is used, and none of its own: it is no `UnusedMovement`, and no movement of `super()`."""
    assert call(Support.refund).decision == xdb.complete()
    with pytest.raises(xdb.UnusedMovement):
        call(Support.forgets)
