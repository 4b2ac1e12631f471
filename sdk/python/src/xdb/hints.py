"""Reads the annotations of classes as types, and writes types as text for messages."""

from __future__ import annotations

import typing
from typing import Any

from .scalars import CodecError, name_of


def hints_of(cls: Any, include_extras: bool = False) -> dict[str, Any]:
    """The annotations of a class and its base classes. Raises `CodecError` for a name that is not defined."""
    try:
        return typing.get_type_hints(cls, include_extras=include_extras)
    except NameError as error:
        raise CodecError(f"an annotation of {name_of(cls)} can't be read: {error}", cls) from None


def type_written(value: Any) -> str | None:
    """A class of the SDK as source text, with its type arguments. None if the value is not a class."""
    kind = typing.get_origin(value) or value
    if not isinstance(kind, type):
        return None
    args = [getattr(each, "__forward_arg__", None) or name_of(each) for each in typing.get_args(value)]
    return f"xdb.{kind.__name__}[{', '.join(args) or '...'}]"


def required_keys(cls: Any) -> set[str]:
    """The required keys of a TypedDict. `__required_keys__` alone ignores NotRequired if annotations are strings."""
    required = set(cls.__required_keys__)
    for name, hint in hints_of(cls, include_extras=True).items():
        while typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        # Compared by name: in Python 3.10 those of typing_extensions are different objects.
        marker = getattr(typing.get_origin(hint), "_name", None)
        if marker == "Required":
            required.add(name)
        elif marker == "NotRequired":
            required.discard(name)
    return required
