"""Serves a worker with Python's own HTTP server, and stops it on signals.

For development, tests and small loads. Limitations: one thread per connection, no TLS, no HTTP/2, no chunked requests. pull.py uses the
signal handlers of this file too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from .claiming import Claiming
from .logging import install, log
from .request import BadRequest, Reply, length_of
from .worker import Worker


class Server:
    """An HTTP server in its own threads: `with Server(worker) as server: ... server.url`.

    `port=0` takes a free port. Raises `OSError` if the server can't listen there, and `TypeError` for a pull worker.
    """

    def __init__(self, worker: Worker, host: str = "127.0.0.1", port: int = 8080) -> None:
        if isinstance(worker, Claiming):
            raise TypeError(f"an xdb.{type(worker).__name__} claims its calls and needs no server: start it with its run()")
        worker.warn_if_open(host)
        self.worker = worker
        self._http = _Http(worker, host, port)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The URL of the server, for `xdb.register_worker`."""
        host, port = self._http.server_address[:2]
        name = host.decode() if isinstance(host, (bytes, bytearray)) else host
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    def start(self) -> Server:
        """Starts to answer calls, and returns at once."""
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="xdb-serve", daemon=True)
        self._thread.start()
        return self

    def stop(self, grace: float = 30) -> bool:
        """Stops accepting calls, and waits up to `grace` seconds for calls that have arrived. It may be called twice.

        Returns whether all of them were answered.
        """
        self._http.stopping = True
        thread, self._thread = self._thread, None
        if thread is not None:
            self._http.shutdown()
            self._http.take_waiting()
        self._http.server_close()
        answered = self._http.drain(grace)
        if not answered:
            log.warning("calls were still running %g s after the stop; the engine will retry them", grace)
        self._http.end_loop()
        return answered

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def serve(worker: Worker, host: str = "127.0.0.1", port: int = 8080, grace: float = 30) -> None:
    """Serves the worker until SIGTERM or SIGINT, then waits up to `grace` seconds for running calls, and returns.

    If the program has not set up logging, log lines go to standard error, with the ids of calls.
    """
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s [%(process_id)s %(state)s] %(message)s")
        install()
    server = Server(worker, host, port)
    told, tell = socket.socketpair()
    with told, tell, _signals(lambda: tell.send(b"x")):
        server.start()
        log.info("listening on %s for %s", server.url, ", ".join(worker.types))
        told.recv(1)
        log.info("stopping")
        server.stop(grace)


@contextlib.contextmanager
def _signals(stop: Callable[[], object]) -> Iterator[None]:
    """Makes SIGTERM and SIGINT call `stop`. Outside of the main thread it does nothing, because Python handles signals there alone.

    Hazard: `stop` runs between any two instructions of the main thread, so it must not take a lock.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda *_: stop())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# The stop functions of all async pull workers in the main thread: a signal stops all of them. Written and read in that thread only.
_stops: list[Callable[[], object]] = []
# Holds `_signals` open while `_stops` has entries.
_taken = contextlib.ExitStack()


@contextlib.contextmanager
def _signals_of_a_loop(stop: Callable[[], object]) -> Iterator[None]:
    """Like `_signals`, for several workers in one event loop. The last worker that ends restores the program's signal handlers.

    The loop's `add_signal_handler` is not used: it keeps one handler for each signal, and would replace the program's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _stops:
        _taken.enter_context(_signals(lambda: [each() for each in _stops]))
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _taken.close()


