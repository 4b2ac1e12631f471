"""Converts values that are one text, number or boolean in JSON, as Postgres' `to_jsonb` writes them. Part of codec.py."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID


class Exact(float):
    """A number of a JSON text: a float that keeps its original digits in `text`."""

    text: str

    def __new__(cls, text: str) -> Exact:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return Exact, (self.text,)


class CodecError(ValueError):
    """A value does not fit its annotation. `path` is the place in the value, `annotation` the expected type, `problem` what is wrong."""

    def __init__(self, problem: str, annotation: Any = Any, path: str = "") -> None:
        super().__init__(problem)
        self.problem, self.annotation, self.path = problem, annotation, path
        # Written by a union whose value would be read back as another alternative; outer unions then try no further alternative.
        self.is_ambiguous = False

    def under(self, place: str) -> CodecError:
        """The same error with `place` in front of its path."""
        self.path = place + self.path
        return self

    def __str__(self) -> str:
        return f"{self.path.lstrip('.')}: {self.problem}" if self.path else self.problem


# The JSON type of a value, by the class that `jsontext.loads` makes of it.
KIND_OF: Mapping[Any, str] = {
    type(None): "null", bool: "boolean", int: "number", float: "number", str: "text", list: "array", dict: "object",
}
ANY_KIND = frozenset(KIND_OF.values())


@dataclass
class Plan:
    """How values of one annotation become JSON (`encode`), and JSON becomes such values (`decode`). Both raise `CodecError`."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    # For a class whose `encode` also reads the value back: `encode` without that check.
    dump: Callable[[Any], Any] | None = None
    # The JSON types that `decode` may accept.
    kinds: frozenset[str] = ANY_KIND


def name_of(annotation: Any) -> str:
    """An annotation as source text."""
    if annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


def wrong(value: object, annotation: Any, hint: str = "") -> CodecError:
    """The error for a value that is not of this annotation."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:79] + "…"
    kind = "null" if value is None else f"{type(value).__name__} {shown}"
    return CodecError(f"{kind} is not {name_of(annotation)}{hint}", annotation)


def scalar(
    cls: type, accepted: Any, in_json: Any, encode: Callable[[Any], Any], decode: Callable[[Any], Any]
) -> Plan:
    """The plan of one class. `accepted` are the classes of values that it encodes, `in_json` those of JSON that it decodes."""
    kinds = in_json if isinstance(in_json, tuple) else (in_json,)

    def to_json(value: Any) -> Any:
        # In Python a bool is an int, and a datetime is a date.
        if not isinstance(value, accepted) or (isinstance(value, (bool, datetime)) and not isinstance(value, cls)):
            raise wrong(value, cls)
        if cls in (int, date) and isinstance(value, (bool, datetime)):
            raise wrong(value, cls)
        try:
            raw = encode(value)
            # A subclass may hold more, for instance the nanoseconds of pandas.
            if type(value) is cls or not is_lost(value, raw):
                return raw
        except CodecError:
            raise
        except (ValueError, ArithmeticError, TypeError) as error:
            raise CodecError(f"this {type(value).__name__} can't become JSON: {error}", cls) from None
        raise CodecError(f"this {name_of(type(value))} would be read back as another {name_of(cls)}", cls)

    def is_lost(value: Any, raw: Any) -> bool:
        back = decode(raw)
        return not (back == value or isinstance(back, datetime) and is_same_moment(value, back))

    def from_json(raw: Any) -> Any:
        if not isinstance(raw, in_json) or (isinstance(raw, bool) and cls is not bool):
            raise wrong(raw, cls)
        try:
            return decode(raw)
        except CodecError as error:
            raise wrong(raw, cls, f": {error}") from None
        except (ValueError, OverflowError, InvalidOperation):
            raise wrong(raw, cls) from None

    return Plan(to_json, from_json, kinds=frozenset(KIND_OF[each] for each in kinds))


def is_same_moment(one: datetime, other: datetime) -> bool:
    """Whether two aware times are the same moment. In the hour that a clock change repeats, Python's `==` says no between time zones."""
    return one.tzinfo is not None and other.tzinfo is not None and bool(one == other.astimezone(one.tzinfo))


