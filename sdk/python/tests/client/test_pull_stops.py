"""Pull workers that are stopped, interrupted or killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from bills import ONCE, AsyncBilling, attempts, billing, failures, register, start, steps
from psycopg_pool import AsyncConnectionPool
from shop import wait_until
from sqlalchemy.ext.asyncio import create_async_engine
from transactions import asyncpg_arguments, url

import xdb


def test_a_failure_that_could_not_be_reported_is_reported_at_the_end(billing: Any) -> None:
    refusals: list[str] = []

    class Losing(xdb.Process):
        @xdb.state(start=True, retry=ONCE)
        def only(self) -> xdb.Decision:
            refusals.extend(["the first time", "and once more"])
            raise ValueError("for good")

    def connect() -> Any:
        if refusals:
            worker.stop()
            raise psycopg.OperationalError(refusals.pop(0))
        return psycopg.connect(billing.dsn)

    register(billing, Losing)
    billing.client.start(Losing, "l1")
    worker = xdb.PullWorker(Losing, name="billing", connections=connect)
    (thread,) = worker.start()
    thread.join(60)
    assert failures(billing) == {"l1": ("ValueError", "for good")}


def test_coroutines_that_are_cancelled(billing: Any) -> None:
    class Waiting(xdb.Process):
        @xdb.state(start=True, retry=xdb.Retry(initial=timedelta(milliseconds=100)))
        async def only(self) -> xdb.Decision:
            if self.call.attempt == 1 and self.call.process_id == "w0":
                hangs.set()
                await asyncio.sleep(3600)
            return xdb.complete()

    async def connect() -> Any:
        if blocks:
            hangs.set()
            await asyncio.sleep(3600)
        return await psycopg.AsyncConnection.connect(billing.dsn)

    async def cancelled(worker: xdb.AsyncPullWorker) -> None:
        hangs.clear()
        worker._stopping.clear()
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(hangs.wait(), 60)
        blocks.clear()
        running.cancel()
        await asyncio.wait([running])

    async def run() -> None:
        worker = xdb.AsyncPullWorker(Waiting, name="billing", connections=connect, batch=2, concurrency=1, wait=0.2)
        await cancelled(worker)
        assert failures(billing) == {"w0": ("CancelledError", "the handler was interrupted")}
        # The second time no handler begins, because there is no connection to be had for it.
        claim = worker._claim_calls

        async def claim_and_block(wait: float) -> Any:
            claimed = await claim(wait)
            if claimed:
                blocks.append(True)
            return claimed

        worker._claim_calls = claim_and_block  # type: ignore[method-assign]
        await cancelled(worker)
        worker._claim_calls = claim  # type: ignore[method-assign]
        worker._stopping.clear()
        while len(completed()) < 2:
            await worker.work()
        await worker.close()

    def completed() -> Any:
        return billing.execute("SELECT process_id FROM xdb.processes WHERE process_type = 'Waiting' AND status = 'COMPLETED'")

    hangs, blocks = asyncio.Event(), list[bool]()
    register(billing, Waiting)
    for n in range(2):
        billing.client.start(Waiting, f"w{n}")
    asyncio.run(run())
    assert [attempts(billing, f"w{n}") for n in range(2)] == [1, 0]


def test_a_signal_reaches_every_worker_of_a_loop_and_the_previous_handler(billing: Any) -> None:
    async def run() -> None:
        loop, told = asyncio.get_running_loop(), list[str]()
        loop.add_signal_handler(signal.SIGTERM, told.append, "told")
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        workers = [xdb.AsyncPullWorker(AsyncBilling, name="billing", connections=billing.dsn, wait=0.2) for _ in range(2)]
        running = [asyncio.create_task(each.run()) for each in workers]
        await asyncio.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        done, left = await asyncio.wait(running, timeout=20)
        for each in (*left, *done):
            each.cancel()
        assert (len(done), told) == (2, ["told"])
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
        for worker in workers:
            await worker.close()

    asyncio.run(run())


# The handler ends when the worker knows that it has to: an earlier end would let the next handler begin.
PROGRAM = """
import sys, xdb
class Slow(xdb.Process):
    @xdb.state(start=True)
    def only(self) -> xdb.Decision:
        xdb.connection().execute("INSERT INTO ledger VALUES (%s, 'only')", (self.call.process_id,))
        print(self.call.process_id, flush=True)
        assert worker._stopping.wait(60)
        return xdb.complete()
