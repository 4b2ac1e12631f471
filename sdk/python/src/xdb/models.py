"""Converts classes that make or check their own values: models of pydantic and msgspec, and some dataclasses. Part of codec.py.

Models are recognised by their attributes, so neither library is imported unless the application uses it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from .jsontext import exact as with_all_digits
from .same import difference, difference_in
from .scalars import CodecError, Plan, name_of, wrong


def model(cls: Any, as_json: Callable[[Any], Any]) -> Plan | None:
    """The plan of a model, or None for other classes. `as_json` refuses values that JSON can't hold."""
    if hasattr(cls, "model_validate") and hasattr(cls, "model_dump"):
        to_builtins, build = _pydantic(cls)
    elif hasattr(cls, "__struct_fields__"):
        to_builtins, build = _msgspec(cls)
    else:
        return None

    def to_json(value: Any) -> Any:
        exact(value, cls)
        try:
            raw = to_builtins(value)
        except Exception as error:
            raise CodecError(f"this {name_of(cls)} can't become JSON: {error}", cls) from error
        return as_json(raw)

    return taken_back(Plan(to_json, lambda raw: built(cls, build, raw)))


def _pydantic(cls: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    def build(raw: Any) -> Any:
        try:
            return cls.model_validate(raw)
        except ValueError:
            if not hasattr(cls, "model_validate_json"):
                raise
            # A strict field accepts a time as text only from JSON, but reading JSON would lose digits of a Decimal. So the
            # JSON is only checked, and the value is made without strictness.
            cls.model_validate_json(with_all_digits(raw))
            return cls.model_validate(raw, strict=False)

    return lambda value: value.model_dump(mode="json", by_alias=True), build


def _msgspec(cls: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    msgspec: Any = importlib.import_module("msgspec")
    return msgspec.to_builtins, lambda raw: msgspec.json.decode(with_all_digits(raw), type=cls)


def exact(value: Any, cls: Any) -> None:
    """Raises `CodecError` unless the value is of exactly this class: a subclass would be read back as another value."""
    if type(value) is not cls:
        below = f": {name_of(type(value))} is a subclass, and would be read back without what it adds" if isinstance(value, cls) else ""
        raise wrong(value, cls, below)


def taken_back(plan: Plan, hidden: Sequence[str] | None = None) -> Plan:
    """A plan whose `encode` also reads the JSON back, and refuses a value that would not come back equal.

    Needed because a value may have bypassed the checks of its class, or have fields that its JSON lacks. Without `hidden` the values are
    compared. For a dataclass the JSON is compared, and the fields in `hidden`, because fields of type `Any` may be read as other types.
    """

    def to_json(value: Any) -> Any:
        raw = plan.encode(value)
        back = plan.decode(raw)
        if hidden is None:
            place = difference(value, back)
        else:
            place = difference(raw, plan.encode(back))
            place = difference_in(hidden, value, back) if place is None else place
        if place is not None:
            # The message has no values, because they may be secrets.
            raise CodecError("this would be read back as another value", type(value), place)
        return raw

    return Plan(to_json, plan.decode, plan.encode, plan.kinds)


def makes_itself(cls: Any, hidden: Sequence[str]) -> bool:
    """Whether an instance of a dataclass may have other values than its arguments. Dataclasses of pydantic check theirs in a validator."""
    return (
        bool(hidden)
        or not cls.__dataclass_params__.init
        or cls.__new__ is not object.__new__
        or any(hasattr(cls, name) for name in ("__post_init__", "__pydantic_validator__"))
    )


def built(cls: Any, build: Callable[[Any], Any], raw: Any) -> Any:
    """Makes a value from its fields. If the class refuses them, raises `CodecError`."""
    try:
        return build(raw)
    except Exception as error:
        if hasattr(error, "error_count"):
            # `from None`, because the traceback of pydantic's error would show the values.
            raise _of_fields(cls, error) from None
        raise CodecError(f"not a {name_of(cls)}: {error}", cls) from error


def _of_fields(cls: Any, error: Any) -> CodecError:
    """A pydantic error as `CodecError` without the values, which may be secrets. Its path is that of the first field."""
    found = [(_path(each["loc"]), each["msg"]) for each in error.errors()]
    (path, first), others = found[0], [f"{place.lstrip('.')}: {problem}" for place, problem in found[1:]]
    return CodecError(f"does not fit {name_of(cls)}: {'; '.join([first, *others])}", cls, path)


def _path(loc: tuple[int | str, ...]) -> str:
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in loc)
