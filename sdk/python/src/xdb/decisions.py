"""Where a thread of a process goes after a step, and how a step says that it has failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from .codec import encode
from .jsontext import storable


@dataclass(frozen=True)
class Decision:
    """What a state returns. Two movements are added with `+`: each starts a thread."""

    body: Mapping[str, Any]

    def __add__(self, other: Decision) -> Decision:
        for each in (self, other):
            if not isinstance(each, Decision):
                return NotImplemented
            if set(each.body) != {"nextStates"}:
                raise TypeError("only movements to states can be added, as in self.pack() + self.bill()")
        return Decision({"nextStates": [*self.body["nextStates"], *other.body["nextStates"]]})


def complete(result: object = None) -> Decision:
    """Ends this thread. The process completes when no other thread is left."""
    return _close("GRACEFUL_COMPLETE_PROCESS", result)


def force_complete(result: object = None) -> Decision:
    """Completes the process now. Other threads are aborted."""
    return _close("FORCE_COMPLETE_PROCESS", result)


def fail(result: object = None) -> Decision:
    """Fails the process now. Other threads are aborted."""
    return _close("FORCE_FAIL_PROCESS", result)


def end_thread() -> Decision:
    """Ends this thread and leaves the process as it is."""
    return _close("DEAD_END", None)


def _close(close_type: str, result: object) -> Decision:
    return Decision({"threadCloseDecision": {"closeType": close_type, "closeInput": encode(result, path="result")}})


def complete_if_empty(*queues: Any, result: object = None, otherwise: Decision, force: bool = False) -> Decision:
    """Completes if these queues are empty at that very moment, and otherwise goes on. `force` aborts other threads."""
    if not queues:
        raise TypeError("complete_if_empty needs a queue, as in xdb.complete_if_empty(self.orders, otherwise=...)")
    if not isinstance(otherwise, Decision) or set(otherwise.body) != {"nextStates"}:
        raise TypeError("otherwise= takes a movement to a state, as in otherwise=self.next_order()")
    close = {
        "closeType": "FORCE_COMPLETE_PROCESS" if force else "GRACEFUL_COMPLETE_PROCESS",
        "closeInput": encode(result, path="result"),
        "whenLocalQueuesEmpty": [queue if isinstance(queue, str) else queue.name for queue in queues],
    }
    return Decision({"conditionalClose": close, "nextStates": list(otherwise.body["nextStates"])})


def retry(
    error_type: str | None = None, detail: str | None = None, *, after: timedelta | None = None, final: bool = False
) -> Decision:
    """A failed attempt of which everything that was written and published is kept, in one step.

    `after` takes the place of the retry policy's interval this once; `final` spends the retries.
    """
    said: dict[str, Any] = {}
    if error_type is not None:
        said["errorType"] = storable(str(error_type))
    if detail is not None:
        said["detail"] = storable(str(detail))
    if after is not None:
        said["retryAfterSeconds"] = _seconds_until(after)
    if final:
        said["final"] = True
    return Decision({"retry": said})


# The longest that the server takes: ten years.
_LONGEST_UNTIL = timedelta(days=3652.5)


def _seconds_until(after: timedelta) -> float:
    if not isinstance(after, timedelta) or after < timedelta(0):
        raise ValueError(f"after={after!r} is no time from now: write timedelta(seconds=...)")
    if after > _LONGEST_UNTIL:
        raise ValueError(f"after={after!r} is more than ten years, the longest time until a next attempt")
    return after.total_seconds()


class Failure(Exception):
    """A failed attempt with an `errorType` of its own."""

    def __init__(self, error_type: str, detail: str = "") -> None:
        super().__init__(error_type, detail)
        self.error_type, self.detail = error_type, detail
        self.retry_after: float | None = None

    def __str__(self) -> str:
        return self.detail or self.error_type


class Fatal(Failure):
    """Never retried: the process goes to the `on_failure` state, or fails."""


class Retryable(Failure):
    """Retried as any other exception is; this one chooses its `errorType`, and with `after` when the next attempt is made."""

    def __init__(self, error_type: str, detail: str = "", *, after: timedelta | None = None) -> None:
        super().__init__(error_type, detail)
        self.retry_after = None if after is None else _seconds_until(after)
