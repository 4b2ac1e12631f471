"""A movement is what a handler returns: one that is made and forgotten, or made by `super()`, is an error that says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support import post

import xdb
from xdb.testing import call


class Shop(xdb.Process):
    orders = xdb.Queue[str]()

    @xdb.state(start=True)
    def pack(self, how: str) -> xdb.Decision:
        if how == "forgets":
            self.bill(1)
            return xdb.complete()
        if how == "forgets one of two":
            self.ship()
            return self.bill(1)
        if how == "made the same twice":
            self.ship()
            return self.ship()
        if how == "forgets a part":
            _ = self.ship() + self.bill(1)
            return self.ship()
        if how == "forgets the one that begins later":
            self.ship.later(days=1)()
            return xdb.end_thread()
        if how == "forgets the one with options":
            self.ship.with_config(retry=xdb.Retry(attempts=1))()
            return self.bill(1)
        if how == "tries again":
            self.ship()
            return xdb.retry("Busy")
        if how == "two":
            return self.ship() + self.bill(1)
        if how == "chooses":
            first = self.ship()
            return first + self.bill(1) + first
        if how == "if empty":
            return xdb.complete_if_empty(self.orders, otherwise=self.ship())
        raise xdb.Fatal("NoShip", str(self.ship()))

    @xdb.state
    def ship(self) -> xdb.Decision:
        return xdb.complete()

    @xdb.state(name="charge")
    def bill(self, amount: int) -> xdb.Decision:
        return xdb.complete()

    @xdb.state
    async def later(self) -> xdb.Decision:
        await asyncio.gather(asyncio.to_thread(lambda: self.ship()))
        return xdb.complete()

    @xdb.state(wait=lambda self: self.bill(1) and xdb.timer(seconds=1))
    def waits(self) -> xdb.Decision:
        return xdb.complete()

    @xdb.rpc
    def cancel(self, how: str) -> str:
        if how == "forgets":
            self.ship()
        elif how == "then":
            xdb.then(self.ship())
        elif how == "then, and forgets":
            xdb.then(self.ship())
            self.bill(2)
        return how


WORKER = xdb.Worker(Shop)


@pytest.mark.parametrize(
    "how, name",
    [
        ("forgets", "bill"),
        ("forgets one of two", "ship"),
        ("made the same twice", "ship"),
        ("forgets a part", "ship"),
        ("forgets the one that begins later", "ship"),
        ("forgets the one with options", "ship"),
        ("tries again", "ship"),
    ],
)
def test_a_movement_that_is_not_returned_is_an_error(how: str, name: str) -> None:
    status, answer = post(WORKER, "Shop", "pack", input=how)
    assert (status, answer["errorType"]) == (500, "UnusedMovement")
    assert answer["detail"].startswith(f"Shop.pack called self.{name}() and did not use the movement: write `return self.{name}()`")


@pytest.mark.parametrize("how, movements", [("two", 2), ("chooses", 3), ("if empty", 1)])
def test_movements_that_are_returned(how: str, movements: int) -> None:
    status, answer = post(WORKER, "Shop", "pack", input=how)
    assert status == 200 and len(answer["stateDecision"]["nextStates"]) == movements


def test_a_failure_has_the_given_fields() -> None:
    assert post(WORKER, "Shop", "pack", input="fails")[1]["errorType"] == "NoShip"


def test_in_rpcs_coroutines_threads_and_waits() -> None:
    for how in ("forgets", "then, and forgets"):
        _, answer = post(WORKER, "Shop", "cancel", "rpc", input=how)
        name = "ship" if how == "forgets" else "bill"
        assert answer["detail"] == f"Shop.cancel called self.{name}() and did not use the movement: write `xdb.then(self.{name}())`"
    assert post(WORKER, "Shop", "cancel", "rpc", input="then")[0] == post(WORKER, "Shop", "cancel", "rpc", input="nothing")[0] == 200
    for state, api in (("later", "execute"), ("waits", "wait-until")):
        assert post(WORKER, "Shop", state, api)[1]["errorType"] == "UnusedMovement"
    with pytest.raises(xdb.UnusedMovement, match="did not use the movement"):
        call(Shop.pack, "forgets")


class Base(xdb.Process):
    @xdb.state(start=True)
    def pack(self) -> xdb.Decision:
        return self.ship()

    @xdb.state
    def ship(self) -> xdb.Decision:
        return xdb.complete("base")

    @xdb.state(name="charge")
    def bill(self, amount: int) -> xdb.Decision:
        return xdb.complete()


class Derived(Base):
    @xdb.state(start=True)
    def pack(self) -> xdb.Decision:
        return super().pack()

    @xdb.state(name="charge")
    def bill(self, amount: int) -> xdb.Decision:
        return super().bill(amount) if amount else super().ship()


class Further(Derived):
    @xdb.state
    async def ship(self) -> xdb.Decision:
        return Base.ship()


@pytest.mark.parametrize(
    "process, state, input, base, name",
    [(Derived, "pack", None, "Base", "pack"), (Derived, "charge", 1, "Base", "bill"), (Further, "ship", None, "Base", "ship")],
)
def test_a_state_that_is_overridden_is_not_called_by_super(process: Any, state: str, input: Any, base: str, name: str) -> None:
    """It would move to the overriding state, again and again."""
    _, answer = post(xdb.Worker(process), process.__name__, state, input=input)
    assert answer["errorType"] == "TypeError"
    assert answer["detail"].startswith(f"{process.__name__} overrides {base}.{name}, so super().{name}() would be a movement to ")


def test_a_state_that_is_not_overridden_may_be_named_by_super() -> None:
    assert call(Derived.bill, 0).decision == call(Base.pack).decision
