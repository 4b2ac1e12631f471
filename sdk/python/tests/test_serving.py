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


class Steps(xdb.Process):
    started = threading.Event()
    release = threading.Event()
    queue = xdb.Queue[str]()

    @xdb.state(start=True)
    def quick(self) -> xdb.Decision:
        return xdb.complete(self.call.process_id)

    @xdb.state(wait=xdb.timer(seconds=3))
    def waits(self) -> xdb.Decision:
        return xdb.complete()

    @xdb.state
    def held(self) -> xdb.Decision:
        Steps.started.set()
        assert Steps.release.wait(10)
        return xdb.complete()

    @xdb.state(timeout=timedelta(milliseconds=50))
    def slow(self) -> xdb.Decision:
        Steps.started.set()
        assert Steps.release.wait(10)
        self.queue.publish("late")
        return xdb.complete()


class AsyncSteps(xdb.Process):
    @xdb.state
    async def quick(self) -> xdb.Decision:
        await asyncio.sleep(0)
        return xdb.complete(xdb.current().process_id)

    @xdb.state(timeout=timedelta(milliseconds=50))
    async def slow(self) -> xdb.Decision:
        try:
            await asyncio.sleep(30)
        finally:
            CANCELLED.append(asyncio.current_task())
        return xdb.complete()


CANCELLED: list[Any] = []


@pytest.fixture(autouse=True)
def _events() -> Iterator[None]:
    Steps.started.clear()
    Steps.release.clear()
    yield
    Steps.release.set()


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
    made = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=10)
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
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        for process in ("Steps", "AsyncSteps", "Steps"):
            assert ask(port, "quick", SECRET, process=process, connection=connection) == (200, DONE)
        assert ask(port, "quick")[0] == 401
        assert ask(port, "slow", SECRET, process="AsyncSteps")[1]["errorType"] == "DeadlineExceeded"
        connection.request("GET", BASE + "health")
        assert json.loads(connection.getresponse().read())["sdk"].startswith("python/")
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        ask(port, "quick", SECRET, connection=connection)


def test_serve_answers_what_runs_when_it_is_stopped() -> None:
    server = xdb.Server(xdb.Worker(Steps), port=0).start()
    port = int(server.url.rpartition(":")[2])
    body, connection = request("Steps", "held"), http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", PATHS["execute"], body, headers(body))
    assert Steps.started.wait(10)
    stopped: list[bool] = []
    stopping = threading.Thread(target=lambda: stopped.append(server.stop(10)))
    stopping.start()
    wait_for(lambda: refuses(port))
    Steps.release.set()
    reply = connection.getresponse()
    assert (reply.status, reply.getheader("connection")) == (200, "close")
    stopping.join(10)
    assert stopped == [True]


def test_serve_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    server = xdb.Server(xdb.Worker(Steps), port=0).start()
    port = int(server.url.rpartition(":")[2])
    body, connection = request("Steps", "held"), http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", PATHS["execute"], body, headers(body))
    assert Steps.started.wait(10)
    assert server.stop(0.05) is False
    assert "calls still ran after 0.05 s" in caplog.text


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
    idle = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    assert ask(port, "quick", process="P", connection=idle)[0] == 200
    running.send_signal(signal.SIGTERM)
    out, _ = running.communicate(timeout=10)
    assert (running.returncode, out) == (0, "stopping\nafter\n")


def test_serve_refuses_what_is_no_call() -> None:
    with xdb.Server(xdb.Worker(Steps, max_body=100), port=0) as server:
        port = int(server.url.rpartition(":")[2])
        assert ask(port, "quick")[0] == 413
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("PUT", PATHS["execute"], b"x")
        assert connection.getresponse().status == 405
        with socket.create_connection(("127.0.0.1", port), 10) as raw:
            raw.sendall(f"POST {PATHS['execute']} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            assert raw.recv(1000).startswith(b"HTTP/1.1 400 ")


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.005)


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
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
        Steps.release.set()
        running.join(10)
        listening.close()


def test_asgi_under_uvicorn() -> None:
    with uvicorn_of(xdb.Worker(Steps, AsyncSteps, secret=SECRET).asgi("/jobs")) as port:
        assert ask(port, "quick", SECRET, prefix="/jobs") == (200, DONE)
        assert ask(port, "quick", SECRET, prefix="/jobs", process="AsyncSteps") == (200, DONE)
        assert ask(port, "quick", SECRET, prefix="/other")[0] == 404
        assert ask(port, "quick", prefix="/jobs")[0] == 401


def test_an_async_handler_is_cancelled_at_its_deadline() -> None:
    CANCELLED.clear()
    with uvicorn_of(xdb.Worker(AsyncSteps).asgi()) as port:
        status, answer = ask(port, "slow", process="AsyncSteps")
        assert (status, answer["errorType"]) == (500, "DeadlineExceeded")
        assert answer["detail"].startswith("AsyncSteps.slow took longer than 0.05 s")
        wait_for(lambda: len(CANCELLED) == 1)


def test_an_ordinary_handler_past_its_deadline_changes_nothing_any_more(caplog: pytest.LogCaptureFixture) -> None:
    with uvicorn_of(xdb.Worker(Steps, threads=1).asgi()) as port:
        assert ask(port, "slow")[1]["errorType"] == "DeadlineExceeded"
        # It has the only thread: who waits for it is given up too, and never begins.
        assert ask(port, "slow")[1]["errorType"] == "DeadlineExceeded"
        # What is known before anything runs needs none.
        assert ask(port, "waits", api="wait-until")[0] == 200
        Steps.release.set()
        wait_for(lambda: "nothing can be published to queue: the time of the call is over" in caplog.text)


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
        yield server.server_port
        server.shutdown()
        running.join(10)


def test_wsgi_and_a_body_that_is_gone() -> None:
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
    running = threading.Thread(target=server.serve_forever, daemon=True)
    running.start()
    try:
        assert ask(server.server_port, "quick", SECRET, prefix="/xdb") == (200, DONE)
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"home"
    finally:
        server.shutdown()
        running.join(10)


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
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
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
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
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
