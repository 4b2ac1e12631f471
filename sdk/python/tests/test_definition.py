from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, ClassVar

import pytest
import signup
import transfer

import xdb
from xdb.live import MISSING


class User(xdb.Row, table="public.users", key="user_id", columns={"mail": "email"}):
    mail: str
    status: str | None


class Stock(xdb.Row, table="stock", key=("shop", "sku")):
    amount: int


class Everything(xdb.Process, name="all", timeout=timedelta(days=3), history=50, retention=timedelta(hours=1)):
    limit: ClassVar[int] = 3
    user: User
    stock: Stock
    seen: list[str] = []
    note: str | None
    orders = xdb.Queue[Decimal]()
    typed: xdb.Queue[int] = xdb.Queue("numbers")
    prices = xdb.GlobalQueue[Decimal]("prices")

    @xdb.state
    def lost(self, order: str | None) -> xdb.Decision:
        return xdb.fail(order)

    @xdb.state(
        start=True,
        name="Begin",
        retry=xdb.Retry(attempts=5, initial=timedelta(seconds=2), factor=1, give_up_after=timedelta(hours=1)),
        timeout=timedelta(seconds=30),
        on_failure=lost,
        load=("mail", "stock", "seen"),
        lock="share",
    )
    def begin(self) -> xdb.Decision:
        return self.later()

    @xdb.state(
        wait=lambda self: xdb.timer(at=datetime(2027, 1, 1, tzinfo=timezone.utc)),
        wait_retry=xdb.Retry(attempts=2),
        wait_timeout=timedelta(seconds=3),
        load=("status",),
        lock="exclusive",
    )
    def later(self) -> xdb.Decision:
        return xdb.complete()

    @xdb.state(wait=xdb.all_of(orders.take(at_least=2, at_most=5), prices.take(key="EUR")), load=())
    def both(self) -> xdb.Decision:
        return xdb.complete()

    @xdb.rpc(name="Ask", timeout=timedelta(seconds=4), load=("note",), lock="exclusive")
    async def ask(self, question: dict[str, int]) -> list[str]:
        return self.seen


def test_a_definition_has_everything_of_its_class() -> None:
    exclusive = {"policy": "PARTIAL", "names": ["status"], "lockType": "EXCLUSIVE_LOCK"}
    assert Everything.definition() == {
        "startingState": "Begin",
        "states": {
            "lost": {"skipWaitUntil": True},
            "Begin": {
                "skipWaitUntil": True,
                "executeApiRetryPolicy": {
                    "maximumAttempts": 5,
                    "initialIntervalSeconds": 2.0,
                    "backoffCoefficient": 1,
                    "maximumAttemptsDurationSeconds": 3600.0,
                },
                "executeApiTimeoutSeconds": 30.0,
                "stateFailureRecoveryOptions": {
                    "policy": "PROCEED_TO_CONFIGURED_STATE",
                    "stateFailureProceedStateId": "lost",
                },
                "executeLoadGlobalAttributes": {
                    "policy": "PARTIAL",
                    "names": ["amount", "mail"],
                    "lockType": "SHARE_LOCK",
                },
                "executeLoadLocalAttributes": {"policy": "PARTIAL", "names": ["seen"], "lockType": "SHARE_LOCK"},
            },
            "later": {
                "waitUntilApiRetryPolicy": {"maximumAttempts": 2},
                "waitUntilApiTimeoutSeconds": 3.0,
                "waitUntilLoadGlobalAttributes": {"policy": "PARTIAL", "names": ["status"]},
                "executeLoadGlobalAttributes": exclusive,
                "waitUntilLoadLocalAttributes": {"policy": "NONE"},
                "executeLoadLocalAttributes": {"policy": "NONE"},
            },
            "both": {
                "commandRequest": {
                    "waitingType": "AllOfCompletion",
                    "localQueueCommands": [{"commandId": "orders", "queueName": "orders", "atLeast": 2, "atMost": 5}],
                    "globalQueueCommands": [{"commandId": "prices", "queueName": "prices", "count": 1, "key": "EUR"}],
                },
                "executeLoadGlobalAttributes": {"policy": "NONE"},
                "executeLoadLocalAttributes": {"policy": "NONE"},
            },
        },
        "globalAttributes": [
            {"table": "public.users", "primaryKey": "user_id", "attributes": {"mail": "email", "status": "status"}},
            {"table": "stock", "primaryKey": ["shop", "sku"], "attributes": {"amount": "amount"}},
        ],
        "localAttributes": ["note", "seen"],
        "localQueues": ["numbers", "orders"],
        "globalQueues": ["prices"],
        "rpcs": {
            "Ask": {
                "timeoutSeconds": 4.0,
                "loadGlobalAttributes": {"policy": "NONE"},
                "loadLocalAttributes": {"policy": "PARTIAL", "names": ["note"], "lockType": "EXCLUSIVE_LOCK"},
            }
        },
        "timeoutSeconds": 259200.0,
        "history": {"keepLast": 50},
        "retentionSeconds": 3600.0,
    }


