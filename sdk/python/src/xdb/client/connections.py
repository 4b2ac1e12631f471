"""Turns the caller's connection, of any supported library, into one function: `execute(sql, params) -> rows`.

SQL has `%s` for each parameter. A parameter is a text or None, and every statement casts it; each column is cast to text. Nothing here
begins, commits or repeats a transaction. Libraries are recognised by the names of their classes, so none is imported needlessly.

With psycopg the statements run on cursors that are made here. So the cursor class, row factory, adapters and `client_encoding` of the
application's connection have no effect. Limitations: SQLAlchemy makes its own cursors, and a codec of asyncpg for text does apply.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

Params = Sequence["str | None"]
Rows = list[tuple[Any, ...]]
Execute = Callable[[str, Params], Rows]
AsyncExecute = Callable[[str, Params], Awaitable[Rows]]


def sync_execute(conn: Any) -> Execute:
    """A function that executes statements on a blocking connection. Raises `TypeError` for an async one."""
    kind = kind_of(conn, _SYNC)
    if kind is not None:
        return _SYNC[kind](conn)
    if kind_of(conn, _ASYNC):
        raise TypeError(f"{_name(conn)} is an async connection: use xdb.AsyncClient")
    return _open_contract(conn)


def async_execute(conn: Any) -> AsyncExecute:
    """A function that executes statements on an async connection. Raises `TypeError` for a blocking one."""
    kind = kind_of(conn, _ASYNC)
    if kind is not None:
        return _ASYNC[kind](conn)
    if kind_of(conn, _SYNC):
        raise TypeError(f"{_name(conn)} would block the event loop: use xdb.Client, or an async connection")
    return _open_contract_async(conn)


def is_known(conn: Any) -> bool:
    """Whether an object is a connection of a known library."""
    return kind_of(conn, [*_SYNC, *_ASYNC]) is not None


def kind_of(thing: Any, kinds: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The first of these (package, class) that an object is an instance of, or None."""
    wanted = set(kinds)
    for cls in type(thing).__mro__:
        if (kind := (cls.__module__.split(".")[0], cls.__name__)) in wanted:
            return kind
    return None


def tuples(rows: Iterable[Any]) -> Rows:
    """Rows as tuples, for any row class of a library."""
    return [tuple(row.values()) if isinstance(row, Mapping) else tuple(row) for row in rows]


def _name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


async def cut(conn: Any) -> None:
    """Closes a connection that is still in use, including one of a pool. Its transaction is rolled back."""
    # The methods of asyncpg, SQLAlchemy and psycopg. In a class with two of them, the first one does not wait.
    for name in ("terminate", "invalidate", "close"):
        if callable(end := getattr(conn, name, None)):
            ended = end()
            if inspect.isawaitable(ended):
                await ended
            return


# --- one adapter for each kind


def _psycopg(conn: Any) -> Execute:
    conn = getattr(conn, "connection", conn)  # of a cursor

    def execute(sql: str, params: Params) -> Rows:
        with _psycopg_cursor("Cursor", conn) as cursor:
            # Not prepared, because poolers may not support it.
            cursor.execute(sql, params or None, prepare=False)
            return _fetched(cursor)

    return execute


def _psycopg_async(conn: Any) -> AsyncExecute:
    conn = getattr(conn, "connection", conn)

    async def execute(sql: str, params: Params) -> Rows:
        async with _psycopg_cursor("AsyncCursor", conn) as cursor:
            await cursor.execute(sql, params or None, prepare=False)
            return list(await cursor.fetchall()) if cursor.description is not None else []

    return execute


def _psycopg_cursor(kind: str, conn: Any) -> Any:
    """A plain cursor, independent of the connection's cursor class, and without the application's adapters for texts."""
    cursor = getattr(importlib.import_module("psycopg"), kind)(conn, row_factory=lambda _cursor: tuple)
    dumper, loader = _psycopg_texts()
    cursor.adapters.register_dumper(str, dumper)
    cursor.adapters.register_loader("text", loader)
    return cursor


@functools.cache
def _psycopg_texts() -> tuple[Any, Any]:
    loader_class: Any = importlib.import_module("psycopg.adapt").Loader

    class Loader(loader_class):  # type: ignore[misc]
        """Loads a column as text, also with the client encoding `SQL_ASCII`, where psycopg would return bytes."""

        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._codec = _codec_of(context.connection.info.encoding)

        def load(self, data: Any) -> str:
            return bytes(data).decode(self._codec)

    return importlib.import_module("psycopg.types.string").StrDumper, Loader


def _codec_of(encoding: str) -> str:
    """Python's codec for a client encoding. With `SQL_ASCII` the server sends the encoding of the database, which is UTF-8."""
    return "utf-8" if encoding == "ascii" else encoding


