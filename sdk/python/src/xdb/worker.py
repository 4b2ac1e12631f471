"""The HTTP worker: answers the engine's calls for some process classes. As an ASGI or WSGI application, or with `xdb.serve()`.

`open` checks a request, `run` runs its handler; the adapters (asgi.py, wsgi.py, serve.py) call both. request.py has the call itself.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .codec import CodecError, dumps, loads
from .logging import log
from .process import Process
from .request import FULL_SECONDS, Around, BadRequest, Job, Reply, error_reply, length_of, read, try_again, waits_by_function
from .signatures import BadSignature, key_of, verify
from .states import Member
from .version import VERSION

if TYPE_CHECKING:
    from .admin import Change
    from .asgi import AsgiApp
    from .wsgi import WsgiApp

BASE = "/api/v1/xdb/worker/"
ROUTES = {
    BASE + "async-state/wait-until": "wait-until",
    BASE + "async-state/execute": "execute",
    BASE + "process/rpc": "rpc",
    BASE + "health": "health",
}

# Seconds between two log lines of a worker that is full.
FULL_IS_TOLD_EVERY = 60.0


@dataclass(frozen=True)
class _Options:
    """The arguments of `Worker`, checked. Written once, read by every request."""

    keys: tuple[bytes, ...] = field(repr=False)
    tolerance: float
    threads: int
    max_body: int
    debug: bool


class Worker:
    """Answers the engine's calls for these process classes.

    - `secret`: the secret that the worker is registered with. A list while you replace one. Default: calls are not checked.
    - `tolerance`: how old a signature may be, in seconds. Default 300.
    - `threads`: how many ordinary handlers of states run at a time. The engine retries further calls later, without a failed attempt.
      Default 64.
    - `max_body`: the longest request body, in bytes. Default 16 MiB.
    - `debug`: the answer to a failed call contains the traceback. Default off.

    Raises `TypeError` or `ValueError` if there is no process class, or if two have the same name.
    """

    def __init__(
        self,
        *processes: type[Process],
        secret: str | Sequence[str] | None = None,
        tolerance: float | timedelta = 300,
        threads: int = 64,
        max_body: int = 16 * 1024 * 1024,
        debug: bool = False,
    ) -> None:
        if not processes:
            raise TypeError("a worker needs a process class, as in xdb.Worker(SignUp)")
        self.types: dict[str, type[Process]] = {}
        for each in processes:
            if not (isinstance(each, type) and issubclass(each, Process) and each is not Process):
                raise TypeError(f"{each!r} is not a subclass of xdb.Process: give the class itself")
            if each._xdb.name in self.types:
                raise TypeError(f"two process classes have the name {each._xdb.name!r}: give one of them another name=")
            self.types[each._xdb.name] = each
        self._secrets = (secret,) if isinstance(secret, str) else tuple(secret or ())
        if secret is not None and not self._secrets:
            raise ValueError("secret= is an empty list, so calls would not be checked: give a secret, or None if calls are not signed")
        if threads < 1:
            raise ValueError(f"threads={threads} is less than 1: it is how many ordinary handlers run at a time")
        seconds = tolerance.total_seconds() if isinstance(tolerance, timedelta) else tolerance
        self.options = _Options(tuple(key_of(each) for each in self._secrets), seconds, threads, max_body, debug)
        self._around: list[Around] = []
        self._warned = False
        self._places = threading.BoundedSemaphore(threads)
        self._told_full_at = -math.inf

    @property
    def processes(self) -> tuple[type[Process], ...]:
        """The process classes that the worker serves."""
        return tuple(self.types.values())

    # --- registering -------------------------------------------------------------------------------------------------

    def register(
        self,
        conn: Any,
        *,
        worker_name: str,
        url: str,
        max_concurrency: int | None = None,
        force: bool = False,
        no_secret: bool = False,
        dry_run: bool = False,
    ) -> list[Change]:
        """Registers the worker and its processes in the connection's transaction. Returns what that changes.

        Calls are signed with the worker's first secret. `max_concurrency` is how many calls the engine makes at a time, by default the
        worker's `threads`; raise it if several instances share one address. Other options as for `Admin.register`, which has more.
        """
        from .admin import Admin

        secret = next(iter(self._secrets), None)
        with Admin() as admin:
            return admin.register(
                self,
                name=worker_name,
                url=url,
                secret=secret,
                max_concurrency=max_concurrency,
                force=force,
                no_secret=no_secret,
                dry_run=dry_run,
                conn=conn,
            )

    def sql(self, worker_name: str, url: str, *, secret: str | None = None) -> str:
        """Returns an SQL script that registers the worker and its processes, for migrations. `secret`: `env:NAME` or `file:NAME`."""
        from .admin import sql

        return sql(self, name=worker_name, url=url, secret=secret)

    # --- the core ----------------------------------------------------------------------------------------------------

    def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answers one request. Adapters call this, or its two halves `open` and `run`."""
        opened = self.open(method, path, headers, body)
        return opened if isinstance(opened, Reply) else self.run(opened)

    def run(self, job: Job) -> Reply:
        """Runs a call in this thread, unless the worker is full."""
        if not job.takes_place:
            return job.run()
        if not self.take_place():
            return self.full()
        try:
            return job.run()
        finally:
            self.leave_place()

    def take_place(self) -> bool:
        """Takes one of the worker's threads, if one is free, and returns whether it did. `leave_place` gives the thread back."""
        return self._places.acquire(blocking=False)

    def leave_place(self) -> None:
        """Gives back the thread that `take_place` took."""
        self._places.release()

    def full(self) -> Reply:
        """The answer to a call for which no thread is free."""
        detail = (
            f"all {self.options.threads} threads of the worker are busy, so the engine will retry the call: "
            "give the worker more threads=, or register it with a lower max_concurrency"
        )
        now = time.monotonic()
        if now - self._told_full_at >= FULL_IS_TOLD_EVERY:
            self._told_full_at = now
            log.warning("%s", detail)
        return try_again(error_reply(503, "WorkerFull", detail), FULL_SECONDS)

    @property
    def concurrency(self) -> int | None:
        """How many calls of states the worker runs at a time. None: no limit, because all handlers of states are async."""
        states = [state for cls in self.types.values() for state in cls._xdb.states.values()]
        ordinary = any(not state.handler.is_async or waits_by_function(state) for state in states)
        return self.options.threads if ordinary else None

    def open(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Job | Reply:
        """Checks a request. Returns its call, or the answer if the request is no valid call or asks for the health page."""
        api = self.route(path)
        refused = self.refuse(method, api, path)
        if refused is not None:
            return refused
        if api == "health":
            return self.health()
        names = {name.lower(): value for name, value in headers.items()}
        try:
            request = self._read_body(names, body)
            key, trace = names.get("idempotency-key", ""), names.get("traceparent")
            return replace(
                read(str(api), request, key, trace, self.types), around=self._around, debug=self.options.debug
            )
        except BadRequest as error:
            log.warning("refused a call: %s", error)
            return error.reply
        except BadSignature as error:
            log.warning("refused a call: %s", error)
            return error_reply(401, "BadSignature", str(error))

    def _read_body(self, headers: Mapping[str, str], body: bytes) -> Any:
        told = length_of(headers.get("content-length"))
        if told is not None and told != len(body):
            raise BadRequest(
                500,
                "RawBodyConsumed",
                f"only {len(body)} of {told} bytes of the body are left, because other code has read it: mount the worker "
                "before, or outside of, the middleware that reads bodies",
            )
        self.refuse_size(len(body))
        if self.options.keys:
            verify(self.options.keys, headers, body, time.time(), self.options.tolerance)
        try:
            return loads(body)
        except (ValueError, CodecError, RecursionError) as error:
            raise BadRequest(400, "BadRequest", f"the body is not JSON: {error}") from None

    def refuse_size(self, size: int) -> None:
        """Raises `BadRequest` for a body of more than `max_body` bytes. Adapters call it before they read the body."""
        most = self.options.max_body
        if size > most:
            detail = f"the body has {size} bytes, and the limit is {most}: raise max_body= of the worker"
            raise BadRequest(413, "RequestTooLarge", detail)

    @staticmethod
    def route(path: str) -> str | None:
        """Which path of the protocol this is, under any prefix. None for other paths."""
        at = path.rfind(BASE)
        return ROUTES.get(path[at:]) if at >= 0 else None

    @staticmethod
    def refuse(method: str, api: str | None, path: str) -> Reply | None:
        """The answer to a wrong path or method, or None."""
        if api is None:
            return error_reply(404, "NotFound", f"{path} is not a path of the protocol: those begin with {BASE}")
        allowed = "GET" if api == "health" else "POST"
        if method.upper() == allowed:
            return None
        refused = error_reply(405, "MethodNotAllowed", f"{path} takes {allowed}, not {method}")
        return replace(refused, headers={"allow": allowed})

    def health(self) -> Reply:
        """The answer of the health page: the SDK's version and the served process types. It needs no signature, and has no secrets."""
        types = {name: f"sha256:{each.definition_hash()}" for name, each in self.types.items()}
        return Reply(200, dumps({"sdk": f"python/{VERSION}", "types": types}))

    # --- adapters ----------------------------------------------------------------------------------------------------

    def asgi(self, path: str = "") -> AsgiApp:
        """Returns an ASGI application, for instance for uvicorn. With `path`, it answers only below that path."""
        from .asgi import AsgiApp

        return AsgiApp(self, path)

    def wsgi(self, path: str = "") -> WsgiApp:
        """Returns a WSGI application, for instance for gunicorn. With `path`, it answers only below that path.

        Raises `TypeError` if the worker has async handlers.
        """
        from .wsgi import WsgiApp

        return WsgiApp(self, path)

    def add_around(self, around: Around) -> None:
        """Adds a context manager around each handler. It is called with the call and the API: `wait-until`, `execute` or `rpc`."""
        self._around.append(around)

    def async_handlers(self) -> list[str]:
        """The names of the handlers that are `async def`, for messages."""
        members: list[Member] = []
        for cls in self.types.values():
            members += [*cls._xdb.states.values(), *cls._xdb.rpcs.values()]
        return [each.label for each in members if each.handler.is_async]

    def warn_if_open(self, host: str | None) -> None:
        """Logs once that there is no secret, if the address can be reached from other machines."""
        if self.options.keys or self._warned or not host or _is_loopback(host):
            return
        self._warned = True
        log.warning("calls are not signed, and other machines can reach %s: give the worker a secret", host)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
