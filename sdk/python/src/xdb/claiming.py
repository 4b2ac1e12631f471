"""What pull workers of threads and of coroutines share: claimed calls, and how each is completed, failed or given back.

pull.py has the two workers and their loops. Nothing here talks to the server.
"""

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

# Gives a call back: an empty failure. It is no attempt, and the next worker that claims the call makes the same attempt.
_GIVE_BACK = Reply(503, b"")

# The errorType of a call whose state or type this worker lacks. For ten minutes the engine does not count it as an attempt.
NOT_REGISTERED = "NotRegistered"

# How often one worker repeats the same attempt after conflicts. Then the attempt fails.
_AGAIN = 10

# Seconds that a stopping worker waits for its running handlers, and then for the server to take their calls back.
GRACE, GIVES_BACK_WITHIN = 30.0, 5.0

# A role may have these limits for an application's queries. The first two are lifted for a whole step, because a step has its own timeout
# and may leave its connection idle. The others are lifted only to complete or fail a call: the handler's own statements keep them.
LIMITS = ("idle_in_transaction_session_timeout", "transaction_timeout", "statement_timeout", "lock_timeout")

# For roles whose transactions are read only or REPEATABLE READ by default: how to claim, fail and extend calls, and how to run a step.
_PLAIN_TRANSACTION = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
READ_WRITE = "SET TRANSACTION READ WRITE"

# The connection of the running handler. Written by `connected` and `run_in_thread`, read by `connection`.
_connection: ContextVar[Any] = ContextVar("xdb_connection")
# Stands for an async connection while an ordinary handler runs in a thread, where it can't be used.
_OF_COROUTINES: Any = object()


def connection() -> Any:
    """The connection of the running handler's transaction, in a pull worker. What is written with it is committed with the answer.

    Raises `LookupError` outside of such a handler, and in ordinary handlers of an `AsyncPullWorker`.
    """
    conn = _connection.get(None)
    if conn is None:
        raise LookupError("there is no transaction here: xdb.connection() works within handlers of xdb.PullWorker and xdb.AsyncPullWorker")
    if conn is _OF_COROUTINES:
        raise LookupError(
            "an ordinary handler can't use the async connection of an xdb.AsyncPullWorker: make the handler `async def`, "
            "or serve it with xdb.PullWorker"
        )
    return conn


@dataclass(frozen=True)
class Claimed:
    """A claimed call. Made by `_claimed`; the loops of pull.py replace it when they extend its lease or know its answer."""

    # The name of the lease, which the worker sends with its answer.
    token: str
    # The call, or the answer if it is known already.
    job: Union[Job, Reply]
    # Reads the call again, so that its timeout begins again.
    read: Callable[[], Union[Job, Reply]]
    # Seconds from `claimed_at` until the lease ends.
    lease: float
    # By time.monotonic().
    claimed_at: float
    # Those of LIMITS that the role has set.
    limits: tuple[str, ...] = ()

    def lifting(self, *names: str) -> list[str]:
        """The statements that lift these limits. They take no snapshot, so that a handler can still set the isolation level."""
        return [f"SET LOCAL {name} = 0" for name in names if name in self.limits]

    @property
    def attempt(self) -> str:
        """Names the attempt of the call, the same under a new lease."""
        return _attempt_of(self.job) if isinstance(self.job, Job) else self.token

    def extension(self) -> str | None:
        """How much to extend the lease by, as an interval, if the call has waited for a quarter of its time. None: no need."""
        waited = time.monotonic() - self.claimed_at
        timeout = self.job.call.timeout if isinstance(self.job, Job) else None
        return interval(self.lease) if waited > min(self.lease, timeout or self.lease) / 4 else None

    def extended(self) -> Claimed:
        """The same call after its lease was extended: its timeout begins again."""
        return replace(self, job=self.read() if isinstance(self.job, Job) else self.job, claimed_at=time.monotonic())

    def interrupted(self, by: BaseException) -> Claimed:
        """The same call as a failed attempt. If it were given back, the same attempt could end the next worker too."""
        if isinstance(self.job, Reply):
            return self
        return replace(self, job=error_reply(500, type(by).__name__, "the handler was interrupted"))


