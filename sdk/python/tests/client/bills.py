"""Bills, whose calls pull workers claim: the shared code of their tests."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import xdb

TABLES = """
CREATE TABLE bills (id text PRIMARY KEY, status text CHECK (status <> 'refused'));
CREATE TABLE ledger (bill text, step text, UNIQUE (bill, step))
"""


class Bill(xdb.Row, table="public.bills", key="id"):
    status: str | None


def note(step: str) -> None:
    """Writes in the handler's own transaction."""
    xdb.connection().execute("INSERT INTO public.ledger VALUES (%s, %s)", (xdb.current().process_id, step))


class Billing(xdb.Process):
    bill: Bill
    tries: int = 0
    paid = xdb.Queue[str]()

    @xdb.state(start=True, retry=xdb.Retry(attempts=3, initial=timedelta(milliseconds=100)))
    def send(self, how: str | None) -> xdb.Decision:
        note("send")
        if how == "fails once" and self.call.attempt == 1:
            raise xdb.Retryable("Busy", "the printer is busy")
        if how == "fails":
            raise xdb.Fatal("OutOfPaper", "no paper")
        self.bill.status = "refused" if how == "refused" and self.call.attempt == 1 else "sent"
        return self.collect()

    @xdb.state(wait=paid)
    def collect(self) -> xdb.Decision:
        note("collect")
        self.bill.status = "paid"
        return xdb.complete(self.paid.message)

    @xdb.rpc
    def hello(self) -> str:
        return "hello"


class AsyncBilling(xdb.Process):
    bill: Bill

    @xdb.state(start=True)
    async def send(self) -> xdb.Decision:
        await xdb.connection().execute("INSERT INTO public.ledger VALUES (%s, 'send')", (self.call.process_id,))
        self.bill.status = "sent"
        return self.file()

    @xdb.state
    def file(self) -> xdb.Decision:
        return xdb.complete("filed")


@pytest.fixture
def billing(xdb_db: Any) -> Iterator[Any]:
    """A database with the tables and types of this file, whose calls `app` may claim."""
    xdb_db.execute(TABLES)
    with psycopg.connect(xdb_db.superuser_dsn) as conn:
        changes = xdb.PullWorker(Billing, AsyncBilling, name="billing").register(conn, role="app")
    assert [change.is_new for change in changes] == [True, True, True]
    yield xdb_db
    assert xdb_db.problems() == []


def start(database: Any, id: str, process: Any = Billing, input: str | None = None) -> None:
    database.client.start(process, id, input, rows=[Bill.row(id, status="new")])


def steps(database: Any, id: str) -> list[str]:
    return [step for (step,) in database.execute("SELECT step FROM public.ledger WHERE bill = %s ORDER BY step", id)]


def status(database: Any, id: str) -> Any:
    return database.execute("SELECT status FROM public.bills WHERE id = %s", id)[0][0]


def failures(database: Any) -> dict[str, tuple[str, str]]:
    return {id: (kind, detail) for id, kind, detail in database.execute("SELECT process_id, error_type, detail FROM xdb.failures")}


def attempts(database: Any, id: str) -> int:
    """How many have failed."""
    return int(database.execute("SELECT count(*) FROM xdb.history WHERE process_id = %s AND event_type = 'AttemptFailed'", id)[0][0])


ONCE = xdb.Retry(attempts=1)


def register(database: Any, *processes: Any) -> None:
    with psycopg.connect(database.superuser_dsn) as conn:
        xdb.PullWorker(*processes, name="billing").register(conn, role="app")
