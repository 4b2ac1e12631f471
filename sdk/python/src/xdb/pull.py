"""Workers that fetch their calls over an ordinary connection: no HTTP, and each answer in its handler's own transaction."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any

from . import errors
from .client.connections import async_execute, sync_execute
from .client.sources import async_source_of, source_of
from .client.statements import Seconds
from .fetching import Claimed, Fetching, answer, connected, connection, failure, instead, left_to_say, run_in_thread
from .logging import install, log
from .process import Process
from .request import Job, Reply, message_of
from .serve import _signals, _signals_of_a_loop

__all__ = ["AsyncPullWorker", "PullWorker", "connection"]

# After an error of the connection, and twice as long each time after.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

# What is wrong with the program, or with how it was registered: nothing that passes.
_MISTAKES = (errors.UnknownWorker, errors.WrongKindOfWorker, errors.InvalidArgument)

_TRIED_AGAIN = "calls can't be fetched or answered, and are tried again in %g s: %s"

_CLAIM = """SELECT c.token, c.call_id, c.api, c.request::text, extract(epoch FROM c.lease_until - clock_timestamp())::text
    FROM xdb.claim_calls(worker => %s::text, max_calls => %s::text::int, wait => %s::text::interval,
        lease => %s::text::interval, shards => %s::text::int4range) AS c"""
_COMPLETE = "SELECT xdb.complete_call(%s::text, %s::text::jsonb)"
_FAIL = "SELECT xdb.fail_call(%s::text, %s::text::jsonb)"
_EXTEND = "SELECT xdb.extend_call(%s::text, %s::text::interval)"


class PullWorker(Fetching):
    """Fetches the calls of a worker without URL, and answers each in the transaction in which its handler has worked.

    `connections` are as `Client` takes them; handlers get theirs by `xdb.connection()`. `threads` work beside each other, each fetches
    up to `batch` calls at a time and waits for the first one for `wait` seconds. `lease` is how long nobody else gets a call, if not
    its timeout. With `shards`, a first and a last number, it fetches only calls of these.
    """

    def __init__(
        self,
        *processes: type[Process],
        name: str,
        connections: Any = "",
        batch: int = 1,
        threads: int = 1,
        wait: Seconds = 5,
        lease: Seconds | None = None,
        shards: tuple[int, int] | None = None,
        debug: bool = False,
    ) -> None:
        super().__init__(*processes, name=name, batch=batch, wait=wait, lease=lease, shards=shards, debug=debug)
        self._connections, self._source = connections, source_of(connections)
        if threads < 1:
            raise ValueError("threads= is how many fetch and answer beside each other, one at least")
        self._threads = threads
        self._stopping = threading.Event()

    # --- running

    def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop`: then answers what has begun, gives back what has not, and returns.

        A program that has not set up logging gets it on standard error, with the ids of calls.
        """
        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s [%(process_id)s %(state)s] %(message)s")
            install()
        told, tell = socket.socketpair()
        with told, tell, _signals(lambda: tell.send(b"x")):
            working = self.start()
            threading.Thread(target=self._stops_when_told, args=(told,), daemon=True).start()
            log.info("fetching calls of %s for %s", self.name, ", ".join(self.worker.types))
            for each in working:
                while each.is_alive():  # so that signals come in between
                    each.join(0.2)
            with contextlib.suppress(OSError):
                tell.send(b"x")
        if self._failed is not None:
            raise self._failed

    def _stops_when_told(self, told: socket.socket) -> None:
        told.recv(1)
        self._stopping.set()

    def start(self) -> list[threading.Thread]:
        """Begins to work in threads of its own."""
        self._stopping.clear()
        self._failed = None
        made = [threading.Thread(target=self._works, name=f"xdb-pull-{n}", daemon=True) for n in range(self._threads)]
        for each in made:
            each.start()
        return made

    def stop(self) -> None:
        """Has it end: `run` returns when what has begun is answered, and who waits for calls has waited for `wait` seconds at most."""
        self._stopping.set()

    def work(self) -> int:
        """Answers what is due now, and gives how many calls: for tests, and for programs with a loop of their own."""
        answered = 0
        while not self._stopping.is_set() and (calls := deque(self._fetch(0))):
            answered += len(calls)
            try:
                self._answer_all(calls)
            finally:
                self._give_back(calls)
        return answered

    def __enter__(self) -> PullWorker:
        self._running = self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for each in self._running:
            each.join()

    def close(self) -> None:
        """Closes its own connections."""
        self._source.close()

    # --- one thread

    def _works(self) -> None:
        pause = _FIRST_PAUSE
        calls: deque[Claimed] = deque()
        while not self._stopping.is_set():
            try:
                if not calls:
                    calls.extend(self._next())
                self._answer_all(calls)
                pause = _FIRST_PAUSE
            except KeyboardInterrupt:
                log.warning("a handler was interrupted, and the worker stops")
                self._stopping.set()
            except Exception as error:
                log.warning(_TRIED_AGAIN, pause, message_of(error))
                self._stopping.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        self._give_back(calls)

    def _next(self) -> list[Claimed]:
        # Here alone: of the answer to one call, the same error says nothing of others.
        try:
            return self._fetch(self._wait)
        except _MISTAKES as error:
            self._failed = error
            self._stopping.set()
            return []

    def _fetch(self, wait: float) -> list[Claimed]:
        with errors.translated(), self._source.open() as execute:
            rows = execute(_CLAIM, self._claim(wait))
        return self._claimed(rows)

    def _answer_all(self, calls: deque[Claimed]) -> None:
        """Answers one after the other until it stops. What is in `calls` after that, or when this raises, is not answered."""
        while calls and not self._stopping.is_set():
            call = calls[0]
            try:
                if (more := call.extension()) is not None:
                    self._say(_EXTEND, (call.token, more))
                    calls[0] = call = call.extended()
                if (told := self._answer_one(calls)) is not None:
                    # Said later if the connection is lost, and the handler does not run again for it.
                    calls[0] = replace(call, job=told)
                    self._report(call, told)
            except errors.CallLost:
                log.warning("a call is somebody else's by now: %s", call.token)
            except Exception as error:
                if self._can_wait(call, error):
                    raise
            calls.popleft()

    def _give_back(self, calls: deque[Claimed]) -> None:
        try:
            while calls:
                call = calls.popleft()
                with contextlib.suppress(errors.CallLost):
                    self._report(call, left_to_say(call))
        except Exception as error:
            log.warning("calls can't be given back, and their leases have to end: %s", message_of(error))

    def _answer_one(self, calls: deque[Claimed]) -> Reply | None:
        """Gives what is left to be said of the first one, in a transaction of its own."""
        call, has_begun = calls[0], False
        try:
            with self._source.borrow(block=True) as conn:
                has_begun = True
                with connected(conn):
                    reply = call.job if isinstance(call.job, Reply) else call.job.run()
                sync_execute(conn)(_COMPLETE, answer(call, reply))
            return None
        except Exception as error:
            if not has_begun and not errors.is_refusal(error):
                raise
            return self._told(call, error)
        except BaseException as error:
            if has_begun:
                calls[0] = call.interrupted(error)
            raise

    def _report(self, call: Claimed, reply: Reply) -> None:
        try:
            self._say(_FAIL, failure(call, reply))
        except errors.CallLost:
            raise
        except Exception as error:
            self._say(_FAIL, failure(call, instead(reply, error)))

    def _say(self, sql: str, params: tuple[str | None, ...]) -> None:
        with errors.translated(), self._source.open() as execute:
            execute(sql, params)


