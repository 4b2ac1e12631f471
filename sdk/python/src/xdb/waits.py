"""What a state waits for: timers, messages, and any or all of several waits.

`commands` turns a wait into the `commandRequest` of the protocol. Limitations: 64 combinations of one wait.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, Protocol, Union

from .hints import type_written

# The engine's limit for the combinations of one wait.
MOST_COMBINATIONS = 64


class Wait:
    """Something to wait for. Made by `timer`, `cron`, `queue`, `any_of`, `all_of` and by `take()` of queues."""

    def combinations(self) -> list[list[Leaf]]:
        """The ways in which the wait can complete: each is a list of timers and messages that all have to come."""
        raise NotImplementedError


class Takes(Protocol):
    """A queue, which as a wait stands for one of its messages."""

    def take(self) -> Wait:
        """A wait for one message."""
        ...


Waitable = Union[Wait, Takes]


class WaitError(ValueError):
    """A wait that the engine would refuse."""


@dataclass(frozen=True)
class Leaf(Wait):
    """One timer, or messages of one queue."""

    kind: Literal["timer", "local", "global"]
    # The rest of its command, as the protocol names it.
    fields: Mapping[str, Any]
    # The queue, or its name. None for a timer.
    queue: Any = None
    # The command's id. None: `_ids` makes one.
    id: str | None = None
    # The type of the messages, if the queue is given by its name.
    type: Any = None

    def combinations(self) -> list[list[Leaf]]:
        return [[self]]

    @property
    def queue_name(self) -> str:
        """The name of the queue. Read it late: a queue that a class declares gets its name when the class is complete."""
        return self.queue if isinstance(self.queue, str) else str(self.queue.name)


@dataclass(frozen=True)
class Combined(Wait):
    """Any or all of several waits."""

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
            f"the wait has more than {MOST_COMBINATIONS} combinations of timers and messages: "
            "split it over several states"
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
    """Waits for the sum of the given lengths of time, or until the time `at`, which needs a time zone.

    `id` names the timer in `xdb.results()`; default `timer`, with a number from the second one on. Raises `WaitError`.
    """
    delay, moment = when("a timer", days=days, hours=hours, minutes=minutes, seconds=seconds, at=at)
    return Leaf("timer", {"delayInSeconds": delay} if moment is None else {"fireAt": moment}, id=id)


def cron(expression: str, *, timezone: str = "UTC", id: str | None = None) -> Wait:
    """Waits for the next tick of a cron expression, as in `xdb.cron("0 3 * * mon-fri", timezone="Europe/Berlin")`.

    The five fields are those of cron; `@hourly` to `@yearly` and `@every 90 seconds` are possible too. The engine checks the
    expression and the name of the time zone. `id` is as for `timer`. Raises `WaitError`.
    """
    for name, given in (("expression", expression), ("timezone", timezone)):
        if not isinstance(given, str) or not given:
            raise WaitError(f"{name}={given!r} of a cron is not a text")
    return Leaf("timer", {"cron": expression, "timezone": timezone}, id=id)


def when(what: str, *, at: object, **lengths: object) -> tuple[float, str | None]:
    """A delay in seconds, or a time as ISO text. `what` names the thing in messages. Raises `WaitError`."""
    delay = 0.0
    for name, length in lengths.items():
        if isinstance(length, bool) or not isinstance(length, (int, float)) or (isinstance(length, float) and not math.isfinite(length)):
            raise WaitError(f"{name}={length!r} of {what} is not a finite number")
        try:
            delay += timedelta(**{name: length}).total_seconds()
        except OverflowError:
            raise WaitError(f"{name}={length!r} of {what} is longer than 999999999 days, the longest time of Python") from None
    if at is None:
        if delay < 0:
            raise WaitError(f"{what} has a delay of {delay:g} s: it must not be negative")
        return delay, None
    if delay:
        raise WaitError(f"{what} has both a delay and at=: give one of them")
    if not isinstance(at, datetime):
        raise WaitError(f"at={at!r} of {what} is not a datetime: write datetime(2027, 1, 31, 8, tzinfo=timezone.utc)")
    if at.utcoffset() is None:
        raise WaitError(f"at={at!r} of {what} has no time zone: write datetime(2027, 1, 31, 8, tzinfo=timezone.utc)")
    try:
        return delay, at.astimezone(timezone.utc).isoformat()
    except OverflowError:
        raise WaitError(f"at={at!r} of {what} is outside of Python's range of times in UTC") from None


def queue(name: str, count: int = 1, *, type: Any = Any, id: str | None = None) -> Wait:
    """Waits for `count` messages of a local queue, given by its name. `xdb.results()` has them, read as `type`.

    `id` names the command; default the queue's name. Raises `WaitError` if `count` is less than 1.
    """
    return Leaf("local", amount(count), name, id, type)


def amount(count: int = 1, at_least: int | None = None, at_most: int | None = None) -> dict[str, int]:
    """How many messages a command consumes, as fields of the protocol. Raises `WaitError`."""
    given = {"atLeast": at_least, "atMost": at_most}
    bounds = {key: value for key, value in given.items() if value is not None}
    if bounds and count != 1:
        raise WaitError(f"take() has count={count} beside at_least= or at_most=: give one or the other")
    if (least := min(count, *bounds.values()) if bounds else count) < 1:
        raise WaitError(f"take() of {least} messages: it must be 1 or more")
    if at_least is not None and at_most is not None and at_most < at_least:
        raise WaitError(f"at_most={at_most} is less than at_least={at_least}")
    return bounds or {"count": count}


def any_of(*parts: Waitable) -> Wait:
    """Waits until one of the parts has completed. Parts are queues, timers and other waits. Raises `WaitError` without parts."""
    return Combined(True, _parts("any_of", parts))


def all_of(*parts: Waitable) -> Wait:
    """Waits until all of the parts have completed. Parts are queues, timers and other waits. Raises `WaitError` without parts."""
    return Combined(False, _parts("all_of", parts))


def _parts(function: str, parts: tuple[Waitable, ...]) -> tuple[Wait, ...]:
    if not parts:
        raise WaitError(f"{function}() has no parts: give it timers and queues")
    return tuple(as_wait(part) for part in parts)


def as_wait(part: object) -> Wait:
    """A wait itself, or for a queue a wait for one of its messages. Raises `WaitError` for anything else."""
    if isinstance(part, Wait):
        return part
    take, written = getattr(part, "take", None), type_written(part)
    if take is not None and written is not None:
        raise WaitError(f"{written} is a type that was not called: write {written}()")
    if take is None:
        raise WaitError(f"{part!r} can't be waited for: use a queue, xdb.timer(), xdb.cron(), xdb.any_of() or xdb.all_of()")
    taken: Wait = take()
    return taken


@dataclass(frozen=True)
class Commands:
    """A wait as the engine gets it: the `commandRequest`, and the leaf of each command by its id."""

    request: Mapping[str, Any]
    leaves: Mapping[str, Leaf]


def commands(wait: Wait) -> Commands:
    """The commands of a wait. Equal timers or equal waits for a queue are one command. Raises `WaitError`."""
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
        # A combination that contains another one never completes first, so it is left out.
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
    """The ids of commands: as given, else the name of the queue, or `timer`, with a number from the second one on."""
    taken = [leaf.id for leaf in leaves if leaf.id is not None]
    if len(set(taken)) < len(taken):
        raise WaitError(f"two parts of a wait have the same id; the ids are {', '.join(sorted(taken))}")
    ids = []
    for leaf in leaves:
        id = leaf.id
        if id is None:
            name = "timer" if leaf.kind == "timer" else leaf.queue_name
            id = next(each for n in itertools.count(1) if (each := name if n == 1 else f"{name}-{n}") not in taken)
            taken.append(id)
        ids.append(id)
    return ids
