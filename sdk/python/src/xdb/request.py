"""One call of the engine: reads the request, runs the handler, makes the answer.

`read` makes a `Job` of a request, `Job.run` or `Job.run_async` answers it. HTTP and pull workers share all of this. An answer that is no
success is a `Reply` with another status than 200.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from .call import Call, DatabaseError, Parent, Recovered, running
from .codec import decode, dumps, encode
from .decisions import Decision, Failure, Fatal
from .definition import is_function
from .jsontext import storable
from .live import Live, live
from .logging import log
from .process import Process, bound
from .states import Member, Rpc, State
from .waits import as_wait, commands

T = TypeVar("T")

# The engine's default for the timeout of a call, in seconds.
DEFAULT_TIMEOUT = 10.0

# Seconds. During a deployment some instances lack new states. If a state is still missing after this time, it is a mistake, and the
# attempt fails, so that operators see it.
DEPLOYED_WITHIN = 600.0

# Seconds until the engine retries a call that did not count as an attempt.
NOT_HERE_SECONDS, FULL_SECONDS = 2, 1


@dataclass(frozen=True)
class Reply:
    """The answer to a request: status, body and additional headers. Made here, sent by an adapter."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_headers(self) -> dict[str, str]:
        """All headers of the answer."""
        return {"content-type": "application/json", "content-length": str(len(self.body)), **self.headers}


class BadRequest(Exception):
    """The request is no valid call, or names something that this worker lacks. `reply` is the answer."""

    def __init__(self, status: int, error_type: str, detail: str) -> None:
        super().__init__(detail)
        self.reply = error_reply(status, error_type, detail)


class NotHere(BadRequest):
    """The worker lacks the state, RPC or process type of a call. Another version may have it, so at first it does not count as an attempt."""

    def __init__(self, error_type: str, detail: str, context: Mapping[str, Any]) -> None:
        if time.time() - context["firstAttemptTimestamp"] > DEPLOYED_WITHIN:
            super().__init__(404, error_type, detail)
        else:
            super().__init__(503, error_type, detail)
            self.reply = try_again(self.reply, NOT_HERE_SECONDS)


def length_of(header: str | None) -> int | None:
    """A Content-Length, or None if the header is absent or not a number."""
    if header is None or not (header.isascii() and header.isdecimal()):
        return None
    return int(header[:20])  # int() raises for thousands of digits


def is_of_the_operator(error: BaseException) -> bool:
    """Whether an exception is meant for the program and not for the call: Ctrl-C, which Python raises only in the main thread.

    Everything else that a handler raises is a failed attempt. That includes exceptions that are no `Exception`: `SystemExit`, a
    `CancelledError` of something that the handler waits for, `gevent.Timeout`, a Rust panic, an outcome of pytest.
    """
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


class NoDecision(TypeError):
    """A state has returned nothing, or something that is not a decision."""


class UnusedMovement(TypeError):
    """A handler has made a movement, for instance `self.bill()`, and has not returned it."""


class DeadlineExceeded(TimeoutError):
    """A handler took longer than the engine waits."""


class Conflict(Exception):
    """A handler of a pull worker had a conflict with another transaction. The attempt is repeated, and does not count as failed."""


def error_reply(
    status: int, error_type: str, detail: str, final: bool = False, retry_after: float | None = None
) -> Reply:
    """A failure as an answer. The texts are cut to what the engine keeps. `retry_after` is in seconds."""
    body: dict[str, Any] = {"errorType": _kept(error_type, 200), "detail": _kept(detail, 1000)}
    if final:
        body["final"] = True
    if retry_after is not None:
        body["retryAfterSeconds"] = retry_after
    return Reply(status, dumps(body))


def try_again(reply: Reply, seconds: int) -> Reply:
    """Adds Retry-After to a 503. Then it does not count as an attempt, and the engine retries the call after this time."""
    return replace(reply, headers={**reply.headers, "retry-after": str(seconds)})


def _kept(text: str, most: int) -> str:
    return storable(text[:most])


