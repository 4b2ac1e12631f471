"""What XDB refuses, a class for each SQLSTATE.

The driver's own exception is the `__cause__`. Errors of Postgres itself pass unchanged, with the exception of those that say
"repeat the transaction". In a transaction of your own, an error ends the transaction: put a start that you expect to be refused
into a savepoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar


class XdbError(Exception):
    """An error of the server that is XDB's own. `retryable`: the same again may succeed, without that anybody mends anything."""

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
    """There is no such process, or no such execution of it, that you may see."""

    sqlstate = "XD001"


class UnknownProcessType(XdbError):
    """There is no such process type in this database."""

    sqlstate = "XD002"


class UnknownState(XdbError):
    """There is no such state in the process type, or no such state execution in the process."""

    sqlstate = "XD003"


class UnknownQueue(XdbError):
    """The process type does not list that queue."""

    sqlstate = "XD004"


class UnknownWorker(XdbError):
    """There is no such worker."""

    sqlstate = "XD005"


class AlreadyStarted(XdbError):
    """The process is started already, or its id is taken by another role."""

    sqlstate = "XD006"


class NotRunning(XdbError):
    """The process is not running any more."""

    sqlstate = "XD007"


class InvalidDefinition(XdbError):
    """The definition of a process type does not hold together or does not fit the tables."""

    sqlstate = "XD008"


class InvalidArgument(XdbError):
    """An argument or an option has a value that means nothing here."""

    sqlstate = "XD009"


class WorkerFailed(XdbError):
    """The worker failed while it answered an RPC; nothing of the RPC was applied. Repeat it with its idempotency key.

    `error_type` is the worker's word for it; None where the server or the driver does not tell.
    """

    sqlstate = "XD010"
    retryable = True
    error_type: str | None = None


class NotPreloaded(XdbError):
    """The library is not in `shared_preload_libraries`."""

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
    """A payload, a request or an argument is too large, nested too deeply, or not what `jsonb` can hold."""

    sqlstate = "XD015"


class InsideTrigger(XdbError):
    """The function calls or waits, and was called in a step, from a trigger."""

    sqlstate = "XD016"


class HostNotAllowed(XdbError):
    """The worker's host is not in `xdb.allowed_worker_hosts`."""

    sqlstate = "XD017"


class InUse(XdbError):
    """What you want to remove is still in use."""

    sqlstate = "XD018"


class NoSuchTimer(XdbError):
    """The state execution waits for no such timer."""

    sqlstate = "XD019"


class LockTimeout(XdbError):
    """An RPC did not get its locks on attributes in its time."""

    sqlstate = "XD020"
    retryable = True


class CannotAdopt(XdbError):
    """A copied database can't be adopted as it is."""

    sqlstate = "XD021"


class VersionMismatch(XdbError):
    """Library and schema of XDB do not go together."""

    sqlstate = "XD022"


class Paused(XdbError):
    """The process or its type is paused and refuses requests, or an RPC waited for the end of the pause in vain."""

    sqlstate = "XD023"
    retryable = True


class Locked(XdbError):
    """Another process has a lock that this one needs, or an RPC waited for the locks of its process in vain."""

    sqlstate = "XD024"
    retryable = True


class CallLost(XdbError):
    """The call is not yours any more: its lease is over, it was made again, or it has ended."""

    sqlstate = "XD025"


class WrongKindOfWorker(XdbError):
    """The worker can't be used so: one without a URL that is to be called, or one with a URL that wants to fetch calls."""

    sqlstate = "XD026"


class UnknownSchedule(XdbError):
    """There is no such schedule that you may change."""

    sqlstate = "XD027"


class HistoryGone(XdbError):
    """The history that this needs is not kept any more."""

    sqlstate = "XD028"


class QuotaUsedUp(XdbError):
    """More is asked for than there may be: of time, messages or running processes."""

    sqlstate = "XD029"


class IdempotencyKeyReused(XdbError):
    """The idempotency key of an RPC was used for another RPC, or with another input."""

    sqlstate = "XD030"


class SerializationFailure(XdbError):
    """Others changed the same meanwhile (40001), or waited in a ring (40P01): repeat the whole transaction."""

    sqlstate = "40001"
    retryable = True


BY_SQLSTATE: dict[str, type[XdbError]] = {kind.sqlstate: kind for kind in XdbError.__subclasses__()}
BY_SQLSTATE["40P01"] = SerializationFailure


def is_conflict(error: BaseException) -> bool:
    """Whether it is a conflict with another transaction, or was raised because of one."""
    seen: set[int] = set()
    left: list[object] = [error]
    while left:
        each = left.pop()
        # An exception may have hold of itself, and so many are enough.
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
    """Whether a server says no to a statement. What else there is may pass: a connection that is lost, or can't be had."""
    sqlstate = next(filter(None, map(_sqlstate, _causes(error))), "")
    return bool(sqlstate) and not sqlstate.startswith(_CONNECTION)


def is_cut_short(error: BaseException) -> bool:
    """Whether a statement ended because it was cancelled, or because the time of its transaction was over (Postgres 17)."""
    return any(_sqlstate(cause) in ("57014", "25P04") for cause in _causes(error))


def is_of_the_transaction(error: BaseException) -> bool:
    """Whether a statement was refused for what its transaction is: read only, or above READ COMMITTED."""
    return any(_sqlstate(cause) in ("25006", "0A000") for cause in _causes(error))


# Errors of the connection, too many of them, and a server that shuts down or starts.
_CONNECTION = ("08", "53", "57P")


def _sqlstate(error: BaseException) -> str:
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return sqlstate if isinstance(sqlstate, str) else ""


def from_driver(error: BaseException) -> XdbError | None:
    """XDB's error for that of a driver, or None where it is none of XDB's."""
    if isinstance(error, XdbError):
        return None
    for cause in _causes(error):
        if sqlstate := _sqlstate(cause):
            return _error(cause, sqlstate)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it wraps: `orig` in SQLAlchemy, the cause in Django."""
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
    # psycopg has the fields in `diag`; asyncpg in the error itself, which its wrappers may hide.
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
    """The error that a row of an answer tells, if it tells one."""
    return None if sqlstate is None else BY_SQLSTATE.get(sqlstate, XdbError)(message or "", sqlstate=sqlstate)


def _both(source: BaseException) -> tuple[str | None, str | None]:
    return getattr(source, "detail", None), getattr(source, "hint", None)


def _explain(error: Exception) -> None:
    """Says what to do about the first refusal that a new role meets. Python has notes from 3.11 on."""
    is_of_schema = "schema xdb" in str(error) and any(_sqlstate(cause) == "42501" for cause in _causes(error))
    if is_of_schema and hasattr(error, "add_note"):
        error.add_note("HINT: a superuser, or the owner of the extension, lets a role use XDB: SELECT xdb.grant_usage('the_role')")


@contextmanager
def translated() -> Iterator[None]:
    """Raises errors of drivers as those of XDB where they are."""
    try:
        yield
    except Exception as error:
        ours = from_driver(error)
        if ours is None:
            _explain(error)
            raise
        raise ours from error
