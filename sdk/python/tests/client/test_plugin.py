"""The fixtures, used as a program's tests use them: a process that is served, and days that pass in moments."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import xdb
from xdb.testing import clock
from xdb.testing.clock import NotSettled
from xdb.testing.server import Server, ServerFailed
from xdb.testing.simulator import Simulator


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
    with pytest.raises(NotSettled, match="no timer, timeout, delayed start or retry is left"):
        db.clock.to_next_timer()

    db.client.start(Broken, "b")
    assert db.clock.run_until_closed("b").status == "FAILED"
    assert "it is broken" in str(db.execute("SELECT detail FROM xdb.failures"))


def test_a_process_that_waits_for_no_time_is_reported(db: Any) -> None:
    class Patient(xdb.Process):
        pass

    db.serve(Patient)
    db.client.start(Patient, "p")
    with pytest.raises(NotSettled, match="p waits for something other than a time"):
        db.clock.run_until_closed("p")
    db.client.stop("p")


def test_a_timer_that_comes_due_meanwhile_is_not_missed(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Soon(xdb.Process):
        @xdb.state(start=True, wait=xdb.timer(hours=1))
        def only(self) -> xdb.Decision:
            return xdb.complete("by itself")

    def too_late() -> bool:
        db.clock.advance(hours=2)
        return bool(to_next())

    to_next = db.clock._to_next
    monkeypatch.setattr(db.clock, "_to_next", too_late)
    db.serve(Soon)
    db.client.start(Soon, "s")
    assert db.clock.run_until_closed("s").result == "by itself"


# --- one clock


class Monthly(xdb.Process):
    bills: int = 0

    @xdb.state(start=True, wait=xdb.timer(days=30))
    def bill(self) -> xdb.Decision:
        self.bills += 1
        return self.bill()


class Patiently(xdb.Process, timeout=timedelta(days=9)):
    """Fails, tries again every other day, and is timed out on the ninth."""

    @xdb.state(start=True, retry=xdb.Retry(initial=timedelta(days=2), factor=1, maximum=timedelta(days=2)))
    def work(self) -> xdb.Decision:
        TRIES.append(self.call.attempt)
        raise RuntimeError("it is broken")


TRIES: list[int] = []


class Hourly(xdb.Process):
    """Two chains, and what one begins comes due before what the other one has begun earlier."""

    seen: list[str] = []

    @xdb.state(start=True)
    def begin(self) -> xdb.Decision:
        return self.two() + self.five()

    @xdb.state(wait=xdb.timer(hours=2), lock="exclusive")
    def two(self) -> xdb.Decision:
        self.seen.append("two")
        return self.two()

    @xdb.state(wait=xdb.timer(hours=5), lock="exclusive")
    def five(self) -> xdb.Decision:
        self.seen.append("five")
        return self.five()


def stories(where: Any) -> None:
    """The same on the simulator and on a server."""
    client, clock = getattr(where, "client", where), getattr(where, "clock", where)
    client.start(Monthly, "m")
    client.start(Hourly, "h")
    clock.settle()
    clock.advance(hours=9, minutes=30)
    assert client.local(Hourly, "h").seen == ["two", "two", "five", "two", "two"]
    client.stop("h")
    clock.advance(days=95)
    assert client.local(Monthly, "m").bills == 3
    client.stop("m")
    TRIES.clear()
    client.start(Patiently, "p")
    clock.settle()
    clock.advance(days=20)
    assert len(TRIES) == 5 and client.wait(Patiently, "p").status == "TIMEOUT"
    with pytest.raises(AssertionError, match="no timer, timeout, delayed start or retry is left"):
        clock.to_next_timer()


def test_time_goes_from_one_moment_to_the_next(db: Any) -> None:
    db.serve(Monthly, Patiently, Hourly)
    stories(db)


def test_time_goes_likewise_in_memory() -> None:
    with Simulator(Monthly, Patiently, Hourly, max_attempts=None) as sim:
        stories(sim)


def test_a_deferred_start_counts_from_its_time(db: Any) -> None:
    db.serve(Monthly)
    db.client.start(Monthly, "m", start_at=datetime.now(timezone.utc) + timedelta(days=10))
    db.clock.advance(days=35)
    assert db.client.local(Monthly, "m").bills == 0
    db.clock.advance(days=6)
    assert db.client.local(Monthly, "m").bills == 1
    db.client.stop("m")


def test_too_much_on_the_way_is_refused(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "ROUNDS", 3)
    db.serve(Monthly)
    db.client.start(Monthly, "m")
    with pytest.raises(NotSettled, match="this step has more than 3 due times"):
        db.clock.advance(days=300)
    db.client.stop("m")


# --- pull workers


class Visit(xdb.Process):
    names = xdb.Queue[str]()

    @xdb.state(start=True, wait=xdb.any_of(names, xdb.timer(days=1)))
    def greet(self) -> xdb.Decision:
        return xdb.complete(self.names.message if self.names.received else "no name")


@pytest.mark.parametrize("kind", [xdb.PullWorker, xdb.AsyncPullWorker])
def test_a_pull_worker_is_served(db: Any, kind: Any) -> None:
    worker = kind(Visit, name="visits")  # as a program has it: it connects as psql does
    db.serve(worker)
    for n, (answer, result) in enumerate([("Ada", "Ada"), (None, "no name")]):
        db.client.start(Visit, f"v-{n}")
        if answer is not None:
            db.client.publish(Visit.names, f"v-{n}", answer)
        assert db.clock.run_until_closed(f"v-{n}").result == result


def test_a_pull_worker_that_does_not_run_is_named(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "SETTLES_WITHIN", 2.0)
    db.admin.register(xdb.PullWorker(Visit, name="visits"), name="visits", url=None, role="app")
    db.client.start(Visit, "v")
    with pytest.raises(NotSettled, match=r"1 of pull worker visits \(check that it runs\)"):
        db.clock.advance(days=2)
    db.client.stop("v")


def test_a_worker_that_does_not_answer_is_named(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "SETTLES_WITHIN", 2.0)
    held = threading.Event()

    class Stuck(xdb.Process):
        @xdb.state(start=True)
        def work(self) -> xdb.Decision:
            held.wait(60)
            return xdb.complete()

    serving = db.serve(Stuck, name="stuck")
    db.client.start(Stuck, "s")
    with pytest.raises(NotSettled, match=f"1 of worker stuck at {serving.url}"):
        db.clock.settle()
    held.set()


def test_an_application_has_a_schema_of_its_own(db: Any) -> None:
    db.execute("CREATE SCHEMA shop")
    db.execute("CREATE TABLE shop.guests (guest_id text PRIMARY KEY, greeting text)")

    class Shopper(xdb.Row, table="shop.guests", key="guest_id"):
        greeting: str | None

    class Shopping(xdb.Process):
        guest: Shopper

        @xdb.state(start=True)
        def greet(self) -> xdb.Decision:
            self.guest.greeting = "hello"
            return xdb.complete()

    db.serve(Shopping)
    db.client.start(Shopping, "s", rows=[Shopper.row("g", greeting=None)])
    assert db.client.wait(Shopping, "s").status == "COMPLETED"
    assert db.execute("SELECT greeting FROM shop.guests") == [("hello",)]


def test_each_test_begins_at_the_real_time(db: Any) -> None:
    assert db.execute("SHOW xdb.now") == [("",)]
    assert list(db.client.list()) == []
    assert db.problems() == []


def test_a_server_that_does_not_start() -> None:
    with pytest.raises(ServerFailed, match="PG_CONFIG"):
        Server("/nowhere/pg_config")
    with pytest.raises(ServerFailed, match="unrecognized configuration parameter"):
        Server(settings={"no_such_setting": "1"})


def test_a_stopped_server_leaves_nothing() -> None:
    server = Server()
    assert server.directory.exists() and "ready to accept connections" in server.log
    server.stop()
    server.stop()
    assert not server.directory.exists()
