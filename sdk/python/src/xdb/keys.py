"""Converts the keys of mappings, which are texts in JSON. Part of codec.py."""

from __future__ import annotations

import dataclasses
import enum
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Union

from .same import difference
from .scalars import CodecError, Plan, name_of

_WHOLE = re.compile("-?[0-9]{1,4000}")
_NONE = (bool, float, type(None), list, tuple, set, frozenset, dict)


def wrapped(annotation: Any) -> Any:
    """The type behind a NewType or a `type X = ...`. None for other annotations."""
    if isinstance(annotation, type):
        return None
    return getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)


def key_back(annotation: Any, plan: Plan) -> Callable[[str], Any]:
    """The function that reads keys back. Whole numbers were written as texts. Raises `CodecError` for types that can't be keys."""
    kinds = set(_kinds(annotation))
    for kind in kinds:
        if isinstance(kind, type) and (issubclass(kind, _NONE) or dataclasses.is_dataclass(kind)):
            raise CodecError(f"{name_of(kind)} can't be a key, because keys of JSON are texts: use str, int or an Enum", annotation)
    if int not in kinds:
        return lambda raw: plan.decode(raw)
    if kinds == {int}:
        return lambda raw: plan.decode(_whole(raw))

    def either(raw: str) -> Any:
        try:
            return plan.decode(raw)
        except CodecError:
            return plan.decode(_whole(raw))

    return either


def _whole(raw: str) -> int | str:
    return int(raw) if _WHOLE.fullmatch(raw) else raw


def _kinds(annotation: Any) -> Iterator[Any]:
    """The types of keys that an annotation allows. For literals and an Enum, the types of their values."""
    origin = typing.get_origin(annotation)
    if (inner := wrapped(annotation)) is not None:
        yield from _kinds(inner)
    elif origin is typing.Annotated:
        yield from _kinds(typing.get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for each in typing.get_args(annotation):
            yield from _kinds(each)
    elif origin is Literal:
        for each in typing.get_args(annotation):
            yield type(each.value if isinstance(each, enum.Enum) else each)
    elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        for member in annotation:
            yield type(member.value)
    else:
        yield type(None) if annotation is None else origin or annotation


def entries(
    values: Mapping[Any, Any],
    to: Callable[[Any], Any],
    one: Callable[[Any], Any],
    back: bool = False,
    read_back: Callable[[str], Any] | None = None,
) -> Any:
    """Converts a mapping: its keys by `to`, its values by `one`. `back`: from JSON.

    `read_back` is given if keys may be both numbers and texts. Then a number that would be read back as a text is refused.
    """
    result: dict[Any, Any] = {}
    for key, value in values.items():
        try:
            code = to(key)
            if not back and not isinstance(code, str):
                if not isinstance(code, int) or isinstance(code, bool):
                    raise CodecError("keys of JSON are texts: use a str or an int")
                code = str(code)
                if read_back is not None and difference(key, read_back(code)) is not None:
                    raise CodecError("this key is a number that would be read back as a text")
            if code in result:
                raise CodecError(f"two keys have the same JSON, {code!r}")
            result[code] = one(value)
        except CodecError as error:
            raise error.under(f"[{key!r}]")
    return result
