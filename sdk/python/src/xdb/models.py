"""Classes that make their values themselves: models of pydantic and msgspec, known by what they have, and dataclasses."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from .jsontext import exact as with_all_digits
from .same import difference, difference_in
from .scalars import CodecError, Plan, name_of, wrong


def model(cls: Any, as_json: Callable[[Any], Any]) -> Plan | None:
    """The plan of a model, or None for another class. `as_json` refuses what no JSON can hold."""
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
            raise CodecError(f"this {name_of(cls)} has no JSON: {error}", cls) from error
        return as_json(raw)

    return taken_back(Plan(to_json, lambda raw: built(cls, build, raw)))


def _pydantic(cls: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    def build(raw: Any) -> Any:
        try:
            return cls.model_validate(raw)
        except ValueError:
            if not hasattr(cls, "model_validate_json"):
                raise
            # A strict field takes the text of a moment from JSON alone, where a Decimal would lose digits: JSON says
            # whether the value fits, and is not read from.
            cls.model_validate_json(with_all_digits(raw))
            return cls.model_validate(raw, strict=False)

    return lambda value: value.model_dump(mode="json", by_alias=True), build


def _msgspec(cls: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    msgspec: Any = importlib.import_module("msgspec")
    return msgspec.to_builtins, lambda raw: msgspec.json.decode(with_all_digits(raw), type=cls)


def exact(value: Any, cls: Any) -> None:
    """Raises CodecError for what is not of this very class: an instance of one below it would be read back as another value."""
    if type(value) is not cls:
        below = f": {name_of(type(value))} is a class below it, and would be read back without what it adds" if isinstance(value, cls) else ""
        raise wrong(value, cls, below)


def taken_back(plan: Plan, hidden: Sequence[str] | None = None) -> Plan:
    """The same for a class that makes its values itself. What it would not read back as it was is refused when it is written: a value may
    have got around its checks, or have a field that its JSON does not have, or hides.

    Of a dataclass, which hides nothing but the fields named here, its JSON is compared: in `Any` it may have what is read otherwise.
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
            # Without the values: they may be secrets.
            raise CodecError("what is written of it would be read back as another value", type(value), place)
        return raw

    return Plan(to_json, plan.decode, plan.encode, plan.kinds)


def makes_itself(cls: Any, hidden: Sequence[str]) -> bool:
    """Whether a dataclass may have other values than those that it is made with. pydantic's own check them without a method."""
    return (
        bool(hidden)
        or not cls.__dataclass_params__.init
        or cls.__new__ is not object.__new__
        or any(hasattr(cls, name) for name in ("__post_init__", "__pydantic_validator__"))
    )


def built(cls: Any, build: Callable[[Any], Any], raw: Any) -> Any:
    """What a class makes of its fields. It may check them itself."""
    try:
        return build(raw)
    except Exception as error:
        if hasattr(error, "error_count"):
            # The traceback of pydantic's own error would show the values.
            raise _of_fields(cls, error) from None
        raise CodecError(f"not a {name_of(cls)}: {error}", cls) from error


def _of_fields(cls: Any, error: Any) -> CodecError:
    """The error of pydantic without the values, which its text has all of; its path is that of the first field."""
    found = [(_path(each["loc"]), each["msg"]) for each in error.errors()]
    (path, first), others = found[0], [f"{place.lstrip('.')}: {problem}" for place, problem in found[1:]]
    return CodecError(f"does not fit {name_of(cls)}: {'; '.join([first, *others])}", cls, path)


def _path(loc: tuple[int | str, ...]) -> str:
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in loc)
