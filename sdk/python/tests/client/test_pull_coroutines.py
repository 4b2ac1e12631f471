"""What handlers of pull workers may do with their connection, if the worker runs coroutines."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

import xdb

ONCE = xdb.Retry(attempts=1)
TABLE = "CREATE TABLE notes (by text)"


class Notes(xdb.Process):
    """An ordinary handler, and an ordinary function that says what is waited for, on the connection of a worker of coroutines."""

    @xdb.state(start=True, retry=ONCE, on_failure="waits")
    def writes(self) -> xdb.Decision:
        xdb.connection().execute("INSERT INTO notes VALUES ('writes')")
        return xdb.complete("written")

    @xdb.state(wait=lambda self: xdb.connection() and xdb.timer(), wait_retry=ONCE, on_failure="sees")
    def waits(self) -> xdb.Decision:
        return xdb.complete("waited")

    @xdb.state
    async def sees(self) -> xdb.Decision:
        await xdb.connection().execute("INSERT INTO notes VALUES ('sees')")
        found = self.call.recovered_from
        return xdb.complete(found and [found.state, found.error_type, found.detail])


def test_an_ordinary_handler_has_no_connection_of_coroutines(xdb_db: Any) -> None:
    """Its statement would be a coroutine that is never awaited: written nowhere, and the call counted as done."""
    xdb_db.execute(TABLE)
    with psycopg.connect(xdb_db.superuser_dsn) as conn:
        xdb.PullWorker(Notes, name="notes").register(conn, role="app")
    xdb_db.client.start(Notes, "n")

    async def work() -> None:
        worker = xdb.AsyncPullWorker(Notes, name="notes", connections=xdb_db.dsn)
        while xdb_db.client.describe("n").status == "RUNNING":
            await worker.work()
        await worker.close()

    asyncio.run(asyncio.wait_for(work(), 60))
    state, error_type, why = xdb_db.client.wait(Notes, "n").result
    assert (state, error_type) == ("waits", "LookupError") and "`async def`" in why
    assert xdb_db.execute("SELECT * FROM notes") == [("sees",)]
