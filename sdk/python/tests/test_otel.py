from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from support import EXECUTION, PATHS, headers, request

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import xdb
from xdb import otel

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
EXPORTER = InMemorySpanExporter()


class Traced(xdb.Process):
    @xdb.state
    def works(self) -> xdb.Decision:
        return xdb.complete(otel.current_traceparent())

    @xdb.state
    async def raises(self) -> xdb.Decision:
        raise LookupError("no")


@pytest.fixture(autouse=True)
def spans() -> Iterator[InMemorySpanExporter]:
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
        trace.set_tracer_provider(provider)
    EXPORTER.clear()
    logging.getLogger("xdb.worker").setLevel(logging.CRITICAL)
    yield EXPORTER
    logging.getLogger("xdb.worker").setLevel(logging.NOTSET)


def call(state: str, traceparent: str = f"00-{TRACE}-{SPAN}-01", **options: Any) -> Any:
    worker = xdb.Worker(Traced)
    otel.instrument(worker, **options)
    body = request("Traced", state)
    worker.handle("POST", PATHS["execute"], headers(body, traceparent=traceparent), body)
    (span,) = EXPORTER.get_finished_spans()
    return span


def test_a_call_is_a_span_below_the_trace_of_the_process() -> None:
    span = call("works")
    assert (span.name, span.kind) == ("xdb.execute Traced/works", trace.SpanKind.SERVER)
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert dict(span.attributes) == {
        "xdb.process.id": "p-1",
        "xdb.execution.id": EXECUTION,
        "xdb.state.id": "works-1",
        "xdb.attempt": 1,
        "xdb.call.id": f"{EXECUTION}/works-1/execute",
    }


def test_a_failed_call_is_a_failed_span() -> None:
    span = call("raises")
    assert not span.status.is_ok and span.events[0].attributes["exception.message"] == "no"


def test_a_link_in_place_of_a_parent() -> None:
    span = call("works", mode="link")
    assert span.parent is None and f"{span.context.trace_id:032x}" != TRACE
    assert [f"{each.context.trace_id:032x}" for each in span.links] == [TRACE]


def test_the_span_of_a_server_stays_the_parent() -> None:
    with trace.get_tracer("server").start_as_current_span("POST") as server:
        span = call("works")
    assert span.kind is trace.SpanKind.INTERNAL
    assert span.parent.span_id == server.get_span_context().span_id


def test_without_a_traceparent_a_trace_begins() -> None:
    assert call("works", traceparent="nonsense").parent is None
