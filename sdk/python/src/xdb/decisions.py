"""What a state returns: where its thread goes next, or how the process ends. And exceptions with which a handler fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from .codec import encode
from .jsontext import storable


@dataclass(frozen=True)
class Decision:
    """What a state returns. Made by calling a state (`self.pack()`, a movement), and by the functions of this module.

    `+` adds movements, and each starts a thread: `self.pack() + self.bill()`. `body` is the decision as the protocol has it.
    """

    body: Mapping[str, Any]

    def __add__(self, other: Decision) -> Decision:
        for each in (self, other):
            if not isinstance(each, Decision):
                return NotImplemented
            if set(each.body) != {"nextStates"}:
                raise TypeError("+ takes only movements to states, as in self.pack() + self.bill()")
        return Decision({"nextStates": [*self.body["nextStates"], *other.body["nextStates"]]})


def complete(result: object = None) -> Decision:
    """Ends this thread with a result. The process completes when no other thread is left. Raises `CodecError`."""
    return _close("GRACEFUL_COMPLETE_PROCESS", result)


def force_complete(result: object = None) -> Decision:
    """Completes the process now, with a result. Other threads are aborted. Raises `CodecError`."""
    return _close("FORCE_COMPLETE_PROCESS", result)


def fail(result: object = None) -> Decision:
    """Fails the process now, with a result. Other threads are aborted. Raises `CodecError`."""
    return _close("FORCE_FAIL_PROCESS", result)


def compensate(result: object = None) -> Decision:
    """Undoes what completed steps did, by the states of their `compensate=`, the latest first. Then the process fails, with a result.

    Other threads are aborted. Raises `CodecError`.
    """
    return _close("COMPENSATE_PROCESS", result)


def end_thread() -> Decision:
    """Ends this thread, and leaves the process running."""
    return _close("DEAD_END", None)


def _close(close_type: str, result: object) -> Decision:
    return Decision({"threadCloseDecision": {"closeType": close_type, "closeInput": encode(result, path="result")}})


def complete_if_empty(*queues: Any, result: object = None, otherwise: Decision, force: bool = False) -> Decision:
    """Completes with `result` if these local queues are empty when the answer is applied. Otherwise makes the movement `otherwise`.

    `force` aborts other threads; without it, only this thread ends. Raises `TypeError` without a queue or a movement.
    """
    if not queues:
        raise TypeError("complete_if_empty() has no queue: write xdb.complete_if_empty(self.orders, otherwise=...)")
    if not isinstance(otherwise, Decision) or set(otherwise.body) != {"nextStates"}:
        raise TypeError("otherwise= is not a movement to a state: write otherwise=self.next_order()")
    close = {
        "closeType": "FORCE_COMPLETE_PROCESS" if force else "GRACEFUL_COMPLETE_PROCESS",
        "closeInput": encode(result, path="result"),
        "whenLocalQueuesEmpty": [queue if isinstance(queue, str) else queue.name for queue in queues],
    }
    return Decision({"conditionalClose": close, "nextStates": list(otherwise.body["nextStates"])})


def retry(
    error_type: str | None = None, detail: str | None = None, *, after: timedelta | None = None, final: bool = False
) -> Decision:
    """Fails the attempt, and yet applies what the handler has written and published, in one transaction.

    - `error_type`, `detail`: what the failure is called, and a text for people.
    - `after`: the time until the next attempt, at most ten years. Default: by the retry policy.
    - `final`: no further attempt, as if the retries were spent.

    Raises `ValueError` if `after` is negative, too long or no timedelta.
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


# The longest time that the engine accepts: ten years.
_LONGEST_UNTIL = timedelta(days=3652.5)


def _seconds_until(after: timedelta) -> float:
    if not isinstance(after, timedelta) or after < timedelta(0):
        raise ValueError(f"after={after!r} is not a timedelta of zero or more: write timedelta(seconds=...)")
    if after > _LONGEST_UNTIL:
        raise ValueError(f"after={after!r} is longer than ten years, the longest time until the next attempt")
    return after.total_seconds()


class Failure(Exception):
    """The base of `Fatal` and `Retryable`: a failed attempt with an error type of its own."""

    def __init__(self, error_type: str, detail: str = "") -> None:
        super().__init__(error_type, detail)
        self.error_type, self.detail = error_type, detail
        self.retry_after: float | None = None

    def __str__(self) -> str:
        return self.detail or self.error_type


class Fatal(Failure):
    """Raise it to fail without a retry: the process goes to the `on_failure` state, or fails."""


class Retryable(Failure):
    """Raise it to fail with an error type of your own. Like any other exception it is retried.

    `after` is the time until the next attempt, at most ten years. Default: by the retry policy.
    """

    def __init__(self, error_type: str, detail: str = "", *, after: timedelta | None = None) -> None:
        super().__init__(error_type, detail)
        self.retry_after = None if after is None else _seconds_until(after)