class _Refused(Exception):
    """The attempt has failed. Raised so that the handler's transaction is rolled back; `reply` is the failure to report."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Claiming:
    """The base of `PullWorker` and `AsyncPullWorker`, which have the loops."""

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
            raise ValueError(f"batch={batch} is not from 1 to 1000: it is how many calls are claimed at a time")
        self._wait, self._grace = _seconds(wait), _seconds(grace)
        range_of = None if shards is None else f"[{int(shards[0])},{int(shards[1])}]"
        # The mistake that ended the worker. Written by `_next`, raised by `run`.
        self._failed: BaseException | None = None
        self._given = (str(batch), None if lease is None else interval(lease), range_of)
        self._around: list[Around] = self.worker._around
        # How often each attempt was repeated after a conflict. Written and read by `_again`.
        self._made: dict[str, int] = {}
        # Whether statements need READ COMMITTED, READ WRITE, against the role's defaults. Written once by `_claim_calls`.
        self._in_plain_transactions = False

    @property
    def processes(self) -> tuple[type[Process], ...]:
        """The process classes that the worker serves."""
        return self.worker.processes

    def add_around(self, around: Around) -> None:
        """Adds a context manager around each handler. It is called with the call and the API: `wait-until` or `execute`."""
        self.worker.add_around(around)

    def register(self, conn: Any, *, role: str, force: bool = False, dry_run: bool = False) -> list[Change]:
        """Registers the worker and its processes in the connection's transaction. Returns what that changes.

        Members of `role` may claim the calls. `force` and `dry_run` as for `Admin.register`.
        """
        from .admin import Admin

        with Admin() as admin:
            return admin.register(self.worker, name=self.name, url=None, role=role, force=force, dry_run=dry_run, conn=conn)

    def sql(self, *, role: str) -> str:
        """Returns an SQL script that registers the worker and its processes, for migrations."""
        from .admin import sql

        return sql(self.worker, name=self.name, url=None, role=role)

    def _claim(self, wait: float) -> tuple[str | None, ...]:
        batch, lease, shards = self._given
        return (self.name, batch, interval(wait), lease, shards)

    def _before(self, call: Claimed | None) -> list[str]:
        """The statements to run before a claim, or before this call is failed or extended."""
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
            log.warning("refused a call: %s", error)
            return error_reply(404, NOT_REGISTERED, str(error))
        except BadRequest as error:
            log.warning("refused a call: %s", error)
            return error.reply
        except Exception as error:
            log.exception("can't read call %s", call_id)
            return error_reply(400, "BadRequest", f"the call can't be read: {message_of(error)}")
        repeats = partial(self._repeats, _attempt_of(job))
        return replace(job, around=self._around, debug=self.worker.options.debug, repeats=repeats)

    def _repeats(self, attempt: str, error: BaseException) -> bool:
        """Whether a handler's exception is a conflict that does not count as an attempt. `Fatal` and `Retryable` always count."""
        return not isinstance(error, Failure) and errors.is_conflict(error) and self._again(attempt)

    def _again(self, attempt: str) -> bool:
        """Whether to repeat an attempt. Limited, because an attempt that has the same conflict each time would be repeated for ever."""
        if len(self._made) > 1000:  # most of these attempts have ended
            self._made.clear()
        made = self._made[attempt] = self._made.get(attempt, 0) + 1
        return made < _AGAIN

    def _told(self, call: Claimed, error: BaseException) -> Reply | None:
        """The failure to report after the handler's transaction was rolled back. An empty body gives the call back. None: the lease is lost."""
        ours = error if isinstance(error, errors.XdbError) else errors.from_driver(error)
        if isinstance(error, _Refused):
            return error.reply
        if isinstance(error, Conflict):
            log.info("repeating an attempt after a conflict: %s", error)
            return _GIVE_BACK
        if isinstance(ours, errors.CallLost):
            log.warning("lease lost: the call was reclaimed or has ended; its handler's writes were rolled back: %s", call.token)
            return None
        if isinstance(ours, errors.SerializationFailure) and self._again(call.attempt):
            log.info("repeating an attempt after a conflict: %s", ours.message)
            return _GIVE_BACK
        log.error("the server refused the answer to call %s: %s", call.attempt, message_of(error), exc_info=error)
        return _failure_of(error)

    def _can_wait(self, call: Claimed, error: Exception) -> bool:
        """Whether to keep a call after its completion or failure could not be sent, until there is a connection again."""
        if not errors.is_refusal(error) and self._again(call.attempt):
            return True
        log.error("can't complete or fail a call; it is retried when its lease ends: %s: %s", call.token, message_of(error), exc_info=error)
        return False


