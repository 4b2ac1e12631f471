"""Connections of applications with cursors, rows, encodings and adapters of their own: the client's statements and results are the same."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import asyncpg
import psycopg
import psycopg.adapt
import psycopg.rows
import psycopg2
import psycopg2.extensions
import psycopg2.extras
import pytest
import sqlalchemy
from psycopg import raw_cursor
from shop import HOSTILE, Delivery, Idle, Order, set_for_role, start_row
from transactions import asyncpg_arguments, django_connection, url

import xdb
from xdb import errors
from xdb.admin import Admin
from xdb.client import AsyncClient, Client

NOWHERE = "host=/nowhere"  # of a client that has no connection of its own


def uses_all(client: Client, conn: Any, id: str) -> None:
    """What reads texts, numbers, booleans, JSON and times."""
    started = client.start(Order, id, rows=start_row(id, status="ß"), conn=conn)
    assert started.process_id == id
    client.set_local(Order, id, conn=conn, tries=7)
    assert client.local(Order, id, conn=conn).tries == 7
    assert client.describe(id, conn=conn).execution_id == started.execution_id
    [one] = [each for each in client.list(prefix=id, conn=conn)]
    assert (one.process_id, one.is_latest, one.closed_at, one.live_threads) == (id, True, None, 1) and one.started_at.year > 2000
    assert client.retry_now(id, conn=conn) in (0, 1)
    assert client.check(id, conn=conn) == [] and client.incidents(conn=conn) == []
    client.publish(Order.paid, id, "ü", message_id="€", conn=conn)
    [done] = client.retry_now_many([id], conn=conn)
    # It may have ended with the message.
    assert done.process_id == id and done.count in (0, 1) and (done.error is None or isinstance(done.error, errors.NotRunning))
    [missing] = client.stop_many([f"no {id}"], conn=conn)
    assert missing.count == 0 and isinstance(missing.error, xdb.errors.ProcessNotFound)


class Gone(xdb.Process, name="Order"):
    """Without the states of `Order`."""

    @xdb.state(start=True)
    def other(self) -> xdb.Decision:
        return xdb.complete()


def administers(shop: Any, conn: Any, id: str) -> None:
    shop.client.start(Order, id, rows=start_row(id))
    with psycopg.connect(shop.superuser_dsn) as plain:
        [(url, concurrency)] = plain.execute("SELECT url, max_concurrency FROM xdb.workers").fetchall()
    with Admin(NOWHERE) as admin:
        assert admin.status(conn=conn).state == "running"
        worker = xdb.Worker(Order, Delivery, Idle)
        assert admin.check(worker, conn=conn) == []
        for given in (concurrency, None):
            changes = admin.register(worker, name="shop", url=url, max_concurrency=given, no_secret=True, dry_run=True, conn=conn)
            assert [bool(change) for change in changes] == [False] * 4
        [finding] = [each for each in admin.check(xdb.Worker(Gone), conn=conn) if "state " in each.text and each.strands]
        assert re.search(r"was removed, but (1 execution is|\d+ executions are) in it$", finding.text)


async def uses_all_async(client: AsyncClient, conn: Any, id: str) -> None:
    started = await client.start(Order, id, rows=start_row(id, status="ß"), conn=conn)
    assert (await client.describe(id, conn=conn)).execution_id == started.execution_id
    [one] = [each async for each in client.list(prefix=id, conn=conn)]
    assert (one.process_id, one.is_latest, one.closed_at, one.live_threads) == (id, True, None, 1)
    await client.publish(Order.paid, id, "ü", message_id="€", conn=conn)


def values_of_names(cursor: Any) -> Any:
    """A factory of rows that are none."""
    return lambda values: {"only": len(values)}


class Shouting(psycopg.adapt.Loader):
    def load(self, data: Any) -> str:
        return bytes(data).decode("utf-8", "replace").upper()


class Whispering(psycopg.adapt.Dumper):
    def dump(self, obj: Any) -> bytes:
        return b"whispered"


def with_adapters(conn: Any) -> Any:
    """An application that reads and writes everything in its own way."""
    for kind in ("text", "varchar", "name", "uuid", "json", "jsonb", "int4", "int8", "bool", "numeric", "timestamptz"):
        conn.adapters.register_loader(kind, Shouting)
    conn.adapters.register_dumper(str, Whispering)
    return conn


class Own(psycopg.Connection[Any]):
    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the application's cursors are for the application")


PSYCOPG: dict[str, Callable[[str], Any]] = {
    "raw": lambda dsn: psycopg.connect(dsn, cursor_factory=raw_cursor.RawCursor),
    "raw, which commits by itself": lambda dsn: psycopg.connect(dsn, cursor_factory=raw_cursor.RawCursor, autocommit=True),
    "client": lambda dsn: psycopg.connect(dsn, cursor_factory=psycopg.ClientCursor),
    "rows": lambda dsn: psycopg.connect(dsn, row_factory=values_of_names),
    "scalars": lambda dsn: psycopg.connect(dsn, row_factory=psycopg.rows.scalar_row),
    "prepared": lambda dsn: psycopg.connect(dsn, prepare_threshold=0),
    "ascii": lambda dsn: psycopg.connect(dsn, client_encoding="SQL_ASCII"),
    "latin": lambda dsn: psycopg.connect(dsn, client_encoding="LATIN9"),
    "adapters": lambda dsn: with_adapters(psycopg.connect(dsn)),
    "a class": lambda dsn: Own.connect(dsn),
    "all": lambda dsn: with_adapters(
        psycopg.connect(dsn, cursor_factory=raw_cursor.RawCursor, row_factory=values_of_names, client_encoding="SQL_ASCII")
    ),
}


@pytest.mark.parametrize("kind", PSYCOPG)
def test_psycopg(shop_of_module: Any, kind: str) -> None:
    with PSYCOPG[kind](shop_of_module.dsn) as conn:
        uses_all(Client(NOWHERE), conn, f"psycopg {kind} ä")
        conn.commit()
    assert Client(shop_of_module.dsn).wait(Order, f"psycopg {kind} ä").result == ["ü"]


@pytest.mark.parametrize("kind", ["client", "all"])
def test_psycopg_of_a_role_with_hostile_settings(shop: Any, kind: str) -> None:
    set_for_role(shop, **HOSTILE)
    with PSYCOPG[kind](shop.dsn) as conn:
        uses_all(Client(NOWHERE), conn, "ä")
    assert Client(shop.dsn).wait(Order, "ä").result == ["ü"]


@pytest.mark.parametrize("kind", PSYCOPG)
def test_administration_by_psycopg(shop_of_module: Any, kind: str) -> None:
    with PSYCOPG[kind](shop_of_module.superuser_dsn) as conn:
        administers(shop_of_module, conn, f"admin {kind}")


@pytest.mark.parametrize("cursor", [psycopg.AsyncRawCursor, psycopg.AsyncClientCursor])
@pytest.mark.parametrize("encoding", ["UTF8", "SQL_ASCII"])
def test_psycopg_with_coroutines(shop_of_module: Any, cursor: Any, encoding: str) -> None:
    id = f"{cursor.__name__} {encoding} ä"

    async def run() -> None:
        connecting = psycopg.AsyncConnection.connect(
            shop_of_module.dsn, cursor_factory=cursor, client_encoding=encoding, row_factory=values_of_names
        )
        async with await connecting as conn:
            await uses_all_async(AsyncClient(NOWHERE), with_adapters(conn), id)

    asyncio.run(run())
    assert Client(shop_of_module.dsn).wait(Order, id).result == ["ü"]


class Refusing:
    """What an application has registered for `str`."""

    def __init__(self, text: str) -> None:
        pass

    def getquoted(self) -> bytes:
        return b"'whispered'"


@pytest.mark.parametrize("encoding", ["UTF8", "SQL_ASCII", "LATIN9"])
@pytest.mark.parametrize("factory", [None, psycopg2.extras.RealDictCursor, psycopg2.extras.NamedTupleCursor, psycopg2.extras.LoggingCursor])
def test_psycopg2(shop_of_module: Any, encoding: str, factory: Any) -> None:
    id = f"psycopg2 {encoding} {getattr(factory, '__name__', 'plain')} ä"
    conn = psycopg2.connect(shop_of_module.dsn, cursor_factory=factory)
    conn.set_client_encoding(encoding)
    psycopg2.extras.register_default_jsonb(conn, loads=lambda _: "broken")
    shout = psycopg2.extensions.new_type((25, 1043, 20, 23, 16), "SHOUT", lambda value, _: value and value.upper())
    psycopg2.extensions.register_type(shout, conn)
    with patch.dict(psycopg2.extensions.adapters, {(str, psycopg2.extensions.ISQLQuote): Refusing}):
        uses_all(Client(NOWHERE), conn, id)
    conn.commit()
    conn.close()
    assert Client(shop_of_module.dsn).wait(Order, id).result == ["ü"]


@pytest.mark.parametrize("factory", [None, psycopg2.extras.RealDictCursor])
def test_administration_by_psycopg2(shop_of_module: Any, factory: Any) -> None:
    conn = psycopg2.connect(shop_of_module.superuser_dsn, cursor_factory=factory)
    shout = psycopg2.extensions.new_type((25, 1043, 20, 23, 16), "SHOUT", lambda value, _: value and value.upper())
    psycopg2.extensions.register_type(shout, conn)
    with contextlib.closing(conn):
        administers(shop_of_module, conn, f"admin {factory}")


@pytest.mark.parametrize("options", [{"cursor_factory": raw_cursor.RawCursor}, {"client_encoding": "SQL_ASCII"}, {"server_side_binding": True}])
def test_django(shop_of_module: Any, options: Any) -> None:
    id = f"django {next(iter(options))} ä"
    with django_connection(shop_of_module) as conn:
        conn.settings_dict["OPTIONS"] = options
        with patch.object(type(conn._connections["default"]), "init_connection_state", lambda *_: None):
            uses_all(Client(NOWHERE), conn, id)
    assert Client(shop_of_module.dsn).wait(Order, id).result == ["ü"]


def test_sqlalchemy_with_rows_and_json_of_its_own(shop_of_module: Any) -> None:
    engine = sqlalchemy.create_engine(
        url(shop_of_module, "psycopg2"),
        json_deserializer=lambda _: "broken",
        connect_args={"cursor_factory": psycopg2.extras.NamedTupleCursor},
    )
    with engine.begin() as conn:
        uses_all(Client(NOWHERE), conn, "sqlalchemy ä")
    engine.dispose()
    assert Client(shop_of_module.dsn).wait(Order, "sqlalchemy ä").result == ["ü"]


class NoTuple(asyncpg.Record):
    """A record that gives its names in place of its values."""

    def __iter__(self) -> Any:
        return iter(self.keys())


def test_asyncpg_with_records_and_codecs_of_its_own(shop_of_module: Any) -> None:
    async def run() -> None:
        conn = await asyncpg.connect(**asyncpg_arguments(shop_of_module), record_class=NoTuple)
        for kind in ("jsonb", "int8", "int4", "bool", "uuid", "timestamptz", "interval"):
            await conn.set_type_codec(kind, encoder=lambda _: "broken", decoder=lambda _: "broken", schema="pg_catalog")
        await uses_all_async(AsyncClient(NOWHERE), conn, "asyncpg ä")
        await conn.close()

    asyncio.run(run())
    assert Client(shop_of_module.dsn).wait(Order, "asyncpg ä").result == ["ü"]
