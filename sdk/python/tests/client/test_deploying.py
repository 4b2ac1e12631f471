"""A new version beside the old one, behind one address; and a worker with fewer threads than there are calls."""

from __future__ import annotations

import collections
import contextlib
import http.client
import itertools
import logging
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
import pytest
from shop import wait_until

import xdb
from xdb import request
from xdb.testing.pulling import run_until_stopped
from xdb.testing.pytest_plugin import Database

QUICK = xdb.Retry(attempts=3, initial=timedelta(seconds=0.2))


class Old(xdb.Process, name="Deploy"):
    go = xdb.Queue[str]()

    @xdb.state(start=True, wait=go, retry=QUICK, on_failure="refund")
    def pay(self) -> xdb.Decision:
        CHARGED.append(self.call.process_id)
        return self.thank()

    @xdb.state(retry=QUICK, on_failure="refund")
    def thank(self) -> xdb.Decision:
        return xdb.complete("thanked")

    @xdb.state
    def refund(self) -> xdb.Decision:
        return xdb.fail("refunded")


class New(xdb.Process, name="Deploy"):
    go = xdb.Queue[str]()

    @xdb.state(start=True, wait=go, retry=QUICK, on_failure="refund")
    def pay(self) -> xdb.Decision:
        CHARGED.append(self.call.process_id)
        return self.pack()

    @xdb.state(wait=lambda self: xdb.timer(), retry=QUICK, wait_retry=QUICK, on_failure="refund")
    def pack(self) -> xdb.Decision:
        return xdb.complete("packed")

    @xdb.state(retry=QUICK, on_failure="refund")
    def thank(self) -> xdb.Decision:
        return xdb.complete("thanked")

    @xdb.state
    def refund(self) -> xdb.Decision:
        return xdb.fail("refunded")

    @xdb.rpc
    def weigh(self) -> int:
        return 3


class Emptied(xdb.Process, name="Deploy"):
    """Without `thank`."""

    go = xdb.Queue[str]()

    @xdb.state(start=True, wait=go, retry=QUICK, on_failure="refund")
    def pay(self) -> xdb.Decision:
        return self.pack()

    pack, refund, weigh = New.pack, New.refund, New.weigh


CHARGED: list[str] = []


