"""Workers that fetch their calls over an ordinary connection: no HTTP, and each answer in its handler's own transaction."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Union

from . import errors
from .client.connections import async_execute, sync_execute
from .client.sources import async_source_of, source_of
from .client.statements import Seconds, interval
from .codec import loads
from .decisions import Failure
from .logging import install, log
from .process import Process
from .request import Around, BadRequest, Conflict, Job, Reply, error_reply, message_of, read
from .serve import _signals, _signals_of_a_loop
from .worker import Worker

if TYPE_CHECKING:
    from .admin import Change

APIS = {"WAIT_UNTIL_API": "wait-until", "EXECUTE_API": "execute"}

# After an error of the connection, and twice as long each time after.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

# What is wrong with the program, or with how it was registered: nothing that passes.
_MISTAKES = (errors.UnknownWorker, errors.WrongKindOfWorker, errors.InvalidArgument)

# No failure: whoever fetches the call next makes the same attempt.
_GIVE_BACK = Reply(503, b"")

# How often one worker makes the same attempt again before it counts as a failed one.
_AGAIN = 10

_TRIED_AGAIN = "calls can't be fetched or answered, and are tried again in %g s: %s"

_CLAIM = """SELECT c.token, c.call_id, c.api, c.request::text, extract(epoch FROM c.lease_until - clock_timestamp())::text
    FROM xdb.claim_calls(worker => %s::text, max_calls => %s::text::int, wait => %s::text::interval,
        lease => %s::text::interval, shards => %s::text::int4range) AS c"""
_COMPLETE = "SELECT xdb.complete_call(%s::text, %s::text::jsonb)"
_FAIL = "SELECT xdb.fail_call(%s::text, %s::text::jsonb)"
_EXTEND = "SELECT xdb.extend_call(%s::text, %s::text::interval)"

_connection: ContextVar[Any] = ContextVar("xdb_connection")


def connection() -> Any:
    """The connection of the transaction that the running handler is a part of: what is written with it counts if the answer does."""
    conn = _connection.get(None)
    if conn is None:
        raise LookupError(
            "this call has no transaction: xdb.connection() works within handlers of xdb.PullWorker, "
            "and within those of xdb.AsyncPullWorker that are `async def`"
        )
    return conn


@dataclass(frozen=True)
class _Claimed:
    """A call that was fetched, by its token."""

    token: str
    job: Union[Job, Reply]
    read: Callable[[], Union[Job, Reply]]
    lease: float
    claimed_at: float

    @property
    def attempt(self) -> str:
        """Which attempt of which call it is, with whatever lease."""
        return _attempt_of(self.job) if isinstance(self.job, Job) else self.token

    def extension(self) -> str | None:
        """Another lease, for one that has waited behind others."""
        waited = time.monotonic() - self.claimed_at
        timeout = self.job.call.timeout if isinstance(self.job, Job) else None
        return interval(self.lease) if waited > min(self.lease, timeout or self.lease) / 4 else None

    def extended(self) -> _Claimed:
        """As if it were fetched now: its time has begun anew."""
        return replace(self, job=self.read() if isinstance(self.job, Job) else self.job, claimed_at=time.monotonic())


class _Refused(Exception):
    """Nothing of a handler is kept: its attempt has failed."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class _Fetching:
    """What workers of threads and of coroutines have in common."""

    def __init__(
        self,
        *processes: type[Process],
        name: str,
        batch: int,
        wait: Seconds,
        lease: Seconds | None,
        shards: tuple[int, int] | None,
        debug: bool,
    ) -> None:
        self.worker = Worker(*processes, debug=debug)
        self.name = name
        if not 1 <= batch <= 1000:
            raise ValueError("batch= is how many calls are fetched at a time, from 1 to 1000")
        self._wait = _seconds(wait)
        range_of = None if shards is None else f"[{int(shards[0])},{int(shards[1])}]"
        self._failed: BaseException | None = None
        self._given = (str(batch), None if lease is None else interval(lease), range_of)
        self._around: list[Around] = self.worker._around
        self._made: dict[str, int] = {}

    def add_around(self, around: Around) -> None:
        """Has each handler called within this context manager, which gets the call and which API it is."""
        self.worker.add_around(around)

    @property
    def processes(self) -> tuple[type[Process], ...]:
        """The classes that it serves."""
        return self.worker.processes

    def register(self, conn: Any, *, role: str, force: bool = False, dry_run: bool = False) -> list[Change]:
        """Registers itself and its processes as a part of the connection's transaction, and gives what that changes.

        Members of `role` may fetch the calls.
        """
        from .admin import Admin

        with Admin() as admin:
            return admin.register(self.worker, name=self.name, url=None, role=role, force=force, dry_run=dry_run, conn=conn)

    def sql(self, *, role: str) -> str:
        """A script that registers the same, for migrations."""
        from .admin import sql

        return sql(self.worker, name=self.name, url=None, role=role)

    def _claim(self, wait: float) -> tuple[str | None, ...]:
        batch, lease, shards = self._given
        return (self.name, batch, interval(wait), lease, shards)

    def _claimed(self, rows: Sequence[tuple[Any, ...]]) -> list[_Claimed]:
        claimed_at = time.monotonic()
        reads = [partial(self._job, call_id, api, text) for _, call_id, api, text, _ in rows]
        return [_Claimed(token, read(), read, float(left), claimed_at) for (token, *_, left), read in zip(rows, reads)]

    def _job(self, call_id: str, api: str, text: str) -> Job | Reply:
        try:
            job = read(APIS[api], loads(text.encode()), call_id, None, self.worker.types)
        except BadRequest as error:
            log.warning("a call was refused: %s", error)
            return error.reply
        except Exception as error:
            log.exception("a call can't be read")
            return error_reply(400, "BadRequest", f"the call can't be read: {message_of(error)}")
        repeats = partial(self._repeats, _attempt_of(job))
        return replace(job, around=self._around, debug=self.worker.options.debug, repeats=repeats)

    def _repeats(self, attempt: str, error: BaseException) -> bool:
        """Whether a handler's exception is a conflict, and no attempt. What a handler says itself stands."""
        return not isinstance(error, Failure) and errors.is_conflict(error) and self._again(attempt)

    def _again(self, attempt: str) -> bool:
        """Whether an attempt is made once more. One that has the same trouble each time would go round for ever."""
        if len(self._made) > 1000:  # most of them are over
            self._made.clear()
        made = self._made[attempt] = self._made.get(attempt, 0) + 1
        return made < _AGAIN

    def _told(self, call: _Claimed, error: BaseException) -> Reply | None:
        """What is said of a call whose transaction was rolled back; None: nothing, it is somebody else's. An empty body gives it back."""
        ours = error if isinstance(error, errors.XdbError) else errors.from_driver(error)
        if isinstance(error, _Refused):
            return error.reply
        if isinstance(error, Conflict):
            log.info("a call has to be made again: %s", error)
            return _GIVE_BACK
        if isinstance(ours, errors.CallLost):
            log.warning("a call was lost to somebody else, or ended meanwhile; what its handler has written is undone: %s", call.token)
            return None
        if isinstance(ours, errors.SerializationFailure) and self._again(call.attempt):
            log.info("a call has to be made again: %s", ours.message)
            return _GIVE_BACK
        log.error("the answer to a call was refused: %s", message_of(error), exc_info=error)
        return _failure_of(error)

    def _can_wait(self, call: _Claimed, error: Exception) -> bool:
        """After an error in which nothing could be said of a call: whether it is kept until there is a connection again."""
        if not errors.is_refusal(error) and self._again(call.attempt):
            return True
        log.error("nothing can be said of a call, and its lease has to end: %s: %s", call.token, message_of(error), exc_info=error)
        return False


