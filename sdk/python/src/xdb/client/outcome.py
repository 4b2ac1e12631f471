"""The classes that clients return, and how they are read from the server's JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from ..errors import XdbError


# How much of an output a message shows.
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class Execution:
    """One run of a process id."""

    process_id: str
    execution_id: UUID


@dataclass(frozen=True)
class Result:
    """The output of a thread, and the step with which the thread has ended."""

    state_execution_id: str
    output: Any


@dataclass(frozen=True)
class Done:
    """The result for one process of a call for many. `error` is what the call for one process would raise; then `count` is 0."""

    process_id: str
    count: int
    error: XdbError | None


@dataclass(frozen=True)
class Outcome:
    """The status of a process, whether it has completed or not.

    `results` are the outputs of threads that have ended, `output` the only one, else None. `reason` says why the process has closed.
    `timed_out`: it still runs, and `last_failure` says which call failed last.
    """

    process_id: str
    status: str
    results: tuple[Result, ...]
    timed_out: bool
    output: Any
    reason: str | None = None
    last_failure: str | None = None

    @property
    def result(self) -> Any:
        """The `output` of a process that has completed.

        Raises `TimeoutError` if the wait has timed out, and `NotCompleted` if the process has closed without completing.
        """
        if self.timed_out:
            why = self.last_failure or "give wait() a longer timeout=, or check .timed_out first"
            raise TimeoutError(f"process {self.process_id!r} is still {self.status} and has no result yet: {why}")
        if self.status != "COMPLETED":
            raise NotCompleted(self)
        return self.output


class NotCompleted(Exception):
    """A process has closed without completing, and its result was read. `outcome` has its status, reason and output."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome

    def __str__(self) -> str:
        of = self.outcome
        output = None if of.output is None else repr(of.output)[:_SHOWN_CHARACTERS]
        why = ": ".join(filter(None, (of.reason, output)))
        return f"process {of.process_id!r} has not completed: {of.status}{why and f' ({why})'}"


@dataclass(frozen=True)
class StateOutcome:
    """The status of a step and of its process. `status` is None if the process has no step of that number."""

    status: str | None
    process_status: str
    timed_out: bool


@dataclass(frozen=True)
class Description:
    """What a process does, what it waits for, and what failed last. Fields as in `xdb.describe_process`; `raw` has all of them."""

    process_id: str
    execution_id: UUID
    process_type: str
    owner: str | None
    status: str
    started_at: datetime
    timeout_at: datetime | None
    closed_at: datetime | None
    reason: str | None
    live_threads: int
    threads: tuple[Mapping[str, Any], ...]
    results: tuple[Result, ...]
    last_failure: Mapping[str, Any] | None
    held_up_by: tuple[Mapping[str, Any], ...]
    owner_problem: str | None
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Summary:
    """One execution of `Client.list`. Fields as in the view `xdb.processes`."""

    process_id: str
    execution_id: UUID
    process_type: str
    owner: str | None
    status: str
    started_at: datetime
    timeout_at: datetime | None
    closed_at: datetime | None
    reason: str | None
    live_threads: int
    is_latest: bool


@dataclass(frozen=True)
class Incident:
    """A call whose retries are spent, with its last error. It waits for `retry_now()`. Fields as in the view `xdb.incidents`."""

    process_id: str
    execution_id: UUID
    state_execution_id: str
    api: str
    attempt: int
    raised_at: datetime
    http_status: int | None
    error_type: str | None
    detail: str | None
    sql_state: str | None
    table_name: str | None
    constraint_name: str | None


def results_of(raw: Any) -> tuple[Result, ...]:
    """The results in the server's JSON."""
    return tuple(Result(one["stateExecutionId"], one["output"]) for one in raw or ())


def outcome_of(process_id: str, raw: Mapping[str, Any]) -> Outcome:
    """The outcome in the result of `xdb.wait_for_process`."""
    return Outcome(process_id, raw["status"], results_of(raw["results"]), raw["timedOut"], raw["result"], raw.get("reason"))


def failure_text(step: str | None, attempt: object, error_type: str | None, detail: str | None) -> str:
    """A failed attempt in one line. Without a `step`, no call can be made, and `detail` says why."""
    what = ": ".join(filter(None, (error_type, detail)))
    return what if step is None else f"attempt {attempt} of {step} failed: {what}"


def described_failure(description: Description) -> str | None:
    """The last failure of a described process, as `failure_text`."""
    if (last := description.last_failure) is None:
        return None
    failure = last["failure"]
    return failure_text(last["stateExecutionId"], last["attempt"], failure.get("errorType"), failure.get("detail"))


def state_outcome_of(raw: Mapping[str, Any]) -> StateOutcome:
    """The outcome in the result of `xdb.wait_for_state`."""
    return StateOutcome(raw["status"], raw["processStatus"], raw["timedOut"])


def description_of(raw: Mapping[str, Any]) -> Description:
    """The description in the result of `xdb.describe_process`."""
    return Description(
        process_id=raw["processId"],
        execution_id=UUID(raw["processExecutionId"]),
        process_type=raw["processType"],
        owner=raw.get("owner"),
        status=raw["status"],
        started_at=_time(raw["startedAt"]),
        timeout_at=_time_or_none(raw.get("timeoutAt")),
        closed_at=_time_or_none(raw.get("closedAt")),
        reason=raw.get("reason"),
        live_threads=raw["liveThreads"],
        threads=tuple(raw["threads"]),
        results=results_of(raw["results"]),
        last_failure=raw.get("lastFailure"),
        held_up_by=tuple(raw.get("heldUpBy") or ()),
        owner_problem=raw.get("ownerProblem"),
        raw=raw,
    )


def moment(micros: int | None) -> datetime | None:
    """A time from microseconds since 1970. A year that Python does not have becomes Python's last time."""
    if micros is None:
        return None
    try:
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=micros)
    except OverflowError:
        return datetime.max.replace(tzinfo=timezone.utc)


_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?([+-]\d\d:\d\d)(?::\d\d)?")


def _time(text: str) -> datetime:
    """A time as the server writes it, with any number of digits after the dot, which Python 3.10 can't read."""
    parts = _TIME.fullmatch(text)
    if parts is None:  # a year that Python does not have
        return datetime.max.replace(tzinfo=timezone.utc)
    seconds, fraction, zone = parts.groups()
    return datetime.fromisoformat(f"{seconds}.{fraction or '0':0<6.6}{zone}")


def _time_or_none(text: str | None) -> datetime | None:
    return None if text is None else _time(text)