# A context manager around a handler. It gets the call, and the API: `wait-until`, `execute` or `rpc`.
Around = Callable[[Call, str], AbstractContextManager[Any]]


@dataclass
class Job:
    """One call, ready to be answered by `run` or `run_async`. Made by `read`; the worker adds `around`, `debug` and `repeats`."""

    # `wait-until`, `execute` or `rpc`.
    api: str
    member: Member
    call: Call
    live: Live
    # The `self` of the handler.
    instance: Process
    # The input as JSON.
    input: Any
    # When the engine gives up, by time.monotonic(). None: unknown.
    ends_at: float | None
    around: Sequence[Around] = ()
    debug: bool = False
    # Of pull workers: whether a handler's exception is a Conflict.
    repeats: Callable[[BaseException], bool] | None = None
    # An async handler was cancelled and has not ended. Written by `_cancel`, read by pull.py.
    goes_on: bool = False
    # `late` was logged already.
    _said_late: bool = False

    @property
    def label(self) -> str:
        """The handler, as messages name it."""
        return f"wait= of {self.member.label}" if self.api == "wait-until" else self.member.label

    @property
    def is_async(self) -> bool:
        """Whether the handler has to run on an event loop."""
        return self.api != "wait-until" and self.member.handler.is_async

    @property
    def takes_place(self) -> bool:
        """Whether the call needs one of the worker's threads, and is retried later if none is free.

        Not for RPCs: the engine does not retry them, so their callers wait for a thread.
        """
        return self.api != "rpc" and not self.is_known and not self.is_async

    @property
    def is_known(self) -> bool:
        """Whether the answer needs no code of the application: it is a fixed wait, not a function."""
        return self.api == "wait-until" and not waits_by_function(self.member)

    def seconds_left(self) -> float | None:
        """Seconds until the engine gives up. None: unknown."""
        return None if self.ends_at is None else self.ends_at - time.monotonic()

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Within it, this is the current call: `xdb.current()`, `xdb.results()`, `xdb.then()`, `xdb.abort()` and log lines use it."""
        tokens = running.set(self.call), live.set(self.live)
        try:
            yield
        finally:
            running.reset(tokens[0])
            live.reset(tokens[1])

    @contextlib.contextmanager
    def _surrounded(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for around in self.around:
                stack.enter_context(around(self.call, self.api))
            yield

    def _begin(self) -> Any:
        if self.is_known:
            known = self.member.process._xdb.waits.get(self.member.name)
            # The state no longer waits for anything, but the engine still has the older definition.
            return {"waitingType": "EmptyCommand"} if known is None else known.request
        if self.api == "wait-until" and isinstance(self.member, State):
            wait: Any = self.member.options.wait
            return wait(*self._arguments()[: len(inspect.signature(wait).parameters)])
        return self.member.fn(*self._arguments())

    def _arguments(self) -> tuple[Any, ...]:
        if not self.member.takes_input:
            return (self.instance,)
        return (self.instance, decode(self.input, self.member.input_type, self.member.input_place))

    def perform(self) -> Reply:
        """Calls the handler in this thread, an async one on its own loop. Raises what the handler raises."""
        with self._surrounded():
            value = self._begin()
            return self._answered(_run_on_a_loop(_awaited(value)) if inspect.isawaitable(value) else value)

    def run(self) -> Reply:
        """Like `perform`, but every exception except a Conflict becomes an answer."""
        if self.call.cancelled:
            return self.not_begun()
        with self.current():
            try:
                if self.is_async:
                    return _run_on_a_loop(self.run_async())
                reply = self.perform()
            except Conflict:
                raise
            except BaseException as error:
                if is_of_the_operator(error):
                    raise
                reply = self._failed(error)
            left = self.seconds_left()
            return self.late() if left is not None and left < 0 else reply

    async def run_async(self) -> Reply:
        """Calls an async handler on the running loop, and cancels it when the call times out."""
        if self.call.cancelled:
            return self.not_begun()
        task = asyncio.ensure_future(self._on_loop())
        try:
            done, _ = await asyncio.wait({task}, timeout=self.seconds_left())
        except asyncio.CancelledError:
            await self._cancel(task)
            raise
        if task.cancelled():
            return self._failed(asyncio.CancelledError("something that the handler awaits was cancelled"))
        if done:
            return task.result()
        reply = self.late()
        await self._cancel(task)
        return reply

    async def _cancel(self, task: asyncio.Task[Reply]) -> None:
        """Cancels a handler, and gives it one second to clean up. It may refuse to be cancelled."""
        self.goes_on = True
        task.cancel()
        await asyncio.wait({task}, timeout=1)
        self.goes_on = not task.done()

    async def _on_loop(self) -> Reply:
        with self.current():
            try:
                with self._surrounded():
                    value = self._begin()
                    return self._answered(await value if inspect.isawaitable(value) else value)
            except asyncio.CancelledError:
                raise  # of this task, or of something that the handler awaits: run_async finds out which
            except BaseException as error:
                if is_of_the_operator(error):
                    raise
                return self._failed(error)

    def late(self) -> Reply:
        """The answer after the call has timed out. The engine ignores it, and the handler can't change anything any more."""
        self.live.close("the call has timed out, and the engine will retry it")
        error = DeadlineExceeded(
            f"{self.label} took longer than {self.call.timeout:g} s, and the engine has given up: "
            "give it more time with timeout=, or make it faster"
        )
        if not self._said_late:
            self._said_late = True
            with self.current():
                log.warning("%s", error)
        return error_reply(500, "DeadlineExceeded", str(error))

    def not_begun(self) -> Reply:
        """The answer if the call timed out, or the connection was closed, before the handler began."""
        error = DeadlineExceeded(
            f"{self.label} was not called: the call timed out while it waited for a thread, or the engine closed the connection. "
            "Give the worker more threads=, or register it with a lower max_concurrency"
        )
        with self.current():
            log.warning("%s", error)
        return error_reply(500, "DeadlineExceeded", str(error))

    def abandon(self) -> Reply:
        """Marks the call as cancelled for its handler. Returns the answer, which the HTTP server may still try to send."""
        self.call._gone.set()
        left = self.seconds_left()
        if left is not None and left < min(1.0, (self.call.timeout or 0) / 2):
            return self.late()  # the engine's time began a little before the worker's
        text = f"{self.label}: the engine closed the connection, because the call timed out or its process has closed"
        with self.current():
            log.info("%s", text)
        return error_reply(500, "CallerGone", text)

    def _answered(self, value: Any) -> Reply:
        if self.api == "wait-until":
            answer: dict[str, Any] = {"commandRequest": self._request(value)}
        elif isinstance(self.member, State):
            answer = {"stateDecision": self._decision(value)}
        else:
            answer = {"output": self._output(value)}
            if self.live.decision is not None:
                answer["stateDecision"] = self.live.decision.body
        self._refuse_unused(answer.get("stateDecision"))
        # A thread that the handler started may go on. From now on its writes would be lost, so they raise.
        self.live.close("the handler has returned, and its answer is being sent")
        answer.update(self.live.effects())
        return Reply(200, dumps(answer))

    def _request(self, value: Any) -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            return value
        if value is None:
            raise NoDecision(f"{self.label} returned nothing: return what to wait for, as in xdb.timer(hours=1)")
        request = commands(as_wait(value)).request
        self._check_queues(each["queueName"] for each in request.get("localQueueCommands", ()))
        return request

    def _check_queues(self, names: Iterable[str]) -> None:
        """Raises `LookupError` for a local queue that the class lacks. The engine would refuse it too, but does not list the queues."""
        process = self.member.process
        for name in names:
            if name not in process._xdb.queues:
                known = ", ".join(process._xdb.queues) or "none"
                raise LookupError(f"{self.label} names queue {name!r}, which {process.__name__} does not have; its queues are {known}")

    def _decision(self, value: Any) -> Mapping[str, Any]:
        if isinstance(value, Decision):
            if "conditionalClose" in value.body:
                self._check_queues(value.body["conditionalClose"].get("whenLocalQueuesEmpty", ()))
            return value.body
        if value is None:
            raise NoDecision(
                f"{self.label} returned nothing: return a decision on every path, as in `return self.next()` "
                "or `return xdb.complete()`"
            )
        if isinstance(value, State) and (value.begin or value.config):
            given = "later" if value.begin else "with_config"
            call = f"self.{value.attribute}.{given}(...)()"
            raise NoDecision(f"{self.label} returned self.{value.attribute}.{given}(...), which is a state: call it, {call}")
        if isinstance(value, State):
            raise NoDecision(f"{self.label} returned the state {value.attribute} itself: call it, self.{value.attribute}()")
        raise NoDecision(
            f"{self.label} returned {type(value).__name__} {_short(value)}, which is not a decision: to end with a result, "
            "`return xdb.complete(...)`"
        )

    def _refuse_unused(self, decision: Mapping[str, Any] | None) -> None:
        """Raises `UnusedMovement` for a movement that was made and not returned: it would start nothing."""
        used = () if decision is None else decision.get("nextStates", ())
        for name, made in self.live.movements:
            if not any(made is each for each in used):
                how = f"xdb.then(self.{name}())" if self.api == "rpc" else f"return self.{name}()` or, beside another one, `return ... + self.{name}()"
                raise UnusedMovement(f"{self.label} called self.{name}() and did not use the movement: write `{how}`")

    def _output(self, value: Any) -> Any:
        if isinstance(value, Decision):
            raise TypeError(
                f"{self.label} returned a decision, but an RPC returns its output: to start threads, call xdb.then(...), "
                "as in xdb.then(self.ship())"
            )
        return encode(value, self.member.handler.output_type, f"{self.label}() returned")

    def _failed(self, error: BaseException) -> Reply:
        self.live.close("the handler has failed, and its writes are dropped")
        if self.repeats is not None and self.repeats(error):
            raise Conflict(message_of(error)) from error
        error_type = str(error.error_type) if isinstance(error, Failure) else type(error).__name__
        detail = message_of(error) or type(error).__name__
        log.error("%s failed in attempt %d: %s: %s", self.label, self.call.attempt, error_type, detail, exc_info=error)
        if self.debug:
            detail = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-1000:]
        retry_after = error.retry_after if isinstance(error, Failure) else None
        return error_reply(500, error_type, detail, isinstance(error, Fatal), retry_after)


