"""What a state waits for: timers and messages, any or all of several."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, Protocol, Union

from .hints import type_written

# As many ways to be satisfied as one wait may have.
MOST_COMBINATIONS = 64


class Wait:
    """Something to wait for. A queue stands for one message of it."""

    def combinations(self) -> list[list[Leaf]]:
        """The ways in which it can be satisfied: each a list of what has to have happened."""
        raise NotImplementedError


class Takes(Protocol):
    """A queue."""

    def take(self) -> Wait: ...


Waitable = Union[Wait, Takes]


class WaitError(ValueError):
    """A wait that the engine could not take."""


@dataclass(frozen=True)
class Leaf(Wait):
    """One timer, or some messages of one queue."""

    kind: Literal["timer", "local", "global"]
    fields: Mapping[str, Any]
    queue: Any = None
    id: str | None = None
    type: Any = None

    def combinations(self) -> list[list[Leaf]]:
        return [[self]]

    @property
    def queue_name(self) -> str:
        """Its queue. One that a class declares has its name only when the class is complete."""
        return self.queue if isinstance(self.queue, str) else str(self.queue.name)


@dataclass(frozen=True)
class Combined(Wait):
    """Any or all of several."""

    any: bool
    parts: tuple[Wait, ...]

    def combinations(self) -> list[list[Leaf]]:
        parts = [part.combinations() for part in self.parts]
        if self.any:
            return _bounded([way for ways in parts for way in ways])
        result: list[list[Leaf]] = [[]]
        for ways in parts:
            pairs = itertools.islice(itertools.product(result, ways), MOST_COMBINATIONS + 1)
            result = _bounded([_union(one, other) for one, other in pairs])
        return result


def _union(one: list[Leaf], other: list[Leaf]) -> list[Leaf]:
    return one + [leaf for leaf in other if leaf not in one]


def _bounded(ways: list[list[Leaf]]) -> list[list[Leaf]]:
    if len(ways) > MOST_COMBINATIONS:
        raise WaitError(
            f"the wait has more than {MOST_COMBINATIONS} combinations when it is written out: "
            "wait for less at a time, in several states"
        )
    return ways


def timer(
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    at: datetime | None = None,
    id: str | None = None,
) -> Wait:
    """Waits for so long, or until a moment. `at` needs a time zone."""
    delay, moment = when("a timer", days=days, hours=hours, minutes=minutes, seconds=seconds, at=at)
    return Leaf("timer", {"delayInSeconds": delay} if moment is None else {"fireAt": moment}, id=id)


def when(what: str, *, at: object, **lengths: object) -> tuple[float, str | None]:
    """A delay in seconds, or a moment as JSON has it. Raises WaitError, which names what is wrong."""
    delay = 0.0
    for name, length in lengths.items():
        if isinstance(length, bool) or not isinstance(length, (int, float)) or (isinstance(length, float) and not math.isfinite(length)):
            raise WaitError(f"{name}={length!r} of {what} is no length of time")
        try:
            delay += timedelta(**{name: length}).total_seconds()
        except OverflowError:
            raise WaitError(f"{name}={length!r} of {what} is longer than Python's longest time, of 999999999 days") from None
    if at is None:
        if delay < 0:
            raise WaitError(f"{what} can't wait for less than no time: it would be before now")
        return delay, None
    if delay:
        raise WaitError(f"{what} has a delay or `at`, not both")
    if not isinstance(at, datetime):
        raise WaitError(f"at={at!r} of {what} is no datetime: write datetime(2027, 1, 31, 8, tzinfo=timezone.utc)")
    if at.utcoffset() is None:
        raise WaitError(f"at={at!r} of {what} needs a time zone, as in datetime(2027, 1, 31, 8, tzinfo=timezone.utc)")
    try:
        return delay, at.astimezone(timezone.utc).isoformat()
    except OverflowError:
        raise WaitError(f"at={at!r} of {what} is before the first moment or after the last one that Python has in UTC") from None


def queue(name: str, count: int = 1, *, type: Any = Any, id: str | None = None) -> Wait:
    """Waits for messages of a local queue by its name; `xdb.results()` has them."""
    return Leaf("local", amount(count), name, id, type)


def amount(count: int = 1, at_least: int | None = None, at_most: int | None = None) -> dict[str, int]:
    """How many messages a command takes, as the protocol has it."""
    given = {"atLeast": at_least, "atMost": at_most}
    bounds = {key: value for key, value in given.items() if value is not None}
    if bounds and count != 1:
        raise WaitError("take() has a count, or at_least and at_most, not both")
    if any(value < 1 for value in (count, *bounds.values())):
        raise WaitError("take() needs at least one message")
    if at_least is not None and at_most is not None and at_most < at_least:
        raise WaitError("at_most is less than at_least")
    return bounds or {"count": count}


def any_of(*parts: Waitable) -> Wait:
    """Waits until one of them has happened."""
    return Combined(True, _parts("any_of", parts))


def all_of(*parts: Waitable) -> Wait:
    """Waits until all of them have happened."""
    return Combined(False, _parts("all_of", parts))


def _parts(function: str, parts: tuple[Waitable, ...]) -> tuple[Wait, ...]:
    if not parts:
        raise WaitError(f"{function}() waits for nothing: give it timers and queues")
    return tuple(as_wait(part) for part in parts)


def as_wait(part: object) -> Wait:
    """A wait as it is, and for a queue the wait for one message of it."""
    if isinstance(part, Wait):
        return part
    take, written = getattr(part, "take", None), type_written(part)
    if take is not None and written is not None:
        raise WaitError(f"{written} is the type of a queue, and none: write {written}()")
    if take is None:
        raise WaitError(f"{part!r} is nothing to wait for: use a queue, xdb.timer(), xdb.any_of() or xdb.all_of()")
    taken: Wait = take()
    return taken


@dataclass(frozen=True)
class Commands:
    """A wait as the engine gets it. Each command has an id, its leaf one of `leaves`."""

    request: Mapping[str, Any]
    leaves: Mapping[str, Leaf]


def commands(wait: Wait) -> Commands:
    """The `commandRequest` of a wait. What is equal in it is one command."""
    ways = wait.combinations()
    leaves: list[Leaf] = []
    for way in ways:
        leaves = _union(leaves, way)
    ids = _ids(leaves)
    request: dict[str, Any] = {"waitingType": "AnyOfCombination"}
    if len(ways) == 1:
        request["waitingType"] = "AllOfCompletion"
    elif all(len(way) == 1 for way in ways):
        request["waitingType"] = "AnyOfCompletion"
    else:
        # A way that needs all of another and more can't be the first to be satisfied.
        sets = [frozenset(ids[leaves.index(leaf)] for leaf in way) for way in ways]
        request["combinations"] = [sorted(one) for one in dict.fromkeys(sets) if not any(other < one for other in sets)]
    for key, kind in (("timerCommands", "timer"), ("localQueueCommands", "local"), ("globalQueueCommands", "global")):
        found = [_command(leaf, id) for leaf, id in zip(leaves, ids) if leaf.kind == kind]
        if found:
            request[key] = found
    return Commands(request, dict(zip(ids, leaves)))


def _command(leaf: Leaf, id: str) -> dict[str, Any]:
    name = {} if leaf.kind == "timer" else {"queueName": leaf.queue_name}
    return {"commandId": id, **name, **leaf.fields}


def _ids(leaves: list[Leaf]) -> list[str]:
    """The given ids, and for the others the name of the queue, or `timer`, with a number from the second on."""
    taken = [leaf.id for leaf in leaves if leaf.id is not None]
    if len(set(taken)) < len(taken):
        raise WaitError(f"two parts of a wait have the same id: {', '.join(sorted(taken))}")
    ids = []
    for leaf in leaves:
        id = leaf.id
        if id is None:
            name = "timer" if leaf.kind == "timer" else leaf.queue_name
            id = next(each for n in itertools.count(1) if (each := name if n == 1 else f"{name}-{n}") not in taken)
            taken.append(id)
        ids.append(id)
    return ids
