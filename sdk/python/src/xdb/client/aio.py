"""The client for coroutines: the same names as `Client`, each to be awaited."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, List, TypeVar, overload

from .. import errors
from . import lists, statements
from .client import CHUNK, refuse
from .connections import async_execute
from .lists import Listing, Status
from .outcome import Description, Done, Execution, Incident, Outcome, StateOutcome, Summary
from .sources import async_source_of
from .statements import LONGEST_SLICE, AnyExecution, Conflict, IdReuse, Merge, Query, Seconds, Start

if TYPE_CHECKING:
    from .. import GlobalQueue, Process, Queue, RowStart, Rpc, State
    from ..functions import StartCall

I = TypeVar("I")
O = TypeVar("O")
P = TypeVar("P", bound="Process")
R = TypeVar("R")
T = TypeVar("T")
W = TypeVar("W", Outcome, StateOutcome)


class AsyncClient:
    """As `Client`, for coroutines.

    Made with a conninfo, a pool (psycopg_pool, asyncpg, an async engine of SQLAlchemy), or a function that gives a connection or
    something to be awaited for one. `conn=` takes connections and cursors of psycopg 3, an AsyncConnection or AsyncSession of
    SQLAlchemy, a connection of asyncpg, or any object with `execute(sql, params)`, which may be a coroutine.
    """

    def __init__(self, connections: Any = "") -> None:
        self._source = async_source_of(connections)
        # Of a wait. A session whose `statement_timeout` is shorter makes it less.
        self._longest_slice = LONGEST_SLICE
        # Of the moment; xdb.otel sets it.
        self._traceparent: Callable[[], str | None] = lambda: None

    async def close(self) -> None:
        """Closes the client's own connections."""
        await self._source.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- starting

    async def start(
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
        calls: Sequence[StartCall] = (),
        conn: Any = None,
    ) -> Execution:
        """Starts a process. Every row that its class maps has to be in `rows`, by its key; values are written to it.

        Without a process id it has that of its execution. It begins in `starting_state`, or where its class says.
        With a `correlation_key` it is merged into the latest start of the class and key, if that has not begun.
        `priority` takes the place of that of the class. `calls` are functions of the database that are called in the transaction of the start.

        `conflict` is for a row that is there already: update it, leave it, or an error. A start that is repeated
        with its `idempotency_key` gives the execution of the first time.
        """
        one = Start(
            process, process_id, input, rows, local, id_reuse, timeout, start_at, conflict, idempotency_key, traceparent,
            starting_state, shard_key, correlation_key, merge, priority, calls,
        )
        return await self._run(statements.start(one, self._traceparent()), conn)

    async def start_many(self, starts: Iterable[Start], *, conn: Any = None) -> List[Execution]:
        """Starts many processes, and gives their executions in the same order.

        With `conn=` they are all in your transaction. Without, each 5,000 are a transaction: give them idempotency keys, and
        repeat the whole after an error.
        """
        if conn is not None:
            return await self._run(statements.start_many(tuple(starts), self._traceparent()), conn)
        chunks = statements.in_chunks(starts, CHUNK)
        started: List[Execution] = []
        for chunk in chunks:
            started += await self._run(statements.start_many(chunk, self._traceparent()), None)
        return started

    # --- RPCs and messages

    @overload
    async def rpc(
        self, rpc: Rpc[None, O], process_id: str, *, idempotency_key: str | None = ..., timeout: Seconds | None = ...,
        execution: AnyExecution = ..., conn: Any = ...,
    ) -> O: ...

    @overload
    async def rpc(
        self, rpc: Rpc[I, O], process_id: str, input: I, *, idempotency_key: str | None = ...,
        timeout: Seconds | None = ..., execution: AnyExecution = ..., conn: Any = ...,
    ) -> O: ...

    async def rpc(
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
        """Calls an RPC, and gives its output. Repeated with its `idempotency_key` it gives the first output again."""
        query = statements.rpc(rpc, process_id, input, idempotency_key, timeout, execution, self._traceparent())
        return await self._run(query, conn)

    async def publish(
        self,
        queue: Queue[T],
        process_id: str,
        message: T,
        *,
        message_id: str | None = None,
        execution: AnyExecution = None,
        conn: Any = None,
    ) -> None:
        """Sends a message to a queue of a running process. One whose `message_id` was used there before is ignored."""
        await self._run(statements.publish(queue, process_id, message, message_id, execution), conn)

    async def publish_global(
        self,
        queue: GlobalQueue[T],
        message: T,
        *,
        key: str | None = None,
        message_id: str | None = None,
        ttl: Seconds | None = None,
        conn: Any = None,
    ) -> None:
        """Sends a message to a global queue, for whichever process takes it, within `ttl`."""
        await self._run(statements.publish_global(queue, message, key, message_id, ttl), conn)

    # --- waiting

    async def wait(
        self,
        process: type[Process],
        process_id: str,
        timeout: Seconds = 30,
        *,
        execution: AnyExecution = None,
        conn: None = None,
    ) -> Outcome:
        """Waits until the process has closed. After `timeout` the outcome is `timed_out`, and its `result` raises `TimeoutError`.

        It waits in slices of at most 30 seconds, or half of a shorter `statement_timeout`, over the client's own connections: what
        your transaction has not committed would not come to an end.
        """
        refuse(conn)
        return await self._in_slices(lambda seconds: statements.wait(process_id, seconds, execution), timeout)

    async def wait_for_state(
        self,
        state: State[Any],
        process_id: str,
        number: int = 1,
        timeout: Seconds = 30,
        *,
        execution: AnyExecution = None,
        conn: None = None,
    ) -> StateOutcome:
        """Waits until the `number`th execution of a state has ended, or the process has closed."""
        refuse(conn)
        return await self._in_slices(
            lambda seconds: statements.wait_for_state(state, process_id, number, seconds, execution), timeout
        )

    # --- looking and helping along

    async def stop(
        self,
        process_id: str,
        reason: str | None = None,
        fail: bool = False,
        *,
        execution: AnyExecution = None,
        conn: Any = None,
    ) -> None:
        """Ends a running process: it is TERMINATED then, or FAILED."""
        await self._run(statements.stop(process_id, reason, fail, execution), conn)

    async def describe(self, process_id: str, *, execution: AnyExecution = None, conn: Any = None) -> Description:
        """What a process does, what it waits for, and what failed last."""
        return await self._run(statements.describe(process_id, execution), conn)

    async def check(self, process_id: str, *, execution: AnyExecution = None, conn: Any = None) -> List[str]:
        """Replays the history of a process, and names what does not fit it: nothing, for a sound one."""
        return await self._run(statements.check(process_id, execution), conn)

    async def local(
        self, process: type[P], process_id: str, *, execution: AnyExecution = None, conn: Any = None
    ) -> P:
        """The local attributes of a process, to be read as those of its class: `client.local(SignUp, "s-1").reminders`."""
        return await self._run(statements.local(process, process_id, execution), conn)

    async def set_local(
        self,
        process: type[Process],
        process_id: str,
        /,
        *,
        execution: AnyExecution = None,
        conn: Any = None,
        **values: object,
    ) -> None:
        """Writes local attributes of a running process; others keep their values."""
        await self._run(statements.set_local(process, process_id, values, execution), conn)

    async def skip_timer(
        self,
        state: State[Any],
        process_id: str,
        number: int = 1,
        timer_id: str | None = None,
        *,
        execution: AnyExecution = None,
        conn: Any = None,
    ) -> None:
        """Lets a timer that a state execution waits for count as fired: that of the id, or the one that would fire first."""
        await self._run(statements.skip_timer(state, process_id, number, timer_id, execution), conn)

    async def retry_now(
        self,
        process_id: str,
        state: State[Any] | None = None,
        number: int | None = None,
        *,
        execution: AnyExecution = None,
        conn: Any = None,
    ) -> int:
        """Makes calls that wait for their next attempt due at once, and gives how many: all, or that of one state execution."""
        return await self._run(statements.retry_now(process_id, state, number, execution), conn)

    async def stop_many(
        self, process_ids: Iterable[str], reason: str | None = None, fail: bool = False, *, conn: Any = None
    ) -> List[Done]:
        """Ends many running processes, and gives the result of each, in their order. One that can't be ended does not stop the others."""
        return await self._run(statements.stop_many(process_ids, reason, fail), conn)

    async def skip_timer_many(
        self, state: State[Any], process_ids: Iterable[str], number: int = 1, timer_id: str | None = None, *, conn: Any = None
    ) -> List[Done]:
        """Skips a timer of the same state execution in many processes, as `stop_many` does."""
        return await self._run(statements.skip_timer_many(state, process_ids, number, timer_id), conn)

    async def retry_now_many(
        self, process_ids: Iterable[str], state: State[Any] | None = None, number: int | None = None, *, conn: Any = None
    ) -> List[Done]:
        """Makes calls of many processes due at once, as `stop_many` does; the count of each is that of its calls."""
        return await self._run(statements.retry_now_many(process_ids, state, number), conn)

    async def pause(
        self,
        process_id: str,
        *,
        reject: bool = False,
        until: datetime | None = None,
        reason: str | None = None,
        execution: AnyExecution = None,
        conn: Any = None,
    ) -> None:
        """Has no call of a process begin until `resume()`, or until that time. With `reject` messages and RPCs are `errors.Paused`."""
        await self._run(statements.pause(process_id, reject, until, reason, execution), conn)

    async def resume(self, process_id: str, *, execution: AnyExecution = None, conn: Any = None) -> None:
        """Ends the pause of a process; one that is not paused stays as it is."""
        await self._run(statements.resume(process_id, execution), conn)

    async def pause_type(
        self,
        process: type[Process] | str,
        *,
        reject: bool = False,
        until: datetime | None = None,
        reason: str | None = None,
        conn: Any = None,
    ) -> None:
        """Has no call of any process of a type begin. With `reject` starts are `errors.Paused` too. For its owner, and operators."""
        await self._run(statements.pause_type(process, reject, until, reason), conn)

    async def resume_type(self, process: type[Process] | str, *, conn: Any = None) -> None:
        """Ends the pause of a process type; one that is not paused stays as it is."""
        await self._run(statements.resume_type(process), conn)

    async def incidents(
        self, process: type[Process] | str | None = None, *, process_id: str | None = None, conn: Any = None
    ) -> List[Incident]:
        """Calls whose retries are spent and that stay where they are (`xdb.RAISE_INCIDENT`): of all, a type, or a process.

        Those that were raised first come first. `retry_now()` resolves them.
        """
        return await self._run(lists.incidents(process, process_id), conn)

    async def list(
        self,
        *,
        status: Status | None = None,
        process: type[Process] | str | None = None,
        prefix: str | None = None,
        before: AnyExecution = None,
        conn: Any = None,
    ) -> AsyncIterator[Summary]:
        """The executions that one may see, the latest first; those started before an execution, with `before`.

        `prefix` is how their process ids begin. They are read in pages, while they are iterated over.
        """
        listing = Listing(status, process, prefix)
        while page := await self._run(listing.page(before), conn):
            for one in page:
                yield one
            if len(page) < lists.PAGE:
                return
            before = page[-1].execution_id

    async def _in_slices(self, query: Callable[[float], Query[W]], timeout: Seconds) -> W:
        deadline = time.monotonic() + statements.seconds_of(timeout)
        while True:
            left, slice = max(deadline - time.monotonic(), 0.0), self._longest_slice
            try:
                outcome = await self._run(query(min(left, slice)), None)
            except Exception as error:
                if not errors.is_cut_short(error):
                    raise
                shorter = statements.shorter(slice, await self._run(statements.limit(), None))
                if shorter is None:
                    raise
                self._longest_slice = shorter
                continue
            if not outcome.timed_out or left <= slice:
                return outcome

    async def _run(self, query: Query[R], conn: Any) -> R:
        with errors.translated():
            if conn is not None:
                rows = await async_execute(conn)(query.sql, query.params)
            else:
                async with self._source.open() as execute:
                    rows = await execute(query.sql, query.params)
        return query.read(rows)
