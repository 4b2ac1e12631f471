"""Pull workers: they claim their calls with SQL, over an ordinary connection, and complete each in its handler's own transaction.

`PullWorker` runs in threads, `AsyncPullWorker` in coroutines; claiming.py has what they share. Limitations: no RPCs, which the engine
calls itself.
"""

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
from .claiming import (
    GIVES_BACK_WITHIN,
    GRACE,
    LIMITS,
    READ_WRITE,
    Claimed,
    Claiming,
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

_STOPS = "stopping: running calls have %g s left; a second signal gives them back at once"

# Seconds of the first pause after an error of the connection, which doubles each time, and of the longest one.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

# Mistakes of the program, or of how it was registered. They don't pass, so they end the worker.
_MISTAKES = (errors.UnknownWorker, errors.WrongKindOfWorker, errors.InvalidArgument)

_TRIED_AGAIN = "can't claim or complete calls; trying again in %g s: %s"

# The wait is at most half of the role's limit for a statement, so that the limit does not cancel it.
_CLAIM = f"""SELECT c.token, c.call_id, c.api, c.request::text, extract(epoch FROM c.lease_until - clock_timestamp())::text,
        concat_ws(',', {", ".join(f"coalesce(current_setting('{name}', true), '0')" for name in LIMITS)})
    FROM xdb.claim_calls(worker => %s::text, max_calls => %s::text::int, wait => least(%s::text::interval, {LIMIT} / 2),
        lease => %s::text::interval, shards => %s::text::int4range) AS c"""
_COMPLETE = "SELECT xdb.complete_call(%s::text, %s::text::jsonb)"
_FAIL = "SELECT xdb.fail_call(%s::text, %s::text::jsonb)"
_EXTEND = "SELECT xdb.extend_call(%s::text, %s::text::interval)"


class PullWorker(Claiming):
    """Claims the calls of a worker without a URL, and completes each call in the transaction of its handler.

    - `name`: the worker's name in the database.
    - `connections`: as `Client` takes them. Handlers get theirs with `xdb.connection()`.
    - `threads`: how many calls run at a time. Default 1.
    - `batch`: how many calls a thread claims at once, 1 to 1000. Default 1.
    - `wait`: how long a claim waits for a first call, in seconds or as a timedelta. Default 5.
    - `lease`: how long no other worker may claim a claimed call. Default: the timeout of the call.
    - `shards`: a first and a last shard, to claim only calls of these. Default: all.
    - `grace`: how long running calls get when the worker stops. Default 30. If it is shorter than `wait`, a waiting claim may still lease a
      call, which stays leased until its lease ends.
    - `debug`: failures contain the traceback. Default off.

    Raises `TypeError` or `ValueError` for wrong arguments.
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
            raise ValueError(f"threads={threads} is less than 1: it is how many calls run at a time")
        self._threads = threads
        self._stopping, self._hurried = threading.Event(), threading.Event()
        # For each thread, the calls that it has claimed and not completed. Written by its thread, read by `_abandon`.
        self._held: list[deque[Claimed]] = []

    # --- running

    def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop`. Then it completes running calls, gives back calls that have not begun, and returns.

        After `grace` seconds, or at a second signal, it gives back calls that still run, and returns. The threads of their handlers end
        with the program, and their writes are rolled back.

        Raises `errors.UnknownWorker`, `WrongKindOfWorker` or `InvalidArgument` if the worker is not registered, has a URL, or has wrong
        options. If the program has not set up logging, log lines go to standard error, with the ids of calls.
        """
        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s [%(process_id)s %(state)s] %(message)s")
            install()
        told, tell = socket.socketpair()
        with told, tell, _signals(lambda: tell.send(b"x")):
            working = self.start()
            watching = threading.Thread(target=self._stops_when_told, args=(told,), daemon=True)
            watching.start()
            log.info("claiming calls of worker %s for %s", self.name, ", ".join(self.worker.types))
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
        """Starts to work in threads, which it returns. `stop` ends them; signals are left to the program."""
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
        """Waits until the threads have ended. Once the worker stops, for `grace` seconds at most; then it abandons their calls."""
        ends: float | None = None
        while running := [each for each in working if each.is_alive()]:
            if self._stopping.is_set():
                if ends is None:
                    ends = time.monotonic() + self._grace
                    log.info(_STOPS, self._grace)
                if self._hurried.is_set() or time.monotonic() >= ends:
                    self._abandon()
                    return
            running[0].join(0.2)  # short, so that signals are handled in between

    def _abandon(self) -> None:
        """Gives back the calls that still run, so that another worker can make the same attempts now, and not when their leases end."""
        calls = deque(call for held in self._held for call in list(held))
        if not calls:
            return
        log.warning("giving back %d running calls; their handlers' writes are rolled back", len(calls))
        # In another thread, because a handler may hold a lock that this waits for.
        giving = threading.Thread(target=self._give_back, args=(calls,), daemon=True)
        giving.start()
        giving.join(GIVES_BACK_WITHIN)

    def stop(self) -> None:
        """Stops the worker: `run` returns when running calls are completed, after `grace` seconds at most. A waiting claim ends after
        `wait` seconds."""
        self._stopping.set()

    def work(self) -> int:
        """Answers all calls that are due now, and returns how many. For tests, and for programs with their own loop."""
        answered = 0
        while not self._stopping.is_set() and (calls := deque(self._claim_calls(0))):
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
        """Closes the connections that the worker has opened."""
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
            except BaseException as error:  # neither a call nor the source of connections may end the thread
                log.warning(_TRIED_AGAIN, pause, message_of(error))
                self._stopping.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        self._give_back(calls)

    def _next(self) -> list[Claimed]:
        # Mistakes end the worker only here. When one call is completed, the same error says nothing about other calls.
        try:
            try:
                return self._claim_calls(self._wait)
            except Exception as error:
                if not errors.is_cut_short(error):
                    raise
            # The wait was cancelled by a limit, so nothing was due. A claim without a wait must not be cancelled.
            return self._claim_calls(0)
        except _MISTAKES as error:
            self._failed = error
            self._stopping.set()
            return []

    def _claim_calls(self, wait: float) -> list[Claimed]:
        plain = self._in_plain_transactions
        try:
            return self._claimed(self._say(_CLAIM, self._claim(wait)))
        except Exception as error:
            if plain or not errors.is_of_the_transaction(error):
                raise
        self._in_plain_transactions = True
        return self._claimed(self._say(_CLAIM, self._claim(wait)))

    def _answer_all(self, calls: deque[Claimed]) -> None:
        """Answers the calls one by one, until the worker stops. Calls that are then left in `calls`, also after an error, are not answered."""
        while calls and not self._stopping.is_set():
            call = calls[0]
            try:
                if (more := call.extension()) is not None:
                    self._say(_EXTEND, (call.token, more), call)
                    calls[0] = call = call.extended()
                if (told := self._answer_one(calls)) is not None:
                    # Kept in the queue: if the connection is lost, the failure is reported later, without another run of the handler.
                    calls[0] = replace(call, job=told)
                    self._report(call, told)
            except errors.CallLost:
                log.warning("lease lost: the call was reclaimed or has ended: %s", call.token)
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
            log.warning("can't give back calls; they are retried when their leases end: %s", message_of(error))

    def _answer_one(self, calls: deque[Claimed]) -> Reply | None:
        """Answers the first call in a transaction of its own. Returns the failure that is still to be reported, or None."""
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


class AsyncPullWorker(Claiming):
    """`PullWorker` for coroutines. `concurrency` is how many calls run at a time, default 8; other options are the same.

    Ordinary handlers run in threads, and can't use `xdb.connection()`, which is an async connection.
    """

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
            raise ValueError(f"concurrency={concurrency} is less than 1: it is how many calls run at a time")
        self._concurrency = concurrency
        self._stopping, self._hurried = asyncio.Event(), asyncio.Event()
        self._abandons = False

    async def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop`. Then it completes running calls, gives back calls that have not begun, and returns.

        After `grace` seconds, or at a second signal, it cancels handlers that still run, and gives their calls back. Ordinary handlers can't
        be cancelled: their threads end with the program. Raises as `PullWorker.run`.
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
        """Called by a signal. The second signal ends the grace."""
        (self._hurried if self._stopping.is_set() else self._stopping).set()

    async def _cancels_in_the_end(self, working: list[asyncio.Task[None]]) -> None:
        await self._stopping.wait()
        log.info(_STOPS, self._grace)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._hurried.wait(), self._grace)
        self._abandons = True
        # Twice: first the handlers are cancelled, then what gives their calls back, if that takes too long.
        for _ in range(2):
            for each in working:
                each.cancel()
            await asyncio.wait(working, timeout=GIVES_BACK_WITHIN)

    def stop(self) -> None:
        """Stops the worker: `run` returns when running calls are completed, after `grace` seconds at most. A waiting claim ends after
        `wait` seconds."""
        self._stopping.set()

    async def work(self) -> int:
        """Answers all calls that are due now, and returns how many. For tests, and for programs with their own loop."""
        answered = 0
        while not self._stopping.is_set() and (calls := deque(await self._claim_calls(0))):
            answered += len(calls)
            try:
                await self._answer_all(calls)
            finally:
                await self._give_back(calls)
        return answered

    async def close(self) -> None:
        """Closes the connections that the worker has opened."""
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
                return await self._claim_calls(self._wait)
            except Exception as error:
                if not errors.is_cut_short(error):
                    raise
            return await self._claim_calls(0)
        except _MISTAKES as error:
            self._failed = error
            self._stopping.set()
            return []

    async def _claim_calls(self, wait: float) -> list[Claimed]:
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
                log.warning("lease lost: the call was reclaimed or has ended: %s", call.token)
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
            log.warning("can't give back calls; they are retried when their leases end: %s", message_of(error))

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
                # Otherwise the handler's further writes would be part of the connection's next transaction.
                await cut(conn)
    return job.run() if job.is_known else await in_thread(partial(run_in_thread, job))


def _is_cancelled() -> bool:
    """Whether this task itself was cancelled. Python 3.10 can't tell that from a cancelled task that it awaits, and gets True."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is None or cancelling() > 0


def _is_meant(error: BaseException) -> bool:
    """Whether an exception should end a worker's task: its own cancellation, or the end of the program."""
    return _is_cancelled() if isinstance(error, asyncio.CancelledError) else isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit))