class _Http(ThreadingHTTPServer):
    """The HTTP server of `Server`: one thread for each connection, and one event loop for async handlers."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, worker: Worker, host: str, port: int) -> None:
        self.worker, self.stopping = worker, False
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._guard = threading.Condition()
        # Each open connection, and whether a call runs on it. Written by `mark`, read by `drain`, both under `_guard`.
        self._connections: dict[socket.socket, bool] = {}
        # For each connection with a running call: what to do if the engine closes it. Written by `_watched`, read by `service_actions`.
        self._calls: dict[socket.socket, Callable[[], object]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._none_waits = False
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise OSError(error.errno, f"can't listen on {host}, port {port}: {error.strerror}") from None
        if worker.async_handlers():
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="xdb-loop", daemon=True).start()

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes, connection: socket.socket) -> Reply:
        opened = self.worker.open(method, path, headers, body)
        if isinstance(opened, Reply):
            return opened
        if not opened.is_async or self._loop is None:
            with self._watched(connection, opened.abandon):
                return self.worker.run(opened)
        running = asyncio.run_coroutine_threadsafe(opened.run_async(), self._loop)
        abandoned: list[Reply] = []

        def gone() -> None:
            # In this order, because a cancelled handler may read `self.call.cancelled`.
            abandoned.append(opened.abandon())
            running.cancel()

        with self._watched(connection, gone):
            try:
                return running.result()
            except CancelledError:
                return abandoned[0] if abandoned else opened.abandon()

    @contextlib.contextmanager
    def _watched(self, connection: socket.socket, gone: Callable[[], object]) -> Iterator[None]:
        with self._guard:
            self._calls[connection] = gone
        try:
            yield
        finally:
            with self._guard:
                self._calls.pop(connection, None)

    def service_actions(self) -> None:
        """Cancels calls whose connection was closed by the engine. `serve_forever` calls this after each turn."""
        with self._guard:
            calls = list(self._calls.items())
        for connection, gone in calls:
            if _is_closed(connection):
                with self._guard:
                    # The call may have been answered in the meantime.
                    if self._calls.get(connection) is gone:
                        del self._calls[connection]
                        gone()

    def process_request(self, request: Any, client_address: Any) -> None:
        # Marked here and not in the connection's thread, so that `drain` also waits for connections that were just accepted.
        self.mark(request, False)
        super().process_request(request, client_address)

    def mark(self, connection: socket.socket, runs: bool | None) -> None:
        """Records whether a call runs on a connection. None: the connection was closed."""
        with self._guard:
            if runs is None:
                self._connections.pop(connection, None)
            else:
                self._connections[connection] = runs
            self._guard.notify_all()

    def take_waiting(self) -> None:
        """Accepts connections that wait in the kernel's queue. Closing the socket would reset them."""
        self.timeout, self._none_waits = 0, False
        for _ in range(self.request_queue_size):
            if self._none_waits:
                break
            self.handle_request()

    def handle_timeout(self) -> None:
        self._none_waits = True

    def drain(self, grace: float) -> bool:
        """Ends idle connections at once and the others after their answer. Returns whether no call runs after `grace` seconds."""
        ends = time.monotonic() + grace
        with self._guard:
            while self._connections:
                for connection, runs in self._connections.items():
                    if not runs:
                        # Shut down for reading only: a call that has arrived is still read and answered.
                        with contextlib.suppress(OSError):
                            connection.shutdown(socket.SHUT_RD)
                left = ends - time.monotonic()
                if left <= 0:
                    return not any(self._connections.values())
                self._guard.wait(left)
        return True

    def shutdown_request(self, request: Any) -> None:
        try:
            super().shutdown_request(request)
        finally:
            self.mark(request, None)

    def end_loop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def handle_error(self, request: Any, client_address: Any) -> None:
        broken = isinstance(sys.exc_info()[1], OSError)
        log.log(logging.DEBUG if broken else logging.ERROR, "a connection failed", exc_info=True)


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other end has closed the connection. Reads nothing from it. False if the system can't check without waiting."""
    if not hasattr(socket, "MSG_DONTWAIT"):
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class _Handler(BaseHTTPRequestHandler):
    """Reads the requests of one connection and writes their answers."""

    protocol_version = "HTTP/1.1"
    # Buffer writes, so that header and body go out in one packet.
    wbufsize = -1
    connection: socket.socket

    @property
    def _http(self) -> _Http:
        assert isinstance(self.server, _Http)
        return self.server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

    def _serve(self) -> None:
        self._http.mark(self.connection, True)
        try:
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                path, body = self.path.partition("?")[0], self._body(headers)
                reply = self._http.answer(self.command, path, headers, body, self.connection)
            except BadRequest as error:
                reply = error.reply
                self.close_connection = True
            self.send_response(reply.status)
            for name, value in reply.all_headers.items():
                self.send_header(name, value)
            if self._http.stopping:
                self.close_connection = True
            if self.close_connection:
                self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(reply.body)
            self.wfile.flush()
        finally:
            self._http.mark(self.connection, False)

    do_POST = do_GET = do_PUT = do_DELETE = do_PATCH = _serve

    def _body(self, headers: dict[str, str]) -> bytes:
        length = length_of(headers.get("content-length", "0"))
        if length is None or "transfer-encoding" in headers:
            raise BadRequest(400, "BadRequest", "the request has no Content-Length: this server does not read chunked bodies")
        self._http.worker.refuse_size(length)
        return self.rfile.read(length)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
