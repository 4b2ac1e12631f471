"""The sources of a client's own connections: a conninfo, a pool, or a function.

Each use is a transaction of its own: committed if it succeeds, rolled back if it raises.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import selectors
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Protocol

from .connections import AsyncExecute, Execute, async_execute, is_known, kind_of, sync_execute

# How many idle connections are kept. More are made when they are needed, and closed after use.
KEPT = 8
_IDLE = 0  # psycopg.pq.TransactionStatus.IDLE


class Source(Protocol):
    """Gives connections to a client. With `block=True`, all statements within are one transaction."""

    def borrow(self, *, block: bool = False) -> AbstractContextManager[Any]:
        """A connection of the driver."""
        ...

    def open(self, *, block: bool = False) -> AbstractContextManager[Execute]:
        """A function that executes statements on such a connection."""
        ...

    def close(self) -> None: ...


class AsyncSource(Protocol):
    """The same, for coroutines."""

    def borrow(self, *, block: bool = False) -> AbstractAsyncContextManager[Any]: ...

    def open(self, *, block: bool = False) -> AbstractAsyncContextManager[AsyncExecute]: ...

    async def close(self) -> None: ...


def source_of(given: Any) -> Source:
    """The source for the first argument of a client."""
    if isinstance(given, str):
        return _Own(given)
    for kinds, borrow in _POOLS:
        if kind_of(given, kinds):
            return _Borrowed(partial(borrow, given))
    if callable(given):
        return _Borrowed(lambda block: _made(given, block))
    raise TypeError(_REFUSED.format(type(given)))


def async_source_of(given: Any) -> AsyncSource:
    """The same, for coroutines."""
    if isinstance(given, str):
        return _OwnAsync(given)
    for kinds, borrow in _ASYNC_POOLS:
        if kind_of(given, kinds):
            return _BorrowedAsync(partial(borrow, given))
    if callable(given):
        return _BorrowedAsync(lambda block: _made_async(given, block))
    raise TypeError(_REFUSED.format(type(given)))


_REFUSED = "a client can't be made with {}: give a conninfo, a pool, or a function that returns a connection, or pass it as conn="


def _psycopg() -> Any:
    try:
        return importlib.import_module("psycopg")
    except ModuleNotFoundError as error:
        raise ImportError(
            "a client with a conninfo needs psycopg 3: pip install 'psycopg>=3.1'. "
            "With another driver, make the client with a function that returns a connection, or give conn= to each call."
        ) from error
    except ImportError as error:
        raise ImportError(
            "psycopg 3 is installed but can't be loaded. Most often libpq is missing: install it (libpq5 of Debian and Ubuntu), "
            f"or pip install 'psycopg[binary]', which includes it. The error is: {error}"
        ) from error


class _Own:
    """Connections of psycopg that the client makes when it needs them. Up to `KEPT` idle ones are kept."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        # Idle connections, each with the pid that made it: after a fork the connection still belongs to the parent.
        self._idle: deque[tuple[int, Any]] = deque()
        self._closed = False

    @contextmanager
    def open(self, *, block: bool = False) -> Iterator[Execute]:
        with self.borrow(block=block) as conn:
            yield sync_execute(conn)

    @contextmanager
    def borrow(self, *, block: bool = False) -> Iterator[Any]:
        conn = self._take()
        try:
            if block:
                with conn.transaction():
                    yield conn
            else:
                yield conn
        finally:
            if self._closed or len(self._idle) >= KEPT or not _reusable(conn):
                conn.close()
            else:
                self._idle.append((os.getpid(), conn))

    def close(self) -> None:
        self._closed = True
        while self._idle:
            made_by, conn = self._idle.pop()
            if made_by == os.getpid():
                conn.close()

    def _take(self) -> Any:
        if self._closed:
            raise RuntimeError("the client is closed: make another one")
        while True:
            try:
                made_by, conn = self._idle.pop()
            except IndexError:
                # Without prepared statements, because poolers that give out connections for a transaction don't support them.
                return _psycopg().connect(self._conninfo, autocommit=True, prepare_threshold=None)
            if made_by != os.getpid():
                continue  # closing it would end the session of the parent process
            if not _has_news(conn):
                return conn
            conn.close()


class _OwnAsync:
    """The same, for coroutines. An idle connection is reused only in the event loop that made it."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._idle: deque[tuple[Any, Any]] = deque()
        self._closed = False

    @asynccontextmanager
    async def open(self, *, block: bool = False) -> AsyncIterator[AsyncExecute]:
        async with self.borrow(block=block) as conn:
            yield async_execute(conn)

    @asynccontextmanager
    async def borrow(self, *, block: bool = False) -> AsyncIterator[Any]:
        conn = await self._take()
        try:
            if block:
                async with conn.transaction():
                    yield conn
            else:
                yield conn
        finally:
            if self._closed or len(self._idle) >= KEPT or not _reusable(conn):
                await conn.close()
            else:
                self._idle.append((asyncio.get_running_loop(), conn))

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop()[1].close()

    async def _take(self) -> Any:
        if self._closed:
            raise RuntimeError("the client is closed: make another one")
        while self._idle:
            loop, conn = self._idle.pop()
            if loop is asyncio.get_running_loop() and not _has_news(conn):
                return conn
            await conn.close()
        return await _psycopg().AsyncConnection.connect(self._conninfo, autocommit=True, prepare_threshold=None)


def _reusable(conn: Any) -> bool:
    return not conn.closed and conn.info.transaction_status == _IDLE


def _has_news(conn: Any) -> bool:
    """Whether an idle connection has unread data, most often because the server has closed it."""
    if conn.closed:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(conn.fileno(), selectors.EVENT_READ)
        return bool(selector.select(0))


class _Borrowed:
    """Connections of the application's pool or function. The client does not close the pool."""

    def __init__(self, borrow: Callable[[bool], AbstractContextManager[Any]]) -> None:
        self._borrow = borrow

    @contextmanager
    def open(self, *, block: bool = False) -> Iterator[Execute]:
        with self._borrow(block) as conn:
            yield sync_execute(conn)

    def borrow(self, *, block: bool = False) -> AbstractContextManager[Any]:
        return self._borrow(block)

    def close(self) -> None:
        """Does nothing: the application closes its pool."""


