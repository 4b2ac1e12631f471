"""Converts values to JSON and back, by their annotations. Postgres' `jsonb_to_record` and other languages can read the JSON.

A value is written only if reading gives an equal value. Numbers keep their digits: a JSON number with a point is read as `Exact`, and a
`Decimal` is written as a string.

| file | converts |
|---|---|
| scalars.py | texts, numbers, booleans, times |
| choices.py | literals, enums, unions |
| keys.py | keys of objects |
| models.py | models of pydantic and msgspec |
| same.py | nothing: it compares what was read with what was written |
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import threading
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Union

from .choices import one_of, union
from .hints import hints_of, required_keys
from .jsontext import JSON, TOO_DEEP, dumps, loads
from .keys import entries, key_back, wrapped
from .models import built, exact, makes_itself, model, taken_back
from .scalars import SCALARS, CodecError, Exact, Plan, name_of, wrong

__all__ = ["JSON", "CodecError", "Exact", "check", "decode", "dumps", "encode", "is_immutable", "loads", "name_of"]


def encode(value: object, annotation: Any = Any, path: str = "") -> JSON:
    """The JSON of a value. Raises `CodecError`, with the place in the value, if it does not fit or would be read back as another value."""
    try:
        result: JSON = _plan(annotation).encode(value)
    except CodecError as error:
        raise error.under(path)
    except RecursionError:
        raise CodecError(TOO_DEEP, annotation, path) from None
    except Exception as error:  # code of the application: a property or an iterator
        raise CodecError(f"this {type(value).__name__} can't be written: {type(error).__name__}: {error}", annotation, path) from error
    return result


def decode(raw: JSON, annotation: Any = Any, path: str = "") -> Any:
    """The value that JSON stands for. Raises `CodecError`, with the place in the JSON, if it does not fit the annotation."""
    try:
        return _plan(annotation).decode(raw)
    except CodecError as error:
        raise error.under(path)
    except RecursionError:
        raise CodecError(TOO_DEEP, annotation, path) from None


def check(annotation: Any) -> None:
    """Raises `CodecError` if values of this annotation can't become JSON."""
    _plan(annotation)


def is_immutable(value: object) -> bool:
    """Whether a value can't be changed in place."""
    return isinstance(value, _IMMUTABLE)


_IMMUTABLE = (*SCALARS, enum.Enum)
# Finished plans by annotation. Written under `_making`, read without it.
_plans: dict[Any, Plan] = {}
# Plans that are being made, under `_making`. A type that contains itself finds its plan here, and the plan is filled in at the end.
_unfinished: dict[Any, Plan] = {}
_making = threading.RLock()


def _key(annotation: Any) -> Any:
    """A key for an annotation that keeps the order of unions. To Python, `int | str` equals `str | int`."""
    args = getattr(annotation, "__args__", None)
    if not args or typing.get_origin(annotation) is Literal:
        return annotation
    return typing.get_origin(annotation), tuple(_key(each) for each in args)


def _plan(annotation: Any) -> Plan:
    key = _key(annotation)
    try:
        found = _plans.get(key)
    except TypeError:  # Annotated with something that can't be hashed
        return _make(annotation)
    if found is not None:
        return found
    with _making:
        if key in _unfinished:
            return _unfinished[key]
        outermost = not _unfinished
        try:
            plan = _unfinished[key] = Plan(_contains_itself, _contains_itself)
            made = _make(annotation)
            plan.encode, plan.decode, plan.dump, plan.kinds = made.encode, made.decode, made.dump, made.kinds
            if outermost:
                _plans.update(_unfinished)
        finally:
            if outermost:
                _unfinished.clear()
    return plan


def _contains_itself(value: Any) -> Any:
    raise CodecError("this type refers only to itself")


def _make(annotation: Any) -> Plan:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _plan(args[0])
    if annotation in (Any, object):
        return Plan(_encode_any, _as_it_is)
    if annotation is None or annotation in SCALARS:
        return SCALARS[type(None) if annotation is None else annotation]
    if origin in (Union, types.UnionType):
        return union(annotation, [_plan(each) for each in args])
    if origin is Literal:
        return one_of(annotation, [(value, encode(value)) for value in args])
    if (inner := wrapped(annotation)) is not None:
        return _plan(inner)
    made = _collection(annotation, origin or annotation, args)
    if made is None and isinstance(annotation, type):
        made = _class(annotation)
    if made is None:
        hint = "use a dataclass, a TypedDict, a pydantic model, a msgspec Struct or a built-in type"
        if isinstance(annotation, typing.TypeVar) or (isinstance(origin, type) and issubclass(origin, typing.Generic)):
            hint = "write one class for each type, without type parameters; only pydantic models may have them"
        raise CodecError(f"{name_of(annotation)} can't become JSON: {hint}", annotation)
    return made


def _as_it_is(raw: Any) -> Any:
    return raw


def _encode_any(value: Any) -> Any:
    """Encodes a value without an annotation, by its own type."""
    kind = type(value)
    if kind in SCALARS:
        return SCALARS[kind].encode(value)
    if kind is object:
        raise CodecError("object can't become JSON")
    if not isinstance(value, enum.Enum) and not hasattr(value, "_fields"):
        # A subclass of a built-in type, for instance Exact or a defaultdict, is written as that type.
        kind = next((base for base in _PLAIN if isinstance(value, base)), kind)
    plan = _plan(kind)
    # Without the check of reading it back: without an annotation it is never read as its class.
    return (plan.dump or plan.encode)(value)


_PLAIN = (dict, list, tuple, set, frozenset, *SCALARS)


