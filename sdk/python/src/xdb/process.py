"""Processes and the rows of tables that they read and write, as classes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, TypeVar, overload

from . import definition as _definition
from .call import Call
from .codec import JSON, CodecError, encode
from .definition import DefinitionError, Description, Local
from .live import Attribute, Live

__all__ = ["DefinitionError", "Description", "Local", "Process", "Row", "RowStart"]

P = TypeVar("P", bound="Process")


class Row:
    """A row of a table: `class User(xdb.Row, table="public.users", key="user_id")`, its columns by annotation.

    `columns` maps attributes to columns where the names differ.
    """

    _table: ClassVar[str]
    _key: ClassVar[str | tuple[str, ...]]
    _columns: ClassVar[Mapping[str, str]]
    _attributes: ClassVar[Mapping[str, Attribute]] = {}
    _live: Live

    # Type checkers miss what is missing here; when the program runs, the definition says it in its own words.
    @overload
    def __init_subclass__(cls, *, table: str, key: str, columns: Mapping[str, str] | None = None) -> None: ...
    @overload
    def __init_subclass__(cls, *, table: str, key: tuple[str, ...], columns: Mapping[str, str] | None = None) -> None: ...
    def __init_subclass__(
        cls, *, table: str = "", key: str | tuple[str, ...] = "", columns: Mapping[str, str] | None = None
    ) -> None:
        super().__init_subclass__()
        cls._table, cls._key, cls._columns = table, key, dict(columns or {})
        cls._attributes = _definition.columns(cls, Row)
        for name, attribute in cls._attributes.items():
            setattr(cls, name, attribute)

    def __setattr__(self, name: str, value: object) -> None:
        attribute = self._attributes.get(name)
        if attribute is None:
            known = ", ".join(self._attributes)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; it has {known}")
        attribute.__set__(self, value)

    @classmethod
    def row(cls, key: Any, /, **values: Any) -> RowStart:
        """The row for a start: its key (a dict if it has several columns), and first values. All are checked here."""
        start = RowStart(cls, key, values)
        # Both raise for what is wrong.
        assert start.key_columns and start.values_encoded is not None
        return start


@dataclass(frozen=True)
class RowStart:
    """The row that a process starts with."""

    type: type[Row]
    key: Any
    values: Mapping[str, Any]

    @property
    def table(self) -> str:
        """The table as the definition spells it."""
        return self.type._table

    @property
    def key_columns(self) -> dict[str, JSON]:
        """The columns of the key with their values as JSON."""
        key, name = self.type._key, self.type.__name__
        columns = (key,) if isinstance(key, str) else key
        given = {key: self.key} if isinstance(key, str) else self.key
        if not isinstance(given, Mapping) or set(given) != set(columns):
            raise TypeError(f"the key of {name} is a dict with {', '.join(columns)}, not {self.key!r}")
        encoded = {}
        for column in columns:
            encoded[column] = encode(given[column], path=f"{name}.{column}")
            if not isinstance(encoded[column], (str, int, float)):
                raise CodecError(f"{given[column]!r} is no key: it is a text, a number or a boolean", path=f"{name}.{column}")
        return encoded

    @property
    def values_encoded(self) -> dict[str, JSON]:
        """The values by the names of their attributes, as JSON."""
        encoded = {}
        for name, value in self.values.items():
            attribute = self.type._attributes.get(name)
            if attribute is None:
                known = ", ".join(self.type._attributes)
                raise TypeError(f"{self.type.__name__} has no attribute {name!r}; it has {known}")
            encoded[name] = encode(value, attribute.annotation, attribute.place)
        return encoded


@dataclass(frozen=True, eq=False)
class RowAttribute:
    """A row among the attributes of a process."""

    name: str
    type: type[Row]

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        if obj is None:
            return self
        rows = obj._live.rows
        if self.type not in rows:
            rows[self.type] = bound(self.type, obj._live)
        return rows[self.type]

    def __set__(self, obj: Any, value: object) -> None:
        raise AttributeError(f"a row is not replaced: assign to its attributes, as in self.{self.name}.x = ...")


class Process:
    """A durable process: subclass it with `name=` (else the class's), `timeout=`, `history=`, `retention=` and `priority=`.

    Annotations are its attributes: subclasses of `Row` the columns of a row, all others local attributes. `history` is
    "full", "none", or how many events are kept; `retention` is how long closed executions are kept, in place of the server's
    setting, and `timedelta.max` for ever. Calls of a higher `priority`, from -10 to 10, are made before others.
    """

    call: Call
    _live: Live
    _xdb: ClassVar[Description]

    def __init_subclass__(
        cls,
        *,
        name: str | None = None,
        timeout: timedelta | None = None,
        history: str | int = "full",
        retention: timedelta | None = None,
        priority: int = 0,
    ) -> None:
        super().__init_subclass__()
        options = _definition.ProcessOptions(timeout, history, retention, priority)
        cls._xdb = _definition.describe(cls, Process, Row, name or cls.__name__, options)
        for attribute, row in cls._xdb.rows.items():
            setattr(cls, attribute, RowAttribute(attribute, row))
        for attribute, local in cls._xdb.local.items():
            setattr(cls, attribute, Attribute(cls.__name__, attribute, local.annotation, False, default=local.default))

    def __setattr__(self, name: str, value: object) -> None:
        descriptor = getattr(type(self), name, None)
        if not isinstance(descriptor, (Attribute, RowAttribute)):
            hint = "annotate it in the class to make it an attribute that is kept, or use a local variable"
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r} that can be assigned: {hint}")
        descriptor.__set__(self, value)

    @classmethod
    def definition(cls) -> dict[str, Any]:
        """The definition for `xdb.register_process_type`."""
        return json.loads(json.dumps(cls._xdb.definition))  # type: ignore[no-any-return]

    @classmethod
    def definition_hash(cls) -> str:
        """The SHA-256 of the definition as canonical JSON."""
        text = json.dumps(cls._xdb.definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


def bound(cls: type[Any], live: Live) -> Any:
    """An instance of a process or a row for one call."""
    made = object.__new__(cls)
    object.__setattr__(made, "_live", live)
    if issubclass(cls, Process):
        object.__setattr__(made, "call", live.call)
    return made


def view(cls: type[P], local: Mapping[str, JSON]) -> P:
    """A process with these local attributes, as JSON, to be read and not written."""
    live = Live(None, raw_local=local, closed="this is what the attributes were, and no call: write them with set_local()")
    made: P = bound(cls, live)
    return made
