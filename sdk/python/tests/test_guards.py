"""Guards, static waits and compensation: what a class says, and what its handlers read and decide."""

from __future__ import annotations

import pytest

import xdb
from xdb import testing


class Order(xdb.Process, guards=["cancelled"]):
    recalls = xdb.Queue[str](name="recall")
    cancels = xdb.Queue[str](name="cancel")

    @xdb.state(wait=xdb.timer(days=1), interrupting=False)
    def nag(self) -> xdb.Decision:
        return self.nag()

    @xdb.state(wait=recalls)
    def recall(self) -> xdb.Decision:
        return xdb.complete(self.call.guards)

    @xdb.state(wait=cancels)
    def cancelled(self) -> xdb.Decision:
        return xdb.compensate("cancelled")

    @xdb.state
    def refund(self, amount: int) -> xdb.Decision:
        return xdb.complete()

    @xdb.state(start=True, compensate=refund)
    def charge(self, amount: int) -> xdb.Decision:
        return self.ship()

    @xdb.state(guards=[nag, "recall"], on_failure=xdb.COMPENSATE)
    def ship(self) -> xdb.Decision:
        return xdb.complete()


def test_a_class_names_guards_and_what_undoes_its_states() -> None:
    definition = Order.definition()
    states = definition["states"]
    assert definition["guards"] == ["cancelled"]
    assert states["ship"]["guards"] == ["nag", "recall"]
    assert states["ship"]["stateFailureRecoveryOptions"] == {"policy": "COMPENSATE_PROCESS"}
    assert states["charge"]["compensationStateId"] == "refund"
    assert states["nag"]["interrupting"] is False and "interrupting" not in states["recall"]
    assert states["nag"]["commandRequest"]["waitingType"] == "AnyOfCompletion"
    assert states["recall"]["commandRequest"]["localQueueCommands"][0]["queueName"] == "recall"
    assert "skipWaitUntil" not in states["recall"]


def test_a_compensation_is_a_decision() -> None:
    assert testing.call(Order.cancelled).decision == xdb.compensate("cancelled")
    close = {"closeType": "COMPENSATE_PROCESS", "closeInput": "cancelled"}
    assert xdb.compensate("cancelled").body == {"threadCloseDecision": close}


def test_guards_that_are_none_are_refused() -> None:
    with pytest.raises(xdb.DefinitionError, match="plain is a guard, so it needs a wait= that is no function"):

        class NoWait(xdb.Process):
            @xdb.state
            def plain(self) -> xdb.Decision:
                return xdb.complete()

            @xdb.state(guards=[plain])
            def guarded(self) -> xdb.Decision:
                return xdb.complete()

    with pytest.raises(xdb.DefinitionError, match="guards='nowhere' is not a state of the process"):

        class Unknown(xdb.Process, guards=["nowhere"]):
            pass

    with pytest.raises(xdb.DefinitionError, match="for any of its parts"):

        class All(xdb.Process):
            one = xdb.Queue[str]()

            @xdb.state(wait=xdb.all_of(one, xdb.timer(days=1)))
            def both(self) -> xdb.Decision:
                return xdb.complete()

            @xdb.state(guards=[both])
            def guarded(self) -> xdb.Decision:
                return xdb.complete()

    with pytest.raises(xdb.DefinitionError, match="compensate='undo' is not a state of the process"):

        class NoUndo(xdb.Process):
            @xdb.state(compensate="undo")
            def done(self) -> xdb.Decision:
                return xdb.complete()
