"""A worker that fetches its calls, beside a test."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from typing import TypeVar

from ..client.sources import async_source_of, source_of
from ..pull import AsyncPullWorker, PullWorker

W = TypeVar("W", PullWorker, AsyncPullWorker)

# Real seconds. So long a claim waits that the end of a test has to wait for.
WAIT, ENDS_WITHIN = 0.2, 30.0


def run_until_stopped(worker: PullWorker | AsyncPullWorker, dsn: str) -> Callable[[], None]:
    """Runs one like this in threads of its own, and gives what ends it, also when that is called twice.

    What connects as psql does is connected to `dsn`.
    """
    return _threads(worker, dsn) if isinstance(worker, PullWorker) else _coroutines(worker, dsn)


def _like(worker: W) -> W:
    """The worker of a module serves many tests, one after the other."""
    made = copy.copy(worker)
    made._wait = min(WAIT, worker._wait)
    return made


def _threads(worker: PullWorker, dsn: str) -> Callable[[], None]:
    made = _like(worker)
    made._stopping = threading.Event()
    if made._connections == "":
        made._source = source_of(dsn)
    running = made.start()

    def stop() -> None:
        made.stop()
        for each in running:
            each.join(ENDS_WITHIN)
        if made._source is not worker._source:
            made.close()

    return stop


def _coroutines(worker: AsyncPullWorker, dsn: str) -> Callable[[], None]:
    made, loop = _like(worker), asyncio.new_event_loop()
    made._stopping = asyncio.Event()
    if made._connections == "":
        made._source = async_source_of(dsn)

    async def run() -> None:
        try:
            await made.run()
        finally:
            if made._source is not worker._source:
                await made.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="xdb-pull", daemon=True)
    thread.start()

    def stop() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(made.stop)
            thread.join(ENDS_WITHIN)
            loop.close()

    return stop
