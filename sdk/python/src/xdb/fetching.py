"""What workers that fetch their calls have in common: calls as they were fetched, and what is said of each."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast

from . import errors
from .client.statements import Seconds, interval
from .codec import loads
from .decisions import Failure
from .logging import log
from .process import Process
from .request import Around, BadRequest, Conflict, Job, NotHere, Reply, error_reply, message_of, read
from .worker import Worker

if TYPE_CHECKING:
    from .admin import Change

T = TypeVar("T")

APIS = {"WAIT_UNTIL_API": "wait-until", "EXECUTE_API": "execute"}

# No failure: whoever fetches the call next makes the same attempt.
_GIVE_BACK = Reply(503, b"")

# No failure for ten minutes: the call is made again after a pause.
NOT_REGISTERED = "NotRegistered"

# How often one worker makes the same attempt again before it counts as a failed one.
_AGAIN = 10

# How long a worker that stops waits for those that answer its calls, and then for the server to take back the calls.
GRACE, GIVES_BACK_WITHIN = 30.0, 5.0

# Limits of a role that are meant for the queries of an application. The first two are lifted for a step, which has a time of its own
# and may leave its connection idle; the others for its answer or its failure, so that the handler's own statements still have them.
LIMITS = ("idle_in_transaction_session_timeout", "transaction_timeout", "statement_timeout", "lock_timeout")

# What a call is fetched and told in where the role's transactions are read only, or see what they saw first.
_PLAIN_TRANSACTION = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
READ_WRITE = "SET TRANSACTION READ WRITE"

_connection: ContextVar[Any] = ContextVar("xdb_connection")
# In place of a connection of coroutines, in a thread: its methods would do nothing there but give a coroutine.
_OF_COROUTINES: Any = object()


def connection() -> Any:
    """The connection of the transaction that the running handler is a part of: what is written with it counts if the answer does."""
    conn = _connection.get(None)
    if conn is None:
        raise LookupError("this call has no transaction: xdb.connection() works within handlers of xdb.PullWorker and xdb.AsyncPullWorker")
    if conn is _OF_COROUTINES:
        raise LookupError(
            "this is no coroutine, and the connection of an xdb.AsyncPullWorker is one for coroutines: make the handler `async def`, "
            "or serve it with xdb.PullWorker"
        )
    return conn


@dataclass(frozen=True)
class Claimed:
    """A call that was fetched, by its token."""

    token: str
    job: Union[Job, Reply]
    read: Callable[[], Union[Job, Reply]]
    lease: float
    claimed_at: float
    # The names of the limits that its role has.
    limits: tuple[str, ...] = ()

    def lifting(self, *names: str) -> list[str]:
        """The statements that take these limits from the transaction. None of them takes a snapshot: a handler may set the isolation level."""
        return [f"SET LOCAL {name} = 0" for name in names if name in self.limits]

    @property
    def attempt(self) -> str:
        """Which attempt of which call it is, with whatever lease."""
        return _attempt_of(self.job) if isinstance(self.job, Job) else self.token

    def extension(self) -> str | None:
        """Another lease, for one that has waited behind others."""
        waited = time.monotonic() - self.claimed_at
        timeout = self.job.call.timeout if isinstance(self.job, Job) else None
        return interval(self.lease) if waited > min(self.lease, timeout or self.lease) / 4 else None

    def extended(self) -> Claimed:
        """As if it were fetched now: its time has begun anew."""
        return replace(self, job=self.read() if isinstance(self.job, Job) else self.job, claimed_at=time.monotonic())

    def interrupted(self, by: BaseException) -> Claimed:
        """With a failed attempt: given back, the same attempt could end the next worker too."""
        if isinstance(self.job, Reply):
            return self
        return replace(self, job=error_reply(500, type(by).__name__, "its handler was interrupted"))


class _Refused(Exception):
    """Nothing of a handler is kept: its attempt has failed."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Fetching:
    """What workers of threads and of coroutines have in common."""

    def __init__(
        self,
        *processes: type[Process],
        name: str,
        batch: int,
        wait: Seconds,
        lease: Seconds | None,
        shards: tuple[int, int] | None,
        grace: Seconds,
        debug: bool,
    ) -> None:
        self.worker = Worker(*processes, debug=debug)
        self.name = name
        if not 1 <= batch <= 1000:
            raise ValueError("batch= is how many calls are fetched at a time, from 1 to 1000")
        self._wait, self._grace = _seconds(wait), _seconds(grace)
        range_of = None if shards is None else f"[{int(shards[0])},{int(shards[1])}]"
        self._failed: BaseException | None = None
        self._given = (str(batch), None if lease is None else interval(lease), range_of)
        self._around: list[Around] = self.worker._around
        self._made: dict[str, int] = {}
        # Whether its statements need transactions of another kind than the role's.
        self._in_plain_transactions = False

    @property
    def processes(self) -> tuple[type[Process], ...]:
        """The classes that it serves."""
        return self.worker.processes

    def add_around(self, around: Around) -> None:
        """Has each handler called within this context manager, which gets the call and which API it is."""
        self.worker.add_around(around)

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

    def _before(self, call: Claimed | None) -> list[str]:
        """The statements before what is said to the server, of this call or of none."""
        plain = [_PLAIN_TRANSACTION] if self._in_plain_transactions else []
        return plain + (call.lifting(*LIMITS[2:]) if call is not None else [])

    def _claimed(self, rows: Sequence[tuple[Any, ...]]) -> list[Claimed]:
        claimed_at = time.monotonic()
        made = []
        for token, call_id, api, text, left, limits in rows:
            read = partial(self._job, call_id, api, text)
            set_limits = tuple(name for name, value in zip(LIMITS, limits.split(",")) if value != "0")
            made.append(Claimed(token, read(), read, float(left), claimed_at, set_limits))
        return made

    def _job(self, call_id: str, api: str, text: str) -> Job | Reply:
        try:
            job = read(APIS[api], loads(text.encode()), call_id, None, self.worker.types)
        except NotHere as error:
            log.warning("a call was refused: %s", error)
            return error_reply(404, NOT_REGISTERED, str(error))
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

    def _told(self, call: Claimed, error: BaseException) -> Reply | None:
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

    def _can_wait(self, call: Claimed, error: Exception) -> bool:
        """After an error in which nothing could be said of a call: whether it is kept until there is a connection again."""
        if not errors.is_refusal(error) and self._again(call.attempt):
            return True
        log.error("nothing can be said of a call, and its lease has to end: %s: %s", call.token, message_of(error), exc_info=error)
        return False


