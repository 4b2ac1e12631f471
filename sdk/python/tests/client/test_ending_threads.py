"""Threads that an answer or a client ends: on the simulator, over HTTP, and with a pull worker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import xdb
from xdb import errors
from xdb.testing.simulator import Simulator


class Errand(xdb.Process):
    """Packs two parcels while it waits for the payment, until a message ends some of it."""

    why: list[str] = []
    items = xdb.Queue[str]()
    go = xdb.Queue[str]()

    @xdb.state(start=True)
    def order(self) -> xdb.Decision:
        return self.pay() + self.pack(1) + self.pack(2) + self.lead()

    @xdb.state(wait=xdb.timer(days=1))
    def pay(self) -> xdb.Decision:
        return xdb.fail("it was not paid")

    @xdb.state(wait=xdb.all_of(items, xdb.timer(days=2)))
    def pack(self, parcel: int) -> xdb.Decision:
        return xdb.complete(self.items.message)

    @xdb.state(wait=go)
    def lead(self) -> xdb.Decision:
        if self.call.attempt == 1:
            xdb.abort("pack-2")
            return xdb.retry("Halfway", after=timedelta(minutes=1))
        xdb.abort(self.pay, self.refund, "pack-9")
        return self.refund(self.go.message) + self.lead()

    @xdb.state
    def refund(self, why: str) -> xdb.Decision:
        self.why.append(why)
        return xdb.end_thread()

    @xdb.rpc
    def cancel(self, why: str) -> int:
        xdb.abort("*")
        xdb.then(self.refund(why))
        return len(self.why)


class Fragile(xdb.Process):
    @xdb.state(start=True, retry=xdb.Retry(attempts=1), on_failure=xdb.RAISE_INCIDENT)
    def send(self) -> xdb.Decision:
        raise xdb.Retryable("NoAddress", "where to?")

    @xdb.state
    def keep(self, where: str) -> xdb.Decision:
        return xdb.complete(where)


@pytest.fixture(params=["simulator", "http", "pull"])
def db(request: pytest.FixtureRequest) -> Any:
    """A client and a clock."""
    if request.param == "simulator":
        with Simulator(Errand, Fragile) as simulator:
            yield simulator
        return
    database: Any = request.getfixturevalue("xdb_db")
    if request.param == "pull":
        database.serve(xdb.PullWorker(Errand, Fragile, name="errands"))
    else:
        database.serve(Errand, Fragile)
    yield database


def live(db: Any, process_id: str) -> list[str]:
    """The steps that have not ended, when everything that is due has happened."""
    db.clock.settle()
    return sorted(thread["stateExecutionId"] for thread in db.client.describe(process_id).threads)


def begun(db: Any, process_id: str) -> None:
    """Starts a process, of which one parcel has an item."""
    db.client.start(Errand, process_id)
    assert live(db, process_id) == ["lead-1", "pack-1", "pack-2", "pay-1"]
    db.client.publish(Errand.items, process_id, "a lamp")
    db.clock.settle()


def test_an_answer_ends_threads_beside_its_decision(db: Any) -> None:
    """Whichever parcel has the item, the one that is left has it in the end. The payment's time ends nothing any more."""
    begun(db, "e")
    db.client.publish(Errand.go, "e", "too late")
    assert live(db, "e") == ["lead-1", "pack-1", "pay-1"], "a failed attempt ends threads too"
    db.clock.advance(minutes=2)
    assert live(db, "e") == ["lead-2", "pack-1"]
    assert db.client.local(Errand, "e").why == ["too late"]
    db.client.move_state("e", "lead-2", [])
    assert db.clock.run_until_closed("e").result == "a lamp"


def test_an_rpc_ends_all_threads(db: Any, request: pytest.FixtureRequest) -> None:
    begun(db, "e")
    if "pull" in request.node.name:
        with pytest.raises(errors.WrongKindOfWorker):
            db.client.rpc(Errand.cancel, "e", "changed my mind")
        return
    assert db.client.rpc(Errand.cancel, "e", "changed my mind") == 0
    assert live(db, "e") == [] and db.client.describe("e").status == "RUNNING"
    assert db.client.local(Errand, "e").why == ["changed my mind"]
    assert db.client.rpc(Errand.cancel, "e", "really") == 1
    db.clock.settle()
    assert db.client.local(Errand, "e").why == ["changed my mind", "really"]


def test_a_client_moves_a_step(db: Any) -> None:
    begun(db, "e")
    db.client.move_state("e", "pay-1", [Errand.refund("by hand"), Errand.pack.later(days=3)(3)], "the customer called")
    assert live(db, "e") == ["lead-1", "pack-1", "pack-2", "pack-3"]
    assert db.client.local(Errand, "e").why == ["by hand"]
    with pytest.raises(errors.UnknownState):
        db.client.move_state("e", "pay-1", [])
    with pytest.raises(errors.UnknownState):
        db.client.move_state("e", "lead-1", [xdb.Decision({"nextStates": [{"stateId": "nowhere"}]})])
    with pytest.raises(errors.InvalidArgument):
        db.client.move_state("e", "lead", [])
    for step in ("pack-1", "pack-2", "pack-3", "lead-1"):
        db.client.move_state("e", step, [])
    assert live(db, "e") == []
    db.client.stop("e")
    with pytest.raises(errors.NotRunning):
        db.client.move_state("e", "lead-1", [])


def test_an_incident_ends_with_the_move_of_its_step(db: Any) -> None:
    db.client.start(Fragile, "f")
    db.clock.settle()
    [incident] = db.client.incidents()
    db.client.pause("f")
    db.client.move_state(incident.process_id, incident.state_execution_id, [Fragile.keep("in the shop")])
    assert db.client.incidents() == []
    assert live(db, "f") == ["keep-1"], "the pause holds its call"
    db.client.resume("f")
    db.clock.settle()
    assert db.client.wait(Fragile, "f").result == "in the shop"
