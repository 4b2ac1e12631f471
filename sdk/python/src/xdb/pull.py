"""Workers that fetch their calls over an ordinary connection: no HTTP, and each answer in its handler's own transaction."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any

from . import errors
from .client.connections import Rows, async_execute, cut, sync_execute
from .client.sources import async_source_of, source_of
from .client.statements import LIMIT, Seconds
from .fetching import (
    GIVES_BACK_WITHIN,
    GRACE,
    LIMITS,
    READ_WRITE,
    Claimed,
    Fetching,
    answer,
    connected,
    connection,
    failure,
    in_thread,
    instead,
    left_to_say,
    run_in_thread,
)
from .logging import install, log
from .process import Process
from .request import Job, Reply, message_of
from .serve import _signals, _signals_of_a_loop

__all__ = ["AsyncPullWorker", "PullWorker", "connection"]

_STOPS = "stopping: calls that run have %g s, and a second signal gives them back at once"

# After an error of the connection, and twice as long each time after.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

# What is wrong with the program, or with how it was registered: nothing that passes.
_MISTAKES = (errors.UnknownWorker, errors.WrongKindOfWorker, errors.InvalidArgument)

_TRIED_AGAIN = "calls can't be fetched or answered, and are tried again in %g s: %s"

# A wait ends before a limit of the role would end it.
_CLAIM = f"""SELECT c.token, c.call_id, c.api, c.request::text, extract(epoch FROM c.lease_until - clock_timestamp())::text,
        concat_ws(',', {", ".join(f"coalesce(current_setting('{name}', true), '0')" for name in LIMITS)})
    FROM xdb.claim_calls(worker => %s::text, max_calls => %s::text::int, wait => least(%s::text::interval, {LIMIT} / 2),
        lease => %s::text::interval, shards => %s::text::int4range) AS c"""
_COMPLETE = "SELECT xdb.complete_call(%s::text, %s::text::jsonb)"
_FAIL = "SELECT xdb.fail_call(%s::text, %s::text::jsonb)"
_EXTEND = "SELECT xdb.extend_call(%s::text, %s::text::interval)"


class PullWorker(Fetching):
    """Fetches the calls of a worker without URL, and answers each in the transaction in which its handler has worked.

    `connections` are as `Client` takes them; handlers get theirs by `xdb.connection()`. `threads` work beside each other, each fetches
    up to `batch` calls at a time and waits for the first one for `wait` seconds. `lease` is how long nobody else gets a call, if not
    its timeout. With `shards`, a first and a last number, it fetches only calls of these. `grace` is how many seconds the calls that
    have begun get when it stops. If that is less than `wait`, a claim that still waits may lease a last call, which nothing gives back.
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
        grace: Seconds = GRACE,
        debug: bool = False,
    ) -> None:
        super().__init__(*processes, name=name, batch=batch, wait=wait, lease=lease, shards=shards, grace=grace, debug=debug)
        self._connections, self._source = connections, source_of(connections)
        if threads < 1:
            raise ValueError("threads= is how many fetch and answer beside each other, one at least")
        self._threads = threads
        self._stopping, self._hurried = threading.Event(), threading.Event()
        # The calls that each thread has claimed and not answered.
        self._held: list[deque[Claimed]] = []

    # --- running

    def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop`: then answers what has begun, gives back what has not, and returns.

        After `grace` seconds, or at a second signal, it also gives back what still runs, and returns: the threads of these handlers end
        with the program, and nothing of what they have written is kept.

        A program that has not set up logging gets it on standard error, with the ids of calls.
        """
        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s [%(process_id)s %(state)s] %(message)s")
            install()
        told, tell = socket.socketpair()
        with told, tell, _signals(lambda: tell.send(b"x")):
            working = self.start()
            watching = threading.Thread(target=self._stops_when_told, args=(told,), daemon=True)
            watching.start()
            log.info("fetching calls of %s for %s", self.name, ", ".join(self.worker.types))
            try:
                self._join(working)
            finally:
                tell.send(b"xx")
                watching.join()
        if self._failed is not None:
            raise self._failed

    def _stops_when_told(self, told: socket.socket) -> None:
        told.recv(1)
        self._stopping.set()
        told.recv(1)
        self._hurried.set()

    def start(self) -> list[threading.Thread]:
        """Begins to work in threads of its own."""
        self._stopping.clear()
        self._hurried.clear()
        self._failed = None
        self._held = [deque() for _ in range(self._threads)]
        made = [
            threading.Thread(target=self._works, args=(calls,), name=f"xdb-pull-{n}", daemon=True) for n, calls in enumerate(self._held)
        ]
        for each in made:
            each.start()
        return made

    def _join(self, working: list[threading.Thread]) -> None:
        """Waits until the threads have ended: when it stops, for the grace at most."""
        ends: float | None = None
        while running := [each for each in working if each.is_alive()]:
            if self._stopping.is_set():
                if ends is None:
                    ends = time.monotonic() + self._grace
                    log.info(_STOPS, self._grace)
                if self._hurried.is_set() or time.monotonic() >= ends:
                    self._abandon()
                    return
            running[0].join(0.2)  # so that signals come in between

    def _abandon(self) -> None:
        """Gives back the calls that still run, so that another worker makes the same attempts now, and not when their leases end."""
        calls = deque(call for held in self._held for call in list(held))
        if not calls:
            return
        log.warning("%d calls still run, and are given back: what their handlers have written is undone", len(calls))
        # A handler may keep what this waits for.
        giving = threading.Thread(target=self._give_back, args=(calls,), daemon=True)
        giving.start()
        giving.join(GIVES_BACK_WITHIN)

    def stop(self) -> None:
        """Has it end: `run` returns when what has begun is answered, after `grace` seconds at most. A wait for calls ends by itself
        after `wait` seconds."""
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
        self._join(self._running)

    def close(self) -> None:
        """Closes its own connections."""
        self._source.close()

    # --- one thread

    def _works(self, calls: deque[Claimed]) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                if not calls:
                    calls.extend(self._next())
                self._answer_all(calls)
                pause = _FIRST_PAUSE
            except BaseException as error:  # no call, and nothing that gives a connection, ends a worker's thread
                log.warning(_TRIED_AGAIN, pause, message_of(error))
                self._stopping.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        self._give_back(calls)

    def _next(self) -> list[Claimed]:
        # Here alone: of the answer to one call, the same error says nothing of others.
        try:
            try:
                return self._fetch(self._wait)
            except Exception as error:
                if not errors.is_cut_short(error):
                    raise
            # Of a wait that was cut short, nothing was due. If the server is too slow to say even that, it is an error.
            return self._fetch(0)
        except _MISTAKES as error:
            self._failed = error
            self._stopping.set()
            return []

    def _fetch(self, wait: float) -> list[Claimed]:
        plain = self._in_plain_transactions
        try:
            return self._claimed(self._say(_CLAIM, self._claim(wait)))
        except Exception as error:
            if plain or not errors.is_of_the_transaction(error):
                raise
        self._in_plain_transactions = True
        return self._claimed(self._say(_CLAIM, self._claim(wait)))

    def _answer_all(self, calls: deque[Claimed]) -> None:
        """Answers one after the other until it stops. What is in `calls` after that, or when this raises, is not answered."""
        while calls and not self._stopping.is_set():
            call = calls[0]
            try:
                if (more := call.extension()) is not None:
                    self._say(_EXTEND, (call.token, more), call)
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
                execute = sync_execute(conn)
                if self._in_plain_transactions:
                    execute(READ_WRITE, ())
                for lifting in call.lifting(*LIMITS[:2]):
                    execute(lifting, ())
                with connected(conn):
                    reply = call.job if isinstance(call.job, Reply) else call.job.run()
                for lifting in call.lifting(*LIMITS[2:]) if reply.status == 200 else ():
                    execute(lifting, ())
                execute(_COMPLETE, answer(call, reply))
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
            self._say(_FAIL, failure(call, reply), call)
        except errors.CallLost:
            raise
        except Exception as error:
            self._say(_FAIL, failure(call, instead(reply, error)), call)

    def _say(self, sql: str, params: tuple[str | None, ...], of: Claimed | None = None) -> Rows:
        first = self._before(of)
        with errors.translated(), self._source.open(block=bool(first)) as execute:
            for each in first:
                execute(each, ())
            return execute(sql, params)


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
        grace: Seconds = GRACE,
        debug: bool = False,
    ) -> None:
        super().__init__(*processes, name=name, batch=batch, wait=wait, lease=lease, shards=shards, grace=grace, debug=debug)
        self._connections, self._source = connections, async_source_of(connections)
        if concurrency < 1:
            raise ValueError("concurrency= is how many fetch and answer beside each other, one at least")
        self._concurrency = concurrency
        self._stopping, self._hurried = asyncio.Event(), asyncio.Event()
        self._abandons = False

    async def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop`: then answers what has begun, gives back what has not, and returns.

        After `grace` seconds, or at a second signal, it cancels what still runs and gives it back. Ordinary handlers can't be cancelled:
        their threads end with the program.
        """
        self._failed = None
        self._abandons = False
        self._hurried.clear()
        stop = partial(asyncio.get_running_loop().call_soon_threadsafe, self._signalled)
        with _signals_of_a_loop(stop):
            working = [asyncio.create_task(self._works()) for _ in range(self._concurrency)]
            watching = asyncio.create_task(self._cancels_in_the_end(working))
            try:
                await asyncio.wait(working, return_when=asyncio.FIRST_EXCEPTION)
            except asyncio.CancelledError:
                for each in working:
                    each.cancel()
                raise
            finally:
                self._stopping.set()
                results = await asyncio.gather(*working, return_exceptions=True)
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        for error in (self._failed, *results):
            if error is not None and not (self._abandons and isinstance(error, asyncio.CancelledError)):
                raise error

    def _signalled(self) -> None:
        """By a signal. The second one leaves no time."""
        (self._hurried if self._stopping.is_set() else self._stopping).set()

    async def _cancels_in_the_end(self, working: list[asyncio.Task[None]]) -> None:
        await self._stopping.wait()
        log.info(_STOPS, self._grace)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._hurried.wait(), self._grace)
        self._abandons = True
        # The second time it is what gives the calls back that takes too long.
        for _ in range(2):
            for each in working:
                each.cancel()
            await asyncio.wait(working, timeout=GIVES_BACK_WITHIN)

    def stop(self) -> None:
        """Has it end: `run` returns when what has begun is answered, after `grace` seconds at most. A wait for calls ends by itself
        after `wait` seconds."""
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
                except BaseException as error:
                    if not isinstance(error, Exception) and _is_meant(error):
                        raise
                    log.warning(_TRIED_AGAIN, pause, message_of(error))
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._stopping.wait(), pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            await self._give_back(calls)

    async def _next(self) -> list[Claimed]:
        try:
            try:
                return await self._fetch(self._wait)
            except Exception as error:
                if not errors.is_cut_short(error):
                    raise
            return await self._fetch(0)
        except _MISTAKES as error:
            self._failed = error
            self._stopping.set()
            return []

    async def _fetch(self, wait: float) -> list[Claimed]:
        plain = self._in_plain_transactions
        try:
            return self._claimed(await self._say(_CLAIM, self._claim(wait)))
        except Exception as error:
            if plain or not errors.is_of_the_transaction(error):
                raise
        self._in_plain_transactions = True
        return self._claimed(await self._say(_CLAIM, self._claim(wait)))

    async def _answer_all(self, calls: deque[Claimed]) -> None:
        while calls and not self._stopping.is_set():
            call = calls[0]
            try:
                if (more := call.extension()) is not None:
                    await self._say(_EXTEND, (call.token, more), call)
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
                execute = async_execute(conn)
                if self._in_plain_transactions:
                    await execute(READ_WRITE, ())
                for lifting in call.lifting(*LIMITS[:2]):
                    await execute(lifting, ())
                with connected(conn):
                    reply = await _run(call.job, conn)
                for lifting in call.lifting(*LIMITS[2:]) if reply.status == 200 else ():
                    await execute(lifting, ())
                await execute(_COMPLETE, answer(call, reply))
            return None
        except Exception as error:
            if not has_begun and not errors.is_refusal(error):
                raise
            return self._told(call, error)
        except BaseException as error:
            if has_begun and not self._abandons:
                calls[0] = call.interrupted(error)
            raise

    async def _report(self, call: Claimed, reply: Reply) -> None:
        try:
            await self._say(_FAIL, failure(call, reply), call)
        except errors.CallLost:
            raise
        except Exception as error:
            await self._say(_FAIL, failure(call, instead(reply, error)), call)

    async def _say(self, sql: str, params: tuple[str | None, ...], of: Claimed | None = None) -> Rows:
        first = self._before(of)
        with errors.translated():
            async with self._source.open(block=bool(first)) as execute:
                for each in first:
                    await execute(each, ())
                return await execute(sql, params)


async def _run(job: Job | Reply, conn: Any) -> Reply:
    if isinstance(job, Reply):
        return job
    if job.is_async:
        try:
            return await job.run_async()
        finally:
            if job.goes_on:
                # What the handler still writes would be a part of the connection's next transaction.
                await cut(conn)
    return job.run() if job.is_known else await in_thread(partial(run_in_thread, job))


def _is_cancelled() -> bool:
    """Whether this task was cancelled itself. Python 3.10 does not tell that from a cancelled thing that it waits for."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is None or cancelling() > 0


def _is_meant(error: BaseException) -> bool:
    """Whether it ends a task of a worker: the end of the task itself, or of the program."""
    return _is_cancelled() if isinstance(error, asyncio.CancelledError) else isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit))