def _attempt_of(job: Job) -> str:
    return f"{job.call.id} {job.call.attempt}"


def _seconds(given: Seconds) -> float:
    return given.total_seconds() if isinstance(given, timedelta) else float(given)


def _failure_of(error: BaseException) -> Reply:
    """What a database's refusal is, of an answer or at the commit."""
    ours = errors.from_driver(error)
    kind = "InvalidAnswer" if isinstance(ours, errors.WorkerFailed) else type(ours or error).__name__
    return error_reply(500, kind, message_of(ours or error))


def _instead(reply: Reply, error: Exception) -> Reply:
    """What is said where this could not be said: the same once more if that may help, and else what nobody can refuse."""
    if reply is _GIVE_BACK or isinstance(error, errors.SerializationFailure) or not errors.is_refusal(error):
        return reply
    log.error("what a call has failed with can't be reported: %s", error)
    said: Any = loads(reply.body)
    why = message_of(error).partition("\n")[0]
    return error_reply(500, said["errorType"], f"what it failed with could not be reported: {why}", said.get("final", False))


def _answer(call: _Claimed, reply: Reply) -> tuple[str, str]:
    if reply.status != 200:
        raise _Refused(reply)
    return call.token, reply.body.decode()


def _failure(call: _Claimed, reply: Reply) -> tuple[str, str | None]:
    """The parameters of `fail_call`."""
    return call.token, reply.body.decode() or None


@contextlib.contextmanager
def _connected(conn: Any) -> Iterator[None]:
    token = _connection.set(conn)
    try:
        yield
    finally:
        _connection.reset(token)


