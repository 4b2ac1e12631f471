"""The errors of XDB: one class for each SQLSTATE. docs/errors.md says what to do about each.

The driver's exception is the `__cause__`. Errors of Postgres itself pass unchanged, except serialization failures and deadlocks.
An error aborts the transaction of a `conn=`, so put a start that may be refused into a savepoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar


class XdbError(Exception):
    """An error that XDB raises in the Postgres server.

    `message`, `detail`, `hint` and `sqlstate` are those of the server's error. `retryable`: the same call may succeed later, unchanged.
    """

    sqlstate: str = ""
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str = "", *, detail: str | None = None, hint: str | None = None, sqlstate: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        if sqlstate is not None:
            self.sqlstate = sqlstate

    def __str__(self) -> str:
        lines = [self.message]
        if self.detail:
            lines.append(f"DETAIL: {self.detail}")
        if self.hint:
            lines.append(f"HINT: {self.hint}")
        return "\n".join(lines)


class ProcessNotFound(XdbError):
    """There is no process with this id, or no such execution of it, that your role may see."""

    sqlstate = "XD001"


class UnknownProcessType(XdbError):
    """No process type with this name is registered in this database."""

    sqlstate = "XD002"


class UnknownState(XdbError):
    """The process type has no such state, or the process no such step."""

    sqlstate = "XD003"


class UnknownQueue(XdbError):
    """The definition of the process type does not list this queue."""

    sqlstate = "XD004"


class UnknownWorker(XdbError):
    """No worker with this name is registered in this database."""

    sqlstate = "XD005"


class AlreadyStarted(XdbError):
    """A process with this id has been started already, or the id belongs to another role."""

    sqlstate = "XD006"


class NotRunning(XdbError):
    """The process has closed."""

    sqlstate = "XD007"


class InvalidDefinition(XdbError):
    """The definition of a process type contradicts itself, or does not fit the tables."""

    sqlstate = "XD008"


class InvalidArgument(XdbError):
    """An argument or an option has a value that is not allowed."""

    sqlstate = "XD009"


class WorkerFailed(XdbError):
    """The worker failed while it answered an RPC. Nothing of the RPC was applied. Repeat it with the same `idempotency_key`.

    `error_type` is the worker's `errorType`, or None if the worker gave none or the driver does not report it.
    """

    sqlstate = "XD010"
    retryable = True
    error_type: str | None = None


class NotPreloaded(XdbError):
    """The library of XDB is not in `shared_preload_libraries`."""

    sqlstate = "XD011"


class ServerIsStandby(XdbError):
    """The server is a standby: connect to the primary."""

    sqlstate = "XD012"


class SuperuserRefused(XdbError):
    """A superuser can't start processes."""

    sqlstate = "XD013"


class WouldWaitForever(XdbError):
    """The call would wait for something that its own transaction has not committed."""

    sqlstate = "XD014"


class PayloadRefused(XdbError):
    """A payload, a request or an argument is too large, too deeply nested, or can't be stored as `jsonb`."""

    sqlstate = "XD015"


class InsideTrigger(XdbError):
    """A function that makes a call or waits was used inside a step, from a trigger."""

    sqlstate = "XD016"


class HostNotAllowed(XdbError):
    """The worker's host is not in `xdb.allowed_worker_hosts`."""

    sqlstate = "XD017"


class InUse(XdbError):
    """The object that you want to remove is still in use."""

    sqlstate = "XD018"


class NoSuchTimer(XdbError):
    """The step waits for no such timer."""

    sqlstate = "XD019"


class LockTimeout(XdbError):
    """An RPC did not get its locks on attributes within its timeout."""

    sqlstate = "XD020"
    retryable = True


class CannotAdopt(XdbError):
    """A copied database can't be adopted: the error's detail says what is missing."""

    sqlstate = "XD021"


class VersionMismatch(XdbError):
    """The library of XDB and its schema in this database have different versions."""

    sqlstate = "XD022"


class Paused(XdbError):
    """The process or its type is paused and rejects requests, or an RPC timed out while it waited for the end of the pause."""

    sqlstate = "XD023"
    retryable = True


class Locked(XdbError):
    """Another process holds a lock that this one needs, or an RPC timed out while it waited for the locks of its process."""

    sqlstate = "XD024"
    retryable = True


class CallLost(XdbError):
    """Lease lost: the call was reclaimed or already completed."""

    sqlstate = "XD025"


class WrongKindOfWorker(XdbError):
    """A pull worker can't be called, for instance for an RPC; and an HTTP worker can't claim calls."""

    sqlstate = "XD026"


class HistoryGone(XdbError):
    """The history that this needs is no longer kept."""

    sqlstate = "XD028"


class QuotaUsedUp(XdbError):
    """A quota or limit is used up: of time, messages or running processes."""

    sqlstate = "XD029"


class IdempotencyKeyReused(XdbError):
    """The idempotency key of an RPC was used for another RPC, or with another input."""

    sqlstate = "XD030"


