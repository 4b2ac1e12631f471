from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest

import xdb
from xdb.waits import as_wait, commands


class Q(xdb.Process):
    a = xdb.Queue[str]()
    b = xdb.Queue[str]()
    shared = xdb.GlobalQueue[int]("shared")

    @xdb.state
    def s(self) -> xdb.Decision:
        return xdb.complete()


def local(name: str, id: str | None = None, **amount: int) -> dict[str, Any]:
    return {"commandId": id or name, "queueName": name, **(amount or {"count": 1})}


T1, T2 = xdb.timer(seconds=1), xdb.timer(minutes=1, seconds=0.5)
ONE, TWO = {"commandId": "timer", "delayInSeconds": 1.0}, {"commandId": "timer-2", "delayInSeconds": 60.5}


@pytest.mark.parametrize(
    "wait, request_",
    [
        (Q.a, {"waitingType": "AllOfCompletion", "localQueueCommands": [local("a")]}),
        (xdb.any_of(T1, T2), {"waitingType": "AnyOfCompletion", "timerCommands": [ONE, TWO]}),
        (
            xdb.all_of(Q.a, xdb.all_of(T1, T2)),
            {"waitingType": "AllOfCompletion", "timerCommands": [ONE, TWO], "localQueueCommands": [local("a")]},
        ),
        (
            xdb.any_of(xdb.all_of(Q.a, Q.b), xdb.all_of(Q.a, T1)),
            # The same queue in both is one command, and takes one message.
            {
                "waitingType": "AnyOfCombination",
                "combinations": [["a", "b"], ["a", "timer"]],
                "timerCommands": [ONE],
                "localQueueCommands": [local("a"), local("b")],
            },
        ),
        (
            xdb.all_of(xdb.any_of(Q.a, Q.b), xdb.any_of(Q.a, T1)),
            # Once there is a message of a, nothing else is needed.
            {
                "waitingType": "AnyOfCombination",
                "combinations": [["a"], ["b", "timer"]],
                "timerCommands": [ONE],
                "localQueueCommands": [local("a"), local("b")],
            },
        ),
        (
            xdb.any_of(Q.a.take(2), Q.a.take(at_least=1, at_most=3, id="few"), xdb.queue("other", 4)),
            {
                "waitingType": "AnyOfCompletion",
                "localQueueCommands": [
                    local("a", count=2),
                    local("a", "few", atLeast=1, atMost=3),
                    local("other", count=4),
                ],
            },
        ),
        (
            xdb.any_of(Q.shared, Q.shared.take(2, key="EUR")),
            {
                "waitingType": "AnyOfCompletion",
                "globalQueueCommands": [local("shared"), {**local("shared", "shared-2", count=2), "key": "EUR"}],
            },
        ),
        (
            xdb.timer(at=datetime(2027, 1, 31, 8, tzinfo=timezone(timedelta(hours=1))), id="due"),
            {
                "waitingType": "AllOfCompletion",
                "timerCommands": [{"commandId": "due", "fireAt": "2027-01-31T07:00:00+00:00"}],
            },
        ),
        (
            xdb.any_of(xdb.cron("0 3 * * mon-fri", timezone="Europe/Berlin"), xdb.cron("@every 90 seconds", id="often")),
            {
                "waitingType": "AnyOfCompletion",
                "timerCommands": [
                    {"commandId": "timer", "cron": "0 3 * * mon-fri", "timezone": "Europe/Berlin"},
                    {"commandId": "often", "cron": "@every 90 seconds", "timezone": "UTC"},
                ],
            },
        ),
    ],
    ids=["queue", "any", "all", "any of all", "all of any", "counts", "global", "at", "cron"],
)
def test_a_wait_as_the_engine_gets_it(wait: Any, request_: dict[str, Any]) -> None:
    assert commands(as_wait(wait)).request == request_


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: xdb.cron(""), "expression='' of a cron is not a text"),
        (lambda: xdb.cron("@daily", timezone=None), "timezone=None of a cron is not a text"),
        (lambda: xdb.timer(seconds=-1), "must not be negative"),
        (lambda: xdb.timer(at=datetime(2027, 1, 1)), "has no time zone"),
        (lambda: xdb.timer(seconds=1, at=datetime(2027, 1, 1, tzinfo=timezone.utc)), "both a delay and at="),
        (lambda: xdb.timer(seconds=math.nan), "seconds=nan of a timer is not a finite number"),
        (lambda: xdb.timer(seconds=math.inf), "seconds=inf of a timer is not a finite number"),
        (lambda: xdb.timer(days=-math.inf), "days=-inf of a timer is not a finite number"),
        (lambda: xdb.timer(hours="1"), "hours='1' of a timer is not a finite number"),  # type: ignore
        (lambda: xdb.timer(minutes=True), "minutes=True of a timer is not a finite number"),
        (lambda: xdb.timer(days=1e10), "days=10000000000.0 of a timer is longer than 999999999 days"),
        (lambda: xdb.timer(seconds=10**400), "of a timer is longer than 999999999 days"),
        (lambda: xdb.timer(at=date(2027, 1, 1)), "at=datetime.date(2027, 1, 1) of a timer is not a datetime"),  # type: ignore
        (lambda: xdb.timer(at="2027-01-01"), "at='2027-01-01' of a timer is not a datetime"),  # type: ignore
        (lambda: xdb.timer(at=datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))), "outside of Python's range of times in UTC"),
        (lambda: Q.s.later(seconds=math.nan), "seconds=nan of Q.s.later() is not a finite number"),
        (lambda: Q.s.later(at=date(2027, 1, 1)), "at=datetime.date(2027, 1, 1) of Q.s.later() is not a datetime"),  # type: ignore
        (lambda: xdb.any_of(), "any_of() has no parts"),
        (lambda: xdb.all_of(T1, "x"), "'x' can't be waited for"),  # type: ignore
        (lambda: xdb.any_of(xdb.Queue[str], T1), "xdb.Queue[str] is a type that was not called: write xdb.Queue[str]()"),  # type: ignore
        (lambda: xdb.any_of(xdb.GlobalQueue), "xdb.GlobalQueue[...] is a type that was not called"),  # type: ignore
        (lambda: Q.a.take(0), "take() of 0 messages: it must be 1 or more"),
        (lambda: Q.a.take(2, at_least=1), "take() has count=2 beside at_least="),
        (lambda: Q.a.take(at_least=3, at_most=2), "is less than at_least"),
        (lambda: commands(xdb.all_of(xdb.timer(seconds=1, id="x"), xdb.timer(seconds=2, id="x"))), "the same id"),
    ],
)
def test_a_wait_that_is_none(make: Any, message: str) -> None:
    with pytest.raises(xdb.WaitError) as raised:
        make()
    assert message in str(raised.value)


def test_as_many_combinations_as_there_may_be() -> None:
    def wide(n: int) -> Any:
        return xdb.all_of(*(xdb.any_of(xdb.timer(seconds=i), xdb.timer(hours=i)) for i in range(1, n + 1)))

    assert len(commands(wide(6)).request["combinations"]) == 64
    with pytest.raises(xdb.WaitError, match="more than 64 combinations"):
        commands(wide(7))
    with pytest.raises(xdb.WaitError):
        # Refused before it is written out: it would have 2^40.
        commands(wide(40))