def served_by(worker: Worker | Claiming) -> Worker:
    """The `Worker` that has the processes: the given one, or that of a pull worker."""
    return worker.worker if isinstance(worker, Claiming) else worker


def _attempt_of(job: Job) -> str:
    return f"{job.call.id} {job.call.attempt}"


def _seconds(given: Seconds) -> float:
    return given.total_seconds() if isinstance(given, timedelta) else float(given)


def _failure_of(error: BaseException) -> Reply:
    """The failure to report if the database refuses an answer, or its commit."""
    ours = errors.from_driver(error)
    if isinstance(ours, errors.WorkerFailed):
        kind = NOT_REGISTERED if ours.error_type == NOT_REGISTERED else "InvalidAnswer"
    else:
        kind = type(ours or error).__name__
    return error_reply(500, kind, message_of(ours or error))


def instead(reply: Reply, error: Exception) -> Reply:
    """The failure to send after sending `reply` raised `error`: the same again if that may help, else a short one that always passes."""
    if reply is _GIVE_BACK or isinstance(error, errors.SerializationFailure) or not errors.is_refusal(error):
        return reply
    log.error("the server refused the failure of a call: %s", error)
    said: Any = loads(reply.body)
    why = message_of(error).partition("\n")[0]
    return error_reply(500, said["errorType"], f"the server refused the detail of this failure: {why}", said.get("final", False))


# An escaped NUL in JSON. An even number of backslashes before it would be other text.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def answer(call: Claimed, reply: Reply) -> tuple[str, str]:
    """The parameters of `complete_call`. Raises `_Refused` for a failure, or for an answer that Postgres can't store."""
    if reply.status != 200:
        raise _Refused(reply)
    if b"\\u0000" in reply.body and _NUL.search(reply.body):
        problem = "the answer has a text with a NUL character, which Postgres can't store: remove it, or encode the text, for instance as base64"
        log.error("%s: %s", call.token, problem)
        raise _Refused(error_reply(500, "InvalidAnswer", problem))
    return call.token, reply.body.decode()


def left_to_say(call: Claimed) -> Reply:
    """What to report for a call that a stopping worker does not answer: its failure if that is known, else it is given back."""
    return call.job if isinstance(call.job, Reply) else _GIVE_BACK


def failure(call: Claimed, reply: Reply) -> tuple[str, str | None]:
    """The parameters of `fail_call`."""
    return call.token, reply.body.decode() or None


@contextlib.contextmanager
def connected(conn: Any) -> Iterator[None]:
    """Within it, `xdb.connection()` returns this connection."""
    token = _connection.set(conn)
    try:
        yield
    finally:
        _connection.reset(token)


def run_in_thread(job: Job) -> Reply:
    """Runs an ordinary handler of an async pull worker. Call it in a context of its own: `xdb.connection()` is refused in it."""
    _connection.set(_OF_COROUTINES)
    return job.run()


async def in_thread(function: Callable[[], T]) -> T:
    """Runs a function in a daemon thread. The threads of `asyncio.to_thread` would keep the program from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def tell(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return  # it was cancelled in the meantime
        done.set_exception(error) if error is not None else done.set_result(cast(T, result))

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="xdb-handler", daemon=True).start()
    return await done
