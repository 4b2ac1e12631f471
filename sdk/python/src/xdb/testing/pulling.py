"""Runs a pull worker beside a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import Any

from ..pull import AsyncPullWorker, PullWorker

# Real seconds: how long a claim waits, and so the end of a test; and how long to wait for the end of the worker.
WAIT, ENDS_WITHIN = 0.2, 30.0


def run_until_stopped(worker: PullWorker | AsyncPullWorker, dsn: str) -> Callable[[], None]:
    """Runs a copy of a pull worker in threads. Returns a function that stops it, and may be called twice.

    It is a copy, because the worker of a module serves many tests. A worker without `connections` is connected to `dsn`.
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