def message_of(error: BaseException) -> str:
    """The message of an exception, or a text that says why it can't be read."""
    try:
        return str(error)
    except BaseException as other:
        if is_of_the_operator(other):
            raise
        return f"its message can't be read: {type(other).__name__}"


async def _awaited(value: Any) -> Any:
    return await value


def _run_on_a_loop(made: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end. If this thread has a running loop, as in an async test, it runs in another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(made)
    with ThreadPoolExecutor(1) as other:
        return other.submit(contextvars.copy_context().run, asyncio.run, made).result()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


# --- reading ---------------------------------------------------------------------------------------------------------


def read(api: str, request: Any, key: str, traceparent: str | None, types: Mapping[str, type[Process]]) -> Job:
    """The call of a request. `key` is its Idempotency-Key. Raises `BadRequest`, or `NotHere` if another version may have the handler."""
    try:
        context, process_type = request["context"], request["processType"]
        name = request["rpcName" if api == "rpc" else "stateId"]
        cls = types.get(process_type)
        if cls is None:
            known = ", ".join(types) or "none"
            detail = f"this worker has no process type {process_type!r}, only {known}: it may run an older version"
            raise NotHere("UnknownProcessType", detail, context)
        member = _member(cls, api, name, context)
        received = time.monotonic()
        timeout = _timeout(api, member, context)
        call = _call(api, context, request, process_type, name, key, timeout, traceparent)
        data = Live(
            call,
            request.get("loadedGlobalAttributes") or {},
            request.get("loadedLocalAttributes") or {},
            request.get("commandResults") or {},
            _message_types(cls, name),
            cls._xdb.not_loaded[member.attribute] if api != "wait-until" or waits_by_function(member) else frozenset(),
        )
        ends_at = None if timeout is None else received + timeout
        given = request.get("input" if api == "rpc" else "stateInput")
        data.process, data.api = cls, api
        return Job(api, member, call, data, bound(cls, data), given, ends_at)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise BadRequest(400, "BadRequest", f"the request is not a call of the engine: {problem}") from error


def _member(cls: type[Process], api: str, name: str, context: Mapping[str, Any]) -> Member:
    members: Mapping[str, Member] = cls._xdb.rpcs if api == "rpc" else cls._xdb.states
    member = members.get(name)
    if member is None:
        kind = "RPC" if api == "rpc" else "state"
        hint = f"{cls._xdb.name} has no {kind} {name!r} here, only {', '.join(members) or 'none'}"
        raise NotHere(f"Unknown{'Rpc' if api == 'rpc' else 'State'}", f"{hint}: this worker may run an older version", context)
    return member


def waits_by_function(member: Member) -> bool:
    """Whether the member is a state whose wait is a function."""
    return isinstance(member, State) and is_function(member.options.wait)


def _message_types(cls: type[Process], state: str) -> dict[str, Any]:
    """The types of messages by queue, and by command id for commands that give their own type."""
    found = {name: queue.message_type for name, queue in cls._xdb.global_queues.items()}
    found.update((name, queue.message_type) for name, queue in cls._xdb.queues.items())
    wait = cls._xdb.waits.get(state)
    for id, leaf in wait.leaves.items() if wait is not None else ():
        if leaf.kind != "timer":
            found[id] = leaf.type if isinstance(leaf.queue, str) else leaf.queue.message_type
    return found


def _timeout(api: str, member: Member, context: Mapping[str, Any]) -> float | None:
    """How long the engine waits, in seconds. None: an RPC whose request and options give no timeout."""
    told = context.get("timeoutSeconds")
    if told is not None:
        return float(told)
    given, otherwise = None, None
    if isinstance(member, State):
        given = member.options.wait_timeout if api == "wait-until" else member.options.timeout
        otherwise = DEFAULT_TIMEOUT
    elif isinstance(member, Rpc):
        given = member.options.timeout
    return otherwise if given is None else given.total_seconds()


def _call(
    api: str,
    context: Mapping[str, Any],
    request: Mapping[str, Any],
    process_type: str,
    name: str,
    key: str,
    timeout: float | None,
    traceparent: str | None,
) -> Call:
    recovered = database_error = None
    failed = context.get("recoverFromStateExecutionId")
    if failed is not None:
        error = context.get("recoverFromError") or {}
        recovered = Recovered(
            failed.rpartition("-")[0] or failed,
            error.get("detail") or "",
            failed,
            context.get("recoverFromApi") or "",
            error.get("status"),
            error.get("errorType"),
        )
    parent = context.get("parent")
    refused = request.get("appDatabaseError")
    if refused is not None:
        database_error = DatabaseError(
            refused["sqlState"], refused["message"], refused.get("table"), refused.get("constraint")
        )
    return Call(
        id=context["callId"],
        idempotency_key=key or context["callId"],
        process_type=process_type,
        process_id=context["processId"],
        execution_id=context["processExecutionId"],
        attempt=context["attempt"],
        process_started_at=_moment(context["processStartedTimestamp"]),
        first_attempt_at=_moment(context["firstAttemptTimestamp"]),
        state=None if api == "rpc" else name,
        state_execution_id=context.get("stateExecutionId"),
        rpc=name if api == "rpc" else None,
        owner=context.get("owner"),
        database=context.get("database"),
        timeout=timeout,
        deadline=None if timeout is None else datetime.now(timezone.utc) + timedelta(seconds=min(timeout, 1e8)),
        traceparent=traceparent,
        recovered_from=recovered,
        guards=context.get("guards"),
        compensates=context.get("compensates"),
        database_error=database_error,
        parent=None if parent is None else Parent(parent["processId"], parent["processExecutionId"], parent.get("stateExecutionId")),
    )


def _moment(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)
