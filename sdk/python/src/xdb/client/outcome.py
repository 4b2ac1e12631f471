"""What calls give back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from ..errors import XdbError


@dataclass(frozen=True)
class Execution:
    """A run of a process id."""

    process_id: str
    execution_id: UUID


@dataclass(frozen=True)
class Result:
    """What one thread gave."""

    state_execution_id: str
    output: Any


@dataclass(frozen=True)
class Done:
    """The result for one process in a call for many. If there is an `error`, which the call for one would raise, `count` is 0."""

    process_id: str
    count: int
    error: XdbError | None


@dataclass(frozen=True)
class Outcome:
    """How far a process is. `timed_out`: it still runs, and has no `result` yet; `results` are those of threads that have ended."""

    process_id: str
    status: str
    results: tuple[Result, ...]
    timed_out: bool
    output: Any

    @property
    def result(self) -> Any:
        """The output of the process if it has exactly one, and else None. Raises `TimeoutError` when the wait has timed out."""
        if self.timed_out:
            raise TimeoutError(
                f"process {self.process_id!r} is still {self.status} and has no result yet: give wait() a longer timeout=, or look at "
                ".timed_out first"
            )
        return self.output


@dataclass(frozen=True)
class StateOutcome:
    """How far a state execution is. `status` is None where there is none of that number."""

    status: str | None
    process_status: str
    timed_out: bool


@dataclass(frozen=True)
class Description:
    """What a process does, what it waits for, and what failed last. `raw` has all of it, as the server says it."""

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
    """A line of `Client.list`."""

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
    """A call whose retries are spent, and which stays where it is until `retry_now()`; what it failed with last."""

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
    return tuple(Result(one["stateExecutionId"], one["output"]) for one in raw or ())


def outcome_of(process_id: str, raw: Mapping[str, Any]) -> Outcome:
    return Outcome(process_id, raw["status"], results_of(raw["results"]), raw["timedOut"], raw["result"])


def state_outcome_of(raw: Mapping[str, Any]) -> StateOutcome:
    return StateOutcome(raw["status"], raw["processStatus"], raw["timedOut"])


def description_of(raw: Mapping[str, Any]) -> Description:
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
    """A time from microseconds since 1970; what Python has no year for is its last moment."""
    if micros is None:
        return None
    try:
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=micros)
    except OverflowError:
        return datetime.max.replace(tzinfo=timezone.utc)


_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?([+-]\d\d:\d\d)(?::\d\d)?")


def _time(text: str) -> datetime:
    """A time as the server writes it, with any number of digits behind the dot, which Python 3.10 can't read."""
    parts = _TIME.fullmatch(text)
    if parts is None:  # a year that Python does not have
        return datetime.max.replace(tzinfo=timezone.utc)
    seconds, fraction, zone = parts.groups()
    return datetime.fromisoformat(f"{seconds}.{fraction or '0':0<6.6}{zone}")


def _time_or_none(text: str | None) -> datetime | None:
    return None if text is None else _time(text)