def test_closed_executions_are_kept_for_a_time_or_for_ever() -> None:
    class Job(xdb.Process, retention=timedelta(0)):
        pass

    class Record(xdb.Process, retention=timedelta.max):
        pass

    assert (Job.definition()["retentionSeconds"], Record.definition()["retentionSeconds"]) == (0, -1)
    for wrong in (timedelta(seconds=-1), 5):
        with pytest.raises(xdb.DefinitionError, match="is not a timedelta of zero or more"):
            type("Wrong", (xdb.Process,), {}, retention=wrong)


def test_calls_of_a_class_may_come_before_other_calls() -> None:
    class Urgent(xdb.Process, priority=7):
        pass

    class Plain(xdb.Process, priority=0):
        pass

    assert Urgent.definition()["priority"] == 7 and "priority" not in Plain.definition()
    for wrong in (11, -11, 1.5, True, "high"):
        with pytest.raises(xdb.DefinitionError, match="is not an int from -10 to 10"):
            type("Wrong", (xdb.Process,), {}, priority=wrong)


def test_a_class_may_publish_its_changes() -> None:
    class Told(xdb.Process, changes="order-events"):
        pass

    class Plain(xdb.Process):
        pass

    assert Told.definition()["changes"] == "order-events" and "changes" not in Plain.definition()
    for wrong in ("", 1, ["events"]):
        with pytest.raises(xdb.DefinitionError, match="is not the name of a global queue"):
            type("Wrong", (xdb.Process,), {}, changes=wrong)


def test_a_class_describes_itself_to_clients() -> None:
    described = Everything._xdb
    assert described.name == "all"
    assert described.local["seen"].default == [] and described.local["note"].default is MISSING
    assert described.local["note"].annotation == (str | None)
    assert (Everything.ask.name, Everything.ask.input_type, Everything.ask.output_type) == (
        "Ask",
        dict[str, int],
        list[str],
    )
    assert Everything.ask.process is Everything and Everything.begin.process is Everything
    assert Everything.lost.input_type == (str | None) and Everything.begin.input_type is None
    assert Everything.orders.message_type is Decimal and Everything.typed.message_type is int
    assert Everything.prices.message_type is Decimal and Everything.prices.name == "prices"
    assert re.fullmatch("[0-9a-f]{64}", Everything.definition_hash())


def test_the_examples() -> None:
    verify = signup.SignUp.definition()["states"]["verify"]
    assert verify["commandRequest"]["waitingType"] == "AnyOfCompletion" and "waitUntilLoadGlobalAttributes" not in verify
    assert signup.SignUp.definition()["startingState"] == "submit"
    locks = {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}
    debit = transfer.MoneyTransfer.definition()["states"]["debit"]
    assert debit == {
        "skipWaitUntil": True,
        "executeLoadGlobalAttributes": locks,
        "executeLoadLocalAttributes": locks,
    }


def test_types_may_be_of_the_function_around_and_written_as_texts() -> None:
    @dataclass
    class Local:
        a: int

    class P(xdb.Process):
        one = xdb.Queue["list[Local]"]()
        kept: Local | None

        @xdb.state(load=(name for name in ("kept",)))
        def a(self, given: Local) -> xdb.Decision:
            return xdb.complete()

    assert P.one.message_type == list[Local] and P.a.input_type is Local
    assert P._xdb.local["kept"].annotation == (Local | None)
    assert P.definition()["states"]["a"]["executeLoadLocalAttributes"] == {"policy": "PARTIAL", "names": ["kept"]}


def test_a_class_below_another_has_copies_of_its_members() -> None:
    class Base(xdb.Process):
        count: int = 1
        queue = xdb.Queue[str]()

        @xdb.state(start=True, wait=queue)
        def first(self) -> xdb.Decision:
            return xdb.complete()

        @xdb.rpc
        def ask(self) -> int:
            return self.count

    class Below(Base):
        more: int = 2
        count = 5

        @xdb.state
        def second(self) -> xdb.Decision:
            return xdb.complete()

    assert list(Below._xdb.states) == ["first", "second"] and list(Base._xdb.states) == ["first"]
    assert (Base.ask.process, Below.ask.process) == (Base, Below)
    assert Below.definition()["localAttributes"] == ["count", "more"]
    assert (Base._xdb.local["count"].default, Below._xdb.local["count"].default) == (1, 5)
    assert Below._xdb.waits["first"].request["localQueueCommands"][0]["queueName"] == "queue"


def test_a_state_may_raise_an_incident_when_its_retries_are_spent() -> None:
    class P(xdb.Process):
        @xdb.state(start=True, retry=xdb.Retry(attempts=2), on_failure=xdb.RAISE_INCIDENT)
        def a(self) -> xdb.Decision:
            return xdb.complete()

    states = P.definition()["states"]
    assert states["a"]["stateFailureRecoveryOptions"] == {"policy": "RAISE_INCIDENT"}
