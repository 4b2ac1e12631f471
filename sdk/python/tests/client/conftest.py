from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from shop import TABLES, Delivery, Idle, Order, ProtocolWorker

import xdb


@pytest.fixture
def worker() -> Iterator[ProtocolWorker]:
    """A worker of our own, which nobody has registered yet."""
    served = ProtocolWorker()
    yield served
    served.close()


@pytest.fixture
def shop(xdb_db: Any, worker: ProtocolWorker) -> Any:
    """A database with the tables and process types of `shop`, and `worker` as their worker."""
    xdb_db.execute(TABLES)
    xdb_db.admin.register(xdb.Worker(Order, Delivery, Idle), name="shop", url=worker.url)
    return xdb_db
