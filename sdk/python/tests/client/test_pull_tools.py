"""Pull workers with the tools of other workers: registering, checking, spans, the command line."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import xdb
from xdb import Call, admin, cli


class Visit(xdb.Process):
    @xdb.state(start=True)
    def greet(self) -> xdb.Decision:
        return xdb.complete(f"Hello in {AROUND[-1]}" if AROUND else "Hello")


class Left(xdb.Process, name="Visit"):
    """`Visit` without its state."""

    @xdb.state(start=True)
    def leave(self) -> xdb.Decision:
        return xdb.complete()


AROUND: list[str] = []
KINDS = [xdb.PullWorker, xdb.AsyncPullWorker]


@pytest.fixture(params=KINDS)
def worker(request: pytest.FixtureRequest) -> Any:
    return request.param(Visit, name="visits")


def test_registered_and_checked_by_an_administrator(xdb_db: Any, worker: Any) -> None:
    assert [str(each) for each in xdb_db.admin.check(worker)] == ["Visit: is not registered"]
    changes = xdb_db.admin.register(worker, name="visits", url=None, role="app")
    assert [change.is_new for change in changes] == [True, True]
    assert xdb_db.admin.check(worker) == []
    xdb_db.client.start(Visit, "v")
    left = type(worker)(Left, name="visits")
    assert any("state greet was removed" in str(finding) for finding in xdb_db.admin.check(left))
    with pytest.raises(xdb.Stranding):
        xdb_db.admin.register(left, name="visits", url=None, role="app")
    with pytest.raises(ValueError, match="PullWorker claims its calls: register it with url=None"):
        xdb_db.admin.register(worker, name="visits", url="http://127.0.0.1:1")
    assert admin.sql(worker, name="visits", url=None, role="app") == worker.sql(role="app")
    with pytest.raises(ValueError, match="url=None"):
        admin.sql(worker, name="visits", url="http://127.0.0.1:1")


def test_by_the_command_line(xdb_db: Any, worker: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    this = sys.modules[__name__]
    monkeypatch.setattr(this, "pull", worker, raising=False)
    place, dsn = f"{__name__}:pull", ["--dsn", xdb_db.superuser_dsn]
    assert cli.main(["sql", place, "--role", "app"]) == 0
    assert capsys.readouterr().out == worker.sql(role="app")
    assert cli.main(["definition", place]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"Visit"}
    assert cli.main(["check", place, *dsn]) == 1
    assert cli.main(["register", place, "--role", "app", *dsn]) == 0
    assert "worker visits is new\n    url: none, members of app claim its calls" in capsys.readouterr().out
    assert cli.main(["check", place, *dsn]) == 0
    assert cli.main(["register", place, "--name", "others", "--role", "app", *dsn]) == 0
    assert "worker others is new" in capsys.readouterr().out
    for wrong, message in (
        ([], "needs --role"),
        (["--role", "app", "--url", "http://127.0.0.1:1"], "has no --url"),
        (["--role", "app", "--secret-env", "HOME"], "has no --secret-env"),
        (["--role", "app", "--max-concurrency", "3"], "has no --max-concurrency"),
    ):
        with pytest.raises(SystemExit) as exit:
            cli.main(["register", place, *dsn, *wrong])
        assert exit.value.code == 2 and message in capsys.readouterr().err
    monkeypatch.setattr(this, "pushed", xdb.Worker(Visit), raising=False)
    with pytest.raises(SystemExit):
        cli.main(["sql", f"{__name__}:pushed", "--name", "visits", "--url", "http://127.0.0.1:1", "--role", "app"])
    assert "a Worker has no --role" in capsys.readouterr().err
    assert cli.main(["serve", place]) == 2
    assert "claims its calls and needs no server: start it with its run()" in capsys.readouterr().err


def test_it_is_not_served_over_http(worker: Any) -> None:
    with pytest.raises(TypeError, match="PullWorker claims its calls and needs no server: start it with its run()"):
        xdb.serve(worker, port=0)


def test_handlers_in_a_span(xdb_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    otel = pytest.importorskip("xdb.otel")

    def spans(_mode: str) -> Any:
        @contextlib.contextmanager
        def span(call: Call, api: str) -> Iterator[None]:
            AROUND.append(f"{api} {call.process_type}")
            try:
                yield
            finally:
                AROUND.pop()

        return span

    monkeypatch.setattr(otel, "_spans", spans)
    worker = xdb.PullWorker(Visit, name="visits", connections=xdb_db.dsn)
    otel.instrument(worker)
    with psycopg.connect(xdb_db.superuser_dsn) as conn:
        worker.register(conn, role="app")
    xdb_db.client.start(Visit, "v")
    assert worker.work() == 1
    assert xdb_db.client.wait(Visit, "v").result == "Hello in execute Visit"
    worker.close()


@pytest.mark.parametrize("number", [0, -1])
def test_as_many_as_none(number: int) -> None:
    with pytest.raises(ValueError, match="is how many calls run at a time"):
        xdb.PullWorker(Visit, name="visits", threads=number)
    with pytest.raises(ValueError, match="is how many calls run at a time"):
        xdb.AsyncPullWorker(Visit, name="visits", concurrency=number)