class SerializationFailure(XdbError):
    """Another transaction changed the same rows (40001), or there was a deadlock (40P01). Repeat the whole transaction."""

    sqlstate = "40001"
    retryable = True


BY_SQLSTATE: dict[str, type[XdbError]] = {kind.sqlstate: kind for kind in XdbError.__subclasses__()}
BY_SQLSTATE["40P01"] = SerializationFailure


def is_conflict(error: BaseException) -> bool:
    """Whether an exception is a serialization failure or a deadlock, or was raised because of one."""
    seen: set[int] = set()
    left: list[object] = [error]
    while left:
        each = left.pop()
        # An exception may refer to itself, and 50 of them are enough.
        if not isinstance(each, BaseException) or id(each) in seen or len(seen) > 50:
            continue
        if BY_SQLSTATE.get(_sqlstate(each)) is SerializationFailure:
            return True
        seen.add(id(each))
        left += [getattr(each, "orig", None), each.__cause__, *getattr(each, "exceptions", ())]
        if not each.__suppress_context__:
            left.append(each.__context__)
    return False


def is_refusal(error: BaseException) -> bool:
    """Whether the server refused a statement. Otherwise the connection was lost or could not be made, which may pass."""
    sqlstate = next(filter(None, map(_sqlstate, _causes(error))), "")
    return bool(sqlstate) and not sqlstate.startswith(_CONNECTION)


def is_cut_short(error: BaseException) -> bool:
    """Whether a statement was cancelled, or ended by `transaction_timeout` (Postgres 17)."""
    return any(_sqlstate(cause) in ("57014", "25P04") for cause in _causes(error))


def is_of_the_transaction(error: BaseException) -> bool:
    """Whether a statement was refused because its transaction is read only, or its isolation level above READ COMMITTED."""
    return any(_sqlstate(cause) in ("25006", "0A000") for cause in _causes(error))


# SQLSTATEs of lost connections, of too many connections, and of a server that shuts down or starts.
_CONNECTION = ("08", "53", "57P")


def _sqlstate(error: BaseException) -> str:
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return sqlstate if isinstance(sqlstate, str) else ""


def from_driver(error: BaseException) -> XdbError | None:
    """XDB's error for a driver's exception, or None if it is another error."""
    if isinstance(error, XdbError):
        return None
    for cause in _causes(error):
        if sqlstate := _sqlstate(cause):
            return _error(cause, sqlstate)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and the errors that it wraps: in `orig` by SQLAlchemy, as the cause by Django."""
    cause: BaseException | None = error
    for _ in range(5):
        if cause is None:
            return
        yield cause
        orig = getattr(cause, "orig", None)
        cause = orig if isinstance(orig, BaseException) else cause.__cause__


def _error(cause: BaseException, sqlstate: str) -> XdbError | None:
    kind = BY_SQLSTATE.get(sqlstate)
    if kind is None and not sqlstate.startswith("XD"):
        return None
    # psycopg has the fields in `diag`, asyncpg in the error itself, which a library around asyncpg may wrap.
    diag: Any = getattr(cause, "diag", None)
    if diag is not None:
        message, detail, hint = diag.message_primary, diag.message_detail, diag.message_hint
        datatype = diag.datatype_name
    else:
        source = next((c for c in _causes(cause) if hasattr(c, "detail") and hasattr(c, "hint")), cause)
        message, detail, hint = str(source.args[0]) if source.args else "", *_both(source)
        datatype = getattr(source, "data_type_name", None)
    made = (kind or XdbError)(message or str(cause), detail=detail, hint=hint, sqlstate=sqlstate)
    if isinstance(made, WorkerFailed):
        made.error_type = datatype or None
    return made


def of_row(sqlstate: str | None, message: str | None) -> XdbError | None:
    """The error in a row of a result, or None if the row has no SQLSTATE."""
    return None if sqlstate is None else BY_SQLSTATE.get(sqlstate, XdbError)(message or "", sqlstate=sqlstate)


def _both(source: BaseException) -> tuple[str | None, str | None]:
    return getattr(source, "detail", None), getattr(source, "hint", None)


def _explain(error: Exception) -> None:
    """Adds a hint to the first error that a new role meets. Needs Python 3.11, which has notes of exceptions."""
    is_of_schema = "schema xdb" in str(error) and any(_sqlstate(cause) == "42501" for cause in _causes(error))
    if is_of_schema and hasattr(error, "add_note"):
        error.add_note("HINT: The role may not use XDB. As a superuser, or the owner of the extension: SELECT xdb.grant_usage('the_role')")


@contextmanager
def translated() -> Iterator[None]:
    """Within it, a driver's exception for an error of XDB is raised as the class of XDB. Other exceptions pass unchanged."""
    try:
        yield
    except Exception as error:
        ours = from_driver(error)
        if ours is None:
            _explain(error)
            raise
        raise ours from error
