"""The worker as an ASGI application. Limitations: no WebSocket, and a `lifespan` that only ends its threads."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .request import BadRequest, Job, Reply, error_reply, length_of

if TYPE_CHECKING:
    from .worker import Worker

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Seconds. The engine sends header and body together, so if the first part of a body does not come, a middleware has read it.
FIRST_PART_SECONDS = 5.0


class AsgiApp:
    """The ASGI application of a worker. Made by `Worker.asgi`.

    Async handlers run on the event loop. Ordinary handlers run in threads that belong to this application alone. RPCs have the same
    number of separate threads. They wait for a free one, because the engine does not retry RPCs.
    """

    def __init__(self, worker: Worker, path: str = "") -> None:
        self.worker, self.path = worker, path.rstrip("/")
        threads = worker.options.threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="xdb")
        self._rpc_threads = ThreadPoolExecutor(threads, thread_name_prefix="xdb-rpc")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            reply = await self._reply(scope, receive)
            headers = [(name.encode(), value.encode()) for name, value in reply.all_headers.items()]
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await send({"type": "http.response.body", "body": reply.body})
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                # By then the server has finished all requests.
                for each in (self._threads, self._rpc_threads):
                    each.shutdown(wait=False, cancel_futures=True)
                return

    async def _reply(self, scope: Scope, receive: Receive) -> Reply:
        server = scope.get("server")
        self.worker.warn_if_open(server[0] if server else None)
        path, root = scope["path"], scope.get("root_path") or ""
        if self.path and not path.removeprefix(root).startswith(self.path + "/"):
            return error_reply(404, "NotFound", f"{path} is not below {self.path}")
        headers = _headers(scope["headers"])
        api = self.worker.route(path)
        refused = self.worker.refuse(scope["method"], api, path)
        if refused is not None:
            return refused
        try:
            body = await self._body(receive, headers)
        except BadRequest as error:
            return error.reply
        opened = self.worker.open(scope["method"], path, headers, body)
        return opened if isinstance(opened, Reply) else await self._run_while_called(opened, receive)

    async def _body(self, receive: Receive, headers: dict[str, str]) -> bytes:
        """The body of the request. `Worker.open` refuses a body that is shorter than its Content-Length."""
        told = length_of(headers.get("content-length"))
        self.worker.refuse_size(told or 0)
        parts: list[bytes] = []
        size = 0
        while told != 0:
            try:
                message = await asyncio.wait_for(receive(), FIRST_PART_SECONDS if not parts else None)
            except asyncio.TimeoutError:
                break
            if message["type"] != "http.request":
                break
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            self.worker.refuse_size(size)
            if not message.get("more_body", False):
                break
        return b"".join(parts)

    async def _run_while_called(self, job: Job, receive: Receive) -> Reply:
        """Runs a call, and abandons it if the engine closes the connection: an async handler is cancelled."""
        running, gone = asyncio.ensure_future(self._run(job)), asyncio.ensure_future(_is_closed(receive))
        try:
            await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and await gone:
                abandoned = job.abandon()
                if job.is_async:
                    return abandoned
            return await running
        finally:
            gone.cancel()
            running.cancel()

    async def _run(self, job: Job) -> Reply:
        if job.is_known:
            return job.run()
        if job.is_async:
            return await job.run_async()
        if job.takes_place and not self.worker.take_place():
            return self.worker.full()
        threads = self._threads if job.takes_place else self._rpc_threads
        thread = threads.submit(contextvars.copy_context().run, job.run)
        if job.takes_place:
            thread.add_done_callback(lambda _: self.worker.leave_place())
        running = asyncio.wrap_future(thread)
        done, _ = await asyncio.wait({running}, timeout=job.seconds_left())
        if done:
            return running.result()
        # A call that still waits for a thread is cancelled, and never begins.
        return job.not_begun() if thread.cancel() else job.late()


async def _is_closed(receive: Receive) -> bool:
    """Waits until the engine has closed the connection. False: the server sent another event or failed, and is not asked again."""
    try:
        return bool((await receive())["type"] == "http.disconnect")
    except Exception:  # raised by a middleware
        return False


def _headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}
