from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal

import nightly_report
import psycopg
import pytest
from nightly_report import NightlyReport, ShopSales

import xdb
from xdb.testing.pytest_plugin import Database

SCHEDULE = {
    "startingState": "Tick",
    "states": {"Tick": {"waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}},
    "history": {"keepLast": 100},
}


@pytest.fixture
def db(xdb_db: Database) -> Database:
    xdb_db.serve(NightlyReport, ShopSales)
    with psycopg.connect(xdb_db.superuser_dsn) as conn:
        conn.execute("SELECT xdb.register_process_type('Schedule', NULL, %s::text::jsonb)", (json.dumps(SCHEDULE),))
    return xdb_db


def test_a_report_each_night(db: Database) -> None:
    nightly_report.schedule(db.client)
    nightly_report.schedule(db.client)  # replaced
    db.clock.advance(days=2)
    reports = list(db.client.list(process=NightlyReport))
    assert len(reports) == 2 and {report.status for report in reports} == {"COMPLETED"}
    assert db.client.wait(NightlyReport, reports[0].process_id).result == {"total": "1400", "missing": []}
    db.client.stop("nightly-report")


def test_one_shop_fails_and_one_does_not_answer_in_time(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def count_sales(shop: str) -> Decimal:
        if shop == "rome":
            raise ConnectionError("no power")
        if shop == "oslo":
            raise xdb.Retryable("Closed", after=timedelta(hours=1))
        return Decimal("12.30")

    monkeypatch.setattr(nightly_report, "count_sales", count_sales)
    db.client.start(NightlyReport, "report")
    outcome = db.clock.run_until_closed("report")
    assert (outcome.status, outcome.result) == ("COMPLETED", {"total": "12.30", "missing": ["oslo", "rome"]})
    statuses = {child.process_id: child.status for child in db.client.list(process=ShopSales)}
    assert statuses == {"report/berlin": "COMPLETED", "report/oslo": "TIMEOUT", "report/rome": "FAILED"}


def test_a_report_without_shops(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly_report, "open_shops", list)
    db.client.start(NightlyReport, "report")
    assert db.client.wait(NightlyReport, "report").result == {"total": "0", "missing": []}


def test_a_report_that_is_stopped_ends_its_children(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def count_sales(shop: str) -> Decimal:
        raise xdb.Retryable("Closed", after=timedelta(hours=1))

    monkeypatch.setattr(nightly_report, "count_sales", count_sales)
    db.client.start(NightlyReport, "report")
    db.clock.settle()
    db.client.stop("report")
    db.clock.settle()
    assert [child.status for child in db.client.list(process=ShopSales)] == ["TERMINATED"] * 3
