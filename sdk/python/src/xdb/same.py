"""Compares a value that was read back with the one that was written. Part of codec.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from .scalars import is_same_moment


def difference(one: Any, other: Any, of_classes: bool = False) -> str | None:
    """The place of the first difference between two values, or None if they are equal.

    Equal numbers of different classes are equal, and so are a tuple and a list, or a set and a frozenset: the annotation decides which is
    read. With `of_classes` these collections differ, because the values are read by two annotations.
    """
    if one is other:
        return None
    if of_classes and _collection(one) is not _collection(other):
        return ""
    names = _fields(type(one))
    if names is not None:
        return "" if type(one) is not type(other) else difference_in(names, one, other, of_classes)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if len(one) != len(other) or any(key not in other for key in one):
            return ""
        return _first(((f"[{key!r}]", value, other[key]) for key, value in one.items()), of_classes)
    if _is_list(one) and _is_list(other):
        if len(one) != len(other):
            return ""
        return _first(((f"[{n}]", *pair) for n, pair in enumerate(zip(one, other))), of_classes)
    return None if _is_equal(one, other) else ""


def difference_in(names: Iterable[str], one: Any, other: Any, of_classes: bool = False) -> str | None:
    """Like `difference`, but compares only these attributes."""
    return _first(((f".{name}", getattr(one, name, None), getattr(other, name, None)) for name in names), of_classes)


def _first(parts: Iterable[tuple[str, Any, Any]], of_classes: bool) -> str | None:
    for place, one, other in parts:
        found = difference(one, other, of_classes)
        if found is not None:
            return place + found
    return None


def _fields(cls: Any) -> Sequence[str] | None:
    """The names of all fields of a class. They are compared one by one, because its `==` may leave some out."""
    if hasattr(cls, "__pydantic_fields__") and hasattr(cls, "model_fields"):
        return [*cls.model_fields, "__pydantic_extra__"]
    if hasattr(cls, "__struct_fields__"):
        return tuple(cls.__struct_fields__)
    if dataclasses.is_dataclass(cls):
        return [each.name for each in dataclasses.fields(cls)]
    return None


def _collection(value: Any) -> type | None:
    return next((kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind)), None)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, datetime) and isinstance(other, datetime) and is_same_moment(one, other):
        return True
    its_own: Any = type(one).__eq__
    if type(one) is type(other) and its_own is object.__eq__:
        return difference(getattr(one, "__dict__", {}), getattr(other, "__dict__", {})) is None
    try:
        # NaN is never equal to itself.
        return bool(one == other) or bool(one != one and other != other)
    except Exception:  # a signalling NaN, or a comparison without a truth value
        return repr(one) == repr(other)
