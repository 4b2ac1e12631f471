"""Functions of the database that an answer calls, in the transaction that applies it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from .codec import JSON, encode
from .live import Live

A = TypeVar("A")


class BoundFunction(Generic[A]):
    """A function within a call."""

    def __init__(self, function: Function[A], live: Live) -> None:
        self._function, self._live = function, live

    @property
    def name(self) -> str:
        """Its name in the definition."""
        return self._function.name

    def __call__(self, argument: A) -> None:
        """Has it called with the answer: after the attributes are written, in the order of these calls.

        It gives nothing back. Where it raises, nothing of the answer is applied, and the attempt has failed.
        """
        encoded = encode(argument, self._function.argument_type, self.name)
        self._live.call_function({"function": self.name, "argument": encoded})


@dataclass(frozen=True)
class StartCall:
    """A call that a start makes, of `Function.on_start`."""

    name: str
    sql_name: str
    argument: JSON


class Function(Generic[A]):
    """A function of the database, declared in a process: `reserve = xdb.Function[Reservation]("app.reserve_stock")`.

    It is `(argument jsonb, context jsonb) RETURNS jsonb` or `void`, and `sql_name` has its schema.
    """

    name: str
    argument_type: Any

    def __init__(self, sql_name: str, name: str | None = None) -> None:
        self.sql_name, self.name, self.argument_type = sql_name, name or "", Any

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    def on_start(self, argument: A) -> StartCall:
        """Its call by a start: `client.start(Order, "o-1", calls=[Order.reserve.on_start(reservation)])`."""
        return StartCall(self.name, self.sql_name, encode(argument, self.argument_type, self.name))

    @overload
    def __get__(self, obj: None, owner: Any) -> Function[A]: ...
    @overload
    def __get__(self, obj: object, owner: Any) -> BoundFunction[A]: ...
    def __get__(self, obj: Any, owner: Any) -> Function[A] | BoundFunction[A]:
        return self if obj is None else BoundFunction(self, obj._live)
