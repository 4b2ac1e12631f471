"""OpenTelemetry spans for calls. Needs `opentelemetry-api`: install the extra `otel`. No other module imports this one.

A span covers one call, never a wait: a process may take days.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .call import Call
from .request import Around

if TYPE_CHECKING:
    from .client import AsyncClient, Client
    from .pull import AsyncPullWorker, PullWorker
    from .worker import Worker

_W3C = TraceContextTextMapPropagator()


def instrument(
    worker: Worker | PullWorker | AsyncPullWorker | None = None,
    client: Client | AsyncClient | None = None,
    *,
    mode: Literal["parent", "link"] = "parent",
) -> None:
    """Makes a span for each call of `worker`, and passes the current trace context on with starts and RPCs of `client`.

    `mode="parent"`: the span is part of the trace that the process was started with. `mode="link"`: each call has its own trace, with a
    link to that one, which suits processes of days.
    """
    if client is not None:
        client._traceparent = current_traceparent
    if worker is not None:
        worker.add_around(_spans(mode))


def _spans(mode: str) -> Around:
    tracer = trace.get_tracer("xdb")

    @contextlib.contextmanager
    def span(call: Call, api: str) -> Iterator[None]:
        inside = trace.get_current_span().get_span_context().is_valid
        carrier = {"traceparent": call.traceparent} if call.traceparent else {}
        given = _W3C.extract(carrier, context=context.Context())
        start = trace.get_current_span(given).get_span_context()
        links = [trace.Link(start)] if start.is_valid and (mode == "link" or inside) else []
        # If the HTTP server has made a span for the request, that stays the parent.
        parent = None if inside else context.Context() if mode == "link" else given
        with tracer.start_as_current_span(
            f"xdb.{api} {call.process_type}/{call.state or call.rpc}",
            context=parent,
            kind=trace.SpanKind.INTERNAL if inside else trace.SpanKind.SERVER,
            attributes=_attributes(call),
            links=links,
        ):
            yield

    return span


def _attributes(call: Call) -> dict[str, Any]:
    found = {
        "xdb.process.id": call.process_id,
        "xdb.execution.id": call.execution_id,
        "xdb.state.id": call.state_execution_id,
        "xdb.attempt": call.attempt,
        "xdb.call.id": call.id,
    }
    return {name: value for name, value in found.items() if value is not None}


def current_traceparent() -> str | None:
    """The current trace context as a W3C `traceparent`, or None. For `traceparent=` of a start."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier)
    return carrier.get("traceparent")
