"""Values that are one of several: literals, members of an Enum, unions."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from .scalars import CodecError, Plan, wrong


def one_of(annotation: Any, values: list[tuple[Any, Any]]) -> Plan:
    """Literals, or the members of an Enum, each with its JSON."""

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
        raise wrong(raw, annotation, f", which has {', '.join(repr(code) for _, code in values)}")

    return Plan(to_json, from_json)


def union(annotation: Any, plans: list[Plan]) -> Plan:
    """The first that fits, in the order that they are written in."""
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
                # The error from the furthest inside is that of the type which was meant.
                if error.path and (deepest is None or len(error.path) > len(deepest.path)):
                    deepest = error
                if alternative is only:
                    meant = error
        # Of `X | None` X was meant. That this is no X is all the same better said of the whole.
        if deepest is None and meant is not None and str(meant) != str(wrong(value, only)):
            deepest = meant
        raise deepest or wrong(value, annotation)

    return Plan(
        lambda value: first(value, lambda plan: plan.encode(value)),
        lambda raw: first(raw, lambda plan: plan.decode(raw)),
    )