worker = xdb.PullWorker(Slow, name="slow", connections=sys.argv[1], batch=3, wait=0.5)
worker.run()
"""


class Slow(xdb.Process):
    @xdb.state(start=True)
    def only(self) -> xdb.Decision:
        return xdb.complete()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_stopped_or_killed(billing: Any, how: signal.Signals) -> None:
    with psycopg.connect(billing.superuser_dsn) as conn:
        xdb.PullWorker(Slow, name="slow").register(conn, role="app")
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, billing.dsn], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    for n in range(3):
        billing.client.start(Slow, f"s{n}")
    begun = program.stdout.readline().strip()
    program.send_signal(how)
    if how == signal.SIGTERM:  # it answers what has begun, and gives the others back
        program.communicate(timeout=60)
        assert program.returncode == 0
        assert steps(billing, begun) == ["only"]
    else:
        program.wait(60)
        assert steps(billing, begun) == []
    worker = xdb.PullWorker(Slow, name="slow", connections=billing.dsn)
    deadline = "SELECT count(*) FROM xdb.processes WHERE process_type = 'Slow' AND status = 'COMPLETED'"
    with psycopg.connect(billing.superuser_dsn, autocommit=True) as conn:
        conn.execute("UPDATE xdb.task SET lease_until = clock_timestamp() WHERE lease_until IS NOT NULL")
    wait_until("all are completed", lambda: worker.work() >= 0 and billing.execute(deadline) == [(3,)])
    assert billing.execute("SELECT count(*) FROM ledger WHERE step = 'only'") == [(1 if how == signal.SIGTERM else 0,)]
    worker.close()


ASYNC_PROGRAM = """
import asyncio, sys, xdb
class Slow(xdb.Process):
    @xdb.state(start=True)
    async def only(self) -> xdb.Decision:
        await xdb.connection().execute("INSERT INTO ledger VALUES (%s, 'only')", (self.call.process_id,))
        print(self.call.process_id, flush=True)
        await asyncio.wait_for(worker._stopping.wait(), 60)
        return xdb.complete()
async def run() -> None:
    global worker
    worker = xdb.AsyncPullWorker(Slow, name="slow", connections=sys.argv[1], batch=3, concurrency=1, wait=0.5)
    await worker.run()
