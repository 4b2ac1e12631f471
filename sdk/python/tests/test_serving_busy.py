"""A worker that is full, a caller that goes, and a call whose time is over, under servers of all kinds."""

from __future__ import annotations

import http.client
import importlib
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support import PATHS, headers, request
from test_serving import DONE, WITHIN, AsyncSteps, Gate, Steps, ask, gate, uvicorn_of, wait_for

import xdb

__all__ = ["gate"]


@contextmanager
def served_by_serve(worker: xdb.Worker) -> Iterator[int]:
    with xdb.Server(worker, port=0) as server:
        yield int(server.url.rpartition(":")[2])
        Steps.gate.release.set()


def served_by_asgi(worker: xdb.Worker) -> Any:
    return uvicorn_of(worker.asgi())


def served_by_wsgi(worker: xdb.Worker) -> Any:
    from werkzeug.serving import make_server

    @contextmanager
    def served() -> Iterator[int]:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = make_server("127.0.0.1", 0, worker.wsgi(), threaded=True)
        running = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        running.start()
        try:
            yield server.server_port
        finally:
            Steps.gate.release.set()
            server.shutdown()
            running.join(WITHIN)

    return served()


KINDS = [served_by_serve, served_by_asgi, served_by_wsgi]


def sent(port: int, state: str, process: str = "Steps") -> http.client.HTTPConnection:
    """A call whose answer is not read."""
    body, connection = request(process, state), http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
    connection.request("POST", PATHS["execute"], body, headers(body))
    return connection


