"""Converts values that are one of several: literals, members of an Enum, unions. Part of codec.py."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from .jsontext import dumps
from .same import difference
from .scalars import KIND_OF, CodecError, Plan, name_of, wrong


def one_of(annotation: Any, values: list[tuple[Any, Any]]) -> Plan:
    """The plan of a Literal or an Enum. `values` are its values or members, each with its JSON."""
    seen: dict[tuple[str, bytes], Any] = {}
    for value, code in values:
        other = seen.setdefault((kind_of(code), dumps(code)), value)
        if other is not value:
            raise CodecError(f"{other!r} and {value!r} have the same JSON, {code!r}", annotation)

    def same(one: Any, other: Any) -> bool:
        numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
        alike = numbers and isinstance(one, bool) is isinstance(other, bool)
        return (alike or type(one) is type(other)) and bool(one == other)

    def to_json(value: Any) -> Any:
        for each, raw in values:
            if same(each, value):
                return raw
        raise wrong(value, annotation)

    def from_json(raw: Any) -> Any:
        for each, code in values:
            if same(code, raw):
                return each
        raise wrong(raw, annotation, f", whose values are {', '.join(repr(code) for _, code in values)}")

    return Plan(to_json, from_json, kinds=frozenset(kind_of(code) for _, code in values))


def kind_of(raw: Any) -> str:
    """The JSON type of a value, as in `scalars.KIND_OF`."""
    return next(kind for cls, kind in KIND_OF.items() if isinstance(raw, cls))


def union(annotation: Any, plans: list[Plan]) -> Plan:
    """The plan of a union: the first alternative that fits, in the order of the annotation.

    Writing refuses a value that would be read back as an earlier alternative.
    """
    alternatives = list(zip(typing.get_args(annotation), plans))
    beside_none = [each for each, _ in alternatives if each is not type(None)]
    only = beside_none[0] if len(beside_none) == 1 else plans

    def first(value: Any, each: Callable[[Plan], Any]) -> Any:
        deepest: CodecError | None = None
        meant: CodecError | None = None
        for alternative, plan in alternatives:
            try:
                return each(plan)
            except CodecError as error:
                if error.is_ambiguous:
                    raise
                # The error from the deepest place belongs to the alternative that was meant.
                if error.path and (deepest is None or len(error.path) > len(deepest.path)):
                    deepest = error
                if alternative is only:
                    meant = error
        # In `X | None`, X was meant. If the value just is no X, an error about the whole union says it better.
        if deepest is None and meant is not None and str(meant) != str(wrong(value, only)):
            deepest = meant
        raise deepest or wrong(value, annotation)

    def encoded(plan: Plan, value: Any) -> Any:
        raw = plan.encode(value)
        for number, earlier in enumerate(plans):
            if earlier is plan:
                break
            if not earlier.kinds.isdisjoint(plan.kinds):
                refuse_another(number, earlier, plan, value, raw)
        return raw

    def refuse_another(number: int, earlier: Plan, plan: Plan, value: Any, raw: Any) -> None:
        try:
            back = earlier.decode(raw)
        except CodecError:
            return
        if difference(value, back) is not None or difference(plan.decode(raw), back, of_classes=True) is not None:
            taken = name_of(alternatives[number][0])
            problem = f"this {type(value).__name__} would be read back as {taken}, which comes earlier in {name_of(annotation)}"
            error = CodecError(problem, annotation)
            error.is_ambiguous = True
            raise error

    return Plan(
        lambda value: first(value, lambda plan: encoded(plan, value)),
        lambda raw: first(raw, lambda plan: plan.decode(raw)),
        kinds=frozenset().union(*(plan.kinds for plan in plans)),
    )
