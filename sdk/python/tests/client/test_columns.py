"""Columns of every type that has one in Python: read by a step and written back, they are what they were."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from shop import HOSTILE, set_for_role

import xdb

TABLE = """CREATE TABLE things (id text PRIMARY KEY, exact numeric, nan numeric, ratio float8, inf float8, whole bigint, yes boolean,
    at timestamptz, local timestamp, day date, clock time, span interval, known uuid, raw bytea, doc jsonb, words text[], grid int[][],
    nothing text);
INSERT INTO things VALUES ('t', 100000000000000000001.10, 'NaN', 0.1, '-Infinity', 9007199254740993, true,
    '2026-03-29 02:30:00.123456+01', '2026-03-29 02:30', '2026-02-28', '23:59:59.5', '1 day 02:03:04.5', %s, '\\x00ff', %s,
    '{"a,b",NULL,"ü"}', '{{1,2},{3,4}}', NULL)"""


class Thing(xdb.Row, table="public.things", key="id"):
    exact: Decimal
    nan: Decimal
    ratio: float
    inf: float
    whole: int
    yes: bool
    at: datetime
    local: datetime
    day: date
    clock: time
    span: timedelta
    known: UUID
    raw: bytes
    doc: dict[str, Any]
    words: list[str | None]
    grid: list[list[int]]
    nothing: str | None


SEEN: dict[str, Any] = {}


class Copies(xdb.Process):
    thing: Thing

    @xdb.state(start=True)
    def copy(self) -> xdb.Decision:
        for name in Thing._attributes:
            SEEN[name] = getattr(self.thing, name)
            setattr(self.thing, name, SEEN[name])
        return xdb.complete()


def test_there_and_back(xdb_db: Any) -> None:
    xdb_db.execute(TABLE.split(";")[0])
    xdb_db.execute(TABLE.split(";")[1], UUID(int=7), '{"n": 1.5, "deep": [{"ü": null}]}')
    before = xdb_db.execute("SELECT t::text FROM things AS t")
    # Whatever the sessions of the role write, what a worker gets is the same.
    set_for_role(xdb_db, **HOSTILE, bytea_output="escape")
    xdb_db.serve(Copies)
    with pytest.raises(xdb.CodecError, match="this int can't become JSON"):
        xdb_db.client.start(Copies, "c", rows=[Thing.row("t", ratio=10**400)])
    xdb_db.client.start(Copies, "c", rows=[Thing.row("t")])
    outcome = xdb_db.client.wait(Copies, "c", timeout=60)
    assert outcome.status == "COMPLETED", xdb_db.client.describe("c")
    with psycopg.connect(xdb_db.superuser_dsn) as conn:
        assert conn.execute("SELECT t::text FROM public.things AS t").fetchall() == before
    assert (SEEN["exact"], str(SEEN["nan"]), SEEN["whole"]) == (Decimal("100000000000000000001.10"), "NaN", 9007199254740993)
    assert SEEN["at"] == datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=timezone.utc) and SEEN["at"].utcoffset() is not None
    assert SEEN["local"] == datetime(2026, 3, 29, 2, 30) and SEEN["span"] == timedelta(days=1, hours=2, minutes=3, seconds=4.5)
    assert (SEEN["raw"], SEEN["words"], SEEN["grid"]) == (b"\0\xff", ["a,b", None, "ü"], [[1, 2], [3, 4]])
