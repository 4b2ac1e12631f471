"""A worker that fetches its calls, beside a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import Any

from ..pull import AsyncPullWorker, PullWorker

# Real seconds: the longest wait of a claim, which the end of a test waits for; and the longest wait for a worker's end.
WAIT, ENDS_WITHIN = 0.2, 30.0


def run_until_stopped(worker: PullWorker | AsyncPullWorker, dsn: str) -> Callable[[], None]:
    """Runs one like this in threads of its own, and gives what ends it, also when that is called twice.

    It is another one, since the worker of a module serves many tests. What connects as psql does is connected to `dsn`.
    """
    return _threads(worker, dsn) if isinstance(worker, PullWorker) else _coroutines(worker, dsn)


def _like(worker: PullWorker | AsyncPullWorker, made: PullWorker | AsyncPullWorker) -> None:
    made._given = worker._given
    made.worker.options = worker.worker.options
    made._around.extend(worker._around)


def _where(worker: PullWorker | AsyncPullWorker, dsn: str) -> Any:
    return dsn if worker._connections == "" else worker._connections


def _threads(worker: PullWorker, dsn: str) -> Callable[[], None]:
    made = PullWorker(*worker.processes, name=worker.name, connections=_where(worker, dsn), threads=worker._threads, wait=WAIT)
    _like(worker, made)
    running = made.start()

    def stop() -> None:
        made.stop()
        for each in running:
            each.join(ENDS_WITHIN)
        made.close()

    return stop


def _coroutines(worker: AsyncPullWorker, dsn: str) -> Callable[[], None]:
    loop, count = asyncio.new_event_loop(), worker._concurrency
    made = AsyncPullWorker(*worker.processes, name=worker.name, connections=_where(worker, dsn), concurrency=count, wait=WAIT)
    _like(worker, made)

    async def run() -> None:
        try:
            await made.run()
        finally:
            await made.close()

    thread = Thread(target=loop.run_until_complete, args=(run(),), name="xdb-pull", daemon=True)
    thread.start()

    def stop() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(made.stop)
            thread.join(ENDS_WITHIN)
            loop.close()

    return stop
