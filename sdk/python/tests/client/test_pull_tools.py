"""Workers that fetch their calls, beside what serves, registers and looks at workers."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

import xdb
from xdb import cli


class Filing(xdb.Process):
    @xdb.state(start=True, retry=xdb.Retry(attempts=1))
    def only(self) -> xdb.Decision:
        xdb.connection().execute("SELECT 1")
        return xdb.complete("filed")


@pytest.fixture
def filing(xdb_db: Any) -> Any:
    """A database with `Filing`, whose calls `app` may fetch."""
    with psycopg.connect(xdb_db.superuser_dsn) as conn:
        xdb.PullWorker(Filing, name="filing").register(conn, role="app")
    return xdb_db


def test_an_ordinary_handler_of_coroutines_has_no_connection(filing: Any) -> None:
    """What it gives could be awaited by nobody there, and a write would be lost in silence."""

    async def work() -> None:
        worker = xdb.AsyncPullWorker(Filing, name="filing", connections=filing.dsn)
        await worker.work()
        await worker.close()

    filing.client.start(Filing, "f1")
    asyncio.run(work())
    assert filing.client.wait(Filing, "f1").status == "FAILED"
    ((told,),) = filing.execute("SELECT detail FROM xdb.failures WHERE process_id = 'f1'")
    assert "`async def`" in told
    filing.client.start(Filing, "f2")
    with xdb.PullWorker(Filing, name="filing", connections=filing.dsn) as worker:
        assert filing.client.wait(Filing, "f2", timeout=30).result == "filed"
    del worker


def test_what_serves_and_registers_knows_workers_that_fetch(filing: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    worker, superuser = xdb.PullWorker(Filing, name="filing", connections=filing.dsn), filing.superuser_dsn
    with xdb.Admin(superuser) as admin:
        assert admin.check(worker) == []
        assert not any(admin.register(worker, name="filing", url=None, role="app"))
    with pytest.raises(TypeError, match=r"PullWorker fetches its calls and has no URL to serve: call its run\(\)"):
        xdb.serve(worker)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "desk", SimpleNamespace(worker=worker))
    assert cli.main(["check", "desk:worker", "--dsn", superuser]) == cli.NOTHING
    assert cli.main(["register", "desk:worker", "--name", "filing", "--role", "app", "--dsn", superuser]) == cli.NOTHING
    assert "worker filing is registered as it is" in capsys.readouterr().out
    assert cli.main(["sql", "desk:worker", "--name", "filing", "--role", "app"]) == cli.NOTHING
    assert "url => NULL" in capsys.readouterr().out
    assert cli.main(["definition", "desk:worker"]) == cli.NOTHING
    assert cli.main(["serve", "desk:worker"]) == cli.WRONG
    assert "run it with its run()" in capsys.readouterr().err


def test_nobody_works_in_no_thread() -> None:
    with pytest.raises(ValueError, match="threads= is how many"):
        xdb.PullWorker(Filing, name="filing", threads=0)
    with pytest.raises(ValueError, match="concurrency= is how many"):
        xdb.AsyncPullWorker(Filing, name="filing", concurrency=0)
