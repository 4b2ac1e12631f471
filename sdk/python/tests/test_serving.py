"""Servers of all kinds, over real connections to this machine."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support import BASE, PATHS, SECRET, headers, request

import xdb
import xdb.asgi

SOURCES = Path(__file__).parents[1] / "src"


# Real seconds, for the work of a loaded machine. Nothing waits that long unless it is broken.
WITHIN = 60.0


class Gate:
    """Where handlers wait until a test releases them. Each test has its own, and ends when no handler waits in it."""

    def __init__(self) -> None:
        self.started, self.release = threading.Event(), threading.Event()
        self.cancelled: list[Any] = []
        self._guard, self._inside = threading.Lock(), 0

    def __enter__(self) -> Gate:
        with self._guard:
            self._inside += 1
        self.started.set()
        assert self.release.wait(WITHIN)
        return self

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._inside -= 1

    def count(self) -> int:
        with self._guard:
            return self._inside

    def is_empty(self) -> bool:
        return self.count() == 0


class Steps(xdb.Process):
    gate = Gate()
    queue = xdb.Queue[str]()

    @xdb.state(start=True)
    def quick(self) -> xdb.Decision:
        return xdb.complete(self.call.process_id)

    @xdb.state(wait=xdb.timer(seconds=3))
    def waits(self) -> xdb.Decision:
        return xdb.complete()

    @xdb.state
    def held(self) -> xdb.Decision:
        with Steps.gate:
            return xdb.complete()

    @xdb.state
    def asks(self) -> xdb.Decision:
        """Works until its answer is of no use."""
        Steps.gate.started.set()
        wait_for(lambda: self.call.cancelled)
        Steps.gate.cancelled.append(self.call)
        return xdb.complete()

    @xdb.rpc(timeout=timedelta(milliseconds=50))
    def say(self) -> str:
        with Steps.gate:
            return "said"

    @xdb.state(timeout=timedelta(milliseconds=50))
    def slow(self) -> xdb.Decision:
        with Steps.gate:
            self.queue.publish("late")
        return xdb.complete()


class AsyncSteps(xdb.Process):
    @xdb.state
    async def quick(self) -> xdb.Decision:
        await asyncio.sleep(0)
        return xdb.complete(xdb.current().process_id)

    @xdb.state
    async def held(self) -> xdb.Decision:
        gate = Steps.gate
        gate.started.set()
        try:
            await asyncio.sleep(WITHIN)
        except asyncio.CancelledError:
            gate.cancelled.append(self.call)
            raise
        return xdb.complete()

    @xdb.state(timeout=timedelta(milliseconds=50))
    async def slow(self) -> xdb.Decision:
        gate = Steps.gate
        try:
            await asyncio.sleep(WITHIN)
        finally:
            gate.cancelled.append(asyncio.current_task())
        return xdb.complete()


@pytest.fixture(autouse=True)
def gate() -> Iterator[Gate]:
    Steps.gate = gate = Gate()
    yield gate
    gate.release.set()
    wait_for(gate.is_empty)


def ask(
    port: int,
    state: str,
    *secrets: str,
    prefix: str = "",
    process: str = "Steps",
    api: str = "execute",
    connection: Any = None,
) -> tuple[int, Any]:
    body = request(process, state, api)
    made = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
    made.request("POST", prefix + PATHS[api], body, headers(body, *secrets))
    reply = made.getresponse()
    answer = json.loads(reply.read())
    if connection is None:
        made.close()
    return reply.status, answer


DONE = {"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS", "closeInput": "p-1"}}}


# --- serve -----------------------------------------------------------------------------------------------------------


def test_serve_keeps_connections_and_answers_both_kinds_of_handlers() -> None:
    with xdb.Server(xdb.Worker(Steps, AsyncSteps, secret=SECRET), port=0) as server:
        port = int(server.url.rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
        for process in ("Steps", "AsyncSteps", "Steps"):
            assert ask(port, "quick", SECRET, process=process, connection=connection) == (200, DONE)
        assert ask(port, "quick")[0] == 401
        assert ask(port, "slow", SECRET, process="AsyncSteps")[1]["errorType"] == "DeadlineExceeded"
        connection.request("GET", BASE + "health")
        assert json.loads(connection.getresponse().read())["sdk"].startswith("python/")
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        ask(port, "quick", SECRET, connection=connection)


def test_serve_answers_running_calls_when_it_is_stopped(gate: Gate) -> None:
    server = xdb.Server(xdb.Worker(Steps), port=0).start()
    port = int(server.url.rpartition(":")[2])
    body, connection = request("Steps", "held"), http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
    connection.request("POST", PATHS["execute"], body, headers(body))
    assert gate.started.wait(WITHIN)
    stopped: list[bool] = []
    stopping = threading.Thread(target=lambda: stopped.append(server.stop(WITHIN)))
    stopping.start()
    wait_for(lambda: refuses(port))
    gate.release.set()
    reply = connection.getresponse()
    assert (reply.status, reply.getheader("connection")) == (200, "close")
    stopping.join(WITHIN)
    assert stopped == [True]


def test_serve_answers_unaccepted_connections_when_it_is_stopped() -> None:
    server = xdb.Server(xdb.Worker(Steps), port=0).start()
    server._http.shutdown()  # what comes now stays with the kernel
    port = int(server.url.rpartition(":")[2])
    body, connection = request("Steps", "quick"), http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
    connection.request("POST", PATHS["execute"], body, headers(body))
    assert server.stop(WITHIN) is True
    reply = connection.getresponse()
    assert (reply.status, reply.getheader("connection"), json.loads(reply.read())) == (200, "close", DONE)


def test_serve_stops_despite_silent_connections() -> None:
    server = xdb.Server(xdb.Worker(Steps), port=0).start()
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(address, WITHIN) as silent:
        assert ask(address[1], "quick")[0] == 200
        assert server.stop(WITHIN) is True
        assert silent.recv(1) == b""


def test_serve_may_be_stopped_twice() -> None:
    with xdb.Server(xdb.Worker(Steps), port=0) as server:
        assert ask(int(server.url.rpartition(":")[2]), "quick")[0] == 200
        assert server.stop(10)


def test_serve_does_not_wait_for_ever(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    server = xdb.Server(xdb.Worker(Steps), port=0).start()
    port = int(server.url.rpartition(":")[2])
    body, connection = request("Steps", "held"), http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
    connection.request("POST", PATHS["execute"], body, headers(body))
    assert gate.started.wait(WITHIN)
    assert server.stop(0.05) is False
    assert "calls were still running 0.05 s after the stop" in caplog.text


def test_sigterm_ends_serve_with_success(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(
        textwrap.dedent(
            """
            import logging, sys, xdb
            class P(xdb.Process):
                @xdb.state(start=True)
                def quick(self) -> xdb.Decision:
                    return xdb.complete("p-1")
            logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
            xdb.serve(xdb.Worker(P), port=0)
            print("after")
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONUNBUFFERED": "1"}
    running = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=environment)
    assert running.stdout is not None
    line = running.stdout.readline()
    assert line.startswith("listening on http://127.0.0.1:") and line.endswith("for P\n")
    port = int(line.split()[2].rpartition(":")[2])
    idle = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
    assert ask(port, "quick", process="P", connection=idle)[0] == 200
    running.send_signal(signal.SIGTERM)
    out, _ = running.communicate(timeout=WITHIN)
    assert (running.returncode, out) == (0, "stopping\nafter\n")


