from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest
import subscription
from subscription import Plan, Subscription, months_after

from xdb.testing.pytest_plugin import Database


@pytest.fixture
def db(xdb_db: Database) -> Database:
    xdb_db.execute(subscription.TABLES)
    xdb_db.serve(Subscription)
    xdb_db.client.start(Subscription, "s", rows=[Plan.row("s", price=Decimal("9.90"), card="4242")])
    xdb_db.clock.settle()
    return xdb_db


def test_the_days() -> None:
    january = datetime(2027, 1, 31, tzinfo=timezone.utc)
    assert [months_after(january, months).day for months in (1, 2, 3, 12)] == [28, 31, 30, 31]
    assert months_after(january, 13) == datetime(2028, 2, 29, tzinfo=timezone.utc)


def test_thirteen_months(capsys: pytest.CaptureFixture[str], db: Database) -> None:
    began = db.client.describe("s").started_at.replace(microsecond=0)
    for months in range(1, 13):
        [(paid_until,)] = db.execute("SELECT paid_until FROM subscriptions")
        assert paid_until == months_after(began, months)
        db.clock.to_next_timer()
    assert capsys.readouterr().out.count("9.90 from 4242") == 13
    assert db.client.rpc(Subscription.cancel, "s", "moved away") == months_after(began, 13)
    assert db.client.wait(Subscription, "s").result == "cancelled after 13 months: moved away"
    assert db.execute("SELECT status FROM subscriptions") == [("cancelled",)]


def test_a_card_that_does_not_pay(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def charge(card: str, amount: Decimal, idempotency_key: str) -> None:
        raise PermissionError("the card has expired")

    monkeypatch.setattr(subscription, "charge", charge)
    outcome = db.clock.run_until_closed("s")
    assert (outcome.status, outcome.output) == ("FAILED", "not paid: the card has expired")
    described = db.client.describe("s")
    assert described.closed_at is not None and described.closed_at - described.started_at > timedelta(days=30)
    assert db.execute("SELECT status FROM subscriptions") == [("suspended",)]
