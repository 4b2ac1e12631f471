"""What an instrumented client starts and calls belongs to the trace of the moment."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import xdb
from xdb import otel

TRACER = TracerProvider().get_tracer("application")


class Traced(xdb.Process):
    seen = xdb.Queue[str]()

    @xdb.state(start=True)
    def begin(self) -> xdb.Decision:
        return xdb.complete(self.call.traceparent)

    @xdb.rpc
    def ask(self) -> str | None:
        return self.call.traceparent


def of(span: trace.Span) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def started(db: Any, process_id: str) -> Any:
    return db.client.wait(Traced, process_id).result


@pytest.fixture
def db(xdb_db: Any) -> Any:
    xdb_db.serve(Traced)
    return xdb_db


def test_starts_and_rpcs_belong_to_the_trace_of_the_moment(db: Any) -> None:
    with xdb.Client(db.dsn) as client:
        with TRACER.start_as_current_span("before"):
            client.start(Traced, "untraced")
        assert started(db, "untraced") is None
        otel.instrument(client=client)
        client.start(Traced, "outside")
        given = f"00-{'1' * 32}-{'2' * 16}-01"
        with TRACER.start_as_current_span("start") as first:
            client.start(Traced, "one")
            client.start(Traced, "given", traceparent=given)
            client.start_many([xdb.Start(Traced, "many")])
        assert [started(db, id) for id in ("outside", "one", "given", "many")] == [None, of(first), given, of(first)]
        with TRACER.start_as_current_span("rpc") as second:
            assert client.rpc(Traced.ask, "one") == of(second)
        assert client.rpc(Traced.ask, "one") == of(first)
        with psycopg.connect(db.dsn) as conn:
            with TRACER.start_as_current_span("in a transaction") as third:
                assert client.rpc(Traced.ask, "one", conn=conn) == of(third)
            conn.commit()
            assert conn.execute("SHOW xdb.traceparent").fetchone() == ("",)


def test_for_coroutines_too(db: Any) -> None:
    async def use() -> None:
        async with xdb.AsyncClient(db.dsn) as client:
            otel.instrument(client=client)
            with TRACER.start_as_current_span("start") as first:
                await client.start(Traced, "one")
                await client.start_many([xdb.Start(Traced, "many")])
            with TRACER.start_as_current_span("rpc") as second:
                assert await client.rpc(Traced.ask, "one") == of(second)
            assert [(await client.wait(Traced, id)).result for id in ("one", "many")] == [of(first)] * 2

    asyncio.run(use())