def test_serve_refuses_other_requests_than_calls() -> None:
    with xdb.Server(xdb.Worker(Steps, max_body=100), port=0) as server:
        port = int(server.url.rpartition(":")[2])
        assert ask(port, "quick")[0] == 413
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
        connection.request("PUT", PATHS["execute"], b"x")
        assert connection.getresponse().status == 405
        with socket.create_connection(("127.0.0.1", port), WITHIN) as raw:
            raw.sendall(f"POST {PATHS['execute']} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            assert raw.recv(1000).startswith(b"HTTP/1.1 400 ")


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.005)


def refuses(port: int) -> bool:
    """Whether no server listens any more. A connection just before that, behind the last accepted one, is reset instead."""
    try:
        socket.create_connection(("127.0.0.1", port), WITHIN).close()
    except ConnectionResetError:
        return False
    except ConnectionRefusedError:
        return True
    return False


# --- ASGI ------------------------------------------------------------------------------------------------------------


@contextmanager
def uvicorn_of(app: Any) -> Iterator[int]:
    uvicorn = pytest.importorskip("uvicorn")
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    running = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    running.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        Steps.gate.release.set()
        running.join(WITHIN)
        listening.close()


def test_asgi_under_uvicorn() -> None:
    with uvicorn_of(xdb.Worker(Steps, AsyncSteps, secret=SECRET).asgi("/jobs")) as port:
        assert ask(port, "quick", SECRET, prefix="/jobs") == (200, DONE)
        assert ask(port, "quick", SECRET, prefix="/jobs", process="AsyncSteps") == (200, DONE)
        assert ask(port, "quick", SECRET, prefix="/other")[0] == 404
        assert ask(port, "quick", prefix="/jobs")[0] == 401


