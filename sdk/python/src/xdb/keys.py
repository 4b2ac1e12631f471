"""Keys of objects, which are texts in JSON."""

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
    """What a NewType or a `type X = ...` stands for, or None where it is neither."""
    if isinstance(annotation, type):
        return None
    return getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)


def key_back(annotation: Any, plan: Plan) -> Callable[[str], Any]:
    """How keys become values again. Those of whole numbers were made texts. Raises CodecError for what can be no key."""
    kinds = set(_kinds(annotation))
    for kind in kinds:
        if isinstance(kind, type) and (issubclass(kind, _NONE) or dataclasses.is_dataclass(kind)):
            raise CodecError(f"{name_of(kind)} is no key, which in JSON is a text: use str, int, an Enum or the like", annotation)
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
    """The types that keys of an annotation may have, those of literals and of an Enum as they are in JSON."""
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
    """A mapping with its keys and values converted. `read_back` reads keys of which a whole number may be read as a text."""
    result: dict[Any, Any] = {}
    for key, value in values.items():
        try:
            code = to(key)
            if not back and not isinstance(code, str):
                if not isinstance(code, int) or isinstance(code, bool):
                    raise CodecError("a key in JSON is a text")
                code = str(code)
                if read_back is not None and difference(key, read_back(code)) is not None:
                    raise CodecError("this key is a number, and would be read back as a text")
            if code in result:
                raise CodecError(f"two keys are {code!r} in JSON")
            result[code] = one(value)
        except CodecError as error:
            raise error.under(f"[{key!r}]")
    return result
