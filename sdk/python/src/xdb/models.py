"""Classes that check their fields themselves: models of pydantic, and Structs of msgspec. Neither has to be there."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .jsontext import exact
from .scalars import CodecError, Plan, name_of, wrong


def of_library(cls: Any, encode_any: Callable[[Any], Any]) -> Plan | None:
    """The plan of a class of one of these libraries. `encode_any` writes what the library has made of a value."""
    if hasattr(cls, "model_validate") and hasattr(cls, "model_dump"):
        return _checked(
            cls, lambda value: encode_any(value.model_dump(mode="json", by_alias=True)), lambda raw: _model(cls, raw)
        )
    if hasattr(cls, "__struct_fields__"):
        msgspec: Any = importlib.import_module("msgspec")
        return _checked(
            cls, lambda value: encode_any(msgspec.to_builtins(value)), lambda raw: msgspec.json.decode(exact(raw), type=cls)
        )
    return None


def _checked(cls: Any, dump: Callable[[Any], Any], load: Callable[[Any], Any]) -> Plan:
    """A class of a library. What it writes is read once, because it may let in what it does not take back: then nobody could ever
    read the value again."""

    def to_json(value: Any) -> Any:
        if not isinstance(value, cls):
            raise wrong(value, cls)
        raw = built(cls, dump, value)
        built(cls, load, raw)
        return raw

    return Plan(to_json, lambda raw: built(cls, load, raw))


def _model(cls: Any, raw: Any) -> Any:
    """A pydantic model. One that is strict takes texts for dates, numbers and the like from a text of JSON alone."""
    try:
        return cls.model_validate(raw)
    except ValueError:
        try:
            return cls.model_validate_json(exact(raw))
        except ValueError:
            pass
        raise


def built(cls: Any, build: Callable[[Any], Any], raw: Any) -> Any:
    """What a class makes of its fields. It may check them itself."""
    try:
        return build(raw)
    except CodecError:
        raise
    except (ValueError, TypeError) as error:
        problem, path = _problem(error)
        raise CodecError(f"not a {name_of(cls)}: {problem}", cls, path) from error


def _problem(error: Any) -> tuple[str, str]:
    """What is wrong, and where in the value. Pydantic's own text has the values too, each of them, and these may be secret."""
    if not hasattr(error, "errors"):
        return str(error), ""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in found[0]["loc"])
    return f"{found[0]['msg']}{more}", place