def test_an_async_handler_is_cancelled_at_its_deadline(gate: Gate) -> None:
    with uvicorn_of(xdb.Worker(AsyncSteps).asgi()) as port:
        status, answer = ask(port, "slow", process="AsyncSteps")
        assert (status, answer["errorType"]) == (500, "DeadlineExceeded")
        assert answer["detail"].startswith("AsyncSteps.slow took longer than 0.05 s")
        wait_for(lambda: len(gate.cancelled) == 1)


def test_an_ordinary_handler_past_its_deadline_changes_nothing_any_more(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with uvicorn_of(xdb.Worker(Steps, threads=1).asgi()) as port:
        # On a loaded machine the time of a call may be over before its thread has begun.
        while not gate.started.is_set():
            assert ask(port, "slow")[1]["errorType"] in ("DeadlineExceeded", "WorkerFull")
        # It has the only thread, also when its time is over.
        assert ask(port, "slow")[1]["errorType"] == "WorkerFull"
        # What is known before anything runs needs none.
        assert ask(port, "waits", api="wait-until")[0] == 200
        gate.release.set()
        wait_for(lambda: "can't publish to queue: the call has timed out" in caplog.text)


def test_a_body_that_a_middleware_has_eaten(monkeypatch: pytest.MonkeyPatch) -> None:
    app = xdb.Worker(Steps, secret=SECRET).asgi()
    monkeypatch.setattr(xdb.asgi, "FIRST_PART_SECONDS", 0.1)

    async def eats(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
        await app(scope, receive, send)

    with uvicorn_of(eats) as port:
        status, answer = ask(port, "quick", SECRET)
        assert (status, answer["errorType"]) == (500, "RawBodyConsumed")


def test_large_bodies_are_refused_before_they_are_read() -> None:
    with uvicorn_of(xdb.Worker(Steps, max_body=100).asgi()) as port:
        assert ask(port, "quick")[0] == 413


# --- frameworks ------------------------------------------------------------------------------------------------------


@contextmanager
def wsgi_server(app: Any) -> Iterator[int]:
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        running = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        running.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            running.join(WITHIN)


def test_wsgi_and_a_body_that_was_read_already() -> None:
    app = xdb.Worker(Steps, secret=SECRET).wsgi("/jobs")

    def eats(environ: Any, start_response: Any) -> Any:
        if environ["PATH_INFO"].startswith("/eaten"):
            environ["PATH_INFO"] = environ["PATH_INFO"].replace("/eaten", "/jobs")
            environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            environ["wsgi.input"] = io.BytesIO()
        return app(environ, start_response)

    with wsgi_server(eats) as port:
        assert ask(port, "quick", SECRET, prefix="/jobs") == (200, DONE)
        assert ask(port, "quick", SECRET, prefix="/eaten")[1]["errorType"] == "RawBodyConsumed"
        assert ask(port, "quick", SECRET, prefix="/other")[0] == 404
        assert ask(port, "quick", "wrong", prefix="/jobs")[0] == 401


def test_flask() -> None:
    flask = pytest.importorskip("flask")
    from werkzeug.middleware.dispatcher import DispatcherMiddleware
    from werkzeug.serving import make_server

    app = flask.Flask(__name__)

    @app.get("/")
    def home() -> str:
        return "home"

    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/xdb": xdb.Worker(Steps, secret=SECRET).wsgi()})
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    running = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    running.start()
    try:
        assert ask(server.server_port, "quick", SECRET, prefix="/xdb") == (200, DONE)
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=WITHIN)
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"home"
    finally:
        server.shutdown()
        running.join(WITHIN)


def test_fastapi() -> None:
    fastapi = pytest.importorskip("fastapi")
    app = fastapi.FastAPI()

    @app.middleware("http")
    async def passes(given: Any, call_next: Any) -> Any:
        return await call_next(given)

    @app.get("/")
    async def home() -> str:
        return "home"

    app.mount("/xdb", xdb.Worker(Steps, AsyncSteps, secret=SECRET).asgi())
    with uvicorn_of(app) as port:
        assert ask(port, "quick", SECRET, prefix="/xdb") == (200, DONE)
        assert ask(port, "quick", SECRET, prefix="/xdb", process="AsyncSteps") == (200, DONE)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
        connection.request("GET", "/")
        assert connection.getresponse().read() == b'"home"'


@pytest.fixture(scope="module")
def django() -> Any:
    found = pytest.importorskip("django")
    from django.conf import settings

    settings.configure(ROOT_URLCONF=__name__, SECRET_KEY="x", ALLOWED_HOSTS=["*"], DEBUG=False)
    found.setup()
    return found


urlpatterns: list[Any] = []


def test_django_under_wsgi(django: Any) -> None:
    wsgi = importlib.import_module("django.core.wsgi").get_wsgi_application()
    jobs = xdb.Worker(Steps, secret=SECRET).wsgi("/xdb")

    def application(environ: Any, start_response: Any) -> Any:
        return (jobs if environ["PATH_INFO"].startswith("/xdb/") else wsgi)(environ, start_response)

    with wsgi_server(application) as port:
        assert ask(port, "quick", SECRET, prefix="/xdb") == (200, DONE)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
        connection.request("GET", "/")
        assert connection.getresponse().status == 404


def test_django_under_asgi(django: Any) -> None:
    asgi = importlib.import_module("django.core.asgi").get_asgi_application()
    jobs = xdb.Worker(Steps, AsyncSteps, secret=SECRET).asgi("/xdb")

    async def application(scope: Any, receive: Any, send: Any) -> None:
        ours = scope["type"] == "http" and scope["path"].startswith("/xdb/")
        await (jobs if ours else asgi)(scope, receive, send)

    with uvicorn_of(application) as port:
        assert ask(port, "quick", SECRET, prefix="/xdb", process="AsyncSteps") == (200, DONE)


def test_lines_of_a_worker_served_by_the_command_line_name_the_worker(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(
        "import xdb\nclass P(xdb.Process):\n    @xdb.state\n    def a(self) -> xdb.Decision: raise ValueError('no such card')\n"
        "worker = xdb.Worker(P)\n"
    )
    command = [sys.executable, "-m", "xdb", "serve", "served:worker", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as served:
        assert served.stderr is not None
        port = int(served.stderr.readline().split("http://127.0.0.1:")[1].split()[0])
        assert ask(port, "a", process="P")[0] == 500
        line = served.stderr.readline()
        served.terminate()
        assert served.wait(WITHIN) == 0
    assert "[p-1 a] P.a failed in attempt 1: ValueError: no such card" in line