def served_by(worker: Worker | Fetching) -> Worker:
    """What has the processes of a worker of either kind."""
    return worker.worker if isinstance(worker, Fetching) else worker


def _attempt_of(job: Job) -> str:
    return f"{job.call.id} {job.call.attempt}"


def _seconds(given: Seconds) -> float:
    return given.total_seconds() if isinstance(given, timedelta) else float(given)


def _failure_of(error: BaseException) -> Reply:
    """What a database's refusal is, of an answer or at the commit."""
    ours = errors.from_driver(error)
    if isinstance(ours, errors.WorkerFailed):
        kind = NOT_REGISTERED if ours.error_type == NOT_REGISTERED else "InvalidAnswer"
    else:
        kind = type(ours or error).__name__
    return error_reply(500, kind, message_of(ours or error))


def instead(reply: Reply, error: Exception) -> Reply:
    """What is said where this could not be said: the same once more if that may help, and else what nobody can refuse."""
    if reply is _GIVE_BACK or isinstance(error, errors.SerializationFailure) or not errors.is_refusal(error):
        return reply
    log.error("what a call has failed with can't be reported: %s", error)
    said: Any = loads(reply.body)
    why = message_of(error).partition("\n")[0]
    return error_reply(500, said["errorType"], f"what it failed with could not be reported: {why}", said.get("final", False))


# As JSON has it, and not a backslash followed by the rest.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def answer(call: Claimed, reply: Reply) -> tuple[str, str]:
    if reply.status != 200:
        raise _Refused(reply)
    if b"\\u0000" in reply.body and _NUL.search(reply.body):
        problem = "the answer has a text with the character NUL, which Postgres can't store: take it out, or encode the text, as in base64"
        log.error("%s: %s", call.token, problem)
        raise _Refused(error_reply(500, "InvalidAnswer", problem))
    return call.token, reply.body.decode()


def left_to_say(call: Claimed) -> Reply:
    """Of a call that a worker has no time for: what it has failed with, if that is known."""
    return call.job if isinstance(call.job, Reply) else _GIVE_BACK


def failure(call: Claimed, reply: Reply) -> tuple[str, str | None]:
    """The parameters of `fail_call`."""
    return call.token, reply.body.decode() or None


@contextlib.contextmanager
def connected(conn: Any) -> Iterator[None]:
    token = _connection.set(conn)
    try:
        yield
    finally:
        _connection.reset(token)


def run_in_thread(job: Job) -> Reply:
    """Runs an ordinary handler of a worker of coroutines, in a context of its own."""
    _connection.set(_OF_COROUTINES)
    return job.run()


async def in_thread(function: Callable[[], T]) -> T:
    """Runs a function in a thread that ends with the program. Those of `asyncio.to_thread` keep a program from its end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def tell(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return  # cancelled meanwhile
        done.set_exception(error) if error is not None else done.set_result(cast(T, result))

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="xdb-handler", daemon=True).start()
    return await done
