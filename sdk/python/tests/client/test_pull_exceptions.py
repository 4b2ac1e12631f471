"""Whatever a handler raises is a failed attempt, and ends no worker."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from bills import ONCE, billing, failures, note, register, steps
from shop import wait_until

import xdb


class PanicException(BaseException):
    """As pyo3 raises it for a panic of Rust."""


class Timeout(BaseException):
    """As gevent has it."""


class NoText(BaseException):
    def __str__(self) -> str:
        raise GeneratorExit("no text")


async def waits_for_what_is_cancelled() -> None:
    task = asyncio.ensure_future(asyncio.sleep(3600))
    task.cancel()
    await task


def raises(error: BaseException) -> None:
    raise error


RAISED: dict[str, Callable[[], object]] = {
    "CancelledError": lambda: asyncio.run(waits_for_what_is_cancelled()),
    "SystemExit": lambda: sys.exit("for good"),
    "KeyboardInterrupt": lambda: raises(KeyboardInterrupt()),
    "GeneratorExit": lambda: raises(GeneratorExit()),
    "PanicException": lambda: raises(PanicException("called `Option::unwrap()` on a `None` value")),
    "Timeout": lambda: raises(Timeout("1 second")),
    "NoText": lambda: raises(NoText()),
    "Failed": lambda: pytest.fail("no"),
    "Skipped": lambda: pytest.skip("no"),
}


class Raising(xdb.Process):
    @xdb.state(start=True, retry=ONCE)
    def only(self, what: str | None) -> xdb.Decision:
        note("only")
        if what is not None:
            RAISED[what]()
        return xdb.complete("fine")


class AsyncRaising(xdb.Process):
    @xdb.state(start=True, retry=ONCE)
    async def only(self, what: str | None) -> xdb.Decision:
        await xdb.connection().execute("INSERT INTO ledger VALUES (%s, 'only')", (self.call.process_id,))
        if what == "CancelledError":
            await waits_for_what_is_cancelled()
        if what is not None:
            RAISED[what]()
        return xdb.complete("fine")


def pull(billing: Any) -> Iterator[Any]:
    """A worker with one thread, as `run` has it."""
    with xdb.PullWorker(Raising, name="billing", connections=billing.dsn, wait=0.2) as worker:
        yield Raising, worker._running[0].is_alive
    worker.close()


def pull_with_coroutines(billing: Any) -> Iterator[Any]:
    async def run() -> None:
        workers.append(xdb.AsyncPullWorker(AsyncRaising, name="billing", connections=billing.dsn, concurrency=1, wait=0.2))
        await workers[0].run()
        await workers[0].close()

    workers: list[Any] = []
    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    yield AsyncRaising, thread.is_alive
    workers[0]._stopping._loop.call_soon_threadsafe(workers[0].stop)
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", [pull, pull_with_coroutines])
def test_no_call_ends_a_worker(billing: Any, kind: Any) -> None:
    register(billing, Raising, AsyncRaising)
    working = kind(billing)
    process, is_alive = next(working)
    for what in RAISED:
        billing.client.start(process, what, what)
    for what in RAISED:
        assert billing.client.wait(process, what).status == "FAILED"
        assert steps(billing, what) == []
    billing.client.start(process, "good")
    assert billing.client.wait(process, "good").result == "fine"
    assert is_alive()
    next(working, None)
    told = failures(billing)
    assert {what: kind for what, (kind, _) in told.items()} == {what: what for what in RAISED}
    assert told["PanicException"][1] == "called `Option::unwrap()` on a `None` value" and told["SystemExit"][1] == "for good"


def test_a_connection_that_raises_what_it_likes_ends_no_worker(billing: Any, caplog: Any) -> None:
    def connect() -> Any:
        if left:
            raise left.pop()
        return psycopg.connect(billing.dsn)

    left: list[BaseException] = [SystemExit("no"), Timeout("no"), KeyboardInterrupt()]
    register(billing, Raising)
    billing.client.start(Raising, "good")
    with xdb.PullWorker(Raising, name="billing", connections=connect, wait=0.2):
        assert billing.client.wait(Raising, "good").result == "fine"
    assert "Timeout" not in caplog.text and caplog.text.count("are tried again") == 3


def test_ctrl_c_in_a_loop_of_ones_own_is_the_operators(billing: Any) -> None:
    """`work()` runs in the caller's thread, here the main one, where Python raises it."""
    register(billing, Raising)
    billing.client.start(Raising, "mine", "KeyboardInterrupt")
    worker = xdb.PullWorker(Raising, name="billing", connections=billing.dsn)
    with pytest.raises(KeyboardInterrupt):
        worker.work()
    worker.close()
    wait_until("it is a failed attempt", lambda: failures(billing) == {"mine": ("KeyboardInterrupt", "its handler was interrupted")})
