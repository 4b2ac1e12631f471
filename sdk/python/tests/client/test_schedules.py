"""Cron timers, schedules and published changes: on the simulator, and on a server."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import psycopg
import pytest

import xdb
from xdb import errors
from xdb.testing.simulator import Simulator

# The night of 28 March 2027 leaves 02:30 out.
BEGINNING = datetime(2027, 3, 26, 12, tzinfo=timezone.utc)


class Nightly(xdb.Process, changes="nightly-events"):
    nights: int = 0

    @xdb.state(start=True, wait=xdb.cron("30 2 * * *", timezone="Europe/Berlin"))
    def sleep(self) -> xdb.Decision:
        self.nights += 1
        return xdb.complete(self.nights) if self.nights == 3 else self.sleep()


class Report(xdb.Process):
    @xdb.state(start=True)
    def write(self, kind: str) -> xdb.Decision:
        return xdb.complete(kind)


class Watch(xdb.Process):
    events = xdb.GlobalQueue[Any]("nightly-events")

    @xdb.state(start=True, wait=events.take(at_least=1, at_most=100))
    def take(self) -> xdb.Decision:
        return xdb.complete([message.payload["eventType"] for message in self.events.messages])


CHANGES = ["ProcessStarted", "StateStarted", *["StateCompleted", "StateStarted"] * 2, "StateCompleted", "ProcessClosed"]


def test_cron_timers_and_changes_on_the_simulator() -> None:
    with Simulator(Nightly, Watch, now=BEGINNING) as sim:
        sim.start(Nightly, "n")
        ticks = []
        for _ in range(3):
            sim.to_next_timer()
            ticks.append(sim.now.strftime("%d %H:%M"))
        assert ticks == ["27 01:30", "28 01:00", "29 00:30"]
        sim.settle()
        assert sim.client.wait(Nightly, "n").result == 3
        sim.start(Watch, "w")
        sim.settle()
        assert sim.client.wait(Watch, "w").result == CHANGES


def test_a_schedule_starts_a_process_at_each_tick(xdb_db: Any) -> None:
    xdb_db.serve(Report)
    start = xdb.Start(Report, "report-{time}", "daily")
    with pytest.raises(errors.UnknownProcessType):
        xdb_db.client.schedule("nightly", "@daily", start)
    schedule = (
        '{"startingState": "Tick", "states": {"Tick": {"waitUntilFunction": "xdb.schedule_wait",'
        ' "executeFunction": "xdb.schedule_tick"}}, "history": {"keepLast": 100}}'
    )
    with psycopg.connect(xdb_db.superuser_dsn) as conn:
        conn.execute("SELECT xdb.register_process_type('Schedule', NULL, %s::text::jsonb)", (schedule,))
    for wrong in ("0 0 31 2 *", "* * * * * *"):
        with pytest.raises(errors.InvalidArgument):
            xdb_db.client.schedule("nightly", wrong, start)
    with pytest.raises(errors.InvalidArgument, match="timezone"):
        xdb_db.client.schedule("nightly", "@daily", start, timezone="Europe/Nowhere")
    first = xdb_db.client.schedule("nightly", "0 3 * * *", start, timezone="Europe/Berlin")
    second = xdb_db.client.schedule("nightly", "0 4 * * *", start, timezone="Europe/Berlin")
    assert first.process_id == second.process_id == "nightly" and first != second
    xdb_db.clock.advance(days=2)
    reports = [one.process_id for one in xdb_db.client.list(process=Report)]
    assert len(reports) == 2 and all(report.startswith("report-20") for report in reports)
