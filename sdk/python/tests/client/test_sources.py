"""What a client may be made with, and the client of coroutines on connections of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg2.pool
import psycopg_pool
import pytest
import sqlalchemy
import sqlalchemy.orm
from shop import Idle, Order, start_row, wait_until
from transactions import async_engine, asyncpg_arguments, django_connection, url

import xdb
from xdb import errors
from xdb.admin import Admin
from xdb.client import AsyncClient, Client, Start
from xdb.client.statements import Query


def is_good(db: Any, client: Client) -> None:
    client.start(Idle, "i", id_reuse="allow_if_no_running")
    with pytest.raises(errors.AlreadyStarted):
        client.start(Idle, "i")
    assert db.client.describe("i").status == "RUNNING"  # it was committed
    assert client.describe("i").status == "RUNNING"  # an error leaves nothing behind
    client.stop("i")
    assert client.wait(Idle, "i").status == "TERMINATED"


def test_conninfo(shop: Any) -> None:
    with Client(shop.dsn) as client:
        is_good(shop, client)
    with pytest.raises(RuntimeError, match="closed"):
        client.describe("i")


def test_pools(shop: Any) -> None:
    with psycopg_pool.ConnectionPool(shop.dsn, min_size=1, max_size=1) as pool:
        is_good(shop, Client(pool))
    with psycopg_pool.ConnectionPool(shop.superuser_dsn, min_size=1, max_size=1) as pool:
        Admin(pool).pause_engine()
        wait_until("it is paused", lambda: shop.admin.status().state == "paused")
        shop.admin.resume_engine()
    old = psycopg2.pool.ThreadedConnectionPool(1, 1, shop.dsn)
    is_good(shop, Client(old))
    old.closeall()
    engine = sqlalchemy.create_engine(url(shop, "psycopg"))
    is_good(shop, Client(engine))
    engine.dispose()


def test_functions_that_give_a_connection(shop: Any) -> None:
    is_good(shop, Client(lambda: psycopg.connect(shop.dsn)))
    with psycopg_pool.ConnectionPool(shop.dsn, min_size=1, max_size=1) as pool:
        assert Client(pool.connection).describe("i").status == "TERMINATED"
    engine = sqlalchemy.create_engine(url(shop, "psycopg"))
    Client(sqlalchemy.orm.sessionmaker(engine)).start(Idle, "session")
    engine.dispose()
    assert shop.client.describe("session").status == "RUNNING"
    with django_connection(shop) as conn, pytest.raises(TypeError, match="give it as conn="):
        Client(lambda: conn).describe("i")


def test_registering_is_one_transaction_on_any_connection(shop: Any) -> None:
    class Nowhere(xdb.Row, table="public.nowhere", key="id"):
        name: str

    class Refused(xdb.Process):
        row: Nowhere

    both = xdb.Worker(Idle, Refused)
    for connect in (
        lambda: psycopg.connect(shop.superuser_dsn, autocommit=True),
        lambda: psycopg.connect(shop.superuser_dsn),
    ):
        with pytest.raises(errors.InvalidDefinition):
            Admin(connect).register(both, name="new", url="http://127.0.0.1:1")
        assert shop.execute("SELECT count(*) FROM xdb.workers WHERE name = 'new'") == [(0,)]


async def is_good_for_coroutines(db: Any, client: AsyncClient) -> None:
    await client.start(Idle, "i")
    with pytest.raises(errors.AlreadyStarted):
        await client.start(Idle, "i")
    assert db.client.describe("i").status == "RUNNING"
    assert (await client.describe("i")).status == "RUNNING"
    await client.stop("i")
    assert (await client.wait(Idle, "i")).status == "TERMINATED"


def test_all_of_them_for_coroutines(shop: Any) -> None:
    async def conninfo() -> None:
        async with AsyncClient(shop.dsn) as client:
            await is_good_for_coroutines(shop, client)

    async def psycopgs_pool() -> None:
        async with psycopg_pool.AsyncConnectionPool(shop.dsn, min_size=1, max_size=1) as pool:
            await is_good_for_coroutines(shop, AsyncClient(pool))

    async def asyncpgs_pool() -> None:
        async with asyncpg.create_pool(**asyncpg_arguments(shop), min_size=1, max_size=1) as pool:
            await is_good_for_coroutines(shop, AsyncClient(pool))

    async def engine() -> None:
        made = async_engine(shop, "asyncpg")
        await is_good_for_coroutines(shop, AsyncClient(made))
        await made.dispose()

    async def functions() -> None:
        await is_good_for_coroutines(shop, AsyncClient(lambda: asyncpg.connect(**asyncpg_arguments(shop))))
        await is_good_for_coroutines(shop, AsyncClient(lambda: psycopg.AsyncConnection.connect(shop.dsn)))

    for use in (conninfo, psycopgs_pool, asyncpgs_pool, engine, functions):
        asyncio.run(use())


def test_every_call_of_the_client_for_coroutines(shop: Any) -> None:
    async def use(client: AsyncClient) -> None:
        started = await client.start_many(Start(Order, f"o-{n}", rows=start_row(str(n))) for n in range(3))
        assert [one.process_id for one in started] == ["o-0", "o-1", "o-2"]
        assert await client.rpc(Order.price, "o-0", 2) == Decimal("24.60")
        assert await client.rpc(Order.ping, "o-0") == "pong"
        await client.publish(Order.paid, "o-0", "cash")
        assert (await client.wait(Order, "o-0", timeout=60)).result == ["cash"]
        await client.set_local(Order, "o-1", tries=4)
        assert (await client.local(Order, "o-1")).tries == 4
        ended = asyncio.create_task(client.wait_for_state(Order.pay, "o-1"))
        waits = lambda: shop.client.describe("o-1").threads[0]["status"] == "WAITING"
        await asyncio.to_thread(wait_until, "o-1 waits", waits)
        await client.skip_timer(Order.pay, "o-1")
        assert (await ended).status == "COMPLETED"
        assert await client.retry_now("o-2") in (0, 1)
        await client.move_state("o-2", "pay-1", [Order.pay("again")], "by hand")
        await client.publish_global(Order.parcels, "p")
        assert await client.check("o-1") == []
        await client.wait(Order, "o-1")
        assert [one.process_id async for one in client.list(status="RUNNING")] == ["o-2"]
        with pytest.raises(errors.WouldWaitForever):
            await client.wait(Order, "o-2", conn=object())  # type: ignore[arg-type]

    async def in_another_loop() -> None:
        assert (await client.describe("o-2")).status == "RUNNING"
        await client.close()

    client = AsyncClient(shop.dsn)
    asyncio.run(use(client))
    asyncio.run(in_another_loop())


def test_a_wait_that_is_cancelled_leaves_the_client_as_it_was(shop: Any) -> None:
    waiting = """SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%wait_for_process%' AND state = 'active'
        AND datname = current_database() AND pid <> pg_backend_pid()"""

    async def use() -> None:
        async with AsyncClient(shop.dsn) as client:
            await client.start(Idle, "i")
            wait = asyncio.create_task(client.wait(Idle, "i"))
            await asyncio.to_thread(wait_until, "it waits", lambda: shop.execute(waiting) == [(1,)])
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait
            assert (await client.describe("i")).status == "RUNNING"

    asyncio.run(use())
    # Long before the wait itself would be over.
    wait_until("nothing waits any more", lambda: shop.execute(waiting) == [(0,)], seconds=20)


def test_nothing_is_prepared(shop: Any) -> None:
    """A pooler that gives connections out for a transaction would not find it again."""
    prepared = "SELECT count(*) FROM pg_prepared_statements"
    shop.client.start(Idle, "i")
    with psycopg.connect(shop.dsn) as conn:
        for _ in range(10):
            shop.client.describe("i", conn=conn)
        assert conn.execute(prepared).fetchone() == (0,)
    source = Client(shop.dsn)._source
    for _ in range(10):
        with source.open() as execute:
            assert execute(prepared, ()) == [(0,)]
    source.close()


def test_after_a_fork_each_process_has_its_own_connections(shop: Any) -> None:
    shop.client.start(Idle, "i")
    assert shop.client.describe("i").status == "RUNNING"
    child = os.fork()
    if child == 0:
        try:
            status = shop.client.describe("i").status
            shop.client.close()
            os._exit(0 if status == "RUNNING" else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    session = shop.client._run(Query("SELECT pg_backend_pid()", (), lambda rows: rows[0][0]), None)
    assert shop.client.describe("i").status == "RUNNING"
    assert shop.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", session) == [(1,)]


def test_psycopg_that_is_missing_and_one_that_lacks_libpq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has installed it already is not told to do that."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r"needs psycopg 3: pip install 'psycopg>=3\.1'"):
        xdb.Client().describe("p")
    (tmp_path / "psycopg.py").write_text("raise ImportError('no pq wrapper available.')\n")
    monkeypatch.delitem(sys.modules, "psycopg")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match=r"libpq is missing: install it .* The error is: no pq wrapper available\.$") as told:
        xdb.Client().describe("p")
    assert "xdb-sdk" not in str(told.value) and "pip install 'psycopg[binary]'" in str(told.value)