class AsyncPullWorker(Fetching):
    """The same for coroutines: `concurrency` of them work beside each other. Ordinary handlers run in threads, and have no use for the
    connection, which is one for coroutines."""

    def __init__(
        self,
        *processes: type[Process],
        name: str,
        connections: Any = "",
        batch: int = 1,
        concurrency: int = 8,
        wait: Seconds = 5,
        lease: Seconds | None = None,
        shards: tuple[int, int] | None = None,
        debug: bool = False,
    ) -> None:
        super().__init__(*processes, name=name, batch=batch, wait=wait, lease=lease, shards=shards, debug=debug)
        self._connections, self._source = connections, async_source_of(connections)
        if concurrency < 1:
            raise ValueError("concurrency= is how many fetch and answer beside each other, one at least")
        self._concurrency = concurrency
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop`: then answers what has begun, gives back what has not, and returns."""
        self._failed = None
        stop = partial(asyncio.get_running_loop().call_soon_threadsafe, self._stopping.set)
        with _signals_of_a_loop(stop):
            working = [asyncio.create_task(self._works()) for _ in range(self._concurrency)]
            try:
                await asyncio.gather(*working)
            finally:
                self._stopping.set()
                await asyncio.gather(*working, return_exceptions=True)
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        """Has it end: `run` returns when what has begun is answered, and who waits for calls has waited for `wait` seconds at most."""
        self._stopping.set()

    async def work(self) -> int:
        """Answers what is due now, and gives how many calls: for tests, and for programs with a loop of their own."""
        answered = 0
        while not self._stopping.is_set() and (calls := deque(await self._fetch(0))):
            answered += len(calls)
            try:
                await self._answer_all(calls)
            finally:
                await self._give_back(calls)
        return answered

    async def close(self) -> None:
        """Closes its own connections."""
        await self._source.close()

    async def _works(self) -> None:
        pause = _FIRST_PAUSE
        calls: deque[Claimed] = deque()
        try:
            while not self._stopping.is_set():
                try:
                    if not calls:
                        calls.extend(await self._next())
                    await self._answer_all(calls)
                    pause = _FIRST_PAUSE
                except Exception as error:
                    log.warning(_TRIED_AGAIN, pause, message_of(error))
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._stopping.wait(), pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            await self._give_back(calls)

    async def _next(self) -> list[Claimed]:
        try:
            return await self._fetch(self._wait)
        except _MISTAKES as error:
            self._failed = error
            self._stopping.set()
            return []

    async def _fetch(self, wait: float) -> list[Claimed]:
        with errors.translated():
            async with self._source.open() as execute:
                rows = await execute(_CLAIM, self._claim(wait))
        return self._claimed(rows)

    async def _answer_all(self, calls: deque[Claimed]) -> None:
        while calls and not self._stopping.is_set():
            call = calls[0]
            try:
                if (more := call.extension()) is not None:
                    await self._say(_EXTEND, (call.token, more))
                    calls[0] = call = call.extended()
                if (told := await self._answer_one(calls)) is not None:
                    calls[0] = replace(call, job=told)
                    await self._report(call, told)
            except errors.CallLost:
                log.warning("a call is somebody else's by now: %s", call.token)
            except Exception as error:
                if self._can_wait(call, error):
                    raise
            calls.popleft()

    async def _give_back(self, calls: deque[Claimed]) -> None:
        try:
            while calls:
                call = calls.popleft()
                with contextlib.suppress(errors.CallLost):
                    await self._report(call, left_to_say(call))
        except Exception as error:
            log.warning("calls can't be given back, and their leases have to end: %s", message_of(error))

    async def _answer_one(self, calls: deque[Claimed]) -> Reply | None:
        call, has_begun = calls[0], False
        try:
            async with self._source.borrow(block=True) as conn:
                has_begun = True
                with connected(conn):
                    reply = await _run(call.job)
                await async_execute(conn)(_COMPLETE, answer(call, reply))
            return None
        except Exception as error:
            if not has_begun and not errors.is_refusal(error):
                raise
            return self._told(call, error)
        except BaseException as error:
            if has_begun:
                calls[0] = call.interrupted(error)
            raise

    async def _report(self, call: Claimed, reply: Reply) -> None:
        try:
            await self._say(_FAIL, failure(call, reply))
        except errors.CallLost:
            raise
        except Exception as error:
            await self._say(_FAIL, failure(call, instead(reply, error)))

    async def _say(self, sql: str, params: tuple[str | None, ...]) -> None:
        with errors.translated():
            async with self._source.open() as execute:
                await execute(sql, params)


async def _run(job: Job | Reply) -> Reply:
    if isinstance(job, Reply):
        return job
    if job.is_async:
        return await job.run_async()
    return job.run() if job.is_known else await asyncio.to_thread(run_in_thread, job)
