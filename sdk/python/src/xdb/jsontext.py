"""Reads and writes JSON as text, without loss of digits."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from .scalars import CodecError, Exact

TOO_DEEP = "the value is nested too deeply, or contains itself"

JSON: TypeAlias = "None | bool | int | float | str | list[Any] | dict[str, Any]"


def loads(text: bytes | str) -> JSON:
    """Reads JSON. Numbers with a point or an exponent become `Exact`. Raises `CodecError` for NaN and infinities, `ValueError` else."""
    value: JSON
    try:
        value = json.loads(text, parse_float=Exact, parse_constant=_no_constant)
    except (json.JSONDecodeError, UnicodeDecodeError, CodecError):
        raise
    except RecursionError:
        raise CodecError(TOO_DEEP) from None
    except ValueError:  # an integer with more digits than Python converts
        value = json.loads(text, parse_float=Exact, parse_constant=_no_constant, parse_int=_long_int)
    return value


def dumps(value: JSON) -> bytes:
    """Writes JSON, as UTF-8 without spaces. Raises `CodecError` for what JSON can't hold."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        raise CodecError("the text has half of a surrogate pair, which UTF-8 can't hold") from None
    except RecursionError:
        raise CodecError(TOO_DEEP) from None
    except ValueError as error:
        raise CodecError(f"the value can't become JSON: {error}") from None


def storable(text: str) -> str:
    """A message, with the characters replaced that Postgres can't store: NUL, and half of a surrogate pair."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _no_constant(text: str) -> Any:
    raise CodecError(f"{text} is not a JSON value")


def _long_int(text: str) -> int | Exact:
    return int(text) if len(text) < 4000 else Exact(text)


def exact(raw: JSON) -> str:
    """JSON text with the original digits of its numbers, for libraries that read JSON themselves."""
    if isinstance(raw, Exact):
        return raw.text
    if isinstance(raw, list):
        return "[" + ",".join(exact(each) for each in raw) + "]"
    if isinstance(raw, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{exact(value)}" for key, value in raw.items()) + "}"
    return json.dumps(raw)
