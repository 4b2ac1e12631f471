"""Classes that check their values themselves: models of pydantic and msgspec, known by what they have, and dataclasses."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .jsontext import exact
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
        if not isinstance(value, cls):
            raise wrong(value, cls)
        try:
            raw = to_builtins(value)
        except (ValueError, TypeError) as error:
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
            cls.model_validate_json(exact(raw))
            return cls.model_validate(raw, strict=False)

    return lambda value: value.model_dump(mode="json", by_alias=True), build


def _msgspec(cls: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    msgspec: Any = importlib.import_module("msgspec")
    return msgspec.to_builtins, lambda raw: msgspec.json.decode(exact(raw), type=cls)


def taken_back(plan: Plan) -> Plan:
    """The same for a class with checks of its own. A value may have got around them, by a change in place or a constructor
    that checks nothing: it is refused when it is written, since nobody could read it again."""

    def to_json(value: Any) -> Any:
        raw = plan.encode(value)
        plan.decode(raw)
        return raw

    return Plan(to_json, plan.decode, plan.encode)


def built(cls: Any, build: Callable[[Any], Any], raw: Any) -> Any:
    """What a class makes of its fields. It may check them itself."""
    try:
        return build(raw)
    except (ValueError, TypeError) as error:
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
