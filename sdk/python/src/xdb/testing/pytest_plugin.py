"""Fixtures of pytest for tests on a real server.

`xdb_server` is the server of `XDB_TEST_DSN` (the conninfo of a superuser), or a throwaway server of the Postgres of `PG_CONFIG`.
`xdb_db` is a fresh database for each test.
"""

from __future__ import annotations

import importlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import pytest

from ..admin import Admin
from ..client import Client
from ..pull import AsyncPullWorker, PullWorker
from ..serve import Server as WorkerServer
from ..worker import Worker
from .clock import Clock
from .pulling import run_until_stopped
from .server import Server

if TYPE_CHECKING:
    from .. import Process

# Real seconds.
DROPPED_WITHIN = 60.0

_numbers = itertools.count(1)


@dataclass(frozen=True)
class TestServer:
    """The address of the test server."""

    __test__ = False

    dsn: str

    def of(self, database: str, role: str | None = None) -> str:
        """The conninfo of one of its databases, for a role. Default: the superuser."""
        psycopg = importlib.import_module("psycopg")
        changed = {"dbname": database} if role is None else {"dbname": database, "user": role}
        made: str = psycopg.conninfo.make_conninfo(self.dsn, **changed)
        return made


class Database:
    """A database with XDB, and a role `app` that may use XDB and create tables and schemas."""

    def __init__(self, server: TestServer, name: str) -> None:
        self.name = name
        self.dsn = server.of(name, "app")
        self.superuser_dsn = server.of(name)
        self.client = Client(self.dsn)
        self.admin = Admin(self.superuser_dsn)
        self.clock = Clock(lambda: _connect(self.superuser_dsn), self.client)
        self._stops: list[Callable[[], object]] = []

    def execute(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """Executes and commits a statement as the role `app`. Returns its rows, or an empty list."""
        with _connect(self.dsn) as conn:
            cursor = conn.execute(sql, params or None)
            rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
            return rows

    @overload
    def serve(self, *processes: type[Process], name: str = ..., secret: str | None = ...) -> WorkerServer: ...

    @overload
    def serve(self, worker: PullWorker | AsyncPullWorker, /) -> None: ...

    def serve(self, *given: Any, name: str = "test-worker", secret: str | None = None) -> WorkerServer | None:
        """Registers and serves processes, or a pull worker, until the end of the test. Their tables must exist.

        A pull worker without `connections` is connected to this database.
        """
        if given and isinstance(given[0], (PullWorker, AsyncPullWorker)):
            self._pull(*given)
            return None
        serving = WorkerServer(Worker(*given, secret=secret), port=0).start()
        self._stops.append(lambda: serving.stop(grace=5))
        self.admin.register(serving.worker, name=name, url=serving.url, secret=secret, no_secret=True)
        return serving

    def _pull(self, worker: PullWorker | AsyncPullWorker) -> None:
        self.admin.register(worker, name=worker.name, url=None, role="app")
        self._stops.append(run_until_stopped(worker, self.dsn))

    def problems(self) -> list[str]:
        """The findings of `xdb.check_process` for all processes of the database."""
        with _connect(self.superuser_dsn) as conn:
            found = conn.execute(
                "SELECT p.process_id, c.problem FROM xdb.processes AS p, "
                "LATERAL xdb.check_process(p.process_id, p.execution_id) AS c"
            )
            return [f"{process_id}: {problem}" for process_id, problem in found.fetchall()]

    def close(self) -> None:
        """Stops the workers and closes the connections."""
        for stop in self._stops:
            stop()
        self.client.close()
        self.admin.close()


@pytest.fixture(scope="session")
def xdb_server() -> Iterator[TestServer]:
    """A server with XDB for all tests of this session."""
    if given := os.environ.get("XDB_TEST_DSN"):
        yield TestServer(given)
        return
    server = Server()
    try:
        yield TestServer(server.dsn)
    finally:
        server.stop()


@pytest.fixture
def xdb_db(xdb_server: TestServer) -> Iterator[Database]:
    """A database for one test: `.client` and `.execute` as the role `app`, `.admin`, `.serve(...)`, `.clock`."""
    with new_database(xdb_server) as database:
        yield database


@contextmanager
def new_database(server: TestServer) -> Iterator[Database]:
    """Makes a database like that of `xdb_db`, for fixtures of another scope. At the end its processes are checked, and it is dropped."""
    name = f"xdb_test_{os.getpid()}_{next(_numbers)}"
    with _connect(server.dsn) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    database = Database(server, name)
    try:
        _prepare(database)
        yield database
        database.clock.reset()
        problems = database.problems()
        if problems:
            pytest.fail("the tables of these processes differ from their history:\n" + "\n".join(problems))
    finally:
        database.clock.reset()
        database.close()
        _drop(server, name)


def _prepare(database: Database) -> None:
    with _connect(database.superuser_dsn) as conn:
        conn.execute("CREATE EXTENSION xdb")
        if conn.execute("SELECT FROM pg_roles WHERE rolname = 'app'").fetchone() is None:
            conn.execute("CREATE ROLE app LOGIN")
        conn.execute("SELECT xdb.grant_usage('app')")
        conn.execute("GRANT CREATE ON SCHEMA public TO app")
        conn.execute(f"GRANT CREATE ON DATABASE {database.name} TO app")


def _drop(server: TestServer, name: str) -> None:
    """Drops a database, with retries. Postgres gives sessions five seconds to end, which is too short on a busy machine."""
    in_use = importlib.import_module("psycopg").errors.ObjectInUse
    deadline = time.monotonic() + DROPPED_WITHIN
    with _connect(server.dsn) as conn:
        while True:
            try:
                conn.execute(f"DROP DATABASE {name} WITH (FORCE)")
                return
            except in_use:
                if time.monotonic() > deadline:
                    raise


def _connect(dsn: str) -> Any:
    return importlib.import_module("psycopg").connect(dsn, autocommit=True)