@pytest.mark.parametrize("served", KINDS)
def test_a_worker_that_is_full_answers_at_once(served: Any, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with served(xdb.Worker(Steps, threads=2)) as port:
        held = [sent(port, "held") for _ in range(2)]
        wait_for(lambda: gate.count() == 2)
        for _ in range(3):
            body, connection = request("Steps", "quick"), http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
            connection.request("POST", PATHS["execute"], body, headers(body))
            reply = connection.getresponse()
            assert (reply.status, reply.getheader("retry-after")) == (503, "1")
            answer = json.loads(reply.read())
            assert answer["errorType"] == "WorkerFull" and "all 2 threads of the worker are busy" in answer["detail"]
            assert "retryAfterSeconds" not in answer
        # What is known before anything runs needs no thread. Nor does a call that is none.
        assert ask(port, "waits", api="wait-until")[0] == 200
        assert ask(port, "nowhere")[1]["errorType"] == "UnknownState"
        assert caplog.text.count("all 2 threads of the worker are busy") == 1
        gate.release.set()
        for each in held:
            assert each.getresponse().status == 200
        wait_for(lambda: ask(port, "quick") == (200, DONE))


@pytest.mark.parametrize("served", KINDS)
def test_an_rpc_is_not_refused_by_a_worker_that_is_full(served: Any, gate: Gate) -> None:
    """The engine does not repeat it."""
    with served(xdb.Worker(Steps, threads=1)) as port:
        held = sent(port, "held")
        wait_for(lambda: gate.count() == 1)
        body, rpc = request("Steps", "say", "rpc"), http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
        rpc.request("POST", PATHS["rpc"], body, headers(body))
        wait_for(lambda: gate.count() == 2)  # beside a worker that is full
        gate.release.set()
        assert rpc.getresponse().status in (200, 500)  # its time may be over on a loaded machine
        assert held.getresponse().status == 200


def test_an_rpc_that_waits_for_a_thread_until_its_time_is_over_never_begins(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with uvicorn_of(xdb.Worker(Steps, threads=1).asgi()) as port:
        while not gate.started.is_set():
            ask(port, "say", api="rpc")
        assert gate.count() == 1
        status, answer = ask(port, "say", api="rpc")
        assert (status, answer["errorType"]) == (500, "DeadlineExceeded")
        assert answer["detail"].startswith("Steps.say was not called: the call timed out while it waited for a thread")
        assert "took longer than" in caplog.text and "was not called" in caplog.text
        assert gate.count() == 1


@pytest.mark.parametrize("state, process", [("quick", "Steps"), ("quick", "AsyncSteps")])
def test_no_handler_begins_whose_time_is_over(state: str, process: str, caplog: pytest.LogCaptureFixture) -> None:
    worker, body = xdb.Worker(Steps, AsyncSteps), request(process, state, context={"timeoutSeconds": 0.0})
    reply = worker.handle("POST", PATHS["execute"], headers(body), body)
    assert reply.status == 500 and b"was not called" in reply.body
    assert "took longer" not in caplog.text


def test_no_handler_begins_after_its_caller_has_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    body = request("Steps", "quick")
    job = xdb.Worker(Steps).open("POST", PATHS["execute"], headers(body), body)
    assert not isinstance(job, xdb.Reply)
    job.abandon()
    assert b"was not called" in job.run().body


@pytest.mark.parametrize("served", [served_by_serve, served_by_asgi])
@pytest.mark.parametrize("state, process", [("asks", "Steps"), ("held", "AsyncSteps")])
def test_a_handler_learns_that_its_caller_has_left(served: Any, state: str, process: str, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """An ordinary one asks, an async one is cancelled."""
    caplog.set_level(logging.INFO, "xdb.worker")
    with served(xdb.Worker(Steps, AsyncSteps)) as port:
        connection = sent(port, state, process)
        assert gate.started.wait(WITHIN)
        assert gate.cancelled == []
        connection.close()
        wait_for(lambda: len(gate.cancelled) == 1)
        assert gate.cancelled[0].cancelled
        wait_for(lambda: f"{process}.{state}: the engine closed the connection" in caplog.text)
        # It goes on with others, and so does its thread.
        wait_for(lambda: ask(port, "quick", process=process) == (200, DONE))
    assert caplog.text.count("the engine closed the connection") == 1


@pytest.mark.parametrize("served", KINDS)
def test_a_handler_can_ask_whether_its_time_is_over(served: Any, gate: Gate) -> None:
    """Also under WSGI, which does not tell of a connection that was closed."""
    with served(xdb.Worker(Steps)) as port:
        body, connection = request("Steps", "asks", context={"timeoutSeconds": 2}), http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", PATHS["execute"], body, headers(body))
        assert b"took longer than 2 s" in connection.getresponse().read()
        wait_for(lambda: len(gate.cancelled) == 1)


def test_a_middleware_that_has_no_disconnect_does_no_harm() -> None:
    """It says at each question that the body is there, and empty."""
    app = xdb.Worker(Steps, AsyncSteps).asgi()

    async def again(scope: Any, receive: Any, send: Any) -> None:
        messages: list[Any] = []

        async def answers() -> Any:
            if not messages:
                messages.append(await receive())
                return messages[0]
            return {"type": "http.request", "body": b"", "more_body": False}

        await app(scope, receive if scope["type"] != "http" else answers, send)

    with uvicorn_of(again) as port:
        assert ask(port, "quick") == (200, DONE)
        assert ask(port, "quick", process="AsyncSteps") == (200, DONE)


@pytest.mark.parametrize("process", ["Steps", "AsyncSteps"])
def test_a_middleware_that_can_not_tell_of_its_caller_does_no_harm(process: str) -> None:
    app = xdb.Worker(Steps, AsyncSteps).asgi()

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        messages: list[Any] = []

        async def once() -> Any:
            if messages:
                raise RuntimeError("it was read")
            messages.append(await receive())
            return messages[0]

        await app(scope, receive if scope["type"] != "http" else once, send)

    with uvicorn_of(fails) as port:
        assert ask(port, "quick", process=process) == (200, DONE)


def opened(process: str, state: str, left: float, timeout: float = 10) -> Any:
    """A call with this much time left."""
    body = request(process, state, context={"timeoutSeconds": timeout})
    job = xdb.Worker(Steps, AsyncSteps).open("POST", PATHS["execute"], headers(body), body)
    assert not isinstance(job, xdb.Reply)
    job.ends_at = time.monotonic() + left
    return job


@pytest.mark.parametrize("process", ["Steps", "AsyncSteps"])
@pytest.mark.parametrize("left, timeout, is_late", [(0.4, 10, True), (-5, 10, True), (0.02, 0.1, True), (5, 10, False), (0.08, 0.1, False)])
def test_an_engine_that_closes_its_connection_at_the_end_has_waited_in_vain(
    process: str, left: float, timeout: float, is_late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its clock began before the worker's, so that it closes first. The log says what to do all the same, and once."""
    caplog.set_level(logging.INFO, "xdb.worker")
    job = opened(process, "quick", left, timeout)
    job.abandon()
    assert job.call.cancelled
    assert caplog.text.count(f"{process}.quick took longer than {timeout:g} s") == is_late
    assert ("the engine closed the connection" in caplog.text) is not is_late
    if is_late:
        job.late()
        assert caplog.text.count("took longer than") == 1


@pytest.mark.parametrize("follows", [False, True])
def test_no_call_learns_of_a_connection_that_was_closed_after_its_answer(follows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    server = xdb.Server(xdb.Worker(Steps), port=0)._http

    def answered_meanwhile(connection: Any) -> bool:
        del server._calls[connection]
        if follows:
            server._calls[connection] = lambda: told.append("the next call")
        return True

    monkeypatch.setattr(importlib.import_module("xdb.serve"), "_is_closed", answered_meanwhile)
    with socket.socket() as connection:
        server._calls[connection] = lambda: told.append("the call")
        server.service_actions()
        assert (told, len(server._calls)) == ([], follows)
    server.server_close()


def test_an_address_that_is_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"can't listen on 127.0.0.1, port {port}: Address already in use"):
            xdb.Server(xdb.Worker(Steps), port=port)
    with pytest.raises(OSError, match="can't listen on nowhere.invalid, port 0"):
        xdb.Server(xdb.Worker(Steps), host="nowhere.invalid", port=0)
    with pytest.raises(ValueError, match="threads="):
        xdb.Worker(Steps, threads=0)
