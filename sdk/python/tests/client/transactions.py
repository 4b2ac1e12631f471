"""Transactions of a program that uses this or that library: each inserts a row, gives its connection to the test's steps, and
commits or rolls back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import asyncpg
import django.conf
import django.db.transaction
import django.db.utils
import django.utils.connection
import psycopg
import psycopg.rows
import psycopg2
import psycopg2.extras
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from psycopg.conninfo import conninfo_to_dict

INSERT = "INSERT INTO orders (order_id) VALUES ('by hand')"
Steps = Callable[[Any], None]
AsyncSteps = Callable[[Any], Awaitable[None]]


class Undo(Exception):
    """Ends a transaction that is not to be kept."""


def with_psycopg(db: Any, steps: Steps, keep: bool, **options: Any) -> None:
    with psycopg.connect(db.dsn, **options) as conn:
        conn.execute(INSERT)
        steps(conn)
        conn.commit() if keep else conn.rollback()


def with_psycopg_dicts(db: Any, steps: Steps, keep: bool) -> None:
    with_psycopg(db, steps, keep, row_factory=psycopg.rows.dict_row)


def with_psycopg_client_cursors(db: Any, steps: Steps, keep: bool) -> None:
    with_psycopg(db, steps, keep, cursor_factory=psycopg.ClientCursor)


def with_psycopg_cursor(db: Any, steps: Steps, keep: bool) -> None:
    with psycopg.connect(db.dsn) as conn, conn.cursor() as cursor:
        cursor.execute(INSERT)
        steps(cursor)
        conn.commit() if keep else conn.rollback()


def with_psycopg2(db: Any, steps: Steps, keep: bool, cursor_of: Any = lambda conn: conn, **options: Any) -> None:
    conn = psycopg2.connect(db.dsn, **options)
    try:
        with conn.cursor() as cursor:
            cursor.execute(INSERT)
        steps(cursor_of(conn))
        conn.commit() if keep else conn.rollback()
    finally:
        conn.close()


def with_psycopg2_dicts(db: Any, steps: Steps, keep: bool) -> None:
    with_psycopg2(db, steps, keep, cursor_factory=psycopg2.extras.RealDictCursor)


def with_psycopg2_cursor(db: Any, steps: Steps, keep: bool) -> None:
    with_psycopg2(db, steps, keep, lambda conn: conn.cursor())


def with_sqlalchemy(db: Any, steps: Steps, keep: bool, driver: str = "psycopg") -> None:
    engine = sqlalchemy.create_engine(url(db, driver))
    with engine.connect() as conn:
        conn.execute(sqlalchemy.text(INSERT))
        steps(conn)
        conn.commit() if keep else conn.rollback()
    engine.dispose()


def with_sqlalchemy_psycopg2(db: Any, steps: Steps, keep: bool) -> None:
    with_sqlalchemy(db, steps, keep, "psycopg2")


def with_sqlalchemy_session(db: Any, steps: Steps, keep: bool) -> None:
    engine = sqlalchemy.create_engine(url(db, "psycopg"))
    with sqlalchemy.orm.Session(engine) as session:
        session.execute(sqlalchemy.text(INSERT))
        steps(session)
        session.commit() if keep else session.rollback()
    engine.dispose()


def with_sqlalchemy_scoped_session(db: Any, steps: Steps, keep: bool) -> None:
    engine = sqlalchemy.create_engine(url(db, "psycopg"))
    session = sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(engine))
    try:
        session.execute(sqlalchemy.text(INSERT))
        steps(session)
        session.commit() if keep else session.rollback()
    finally:
        session.remove()
        engine.dispose()


def with_django(db: Any, steps: Steps, keep: bool) -> None:
    with django_connection(db) as conn:
        conn.set_autocommit(False)
        with conn.cursor() as cursor:
            cursor.execute(INSERT)
        steps(conn)
        conn.commit() if keep else conn.rollback()


def with_django_atomic(db: Any, steps: Steps, keep: bool) -> None:
    with django_connection(db) as conn, patch.object(django.db.transaction, "get_connection", lambda using: conn):
        try:
            with django.db.transaction.atomic():
                with conn.cursor() as cursor:
                    cursor.execute(INSERT)
                steps(conn)
                if not keep:
                    raise Undo
        except Undo:
            if keep:
                raise


def with_open_contract(db: Any, steps: Steps, keep: bool) -> None:
    class Hidden:
        def __init__(self, conn: Any) -> None:
            self._conn = conn

        def execute(self, sql: str, params: Any) -> Any:
            return self._conn.execute(sql, params).fetchall()

    with_psycopg(db, lambda conn: steps(Hidden(conn)), keep)


TRANSACTIONS = [
    with_psycopg,
    with_psycopg_dicts,
    with_psycopg_client_cursors,
    with_psycopg_cursor,
    with_psycopg2,
    with_psycopg2_dicts,
    with_psycopg2_cursor,
    with_sqlalchemy,
    with_sqlalchemy_psycopg2,
    with_sqlalchemy_session,
    with_sqlalchemy_scoped_session,
    with_django,
    with_django_atomic,
    with_open_contract,
]


async def with_psycopg_async(db: Any, steps: AsyncSteps, keep: bool) -> None:
    async with await psycopg.AsyncConnection.connect(db.dsn) as conn:
        await conn.execute(INSERT)
        await steps(conn)
        await (conn.commit() if keep else conn.rollback())


async def with_asyncpg(db: Any, steps: AsyncSteps, keep: bool) -> None:
    conn = await asyncpg.connect(**asyncpg_arguments(db))
    # What a program may have set for itself: ours are texts, which it does not reach.
    await conn.set_type_codec("jsonb", encoder=lambda _: "broken", decoder=lambda _: "broken", schema="pg_catalog")
    try:
        async with conn.transaction():
            await conn.execute(INSERT)
            await steps(conn)
            if not keep:
                raise Undo
    except Undo:
        if keep:
            raise
    finally:
        await conn.close()


async def with_asyncpg_pool(db: Any, steps: AsyncSteps, keep: bool) -> None:
    async with asyncpg.create_pool(**asyncpg_arguments(db), min_size=1, max_size=1) as pool, pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        await conn.execute(INSERT)
        await steps(conn)
        await (transaction.commit() if keep else transaction.rollback())


async def with_sqlalchemy_async(db: Any, steps: AsyncSteps, keep: bool) -> None:
    engine = async_engine(db, "asyncpg")
    async with engine.connect() as conn:
        await conn.execute(sqlalchemy.text(INSERT))
        await steps(conn)
        await (conn.commit() if keep else conn.rollback())
    await engine.dispose()


async def with_sqlalchemy_async_session(db: Any, steps: AsyncSteps, keep: bool) -> None:
    engine = async_engine(db, "psycopg")
    async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session:
        await session.execute(sqlalchemy.text(INSERT))
        await steps(session)
        await (session.commit() if keep else session.rollback())
    await engine.dispose()


async def with_open_contract_async(db: Any, steps: AsyncSteps, keep: bool) -> None:
    class Hidden:
        def __init__(self, conn: Any) -> None:
            self._conn = conn

        async def execute(self, sql: str, params: Any) -> Any:
            return await (await self._conn.execute(sql, params)).fetchall()

    await with_psycopg_async(db, lambda conn: steps(Hidden(conn)), keep)


ASYNC_TRANSACTIONS = [
    with_psycopg_async,
    with_asyncpg,
    with_asyncpg_pool,
    with_sqlalchemy_async,
    with_sqlalchemy_async_session,
    with_open_contract_async,
]


def url(db: Any, driver: str) -> Any:
    parts = conninfo_to_dict(db.dsn)
    where = {"host": parts["host"], "port": parts["port"]}
    return sqlalchemy.URL.create(f"postgresql+{driver}", parts["user"], database=parts["dbname"], query=where)


def async_engine(db: Any, driver: str) -> Any:
    return sqlalchemy.ext.asyncio.create_async_engine(url(db, driver))


def asyncpg_arguments(db: Any) -> dict[str, Any]:
    parts = conninfo_to_dict(db.dsn)
    return {"host": parts["host"], "port": parts["port"], "user": parts["user"], "database": parts["dbname"]}


@contextmanager
def django_connection(db: Any) -> Iterator[Any]:
    """A connection of Django as `django.db.connection` is one, without settings that other tests would find."""
    parts = conninfo_to_dict(db.dsn)
    settings = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts["user"],
        "HOST": parts["host"],
        "PORT": parts["port"],
    }
    with patch.object(django.conf.settings, "_wrapped", django.conf.UserSettingsHolder(django.conf.global_settings)):
        connections = django.db.utils.ConnectionHandler({"default": settings})
        yield django.utils.connection.ConnectionProxy(connections, "default")
        connections.close_all()
