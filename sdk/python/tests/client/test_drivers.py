"""The caller's own transaction, by five drivers: with a rollback neither row nor process is there, with a commit both are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm
from shop import Idle, Order, start_row, wait_until
from transactions import ASYNC_TRANSACTIONS, TRANSACTIONS, Undo, url

from xdb import errors
from xdb.client import AsyncClient, Client, Start

@pytest.fixture
def shop(shop_of_module: Any) -> Iterator[Any]:
    """One database for all of them, which is empty again after each."""
    db = shop_of_module
    yield db
    problems = db.problems()
    for one in list(db.client.list(status="RUNNING")):
        db.client.stop(one.process_id)
    db.execute("DELETE FROM orders")
    # What the engine has locked at that moment stays.
    wait_until("its processes are purged", lambda: db.admin.purge(0) == 0 and everything(db) == ([], []))
    assert problems == []


NOWHERE = "host=/nowhere"  # of a client that has no connection of its own
STATUS = "100% 'new' \\"


def everything(db: Any) -> tuple[list[Any], list[str]]:
    orders = [row[0] for row in db.execute("SELECT order_id FROM orders ORDER BY 1")]
    return orders, sorted(one.process_id for one in db.client.list())


def is_all_there(db: Any) -> None:
    assert everything(db) == (["1", "2", "by hand"], ["many", "o"])
    assert db.execute("SELECT status FROM orders WHERE order_id = '1'") == [(STATUS,)]
    assert db.client.wait(Order, "o").result == ["ü"]


@pytest.mark.parametrize("transaction", TRANSACTIONS, ids=lambda each: each.__name__)
def test_both_or_neither(shop: Any, transaction: Any) -> None:
    client = Client(NOWHERE)

    def steps(conn: Any) -> None:
        started = client.start(Order, "o", rows=start_row("1", status=STATUS), conn=conn)
        [other] = client.start_many([Start(Order, "many", rows=start_row("2", status="second"))], conn=conn)
        assert client.describe("o", conn=conn).execution_id == started.execution_id != other.execution_id
        client.publish(Order.paid, "o", "ü", conn=conn)
        client.set_local(Order, "o", conn=conn, tries=7)
        assert client.local(Order, "o", conn=conn).tries == 7
        assert {one.process_id for one in client.list(conn=conn)} == {"o", "many"}
        assert everything(shop) == ([], [])

    transaction(shop, steps, False)
    assert everything(shop) == ([], [])
    transaction(shop, steps, True)
    is_all_there(shop)


@pytest.mark.parametrize("transaction", TRANSACTIONS, ids=lambda each: each.__name__)
def test_errors_of_each_driver(shop: Any, transaction: Any) -> None:
    shop.client.start(Idle, "taken")

    def steps(conn: Any) -> None:
        with pytest.raises(errors.AlreadyStarted) as refused:
            Client(NOWHERE).start(Idle, "taken", conn=conn)
        is_whole(refused.value)
        raise Undo

    with pytest.raises(Undo):
        transaction(shop, steps, True)


def is_whole(error: errors.XdbError) -> None:
    assert error.sqlstate == "XD006" and error.__cause__ is not None
    assert "taken" in error.message and "is running" in (error.detail or "") and "id_reuse_policy" in (error.hint or "")


@pytest.mark.parametrize("transaction", ASYNC_TRANSACTIONS, ids=lambda each: each.__name__)
def test_both_or_neither_for_coroutines(shop: Any, transaction: Any) -> None:
    client = AsyncClient(NOWHERE)

    async def steps(conn: Any) -> None:
        started = await client.start(Order, "o", rows=start_row("1", status=STATUS), conn=conn)
        [other] = await client.start_many([Start(Order, "many", rows=start_row("2", status="second"))], conn=conn)
        assert (await client.describe("o", conn=conn)).execution_id == started.execution_id != other.execution_id
        await client.publish(Order.paid, "o", "ü", conn=conn)
        await client.set_local(Order, "o", conn=conn, tries=7)
        assert (await client.local(Order, "o", conn=conn)).tries == 7
        assert {one.process_id async for one in client.list(conn=conn)} == {"o", "many"}
        assert everything(shop) == ([], [])

    asyncio.run(transaction(shop, steps, False))
    assert everything(shop) == ([], [])
    asyncio.run(transaction(shop, steps, True))
    is_all_there(shop)


@pytest.mark.parametrize("transaction", ASYNC_TRANSACTIONS, ids=lambda each: each.__name__)
def test_errors_of_each_driver_for_coroutines(shop: Any, transaction: Any) -> None:
    shop.client.start(Idle, "taken")

    async def steps(conn: Any) -> None:
        with pytest.raises(errors.AlreadyStarted) as refused:
            await AsyncClient(NOWHERE).start(Idle, "taken", conn=conn)
        is_whole(refused.value)
        raise Undo

    with pytest.raises(Undo):
        asyncio.run(transaction(shop, steps, True))


def test_a_session_that_has_not_flushed(shop: Any) -> None:
    """What was added to a session before a start stands before it."""
    base: Any = sqlalchemy.orm.declarative_base()

    class OrderRow(base):  # type: ignore[misc]
        __tablename__ = "orders"
        order_id = sqlalchemy.Column(sqlalchemy.Text, primary_key=True)
        status = sqlalchemy.Column(sqlalchemy.Text)

    engine = sqlalchemy.create_engine(url(shop, "psycopg"))
    with sqlalchemy.orm.Session(engine) as session:
        session.add(OrderRow(order_id="1", status="added"))
        shop.client.start(Order, "o", rows=start_row("1", status="started"), conflict="ignore", conn=session)
        session.commit()
    engine.dispose()
    assert shop.execute("SELECT status FROM orders") == [("added",)]


def test_a_connection_of_the_wrong_kind_is_refused(shop: Any) -> None:
    async def crosswise() -> None:
        async with await psycopg.AsyncConnection.connect(shop.dsn) as conn:
            with pytest.raises(TypeError, match=r"use xdb\.AsyncClient"):
                shop.client.describe("o", conn=conn)
        with psycopg.connect(shop.dsn) as sync, pytest.raises(TypeError, match="would block the event loop"):
            await AsyncClient(NOWHERE).describe("o", conn=sync)

    asyncio.run(crosswise())
    with pytest.raises(TypeError, match=r"no method execute\(sql, params\)"):
        shop.client.describe("o", conn=5)

    class GivesNothing:
        def execute(self, sql: str, params: Any) -> None:
            return None

    with pytest.raises(TypeError, match="must return the rows"):
        shop.client.describe("o", conn=GivesNothing())
