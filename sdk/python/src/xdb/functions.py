"""Functions of the database that an answer or a start calls, in the transaction that applies it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from .codec import JSON, encode
from .live import Live

A = TypeVar("A")


class BoundFunction(Generic[A]):
    """A function of the database within a handler, for instance `self.reserve`."""

    def __init__(self, function: Function[A], live: Live) -> None:
        self._function, self._live = function, live

    @property
    def name(self) -> str:
        """The name of the function in the definition."""
        return self._function.name

    def __call__(self, argument: A) -> None:
        """Adds a call of the function to the answer. The engine calls it after it has written the attributes, in the order of these calls.

        It returns nothing. If the function raises an error, nothing of the answer is applied, and the attempt fails. Raises `CodecError`
        if the argument does not fit.
        """
        encoded = encode(argument, self._function.argument_type, self.name)
        self._live.call_function({"function": self.name, "argument": encoded})


@dataclass(frozen=True)
class StartCall:
    """A call of a function when a process starts. Made by `Function.on_start`, read by `Client.start`."""

    name: str
    sql_name: str
    argument: JSON


class Function(Generic[A]):
    """A function of the database, declared in a process class: `reserve = xdb.Function[Reservation]("app.reserve_stock")`.

    The function has the parameters `(argument jsonb, context jsonb)`, and returns `jsonb` or `void`. `sql_name` includes its schema.
    `name` is its name in the definition, by default that of the attribute.
    """

    name: str
    argument_type: Any

    def __init__(self, sql_name: str, name: str | None = None) -> None:
        self.sql_name, self.name, self.argument_type = sql_name, name or "", Any

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    def on_start(self, argument: A) -> StartCall:
        """A call of the function for a start: `client.start(Order, "o-1", calls=[Order.reserve.on_start(reservation)])`.

        Raises `CodecError` if the argument does not fit.
        """
        return StartCall(self.name, self.sql_name, encode(argument, self.argument_type, self.name))

    @overload
    def __get__(self, obj: None, owner: Any) -> Function[A]: ...
    @overload
    def __get__(self, obj: object, owner: Any) -> BoundFunction[A]: ...
    def __get__(self, obj: Any, owner: Any) -> Function[A] | BoundFunction[A]:
        return self if obj is None else BoundFunction(self, obj._live)