class Balancer:
    """One address, and instances behind it that take turns."""

    def __init__(self) -> None:
        self.instances: list[xdb.Server] = []
        self._turn = itertools.count()
        self._guard, self._busy = threading.Condition(), collections.Counter[xdb.Server]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer.instance() as instance:
                    self._pass_on(urllib.parse.urlsplit(instance.url), body)

            def _pass_on(self, place: urllib.parse.SplitResult, body: bytes) -> None:
                behind = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
                behind.request("POST", self.path, body, dict(self.headers.items()))
                reply = behind.getresponse()
                answer = reply.read()
                self.send_response(reply.status)
                for name in ("Content-Type", "Retry-After"):
                    if reply.getheader(name):
                        self.send_header(name, str(reply.getheader(name)))
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                behind.close()

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Listening(ThreadingHTTPServer):
            request_queue_size = 128  # a hundred calls come at once
            daemon_threads = True

        self._server = Listening(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @contextlib.contextmanager
    def instance(self) -> Iterator[xdb.Server]:
        """Whose turn it is. It is not stopped before it has answered."""
        with self._guard:
            found = self.instances[next(self._turn) % len(self.instances)]
            self._busy[found] += 1
        try:
            yield found
        finally:
            with self._guard:
                self._busy[found] -= 1
                self._guard.notify_all()

    def register(self, db: Database, *processes: type[xdb.Process]) -> None:
        db.admin.register(xdb.Worker(*processes), name="deploy", url=self.url)

    def roll(self, number: int, process: type[xdb.Process]) -> None:
        """One more instance, which takes the place of an older one if there is one."""
        made = xdb.Server(xdb.Worker(process), port=0).start()
        with self._guard:
            older, self.instances = self.instances[number : number + 1], [*self.instances[:number], made, *self.instances[number + 1 :]]
            assert self._guard.wait_for(lambda: not any(self._busy[each] for each in older), 60)
        for each in older:
            assert each.stop(60)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for each in self.instances:
            each.stop(60)


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    CHARGED.clear()
    made = Balancer()
    made.roll(0, Old)
    made.roll(1, Old)
    yield made
    made.close()


def count(db: Database, sql: str) -> int:
    with psycopg.connect(db.superuser_dsn) as conn:
        row = conn.execute(sql).fetchone()
    assert row is not None
    return int(row[0])


FAILED = "SELECT count(*) FROM xdb.history WHERE event_type = 'AttemptFailed'"
RUNNING = "SELECT count(*) FROM xdb.processes WHERE status = 'RUNNING'"
REPEATED = "SELECT count(*) FROM xdb.history WHERE event_type = 'CallRepeated'"


def test_a_rolling_deployment_fails_no_attempt(xdb_db: Database, balancer: Balancer) -> None:
    """What is added is registered, the workers are rolled, and removals are registered when they are empty."""
    balancer.register(xdb_db, Old)
    xdb_db.client.start_many([xdb.Start(Old, f"d-{n}") for n in range(100)])
    waiting = "SELECT count(*) FROM xdb.waits"
    wait_until("all wait", lambda: count(xdb_db, waiting) == 100)

    balancer.register(xdb_db, New)
    for n in range(25):  # old instances alone
        xdb_db.client.publish(Old.go, f"d-{n}", "1")
    xdb_db.client.start(New, "packed", starting_state=New.pack)
    balancer.roll(0, New)
    for n in range(25, 75):  # one of each version: half of the calls of `pack` come to the old one
        xdb_db.client.publish(Old.go, f"d-{n}", "1")
    wait_until("some calls came to an instance that has not the state", lambda: count(xdb_db, REPEATED) > 0)
    with pytest.raises(xdb.Stranding):
        balancer.register(xdb_db, Old)
    balancer.roll(1, New)
    for n in range(75, 100):
        xdb_db.client.publish(Old.go, f"d-{n}", "1")
    wait_until("all are done", lambda: count(xdb_db, RUNNING) == 0)
    assert sorted(CHARGED) == sorted(f"d-{n}" for n in range(100))  # each once
    assert xdb_db.execute("SELECT details FROM xdb.history WHERE event_type = 'AttemptFailed'") == []
    assert xdb_db.execute("SELECT * FROM xdb.failures") == []
    assert count(xdb_db, "SELECT count(*) FROM xdb.processes WHERE status = 'COMPLETED'") == 101

    assert [str(each) for each in xdb_db.admin.check(xdb.Worker(Emptied))] == ["Deploy: states.thank was removed"]
    balancer.register(xdb_db, Emptied)
    balancer.roll(0, Emptied)
    balancer.roll(1, Emptied)
    xdb_db.client.start(Emptied, "last")
    xdb_db.client.publish(Old.go, "last", "1")
    assert xdb_db.client.wait(Emptied, "last").result == "packed"
    assert count(xdb_db, FAILED) == 0


def test_a_state_that_no_instance_has_is_reported(
    xdb_db: Database, balancer: Balancer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At once in the worker's log, the history and `repeats`; after a while in `xdb.failures`, as a failed attempt."""
    balancer.register(xdb_db, New)
    xdb_db.client.start(New, "p", starting_state=New.pack)
    xdb_db.client.start(New, "q")
    repeats = "SELECT coalesce(max(repeats), 0) FROM xdb.state_executions WHERE process_id = 'p'"
    wait_until("it was made again", lambda: count(xdb_db, repeats) >= 2)
    assert count(xdb_db, FAILED) == 0
    assert "Deploy has no state 'pack' here, only pay, refund, thank" in caplog.text.replace("pay, thank, refund", "pay, refund, thank")
    with pytest.raises(xdb.errors.WorkerFailed) as refused:
        xdb_db.client.rpc(New.weigh, "q")
    assert refused.value.error_type == "UnknownRpc" and refused.value.retryable

    monkeypatch.setattr(request, "DEPLOYED_WITHIN", 0.0)
    failures = "SELECT http_status, error_type, detail FROM xdb.failures"
    wait_until("it has failed", lambda: xdb_db.execute(failures) != [])
    [(status, error_type, detail)] = xdb_db.execute(failures)
    assert (status, error_type) == (404, "UnknownState") and "this worker may run an older version" in detail
    assert any("has no handler for 1 call (HTTP status 404)" in str(each) for each in xdb_db.admin.check(xdb.Worker(New)))
    xdb_db.client.stop("p")
    xdb_db.client.stop("q")


def test_a_type_that_an_instance_does_not_have_yet(xdb_db: Database, balancer: Balancer) -> None:
    class Added(xdb.Process):
        @xdb.state(start=True)
        def begin(self) -> xdb.Decision:
            return xdb.complete("begun")

    with xdb.Server(xdb.Worker(Old, Added), port=0) as newer:
        balancer.register(xdb_db, Old, Added)
        xdb_db.client.start_many([xdb.Start(Added, f"a-{n}") for n in range(10)])
        wait_until("they were made again", lambda: count(xdb_db, REPEATED) >= 10)
        balancer.instances.append(newer)
        wait_until("all are done", lambda: count(xdb_db, RUNNING) == 0)
        balancer.instances.remove(newer)
    assert count(xdb_db, FAILED) == 0


def new_beside_old(db: Database, kind: Any) -> tuple[Any, Callable[[], object]]:
    """A new pull worker that is not at work yet, and what ends the old one."""
    db.serve(kind(Old, name="deploy"))
    [stop] = db._stops
    return kind(New, name="deploy"), stop


@pytest.mark.parametrize("kind", [xdb.PullWorker, xdb.AsyncPullWorker])
def test_pull_workers_of_two_versions(xdb_db: Database, kind: Any) -> None:
    """What an old one has not waits for a while, and it goes on with what it has."""
    CHARGED.clear()
    new, stop = new_beside_old(xdb_db, kind)
    xdb_db.admin.register(new, name="deploy", url=None, role="app")
    for n in range(4):
        xdb_db.client.start(New, f"p-{n}", starting_state=New.pack)
    xdb_db.client.start(New, "d")
    xdb_db.client.publish(New.go, "d", "1")
    wait_until("the old one has worked", lambda: CHARGED == ["d"])
    told = "SELECT count(*) FROM xdb.failures WHERE error_type = 'NotRegistered' AND detail LIKE '%this worker may run an older version'"
    wait_until("all four are reported", lambda: count(xdb_db, told) == 4)
    assert count(xdb_db, FAILED) == 0
    [finding] = [str(each) for each in xdb_db.admin.check(new)]
    assert "of different versions, so 4 calls can't proceed: Deploy has no state 'pack' here" in finding
    stop()  # by the clock that follows it could have the calls for ten minutes
    xdb_db.serve(new)
    for _ in range(20):  # by the clock of processes: the pause is of minutes
        xdb_db.clock.advance(minutes=1)
        if count(xdb_db, RUNNING) == 0:
            break
    assert count(xdb_db, RUNNING) == 0 and count(xdb_db, FAILED) == 0


@pytest.mark.parametrize("kind", [xdb.PullWorker, xdb.AsyncPullWorker])
def test_a_pull_worker_that_goes_before_its_registration(xdb_db: Database, kind: Any) -> None:
    new, stop = new_beside_old(xdb_db, kind)
    xdb_db.client.start(Old, "d")
    xdb_db.clock.settle()
    stop()
    stopped = run_until_stopped(new, xdb_db.dsn)
    xdb_db.client.publish(New.go, "d", "1")
    wait_until("it is reported", lambda: xdb_db.execute("SELECT error_type FROM xdb.failures") == [("NotRegistered",)])
    assert count(xdb_db, FAILED) == 0
    xdb_db.admin.register(new, name="deploy", url=None, role="app")
    assert xdb_db.client.wait(New, "d").result == "packed"
    assert count(xdb_db, FAILED) == 0
    stopped()


# --- fewer threads than calls


class Slow(xdb.Process):
    """Each call takes an eighth of its time. All of them one after the other at two threads take longer than that."""

    @xdb.state(start=True, timeout=timedelta(seconds=4))
    def work(self) -> xdb.Decision:
        RUNS.append(self.call.process_id)
        time.sleep(0.5)
        return xdb.complete()


RUNS: list[str] = []


@contextlib.contextmanager
def uvicorn_of(app: Any) -> Iterator[str]:
    uvicorn = pytest.importorskip("uvicorn")
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    running = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    running.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        running.join(60)
        listening.close()


@pytest.mark.parametrize("max_concurrency", [None, 24], ids=["as many calls as threads", "more calls than threads"])
def test_each_of_many_slow_calls_runs_once(xdb_db: Database, max_concurrency: int | None, caplog: pytest.LogCaptureFixture) -> None:
    RUNS.clear()
    caplog.set_level(logging.WARNING)
    worker = xdb.Worker(Slow, threads=2)
    with uvicorn_of(worker.asgi()) as url:
        xdb_db.admin.register(worker, name="slow", url=url, max_concurrency=max_concurrency)
        xdb_db.client.start_many([xdb.Start(Slow, f"s-{n}") for n in range(24)])
        wait_until("all are done", lambda: count(xdb_db, RUNNING) == 0)
    assert sorted(RUNS) == sorted(f"s-{n}" for n in range(24))
    assert count(xdb_db, FAILED) == 0
    assert ("all 2 threads of the worker are busy" in caplog.text) == (max_concurrency is not None)


def test_a_handler_learns_that_its_process_was_stopped(xdb_db: Database) -> None:
    """Where the engine closes the connection of a call that is of no use; at the latest when its time is over."""
    begun, cancelled = threading.Event(), threading.Event()

    class Long(xdb.Process):
        @xdb.state(start=True, timeout=timedelta(seconds=5), retry=xdb.Retry(attempts=1))
        def work(self) -> xdb.Decision:
            begun.set()
            wait_until("its answer is of no use", lambda: self.call.cancelled)
            cancelled.set()
            return xdb.complete()

    xdb_db.serve(Long)
    xdb_db.client.start(Long, "l")
    assert begun.wait(60)
    xdb_db.client.stop("l")
    assert cancelled.wait(60)
