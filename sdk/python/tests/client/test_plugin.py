"""The fixtures, used as a program's tests use them: a process that is served, and days that pass in moments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import xdb
from xdb.testing.clock import NotSettled
from xdb.testing.server import Server, ServerFailed


class Guest(xdb.Row, table="public.guests", key="guest_id"):
    greeting: str | None


class Reminder(xdb.Process):
    """Reminds every day, three times."""

    guest: Guest
    reminders: int = 0
    answered = xdb.Queue[str]()

    @xdb.state(start=True, wait=xdb.any_of(answered, xdb.timer(days=1)))
    def remind(self) -> xdb.Decision:
        if self.answered.received:
            self.guest.greeting = self.answered.message
            return xdb.complete("answered")
        self.reminders += 1
        return self.remind() if self.reminders < 3 else xdb.complete("given up")

    @xdb.rpc
    async def answer(self, text: str) -> int:
        self.answered.publish(text)
        return self.reminders


class Broken(xdb.Process):
    @xdb.state(start=True, retry=xdb.Retry(attempts=3, initial=timedelta(hours=1), maximum=timedelta(days=1)))
    def work(self) -> xdb.Decision:
        raise RuntimeError("it is broken")


@pytest.fixture
def db(xdb_db: Any) -> Any:
    xdb_db.execute("CREATE TABLE guests (guest_id text PRIMARY KEY, greeting text)")
    return xdb_db


@pytest.mark.parametrize("secret", [None, "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0cw=="])
def test_a_process_that_is_answered(db: Any, secret: str | None) -> None:
    db.serve(Reminder, secret=secret)
    started = db.client.start(Reminder, "r", rows=[Guest.row("g", greeting=None)])
    db.clock.advance(days=1, minutes=1)
    assert db.client.local(Reminder, "r").reminders == 1
    assert db.client.rpc(Reminder.answer, "r", "hello") == 1
    outcome = db.client.wait(Reminder, "r")
    assert (outcome.status, outcome.result) == ("COMPLETED", "answered")
    assert db.execute("SELECT greeting FROM guests") == [("hello",)]
    described = db.client.describe("r")
    assert described.execution_id == started.execution_id
    assert described.closed_at - described.started_at > timedelta(days=1)


def test_days_that_pass_by_themselves(db: Any) -> None:
    db.serve(Reminder, Broken)
    db.client.start(Reminder, "r", rows=[Guest.row("g", greeting=None)])
    assert db.clock.run_until_closed("r").result == "given up"
    described = db.client.describe("r")
    assert timedelta(days=3) <= described.closed_at - described.started_at < timedelta(days=3, hours=1)
    assert not db.clock.to_next_timer()

    db.client.start(Broken, "b")
    assert db.clock.run_until_closed("b").status == "FAILED"
    assert "it is broken" in str(db.execute("SELECT detail FROM xdb.failures"))


def test_what_waits_for_no_time(db: Any) -> None:
    class Patient(xdb.Process):
        pass

    db.serve(Patient)
    db.client.start(Patient, "p")
    with pytest.raises(NotSettled, match="p waits for no time"):
        db.clock.run_until_closed("p")
    db.client.stop("p")


def test_what_comes_next_comes_by_itself(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Soon(xdb.Process):
        @xdb.state(start=True, wait=xdb.timer(hours=1))
        def only(self) -> xdb.Decision:
            return xdb.complete("by itself")

    def too_late() -> bool:
        db.clock.advance(hours=2)
        return bool(to_next_timer())

    to_next_timer = db.clock.to_next_timer
    monkeypatch.setattr(db.clock, "to_next_timer", too_late)
    db.serve(Soon)
    db.client.start(Soon, "s")
    assert db.clock.run_until_closed("s").result == "by itself"


def test_each_test_begins_at_the_real_time(db: Any) -> None:
    assert db.execute("SHOW xdb.now") == [("",)]
    assert list(db.client.list()) == []
    assert db.problems() == []


def test_a_server_that_does_not_start() -> None:
    with pytest.raises(ServerFailed, match="PG_CONFIG"):
        Server("/nowhere/pg_config")
    with pytest.raises(ServerFailed, match="unrecognized configuration parameter"):
        Server(settings={"no_such_setting": "1"})


def test_a_server_is_gone_when_it_is_stopped() -> None:
    server = Server()
    assert server.directory.exists() and "ready to accept connections" in server.log
    server.stop()
    server.stop()
    assert not server.directory.exists()