def _psycopg2(conn: Any) -> Execute:
    conn = conn if hasattr(conn, "cursor") else conn.connection  # of a cursor
    extensions: Any = importlib.import_module("psycopg2.extensions")

    def execute(sql: str, params: Params) -> Rows:
        codec = _codec_of(extensions.encodings[conn.encoding])
        # The parameters are quoted here, so that no adapter changes them.
        given = [None if each is None else extensions.QuotedString(each.encode(codec)) for each in params]
        with extensions.cursor(conn) as cursor:
            extensions.register_type(extensions.BYTES, cursor)
            cursor.execute(sql, given or None)
            return [tuple(each.decode(codec) if isinstance(each, bytes) else each for each in row) for row in _fetched(cursor)]

    return execute


def _django(conn: Any) -> Execute:
    def execute(sql: str, params: Params) -> Rows:
        # Django opens the connection, checks its transaction and translates errors. The statement runs on a cursor of the driver.
        with conn.cursor() as cursor, conn.wrap_database_errors:
            conn.validate_no_broken_transaction()
            return sync_execute(cursor.connection)(sql, params)

    return execute


def _fetched(cursor: Any) -> Rows:
    return list(cursor.fetchall()) if cursor.description is not None else []


def _sqlalchemy(conn: Any) -> Execute:
    def execute(sql: str, params: Params) -> Rows:
        result = conn.exec_driver_sql(_in_style_of(conn.dialect.paramstyle, sql), tuple(params) or None)
        return tuples(result.fetchall()) if result.returns_rows else []

    return execute


def _sqlalchemy_session(session: Any) -> Execute:
    def execute(sql: str, params: Params) -> Rows:
        if session.autoflush:
            session.flush()  # so that pending changes of the session are written before the call
        return _sqlalchemy(session.connection())(sql, params)

    return execute


def _sqlalchemy_async(conn: Any) -> AsyncExecute:
    async def execute(sql: str, params: Params) -> Rows:
        result = await conn.exec_driver_sql(_in_style_of(conn.dialect.paramstyle, sql), tuple(params) or None)
        return tuples(result.fetchall()) if result.returns_rows else []

    return execute


def _sqlalchemy_async_session(session: Any) -> AsyncExecute:
    async def execute(sql: str, params: Params) -> Rows:
        if session.autoflush:
            await session.flush()
        return await _sqlalchemy_async(await session.connection())(sql, params)

    return execute


def _asyncpg(conn: Any) -> AsyncExecute:
    async def execute(sql: str, params: Params) -> Rows:
        record: Any = importlib.import_module("asyncpg").Record
        return tuples(await conn.fetch(_in_style_of("numeric_dollar", sql), *params, record_class=record))

    return execute


def _open_contract(conn: Any) -> Execute:
    """Any object with a method `execute(sql, params)` that returns rows."""

    def execute(sql: str, params: Params) -> Rows:
        return _rows_of(conn, _method(conn)(sql, params))

    return execute


def _open_contract_async(conn: Any) -> AsyncExecute:
    """The same, but the method may be a coroutine."""

    async def execute(sql: str, params: Params) -> Rows:
        rows = _method(conn)(sql, params)
        return _rows_of(conn, await rows if inspect.isawaitable(rows) else rows)

    return execute


def _method(conn: Any) -> Callable[..., Any]:
    method: Callable[..., Any] | None = getattr(conn, "execute", None)
    if not callable(method):
        raise TypeError(f"{_name(conn)} is not a connection: it has no method execute(sql, params)")
    return method


def _rows_of(conn: Any, rows: Any) -> Rows:
    if not isinstance(rows, Iterable):
        raise TypeError(f"execute(sql, params) of {_name(conn)} returned {_name(rows)}: it must return the rows")
    return tuples(rows)


def _in_style_of(paramstyle: str, sql: str) -> str:
    if paramstyle in ("format", "pyformat"):
        return sql
    if paramstyle != "numeric_dollar":
        raise TypeError(f"the driver's paramstyle {paramstyle} is not supported: pass the driver's own connection as conn=")
    first, *rest = sql.split("%s")
    return first + "".join(f"${n}{part}" for n, part in enumerate(rest, 1))


_SYNC: Mapping[tuple[str, str], Callable[[Any], Execute]] = {
    ("psycopg", "Connection"): _psycopg,
    ("psycopg", "Cursor"): _psycopg,
    ("psycopg", "ServerCursor"): _psycopg,
    ("psycopg2", "connection"): _psycopg2,
    ("psycopg2", "cursor"): _psycopg2,
    ("sqlalchemy", "Connection"): _sqlalchemy,
    ("sqlalchemy", "Session"): _sqlalchemy_session,
    ("sqlalchemy", "scoped_session"): _sqlalchemy_session,
    ("django", "BaseDatabaseWrapper"): _django,
    ("django", "ConnectionProxy"): _django,
}

_ASYNC: Mapping[tuple[str, str], Callable[[Any], AsyncExecute]] = {
    ("psycopg", "AsyncConnection"): _psycopg_async,
    ("psycopg", "AsyncCursor"): _psycopg_async,
    ("psycopg", "AsyncServerCursor"): _psycopg_async,
    ("sqlalchemy", "AsyncConnection"): _sqlalchemy_async,
    ("sqlalchemy", "AsyncSession"): _sqlalchemy_async_session,
    ("sqlalchemy", "async_scoped_session"): _sqlalchemy_async_session,
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
}
