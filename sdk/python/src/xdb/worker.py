"""A worker: the processes of a program, as an ASGI or WSGI application or by `xdb.serve()`."""

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

# Seconds: a worker that is full says so in its log this often.
FULL_IS_TOLD_EVERY = 60.0


@dataclass(frozen=True)
class _Options:
    """What a worker was made with."""

    keys: tuple[bytes, ...] = field(repr=False)
    tolerance: float
    threads: int
    max_body: int
    debug: bool


class Worker:
    """Answers the engine's calls for these processes.

    `secret` is that of `xdb.register_worker`; several while one takes the place of another. `threads` is how many ordinary
    handlers of states run at a time; further calls are made again later, which is no failed attempt. With `debug` the answer to a
    failed call has the traceback.
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
            raise TypeError("a worker needs its processes, as in xdb.Worker(SignUp)")
        self.types: dict[str, type[Process]] = {}
        for each in processes:
            if not (isinstance(each, type) and issubclass(each, Process) and each is not Process):
                raise TypeError(f"{each!r} is no class of a process")
            if each._xdb.name in self.types:
                raise TypeError(f"two of the processes are called {each._xdb.name!r}: give one another name=")
            self.types[each._xdb.name] = each
        self._secrets = (secret,) if isinstance(secret, str) else tuple(secret or ())
        if secret is not None and not self._secrets:
            raise ValueError("secret= has no secret in it, so that everybody could call: give one, or None if that is meant")
        if threads < 1:
            raise ValueError("threads= is how many ordinary handlers run at a time, one at least")
        seconds = tolerance.total_seconds() if isinstance(tolerance, timedelta) else tolerance
        self.options = _Options(tuple(key_of(each) for each in self._secrets), seconds, threads, max_body, debug)
        self._around: list[Around] = []
        self._warned = False
        self._places = threading.BoundedSemaphore(threads)
        self._told_full_at = -math.inf

    @property
    def processes(self) -> tuple[type[Process], ...]:
        """The classes that it serves."""
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
        """Registers itself and its processes as a part of the connection's transaction, and gives what that changes.

        Calls are signed with its secret, the first one if it has several. It gets as many at a time as it has threads, if nothing is
        said: several instances behind one address take more. `Admin.register` says what `no_secret` is, and has further options.
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
        """A script that registers the same, for migrations; `secret` is a reference, `env:NAME` or `file:NAME`."""
        from .admin import sql

        return sql(self, name=worker_name, url=url, secret=secret)

    # --- the core ----------------------------------------------------------------------------------------------------

    def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answers one request. All adapters do it with this, or with its two halves."""
        opened = self.open(method, path, headers, body)
        return opened if isinstance(opened, Reply) else self.run(opened)

    def run(self, job: Job) -> Reply:
        """Runs a call in this thread, if its worker is not full."""
        if not job.takes_place:
            return job.run()
        if not self.take_place():
            return self.full()
        try:
            return job.run()
        finally:
            self.leave_place()

    def take_place(self) -> bool:
        """Whether one of the worker's threads is free; it is the caller's then, until `leave_place`."""
        return self._places.acquire(blocking=False)

    def leave_place(self) -> None:
        """Gives a thread back."""
        self._places.release()

    def full(self) -> Reply:
        """The answer to a call for which no thread is free."""
        detail = (
            f"all {self.options.threads} threads of the worker are at work, so the call is made again later: "
            "give the worker more threads=, or register it with a lower max_concurrency"
        )
        now = time.monotonic()
        if now - self._told_full_at >= FULL_IS_TOLD_EVERY:
            self._told_full_at = now
            log.warning("%s", detail)
        return try_again(error_reply(503, "WorkerFull", detail), FULL_SECONDS)

    @property
    def concurrency(self) -> int | None:
        """How many calls of states it takes at a time. None: no bound, since all of their handlers are async."""
        states = [state for cls in self.types.values() for state in cls._xdb.states.values()]
        ordinary = any(not state.handler.is_async or waits_by_function(state) for state in states)
        return self.options.threads if ordinary else None

    def open(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Job | Reply:
        """The call of a request, or what is answered where there is none."""
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
            log.warning("a call was refused: %s", error)
            return error.reply
        except BadSignature as error:
            log.warning("a call was refused: %s", error)
            return error_reply(401, "BadSignature", str(error))

    def _read_body(self, headers: Mapping[str, str], body: bytes) -> Any:
        told = length_of(headers.get("content-length"))
        if told is not None and told != len(body):
            raise BadRequest(
                500,
                "RawBodyConsumed",
                f"{len(body)} of {told} bytes of the body are left: something before XDB has read it. Mount the worker "
                "before, or outside of, the middleware that reads bodies",
            )
        self.refuse_size(len(body))
        if self.options.keys:
            verify(self.options.keys, headers, body, time.time(), self.options.tolerance)
        try:
            return loads(body)
        except (ValueError, CodecError, RecursionError) as error:
            raise BadRequest(400, "BadRequest", f"the body can't be read as JSON: {error}") from None

    def refuse_size(self, size: int) -> None:
        """Raises for a body that is larger than it takes. Adapters ask before they read it."""
        most = self.options.max_body
        if size > most:
            detail = f"the body has {size} bytes, more than {most}: raise max_body of the worker"
            raise BadRequest(413, "RequestTooLarge", detail)

    @staticmethod
    def route(path: str) -> str | None:
        """Which of the protocol's paths this is, under whatever prefix."""
        at = path.rfind(BASE)
        return ROUTES.get(path[at:]) if at >= 0 else None

    @staticmethod
    def refuse(method: str, api: str | None, path: str) -> Reply | None:
        """The answer to what is asked at a wrong place or in a wrong way."""
        if api is None:
            return error_reply(404, "NotFound", f"{path} is none of the paths under {BASE}")
        allowed = "GET" if api == "health" else "POST"
        if method.upper() == allowed:
            return None
        refused = error_reply(405, "MethodNotAllowed", f"{path} takes {allowed}")
        return replace(refused, headers={"allow": allowed})

    def health(self) -> Reply:
        """What runs here. It needs no signature and has no secret in it."""
        types = {name: f"sha256:{each.definition_hash()}" for name, each in self.types.items()}
        return Reply(200, dumps({"sdk": f"python/{VERSION}", "types": types}))

    # --- adapters ----------------------------------------------------------------------------------------------------

    def asgi(self, path: str = "") -> AsgiApp:
        """An ASGI application, for uvicorn and the like. With `path` it answers below that alone."""
        from .asgi import AsgiApp

        return AsgiApp(self, path)

    def wsgi(self, path: str = "") -> WsgiApp:
        """A WSGI application, for gunicorn and the like. With `path` it answers below that alone."""
        from .wsgi import WsgiApp

        return WsgiApp(self, path)

    def add_around(self, around: Around) -> None:
        """Has each handler called within this context manager, which gets the call and which API it is."""
        self._around.append(around)

    def async_handlers(self) -> list[str]:
        """Its handlers that are `async def`."""
        members: list[Member] = []
        for cls in self.types.values():
            members += [*cls._xdb.states.values(), *cls._xdb.rpcs.values()]
        return [each.label for each in members if each.handler.is_async]

    def warn_if_open(self, host: str | None) -> None:
        """Says once that everybody who reaches the address may call, if there is no secret."""
        if self.options.keys or self._warned or not host or _is_loopback(host):
            return
        self._warned = True
        log.warning("calls are not signed, and %s can be reached from elsewhere: give the worker a secret", host)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
