"""Pull workers, against a real server."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
import sqlalchemy
from bills import ONCE, AsyncBilling, Billing, attempts, billing, failures, note, register, start, status, steps
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from shop import wait_until

import xdb


def test_calls_are_claimed_and_completed_with_the_writes_of_their_handlers(billing: Any) -> None:
    worker = xdb.PullWorker(Billing, name="billing", connections=billing.dsn)
    assert worker.work() == 0
    start(billing, "b1")
    assert worker.work() == 1  # send; what collect waits for is an option of its state
    assert (steps(billing, "b1"), status(billing, "b1")) == (["send"], "sent")
    billing.client.publish(Billing.paid, "b1", "cash")
    wait_until("the message has come", lambda: worker.work() == 1)
    assert billing.client.wait(Billing, "b1").result == "cash"
    assert (steps(billing, "b1"), status(billing, "b1")) == (["collect", "send"], "paid")
    with pytest.raises(xdb.errors.WrongKindOfWorker):
        start(billing, "b2")
        billing.client.rpc(Billing.hello, "b2")
    worker.close()


def test_the_writes_of_a_handler_are_rolled_back_with_its_failure(billing: Any) -> None:
    worker = xdb.PullWorker(Billing, name="billing", connections=billing.dsn, batch=10)
    for how in ("fails once", "refused"):
        start(billing, how, input=how)
    start(billing, "fails", input="fails")
    calls = deque(worker._claim_calls(0))  # and not what is due again by then
    assert len(calls) == 3
    worker._answer_all(calls)
    assert [steps(billing, id) for id in ("fails once", "refused", "fails")] == [[], [], []]
    told = dict(billing.execute("SELECT process_id, error_type FROM xdb.failures"))
    assert told["fails once"] == "Busy" and told["refused"] == "CheckViolation"
    assert billing.client.wait(Billing, "fails").status == "FAILED"
    wait_until("they are made again", lambda: worker.work() >= 0 and status(billing, "refused") == status(billing, "fails once") == "sent")
    assert [steps(billing, id) for id in ("fails once", "refused")] == [["send"], ["send"]]
    worker.close()


@pytest.mark.parametrize("kind", ["conninfo", "pool", "function"])
def test_connections_may_be_those_of_a_client(billing: Any, kind: str) -> None:
    with ConnectionPool(billing.dsn, open=True) as pool:
        given: Any = {"conninfo": billing.dsn, "pool": pool, "function": lambda: psycopg.connect(billing.dsn)}[kind]
        worker = xdb.PullWorker(Billing, name="billing", connections=given)
        start(billing, "b1", input="fails once")
        wait_until("the step is made", lambda: worker.work() >= 0 and steps(billing, "b1") == ["send"])
        worker.close()


def test_threads_share_the_work_and_stop_on_request(billing: Any) -> None:
    for n in range(20):
        start(billing, f"b{n}")
    with xdb.PullWorker(Billing, name="billing", connections=billing.dsn, threads=3, batch=4, wait=0.2) as worker:
        wait_until("all are sent", lambda: billing.execute("SELECT count(*) FROM ledger")[0][0] == 20)
        threads = [each for each in threading.enumerate() if each.name.startswith("xdb-pull")]
        assert len(threads) == 3
    assert not any(each.is_alive() for each in threads)
    worker.close()
    # Calls that were claimed but not begun were given back.
    with psycopg.connect(billing.superuser_dsn) as conn:
        assert conn.execute("SELECT in_flight FROM xdb.workers WHERE name = 'billing'").fetchall() == [(0,)]


@pytest.mark.parametrize("how", ["stop", "move"])
def test_a_call_that_is_lost_leaves_nothing(billing: Any, caplog: Any, how: str) -> None:
    stopped: list[str] = []

    class Stopping(xdb.Process):
        @xdb.state(start=True)
        def only(self) -> xdb.Decision:
            note("lost")
            if how == "stop":
                billing.client.stop("lost")
            else:
                billing.client.move_state("lost", "only-1", [])
            stopped.append(self.call.process_id)
            return xdb.complete()

    with psycopg.connect(billing.superuser_dsn) as conn:
        xdb.PullWorker(Stopping, name="billing").register(conn, role="app")
    billing.client.start(Stopping, "lost")
    worker = xdb.PullWorker(Stopping, name="billing", connections=billing.dsn)
    assert worker.work() == 1
    assert stopped == ["lost"] and steps(billing, "lost") == []
    assert "lease lost" in caplog.text
    worker.close()


def test_a_wrong_name_ends_the_program(billing: Any) -> None:
    with pytest.raises(xdb.errors.UnknownWorker):
        xdb.PullWorker(Billing, name="unknown", connections=billing.dsn).run()
    with pytest.raises(LookupError, match="no transaction"):
        xdb.connection()
    with pytest.raises(ValueError, match="batch"):
        xdb.PullWorker(Billing, name="billing", batch=0)


def test_registering_shows_what_changes(billing: Any) -> None:
    worker = xdb.PullWorker(Billing, name="billing")
    with psycopg.connect(billing.superuser_dsn) as conn:
        assert not any(worker.register(conn, role="app"))
        [change, *_] = worker.register(conn, role="postgres", dry_run=True)
        assert str(change) == (
            "worker billing changes\n    url: none, members of app claim its calls -> none, members of postgres claim its calls"
        )
    assert "register_worker(name => 'billing', url => NULL, role => 'app')" in worker.sql(role="app")


def test_coroutines_claim_calls(billing: Any) -> None:
    async def run() -> None:
        for n in range(5):
            start(billing, f"a{n}", AsyncBilling)
        worker = xdb.AsyncPullWorker(AsyncBilling, name="billing", connections=billing.dsn, concurrency=2, wait=0.2)
        working = asyncio.create_task(worker.run())
        for n in range(5):
            outcome = await asyncio.to_thread(billing.client.wait, AsyncBilling, f"a{n}")
            assert outcome.result == "filed"
        worker.stop()
        await asyncio.wait_for(working, 30)
        await worker.close()

    asyncio.run(run())
    assert billing.execute("SELECT count(*), count(DISTINCT bill) FROM ledger") == [(5, 5)]


def test_coroutines_take_a_pool(billing: Any) -> None:
    async def run() -> int:
        start(billing, "a1", AsyncBilling)
        async with AsyncConnectionPool(billing.dsn, open=False) as pool:
            return await xdb.AsyncPullWorker(AsyncBilling, name="billing", connections=pool).work()

    assert asyncio.run(run()) == 2
    assert steps(billing, "a1") == ["send"]


def odd_answer(how: str) -> xdb.Decision:
    late = xdb.Retryable("Busy", "later")
    late.retry_after = 1e12
    errors: dict[str, Exception] = {
        "nul": ValueError("invalid byte '\0' in the file"),
        "nul in the type": xdb.Retryable("a\0b", "x"),
        "years": late,
    }
    if how in errors:
        raise errors[how]
    if how == "too long":
        raise xdb.Retryable("Busy", after=timedelta(days=400_000))
    if how == "nul kept":
        return xdb.retry("a\0b", "c\0d")
    if how == "nul past the codec":
        return xdb.Decision({"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS", "closeInput": "a\0b"}})
    return xdb.complete({"nul in the answer": "a\0b", "no nul": "a\\u0000b\\"}.get(how, how))


class Odd(xdb.Process):
    @xdb.state(start=True, retry=ONCE)
    def only(self, how: str) -> xdb.Decision:
        return odd_answer(how)


class AsyncOdd(xdb.Process):
    @xdb.state(start=True, retry=ONCE)
    async def only(self, how: str) -> xdb.Decision:
        return odd_answer(how)


@pytest.mark.parametrize("process", [Odd, AsyncOdd])
def test_one_odd_answer_does_not_affect_other_calls(billing: Any, process: Any) -> None:
    register(billing, process)
    odd = ["nul", "nul in the type", "nul kept", "nul in the answer", "nul past the codec", "years", "too long"]
    for how in ("first", *odd, "no nul", "last"):
        billing.client.start(process, how, how)

    async def work() -> int:
        worker = xdb.AsyncPullWorker(process, name="billing", connections=billing.dsn, batch=20)
        try:
            return await worker.work()
        finally:
            await worker.close()

    if process is Odd:
        worker = xdb.PullWorker(process, name="billing", connections=billing.dsn, batch=20)
        assert worker.work() == 10
        worker.close()
    else:
        assert asyncio.run(work()) == 10
    results = {how: billing.client.wait(process, how).result for how in ("first", "no nul", "last")}
    assert results == {"first": "first", "no nul": "a\\u0000b\\", "last": "last"}
    told = failures(billing)
    assert set(told) == set(odd)
    assert told["nul"] == ("ValueError", "invalid byte '\ufffd' in the file")
    assert told["nul in the type"] == ("a\ufffdb", "x")
    assert told["nul kept"] == ("a\ufffdb", "c\ufffdd")
    assert told["nul in the answer"] == ("CodecError", "result: the text has the character \\0, which jsonb can't hold")
    assert told["nul past the codec"][0] == "InvalidAnswer" and "remove it" in told["nul past the codec"][1]
    assert told["years"][0] == "Busy" and told["years"][1].startswith("the server refused the detail of this failure: ")
    assert told["too long"][0] == "ValueError" and "longer than ten years" in told["too long"][1]


def test_a_failure_that_is_refused_ends_no_worker(billing: Any) -> None:
    register(billing, Odd)
    with xdb.PullWorker(Odd, name="billing", connections=billing.dsn, wait=0.2) as worker:
        billing.client.start(Odd, "b1", "years")
        wait_until("it has failed", lambda: failures(billing))
        billing.client.start(Odd, "b2", "next")
        assert billing.client.wait(Odd, "b2", timeout=20).result == "next"
    worker.close()


def test_claimed_calls_outlive_the_connection(billing: Any) -> None:
    gone = threading.Event()

    class Losing(xdb.Process):
        @xdb.state(start=True, timeout=timedelta(seconds=60))
        def only(self) -> xdb.Decision:
            if self.call.attempt == 1 and self.call.process_id == "l0":
                gone.set()
                threading.Timer(1, gone.clear).start()
                raise ValueError("just now")
            note("only")
            return xdb.complete()

    def connect() -> Any:
        if gone.is_set():
            raise psycopg.OperationalError("there is no server")
        return psycopg.connect(billing.dsn)

    register(billing, Losing)
    for n in range(4):
        billing.client.start(Losing, f"l{n}")
    with xdb.PullWorker(Losing, name="billing", connections=connect, batch=10, wait=0.2):
        for n in range(4):
            assert billing.client.wait(Losing, f"l{n}").status == "COMPLETED"
    assert [attempts(billing, f"l{n}") for n in range(4)] == [1, 0, 0, 0]
    failed = billing.execute("SELECT details->'failure'->>'errorType' FROM xdb.history WHERE event_type = 'AttemptFailed'")
    assert failed == [("ValueError",)]


@pytest.mark.parametrize("lease", [None, 60])
def test_the_time_of_a_call_begins_when_it_is_its_turn(billing: Any, lease: float | None) -> None:
    class Slowly(xdb.Process):
        @xdb.state(start=True, retry=ONCE, timeout=timedelta(minutes=1))
        def only(self) -> xdb.Decision:
            assert self.call.deadline is not None and self.call.deadline > datetime.now(timezone.utc)
            return xdb.complete()

    register(billing, Slowly)
    for n in range(4):
        billing.client.start(Slowly, f"s{n}")
    worker = xdb.PullWorker(Slowly, name="billing", connections=billing.dsn, batch=4, lease=lease)
    # As if those before each of them had taken longer than a call may.
    calls = deque(
        replace(call, claimed_at=call.claimed_at - 100, job=replace(call.job, ends_at=0.0)) for call in worker._claim_calls(0)
    )
    assert len(calls) == 4
    worker._answer_all(calls)
    assert failures(billing) == {}
    assert billing.execute("SELECT DISTINCT status FROM xdb.processes") == [("COMPLETED",)]
    worker.close()


CONFLICT = "DO $$ BEGIN RAISE EXCEPTION 'others were there' USING ERRCODE = '{}'; END $$"


def conflicting(how: str, made: list[str]) -> xdb.Decision:
    """The first time it meets with others, or each time."""
    made.append(how)
    if len(made) > 1 and how not in ("always", "says it"):
        return xdb.complete(len(made))
    try:
        xdb.connection().execute(CONFLICT.format("40P01" if how == "deadlock" else "40001"))
    except psycopg.Error as error:
        if how == "cause":
            raise ValueError("not now") from error
        if how == "context":
            raise LookupError("and then this")
        if how == "says it":
            raise xdb.Fatal("Taken", "another order has it") from error
        raise
    raise AssertionError("no conflict")


@pytest.mark.parametrize("how", ["serialization", "deadlock", "cause", "context"])
def test_a_handler_that_meets_with_another_transaction_is_called_again(billing: Any, how: str) -> None:
    class Meeting(xdb.Process):
        @xdb.state(start=True, retry=ONCE)
        def only(self) -> xdb.Decision:
            note("only")
            return conflicting(how, made)

    made: list[str] = []
    register(billing, Meeting)
    billing.client.start(Meeting, "m1")
    worker = xdb.PullWorker(Meeting, name="billing", connections=billing.dsn)
    worker.work()
    assert billing.client.wait(Meeting, "m1").result == 2
    assert (attempts(billing, "m1"), steps(billing, "m1")) == (0, ["only"])
    worker.close()


def test_so_is_one_of_sqlalchemy_and_a_coroutine(billing: Any) -> None:
    class Wrapped(xdb.Process):
        @xdb.state(start=True, retry=ONCE)
        def only(self) -> xdb.Decision:
            made.append("wrapped")
            if len(made) == 1:
                xdb.connection().exec_driver_sql(CONFLICT.format("40001"))
            return xdb.complete()

    class Coroutine(xdb.Process):
        @xdb.state(start=True, retry=ONCE)
        async def only(self) -> xdb.Decision:
            made.append("coroutine")
            if len(made) == 3:
                await xdb.connection().execute(CONFLICT.format("40001"))
            return xdb.complete()

    async def run() -> None:
        worker = xdb.AsyncPullWorker(Coroutine, name="billing", connections=billing.dsn)
        await worker.work()
        await worker.close()

    made: list[str] = []
    register(billing, Wrapped, Coroutine)
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(billing.dsn))
    billing.client.start(Wrapped, "w1")
    xdb.PullWorker(Wrapped, name="billing", connections=engine).work()
    engine.dispose()
    billing.client.start(Coroutine, "c1")
    asyncio.run(run())
    assert made == ["wrapped", "wrapped", "coroutine", "coroutine"]
    assert [billing.client.wait(process, id).status for process, id in ((Wrapped, "w1"), (Coroutine, "c1"))] == ["COMPLETED"] * 2
    assert failures(billing) == {}


@pytest.mark.parametrize("how, calls, error_type", [
    ("always", 10, "SerializationFailure"), ("at the commit", 10, "SerializationFailure"), ("says it", 1, "Taken"),
])
def test_conflicts_go_on_for_ever_no_more_than_anything_else(billing: Any, how: str, calls: int, error_type: str) -> None:
    class Meeting(xdb.Process):
        @xdb.state(start=True, retry=ONCE)
        def only(self) -> xdb.Decision:
            if how != "at the commit" and len(made) < 50:
                return conflicting(how, made)
            made.append(how)
            if len(made) < 50:
                note("only")
            return xdb.complete()

    made: list[str] = []
    billing.execute("""CREATE FUNCTION conflicts() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'others were there' USING ERRCODE = '40001'; END $$""")
    billing.execute("""CREATE CONSTRAINT TRIGGER conflicts AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION conflicts()""")
    register(billing, Meeting)
    billing.client.start(Meeting, "m1")
    worker = xdb.PullWorker(Meeting, name="billing", connections=billing.dsn)
    worker.work()
    assert len(made) == calls
    assert failures(billing)["m1"][0] == error_type
    worker.close()
