"""Locks of processes: of a class and of a start."""

from __future__ import annotations

from typing import Any

import pytest

import xdb
from xdb.testing.simulator import Simulator


class Transfer(xdb.Process, locks=["Transfer", xdb.Shared("system")]):
    go = xdb.Queue[str]()

    @xdb.state(start=True, wait=xdb.queue(go))
    def hold(self) -> xdb.Decision:
        return xdb.complete()

    @xdb.rpc
    def ask(self) -> str:
        return "asked"


class Plain(xdb.Process):
    @xdb.state(start=True)
    def only(self) -> xdb.Decision:
        return xdb.complete()


SHARED = {"name": "system", "mode": "SHARE"}


def test_a_class_and_a_start_have_locks() -> None:
    assert Transfer.definition()["locks"] == ["Transfer", SHARED]
    assert "locks" not in Plain.definition()
    started = xdb.Start(Plain, "p", locks=["account:42", xdb.Shared("system")]).arguments()
    assert started["options"] == {"locks": ["account:42", SHARED]}
    assert not xdb.Start(Plain, "p").arguments().get("options")


@pytest.mark.parametrize(
    ("locks", "why"),
    [
        ("account", "is not a list of names"),
        (xdb.Shared("a"), "is not a list of names"),
        ([7], "the lock 7 is not a str"),
        ([""], "the name of a lock is empty"),
        (["a", xdb.Shared("a")], "the lock 'a' is named twice"),
        ([str(n) for n in range(33)], "locks has 33 names: at most 32 are allowed"),
    ],
)
def test_wrong_locks_are_refused(locks: Any, why: str) -> None:
    with pytest.raises(xdb.DefinitionError, match=why):
        type("Wrong", (xdb.Process,), {}, locks=locks)
    with pytest.raises((TypeError, ValueError), match=why):
        xdb.Start(Plain, "p", locks=locks).arguments()


def test_one_process_at_a_time_has_a_lock() -> None:
    with Simulator(Transfer, Plain) as sim:
        first = sim.start(Transfer, "first")
        second = sim.start(Transfer, "second", locks=["account:42"])
        third = sim.start(Plain, "third", locks=["account:42"])
        assert third.status == "RUNNING", "it asked later than the second one"
        with pytest.raises(xdb.errors.Locked, match="waits for its locks"):
            second.rpc(Transfer.ask)
        first.publish(Transfer.go, "go")
        assert (first.status, second.status, third.status) == ("COMPLETED", "RUNNING", "RUNNING")
        assert second.rpc(Transfer.ask) == "asked"
        second.publish(Transfer.go, "go")
        assert (second.status, third.status) == ("COMPLETED", "COMPLETED")