class PullWorker(_Fetching):
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
        self._source = source_of(connections)
        if threads < 1:
            raise ValueError("threads= is how many work beside each other: 1 at least")
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
        calls: deque[_Claimed] = deque()
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

    def _next(self) -> list[_Claimed]:
        # Here alone: of the answer to one call, the same error says nothing of others.
        try:
            return self._fetch(self._wait)
        except _MISTAKES as error:
            self._failed = error
            self._stopping.set()
            return []

    def _fetch(self, wait: float) -> list[_Claimed]:
        with errors.translated(), self._source.open() as execute:
            rows = execute(_CLAIM, self._claim(wait))
        return self._claimed(rows)

    def _answer_all(self, calls: deque[_Claimed]) -> None:
        """Answers one after the other until it stops. What is in `calls` after that, or when this raises, is not answered."""
        while calls and not self._stopping.is_set():
            call = calls[0]
            try:
                if (more := call.extension()) is not None:
                    self._say(_EXTEND, (call.token, more))
                    calls[0] = call = call.extended()
                if (told := self._answer_one(call)) is not None:
                    # Said later if the connection is lost, and the handler does not run again for it.
                    calls[0] = replace(call, job=told)
                    self._report(call, told)
            except errors.CallLost:
                log.warning("a call is somebody else's by now: %s", call.token)
            except Exception as error:
                if self._can_wait(call, error):
                    raise
            except KeyboardInterrupt as error:
                # Given back, the same attempt could end the next worker too.
                with contextlib.suppress(Exception):
                    self._report(calls.popleft(), error_reply(500, type(error).__name__, "its handler was interrupted"))
                raise
            calls.popleft()

    def _give_back(self, calls: deque[_Claimed]) -> None:
        try:
            while calls:
                with contextlib.suppress(errors.CallLost):
                    self._say(_FAIL, (calls.popleft().token, None))
        except Exception as error:
            log.warning("calls can't be given back, and their leases have to end: %s", message_of(error))

    def _answer_one(self, call: _Claimed) -> Reply | None:
        """Gives what is left to be said, in a transaction of its own."""
        has_begun = False
        try:
            with self._source.borrow(block=True) as conn:
                has_begun = True
                with _connected(conn):
                    reply = call.job if isinstance(call.job, Reply) else call.job.run()
                sync_execute(conn)(_COMPLETE, _answer(call, reply))
            return None
        except Exception as error:
            if not has_begun and not errors.is_refusal(error):
                raise
            return self._told(call, error)

    def _report(self, call: _Claimed, reply: Reply) -> None:
        try:
            self._say(_FAIL, _failure(call, reply))
        except errors.CallLost:
            raise
        except Exception as error:
            self._say(_FAIL, _failure(call, _instead(reply, error)))

    def _say(self, sql: str, params: tuple[str | None, ...]) -> None:
        with errors.translated(), self._source.open() as execute:
            execute(sql, params)


class AsyncPullWorker(_Fetching):
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
        self._source = async_source_of(connections)
        if concurrency < 1:
            raise ValueError("concurrency= is how many work beside each other: 1 at least")
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
        calls: deque[_Claimed] = deque()
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

    async def _next(self) -> list[_Claimed]:
        try:
            return await self._fetch(self._wait)
        except _MISTAKES as error:
            self._failed = error
            self._stopping.set()
            return []

    async def _fetch(self, wait: float) -> list[_Claimed]:
        with errors.translated():
            async with self._source.open() as execute:
                rows = await execute(_CLAIM, self._claim(wait))
        return self._claimed(rows)

    async def _answer_all(self, calls: deque[_Claimed]) -> None:
        while calls and not self._stopping.is_set():
            call = calls[0]
            try:
                if (more := call.extension()) is not None:
                    await self._say(_EXTEND, (call.token, more))
                    calls[0] = call = call.extended()
                if (told := await self._answer_one(call)) is not None:
                    calls[0] = replace(call, job=told)
                    await self._report(call, told)
            except errors.CallLost:
                log.warning("a call is somebody else's by now: %s", call.token)
            except Exception as error:
                if self._can_wait(call, error):
                    raise
            except BaseException:
                calls.popleft()  # its lease has to end: the same attempt, made again at once, could end the next worker too
                raise
            calls.popleft()

    async def _give_back(self, calls: deque[_Claimed]) -> None:
        try:
            while calls:
                with contextlib.suppress(errors.CallLost):
                    await self._say(_FAIL, (calls.popleft().token, None))
        except Exception as error:
            log.warning("calls can't be given back, and their leases have to end: %s", message_of(error))

    async def _answer_one(self, call: _Claimed) -> Reply | None:
        has_begun = False
        try:
            async with self._source.borrow(block=True) as conn:
                has_begun = True
                with _connected(conn):
                    reply = await _run(call.job)
                await async_execute(conn)(_COMPLETE, _answer(call, reply))
            return None
        except Exception as error:
            if not has_begun and not errors.is_refusal(error):
                raise
            return self._told(call, error)

    async def _report(self, call: _Claimed, reply: Reply) -> None:
        try:
            await self._say(_FAIL, _failure(call, reply))
        except errors.CallLost:
            raise
        except Exception as error:
            await self._say(_FAIL, _failure(call, _instead(reply, error)))

    async def _say(self, sql: str, params: tuple[str | None, ...]) -> None:
        with errors.translated():
            async with self._source.open() as execute:
                await execute(sql, params)


async def _run(job: Job | Reply) -> Reply:
    if isinstance(job, Reply):
        return job
    if job.is_async:
        return await job.run_async()

    def apart() -> Reply:
        # Nobody could await there what the connection gives: a write would be lost in silence.
        with _connected(None):
            return job.run()

    return job.run() if job.is_known else await asyncio.to_thread(contextvars.copy_context().run, apart)
