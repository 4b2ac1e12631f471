"""Locks of processes: a process gets all of its locks before its first call, and has them until it closes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

MOST_LOCKS = 32


@dataclass(frozen=True)
class Shared:
    """A lock that processes may share, as in `locks=["account:42", xdb.Shared("system")]`. No other process has it meanwhile."""

    name: str


Lock = Union[str, Shared]


def locks_as_json(locks: Sequence[Lock]) -> list[object]:
    """The key `locks` of a definition and of a start. Raises `TypeError` and `ValueError`."""
    if isinstance(locks, (str, Shared)) or not isinstance(locks, Sequence):
        raise TypeError(f"locks={locks!r} is not a list of names and xdb.Shared(name)")
    names = [lock.name if isinstance(lock, Shared) else lock for lock in locks]
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"the lock {name!r} is not a str: give a name, or xdb.Shared(name)")
        if not name:
            raise ValueError("the name of a lock is empty")
    if len(names) > MOST_LOCKS:
        raise ValueError(f"locks has {len(names)} names: at most {MOST_LOCKS} are allowed")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"the lock {twice!r} is named twice")
    return [{"name": lock.name, "mode": "SHARE"} if isinstance(lock, Shared) else lock for lock in locks]
