"""The client: starts processes, publishes messages, calls RPCs, waits, and operates single processes.

statements.py has the SQL, connections.py executes it on the caller's connection, sources.py has the client's own connections.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, List, TypeVar, overload

from .. import errors
from ..locks import Lock
from . import lists, statements
from .connections import sync_execute
from .lists import Listing, Status
from .outcome import Description, Done, Execution, Incident, Outcome, StateOutcome, Summary
from .sources import source_of
from .statements import LONGEST_SLICE, AnyExecution, Conflict, IdReuse, Merge, Query, Seconds, Start

if TYPE_CHECKING:
    from .. import Decision, GlobalQueue, Process, Queue, RowStart, Rpc, State
    from ..functions import StartCall

I = TypeVar("I")
O = TypeVar("O")
P = TypeVar("P", bound="Process")
R = TypeVar("R")
T = TypeVar("T")
W = TypeVar("W", Outcome, StateOutcome)

CHUNK = 5_000  # starts in one transaction


class Client:
    """Calls XDB, over connections of its own or over yours. Threads may share a client.

    `connections` is a conninfo of libpq (`""` uses PGHOST and so on), a pool (psycopg_pool, psycopg2, an engine of SQLAlchemy), or a
    function that returns a connection. A call without `conn=` is a transaction of its own. With `conn=` it is part of your transaction,
    which you commit: your rows and the process are both committed, or neither is. `conn=` takes a connection or cursor of psycopg 2 or 3,
    a Connection or Session of SQLAlchemy, Django's connection, or any object with `execute(sql, params)` that returns rows.

    Methods take an `execution=` (an `Execution` or its id) to name one run of the process id; default the latest. Errors are those of
    `xdb.errors`, and the driver's own.
    """

    def __init__(self, connections: Any = "") -> None:
        self._source = source_of(connections)
        # Seconds of one slice of a wait. Written by `_in_slices`, which halves a shorter `statement_timeout` of the session.
        self._longest_slice = LONGEST_SLICE
        # Returns the current W3C trace context. Written by xdb.otel, read by starts and RPCs.
        self._traceparent: Callable[[], str | None] = lambda: None

    def close(self) -> None:
        """Closes the connections that the client has opened."""
        self._source.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- starting

    def start(
        self,
        process: type[Process],
        process_id: str | None,
        input: object = None,
        *,
        rows: Sequence[RowStart] = (),
        local: Mapping[str, object] | None = None,
        id_reuse: IdReuse = "allow_if_no_running",
        timeout: Seconds | None = None,
        start_at: datetime | None = None,
        conflict: Conflict = "override",
        idempotency_key: str | None = None,
        traceparent: str | None = None,
        starting_state: State[Any] | None = None,
        shard_key: str | None = None,
        correlation_key: str | None = None,
        merge: Merge | None = None,
        priority: int | None = None,
        locks: Sequence[Lock] = (),
        calls: Sequence[StartCall] = (),
        conn: Any = None,
    ) -> Execution:
        """Starts a process, and returns its execution. All options are optional.

        - `process_id`: your id for the process. None: the execution's id, as text.
        - `rows`: a `Row.row(key, ...)` for each row that the class maps. Their values are written to the tables, as your role.
        - `local`: first values of local attributes, by name.
        - `id_reuse`: what to do if the id was used before. Default `"allow_if_no_running"`: refuse it while an execution runs.
        - `timeout`: replaces the timeout of the class, in seconds or as a timedelta.
        - `start_at`: the first state starts then. Needs a time zone.
        - `conflict`: if a row exists, `"override"` (the default) updates it, `"ignore"` leaves it, `"error"` raises an error.
        - `idempotency_key`: a repeated start with the same key returns the first execution.
        - `traceparent`: a W3C trace context, which is sent with every call.
        - `starting_state`: the state to begin in, instead of the one with `start=True`.
        - `shard_key`: a text that the shard is computed from, instead of the process id.
        - `correlation_key`, `merge`: merge the start into the latest one of the same class and key, if that has not begun. See `Merge`.
        - `priority`: replaces that of the class, from -10 to 10.
        - `locks`: locks besides those of the class: names, or `Shared(name)`.
        - `calls`: functions of the database to call in the same transaction, made with `Function.on_start`.

        Raises `errors.AlreadyStarted` if the id is taken, and `CodecError`, `TypeError` or `ValueError` before any SQL is sent.
        """
        one = Start(
            process, process_id, input, rows, local, id_reuse, timeout, start_at, conflict, idempotency_key, traceparent,
            starting_state, shard_key, correlation_key, merge, priority, locks, calls,
        )
        return self._run(statements.start(one, self._traceparent()), conn)

    def start_many(self, starts: Iterable[Start], *, conn: Any = None) -> List[Execution]:
        """Starts many processes, and returns their executions in the same order.

        With `conn=` all starts are in your transaction. Without it, every 5,000 starts are a transaction: give them idempotency keys, and
        repeat the whole list after an error.
        """
        if conn is not None:
            return self._run(statements.start_many(tuple(starts), self._traceparent()), conn)
        chunks = statements.in_chunks(starts, CHUNK)
        return list(chain.from_iterable(self._run(statements.start_many(chunk, self._traceparent()), None) for chunk in chunks))

    def schedule(self, name: str, cron: str, start: Start, *, timezone: str = "UTC", conn: Any = None) -> Execution:
        """Starts a schedule: a process that starts `start` at each tick of `cron`. A schedule with the same name is replaced.

        `{time}` in the process id of `start` becomes the time of the tick, as in `report-{time}`. Stop, pause and describe a schedule by
        its name. Raises `errors.InvalidArgument`, and `errors.UnknownProcessType` if the type `Schedule` is not registered.
        """
        return self._run(statements.schedule(name, cron, start, timezone), conn)

    # --- RPCs and messages

    @overload
    def rpc(
        self, rpc: Rpc[None, O], process_id: str, *, idempotency_key: str | None = ..., timeout: Seconds | None = ...,
        execution: AnyExecution = ..., conn: Any = ...,
    ) -> O: ...

    @overload
    def rpc(
        self, rpc: Rpc[I, O], process_id: str, input: I, *, idempotency_key: str | None = ...,
        timeout: Seconds | None = ..., execution: AnyExecution = ..., conn: Any = ...,
    ) -> O: ...

    def rpc(
        self,
        rpc: Rpc[Any, Any],
        process_id: str,
        input: object = None,
        *,
        idempotency_key: str | None = None,
        timeout: Seconds | None = None,
        execution: AnyExecution = None,
        conn: Any = None,
    ) -> Any:
        """Calls an RPC, and returns its output. A repeated call with the same `idempotency_key` returns the first output again.

        `timeout`, in seconds or as a timedelta, replaces that of the RPC. Raises `errors.WorkerFailed`, `LockTimeout`, `Locked` or
        `Paused`; after these it may be repeated.
        """
        query = statements.rpc(rpc, process_id, input, idempotency_key, timeout, execution, self._traceparent())
        return self._run(query, conn)

    def publish(
        self,
        queue: Queue[T],
        process_id: str,
        message: T,
        *,
        message_id: str | None = None,
        execution: AnyExecution = None,
        conn: Any = None,
    ) -> None:
        """Publishes a message to a local queue of a running process. If its `message_id` was used in this queue, it is ignored.

        Raises `errors.NotRunning` or `ProcessNotFound`, and `CodecError` for a message that does not fit.
        """
        self._run(statements.publish(queue, process_id, message, message_id, execution), conn)

    def publish_global(
        self,
        queue: GlobalQueue[T],
        message: T,
        *,
        key: str | None = None,
        message_id: str | None = None,
        ttl: Seconds | None = None,
        conn: Any = None,
    ) -> None:
        """Publishes a message to a global queue. One process that waits for such a message consumes it.

        `key` is for waits for messages with this key. If your role has used the `message_id` in this queue, the message is ignored.
        After `ttl`, in seconds or as a timedelta, the message is deleted; default: it is kept.
        """
        self._run(statements.publish_global(queue, message, key, message_id, ttl), conn)

    # --- waiting

    def wait(
        self,
        process: type[Process],
        process_id: str,
        timeout: Seconds = 30,
        *,
        execution: AnyExecution = None,
        conn: None = None,
    ) -> Outcome:
        """Waits until the process has closed, and returns its outcome. `timeout` is in seconds or a timedelta, default 30 seconds.

        If the process has not completed, the outcome's `result` raises `NotCompleted`, with the reason. After `timeout` the outcome is
        `timed_out`, and its `result` raises `TimeoutError`, with the last failure. A wait uses the client's own connections, in slices of
        at most 30 seconds, or half of a shorter `statement_timeout`. With `conn=` it raises `errors.WouldWaitForever`: a process
        that your transaction has not committed would never close.
        """
        refuse(conn)
        outcome = self._in_slices(lambda seconds: statements.wait(process_id, seconds, execution), timeout)
        if outcome.timed_out:
            # The outcome stands without the failure, so an error of this query is no error of the wait.
            with contextlib.suppress(Exception):
                failure = self._run(statements.last_failure(process_id, execution), None)
                outcome = dataclasses.replace(outcome, last_failure=failure)
        return outcome

    def wait_for_state(
        self,
        state: State[Any],
        process_id: str,
        number: int = 1,
        timeout: Seconds = 30,
        *,
        execution: AnyExecution = None,
        conn: None = None,
    ) -> StateOutcome:
        """Waits until step `number` of a state has ended, or the process has closed. Otherwise as `wait`."""
        refuse(conn)
        return self._in_slices(
            lambda seconds: statements.wait_for_state(state, process_id, number, seconds, execution), timeout
        )

    # --- looking and helping along

    def stop(
        self,
        process_id: str,
        reason: str | None = None,
        fail: bool = False,
        *,
        execution: AnyExecution = None,
        conn: Any = None,
    ) -> None:
        """Stops a running process. Its status is then TERMINATED, or with `fail` FAILED. Raises `errors.NotRunning` if it has closed."""
        self._run(statements.stop(process_id, reason, fail, execution), conn)

    def describe(self, process_id: str, *, execution: AnyExecution = None, conn: Any = None) -> Description:
        """Returns what a process does, what it waits for, and what failed last. Raises `errors.ProcessNotFound`."""
        return self._run(statements.describe(process_id, execution), conn)

    def check(self, process_id: str, *, execution: AnyExecution = None, conn: Any = None) -> List[str]:
        """Replays the history of a process, and compares the result with the tables. Returns the differences; an empty list is good."""
        return self._run(statements.check(process_id, execution), conn)

    def local(
        self, process: type[P], process_id: str, *, execution: AnyExecution = None, conn: Any = None
    ) -> P:
        """Returns the local attributes of a process as a read-only instance: `client.local(SignUp, "s-1").reminders`."""
        return self._run(statements.local(process, process_id, execution), conn)

    def set_local(
        self,
        process: type[Process],
        process_id: str,
        /,
        *,
        execution: AnyExecution = None,
        conn: Any = None,
        **values: object,
    ) -> None:
        """Writes local attributes of a running process. Other attributes keep their values."""
        self._run(statements.set_local(process, process_id, values, execution), conn)

    def skip_timer(
        self,
        state: State[Any],
        process_id: str,
        number: int = 1,
        timer_id: str | None = None,
        *,
        execution: AnyExecution = None,
        conn: Any = None,
    ) -> None:
        """Completes a timer of a step at once: the one with this id, or the one that would fire first. Raises `errors.NoSuchTimer`."""
        self._run(statements.skip_timer(state, process_id, number, timer_id, execution), conn)

    def retry_now(
        self,
        process_id: str,
        state: State[Any] | None = None,
        number: int | None = None,
        *,
        execution: AnyExecution = None,
        conn: Any = None,
    ) -> int:
        """Retries calls at once that wait for their next attempt, and incidents: all, or those of one step. Returns how many."""
        return self._run(statements.retry_now(process_id, state, number, execution), conn)

    def move_state(
        self,
        process_id: str,
        step: str,
        next_states: Iterable[Decision],
        reason: str | None = None,
        *,
        execution: AnyExecution = None,
        conn: Any = None,
    ) -> None:
        """Ends a live step, for instance `"charge-1"`, and starts other states in its place: `[Order.refund("why")]`. `[]` ends its thread only.

        Messages that the step has consumed go back to their queues. Nothing of an answer to its call is applied any more. `reason` is for the
        history. Raises `errors.UnknownState` if the step has ended or does not exist, or a state does not, and `NotRunning`.
        """
        self._run(statements.move_state(process_id, step, next_states, reason, execution), conn)

    def stop_many(
        self, process_ids: Iterable[str], reason: str | None = None, fail: bool = False, *, conn: Any = None
    ) -> List[Done]:
        """Stops many running processes, and returns the result of each, in their order. An error of one does not affect the others."""
        return self._run(statements.stop_many(process_ids, reason, fail), conn)

    def skip_timer_many(
        self, state: State[Any], process_ids: Iterable[str], number: int = 1, timer_id: str | None = None, *, conn: Any = None
    ) -> List[Done]:
        """Completes a timer of the same step in many processes. Returns the result of each, as `stop_many`."""
        return self._run(statements.skip_timer_many(state, process_ids, number, timer_id), conn)

    def retry_now_many(
        self, process_ids: Iterable[str], state: State[Any] | None = None, number: int | None = None, *, conn: Any = None
    ) -> List[Done]:
        """Retries calls of many processes at once. Returns the result of each, as `stop_many`; `count` is the number of its calls."""
        return self._run(statements.retry_now_many(process_ids, state, number), conn)

    def pause(
        self,
        process_id: str,
        *,
        reject: bool = False,
        until: datetime | None = None,
        reason: str | None = None,
        execution: AnyExecution = None,
        conn: Any = None,
    ) -> None:
        """Pauses a process: none of its calls begin until `resume()`, or until the time `until`, which needs a time zone.

        With `reject`, publishing messages and RPCs raise `errors.Paused`. Without it, messages are accepted, and an RPC waits until its
        timeout.
        """
        self._run(statements.pause(process_id, reject, until, reason, execution), conn)

    def resume(self, process_id: str, *, execution: AnyExecution = None, conn: Any = None) -> None:
        """Ends the pause of a process. Does nothing if it is not paused."""
        self._run(statements.resume(process_id, execution), conn)

    def pause_type(
        self,
        process: type[Process] | str,
        *,
        reject: bool = False,
        until: datetime | None = None,
        reason: str | None = None,
        conn: Any = None,
    ) -> None:
        """Pauses all processes of a type, as `pause`. With `reject`, starts raise `errors.Paused` too. For its owner, and operators."""
        self._run(statements.pause_type(process, reject, until, reason), conn)

    def resume_type(self, process: type[Process] | str, *, conn: Any = None) -> None:
        """Ends the pause of a process type. Does nothing if it is not paused."""
        self._run(statements.resume_type(process), conn)

    def incidents(
        self, process: type[Process] | str | None = None, *, process_id: str | None = None, conn: Any = None
    ) -> List[Incident]:
        """Returns the incidents of all processes, a type, or one process, the oldest first. `retry_now()` resolves them.

        An incident is a call whose retries are spent, of a state with `on_failure=xdb.RAISE_INCIDENT`.
        """
        return self._run(lists.incidents(process, process_id), conn)

    def list(
        self,
        *,
        status: Status | None = None,
        process: type[Process] | str | None = None,
        prefix: str | None = None,
        before: AnyExecution = None,
        conn: Any = None,
    ) -> Iterator[Summary]:
        """Iterates over the executions that your role may see, the latest first. They are read in pages of 500.

        `status`, `process` and `prefix` (of the process id) select some. `before` begins below an execution.
        """
        listing = Listing(status, process, prefix)
        while page := self._run(listing.page(before), conn):
            yield from page
            if len(page) < lists.PAGE:
                return
            before = page[-1].execution_id

    def _in_slices(self, query: Callable[[float], Query[W]], timeout: Seconds) -> W:
        deadline = time.monotonic() + statements.seconds_of(timeout)
        while True:
            left, slice = max(deadline - time.monotonic(), 0.0), self._longest_slice
            try:
                outcome = self._run(query(min(left, slice)), None)
            except Exception as error:
                if not errors.is_cut_short(error):
                    raise
                shorter = statements.shorter(slice, self._run(statements.limit(), None))
                if shorter is None:
                    raise
                self._longest_slice = shorter
                continue
            if not outcome.timed_out or left <= slice:
                return outcome

    def _run(self, query: Query[R], conn: Any) -> R:
        with errors.translated():
            if conn is not None:
                rows = sync_execute(conn)(query.sql, query.params)
            else:
                with self._source.open() as execute:
                    rows = execute(query.sql, query.params)
        return query.read(rows)


def refuse(conn: object) -> None:
    """Refuses a wait with `conn=`: a process that the transaction has not committed would never close."""
    if conn is not None:
        raise errors.WouldWaitForever(
            "a wait can't use conn=", hint="Commit first, then wait without conn=, over the client's own connections."
        )