asyncio.run(run())
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_program_of_coroutines_that_is_stopped(billing: Any, how: signal.Signals) -> None:
    with psycopg.connect(billing.superuser_dsn) as conn:
        xdb.PullWorker(Slow, name="slow").register(conn, role="app")
    for n in range(3):
        billing.client.start(Slow, f"s{n}")
    program = subprocess.Popen([sys.executable, "-c", ASYNC_PROGRAM, billing.dsn], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    begun = program.stdout.readline().strip()
    program.send_signal(how)
    program.communicate(timeout=60)  # it answers what has begun, and gives the others back
    assert program.returncode == 0
    assert steps(billing, begun) == ["only"]
    worker = xdb.PullWorker(Slow, name="slow", connections=billing.dsn)
    assert worker.work() == 2
    worker.close()


HOLDS = """
import asyncio, logging, sys, threading, xdb
logging.basicConfig(level=logging.INFO)
class Slow(xdb.Process):
    @xdb.state(start=True)
    def only(self) -> xdb.Decision:
        print(self.call.process_id, flush=True)
        threading.Event().wait()
class AsyncSlow(xdb.Process):
    @xdb.state(start=True)
    async def only(self) -> xdb.Decision:
        await xdb.connection().execute("INSERT INTO ledger VALUES (%s, 'only')", (self.call.process_id,))
        print(self.call.process_id, flush=True)
        await asyncio.sleep(3600)
kind, grace = sys.argv[2], float(sys.argv[3])
common = dict(name="slow", connections=sys.argv[1], wait=0.5, grace=grace)
if kind == "threads":
    xdb.PullWorker(Slow, **common).run()
elif kind == "with":
    with xdb.PullWorker(Slow, **common):
        sys.stdin.read(1)
else:
    async def run():
        await xdb.AsyncPullWorker(AsyncSlow if kind == "coroutines" else Slow, concurrency=1, **common).run()
    asyncio.run(run())
"""


class AsyncSlow(xdb.Process):
    @xdb.state(start=True)
    async def only(self) -> xdb.Decision:
        return xdb.complete()


@pytest.mark.parametrize("how", ["twice", "grace"])
@pytest.mark.parametrize("kind", ["threads", "with", "coroutines", "threads of coroutines"])
def test_a_handler_that_does_not_end_is_left_to_another_worker(billing: Any, kind: str, how: str) -> None:
    """At the second signal, or when the grace is over: its call is given back, and none of its attempts is spent."""
    process: Any = AsyncSlow if kind == "coroutines" else Slow
    with psycopg.connect(billing.superuser_dsn) as conn:
        xdb.PullWorker(Slow, AsyncSlow, name="slow").register(conn, role="app")
    grace = "0.3" if how == "grace" or kind == "with" else "3600"
    program = subprocess.Popen(
        [sys.executable, "-c", HOLDS, billing.dsn, kind, grace], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdout is not None and program.stderr is not None and program.stdin is not None
    billing.client.start(process, "held")
    assert program.stdout.readline().strip() == b"held"
    if kind == "with":
        program.stdin.write(b"x")
    else:
        program.send_signal(signal.SIGTERM)
        if how == "twice":
            assert any(b"stopping" in line for line in iter(program.stderr.readline, b""))
            program.send_signal(signal.SIGINT)
    said = program.communicate(timeout=60)[1].decode()
    assert program.returncode == 0, said
    worker = xdb.PullWorker(Slow, name="slow", connections=billing.dsn)
    other = xdb.AsyncPullWorker(AsyncSlow, name="slow", connections=billing.dsn)
    assert (asyncio.run(other.work()) if kind == "coroutines" else worker.work()) == 1
    assert billing.client.wait(process, "held").status == "COMPLETED"
    assert attempts(billing, "held") == 0 and steps(billing, "held") == []
    worker.close()


@pytest.mark.parametrize("source", ["own", "pool", "asyncpg", "asyncpg pool", "sqlalchemy"])
@pytest.mark.parametrize("how", ["cleans up", "goes on"])
def test_the_writes_of_a_cancelled_handler_are_rolled_back(billing: Any, source: str, how: str) -> None:
    """Its clean-up is a part of its transaction. One that refuses to end loses its connection, and writes in no other's transaction."""
    ended = asyncio.Event()

    class Cleaning(xdb.Process):
        @xdb.state(start=True)
        async def only(self) -> xdb.Decision:
            conn = xdb.connection()
            insert = f"INSERT INTO ledger VALUES ('{self.call.process_id}', 'cleaned')"
            execute = getattr(conn, "exec_driver_sql", None) or conn.execute
            try:
                begun.set()
                await asyncio.sleep(3600)
            finally:
                try:
                    if how == "goes on":
                        with contextlib.suppress(asyncio.TimeoutError):
                            await asyncio.wait_for(stopped.wait(), 60)
                    await execute(insert)
                finally:
                    ended.set()
            return xdb.complete()

    async def connections() -> tuple[Any, Any]:
        async def nothing() -> None: ...

        if source == "pool":
            pool = AsyncConnectionPool(billing.dsn, open=False, kwargs={"autocommit": True})
            await pool.open()
            return pool, pool.close
        if source == "asyncpg":
            return lambda: asyncpg.connect(**asyncpg_arguments(billing)), nothing
        if source == "asyncpg pool":
            asyncpgs = await asyncpg.create_pool(**asyncpg_arguments(billing))
            return asyncpgs, asyncpgs.close
        if source == "sqlalchemy":
            engine = create_async_engine(url(billing, "psycopg"))
            return engine, engine.dispose
        return billing.dsn, nothing

    async def run() -> None:
        given, close = await connections()
        worker = xdb.AsyncPullWorker(Cleaning, name="billing", connections=given, concurrency=1, wait=0.2, grace=0.1)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(begun.wait(), 60)
        worker.stop()
        await asyncio.wait_for(running, 60)
        stopped.set()
        await asyncio.wait_for(ended.wait(), 60)
        await worker.close()
        await close()

    begun, stopped = asyncio.Event(), asyncio.Event()
    register(billing, Cleaning)
    billing.client.start(Cleaning, "c")
    asyncio.run(run())
    assert steps(billing, "c") == []
    if how == "cleans up":
        assert attempts(billing, "c") == 0


@pytest.mark.parametrize("source", ["own", "asyncpg"])
def test_a_handler_that_goes_on_after_its_time_writes_nothing(billing: Any, source: str) -> None:
    ended, answered = asyncio.Event(), asyncio.Event()

    class Late(xdb.Process):
        @xdb.state(start=True, timeout=timedelta(milliseconds=300), retry=ONCE)
        async def only(self) -> xdb.Decision:
            while not answered.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await answered.wait()
            try:
                await xdb.connection().execute(f"INSERT INTO ledger VALUES ('{self.call.process_id}', 'late')")
            finally:
                ended.set()
            return xdb.complete()

    async def run() -> None:
        given = billing.dsn if source == "own" else lambda: asyncpg.connect(**asyncpg_arguments(billing))
        worker = xdb.AsyncPullWorker(Late, name="billing", connections=given)
        try:
            assert await asyncio.wait_for(worker.work(), 60) == 1
        finally:
            answered.set()
        await asyncio.wait_for(ended.wait(), 60)
        await worker.close()

    register(billing, Late)
    billing.client.start(Late, "l")
    asyncio.run(run())
    assert steps(billing, "l") == []


def test_nothing_of_a_worker_goes_on_when_it_has_ended(billing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> set[Any]:
        worker = xdb.AsyncPullWorker(AsyncBilling, name="billing", connections=billing.dsn, concurrency=1, wait=0.2)
        worker.stop()
        await worker.run()
        await worker.close()
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(run()) == set()
    worker = xdb.PullWorker(AsyncBilling, name="billing", connections=billing.dsn, wait=0.2)
    watches, watching = worker._stops_when_told, list[threading.Thread]()

    def noted(told: Any) -> None:
        watching.append(threading.current_thread())
        worker.stop()
        watches(told)

    monkeypatch.setattr(worker, "_stops_when_told", noted)
    worker.run()
    assert not watching[0].is_alive()
    worker.close()
