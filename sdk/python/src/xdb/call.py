"""What a handler can know of the call that it answers."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone


@dataclass(frozen=True)
class Recovered:
    """The state whose retries were spent, when this one was started in its place."""

    state: str
    detail: str
    state_execution_id: str = ""
    api: str = ""
    status: int | None = None
    error_type: str | None = None


@dataclass(frozen=True)
class DatabaseError:
    """What a table said when it refused an earlier answer to this call. Nothing of that answer was applied."""

    sqlstate: str
    message: str
    table: str | None = None
    constraint: str | None = None


@dataclass(frozen=True)
class Call:
    """One attempt of a call. `id` is the same for all attempts: use it for effects outside of the database."""

    id: str
    idempotency_key: str
    process_type: str
    process_id: str
    execution_id: str
    attempt: int
    process_started_at: datetime
    first_attempt_at: datetime
    state: str | None = None
    state_execution_id: str | None = None
    rpc: str | None = None
    owner: str | None = None
    database: str | None = None
    timeout: float | None = None
    deadline: datetime | None = None
    traceparent: str | None = None
    recovered_from: Recovered | None = None
    database_error: DatabaseError | None = None
    # Set by the worker when the connection of the call is closed.
    _gone: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    @property
    def cancelled(self) -> bool:
        """Whether no answer is waited for any more: the process has ended or was stopped, or the time of the call is over.

        An ordinary handler of long work asks now and then, and ends early. An async one gets `CancelledError`.
        """
        return self._gone.is_set() or (self.deadline is not None and datetime.now(timezone.utc) >= self.deadline)


running: ContextVar[Call] = ContextVar("xdb_call")


def current() -> Call:
    """The call that is being answered, for code that has no `self`."""
    call = running.get(None)
    if call is None:
        raise LookupError("no call is being answered here: xdb.current() works within handlers and what they call")
    return call
