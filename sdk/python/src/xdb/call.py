"""What a handler can read about its call: `self.call`, or `xdb.current()`."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone


@dataclass(frozen=True)
class Recovered:
    """The state whose retries were spent, in the state that `on_failure=` started instead. `detail` is its last error."""

    state: str
    detail: str
    state_execution_id: str = ""
    # Which call failed: `WAIT_UNTIL_API` or `EXECUTE_API`.
    api: str = ""
    # The HTTP status of the last attempt, if it had one.
    status: int | None = None
    # The worker's word for the error.
    error_type: str | None = None


@dataclass(frozen=True)
class DatabaseError:
    """Why a table of the application refused an earlier answer to this call. Nothing of that answer was applied."""

    sqlstate: str
    message: str
    table: str | None = None
    constraint: str | None = None


@dataclass(frozen=True)
class Parent:
    """The process whose answer started this one as its child. `state_execution_id` is None if it was an RPC."""

    process_id: str
    execution_id: str
    state_execution_id: str | None = None


@dataclass(frozen=True)
class Call:
    """One attempt of a call. Made by the worker from the engine's request; handlers read it.

    `id` is the same for all attempts: send it to other services as their idempotency key.
    """

    id: str
    # The header of the request: for an RPC, that of its caller.
    idempotency_key: str
    process_type: str
    process_id: str
    execution_id: str
    # From 1.
    attempt: int
    process_started_at: datetime
    first_attempt_at: datetime
    # The id of the state and of its step, for instance `Ship` and `Ship-1`. None in an RPC.
    state: str | None = None
    state_execution_id: str | None = None
    # The name of the RPC. None in a state.
    rpc: str | None = None
    # The role that the process runs as, and its database.
    owner: str | None = None
    database: str | None = None
    # Seconds that the engine waits for the answer, and when that time ends by this machine's clock. None: unknown.
    timeout: float | None = None
    deadline: datetime | None = None
    # The W3C trace context that the process was started with.
    traceparent: str | None = None
    recovered_from: Recovered | None = None
    # In a guard: the id of one step that it guarded. During a compensation: the id of the step that is undone.
    guards: str | None = None
    compensates: str | None = None
    database_error: DatabaseError | None = None
    # None: no answer started this process.
    parent: Parent | None = None
    # Set by the worker when the connection of the call was closed; read by `cancelled`.
    _gone: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    @property
    def cancelled(self) -> bool:
        """Whether the answer is no longer needed: the process has closed, or the call has timed out.

        An ordinary handler with long work should read it from time to time, and end early. An async handler gets `CancelledError`.
        """
        return self._gone.is_set() or (self.deadline is not None and datetime.now(timezone.utc) >= self.deadline)


running: ContextVar[Call] = ContextVar("xdb_call")


def current() -> Call:
    """The call that is being answered, for code that has no `self`. Raises `LookupError` outside of handlers."""
    call = running.get(None)
    if call is None:
        raise LookupError("there is no call here: xdb.current() works within handlers, and in code that they call")
    return call
