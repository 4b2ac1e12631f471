"""A start that is refused in a savepoint leaves the rest of the transaction; with autocommit each call is one of its own."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import asyncpg
import django.db.transaction
import psycopg
import psycopg2
import pytest
import sqlalchemy
from shop import Idle
from transactions import asyncpg_arguments, django_connection, url

from xdb import errors
from xdb.client import AsyncClient, Client

CLIENT, ASYNC_CLIENT = Client("host=/nowhere"), AsyncClient("host=/nowhere")


def refused_and_started(conn: Any, savepoint: Any, id: str) -> None:
    with pytest.raises(errors.AlreadyStarted), savepoint():
        CLIENT.start(Idle, "taken", conn=conn)
    CLIENT.start(Idle, id, conn=conn)


def test_savepoints_of_each_driver(shop: Any) -> None:
    shop.client.start(Idle, "taken")
    with psycopg.connect(shop.dsn) as conn:
        refused_and_started(conn, conn.transaction, "psycopg")

    class Savepoint(AbstractContextManager[None]):
        def __init__(self, conn: Any) -> None:
            self.execute = conn.cursor().execute

        def __enter__(self) -> None:
            self.execute("SAVEPOINT here")

        def __exit__(self, *error: object) -> None:
            self.execute("ROLLBACK TO here" if error[0] else "RELEASE here")

    with psycopg2.connect(shop.dsn) as old:
        refused_and_started(old, lambda: Savepoint(old), "psycopg2")
    old.close()
    engine = sqlalchemy.create_engine(url(shop, "psycopg"))
    with engine.begin() as connected:
        refused_and_started(connected, connected.begin_nested, "sqlalchemy")
    engine.dispose()
    with django_connection(shop) as djangos, patch.object(django.db.transaction, "get_connection", lambda using: djangos):
        with django.db.transaction.atomic():
            refused_and_started(djangos, django.db.transaction.atomic, "django")

    async def of_asyncpg() -> None:
        conn = await asyncpg.connect(**asyncpg_arguments(shop))
        async with conn.transaction():
            with pytest.raises(errors.AlreadyStarted):
                async with conn.transaction():
                    await ASYNC_CLIENT.start(Idle, "taken", conn=conn)
            await ASYNC_CLIENT.start(Idle, "asyncpg", conn=conn)
        await conn.close()

    asyncio.run(of_asyncpg())
    started = {one.process_id for one in shop.client.list()}
    assert started == {"taken", "psycopg", "psycopg2", "sqlalchemy", "django", "asyncpg"}


def test_autocommit_of_each_driver(shop: Any) -> None:
    shop.client.start(Idle, "taken")

    def is_there_at_once(conn: Any, id: str) -> None:
        with pytest.raises(errors.AlreadyStarted):
            CLIENT.start(Idle, "taken", conn=conn)
        CLIENT.start(Idle, id, conn=conn)
        assert shop.client.describe(id).status == "RUNNING"

    with psycopg.connect(shop.dsn, autocommit=True) as conn:
        is_there_at_once(conn, "psycopg")
    old = psycopg2.connect(shop.dsn)
    old.autocommit = True
    is_there_at_once(old, "psycopg2")
    old.close()
    engine = sqlalchemy.create_engine(url(shop, "psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connected:
        is_there_at_once(connected, "sqlalchemy")
    engine.dispose()
    with django_connection(shop) as djangos:
        is_there_at_once(djangos, "django")

    async def of_asyncpg() -> None:
        conn = await asyncpg.connect(**asyncpg_arguments(shop))
        with pytest.raises(errors.AlreadyStarted):
            await ASYNC_CLIENT.start(Idle, "taken", conn=conn)
        await ASYNC_CLIENT.start(Idle, "asyncpg", conn=conn)
        assert shop.client.describe("asyncpg").status == "RUNNING"
        await conn.close()

    asyncio.run(of_asyncpg())
