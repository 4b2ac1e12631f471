"""The worker as a WSGI application.

Limitations: no async handlers, and a handler whose time is over can't be cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from .request import BadRequest, Reply, error_reply, length_of

if TYPE_CHECKING:
    from .worker import Worker

Environ = dict[str, Any]
StartResponse = Callable[..., Any]


class WsgiApp:
    """The WSGI application of a worker. Made by `Worker.wsgi`. Handlers run in the threads of the WSGI server."""

    def __init__(self, worker: Worker, path: str = "") -> None:
        found = worker.async_handlers()
        if found:
            raise TypeError(f"a WSGI application can't run async handlers ({', '.join(found)}): use worker.asgi(), or `def`")
        self.worker, self.path = worker, path.rstrip("/")

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        reply = self._reply(environ)
        status = f"{reply.status} {HTTPStatus(reply.status).phrase}"
        start_response(status, list(reply.all_headers.items()))
        return [reply.body]

    def _reply(self, environ: Environ) -> Reply:
        self.worker.warn_if_open(environ.get("REMOTE_ADDR"))
        path = environ.get("PATH_INFO", "")
        if self.path and not path.startswith(self.path + "/"):
            return error_reply(404, "NotFound", f"{path} is not below {self.path}")
        headers = {
            name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")
        }
        try:
            body, length = self._body(environ)
        except BadRequest as error:
            return error.reply
        if length is not None:
            headers["content-length"] = str(length)
        return self.worker.handle(environ["REQUEST_METHOD"], environ.get("SCRIPT_NAME", "") + path, headers, body)

    def _body(self, environ: Environ) -> tuple[bytes, int | None]:
        length = length_of(environ.get("CONTENT_LENGTH"))
        self.worker.refuse_size(length or 0)
        if length is None and not environ.get("wsgi.input_terminated"):
            return b"", None
        body: bytes = environ["wsgi.input"].read(self.worker.options.max_body + 1 if length is None else length)
        return body, length
