"""The classes that applications subclass: `Process`, and `Row` for the rows that a process reads and writes.

definition.py reads these classes when they are made, live.py holds the values of one call.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from . import definition as _definition
from .call import Call
from .children import ChildClosed, start_child
from .codec import JSON, CodecError, encode
from .definition import DefinitionError, Description, Local
from .functions import StartCall
from .live import Attribute, Live
from .locks import Lock
from .queues import BoundQueue
from .states import State

if TYPE_CHECKING:
    from .client.statements import IdReuse

__all__ = ["DefinitionError", "Description", "Local", "Process", "Row", "RowStart"]

P = TypeVar("P", bound="Process")


class Row:
    """A row of a table of the application: `class User(xdb.Row, table="public.users", key="user_id")`. Annotations are its columns.

    - `table`: the table, with its schema.
    - `key`: the column, or the tuple of columns, of a unique key.
    - `columns`: maps attributes to columns, where the names differ.

    Mistakes raise `DefinitionError` when the class is made.
    """

    _table: ClassVar[str]
    _key: ClassVar[str | tuple[str, ...]]
    _columns: ClassVar[Mapping[str, str]]
    _attributes: ClassVar[Mapping[str, Attribute]] = {}
    _live: Live

    # For type checkers, table= and key= are required. At run time definition.py refuses their absence with a better message.
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
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; its attributes are {known}")
        attribute.__set__(self, value)

    @classmethod
    def row(cls, key: Any, /, **values: Any) -> RowStart:
        """The row for a start: its key (a dict if it has several columns), and values to write.

        Raises `TypeError` for a wrong key or an unknown attribute, and `CodecError` for a value that does not fit.
        """
        start = RowStart(cls, key, values)
        # Reading both properties checks the key and the values.
        assert start.key_columns and start.values_encoded is not None
        return start


@dataclass(frozen=True)
class RowStart:
    """A row for `rows=` of a start. Made by `Row.row`, read by the client."""

    type: type[Row]
    key: Any
    values: Mapping[str, Any]

    @property
    def table(self) -> str:
        """The table, as in the definition."""
        return self.type._table

    @property
    def key_columns(self) -> dict[str, JSON]:
        """The values of the key as JSON, by column."""
        key, name = self.type._key, self.type.__name__
        columns = (key,) if isinstance(key, str) else key
        given = {key: self.key} if isinstance(key, str) else self.key
        if not isinstance(given, Mapping) or set(given) != set(columns):
            raise TypeError(f"{self.key!r} is not a key of {name}: give a dict with {', '.join(columns)}")
        encoded = {}
        for column in columns:
            encoded[column] = encode(given[column], path=f"{name}.{column}")
            if not isinstance(encoded[column], (str, int, float)):
                raise CodecError(f"{given[column]!r} can't be a key: give a str, a number or a bool", path=f"{name}.{column}")
        return encoded

    @property
    def values_encoded(self) -> dict[str, JSON]:
        """The values as JSON, by attribute."""
        encoded = {}
        for name, value in self.values.items():
            attribute = self.type._attributes.get(name)
            if attribute is None:
                known = ", ".join(self.type._attributes)
                raise TypeError(f"{self.type.__name__} has no attribute {name!r}; its attributes are {known}")
            encoded[name] = encode(value, attribute.annotation, attribute.place)
        return encoded


@dataclass(frozen=True, eq=False)
class RowAttribute:
    """The attribute of a process that is a row, for instance `self.user`."""

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
        raise AttributeError(f"the row {self.name} can't be replaced: assign to its attributes, as in self.{self.name}.x = ...")


class Process:
    """A durable process. Subclass it, as in `class Order(xdb.Process, timeout=timedelta(days=30))`.

    Annotations are its attributes: subclasses of `Row` are rows of tables, all others are local attributes.

    - `name`: the name of the process type. Default: the name of the class.
    - `timeout`: when an execution ends with the status `TIMEOUT`. Default: never.
    - `history`: "full" (the default), "none", or how many of the latest events are kept at least.
    - `retention`: how long closed executions are kept, `timedelta.max` for ever. Default: the server's setting.
    - `priority`: from -10 to 10, default 0. Calls with a higher priority are made first.
    - `locks`: names, or `Shared(name)`. A process gets all of its locks before its first call, and has them until it closes.
    - `changes`: the global queue that starts, steps and ends of these processes are published to. Default: none.
    - `guards`: names of states that wait while the process runs. When the wait of one ends, it ends all other threads.

    Mistakes raise `DefinitionError` when the class is made.
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
        locks: Sequence[Lock] = (),
        changes: str | None = None,
        guards: Sequence[str] = (),
    ) -> None:
        super().__init_subclass__()
        options = _definition.ProcessOptions(timeout, history, retention, priority, locks, changes, guards)
        cls._xdb = _definition.describe(cls, Process, Row, name or cls.__name__, options)
        for attribute, row in cls._xdb.rows.items():
            setattr(cls, attribute, RowAttribute(attribute, row))
        for attribute, local in cls._xdb.local.items():
            setattr(cls, attribute, Attribute(cls.__name__, attribute, local.annotation, False, default=local.default))

    def __setattr__(self, name: str, value: object) -> None:
        descriptor = getattr(type(self), name, None)
        if not isinstance(descriptor, (Attribute, RowAttribute)):
            hint = "annotate it in the class to store it with the process, or use a local variable"
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r} that can be assigned: {hint}")
        descriptor.__set__(self, value)

    def start_child(
        self,
        process: type[Process],
        input: object = None,
        *,
        id: str | None = None,
        on_close: BoundQueue[ChildClosed] | None = None,
        leave: bool = False,
        rows: Sequence[RowStart] = (),
        local: Mapping[str, object] | None = None,
        id_reuse: IdReuse = "allow_if_no_running",
        timeout: float | timedelta | None = None,
        start_at: datetime | None = None,
        starting_state: State[Any] | None = None,
        shard_key: str | None = None,
        priority: int | None = None,
        locks: Sequence[Lock] = (),
        calls: Sequence[StartCall] = (),
    ) -> None:
        """Starts a process as a child, together with the answer: `self.start_child(Shipping, order, on_close=self.shipped)`.

        - `on_close`: the local queue that gets an `xdb.ChildClosed` when the child closes, in whatever way.
        - `leave`: the child goes on when this process closes. Otherwise it is stopped.
        - the others: as for `Client.start`. `id` is the process id.

        If the start is refused, nothing of the answer is applied, and the next attempt has `self.call.database_error`. Raises what
        `Client.start` raises for wrong arguments, `ValueError` for more than 1,000 children, and `CallOver`.
        """
        start_child(
            self._live,
            process,
            input,
            id=id,
            on_close=on_close,
            leave=leave,
            rows=rows,
            local=local,
            id_reuse=id_reuse,
            timeout=timeout,
            start_at=start_at,
            starting_state=starting_state,
            shard_key=shard_key,
            priority=priority,
            locks=locks,
            calls=calls,
        )

    @classmethod
    def definition(cls) -> dict[str, Any]:
        """The definition, as `xdb.register_process_type` takes it."""
        return json.loads(json.dumps(cls._xdb.definition))  # type: ignore[no-any-return]

    @classmethod
    def definition_hash(cls) -> str:
        """The SHA-256 of the definition as canonical JSON, in hexadecimal."""
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
    """A read-only instance of a process with these local attributes, which are given as JSON."""
    live = Live(None, raw_local=local, closed="this is a copy of the attributes, outside of a call: write them with set_local()")
    made: P = bound(cls, live)
    return made
