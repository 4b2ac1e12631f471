from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from shop import TABLES, Delivery, Idle, Order, ProtocolWorker

import xdb
from xdb.testing.pytest_plugin import TestServer, new_database


@pytest.fixture
def worker() -> Iterator[ProtocolWorker]:
    """A worker of our own, which is not registered yet."""
    served = ProtocolWorker()
    yield served
    served.close()


@pytest.fixture
def shop(xdb_db: Any, worker: ProtocolWorker) -> Any:
    """A database with the tables and process types of `shop`, and `worker` as their worker."""
    return furnished(xdb_db, worker)


@pytest.fixture(scope="module")
def shop_of_module(xdb_server: TestServer) -> Iterator[Any]:
    """As `shop`, for tests which see to it that it is empty again."""
    served = ProtocolWorker()
    try:
        with new_database(xdb_server) as database:
            yield furnished(database, served)
    finally:
        served.close()


def furnished(database: Any, worker: ProtocolWorker) -> Any:
    database.execute(TABLES)
    database.admin.register(xdb.Worker(Order, Delivery, Idle), name="shop", url=worker.url)
    return database
