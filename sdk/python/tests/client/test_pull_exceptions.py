"""Whatever a handler raises is a failed attempt, and ends no worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from bills import ONCE, billing, failures, note, register, steps
from raised import RAISED, Timeout, raise_in_coroutine
from shop import HOSTILE, repeated, set_for_role, wait_until

import xdb


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
        await xdb.connection().execute("INSERT INTO public.ledger VALUES (%s, 'only')", (self.call.process_id,))
        if what is not None:
            await raise_in_coroutine(what)
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


@pytest.mark.parametrize("settings", [{}, HOSTILE], ids=["ordinary", "hostile"])
@pytest.mark.parametrize("kind", [pull, pull_with_coroutines])
def test_no_call_ends_a_worker(billing: Any, kind: Any, settings: dict[str, str]) -> None:
    register(billing, Raising, AsyncRaising)
    set_for_role(billing, **settings)
    working = kind(billing)
    process, is_alive = next(working)
    for what in RAISED:
        repeated(lambda what=what: billing.client.start(process, what, what))
    for what in RAISED:
        assert billing.client.wait(process, what).status == "FAILED"
        assert steps(billing, what) == []
    repeated(lambda: billing.client.start(process, "good"))
    assert billing.client.wait(process, "good").result == "fine"
    assert is_alive()
    next(working, None)
    told = failures(billing)
    assert {what: kind for what, (kind, _) in told.items()} == {what: what for what in RAISED}
    assert told["PanicException"][1] == "called `Option::unwrap()` on a `None` value" and told["SystemExit"][1] == "for good"


def test_a_connection_that_raises_any_exception_ends_no_worker(billing: Any, caplog: Any) -> None:
    def connect() -> Any:
        if left:
            raise left.pop()
        return psycopg.connect(billing.dsn)

    left: list[BaseException] = [SystemExit("no"), Timeout("no"), KeyboardInterrupt()]
    register(billing, Raising)
    billing.client.start(Raising, "good")
    with xdb.PullWorker(Raising, name="billing", connections=connect, wait=0.2):
        assert billing.client.wait(Raising, "good").result == "fine"
    assert "Timeout" not in caplog.text and caplog.text.count("trying again") == 3


def test_ctrl_c_in_a_loop_of_ones_own_is_the_operators(billing: Any) -> None:
    """`work()` runs in the caller's thread, here the main one, where Python raises it."""
    register(billing, Raising)
    billing.client.start(Raising, "mine", "KeyboardInterrupt")
    worker = xdb.PullWorker(Raising, name="billing", connections=billing.dsn)
    with pytest.raises(KeyboardInterrupt):
        worker.work()
    worker.close()
    wait_until("it is a failed attempt", lambda: failures(billing) == {"mine": ("KeyboardInterrupt", "the handler was interrupted")})