_ARRAY, _OBJECT = frozenset({"array"}), frozenset({"object"})


# --- collections -----------------------------------------------------------------------------------------------------


def _collection(annotation: Any, origin: Any, args: tuple[Any, ...]) -> Plan | None:
    if origin is tuple and args and args[-1] is not ...:
        return _tuple(annotation, [_plan(each) for each in args])
    if origin in (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.MutableSequence):
        cls = origin if origin in (list, tuple, set, frozenset) else list
        item = _plan(args[0] if args else Any)

        def to_json(value: Any) -> Any:
            if not isinstance(value, origin) or isinstance(value, (str, bytes)):
                raise wrong(value, annotation)
            items = _items(value, item.encode)
            # Sorted, because the JSON of an unchanged set must stay the same.
            return sorted(items, key=dumps) if cls in (set, frozenset) else items

        def from_json(raw: Any) -> Any:
            items = _items(_expect(raw, list, annotation), item.decode)
            return built(annotation, cls, items)

        plan = Plan(to_json, from_json, kinds=_ARRAY)
        # In a set without a type, a tuple would be read back as a list, which a set can't hold.
        return taken_back(plan, ()) if cls in (set, frozenset) and item.decode is _as_it_is else plan
    if origin in (dict, collections.abc.Mapping, collections.abc.MutableMapping):
        key, value = (_plan(each) for each in args or (Any, Any))
        back = key_back(args[0] if args else Any, key)
        read_back = back if args and "text" in key.kinds and "number" in key.kinds else None
        return Plan(
            lambda given: entries(_expect(given, Mapping, annotation), key.encode, value.encode, read_back=read_back),
            lambda raw: entries(_expect(raw, dict, annotation), back, value.decode, back=True),
            kinds=_OBJECT,
        )
    return None


def _expect(value: Any, kind: Any, annotation: Any) -> Any:
    if not isinstance(value, kind):
        raise wrong(value, annotation)
    return value


def _items(values: Iterable[Any], one: Callable[[Any], Any]) -> list[Any]:
    result: list[Any] = []
    try:
        for value in values:
            result.append(one(value))
    except CodecError as error:
        raise error.under(f"[{len(result)}]")
    return result


def _tuple(annotation: Any, plans: list[Plan]) -> Plan:
    def each(values: Any, kind: Any, convert: Callable[[Plan, Any], Any]) -> list[Any]:
        if len(_expect(values, kind, annotation)) != len(plans):
            raise wrong(values, annotation)
        rest = iter(plans)
        return _items(values, lambda value: convert(next(rest), value))

    return Plan(
        lambda value: each(value, tuple, lambda plan, item: plan.encode(item)),
        lambda raw: tuple(each(raw, list, lambda plan, item: plan.decode(item))),
        kinds=_ARRAY,
    )


# --- classes ---------------------------------------------------------------------------------------------------------


def _class(cls: Any) -> Plan | None:
    bases: tuple[type, ...] = cls.__mro__
    if enum.Enum in bases:
        return one_of(cls, [(member, encode(member.value)) for member in cls])
    if (plan := model(cls, _encode_any)) is not None:
        return plan
    if typing.is_typeddict(cls) or hasattr(cls, "__required_keys__"):
        return _record(cls, dict, required_keys(cls), lambda value: value)
    if tuple in bases and hasattr(cls, "_fields"):
        required = set(cls._fields) - set(cls._field_defaults)
        return _record(cls, cls, required, lambda value: value._asdict())
    if dataclasses.is_dataclass(cls):
        fields = [field for field in dataclasses.fields(cls) if field.init]
        missing = dataclasses.MISSING
        required = {each.name for each in fields if each.default is missing and each.default_factory is missing}
        names = [each.name for each in fields]
        plan = _record(cls, cls, required, lambda value: {name: getattr(value, name) for name in names}, names)
        hidden = [field.name for field in dataclasses.fields(cls) if not field.init]
        return taken_back(plan, hidden) if makes_itself(cls, hidden) else plan
    return None


def _record(
    cls: Any,
    kind: Any,
    required: Iterable[str],
    fields_of: Callable[[Any], Mapping[str, Any]],
    names: Iterable[str] | None = None,
) -> Plan:
    """The plan of a class with annotated fields: a JSON object. Reading ignores unknown keys."""
    hints = hints_of(cls)
    needed, plans = frozenset(required), {}
    for name in hints if names is None else names:
        try:
            plans[name] = _plan(hints[name])
        except CodecError as error:
            raise error.under(f".{name}")

    def to_json(value: Any) -> Any:
        if kind is dict:
            _expect(value, kind, cls)
        elif type(value) is not cls:
            exact(value, cls)
        given = fields_of(value)
        return _fields(given, given.keys(), lambda name: plans[name].encode(given[name]))

    def from_json(raw: Any) -> Any:
        _expect(raw, dict, cls)
        made = _fields(raw, [name for name in plans if name in raw], lambda name: plans[name].decode(raw[name]))
        return made if kind is dict else built(cls, lambda fields: cls(**fields), made)

    def _fields(given: Mapping[str, Any], present: Iterable[str], one: Callable[[str], Any]) -> dict[str, Any]:
        if missing := [name for name in plans if name in needed and name not in given]:
            raise CodecError("is missing", cls, f".{missing[0]}")
        made = {}
        for name in present:
            try:
                if name not in plans:
                    raise CodecError(f"{name_of(cls)} has no such key", cls)
                made[name] = one(name)
            except CodecError as error:
                raise error.under(f".{name}")
        return made

    return Plan(to_json, from_json, kinds=_OBJECT)