class _BorrowedAsync:
    def __init__(self, borrow: Callable[[bool], AbstractAsyncContextManager[Any]]) -> None:
        self._borrow = borrow

    @asynccontextmanager
    async def open(self, *, block: bool = False) -> AsyncIterator[AsyncExecute]:
        async with self._borrow(block) as conn:
            yield async_execute(conn)

    def borrow(self, *, block: bool = False) -> AbstractAsyncContextManager[Any]:
        return self._borrow(block)

    async def close(self) -> None:
        """Does nothing: the application closes its pool."""


# --- how a connection is borrowed from each kind of pool


@contextmanager
def _psycopg_pool(pool: Any, block: bool) -> Iterator[Any]:
    with pool.connection() as conn:
        if block:
            with conn.transaction():
                yield conn
        else:
            yield conn


@contextmanager
def _psycopg2_pool(pool: Any, _block: bool) -> Iterator[Any]:
    conn = pool.getconn()
    try:
        with conn:  # commits or rolls back, and does not close it
            yield conn
    finally:
        pool.putconn(conn)


@contextmanager
def _engine(engine: Any, _block: bool) -> Iterator[Any]:
    with engine.begin() as conn:
        yield conn


@asynccontextmanager
async def _psycopg_async_pool(pool: Any, block: bool) -> AsyncIterator[Any]:
    async with pool.connection() as conn:
        if block:
            async with conn.transaction():
                yield conn
        else:
            yield conn


@asynccontextmanager
async def _asyncpg_pool(pool: Any, block: bool) -> AsyncIterator[Any]:
    async with pool.acquire() as conn:
        if block:
            async with conn.transaction():
                yield conn
        else:
            yield conn


@asynccontextmanager
async def _async_engine(engine: Any, _block: bool) -> AsyncIterator[Any]:
    async with engine.begin() as conn:
        yield conn


@contextmanager
def _made(make: Callable[[], Any], block: bool) -> Iterator[Any]:
    """A connection that a function returns. It is committed and closed here, unless it is a context manager, which does both."""
    made = make()
    if not is_known(made) and hasattr(made, "__enter__"):
        with made as conn:
            yield conn
        return
    _refuse_djangos(made)
    if block and getattr(made, "autocommit", False):
        made.autocommit = False
    try:
        yield made
        made.commit()
    finally:
        made.close()


@asynccontextmanager
async def _made_async(make: Callable[[], Any], block: bool) -> AsyncIterator[Any]:
    made = make()
    if hasattr(made, "__await__") and not hasattr(made, "__aenter__"):
        made = await made
    if not is_known(made) and hasattr(made, "__aenter__"):
        async with made as conn:
            yield conn
        return
    try:
        if block and kind_of(made, _WITH_TRANSACTIONS):
            async with made.transaction():
                yield made
        else:
            yield made
        # A connection of asyncpg has no commit(): outside of a block it commits each statement.
        if (commit := getattr(made, "commit", None)) is not None:
            await commit()
    finally:
        await made.close()


_WITH_TRANSACTIONS = (("psycopg", "AsyncConnection"), ("asyncpg", "Connection"))


def _refuse_djangos(conn: Any) -> None:
    if kind_of(conn, [("django", "BaseDatabaseWrapper"), ("django", "ConnectionProxy")]):
        raise TypeError("the function returns Django's connection, which Django commits and closes itself: give it as conn= to each call")


_POOLS: tuple[tuple[tuple[tuple[str, str], ...], Callable[[Any, bool], AbstractContextManager[Any]]], ...] = (
    ((("psycopg_pool", "ConnectionPool"), ("psycopg_pool", "NullConnectionPool")), _psycopg_pool),
    ((("psycopg2", "AbstractConnectionPool"),), _psycopg2_pool),
    ((("sqlalchemy", "Engine"),), _engine),
)

_ASYNC_POOLS: tuple[tuple[tuple[tuple[str, str], ...], Callable[[Any, bool], AbstractAsyncContextManager[Any]]], ...] = (
    ((("psycopg_pool", "AsyncConnectionPool"), ("psycopg_pool", "AsyncNullConnectionPool")), _psycopg_async_pool),
    ((("asyncpg", "Pool"),), _asyncpg_pool),
    ((("sqlalchemy", "AsyncEngine"),), _async_engine),
)