def _same(value: Any) -> Any:
    return value


def _text(value: str) -> str:
    if "\0" in value:
        raise CodecError("the text has the character \\0, which jsonb can't hold", str)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise CodecError("the text has half of a surrogate pair, which UTF-8 can't hold", str) from None
    return value


def _int(value: int) -> int:
    str(value)  # raises ValueError for more digits than Python converts
    return value


def _float(value: float) -> float | str:
    if isinstance(value, int):
        if float(value) != value:
            raise CodecError("a float can't hold all digits of this int: annotate it `int`", float)
        return value
    # In JSON, Postgres writes and reads NaN and infinities as texts.
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _float_back(raw: float | str) -> float:
    if isinstance(raw, str) and raw not in ("NaN", "Infinity", "-Infinity"):
        raise CodecError("expected a number")
    return float(raw)


# The most digits that `numeric` has before the point.
_MOST_DIGITS = 131072


def _int_back(raw: int | float) -> int:
    if isinstance(raw, int):
        return raw
    # 1.00 of a numeric column is a whole number.
    number = _decimal_back(raw)
    if number.adjusted() > _MOST_DIGITS or number != number.to_integral_value():
        raise CodecError("expected a whole number")
    return int(number)


def _decimal_back(raw: int | float | str) -> Decimal:
    if isinstance(raw, Exact):
        return Decimal(raw.text)
    return Decimal(repr(raw) if isinstance(raw, float) else raw)


def _iso(text: str) -> str:
    """Rewrites ISO 8601 so that Python 3.10 reads it: six digits of microseconds, and an offset with minutes instead of Z."""
    text = re.sub(r"\.(\d+)", lambda found: "." + (found[1] + "000000")[:6], text, count=1)
    text = text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text
    return text + ":00" if re.search(r":\d\d(\.\d+)?[+-]\d\d$", text) else text


_INTERVAL = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)W)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+(?:\.\d+)?)S)?)?"
)


def _interval(value: timedelta) -> str:
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    seconds = f"{value.seconds}.{value.microseconds:06d}".rstrip("0").rstrip(".")
    days = f"{sign}{value.days}D" if value.days else ""
    return "P" + ((days + (f"T{sign}{seconds}S" if seconds != "0" else "")) or "T0S")


def _interval_back(raw: str) -> timedelta:
    found = _INTERVAL.fullmatch(raw)
    if found is None or not any(found.groups()):
        raise CodecError("expected an interval in ISO 8601, as in P1DT2H")
    years, months, weeks, days, hours, minutes, seconds = (part or "0" for part in found.groups())
    if int(years) or int(months):
        raise CodecError("months and years have no fixed length: annotate it `str`")
    whole = timedelta(weeks=int(weeks), days=int(days), hours=int(hours), minutes=int(minutes))
    return whole + timedelta(microseconds=int(Decimal(seconds) * 1_000_000))


def _bytes_back(raw: str) -> bytes:
    if not raw.startswith("\\x"):
        raise CodecError("expected bytes as Postgres writes them, as in \\x0102")
    return bytes.fromhex(raw[2:])


SCALARS: dict[Any, Plan] = {
    str: scalar(str, str, str, _text, _same),
    bool: scalar(bool, bool, bool, _same, _same),
    int: scalar(int, int, (int, float), _int, _int_back),
    float: scalar(float, (int, float), (int, float, str), _float, _float_back),
    Decimal: scalar(Decimal, (int, Decimal), (int, float, str), str, _decimal_back),
    datetime: scalar(datetime, datetime, str, datetime.isoformat, lambda raw: datetime.fromisoformat(_iso(raw))),
    date: scalar(date, date, str, date.isoformat, date.fromisoformat),
    time: scalar(time, time, str, time.isoformat, lambda raw: time.fromisoformat(_iso(raw))),
    timedelta: scalar(timedelta, timedelta, str, _interval, _interval_back),
    UUID: scalar(UUID, UUID, str, str, UUID),
    bytes: scalar(bytes, bytes, str, lambda value: "\\x" + value.hex(), _bytes_back),
    type(None): scalar(type(None), type(None), type(None), _same, _same),
}
