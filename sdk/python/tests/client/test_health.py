"""What the workers that are registered say that they run, beside the code."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from shop import ProtocolWorker

import xdb
from xdb import cli, health


class Served(xdb.Process):
    @xdb.state(start=True)
    def begin(self) -> xdb.Decision:
        return xdb.complete()


class Newer(xdb.Process, name="Served"):
    """What is in the repository already, and registered, and not yet deployed."""

    @xdb.state(start=True)
    def begin(self) -> xdb.Decision:
        return self.end()

    @xdb.state
    def end(self) -> xdb.Decision:
        return xdb.complete()


class Other(xdb.Process):
    pass


SERVED, NEWER = xdb.Worker(Served), xdb.Worker(Newer)


def test_a_worker_that_has_the_code(xdb_db: Any) -> None:
    assert xdb_db.admin.ask_workers(SERVED) == []  # not registered: check() says so
    xdb_db.serve(Served)
    assert xdb_db.admin.ask_workers(SERVED) == []


def test_all_is_well(xdb_db: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(sys.modules[__name__], "both", xdb.Worker(Served, Other), raising=False)
    xdb_db.serve(Served, Other)
    assert cli.main(["check", f"{__name__}:both", "--dsn", xdb_db.superuser_dsn]) == 0
    assert capsys.readouterr().out == "all is well: Served, Other\n"


def test_a_url_that_is_not_the_worker_s(xdb_db: Any) -> None:
    """Somewhere below another path, or behind a program that is none."""
    with xdb.Server(xdb.Worker(Served), port=0) as server:
        prefixed = server.url + "/jobs"
        xdb_db.admin.register(SERVED, name="mine", url=prefixed)
        assert xdb_db.admin.ask_workers(SERVED) == []  # any prefix will do
    with nothing_at(404) as url:
        xdb_db.admin.register(SERVED, name="mine", url=url, no_secret=True)
        [finding] = xdb_db.admin.ask_workers(SERVED)
        assert str(finding).startswith(f"Served: worker mine at {url} does not answer as a worker (HTTP Error 404")
        assert not finding.is_note
    with nothing_at(503) as url:
        xdb_db.admin.register(SERVED, name="mine", url=url, no_secret=True)
        [finding] = xdb_db.admin.ask_workers(SERVED)
        assert finding.is_note


def test_a_worker_that_has_another_secret(xdb_db: Any) -> None:
    with xdb.Server(xdb.Worker(Served, secret=["new", "old"]), port=0) as server:
        for secret, refused in [("old", False), ("new", False), ("none of it", True)]:
            mine = xdb.Worker(Served, secret=secret)
            xdb_db.admin.register(mine, name="mine", url=server.url, secret=secret)
            found = [str(each) for each in xdb_db.admin.ask_workers(mine)]
            text = f"Served: worker mine at {server.url} refuses calls that are signed with the secret of the code"
            assert found == ([text] if refused else [])
    assert [each.is_note for each in xdb_db.admin.ask_workers(mine)] == [True]  # a worker that is not there is reported once


@contextlib.contextmanager
def nothing_at(status: int) -> Iterator[str]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        running = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        running.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        running.join(60)


def test_a_worker_that_runs_other_code(xdb_db: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(sys.modules[__name__], "newer", NEWER, raising=False)
    with xdb.Server(SERVED, port=0) as server:
        xdb_db.admin.register(NEWER, name="mine", url=server.url)
        assert xdb_db.admin.check(NEWER) == []
        [finding] = xdb_db.admin.ask_workers(NEWER)
        hashes = [f"sha256:{each.definition_hash()}" for each in (Served, Newer)]
        assert str(finding) == (
            f"Served: worker mine at {server.url} runs other code: its definition is {hashes[0]}, and the code's is {hashes[1]}"
        )
        assert not finding.is_note and not finding.strands
        assert cli.main(["check", f"{__name__}:newer", "--dsn", xdb_db.superuser_dsn]) == 1
        assert "runs other code" in capsys.readouterr().out
        xdb_db.admin.register(xdb.Worker(Newer, Other), name="mine", url=server.url + "/", no_secret=True)
        found = [str(each) for each in xdb_db.admin.ask_workers(xdb.Worker(Other))]
        assert found == [f"Other: worker mine at {server.url}/ does not serve this process type; it serves Served"]
    monkeypatch.setattr(sys.modules[__name__], "newer", xdb.Worker(Newer, Other))
    assert cli.main(["check", f"{__name__}:newer", "--dsn", xdb_db.superuser_dsn]) == 0
    notes = capsys.readouterr().out.splitlines()
    assert len(notes) == 2 and all(each.startswith("note: ") and "can't be asked from here" in each for each in notes)


@contextlib.contextmanager
def silent(listens: bool) -> Iterator[str]:
    """A port where no server answers."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        if listens:
            kept.listen()
        yield f"http://127.0.0.1:{kept.getsockname()[1]}"


def test_workers_without_a_health_answer(monkeypatch: pytest.MonkeyPatch, worker: ProtocolWorker) -> None:
    with pytest.raises(health.NotAsked, match="HTTP Error 501"):
        health.types_at(worker.url)
    monkeypatch.setattr(health, "TIMEOUT", 0.1)
    with silent(listens=True) as url, pytest.raises(health.NotAsked, match="timed out"):
        health.types_at(url)
    with silent(listens=False) as url, pytest.raises(health.NotAsked, match="refused"):
        health.types_at(url)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"types": []}', b"\xff"])
def test_an_invalid_health_answer(body: bytes) -> None:
    class Odd(xdb.Worker):
        def health(self) -> xdb.Reply:
            return xdb.Reply(200, body)

    with xdb.Server(Odd(Served), port=0) as server, pytest.raises(health.NotAsked, match="has no list of process types"):
        health.types_at(server.url)


def test_a_worker_without_url_is_not_asked(xdb_db: Any) -> None:
    pulling = xdb.PullWorker(Served, name="pulling")
    xdb_db.admin.register(pulling, name="pulling", url=None, role="app")
    assert xdb_db.admin.ask_workers(pulling) == []
